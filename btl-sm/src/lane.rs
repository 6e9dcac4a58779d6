//! A lane lies in a segment of its sender. This file names the parts of mapped memory that a [`Geometry`] placed.

use crate::geometry::{Geometry, HEAD_AT, RETURNED_AT, RING_AT, SLEEP_AT};
use crate::ring::View;
use crate::segment::{Fixed, Segment};
use crate::sync::AtomicU32;
use gapless_btl::LinkError;
use gapless_mem::Region;
use rustix::fd::OwnedFd;

/// Bytes of a slot that are prefetched before writing; the later ones are while these are written.
const EXPECTED_MAX: usize = 2048;

/// One direction between two processes; its sender writes it, its receiver reads it.
#[derive(Debug)]
pub(crate) struct Lane {
    segment: Segment,
    geometry: Geometry,
    /// Views of `segment`, made once.
    ring: Fixed,
}

impl Lane {
    /// A new lane of ours, and the descriptor for the receiver.
    ///
    /// # Errors
    /// The system refused.
    pub(crate) fn create(geometry: Geometry) -> Result<(Lane, OwnedFd), LinkError> {
        let (segment, file) = Segment::create(geometry.total(), false)?;
        Ok((Lane::over(segment, geometry), file))
    }

    /// A peer's lane, checked and mapped.
    ///
    /// # Errors
    /// The file is not as promised, or the system refused.
    pub(crate) fn adopt(geometry: Geometry, file: &OwnedFd) -> Result<Lane, LinkError> {
        let segment = Segment::adopt(file, geometry.total())?;
        Ok(Lane::over(segment, geometry))
    }

    fn over(segment: Segment, geometry: Geometry) -> Lane {
        let ring = Fixed::of(&segment, RING_AT, geometry.ring_lines(), HEAD_AT, SLEEP_AT);
        Lane { segment, geometry, ring }
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The ring.
    #[inline]
    pub(crate) fn ring(&self) -> View<'_> {
        View { lines: self.ring.lines(&self.segment), head: self.ring.head(&self.segment) }
    }

    /// The owner's word on its own sleep.
    #[inline]
    pub(crate) fn sleep(&self) -> &AtomicU32 {
        self.ring.sleep(&self.segment)
    }

    /// Per slot, the generation that the receiver has given back.
    pub(crate) fn returned(&self) -> &[AtomicU32] {
        self.segment.flags(RETURNED_AT, self.geometry.slots())
    }

    /// Asks for `count` lines of the ring from number `position` on, to be written.
    #[inline]
    pub(crate) fn expect_lines(&self, position: usize, count: usize) {
        let lines = self.geometry.ring_lines();
        for line in position..position.wrapping_add(count) {
            self.segment.expect_writes(RING_AT + 64 * (line & (lines - 1)), 64);
        }
    }

    /// As [`slot`](Lane::slot), for whoever is about to write it.
    pub(crate) fn slot_to_write(&self, slot: usize, len: usize) -> Option<Region> {
        let (at, bytes) = self.geometry.slot(slot)?;
        self.segment.expect_writes(at, len.min(EXPECTED_MAX));
        (len <= bytes).then(|| self.segment.region(at, len))
    }

    /// The first `len` bytes of a slot; `None` if there is no such slot or it is shorter.
    pub(crate) fn slot(&self, slot: usize, len: usize) -> Option<Region> {
        let (at, bytes) = self.geometry.slot(slot)?;
        (len <= bytes).then(|| self.segment.region(at, len))
    }
}
