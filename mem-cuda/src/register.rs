//! Host memory that is not the driver's (shared-memory segments) made reachable for devices.
//!
//! The driver registers memory once for all devices of a process, and refuses it a second time. So
//! registrations are counted here, for the process: each `register` of a range is undone by one
//! `unregister` of the same range, and the last one does it. Memory that somebody else in the process
//! has registered already is used as it is.

use crate::context::lock;
use crate::error::code;
use crate::{CudaDevice, CudaError};
use gapless_mem::{DeviceError, OutOfRange, Region, Space};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// A registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    users: u64,
    /// Somebody else registered it; it is theirs to undo.
    foreign: bool,
}

/// By first address and length.
type Ranges = BTreeMap<(u64, u64), Range>;

/// One table for the process, as the driver has. It is held while the driver registers memory, or undoes that.
static RANGES: Mutex<Ranges> = Mutex::new(BTreeMap::new());

impl CudaDevice {
    fn host_range(&self, region: Region) -> Result<(u64, u64), CudaError> {
        let space = region.space();
        if !matches!(space, Space::Host | Space::Pinned) {
            let device = self.context().name.clone();
            return Err(DeviceError::WrongSpace { device, space }.into());
        }
        let start = region.address().checked_add(region.offset());
        match start.filter(|start| start.checked_add(region.len()).is_some()) {
            Some(start) => Ok((start, region.len())),
            None => Err(DeviceError::from(OutOfRange {
                offset: region.offset(),
                len: region.len(),
                region_len: region.len(),
                space,
            })
            .into()),
        }
    }

    /// [`Device::register`](gapless_mem::Device::register), with errors of this crate.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn register_host(&self, region: Region) -> Result<(), CudaError> {
        let (start, len) = self.host_range(region)?;
        if len == 0 {
            return Ok(());
        }
        let context = self.context();
        let _bound = context.bind()?;
        let mut ranges = lock(&RANGES);
        if let Some(range) = ranges.get_mut(&(start, len)) {
            range.users += 1;
            return Ok(());
        }
        // SAFETY: the caller keeps the memory mapped until it is unregistered.
        let registered = unsafe { context.driver.host_register(start, len) };
        let foreign = match registered {
            Ok(()) => false,
            Err(fault)
                if fault.code == code::HOST_MEMORY_ALREADY_REGISTERED
                    && [start, start + len - 1]
                        .iter()
                        .all(|end| context.driver.host_device_pointer(*end).is_ok()) =>
            {
                true
            }
            Err(fault) => return Err(context.fault_of(len, fault)),
        };
        ranges.insert((start, len), Range { users: 1, foreign });
        Ok(())
    }

    /// [`Device::unregister`](gapless_mem::Device::unregister), with errors of this crate.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn unregister_host(&self, region: Region) -> Result<(), CudaError> {
        let (start, len) = self.host_range(region)?;
        if len == 0 {
            return Ok(());
        }
        let context = self.context();
        let mut ranges = lock(&RANGES);
        let Some(range) = ranges.get_mut(&(start, len)) else {
            return Err(CudaError::Malformed {
                object: "host region",
                reason: "it is not registered",
            });
        };
        range.users -= 1;
        if range.users > 0 {
            return Ok(());
        }
        let foreign = range.foreign;
        ranges.remove(&(start, len));
        if foreign {
            return Ok(());
        }
        let _bound = context.bind()?;
        // SAFETY: `register_host` registered it; this was its last user, who vouches that no work
        // uses it.
        let undone = unsafe { context.driver.host_unregister(start) };
        undone.map_err(|fault| context.fault(fault))
    }

    /// Where kernels of this device find a region's first byte: device and managed memory at its
    /// own address, page-locked and registered host memory where the driver maps it.
    ///
    /// # Errors
    /// Host memory that is not page-locked; memory of a device that cannot be reached; [`DeviceError::OutOfReach`] for
    /// allocations that this device was not given access to.
    pub fn device_address(&self, region: Region) -> Result<u64, CudaError> {
        let context = self.context();
        let wrong = || {
            let device = context.name.clone();
            CudaError::from(DeviceError::WrongSpace { device, space: region.space() })
        };
        match region.space() {
            Space::Managed => Ok(region.start()),
            Space::Cuda { device } => {
                self.enable_peer(device)?;
                self.check_reach(region)?;
                Ok(region.start())
            }
            Space::Host | Space::Pinned => {
                let (start, _) = self.host_range(region)?;
                if self.host_pointers_serve() && covers(&lock(&RANGES), start, region.len()) {
                    return Ok(start);
                }
                let _bound = context.bind()?;
                context.driver.host_device_pointer(start).map_err(|_| wrong())
            }
            _ => Err(wrong()),
        }
    }
}

impl CudaDevice {
    /// Where kernels of this device find host memory of which exactly this range is registered already: it is
    /// registered once more, which only counts. `None`: nothing was done, and
    /// [`register`](gapless_mem::Device::register) may wait for all work of the device. Another thread that does so now
    /// is not waited for.
    ///
    /// # Safety
    /// As [`register`](gapless_mem::Device::register): the memory stays mapped until this is undone.
    #[must_use]
    pub unsafe fn register_again(&self, region: Region) -> Option<u64> {
        let key = self.host_range(region).ok()?;
        let mut ranges = try_lock()?;
        let range = ranges.get_mut(&key)?;
        let address = self.registered_address(key.0).ok()?;
        range.users += 1;
        Some(address)
    }

    /// [`device_address`](CudaDevice::device_address) of memory that need not be registered for that. `None`: another
    /// thread registers memory now, or undoes that, and both may wait for all work of the device.
    ///
    /// # Errors
    /// As there.
    pub fn device_address_now(&self, region: Region) -> Result<Option<u64>, CudaError> {
        if !matches!(region.space(), Space::Host | Space::Pinned) {
            return self.device_address(region).map(Some);
        }
        let (start, _) = self.host_range(region)?;
        // Held, so that no thread begins meanwhile.
        let Some(ranges) = try_lock() else { return Ok(None) };
        if self.host_pointers_serve() && covers(&ranges, start, region.len()) {
            return Ok(Some(start));
        }
        let _bound = self.context().bind()?;
        match self.context().driver.host_device_pointer(start) {
            Ok(address) => Ok(Some(address)),
            Err(_) => {
                let (device, space) = (self.context().name.clone(), region.space());
                Err(DeviceError::WrongSpace { device, space }.into())
            }
        }
    }

    /// Where kernels find the first byte of a range that is registered.
    fn registered_address(&self, start: u64) -> Result<u64, CudaError> {
        if self.host_pointers_serve() {
            return Ok(start);
        }
        let context = self.context();
        let _bound = context.bind()?;
        context.driver.host_device_pointer(start).map_err(|fault| context.fault(fault))
    }
}

/// The table, unless a thread has it, which may wait for all work of a device.
fn try_lock() -> Option<MutexGuard<'static, Ranges>> {
    match RANGES.try_lock() {
        Ok(ranges) => Some(ranges),
        Err(TryLockError::Poisoned(ranges)) => Some(ranges.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Whether a range of ours covers these bytes.
fn covers(ranges: &Ranges, start: u64, len: u64) -> bool {
    let mut before = ranges.range(..=(start, u64::MAX)).rev();
    before.any(|((first, range), _)| {
        let offset = start - first;
        offset < *range && len <= range - offset
    })
}
