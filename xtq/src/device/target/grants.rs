//! Rings whose initiator is an accelerator of another process, so that their parts may lie apart: slots and bodies in the
//! worker's own memory, statuses in the initiator's.

use super::super::layout::{RING_HEAD_BYTES, RINGS_MAX, RingShape, SLOTS};
use super::super::terms::RingPlaces;
use super::{Ring, Target, TargetError, is_host, room};
use gapless_mem::{DeviceError, Lease, Words};

/// The memory of such a ring. `whole` is the host's, and as long as a ring; the others take parts out of it.
#[derive(Clone, Debug)]
pub struct RingParts {
    /// The ring's head, and what the others do not have.
    pub whole: Lease,
    /// Slots and bodies: as long as a ring, too.
    pub slots: Option<Lease>,
    /// Statuses.
    pub status: Option<Lease>,
}

impl RingParts {
    /// Bytes of statuses.
    pub const STATUS_BYTES: u64 = 8 * SLOTS as u64;

    /// Where the parts are, for who finds memory by `reach`. An error ends it, after what was found.
    ///
    /// # Errors
    /// That of `reach`; memory that is too short, or parts at no multiples of 16.
    pub fn places<E: From<DeviceError>>(
        &self,
        shape: RingShape,
        mut reach: impl FnMut(&Lease) -> Result<u64, E>,
    ) -> Result<RingPlaces, E> {
        let short = |lease: &Lease, bytes: u64| lease.region().len() < bytes;
        let status = self.status.as_ref();
        if short(&self.whole, shape.bytes())
            || self.slots.as_ref().is_some_and(|slots| short(slots, shape.bytes()))
            || status.is_some_and(|status| short(status, RingParts::STATUS_BYTES))
        {
            return Err(DeviceError::Unsupported { what: "a ring in memory of this length" }.into());
        }
        let whole = RingPlaces::at(reach(&self.whole)?, shape);
        let slots = self.slots.as_ref().map(&mut reach).transpose()?;
        let slots = slots.map_or(whole, |slots| RingPlaces::at(slots, shape));
        let status = status.map(&mut reach).transpose()?;
        let status = status.unwrap_or(whole.status);
        let places = RingPlaces { head: whole.head, status, ..slots };
        places.check()?;
        Ok(places)
    }
}

impl Target {
    /// Whether accelerators of other processes put here, who can want the worker by a word of their rings alone.
    pub(crate) fn has_granted(&self) -> bool {
        !self.granted.is_empty()
    }

    /// Adds the ring of an accelerator of another process. The worker leaves for a moment, if there is one. Gives its
    /// number.
    ///
    /// # Errors
    /// As [`add_ring`](Target::add_ring).
    ///
    /// # Safety
    /// As there, of all parts.
    pub unsafe fn add_ring_of_parts(
        &mut self,
        parts: RingParts,
        shape: RingShape,
    ) -> Result<u8, TargetError> {
        room(self.rings.len(), RINGS_MAX, "rings")?;
        if parts.whole.region().len() < RING_HEAD_BYTES as u64 {
            return Err(DeviceError::Unsupported { what: "a ring's head this short" }.into());
        }
        // SAFETY: the lease keeps it; the caller vouches that it is the ring's, so it is touched as words alone.
        let head = unsafe { Words::new(parts.whole.clone()) }?;
        self.send_away()?;
        let mut reached = Vec::new();
        let places = parts.places(shape, |memory| {
            let address = self.worker.reach(memory)?;
            reached.push(memory.clone());
            Ok::<u64, DeviceError>(address)
        });
        let near = parts.slots.as_ref().is_some_and(|slots| !is_host(slots));
        let ring = Ring { memory: parts.whole, reached: false, near, head: Some(head) };
        let added = places.map_err(TargetError::from).and_then(|at| self.add_places(ring, at));
        match added {
            Ok(_) => self.granted.extend(reached),
            Err(_) => reached.iter().for_each(|memory| self.forget(memory)),
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::player::memory;

    #[test]
    fn parts_are_long_enough_and_at_multiples_of_16() {
        let shape = RingShape { arena_bytes: 4096 };
        let [whole, slots, status] =
            [shape.bytes(), shape.bytes(), 4096].map(|b| memory(b).unwrap());
        let at = |memory: &Lease| Ok::<u64, DeviceError>(memory.region().start());
        let parts = |status: Option<Lease>, slots: Option<Lease>| RingParts {
            whole: whole.clone(),
            slots,
            status,
        };
        let places = parts(Some(status.clone()), Some(slots.clone())).places(shape, at).unwrap();
        let apart = RingPlaces::at(slots.region().start(), shape);
        let head = whole.region().start();
        assert_eq!(places, RingPlaces { head, status: status.region().start(), ..apart });
        assert_eq!(parts(None, None).places(shape, at), Ok(RingPlaces::at(head, shape)));
        let odd = status.sub(8, RingParts::STATUS_BYTES).unwrap();
        assert!(parts(Some(odd), None).places(shape, at).is_err());
        let short = status.sub(0, RingParts::STATUS_BYTES - 8).unwrap();
        assert!(parts(Some(short), None).places(shape, at).is_err());
        assert!(parts(None, Some(status)).places(shape, at).is_err());
    }
}
