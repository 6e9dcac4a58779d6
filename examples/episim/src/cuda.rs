//! The kernels on a CUDA device, compiled from their source at run time, by NVRTC.

use crate::Failure;
use crate::compute::{Argument, Compute, Kernel, source};
use gapless::{CudaDriver, CudaModule, CudaStream, Device};
use gapless_mem_cuda::{Argument as Given, Function, Grid, compile};
use std::ffi::CString;
use std::sync::Arc;

/// Threads of a block, and blocks at most.
const THREADS: u32 = 256;
const BLOCKS: u32 = 1024;

/// A device, its kernels, and the stream that they run on.
pub(crate) struct Cuda {
    copies: Arc<dyn Device>,
    stream: CudaStream,
    kernels: Vec<(Kernel, Function)>,
}

impl Cuda {
    pub(crate) fn open(rank: u32) -> Result<Cuda, Failure> {
        let driver = CudaDriver::load()?;
        let ordinal = rank.checked_rem(driver.devices()).ok_or("there is no CUDA device")?;
        let device = driver.device(ordinal)?;
        let text = compile(&source(), &["--gpu-architecture=compute_80"])?;
        // SAFETY: NVRTC has just made the text.
        let module = unsafe { CudaModule::load(&device, text.as_bytes()) }?;
        let kernel = |kernel: Kernel| {
            let name = CString::new(kernel.name())?;
            Ok::<_, Failure>((kernel, module.function(&name)?))
        };
        let kernels = Kernel::ALL.into_iter().map(kernel).collect::<Result<_, _>>()?;
        let stream = device.stream()?;
        Ok(Cuda { copies: Arc::new(device), stream, kernels })
    }
}

impl Compute for Cuda {
    fn device(&self) -> &Arc<dyn Device> {
        &self.copies
    }

    unsafe fn launch(
        &self,
        kernel: Kernel,
        items: u32,
        arguments: &[Argument],
    ) -> Result<(), Failure> {
        let address = |argument: &Argument| match argument {
            Argument::Memory(region) => region.start(),
            Argument::Word(word) => u64::from(*word),
        };
        let values: Vec<(u64, u32)> =
            arguments.iter().map(address).map(|value| (value, value as u32)).collect();
        let given =
            arguments.iter().zip(&values).map(|(argument, (address, word))| match argument {
                Argument::Memory(_) => Given::of(address),
                Argument::Word(_) => Given::of(word),
            });
        let given: Vec<Given<'_>> = given.collect();
        let at = self.kernels.iter().find(|(name, _)| *name == kernel);
        let (_, function) = at.ok_or("no such kernel")?;
        let grid = Grid::line(items.div_ceil(THREADS).clamp(1, BLOCKS), THREADS);
        // SAFETY: the caller's promise; the stream is in order.
        Ok(unsafe { function.launch(&self.stream, grid, &given) }?)
    }

    fn finish(&self) -> Result<(), Failure> {
        Ok(self.stream.record()?.wait()?)
    }
}
