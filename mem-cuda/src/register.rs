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
use std::sync::Mutex;

/// A registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    users: u64,
    /// Somebody else registered it; it is theirs to undo.
    foreign: bool,
}

/// By first address and length. One table for the process, as the driver has.
static RANGES: Mutex<BTreeMap<(u64, u64), Range>> = Mutex::new(BTreeMap::new());

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
                if self.host_pointers_serve() && is_registered(start, region.len()) {
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
    /// Whether exactly this range of host memory is registered: then registering it once more, and undoing that, only
    /// counts. Otherwise both may wait for all work of the device.
    #[must_use]
    pub fn has_registered(&self, region: Region) -> bool {
        self.host_range(region).is_ok_and(|range| lock(&RANGES).contains_key(&range))
    }
}

/// Whether a range of ours covers these bytes.
fn is_registered(start: u64, len: u64) -> bool {
    let ranges = lock(&RANGES);
    let mut before = ranges.range(..=(start, u64::MAX)).rev();
    before.any(|((first, range), _)| {
        let offset = start - first;
        offset < *range && len <= range - offset
    })
}
