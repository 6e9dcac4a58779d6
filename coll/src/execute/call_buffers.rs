//! The user's buffers by blocks, and where a place of a schedule lies in them.
use std::ops::Range;
use std::sync::OnceLock;

use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_engine::{EngineError, Op, PackedFold, Typed};
use gapless_mem::Region;

use super::error::CollError;
use crate::schedule::{Buffer, Place, Row};

/// A buffer of the user's. Its packed stream is that of its blocks, one after the other, as in [`Row`].
#[derive(Clone, Debug)]
pub enum BufferBlocks {
    /// No bytes.
    None,
    /// All blocks, one after the other, in one description.
    Whole(Typed),
    /// Each block on its own.
    Each(Vec<Typed>),
}

/// The two buffers of a call.
#[derive(Clone, Debug)]
pub struct CallBuffers {
    /// What is sent: only read.
    pub send: BufferBlocks,
    /// What is received into.
    pub recv: BufferBlocks,
}

impl CallBuffers {
    /// All buffers, those that are received into first.
    pub fn all(&self) -> impl Iterator<Item = &Typed> + Clone {
        self.recv.buffers().iter().chain(self.send.buffers())
    }

    /// Both, which are gone from here.
    pub(crate) fn take(&mut self) -> CallBuffers {
        std::mem::replace(self, CallBuffers { send: BufferBlocks::None, recv: BufferBlocks::None })
    }
}

/// A range of one block's packed stream.
pub(super) type TypedRange = (Typed, Range<u64>);

/// Where a place lies.
#[derive(Clone, Debug)]
pub(super) enum Spot {
    /// It is the whole packed stream of this: plain memory, or whole instances of the user's layout.
    Direct(Typed),
    /// It is these, one after the other.
    Pieces(Vec<TypedRange>),
}

impl BufferBlocks {
    fn buffers(&self) -> &[Typed] {
        match self {
            BufferBlocks::None => &[],
            BufferBlocks::Whole(typed) => std::slice::from_ref(typed),
            BufferBlocks::Each(blocks) => blocks,
        }
    }

    /// Whether these are the blocks of a schedule's buffer.
    pub(super) fn check(&self, buffer: Buffer, row: &Row) -> Result<(), CollError> {
        let wrong = |what, given, expected| CollError::Row { buffer, what, given, expected };
        let bytes = |given: u64, expected: u64| match given == expected {
            true => Ok(()),
            false => Err(wrong("bytes", given, expected)),
        };
        match self {
            Self::None => bytes(0, row.len()),
            Self::Whole(typed) => bytes(typed.packed_bytes(), row.len()),
            Self::Each(blocks) if blocks.len() != row.blocks() => {
                Err(wrong("blocks", blocks.len() as u64, row.blocks() as u64))
            }
            Self::Each(blocks) => blocks.iter().enumerate().try_for_each(|(index, typed)| {
                let range = row.range(index);
                bytes(typed.packed_bytes(), range.end - range.start)
            }),
        }
    }

    /// Where a place lies; `range`: its range in the packed stream of the buffer.
    pub(super) fn spot(&self, place: &Place, range: Range<u64>) -> Spot {
        match self {
            Self::None => Spot::Pieces(Vec::new()),
            Self::Whole(typed) => Spot::new(vec![(typed.clone(), range)]),
            Self::Each(blocks) => {
                let (mut at, mut left) = (place.start, place.len);
                let mut pieces = Vec::new();
                for typed in &blocks[place.block..] {
                    let len = (typed.packed_bytes() - at).min(left);
                    if len > 0 {
                        pieces.push((typed.clone(), at..at + len));
                    }
                    (at, left) = (0, left - len);
                    if left == 0 {
                        break;
                    }
                }
                Spot::new(pieces)
            }
        }
    }
}

impl Spot {
    fn new(pieces: Vec<TypedRange>) -> Self {
        let direct = match &pieces[..] {
            [one] => flat(one).map(Typed::contiguous).or_else(|| instances(one)),
            several => joined(several).map(Typed::contiguous),
        };
        direct.map_or(Self::Pieces(pieces), Self::Direct)
    }
}

/// The plain memory that a piece is, if it is.
fn flat((typed, range): &TypedRange) -> Option<Region> {
    typed.as_contiguous()?.sub(range.start, range.end - range.start).ok()
}

