//! A fake device's memory, mapped for the processor: the exporter's file, at an address that may be touched.

use super::sharing::bytes_of;
use super::{FakeDevice, unmap};
use crate::{DeviceError, Export, Mapper, Region, Space};
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How a fake device serves the processor.
#[derive(Debug)]
pub(super) struct Processor {
    /// How often it is still asked to map memory until it knows whether it can.
    late: AtomicU32,
    refuses: AtomicBool,
    /// First address of what is mapped, and its length in bytes.
    mapped: Mutex<BTreeMap<u64, usize>>,
}

impl Default for Processor {
    fn default() -> Processor {
        Processor {
            late: AtomicU32::new(3),
            refuses: AtomicBool::default(),
            mapped: Mutex::default(),
        }
    }
}

impl FakeDevice {
    /// So often it does not know yet whether it maps memory for the processor.
    pub fn hesitate(&self, times: u32) {
        self.processor.late.store(times, Ordering::Relaxed);
    }

    /// Whether the processor cannot map memory of others' devices, from now on.
    pub fn keep_from_processor(&self, keep: bool) {
        self.processor.refuses.store(keep, Ordering::Relaxed);
    }

    /// Pieces of memory that are mapped for the processor.
    #[must_use]
    pub fn mapped_for_processor(&self) -> usize {
        self.for_processor().len()
    }

    fn for_processor(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.processor.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: the numbers are those of the contract.
// 1. A fresh shared mapping of the exporter's file, whose length was looked at, and which nobody shortens.
// 2. Nothing panics behind the mapping but entering it, which then stays mapped.
unsafe impl Mapper for FakeDevice {
    fn map(&self, export: Export) -> Result<Option<Region>, DeviceError> {
        if self.processor.refuses.load(Ordering::Relaxed) {
            return Err(DeviceError::Unsupported { what: "mapping memory for the processor" });
        }
        let less = |late: u32| late.checked_sub(1);
        if self.processor.late.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            return Ok(None);
        }
        let (file, size, [offset, len]) = self.opened(export)?;
        let bytes = bytes_of(size);
        // SAFETY: a fresh shared mapping of all of an open file, wherever the kernel likes.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(self.failed("mmap"));
        }
        let start = at.expose_provenance() as u64;
        self.for_processor().insert(start, bytes);
        Ok(Some(Region::new(Space::Host, start, 0, size).sub(offset, len)?))
    }

    unsafe fn unmap(&self, region: Region) -> Result<(), DeviceError> {
        let bytes = self.for_processor().remove(&region.address());
        let bytes = bytes.ok_or_else(|| self.refused("unmap", "nothing was mapped there"))?;
        unmap(region.address(), bytes);
        Ok(())
    }
}

impl Drop for Processor {
    fn drop(&mut self) {
        let mapped = self.mapped.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (start, bytes) in std::mem::take(mapped) {
            unmap(start, bytes);
        }
    }
}
