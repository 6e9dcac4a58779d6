//! Kernels from their source at run time, by NVRTC. It is a library of the CUDA toolkit, not of the driver; it is
//! opened when it is first needed.

use crate::CudaError;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

/// `nvrtcProgram`.
type Program = *mut c_void;
/// Names of headers, which no program here has.
type Strings = *const *const c_char;

/// The library's functions. They answer `nvrtcResult`, which is a number here: later releases have more of them.
struct Nvrtc {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        Strings,
        Strings,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, Strings) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    /// Of the log, and of the PTX.
    sizes: [unsafe extern "C" fn(Program, *mut usize) -> c_int; 2],
    texts: [unsafe extern "C" fn(Program, *mut c_char) -> c_int; 2],
}

/// Which text of a program.
const LOG: usize = 0;
const PTX: usize = 1;

/// A program, destroyed when it is dropped.
struct Source {
    nvrtc: &'static Nvrtc,
    raw: Program,
}

impl Drop for Source {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed here alone.
        unsafe { (self.nvrtc.destroy)(&raw mut self.raw) };
    }
}

impl Source {
    /// The log or the PTX; nothing if there is none.
    fn text(&self, which: usize) -> String {
        let mut len = 0;
        // SAFETY: the program lives, and `len` is writable.
        if unsafe { (self.nvrtc.sizes[which])(self.raw, &raw mut len) } != 0 {
            return String::new();
        }
        let mut text = vec![0u8; len + 1];
        // SAFETY: the program lives; the text is as long as was just said, its NUL included.
        unsafe { (self.nvrtc.texts[which])(self.raw, text.as_mut_ptr().cast()) };
        let end = CStr::from_bytes_until_nul(&text).map_or(0, |text| text.count_bytes());
        String::from_utf8_lossy(&text[..end]).into_owned()
    }
}

fn open() -> Result<&'static Nvrtc, CudaError> {
    static OPEN: OnceLock<Result<Nvrtc, CudaError>> = OnceLock::new();
    OPEN.get_or_init(|| {
        // SAFETY: runs the initialisers of the vendor's library, which is what opening it is for.
        let present = unsafe { cudarc::nvrtc::sys::is_culib_present() };
        if !present {
            let reason = "libnvrtc.so of the CUDA toolkit cannot be opened".to_owned();
            return Err(CudaError::NoCompiler { reason });
        }
        // SAFETY: as above; it was found a moment ago, and stays open from here on.
        let library = unsafe { cudarc::nvrtc::sys::culib() };
        macro_rules! find {
            ($name:literal) => {{
                // SAFETY: the field's type is that of `nvrtc.h`, with numbers for its enumeration, and the library
                // stays open.
                let symbol = unsafe { library.get(concat!($name, "\0").as_bytes()) };
                *symbol.map_err(|_| CudaError::NoCompiler {
                    reason: concat!("the CUDA toolkit's NVRTC has no ", $name).to_owned(),
                })?
            }};
        }
        Ok(Nvrtc {
            create: find!("nvrtcCreateProgram"),
            compile: find!("nvrtcCompileProgram"),
            destroy: find!("nvrtcDestroyProgram"),
            sizes: [find!("nvrtcGetProgramLogSize"), find!("nvrtcGetPTXSize")],
            texts: [find!("nvrtcGetProgramLog"), find!("nvrtcGetPTX")],
        })
    })
    .as_ref()
    .map_err(Clone::clone)
}

/// Compiles CUDA C++, without headers, to PTX, which [`Module::load`](crate::Module::load) takes. Options are NVRTC's:
/// `--gpu-architecture=compute_80`, say. Kernels that are `extern "C"` keep their names.
///
/// # Errors
/// [`CudaError::NoCompiler`] where there is no CUDA toolkit; [`CudaError::Compile`] with the compiler's log; a source or
/// an option with a NUL in it.
pub fn compile(source: &str, options: &[&str]) -> Result<String, CudaError> {
    let text = |text: &str| {
        let log = "a NUL in the source or an option".to_owned();
        CString::new(text).map_err(|_| CudaError::Compile { log })
    };
    let source = text(source)?;
    let options: Vec<CString> =
        options.iter().map(|option| text(option)).collect::<Result<_, _>>()?;
    let nvrtc = open()?;
    let (mut raw, none) = (std::ptr::null_mut(), std::ptr::null());
    let name = c"kernels.cu".as_ptr();
    // SAFETY: `raw` is writable, both texts live until the program is destroyed, and there are no headers.
    let created = unsafe { (nvrtc.create)(&raw mut raw, source.as_ptr(), name, 0, none, none) };
    if created != 0 {
        return Err(CudaError::Compile { log: format!("NVRTC's error {created}") });
    }
    let program = Source { nvrtc, raw };
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let count = c_int::try_from(pointers.len()).unwrap_or(0);
    // SAFETY: the program lives, and so many options do.
    let compiled = unsafe { (nvrtc.compile)(program.raw, count, pointers.as_ptr()) };
    if compiled != 0 {
        let log = program.text(LOG);
        let log = if log.is_empty() { format!("NVRTC's error {compiled}") } else { log };
        return Err(CudaError::Compile { log });
    }
    match program.text(PTX) {
        none if none.is_empty() => {
            let log = "NVRTC made no PTX with these options".to_owned();
            Err(CudaError::Compile { log })
        }
        ptx => Ok(ptx),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_compiled_or_its_mistake_is_told() {
        let source = "extern \"C\" __global__ void one(int *at) { *at = 1; }";
        let options = ["--gpu-architecture=compute_80"];
        let ptx = match compile(source, &options) {
            Err(error @ CudaError::NoCompiler { .. }) => {
                return gapless_testkit::skip("compiling CUDA C++", &error.to_string());
            }
            compiled => compiled.unwrap(),
        };
        assert!(ptx.contains(".entry one(") && ptx.contains("sm_80"), "{ptx}");
        let Err(CudaError::Compile { log }) = compile("kernel", &options) else { panic!() };
        assert!(log.contains("kernels.cu(1)"), "{log}");
        let Err(CudaError::Compile { log }) = compile("\0", &options) else { panic!() };
        assert!(log.contains("NUL"), "{log}");
    }
}
