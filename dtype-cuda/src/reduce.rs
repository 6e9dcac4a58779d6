//! Reductions: the engine as a [`Reducer`] of device memory.
//!
//! A kernel reads every source where it lies and writes the target, if each side is one contiguous span or blocks on a
//! grid, and its elements lie as C would have them. Of any other side (a triangle, a list, an odd address, pages, a
//! block that ends within an element) each chunk is packed into device memory of the engine's own first, or unpacked
//! from there; so are partial results where there are more sources than a kernel takes. Every source is read once and
//! the target is written once, in either way.
//!
//! [`Task`]s here are checked; `reduce::chunks` has what is done in chunks.

mod chunks;
mod kernel;

use crate::accelerator::{Lane, Spot};
use crate::engine::GpuEngine;
use crate::form::Form;
use crate::lanes::Holds;
use crate::memory::DeviceBlock;
use crate::shared::{Shared, Task};
use gapless_dtype::{Layout, Primitive};
use gapless_engine::{EngineError, Method, Op, Operand, Reducer, Typed};
use gapless_kernels::Direction;
use gapless_kernels::launch::{Budget, ReducedSide, Reduction, TransferSide, reduce, reducible};
use gapless_kernels::reduce::{Combine, SOURCES_MAX};
use gapless_mem::{Completion, DeviceError, Region, Space};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// One buffer of a reduction.
struct Side<'a> {
    typed: &'a Typed,
    /// Where kernels find its displacement 0.
    spot: Spot,
    /// The bytes of its stream that take part.
    window: Range<u64>,
    /// As kernels combine it where it lies; otherwise it has to be packed.
    direct: Option<ReducedSide>,
}

/// What a reduction does, checked. It has bytes to combine.
pub(crate) struct Combined<'a> {
    target: Side<'a>,
    sources: Vec<Side<'a>>,
    what: Reduction,
}

