//! What ranks give to collectives: views, blocks of views, or nothing.

use crate::error::Error;
use crate::view::{RecvBuffer, SendBuffer, View, ViewMut};
use gapless_coll as coll;
use gapless_engine::{EngineError, PagesOf, Typed};
use std::marker::PhantomData;

/// In the place of a buffer: what this rank contributes lies where its result goes, or its part of the result stays
/// where it is (`MPI_IN_PLACE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace;

/// What a rank sends in a collective: whatever makes a [`View`], [`Blocks`], [`InPlace`], or `()` for nothing.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot be sent in a collective",
    label = "not a reference to elements that can be sent, nor a `View`, `Blocks`, `InPlace` or `()`",
    note = "send `&value`, `&array`, `&slice[..]` or `&vec`, whose elements must have `gapless::Equivalence`: a struct \
            gets it by `#[derive(gapless::Datatype)]` and `#[repr(C)]`"
)]
pub trait Input<'a>: sealed::Input<'a> {}

/// What a rank receives into in a collective: whatever makes a [`ViewMut`], [`BlocksMut`], [`InPlace`], or `()` for
/// nothing.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot be received into in a collective",
    label = "not an exclusive reference to elements that can be received, nor a `ViewMut`, `BlocksMut`, `InPlace` or `()`",
    note = "receive into `&mut value`, `&mut array`, `&mut slice[..]` or `&mut vec`, whose elements must have \
            `gapless::AnyBits`: a struct gets it by `#[derive(gapless::Datatype)]` and `#[repr(C)]` if all its fields \
            have it",
    note = "receive a `bool` as `u8`, a `char` as `u32`, an enum as its integer"
)]
pub trait Output<'a>: sealed::Output<'a> {}

/// Sealed: an argument does not know how long its memory is borrowed.
mod sealed {
    use super::Buffer;

    pub trait Input<'a> {
        fn into_arg(self) -> Buffer;
    }

    pub trait Output<'a> {
        fn into_arg(self) -> Buffer;
    }
}

/// A block for each rank, or each neighbour, to be sent.
///
/// ```
/// use gapless::{Blocks, View};
/// let numbers = [1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0];
/// // Elements 0..2 for rank 0, 5 for rank 1, 2..5 for rank 2.
/// let blocks = Blocks::new(&numbers, &[2, 1, 3], &[0, 5, 2])?;
/// // One behind the other.
/// let blocks = Blocks::packed(&numbers, &[2, 1, 3])?;
/// // Anything.
/// let bytes = [0u8; 9];
/// let blocks = Blocks::each([View::of(&numbers), View::of(&bytes)]);
/// # Ok::<(), gapless::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Blocks<'a> {
    each: Vec<Typed>,
    memory: PhantomData<&'a [u8]>,
}

/// A block for each rank, or each neighbour, to be received into. No two overlap.
#[derive(Debug)]
pub struct BlocksMut<'a> {
    each: Vec<Typed>,
    memory: PhantomData<&'a mut [u8]>,
}

/// One side of a collective: what a rank sends, or what it receives into.
#[derive(Clone, Debug)]
pub enum Buffer {
    /// It gives nothing here.
    Nothing,
    /// `MPI_IN_PLACE`; see [`InPlace`].
    InPlace,
    /// All blocks, one after the other in the packed stream.
    Whole(Typed),
    /// A block for each rank, or each neighbour.
    Each(Vec<Typed>),
}

impl Buffer {
    /// What there is to describe.
    pub(super) fn parts(&self) -> &[Typed] {
        match self {
            Buffer::Nothing | Buffer::InPlace => &[],
            Buffer::Whole(typed) => std::slice::from_ref(typed),
            Buffer::Each(each) => each,
        }
    }

    /// The same, to be described in another way.
    pub(super) fn parts_mut(&mut self) -> &mut [Typed] {
        match self {
            Buffer::Nothing | Buffer::InPlace => &mut [],
            Buffer::Whole(typed) => std::slice::from_mut(typed),
            Buffer::Each(each) => each,
        }
    }

