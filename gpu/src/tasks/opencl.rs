//! Kernels of OpenCL as tasks: for any device that OpenCL reaches, PoCL included.

use gapless_mem::{Completion, Device, DeviceError, Outstanding, Region};
use gapless_mem_opencl::{Argument, Grid, OpenClDevice, OpenClError, Program};
use gapless_xtq::{GroupLimits, KernelTask, Launcher};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// Launches kernels on an OpenCL device.
///
/// A kernel's parameters are `global uchar *buffer`, `global const uchar *payload`, `ulong payload_bytes`, and a `ulong`
/// for each word of its arguments from the third on; then, for packets with local memory, a `local uchar *`. Pointers are
/// null if there is no buffer, or no payload. The payload is copied to the device before the launch.
///
/// ```
/// use gapless_gpu::OpenClLauncher;
/// use gapless_mem_opencl::OpenClDevice;
/// use gapless_xtq::Kernel;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let Ok(device) = OpenClDevice::open(0) else { return Ok(println!("no OpenCL here")) };
/// let launcher = OpenClLauncher::new(device.into());
/// let source = "kernel void nothing(global uchar *b, global const uchar *p, ulong n, ulong x) {}";
/// let object = launcher.kernel(source, "", "nothing")?;
/// let kernel = Kernel::new(launcher, object, 24, 1 << 20);
/// # drop(kernel);
/// # Ok(())
/// # }
/// ```
pub struct OpenClLauncher {
    device: Arc<OpenClDevice>,
    kernels: RwLock<Vec<(Arc<Program>, String)>>,
}

impl OpenClLauncher {
    /// One without kernels.
    #[must_use]
    pub fn new(device: Arc<OpenClDevice>) -> Arc<OpenClLauncher> {
        Arc::new(OpenClLauncher { device, kernels: RwLock::default() })
    }

    /// Builds a program, unless that was done before, and gives the number by which to register its kernel `name`.
    ///
    /// # Errors
    /// The compiler's log.
    pub fn kernel(&self, source: &str, options: &str, name: &str) -> Result<u64, OpenClError> {
        let program = self.device.program(source, options)?;
        let mut kernels = self.kernels.write().unwrap_or_else(PoisonError::into_inner);
        kernels.push((program, name.to_owned()));
        Ok(kernels.len() as u64)
    }

    fn unsupported(what: &'static str) -> DeviceError {
        DeviceError::Unsupported { what }
    }

    /// The payload in memory of the device, if there is any; the copy is under way.
    ///
    /// # Safety
    /// The payload is readable, and not written, until the copy has ended.
    unsafe fn stage(&self, payload: Region) -> Result<Option<(Region, Outstanding)>, DeviceError> {
        if payload.is_empty() {
            return Ok(None);
        }
        let there = self.device.allocate(payload.len())?;
        // SAFETY: the memory was just allocated; the caller guarantees the payload.
        match unsafe { self.device.copy(there, payload, &[]) } {
            Ok(copied) => Ok(Some((there, Outstanding::new(copied)))),
            Err(error) => {
                // SAFETY: nothing works on it.
                let _ = unsafe { self.device.free(there) };
                Err(error)
            }
        }
    }
}

// SAFETY: the numbers are those of the contract.
// 1. The program's kernel is enqueued over as many groups as the grid has, with these arguments, after the payload's
//    copy; the payload is only read.
// 2. It waits for the copy and the kernel before it returns, also if something fails or panics (`Outstanding`).
unsafe impl Launcher for OpenClLauncher {
    fn limits(&self) -> GroupLimits {
        let info = self.device.info();
        let local_bytes_max = u32::try_from(info.local_bytes).unwrap_or(u32::MAX);
        GroupLimits { items_max: info.threads_max, local_bytes_max, grid_max: [u32::MAX; 3] }
    }

    unsafe fn launch(&self, task: &KernelTask<'_>) -> Result<Completion, DeviceError> {
        let at = usize::try_from(task.object).ok().and_then(|object| object.checked_sub(1));
        let kernels = self.kernels.read().unwrap_or_else(PoisonError::into_inner);
        let (program, name) = at
            .and_then(|at| kernels.get(at).cloned())
            .ok_or_else(|| Self::unsupported("a kernel that was not built here"))?;
        drop(kernels);
        let buffer = task.buffer.map(|lease| lease.region());
        if buffer.is_some_and(|region| region.offset() != 0) {
            return Err(Self::unsupported("a registered buffer that begins inside another"));
        }
        // SAFETY: the caller guarantees the payload until this has ended, which is waited for below.
        let staged = unsafe { self.stage(task.payload) }?;
        let payload = staged.as_ref().map(|(region, _)| *region);
        let pointer = |region: Option<Region>| region.map_or(Argument::Null, Argument::Buffer);
        let length = task.payload.len().to_ne_bytes();
        let words = task.arguments.chunks_exact(8).skip(2).map(Argument::Value);
        let room = Some(task.launch.local_bytes).filter(|&bytes| bytes != 0).map(Argument::Local);
        let arguments: Vec<_> = [pointer(buffer), pointer(payload), Argument::Value(&length)]
            .into_iter()
            .chain(words)
            .chain(room)
            .collect();
        let after: Vec<_> = staged.iter().map(|(_, copied)| copied.work().clone()).collect();
        let grid = Grid { groups: task.launch.groups(), items: task.launch.group.map(u32::from) };
        // SAFETY: whoever registered the kernel promises that it takes such arguments, stays inside with them and
        // terminates; the buffers are allocated until the end that is waited for here.
        let launched = unsafe { self.device.launch(&program, &name, grid, &arguments, &after) };
        let ended = launched.and_then(|launched| Outstanding::new(launched).wait());
        if let Some((region, copied)) = staged {
            let copied = copied.wait();
            // SAFETY: the copy and the kernel are over.
            unsafe { self.device.free(region) }?;
            copied?;
        }
        ended.map(|()| Completion::Ready)
    }
}

impl fmt::Debug for OpenClLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenClLauncher on {}", self.device.properties().name)
    }
}
