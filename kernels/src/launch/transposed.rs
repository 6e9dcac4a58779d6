//! Single words whose stream runs across the memory's order: a transposed matrix.

use super::{Geometry, Grid, Move, Words, limited};
use crate::args::{BATCH_MAX, Dim, Divide, Span, Transposed, TransposedArgs};
use crate::{Family, Width};
use smallvec::SmallVec;

/// Words along a square's side.
const SIDE: u64 = 32;
/// Shorter than this, a dimension leaves too many threads of a square idle.
const COUNT_MIN: u64 = 8;
/// Bytes between neighbours at most: farther apart, there is nothing to gain from reading them together.
const STRIDE_MAX: u64 = 32;

/// The arguments, and blocks and threads, if the grid is such a shape.
pub(super) fn transposed(
    what: &Move,
    grid: &Grid,
    width: Width,
    words: Words,
    mut span: Span,
) -> Option<(TransposedArgs, Geometry)> {
    if grid.len != u64::from(width.bytes()) || grid.dims.len() < 2 {
        return None;
    }
    let (fast_at, fast) = (grid.dims.len() - 1, grid.dims.last()?);
    let (dense_at, dense) = grid.dims[..fast_at]
        .iter()
        .enumerate()
        .filter(|(_, dim)| dim.count >= COUNT_MIN && dim.stride != 0)
        .min_by_key(|(_, dim)| dim.stride.unsigned_abs())?;
    let near = dense.stride.unsigned_abs();
    if fast.count < COUNT_MIN || near > STRIDE_MAX || near * 2 > fast.stride.unsigned_abs() {
        return None;
    }
    let mut shape = Transposed::default();
    let mut packed = 1u64;
    let mut others = SmallVec::<[Dim; BATCH_MAX]>::new();
    let mut tiles = 1u64;
    for (at, dim) in grid.dims.iter().enumerate().rev() {
        let count = u32::try_from(dim.count).ok()?;
        let mut to = Dim {
            stride: dim.stride,
            count,
            packed: u32::try_from(packed).ok()?,
            ..Dim::default()
        };
        packed *= dim.count;
        if at == fast_at || at == dense_at {
            let squares = u32::try_from(dim.count.div_ceil(SIDE)).ok()?;
            to.by = Divide::by(squares);
            tiles *= u64::from(squares);
            if at == fast_at {
                (shape.fast, shape.fast_tiles) = (to, squares);
            } else {
                (shape.dense, shape.dense_tiles) = (to, squares);
            }
        } else {
            to.by = Divide::by(count);
            tiles *= dim.count;
            others.push(to);
        }
    }
    others.reverse();
    if others.len() > BATCH_MAX {
        return None;
    }
    shape.dims = u32::try_from(others.len()).ok()?;
    shape.batch[..others.len()].copy_from_slice(&others);
    // A short range of a large shape would visit squares in vain; only the outermost dimension was
    // narrowed to the range.
    let useful = u64::from(words.words) + 2;
    if tiles > useful.div_ceil(SIDE * SIDE).saturating_mul(4).max(1024) {
        return None;
    }
    span.tiles = u32::try_from(tiles).ok().filter(|&tiles| tiles < 1 << 31)?;
    let (tiles, threads) = (span.tiles, Family::Transposed.threads_max(false));
    let blocks = limited(tiles, what.budget);
    let geometry = Geometry { blocks, threads, tiles, half: false, few: blocks < tiles };
    Some((TransposedArgs { span, shape }, geometry))
}
