//! Kernels of CUDA as tasks that are launched: the *host* back end on NVIDIA's GPUs.

use gapless_mem::{Completion, Device, DeviceError, HostDevice, Pending, Region};
use gapless_mem_cuda::{
    Argument, CudaDevice, CudaError, Function, Grid, Module, PARAMETERS_MAX, PinnedBuffer, Stream,
};
use gapless_xtq::{GroupLimits, KernelTask, Launcher};
use std::any::Any;
use std::ffi::CStr;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Launches kernels on a CUDA device.
///
/// A kernel's parameters are `unsigned char *buffer`, `const unsigned char *payload`, `unsigned long long
/// payload_bytes`, and an `unsigned long long` for each word of its arguments from the third on. Pointers are null if
/// there is no buffer, or no payload. The payload is copied to page-locked host memory, which the kernel reads over the
/// bus. The packet's grid and groups may have three dimensions; its local memory is the kernel's dynamic shared memory
/// (`extern __shared__`).
///
/// The longest payload so far, and more than two launches at a time, take page-locked memory and streams anew, which may
/// wait for all that runs on the GPU: beside a worker that stays, launch such a kernel before
/// `attach_worker`.
///
/// ```no_run
/// use gapless_gpu::CudaLauncher;
/// use gapless_mem_cuda::{CudaDriver, Module};
/// use gapless_xtq::Kernel;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = std::sync::Arc::new(CudaDriver::load()?.device(0)?);
/// let image = std::fs::read("kernels.cubin")?;
/// // SAFETY: nvcc made the image.
/// let module = unsafe { Module::load(&device, &image) }?;
/// let launcher = CudaLauncher::new(device)?;
/// let object = launcher.kernel(&module, c"scale")?; // four parameters: three words of arguments
/// let kernel = Kernel::new(launcher, object, 24, 1 << 20);
/// # drop(kernel);
/// # Ok(())
/// # }
/// ```
pub struct CudaLauncher {
    device: Arc<CudaDevice>,
    limits: GroupLimits,
    /// Threads of a group, and groups of a grid, at most in each dimension.
    threads_max: [u32; 3],
    groups_max: [u32; 3],
    kernels: RwLock<Vec<LoadedKernel>>,
    streams: Streams,
}

/// Streams that no launch has now: there are as many as were used at a time.
type Streams = Arc<Mutex<Vec<Stream>>>;

/// A kernel, and what it may be launched with.
#[derive(Clone)]
struct LoadedKernel {
    function: Function,
    /// Words of arguments behind the first two.
    words: usize,
    limits: GroupLimits,
}

/// Numbers that the driver knows of a device, as `CUdevice_attribute` counts them.
mod attribute {
    pub(super) const BLOCK_THREADS: u32 = 1;
    /// By dimension.
    pub(super) const BLOCK: [u32; 3] = [2, 3, 4];
    pub(super) const GRID: [u32; 3] = [5, 6, 7];
    /// What a kernel may have that asks for it.
    pub(super) const BLOCK_SHARED_BYTES: u32 = 97;
}

/// Parameters before the words of a packet: buffer, payload, its length.
const OWN: usize = 3;

fn lock(streams: &Streams) -> MutexGuard<'_, Vec<Stream>> {
    streams.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unsupported(what: &'static str) -> DeviceError {
    DeviceError::Unsupported { what }
}

impl CudaLauncher {
    /// One without kernels.
    ///
    /// # Errors
    /// The driver does not tell what the device allows.
    pub fn new(device: Arc<CudaDevice>) -> Result<Arc<CudaLauncher>, CudaError> {
        let ask = |which| device.attribute(which).map(|value| u32::try_from(value).unwrap_or(0));
        let all = |[x, y, z]: [u32; 3]| Ok::<_, CudaError>([ask(x)?, ask(y)?, ask(z)?]);
        let limits = GroupLimits {
            items_max: ask(attribute::BLOCK_THREADS)?,
            local_bytes_max: ask(attribute::BLOCK_SHARED_BYTES)?,
            grid_max: [u32::MAX; 3],
        };
        let threads_max = all(attribute::BLOCK)?;
        let groups_max = all(attribute::GRID)?;
        let kernels = RwLock::default();
        let streams = Arc::new(Mutex::new(vec![device.stream()?, device.stream()?]));
        Ok(Arc::new(CudaLauncher { device, limits, threads_max, groups_max, kernels, streams }))
    }

    /// The number by which to register this kernel of an image. Packets of it have arguments of 8 bytes for each of its
    /// parameters but one: the driver tells how many it has.
    ///
    /// # Errors
    /// There is none of this name; its parameters are not those of a task; the image is another device's.
    pub fn kernel(&self, module: &Module, name: &CStr) -> Result<u64, CudaError> {
        let function = module.function(name)?;
        if module.device() != self.device.ordinal() {
            return Err(unsupported("a kernel of another device").into());
        }
        let parameters = function.parameters()?;
        if !(OWN..=PARAMETERS_MAX).contains(&parameters.len())
            || parameters.iter().any(|&bytes| bytes != 8)
        {
            let what = "a kernel as a task whose parameters are not 3 to 32 of 8 bytes each: buffer, payload, its length, words";
            return Err(unsupported(what).into());
        }
        let properties = function.properties()?;
        let local = self.limits.local_bytes_max.saturating_sub(properties.shared_bytes);
        function.allow_shared(local)?;
        let limits = GroupLimits {
            items_max: self.limits.items_max.min(properties.threads_max),
            local_bytes_max: local,
            ..self.limits
        };
        let known = LoadedKernel { function, words: parameters.len() - OWN, limits };
        let mut kernels = self.kernels.write().unwrap_or_else(PoisonError::into_inner);
        kernels.push(known);
        Ok(kernels.len() as u64)
    }

