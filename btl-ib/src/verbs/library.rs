//! `libibverbs`, opened at run time. The types are those of `rdma-sys`; none of its functions that need linking is named,
//! so that a program starts where the library is not installed.

use gapless_btl::LinkError;
use rdma_sys::{
    ibv_access_flags, ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_ex, ibv_srq, ibv_srq_init_attr,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

const NAME: &CStr = c"libibverbs.so.1";

/// `ibv_reg_dmabuf_mr`: domain, offset in the dma-buf, length, first address, descriptor, access.
pub(crate) type RegDmaBuf =
    unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

macro_rules! entry_points {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The entry points.
        pub(crate) struct Library {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// `None` in a library before release 34.
            pub(crate) reg_dmabuf_mr: Option<RegDmaBuf>,
        }

        impl Library {
            fn load(handle: Handle) -> Result<Library, String> {
                Ok(Library {
                    $($field: {
                        let symbol = handle.symbol($symbol)?;
                        // SAFETY: rdma-core's headers, from which rdma-sys is made, declare the symbol of that name
                        // with this type, and its first version is kept for good; it is not null.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(symbol)
                        }
                    },)*
                    reg_dmabuf_mr: handle.symbol(c"ibv_reg_dmabuf_mr").ok().map(|symbol| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, RegDmaBuf>(symbol) }
                    }),
                })
            }
        }
    };
}

entry_points! {
    get_device_list = c"ibv_get_device_list": fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list = c"ibv_free_device_list": fn(*mut *mut ibv_device);
    get_device_name = c"ibv_get_device_name": fn(*mut ibv_device) -> *const c_char;
    open_device = c"ibv_open_device": fn(*mut ibv_device) -> *mut ibv_context;
    close_device = c"ibv_close_device": fn(*mut ibv_context) -> c_int;
    query_device = c"ibv_query_device": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    query_gid = c"ibv_query_gid": fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    query_gid_ex = c"_ibv_query_gid_ex": fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    alloc_pd = c"ibv_alloc_pd": fn(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd = c"ibv_dealloc_pd": fn(*mut ibv_pd) -> c_int;
    reg_mr_iova2 = c"ibv_reg_mr_iova2": fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    dereg_mr = c"ibv_dereg_mr": fn(*mut ibv_mr) -> c_int;
    create_comp_channel = c"ibv_create_comp_channel": fn(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel = c"ibv_destroy_comp_channel": fn(*mut ibv_comp_channel) -> c_int;
    get_cq_event = c"ibv_get_cq_event": fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events = c"ibv_ack_cq_events": fn(*mut ibv_cq, c_uint);
    resize_cq = c"ibv_resize_cq": fn(*mut ibv_cq, c_int) -> c_int;
    destroy_cq = c"ibv_destroy_cq": fn(*mut ibv_cq) -> c_int;
    create_srq = c"ibv_create_srq": fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    destroy_srq = c"ibv_destroy_srq": fn(*mut ibv_srq) -> c_int;
    qp_to_qp_ex = c"ibv_qp_to_qp_ex": fn(*mut ibv_qp) -> *mut ibv_qp_ex;
    modify_qp = c"ibv_modify_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    destroy_qp = c"ibv_destroy_qp": fn(*mut ibv_qp) -> c_int;
    create_ah = c"ibv_create_ah": fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    destroy_ah = c"ibv_destroy_ah": fn(*mut ibv_ah) -> c_int;
    get_async_event = c"ibv_get_async_event": fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ack_async_event = c"ibv_ack_async_event": fn(*mut ibv_async_event);
    wc_status_str = c"ibv_wc_status_str": fn(c_uint) -> *const c_char;
}

/// Says that the bindings are those of `rdma-sys`, whose sets of flags are not used as types here.
pub(crate) const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;

/// An open library; never closed.
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

impl Handle {
    fn open() -> Result<Handle, String> {
        // SAFETY: the name ends with a zero. The library's own initialisation is sound, as in any program that links it.
        let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() { Err(why("it cannot be opened")) } else { Ok(Handle(handle)) }
    }

    fn symbol(self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: the handle is of a library that is never closed, the name ends with a zero.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if symbol.is_null() { Err(why("it is too old")) } else { Ok(symbol) }
    }
}

/// What the dynamic linker says.
fn why(otherwise: &str) -> String {
    // SAFETY: `dlerror` gives null or a string of this thread.
    let said = unsafe { libc::dlerror() };
    if said.is_null() {
        return otherwise.to_owned();
    }
    // SAFETY: a string that ends with a zero, and stays until this thread calls the linker again.
    unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned()
}

/// The library.
///
/// # Errors
/// It is not installed, or too old.
pub(crate) fn library() -> Result<&'static Library, LinkError> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| Library::load(Handle::open()?));
    library.as_ref().map_err(|reason| LinkError::System {
        operation: "opening libibverbs.so.1 (rdma-core)",
        reason: reason.clone(),
    })
}
