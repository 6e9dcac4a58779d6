//! Rings of accelerators of other processes, whose parts lie apart: slots and bodies may lie in memory of the worker's
//! accelerator, statuses in the initiator's.

use super::super::layout::{RING_HEAD_BYTES, RINGS_MAX, RingShape, SLOTS};
use super::super::terms::RingPlaces;
use super::rings::{Ring, is_host, room};
use super::{TargetError, WorkerTarget};
use gapless_mem::{DeviceError, Lease, Words};

/// The memory of such a ring. `whole` is the host's, and as long as a ring; the others take parts out of it.
#[derive(Clone, Debug)]
pub struct RingParts {
    /// The ring's head, and what the others do not have.
    pub whole: Lease,
    /// Slots.
    pub slots: Option<Lease>,
    /// Bodies that do not fit into slots.
    pub bodies: Option<Lease>,
    /// Statuses.
    pub status: Option<Lease>,
}

impl RingParts {
    /// Bytes of statuses.
    pub const STATUS_BYTES: u64 = 8 * SLOTS as u64;
    /// Bytes of slots.
    pub const SLOTS_BYTES: u64 = RingShape::SLOTS_BYTES as u64;

    /// A ring with slots and bodies in other memory, which is as long as a ring, too.
    ///
    /// # Errors
    /// That is too short.
    pub fn with_memory(
        whole: Lease,
        memory: Option<&Lease>,
        shape: RingShape,
    ) -> Result<RingParts, DeviceError> {
        let part = |at: usize, bytes| memory.map(|it| it.sub(at as u64, bytes)).transpose();
        let slots = part(RingShape::SLOTS_AT, RingParts::SLOTS_BYTES)?;
        let bodies = part(RingShape::ARENA_AT, shape.arena_bytes.into())?;
        Ok(RingParts { whole, slots, bodies, status: None })
    }

    /// Where the parts are, for who finds memory by `reach`. An error ends it, after what was found.
    ///
    /// # Errors
    /// That of `reach`; memory that is too short, or parts at no multiples of 16.
    pub fn places<E: From<DeviceError>>(
        &self,
        shape: RingShape,
        mut reach: impl FnMut(&Lease) -> Result<u64, E>,
    ) -> Result<RingPlaces, E> {
        let short = |lease: &Option<Lease>, bytes: u64| {
            lease.as_ref().is_some_and(|lease| lease.region().len() < bytes)
        };
        if self.whole.region().len() < shape.bytes()
            || short(&self.slots, RingParts::SLOTS_BYTES)
            || short(&self.bodies, shape.arena_bytes.into())
            || short(&self.status, RingParts::STATUS_BYTES)
        {
            return Err(DeviceError::Unsupported { what: "a ring in memory of this length" }.into());
        }
        let mut places = RingPlaces::at(reach(&self.whole)?, shape);
        for (part, place) in [
            (&self.slots, &mut places.slots),
            (&self.bodies, &mut places.arena.0),
            (&self.status, &mut places.status),
        ] {
            if let Some(part) = part {
                *place = reach(part)?;
            }
        }
        places.check()?;
        Ok(places)
    }
}

impl WorkerTarget {
    /// Whether accelerators of other processes put here, who can want the worker by a word of their rings alone.
    pub(crate) fn has_granted(&self) -> bool {
        self.has_granted
    }

    /// Adds the ring of an accelerator of another process. The worker leaves for a moment, if there is one. Gives its
    /// number.
    ///
    /// # Errors
    /// As [`add_ring`](WorkerTarget::add_ring).
    ///
    /// # Safety
    /// As there, of all parts.
    pub unsafe fn grant_ring(
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
        self.has_granted |= added.is_ok();
        match added {
            Ok(_) => self.parts.extend(reached),
            Err(_) => reached.iter().for_each(|memory| self.forget(memory)),
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::mock_worker::memory;

    #[test]
    fn parts_are_long_enough_and_at_multiples_of_16() {
        let shape = RingShape { arena_bytes: 4096 };
        let [whole, other, status] =
            [shape.bytes(), shape.bytes(), 4096].map(|b| memory(b).unwrap());
        let at = |memory: &Lease| Ok::<u64, DeviceError>(memory.region().start());
        let parts = |other| RingParts::with_memory(whole.clone(), other, shape);
        let plain = parts(None).unwrap();
        let head = whole.region().start();
        assert_eq!(plain.places(shape, at), Ok(RingPlaces::at(head, shape)));
        let apart = RingPlaces::at(other.region().start(), shape);
        let both = RingParts { status: Some(status.clone()), ..parts(Some(&other)).unwrap() };
        let status_at = status.region().start();
        assert_eq!(both.places(shape, at), Ok(RingPlaces { head, status: status_at, ..apart }));
        // Slots alone.
        let slots = other.sub(0, RingParts::SLOTS_BYTES).unwrap();
        let near = RingParts { slots: Some(slots.clone()), ..plain.clone() };
        let here = RingPlaces { slots: slots.region().start(), ..RingPlaces::at(head, shape) };
        assert_eq!(near.places(shape, at), Ok(here));
        let odd = status.sub(8, RingParts::STATUS_BYTES).unwrap();
        assert!(RingParts { status: Some(odd), ..plain.clone() }.places(shape, at).is_err());
        let short = status.sub(0, RingParts::STATUS_BYTES - 8).unwrap();
        assert!(RingParts { status: Some(short), ..plain.clone() }.places(shape, at).is_err());
        let short = other.sub(0, RingParts::SLOTS_BYTES - 16).unwrap();
        assert!(RingParts { slots: Some(short), ..plain.clone() }.places(shape, at).is_err());
        assert!(
            RingParts { bodies: Some(status.sub(16, 4080).unwrap()), ..plain }
                .places(shape, at)
                .is_err()
        );
        assert!(parts(Some(&status)).is_err());
    }
}
