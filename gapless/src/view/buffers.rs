//! What the operations take: anything that makes a view.

use super::{View, ViewMut};
use crate::shared_buf::SharedBuf;
use gapless_dtype::{Buffer, BufferMut, ElementType, Primitive};
use std::marker::PhantomData;

/// Numbers one behind the other in memory of the host: all that short operations need to know of a buffer. A view takes
/// longer to make than they take.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Plain<'v> {
    start: *const u8,
    bytes: usize,
    element: Primitive,
    memory: PhantomData<&'v [u8]>,
}

/// The same, to be written.
#[doc(hidden)]
#[derive(Debug)]
pub struct PlainMut<'v> {
    start: *mut u8,
    bytes: usize,
    element: Primitive,
    memory: PhantomData<&'v mut [u8]>,
}

/// Bytes of so many numbers, and what they are.
#[inline]
fn numbers(count: usize, element: ElementType) -> Option<(usize, Primitive)> {
    // Fits: so many are in memory.
    Some((count * usize::try_from(element.bytes()).ok()?, element.number()?))
}

impl<'v> Plain<'v> {
    #[inline]
    pub(crate) fn of<B: Buffer + ?Sized>(buffer: &'v B) -> Option<Plain<'v>> {
        let (start, count, element) = buffer.parts();
        if buffer.spread().is_some() {
            return None;
        }
        let (bytes, element) = numbers(count, element)?;
        Some(Plain { start, bytes, element, memory: PhantomData })
    }

    /// The basic type of the elements.
    #[inline]
    pub(crate) fn element(&self) -> Primitive {
        self.element
    }

    /// Their bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &'v [u8] {
        // SAFETY: `of` has them from a buffer that is borrowed for `'v` and is sealed: numbers without gaps, one behind the
        // other, none of whose bytes changes behind a shared reference (`Equivalence`, 1 to 4).
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl<'v> PlainMut<'v> {
    #[inline]
    pub(crate) fn of<B: BufferMut + ?Sized>(buffer: &'v mut B) -> Option<PlainMut<'v>> {
        // A shared array becomes its own here, and may be laid out otherwise then.
        let (start, count, element) = buffer.parts_mut();
        if buffer.spread().is_some() {
            return None;
        }
        let (bytes, element) = numbers(count, element)?;
        Some(PlainMut { start, bytes, element, memory: PhantomData })
    }

    /// As [`Plain::element`].
    #[inline]
    pub(crate) fn element(&self) -> Primitive {
        self.element
    }

    /// Their bytes.
    #[inline]
    pub(crate) fn into_bytes(self) -> &'v mut [u8] {
        // SAFETY: as of `Plain`; the buffer is borrowed exclusively, and every pattern of bits is a value (`AnyBits`).
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

/// What a message is sent out of: a reference to a value, array, slice or `Vec` whose elements have
/// [`Equivalence`](crate::Equivalence), a reference to a [`SharedBuf`], or a [`View`]. A type of your own has it by
/// saying what its view is:
///
/// ```
/// use gapless::{SendBuffer, View, World};
///
/// struct Grid {
///     cells: Vec<f64>,
/// }
///
/// impl<'v> SendBuffer<'v> for &'v Grid {
///     fn into_view(self) -> View<'v> {
///         View::of(&self.cells)
///     }
/// }
///
/// # fn main() -> Result<(), gapless::Error> {
/// let world = World::init()?;
/// # let mut cells = vec![0.0; 4];
/// # world.comm().scope(|s| {
/// #     let _ = s.irecv(&mut cells, 0, 0)?;
/// world.comm().send(&Grid { cells: vec![1.0; 4] }, 0, 0)?;
/// # Ok(())
/// # })?;
/// # assert_eq!(cells, [1.0; 4]);
/// world.finalize()
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot be sent",
    label = "not a reference to elements that can be sent, nor a `View`",
    note = "send `&value`, `&array`, `&slice[..]` or `&vec`: the memory is borrowed (`isend_owned` takes it over)",
    note = "the elements must have `gapless::Equivalence`: numbers, `bool` and `char` do, a struct gets it by \
            `#[derive(gapless::Datatype)]` and `#[repr(C)]`; a `str` is sent by its `as_bytes()`",
    note = "for a part of an array, make a `View::typed` by a layout"
)]
pub trait SendBuffer<'v> {
    /// The memory, and the layout of the message in it.
    fn into_view(self) -> View<'v>;

    /// What short operations need to know of it, if it is that simple.
    #[doc(hidden)]
    #[inline]
    fn as_plain(&self) -> Option<Plain<'v>> {
        None
    }
}

/// What a message is received into: an exclusive reference to a value, array, slice or `Vec` whose elements have
/// [`AnyBits`](crate::AnyBits), to a [`SharedBuf`], or a [`ViewMut`]. See [`SendBuffer`].
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot be received into",
    label = "not an exclusive reference to elements that can be received, nor a `ViewMut`",
    note = "receive into `&mut value`, `&mut array`, `&mut slice[..]` or `&mut vec` (as long as it is: it does not grow)",
    note = "the elements must have `gapless::AnyBits`: numbers do, a struct gets it by \
            `#[derive(gapless::Datatype)]` and `#[repr(C)]` if all its fields have it",
    note = "receive a `bool` as `u8`, a `char` as `u32`, an enum as its integer; or use `recv_checked`"
)]
pub trait RecvBuffer<'v> {
    /// The memory, and the layout of the message in it.
    fn into_view(self) -> ViewMut<'v>;

    /// What short operations need to know of it, if it is that simple.
    #[doc(hidden)]
    #[inline]
    fn as_plain(&mut self) -> Option<PlainMut<'_>> {
        None
    }
}

impl<'v, B: Buffer + ?Sized> SendBuffer<'v> for &'v B {
    #[inline]
    fn into_view(self) -> View<'v> {
        View::from(self)
    }

    #[inline]
    fn as_plain(&self) -> Option<Plain<'v>> {
        Plain::of(*self)
    }
}

impl<'v> SendBuffer<'v> for &'v SharedBuf {
    #[inline]
    fn into_view(self) -> View<'v> {
        View::from(self)
    }
}

impl<'v> SendBuffer<'v> for View<'v> {
    #[inline]
    fn into_view(self) -> View<'v> {
        self
    }
}

impl<'v> SendBuffer<'v> for &View<'v> {
    #[inline]
    fn into_view(self) -> View<'v> {
        self.clone()
    }
}

impl<'v, B: BufferMut + ?Sized> RecvBuffer<'v> for &'v mut B {
    #[inline]
    fn into_view(self) -> ViewMut<'v> {
        ViewMut::from(self)
    }

    #[inline]
    fn as_plain(&mut self) -> Option<PlainMut<'_>> {
        PlainMut::of(*self)
    }
}

impl<'v> RecvBuffer<'v> for &'v mut SharedBuf {
    #[inline]
    fn into_view(self) -> ViewMut<'v> {
        ViewMut::from(self)
    }
}

impl<'v> RecvBuffer<'v> for ViewMut<'v> {
    #[inline]
    fn into_view(self) -> ViewMut<'v> {
        self
    }
}

impl<'v> RecvBuffer<'v> for &'v mut ViewMut<'_> {
    #[inline]
    fn into_view(self) -> ViewMut<'v> {
        self.reborrow()
    }
}
