//! Many small requests in one launch: a table says what each one moves, and every block finds its part.

use super::{
    Budget, KernelAddress, Launch, Launches, NONE_IDLE, TransferSide, Unfit, Words, geometry, grid,
    skipping,
};
use crate::args::{
    Args, FusedArgs, FusedPart, PARTS_AT_ONCE, PARTS_MAX, Rows, SIDE_LISTED, SIDE_STRIDED,
    Skipping, Span,
};
use crate::{Direction, Family, Width};
use std::ops::Range;

/// Bytes up to which all requests take the narrowest of their words, to be one launch.
const LITTLE: u64 = 256 << 10;

/// One request: a range of the packed stream of one typed side.
///
/// All parts of a call share the kernel's pointers. Where a pointer is a number (CUDA), pass 0 for all
/// three and put absolute addresses into the offsets, a plan's ([`Blocks::list`](super::Blocks::list),
/// [`Planned::units`](super::Planned::units) and [`shifts`](super::Planned::shifts)) as well; where it is
/// an object (OpenCL), parts lie in the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovePart {
    /// Bytes of the packed stream.
    pub range: Range<u64>,
    /// How the typed side lies.
    pub side: TransferSide,
    /// Where displacement 0 of the first instance is.
    pub typed: KernelAddress,
    /// Where byte `range.start` of the stream is.
    pub packed: KernelAddress,
}

impl MovePart {
    /// The widest word that it allows.
    fn width(&self) -> Width {
        let packed = self.packed.bits().wrapping_sub(self.range.start);
        Width::dividing(self.side.bits() | self.typed.bits() | packed)
    }
}

/// A part, or a piece of one, whose words can be numbered.
struct FusedPiece {
    words: Words,
    /// How long blocks are cut, and how many strips they are; of blocks that do not loop, and that do.
    cuts: [Option<(Rows, u32)>; 2],
    part: FusedPart,
}

impl FusedPiece {
    /// Of blocks of so many threads, looping or not; of both together, if it has a twin.
    fn tiles(&self, threads: u32, few: bool, width: Width, twin: bool) -> u32 {
        let warps = threads / 32;
        match self.cut(few) {
            Some((_, strips)) => strips.div_ceil(warps) + self.words.edge_tiles(),
            None => {
                let Skipping { lanes, back } = self.part.skipping;
                let skipping = Skipping { lanes: lanes >> u32::from(twin), back };
                self.words.tiles(warps * Family::Fused.items(width, few), skipping)
            }
        }
    }

    /// How its blocks are cut, and into how many strips, if they are long.
    fn cut(&self, few: bool) -> Option<(Rows, u32)> {
        self.cuts[usize::from(few)]
    }

    /// Whether the other has the same short blocks, on the same lines.
    fn is_twin_of(&self, other: &FusedPiece) -> bool {
        let (here, there) = (&self.part, &other.part);
        let (shape, of) = (&here.side.strided, &there.side.strided);
        let dims = shape.dims as usize;
        let strided = here.side.kind == SIDE_STRIDED && there.side.kind == SIDE_STRIDED;
        let short = [self, other].iter().all(|piece| piece.cuts == [None; 2]);
        strided
            && short
            && (self.words.first, self.words.words, self.words.edge_tiles())
                == (other.words.first, other.words.words, other.words.edge_tiles())
            && here.skipping == there.skipping
            && (shape.len, shape.dims) == (of.len, of.dims)
            && shape.dim[..dims] == of.dim[..dims]
            && here.span.typed.abs_diff(there.span.typed)
                < shape.dim[dims - 1].stride.unsigned_abs()
    }
}

/// Launches for many requests in one direction: one launch for each 32 of them, or for requests of
/// together more than 256 KiB one for each width of word (8 and 16 bytes count as one), mostly one.
///
/// A request overlaps no other's destination; in which order they are done is not said.
///
/// # Errors
/// [`Unfit`], of the first part that is unfit.
pub fn fused(
    direction: Direction,
    parts: &[MovePart],
    budget: Option<Budget>,
) -> Result<Launches, Unfit> {
    let some = || parts.iter().filter(|part| !part.range.is_empty());
    let total =
        some().fold(0u64, |sum, part| sum.saturating_add(part.range.end - part.range.start));
    let class = |part: &MovePart| match part.width() {
        _ if total <= LITTLE => Width::W1,
        Width::W16 => Width::W8,
        width => width,
    };
    let mut launches = Launches::new();
    for group in Width::ALL {
        let Some(width) = some().filter(|part| class(part) == group).map(MovePart::width).min()
        else {
            continue;
        };
        let mut pieces = Vec::with_capacity(PARTS_MAX);
        for part in some().filter(|part| class(part) == group) {
            cut(direction, part, width, &mut pieces)?;
        }
        for pieces in pieces.chunks(PARTS_MAX) {
            launches.push(launch(direction, width, pieces, budget));
        }
    }
    Ok(launches)
}

