//! Views of pages: one layout, repeated at indices that are data.

use super::{View, ViewMut, region_of};
use crate::error::Error;
use gapless_dtype::{AnyBits, ElementType, Equivalence, Layout, Pages};
use gapless_engine::Typed;
use gapless_mem::Region;
use std::marker::PhantomData;

/// Indices of pages in memory of a device, without a sign, borrowed for `'a`. Made of any memory, or by
/// [`DeviceBuf::indices_u32`](crate::DeviceBuf::indices_u32) and its like.
///
/// They are read while the request that uses them is in flight, not before, and not after it has ended. Each is checked
/// where it is read: no byte of a page outside the memory is touched, whatever the index is. Such a message fails, at
/// its end, with [`DeviceError::PageOutside`](gapless_mem::DeviceError::PageOutside), which names the position; an
/// index in memory of the host is refused before
/// ([`EngineError::PageOutside`](gapless_engine::EngineError::PageOutside)). If indices change meanwhile, other pages
/// of the same memory are sent or received into, and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct DeviceIndices<'a> {
    region: Region,
    wide: bool,
    memory: PhantomData<&'a [u8]>,
}

impl DeviceIndices<'_> {
    /// All indices in a region: of 64 bits each if `wide`, else of 32.
    ///
    /// # Safety
    /// For all of `'a`, `region` describes memory that is valid for reads by whatever engine serves its space. Work of
    /// its device may write it meanwhile. It is [invalidated](crate::World::invalidate) before it is freed, as for
    /// [`View::of_region`]: devices of peers read it, too.
    #[must_use]
    pub unsafe fn of_region(region: Region, wide: bool) -> Self {
        DeviceIndices { region, wide, memory: PhantomData }
    }
}

/// Pages in memory of such elements; displacement 0 is `origin` elements into it.
pub(crate) fn pages_in(
    region: Region,
    element: ElementType,
    origin: u64,
    pages: &Pages,
) -> Result<Typed, Error> {
    let typed = Typed::pages(region, origin.saturating_mul(element.bytes()), pages)?;
    element.check_pages(pages.page(), pages.stride())?;
    Ok(typed)
}

fn device_pages(
    region: Region,
    origin_bytes: u64,
    (page, stride): (&Layout, u64),
    indices: DeviceIndices<'_>,
) -> Result<Typed, Error> {
    let indices = (indices.region, indices.wide);
    Ok(Typed::device_pages(region, origin_bytes, page, stride, indices)?)
}

