//! Kernels of OpenCL as tasks: for any device that OpenCL reaches, PoCL included.

use gapless_mem::{Completion, Device, DeviceError, Outstanding, Region};
use gapless_mem_opencl::{Argument, OpenClDevice, OpenClError, Program};
use gapless_xtq::{GroupLimits, KernelTask, Launcher};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// Launches kernels on an OpenCL device.
///
/// A kernel's parameters are `global uchar *buffer`, `global const uchar *payload`, `ulong payload_bytes`, and a `ulong`
/// for each word of its arguments from the third on. Pointers are null if there is no buffer, or no payload. The payload
/// is copied to the device before the launch. Grids have one dimension, and groups no local memory from the packet.
///
/// ```
/// use gapless::OpenClDevice;
/// use gapless::xtq::{Kernel, OpenClLauncher};
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
        let items_max = self.device.info().threads_max;
        GroupLimits { items_max, local_bytes_max: 0, grid_max: [u32::MAX, 1, 1] }
    }

    unsafe fn launch(&self, task: &KernelTask<'_>) -> Result<Completion, DeviceError> {
        let at = usize::try_from(task.object).ok().and_then(|object| object.checked_sub(1));
        let kernels = self.kernels.read().unwrap_or_else(PoisonError::into_inner);
        let (program, name) = at
            .and_then(|at| kernels.get(at).cloned())
            .ok_or_else(|| Self::unsupported("a kernel that was not built here"))?;
        drop(kernels);
        let ([groups, 1, 1], [items, 1, 1]) = (task.launch.groups(), task.launch.group) else {
            return Err(Self::unsupported("a grid of more than one dimension"));
        };
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
        let arguments: Vec<_> = [pointer(buffer), pointer(payload), Argument::Value(&length)]
            .into_iter()
            .chain(words)
            .collect();
        let after: Vec<_> = staged.iter().map(|(_, copied)| copied.work().clone()).collect();
        let items = u32::from(items);
        // SAFETY: whoever registered the kernel promises that it takes such arguments, stays inside with them and
        // terminates; the buffers are allocated until the end that is waited for here.
        let launched =
            unsafe { self.device.launch(&program, &name, groups, items, &arguments, &after) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::World;
    use crate::xtq::{Kernel, Launch, Put, QueueOptions, Rank, Refusal, XtqError};
    use gapless_mem::Lease;

    /// Adds the payload's words, times a factor, to the buffer's 320.
    const SOURCE: &str = "
        kernel void add(
            global uchar *buffer, global const uchar *payload, ulong bytes, ulong factor
        ) {
            global ulong *sum = (global ulong *)buffer;
            global const ulong *more = (global const ulong *)payload;
            size_t at = get_global_id(0);
            if (at >= 320 || 8 * at + 8 > bytes) return;
            sum[at] += factor * more[at] + 1000 * (get_local_size(0) == 64);
        }";
    const ITEMS: u16 = 64;
    const GROUPS: u32 = 5;

    #[test]
    fn kernels_run_as_tasks_over_the_packets_grid() {
        let device = match OpenClDevice::open(0) {
            Ok(device) => Arc::new(device),
            Err(error) => {
                let line = format!("SKIPPED: kernels of OpenCL as tasks: {error}\n");
                use std::io::Write;
                let _ = std::io::stderr().write_all(line.as_bytes());
                return;
            }
        };
        let count = GROUPS * u32::from(ITEMS);
        let bytes = 8 * count as usize;
        let region = device.allocate(bytes as u64).unwrap();
        let zeros = vec![0u8; bytes];
        // SAFETY: both live until the copy has ended, and nothing else touches them.
        unsafe { device.copy(region, Region::of(&zeros), &[]) }.unwrap().wait().unwrap();
        // SAFETY: it is freed last.
        let lease = unsafe { Lease::kept_by_caller(region) };

        let world = World::init().unwrap();
        let tasks = world.xtq();
        let launcher = OpenClLauncher::new(Arc::clone(&device));
        let object = launcher.kernel(SOURCE, "", "add").unwrap();
        let done = tasks.signal_from(2, &[]);
        let length = u32::try_from(bytes).unwrap();
        let kernel = Kernel::new(launcher, object, 24, length).buffer(lease).signal(&done);
        // SAFETY: it checks both ends, and terminates.
        unsafe { tasks.register_kernel(1, kernel) }.unwrap();
        tasks.register_queue(1, QueueOptions::default()).unwrap();
        tasks.post(vec![0; bytes]);
        let put = |launch| {
            let arguments = [0, 0, 3].map(u64::to_le_bytes).concat();
            let words: Vec<u8> = (0..u64::from(count)).flat_map(u64::to_le_bytes).collect();
            Put::kernel(Rank(0), 1, 1, launch, arguments).payload(words)
        };
        for _ in 0..2 {
            let put = tasks.put(put(Launch::linear(GROUPS, ITEMS, 0)).acknowledged()).unwrap();
            tasks.wait_for(&put).unwrap();
        }
        tasks.wait(&done).unwrap();
        let mut back = vec![0u8; bytes];
        // SAFETY: as above; the tasks are over.
        unsafe { device.copy(Region::of_mut(&mut back), region, &[]) }.unwrap().wait().unwrap();
        let expected: Vec<u8> =
            (0..u64::from(count)).flat_map(|at| (6 * at + 2000).to_le_bytes()).collect();
        assert!(back == expected);
        let local = Launch { local_bytes: 16, ..Launch::linear(GROUPS, ITEMS, 0) };
        let refused = tasks.put(put(local)).unwrap();
        let Err(crate::Error::Task(XtqError::Refused { refusal, .. })) = tasks.wait_for(&refused)
        else {
            panic!("{refused:?}")
        };
        assert!(matches!(refusal, Refusal::Group { .. }));
        world.finalize().unwrap();
        // SAFETY: the tasks are over, and the world is left.
        unsafe { device.free(region) }.unwrap();
    }
}
