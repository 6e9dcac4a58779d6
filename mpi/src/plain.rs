//! Functions that give no error code: clocks, addresses, handles as numbers.

use crate::face::{self, RawHandle};
use std::ffi::c_int;
use std::sync::OnceLock;
use std::time::Instant;

pub(crate) fn wtime() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

pub(crate) fn wtick() -> f64 {
    1e-9
}

pub(crate) fn aint_add(base: i64, disp: i64) -> i64 {
    base.wrapping_add(disp)
}

pub(crate) fn aint_diff(addr1: i64, addr2: i64) -> i64 {
    addr1.wrapping_sub(addr2)
}

/// Handles are the same numbers in all languages (MPI 5.0 §19.3.4).
pub(crate) fn toint(handle: RawHandle) -> c_int {
    face::number(handle).cast_signed()
}

pub(crate) fn fromint(number: c_int) -> RawHandle {
    face::handle(number.cast_unsigned())
}

/// Whether buffers may lie in memory of CUDA devices: 1 or 0. As other MPI libraries have it.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "its name in other MPI libraries")]
extern "C" fn MPIX_Query_cuda_support() -> c_int {
    c_int::from(crate::process::has_devices())
}
