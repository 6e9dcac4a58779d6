//! The way of fragments between a buffer and the ring, at either end.
//!
//! ```text
//! out   buffer ──pack──► ring            in   ring ──unpack──► buffer
//!       buffer ──pack──► local ──copy──►      ring ──copy──► local ──unpack──► buffer
//!       buffer ─────────copy───► ring         ring ─────copy────► buffer        (no gaps)
//! ```
//!
//! Fragment `i` lies in place `i` modulo the depth of whatever it passes. Each end names the ring by
//! a region of its own: its staging memory, its buffer, or a mapping of the other's.

use super::window::Window;
use crate::buffer::{self, Buffer, Engines};
use crate::counters::Tally;
use crate::protocol::Protocol;
use crate::staging::{Block, StagingPool};
use gapless_bml::Mapping;
use gapless_engine::EngineError;
use gapless_mem::{Completion, Device, Region};
use std::ops::Range;
use std::sync::Arc;

/// One end of a staged message.
pub(crate) struct Course {
    pub(crate) way: Protocol,
    /// Packed bytes in all.
    end: u64,
    fragment: u64,
    pub(crate) window: Window,
    /// Fragments below it may be begun.
    pub(crate) limit: u64,
    /// The ring is the receiver's buffer: each fragment lies where it belongs.
    pub(crate) direct: bool,
    /// What the ring is here.
    pub(crate) ring: Option<Ring>,
    /// The second stop, where there is one.
    pub(crate) local: Option<Block>,
    /// Who copies, where somebody does.
    pub(crate) copier: Option<Arc<dyn Device>>,
    /// Fragments that engines work on.
    pub(crate) working: u32,
}

/// The ring, by whoever keeps it.
#[derive(Debug)]
pub(crate) enum Ring {
    /// Staging memory of ours.
    Own(Block),
    /// Memory of the other end.
    Theirs(Mapping),
    /// Our own buffer, which the other end writes.
    Buffer(Region),
}

/// Work that was begun.
pub(crate) struct Step {
    pub(crate) completion: Completion,
    /// What became of the rest, which could not be begun: the fragment fails once `completion` is
    /// there.
    pub(crate) failed: Option<EngineError>,
}

impl From<Completion> for Step {
    fn from(completion: Completion) -> Step {
        Step { completion, failed: None }
    }
}

impl Course {
    /// `end` bytes (at least 1) in fragments of `fragment` bytes (at least 1).
    pub(crate) fn new(way: Protocol, end: u64, fragment: u32, depth: u32) -> Course {
        let total = end.div_ceil(u64::from(fragment.max(1)));
        Course {
            way,
            end,
            fragment: u64::from(fragment.max(1)),
            window: Window::new(total, depth),
            limit: 0,
            direct: false,
            ring: None,
            local: None,
            copier: None,
            working: 0,
        }
    }

    /// Length of every fragment but the last, in bytes.
    pub(crate) fn fragment(&self) -> u32 {
        u32::try_from(self.fragment).unwrap_or(u32::MAX)
    }

    /// Makes do with fewer places; nothing was begun yet.
    pub(crate) fn narrow(&mut self, depth: u32) {
        self.window = Window::new(self.total(), depth);
    }

    /// Fragments in all.
    pub(crate) fn total(&self) -> u64 {
        self.end.div_ceil(self.fragment)
    }

    /// Bytes that a ring has, or a second stop.
    pub(crate) fn ring_bytes(&self) -> u64 {
        // At most 64 fragments of 32 bits: no overflow.
        u64::from(self.window.depth()).min(self.total()) * self.fragment
    }

    /// Bytes that must be where fragments are put.
    pub(crate) fn reach_bytes(&self) -> u64 {
        if self.direct { self.end } else { self.ring_bytes() }
    }

    fn range(&self, index: u64) -> Range<u64> {
        let start = index * self.fragment;
        start..self.end.min(start + self.fragment)
    }

    fn place(&self, index: u64, of: Region) -> Result<Region, EngineError> {
        let range = self.range(index);
        let start = match self.direct {
            true => range.start,
            false => index % u64::from(self.window.depth()) * self.fragment,
        };
        Ok(of.sub(start, range.end - range.start)?)
    }

