//! A user's buffer as engines see it: a region, where displacement 0 is in it, a layout, a count.

use crate::EngineError;
use gapless_dtype::{Convertor, ConvertorError, Datatype, Layout, Pages, Primitive};
use gapless_mem::{Region, Space};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

mod pages;

pub use pages::{DevicePages, PagesOf, index_bytes};

/// `count` instances of a layout in a region. Made once, checked once: every byte that the
/// instances touch lies inside the region.
#[derive(Clone, Debug)]
pub struct Typed {
    region: Region,
    origin: u64,
    layout: KeptLayout,
    count: u64,
    packed_bytes: u64,
    /// Where in the region the packed stream lies as one contiguous span, if it does.
    contiguous_start: Option<u64>,
}

/// A layout. Counting who has one is a locked instruction each time, so those that everybody has are not counted.
#[derive(Clone, Debug)]
enum KeptLayout {
    Byte,
    Static(&'static Layout),
    Counted(Layout),
    Pages(Pages),
    DevicePages(Arc<DevicePages>),
}

/// The layout of one byte.
fn byte() -> &'static Layout {
    static BYTE: OnceLock<Layout> = OnceLock::new();
    BYTE.get_or_init(|| {
        Datatype::from(Primitive::Byte).commit().expect("a basic type commits: it has one run")
    })
}

/// Packed bytes of the instances and what they touch, where that takes no convertor to know.
#[inline]
fn plain_bounds(layout: &Layout, count: u64) -> Option<(u64, i64, i64)> {
    let packed = layout.size().checked_mul(count).filter(|bytes| (1..1 << 62).contains(bytes))?;
    let far = i64::try_from(count - 1).ok()?.checked_mul(layout.extent())?;
    let low = layout.true_lb().checked_add(far.min(0))?;
    let high = layout.true_ub().checked_add(far.max(0))?;
    Some((packed, low, high))
}

/// Where the instances lie in the region, if they are one run.
#[inline]
fn find_contiguous_start(origin: u64, layout: &Layout, count: u64) -> Option<u64> {
    // One run of all instances starts where the first instance does.
    let displacement = match layout.blocks_of(count)? {
        0 => 0,
        1 => layout.true_lb(),
        _ => return None,
    };
    u64::try_from(i128::from(origin) + i128::from(displacement)).ok()
}

/// Packed bytes of the instances, and where in a region of `len` bytes they lie as one span: all that they touch lies inside.
#[inline]
fn placed(
    len: u64,
    origin: u64,
    layout: &Layout,
    count: u64,
) -> Result<(u64, Option<u64>), EngineError> {
    // Most buffers are elements without gaps.
    if let Some(bytes) = layout.contiguous_bytes()
        && let Some(packed_bytes) = bytes.checked_mul(count).filter(|bytes| *bytes > 0)
        && origin.checked_add(packed_bytes).is_some_and(|end| end <= len)
    {
        return Ok((packed_bytes, Some(origin)));
    }
    placed_with_gaps(len, origin, layout, count)
}

/// The largest index whose page lies inside a region of `len` bytes.
fn last_page(len: u64, origin: u64, page: &Layout, stride: u64) -> Result<u64, EngineError> {
    let first = -i128::from(origin);
    let last = i128::from(len) + first;
    let (low, high) = (i128::from(page.true_lb()), i128::from(page.true_ub()));
    let room = u64::try_from(last - high).ok().filter(|_| low >= first);
    let room = room.ok_or(EngineError::OutsideBuffer { low, high, first, last })?;
    Ok(room.checked_div(stride).unwrap_or(u64::MAX))
}

/// The same of any instances.
fn placed_with_gaps(
    len: u64,
    origin: u64,
    layout: &Layout,
    count: u64,
) -> Result<(u64, Option<u64>), EngineError> {
    let (packed_bytes, bounds) = match plain_bounds(layout, count) {
        Some((packed_bytes, low, high)) => (packed_bytes, Some((low, high))),
        None => {
            let convertor = Convertor::new(layout, count)?;
            (convertor.packed_size(), convertor.bounds())
        }
    };
    if let Some((low, high)) = bounds {
        let (low, high) = (i128::from(low), i128::from(high));
        let (first, last) = (-i128::from(origin), i128::from(len) - i128::from(origin));
        if low < first || high > last {
            return Err(EngineError::OutsideBuffer { low, high, first, last });
        }
    }
    Ok((packed_bytes, find_contiguous_start(origin, layout, count)))
}

