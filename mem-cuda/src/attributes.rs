//! What the driver knows of a pointer: asked each time.
//!
//! Nothing is remembered. Only the driver's id of an allocation tells that a user has freed memory and allocated it
//! anew, and asking for that takes as long as asking for everything at once: 65 ns on an H200 host with driver 580
//! (`examples/costs.rs`).

use crate::CudaDevice;
use crate::driver::{self, RawPointer};
use gapless_mem::Space;

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
    fn what_is_allocated_anew_is_noticed() {
        fake::set(State::default());
        let device = CudaDriver::of(fake::driver()).unwrap().device(0).unwrap();
        let space = || device.pointer(0x7000_0010).map(|facts| facts.space);
        assert_eq!(space(), Some(Space::Cuda { device: 0 }));
        fake::with(|state| state.buffer_id = 8);
        assert_eq!(device.pointer(0x7000_0010).unwrap().buffer_id, 8);
        fake::with(|state| state.buffer_id = 0);
        assert_eq!(space(), None);
        let region = Region::new(Space::Cuda { device: 0 }, 0x7000_0010, 0, 4);
        assert_eq!(device.buffer_id(region), None);
    }
}
