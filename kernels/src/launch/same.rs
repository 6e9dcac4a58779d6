//! Between two memories that have the same layout: a word is looked up once, and lies at the same
//! displacement of both.
//!
//! The stream's order means nothing then, so that a grid is walked in the order of its memory, and
//! dimensions that continue each other become one: a transposed matrix is a contiguous span.
//!
//! A launch is laid out as an unpack into the destination is, with the source in the packed side's place.

use super::{
    Blocks, Budget, Grid, GridDim, KernelAddress, Launch, Launches, Move, Planned, Runs,
    TransferSide, Unfit, affine, contiguous, listed, mapped, strided,
};
use crate::{Direction, Family, Kernel};
use smallvec::SmallVec;
use std::ops::Range;

/// Bytes of blocks that are as fast in any order.
const ORDERLESS: u64 = 1024;

/// Grids, and a range of each.
type Parts = SmallVec<[(Grid, Range<u64>); 1]>;

/// Launches that move `range` of the packed stream of `shape` from one memory to the same displacements of
/// another. Mostly one; of a part of a grid whose stream runs across its memory's order, up to two for each
/// dimension and one.
///
/// Both places lead to displacement 0. A launch's pointers are the source's, the destination's and, if it
/// takes one, the shape's plan.
///
/// # Errors
/// [`Unfit`], as for the shape alone.
pub fn same(
    range: &Range<u64>,
    shape: &TransferSide,
    from: KernelAddress,
    to: KernelAddress,
    budget: Option<Budget>,
) -> Result<Launches, Unfit> {
    let mut launches = Launches::new();
    if range.is_empty() {
        return Ok(launches);
    }
    // Displacements count with their places, so that words are as wide as where the bytes lie allows.
    let moved = |displacement: i64, range: Range<u64>| {
        let place =
            |at: KernelAddress, by: i64| KernelAddress { offset: at.offset.wrapping_add(by), ..at };
        // The packed side counts from the range's begin.
        let packed = place(from, displacement.wrapping_add(range.start.cast_signed()));
        let typed = place(to, displacement);
        Move { direction: Direction::Unpack, range, typed, packed, budget }
    };
    let whole = |displacement| moved(displacement, range.clone());
    match shape {
        TransferSide::Contiguous(displacement) => {
            launches = contiguous(&whole(*displacement), 0)?;
        }
        TransferSide::Strided(grid) => {
            let size = grid.size().ok_or(Unfit::Numbers)?;
            if range.end > size {
                return Err(Unfit::Range { end: range.end, size });
            }
            let mut parts = Parts::new();
            reorder(grid, range, &mut parts);
            for (grid, range) in parts {
                let what = moved(grid.displacement, range);
                launches.extend(strided(&what, &Grid { displacement: 0, ..grid })?);
            }
        }
        TransferSide::Affine(runs) => {
            launches = affine(&whole(runs.displacement), &Runs { displacement: 0, ..*runs })?;
        }
        TransferSide::Listed(blocks) => {
            let moved = Blocks { displacement: 0, ..*blocks };
            launches = listed(&whole(blocks.displacement), &moved)?;
        }
        TransferSide::Mapped(plan) => {
            launches = mapped(&whole(plan.displacement), &Planned { displacement: 0, ..*plan })?;
        }
    }
    let back = from.offset.wrapping_sub(to.offset);
    for launch in &mut launches {
        pair(launch, back).ok_or(Unfit::Numbers)?;
    }
    Ok(launches)
}

/// Makes an unpack a move from a source that lies `back` bytes from the destination. There is a kernel for
/// all but transposed shapes, and grids in the order of their memory are none.
fn pair(launch: &mut Launch, back: i64) -> Option<()> {
    let Kernel { family, width, few, .. } = launch.kernel;
    let family = family.same()?;
    launch.kernel = Kernel { family, direction: Direction::Pack, width, few };
    let span = launch.args.span_mut();
    span.packed = span.typed;
    span.typed = span.typed.wrapping_add(back);
    if family == Family::Copy {
        // Packs, from the first word on.
        span.packed = span.packed.wrapping_add(i64::from(span.first) << width.log2());
    }
    Some(())
}

/// Grids, and the ranges of them, that together are `range` of `grid`: in the order of the memory, where
/// that matters.
fn reorder(grid: &Grid, range: &Range<u64>, parts: &mut Parts) {
    let (mut grid, range) = grid.narrow(range);
    let size = grid.size().unwrap_or(u64::MAX);
    let far = |dim: &GridDim| dim.stride.unsigned_abs();
    if range == (0..size) {
        for dim in &mut grid.dims {
            if dim.stride < 0 {
                let last = (dim.count - 1).cast_signed().wrapping_mul(dim.stride);
                grid.displacement = grid.displacement.wrapping_add(last);
                dim.stride = dim.stride.wrapping_neg();
            }
        }
        grid.dims.sort_by_key(|dim| std::cmp::Reverse(far(dim)));
    } else if grid.len < ORDERLESS && !grid.dims.is_sorted_by(|a, b| far(a) >= far(b)) {
        // Whole ones of the outermost dimension can be put in order; `narrow` left more than one.
        let inner = size / grid.dims[0].count;
        let (first, last) = (range.start.next_multiple_of(inner), range.end / inner * inner);
        for part in [range.start..first, first..last, last..range.end] {
            if !part.is_empty() {
                reorder(&grid, &part, parts);
            }
        }
        return;
    }
    join(&mut grid);
    if grid.dims.is_empty() {
        // Where a contiguous span ends is no reason for narrow words.
        grid.len = grid.len.next_multiple_of(16);
    }
    parts.push((grid, range));
}

/// Makes one of dimensions that continue each other; the stream is the same.
fn join(grid: &mut Grid) {
    while let Some(dim) = grid.dims.last()
        && dim.stride == grid.len.cast_signed()
    {
        grid.len *= dim.count;
        grid.dims.pop();
    }
    let mut at = 1;
    while at < grid.dims.len() {
        let (outer, inner) = (grid.dims[at - 1], grid.dims[at]);
        if Some(outer.stride) == inner.stride.checked_mul(inner.count.cast_signed()) {
            grid.dims[at].count *= outer.count;
            grid.dims.remove(at - 1);
        } else {
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests;
