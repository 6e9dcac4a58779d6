//! Which buffers a request may own, and their form meanwhile: raw parts, so that no reference to their memory exists
//! while the message layer moves bytes in it.

use crate::shared_buf::SharedBuf;
use crate::view::region_of;
use gapless_dtype::{AnyBits, ElementType, Equivalence};
use gapless_mem::Region;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Memory that a request can own and send: `Vec<T>` or `Box<[T]>` of a type that has [`Equivalence`], [`SharedBuf`], and
/// `()` for none. Sealed.
#[diagnostic::on_unimplemented(
    message = "a request cannot own a `{Self}`",
    label = "not a `Vec` or `Box<[T]>` of elements that can be sent, nor a `SharedBuf`",
    note = "references are borrowed: send them in `Communicator::scope`",
    note = "the elements must have `gapless::Equivalence`: a struct gets it by `#[derive(gapless::Datatype)]` and \
            `#[repr(C)]`"
)]
pub trait OwnedBuffer: Send + 'static {
    /// The type of its elements.
    type Item;

    /// The buffer taken apart.
    #[doc(hidden)]
    type Parked: Park<Self>;

    /// The type of its elements; `u8` stands for bytes, which match everything of their size.
    #[doc(hidden)]
    fn element() -> ElementType;

    /// How many elements it has.
    #[doc(hidden)]
    fn elements(&self) -> usize;
}

/// Memory that a request can own and receive into: the same, of a type that has [`AnyBits`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "a request cannot receive into a `{Self}`",
    label = "not a `Vec` or `Box<[T]>` of elements that can be received, nor a `SharedBuf`",
    note = "the elements must have `gapless::AnyBits`: a struct gets it by `#[derive(gapless::Datatype)]` and \
            `#[repr(C)]` if all its fields have it; receive a `bool` as `u8`, a `char` as `u32`"
)]
pub trait OwnedBufferMut: OwnedBuffer {}

impl<T: AnyBits> OwnedBufferMut for Vec<T> {}
impl<T: AnyBits> OwnedBufferMut for Box<[T]> {}
impl OwnedBufferMut for SharedBuf {}
impl OwnedBufferMut for () {}

/// A buffer taken apart: owns the memory, holds no reference to it.
#[doc(hidden)]
pub trait Park<B: ?Sized + OwnedBuffer>: Send + Sync + 'static {
    /// Whether it is ordinary memory, which devices know only once it is registered.
    const IS_ORDINARY: bool = false;

    fn park(buffer: B) -> Self
    where
        B: Sized;
    fn unpark(self) -> B
    where
        B: Sized;
    fn region(&self) -> Region;
    /// # Safety
    /// As long as the elements are borrowed, no operation is in flight with the buffer.
    unsafe fn items(&self) -> &[B::Item];
    /// # Safety
    /// As [`items`](Park::items).
    unsafe fn items_mut(&mut self) -> &mut [B::Item];
}

/// A list's memory, as raw parts.
#[derive(Debug)]
pub struct RawList<T> {
    start: NonNull<T>,
    len: usize,
    capacity: usize,
}

// SAFETY: it owns its elements as the `Vec` did that it was made of, which is `Send` if they are; and whatever has a
// datatype is.
unsafe impl<T: Equivalence> Send for RawList<T> {}

// SAFETY: `&self` gives shared references to the elements at most, which are `Sync` if they have a datatype.
unsafe impl<T: Equivalence> Sync for RawList<T> {}

impl<T> RawList<T> {
    pub(crate) fn of(list: Vec<T>) -> RawList<T> {
        let mut list = ManuallyDrop::new(list);
        let start = NonNull::from(list.as_mut_slice()).cast();
        RawList { start, len: list.len(), capacity: list.capacity() }
    }

    pub(crate) fn into_list(self) -> Vec<T> {
        let raw = ManuallyDrop::new(self);
        // SAFETY: the parts are those of a `Vec` that was given up in `of`; `self` is given up
        // here, so the new list is the only owner.
        unsafe { Vec::from_raw_parts(raw.start.as_ptr(), raw.len, raw.capacity) }
    }
}

impl<T> RawList<T> {
    /// A copy of the elements.
    ///
    /// # Safety
    /// No operation writes the elements.
    pub(crate) unsafe fn copy(&self) -> Vec<T>
    where
        T: Copy,
    {
        // SAFETY: the caller's promise.
        unsafe { self.slice() }.to_vec()
    }

