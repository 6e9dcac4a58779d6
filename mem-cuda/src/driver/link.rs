//! Linking relocatable device code, by the linker that the driver brings.

use super::launch::RawModule;
use super::order::Relaxed;
use super::{Driver, Fault, check};
use cudarc::driver::sys::{CUlinkState_st, CUmod_st};
use std::ffi::{CStr, c_uint, c_void};

/// Bytes of what the linker says, at most.
const LOG_BYTES: usize = 16 << 10;

/// `CUjit_option`.
const MAX_REGISTERS: c_uint = 0;
const ERROR_LOG: c_uint = 5;
const ERROR_LOG_BYTES: c_uint = 6;

/// What is linked: an image, complete as for [`Driver::module_load`], and its name for the linker's log.
pub(crate) struct LinkPart<'a> {
    pub(crate) image: &'a [u64],
    /// Bytes of the image; of PTX, with its NUL.
    pub(crate) len: usize,
    /// `CUjitInputType`.
    pub(crate) kind: u32,
    pub(crate) name: &'a CStr,
}

/// Why nothing was linked.
pub(crate) struct LinkFault {
    pub(crate) fault: Fault,
    /// What the linker said; empty if it said nothing.
    pub(crate) log: String,
}

/// A linker at work, which is destroyed when this is dropped. Until then the driver writes to the log that its options name.
struct Linker<'d> {
    driver: &'d Driver,
    raw: *mut CUlinkState_st,
}

impl Drop for Linker<'_> {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed here alone.
        let answer = unsafe { (self.driver.api.link_destroy)(self.raw) };
        debug_assert_eq!(answer, 0);
    }
}

impl Driver {
    /// Links images in the current context, and loads the result. No thread has more than `registers` registers.
    ///
    /// # Safety
    /// Each image is complete, and CUDA's tools made it.
    pub(crate) unsafe fn link(
        &self,
        parts: &[LinkPart<'_>],
        registers: u32,
    ) -> Result<RawModule, LinkFault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [MAX_REGISTERS, ERROR_LOG, ERROR_LOG_BYTES];
        // By value, in the place of pointers; the linker writes back how much it has said.
        let mut values = [
            std::ptr::without_provenance_mut::<c_void>(registers as usize),
            log.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(LOG_BYTES),
        ];
        let linked = (|| {
            let mut raw: *mut CUlinkState_st = std::ptr::null_mut();
            // SAFETY: three options with their values, and the buffer that they name, outlive the linker, which ends
            // with this closure; `raw` is writable.
            let answer = unsafe {
                (self.api.link_create)(3, options.as_mut_ptr(), values.as_mut_ptr(), &raw mut raw)
            };
            check("cuLinkCreate", answer)?;
            let linker = Linker { driver: self, raw };
            for part in parts {
                // SAFETY: the linker lives; the image is as long as it says, and read during the call; no options.
                let answer = unsafe {
                    (self.api.link_add)(
                        linker.raw,
                        part.kind,
                        part.image.as_ptr().cast_mut().cast(),
                        part.len,
                        part.name.as_ptr(),
                        0,
                        std::ptr::null_mut(),
                        std::ptr::null_mut(),
                    )
                };
                check("cuLinkAddData", answer)?;
            }
            let (mut image, mut len): (*mut c_void, usize) = (std::ptr::null_mut(), 0);
            // SAFETY: the linker lives; both are writable.
            let answer =
                unsafe { (self.api.link_complete)(linker.raw, &raw mut image, &raw mut len) };
            check("cuLinkComplete", answer)?;
            let mut module: *mut CUmod_st = std::ptr::null_mut();
            // SAFETY: the linker has made the image, and keeps it until it is destroyed, behind this call.
            let answer = unsafe { (self.api.module_load)(&raw mut module, image) };
            check("cuModuleLoadData", answer)?;
            Ok(RawModule(module))
        })();
        linked.map_err(|fault| LinkFault { fault, log: text(&log) })
    }
}

/// What was written there, up to its NUL.
fn text(log: &[u8]) -> String {
    let said = log.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(said).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_ends_at_its_nul() {
        assert_eq!(text(b" undefined 'f'\n\0old"), "undefined 'f'");
        assert_eq!((text(b""), text(b"no end")), (String::new(), "no end".to_owned()));
    }
}
