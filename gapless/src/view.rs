//! Views: borrowed memory and the layout of a message in it.
//!
//! A view is checked once, when it is made: every byte that its layout touches lies inside the borrowed memory. So
//! calls that take a view cannot read or write anything else. Whether a layout fits the elements is `gapless_dtype`'s to say.

mod buffers;
#[cfg(feature = "ndarray")]
mod ndarray;
mod pages;
mod pointer;

pub(crate) use buffers::{Plain, PlainMut};
pub use buffers::{RecvBuffer, SendBuffer};
pub use pages::DeviceIndices;
pub(crate) use pages::pages_in;
pub(crate) use pointer::detect_memory_of;
pub use pointer::{check_kinds, detect_space, in_space, space_of};

use crate::error::Error;
use crate::shared_buf::SharedBuf;
use gapless_dtype::{AnyBits, Buffer, BufferMut, ElementType, Equivalence, Layout, Spread};
use gapless_engine::Typed;
use gapless_mem::{Region, Space};
use std::marker::PhantomData;

/// Memory of `len` elements as a region of bytes.
#[inline]
pub(crate) fn region_of<T>(start: *const T, len: usize) -> Region {
    let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
    Region::new(Space::Host, start.expose_provenance() as u64, 0, bytes)
}

/// All elements of a region.
#[inline]
pub(crate) fn all_of(region: Region, count: usize, element: ElementType) -> Typed {
    if element.is_byte() {
        // Most programs use these as bytes: they match everything of their size.
        return Typed::contiguous(region);
    }
    Typed::elements(region, element.layout(), count as u64)
        .expect("elements lie in memory that is as long as they are")
}

/// `count` instances of a layout in memory of such elements; displacement 0 is `origin` elements into it.
#[inline]
pub(crate) fn typed_in(
    region: Region,
    element: ElementType,
    origin: u64,
    layout: &Layout,
    count: u64,
) -> Result<Typed, Error> {
    // So far outside that no region reaches there.
    let origin = origin.saturating_mul(element.bytes());
    let typed = Typed::new(region, origin, layout, count)?;
    element.check(layout, count)?;
    Ok(typed)
}

/// The elements of a buffer, by its parts and what of them is spread.
#[inline]
fn elements(
    (start, count, element): (*const u8, usize, ElementType),
    spread: Option<Spread>,
) -> Typed {
    // Fits: so many elements are in memory.
    let bytes = count * usize::try_from(element.bytes()).unwrap_or(0);
    let region = region_of(start, bytes);
    match spread {
        None => all_of(region, count, element),
        Some(Spread { origin_bytes, layout, count }) => {
            Typed::new(region, origin_bytes, &layout, count)
                .expect("the elements lie inside their memory, and are fewer than 2^63 bytes")
        }
    }
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
    pub fn of<T: Equivalence>(slice: &'a [T]) -> View<'a> {
        View::from(slice)
    }

    /// `count` instances of `layout` in a slice; displacement 0 is `origin` *elements* into it.
    ///
    /// The layout's basic types are the slice's: whatever C calls them, of the same kind, size and alignment. A complex
    /// number counts as its two parts. `MPI_BYTE` fits every slice of numbers, and every layout fits a slice of `u8`.
    /// A layout in a slice of structs touches none of their padding; unless it is the struct's own, finding that out
    /// takes time in proportion to its blocks.
    ///
    /// # Errors
    /// The instances reach outside the slice, or their bytes overflow 64 bits; [`Error::Fit`].
    pub fn typed<T: Equivalence>(
        slice: &'a [T],
        origin: u64,
        layout: &Layout,
        count: u64,
    ) -> Result<View<'a>, Error> {
        let region = region_of(slice.as_ptr(), slice.len());
        let typed = typed_in(region, ElementType::of::<T>(), origin, layout, count)?;
        Ok(View { typed, memory: PhantomData })
    }

    /// `count` instances of `layout` in memory of any space that the borrow checker does not know: a device's, for
    /// instance. Displacement 0 is `origin_bytes` into it.
    ///
    /// # Safety
    /// For all of `'a`, `region` describes memory that is valid for reads by whatever engine serves
    /// its space, and that nothing writes but work that the send comes
    /// [after](crate::Scope::isend_after). Memory of a device is [invalidated](crate::World::invalidate)
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
    pub fn of<T: AnyBits>(slice: &'a mut [T]) -> ViewMut<'a> {
        ViewMut::from(slice)
    }

    /// `count` instances of `layout` in a slice, as for [`View::typed`]. A receive refuses instances that name a byte
    /// twice ([`PmlError::OverlappingReceive`](crate::PmlError::OverlappingReceive)).
    ///
    /// # Errors
    /// As [`View::typed`].
    pub fn typed<T: AnyBits>(
        slice: &'a mut [T],
        origin: u64,
        layout: &Layout,
        count: u64,
    ) -> Result<ViewMut<'a>, Error> {
        let region = region_of(slice.as_mut_ptr(), slice.len());
        let typed = typed_in(region, ElementType::of::<T>(), origin, layout, count)?;
        Ok(ViewMut { typed, memory: PhantomData })
    }

    /// As [`View::of_region`], to be written.
    ///
    /// # Safety
    /// For all of `'a`, `region` describes memory that is valid for reads and writes by whatever
    /// engine serves its space, and that nothing else touches. Memory of a device is
    /// [invalidated](crate::World::invalidate) before it is freed, as for [`View::of_region`].
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

impl<'a, B: Buffer + ?Sized> From<&'a B> for View<'a> {
    #[inline]
    fn from(buffer: &'a B) -> View<'a> {
        View { typed: elements(buffer.parts(), buffer.spread()), memory: PhantomData }
    }
}

impl<'a> From<&'a SharedBuf> for View<'a> {
    #[inline]
    fn from(memory: &'a SharedBuf) -> View<'a> {
        View::of::<u8>(memory)
    }
}

impl<'a, B: BufferMut + ?Sized> From<&'a mut B> for ViewMut<'a> {
    #[inline]
    fn from(buffer: &'a mut B) -> ViewMut<'a> {
        let (start, count, element) = buffer.parts_mut();
        let typed = elements((start.cast_const(), count, element), buffer.spread());
        ViewMut { typed, memory: PhantomData }
    }
}

impl<'a> From<&'a mut SharedBuf> for ViewMut<'a> {
    #[inline]
    fn from(memory: &'a mut SharedBuf) -> ViewMut<'a> {
        ViewMut::of::<u8>(memory)
    }
}

#[cfg(test)]
mod tests;
