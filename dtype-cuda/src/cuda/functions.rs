//! The kernels of a device, each looked up once.

use crate::accelerator::{KERNELS, number};
use gapless_kernels::launch::relay_name;
use gapless_kernels::{Direction, IMAGE, Kernel, Width};
use gapless_mem_cuda::{CudaDevice, CudaError, Function, Module};
use std::ffi::CString;
use std::sync::OnceLock;

/// The loaded image, and what was found in it so far.
pub(crate) struct Functions {
    module: Module,
    table: Box<[OnceLock<Function>]>,
    /// By direction and width.
    relays: [OnceLock<Function>; 10],
}

impl Functions {
    #[allow(unsafe_code, reason = "loads the image that this build was made with")]
    pub(crate) fn load(device: &CudaDevice) -> Result<Functions, CudaError> {
        // SAFETY: `cargo xtask kernels` made the image with the CUDA tools, and it is part of this
        // program, which nothing has changed.
        let module = unsafe { Module::load(device, IMAGE) }?;
        let table = (0..KERNELS).map(|_| OnceLock::new()).collect();
        Ok(Functions { module, table, relays: Default::default() })
    }

    pub(crate) fn get(&self, kernel: Kernel) -> Result<&Function, CudaError> {
        let slot = &self.table[number(kernel)];
        match slot.get() {
            Some(function) => Ok(function),
            None => self.find(slot, kernel.to_string()),
        }
    }

    /// The kernel of one end of a relay. All of a direction are loaded, so that no later launch has to
    /// wait for that: the driver may load a kernel at its first launch, and would wait for one that runs.
    pub(crate) fn relay(&self, direction: Direction, width: Width) -> Result<&Function, CudaError> {
        let of_direction = direction as usize * Width::ALL.len();
        let mut found = None;
        for (slot, known) in self.relays[of_direction..].iter().zip(Width::ALL) {
            let function = match slot.get() {
                Some(function) => function,
                None => {
                    let function = self.find(slot, relay_name(direction, known))?;
                    function.properties()?;
                    function
                }
            };
            found = found.or((known == width).then_some(function));
        }
        found.ok_or(CudaError::Malformed { object: "relay", reason: "no kernel of that width" })
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