impl<'a> View<'a> {
    /// Pages in a slice; displacement 0 is `origin` *elements* into it. A list that changes with every message needs no
    /// commit.
    ///
    /// The page fits the elements as [`View::typed`] says, and pages are whole elements apart: if these are numbers, a
    /// multiple of their alignment.
    ///
    /// ```
    /// use gapless::{Datatype, Equivalence, Pages, View};
    ///
    /// // Pages of four numbers, one after the other in a pool of 100.
    /// let pool = vec![0.0f32; 400];
    /// let page = Datatype::contiguous(4, &f32::datatype())?.commit()?;
    /// let view = View::pages(&pool, 0, &Pages::new(&page, 16, &[17u32, 3, 99][..])?)?;
    /// assert_eq!(view.packed_bytes(), 48);
    /// # Ok::<(), gapless::Error>(())
    /// ```
    ///
    /// # Errors
    /// An index whose page reaches outside the slice
    /// ([`EngineError::PageOutside`](gapless_engine::EngineError::PageOutside) names it and its position, in
    /// [`Error::Buffer`]; of [indices in memory of a device](DeviceIndices) the message's end tells); [`Error::Fit`].
    pub fn pages<T: Equivalence>(
        slice: &'a [T],
        origin: u64,
        pages: &Pages,
    ) -> Result<View<'a>, Error> {
        let region = region_of(slice.as_ptr(), slice.len());
        let typed = pages_in(region, ElementType::of::<T>(), origin, pages)?;
        Ok(View { typed, memory: PhantomData })
    }

    /// Pages in memory of any space that the borrow checker does not know. Displacement 0 is `origin_bytes` into it.
    ///
    /// # Safety
    /// As [`View::of_region`].
    ///
    /// # Errors
    /// A page reaches outside the region.
    pub unsafe fn pages_of_region(
        region: Region,
        origin_bytes: u64,
        pages: &Pages,
    ) -> Result<View<'a>, Error> {
        Ok(View { typed: Typed::pages(region, origin_bytes, pages)?, memory: PhantomData })
    }

    /// `page` at indices that lie in memory of a device, `stride` bytes from one index to the next; displacement 0 is
    /// `origin_bytes` into `region`. What the indices are is found out where they are read ([`DeviceIndices`]).
    ///
    /// Messages take such views, in memory that an engine of the indices' device reaches. Collectives, tasks, plans and
    /// [`Parts`](crate::Parts) have to know where their bytes lie, and refuse them or have no call for them.
    ///
    /// # Safety
    /// As [`View::of_region`].
    ///
    /// # Errors
    /// Not even one page lies inside the region; indices that the processor reaches ([`View::pages_of_region`] takes
    /// those), that are not aligned, or of an odd length; the pages' bytes overflow 63 bits. An index that leads
    /// outside is the message's error, at its end: [`DeviceError::PageOutside`](gapless_mem::DeviceError::PageOutside),
    /// not [`EngineError::PageOutside`](gapless_engine::EngineError::PageOutside).
    pub unsafe fn device_pages_of_region(
        region: Region,
        origin_bytes: u64,
        page: &Layout,
        stride: u64,
        indices: DeviceIndices<'a>,
    ) -> Result<View<'a>, Error> {
        let typed = device_pages(region, origin_bytes, (page, stride), indices)?;
        Ok(View { typed, memory: PhantomData })
    }
}

impl<'a> ViewMut<'a> {
    /// Pages in a slice, as for [`View::pages`]. Bytes that two pages share are undefined when the receive has ended,
    /// and no others: pages share bytes if an index occurs twice, or if the stride is shorter than the page. A page
    /// that names a byte twice is refused by the receive.
    ///
    /// # Errors
    /// As [`View::pages`].
    pub fn pages<T: AnyBits>(
        slice: &'a mut [T],
        origin: u64,
        pages: &Pages,
    ) -> Result<ViewMut<'a>, Error> {
        let region = region_of(slice.as_mut_ptr(), slice.len());
        let typed = pages_in(region, ElementType::of::<T>(), origin, pages)?;
        Ok(ViewMut { typed, memory: PhantomData })
    }

    /// As [`View::pages_of_region`], to be written.
    ///
    /// # Safety
    /// As [`ViewMut::of_region`].
    ///
    /// # Errors
    /// A page reaches outside the region.
    pub unsafe fn pages_of_region(
        region: Region,
        origin_bytes: u64,
        pages: &Pages,
    ) -> Result<ViewMut<'a>, Error> {
        Ok(ViewMut { typed: Typed::pages(region, origin_bytes, pages)?, memory: PhantomData })
    }

    /// As [`View::device_pages_of_region`], to be written.
    ///
    /// # Safety
    /// As [`ViewMut::of_region`], for all of `region`: any page of it may be written.
    ///
    /// # Errors
    /// As [`View::device_pages_of_region`].
    pub unsafe fn device_pages_of_region(
        region: Region,
        origin_bytes: u64,
        page: &Layout,
        stride: u64,
        indices: DeviceIndices<'a>,
    ) -> Result<ViewMut<'a>, Error> {
        let typed = device_pages(region, origin_bytes, (page, stride), indices)?;
        Ok(ViewMut { typed, memory: PhantomData })
    }
}

#[cfg(test)]
mod tests;
