//! What the driver knows of a pointer, remembered by range of addresses.
//!
//! The answer for a range is remembered together with the id that the driver had given the
//! allocation, and is used again only while the driver gives that id for the address: memory that was
//! freed and allocated anew has another one. Addresses that the driver does not know are not
//! remembered: it may learn them.
//!
//! So a remembered answer costs one short question to the driver. With driver 580 that is no less than
//! asking for everything at once (65 ns on an H200 host either way, `examples/costs.rs`); it pays with
//! drivers that take longer over the long question. Nothing that asks the driver less can notice that
//! a user has freed memory.

use crate::CudaDevice;
use crate::context::lock;
use crate::driver::{self, RawPointer};
use gapless_mem::Space;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Ranges remembered at most; when that many are, all are forgotten.
const RANGES: usize = 4096;

/// What the driver knows of the allocation at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerFacts {
    /// Where the memory lies.
    pub space: Space,
    /// The allocation's first address.
    pub start: u64,
    /// The allocation's length in bytes.
    pub len: u64,
    /// The driver's id of the allocation, never used twice in a process; 0 if it has none.
    pub buffer_id: u64,
}

impl PointerFacts {
    /// What raw answers mean; `None` for an address that the driver does not know.
    fn of(raw: RawPointer, address: u64) -> Option<PointerFacts> {
        const HOST: u32 = 1;
        const DEVICE: u32 = 2;
        let space = match (raw.managed, raw.memory_type) {
            (true, HOST | DEVICE) => Space::Managed,
            (false, HOST) => Space::Pinned,
            (false, DEVICE) => Space::Cuda { device: u32::try_from(raw.ordinal).ok()? },
            _ => return None,
        };
        // Where the driver gives no range, the answer is for this byte.
        let covers = raw.start <= address && address - raw.start < raw.len;
        let (start, len) = if covers { (raw.start, raw.len) } else { (address, 1) };
        Some(PointerFacts { space, start, len, buffer_id: raw.buffer_id })
    }

    fn covers(&self, address: u64) -> bool {
        address.checked_sub(self.start).is_some_and(|offset| offset < self.len)
    }
}

/// Ranges by their start.
#[derive(Debug, Default)]
pub(crate) struct PointerCache {
    ranges: Mutex<BTreeMap<u64, PointerFacts>>,
}

impl PointerCache {
    /// The facts of an address, remembered or asked for.
    fn facts(
        &self,
        address: u64,
        id_now: impl FnOnce() -> Option<u64>,
        ask: impl FnOnce() -> Option<PointerFacts>,
    ) -> Option<PointerFacts> {
        let remembered = lock(&self.ranges).range(..=address).next_back().map(|(_, facts)| *facts);
        if let Some(facts) = remembered.filter(|facts| facts.covers(address))
            && id_now() == Some(facts.buffer_id)
        {
            return Some(facts);
        }
        let facts = ask();
        let mut ranges = lock(&self.ranges);
        forget_around(&mut ranges, address, facts.as_ref());
        if let Some(facts) = facts.filter(|facts| facts.buffer_id != 0) {
            if ranges.len() >= RANGES {
                ranges.clear();
            }
            ranges.insert(facts.start, facts);
        }
        facts
    }

    /// Forgets the range that starts at an address.
    pub(crate) fn forget(&self, start: u64) {
        lock(&self.ranges).remove(&start);
    }
}

/// Takes out what cannot be true any more: what covers the address, and what overlaps the new range.
fn forget_around(
    ranges: &mut BTreeMap<u64, PointerFacts>,
    address: u64,
    new: Option<&PointerFacts>,
) {
    let (start, last) = new.map_or((address, address), |facts| {
        (facts.start, facts.start.saturating_add(facts.len.saturating_sub(1)))
    });
    while let Some((at, old)) = ranges.range(..=last).next_back() {
        if old.start.saturating_add(old.len.saturating_sub(1)) < start {
            return;
        }
        let at = *at;
        ranges.remove(&at);
    }
}

/// In which space an address lies, if the driver knows it. `None` for ordinary host memory, and while nobody in this
/// process has opened the driver.
#[must_use]
#[inline]
pub fn space_at(address: u64) -> Option<Space> {
    let driver = driver::opened()?;
    PointerFacts::of(driver.pointer(address).ok()?, address).map(|facts| facts.space)
}

/// The device that the host memory at an address is page-locked for, whoever did that. `None` for other memory, and
/// while nobody in this process has opened the driver: nothing is page-locked for a device then.
#[must_use]
pub fn page_locked_for(address: u64) -> Option<u32> {
    let driver = driver::opened()?;
    let raw = driver.pointer(address).ok()?;
    let locked = PointerFacts::of(raw, address).is_some_and(|facts| facts.space == Space::Pinned);
    u32::try_from(raw.ordinal).ok().filter(|_| locked)
}

