//! A stream that waits for a word in memory: `cuStreamWaitValue32`.

use super::symbols::{WAIT_VALUE_VERSION, WaitValue};
use super::{Driver, Fault, RawStream, check};
use cudarc::driver::sys::CUstreamWaitValue_flags_enum as Condition;
use std::ffi::{c_uint, c_void};

impl Driver {
    /// The function; asked for once. `None` from a driver that lacks it.
    pub(crate) fn wait_value_function(&self) -> Option<WaitValue> {
        *self.wait_value.get_or_init(|| {
            let mut address: *mut c_void = std::ptr::null_mut();
            let mut status: c_uint = 0;
            let name = c"cuStreamWaitValue32".as_ptr();
            // SAFETY: the name ends in NUL, `address` and `status` are writable for the call, and 0
            // asks for the usual stream semantics.
            let answer = unsafe {
                let (address, status) = (&raw mut address, &raw mut status);
                (self.api.proc_address)(name, address, WAIT_VALUE_VERSION, 0, status)
            };
            if answer != 0 || status != 0 || address.is_null() {
                return None;
            }
            // SAFETY: the driver found its function of this name in its second form, which is the
            // type written out.
            Some(unsafe { std::mem::transmute::<*mut c_void, WaitValue>(address) })
        })
    }

    /// Later work on the stream waits until the word at `address` is `value` or past it, counted
    /// modulo 2³² (`(word − value) as i32 ≥ 0`).
    ///
    /// # Safety
    /// The word is four aligned bytes of page-locked memory, by its device address, and stays so
    /// until the stream has passed.
    pub(crate) unsafe fn stream_wait_value(
        &self,
        function: WaitValue,
        stream: &RawStream,
        address: u64,
        value: u32,
    ) -> Result<(), Fault> {
        let reached = Condition::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
        // SAFETY: the stream lives while it is borrowed; the caller vouches for the word.
        let answer = unsafe { function(stream.pointer(), address, value, reached) };
        check("cuStreamWaitValue32", answer)
    }
}
