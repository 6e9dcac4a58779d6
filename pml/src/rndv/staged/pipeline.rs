//! The pipeline of fragments between a buffer and the ring, at either end.
//!
//! ```text
//! out   buffer ──pack──► ring            in   ring ──unpack──► buffer
//!       buffer ──pack──► local ──copy──►      ring ──copy──► local ──unpack──► buffer
//!       buffer ─────────copy───► ring         ring ─────copy────► buffer        (no gaps)
//! ```
//!
//! Fragment `i` lies in place `i` modulo the depth of each memory that it passes. If there is a place for every
//! fragment, each has the same offset as in the stream, without gaps between them. For each end the ring is its
//! staging memory, its buffer, or a mapping of the other's.
//!
//! Side by side, fragments would share the device and the link, and all would end when the last one does; the other
//! end would idle until then. So an end's kernel for a fragment waits for the fragment two before it. The device
//! starts one kernel while the last blocks of another still run; one after the other, it would idle for 3 µs between
//! two kernels (between two H200s 64 MiB in four kernels take 191 µs so, and 202 one after the other). Copies,
//! kernels beside a copier, and shorter fragments, for which the other end waits, wait for the fragment just before.

use super::window::Window;
use crate::buffer::{Buffer, Engines, StagingMemory, Transfer};
use crate::counters::ProtocolCounts;
use crate::protocol::Protocol;
use crate::rndv::staging::{StagingBlock, StagingPool};
use crate::wire::cut::Cut;
use gapless_bml::Mapping;
use gapless_engine::EngineError;
use gapless_mem::{Completion, Device, Region};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// One end of a staged message.
pub(crate) struct StagingPipeline {
    pub(crate) protocol: Protocol,
    cut: Cut,
    pub(crate) window: Window,
    /// Fragments below it may be started.
    pub(crate) limit: u64,
    /// The ring is the receiver's buffer: each fragment lies where it belongs.
    pub(crate) direct: bool,
    /// What the ring is here.
    pub(crate) ring: Option<RingMemory>,
    /// The second stop, if there is one.
    pub(crate) local: Option<StagingBlock>,
    /// Who copies, if anyone does.
    pub(crate) copier: Option<Arc<dyn Device>>,
    /// Fragments that engines work on.
    pub(crate) working: u32,
    /// The engine's work on the last fragment that was started, and on the one before, if it may still run.
    worked: [Completion; 2],
    /// The copier's.
    copied: Completion,
}

/// The ring, by its owner.
#[derive(Debug)]
pub(crate) enum RingMemory {
    /// Staging memory of ours.
    Own(StagingBlock),
    /// Memory of the other end.
    Theirs(Mapping),
    /// This part of our own buffer, which the other end writes. Nothing is put there or taken out here.
    Buffer(Region),
}

/// Started on a fragment.
pub(crate) type Moving = Transfer<SmallVec<[StagingMemory; 2]>>;

/// Started that was started.
pub(crate) struct Started {
    pub(crate) moving: Moving,
    /// The result of the rest, which could not be started: the fragment fails once `moving` has ended.
    pub(crate) failed: Option<EngineError>,
}

impl Started {
    /// Nothing is to be done.
    pub(crate) fn nothing() -> Started {
        Transfer::over(SmallVec::new()).into()
    }
}

impl From<Moving> for Started {
    fn from(moving: Moving) -> Started {
        Started { moving, failed: None }
    }
}

impl StagingPipeline {
    /// A message with this cut, in a ring of `depth` places.
    pub(crate) fn new(protocol: Protocol, cut: Cut, depth: u32) -> StagingPipeline {
        StagingPipeline {
            protocol,
            cut,
            window: Window::new(cut.total(), depth),
            limit: 0,
            direct: false,
            ring: None,
            local: None,
            copier: None,
            working: 0,
            worked: [Completion::Ready, Completion::Ready],
            copied: Completion::Ready,
        }
    }

    /// At the receiver: a fragment is in its place, the other end says. How many are there now.
    pub(crate) fn arrives(&mut self, index: u64) -> Result<u64, String> {
        if index >= self.limit {
            return Err(format!("fragment {index} before its place was free"));
        }
        self.window.begin(index)?;
        self.working += 1;
        Ok(u64::from(self.window.in_work()))
    }

