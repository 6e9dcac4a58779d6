//! Rings that accelerators of other processes put into: kernels of users there, and workers that put on.
//!
//! What both ends tell each other are bytes that the program sends, by any message:
//!
//! ```text
//! initiator                               target
//! ask_for_ring (where statuses go) ─────► prepare_ring, grant_ring
//! open_ring ◄──────────────────────────── (where slots and bodies go)
//! ```
//!
//! Such a ring is beside those that `rings.rs` makes: tasks of a rank's accelerator and of its processor have no order.

use super::Xtq;
use crate::device::{RING_ABORT, RingParts, RingShape, TargetError};
use crate::error::XtqError;
use gapless_bml::{Bml, Rank, RemoteKey};
use gapless_mem::{Lease, Space, Words};
use std::sync::atomic::Ordering;

/// A ring that a target is about to grant to an accelerator of an initiator: memory of both ends, and what the
/// initiator is told.
#[derive(Debug)]
pub struct Granted {
    to: Rank,
    parts: RingParts,
    text: Vec<u8>,
}

/// A ring of another process's worker that an accelerator of this process puts tasks into.
#[derive(Debug)]
pub struct FarRing {
    target: Rank,
    parts: RingParts,
}

impl FarRing {
    /// Whose it is.
    #[must_use]
    pub fn target(&self) -> Rank {
        self.target
    }

    /// With the memory for statuses that it was asked for with.
    #[must_use]
    pub fn with_status(mut self, status: Option<Lease>) -> FarRing {
        self.parts.status = status;
        self
    }

    /// Its memory.
    #[must_use]
    pub fn parts(&self) -> &RingParts {
        &self.parts
    }

    /// Tells device code that waits at this ring (`gapless_wait`) to wait no longer, or no longer so.
    ///
    /// # Errors
    /// Memory that the processor must not touch.
    ///
    /// # Safety
    /// The target has granted the ring to this process: what it sent names such memory, and no other.
    pub unsafe fn give_up(&self, yes: bool) -> Result<(), XtqError> {
        // SAFETY: the memory is a ring's, as the caller promises: all touch it as words alone. Its lease keeps it.
        let words = unsafe { Words::new(self.parts.whole.clone()) }.map_err(TargetError::from)?;
        if let Some(word) = words.all().get(RING_ABORT / 8) {
            word.store(yes.into(), Ordering::Release);
        }
        Ok(())
    }
}

fn no_ring(peer: Rank, reason: impl ToString) -> XtqError {
    XtqError::NoRing { peer, reason: reason.to_string() }
}

/// Two keys in a text, each behind its length; a second one that is not there is empty.
pub(super) fn two_keys(first: &RemoteKey, second: Option<&RemoteKey>) -> Vec<u8> {
    let mut text = Vec::new();
    for bytes in [first.as_bytes(), second.map_or(&[][..], RemoteKey::as_bytes)] {
        // Keys are short.
        text.push(u8::try_from(bytes.len()).expect("a key is at most 80 bytes"));
        text.extend_from_slice(bytes);
    }
    text
}

/// The bytes of both; the first is not empty. `None`: it is no such text.
pub(super) fn of_two_keys(text: &[u8]) -> Option<[&[u8]; 2]> {
    let (&first, rest) = text.split_first()?;
    let (whole, rest) = rest.split_at_checked(first.into())?;
    let (&second, other) = rest.split_first()?;
    (!whole.is_empty() && other.len() == usize::from(second)).then_some([whole, other])
}

fn key(bml: &mut Bml, peer: Rank, memory: &Lease) -> Result<RemoteKey, XtqError> {
    let key = bml.mapped(peer).and_then(|(id, mapped)| mapped.key(id, memory));
    key.ok_or_else(|| no_ring(peer, "it cannot map this process's memory"))
}

fn map(bml: &mut Bml, peer: Rank, key: &[u8], user: Space) -> Result<Lease, XtqError> {
    let key = RemoteKey::new(key).ok_or_else(|| no_ring(peer, "what it sent is no key"))?;
    let (id, mapped) =
        bml.mapped(peer).ok_or_else(|| no_ring(peer, "its memory cannot be mapped"))?;
    let mapping = mapped.map_for(id, &key, user).map_err(|error| no_ring(peer, error))?;
    Ok(mapping.lease().clone())
}

impl Xtq {
    /// Asks for a ring at a target: the answer's bytes go there. `status` is memory for what becomes of puts
    /// ([`RingParts::STATUS_BYTES`], zeroed), which the target's worker writes from then on; without it, that lies in memory
    /// of the host.
    ///
    /// # Errors
    /// The target cannot map it.
    pub fn ask_for_ring(
        &self,
        bml: &mut Bml,
        target: Rank,
        status: Option<&Lease>,
    ) -> Result<Vec<u8>, XtqError> {
        let Some(status) = status else { return Ok(Vec::new()) };
        Ok(key(bml, target, status)?.as_bytes().to_vec())
    }

