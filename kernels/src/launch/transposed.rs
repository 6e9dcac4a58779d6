//! Single words whose stream runs across the memory's order: a transposed matrix; and moves from layout to
//! layout of which one side runs along its memory where the other runs across.

use super::{
    Budget, Geometry, Grid, KernelAddress, Launch, Launches, Move, WORDS_MAX, Words, limited,
};
use crate::args::{Args, BATCH_MAX, Dim, Divide, ONCE, Span, Transposed, TransposedArgs};
use crate::{Direction, Family, Width};
use smallvec::SmallVec;

/// Words along a square's side.
const SIDE: u64 = 32;
/// Shorter than this, a dimension leaves too many threads of a square idle.
const COUNT_MIN: u64 = 8;
/// Bytes between neighbours at most: farther apart, there is nothing to gain from reading them together.
const STRIDE_MAX: u64 = 32;

/// Bytes in which memory is read across a link.
const LINE: u64 = 128;

/// A dimension of both sides.
#[derive(Clone, Copy)]
struct Loop {
    count: u64,
    /// Bytes from one to the next where the stream runs across the memory.
    stride: i64,
    /// Words from one to the next at the other side.
    packed: u64,
}

/// Which of some dimensions lies closest in memory, if it is long enough and close enough that `fast` is
/// worth crossing.
fn densest(loops: &[Loop], fast_at: usize) -> Option<usize> {
    let fast = loops[fast_at];
    let (dense_at, dense) = loops
        .iter()
        .enumerate()
        .filter(|&(at, dim)| at != fast_at && dim.count >= COUNT_MIN && dim.stride != 0)
        .min_by_key(|(_, dim)| dim.stride.unsigned_abs())?;
    let near = dense.stride.unsigned_abs();
    let worth = fast.count >= COUNT_MIN && near <= STRIDE_MAX;
    (worth && near * 2 <= fast.stride.unsigned_abs()).then_some(dense_at)
}

/// The shape, and how many squares it is cut into.
fn squares(loops: &[Loop], fast_at: usize, dense_at: usize) -> Option<(Transposed, u64)> {
    let mut shape = Transposed::default();
    let mut others = SmallVec::<[Dim; BATCH_MAX]>::new();
    let mut tiles = 1u64;
    for (at, dim) in loops.iter().enumerate() {
        let count = u32::try_from(dim.count).ok()?;
        let packed = u32::try_from(dim.packed).ok()?;
        let mut to = Dim { stride: dim.stride, count, packed, ..Dim::default() };
        if at == fast_at || at == dense_at {
            let squares = u32::try_from(dim.count.div_ceil(SIDE)).ok()?;
            to.by = Divide::by(squares);
            tiles = tiles.checked_mul(u64::from(squares))?;
            if at == fast_at {
                (shape.fast, shape.fast_tiles) = (to, squares);
            } else {
                (shape.dense, shape.dense_tiles) = (to, squares);
            }
        } else {
            to.by = Divide::by(count);
            tiles = tiles.checked_mul(dim.count)?;
            others.push(to);
        }
    }
    if others.len() > BATCH_MAX {
        return None;
    }
    shape.dims = u32::try_from(others.len()).ok()?;
    shape.batch[..others.len()].copy_from_slice(&others);
    Some((shape, tiles))
}

/// The blocks and threads of so many squares.
fn geometry(tiles: u64, budget: Option<Budget>) -> Option<Geometry> {
    let tiles = u32::try_from(tiles).ok().filter(|&tiles| tiles < 1 << 31)?;
    let blocks = limited(tiles, budget);
    let threads = Family::Transposed.threads_max(false);
    Some(Geometry { blocks, threads, tiles, half: false, few: blocks < tiles })
}

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
    let mut packed = 1;
    let mut loops: SmallVec<[Loop; 6]> = SmallVec::new();
    for dim in grid.dims.iter().rev() {
        loops.insert(0, Loop { count: dim.count, stride: dim.stride, packed });
        packed *= dim.count;
    }
    let fast_at = loops.len() - 1;
    let dense_at = densest(&loops, fast_at)?;
    let (shape, tiles) = squares(&loops, fast_at, dense_at)?;
    // A short range of a large shape would visit squares in vain; only the outermost dimension was
    // narrowed to the range.
    let useful = u64::from(words.words) + 2;
    if tiles > useful.div_ceil(SIDE * SIDE).saturating_mul(4).max(1024) {
        return None;
    }
    let geometry = geometry(tiles, what.budget)?;
    span.tiles = geometry.tiles;
    Some((TransposedArgs { span, shape }, geometry))
}

