//! From shape, range and places to launches: pure arithmetic.
//!
//! Kernels number words with 31 bits. A piece of work that is longer is cut here, at the boundaries of
//! blocks, and each launch starts anew at the dimension, instance or block that it begins in; so layouts
//! of any size cost the kernel nothing. Only such work takes more than one launch.
//!
//! A range may begin and end inside a word: the bytes of the two words that it covers in part are moved
//! by a tile of their own.

mod affine;
mod fused;
mod grid;
mod listed;
mod mapped;
mod pages;
mod reduce;
mod same;
mod transfer;
mod transposed;

pub use affine::{Runs, affine};
pub use fused::{MovePart, fused};
pub use grid::{Grid, GridDim, contiguous, strided};
pub use listed::{Blocks, listed};
pub use mapped::{Planned, mapped};
pub use pages::{PageList, PageSide, pages};
pub use reduce::{ReduceLaunch, ReduceLaunches, ReducedSide, Reduction, reduce, reducible};
pub use same::same;
pub use transfer::{TransferSide, transfer};
pub use transposed::crossed;

use crate::args::{Args, HALF, ONCE, Skipping, Span};
use crate::{Direction, Family, Kernel, Width};
use smallvec::SmallVec;
use std::num::NonZeroU32;
use std::ops::Range;
use thiserror::Error;

/// Words that one launch may number.
pub(crate) const WORDS_MAX: u64 = (1 << 31) - 1;
/// Blocks that fill a large GPU about twice: fewer, and blocks get smaller.
const BLOCKS_ENOUGH: u32 = 264;
/// Threads of a block at least.
const THREADS_MIN: u32 = 64;
/// Bytes that memory is written in; of one that is written in part the rest is read first.
const SECTOR: u64 = 32;
/// Bytes of a range that gains from leaving the caches first, at most: it has room in them, and need not
/// wait until what others wrote is out. On an H200; longer ones lose.
const ONCE_MAX: u64 = 24 << 20;
/// Tiles that are worth whole threads: with fewer, those that look words up move half as many each, as their
/// time is that of the lookups. On an H200.
const TILES_ENOUGH: u32 = 1056;
/// Blocks of a budget that have twice as much in flight each, at most: so few are bound by how long memory
/// takes to answer. On an H200.
const LONG_BLOCKS_MAX: u32 = 16;
/// Threads of 32 that are not idle, at least.
const LANES_MIN: u32 = 24;

/// One side of a move: a pointer and where, from it, the bytes begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelAddress {
    /// What the pointer is a multiple of, in its low bits: the address itself, or 0 for an object that
    /// is aligned to at least 16 bytes.
    pub address: u64,
    /// On the typed side, bytes from the pointer to displacement 0; on the packed side, to the range's
    /// first byte. Negative where displacements all are positive enough.
    pub offset: i64,
}

impl KernelAddress {
    /// The low bits of where the bytes begin.
    fn bits(self) -> u64 {
        self.address.wrapping_add(self.offset.cast_unsigned())
    }
}

/// What a launch may have, if it must leave room for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Budget {
    /// Blocks.
    pub blocks: NonZeroU32,
    /// Threads of a block, at least 256. Not every driver runs blocks of 1,024 if a thread takes many registers.
    pub threads: u32,
}

impl Budget {
    /// So many blocks, as large as kernels take; `None` of 0.
    #[must_use]
    pub fn new(blocks: u32) -> Option<Budget> {
        NonZeroU32::new(blocks).map(|blocks| Budget { blocks, threads: 1024 })
    }
}

/// A move between a typed and a packed side: which bytes of the packed stream, which way, and where both sides are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which way.
    pub direction: Direction,
    /// Bytes of the packed stream.
    pub range: Range<u64>,
    /// Where displacement 0 of the first instance is.
    pub typed: KernelAddress,
    /// Where byte `range.start` of the stream is.
    pub packed: KernelAddress,
    /// Blocks that the launch may have, if it must leave room for others.
    pub budget: Option<Budget>,
}

impl Move {
    /// Bits that say how the two sides are aligned to the stream.
    fn bits(&self) -> u64 {
        self.typed.bits() | self.packed.bits().wrapping_sub(self.range.start)
    }

    /// The width that the sides and the numbers of a shape allow, narrowed for a range inside one word.
    fn width(&self, shape_bits: u64) -> Width {
        narrowed(Width::dividing(self.bits() | shape_bits), &self.range)
    }
}

/// Words of one byte if the range lies inside one word, so that edges never meet.
fn narrowed(width: Width, range: &Range<u64>) -> Width {
    let log2 = width.log2();
    if range.start >> log2 == range.end.saturating_sub(1) >> log2
        && range.end - range.start < u64::from(width.bytes())
    {
        return Width::W1;
    }
    width
}

