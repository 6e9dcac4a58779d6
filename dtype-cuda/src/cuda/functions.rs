//! The kernels of a device, each looked up once.

use crate::accelerator::{KERNELS, number};
use gapless_kernels::reduce::ReduceKernel;
use gapless_kernels::{IMAGE, Kernel, REDUCE_IMAGE};
use gapless_mem_cuda::{CudaDevice, CudaError, Function, Module};
use std::ffi::CString;
use std::sync::OnceLock;

/// The loaded images, and what was found in them so far.
pub(crate) struct Functions {
    module: Module,
    table: Box<[OnceLock<Function>]>,
    /// Loaded for the first reduction.
    reductions: OnceLock<Module>,
    reduce_table: Box<[OnceLock<Function>]>,
}

#[allow(unsafe_code, reason = "loads the images that this build was made with")]
fn load(device: &CudaDevice, image: &[u8]) -> Result<Module, CudaError> {
    // SAFETY: `cargo xtask kernels` made the image with the CUDA tools, and it is part of this
    // program, which nothing has changed.
    unsafe { Module::load(device, image) }
}

/// The kernel that belongs into a table's slot.
fn find<'a>(
    slot: &'a OnceLock<Function>,
    module: &Module,
    name: String,
) -> Result<&'a Function, CudaError> {
    // A kernel's name has no zero byte.
    let name = CString::new(name).unwrap_or_default();
    let function = module.function(&name)?;
    Ok(slot.get_or_init(|| function))
}

impl Functions {
    pub(crate) fn load(device: &CudaDevice) -> Result<Functions, CudaError> {
        let module = load(device, IMAGE)?;
        let table = (0..KERNELS).map(|_| OnceLock::new()).collect();
        let reduce_table = (0..ReduceKernel::NUMBERS).map(|_| OnceLock::new()).collect();
        Ok(Functions { module, table, reductions: OnceLock::new(), reduce_table })
    }

    pub(crate) fn get(&self, kernel: Kernel) -> Result<&Function, CudaError> {
        let slot = &self.table[number(kernel)];
        match slot.get() {
            Some(function) => Ok(function),
            None => find(slot, &self.module, kernel.to_string()),
        }
    }

    /// A kernel of reductions on the device that the images are loaded into.
    pub(crate) fn reduction(
        &self,
        device: &CudaDevice,
        kernel: ReduceKernel,
    ) -> Result<&Function, CudaError> {
        let slot = &self.reduce_table[kernel.number()];
        if let Some(function) = slot.get() {
            return Ok(function);
        }
        let module = match self.reductions.get() {
            Some(module) => module,
            None => {
                let module = load(device, REDUCE_IMAGE)?;
                self.reductions.get_or_init(|| module)
            }
        };
        find(slot, module, kernel.to_string())
    }
}
