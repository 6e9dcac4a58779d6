//! The functions of the driver library that are used here: name, type, and how they are found.
//!
//! The types are written out instead of taken from the binding's own functions for two reasons. A
//! function that an old driver lacks is an error here, found when the driver is opened, not a panic
//! at its first call. And every answer is a plain number: a newer driver may answer with a code
//! that the binding's enumeration does not have.

use crate::CudaError;
use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUctx_st, CUdeviceptr, CUevent_st, CUfunc_st, CUgraph_st, CUgraphExec_st,
    CUipcEventHandle, CUipcMemHandle, CUlinkState_st, CUmemAccessDesc, CUmemAllocationProp,
    CUmemLocation, CUmemPoolHandle_st, CUmemcpyAttributes, CUmod_st, CUstream_st, CUuuid,
};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `cuMemcpyBatchAsync` of CUDA 12.8. Release 13.0 took `failIdx` out of it; drivers keep both.
pub(super) type CopyBatch = unsafe extern "C" fn(
    *mut CUdeviceptr,
    *mut CUdeviceptr,
    *mut usize,
    usize,
    *mut CUmemcpyAttributes,
    *mut usize,
    usize,
    *mut usize,
    Stream,
) -> u32;

/// Its version for [`Driver::copy_batch`](super::Driver::copy_batch).
pub(super) const COPY_BATCH_VERSION: c_int = 12080;

/// `cuStreamWaitValue32` as CUDA 11.7 declares it anew: stream, address, value, flags.
pub(crate) type WaitValue = unsafe extern "C" fn(Stream, CUdeviceptr, u32, c_uint) -> u32;

/// The version of its second form, which needs no option of the kernel module.
pub(super) const WAIT_VALUE_VERSION: c_int = 12000;

