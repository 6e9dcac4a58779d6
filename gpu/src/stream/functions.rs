//! The kernels, loaded once a device: a first launch that loads its kernel may wait for all running ones.

use gapless_kernels::peers::{IMAGE, Kernel, calls};
use gapless_mem_cuda::{CudaDevice, CudaError, Function, Module};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// All kernels of a device.
#[derive(Debug)]
pub(super) struct Functions {
    /// By [`Kernel::index`].
    all: Vec<Function>,
    /// The persistent kernel.
    pub(super) calls: Function,
    /// Blocks of the largest that one multiprocessor holds at a time.
    pub(super) per_unit: u32,
}

/// Threads of the largest block.
pub(super) const THREADS: u32 = 512;

impl Functions {
    /// Those of a device. They stay loaded until the process ends.
    pub(super) fn of(device: &CudaDevice) -> Result<Arc<Functions>, CudaError> {
        type Loaded = HashMap<u32, Arc<Functions>>;
        static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();
        let loaded = LOADED.get_or_init(Mutex::default);
        // One insertion, which is whole or was not begun.
        let mut loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = loaded.get(&device.ordinal()) {
            return Ok(Arc::clone(known));
        }
        let functions = Arc::new(Functions::load(device)?);
        loaded.insert(device.ordinal(), Arc::clone(&functions));
        Ok(functions)
    }

    fn load(device: &CudaDevice) -> Result<Functions, CudaError> {
        // SAFETY: CUDA's tools made the image (`cargo xtask kernels`), and it is compiled into this program.
        let module = unsafe { Module::load(device, IMAGE) }?;
        // Some serve several operations.
        let mut by_name: HashMap<String, Function> = HashMap::new();
        let mut all = Vec::with_capacity(Kernel::COUNT);
        let mut per_unit = u32::MAX;
        for kernel in Kernel::all() {
            let name = kernel.to_string();
            if let Some(known) = by_name.get(&name) {
                all.push(known.clone());
                continue;
            }
            let wanted = CString::new(name.as_str()).unwrap_or_default();
            let function = module.function(&wanted)?;
            per_unit = per_unit.min(function.blocks_per_unit(THREADS, 0)?);
            all.push(function.clone());
            by_name.insert(name, function);
        }
        let calls = module.function(calls::KERNEL)?;
        Ok(Functions { all, calls, per_unit })
    }

    pub(super) fn get(&self, kernel: Kernel) -> Option<&Function> {
        self.all.get(kernel.index())
    }
}