    fn known(&self, object: u64) -> Option<LoadedKernel> {
        let at = usize::try_from(object).ok()?.checked_sub(1)?;
        let kernels = self.kernels.read().unwrap_or_else(PoisonError::into_inner);
        kernels.get(at).cloned()
    }

    /// A copy of the payload that the device reaches, and its address there; 0 if there is none.
    ///
    /// # Safety
    /// The payload is readable, and not written meanwhile.
    unsafe fn stage(&self, payload: Region) -> Result<(Option<PinnedBuffer>, u64), DeviceError> {
        if payload.is_empty() {
            return Ok((None, 0));
        }
        let buffer = self.device.pinned(payload.len())?;
        // SAFETY: the buffer is this call's alone; the caller guarantees the payload. Copies of the host are over when
        // they return.
        unsafe { HostDevice::new().copy(buffer.region(), payload, &[]) }?.wait()?;
        let address = self.device.device_address(buffer.region())?;
        Ok((Some(buffer), address))
    }
}

// SAFETY: the numbers are those of the contract.
// 1. The kernel is enqueued once over as many blocks as the grid has groups; it has as many parameters as are passed,
//    of 8 bytes each, which the driver has told. The payload is copied before, and only read.
// 2. `Launched` ends with what is on the stream behind the kernel. The stream is drained if that cannot be recorded;
//    nothing that may panic is between.
unsafe impl Launcher for CudaLauncher {
    fn limits(&self) -> GroupLimits {
        self.limits
    }

    fn limits_of(&self, object: u64) -> GroupLimits {
        self.known(object).map_or(self.limits, |known| known.limits)
    }

    unsafe fn launch(&self, task: &KernelTask<'_>) -> Result<Completion, DeviceError> {
        let known = self.known(task.object);
        let known =
            known.ok_or_else(|| unsupported("a kernel that this launcher was not told of"))?;
        let words = task.arguments.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let words: Vec<u64> = words.skip(2).collect();
        if words.len() != known.words {
            return Err(unsupported("arguments of another length than the kernel's parameters"));
        }
        let (blocks, threads) = (task.launch.groups(), task.launch.group.map(u32::from));
        let fit = |is: [u32; 3], most: [u32; 3]| is.iter().zip(most).all(|(&is, most)| is <= most);
        if !fit(blocks, self.groups_max) || !fit(threads, self.threads_max) {
            return Err(unsupported(
                "more groups, or longer ones, in a dimension than the device has",
            ));
        }
        let buffer = match task.buffer {
            Some(lease) => self.device.device_address(lease.region())?,
            None => 0,
        };
        // SAFETY: the caller guarantees the payload.
        let (staged, payload) = unsafe { self.stage(task.payload) }?;
        let parameters = [buffer, payload, task.payload.len()];
        let arguments: Vec<_> = parameters.iter().chain(&words).map(Argument::of).collect();
        let shared_bytes = task.launch.local_bytes;
        let idle = lock(&self.streams).pop();
        let stream = idle.map_or_else(|| self.device.stream(), Ok)?;
        let grid = Grid { blocks, threads, shared_bytes };
        // SAFETY: the kernel has as many parameters, each of 8 bytes. Whoever registered it promises that it stays inside
        // its memory and the payload, and terminates; `Launched` keeps the copy of the payload until it has.
        unsafe { known.function.launch(&stream, grid, &arguments) }?;
        match stream.record() {
            Ok(ended) => {
                let streams = Arc::clone(&self.streams);
                let launched = Launched { ended, stream: Some(stream), _staged: staged, streams };
                Ok(Completion::Pending(Arc::new(launched)))
            }
            Err(error) => {
                stream.drain();
                Err(error.into())
            }
        }
    }
}

impl fmt::Debug for CudaLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaLauncher on {}", self.device.properties().name)
    }
}

/// A kernel that was launched, and what it needs meanwhile.
struct Launched {
    ended: Completion,
    /// `None` only while it is being dropped.
    stream: Option<Stream>,
    /// Given back after [`drop`](Drop::drop) has waited for the kernel.
    _staged: Option<PinnedBuffer>,
    streams: Streams,
}

// SAFETY: the numbers are those of the contract. 1. to 3., 6. It says what the end of the kernel says, which is recorded
// behind it on its stream. 4. `as_any` gives this value. 5. It exports nothing.
unsafe impl Pending for Launched {
    fn poll(&self) -> Result<bool, DeviceError> {
        self.ended.poll()
    }

    fn is_known_over(&self) -> bool {
        self.ended.is_known_over()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.ended.drain();
        lock(&self.streams).extend(self.stream.take());
    }
}
