//! The reducer of host memory. Elements that lie packed are combined where they are, straight into the target;
//! others pass through small blocks of the stack.
//!
//! [`blocks`] has MPI's operations, [`vectors`] users'.

#[allow(unsafe_code, reason = "combines elements that are given by address")]
mod blocks;
#[allow(unsafe_code, reason = "brings elements to users' functions and back, by address")]
mod vectors;

use crate::combine::{Fold, Level, combine};
use crate::host::{cursor, origin, start, wait_all};
use crate::method::operands;
use crate::{EngineError, HostEngine, Method, Op, Operand, ReduceOp, Reducer, Typed};
use gapless_dtype::{Layout, Primitive, transfer_raw};
use gapless_mem::{Completion, Space};
use std::ops::Range;

fn loop_for(op: ReduceOp, primitive: Primitive) -> Result<Fold, EngineError> {
    combine(Level::best(), op, primitive).ok_or_else(|| match op.check(primitive) {
        Ok(()) => EngineError::NoArithmetic { primitive },
        Err(undefined) => undefined,
    })
}

/// Whether both ranges are the same bytes of memory, in the same order. How long the buffers are does not matter.
fn is_same(one: &Typed, other: &Typed, range: &Range<u64>) -> Result<bool, EngineError> {
    Ok(one.window(range)? == other.window(range)? && one.same_places(other))
}

/// Copies the range from one layout to another.
///
/// # Safety
/// As for [`Reducer::reduce_into`].
unsafe fn copy(src: &Typed, dst: &Typed, range: &Range<u64>) -> Result<(), EngineError> {
    if is_same(src, dst, range)? {
        return Ok(());
    }
    let mut source = cursor(src, &src.window(range)?)?;
    let mut target = cursor(dst, &dst.window(range)?)?;
    let (from, to) = (origin(src)?, origin(dst)?);
    // SAFETY: `Typed` found all that the layouts describe inside the regions, which the caller grants. They do not
    // overlap: a source that does is the same bytes.
    unsafe { transfer_raw(&mut source, from, &mut target, to, range.end - range.start) };
    Ok(())
}

// SAFETY: the numbers are those of the contract.
// 1. Bytes are reached through the convertor, within what `Typed` has found inside its region, or at the one
//    span that it says the packed stream is; from the window's start for the range's length.
// 2. All is done by this thread once `after` has ended, before it returns.
// 3. Operation, elements, windows, the range's ends and spaces are looked at before `wait_all`.
// 4. Nothing is left behind by a return, of whatever kind; panics of users' functions are caught in `UserOp::call`.
unsafe impl Reducer for HostEngine {
    fn supports(&self, op: &Op, layout: &Layout) -> bool {
        match op {
            Op::Predefined(op) if !op.only_moves() && layout.size() > 0 => {
                let element = op.element(layout, Operand::Target);
                let primitive = element.map(|element| element.unwrap_or(Primitive::Byte));
                primitive.is_ok_and(|primitive| loop_for(*op, primitive).is_ok())
            }
            op => op.element_bytes(layout).is_ok(),
        }
    }

    fn serves(&self, space: Space) -> bool {
        space.cpu_accessible()
    }

    unsafe fn reduce_into(
        &self,
        op: &Op,
        srcs: &[Typed],
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let (method, element_bytes) = Method::of(op, srcs, dst)?;
        let fold = match method {
            Method::Combine(op, primitive) => Some(loop_for(op, primitive)?),
            Method::Move(_) | Method::Call(_) => None,
        };
        let elements = Method::elements(&range, element_bytes)?;
        if let (Some(fold), Ok(count)) = (fold, usize::try_from(elements))
            && let Some(places) = blocks::Places::of(srcs, dst, &range)?
        {
            wait_all(after)?;
            // SAFETY: the caller's promise; all elements of the range lie at these places, in memory that the CPU may
            // touch, and the loop is for this processor.
            unsafe { places.fold(fold, count) };
            return Ok(Completion::Ready);
        }
        for (_, side) in operands(srcs, dst) {
            side.window(&range)?;
            start(side.region())?;
        }
        wait_all(after)?;
        match (method, fold) {
            _ if elements == 0 => {}
            // SAFETY: the caller's promise.
            (Method::Move(number), _) => unsafe { copy(&srcs[number], dst, &range) }?,
            // SAFETY: the caller's promise; windows and spaces were looked at, and the range is whole elements.
            (Method::Call(op), _) => unsafe { vectors::reduce(op, srcs, dst, &range) }?,
            (Method::Combine(..), None) => unreachable!("its loop has been found"),
            (Method::Combine(..), Some(fold)) => {
                // SAFETY: the caller's promise; windows and spaces were looked at, the range is whole elements of
                // `element_bytes` bytes, and the loop is for this processor.
                unsafe { blocks::reduce(fold, element_bytes, srcs, dst, &range) }?;
            }
        }
        Ok(Completion::Ready)
    }
}

#[cfg(test)]
mod tests;
