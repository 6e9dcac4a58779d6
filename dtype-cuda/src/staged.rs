//! Packed data in memory that only copies reach: host memory that is not page-locked, or everything the
//! CPU addresses on OpenCL. It goes through a chunk of device memory, part by part.
//!
//! Each lane has one chunk, which its order protects. Long ranges use a second lane, if one is free, so
//! that kernels run beside copies; on a caller's stream they do not. Units: bytes.

use crate::accelerator::{Lane, Spot};
use crate::between::Between;
use crate::lanes::{Hold, Holds, InFlight};
use crate::memory::DeviceBlock;
use crate::pages::{Way, otherwise};
use crate::shared::{PackJob, Shared};
use gapless_engine::EngineError;
use gapless_kernels::Direction;
use gapless_kernels::launch::KernelAddress;
use gapless_mem::{DeviceError, Region};
use std::sync::Arc;

/// Parts begin in their chunk where they begin in a contiguous span of this many bytes of the stream, so that
/// kernels can use wide words.
const ALIGNED: u64 = 512;

/// Parts of a range, at least, as far as chunks are longer than [`PART_MIN`].
const PARTS: u64 = 8;
const PART_MIN: u64 = 2 << 20;

/// A lane and the chunk on it.
struct Route<'a> {
    lane: &'a dyn Lane,
    chunk: Region,
}

/// A part of the job, and where it is in the packed region.
struct StagedPart<'a> {
    job: PackJob<'a>,
    packed: Region,
    chunk: Region,
}

impl Shared {
    fn chunk(
        &self,
        kept: &mut Option<Arc<DeviceBlock>>,
        held: &mut Holds,
    ) -> Result<Region, DeviceError> {
        let block = match kept {
            Some(block) => Arc::clone(block),
            None => {
                let block = Arc::new(self.memory.take(self.config.chunk_bytes + ALIGNED)?);
                Arc::clone(kept.insert(block))
            }
        };
        let region = block.region();
        held.push(Hold::Block(block));
        Ok(region)
    }

    /// Enqueues a pack or unpack whose packed side only copies reach. `kept` is the lane's chunk.
    ///
    /// # Safety
    /// As for [`enqueue`](Shared::enqueue).
    ///
    /// # Errors
    /// As there.
    pub(crate) unsafe fn staged(
        &self,
        lane: &dyn Lane,
        kept: &mut Option<Arc<DeviceBlock>>,
        job: &PackJob<'_>,
        typed: Spot,
        packed: Region,
        held: &mut Holds,
    ) -> Result<(), EngineError> {
        if let Some(span) = job.typed.as_contiguous() {
            let span = span.sub(job.start, job.len())?;
            let (dst, src) = match job.direction {
                Direction::Pack => (packed, span),
                Direction::Unpack => (span, packed),
            };
            // SAFETY: the caller vouches for both; they have one length (`PackJob::new`).
            return unsafe { lane.copy(dst, src) };
        }
        if let Some(plain) = otherwise(job.typed)? {
            // SAFETY: the caller's own promise: it touches the same bytes of the same region.
            return unsafe { self.staged(lane, kept, &job.of(&plain), typed, packed, held) };
        }
        let way = self.way(lane, job, typed, held)?;
        let first = Route { lane, chunk: self.chunk(kept, held)? };
        let another = if job.len() > part_bytes(job.len(), self.config.chunk_bytes) {
            self.another(lane)
        } else {
            None
        };
        let Some((other, mut track)) = another else {
            // SAFETY: the caller's own promise; the chunk is held.
            unsafe { self.parts(&[first], job, typed, packed, &way) }?;
            return self.parts_end(lane, &way);
        };
        let mut flight = InFlight::new(other);
        // What the first lane waits for, the second one does, and for the plan's upload with it.
        other.wait_for(&[lane.record()?])?;
        let second = Route { lane: other, chunk: self.chunk(&mut track.chunk, flight.held())? };
        // SAFETY: the caller's own promise; the chunks are held, and the first lane waits for the second.
        unsafe { self.parts(&[first, second], job, typed, packed, &way) }?;
        let completion = other.record()?;
        lane.wait_for(std::slice::from_ref(&completion))?;
        track.last = completion.clone();
        // The first lane's end comes after the second one's: the plan's hold is with the first one.
        flight.land(&mut track.retired, &completion);
        self.parts_end(lane, &way)
    }

