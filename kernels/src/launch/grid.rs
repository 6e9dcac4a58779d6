//! Equal blocks on a grid: one contiguous span, a vector, a face, a sub-matrix, with any number of instances.

use super::transposed::transposed;
use super::{
    LONG_BLOCKS_MAX, Launch, Launches, Move, NONE_IDLE, Unfit, WORDS_MAX, Words, bits, flat,
    geometry, skipping,
};
use crate::args::{
    Args, CopyArgs, DIMS_MAX, Dim, Divide, ONCE, Rows, RowsArgs, Strided, StridedArgs,
};
use crate::{Family, Width};
use smallvec::SmallVec;
use std::ops::Range;

/// One dimension of a [`Grid`]; instances of a layout are one more, outermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridDim {
    /// How many.
    pub count: u64,
    /// Bytes from one to the next.
    pub stride: i64,
}

/// Equal blocks on a grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Displacement of the first block.
    pub displacement: i64,
    /// Bytes of a block.
    pub len: u64,
    /// Outermost first; the last one advances first.
    pub dims: SmallVec<[GridDim; 6]>,
}

impl Grid {
    /// Bytes of the stream.
    pub(crate) fn size(&self) -> Option<u64> {
        let size = self.dims.iter().try_fold(self.len, |size, dim| size.checked_mul(dim.count))?;
        (size <= i64::MAX.cast_unsigned()).then_some(size)
    }

    /// Bits of everything that a word must divide.
    pub(crate) fn bits(&self) -> u64 {
        let strides = self.dims.iter().filter(|dim| dim.count > 1);
        strides.fold(bits(self.displacement) | self.len, |all, dim| all | bits(dim.stride))
    }

    /// The smallest grid that covers `range`, and the range in it.
    pub(crate) fn narrow(&self, range: &Range<u64>) -> (Grid, Range<u64>) {
        let mut grid = self.clone();
        let mut range = range.clone();
        // Merged and trivial dimensions cost divisions.
        grid.dims.retain(|dim| dim.count > 1);
        while let Some(&outer) = grid.dims.first() {
            let inner: u64 = grid.dims[1..].iter().map(|dim| dim.count).product::<u64>() * grid.len;
            let (from, to) = (range.start / inner, range.end.div_ceil(inner));
            grid.displacement = grid.displacement.wrapping_add(steps(from, outer.stride));
            range = range.start - from * inner..range.end - from * inner;
            if to - from > 1 {
                grid.dims[0].count = to - from;
                break;
            }
            grid.dims.remove(0);
        }
        (grid, range)
    }
}

/// `count` strides; displacements of a checked layout do not overflow.
fn steps(count: u64, stride: i64) -> i64 {
    count.cast_signed().wrapping_mul(stride)
}

/// Launches for memory without gaps that begins at `displacement`.
///
/// # Errors
/// [`Unfit::Numbers`] for a range beyond 63 bits.
pub fn contiguous(what: &Move, displacement: i64) -> Result<Launches, Unfit> {
    // Where it ends is no reason for narrow words.
    let len = what.range.end.checked_next_multiple_of(16).ok_or(Unfit::Numbers)?;
    strided(what, &Grid { displacement, len, dims: SmallVec::new() })
}

/// Launches for equal blocks on a grid.
///
/// # Errors
/// [`Unfit::Dims`], [`Unfit::Range`], [`Unfit::Numbers`].
pub fn strided(what: &Move, grid: &Grid) -> Result<Launches, Unfit> {
    let mut launches = Launches::new();
    if what.range.is_empty() {
        return Ok(launches);
    }
    let size = grid.size().ok_or(Unfit::Numbers)?;
    if what.range.end > size {
        return Err(Unfit::Range { end: what.range.end, size });
    }
    let width = what.width(grid.bits());
    cut(what, grid, &what.range, what.packed.offset, width, &mut launches)?;
    Ok(launches)
}

/// One launch if the words can be numbered, else the parts, each cut again.
fn cut(
    what: &Move,
    grid: &Grid,
    range: &Range<u64>,
    packed: i64,
    width: Width,
    launches: &mut Launches,
) -> Result<(), Unfit> {
    let (grid, range) = grid.narrow(range);
    let bytes_max = WORDS_MAX << width.log2();
    let size = grid.size().ok_or(Unfit::Numbers)?;
    if size <= bytes_max {
        launches.push(launch(what, &grid, &range, packed, width)?);
        return Ok(());
    }
    let Some(outer) = grid.dims.first() else {
        // One contiguous span: any part of it is one as well.
        let skipped = range.start >> width.log2() << width.log2();
        let mut displacement = grid.displacement.wrapping_add(skipped.cast_signed());
        let (mut from, mut end) = (range.start - skipped, range.end - skipped);
        let mut packed = packed;
        while from < end {
            let to = end.min(bytes_max);
            let part = Grid { displacement, len: to, dims: SmallVec::new() };
            launches.push(launch(what, &part, &(from..to), packed, width)?);
            packed += (to - from).cast_signed();
            displacement = displacement.wrapping_add(to.cast_signed());
            (from, end) = (0, end - to);
        }
        return Ok(());
    };
    let inner = size / outer.count;
    let step = (bytes_max / inner).max(1) * inner;
    let mut from = range.start;
    while from < range.end {
        let to = (from / step + 1).saturating_mul(step).min(range.end);
        let offset = packed + (from - range.start).cast_signed();
        cut(what, &grid, &(from..to), offset, width, launches)?;
        from = to;
    }
    Ok(())
}

