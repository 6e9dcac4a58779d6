//! Two ends of the message layer in one thread, joined by the loopback transport: what a message
//! costs above the transport, with nothing to wait for.
//!
//! [`Duo`] owns the memory that messages lie in and frees it after both ends are gone, so nothing
//! here asks its caller for promises. Units: bytes; a slot is [`SLOT`] bytes.

use std::sync::Arc;

use gapless_bml::{Bml, Rank};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_engine::{HostEngine, Typed};
use gapless_mem::{Device, HostDevice, Region};
use gapless_pml::{Config, Pml, RequestId, Source, TagSel};

use crate::error::Failure;

/// Bytes of a slot: one number.
pub const SLOT: u64 = 8;
/// Polls of both ends after which a message is taken for lost.
const POLLS_MAX: u32 = 1_000_000;

/// Two joined ends. Rank 0 sends, rank 1 receives.
pub struct Duo {
    /// Dropped before the memory that requests work on.
    ends: [Pml; 2],
    outbox: DuoMemory,
    inbox: DuoMemory,
}

/// An allocation that lives until dropped.
struct DuoMemory {
    device: HostDevice,
    region: Region,
}

impl Drop for DuoMemory {
    fn drop(&mut self) {
        // SAFETY: `DuoMemory::new` allocated this region with this device; the ends whose requests
        // worked on it are dropped before it (see `Duo`), and no reference to it is ever made.
        let freed = unsafe { self.device.free(self.region) };
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}

impl DuoMemory {
    fn new(bytes: u64) -> Result<DuoMemory, Failure> {
        let device = HostDevice::new();
        let region = device.allocate(bytes)?;
        Ok(DuoMemory { device, region })
    }
}

impl Duo {
    /// Two ends with `bytes` of memory each.
    ///
    /// # Errors
    /// Memory that cannot be had, ends that cannot be joined.
    pub fn new(bytes: u64) -> Result<Duo, Failure> {
        let hub = Hub::new();
        let mut bmls = [0, 1].map(|rank| {
            let mut bml = Bml::new(Rank(rank), 2);
            bml.add(Box::new(Loopback::new(&hub)));
            bml
        });
        let addresses = bmls.each_ref().map(Bml::addresses);
        for (me, bml) in bmls.iter_mut().enumerate() {
            let peer = 1 - me;
            bml.connect(Rank(u32::from(peer == 1)), &addresses[peer])
                .map_err(|error| Failure::Link(error.to_string()))?;
        }
        let ends = bmls.map(|bml| Pml::new(bml, vec![Arc::new(HostEngine)], Config::default()));
        Ok(Duo { ends, outbox: DuoMemory::new(bytes)?, inbox: DuoMemory::new(bytes)? })
    }

    /// Posts a receive of one number into slot `slot`.
    ///
    /// # Errors
    /// A slot that is not there, a tag below 0.
    pub fn post(&mut self, slot: u64, tag: i32) -> Result<RequestId, Failure> {
        let typed = Typed::contiguous(slot_of(&self.inbox, slot)?);
        self.receive(&typed, tag)
    }

    /// Starts to send a number from the sender's first slot.
    ///
    /// # Errors
    /// A tag below 0.
    pub fn send(&mut self, number: u64, tag: i32) -> Result<RequestId, Failure> {
        let slot = slot_of(&self.outbox, 0)?;
        write(&slot, number)?;
        self.start(&Typed::contiguous(slot), tag)
    }

    /// Lets both ends go on until a request of each has ended.
    ///
    /// # Errors
    /// A message that failed or does not arrive.
    pub fn finish(&mut self, sent: RequestId, received: RequestId) -> Result<(), Failure> {
        let (mut sending, mut receiving) = (true, true);
        for _ in 0..POLLS_MAX {
            sending = sending && self.ends[0].test(sent)?.is_none();
            receiving = receiving && self.ends[1].test(received)?.is_none();
            if !sending && !receiving {
                return Ok(());
            }
        }
        Err(Failure::Stuck { polls: POLLS_MAX })
    }