    /// # Safety
    /// As [`Park::items`].
    unsafe fn slice(&self) -> &[T] {
        // SAFETY: the parts are those of a `Vec` of so many elements, which this owns; no operation writes them, as the
        // caller says, and `&self` keeps other callers from it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// # Safety
    /// As [`Park::items`].
    unsafe fn slice_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `slice`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for RawList<T> {
    fn drop(&mut self) {
        // SAFETY: as in `into_list`; this value's life ends here.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
    }
}

impl<T: Equivalence> OwnedBuffer for Vec<T> {
    type Item = T;
    type Parked = RawList<T>;

    fn element() -> ElementType {
        ElementType::of::<T>()
    }

    fn elements(&self) -> usize {
        self.len()
    }
}

impl<T: Equivalence> Park<Vec<T>> for RawList<T> {
    const IS_ORDINARY: bool = true;

    fn park(buffer: Vec<T>) -> RawList<T> {
        RawList::of(buffer)
    }

    fn unpark(self) -> Vec<T> {
        self.into_list()
    }

    fn region(&self) -> Region {
        region_of(self.start.as_ptr(), self.len)
    }

    unsafe fn items(&self) -> &[T] {
        // SAFETY: the caller's promise.
        unsafe { self.slice() }
    }

    unsafe fn items_mut(&mut self) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { self.slice_mut() }
    }
}

impl<T: Equivalence> OwnedBuffer for Box<[T]> {
    type Item = T;
    type Parked = RawList<T>;

    fn element() -> ElementType {
        ElementType::of::<T>()
    }

    fn elements(&self) -> usize {
        self.len()
    }
}

impl<T: Equivalence> Park<Box<[T]>> for RawList<T> {
    const IS_ORDINARY: bool = true;

    fn park(buffer: Box<[T]>) -> RawList<T> {
        RawList::of(buffer.into_vec())
    }

    fn unpark(self) -> Box<[T]> {
        // As long as its capacity, so nothing moves.
        self.into_list().into_boxed_slice()
    }

    fn region(&self) -> Region {
        region_of(self.start.as_ptr(), self.len)
    }

    unsafe fn items(&self) -> &[T] {
        // SAFETY: the caller's promise.
        unsafe { self.slice() }
    }

    unsafe fn items_mut(&mut self) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { self.slice_mut() }
    }
}

impl OwnedBuffer for SharedBuf {
    type Item = u8;
    type Parked = SharedBuf;

    fn element() -> ElementType {
        ElementType::of::<u8>()
    }

    fn elements(&self) -> usize {
        self.len()
    }
}

impl Park<SharedBuf> for SharedBuf {
    fn park(buffer: SharedBuf) -> SharedBuf {
        buffer
    }

    fn unpark(self) -> SharedBuf {
        self
    }

    fn region(&self) -> Region {
        SharedBuf::region(self)
    }

    unsafe fn items(&self) -> &[u8] {
        self
    }

    unsafe fn items_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// No buffer, where an operation could have one.
impl OwnedBuffer for () {
    type Item = u8;
    type Parked = ();

    fn element() -> ElementType {
        ElementType::of::<u8>()
    }

    fn elements(&self) -> usize {
        0
    }
}

impl Park<()> for () {
    fn park((): ()) {}

    fn unpark(self) {}

    fn region(&self) -> Region {
        region_of::<u8>(std::ptr::dangling(), 0)
    }

    unsafe fn items(&self) -> &[u8] {
        &[]
    }

    unsafe fn items_mut(&mut self) -> &mut [u8] {
        &mut []
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<B: OwnedBuffer + Clone + PartialEq + std::fmt::Debug>(buffer: B) {
        let parked = B::Parked::park(buffer.clone());
        assert_eq!(parked.region().len(), (buffer.elements() * size_of::<B::Item>()) as u64);
        assert_eq!(parked.unpark(), buffer);
        drop(B::Parked::park(buffer));
    }

    #[test]
    fn buffers_come_back_as_they_were() {
        let mut roomy = Vec::with_capacity(100);
        roomy.extend([1.0f64, 2.0]);
        round_trip(roomy);
        round_trip(Vec::<i32>::new());
        round_trip(vec![1u8, 2, 3].into_boxed_slice());
        round_trip(Vec::<u8>::new().into_boxed_slice());
    }
}
