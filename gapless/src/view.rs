//! Views: borrowed memory and the layout of a message in it.
//!
//! A view is checked once, when it is made: every byte that its layout touches lies inside the borrowed memory. So
//! calls that take a view cannot read or write anything else. `fit.rs` checks that a layout and the elements of the
//! memory have the same types.

mod fit;

pub(crate) use fit::typed_in;

use crate::error::Error;
use crate::shared_buf::SharedBuf;
use gapless_dtype::{Datatype, Layout, Primitive, Scalar};
use gapless_engine::Typed;
use gapless_mem::{Region, Space};
use half::{bf16, f16};
use num_complex::Complex;
use std::marker::PhantomData;
use std::sync::OnceLock;

mod sealed {
    pub trait Sealed {}
}

/// A number that can be sent from and received into slices: it has a basic type, no padding, and
/// every pattern of bits is one of its values (so `bool` is none).
pub trait Element: Scalar + Send + Sync + sealed::Sealed + 'static {}

macro_rules! elements {
    ($($rust:ty),* $(,)?) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {}
        )*
    };
}

elements! {
    i8, i16, i32, i64, u8, u16, u32, u64, isize, f16, bf16, f32, f64, Complex<f32>, Complex<f64>,
}

/// The committed layout of one element.
pub(crate) fn element_layout(primitive: Primitive) -> &'static Layout {
    static LAYOUTS: [OnceLock<Layout>; 256] = [const { OnceLock::new() }; 256];
    LAYOUTS[usize::from(primitive as u8)].get_or_init(|| {
        Datatype::from(primitive).commit().expect("a basic type commits: it has one run")
    })
}

/// Memory of `len` elements as a region of bytes.
#[inline]
pub(crate) fn region_of<T>(start: *const T, len: usize) -> Region {
    let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
    Region::new(Space::Host, start.expose_provenance() as u64, 0, bytes)
}

#[inline]
fn elements<T: Element>(region: Region, len: usize) -> Typed {
    if T::PRIMITIVE == Primitive::Uint8 {
        // Most programs use these as bytes: they match everything of their size.
        return Typed::contiguous(region);
    }
    Typed::new(region, 0, element_layout(T::PRIMITIVE), len as u64)
        .expect("a slice's elements lie in the slice")
}

/// The source of a message: borrowed memory, and `count` instances of a layout in it.
///
/// ```
/// use gapless::{Datatype, Primitive, View};
///
/// // The second column of a row-major 3 × 4 matrix.
/// let matrix = [0.0f64; 12];
/// let column = Datatype::vector(3, 1, 4, &Primitive::Double.into())?.commit()?;
/// let view = View::typed(&matrix, 1, &column, 1)?; // displacement 0 is at element 1
/// assert_eq!(view.packed_bytes(), 24);
/// # Ok::<(), gapless::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct View<'a> {
    pub(crate) typed: Typed,
    memory: PhantomData<&'a [u8]>,
}

/// The destination of a message: exclusively borrowed memory, and `count` instances of a layout in it. Bytes between
/// the layout's blocks are not touched.
#[derive(Debug)]
pub struct ViewMut<'a> {
    pub(crate) typed: Typed,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> View<'a> {
    /// All elements of a slice. `u8` stands for bytes (`MPI_BYTE`), which match everything of their
    /// size; other elements match their own type.
    #[must_use]
    #[inline]
    pub fn of<T: Element>(slice: &'a [T]) -> View<'a> {
        let typed = elements::<T>(region_of(slice.as_ptr(), slice.len()), slice.len());
        View { typed, memory: PhantomData }
    }

    /// `count` instances of `layout` in a slice; displacement 0 is `origin` *elements* into it.
    ///
    /// The layout's basic types are the slice's: whatever C calls them, of the same kind, size and alignment. A complex
    /// number counts as its two parts. `MPI_BYTE` fits every slice, and every layout fits a slice of `u8`.
    ///
    /// # Errors
    /// The instances reach outside the slice, or their bytes overflow 64 bits; [`Error::ElementType`];
    /// [`Error::Misaligned`] (not found if the layout also has `MPI_BYTE`).
    pub fn typed<T: Element>(
        slice: &'a [T],
        origin: u64,
        layout: &Layout,
        count: u64,
    ) -> Result<View<'a>, Error> {
        let region = region_of(slice.as_ptr(), slice.len());
        let typed = typed_in(region, T::PRIMITIVE, origin, layout, count)?;
        Ok(View { typed, memory: PhantomData })
    }

    /// `count` instances of `layout` in memory of any space that the borrow checker does not know: a device's, for
    /// instance. Displacement 0 is `origin_bytes` into it.
    ///
    /// # Safety
    /// For all of `'a`, `region` describes memory that is valid for reads by whatever engine serves
    /// its space, and that nothing writes but work that the send comes
    /// [after](crate::Scope::isend_after). Memory of a device is [withdrawn](crate::World::withdraw)
    /// before it is freed, unless [`Config`](crate::Config) says that it is not shared.
    ///
    /// # Errors
    /// The instances reach outside the region, or their bytes overflow 64 bits.
    pub unsafe fn of_region(
        region: Region,
        origin_bytes: u64,
        layout: &Layout,
        count: u64,
    ) -> Result<View<'a>, Error> {
        Ok(View { typed: Typed::new(region, origin_bytes, layout, count)?, memory: PhantomData })
    }

    /// A view of memory that is borrowed already.
    ///
    /// # Safety
    /// For all of `'a` the memory that `typed` describes is valid for reads, and nothing writes it.
    pub(crate) unsafe fn of_typed(typed: Typed) -> View<'a> {
        View { typed, memory: PhantomData }
    }

    /// Bytes of the message.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        self.typed.packed_bytes()
    }
}