/// Finds a symbol's address.
pub(crate) type Find<'a> = &'a mut dyn FnMut(&'static str) -> Option<*mut c_void>;

macro_rules! symbols {
    ($($(#[$doc:meta])* $field:ident = $name:literal ($($arg:ty),* $(,)?);)*) => {
        /// The driver's functions. All answer with a `CUresult`; 0 is success.
        pub(crate) struct Api {
            $($(#[$doc])* pub(super) $field: unsafe extern "C" fn($($arg),*) -> u32,)*
        }

        impl Api {
            /// Finds every function.
            ///
            /// # Errors
            /// The first one that is not there.
            ///
            /// # Safety
            /// `find` gives, for a name, the address of the CUDA driver's function of that name.
            pub(crate) unsafe fn resolve(find: Find<'_>) -> Result<Api, CudaError> {
                Ok(Api {
                    $($field: {
                        let address =
                            find($name).ok_or(CudaError::MissingSymbol { name: $name })?;
                        // SAFETY: the caller vouches that this is the driver's function of this
                        // name, whose C type the CUDA driver API fixes as written below.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) -> u32,
                            >(address)
                        }
                    },)*
                })
            }

            /// A driver that refuses everything (`CUDA_ERROR_NOT_SUPPORTED`): what tests start from.
            #[cfg(test)]
            pub(crate) fn refusing() -> Api {
                Api {
                    $($field: {
                        unsafe extern "C" fn refuse($(_: $arg),*) -> u32 {
                            801
                        }
                        refuse
                    },)*
                }
            }
        }
    };
}

type Context = *mut CUctx_st;
type Event = *mut CUevent_st;
type Function = *mut CUfunc_st;
type Module = *mut CUmod_st;
type LinkState = *mut CUlinkState_st;
type Stream = *mut CUstream_st;

symbols! {
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    /// Functions that only newer drivers have are asked for by this one, with the version whose types are meant.
    proc_address = "cuGetProcAddress_v2"
        (*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint);
    error_name = "cuGetErrorName" (u32, *mut *const c_char);
    error_string = "cuGetErrorString" (u32, *mut *const c_char);

    device_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_uint, c_int);
    device_total_mem = "cuDeviceTotalMem_v2" (*mut usize, c_int);
    device_uuid = "cuDeviceGetUuid_v2" (*mut CUuuid, c_int);
    device_can_access_peer = "cuDeviceCanAccessPeer" (*mut c_int, c_int, c_int);

    primary_retain = "cuDevicePrimaryCtxRetain" (*mut Context, c_int);
    primary_release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    ctx_get_current = "cuCtxGetCurrent" (*mut Context);
    ctx_set_current = "cuCtxSetCurrent" (Context);
    ctx_enable_peer = "cuCtxEnablePeerAccess" (Context, c_uint);

    mem_alloc = "cuMemAlloc_v2" (*mut CUdeviceptr, usize);
    mem_alloc_managed = "cuMemAllocManaged" (*mut CUdeviceptr, usize, c_uint);
    mem_free = "cuMemFree_v2" (CUdeviceptr);
    mem_alloc_async = "cuMemAllocAsync" (*mut CUdeviceptr, usize, Stream);
    mem_free_async = "cuMemFreeAsync" (CUdeviceptr, Stream);
    mem_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    mem_address_range = "cuMemGetAddressRange_v2" (*mut CUdeviceptr, *mut usize, CUdeviceptr);
    mem_host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    mem_host_free = "cuMemFreeHost" (*mut c_void);
    mem_host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    mem_host_unregister = "cuMemHostUnregister" (*mut c_void);
    mem_host_device_pointer =
        "cuMemHostGetDevicePointer_v2" (*mut CUdeviceptr, *mut c_void, c_uint);
    memcpy = "cuMemcpyAsync" (CUdeviceptr, CUdeviceptr, usize, Stream);
    memcpy_2d = "cuMemcpy2DAsync_v2" (*const CUDA_MEMCPY2D, Stream);
    memset = "cuMemsetD8Async" (CUdeviceptr, u8, usize, Stream);

    pool_access = "cuMemPoolGetAccess" (*mut c_uint, *mut CUmemPoolHandle_st, *const CUmemLocation);

    pointer_attribute = "cuPointerGetAttribute" (*mut c_void, c_uint, CUdeviceptr);
    pointer_attributes =
        "cuPointerGetAttributes" (c_uint, *mut c_uint, *mut *mut c_void, CUdeviceptr);

    stream_create = "cuStreamCreate" (*mut Stream, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (Stream);
    stream_wait_event = "cuStreamWaitEvent" (Stream, Event, c_uint);
    stream_query = "cuStreamQuery" (Stream);
    stream_is_capturing = "cuStreamIsCapturing" (Stream, *mut c_uint);
    thread_capture_mode = "cuThreadExchangeStreamCaptureMode" (*mut c_uint);
    capture_begin = "cuStreamBeginCapture_v2" (Stream, c_uint);
    capture_end = "cuStreamEndCapture" (Stream, *mut *mut CUgraph_st);
    graph_instantiate =
        "cuGraphInstantiateWithFlags" (*mut *mut CUgraphExec_st, *mut CUgraph_st, u64);
    graph_launch = "cuGraphLaunch" (*mut CUgraphExec_st, Stream);
    graph_destroy = "cuGraphDestroy" (*mut CUgraph_st);
    graph_exec_destroy = "cuGraphExecDestroy" (*mut CUgraphExec_st);
    event_create = "cuEventCreate" (*mut Event, c_uint);
    event_destroy = "cuEventDestroy_v2" (Event);
    event_record = "cuEventRecord" (Event, Stream);
    event_query = "cuEventQuery" (Event);
    event_elapsed = "cuEventElapsedTime" (*mut f32, Event, Event);

    ipc_mem_get = "cuIpcGetMemHandle" (*mut CUipcMemHandle, CUdeviceptr);
    ipc_mem_open = "cuIpcOpenMemHandle_v2" (*mut CUdeviceptr, CUipcMemHandle, c_uint);
    ipc_mem_close = "cuIpcCloseMemHandle" (CUdeviceptr);
    ipc_event_get = "cuIpcGetEventHandle" (*mut CUipcEventHandle, Event);
    ipc_event_open = "cuIpcOpenEventHandle" (*mut Event, CUipcEventHandle);

    vmm_create = "cuMemCreate" (*mut u64, usize, *const CUmemAllocationProp, u64);
    vmm_release = "cuMemRelease" (u64);
    vmm_reserve = "cuMemAddressReserve" (*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
    vmm_unreserve = "cuMemAddressFree" (CUdeviceptr, usize);
    vmm_map = "cuMemMap" (CUdeviceptr, usize, usize, u64, u64);
    vmm_unmap = "cuMemUnmap" (CUdeviceptr, usize);
    vmm_set_access = "cuMemSetAccess" (CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    vmm_access = "cuMemGetAccess" (*mut u64, *const CUmemLocation, CUdeviceptr);
    vmm_granularity =
        "cuMemGetAllocationGranularity" (*mut usize, *const CUmemAllocationProp, c_uint);
    vmm_export = "cuMemExportToShareableHandle" (*mut c_void, u64, c_uint, u64);
    vmm_import = "cuMemImportFromShareableHandle" (*mut u64, *mut c_void, c_uint);
    range_handle =
        "cuMemGetHandleForAddressRange" (*mut c_void, CUdeviceptr, usize, c_uint, u64);
    flush_direct_writes = "cuFlushGPUDirectRDMAWrites" (c_uint, c_uint);

    module_load = "cuModuleLoadData" (*mut Module, *const c_void);
    module_unload = "cuModuleUnload" (Module);
    link_create = "cuLinkCreate_v2" (c_uint, *mut c_uint, *mut *mut c_void, *mut LinkState);
    link_add = "cuLinkAddData_v2" (
        LinkState, c_uint, *mut c_void, usize, *const c_char, c_uint, *mut c_uint, *mut *mut c_void,
    );
    link_complete = "cuLinkComplete" (LinkState, *mut *mut c_void, *mut usize);
    link_destroy = "cuLinkDestroy" (LinkState);
    module_function = "cuModuleGetFunction" (*mut Function, Module, *const c_char);
    function_load = "cuFuncLoad" (Function);
    function_attribute = "cuFuncGetAttribute" (*mut c_int, c_uint, Function);
    function_parameter = "cuFuncGetParamInfo" (Function, usize, *mut usize, *mut usize);
    function_set_attribute = "cuFuncSetAttribute" (Function, c_uint, c_int);
    launch = "cuLaunchKernel" (
        Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream,
        *mut *mut c_void, *mut *mut c_void,
    );
    occupancy =
        "cuOccupancyMaxActiveBlocksPerMultiprocessor" (*mut c_int, Function, c_int, usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_function_is_named() {
        let mut asked = 0;
        let mut find = |name: &'static str| {
            asked += 1;
            (name != "cuIpcOpenMemHandle_v2").then(|| std::ptr::without_provenance_mut(0x1000))
        };
        // SAFETY: the table is dropped at the first missing symbol and nothing is called.
        let error = unsafe { Api::resolve(&mut find) }.err().unwrap();
        assert_eq!(error, CudaError::MissingSymbol { name: "cuIpcOpenMemHandle_v2" });
        assert!(asked > 30);
    }
}
