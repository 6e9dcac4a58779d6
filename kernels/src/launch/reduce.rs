//! Reductions: several sources, combined into a target.
//!
//! Each side has a stream of its own, of which a range takes part that begins at a byte of its own. Where all sides
//! lie at the same place within 16 bytes, kernels work in words of 16 bytes, and the few elements before the first
//! whole word and after the last are combined one by one; else all are.

use super::grid::{self, Grid};
use super::{
    BLOCKS_ENOUGH, Budget, KernelAddress, THREADS_MIN, TransferSide, Unfit, WORDS_MAX, bits,
    limited,
};
use crate::Width;
use crate::args::{Dim, Divide, ReduceArgs, ReduceFlatArgs, ReduceGridArgs, ReduceSide, Strided};
use crate::reduce::{Combine, Form, ReduceKernel, SOURCES_MAX};
use smallvec::SmallVec;
use std::ops::Range;

/// Words or elements of a thread in a tile (`ITEMS` in `reduce.cl-cu`).
const ITEMS: u32 = 4;
/// Threads of a block at most (`__launch_bounds__`).
const THREADS: u32 = 256;
/// Bytes of a word.
const WORD: u64 = 16;
/// Bytes of a launch at most: a multiple of words and of every element.
const LAUNCH_BYTES: u64 = (1 << 30) / 48 * 48;

/// One side of a reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReducedSide {
    /// How its stream lies: [`TransferSide::Contiguous`] or [`TransferSide::Strided`].
    pub shape: TransferSide,
    /// Where displacement 0 is.
    pub place: KernelAddress,
    /// The byte of its stream that the range begins with.
    pub start: u64,
}

/// What to combine, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// What becomes of two elements.
    pub combine: Combine,
    /// Tells operations apart that share a kernel (`combine.h`).
    pub mask: u64,
    /// Bytes of the range: whole elements.
    pub len: u64,
    /// Blocks that a launch may have, if it must leave room for others.
    pub budget: Option<Budget>,
}

/// One launch of a reduction. Pointers come first, if sides are told by pointers: that of the target, those of the
/// sources, and any for those that there are not.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceLaunch {
    /// Which kernel.
    pub kernel: ReduceKernel,
    /// Blocks (work-groups), in one dimension.
    pub blocks: u32,
    /// Threads (work-items) of a block.
    pub threads: u32,
    /// The last parameter.
    pub args: ReduceArgs,
}

/// The launches of one reduction; mostly one.
pub type ReduceLaunches = SmallVec<[ReduceLaunch; 1]>;

/// A part of a side.
enum ReducePart {
    /// Without gaps: its first byte, from the pointer.
    Plain { at: i64, bits: u64 },
    /// Blocks; the part begins at byte `start` of the grid's stream.
    Blocks { at: i64, bits: u64, grid: Grid, start: u64 },
}

impl ReducePart {
    fn of(side: &ReducedSide, range: &Range<u64>) -> Result<ReducePart, Unfit> {
        let ReducedSide { shape, place, start } = side;
        let range = start + range.start..start + range.end;
        let plain = |displacement: i64, start: u64| {
            let at = place.offset.wrapping_add(displacement).wrapping_add(start.cast_signed());
            ReducePart::Plain { at, bits: place.address.wrapping_add(bits(at)) }
        };
        match shape {
            TransferSide::Contiguous(displacement) => Ok(plain(*displacement, range.start)),
            TransferSide::Strided(grid) => {
                let size = grid.size().ok_or(Unfit::Numbers)?;
                if range.end > size {
                    return Err(Unfit::Range { end: range.end, size });
                }
                let (grid, inside) = grid.narrow(&range);
                if grid.dims.is_empty() {
                    return Ok(plain(grid.displacement, inside.start));
                }
                let at = place.offset.wrapping_add(grid.displacement);
                let strides = Grid { displacement: 0, ..grid.clone() }.bits();
                let bits = place.address.wrapping_add(bits(at)) | strides;
                Ok(ReducePart::Blocks { at, bits, grid, start: inside.start })
            }
            _ => Err(Unfit::Scattered),
        }
    }