    /// Enqueues a move from layout to layout through a chunk, for sides that no kernel takes together. `kept` is the
    /// lane's chunk.
    ///
    /// # Safety
    /// As for [`transfer`](Shared::transfer).
    ///
    /// # Errors
    /// As there.
    pub(crate) unsafe fn through_chunk(
        &self,
        lane: &dyn Lane,
        kept: &mut Option<Arc<DeviceBlock>>,
        what: &Between<'_>,
        held: &mut Holds,
    ) -> Result<(), EngineError> {
        let job = |direction, typed| {
            let (start, end) = (what.range.start, what.range.end);
            PackJob { direction, typed, start, end, budget: what.budget }
        };
        let (pack, unpack) = (job(Direction::Pack, what.from.0), job(Direction::Unpack, what.to.0));
        let source = self.way(lane, &pack, what.from.1, held)?;
        let target = self.way(lane, &unpack, what.to.1, held)?;
        let chunk = self.chunk(kept, held)?;
        let mut begin = pack.start;
        while begin < pack.end {
            let end = pack.end.min(begin + self.config.chunk_bytes);
            let middle = spot(chunk, begin % ALIGNED);
            // SAFETY: the caller vouches for the source; the chunk is the lane's, as long as the part, and held.
            unsafe {
                self.enqueue_part(lane, &pack.part(begin, end), (what.from.1, middle), &source)
            }?;
            // SAFETY: likewise for the target.
            unsafe {
                self.enqueue_part(lane, &unpack.part(begin, end), (what.to.1, middle), &target)
            }?;
            begin = end;
        }
        self.parts_end(lane, &source)?;
        self.parts_end(lane, &target)
    }

    /// The parts, in turn over the routes.
    ///
    /// # Safety
    /// As for [`staged`](Shared::staged); the chunks stay allocated until their lanes have passed the work.
    unsafe fn parts(
        &self,
        routes: &[Route<'_>],
        job: &PackJob<'_>,
        typed: Spot,
        packed: Region,
        way: &Way<'_>,
    ) -> Result<(), EngineError> {
        // On one route a part's copy has ended before the next part's kernel begins: short parts would save nothing.
        let step = match routes {
            [_] => self.config.chunk_bytes,
            _ => part_bytes(job.len(), self.config.chunk_bytes),
        };
        let parts = (0..).map_while(|number: u64| {
            let begin = job.start.checked_add(number.checked_mul(step)?)?;
            (begin < job.end).then_some((number, begin))
        });
        // A part's kernel is enqueued before the copy of the part before: host memory that is not
        // page-locked is copied by this thread, which would hold it up.
        let mut packing: Option<(&Route<'_>, StagedPart<'_>)> = None;
        for (number, begin) in parts {
            let route = &routes[usize::try_from(number).unwrap_or(0) % routes.len()];
            let end = job.end.min(begin + step);
            let part = StagedPart {
                job: job.part(begin, end),
                packed: packed.sub(begin - job.start, end - begin)?,
                chunk: route.chunk.sub(begin % ALIGNED, end - begin)?,
            };
            if job.direction == Direction::Unpack {
                // SAFETY: the caller vouches for the packed region; the chunk is the lane's.
                unsafe { route.lane.copy(part.chunk, part.packed) }?;
            } else if routes.len() == 1
                && let Some((route, part)) = packing.take()
            {
                // SAFETY: as above.
                unsafe { route.lane.copy(part.packed, part.chunk) }?;
            }
            // SAFETY: the caller vouches for the typed side; the chunk is the lane's, and as long as the
            // part.
            unsafe {
                let spots = (typed, spot(route.chunk, begin % ALIGNED));
                self.enqueue_part(route.lane, &part.job, spots, way)
            }?;
            if job.direction == Direction::Pack
                && let Some((route, part)) = packing.replace((route, part))
            {
                // SAFETY: as above.
                unsafe { route.lane.copy(part.packed, part.chunk) }?;
            }
        }
        if let Some((route, part)) = packing {
            // SAFETY: as above.
            unsafe { route.lane.copy(part.packed, part.chunk) }?;
        }
        Ok(())
    }
}

/// Bytes of the parts that a range of `len` bytes goes in: as long as chunks, but for a first and a last
/// one that no other hides.
fn part_bytes(len: u64, chunk: u64) -> u64 {
    (len / PARTS).next_multiple_of(ALIGNED).max(PART_MIN).min(chunk)
}

/// Where kernels find bytes in a chunk, which the device allocated, aligned to any word.
fn spot(chunk: Region, skew: u64) -> Spot {
    Spot { base: chunk, place: KernelAddress { address: 0, offset: skew.cast_signed() } }
}