impl Typed {
    /// Describes `count` instances of `layout`; displacement 0 is `origin` bytes into `region`.
    ///
    /// # Errors
    /// The instances reach outside the region, or their bytes overflow 64 bits.
    #[inline]
    pub fn new(
        region: Region,
        origin: u64,
        layout: &Layout,
        count: u64,
    ) -> Result<Typed, EngineError> {
        let (packed_bytes, contiguous_start) = placed(region.len(), origin, layout, count)?;
        let layout = KeptLayout::Counted(layout.clone());
        Ok(Typed { region, origin, layout, count, packed_bytes, contiguous_start })
    }

    /// The lowest byte that `count` instances of `layout` touch, from displacement 0; 0 if they touch none.
    ///
    /// # Errors
    /// Their bytes overflow 64 bits.
    #[inline]
    pub fn lowest_byte(layout: &Layout, count: u64) -> Result<i64, EngineError> {
        match plain_bounds(layout, count) {
            Some((_, low, _)) => Ok(low),
            None => Ok(Convertor::new(layout, count)?.bounds().map_or(0, |(low, _)| low)),
        }
    }

    /// Describes `count` instances of `layout` by the address of displacement 0, in memory of `space` from there, or
    /// from the lowest byte that they touch before, to the last that they touch. Where a space has no addresses,
    /// `address` is the handle of a buffer, which nothing lies before.
    ///
    /// # Errors
    /// The instances reach outside the address space, or begin before the buffer; their bytes overflow 64 bits.
    #[inline]
    pub fn at(
        space: Space,
        address: u64,
        layout: &Layout,
        count: u64,
    ) -> Result<Typed, EngineError> {
        let (low, high) = match plain_bounds(layout, count) {
            Some((_, low, high)) => (low, high),
            None => Convertor::new(layout, count)?.bounds().unwrap_or((0, 0)),
        };
        let outside = || EngineError::OutsideBuffer {
            low: low.into(),
            high: high.into(),
            first: if space.has_addresses() { -i128::from(address) } else { 0 },
            last: i128::from(u64::MAX) - i128::from(address),
        };
        let before = low.min(0).unsigned_abs();
        let fits = address.checked_add_signed(high).is_some();
        let start = match space.has_addresses() {
            true => address.checked_sub(before).filter(|_| fits).ok_or_else(outside)?,
            false => (before == 0).then_some(address).ok_or_else(outside)?,
        };
        let len = before.checked_add_signed(high.max(0)).ok_or_else(outside)?;
        Typed::new(Region::new(space, start, 0, len), before, layout, count)
    }

    /// `count` instances of a layout that lives for ever, such as a basic type's, from the start of `region` on.
    ///
    /// # Errors
    /// As for [`new`](Typed::new).
    #[inline]
    pub fn elements(
        region: Region,
        layout: &'static Layout,
        count: u64,
    ) -> Result<Typed, EngineError> {
        let (packed_bytes, contiguous_start) = placed(region.len(), 0, layout, count)?;
        let layout = KeptLayout::Static(layout);
        Ok(Typed { region, origin: 0, layout, count, packed_bytes, contiguous_start })
    }

    /// The same, by the address of the first. `None`: they have gaps, or are too many.
    #[must_use]
    #[inline]
    pub fn elements_at(
        space: Space,
        address: u64,
        layout: &'static Layout,
        count: u64,
    ) -> Option<Typed> {
        let packed_bytes = layout.contiguous_bytes()?.checked_mul(count)?;
        let (region, layout) =
            (Region::new(space, address, 0, packed_bytes), KeptLayout::Static(layout));
        Some(Typed { region, origin: 0, layout, count, packed_bytes, contiguous_start: Some(0) })
    }

    /// The whole of a region, as bytes without gaps.
    #[must_use]
    #[inline]
    pub fn contiguous(region: Region) -> Typed {
        let (count, packed_bytes) = (region.len(), region.len());
        Typed {
            region,
            origin: 0,
            layout: KeptLayout::Byte,
            count,
            packed_bytes,
            contiguous_start: Some(0),
        }
    }