/// What a call does, checked.
pub(crate) enum Reducing<'a> {
    /// Nothing.
    Nothing,
    /// A move.
    Moved(Task<'a>),
    /// A source becomes the target, which takes both through a chunk; or elements are combined.
    Combined(Combined<'a>),
}

/// Whether both are the same bytes of memory, in the same order.
fn is_same(one: &Typed, other: &Typed, range: &Range<u64>) -> Result<bool, EngineError> {
    Ok(one.window(range)? == other.window(range)? && one.same_places(other))
}

impl Shared {
    /// A reduction, checked.
    ///
    /// # Errors
    /// Everything that [`Reducer::reduce_into`] refuses.
    pub(crate) fn reduction<'a>(
        &self,
        op: &Op,
        srcs: &'a [Typed],
        dst: &'a Typed,
        range: &Range<u64>,
        budget: Option<Budget>,
    ) -> Result<Reducing<'a>, EngineError> {
        let (method, element_bytes) = Method::of(op, srcs, dst)?;
        let what = match method {
            Method::Move(_) => None,
            Method::Combine(op, primitive) => Some(self.kernel(op, primitive)?),
            Method::Call(_) => {
                let what = "users' functions on a device";
                return Err(EngineError::Device(DeviceError::Unsupported { what }));
            }
        };
        Method::elements(range, element_bytes)?;
        let sides = |typed: &'a Typed| self.operand(typed, range);
        let target = sides(dst)?;
        let sources: Vec<Side<'a>> = srcs.iter().map(sides).collect::<Result<_, _>>()?;
        let len = range.end - range.start;
        self.check_len(len)?;
        if len == 0 {
            return Ok(Reducing::Nothing);
        }
        match (method, what) {
            (_, Some((combine, mask))) => {
                let what = Reduction { combine, mask, len, budget };
                let mut all = Combined { target, sources, what };
                all.find_direct(self);
                Ok(Reducing::Combined(all))
            }
            (Method::Move(number), None) => {
                if is_same(&srcs[number], dst, range)? {
                    return Ok(Reducing::Nothing);
                }
                let source = &sources[number];
                self.moved(source, &target, budget)
            }
            (_, None) => Ok(Reducing::Nothing),
        }
    }

    fn kernel(
        &self,
        op: gapless_engine::ReduceOp,
        primitive: Primitive,
    ) -> Result<(Combine, u64), EngineError> {
        kernel::of(op, primitive)
            .filter(|(combine, _)| self.accelerator.combines(*combine))
            .ok_or(EngineError::NoArithmetic { primitive })
    }

    fn operand<'a>(&self, typed: &'a Typed, range: &Range<u64>) -> Result<Side<'a>, EngineError> {
        let window = typed.window(range)?;
        Ok(Side { typed, spot: self.accelerator.typed(typed)?, window, direct: None })
    }

    /// The move of a range of one stream to a range of another.
    fn moved<'a>(
        &self,
        source: &Side<'a>,
        target: &Side<'a>,
        budget: Option<Budget>,
    ) -> Result<Reducing<'a>, EngineError> {
        let (src, dst) = (source.typed, target.typed);
        let (from, into) = (source.window.clone(), target.window.clone());
        let len = from.end - from.start;
        if from == into {
            return self.move_between(src, dst, &from, budget).map(Reducing::Moved);
        }
        if let Some(span) = dst.as_contiguous() {
            let packed = span.sub(into.start, len)?;
            return self.pack(Direction::Pack, src, &from, packed, budget).map(Reducing::Moved);
        }
        if let Some(span) = src.as_contiguous() {
            let packed = span.sub(from.start, len)?;
            return self.pack(Direction::Unpack, dst, &into, packed, budget).map(Reducing::Moved);
        }
        // Any kernel: none is launched where there is but one source.
        let combine = kernel::any();
        let side = |side: &Side<'a>| Side { window: side.window.clone(), direct: None, ..*side };
        let what = Reduction { combine, mask: 0, len, budget };
        let sources = [side(source)].into_iter().collect();
        let all = Combined { target: side(target), sources, what };
        Ok(Reducing::Combined(all))
    }

    /// Where a side is, as the arithmetic of launches wants it.
    fn reduced(&self, shape: TransferSide, spot: Spot, start: u64) -> ReducedSide {
        let place = match self.accelerator.one_address_space() {
            true => spot.absolute(),
            false => spot.place,
        };
        ReducedSide { shape, place, start }
    }

    /// Enqueues a reduction. It comes after `after`, for which the lane waits already. `chunk` is the lane's.
    ///
    /// # Safety
    /// The memory stays valid, and free of races, until the lane has passed the work.
    ///
    /// # Errors
    /// The device's failure. Some of the work may be enqueued then.
    pub(crate) unsafe fn run_reduction(
        &self,
        lane: &dyn Lane,
        chunk: &mut Option<Arc<DeviceBlock>>,
        reducing: &Reducing<'_>,
        held: &mut Holds,
        after: Option<&[Completion]>,
    ) -> Result<(), EngineError> {
        match reducing {
            Reducing::Nothing => Ok(()),
            // SAFETY: the caller's own promise.
            Reducing::Moved(task) => unsafe { self.run(lane, chunk, task, held, after) },
            Reducing::Combined(all) => match all.at_once() {
                Some((target, sources)) => {
                    let bases = all.sources.iter().map(|side| side.spot.base);
                    let pointers = [all.target.spot.base].into_iter().chain(bases).collect();
                    // SAFETY: the caller's own promise; the sides are those of the buffers.
                    unsafe { self.combine(lane, all.what, target, &sources, &pointers) }
                }
                // SAFETY: the caller's own promise.
                None => unsafe { self.in_chunks(lane, all, held) },
            },
        }
    }

    /// Enqueues kernels that combine sources into a target; the pointers are the target's, then the sources'.
    ///
    /// # Safety
    /// The sides describe, from the pointers, memory that stays valid, and free of races, until the lane has passed
    /// the work.
    unsafe fn combine(
        &self,
        lane: &dyn Lane,
        what: Reduction,
        target: &ReducedSide,
        sources: &[&ReducedSide],
        pointers: &SmallVec<[Region; 9]>,
    ) -> Result<(), EngineError> {
        let launches = reduce(what, target, sources).map_err(|reason| self.unfit(reason))?;
        for launch in &launches {
            // SAFETY: the caller's own promise: a launch touches the range of the sides that it was made of.
            unsafe { lane.reduce(launch, pointers) }?;
        }
        Ok(())
    }
}

