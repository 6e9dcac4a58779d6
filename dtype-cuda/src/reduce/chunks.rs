//! Reductions in chunks: what kernels do not take where it lies is packed before, or unpacked after, and of many
//! sources partial results are kept. All in device memory of the engine's own, on one lane, in order. Units: bytes.

use super::{Combined, Side};
use crate::accelerator::{Lane, Spot};
use crate::lanes::{Hold, Holds};
use crate::shared::{PackJob, Shared};
use gapless_engine::EngineError;
use gapless_kernels::Direction;
use gapless_kernels::launch::{ReducedSide, Reduction, TransferSide};
use gapless_kernels::reduce::SOURCES_MAX;
use gapless_mem::{DeviceError, Region};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// A chunk: a multiple of every element and of a kernel's words, short enough to stay in a GPU's cache.
const CHUNK: u64 = (4 << 20) / 48 * 48;

/// Chunks begin at multiples of this …
const ALIGNED: u64 = 512;

/// … and their bytes where the sides that are not packed have them within a word.
const WORD: u64 = 16;

/// Memory for chunks of a reduction: number 0 is for results, the others for sources.
struct Slots {
    memory: Region,
    stride: u64,
    phase: u64,
}

impl Slots {
    fn region(&self, number: usize, len: u64) -> Result<Region, EngineError> {
        Ok(self.memory.sub(number as u64 * self.stride + self.phase, len)?)
    }
}

/// A side of a launch, and its pointer.
type ToldChunk = (ReducedSide, Region);

/// Where a side's bytes are within a word, if kernels take it where it lies.
fn phase(side: &Side<'_>) -> Option<u64> {
    let ReducedSide { shape, place, start } = side.direct.as_ref()?;
    Some(match shape {
        TransferSide::Contiguous(displacement) => {
            let at = place.offset.wrapping_add(*displacement).cast_unsigned();
            place.address.wrapping_add(at).wrapping_add(*start) % WORD
        }
        _ => start % WORD,
    })
}

impl Shared {
    /// Enqueues a reduction in chunks.
    ///
    /// # Safety
    /// As for [`run_reduction`](Shared::run_reduction).
    ///
    /// # Errors
    /// As there.
    pub(super) unsafe fn in_chunks(
        &self,
        lane: &dyn Lane,
        all: &Combined<'_>,
        held: &mut Holds,
    ) -> Result<(), EngineError> {
        let groups = groups(all.sources.len());
        let packed = |group: &Range<usize>| {
            all.sources[group.clone()].iter().filter(|side| side.direct.is_none()).count()
        };
        let slots = 1 + groups.iter().map(packed).max().unwrap_or(0);
        let stride = CHUNK.min(all.what.len).next_multiple_of(ALIGNED) + ALIGNED;
        let block = Arc::new(self.memory.take(slots as u64 * stride)?);
        let sides = [&all.target].into_iter().chain(&all.sources);
        let phase = sides.clone().find_map(phase).unwrap_or(0);
        let slots = Slots { memory: block.region(), stride, phase };
        held.push(Hold::Block(block));
        let mut start = 0;
        while start < all.what.len {
            let chunk = start..all.what.len.min(start + CHUNK);
            for group in &groups {
                // SAFETY: the caller's own promise; the slots are held, and what was in them before lies before on the
                // lane.
                unsafe { self.combine_chunk(lane, all, group.clone(), &chunk, &slots, held) }?;
            }
            if all.target.direct.is_none() {
                let result = slots.region(0, chunk.end - chunk.start)?;
                // SAFETY: as above.
                unsafe {
                    self.move_packed(
                        lane,
                        Direction::Unpack,
                        all,
                        &all.target,
                        &chunk,
                        result,
                        held,
                    )
                }?;
            }
            start = chunk.end;
        }
        Ok(())
    }