    /// Describes pages at indices in memory of the host; displacement 0 is `origin` bytes into `region`.
    ///
    /// # Errors
    /// A page reaches outside the region; the error names its index.
    pub fn pages(region: Region, origin: u64, pages: &Pages) -> Result<Typed, EngineError> {
        let packed_bytes = pages.packed_size();
        if let Some((low, high)) = pages.bounds() {
            let room = i128::from(region.len()) - i128::from(origin);
            if i128::from(low) < -i128::from(origin) || i128::from(high) > room {
                let last = last_page(region.len(), origin, pages.page(), pages.stride());
                let outside = match last {
                    Ok(last) => pages.indices().first_above(last).map(|it| (it, last)),
                    Err(error) => return Err(error),
                };
                let Some(((position, index), last)) = outside else {
                    let (low, high) = (i128::from(low), i128::from(high));
                    let first = -i128::from(origin);
                    return Err(EngineError::OutsideBuffer { low, high, first, last: room });
                };
                return Err(EngineError::PageOutside { position, index, last });
            }
        }
        let contiguous_start = match (packed_bytes, pages.len()) {
            (0, _) => Some(origin),
            // One page may be one run.
            (_, 1) if pages.page().blocks() == 1 && pages.page().true_lb() == 0 => {
                pages.bounds().and_then(|(low, _)| origin.checked_add_signed(low))
            }
            _ => None,
        };
        let layout = KeptLayout::Pages(pages.clone());
        Ok(Typed { region, origin, count: pages.len(), layout, packed_bytes, contiguous_start })
    }

    /// Describes pages at indices in memory of a device, of 64 bits each if `wide`, else of 32, without a sign;
    /// displacement 0 is `origin` bytes into `region`. The indices need not be there before the work that reads them
    /// begins, nor stay after it.
    ///
    /// # Errors
    /// Indices that the processor reaches, which [`pages`](Typed::pages) takes, or that are no whole number or not
    /// aligned; no page lies inside the region; the pages' bytes overflow 63 bits.
    pub fn device_pages(
        region: Region,
        origin: u64,
        page: &Layout,
        stride: u64,
        (indices, wide): (Region, bool),
    ) -> Result<Typed, EngineError> {
        let width = index_bytes(wide);
        let place =
            if indices.space().has_addresses() { indices.start() } else { indices.offset() };
        let aligned = indices.len().is_multiple_of(width) && place.is_multiple_of(width);
        if indices.space().cpu_accessible() || !aligned {
            return Err(EngineError::IndexMemory { indices: Box::new(indices), width });
        }
        let count = indices.len() / width;
        let packed_bytes = u128::from(page.size()) * u128::from(count);
        let packed_bytes = i64::try_from(packed_bytes).map_err(|_| ConvertorError::Overflow {
            count,
            size: page.size(),
            extent: page.extent(),
        })?;
        let packed_bytes = packed_bytes.cast_unsigned();
        let last = match packed_bytes {
            0 => 0,
            _ => last_page(region.len(), origin, page, stride)?,
        };
        let page = page.clone();
        let layout = Arc::new(DevicePages { page, stride, indices, wide, last });
        let layout = KeptLayout::DevicePages(layout);
        let contiguous_start = (packed_bytes == 0).then_some(origin);
        Ok(Typed { region, origin, layout, count, packed_bytes, contiguous_start })
    }