    /// What both a word's place in memory and its place in the stream are multiples of, if the stream is counted so
    /// that the part begins at byte `phase` of it.
    fn is_at(&self, phase: u64) -> bool {
        match self {
            ReducePart::Plain { bits, .. } => bits.wrapping_sub(phase) % WORD == 0,
            ReducePart::Blocks { bits, start, .. } => bits % WORD == 0 && start % WORD == phase,
        }
    }

    /// As the kernel wants it: in words as wide as `width`, of which the `skip` bytes before belong to none. A word
    /// before the first can be told as well.
    fn side(&self, width: Width, skip: u64, words: u64) -> Result<ReduceSide, Unfit> {
        let bytes = u64::from(width.bytes());
        let (at, first, shape) = match self {
            ReducePart::Plain { at, .. } => {
                let len = u32::try_from(WORDS_MAX).map_err(|_| Unfit::Numbers)?;
                let mut shape =
                    Strided { len, dims: 1, by_len: Divide::by(len), ..Strided::default() };
                shape.dim[0] = Dim { count: 1, by: Divide::by(1), ..Dim::default() };
                (at + skip.cast_signed() - bytes.cast_signed(), 1, shape)
            }
            ReducePart::Blocks { at, grid, start, .. } => {
                if grid.size().is_none_or(|size| size >> width.log2() > WORDS_MAX) {
                    return Err(Unfit::Numbers);
                }
                (*at, (start + skip) / bytes, grid::shape(grid, width)?)
            }
        };
        if first + words > WORDS_MAX {
            return Err(Unfit::Numbers);
        }
        let first = u32::try_from(first).map_err(|_| Unfit::Numbers)?;
        Ok(ReduceSide { at, first, unused: 0, shape })
    }
}

/// Whether kernels combine the elements of this side where they lie, whatever part of it takes part.
///
/// # Errors
/// [`Unfit::Scattered`]: neither a grid nor one contiguous span, elements that blocks cut, or that lie at odd
/// addresses. Or numbers that describe no stream, or too large for a launch.
pub fn reducible(combine: Combine, side: &ReducedSide, len: u64) -> Result<(), Unfit> {
    for range in pieces(len) {
        let part = ReducePart::of(side, &range)?;
        let (bits, block) = match &part {
            ReducePart::Plain { bits, .. } => (*bits, 0),
            ReducePart::Blocks { bits, grid, .. } => (*bits, grid.len),
        };
        let element = u64::from(combine.bytes());
        let part_bytes = u64::from(combine.part().bytes());
        if bits % part_bytes != 0 || block % element != 0 {
            return Err(Unfit::Scattered);
        }
        part.side(combine.part(), 0, (range.end - range.start) / part_bytes)?;
    }
    Ok(())
}

fn pieces(len: u64) -> impl Iterator<Item = Range<u64>> {
    (0..len.div_ceil(LAUNCH_BYTES))
        .map(move |piece| piece * LAUNCH_BYTES..len.min((piece + 1) * LAUNCH_BYTES))
}

/// Launches that combine `sources`, from left to right, into `target`.
///
/// # Errors
/// [`Unfit`]: fewer than two or too many sources, or a side that is not [`reducible`].
pub fn reduce(
    what: Reduction,
    target: &ReducedSide,
    sources: &[&ReducedSide],
) -> Result<ReduceLaunches, Unfit> {
    if !(2..=SOURCES_MAX).contains(&sources.len()) {
        return Err(Unfit::Sources { sources: sources.len() });
    }
    for side in sources.iter().copied().chain([target]) {
        reducible(what.combine, side, what.len)?;
    }
    let mut launches = ReduceLaunches::new();
    for range in pieces(what.len) {
        let parts: Result<SmallVec<[ReducePart; 4]>, Unfit> = [target]
            .into_iter()
            .chain(sources.iter().copied())
            .map(|side| ReducePart::of(side, &range))
            .collect();
        launches.push(launch(what, range.end - range.start, &parts?)?);
    }
    Ok(launches)
}

