//! cuBLAS, if its library is here: whose matrix product an application would run beside a worker. It is opened at run
//! time; nothing of it is built in.
//!
//! Types and numbers are those of `cublas_v2.h` 12 and 13.

use crate::error::Failure;
use std::ffi::{CString, c_int, c_void};

type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type SetStream = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Sgemm = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    *const f32,
    *mut f32,
    c_int,
) -> c_int;

/// Operand as it is.
const AS_IT_IS: c_int = 0;

/// cuBLAS on the device whose context is current, and a stream. It ends with the process.
pub struct Cublas {
    handle: *mut c_void,
    sgemm: Sgemm,
}

fn find(library: *mut c_void, name: &str) -> Result<*mut c_void, Failure> {
    let symbol = CString::new(name).map_err(|_| Failure::Job("a name with a NUL".to_owned()))?;
    // SAFETY: the library is open, and the name ends in NUL.
    let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
    if found.is_null() { Err(Failure::Job(format!("cuBLAS has no {name}"))) } else { Ok(found) }
}

fn check(what: &str, answer: c_int) -> Result<(), Failure> {
    match answer {
        0 => Ok(()),
        code => Err(Failure::Job(format!("{what} of cuBLAS answered {code}"))),
    }
}

impl Cublas {
    /// For this stream.
    ///
    /// # Errors
    /// There is no library at `path`, or it refuses.
    ///
    /// # Safety
    /// The stream is one of the context that is current, and lives as long as this.
    pub unsafe fn new(path: &str, stream: *mut c_void) -> Result<Cublas, Failure> {
        let library = crate::nccl::library(path).map_err(Failure::Job)?;
        // SAFETY: cuBLAS's function of this name, whose type its header fixes as written here.
        let create = unsafe {
            std::mem::transmute::<*mut c_void, Create>(find(library, "cublasCreate_v2")?)
        };
        let set_stream = find(library, "cublasSetStream_v2")?;
        // SAFETY: likewise.
        let set_stream = unsafe { std::mem::transmute::<*mut c_void, SetStream>(set_stream) };
        // SAFETY: likewise.
        let sgemm =
            unsafe { std::mem::transmute::<*mut c_void, Sgemm>(find(library, "cublasSgemm_v2")?) };
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is writable for the call.
        check("cublasCreate", unsafe { create(&raw mut handle) })?;
        // SAFETY: the handle was just made; the caller vouches for the stream.
        check("cublasSetStream", unsafe { set_stream(handle, stream) })?;
        Ok(Cublas { handle, sgemm })
    }

    /// Queues the product of two matrices of `n` by `n` floats.
    ///
    /// # Errors
    /// cuBLAS refuses.
    ///
    /// # Safety
    /// The addresses (two factors, the product) are those of device memory that is long enough, and nothing else touches
    /// it until the work has ended.
    pub unsafe fn multiply(&self, n: u32, [a, b, c]: [u64; 3]) -> Result<(), Failure> {
        let large = |_| Failure::Job("matrices or addresses beyond this machine's".to_owned());
        let at = |address: u64| {
            usize::try_from(address)
                .map(std::ptr::with_exposed_provenance_mut::<f32>)
                .map_err(large)
        };
        let (a, b, c) = (at(a)?, at(b)?, at(c)?);
        let n = c_int::try_from(n).map_err(large)?;
        let (one, zero) = (1.0, 0.0);
        // SAFETY: the handle lives; the factors are read before the call returns; the caller's promise for the rest.
        let answer = unsafe {
            (self.sgemm)(
                self.handle,
                AS_IT_IS,
                AS_IT_IS,
                n,
                n,
                n,
                &raw const one,
                a,
                n,
                b,
                n,
                &raw const zero,
                c,
                n,
            )
        };
        check("cublasSgemm", answer)
    }
}