/// A shape that a family of kernels cannot take; take another family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unfit {
    /// More dimensions than arguments have room for.
    #[error("{dims} dimensions, kernels take {max}")]
    Dims {
        /// Dimensions, after narrowing to the range.
        dims: usize,
        /// How many there may be.
        max: usize,
    },
    /// The range does not lie inside the stream that the shape describes.
    #[error("a range up to byte {end} of a stream of {size}")]
    Range {
        /// The range's end.
        end: u64,
        /// The stream's length.
        size: u64,
    },
    /// Lengths or counts of 0, or sizes beyond 63 bits.
    #[error("numbers that describe no stream")]
    Numbers,
    /// A side of a reduction that is neither a grid nor one contiguous span, whose blocks cut elements, or whose
    /// elements lie at odd addresses: it has to be packed before.
    #[error("elements that kernels do not combine where they lie")]
    Scattered,
    /// No reduction, or one that takes several.
    #[error("a reduction of {sources} sources, kernels take 2 to {}", crate::reduce::SOURCES_MAX)]
    Sources {
        /// How many.
        sources: usize,
    },
    /// A kernel that would wait for too long.
    #[error("a kernel that may wait for longer than {max:?}")]
    Patience {
        /// How long it may.
        max: std::time::Duration,
    },
}

/// One kernel launch; its pointers are the caller's.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Which kernel.
    pub kernel: Kernel,
    /// Blocks (work-groups), in one dimension.
    pub blocks: u32,
    /// Threads (work-items) of a block.
    pub threads: u32,
    /// The last parameter, after the pointers.
    pub args: Args,
}

impl Launch {
    /// The launch of a kernel of `family`.
    pub(crate) fn new(
        family: Family,
        direction: Direction,
        width: Width,
        shape: Geometry,
        args: Args,
    ) -> Launch {
        let Geometry { blocks, threads, few, .. } = shape;
        debug_assert!(few || blocks == args.span().tiles, "{family:?}: {shape:?}");
        debug_assert!(threads <= family.threads_max(few), "{family:?}: {shape:?}");
        Launch { kernel: Kernel { family, direction, width, few }, blocks, threads, args }
    }
}

/// The launches of one piece of work; mostly one.
pub type Launches = SmallVec<[Launch; 1]>;

/// A part of the stream, told in words of the kernel's width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) first: u32,
    pub(crate) words: u32,
    pub(crate) edges: u32,
    /// Bytes from the range's begin to word `first`.
    pub(crate) skip: u32,
}

impl Words {
    /// `range` of a stream of at most [`WORDS_MAX`] words.
    pub(crate) fn of(range: &Range<u64>, width: Width) -> Words {
        let bytes = u64::from(width.bytes());
        let first = range.start.div_ceil(bytes);
        let end = (range.end / bytes).max(first);
        let head = (first * bytes).min(range.end) - range.start;
        let tail = range.end.saturating_sub(end * bytes);
        let len = range.end - range.start;
        let number = |n: u64| u32::try_from(n).expect("streams are cut to 31 bits of words");
        Words {
            first: number(first),
            words: number(end - first),
            edges: number(head | tail << 8) | if len <= ONCE_MAX { ONCE } else { 0 },
            skip: number(head),
        }
    }

    /// The span of this part: displacement 0 at `typed`, the range's first byte at `packed`.
    pub(crate) fn span(self, typed: i64, packed: i64) -> Span {
        Span {
            typed,
            packed: packed + i64::from(self.skip),
            first: self.first,
            words: self.words,
            tiles: 0,
            edges: self.edges,
        }
    }

    /// The tile for the edges, if there are any.
    pub(crate) fn edge_tiles(self) -> u32 {
        u32::from(self.edges & 0xffff != 0)
    }

    /// Tiles of `rounds` times the threads that are not idle, and one for the edges.
    pub(crate) fn tiles(self, rounds: u32, skipping: Skipping) -> u32 {
        let words = if self.words == 0 { 0 } else { self.words + skipping.back };
        words.div_ceil(rounds * skipping.lanes) + self.edge_tiles()
    }
}

/// Blocks and threads, and tiles of a flat kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) tiles: u32,
    /// Whether threads move half as many words each.
    pub(crate) half: bool,
    /// Whether blocks loop.
    pub(crate) few: bool,
}

impl Geometry {
    /// Tells the kernel.
    pub(crate) fn tell(self, span: &mut Span) {
        span.tiles = self.tiles;
        span.edges |= if self.half { HALF } else { 0 };
    }
}

/// Cuts `words` into tiles of a flat kernel. Little work gets smaller blocks, so that more of the GPU
/// takes part; a budget gets the largest ones.
pub(crate) fn flat(
    family: Family,
    width: Width,
    words: Words,
    skipping: Skipping,
    budget: Option<Budget>,
) -> Geometry {
    flat_by(family, width, words, skipping, budget, family.items(width, true))
}