    /// Packed bytes of all blocks.
    pub(super) fn bytes(&self) -> u64 {
        let lens = self.parts().iter().map(Typed::packed_bytes);
        lens.fold(0, u64::saturating_add)
    }

    /// What the executor is told.
    pub(super) fn into_blocks(self) -> coll::BufferBlocks {
        match self {
            Buffer::Nothing | Buffer::InPlace => coll::BufferBlocks::None,
            Buffer::Whole(typed) => coll::BufferBlocks::Whole(typed),
            Buffer::Each(each) => coll::BufferBlocks::Each(each),
        }
    }
}

impl<'a, V: SendBuffer<'a>> Input<'a> for V {}

impl<'a, V: SendBuffer<'a>> sealed::Input<'a> for V {
    fn into_arg(self) -> Buffer {
        Buffer::Whole(self.into_view().typed)
    }
}

impl<'a> Input<'a> for Blocks<'a> {}

impl<'a> sealed::Input<'a> for Blocks<'a> {
    fn into_arg(self) -> Buffer {
        Buffer::Each(self.each)
    }
}

impl<'a> Input<'a> for InPlace {}

impl<'a> sealed::Input<'a> for InPlace {
    fn into_arg(self) -> Buffer {
        Buffer::InPlace
    }
}

impl<'a> Input<'a> for () {}

impl<'a> sealed::Input<'a> for () {
    fn into_arg(self) -> Buffer {
        Buffer::Nothing
    }
}

impl<'a, V: RecvBuffer<'a>> Output<'a> for V {}

impl<'a, V: RecvBuffer<'a>> sealed::Output<'a> for V {
    fn into_arg(self) -> Buffer {
        Buffer::Whole(self.into_view().typed)
    }
}

impl<'a> Output<'a> for BlocksMut<'a> {}

impl<'a> sealed::Output<'a> for BlocksMut<'a> {
    fn into_arg(self) -> Buffer {
        Buffer::Each(self.each)
    }
}

impl<'a> Output<'a> for InPlace {}

impl<'a> sealed::Output<'a> for InPlace {
    fn into_arg(self) -> Buffer {
        Buffer::InPlace
    }
}

impl<'a> Output<'a> for () {}

impl<'a> sealed::Output<'a> for () {
    fn into_arg(self) -> Buffer {
        Buffer::Nothing
    }
}

impl<'a> Blocks<'a> {
    /// Block `i` is the `counts[i]` elements from element `displacements[i]` on. An element is an instance of the
    /// view's layout, or a page.
    ///
    /// # Errors
    /// [`Error::BlockLists`]; [`Error::Block`]: a block reaches outside the view.
    pub fn new(
        view: impl SendBuffer<'a>,
        counts: &[u64],
        displacements: &[u64],
    ) -> Result<Blocks<'a>, Error> {
        let each = cut(&view.into_view().typed, counts, displacements)?;
        Ok(Blocks { each, memory: PhantomData })
    }

    /// Block `i` is the next `counts[i]` elements.
    ///
    /// # Errors
    /// [`Error::Block`].
    pub fn packed(view: impl SendBuffer<'a>, counts: &[u64]) -> Result<Blocks<'a>, Error> {
        Blocks::new(view, counts, &starts(counts))
    }

    /// Blocks of memory that is borrowed already.
    ///
    /// # Safety
    /// As for [`View::of_typed`], for each of them.
    pub(super) unsafe fn of_typed(each: Vec<Typed>) -> Blocks<'a> {
        Blocks { each, memory: PhantomData }
    }

    /// Each block is a view of its own.
    #[must_use]
    pub fn each(views: impl IntoIterator<Item = View<'a>>) -> Blocks<'a> {
        let each = views.into_iter().map(|view| view.typed).collect();
        Blocks { each, memory: PhantomData }
    }
}

