//! Pages at listed indices: on either side or both, each with a list of its own.
//!
//! A side is blocks on a grid. If it is pages, its first dimension is the list. So both sides consist of equal blocks,
//! which begin at multiples of their length in the stream; and what lies between two multiples of both lengths'
//! greatest common divisor, a *unit*, lies in one block of either side. Units are cut into strips. A few threads move
//! each, and look up once where it lies.

use super::{
    Budget, Grid, GridDim, KernelAddress, Launch, Launches, Unfit, WORDS_MAX, Words, geometry,
    grid, narrowed,
};
use crate::args::{self, Args, Divide, PagesArgs};
use crate::{Direction, Family, Width};
use smallvec::SmallVec;
use std::ops::Range;

/// Words of a launch at most; with those of its first unit that lie before it, they can be numbered.
const LAUNCH_MAX: u64 = 1 << 29;
/// Bytes of a line, which the threads of a strip move at once if a unit has as many.
const LINE: u32 = 128;

/// A page at each index of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageList {
    /// A page.
    pub page: Grid,
    /// Bytes from one index to the next.
    pub stride: u64,
    /// How many.
    pub count: u64,
    /// Bytes from the list's pointer to the first index. They may be before the pointer (and wrap), if the range does
    /// not have the first pages.
    pub list: u64,
    /// Bytes of an index: 4 or 8, unsigned.
    pub index_bytes: u32,
    /// The largest index that is moved.
    pub last: u64,
}

/// One side of a move of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageSide {
    /// One contiguous span that begins at this displacement; it has no end of its own.
    Contiguous(i64),
    /// Equal blocks on a grid.
    Grid(Grid),
    /// Pages.
    Listed(PageList),
}

/// A side's part as arguments: which displacement its grid begins at.
type Shaped = (args::PagesSide, i64);

impl PageSide {
    fn bits(&self) -> u64 {
        match self {
            PageSide::Contiguous(displacement) => displacement.cast_unsigned(),
            PageSide::Grid(grid) => grid.bits(),
            PageSide::Listed(list) => list.page.bits() | list.stride,
        }
    }

    /// Bytes of a block; 0 of a span, any part of which is one.
    fn block(&self) -> u64 {
        match self {
            PageSide::Contiguous(_) => 0,
            PageSide::Grid(grid) => grid.len,
            PageSide::Listed(list) => list.page.len,
        }
    }

    /// Bytes of the stream.
    fn size(&self) -> Option<u64> {
        match self {
            PageSide::Contiguous(_) => Some(i64::MAX.cast_unsigned()),
            PageSide::Grid(grid) => grid.size(),
            PageSide::Listed(list) => list.page.size()?.checked_mul(list.count),
        }
        .filter(|size| *size > 0)
    }

    /// The side's arguments for `range`; `None` if the words of what holds the range cannot be numbered.
    fn shape(&self, range: &Range<u64>, width: Width) -> Result<Option<Shaped>, Unfit> {
        let bytes_max = WORDS_MAX << width.log2();
        let mut side = args::PagesSide::default();
        let (grid, begin) = match self {
            &PageSide::Contiguous(displacement) => span(displacement, 0, range, width),
            PageSide::Grid(whole) => {
                let (part, inside) = whole.narrow(range);
                trimmed(part, range.start - inside.start, range, width)
            }
            PageSide::Listed(list) => {
                let size = list.page.size().ok_or(Unfit::Numbers)?;
                let (first, end) = (range.start / size, range.end.div_ceil(size));
                if list.last < u64::MAX {
                    // Positions are reported.
                    side.before = u32::try_from(end).map_err(|_| Unfit::Numbers)? - 1;
                    side.before -= u32::try_from(end - 1 - first).map_err(|_| Unfit::Numbers)?;
                }
                side.list = list.list.wrapping_add(first.wrapping_mul(list.index_bytes.into()));
                side.last = list.last;
                side.bytes = list.index_bytes;
                let at = first * size;
                let (mut part, begin) = if end - first == 1 {
                    let (part, inside) = list.page.narrow(&(range.start - at..range.end - at));
                    trimmed(part, range.start - inside.start, range, width)
                } else {
                    let mut page = list.page.clone();
                    page.dims.retain(|dim| dim.count > 1);
                    (page, at)
                };
                let stride = list.stride.cast_signed();
                part.dims.insert(0, GridDim { count: end - first, stride });
                (part, begin)
            }
        };
        if grid.size().is_none_or(|size| size > bytes_max) {
            return Ok(None);
        }
        side.shape = grid::shape(&grid, width)?;
        side.first = Words::of(&(range.start - begin..range.end - begin), width).first;
        Ok(Some((side, grid.displacement)))
    }
}