/// The launch for a narrowed grid.
fn launch(
    what: &Move,
    grid: &Grid,
    range: &Range<u64>,
    packed: i64,
    width: Width,
) -> Result<Launch, Unfit> {
    let words = Words::of(range, width);
    let typed = what.typed.offset.wrapping_add(grid.displacement);
    let mut span = words.span(typed, packed);
    let made = |family, shape, args| Launch::new(family, what.direction, width, shape, args);
    if grid.dims.is_empty() {
        let geometry = flat(Family::Copy, width, words, NONE_IDLE, what.budget);
        geometry.tell(&mut span);
        return Ok(made(Family::Copy, geometry, Args::Copy(CopyArgs { span })));
    }
    if let Some((args, geometry)) = transposed(what, grid, width, words, span) {
        return Ok(made(Family::Transposed, geometry, Args::Transposed(args)));
    }
    let shape = shape(grid, width)?;
    if let Some(rows) = rows(shape.len, words, width.items()) {
        // The fewest blocks take longer strips, where those are as full; long ranges take shorter ones.
        let cut = |few| match what.budget {
            Some(budget) if few && budget.blocks.get() <= LONG_BLOCKS_MAX => {
                self::rows(shape.len, words, Family::Rows.items(width, true))
            }
            None if words.edges & ONCE == 0 => self::rows(shape.len, words, width.items() / 2),
            _ => None,
        };
        let cut = [false, true].map(|few| cut(few).unwrap_or(rows));
        let of = |few: bool| cut[usize::from(few)];
        let tiles = |threads: u32, few| of(few).1.div_ceil(threads / 32) + words.edge_tiles();
        let geometry = geometry(Family::Rows, what.budget, tiles);
        geometry.tell(&mut span);
        let args = RowsArgs { span, rows: of(geometry.few).0, shape };
        return Ok(made(Family::Rows, geometry, Args::Rows(args)));
    }
    let family = if shape.dims == 1 { Family::Strided1 } else { Family::Strided };
    let at = what.typed.address.wrapping_add(typed.cast_unsigned());
    let inner = shape.dim.get(shape.dims as usize - 1).map(|dim| (dim.stride, at));
    let skipping = skipping(what.direction, words.first, shape.len, width, inner);
    let geometry = flat(family, width, words, skipping, what.budget);
    geometry.tell(&mut span);
    let args = StridedArgs { span, skipping, shape };
    Ok(made(family, geometry, Args::Strided(args)))
}

/// The grid as the kernel wants it. Its words can be numbered.
pub(crate) fn shape(grid: &Grid, width: Width) -> Result<Strided, Unfit> {
    let dims = grid.dims.len().max(1);
    if dims > DIMS_MAX {
        return Err(Unfit::Dims { dims, max: DIMS_MAX });
    }
    let number = |n: u64| u32::try_from(n).map_err(|_| Unfit::Numbers);
    let len = number(grid.len >> width.log2())?;
    let mut shape =
        Strided { len, dims: number(dims as u64)?, by_len: Divide::by(len), ..Strided::default() };
    // One block alone is a dimension of one.
    shape.dim[0] = Dim { count: 1, by: Divide::by(1), ..Dim::default() };
    for (to, from) in shape.dim.iter_mut().zip(&grid.dims) {
        let count = number(from.count)?;
        *to = Dim { stride: from.stride, count, by: Divide::by(count), ..Dim::default() };
    }
    Ok(shape)
}

/// How blocks of `len` words are cut into strips of `items` words a thread at most, and how many strips
/// there are, if that keeps most threads busy; flat strips keep all, but search more.
pub(super) fn rows(len: u32, words: Words, items: u32) -> Option<(Rows, u32)> {
    let strip = 32 * items;
    let pieces = len.div_ceil(strip);
    // Pieces of whole 32-word lines, so that most begin at a line of memory.
    let piece = len.div_ceil(pieces).next_multiple_of(32);
    let pieces = len.div_ceil(piece);
    if u64::from(len) * 4 < u64::from(pieces) * u64::from(strip) * 3 || words.words == 0 {
        return None;
    }
    let row = words.first / len;
    let rows = (words.first + words.words).div_ceil(len) - row;
    let strips = rows.checked_mul(pieces).filter(|&strips| u64::from(strips) <= WORDS_MAX)?;
    Some((Rows { piece, pieces, row, unused: 0, by_pieces: Divide::by(pieces) }, strips))
}
