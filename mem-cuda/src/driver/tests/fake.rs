//! A pretend driver for tests without a GPU: one device, events that end after some queries, and
//! answers that a test chooses. Its state belongs to the thread, as each test does.

use crate::driver::{Api, Driver};
use cudarc::driver::sys::{
    CUctx_st, CUdeviceptr, CUevent_st, CUipcMemHandle, CUmemLocation, CUmemPoolHandle_st,
    CUstream_st, CUuuid,
};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// What the driver answers, and what was asked of it.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) version: i32,
    /// The answer to `cuInit`.
    pub(crate) init: u32,
    pub(crate) devices: i32,
    /// The answer to allocations.
    pub(crate) alloc: u32,
    /// How often an event must be queried before it has ended.
    pub(crate) queries: u32,
    /// The answer of an event that has ended, or failed.
    pub(crate) ended: u32,
    /// The id that an address has now; 0 for none.
    pub(crate) buffer_id: u64,
    pub(crate) events_made: usize,
    pub(crate) events_ended: usize,
    pub(crate) copies: Vec<(u64, u64, usize)>,
    /// How many copies are taken before one is refused.
    pub(crate) copy_fails_from: usize,
    /// The answer to recording an event.
    pub(crate) record: u32,
    pub(crate) waits: usize,
    /// Addresses and values that streams wait for; `None` for a driver that lacks the call.
    pub(crate) values: Option<Vec<(u64, u32)>>,
    /// The answer of that call.
    pub(crate) value: u32,
    /// Whether streams are being captured.
    pub(crate) captured: u32,
    /// Whether the one allocation is `cuMemAlloc`'s, or a pool's, with what the pool says of access; and what VMM says of
    /// access to it. How often its kind was asked for.
    pub(crate) plain: bool,
    pub(crate) pool: bool,
    pub(crate) pool_access: u32,
    pub(crate) vmm: Option<u64>,
    pub(crate) kinds_asked: usize,
    /// What the device says of adapters' writes, and of flushing them.
    pub(crate) ordering: i32,
    pub(crate) flushes: i32,
    /// How often they were flushed; and the ranges that dma-bufs were asked for.
    pub(crate) flushed: usize,
    pub(crate) ranges: Vec<(u64, usize)>,
    /// The address of what is current.
    pub(crate) current: usize,
    /// The calls that messages are made of: what is current, making it so, records, queries, waits.
    pub(crate) calls: Vec<&'static str>,
}

impl Default for State {
    fn default() -> State {
        State {
            version: 13000,
            init: 0,
            devices: 1,
            alloc: 0,
            queries: 0,
            ended: 0,
            buffer_id: 7,
            events_made: 0,
            events_ended: 0,
            copies: Vec::new(),
            copy_fails_from: usize::MAX,
            record: 0,
            waits: 0,
            values: None,
            captured: 0,
            value: 0,
            plain: true,
            pool: false,
            pool_access: 0,
            vmm: None,
            kinds_asked: 0,
            ordering: 100,
            flushes: 1,
            flushed: 0,
            ranges: Vec::new(),
            current: 0,
            calls: Vec::new(),
        }
    }
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// Replaces this thread's state.
pub(crate) fn set(state: State) {
    STATE.set(state);
}

/// Looks at, or changes, this thread's state.
pub(crate) fn with<T>(act: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(act)
}

/// The pretend driver, started; it is never freed.
pub(crate) fn driver() -> &'static Driver {
    Box::leak(Box::new(Driver::start(api()).expect("the pretend driver starts")))
}

/// Writes through an out-parameter, as the driver does.
fn put<T>(at: *mut T, value: T) -> u32 {
    // SAFETY: the code under test passes writable places of the right type.
    unsafe { at.write(value) };
    0
}

