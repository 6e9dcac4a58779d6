//! Buffers: memory of elements that have a datatype, as programs have it: a value, an array, a slice, a `Vec`.

#[cfg(feature = "ndarray")]
mod ndarray;

use crate::equivalence::{AnyBits, Equivalence};
use crate::fit::ElementType;
use crate::layout::Layout;

mod sealed {
    pub trait Sealed {}
}

/// Elements that can be sent: a value of a type that has [`Equivalence`], or an array, a slice or a `Vec` of them; with
/// feature `ndarray` also an array or a view of that crate. Sealed: code that reads memory believes it.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot be sent",
    label = "not a value, an array, a slice or a `Vec` of a type that has a datatype",
    note = "the elements must have `gapless::Equivalence`: numbers do, a struct gets it by \
            `#[derive(gapless::Datatype)]` and `#[repr(C)]`"
)]
pub trait Buffer: sealed::Sealed {
    /// The elements' address, how many there are, and of what type. If they are [spread](Buffer::spread), there may be
    /// others between them.
    #[doc(hidden)]
    fn parts(&self) -> (*const u8, usize, ElementType);

    /// Which elements of that memory, in which order, if not all of them one behind the other.
    #[doc(hidden)]
    #[inline]
    fn spread(&self) -> Option<Spread> {
        None
    }
}

/// Elements that can be received into, likewise, of a type that has [`AnyBits`].
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot be received into",
    label = "not a value, an array, a slice or a `Vec` of a type whose every pattern of bits is a value",
    note = "the elements must have `gapless::AnyBits`: numbers do, a struct gets it by \
            `#[derive(gapless::Datatype)]` and `#[repr(C)]` if all its fields have it",
    note = "receive a `bool` as `u8`, a `char` as `u32`, an enum as its integer; or use `recv_checked`"
)]
pub trait BufferMut: Buffer {
    /// As [`Buffer::parts`], to be written.
    #[doc(hidden)]
    fn parts_mut(&mut self) -> (*mut u8, usize, ElementType);
}

/// Elements of a contiguous span of memory that are not one behind the other: `count` instances of a layout.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Spread {
    /// Bytes into the memory where displacement 0 is.
    pub origin_bytes: u64,
    /// The instances lie inside the memory, and describe elements of it.
    pub layout: Layout,
    /// How many.
    pub count: u64,
}

impl<T: Equivalence> sealed::Sealed for T {}
impl<T: Equivalence> sealed::Sealed for [T] {}
impl<T: Equivalence> sealed::Sealed for Vec<T> {}

impl<T: Equivalence> Buffer for T {
    #[inline]
    fn parts(&self) -> (*const u8, usize, ElementType) {
        let (count, element) = T::as_elements();
        (std::ptr::from_ref(self).cast(), count, element)
    }
}

impl<T: AnyBits> BufferMut for T {
    #[inline]
    fn parts_mut(&mut self) -> (*mut u8, usize, ElementType) {
        let (count, element) = T::as_elements();
        (std::ptr::from_mut(self).cast(), count, element)
    }
}

impl<T: Equivalence> Buffer for [T] {
    #[inline]
    fn parts(&self) -> (*const u8, usize, ElementType) {
        (self.as_ptr().cast(), self.len(), ElementType::of::<T>())
    }
}

impl<T: AnyBits> BufferMut for [T] {
    #[inline]
    fn parts_mut(&mut self) -> (*mut u8, usize, ElementType) {
        (self.as_mut_ptr().cast(), self.len(), ElementType::of::<T>())
    }
}

impl<T: Equivalence> Buffer for Vec<T> {
    #[inline]
    fn parts(&self) -> (*const u8, usize, ElementType) {
        self.as_slice().parts()
    }
}

impl<T: AnyBits> BufferMut for Vec<T> {
    #[inline]
    fn parts_mut(&mut self) -> (*mut u8, usize, ElementType) {
        self.as_mut_slice().parts_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(buffer: &(impl Buffer + ?Sized)) -> (usize, u64) {
        let (_, count, element) = buffer.parts();
        (count, element.bytes())
    }

    #[test]
    fn an_array_is_its_elements() {
        assert_eq!(shape(&1.5f64), (1, 8));
        assert_eq!(shape(&[1.5f64; 3]), (3, 8));
        assert_eq!(shape(&[[1u16; 3]; 2]), (2, 6));
        assert_eq!(shape(&vec![true; 5]), (5, 1));
        assert_eq!(shape(&['a'; 4][1..]), (3, 4));
        let mut numbers = [0i32; 7];
        let (start, count, _) = numbers.parts_mut();
        assert_eq!((start.addr(), count), (numbers.as_ptr().addr(), 7));
    }
}