impl<'a> ViewMut<'a> {
    /// All elements of a slice; see [`View::of`].
    #[must_use]
    #[inline]
    pub fn of<T: Element>(slice: &'a mut [T]) -> ViewMut<'a> {
        let typed = elements::<T>(region_of(slice.as_mut_ptr(), slice.len()), slice.len());
        ViewMut { typed, memory: PhantomData }
    }

    /// `count` instances of `layout` in a slice, as for [`View::typed`]. A receive refuses instances that name a byte
    /// twice ([`PmlError::OverlappingReceive`](crate::PmlError::OverlappingReceive)).
    ///
    /// # Errors
    /// As [`View::typed`].
    pub fn typed<T: Element>(
        slice: &'a mut [T],
        origin: u64,
        layout: &Layout,
        count: u64,
    ) -> Result<ViewMut<'a>, Error> {
        let region = region_of(slice.as_mut_ptr(), slice.len());
        let typed = typed_in(region, T::PRIMITIVE, origin, layout, count)?;
        Ok(ViewMut { typed, memory: PhantomData })
    }

    /// As [`View::of_region`], to be written.
    ///
    /// # Safety
    /// For all of `'a`, `region` describes memory that is valid for reads and writes by whatever
    /// engine serves its space, and that nothing else touches. Memory of a device is
    /// [withdrawn](crate::World::withdraw) before it is freed, as for [`View::of_region`].
    ///
    /// # Errors
    /// The instances reach outside the region, or their bytes overflow 64 bits.
    pub unsafe fn of_region(
        region: Region,
        origin_bytes: u64,
        layout: &Layout,
        count: u64,
    ) -> Result<ViewMut<'a>, Error> {
        Ok(ViewMut { typed: Typed::new(region, origin_bytes, layout, count)?, memory: PhantomData })
    }

    /// A view of memory that is borrowed already.
    ///
    /// # Safety
    /// For all of `'a` the memory that `typed` describes is valid for reads and writes, and nothing else uses it.
    pub(crate) unsafe fn of_typed(typed: Typed) -> ViewMut<'a> {
        ViewMut { typed, memory: PhantomData }
    }

    /// Bytes that a message can have at most.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        self.typed.packed_bytes()
    }

    /// The same view for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { typed: self.typed.clone(), memory: PhantomData }
    }
}

impl<'a, T: Element> From<&'a [T]> for View<'a> {
    #[inline]
    fn from(slice: &'a [T]) -> View<'a> {
        View::of(slice)
    }
}

impl<'a, T: Element, const N: usize> From<&'a [T; N]> for View<'a> {
    #[inline]
    fn from(array: &'a [T; N]) -> View<'a> {
        View::of(array)
    }
}

impl<'a, T: Element> From<&'a Vec<T>> for View<'a> {
    #[inline]
    fn from(list: &'a Vec<T>) -> View<'a> {
        View::of(list)
    }
}

impl<'a> From<&'a SharedBuf> for View<'a> {
    #[inline]
    fn from(memory: &'a SharedBuf) -> View<'a> {
        View::of::<u8>(memory)
    }
}

impl<'a> From<&View<'a>> for View<'a> {
    #[inline]
    fn from(view: &View<'a>) -> View<'a> {
        view.clone()
    }
}

impl<'a, T: Element> From<&'a mut [T]> for ViewMut<'a> {
    #[inline]
    fn from(slice: &'a mut [T]) -> ViewMut<'a> {
        ViewMut::of(slice)
    }
}

impl<'a, T: Element, const N: usize> From<&'a mut [T; N]> for ViewMut<'a> {
    #[inline]
    fn from(array: &'a mut [T; N]) -> ViewMut<'a> {
        ViewMut::of(array)
    }
}

impl<'a, T: Element> From<&'a mut Vec<T>> for ViewMut<'a> {
    #[inline]
    fn from(list: &'a mut Vec<T>) -> ViewMut<'a> {
        ViewMut::of(list)
    }
}

impl<'a> From<&'a mut SharedBuf> for ViewMut<'a> {
    #[inline]
    fn from(memory: &'a mut SharedBuf) -> ViewMut<'a> {
        ViewMut::of::<u8>(memory)
    }
}

impl<'a> From<&'a mut ViewMut<'_>> for ViewMut<'a> {
    #[inline]
    fn from(view: &'a mut ViewMut<'_>) -> ViewMut<'a> {
        view.reborrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_their_elements() {
        let list = [1.0f64; 5];
        assert_eq!(View::of(&list).packed_bytes(), 40);
        let layout = View::from(&list).typed.layout().clone();
        assert_eq!(&layout, element_layout(Primitive::Double));
        assert_eq!(View::of::<i32>(&[]).packed_bytes(), 0);
        let mut bytes = vec![0u8; 3];
        let mut view = ViewMut::from(&mut bytes);
        assert_eq!(view.reborrow().packed_bytes(), 3);
        assert_eq!(ViewMut::from(&mut view).packed_bytes(), 3);
    }

    #[test]
    fn a_layout_must_fit_the_slice() {
        let mut list = [0i32; 8];
        let every_other =
            Datatype::vector(4, 1, 2, &Primitive::Int.into()).unwrap().commit().unwrap();
        assert!(View::typed(&list, 1, &every_other, 1).is_ok());
        assert!(View::typed(&list, 2, &every_other, 1).is_err());
        assert!(ViewMut::typed(&mut list, 0, &every_other, 2).is_err());
        assert!(View::typed(&list, u64::MAX, &every_other, 1).is_err());
        assert!(View::typed(&list, 0, &every_other, u64::MAX).is_err());
    }
}
