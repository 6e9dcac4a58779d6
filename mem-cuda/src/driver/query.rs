//! Devices, contexts, and what the driver knows of a pointer.

use super::order::Relaxed;
use super::{Driver, Fault, check};
use crate::error::code;
use cudarc::driver::sys::{
    CUctx_st, CUmemPoolHandle_st, CUpointer_attribute_enum as Attribute, CUuuid,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// A device's primary context, retained. Ends with [`Driver::primary_release`].
#[derive(Debug)]
pub(crate) struct RawContext {
    pointer: *mut CUctx_st,
    device: c_int,
}

// SAFETY: a context may be made current on any thread; the driver locks.
unsafe impl Send for RawContext {}
// SAFETY: as above.
unsafe impl Sync for RawContext {}

/// What was current on a thread: possibly nothing, possibly a context of somebody else's. Belongs
/// to its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Current(*mut CUctx_st);

impl Current {
    /// Whether it is this context.
    pub(crate) fn is(self, context: &RawContext) -> bool {
        std::ptr::eq(self.0, context.pointer)
    }
}

/// What the driver knows of an address, as it says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawPointer {
    /// 0 unknown, 1 host, 2 device.
    pub(crate) memory_type: u32,
    /// The device that the memory lies on or was registered through.
    pub(crate) ordinal: i32,
    /// Whether the driver migrates it.
    pub(crate) managed: bool,
    /// Where the allocation starts.
    pub(crate) start: u64,
    /// Its length in bytes.
    pub(crate) len: u64,
    /// Different for every allocation of the process; 0 if there is none.
    pub(crate) buffer_id: u64,
}

/// A pool that memory is allocated from; of what the driver has just said, to be asked about.
#[derive(Debug)]
pub(crate) struct RawPool(*mut CUmemPoolHandle_st);

impl RawPool {
    pub(super) fn pointer(&self) -> *mut CUmemPoolHandle_st {
        self.0
    }
}

/// How memory was allocated: what decides who may use it.
#[derive(Debug)]
pub(crate) enum AllocationKind {
    /// `cuMemAlloc`: whoever has peer access to the device.
    Plain,
    /// From a pool: whom the pool names.
    Pool(RawPool),
    /// VMM: whom the mapping names. Also what the driver does not tell.
    Other,
}

impl Driver {
    /// How many devices there are.
    pub(crate) fn device_count(&self) -> Result<u32, Fault> {
        let mut count: c_int = 0;
        // SAFETY: `count` is writable for the call.
        let answer = unsafe { (self.api.device_count)(&raw mut count) };
        if answer == code::NO_DEVICE {
            return Ok(0);
        }
        check("cuDeviceGetCount", answer)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The driver's name for the device of an ordinal.
    pub(crate) fn device_get(&self, ordinal: u32) -> Result<c_int, Fault> {
        let mut device: c_int = 0;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: `device` is writable for the call; any ordinal may be asked for.
        let answer = unsafe { (self.api.device_get)(&raw mut device, ordinal) };
        check("cuDeviceGet", answer)?;
        Ok(device)
    }

    /// What the vendor calls it.
    pub(crate) fn device_name(&self, device: c_int) -> Result<String, Fault> {
        let mut name = [0u8; 256];
        // One byte stays 0 whatever is written.
        let room = 255;
        let at = name.as_mut_ptr().cast::<c_char>();
        // SAFETY: `at` is writable for `room` bytes; wrong devices are refused.
        let answer = unsafe { (self.api.device_name)(at, room, device) };
        check("cuDeviceGetName", answer)?;
        Ok(CStr::from_bytes_until_nul(&name)
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default())
    }

    /// One of the device's numbers (`CUdevice_attribute`).
    pub(crate) fn device_attribute(&self, device: c_int, which: u32) -> Result<i32, Fault> {
        let mut value: c_int = 0;
        // SAFETY: `value` is writable for the call; unknown attributes and devices are refused.
        let answer = unsafe { (self.api.device_attribute)(&raw mut value, which, device) };
        check("cuDeviceGetAttribute", answer)?;
        Ok(value)
    }

    /// Its memory in bytes.
    pub(crate) fn device_memory(&self, device: c_int) -> Result<u64, Fault> {
        let mut bytes = 0usize;
        // SAFETY: `bytes` is writable for the call.
        let answer = unsafe { (self.api.device_total_mem)(&raw mut bytes, device) };
        check("cuDeviceTotalMem", answer)?;
        Ok(bytes as u64)
    }

    /// A name for the physical device that all processes agree on.
    pub(crate) fn device_uuid(&self, device: c_int) -> Result<[u8; 16], Fault> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `uuid` is writable for the call.
        let answer = unsafe { (self.api.device_uuid)(&raw mut uuid, device) };
        check("cuDeviceGetUuid", answer)?;
        Ok(uuid.bytes.map(c_char::cast_unsigned))
    }

    /// Whether one device can reach another's memory by itself.
    pub(crate) fn can_access_peer(&self, device: c_int, peer: c_int) -> Result<bool, Fault> {
        let mut can: c_int = 0;
        // SAFETY: `can` is writable for the call; wrong devices are refused.
        let answer = unsafe { (self.api.device_can_access_peer)(&raw mut can, device, peer) };
        check("cuDeviceCanAccessPeer", answer)?;
        Ok(can != 0)
    }

