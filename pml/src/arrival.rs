//! The bytes of a message that has arrived: still in the transport's memory, or copied out.

use crate::error::PmlError;
use crate::protocol::Protocol;
use crate::wire::SendMode;
use crate::wire::{EAGER_BYTES, Envelope, Note, Rts, SERIAL_BYTES};
use gapless_bml::Fragment;
use gapless_mem::{DeviceError, Region};

/// A message's bytes, header included.
#[derive(Debug)]
pub(crate) enum Body {
    /// In the transport's memory; dropping it returns the credit. Its sender may still overwrite it.
    Parked(Fragment),
    /// Copied out.
    Copied(Vec<u8>),
}

impl Body {
    /// The serial of a synchronous message.
    pub(crate) fn serial(&self) -> Result<u64, String> {
        let mut serial = [0; SERIAL_BYTES];
        match self {
            Body::Parked(fragment) => {
                fragment.read(EAGER_BYTES, &mut serial).map_err(|error| error.to_string())?;
            }
            Body::Copied(bytes) => {
                let range = EAGER_BYTES..EAGER_BYTES + SERIAL_BYTES;
                serial.copy_from_slice(bytes.get(range).ok_or("a message without its serial")?);
            }
        }
        Ok(u64::from_le_bytes(serial))
    }

    /// Its bytes, valid for reads while the body lives and is not moved out of its place.
    pub(crate) fn region(&self) -> Region {
        match self {
            Body::Parked(fragment) => fragment.region(),
            Body::Copied(bytes) => Region::of(bytes),
        }
    }
}

/// A numbered message: it takes part in matching, or is a note about those that do.
#[derive(Debug)]
pub(crate) enum Numbered {
    Message(Arrival),
    Note(Note),
}

impl Numbered {
    pub(crate) fn sequence(&self) -> u32 {
        match self {
            Numbered::Message(arrival) => arrival.envelope().sequence,
            Numbered::Note(note) => note.sequence,
        }
    }

    /// Returns the transport's memory, if it is in there.
    pub(crate) fn copy_out(&mut self, pool: &mut Pool) -> Result<(), DeviceError> {
        match self {
            Numbered::Message(arrival) => arrival.copy_out(pool),
            Numbered::Note(_) => Ok(()),
        }
    }
}

/// A message that takes part in matching.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// An eager message: header and data.
    Eager(Envelope, Body),
    /// An offer, and the flattened layout if it came along and is not known already.
    Rts(Box<Rts>, Vec<u8>),
}

impl Arrival {
    pub(crate) fn envelope(&self) -> &Envelope {
        match self {
            Arrival::Eager(envelope, _) => envelope,
            Arrival::Rts(rts, _) => &rts.envelope,
        }
    }

    /// The number by which its sender waits for an answer, if it does.
    pub(crate) fn serial(&self) -> Result<Option<u64>, String> {
        match self {
            Arrival::Eager(envelope, body) if envelope.mode == SendMode::Synchronous => {
                body.serial().map(Some)
            }
            Arrival::Eager(..) => Ok(None),
            Arrival::Rts(rts, _) => Ok(Some(rts.serial)),
        }
    }

    /// Whether it is in the transport's memory.
    pub(crate) fn is_parked(&self) -> bool {
        matches!(self, Arrival::Eager(_, Body::Parked(_)))
    }

    /// What its sender calls it, if it is an offer.
    pub(crate) fn offer(&self) -> Option<u64> {
        match self {
            Arrival::Eager(..) => None,
            Arrival::Rts(rts, _) => Some(rts.serial),
        }
    }

    /// Whether it is an offer in ready mode that found no receive: its sender knows, and has ended.
    pub(crate) fn is_late_offer(&self) -> bool {
        matches!(self, Arrival::Rts(rts, _) if rts.envelope.mode == SendMode::Ready)
    }

    /// What a probe reports.
    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            Arrival::Eager(..) => Protocol::Eager,
            Arrival::Rts(..) => Protocol::Pipeline,
        }
    }

    /// Returns the transport's memory, if it is in there.
    pub(crate) fn copy_out(&mut self, pool: &mut Pool) -> Result<(), DeviceError> {
        if let Arrival::Eager(_, body) = self {
            pool.copy_out(body)?;
        }
        Ok(())
    }
}

/// The message a receive took, and how that ended.
#[derive(Clone, Debug)]
pub(crate) struct Matched {
    pub(crate) from: u32,
    pub(crate) tag: i32,
    /// The message's bytes, whether or not the receive has room for all of them.
    pub(crate) sent: u64,
    pub(crate) protocol: Protocol,
    pub(crate) failure: Option<PmlError>,
}

/// Buffers for bodies, used again and again.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// By the base-2 logarithm of the capacity.
    free: [Vec<Vec<u8>>; Pool::CLASSES],
}

impl Pool {
    /// Up to 64 KiB; longer buffers are not kept.
    const CLASSES: usize = 17;
    /// Buffers kept of each size: 64 KiB of small ones, a few of the large.
    fn kept(class: usize) -> usize {
        ((64 << 10) >> class).clamp(16, 1024)
    }

    /// Copies a parked body out; its credit returns.
    pub(crate) fn copy_out(&mut self, body: &mut Body) -> Result<(), DeviceError> {
        let Body::Parked(fragment) = body else { return Ok(()) };
        let mut bytes = self.take(fragment.len());
        fragment.read(0, &mut bytes)?;
        *body = Body::Copied(bytes);
        Ok(())
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let class = len.max(64).next_power_of_two().ilog2() as usize;
        let mut bytes = match self.free.get_mut(class).and_then(Vec::pop) {
            Some(bytes) => bytes,
            None => Vec::with_capacity(1 << class),
        };
        bytes.resize(len, 0);
        bytes
    }

    /// Takes a body back.
    pub(crate) fn give(&mut self, body: Body) {
        let Body::Copied(mut bytes) = body else { return };
        let class = bytes.capacity().max(1).ilog2() as usize;
        if let Some(free) = self.free.get_mut(class)
            && free.len() < Pool::kept(class)
        {
            bytes.clear();
            free.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let mut pool = Pool::default();
        let bytes = pool.take(100);
        let address = bytes.as_ptr();
        pool.give(Body::Copied(bytes));
        let again = pool.take(128);
        assert_eq!(again.as_ptr(), address);
        assert_eq!(again, [0; 128]);
        pool.give(Body::Copied(Vec::with_capacity(1 << 20)));
        assert!(pool.free.iter().all(Vec::is_empty));
    }
}
