//! A user's buffer as engines see it: a region, where displacement 0 is in it, a layout, a count.

use crate::EngineError;
use gapless_dtype::{Convertor, Datatype, Layout, Primitive};
use gapless_mem::{Region, Space};
use std::ops::Range;
use std::sync::OnceLock;

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
    if layout.is_contiguous()
        && let Some(packed_bytes) = layout.size().checked_mul(count).filter(|bytes| *bytes > 0)
        && origin.checked_add(packed_bytes).is_some_and(|end| end <= len)
    {
        return Ok((packed_bytes, Some(origin)));
    }
    placed_with_gaps(len, origin, layout, count)
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

    /// The layout of one instance.
    #[must_use]
    #[inline]
    pub fn layout(&self) -> &Layout {
        self.own_layout().unwrap_or_else(|| byte())
    }

    /// The layout of one instance, unless that is a plain byte.
    #[must_use]
    #[inline]
    pub fn own_layout(&self) -> Option<&Layout> {
        match &self.layout {
            KeptLayout::Byte => None,
            KeptLayout::Static(layout) => Some(layout),
            KeptLayout::Counted(layout) => Some(layout),
        }
    }

    /// Where in the region the packed stream lies as one contiguous span, if it does.
    #[must_use]
    #[inline]
    pub fn contiguous_start(&self) -> Option<u64> {
        self.contiguous_start
    }

    /// How many instances.
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
    /// None for a `Typed` that was made by [`new`](Typed::new), which has tried.
    pub fn convertor(&self) -> Result<Convertor, EngineError> {
        Ok(Convertor::new(self.layout(), self.count)?)
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
mod tests {
    use super::*;

    #[test]
    fn elements_are_as_many_as_are_asked_for() {
        let memory = [0u8; 64];
        let int: &'static Layout =
            Box::leak(Box::new(Datatype::from(Primitive::Int).commit().unwrap()));
        let some = Typed::elements(Region::of(&memory), int, 3).unwrap();
        assert_eq!((some.count(), some.packed_bytes(), some.origin()), (3, 12, 0));
        assert_eq!(some.layout(), int);
        assert!(Typed::elements(Region::of(&memory), int, 17).is_err());
    }

    /// Bounds and packed bytes that need no convertor are those that it computes.
    #[test]
    fn bounds_are_known_without_a_convertor() {
        let int = Datatype::from(Primitive::Int);
        let vector = Datatype::vector(4, 1, 2, &int).unwrap().commit().unwrap();
        let convertor = Convertor::new(&vector, 3).unwrap();
        let (low, high) = convertor.bounds().unwrap();
        assert_eq!(plain_bounds(&vector, 3), Some((convertor.packed_size(), low, high)));
        assert_eq!(plain_bounds(&vector, 0), None);
        assert_eq!(plain_bounds(&vector, u64::MAX / 16), None, "2⁶² bytes");
    }

    #[test]
    fn instances_stay_inside_the_buffer() {
        let memory = [0u8; 64];
        let region = Region::of(&memory);
        let int = Datatype::from(Primitive::Int);
        let every_other = Datatype::vector(4, 1, 2, &int).unwrap().commit().unwrap();
        assert_eq!(Typed::new(region, 0, &every_other, 1).unwrap().packed_bytes(), 16);
        // Extent 28: two instances end at 56, three would end at 84.
        assert!(Typed::new(region, 0, &every_other, 2).is_ok());
        let error = Typed::new(region, 0, &every_other, 3).unwrap_err();
        assert!(matches!(error, EngineError::OutsideBuffer { high: 84, last: 64, .. }), "{error}");
        let backwards = Datatype::vector(4, 1, -2, &int).unwrap().commit().unwrap();
        assert!(Typed::new(region, 0, &backwards, 1).is_err());
        assert!(Typed::new(region, 24, &backwards, 1).is_ok());
        // Extent -16: the second instance lies 16 bytes below the first, the third 32.
        let down = Datatype::resized(0, -16, &int).unwrap().commit().unwrap();
        assert!(
            Typed::new(region, 16, &down, 2).is_ok() && Typed::new(region, 60, &down, 4).is_ok()
        );
        let error = Typed::new(region, 15, &down, 2).unwrap_err();
        assert!(
            matches!(error, EngineError::OutsideBuffer { low: -16, first: -15, .. }),
            "{error}"
        );
        assert!(Typed::new(region, 60, &down, 5).is_err());
    }

    #[test]
    fn instances_move_to_a_region_that_is_as_long() {
        let (here, there) = ([0u8; 64], [0u8; 65]);
        let int = Datatype::from(Primitive::Int).commit().unwrap();
        let mut typed = Typed::new(Region::of(&here), 8, &int, 14).unwrap();
        typed.rebase(Region::of(&there[1..])).unwrap();
        let place = typed.as_contiguous().unwrap();
        assert_eq!((place.start(), place.len()), (Region::of(&there[9..]).start(), 56));
        for other in [Region::of(&there), Region::new(Space::Pinned, 64, 0, 64)] {
            assert!(matches!(typed.rebase(other), Err(EngineError::OtherRegion { .. })));
            assert_eq!(typed.as_contiguous(), Some(place));
        }
    }

    #[test]
    fn one_contiguous_span_is_found() {
        let memory = [0u8; 64];
        let region = Region::of(&memory);
        let int = Datatype::from(Primitive::Int);
        let four = Datatype::contiguous(4, &int).unwrap().commit().unwrap();
        let typed = Typed::new(region, 8, &four, 3).unwrap();
        assert_eq!(typed.as_contiguous(), Some(region.sub(8, 48).unwrap()));
        let gaps = Datatype::vector(4, 1, 2, &int).unwrap().commit().unwrap();
        assert_eq!(Typed::new(region, 0, &gaps, 1).unwrap().as_contiguous(), None);
        assert_eq!(Typed::contiguous(region).as_contiguous(), Some(region));
        assert_eq!(typed.window(&(8..24)), Ok(8..24));
        assert_eq!(typed.window(&(800..848)), Ok(0..48), "the piece on its own");
        assert!(typed.window(&(800..847)).is_err());
        let error = typed.check_range(&(40..50)).unwrap_err();
        assert!(matches!(error, EngineError::RangeOutside { packed_bytes: 48, .. }));
    }

    #[test]
    fn a_contiguous_span_begins_where_its_first_byte_lies() {
        let memory = [0u8; 64];
        let region = Region::of(&memory);
        let int = Datatype::from(Primitive::Int);
        let four = Datatype::contiguous(4, &int).unwrap().commit().unwrap();
        let behind = Datatype::hindexed(&[2], &[12], &int).unwrap().commit().unwrap();
        let gaps = Datatype::vector(2, 1, 2, &int).unwrap().commit().unwrap();
        let contiguous_start = |origin, layout, count| {
            Typed::new(region, origin, layout, count).unwrap().contiguous_start()
        };
        assert_eq!(contiguous_start(8, &four, 3), Some(8));
        assert_eq!(contiguous_start(8, &behind, 1), Some(20));
        assert_eq!(contiguous_start(8, &four, 0), Some(8));
        assert_eq!(contiguous_start(8, &gaps, 0), Some(8), "no bytes are one contiguous span");
        assert_eq!(contiguous_start(8, &gaps, 1), None);
        assert_eq!(Typed::contiguous(region).contiguous_start(), Some(0));
    }

    #[test]
    fn gaps_may_not_lead_out_of_the_buffer_whatever_the_origin() {
        let memory = [0u8; 64];
        let region = Region::of(&memory);
        // 28 bytes from first to last.
        let gaps = Datatype::vector(4, 1, 2, &Primitive::Int.into()).unwrap().commit().unwrap();
        assert!(Typed::new(region, 36, &gaps, 1).is_ok());
        for origin in [37, 40, 63, 64, 100] {
            let error = Typed::new(region, origin, &gaps, 1).unwrap_err();
            assert!(matches!(error, EngineError::OutsideBuffer { high: 28, .. }), "{origin}");
        }
    }
}