impl<'a> BlocksMut<'a> {
    /// As [`Blocks::new`].
    ///
    /// # Errors
    /// As [`Blocks::new`]; [`Error::BlocksOverlap`], also if elements of the view overlap.
    pub fn new(
        view: impl RecvBuffer<'a>,
        counts: &[u64],
        displacements: &[u64],
    ) -> Result<BlocksMut<'a>, Error> {
        let typed = view.into_view().typed;
        let each = cut(&typed, counts, displacements)?;
        apart(&typed, counts, displacements)?;
        Ok(BlocksMut { each, memory: PhantomData })
    }

    /// As [`Blocks::packed`].
    ///
    /// # Errors
    /// As [`Blocks::packed`].
    pub fn packed(view: impl RecvBuffer<'a>, counts: &[u64]) -> Result<BlocksMut<'a>, Error> {
        BlocksMut::new(view, counts, &starts(counts))
    }

    /// Blocks of memory that is borrowed already.
    ///
    /// # Safety
    /// As for [`ViewMut::of_typed`], for each of them; no two have a byte in common.
    pub(super) unsafe fn of_typed(each: Vec<Typed>) -> BlocksMut<'a> {
        BlocksMut { each, memory: PhantomData }
    }

    /// Each block is a view of its own: [`Parts`](crate::Parts) makes several of one buffer.
    #[must_use]
    pub fn each(views: impl IntoIterator<Item = ViewMut<'a>>) -> BlocksMut<'a> {
        let each = views.into_iter().map(|view| view.typed).collect();
        BlocksMut { each, memory: PhantomData }
    }
}

/// Where blocks begin that lie one behind the other.
fn starts(counts: &[u64]) -> Vec<u64> {
    let next = |end: &mut u64, count: &u64| {
        let start = *end;
        *end = end.saturating_add(*count);
        Some(start)
    };
    counts.iter().scan(0, next).collect()
}

/// The blocks of a view.
pub(crate) fn cut(whole: &Typed, counts: &[u64], starts: &[u64]) -> Result<Vec<Typed>, Error> {
    if counts.len() != starts.len() {
        let (counts, displacements) = (counts.len(), starts.len());
        return Err(Error::BlockLists { counts, displacements });
    }
    let elements = whole.count();
    let blocks = counts.iter().zip(starts).enumerate();
    let one = |(block, (&count, &start)): (usize, (&u64, &u64))| {
        if start.checked_add(count).is_none_or(|end| end > elements) {
            return Err(Error::Block { block, start, count, elements });
        }
        match whole.as_pages() {
            None => {}
            Some(PagesOf::Device(_)) => return Err(EngineError::DeviceIndices.into()),
            Some(PagesOf::Host(pages)) => {
                let some = pages.part(start..start + count);
                let some = some.ok_or(Error::Block { block, start, count, elements })?;
                return Ok(Typed::pages(whole.region(), whole.origin(), &some)?);
            }
        }
        let Some(layout) = whole.own_layout() else {
            let bytes = whole.region().sub(start, count).map_err(EngineError::from)?;
            return Ok(Typed::contiguous(bytes));
        };
        let origin = i128::from(whole.origin()) + i128::from(start) * i128::from(layout.extent());
        let origin = match u64::try_from(origin) {
            Ok(origin) => origin,
            Err(_) if count == 0 => 0,
            // Displacement 0 of its first element lies before the memory, as it may if extents are negative.
            Err(_) => return Err(Error::Block { block, start, count, elements }),
        };
        Ok(Typed::new(whole.region(), origin, layout, count)?)
    };
    blocks.map(one).collect()
}

