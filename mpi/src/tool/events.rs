//! Events and enumerations (MPI 4.1 §15.3.5, §15.3.8): there are none, so every handle, index and name of one is wrong.

use super::{fail, no_handle, ready};
use crate::arg::{HandleOut, Out};
use crate::call::Done;
use crate::face::{self, RawHandle};
use crate::info::Info;
use std::ffi::{CStr, c_char, c_int, c_void};

type Handle = *mut c_void;
type Text = *mut c_char;
type Number = *mut c_int;

macro_rules! none {
    ($error:expr => $($name:ident($($kind:ty),*))*) => {
        $(
            pub(crate) fn $name($(_: $kind),*) -> Done {
                ready()?;
                Err($error)
            }
        )*
    };
}

none! { no_handle() =>
    t_enum_get_info(Handle, Out<c_int>, Text, Number)
    t_enum_get_item(Handle, c_int, Out<c_int>, Text, Number)
    t_event_callback_get_info(Handle, c_int, HandleOut)
    t_event_callback_set_info(Handle, c_int, Option<Info>)
    t_event_copy(Handle, Handle)
    t_event_get_source(Handle, Out<c_int>)
    t_event_get_timestamp(Handle, Out<i64>)
    t_event_handle_free(Handle, Handle, *const c_void)
    t_event_handle_get_info(Handle, HandleOut)
    t_event_handle_set_info(Handle, Option<Info>)
    t_event_read(Handle, c_int, Handle)
    t_event_register_callback(Handle, c_int, Option<Info>, Handle, *const c_void)
    t_event_set_dropped_handler(Handle, *const c_void)
}

none! { fail(face::T_ERR_INVALID_INDEX, "there are no events and no sources of any") =>
    t_event_get_info(c_int, Text, Number, Number, *mut RawHandle, *mut i64, Number, Handle, *mut RawHandle, Text, Number, Number)
    t_event_handle_alloc(c_int, Handle, Option<Info>, Handle)
    t_source_get_info(c_int, Text, Number, Text, Number, Handle, *mut i64, *mut i64, *mut RawHandle)
    t_source_get_timestamp(c_int, Out<i64>)
}

none! { fail(face::T_ERR_INVALID_NAME, "there are no events") =>
    t_event_get_index(&CStr, Out<c_int>)
}

pub(crate) fn t_event_get_num(num_events: Out<c_int>) -> Done {
    ready()?;
    num_events.set(0);
    Ok(())
}

pub(crate) fn t_source_get_num(num_sources: Out<c_int>) -> Done {
    ready()?;
    num_sources.set(0);
    Ok(())
}
