//! The kernels of a device: a program for each width and direction, and for each kernel of reductions, built when it
//! is first needed.

use crate::accelerator::{KERNELS, number};
use gapless_kernels::reduce::ReduceKernel;
use gapless_kernels::{Kernel, opencl_reduce_source, opencl_source};
use gapless_mem::{Device, DeviceError};
use gapless_mem_opencl::{OpenClDevice, Program};
use std::sync::{Arc, OnceLock};

/// Programs and kernels' names, found so far.
pub(crate) struct Programs {
    device: Arc<OpenClDevice>,
    programs: Box<[OnceLock<Arc<Program>>]>,
    reductions: Box<[OnceLock<Arc<Program>>]>,
    names: Box<[OnceLock<String>]>,
}

impl Programs {
    pub(crate) fn new(device: Arc<OpenClDevice>) -> Programs {
        Programs {
            device,
            programs: (0..Kernel::PROGRAMS).map(|_| OnceLock::new()).collect(),
            reductions: (0..ReduceKernel::NUMBERS).map(|_| OnceLock::new()).collect(),
            names: (0..KERNELS).map(|_| OnceLock::new()).collect(),
        }
    }

    pub(crate) fn get(&self, kernel: Kernel) -> Result<(&Program, &str), DeviceError> {
        let name = self.names[number(kernel)].get_or_init(|| kernel.to_string());
        let slot = &self.programs[kernel.program()];
        Ok((self.built(slot, || opencl_source(kernel))?, name))
    }

    /// Builds a kernel's program, on a thread that nobody waits for.
    pub(crate) fn prepare(&self, kernel: Kernel) -> Result<(), DeviceError> {
        let slot = &self.programs[kernel.program()];
        gapless_mem_opencl::in_background(|| self.built(slot, || opencl_source(kernel)).map(drop))
    }

    /// A kernel of reductions.
    pub(crate) fn reduction(&self, kernel: ReduceKernel) -> Result<&Program, DeviceError> {
        let slot = &self.reductions[kernel.number()];
        self.built(slot, || opencl_reduce_source(kernel))
    }

    fn built<'a>(
        &self,
        slot: &'a OnceLock<Arc<Program>>,
        source: impl FnOnce() -> String,
    ) -> Result<&'a Program, DeviceError> {
        if let Some(program) = slot.get() {
            return Ok(program);
        }
        let built = self.device.program(&source(), "-cl-std=CL1.2");
        let program = built.map_err(|error| DeviceError::Failed {
            device: self.device.properties().name.clone(),
            operation: "building the kernels",
            reason: error.to_string(),
        })?;
        Ok(slot.get_or_init(|| program))
    }
}
