//! From layout to layout: both sides have gaps, and the stream is only what they are matched by.

use super::{
    Blocks, Budget, Grid, KernelAddress, Launch, Launches, NONE_IDLE, Planned, Runs, Unfit,
    WORDS_MAX, Words, flat, grid, narrowed,
};
use crate::args::{Args, SIDE_AFFINE, SIDE_LISTED, SIDE_MAPPED, SIDE_STRIDED, Side, TransferArgs};
use crate::{Direction, Family, Width};
use smallvec::SmallVec;
use std::ops::Range;

/// One side of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferSide {
    /// One contiguous span that begins at this displacement; it has no end of its own.
    Contiguous(i64),
    /// Equal blocks on a grid.
    Strided(Grid),
    /// Runs whose lengths advance by a constant.
    Affine(Runs),
    /// Equal blocks at listed displacements.
    Listed(Blocks),
    /// Any blocks.
    Mapped(Planned),
}

impl TransferSide {
    pub(super) fn bits(&self) -> u64 {
        match self {
            TransferSide::Contiguous(displacement) => displacement.cast_unsigned(),
            TransferSide::Strided(grid) => grid.bits(),
            TransferSide::Affine(runs) => runs.bits(),
            TransferSide::Listed(blocks) => blocks.all_bits(),
            TransferSide::Mapped(plan) => plan.all_bits(),
        }
    }

    /// Bytes of the stream.
    pub(super) fn size(&self) -> Option<u64> {
        match self {
            TransferSide::Contiguous(_) => Some(i64::MAX.cast_unsigned()),
            TransferSide::Strided(grid) => grid.size(),
            TransferSide::Affine(runs) => runs.size()?.checked_mul(runs.instances),
            TransferSide::Listed(blocks) => blocks.size()?.checked_mul(blocks.instances),
            TransferSide::Mapped(plan) => {
                plan.size.checked_mul(plan.instances).filter(|_| plan.size > 0)
            }
        }
    }

    /// The side's arguments and displacement for `range`; `None` if the words of what holds the range
    /// cannot be numbered.
    pub(super) fn shape(
        &self,
        range: &Range<u64>,
        width: Width,
    ) -> Result<Option<(Side, i64)>, Unfit> {
        let bytes_max = WORDS_MAX << width.log2();
        let mut side = Side { kind: SIDE_STRIDED, ..Side::default() };
        let (displacement, begin, end) = match self {
            TransferSide::Contiguous(displacement) => {
                let begin = range.start >> width.log2() << width.log2();
                let displacement = displacement.wrapping_add(begin.cast_signed());
                let len = (range.end - begin).next_multiple_of(u64::from(width.bytes()));
                if len > bytes_max {
                    return Ok(None);
                }
                let span = Grid { displacement, len, dims: SmallVec::new() };
                side.strided = grid::shape(&span, width)?;
                (displacement, begin, range.end)
            }
            TransferSide::Strided(whole) => {
                let (part, inside) = whole.narrow(range);
                if part.size().is_none_or(|size| size > bytes_max) {
                    return Ok(None);
                }
                side.strided = grid::shape(&part, width)?;
                (part.displacement, range.start - inside.start, range.end)
            }
            TransferSide::Affine(runs) => {
                side.kind = SIDE_AFFINE;
                let (part, begin, end) = runs.part(range.start, range.end, bytes_max);
                side.affine = part.shape(width).ok_or(Unfit::Numbers)?;
                (part.displacement, begin, end)
            }
            TransferSide::Listed(blocks) => {
                side.kind = SIDE_LISTED;
                let (part, begin, end) = blocks.part(range.start, range.end, bytes_max);
                side.listed = part.shape(width).ok_or(Unfit::Numbers)?;
                (part.displacement, begin, end)
            }
            TransferSide::Mapped(plan) => {
                side.kind = SIDE_MAPPED;
                let (part, begin, end) = plan.part(range.start, range.end, bytes_max);
                side.mapped = part.shape(width).ok_or(Unfit::Numbers)?;
                (part.displacement, begin, end)
            }
        };
        if end < range.end {
            return Ok(None);
        }
        side.first = Words::of(&(range.start - begin..range.end - begin), width).first;
        Ok(Some((side, displacement)))
    }
}

/// Launches that move `range` of the stream from one layout to another.
///
/// Both places lead to displacement 0. The plans of both sides are passed after the two pointers; a
/// side without one takes any pointer.
///
/// # Errors
/// [`Unfit`]: a shape that arguments have no room for, or a range outside a stream. Runs of an affine
/// instance beyond 2³¹ words need a plan.
pub fn transfer(
    range: &Range<u64>,
    from: (&TransferSide, KernelAddress),
    to: (&TransferSide, KernelAddress),
    budget: Option<Budget>,
) -> Result<Launches, Unfit> {
    let mut launches = Launches::new();
    if range.is_empty() {
        return Ok(launches);
    }
    for side in [from.0, to.0] {
        let size = side.size().ok_or(Unfit::Numbers)?;
        if range.end > size {
            return Err(Unfit::Range { end: range.end, size });
        }
    }
    let bits = from.0.bits() | from.1.bits() | to.0.bits() | to.1.bits();
    let width = narrowed(Width::dividing(bits), range);
    let mut open = vec![range.clone()];
    while let Some(range) = open.pop() {
        let sides = (from.0.shape(&range, width)?, to.0.shape(&range, width)?);
        let (Some((source, source_at)), Some((target, target_at))) = sides else {
            // Halves meet at a word; the first one goes first.
            let middle =
                (range.start + (range.end - range.start) / 2) >> width.log2() << width.log2();
            if middle <= range.start {
                return Err(Unfit::Numbers);
            }
            open.push(middle..range.end);
            open.push(range.start..middle);
            continue;
        };
        let words = Words { first: 0, ..Words::of(&range_in(&range, width), width) };
        let geometry = flat(Family::Transfer, width, words, NONE_IDLE, budget);
        let mut span = words.span(from.1.offset.wrapping_add(source_at), 0);
        span.packed = to.1.offset.wrapping_add(target_at);
        geometry.tell(&mut span);
        let args = TransferArgs { span, from: source, to: target };
        launches.push(Launch::new(
            Family::Transfer,
            Direction::Pack,
            width,
            geometry,
            Args::Transfer(Box::new(args)),
        ));
    }
    Ok(launches)
}

/// The range moved to the stream's begin, whole words left out: its words and edges are the same.
fn range_in(range: &Range<u64>, width: Width) -> Range<u64> {
    let skipped = range.start >> width.log2() << width.log2();
    range.start - skipped..range.end - skipped
}