impl Combined<'_> {
    /// Finds the sides that kernels take where they lie.
    fn find_direct(&mut self, shared: &Shared) {
        let Reduction { combine, len, .. } = self.what;
        let sides = self.sources.iter_mut().chain([&mut self.target]);
        for side in sides.filter(|side| side.typed.as_pages().is_none()) {
            let shape = match Form::of(side.typed.layout(), side.typed.count()) {
                Form::Contiguous { displacement } => TransferSide::Contiguous(displacement),
                Form::Strided(grid) => TransferSide::Strided(grid),
                _ => continue,
            };
            let reduced = shared.reduced(shape, side.spot, side.window.start);
            side.direct = reducible(combine, &reduced, len).is_ok().then_some(reduced);
        }
    }

    /// All sides, if kernels take them where they lie.
    fn at_once(&self) -> Option<(&ReducedSide, SmallVec<[&ReducedSide; SOURCES_MAX]>)> {
        if !(2..=SOURCES_MAX).contains(&self.sources.len()) {
            return None;
        }
        let target = self.target.direct.as_ref()?;
        let sources = self.sources.iter().map(|side| side.direct.as_ref());
        Some((target, sources.collect::<Option<_>>()?))
    }
}

// SAFETY: the numbers are those of the contract.
// 1. Kernels are launched for the range of each side's stream, at places that a layout has which `Typed` found inside
//    its region (`kernels::launch::reduce` refuses ranges outside a stream); they write only the target's. What passes
//    through chunks goes by packs and unpacks of the range's pieces, for which the engine's own contract holds, and
//    through memory of the engine's.
// 2. `on_lane` has the lane wait for `after` before it is given anything; its record, behind all of it, is the
//    completion. After an error `InFlight` drains the lane. Chunks are held until the lane has passed them.
// 3. `Shared::reduction` looks at operation, elements, the range's ends, windows and places before a lane is taken.
// 4. As of the engine: work of others is asked before a lane is taken; what unwinds after that drops `InFlight`, which
//    waits. Users' functions are refused.
unsafe impl Reducer for GpuEngine {
    fn supports(&self, op: &Op, layout: &Layout) -> bool {
        let Op::Predefined(op) = op else { return false };
        if layout.size() == 0 || kernel::only_moves(*op) {
            return true;
        }
        let element = op.element(layout, Operand::Target);
        element.is_ok_and(|element| {
            self.shared.kernel(*op, element.unwrap_or(Primitive::Byte)).is_ok()
        })
    }

    fn serves(&self, space: Space) -> bool {
        self.shared.accelerator.serves(space)
    }

    unsafe fn reduce_into(
        &self,
        op: &Op,
        srcs: &[Typed],
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let shared = &*self.shared;
        // SAFETY: the caller's own promise.
        unsafe { self.learn_alignment(srcs.iter().chain([dst]).map(Typed::region)) };
        let reducing = shared.reduction(op, srcs, dst, &range, self.budget)?;
        if matches!(reducing, Reducing::Nothing) {
            return self.nothing(after);
        }
        let ((), completion) = self.on_lane(after, |lane, track, held| {
            // SAFETY: the caller's own promise; the lane's end is what is returned.
            unsafe { shared.run_reduction(lane, &mut track.chunk, &reducing, held, Some(after)) }
        })?;
        Ok(completion)
    }
}

#[cfg(test)]
mod tests;