/// The part of a span for `range`, and the stream's byte that it begins with: `at` is the one that the span begins
/// with.
fn span(displacement: i64, at: u64, range: &Range<u64>, width: Width) -> (Grid, u64) {
    let skipped = (range.start - at) >> width.log2() << width.log2();
    let displacement = displacement.wrapping_add(skipped.cast_signed());
    let len = (range.end - at - skipped).next_multiple_of(width.bytes().into());
    (Grid { displacement, len, dims: SmallVec::new() }, at + skipped)
}

/// A narrowed grid that begins with the stream's byte `at`; of a single block, what the range needs.
fn trimmed(part: Grid, at: u64, range: &Range<u64>, width: Width) -> (Grid, u64) {
    if part.dims.is_empty() { span(part.displacement, at, range, width) } else { (part, at) }
}

/// The greatest common divisor; the other of 0.
fn common(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// How units are cut.
#[derive(Clone, Copy)]
struct Cut {
    unit: u32,
    into: u32,
    piece: u32,
    pieces: u32,
    lanes: u32,
    strips: u32,
}

impl Cut {
    /// `words` words, of which the first unit has `into` before them, in strips of up to `items` words a thread.
    fn of(words: u32, unit: u32, into: u32, width: Width, items: u32) -> Cut {
        let full = unit.next_power_of_two().min(32);
        let line = (LINE / width.bytes()).min(full);
        let threads = unit.div_ceil(items).next_power_of_two().min(32).max(line);
        let pieces = unit.div_ceil(threads * items);
        // All but the last begin where a line does, if the unit does.
        let piece = unit.div_ceil(pieces).next_multiple_of(threads);
        let pieces = unit.div_ceil(piece);
        let strips = if words == 0 { 0 } else { (into + words).div_ceil(unit) * pieces };
        Cut { unit, into, piece, pieces, lanes: threads.trailing_zeros(), strips }
    }
}

/// Launches that move `range` of the stream from one side to another.
///
/// Both places lead to displacement 0. The lists of both sides are passed after the two pointers, and then 8 bytes that
/// a bad index is reported to: a number of 32 bits for either side, the first position in its list of an index above
/// [`PageList::last`], if there is one below what is there before. A side without a list, or without bad ones, takes
/// any pointer.
///
/// # Errors
/// [`Unfit`]: a page of more dimensions than arguments have room for; a range outside a stream; a position of more than
/// 32 bits where indices are checked.
pub fn pages(
    range: &Range<u64>,
    from: (&PageSide, KernelAddress),
    to: (&PageSide, KernelAddress),
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
    let unit = common(from.0.block(), to.0.block());
    let word = |at: u64| at >> width.log2() << width.log2();
    let mut open: SmallVec<[Range<u64>; 4]> = SmallVec::new();
    open.push(range.clone());
    while let Some(range) = open.pop() {
        let inside = unit == 0 || range.start / unit == (range.end - 1) / unit;
        let long = range.end - range.start > LAUNCH_MAX << width.log2();
        let sides = match long {
            true => None,
            false => from.0.shape(&range, width)?.zip(to.0.shape(&range, width)?),
        };
        let unit_fits = inside || unit >> width.log2() <= LAUNCH_MAX;
        let Some((source, target)) = sides.filter(|_| unit_fits) else {
            // Parts meet at a word, or where a long unit ends; the first one goes first.
            let middle = match sides {
                None => word(range.start + (range.end - range.start) / 2),
                Some(_) => (range.start / unit + 1) * unit,
            };
            if middle <= range.start {
                return Err(Unfit::Numbers);
            }
            open.push(middle..range.end);
            open.push(range.start..middle);
            continue;
        };
        let skipped = word(range.start);
        let words = Words::of(&(range.start - skipped..range.end - skipped), width);
        let words = Words { first: 0, ..words };
        // Words that count in a unit: a range inside one is all of it.
        let (unit, into) = match inside {
            true => (words.words.max(1), 0),
            false => {
                let first = range.start.div_ceil(width.bytes().into());
                let unit = unit >> width.log2();
                let number = |n: u64| u32::try_from(n).map_err(|_| Unfit::Numbers);
                (number(unit)?, number(first % unit)?)
            }
        };
        let cut = |few| Cut::of(words.words, unit, into, width, Family::Pages.items(width, few));
        let shape = geometry(Family::Pages, budget, |threads, few| {
            let cut = cut(few);
            cut.strips.div_ceil(threads >> cut.lanes) + words.edge_tiles()
        });
        let Cut { unit, into, piece, pieces, lanes, .. } = cut(shape.few);
        let mut span = words.span(from.1.offset.wrapping_add(source.1), 0);
        span.packed = to.1.offset.wrapping_add(target.1);
        shape.tell(&mut span);
        let args = PagesArgs {
            span,
            unit,
            piece,
            pieces,
            into,
            by_pieces: Divide::by(pieces),
            lanes,
            unused: 0,
            from: source.0,
            to: target.0,
        };
        launches.push(Launch::new(
            Family::Pages,
            Direction::Pack,
            width,
            shape,
            Args::Pages(Box::new(args)),
        ));
    }
    Ok(launches)
}

#[cfg(test)]
mod tests;