    /// Makes memory for the ring of an accelerator of another process, which has sent `ask`. `slots` is memory for packets
    /// and their bodies, zeroed and as long as a [ring](RingShape::bytes): the worker's accelerator's, mostly.
    ///
    /// # Errors
    /// One of the two processes cannot map the other's memory; statuses in the initiator's memory without `slots`.
    pub fn prepare_ring(
        &self,
        bml: &mut Bml,
        to: Rank,
        ask: &[u8],
        slots: Option<Lease>,
    ) -> Result<Granted, XtqError> {
        // What maps statuses for the worker is its accelerator, of which the slots tell.
        let status = match &slots {
            _ if ask.is_empty() => None,
            None => return Err(no_ring(to, "statuses in its memory need slots in the worker's")),
            Some(slots) => Some(map(bml, to, ask, slots.region().space())?),
        };
        let memory = bml.allocate(RingShape::default().bytes());
        let memory = memory.ok_or_else(|| no_ring(to, "no memory can be shared"))?;
        let whole = memory.map_err(|error| no_ring(to, error))?.lease().clone();
        let whole_key = key(bml, to, &whole)?;
        let slots_key = slots.as_ref().map(|slots| key(bml, to, slots)).transpose()?;
        let text = two_keys(&whole_key, slots_key.as_ref());
        let parts = RingParts::with_memory(whole, slots.as_ref(), RingShape::default());
        let parts = parts.map_err(|error| no_ring(to, error))?;
        Ok(Granted { to, parts: RingParts { status, ..parts }, text })
    }

    /// Gives the ring to the worker, and the bytes for the initiator. The worker leaves for a moment.
    ///
    /// # Errors
    /// There is no worker, or it has as many rings as it can; it does not leave; it cannot reach the memory.
    ///
    /// # Safety
    /// Until this process has left, the memory that was given for slots, and at the initiator that for statuses, belongs
    /// to the ring.
    pub unsafe fn grant_ring(&self, granted: Granted) -> Result<Vec<u8>, XtqError> {
        let Granted { to, parts, text } = granted;
        self.inner.with_worker(|served| {
            // SAFETY: the shared memory is new, and its key goes to one initiator; the rest is the caller's promise.
            unsafe { served.target.grant_ring(parts, RingShape::default()) }?;
            served.initiators.push(Some(to));
            Ok(())
        })?;
        // From now on the ring's head is looked at.
        self.inner.owing.store(true, Ordering::Release);
        Ok(text)
    }

    /// Maps a ring that a target has granted, for the accelerator of the space `user`.
    ///
    /// # Errors
    /// It cannot be mapped; what was sent is none.
    pub fn open_ring(
        &self,
        bml: &mut Bml,
        target: Rank,
        grant: &[u8],
        user: Space,
    ) -> Result<FarRing, XtqError> {
        let nonsense = || no_ring(target, "what it sent is no ring");
        let [whole, slots] = of_two_keys(grant).ok_or_else(nonsense)?;
        let whole = map(bml, target, whole, Space::Host)?;
        let slots = if slots.is_empty() { None } else { Some(map(bml, target, slots, user)?) };
        let parts = RingParts::with_memory(whole, slots.as_ref(), RingShape::default());
        let parts = parts.map_err(|_| nonsense())?;
        let found = parts.places(RingShape::default(), |_| Ok::<u64, TargetError>(0));
        found.map_err(|_| nonsense())?;
        Ok(FarRing { target, parts })
    }

    /// Lets tasks of this process's worker put on into a ring of another one's, by the number that this gives
    /// ([`DeviceFunction::Forward`](crate::device::DeviceFunction::Forward), `gapless_out` of users' functions). The worker
    /// leaves for a moment.
    ///
    /// # Errors
    /// There is no worker, or it has as many as it can; a ring whose parts lie apart.
    ///
    /// # Safety
    /// The target has granted the ring to this process, and nobody else puts into it.
    pub unsafe fn put_on_into(&self, ring: FarRing) -> Result<u8, XtqError> {
        let FarRing { target, parts } = ring;
        if parts.slots.is_some() || parts.status.is_some() {
            return Err(no_ring(target, "a worker puts on into rings of one piece"));
        }
        self.inner.with_worker(|served| {
            // SAFETY: the mapping is a ring's; the rest is the caller's promise.
            unsafe { served.target.add_out(parts.whole, RingShape::default()) }
        })
    }

    /// Lets tasks of this process's worker pack and unpack by a layout, by its number; `None`: they fail.
    ///
    /// # Errors
    /// There is no worker, or no such number; it does not leave, or cannot reach the memory.
    ///
    /// # Safety
    /// As [`WorkerTarget::register_layout`](crate::device::WorkerTarget::register_layout).
    pub unsafe fn register_layout(&self, number: u8, form: Option<Lease>) -> Result<(), XtqError> {
        let _turn = self.inner.turn();
        // SAFETY: the caller's promise.
        self.inner.with_worker(|served| unsafe { served.target.register_layout(number, form) })
    }
}