    /// The pages that these instances are, if their places are indices.
    #[must_use]
    #[inline]
    pub fn as_pages(&self) -> Option<PagesOf<'_>> {
        match &self.layout {
            KeptLayout::Pages(pages) => Some(PagesOf::Host(pages)),
            KeptLayout::DevicePages(pages) => Some(PagesOf::Device(pages)),
            KeptLayout::Byte | KeptLayout::Static(_) | KeptLayout::Counted(_) => None,
        }
    }

    /// Whether these are pages whose indices lie in memory of a device, which alone reads them.
    #[must_use]
    #[inline]
    pub fn has_device_indices(&self) -> bool {
        matches!(self.layout, KeptLayout::DevicePages(_))
    }

    /// The same instances in another region, with displacement 0 at `origin`, checked as when this was made.
    ///
    /// # Errors
    /// As for what made it.
    pub fn moved(&self, region: Region, origin: u64) -> Result<Typed, EngineError> {
        match &self.layout {
            KeptLayout::Pages(pages) => Typed::pages(region, origin, pages),
            KeptLayout::DevicePages(pages) => {
                let indices = (pages.indices, pages.wide);
                Typed::device_pages(region, origin, &pages.page, pages.stride, indices)
            }
            _ => Typed::new(region, origin, self.layout(), self.count),
        }
    }

    /// The same bytes in the same order as instances of an ordinary layout, for whoever knows no pages: itself, if it
    /// has none. Of pages that costs a commit of their list.
    ///
    /// # Errors
    /// Indices that lie in memory of a device; what the commit refuses.
    pub fn without_pages(&self) -> Result<Cow<'_, Typed>, EngineError> {
        match self.as_pages() {
            None => Ok(Cow::Borrowed(self)),
            Some(PagesOf::Device(_)) => Err(EngineError::DeviceIndices),
            Some(PagesOf::Host(pages)) => {
                let layout = pages.to_layout()?;
                Typed::new(self.region, self.origin, &layout, 1).map(Cow::Owned)
            }
        }
    }

    /// The bytes that the instances touch, from displacement 0: lowest, and past the highest. `None` if there are none.
    /// Of indices in memory of a device, the bytes that they may touch.
    #[must_use]
    pub fn bounds(&self) -> Option<(i64, i64)> {
        match &self.layout {
            KeptLayout::Pages(pages) => pages.bounds(),
            KeptLayout::DevicePages(pages) => {
                let far = pages.last.wrapping_mul(pages.stride).cast_signed();
                let bounds = (pages.page.true_lb(), far.wrapping_add(pages.page.true_ub()));
                (self.packed_bytes > 0).then_some(bounds)
            }
            _ => match plain_bounds(self.layout(), self.count) {
                Some((_, low, high)) => Some((low, high)),
                None => Convertor::new(self.layout(), self.count).ok()?.bounds(),
            },
        }
    }

    /// The lowest byte that the instances touch, from displacement 0, and the part of the region from there to the
    /// highest; as for [`bounds`](Typed::bounds).
    #[must_use]
    pub fn touched(&self) -> Option<(i64, Region)> {
        let (low, high) = self.bounds()?;
        let start = self.origin.checked_add_signed(low)?;
        Some((low, self.region.sub(start, low.abs_diff(high)).ok()?))
    }

    /// Bytes from the first to the last that the instances touch; as for [`bounds`](Typed::bounds).
    #[must_use]
    pub fn span(&self) -> u64 {
        self.bounds().map_or(0, |(low, high)| low.abs_diff(high))
    }

    /// Runs of bytes that the instances consist of, saturating. Pages are counted as if no two met.
    #[must_use]
    #[inline]
    pub fn blocks(&self) -> u64 {
        match self.as_pages() {
            None => self.layout().blocks_of(self.count).unwrap_or(u64::MAX),
            Some(_) => self.layout().blocks().saturating_mul(self.count),
        }
    }

    /// Whether some byte is named twice, as far as that is [found](Layout::overlaps). That two pages share bytes, as at
    /// an index that occurs twice, does not count: what is written there is undefined.
    #[must_use]
    #[inline]
    pub fn overlaps(&self) -> bool {
        let instances = if self.as_pages().is_some() { 1 } else { self.count };
        self.contiguous_start.is_none() && self.layout().overlaps(instances)
    }

    /// Whether the packed streams of both are the same bytes of memory in the same order, as far as both reach; `false`
    /// if that takes longer to find than a look at layouts and lists of indices.
    #[must_use]
    pub fn same_places(&self, other: &Typed) -> bool {
        let place = |region: Region, origin: u64| match region.space() {
            space if space.cpu_accessible() => (None, 0, region.start().wrapping_add(origin)),
            space if space.has_addresses() => (Some(space), 0, region.start().wrapping_add(origin)),
            space => (Some(space), region.address(), region.offset().wrapping_add(origin)),
        };
        let alike = || match (self.as_pages(), other.as_pages()) {
            (None, None) => self.layout() == other.layout(),
            (Some(PagesOf::Host(one)), Some(PagesOf::Host(other))) => one.begins_as(other),
            (Some(PagesOf::Device(one)), Some(PagesOf::Device(other))) => {
                let list =
                    |pages: &DevicePages| (pages.stride, pages.wide, place(pages.indices, 0));
                list(one) == list(other) && one.page == other.page
            }
            _ => false,
        };
        place(self.region, self.origin) == place(other.region, other.origin) && alike()
    }

    /// Moves the instances to the same places of another region that is as long, in the same space.
    ///
    /// # Errors
    /// [`EngineError::OtherRegion`], and nothing has changed.
    #[inline]
    pub fn rebase(&mut self, region: Region) -> Result<(), EngineError> {
        if region.len() != self.region.len() || region.space() != self.region.space() {
            let (region, expected) = (Box::new(region), Box::new(self.region));
            return Err(EngineError::OtherRegion { region, expected });
        }
        self.region = region;
        Ok(())
    }

    /// The region.
    #[must_use]
    #[inline]
    pub fn region(&self) -> Region {
        self.region
    }

    /// Where displacement 0 is, in bytes from the region's start.
    #[must_use]
    #[inline]
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// The layout of one instance; of [pages](Typed::as_pages) that of a page, which are not at one step.
    #[must_use]
    #[inline]
    pub fn layout(&self) -> &Layout {
        self.own_layout().unwrap_or_else(|| byte())
    }

    /// As [`layout`](Typed::layout), unless that is a plain byte.
    #[must_use]
    #[inline]
    pub fn own_layout(&self) -> Option<&Layout> {
        match &self.layout {
            KeptLayout::Byte => None,
            KeptLayout::Static(layout) => Some(layout),
            KeptLayout::Counted(layout) => Some(layout),
            KeptLayout::Pages(pages) => Some(pages.page()),
            KeptLayout::DevicePages(pages) => Some(&pages.page),
        }
    }

    /// Where in the region the packed stream lies as one contiguous span, if it does.
    #[must_use]
    #[inline]
    pub fn contiguous_start(&self) -> Option<u64> {
        self.contiguous_start
    }

    /// How many instances, or pages.
    #[must_use]
    #[inline]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Length of the packed stream.
    #[must_use]
    #[inline]
    pub fn packed_bytes(&self) -> u64 {
        self.packed_bytes
    }

    /// The space of the region.
    #[must_use]
    #[inline]
    pub fn space(&self) -> Space {
        self.region.space()
    }

    /// The one contiguous span of memory that the packed stream is, if it is one.
    #[must_use]
    #[inline]
    pub fn as_contiguous(&self) -> Option<Region> {
        self.region.sub(self.contiguous_start?, self.packed_bytes).ok()
    }

    /// A cursor at the start of the packed stream.
    ///
    /// # Errors
    /// Indices that lie in memory of a device.
    pub fn convertor(&self) -> Result<Convertor, EngineError> {
        match self.as_pages() {
            None => Ok(Convertor::new(self.layout(), self.count)?),
            Some(PagesOf::Host(pages)) => Ok(Convertor::of_pages(pages)),
            Some(PagesOf::Device(_)) => Err(EngineError::DeviceIndices),
        }
    }

    /// Which bytes of the packed stream take part where `range` of a larger one is meant: the same, or all of
    /// them if they are exactly as many, for this is then the range's piece on its own.
    ///
    /// # Errors
    /// [`EngineError::RangeOutside`].
    pub fn window(&self, range: &Range<u64>) -> Result<Range<u64>, EngineError> {
        if range.end.checked_sub(range.start) == Some(self.packed_bytes) {
            return Ok(0..self.packed_bytes);
        }
        self.check_range(range)?;
        Ok(range.clone())
    }

    /// Whether `range` lies inside the packed stream.
    ///
    /// # Errors
    /// [`EngineError::RangeOutside`].
    pub fn check_range(&self, range: &Range<u64>) -> Result<(), EngineError> {
        if range.start > range.end || range.end > self.packed_bytes {
            return Err(EngineError::RangeOutside {
                start: range.start,
                end: range.end,
                packed_bytes: self.packed_bytes,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