/// Whether no byte is in two blocks.
fn apart(whole: &Typed, counts: &[u64], starts: &[u64]) -> Result<(), Error> {
    let mut order: Vec<usize> = (0..counts.len()).filter(|block| counts[*block] > 0).collect();
    order.sort_by_key(|block| starts[*block]);
    let plain = whole.without_pages()?;
    let shared = plain.overlaps();
    let meets = |pair: &&[usize]| shared || starts[pair[0]] + counts[pair[0]] > starts[pair[1]];
    let overlap = order.windows(2).find(meets);
    match overlap {
        Some(pair) => Err(Error::BlocksOverlap { one: pair[0], other: pair[1] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};

    fn lens(each: &[Typed]) -> Vec<(u64, u64)> {
        each.iter().map(|typed| (typed.origin(), typed.packed_bytes())).collect()
    }

    #[test]
    fn blocks_are_elements_of_the_view() {
        let mut numbers = [0i32; 12];
        let blocks = Blocks::new(&numbers, &[2, 0, 3], &[4, 12, 0]).unwrap();
        assert_eq!(lens(&blocks.each), [(16, 8), (48, 0), (0, 12)]);
        let pair = Datatype::vector(2, 1, 2, &Primitive::Int.into()).unwrap();
        let pair = Datatype::resized(0, 16, &pair).unwrap().commit().unwrap();
        let view = View::typed(&numbers, 0, &pair, 3).unwrap();
        assert_eq!(lens(&Blocks::packed(view, &[1, 2]).unwrap().each), [(0, 8), (16, 16)]);
        let bytes = [0u8; 6];
        let blocks = Blocks::packed(&bytes, &[1, 5]).unwrap();
        assert!(blocks.each.iter().all(|typed| typed.own_layout().is_none()), "bytes stay bytes");
        assert!(BlocksMut::new(&mut numbers, &[6, 6], &[6, 0]).is_ok());
    }

    #[test]
    fn blocks_that_do_not_fit_are_named() {
        let mut numbers = [0i32; 12];
        let error = Blocks::new(&numbers, &[1, 2], &[0]).unwrap_err();
        assert_eq!(error, Error::BlockLists { counts: 2, displacements: 1 });
        let outside = |counts: &[u64], starts: &[u64]| Blocks::new(&numbers, counts, starts).err();
        let block = |block, start, count| Error::Block { block, start, count, elements: 12 };
        assert_eq!(outside(&[1, 3], &[0, 10]), Some(block(1, 10, 3)));
        assert_eq!(outside(&[1], &[u64::MAX]), Some(block(0, u64::MAX, 1)));
        assert_eq!(outside(&[u64::MAX, 2], &[1, 0]), Some(block(0, 1, u64::MAX)));
        let error = Blocks::packed(&numbers, &[12, 1]).unwrap_err();
        assert_eq!(error, block(1, 12, 1));
        let error = BlocksMut::new(&mut numbers, &[3, 0, 3], &[5, 5, 3]).unwrap_err();
        assert_eq!(error, Error::BlocksOverlap { one: 2, other: 0 });
        // Elements of two numbers, a number apart.
        let pair = Datatype::contiguous(2, &Primitive::Int.into()).unwrap();
        let pair = Datatype::resized(0, 4, &pair).unwrap().commit().unwrap();
        let view = ViewMut::typed(&mut numbers, 0, &pair, 3).unwrap();
        let error = BlocksMut::new(view, &[1, 1, 1], &[0, 1, 2]).unwrap_err();
        assert_eq!(error, Error::BlocksOverlap { one: 0, other: 1 });
    }

    /// Displacement 0 of later elements lies before the memory, the elements do not.
    #[test]
    fn blocks_of_negative_extent_are_where_their_elements_are() {
        let numbers = [0i64; 3];
        let last = Datatype::hindexed(&[1], &[16], &Primitive::LongLong.into()).unwrap();
        let back = Datatype::resized(0, -8, &last).unwrap().commit().unwrap();
        let blocks = |starts: &[u64]| {
            let view = View::typed(&numbers, 0, &back, 3).unwrap();
            Blocks::new(view, &vec![1; starts.len()], starts)
        };
        assert_eq!(lens(&blocks(&[0]).unwrap().each), [(0, 8)]);
        let error = blocks(&[0, 1]).unwrap_err();
        assert_eq!(error, Error::Block { block: 1, start: 1, count: 1, elements: 3 });
    }
}
