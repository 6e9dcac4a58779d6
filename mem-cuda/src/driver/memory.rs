//! Allocating, copying and registering memory by address.

use super::order::Relaxed;
use super::{Driver, Fault, RawStream, check};
use cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemAttach_flags_enum, CUmemorytype};
use std::ffi::c_void;

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`; the flags for registering have the same
/// values. Not write-combined, which the CPU would read slowly.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// A length for the driver. Longer than the address space is longer than any memory.
fn size(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// A host address for the driver.
fn host(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// One side of a copy of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// The first row's address.
    pub(crate) address: u64,
    /// Bytes from the start of a row to the start of the next, at least a row's length.
    pub(crate) pitch: u64,
}

impl Driver {
    /// Allocates memory of the current context's device.
    pub(crate) fn mem_alloc(&self, len: u64) -> Result<u64, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut address = 0;
        // SAFETY: `address` is writable for the call.
        let answer = unsafe { (self.api.mem_alloc)(&raw mut address, size(len)) };
        check("cuMemAlloc", answer)?;
        Ok(address)
    }

    /// Allocates managed memory.
    pub(crate) fn mem_alloc_managed(&self, len: u64) -> Result<u64, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut address = 0;
        let attach = CUmemAttach_flags_enum::CU_MEM_ATTACH_GLOBAL as u32;
        // SAFETY: `address` is writable for the call.
        let answer = unsafe { (self.api.mem_alloc_managed)(&raw mut address, size(len), attach) };
        check("cuMemAllocManaged", answer)?;
        Ok(address)
    }

    /// Frees what `mem_alloc` or `mem_alloc_managed` gave.
    ///
    /// # Safety
    /// It was not freed before, and nothing uses it any more.
    pub(crate) unsafe fn mem_free(&self, address: u64) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: the caller's own promise.
        let answer = unsafe { (self.api.mem_free)(address) };
        check("cuMemFree", answer)
    }

    /// Allocates memory of the device's pool, there once the stream gets so far.
    pub(crate) fn mem_alloc_async(&self, len: u64, stream: &RawStream) -> Result<u64, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut address = 0;
        // SAFETY: `address` is writable for the call; the stream lives while it is borrowed.
        let answer =
            unsafe { (self.api.mem_alloc_async)(&raw mut address, size(len), stream.pointer()) };
        check("cuMemAllocAsync", answer)?;
        Ok(address)
    }

    /// Gives it back to the pool, once the stream gets so far.
    ///
    /// # Safety
    /// It came from a pool, was not freed before, and nothing uses it after what is on the stream now.
    pub(crate) unsafe fn mem_free_async(
        &self,
        address: u64,
        stream: &RawStream,
    ) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: the caller's own promise; the stream lives while it is borrowed.
        let answer = unsafe { (self.api.mem_free_async)(address, stream.pointer()) };
        check("cuMemFreeAsync", answer)
    }

    /// Free and total memory of the current context's device, in bytes.
    pub(crate) fn mem_info(&self) -> Result<(u64, u64), Fault> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: both are writable for the call.
        let answer = unsafe { (self.api.mem_info)(&raw mut free, &raw mut total) };
        check("cuMemGetInfo", answer)?;
        Ok((free as u64, total as u64))
    }

    /// Start and length of the allocation that an address lies in; wrong addresses are refused.
    pub(crate) fn address_range(&self, address: u64) -> Result<(u64, u64), Fault> {
        let (mut start, mut len) = (0, 0usize);
        // SAFETY: both are writable for the call.
        let answer = unsafe { (self.api.mem_address_range)(&raw mut start, &raw mut len, address) };
        check("cuMemGetAddressRange", answer)?;
        Ok((start, len as u64))
    }

    /// Allocates page-locked host memory that every device can reach.
    pub(crate) fn host_alloc(&self, len: u64) -> Result<u64, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut at: *mut c_void = std::ptr::null_mut();
        // SAFETY: `at` is writable for the call.
        let answer =
            unsafe { (self.api.mem_host_alloc)(&raw mut at, size(len), PORTABLE_AND_MAPPED) };
        check("cuMemHostAlloc", answer)?;
        Ok(at.expose_provenance() as u64)
    }

    /// Frees what [`host_alloc`](Driver::host_alloc) gave.
    ///
    /// # Safety
    /// It was not freed before, and nothing uses it any more.
    pub(crate) unsafe fn host_free(&self, address: u64) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: the caller's own promise.
        let answer = unsafe { (self.api.mem_host_free)(host(address)) };
        check("cuMemFreeHost", answer)
    }

    /// Page-locks mapped host memory and lets every device reach it.
    ///
    /// # Safety
    /// The bytes stay mapped until [`host_unregister`](Driver::host_unregister).
    pub(crate) unsafe fn host_register(&self, address: u64, len: u64) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: the caller vouches for the bytes; the driver refuses ones that are not mapped.
        let answer =
            unsafe { (self.api.mem_host_register)(host(address), size(len), PORTABLE_AND_MAPPED) };
        check("cuMemHostRegister", answer)
    }

    /// Undoes [`host_register`](Driver::host_register).
    ///
    /// # Safety
    /// The bytes that were registered at `address` are used by no work in flight.
    pub(crate) unsafe fn host_unregister(&self, address: u64) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: the caller's own promise.
        let answer = unsafe { (self.api.mem_host_unregister)(host(address)) };
        check("cuMemHostUnregister", answer)
    }

    /// Where the current context's device finds page-locked host memory; other addresses are
    /// refused.
    pub(crate) fn host_device_pointer(&self, address: u64) -> Result<u64, Fault> {
        let mut there = 0;
        // SAFETY: `there` is writable for the call; the driver only looks the address up.
        let answer =
            unsafe { (self.api.mem_host_device_pointer)(&raw mut there, host(address), 0) };
        check("cuMemHostGetDevicePointer", answer)?;
        Ok(there)
    }

    /// Enqueues a copy. The driver tells by the addresses which memories they are.
    ///
    /// # Safety
    /// From when the stream gets there until it is done: `len` bytes at `src` are readable and not
    /// written, and `len` bytes at `dst` are writable and not touched otherwise; they do not
    /// overlap.
    pub(crate) unsafe fn memcpy(
        &self,
        dst: u64,
        src: u64,
        len: u64,
        stream: &RawStream,
    ) -> Result<(), Fault> {
        // SAFETY: the caller vouches for the bytes; the stream lives.
        let answer = unsafe { (self.api.memcpy)(dst, src, size(len), stream.pointer()) };
        check("cuMemcpyAsync", answer)
    }

    /// Enqueues a copy of `rows` rows of `width` bytes.
    ///
    /// # Safety
    /// As for [`memcpy`](Driver::memcpy), for every row.
    pub(crate) unsafe fn memcpy_2d(
        &self,
        dst: Rows,
        src: Rows,
        width: u64,
        rows: u64,
        stream: &RawStream,
    ) -> Result<(), Fault> {
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            srcHost: std::ptr::null(),
            srcDevice: src.address,
            srcArray: std::ptr::null_mut(),
            srcPitch: size(src.pitch),
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            dstHost: std::ptr::null_mut(),
            dstDevice: dst.address,
            dstArray: std::ptr::null_mut(),
            dstPitch: size(dst.pitch),
            WidthInBytes: size(width),
            Height: size(rows),
        };
        // SAFETY: `copy` is read during the call; the caller vouches for the bytes; the stream
        // lives.
        let answer = unsafe { (self.api.memcpy_2d)(&raw const copy, stream.pointer()) };
        check("cuMemcpy2DAsync", answer)
    }

    /// Enqueues setting `len` bytes to `value`.
    ///
    /// # Safety
    /// From when the stream gets there until it is done, `len` bytes at `dst` are device memory,
    /// writable and not touched otherwise.
    pub(crate) unsafe fn memset(
        &self,
        dst: u64,
        value: u8,
        len: u64,
        stream: &RawStream,
    ) -> Result<(), Fault> {
        // SAFETY: the caller vouches for the bytes; the stream lives.
        let answer = unsafe { (self.api.memset)(dst, value, size(len), stream.pointer()) };
        check("cuMemsetD8Async", answer)
    }
}
