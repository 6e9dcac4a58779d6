//! Where an operation's data lies at the target, and whether that fits what the origin has.

use crate::error::WindowError;
use gapless_dtype::{Layout, Pages};
use gapless_engine::{EngineError, Typed, index_bytes};
use gapless_mem::Region;
use std::ops::Range;

/// An access to the memory of one target that was checked against the window: rank, layout and notice.
#[derive(Clone, Debug)]
pub struct Access {
    pub(crate) rank: u32,
    pub(crate) target: Typed,
    /// The counter of the target that goes up when a put or get is done.
    pub(crate) notice: Option<u32>,
}

impl Access {
    /// Length of the packed stream.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        self.target.packed_bytes()
    }
}

/// Where in the target's window, and how what is accessed lies there.
#[derive(Clone, Debug)]
pub struct Place {
    pub(crate) displacement: u64,
    pub(crate) shape: Option<PlaceShape>,
}

/// How what is accessed lies at the target.
#[derive(Clone, Debug)]
pub(crate) enum PlaceShape {
    /// So many instances of a layout.
    Layout(Layout, u64),
    /// Pages at indices in memory of the host.
    Pages(Pages),
    /// Pages at indices in memory of a device.
    DevicePages { page: Layout, stride: u64, indices: Region, wide: bool },
}

impl PlaceShape {
    /// In a region, from `origin` on.
    pub(crate) fn in_region(&self, region: Region, origin: u64) -> Result<Typed, EngineError> {
        match self {
            PlaceShape::Layout(layout, count) => Typed::new(region, origin, layout, *count),
            PlaceShape::Pages(pages) => Typed::pages(region, origin, pages),
            PlaceShape::DevicePages { page, stride, indices, wide } => {
                Typed::device_pages(region, origin, page, *stride, (*indices, *wide))
            }
        }
    }

    /// The layout of an instance, or of a page, and how many.
    pub(crate) fn elements(&self) -> (&Layout, u64) {
        match self {
            PlaceShape::Layout(layout, count) => (layout, *count),
            PlaceShape::Pages(pages) => (pages.page(), pages.len()),
            PlaceShape::DevicePages { page, indices, wide, .. } => {
                (page, indices.len() / index_bytes::<u64>(*wide))
            }
        }
    }

    /// Whether some byte is named twice; that an index occurs twice does not count.
    pub(crate) fn overlaps(&self) -> bool {
        match self {
            PlaceShape::Layout(layout, count) => layout.overlaps(*count),
            PlaceShape::Pages(_) | PlaceShape::DevicePages { .. } => self.elements().0.overlaps(1),
        }
    }
}

impl Place {
    /// At a displacement, in units of the target, laid out as at the origin.
    #[must_use]
    #[inline]
    pub fn at(displacement: u64) -> Place {
        Place { displacement, shape: None }
    }

    /// The displacement, if what is accessed lies there as at the origin.
    #[must_use]
    #[inline]
    pub fn plain(&self) -> Option<u64> {
        self.shape.is_none().then_some(self.displacement)
    }

    /// In units of the target.
    #[must_use]
    #[inline]
    pub fn displacement(&self) -> u64 {
        self.displacement
    }

    /// `count` instances of a layout, whose displacement 0 is at a displacement in units of the target.
    #[must_use]
    pub fn typed(displacement: u64, layout: &Layout, count: u64) -> Place {
        Place { displacement, shape: Some(PlaceShape::Layout(layout.clone(), count)) }
    }

    /// Pages, whose displacement 0 is at a displacement in units of the target. What is put into bytes that two pages
    /// share is undefined there; elements that two pages share are not accumulated into ([`WindowError::Overlapping`]).
    ///
    /// Memory that this process maps is accessed page by page. For any other rank the list becomes an ordinary layout,
    /// and travels.
    #[must_use]
    pub fn pages(displacement: u64, pages: &Pages) -> Place {
        Place { displacement, shape: Some(PlaceShape::Pages(pages.clone())) }
    }

    /// As [`pages`](Place::pages), at indices that lie in memory of a device of this process, of 64 bits each if
    /// `wide`, else of 32: for puts and gets of memory that this device reaches. It checks them: no byte of a page
    /// outside the window is touched. The operation's error,
    /// [`DeviceError::PageOutside`](gapless_mem::DeviceError::PageOutside), names the position of the first such index;
    /// pages inside may have been accessed.
    ///
    /// # Safety
    /// While an operation at this place is under way, `indices` describes memory that the device may read. Whoever
    /// changes it meanwhile changes which pages are accessed.
    #[must_use]
    pub unsafe fn device_pages(
        displacement: u64,
        page: &Layout,
        stride: u64,
        (indices, wide): (Region, bool),
    ) -> Place {
        let page = page.clone();
        Place { displacement, shape: Some(PlaceShape::DevicePages { page, stride, indices, wide }) }
    }
}

impl From<u64> for Place {
    #[inline]
    fn from(displacement: u64) -> Place {
        Place::at(displacement)
    }
}

impl From<u32> for Place {
    #[inline]
    fn from(displacement: u32) -> Place {
        Place::at(u64::from(displacement))
    }
}

impl From<usize> for Place {
    #[inline]
    fn from(displacement: usize) -> Place {
        Place::at(displacement as u64)
    }
}

/// For literals. What is negative lies in no window.
impl From<i32> for Place {
    #[inline]
    fn from(displacement: i32) -> Place {
        Place::at(u64::try_from(displacement).unwrap_or(u64::MAX))
    }
}

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// It is read.
    Read,
    /// It is written.
    Write,
    /// It is read and written by elements.
    Change,
}

/// Whether the target has the elements that the origin has. Bytes stand for anything.
pub(crate) fn check_types(origin: &Typed, layout: &Layout, count: u64) -> Result<(), WindowError> {
    let bytes = layout.size().checked_mul(count);
    if bytes != Some(origin.packed_bytes()) {
        let bytes = bytes.map_or_else(|| "too many".to_owned(), |bytes| bytes.to_string());
        let why = format!("{} bytes at the origin, {bytes} at the target", origin.packed_bytes());
        return Err(WindowError::Mismatch { why });
    }
    if origin.layout().id() == layout.id() {
        return Ok(());
    }
    let sent = origin.layout().signature().digest(origin.count());
    let fits = layout.signature().accepts_prefix(count, &sent);
    fits.map_err(|error| WindowError::Mismatch { why: error.to_string() })
}

/// The part of a buffer that a range of a packed stream is, which begins with the buffer.
pub(crate) fn index(range: &Range<u64>) -> Result<Range<usize>, WindowError> {
    let end = length(&(0..range.end))?;
    Ok(end - length(range)?..end)
}

pub(crate) fn length(range: &Range<u64>) -> Result<usize, WindowError> {
    let len = range.end - range.start;
    let region_len = len;
    usize::try_from(len).map_err(|_| {
        let space = gapless_mem::Space::Host;
        let error = gapless_mem::OutOfRange { offset: range.start, len, region_len, space };
        EngineError::from(error).into()
    })
}