/// The plain memory that several pieces are, if they lie one behind the other in one object.
fn joined(pieces: &[TypedRange]) -> Option<Region> {
    let mut regions = pieces.iter().map(flat);
    let first = regions.next()??;
    regions.try_fold(first, |whole, next| {
        let next = next?;
        let same = (next.space(), next.address()) == (whole.space(), whole.address());
        let meets = same && next.offset() == whole.offset() + whole.len();
        let (space, len) = (whole.space(), whole.len() + next.len());
        meets.then(|| Region::new(space, whole.address(), whole.offset(), len))
    })
}

/// The whole instances that a piece is, if it is.
fn instances((typed, range): &TypedRange) -> Option<Typed> {
    let layout = typed.layout();
    let size = layout.size();
    if size == 0 || !range.start.is_multiple_of(size) || !range.end.is_multiple_of(size) {
        return None;
    }
    if range.start == 0 && range.end == typed.packed_bytes() {
        return Some(typed.clone());
    }
    if typed.as_pages().is_some() {
        // Pages have no constant step.
        return None;
    }
    let first = i128::from(range.start / size) * i128::from(layout.extent());
    let origin = u64::try_from(i128::from(typed.origin()) + first).ok()?;
    let count = (range.end - range.start) / size;
    Typed::new(typed.region(), origin, layout, count).ok()
}

/// How the elements of a reduction are combined: the operation, the element's length, and the loop for packed ones.
#[derive(Clone, Debug)]
pub struct Combine {
    op: Op,
    /// Packed bytes of an element.
    bytes: u64,
    /// The loop for packed elements, if there is one.
    fold: Option<PackedFold>,
    /// What elements are, if they lie packed and are all alike, and the operation needs to know.
    element: Option<Primitive>,
}

impl Combine {
    /// An operation on the elements of a layout.
    ///
    /// # Errors
    /// The operation is not defined for such elements.
    pub fn new(op: &Op, layout: &Layout) -> Result<Self, EngineError> {
        let (element, bytes) = op.elements(layout)?;
        let fold = match (op, element) {
            (Op::Predefined(op), Some(known)) => PackedFold::new(*op, known),
            _ => None,
        };
        Ok(Self { op: op.clone(), bytes, fold, element })
    }

    /// The loop for packed elements in memory that nobody shares, if there is one.
    pub(super) fn fold(&self) -> Option<PackedFold> {
        self.fold
    }

    /// The operation.
    #[must_use]
    pub fn op(&self) -> &Op {
        &self.op
    }

    /// Packed bytes of an element.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Packed elements in plain memory; what is left at the end is no part of them.
    ///
    /// # Errors
    /// None: they fit.
    pub fn elements(&self, region: Region) -> Result<Typed, EngineError> {
        match self.element.and_then(packed) {
            Some(layout) => Typed::new(region, 0, layout, region.len() / layout.size()),
            None => Ok(Typed::contiguous(region)),
        }
    }
}

/// One basic element without gaps.
fn packed(element: Primitive) -> Option<&'static Layout> {
    static MADE: [OnceLock<Option<Layout>>; Primitive::ALL.len()] =
        [const { OnceLock::new() }; Primitive::ALL.len()];
    MADE.get(usize::from(element as u8))?.get_or_init(|| make_packed(element)).as_ref()
}

fn make_packed(element: Primitive) -> Option<Layout> {
    let datatype = if element.is_pair() {
        let parts: Vec<_> = element.parts().map(|(part, _)| part).collect();
        let first = parts.first()?.size_bytes();
        let types: Vec<Datatype> = parts.into_iter().map(Datatype::from).collect();
        let second = i64::try_from(first).ok()?;
        let pair = Datatype::structure(&[1, 1], &[0, second], &types).ok()?;
        Datatype::resized(0, i64::try_from(element.size_bytes()).ok()?, &pair).ok()?
    } else {
        Datatype::from(element)
    };
    datatype.commit().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::Pages;

    /// A piece of pages is not so many of them at one step.
    #[test]
    fn pieces_of_pages_are_no_instances() {
        let page = Datatype::contiguous(2, &Primitive::Int.into()).unwrap().commit().unwrap();
        let pages = Pages::new(&page, 8, &[7u32, 2, 9, 0][..]).unwrap();
        let typed = Typed::pages(Region::of(&[0u8; 80]), 0, &pages).unwrap();
        assert_eq!(instances(&(typed.clone(), 0..32)).map(|all| all.bounds()), Some(Some((0, 80))));
        assert!(instances(&(typed, 8..24)).is_none());
    }
}