    /// Retains a device's primary context, the one that the CUDA runtime uses too.
    pub(crate) fn primary_retain(&self, device: c_int) -> Result<RawContext, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut pointer: *mut CUctx_st = std::ptr::null_mut();
        // SAFETY: `pointer` is writable for the call; wrong devices are refused.
        let answer = unsafe { (self.api.primary_retain)(&raw mut pointer, device) };
        check("cuDevicePrimaryCtxRetain", answer)?;
        Ok(RawContext { pointer, device })
    }

    /// Gives it back.
    pub(crate) fn primary_release(&self, context: RawContext) -> Result<(), Fault> {
        // SAFETY: undoes the one `primary_retain` that made `context`.
        let answer = unsafe { (self.api.primary_release)(context.device) };
        check("cuDevicePrimaryCtxRelease", answer)
    }

    /// What is current on this thread.
    pub(crate) fn current(&self) -> Result<Current, Fault> {
        let mut pointer: *mut CUctx_st = std::ptr::null_mut();
        // SAFETY: `pointer` is writable for the call.
        let answer = unsafe { (self.api.ctx_get_current)(&raw mut pointer) };
        check("cuCtxGetCurrent", answer)?;
        Ok(Current(pointer))
    }

    /// Makes a context current on this thread.
    pub(crate) fn set_current(&self, context: &RawContext) -> Result<(), Fault> {
        // SAFETY: the context is retained while `context` lives.
        let answer = unsafe { (self.api.ctx_set_current)(context.pointer) };
        check("cuCtxSetCurrent", answer)
    }

    /// Makes current again what was current on this thread.
    ///
    /// # Safety
    /// `before` came from [`current`](Driver::current) on this thread, and its owner has not ended
    /// it since.
    pub(crate) unsafe fn restore(&self, before: Current) -> Result<(), Fault> {
        // SAFETY: nothing, or a context that was current on this thread and, says the caller, lives.
        let answer = unsafe { (self.api.ctx_set_current)(before.0) };
        check("cuCtxSetCurrent", answer)
    }

    /// Lets the current context's device reach the memory of `peer`'s. Doing so again is no error.
    pub(crate) fn enable_peer(&self, peer: &RawContext) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: the peer's context is retained while `peer` lives; the only flags defined are 0.
        let answer = unsafe { (self.api.ctx_enable_peer)(peer.pointer, 0) };
        if answer == code::PEER_ACCESS_ALREADY_ENABLED {
            return Ok(());
        }
        check("cuCtxEnablePeerAccess", answer)
    }

    /// What the driver knows of an address; an address it has never heard of gives all zeros.
    pub(crate) fn pointer(&self, address: u64) -> Result<RawPointer, Fault> {
        const ASKED: c_uint = 6;
        let mut which: [c_uint; ASKED as usize] = [
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_uint,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_uint,
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED as c_uint,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as c_uint,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE as c_uint,
            Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID as c_uint,
        ];
        // The answers have 1 to 8 bytes; each gets 8, zeroed, and the machine is little-endian.
        let mut values = [0u64; ASKED as usize];
        let mut places = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        // SAFETY: `which` and `places` have `ASKED` entries, and each place has room for the
        // longest answer; any address may be asked for.
        let answer = unsafe {
            (self.api.pointer_attributes)(ASKED, which.as_mut_ptr(), places.as_mut_ptr(), address)
        };
        check("cuPointerGetAttributes", answer)?;
        let [memory_type, ordinal, managed, start, len, buffer_id] = values;
        Ok(RawPointer {
            memory_type: low(memory_type),
            ordinal: low(ordinal).cast_signed(),
            managed: managed != 0,
            start,
            len,
            buffer_id,
        })
    }

    /// What kind of allocation is at an address.
    pub(crate) fn allocation_kind(&self, address: u64) -> Result<AllocationKind, Fault> {
        let mut which: [c_uint; 2] = [
            Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as c_uint,
            Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as c_uint,
        ];
        let mut plain = 0u64;
        let mut pool: *mut CUmemPoolHandle_st = std::ptr::null_mut();
        let mut places = [(&raw mut plain).cast::<c_void>(), (&raw mut pool).cast::<c_void>()];
        // SAFETY: `which` and `places` have two entries, and each place has room for its answer; any address may be
        // asked for.
        let answer = unsafe {
            (self.api.pointer_attributes)(2, which.as_mut_ptr(), places.as_mut_ptr(), address)
        };
        check("cuPointerGetAttributes", answer)?;
        Ok(match (low(plain), pool.is_null()) {
            (_, false) => AllocationKind::Pool(RawPool(pool)),
            (0, true) => AllocationKind::Other,
            (_, true) => AllocationKind::Plain,
        })
    }

    /// The id of the allocation at an address; `None` where the driver knows none.
    pub(crate) fn buffer_id(&self, address: u64) -> Option<u64> {
        let mut id = 0u64;
        let which = Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID as c_uint;
        let at = (&raw mut id).cast::<c_void>();
        // SAFETY: `at` has room for the 8 bytes of this attribute; any address may be asked for.
        let answer = unsafe { (self.api.pointer_attribute)(at, which, address) };
        (answer == 0 && id != 0).then_some(id)
    }
}

/// The low half, in which the driver has left a 32-bit answer.
fn low(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