/// The pieces of a part; mostly one.
fn cut(
    direction: Direction,
    part: &MovePart,
    width: Width,
    pieces: &mut Vec<FusedPiece>,
) -> Result<(), Unfit> {
    let size = part.side.size().ok_or(Unfit::Numbers)?;
    if part.range.end > size {
        return Err(Unfit::Range { end: part.range.end, size });
    }
    let mut open = vec![part.range.clone()];
    while let Some(range) = open.pop() {
        let Some((side, displacement)) = part.side.shape(&range, width)? else {
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
        let bytes = u64::from(width.bytes());
        let begin = range.start / bytes * bytes;
        let inside = range.start - begin..range.end - begin;
        let mut words = Words { first: side.first, ..Words::of(&inside, width) };
        if inside.start > 0 && inside.end < bytes {
            words.edges |= (width.bytes() - u32::try_from(inside.end).unwrap_or(0)) << 16;
        }
        let packed = part.packed.offset + (range.start - part.range.start).cast_signed();
        let span = words.span(part.typed.offset.wrapping_add(displacement), packed);
        let (mut skips, mut cuts) = (NONE_IDLE, [None; 2]);
        if side.kind == SIDE_STRIDED {
            let shape = &side.strided;
            cuts = [false, true]
                .map(|few| grid::rows(shape.len, words, Family::Fused.items(width, few)));
            let at = part.typed.address.wrapping_add(span.typed.cast_unsigned());
            let inner = shape.dim.get(shape.dims as usize - 1).map(|dim| (dim.stride, at));
            skips = skipping(direction, side.first, shape.len, width, inner);
        } else if side.kind == SIDE_LISTED {
            skips = skipping(direction, side.first, side.listed.len, width, None);
        }
        let part = FusedPart { span, skipping: skips, rows: Rows::default(), side };
        pieces.push(FusedPiece { words, cuts, part });
    }
    Ok(())
}

/// The pieces, each with its twin where it has one: the faces of a box at both ends of its lines, say.
/// Memory moves in units longer than their blocks, and what one of two twins touches serves the other if
/// that comes at the same time: where blocks are short and far apart, most of the time goes into that.
fn twins(pieces: &[FusedPiece]) -> impl Iterator<Item = (&FusedPiece, Option<&FusedPiece>)> {
    let mut taken = 0u32;
    pieces.iter().enumerate().filter_map(move |(at, piece)| {
        if taken >> at & 1 == 1 {
            return None;
        }
        let twin = (at + 1..pieces.len())
            .find(|&other| taken >> other & 1 == 0 && piece.is_twin_of(&pieces[other]));
        if let Some(other) = twin {
            taken |= 1 << other;
        }
        Some((piece, twin.map(|other| &pieces[other])))
    })
}

/// The launch of up to [`PARTS_MAX`] pieces.
fn launch(
    direction: Direction,
    width: Width,
    pieces: &[FusedPiece],
    budget: Option<Budget>,
) -> Launch {
    let tiles = |threads, few| {
        let each = twins(pieces)
            .map(|(piece, twin)| u64::from(piece.tiles(threads, few, width, twin.is_some())));
        let tiles = each.sum::<u64>().next_multiple_of(u64::from(PARTS_AT_ONCE));
        u32::try_from(tiles).unwrap_or(u32::MAX)
    };
    let shape = geometry(Family::Fused, budget, tiles);
    let empty = FusedPart::default();
    let mut args = FusedArgs {
        span: Span { tiles: shape.tiles, ..Span::default() },
        begin: [u32::MAX; PARTS_MAX],
        part: [empty; PARTS_MAX],
    };
    let mut begin = 0;
    let mut at = 0;
    for (piece, twin) in twins(pieces) {
        let tiles = piece.tiles(shape.threads, shape.few, width, twin.is_some());
        args.begin[at] = begin;
        begin += tiles;
        for piece in [Some(piece), twin].into_iter().flatten() {
            let rows = piece.cut(shape.few).map_or(Rows::default(), |(rows, _)| rows);
            let span = Span { tiles, ..piece.part.span };
            args.part[at] = FusedPart { span, rows, ..piece.part };
            at += 1;
        }
        if twin.is_some() {
            args.span.first |= 1 << (at - 2);
            // Nobody looks for a twin; whoever comes next begins where both end.
            args.begin[at - 1] = if at < pieces.len() { begin } else { u32::MAX };
        }
    }
    Launch::new(Family::Fused, direction, width, shape, Args::Fused(Box::new(args)))
}
