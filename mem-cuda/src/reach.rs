//! Which memory kernels of a device may use: a property of an allocation and a device.
//!
//! | memory | who may use it |
//! |---|---|
//! | `cuMemAlloc` | its device, and whoever has peer access to it |
//! | of a pool (`cuMemAllocAsync`) | the pool's device, and whom `cuMemPoolSetAccess` names |
//! | mapped by VMM | whom `cuMemSetAccess` names |
//! | imported from another process | the device that imported it |
//!
//! A kernel that touches other memory ends the process's use of the device, so each allocation is asked about when
//! its memory is first used, and remembered by the driver's id for it. Access that is granted later is noticed; access
//! that is taken away from memory in use is not.
//!
//! One byte of an allocation speaks for all of it: the driver takes `cuMemSetAccess` for whole mappings only ("a fully
//! mapped address range containing all allocations"), and tells of each mapping as an allocation. Where a driver would
//! let a part of a mapping have other access than the rest, that would not be noticed.

use crate::context::lock;
use crate::driver::AllocationKind;
use crate::{CudaDevice, CudaError, PointerFacts};
use gapless_mem::{DeviceError, Region, Space};
use std::collections::HashSet;
use std::sync::Mutex;

/// Allocations remembered at most; when that many are, all are forgotten.
const ALLOCATIONS: usize = 4096;

/// Allocations that the device may use, by the driver's ids, which are never used twice.
#[derive(Debug, Default)]
pub(crate) struct Reached(Mutex<HashSet<u64>>);

impl CudaDevice {
    /// Whether kernels of this device may use a region of device memory. Peer access to its device is on.
    ///
    /// A region that spans several allocations is followed from one to the next; what lies behind a hole is not looked
    /// at, but for the last byte.
    ///
    /// # Errors
    /// [`DeviceError::OutOfReach`].
    pub(crate) fn check_reach(&self, region: Region) -> Result<(), CudaError> {
        let Some(last) = region.len().checked_sub(1) else { return Ok(()) };
        let (mut at, last) = (region.start(), region.start().saturating_add(last));
        loop {
            let facts = self.pointer(at);
            if !self.may_use(at, region.space(), facts) {
                let (device, space) = (self.context().name.clone(), region.space());
                return Err(DeviceError::OutOfReach { device, address: at, space }.into());
            }
            // Where the driver knows no range, its answer is for a byte.
            let next = facts.filter(|facts| facts.len > 1);
            let next = next.map_or(last, |facts| facts.start.saturating_add(facts.len));
            if at == last || next > last {
                return Ok(());
            }
            at = next;
        }
    }

    fn may_use(&self, address: u64, claimed: Space, facts: Option<PointerFacts>) -> bool {
        let id = facts.map_or(0, |facts| facts.buffer_id);
        if id != 0 && lock(&self.reached().0).contains(&id) {
            return true;
        }
        let may = self.ask(address, facts.map_or(claimed, |facts| facts.space));
        if may && id != 0 {
            let mut reached = lock(&self.reached().0);
            if reached.len() >= ALLOCATIONS {
                reached.clear();
            }
            reached.insert(id);
        }
        may
    }

    /// Asks the driver about an allocation in `space`. What it does not tell is taken to be its own device's alone.
    fn ask(&self, address: u64, space: Space) -> bool {
        let context = self.context();
        let Space::Cuda { device } = space else { return true };
        let own = device == context.ordinal;
        if self.is_imported(address) {
            return true;
        }
        let Ok(_bound) = context.bind() else { return own };
        match context.driver.allocation_kind(address) {
            Ok(AllocationKind::Plain) => own || self.enable_peer(device).is_ok(),
            Ok(AllocationKind::Pool(pool)) => {
                own || context.driver.pool_access(&pool, context.device) == Ok(true)
            }
            Ok(AllocationKind::Other) | Err(_) => {
                context.driver.vmm_access(address, context.device).unwrap_or(own)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CudaDriver;
    use crate::driver::tests::fake::{self, State};
    use gapless_mem::Device;

    /// Memory of the first device, as the second one sees it.
    fn second_sees(state: State) -> (CudaDevice, Region) {
        fake::set(State { devices: 2, ..state });
        let driver = CudaDriver::of(fake::driver()).unwrap();
        let memory = driver.device(0).unwrap().allocate(4096).unwrap();
        (driver.device(1).unwrap(), memory)
    }

    fn is_out_of_reach(device: &CudaDevice, memory: Region) -> bool {
        match device.device_address(memory) {
            Ok(address) => {
                assert_eq!(address, memory.start());
                false
            }
            Err(CudaError::Refused(DeviceError::OutOfReach { device, space, .. })) => {
                assert_eq!((device.as_str(), space), ("cuda:1", memory.space()));
                true
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn peer_access_is_enough_for_plain_memory_alone() {
        let (second, memory) = second_sees(State::default());
        assert!(!is_out_of_reach(&second, memory));
        // Of a pool, and mapped by VMM: peer access is on, and says nothing.
        for state in [
            State { plain: false, pool: true, ..State::default() },
            State { plain: false, vmm: Some(0), ..State::default() },
            State { plain: false, vmm: Some(1), ..State::default() },
            State { plain: false, ..State::default() },
        ] {
            let (second, memory) = second_sees(state.clone());
            second.enable_peer(0).unwrap();
            assert!(is_out_of_reach(&second, memory), "{state:?}");
            let first = CudaDriver::of(fake::driver()).unwrap().device(0).unwrap();
            let own = state.vmm.is_none() || state.vmm == Some(3);
            assert_eq!(first.device_address(memory).is_ok(), own, "{state:?}");
        }
    }

    #[test]
    fn access_that_is_granted_is_noticed_and_then_remembered() {
        for (pool, vmm) in [(true, None), (false, Some(0))] {
            let (second, memory) =
                second_sees(State { plain: false, pool, vmm, ..State::default() });
            for _ in 0..2 {
                assert!(is_out_of_reach(&second, memory));
            }
            fake::with(|state| {
                state.pool_access = 3;
                state.vmm = state.vmm.map(|_| 3);
                state.kinds_asked = 0;
            });
            for _ in 0..5 {
                assert!(!is_out_of_reach(&second, memory.sub(100, 8).unwrap()));
            }
            assert_eq!(fake::with(|state| state.kinds_asked), 1);
            // Freed and allocated anew: another allocation, which nobody has asked about.
            fake::with(|state| {
                state.buffer_id += 1;
                state.pool_access = 0;
                state.vmm = state.vmm.map(|_| 0);
            });
            assert!(is_out_of_reach(&second, memory));
        }
    }

    #[test]
    fn every_allocation_that_a_region_spans_is_asked_about() {
        let (second, memory) = second_sees(State::default());
        // The pretend driver knows 4096 bytes. What lies behind is unknown, so not another device's to use.
        let longer = Region::new(memory.space(), memory.start(), 0, 4097);
        assert!(is_out_of_reach(&second, longer));
        assert!(!is_out_of_reach(&second, memory));
    }
}
