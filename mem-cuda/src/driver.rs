//! Raw calls of the CUDA driver, each as a function that answers with a [`Result`].
//!
//! Only this folder calls through foreign function pointers. Objects of the driver (streams, events,
//! modules, …) are values of types that only this folder makes and that are consumed by the call
//! that ends them, so a function that takes one by reference takes a live one. What cannot be
//! shown by types (addresses) is an obligation of an `unsafe fn`.
//!
//! The context is not bound here: callers hold a [`Bound`](crate::context::Bound).
//!
//! `symbols` finds the functions. The others wrap them by subject: `query` (devices, pointers), `memory`, `batch` (many
//! copies), `order` (streams, events), `wait` (on a word), `launch` and `link` (kernels), `graph`, `share` (other
//! processes).

mod batch;
mod graph;
mod launch;
mod libraries;
mod link;
mod memory;
mod order;
mod query;
mod share;
mod symbols;
mod wait;

pub(crate) use batch::Batch;
pub(crate) use graph::RawGraph;
pub(crate) use launch::{LaunchShape, RawFunction, RawModule};
pub(crate) use link::{LinkFault, LinkPart};
pub(crate) use memory::Rows;
pub(crate) use order::{EventUse, RawEvent, RawStream};
pub(crate) use query::{AllocationKind, Current, RawContext, RawPointer, RawPool};
pub(crate) use share::{HANDLE, MemoryHandle};
pub(crate) use symbols::Api;
pub(crate) use symbols::WaitValue;

use crate::CudaError;
use crate::error::code;
use libraries::AbsentUpTo;
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

/// The oldest CUDA version whose driver will do: 1000 × major + 10 × minor. It has every function
/// that [`symbols`] lists.
pub(crate) const OLDEST: u32 = 12040;

/// A call that the driver refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The driver's function.
    pub(crate) call: &'static str,
    /// Its answer.
    pub(crate) code: u32,
}

/// Success, or the fault.
fn check(call: &'static str, code: u32) -> Result<(), Fault> {
    if code == 0 { Ok(()) } else { Err(Fault { call, code }) }
}

/// The driver, open and initialised.
pub(crate) struct Driver {
    api: Api,
    /// 1000 × major + 10 × minor.
    pub(crate) version: u32,
    /// `cuMemcpyBatchAsync`, once it was asked for; newer than the oldest driver that will do.
    batch: OnceLock<Option<symbols::CopyBatch>>,
    /// `cuStreamWaitValue32`, once it was asked for; not every driver has it.
    wait_value: OnceLock<Option<symbols::WaitValue>>,
}

impl Driver {
    fn of(api: Api) -> Driver {
        Driver { api, version: 0, batch: OnceLock::new(), wait_value: OnceLock::new() }
    }

    /// Initialises a driver whose functions are known.
    ///
    /// # Errors
    /// It is too old, shows no device, or refuses.
    pub(crate) fn start(api: Api) -> Result<Driver, CudaError> {
        let mut driver = Driver::of(api);
        // The version comes first: it is known without a device, and explains later refusals.
        driver.version = driver.ask_version().map_err(|fault| driver.refusal(fault))?;
        if driver.version < OLDEST {
            return Err(CudaError::DriverTooOld { found: driver.version, needed: OLDEST });
        }
        // SAFETY: takes a number by value; the only flags defined are 0.
        let answer = unsafe { (driver.api.init)(0) };
        check("cuInit", answer).map_err(|fault| driver.refusal(fault))?;
        Ok(driver)
    }

    fn ask_version(&self) -> Result<u32, Fault> {
        let mut version: c_int = 0;
        // SAFETY: `version` is writable for the call.
        let answer = unsafe { (self.api.driver_version)(&raw mut version) };
        check("cuDriverGetVersion", answer)?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    /// A fault of the driver as a whole, not of one device.
    pub(crate) fn refusal(&self, fault: Fault) -> CudaError {
        match fault.code {
            code::NO_DEVICE => CudaError::NoDevice,
            code::STUB_LIBRARY => CudaError::NoDriver {
                reason: "the libcuda.so that was found is a stub for linking".to_owned(),
            },
            code => CudaError::Failed {
                device: "the CUDA driver".to_owned(),
                operation: fault.call,
                code,
                reason: self.describe(code),
            },
        }
    }

    /// What the driver says of a code: its text, name and number.
    pub(crate) fn describe(&self, code: u32) -> String {
        let ask = |function: unsafe extern "C" fn(u32, *mut *const c_char) -> u32| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: `text` is writable for the call; any code may be asked for.
            let answer = unsafe { function(code, &raw mut text) };
            if answer != 0 || text.is_null() {
                return None;
            }
            // SAFETY: the driver answered with one of its own NUL-terminated constants.
            let text = unsafe { CStr::from_ptr(text) };
            Some(text.to_string_lossy().into_owned())
        };
        match (ask(self.api.error_string), ask(self.api.error_name)) {
            (Some(text), Some(name)) => format!("{text} ({name}, {code})"),
            _ => format!("CUDA error {code}"),
        }
    }
}

/// The driver, or why there is none, once somebody has asked.
static OPEN: OnceLock<Result<Driver, CudaError>> = OnceLock::new();

/// Opens the driver library, once for the process; it is never closed.
///
/// # Errors
/// There is none, it lacks a function, is too old, or shows no device.
pub(crate) fn open() -> Result<&'static Driver, CudaError> {
    OPEN.get_or_init(|| {
        // SAFETY: runs the initialisers of the vendor's library, which is what opening it is for.
        let present = unsafe { cudarc::driver::sys::is_culib_present() };
        if !present {
            return Err(CudaError::NoDriver {
                reason: "the driver library libcuda.so.1 cannot be opened".to_owned(),
            });
        }
        // SAFETY: as above; it was found a moment ago, and stays open from here on.
        let library = unsafe { cudarc::driver::sys::culib() };
        let mut find = |name: &'static str| {
            // SAFETY: only the symbol's address is taken, whatever its type.
            let symbol = unsafe { library.get::<*mut std::ffi::c_void>(name.as_bytes()) };
            symbol.ok().map(|symbol| *symbol).filter(|address| !address.is_null())
        };
        // SAFETY: `find` looks in the driver library, which stays open.
        let api = unsafe { Api::resolve(&mut find) }?;
        Driver::start(api)
    })
    .as_ref()
    .map_err(Clone::clone)
}

/// The driver, if somebody in this process has opened its library already.
#[inline]
pub(crate) fn opened() -> Option<&'static Driver> {
    match OPEN.get() {
        Some(driver) => driver.as_ref().ok(),
        None => opened_by_others(),
    }
}

/// Among which libraries the driver's was not.
static ABSENT: AbsentUpTo = AbsentUpTo::nothing();

/// The same while this crate has not opened the driver: the linker is asked anew only if something was loaded since.
#[inline]
fn opened_by_others() -> Option<&'static Driver> {
    if ABSENT.is_last() { None } else { look_for_library() }
}

#[cold]
fn look_for_library() -> Option<&'static Driver> {
    let last = libraries::last();
    // SAFETY: the name is a C string; nothing is loaded, and no code runs.
    let found =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if found.is_null() {
        ABSENT.note(last);
        return None;
    }
    // SAFETY: gives back the reference that was just taken; whoever opened the library has one.
    unsafe { libc::dlclose(found) };
    open().ok()
}

#[cfg(test)]
pub(crate) mod tests;
