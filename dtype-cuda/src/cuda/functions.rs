//! The kernels of a device, each looked up once.

use crate::accelerator::{KERNELS, number};
use gapless_kernels::{IMAGE, Kernel};
use gapless_mem_cuda::{CudaDevice, CudaError, Function, Module};
use std::ffi::CString;
use std::sync::OnceLock;

/// The loaded image, and what was found in it so far.
pub(crate) struct Functions {
    module: Module,
    table: Box<[OnceLock<Function>]>,
}

impl Functions {
    #[allow(unsafe_code, reason = "loads the image that this build was made with")]
    pub(crate) fn load(device: &CudaDevice) -> Result<Functions, CudaError> {
        // SAFETY: `cargo xtask kernels` made the image with the CUDA tools, and it is part of this
        // program, which nothing has changed.
        let module = unsafe { Module::load(device, IMAGE) }?;
        let table = (0..KERNELS).map(|_| OnceLock::new()).collect();
        Ok(Functions { module, table })
    }

    pub(crate) fn get(&self, kernel: Kernel) -> Result<&Function, CudaError> {
        let slot = &self.table[number(kernel)];
        match slot.get() {
            Some(function) => Ok(function),
            None => self.find(slot, kernel.to_string()),
        }
    }

    fn find<'a>(
        &self,
        slot: &'a OnceLock<Function>,
        name: String,
    ) -> Result<&'a Function, CudaError> {
        // A kernel's name has no zero byte.
        let name = CString::new(name).unwrap_or_default();
        let function = self.module.function(&name)?;
        Ok(slot.get_or_init(|| function))
    }
}
