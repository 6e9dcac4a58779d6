//! What was asked of programs' own buffers, each once: the answers stand until the driver says that a buffer is gone
//! (`clSetMemObjectDestructorCallback`), before its handle can be another one's. No reference is held, so that a program's
//! memory is freed when the program says so.

use crate::OpenClError;
use crate::sys;
use opencl3::memory;
use opencl3::types::cl_mem;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What does not change while a buffer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferFacts {
    pub(crate) context: u64,
    pub(crate) len: u64,
}

/// By handles.
static KNOWN: Mutex<BTreeMap<u64, BufferFacts>> = Mutex::new(BTreeMap::new());

fn known() -> MutexGuard<'static, BTreeMap<u64, BufferFacts>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn destroyed(buffer: cl_mem, _: *mut c_void) {
    known().remove(&sys::number(buffer));
}

/// What is known of a live buffer, or what `ask` finds out now.
pub(crate) fn facts(
    buffer: cl_mem,
    ask: impl FnOnce() -> Result<BufferFacts, OpenClError>,
) -> Result<BufferFacts, OpenClError> {
    let number = sys::number(buffer);
    // Drivers are called without the lock: `destroyed` takes it.
    let found = known().get(&number).copied();
    if let Some(facts) = found {
        return Ok(facts);
    }
    let facts = ask()?;
    // SAFETY: the function takes no data, and is there as long as the process.
    let noted =
        unsafe { memory::set_mem_object_destructor_callback(buffer, destroyed, ptr::null_mut()) };
    // A driver that would not tell is asked each time.
    if noted.is_ok() {
        known().insert(number, facts);
    }
    Ok(facts)
}