    /// At the receiver: a fragment was taken out of its place, or lost there. The new limit, if more places are free.
    pub(crate) fn taken_out(&mut self, index: u64) -> Option<u64> {
        self.ended(index);
        let reach = self.window.reach();
        let more = !self.direct && reach > self.limit;
        more.then(|| {
            self.limit = reach;
            reach
        })
    }

    /// How it is cut.
    pub(crate) fn cut(&self) -> Cut {
        self.cut
    }

    /// Reduces the number of places; nothing was started yet.
    pub(crate) fn narrow(&mut self, depth: u32) {
        self.window = Window::new(self.total(), depth);
    }

    /// Fragments in all.
    pub(crate) fn total(&self) -> u64 {
        self.cut.total()
    }

    /// Whether there is a place for every fragment.
    fn is_flat(&self) -> bool {
        self.total() <= u64::from(self.window.depth())
    }

    /// Bytes that a ring has, or a second stop.
    pub(crate) fn ring_bytes(&self) -> u64 {
        if self.is_flat() {
            return self.cut.end();
        }
        // At most 64 fragments of 32 bits: no overflow.
        u64::from(self.window.depth()) * self.cut.longest()
    }

    /// Bytes that must exist where fragments are put.
    pub(crate) fn reach_bytes(&self) -> u64 {
        if self.direct { self.cut.end() } else { self.ring_bytes() }
    }

    /// Where a fragment lies, in a memory with a place for every fragment (`flat`) or in a ring.
    fn place(
        &self,
        index: u64,
        of: &StagingMemory,
        flat: bool,
    ) -> Result<StagingMemory, EngineError> {
        let range = self.cut.range(index);
        let start = match flat {
            true => range.start,
            false => index % u64::from(self.window.depth()) * self.cut.longest(),
        };
        Ok(of.sub(start, range.end - range.start)?)
    }

    /// Where a fragment begins in a ring.
    pub(crate) fn start_of(&self, index: u64) -> u64 {
        match self.is_flat() {
            true => self.cut.range(index).start,
            false => index % u64::from(self.window.depth()) * self.cut.longest(),
        }
    }

    fn ring_place(&self, index: u64) -> Result<StagingMemory, EngineError> {
        let flat = self.direct || self.is_flat();
        match &self.ring {
            Some(RingMemory::Own(block)) => self.place(index, block.place(), flat),
            Some(RingMemory::Theirs(mapping)) => {
                self.place(index, &StagingMemory::from(mapping), flat)
            }
            Some(RingMemory::Buffer(_)) | None => Err(self.no_place()),
        }
    }

    pub(crate) fn local_place(&self, index: u64) -> Result<StagingMemory, EngineError> {
        let local = self.local.as_ref().ok_or_else(|| self.no_place())?;
        self.place(index, local.place(), self.is_flat())
    }

    fn no_place(&self) -> EngineError {
        EngineError::LengthMismatch { region: 0, range: self.ring_bytes() }
    }

    /// The next fragment that may be started, for callers that start them in order.
    pub(crate) fn next(&self) -> Option<u64> {
        let next = self.window.next();
        (next < self.limit.min(self.window.reach())).then_some(next)
    }

    /// Where a fragment is in the stream, and in the ring; counts it.
    fn begin(
        &self,
        index: u64,
        counts: &mut ProtocolCounts,
    ) -> Result<(Range<u64>, StagingMemory), EngineError> {
        let (range, ring) = (self.cut.range(index), self.ring_place(index)?);
        counts.fragments += 1;
        counts.staged_bytes += if self.direct { 0 } else { range.end - range.start };
        Ok((range, ring))
    }

    /// A fragment has ended; if it was the last one started, nothing needs to wait for it.
    pub(crate) fn ended(&mut self, index: u64) {
        self.working -= 1;
        self.window.end(index);
        self.rest();
    }

    /// A fragment has failed.
    pub(crate) fn failed(&mut self) {
        self.working -= 1;
        self.rest();
    }

    fn rest(&mut self) {
        if self.working == 0 {
            self.worked = [Completion::Ready, Completion::Ready];
            self.copied = Completion::Ready;
        }
    }

    /// What the engine's work on a fragment waits for, if it goes straight between buffer and ring.
    fn earlier(&self, range: &Range<u64>) -> SmallVec<[Completion; 2]> {
        let [last, before] = &self.worked;
        let shorter = range.end - range.start < self.cut.longest();
        if shorter { after(&[last, before]) } else { after(&[before]) }
    }