    /// One chunk of a group of sources, into the target if it is the last one, or else into slot 0, from which it goes
    /// on.
    ///
    /// # Safety
    /// As for [`in_chunks`](Shared::in_chunks).
    unsafe fn combine_chunk(
        &self,
        lane: &dyn Lane,
        all: &Combined<'_>,
        group: Range<usize>,
        chunk: &Range<u64>,
        slots: &Slots,
        held: &mut Holds,
    ) -> Result<(), EngineError> {
        let len = chunk.end - chunk.start;
        let result = slots.region(0, len)?;
        if all.sources.len() == 1 {
            // SAFETY: the caller's own promise.
            return unsafe {
                self.move_packed(lane, Direction::Pack, all, &all.sources[0], chunk, result, held)
            };
        }
        let mut sources: SmallVec<[ToldChunk; SOURCES_MAX]> = SmallVec::new();
        if group.start > 0 {
            sources.push(self.slot(result)?);
        }
        let mut number = 0;
        for side in &all.sources[group.clone()] {
            if let Some(told) = part(side, chunk) {
                sources.push(told);
                continue;
            }
            number += 1;
            let packed = slots.region(number, len)?;
            // SAFETY: the caller's own promise.
            unsafe { self.move_packed(lane, Direction::Pack, all, side, chunk, packed, held) }?;
            sources.push(self.slot(packed)?);
        }
        let is_last = group.end == all.sources.len();
        let target = match part(&all.target, chunk).filter(|_| is_last) {
            Some(told) => told,
            None => self.slot(result)?,
        };
        let pointers = [target.1].into_iter().chain(sources.iter().map(|told| told.1)).collect();
        let sides: SmallVec<[&ReducedSide; SOURCES_MAX]> =
            sources.iter().map(|told| &told.0).collect();
        let what = Reduction { len, ..all.what };
        // SAFETY: the caller's own promise; the sides are those of the buffers or slots.
        unsafe { self.combine(lane, what, &target.0, &sides, &pointers) }
    }

    /// Packed memory of the engine's own, as kernels see it.
    fn packed_spot(&self, region: Region) -> Result<Spot, EngineError> {
        let what = "kernels that reach the device's own memory";
        self.accelerator.packed(region)?.ok_or(DeviceError::Unsupported { what }.into())
    }

    fn slot(&self, region: Region) -> Result<ToldChunk, EngineError> {
        let spot = self.packed_spot(region)?;
        Ok((self.reduced(TransferSide::Contiguous(0), spot, 0), spot.base))
    }

    /// Enqueues the pack of a side's part of a chunk, or the unpack.
    ///
    /// # Safety
    /// As for [`in_chunks`](Shared::in_chunks).
    #[expect(clippy::too_many_arguments, reason = "what is moved, and by what")]
    unsafe fn move_packed(
        &self,
        lane: &dyn Lane,
        direction: Direction,
        all: &Combined<'_>,
        side: &Side<'_>,
        chunk: &Range<u64>,
        packed: Region,
        held: &mut Holds,
    ) -> Result<(), EngineError> {
        let first = side.window.start;
        let range = first + chunk.start..first + chunk.end;
        let job = PackJob::new(direction, side.typed, &range, packed, all.what.budget)?;
        // SAFETY: the caller's own promise; the packed side is held.
        unsafe { self.enqueue(lane, &job, side.spot, self.packed_spot(packed)?, held) }
    }
}

/// A side's part of a chunk where it lies, if kernels take it there.
fn part(side: &Side<'_>, chunk: &Range<u64>) -> Option<ToldChunk> {
    let direct = side.direct.as_ref()?;
    let start = direct.start + chunk.start;
    Some((ReducedSide { start, ..direct.clone() }, side.spot.base))
}

/// Sources that are combined at once: the first ones, then so many that the result so far is one more.
fn groups(sources: usize) -> SmallVec<[Range<usize>; 2]> {
    let mut groups = SmallVec::new();
    let mut first = 0;
    while first < sources {
        let room = if first == 0 { SOURCES_MAX } else { SOURCES_MAX - 1 };
        let end = sources.min(first + room);
        groups.push(first..end);
        first = end;
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_is_in_one_group() {
        for sources in 1..40 {
            let groups = groups(sources);
            assert!(groups.windows(2).all(|two| two[0].end == two[1].start));
            assert_eq!(groups.iter().map(ExactSizeIterator::len).sum::<usize>(), sources);
            // With the result so far there are at least two, and not too many.
            for group in &groups {
                let all = group.len() + usize::from(group.start > 0);
                assert!(all <= SOURCES_MAX && (all > 1 || sources == 1), "{sources}: {group:?}");
            }
        }
    }
}