/// The launch that moves all of one grid to another one with the same loops, if they are single words and one
/// side runs along its memory where the other runs across. It is a [`Direction::Pack`], whose typed side is
/// the source, or a [`Direction::Unpack`], whose typed side is the destination.
///
/// Both places lead to displacement 0. Each byte of the destination is written once.
#[must_use]
pub fn crossed(
    from: (&Grid, KernelAddress),
    to: (&Grid, KernelAddress),
    budget: Option<Budget>,
) -> Option<Launches> {
    let bits = |(grid, place): (&Grid, KernelAddress)| grid.bits() | place.bits();
    let width = Width::dividing(bits(from) | bits(to));
    let word = u64::from(width.bytes());
    let counts =
        |grid: &Grid| grid.dims.iter().map(|dim| dim.count).collect::<SmallVec<[u64; 6]>>();
    if from.0.len != word || to.0.len != word || counts(from.0) != counts(to.0) {
        return None;
    }
    let one = |direction, typed: (&Grid, KernelAddress), packed: (&Grid, KernelAddress)| {
        let mut loops: SmallVec<[Loop; 6]> = SmallVec::new();
        let mut words = 1u64;
        for (across, along) in typed.0.dims.iter().zip(&packed.0.dims) {
            let by = u64::try_from(along.stride).ok().filter(|by| *by >= word)?;
            let last = (across.count.checked_sub(1)?).checked_mul(by / word)?;
            words = words.checked_add(last).filter(|&words| words <= WORDS_MAX)?;
            loops.push(Loop { count: across.count, stride: across.stride, packed: by / word });
        }
        let fast_at = loops.iter().position(|dim| dim.packed == 1 && dim.count >= COUNT_MIN)?;
        let dense_at = densest(&loops, fast_at)?;
        let (shape, tiles) = squares(&loops, fast_at, dense_at)?;
        let geometry = geometry(tiles, budget)?;
        let bytes = typed.0.size()?;
        let span = Span {
            typed: typed.1.offset.wrapping_add(typed.0.displacement),
            packed: packed.1.offset.wrapping_add(packed.0.displacement),
            first: 0,
            words: u32::try_from(words).ok()?,
            tiles: geometry.tiles,
            edges: if bytes <= super::ONCE_MAX { ONCE } else { 0 },
        };
        let args = Args::Transposed(TransposedArgs { span, shape });
        Some(Launch::new(Family::Transposed, direction, width, geometry, args))
    };
    let launch = one(Direction::Pack, from, to).or_else(|| one(Direction::Unpack, to, from))?;
    Some(Launches::from_iter([launch]))
}

/// Has squares read a source that lies across a link in whole lines, one after the other, where they would
/// cut them.
pub(super) fn in_lines(launch: &mut Launch, budget: Option<Budget>) {
    let (width, few) = (u64::from(launch.kernel.width.bytes()), launch.kernel.few);
    let Args::Transposed(TransposedArgs { span, shape }) = &mut launch.args else { return };
    let (dim, squares) = match launch.kernel.direction {
        Direction::Pack => (&mut shape.dense, &mut shape.dense_tiles),
        Direction::Unpack => (&mut shape.fast, &mut shape.fast_tiles),
    };
    let line = LINE / width;
    let lies_in_lines =
        launch.kernel.direction == Direction::Unpack || dim.stride == width.cast_signed();
    // Squares begin as many words earlier at most. Of one square alone no other cuts the lines.
    let cut = u64::from(dim.count) > SIDE && line <= SIDE && lies_in_lines;
    let more = if cut { line - 1 } else { 0 };
    let now = (u64::from(dim.count) + more).div_ceil(SIDE);
    let tiles = u64::from(span.tiles) / u64::from(*squares).max(1) * now;
    let (Some(made), Ok(now), Ok(more)) =
        (geometry(tiles, budget), u32::try_from(now), u32::try_from(more))
    else {
        return;
    };
    (dim.by, *squares, shape.far) = (Divide::by(now), now, 1 + more);
    span.tiles = made.tiles;
    launch.blocks = if few { launch.blocks } else { made.blocks };
    launch.kernel.few = few || made.few;
}

#[cfg(test)]
mod tests;
