//! Memory that is exported as a descriptor (the driver's virtual memory management): addresses are
//! reserved, memory is created, the one is mapped to the other.
//!
//! What it has over `cuMemAlloc`: the descriptor keeps the memory alive in every process that holds
//! it, so nothing undefined happens when the exporter frees it first.

use crate::context::{Context, lock};
use crate::driver::MemoryHandle;
use crate::{CudaDevice, CudaError};
use gapless_mem::Region;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// One mapping of memory.
#[derive(Debug)]
struct VmmBlock {
    /// Bytes mapped.
    len: u64,
    allocation: MemoryHandle,
    /// Different for every allocation of this process. The top bit is set, so that it is no
    /// driver's buffer id.
    id: u64,
}

/// This device's mappings, by first address.
#[derive(Debug, Default)]
pub(crate) struct Vmm(Mutex<BTreeMap<u64, VmmBlock>>);

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Vmm {
    /// First address and length of the mapping that an address lies in.
    pub(crate) fn range_of(&self, address: u64) -> Option<(u64, u64)> {
        let blocks = lock(&self.0);
        let (start, block) = blocks.range(..=address).next_back()?;
        (address - start < block.len).then_some((*start, block.len))
    }

    /// Length and id of the mapping that starts at an address.
    pub(crate) fn identity_of(&self, start: u64) -> Option<(u64, u64)> {
        lock(&self.0).get(&start).map(|block| (block.len, block.id))
    }

    /// A descriptor for the mapping that starts at an address, and its id. The context is bound.
    pub(crate) fn export(
        &self,
        context: &Context,
        start: u64,
    ) -> Result<(OwnedFd, u64), CudaError> {
        let blocks = lock(&self.0);
        let block = blocks.get(&start).ok_or(CudaError::Malformed {
            object: "region",
            reason: "its memory has been freed",
        })?;
        let descriptor =
            context.driver.vmm_export(&block.allocation).map_err(|fault| context.fault(fault))?;
        Ok((descriptor, block.id))
    }

    /// Creates and maps memory that `devices` may use; gives its first address. The context is
    /// bound.
    fn create(&self, context: &Context, len: u64, devices: &[c_int]) -> Result<u64, CudaError> {
        let fault = |fault| context.fault_of(len, fault);
        let step = context.driver.vmm_granularity(context.device).map_err(fault)?.max(1);
        let rounded = len.max(1).checked_next_multiple_of(step).ok_or_else(|| {
            let reason = "more than the address space holds".to_owned();
            CudaError::OutOfMemory { device: context.name.clone(), len, reason }
        })?;
        let allocation = context.driver.vmm_create(context.device, rounded).map_err(fault)?;
        self.place(context, allocation, rounded, devices)
    }

    /// Maps the memory of another process's descriptor, `len` bytes according to that process. The
    /// context is bound.
    pub(crate) fn import(
        &self,
        context: &Context,
        descriptor: BorrowedFd<'_>,
        len: u64,
    ) -> Result<u64, CudaError> {
        let allocation =
            context.driver.vmm_import(descriptor).map_err(|fault| context.fault(fault))?;
        self.place(context, allocation, len, &[context.device])
    }

    /// Finds addresses for memory, maps it there and lets `devices` use it, or undoes it all.
    fn place(
        &self,
        context: &Context,
        allocation: MemoryHandle,
        len: u64,
        devices: &[c_int],
    ) -> Result<u64, CudaError> {
        let driver = context.driver;
        let start = match driver.vmm_reserve(len) {
            Ok(start) => start,
            Err(fault) => {
                release(context, allocation);
                return Err(context.fault_of(len, fault));
            }
        };
        // SAFETY: reserved just now, with this length, and nothing is there yet.
        if let Err(fault) = unsafe { driver.vmm_map(start, len, &allocation) } {
            unreserve(context, start, len);
            release(context, allocation);
            return Err(context.fault_of(len, fault));
        }
        if let Err(fault) = driver.vmm_set_access(start, len, devices) {
            unmap(context, start, len);
            unreserve(context, start, len);
            release(context, allocation);
            return Err(context.fault_of(len, fault));
        }
        lock(&self.0).insert(start, VmmBlock { len, allocation, id: next_id() });
        Ok(start)
    }

    /// Unmaps what starts at an address and gives it up. The context is bound.
    ///
    /// # Safety
    /// Nothing uses it any more.
    pub(crate) unsafe fn free(&self, context: &Context, start: u64) -> Result<(), CudaError> {
        let block = lock(&self.0).remove(&start).ok_or(CudaError::Malformed {
            object: "region",
            reason: "its memory has been freed before",
        })?;
        let driver = context.driver;
        // SAFETY: `place` mapped it with this length; taken out of the table, so unmapped once; and
        // the caller vouches that nothing uses it.
        let unmapped = unsafe { driver.vmm_unmap(start, block.len) };
        if unmapped.is_ok() {
            unreserve(context, start, block.len);
        }
        release(context, block.allocation);
        unmapped.map_err(|fault| context.fault(fault))
    }

    /// Gives everything up: the device is being closed.
    pub(crate) fn free_all(&self, context: &Context) {
        let starts: Vec<u64> = lock(&self.0).keys().copied().collect();
        for start in starts {
            // SAFETY: whoever used it held the device, which is being dropped.
            if let Err(error) = unsafe { self.free(context, start) } {
                tracing::debug!(%error, "tidying up failed");
            }
        }
    }
}

fn release(context: &Context, allocation: MemoryHandle) {
    if let Err(fault) = context.driver.vmm_release(allocation) {
        context.grumble(fault);
    }
}

/// Only for a mapping that `place` has just made and nobody has learnt of.
fn unmap(context: &Context, start: u64, len: u64) {
    // SAFETY: as the function's description says of its one caller.
    if let Err(fault) = unsafe { context.driver.vmm_unmap(start, len) } {
        context.grumble(fault);
    }
}

/// Only for addresses that `place` reserved with this length and that nothing is mapped at (any
/// more).
fn unreserve(context: &Context, start: u64, len: u64) {
    // SAFETY: as the function's description says of its callers.
    if let Err(fault) = unsafe { context.driver.vmm_unreserve(start, len) } {
        context.grumble(fault);
    }
}

impl CudaDevice {
    /// Allocates `len` bytes that other processes get as a descriptor; this device and every device
    /// that can reach it may use them. [`Device::free`](gapless_mem::Device::free) frees them.
    ///
    /// Lengths are rounded up to the driver's granularity (2 MiB), so this is for large, long-lived
    /// memory.
    ///
    /// # Errors
    /// Out of memory, or a device that cannot.
    pub fn allocate_shareable(&self, len: u64) -> Result<Region, CudaError> {
        self.create_shareable(len, self.accessors())
    }

    /// The same, for the devices of these ordinals alone.
    ///
    /// # Errors
    /// As for [`allocate_shareable`](CudaDevice::allocate_shareable); no such device, or one without a link to this one.
    pub fn allocate_shareable_for(&self, len: u64, devices: &[u32]) -> Result<Region, CudaError> {
        let context = self.context();
        let fault = |fault| context.fault(fault);
        let named =
            devices.iter().map(|&ordinal| context.driver.device_get(ordinal).map_err(fault));
        self.create_shareable(len, &named.collect::<Result<Vec<c_int>, _>>()?)
    }

    fn create_shareable(&self, len: u64, devices: &[c_int]) -> Result<Region, CudaError> {
        let context = self.context();
        let _bound = context.bind()?;
        let start = self.vmm().create(context, len, devices)?;
        Ok(Region::new(self.own_space(), start, 0, len))
    }
}