    /// The engine works on another fragment.
    fn works(&mut self, work: Completion) {
        let [last, before] = &mut self.worked;
        *before = std::mem::replace(last, work);
    }

    /// Puts a fragment into its place.
    pub(crate) fn gather(
        &mut self,
        engines: &Engines,
        buffer: &Buffer,
        index: u64,
        counts: &mut ProtocolCounts,
    ) -> Result<Started, EngineError> {
        let (range, ring) = self.begin(index, counts)?;
        let Some(copier) = self.copier.clone() else {
            counts.packs += 1;
            let packing = buffer.gather(engines, range.clone(), ring, &self.earlier(&range))?;
            self.works(packing.work().clone());
            return Ok(packing.into());
        };
        if buffer.typed().as_contiguous().is_some() {
            counts.copies += 1;
            let copying = buffer.copy_to(&copier, range, ring, &after(&[&self.copied]))?;
            self.copied = copying.work().clone();
            return Ok(copying.into());
        }
        let places = (self.local_place(index)?, ring);
        counts.packs += 1;
        let earlier = (&after(&[&self.worked[0]])[..], &after(&[&self.copied])[..]);
        let chain = buffer.gather_and_copy((engines, &copier), range, places, earlier)?;
        counts.copies += 1;
        self.works(chain.first);
        if chain.failed.is_none() {
            self.copied = chain.transfer.work().clone();
        }
        Ok(Started { moving: chain.transfer, failed: chain.failed })
    }

    /// Takes a fragment out of its place.
    pub(crate) fn scatter(
        &mut self,
        engines: &Engines,
        buffer: &Buffer,
        index: u64,
        counts: &mut ProtocolCounts,
    ) -> Result<Started, EngineError> {
        if self.direct {
            counts.fragments += 1;
            return Ok(Started::nothing());
        }
        let (range, ring) = self.begin(index, counts)?;
        let Some(copier) = self.copier.clone() else {
            counts.unpacks += 1;
            let unpacking = buffer.scatter(engines, ring, range.clone(), &self.earlier(&range))?;
            self.works(unpacking.work().clone());
            return Ok(unpacking.into());
        };
        counts.copies += 1;
        if buffer.typed().as_contiguous().is_some() {
            let copying = buffer.copy_from(&copier, ring, range, &after(&[&self.copied]))?;
            self.copied = copying.work().clone();
            return Ok(copying.into());
        }
        let places = (ring, self.local_place(index)?);
        let earlier = (&after(&[&self.copied])[..], &after(&[&self.worked[0]])[..]);
        let chain = buffer.copy_and_scatter((engines, &copier), places, range, earlier)?;
        counts.unpacks += 1;
        self.copied = chain.first;
        if chain.failed.is_none() {
            self.works(chain.transfer.work().clone());
        }
        Ok(Started { moving: chain.transfer, failed: chain.failed })
    }

    /// Takes a fragment out of its place in the second stop.
    pub(crate) fn unpack_local(
        &mut self,
        engines: &Engines,
        buffer: &Buffer,
        index: u64,
    ) -> Result<Started, EngineError> {
        let (range, place) = (self.cut.range(index), self.local_place(index)?);
        let unpacking = buffer.scatter(engines, place, range.clone(), &self.earlier(&range))?;
        self.works(unpacking.work().clone());
        Ok(unpacking.into())
    }

    /// Gives staging memory back; `late` if the other end may still write it. No engine works.
    pub(crate) fn release(&mut self, pool: &mut StagingPool, late: bool) {
        debug_assert_eq!(self.working, 0, "an engine works on staging memory");
        if let Some(RingMemory::Own(block)) = self.ring.take() {
            if late { pool.give_late(block) } else { pool.give(block) }
        }
        if let Some(block) = self.local.take() {
            pool.give(block);
        }
    }
}

/// The parts of some work that may not have ended: other work will wait for them.
fn after(works: &[&Completion]) -> SmallVec<[Completion; 2]> {
    let pending = works.iter().filter(|work| matches!(work, Completion::Pending(_)));
    pending.map(|work| (*work).clone()).collect()
}

impl std::fmt::Debug for StagingPipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StagingPipeline")
            .field("protocol", &self.protocol)
            .field("cut", &self.cut)
            .field("window", &self.window)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