/// The place within 16 bytes at which all parts begin, if that is one and words hold whole elements there.
fn phase(combine: Combine, parts: &[ReducePart]) -> Option<u64> {
    let of_stream = parts.iter().find_map(|part| match part {
        ReducePart::Blocks { start, .. } => Some(start % WORD),
        ReducePart::Plain { .. } => None,
    });
    let of_memory = parts.iter().find_map(|part| match part {
        ReducePart::Plain { bits, .. } => Some(bits % WORD),
        ReducePart::Blocks { .. } => None,
    });
    let phase = of_stream.or(of_memory)?;
    let whole = combine.fills_words() && phase % u64::from(combine.bytes()) == 0;
    (whole && parts.iter().all(|part| part.is_at(phase))).then_some(phase)
}

/// The launch for one piece: the target, then the sources.
fn launch(what: Reduction, len: u64, parts: &[ReducePart]) -> Result<ReduceLaunch, Unfit> {
    let Reduction { combine, mask, budget, .. } = what;
    let number = |n: u64| u32::try_from(n).map_err(|_| Unfit::Numbers);
    let sources = number(parts.len() as u64 - 1)?;
    let phase = phase(combine, parts);
    let head = phase.map_or(0, |phase| (WORD - phase) % WORD);
    // Without a whole word the elements are combined one by one.
    let wide = phase.is_some() && len >= head + WORD;
    let all_plain = parts.iter().all(|part| matches!(part, ReducePart::Plain { .. }));
    let (words, edges, form) = match wide {
        true => {
            let words = (len - head) / WORD;
            let tail = (len - head) % WORD;
            let form = if all_plain { Form::Flat } else { Form::Grid };
            (words, number(head | tail << 8)?, form)
        }
        false => (len / u64::from(combine.bytes()), 0, Form::Each),
    };
    let (words, edge_tiles) = (number(words)?, u32::from(edges != 0));
    let mut threads = THREADS;
    while threads > THREADS_MIN && words.div_ceil(threads * ITEMS) < 2 * BLOCKS_ENOUGH {
        threads /= 2;
    }
    let tiles = words.div_ceil(threads * ITEMS) + edge_tiles;
    let args = match form {
        Form::Flat => {
            let mut args =
                ReduceFlatArgs { mask, words, tiles, sources, edges, ..Default::default() };
            for (to, part) in args.at.iter_mut().zip(parts) {
                if let ReducePart::Plain { at, .. } = part {
                    *to = at.wrapping_add(head.cast_signed());
                }
            }
            ReduceArgs::Flat(args)
        }
        Form::Grid | Form::Each => {
            let mut args = Box::new(ReduceGridArgs {
                mask,
                words,
                tiles,
                sources,
                edges,
                ..Default::default()
            });
            let (width, skip) = match form {
                Form::Grid => (Width::W16, head),
                _ => (combine.part(), 0),
            };
            let each = u64::from(combine.bytes() / combine.part().bytes());
            let numbered =
                if form == Form::Grid { u64::from(words) } else { u64::from(words) * each };
            for (to, part) in args.side.iter_mut().zip(parts) {
                *to = part.side(width, skip, numbered)?;
            }
            ReduceArgs::Grid(args)
        }
    };
    let kernel = ReduceKernel { combine, form };
    Ok(ReduceLaunch { kernel, blocks: limited(tiles, budget), threads, args })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::GridDim;
    use crate::reduce::{CombineOperation, Element};

    fn sum(element: Element) -> Combine {
        Combine::new(CombineOperation::Sum, element).unwrap()
    }

    fn at(address: u64) -> ReducedSide {
        let place = KernelAddress { address: 0, offset: address.cast_signed() };
        ReducedSide { shape: TransferSide::Contiguous(0), place, start: 0 }
    }

    /// Blocks of `len` bytes, every `stride` bytes.
    fn blocks(address: u64, len: u64, stride: i64, start: u64) -> ReducedSide {
        let dims = [GridDim { count: 1 << 20, stride }].into_iter().collect();
        let grid = Grid { displacement: 0, len, dims };
        ReducedSide { shape: TransferSide::Strided(grid), start, ..at(address) }
    }

    fn launched(
        element: Element,
        len: u64,
        target: &ReducedSide,
        sources: &[&ReducedSide],
    ) -> Result<ReduceLaunches, Unfit> {
        let what = Reduction { combine: sum(element), mask: 0, len, budget: None };
        reduce(what, target, sources)
    }

    fn form(element: Element, len: u64, target: &ReducedSide, source: &ReducedSide) -> Form {
        launched(element, len, target, &[source, source]).unwrap()[0].kernel.form
    }

    #[test]
    fn words_need_one_place_within_them() {
        assert_eq!(form(Element::F32, 4096, &at(64), &at(128)), Form::Flat);
        assert_eq!(form(Element::F32, 4096, &at(68), &at(132)), Form::Flat);
        assert_eq!(form(Element::F32, 4096, &at(68), &at(128)), Form::Each);
        assert_eq!(form(Element::F32, 16, &at(68), &at(132)), Form::Each, "no whole word");
        assert_eq!(form(Element::F32, 4096, &blocks(64, 32, 64, 0), &at(128)), Form::Grid);
        assert_eq!(form(Element::F32, 4096, &blocks(64, 32, 64, 8), &at(136)), Form::Grid);
        assert_eq!(form(Element::F32, 4096, &blocks(64, 32, 64, 8), &at(128)), Form::Each);
        assert_eq!(form(Element::F32, 4096, &blocks(64, 4, 12, 0), &at(128)), Form::Each);
        // Inside one block there are no gaps.
        assert_eq!(
            form(Element::F32, 4096, &blocks(64, 1 << 16, 1 << 20, 4096), &at(128)),
            Form::Flat
        );
    }

    #[test]
    fn edges_are_what_lies_before_and_after_whole_words() {
        let launches = launched(Element::F32, 100, &at(68), &[&at(132), &at(4)]).unwrap();
        let ReduceArgs::Flat(args) = &launches[0].args else { panic!("{launches:?}") };
        assert_eq!(
            (args.at[..3].to_vec(), args.words, args.edges),
            (vec![80, 144, 16], 5, 12 | 8 << 8)
        );
        assert_eq!((args.tiles, args.sources), (2, 2));
    }

    #[test]
    fn what_kernels_cannot_combine_is_refused() {
        let good = at(64);
        let odd =
            |side: &ReducedSide| launched(Element::F32, 96, &good, &[side, &good]).unwrap_err();
        assert_eq!(odd(&at(66)), Unfit::Scattered);
        assert_eq!(odd(&blocks(64, 6, 12, 0)), Unfit::Scattered, "blocks cut elements");
        assert!(matches!(odd(&blocks(64, 4, 12, 1 << 22)), Unfit::Range { .. }));
        for sources in [0, 1, 9] {
            let error = launched(Element::F32, 96, &good, &vec![&good; sources]).unwrap_err();
            assert_eq!(error, Unfit::Sources { sources });
        }
    }

    #[test]
    fn long_ranges_are_cut_at_words() {
        let launches = launched(Element::I8, 3 << 30, &at(3), &[&at(19), &at(35)]).unwrap();
        assert_eq!(launches.len(), 4);
        let bytes = launches.iter().map(|launch| {
            let ReduceArgs::Flat(args) = &launch.args else { panic!("{launch:?}") };
            assert!(u64::from(args.words) <= WORDS_MAX);
            u64::from(args.words) * 16 + u64::from(args.edges & 255) + u64::from(args.edges >> 8)
        });
        assert_eq!(bytes.sum::<u64>(), 3 << 30);
    }
}