/// The pretend driver's functions; what is not listed refuses.
pub(crate) fn api() -> Api {
    let mut api = Api::refusing();
    unsafe extern "C" fn init(_: c_uint) -> u32 {
        with(|state| state.init)
    }
    unsafe extern "C" fn version(at: *mut c_int) -> u32 {
        put(at, with(|state| state.version))
    }
    unsafe extern "C" fn string(code: u32, at: *mut *const c_char) -> u32 {
        if code == 999 { put(at, c"the text of 999".as_ptr()) } else { 1 }
    }
    unsafe extern "C" fn name(_: u32, at: *mut *const c_char) -> u32 {
        put(at, c"CUDA_ERROR_NAMED".as_ptr())
    }
    unsafe extern "C" fn count(at: *mut c_int) -> u32 {
        put(at, with(|state| state.devices))
    }
    unsafe extern "C" fn get(at: *mut c_int, ordinal: c_int) -> u32 {
        put(at, ordinal)
    }
    unsafe extern "C" fn device_name(at: *mut c_char, _: c_int, _: c_int) -> u32 {
        put(at.cast::<[u8; 8]>(), *b"Pretend\0")
    }
    unsafe extern "C" fn attribute(at: *mut c_int, which: c_uint, _: c_int) -> u32 {
        let value = with(|state| match which {
            117 => state.flushes,
            118 => state.ordering,
            _ => 1 << 16,
        });
        put(at, value)
    }
    unsafe extern "C" fn flush(_: c_uint, _: c_uint) -> u32 {
        with(|state| state.flushed += 1);
        0
    }
    unsafe extern "C" fn range_handle(
        at: *mut c_void,
        address: CUdeviceptr,
        len: usize,
        _: c_uint,
        _: u64,
    ) -> u32 {
        with(|state| state.ranges.push((address, len)));
        let file = std::fs::File::open("/dev/null").expect("it is there");
        put(at.cast::<c_int>(), std::os::fd::IntoRawFd::into_raw_fd(file))
    }
    unsafe extern "C" fn memory(at: *mut usize, _: c_int) -> u32 {
        put(at, 1 << 30)
    }
    unsafe extern "C" fn uuid(at: *mut CUuuid, _: c_int) -> u32 {
        put(at, CUuuid { bytes: [9; 16] })
    }
    unsafe extern "C" fn retain(at: *mut *mut CUctx_st, device: c_int) -> u32 {
        let address = 0x1000 + usize::try_from(device).unwrap_or(0);
        put(at, std::ptr::without_provenance_mut(address))
    }
    unsafe extern "C" fn release(_: c_int) -> u32 {
        0
    }
    unsafe extern "C" fn current(at: *mut *mut CUctx_st) -> u32 {
        let current = with(|state| {
            state.calls.push("get");
            state.current
        });
        put(at, std::ptr::without_provenance_mut(current))
    }
    unsafe extern "C" fn set_current(context: *mut CUctx_st) -> u32 {
        with(|state| {
            state.calls.push("set");
            state.current = context.addr();
        });
        0
    }
    unsafe extern "C" fn alloc(at: *mut CUdeviceptr, _: usize) -> u32 {
        let answer = with(|state| state.alloc);
        if answer == 0 { put(at, 0x7000_0000) } else { answer }
    }
    unsafe extern "C" fn free(_: CUdeviceptr) -> u32 {
        0
    }
    unsafe extern "C" fn memcpy(
        dst: CUdeviceptr,
        src: CUdeviceptr,
        len: usize,
        _: *mut CUstream_st,
    ) -> u32 {
        with(|state| {
            if state.copies.len() >= state.copy_fails_from {
                return 2;
            }
            state.copies.push((dst, src, len));
            0
        })
    }
    unsafe extern "C" fn stream(at: *mut *mut CUstream_st, _: c_uint) -> u32 {
        put(at, std::ptr::without_provenance_mut(0x2000))
    }
    unsafe extern "C" fn is_capturing(_: *mut CUstream_st, at: *mut c_uint) -> u32 {
        put(at, with(|state| state.captured))
    }
    unsafe extern "C" fn stream_end(_: *mut CUstream_st) -> u32 {
        0
    }
    unsafe extern "C" fn wait(_: *mut CUstream_st, _: *mut CUevent_st, _: c_uint) -> u32 {
        with(|state| state.waits += 1);
        0
    }
    unsafe extern "C" fn event(at: *mut *mut CUevent_st, _: c_uint) -> u32 {
        let made = with(|state| {
            state.events_made += 1;
            state.events_made
        });
        put(at, std::ptr::without_provenance_mut(0x3000 + made))
    }
    unsafe extern "C" fn event_end(_: *mut CUevent_st) -> u32 {
        with(|state| state.events_ended += 1);
        0
    }
    unsafe extern "C" fn record(_: *mut CUevent_st, _: *mut CUstream_st) -> u32 {
        with(|state| {
            state.calls.push("record");
            state.record
        })
    }
    unsafe extern "C" fn query(_: *mut CUevent_st) -> u32 {
        with(|state| {
            state.calls.push("query");
            if state.queries > 0 {
                state.queries -= 1;
                return crate::error::code::NOT_READY;
            }
            state.ended
        })
    }
    unsafe extern "C" fn stream_query(_: *mut CUstream_st) -> u32 {
        with(|state| {
            if state.queries > 0 {
                state.queries -= 1;
                return crate::error::code::NOT_READY;
            }
            state.ended
        })
    }
    /// Page-locked memory is ordinary memory, never freed.
    unsafe extern "C" fn host_alloc(at: *mut *mut c_void, len: usize, _: c_uint) -> u32 {
        let memory = vec![0u64; len.div_ceil(8)].leak();
        put(at, memory.as_mut_ptr().cast())
    }
    unsafe extern "C" fn device_pointer(at: *mut CUdeviceptr, host: *mut c_void, _: c_uint) -> u32 {
        put(at, host.expose_provenance() as u64)
    }
    unsafe extern "C" fn wait_value(
        _: *mut CUstream_st,
        at: CUdeviceptr,
        value: u32,
        _: c_uint,
    ) -> u32 {
        with(|state| {
            state.values.get_or_insert_default().push((at, value));
            state.value
        })
    }
    unsafe extern "C" fn proc_address(
        name: *const c_char,
        at: *mut *mut c_void,
        _: c_int,
        _: u64,
        status: *mut c_uint,
    ) -> u32 {
        // SAFETY: the code under test passes a text that ends in NUL.
        let name = unsafe { std::ffi::CStr::from_ptr(name) };
        if name != c"cuStreamWaitValue32" || with(|state| state.values.is_none()) {
            return 500;
        }
        put(status, 0);
        put(at, wait_value as *mut c_void)
    }
    /// There is one allocation.
    unsafe extern "C" fn range(at: *mut CUdeviceptr, len: *mut usize, of: CUdeviceptr) -> u32 {
        if !(0x7000_0000..0x7000_1000).contains(&of) {
            return 1;
        }
        put(at, 0x7000_0000);
        put(len, 4096)
    }
    unsafe extern "C" fn ipc_get(at: *mut CUipcMemHandle, _: CUdeviceptr) -> u32 {
        put(at, CUipcMemHandle { reserved: [4; 64] })
    }
    unsafe extern "C" fn pointer(at: *mut c_void, _: c_uint, _: CUdeviceptr) -> u32 {
        put(at.cast::<u64>(), with(|state| state.buffer_id))
    }
    unsafe extern "C" fn pointers(
        asked: c_uint,
        _: *mut c_uint,
        at: *mut *mut c_void,
        of: CUdeviceptr,
    ) -> u32 {
        let known = (0x7000_0000..0x7000_1000).contains(&of);
        if asked == 2 {
            let (plain, pool) = with(|state| {
                state.kinds_asked += 1;
                (known && state.plain, known && state.pool)
            });
            // SAFETY: the code under test passes two places.
            let [first, second] = unsafe { *at.cast::<[*mut u64; 2]>() };
            put(first, u64::from(plain));
            return put(second, u64::from(pool) * 0x5000);
        }
        let id = if known { with(|state| state.buffer_id) } else { 0 };
        let known = u64::from(id != 0);
        let answers = [2 * known, 0, 0, 0x7000_0000 * known, 4096 * known, id];
        // SAFETY: the code under test passes six places.
        let places = unsafe { *at.cast::<[*mut u64; 6]>() };
        for (place, answer) in places.into_iter().zip(answers) {
            put(place, answer);
        }
        0
    }
    unsafe extern "C" fn pool_access(
        at: *mut c_uint,
        _: *mut CUmemPoolHandle_st,
        _: *const CUmemLocation,
    ) -> u32 {
        put(at, with(|state| state.pool_access))
    }
    unsafe extern "C" fn vmm_access(at: *mut u64, _: *const CUmemLocation, _: CUdeviceptr) -> u32 {
        with(|state| state.vmm).map_or(1, |flags| put(at, flags))
    }
    unsafe extern "C" fn can_access_peer(at: *mut c_int, _: c_int, _: c_int) -> u32 {
        put(at, 1)
    }
    unsafe extern "C" fn enable_peer(_: *mut CUctx_st, _: c_uint) -> u32 {
        0
    }
    api.pool_access = pool_access;
    api.vmm_access = vmm_access;
    api.device_can_access_peer = can_access_peer;
    api.ctx_enable_peer = enable_peer;
    api.init = init;
    api.driver_version = version;
    api.error_string = string;
    api.error_name = name;
    api.device_count = count;
    api.device_get = get;
    api.device_name = device_name;
    api.device_attribute = attribute;
    api.device_total_mem = memory;
    api.device_uuid = uuid;
    api.primary_retain = retain;
    api.primary_release = release;
    api.ctx_get_current = current;
    api.ctx_set_current = set_current;
    api.mem_alloc = alloc;
    api.mem_free = free;
    api.memcpy = memcpy;
    api.mem_address_range = range;
    api.range_handle = range_handle;
    api.flush_direct_writes = flush;
    api.ipc_mem_get = ipc_get;
    api.mem_host_alloc = host_alloc;
    api.mem_host_device_pointer = device_pointer;
    api.proc_address = proc_address;
    api.stream_create = stream;
    api.stream_is_capturing = is_capturing;
    api.stream_destroy = stream_end;
    api.stream_query = stream_query;
    api.stream_wait_event = wait;
    api.event_create = event;
    api.event_destroy = event_end;
    api.event_record = record;
    api.event_query = query;
    api.pointer_attribute = pointer;
    api.pointer_attributes = pointers;
    api
}