impl CudaDevice {
    /// What the driver knows of the allocation that an address lies in: of any device of this
    /// process, and of page-locked and managed memory. `None` for ordinary host memory and for
    /// addresses that nobody has.
    #[must_use]
    pub fn pointer(&self, address: u64) -> Option<PointerFacts> {
        let context = self.context();
        let _bound = context.bind().ok()?;
        self.pointers().facts(
            address,
            || context.driver.buffer_id(address),
            || PointerFacts::of(context.driver.pointer(address).ok()?, address),
        )
    }

    /// The same without the cache: what every call would cost.
    #[must_use]
    pub fn pointer_uncached(&self, address: u64) -> Option<PointerFacts> {
        let _bound = self.context().bind().ok()?;
        PointerFacts::of(self.context().driver.pointer(address).ok()?, address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CudaDriver;
    use crate::driver::tests::fake::{self, State};
    use gapless_mem::{Device, Region};

    fn facts(start: u64, len: u64, buffer_id: u64) -> PointerFacts {
        PointerFacts { space: Space::Cuda { device: 0 }, start, len, buffer_id }
    }

    #[test]
    fn remembered_while_the_id_is_the_same() {
        let cache = PointerCache::default();
        let old = facts(1000, 100, 7);
        assert_eq!(cache.facts(1050, || None, || Some(old)), Some(old));
        let unasked = || panic!("it is remembered");
        assert_eq!(cache.facts(1099, || Some(7), unasked), Some(old));
        // One byte further is another allocation's.
        assert_eq!(cache.facts(1100, || panic!("not remembered"), || None), None);
        // Freed and allocated anew, shorter.
        let new = facts(1000, 60, 8);
        assert_eq!(cache.facts(1050, || Some(8), || Some(new)), Some(new));
        assert_eq!(cache.facts(1070, || panic!("the old range is gone"), || None), None);
        // Freed for good.
        assert_eq!(cache.facts(1010, || None, || None), None);
        assert!(lock(&cache.ranges).is_empty());
    }

    #[test]
    fn a_new_range_takes_the_place_of_all_that_it_overlaps() {
        let cache = PointerCache::default();
        for start in [1000, 1100, 1200, 1300] {
            cache.facts(start, || None, || Some(facts(start, 100, start)));
        }
        let new = facts(1150, 100, 9);
        cache.facts(1160, || Some(9), || Some(new));
        let starts: Vec<u64> = lock(&cache.ranges).keys().copied().collect();
        assert_eq!(starts, [1000, 1150, 1300]);
    }

    #[test]
    fn without_an_id_nothing_is_remembered() {
        let cache = PointerCache::default();
        for _ in 0..2 {
            let mut asked = false;
            cache.facts(
                1000,
                || None,
                || {
                    asked = true;
                    Some(facts(1000, 10, 0))
                },
            );
            assert!(asked);
        }
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let cache = PointerCache::default();
        for start in 0..RANGES as u64 + 1 {
            cache.facts(start, || None, || Some(facts(start, 1, 1)));
        }
        assert_eq!(lock(&cache.ranges).len(), 1);
    }

    #[test]
    fn raw_answers() {
        let raw = RawPointer { memory_type: 2, ordinal: 1, start: 8, len: 8, ..Default::default() };
        let known = PointerFacts::of(raw, 9).unwrap();
        assert_eq!((known.space, known.start), (Space::Cuda { device: 1 }, 8));
        let managed = PointerFacts::of(RawPointer { managed: true, ..raw }, 9).unwrap();
        assert_eq!(managed.space, Space::Managed);
        let host = PointerFacts::of(RawPointer { memory_type: 1, len: 0, ..raw }, 9).unwrap();
        assert_eq!((host.space, host.start, host.len), (Space::Pinned, 9, 1));
        assert_eq!(PointerFacts::of(RawPointer { memory_type: 0, ..raw }, 9), None);
    }

    #[test]
    fn the_device_asks_for_everything_once() {
        fake::set(State::default());
        let device = CudaDriver::of(fake::driver()).unwrap().device(0).unwrap();
        for _ in 0..5 {
            assert_eq!(device.locate(0x7000_0010), Some(Space::Cuda { device: 0 }));
        }
        assert_eq!(fake::with(|state| state.pointer_queries), 1);
        fake::with(|state| state.buffer_id = 8);
        assert_eq!(device.pointer(0x7000_0010).unwrap().buffer_id, 8);
        assert_eq!(fake::with(|state| state.pointer_queries), 2);
        fake::with(|state| state.buffer_id = 0);
        assert_eq!(device.locate(0x7000_0010), None);
        let region = Region::new(Space::Cuda { device: 0 }, 0x7000_0010, 0, 4);
        assert_eq!(device.buffer_id(region), None);
    }
}