/// The same where a thread of blocks that loop moves `long` words in a tile.
pub(crate) fn flat_by(
    family: Family,
    width: Width,
    words: Words,
    skipping: Skipping,
    budget: Option<Budget>,
    long: u32,
) -> Geometry {
    let tiles_of = |threads, items| words.tiles(threads / 32 * items, skipping);
    // More blocks than this do without the longer strips.
    let many =
        long > width.items() && budget.is_some_and(|most| most.blocks.get() > LONG_BLOCKS_MAX);
    let shape = geometry(family, budget, |threads, few| {
        let looping = if many { long / 2 } else { long };
        tiles_of(threads, if few { looping } else { family.items(width, false) })
    });
    if shape.few && many {
        return Geometry { half: true, ..shape };
    }
    if !family.halves() || shape.few || shape.tiles >= TILES_ENOUGH {
        return shape;
    }
    let tiles = tiles_of(shape.threads, family.items(width, false) / 2);
    if limited(tiles, budget) < tiles {
        return shape;
    }
    Geometry { blocks: tiles, tiles, half: true, ..shape }
}

/// All threads.
pub(crate) const NONE_IDLE: Skipping = Skipping { lanes: 32, back: 0 };

/// Which threads write blocks of `len` words, unpacking from word `first` on, so that no block is written
/// by two instructions: whole blocks, and of blocks at one `stride` (bytes), whole periods of how they meet
/// sectors. `at` is where word 0 lies.
pub(crate) fn skipping(
    direction: Direction,
    first: u32,
    len: u32,
    width: Width,
    stride: Option<(i64, u64)>,
) -> Skipping {
    if direction == Direction::Pack {
        return NONE_IDLE;
    }
    let period =
        stride.map_or(1, |(stride, _)| SECTOR >> (stride.unsigned_abs() | SECTOR).trailing_zeros());
    let whole = |words: u64| {
        let words = u32::try_from(words).ok().filter(|&words| (1..=32).contains(&words))?;
        Some(32 / words * words).filter(|&lanes| lanes >= LANES_MIN).map(|lanes| (lanes, words))
    };
    let blocks = whole(u64::from(len));
    let Some((lanes, words)) = whole(u64::from(len) * period).or(blocks) else { return NONE_IDLE };
    // Begin where a sector does, or else a block.
    let sector = |word: i64, byte: i64| {
        let (stride, at) = stride.unwrap_or_default();
        let row = word.div_euclid(i64::from(len));
        let inside = word.rem_euclid(i64::from(len)) * i64::from(width.bytes()) + byte;
        let at = at.cast_signed().wrapping_add(row.wrapping_mul(stride)).wrapping_add(inside);
        at.div_euclid(SECTOR.cast_signed())
    };
    let starts = (0..words).find(|&back| {
        let word = i64::from(first) - i64::from(back);
        stride.is_some() && sector(word, 0) != sector(word - 1, i64::from(width.bytes()) - 1)
    });
    Skipping { lanes, back: starts.unwrap_or(first % len) }
}

/// Blocks and threads, where `tiles_of` says how many tiles there are for so many threads a block, looping
/// or not.
pub(crate) fn geometry(
    family: Family,
    budget: Option<Budget>,
    tiles_of: impl Fn(u32, bool) -> u32,
) -> Geometry {
    let mut threads = family.threads();
    while threads > THREADS_MIN && tiles_of(threads, false) < BLOCKS_ENOUGH {
        threads /= 2;
    }
    let tiles = tiles_of(threads, false);
    let Some(budget) = budget.filter(|budget| tiles > budget.blocks.get()) else {
        return Geometry { blocks: tiles, threads, tiles, half: false, few: false };
    };
    let fewest = threads;
    threads = family.threads_max(true).min(budget.threads);
    // As large as they can be, and yet all of them busy.
    while threads > fewest && tiles_of(threads, true) <= budget.blocks.get() {
        threads /= 2;
    }
    let tiles = tiles_of(threads, true);
    Geometry { blocks: tiles.min(budget.blocks.get()), threads, tiles, half: false, few: true }
}

/// Fits launches to a source that lies across a link, from which memory comes in lines: what is asked for
/// twice comes twice.
pub fn from_afar(launches: &mut Launches, budget: Option<Budget>) {
    for launch in launches {
        match launch.kernel.family {
            Family::Transposed => transposed::in_lines(launch, budget),
            Family::Listed => listed::in_lines(launch),
            _ => {}
        }
    }
}

/// Blocks for `tiles` under a budget.
pub(crate) fn limited(tiles: u32, budget: Option<Budget>) -> u32 {
    budget.map_or(tiles, |budget| tiles.min(budget.blocks.get()))
}

/// Bits of a signed number that divisibility looks at.
pub(crate) fn bits(number: i64) -> u64 {
    number.cast_unsigned()
}

#[cfg(test)]
mod tests;