    /// Lets both ends go on until a send has ended; whether its message has found a receive is
    /// another matter.
    ///
    /// # Errors
    /// A message that failed or cannot leave.
    pub fn sent(&mut self, sent: RequestId) -> Result<(), Failure> {
        for _ in 0..POLLS_MAX {
            if self.ends[0].test(sent)?.is_some() {
                self.ends[1].progress();
                return Ok(());
            }
            self.ends[1].progress();
        }
        Err(Failure::Stuck { polls: POLLS_MAX })
    }

    /// Lets both ends go on until a receive has ended.
    ///
    /// # Errors
    /// A message that failed or does not arrive.
    pub fn arrived(&mut self, received: RequestId) -> Result<(), Failure> {
        for _ in 0..POLLS_MAX {
            if self.ends[1].test(received)?.is_some() {
                return Ok(());
            }
            self.ends[0].progress();
        }
        Err(Failure::Stuck { polls: POLLS_MAX })
    }

    /// The number in a slot of the receiver.
    ///
    /// # Errors
    /// A slot that is not there.
    pub fn received(&self, slot: u64) -> Result<u64, Failure> {
        let slot = slot_of(&self.inbox, slot)?;
        let mut number = 0_u64.to_ne_bytes();
        // SAFETY: `Region::of_mut` describes `number`, which nothing refers to during the copy;
        // no reference ever covers our allocation.
        unsafe { gapless_mem::copy(&Region::of_mut(&mut number), &slot) }?;
        Ok(u64::from_ne_bytes(number))
    }

    fn start(&mut self, typed: &Typed, tag: i32) -> Result<RequestId, Failure> {
        let world = self.ends[0].world();
        // SAFETY: callers describe `outbox`, which outlives both ends. Only `write` changes it, of
        // which the worst that a request in flight can see is another number: the memory is
        // never covered by a reference, and everything happens in one thread.
        Ok(unsafe { self.ends[0].isend(&world, typed, 1, tag) }?)
    }

    fn receive(&mut self, typed: &Typed, tag: i32) -> Result<RequestId, Failure> {
        let world = self.ends[1].world();
        // SAFETY: callers describe `inbox`, which outlives both ends; it is only read, between
        // requests of this one thread, by `received`, and never covered by a reference.
        Ok(unsafe { self.ends[1].irecv(&world, typed, Source::Rank(0), TagSel::Is(tag)) }?)
    }
}

fn slot_of(memory: &DuoMemory, slot: u64) -> Result<Region, Failure> {
    Ok(memory
        .region
        .sub(slot.saturating_mul(SLOT), SLOT)
        .map_err(gapless_engine::EngineError::from)?)
}

fn write(slot: &Region, number: u64) -> Result<(), Failure> {
    let bytes = number.to_ne_bytes();
    // SAFETY: `slot` lies in an allocation of ours, which no reference covers; `bytes` is read only.
    unsafe { gapless_mem::copy(slot, &Region::of(&bytes)) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_arrive_where_they_match() {
        let mut duo = Duo::new(10 * SLOT).unwrap();
        let receives: Vec<_> = (0u8..10).map(|n| duo.post(n.into(), n.into()).unwrap()).collect();
        for n in [7u8, 2, 9] {
            let sent = duo.send(100 + u64::from(n), n.into()).unwrap();
            duo.finish(sent, receives[usize::from(n)]).unwrap();
            assert_eq!(duo.received(n.into()).unwrap(), 100 + u64::from(n));
        }
        assert_eq!(duo.received(3).unwrap(), 0);
        assert!(duo.post(10, 0).is_err());
        assert!(duo.post(0, -5).is_err());
    }

    #[test]
    fn messages_may_come_before_their_receives() {
        let mut duo = Duo::new(4 * SLOT).unwrap();
        for n in 0..200 {
            let sent = duo.send(n, i32::try_from(n).unwrap()).unwrap();
            duo.sent(sent).unwrap();
        }
        for n in [150, 0, 199] {
            let received = duo.post(1, n).unwrap();
            let sent = duo.send(0, 1000).unwrap();
            duo.finish(sent, received).unwrap();
            assert_eq!(duo.received(1).unwrap(), u64::try_from(n).unwrap());
        }
    }
}