    fn ring_place(&self, index: u64) -> Result<Region, EngineError> {
        let ring = match &self.ring {
            Some(Ring::Own(block)) => block.region(),
            Some(Ring::Theirs(mapping)) => mapping.region(),
            Some(Ring::Buffer(region)) => *region,
            None => {
                return Err(EngineError::LengthMismatch { region: 0, range: self.ring_bytes() });
            }
        };
        self.place(index, ring)
    }

    fn local_place(&self, index: u64) -> Result<Region, EngineError> {
        let range = self.range(index);
        let len = range.end - range.start;
        let local =
            self.local.as_ref().ok_or(EngineError::LengthMismatch { region: 0, range: len })?;
        let start = index % u64::from(self.window.depth()) * self.fragment;
        Ok(local.region().sub(start, len)?)
    }

    /// The fragment that may be begun next, by who begins them in order.
    pub(crate) fn next(&self) -> Option<u64> {
        let next = self.window.next();
        (next < self.limit.min(self.window.reach())).then_some(next)
    }

    /// Lays a fragment into its place.
    pub(crate) fn gather(
        &self,
        engines: &Engines,
        buffer: &Buffer,
        index: u64,
        tally: &mut Tally,
    ) -> Result<Step, EngineError> {
        let (range, to) = (self.range(index), self.ring_place(index)?);
        tally.fragments += 1;
        tally.staged_bytes += if self.direct { 0 } else { to.len() };
        let Some(copier) = &self.copier else {
            tally.packs += 1;
            return Ok(buffer.pack_to(engines, range, to, &[])?.into());
        };
        if let Some(whole) = buffer.typed().as_contiguous() {
            let from = whole.sub(range.start, to.len())?;
            tally.copies += 1;
            return Ok(buffer::copy(copier, to, from, &[])?.into());
        }
        let local = self.local_place(index)?;
        tally.packs += 1;
        let packed = buffer.pack_to(engines, range, local, &[])?;
        tally.copies += 1;
        Ok(chained(packed, |packed| Ok(buffer::copy(copier, to, local, packed)?)))
    }

    /// Takes a fragment out of its place.
    pub(crate) fn scatter(
        &self,
        engines: &Engines,
        buffer: &Buffer,
        index: u64,
        tally: &mut Tally,
    ) -> Result<Step, EngineError> {
        let (range, from) = (self.range(index), self.ring_place(index)?);
        tally.fragments += 1;
        tally.staged_bytes += if self.direct { 0 } else { from.len() };
        if self.direct {
            return Ok(Completion::Ready.into());
        }
        let Some(copier) = &self.copier else {
            tally.unpacks += 1;
            return Ok(buffer.unpack_after(engines, from, range, &[])?.into());
        };
        if let Some(whole) = buffer.typed().as_contiguous() {
            let to = whole.sub(range.start, from.len())?;
            tally.copies += 1;
            return Ok(buffer::copy(copier, to, from, &[])?.into());
        }
        let local = self.local_place(index)?;
        tally.copies += 1;
        let copied = buffer::copy(copier, local, from, &[])?;
        tally.unpacks += 1;
        Ok(chained(copied, |copied| buffer.unpack_after(engines, local, range, copied)))
    }

    /// Gives staging memory back; `late` if the other end may still write it. No engine works.
    pub(crate) fn release(&mut self, pool: &mut StagingPool, late: bool) {
        debug_assert_eq!(self.working, 0, "an engine works on staging memory");
        if let Some(Ring::Own(block)) = self.ring.take() {
            if late { pool.give_late(block) } else { pool.give(block) }
        }
        if let Some(block) = self.local.take() {
            pool.give(block);
        }
    }
}

/// The second step of a fragment, after the first.
fn chained(
    first: Completion,
    second: impl FnOnce(&[Completion]) -> Result<Completion, EngineError>,
) -> Step {
    let after = match &first {
        Completion::Ready => &[][..],
        Completion::Pending(_) => std::slice::from_ref(&first),
    };
    match second(after) {
        Ok(completion) => Step { completion, failed: None },
        Err(error) => Step { completion: first, failed: Some(error) },
    }
}

impl std::fmt::Debug for Course {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Course")
            .field("way", &self.way)
            .field("end", &self.end)
            .field("fragment", &self.fragment)
            .field("window", &self.window)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
