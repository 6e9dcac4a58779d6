//! A fake device's memory, mapped for the processor: the exporter's file, at an address that may be touched.

use super::sharing::bytes_of;
use super::{FakeDevice, unmap};
use crate::{Answer, DeviceError, Export, Mapper, Region, Space};
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How a fake device serves the processor.
#[derive(Debug, Default)]
pub(super) struct Processor {
    refuses: AtomicBool,
    /// What it was asked to map while it hesitates.
    waiting: Mutex<Option<Vec<(Export, Answer)>>>,
    /// First address of what is mapped, and its length in bytes.
    mapped: Mutex<BTreeMap<u64, usize>>,
}

impl Processor {
    fn waiting(&self) -> MutexGuard<'_, Option<Vec<(Export, Answer)>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FakeDevice {
    /// Whether it keeps what it is asked to map for the processor, and answers later: when it does not hesitate any more.
    pub fn hesitate(&self, hesitates: bool) {
        let empty = hesitates.then(Vec::new);
        let kept = std::mem::replace(&mut *self.processor.waiting(), empty);
        kept.into_iter().flatten().for_each(|(export, answer)| self.map(export, answer));
    }

    /// What it was asked to map for the processor, and has not answered.
    #[must_use]
    pub fn hesitates_with(&self) -> usize {
        self.processor.waiting().as_ref().map_or(0, Vec::len)
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

    fn map_for_processor(&self, export: Export) -> Result<Region, DeviceError> {
        if self.processor.refuses.load(Ordering::Relaxed) {
            return Err(DeviceError::Unsupported { what: "mapping memory for the processor" });
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
        Ok(Region::new(Space::Host, start, 0, size).sub(offset, len)?)
    }
}

// SAFETY: the numbers are those of the contract.
// 1. A fresh shared mapping of the exporter's file, whose length was looked at, and which nobody shortens.
// 2. Nothing panics behind the mapping but entering it, which then stays mapped.
unsafe impl Mapper for FakeDevice {
    fn map(&self, export: Export, answer: Answer) {
        if let Some(waiting) = self.processor.waiting().as_mut() {
            waiting.push((export, answer));
            return;
        }
        if let Some(region) = answer.give(self.map_for_processor(export)) {
            // SAFETY: it was just mapped, and nobody wants it.
            _ = unsafe { self.unmap(region) };
        }
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
