//! Memory and events of other processes, and memory whose address and contents are apart (VMM).

use super::order::{RawEvent, Relaxed};
use super::{Driver, Fault, RawPool, check};
use cudarc::driver::sys::{
    CUevent_st, CUflushGPUDirectRDMAWritesScope_enum as Scope,
    CUflushGPUDirectRDMAWritesTarget_enum as Target, CUipcEventHandle, CUipcMem_flags_enum,
    CUipcMemHandle, CUmemAccess_flags_enum, CUmemAccessDesc, CUmemAllocationGranularity_flags_enum,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType_enum, CUmemLocation, CUmemLocationType_enum, CUmemRangeHandleType_enum,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes of a driver's handle for another process.
pub(crate) const HANDLE: usize = 64;

/// All access that there is.
const READ_AND_WRITE: u32 = CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32;

/// Memory of a device without an address. Ends with [`Driver::vmm_release`].
#[derive(Debug)]
pub(crate) struct MemoryHandle(u64);

/// Devices that may read and write a mapping.
pub(crate) type Access<'a> = &'a [c_int];

fn property(device: c_int) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(device: c_int) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn size(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

impl Driver {
    /// A handle for the allocation at an address; memory that cannot be shared so is refused.
    pub(crate) fn ipc_export(&self, address: u64) -> Result<[u8; HANDLE], Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut handle = CUipcMemHandle { reserved: [0; HANDLE] };
        // SAFETY: `handle` is writable for the call; the driver looks the address up.
        let answer = unsafe { (self.api.ipc_mem_get)(&raw mut handle, address) };
        check("cuIpcGetMemHandle", answer)?;
        Ok(handle.reserved.map(c_char::cast_unsigned))
    }

    /// Maps what another process exported; wrong handles are refused.
    pub(crate) fn ipc_open(&self, handle: [u8; HANDLE]) -> Result<u64, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let handle = CUipcMemHandle { reserved: handle.map(u8::cast_signed) };
        let lazily = CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: `address` is writable for the call; the driver checks the handle.
        let answer = unsafe { (self.api.ipc_mem_open)(&raw mut address, handle, lazily) };
        check("cuIpcOpenMemHandle", answer)?;
        Ok(address)
    }

    /// Unmaps it.
    ///
    /// # Safety
    /// [`ipc_open`](Driver::ipc_open) gave the address, and nothing uses the mapping any more.
    pub(crate) unsafe fn ipc_close(&self, address: u64) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: the caller's own promise.
        let answer = unsafe { (self.api.ipc_mem_close)(address) };
        check("cuIpcCloseMemHandle", answer)
    }

    /// A handle for an event that was made to be shared; others are refused.
    pub(crate) fn ipc_export_event(&self, event: &RawEvent) -> Result<[u8; HANDLE], Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut handle = CUipcEventHandle { reserved: [0; HANDLE] };
        // SAFETY: `handle` is writable for the call, the event lives while it is borrowed.
        let answer = unsafe { (self.api.ipc_event_get)(&raw mut handle, event.0) };
        check("cuIpcGetEventHandle", answer)?;
        Ok(handle.reserved.map(c_char::cast_unsigned))
    }

    /// An event of another process's; wrong handles are refused.
    pub(crate) fn ipc_open_event(&self, handle: [u8; HANDLE]) -> Result<RawEvent, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let handle = CUipcEventHandle { reserved: handle.map(u8::cast_signed) };
        let mut pointer: *mut CUevent_st = std::ptr::null_mut();
        // SAFETY: `pointer` is writable for the call; the driver checks the handle.
        let answer = unsafe { (self.api.ipc_event_open)(&raw mut pointer, handle) };
        check("cuIpcOpenEventHandle", answer)?;
        Ok(RawEvent(pointer))
    }

    /// What lengths and addresses of VMM memory must be multiples of, in bytes.
    pub(crate) fn vmm_granularity(&self, device: c_int) -> Result<u64, Fault> {
        let mut bytes = 0usize;
        let property = property(device);
        let least = CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM as u32;
        // SAFETY: `bytes` is writable and `property` readable for the call.
        let answer =
            unsafe { (self.api.vmm_granularity)(&raw mut bytes, &raw const property, least) };
        check("cuMemGetAllocationGranularity", answer)?;
        Ok(bytes as u64)
    }

    /// Memory of `device` that can be exported as a descriptor.
    pub(crate) fn vmm_create(&self, device: c_int, len: u64) -> Result<MemoryHandle, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut handle = 0;
        let property = property(device);
        // SAFETY: `handle` is writable and `property` readable for the call; wrong lengths are
        // refused.
        let answer =
            unsafe { (self.api.vmm_create)(&raw mut handle, size(len), &raw const property, 0) };
        check("cuMemCreate", answer)?;
        Ok(MemoryHandle(handle))
    }

    /// Gives memory up; it is freed once nothing maps or holds it.
    pub(crate) fn vmm_release(&self, allocation: MemoryHandle) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: an allocation of ours, consumed here: it ends once.
        let answer = unsafe { (self.api.vmm_release)(allocation.0) };
        check("cuMemRelease", answer)
    }

    /// Reserves addresses.
    pub(crate) fn vmm_reserve(&self, len: u64) -> Result<u64, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut address = 0;
        // SAFETY: `address` is writable for the call; wrong lengths are refused.
        let answer = unsafe { (self.api.vmm_reserve)(&raw mut address, size(len), 0, 0, 0) };
        check("cuMemAddressReserve", answer)?;
        Ok(address)
    }

    /// Gives reserved addresses back.
    ///
    /// # Safety
    /// [`vmm_reserve`](Driver::vmm_reserve) gave them, with this length, and nothing is mapped
    /// there.
    pub(crate) unsafe fn vmm_unreserve(&self, address: u64, len: u64) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: the caller's own promise.
        let answer = unsafe { (self.api.vmm_unreserve)(address, size(len)) };
        check("cuMemAddressFree", answer)
    }

    /// Puts memory at reserved addresses.
    ///
    /// # Safety
    /// [`vmm_reserve`](Driver::vmm_reserve) gave `len` bytes at `address`, and nothing is mapped
    /// there.
    pub(crate) unsafe fn vmm_map(
        &self,
        address: u64,
        len: u64,
        allocation: &MemoryHandle,
    ) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: the caller vouches for the addresses; the driver refuses a length that is not
        // the allocation's.
        let answer = unsafe { (self.api.vmm_map)(address, size(len), 0, allocation.0, 0) };
        check("cuMemMap", answer)
    }

    /// Takes memory away from addresses.
    ///
    /// # Safety
    /// [`vmm_map`](Driver::vmm_map) put it there, with this length, and nothing uses it any more.
    pub(crate) unsafe fn vmm_unmap(&self, address: u64, len: u64) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: the caller's own promise.
        let answer = unsafe { (self.api.vmm_unmap)(address, size(len)) };
        check("cuMemUnmap", answer)
    }

    /// Lets devices read and write mapped memory. Wrong addresses are refused.
    pub(crate) fn vmm_set_access(
        &self,
        address: u64,
        len: u64,
        devices: Access<'_>,
    ) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let rights: Vec<CUmemAccessDesc> = devices
            .iter()
            .map(|device| CUmemAccessDesc {
                location: location(*device),
                flags: CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            })
            .collect();
        // SAFETY: `rights` holds as many entries as are announced.
        let answer =
            unsafe { (self.api.vmm_set_access)(address, size(len), rights.as_ptr(), rights.len()) };
        check("cuMemSetAccess", answer)
    }

    /// Whether a device may read and write the mapping at an address; what was not mapped by VMM is refused.
    pub(crate) fn vmm_access(&self, address: u64, device: c_int) -> Result<bool, Fault> {
        let mut flags = 0u64;
        let whose = location(device);
        // SAFETY: `flags` is writable and `whose` readable for the call; any address may be asked for.
        let answer = unsafe { (self.api.vmm_access)(&raw mut flags, &raw const whose, address) };
        check("cuMemGetAccess", answer)?;
        Ok(flags == u64::from(READ_AND_WRITE))
    }

    /// Whether a device may read and write what comes from a pool. The pool lives: memory of it does.
    pub(crate) fn pool_access(&self, pool: &RawPool, device: c_int) -> Result<bool, Fault> {
        let mut flags: c_uint = 0;
        let whose = location(device);
        // SAFETY: `flags` is writable and `whose` readable for the call; the driver has just named the pool as that of
        // an allocation, which its owner keeps for now.
        let answer =
            unsafe { (self.api.pool_access)(&raw mut flags, pool.pointer(), &raw const whose) };
        check("cuMemPoolGetAccess", answer)?;
        Ok(flags == READ_AND_WRITE)
    }

    /// A descriptor by which any process can map the memory.
    pub(crate) fn vmm_export(&self, allocation: &MemoryHandle) -> Result<OwnedFd, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut raw: c_int = -1;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
        let at = (&raw mut raw).cast::<c_void>();
        // SAFETY: `at` has room for the descriptor that this kind of handle is.
        let answer = unsafe { (self.api.vmm_export)(at, allocation.0, kind, 0) };
        descriptor("cuMemExportToShareableHandle", answer, raw)
    }

    /// The memory of a descriptor; wrong descriptors are refused.
    pub(crate) fn vmm_import(&self, descriptor: BorrowedFd<'_>) -> Result<MemoryHandle, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut handle = 0;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
        // The driver wants the number itself in the place of a pointer.
        let number = usize::try_from(descriptor.as_raw_fd()).unwrap_or(usize::MAX);
        let number = std::ptr::without_provenance_mut::<c_void>(number);
        // SAFETY: `handle` is writable for the call and the descriptor open.
        let answer = unsafe { (self.api.vmm_import)(&raw mut handle, number, kind) };
        check("cuMemImportFromShareableHandle", answer)?;
        Ok(MemoryHandle(handle))
    }

    /// A dma-buf for device memory, for network adapters. Start and length must be multiples of the
    /// host's page; other ranges, and devices that cannot, are refused.
    pub(crate) fn dma_buf(&self, address: u64, len: u64) -> Result<OwnedFd, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut raw: c_int = -1;
        let kind = CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as u32;
        let at = (&raw mut raw).cast::<c_void>();
        // SAFETY: `at` has room for the descriptor that this kind of handle is.
        let answer = unsafe { (self.api.range_handle)(at, address, size(len), kind, 0) };
        descriptor("cuMemGetHandleForAddressRange", answer, raw)
    }

    /// Waits until what adapters have written into memory of the current context's device is seen there.
    pub(crate) fn flush_direct_writes(&self) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let current = Target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX as u32;
        let owner = Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER as u32;
        // SAFETY: plain numbers; the driver refuses where there is no context, or the device cannot.
        let answer = unsafe { (self.api.flush_direct_writes)(current, owner) };
        check("cuFlushGPUDirectRDMAWrites", answer)
    }
}

/// Owns a descriptor that the driver has just opened, unless it refused.
fn descriptor(call: &'static str, answer: u32, raw: c_int) -> Result<OwnedFd, Fault> {
    check(call, answer)?;
    if raw < 0 {
        // A driver that says success and gives none: `CUDA_ERROR_UNKNOWN`.
        return Err(Fault { call, code: 999 });
    }
    // SAFETY: the driver opened it for the caller, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}
