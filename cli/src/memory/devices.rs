//! The devices whose memory messages lie in, with the engines that pack there, and memory of theirs.
//!
//! Memory that messages lay in is not freed before the process ends, unless the other process has let go of it: it may
//! have it mapped, and what becomes of a mapping when its memory is freed is nowhere promised.

use super::ends::Where;
use crate::failure::Failure;
use gapless::World;
use gapless_mem::{Completion, Device, Region};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(any(feature = "cuda", feature = "opencl"))]
use {
    gapless_dtype_cuda::{Config, GpuEngine},
    gapless_engine::{Engine, Typed},
    gapless_mem::DeviceError,
    gapless_report::{Samples, Summary},
};

/// Whatever takes a device longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at a device no more time passes than this; if it does, this process was not allowed to run.
const LOOK: Duration = Duration::from_millis(100);

/// Arenas are at least so long.
#[cfg(any(feature = "cuda", feature = "opencl"))]
const ARENA_BYTES_LEAST: u64 = 4096;
/// Launches that are timed.
#[cfg(any(feature = "cuda", feature = "opencl"))]
const LAUNCHES: u32 = 200;

/// A device of this process.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) place: Where,
    pub(crate) device: Arc<dyn Device>,
    /// The driver's own view of it, with a stream to ask as directly as a program would.
    #[cfg(feature = "cuda")]
    cuda: Option<Cuda>,
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    engine: GpuEngine,
    /// Memory to send from and to receive into, once it was asked for.
    arenas: Option<[Region; 2]>,
    /// The same for one message, not from the library.
    foreign: Option<[Region; 2]>,
}

/// A CUDA device and a stream on it.
#[cfg(feature = "cuda")]
#[derive(Clone)]
struct Cuda {
    device: Arc<gapless_mem_cuda::CudaDevice>,
    stream: Arc<gapless_mem_cuda::Stream>,
}

/// What an engine may use of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// At most so many thread blocks at a time (Wu et al. 2016, §5.3).
    pub blocks: Option<NonZeroU32>,
    /// No copy engine, which needs no blocks: kernels do all.
    pub kernels_only: bool,
    /// A worker stays on the device for short copies.
    pub workers: bool,
}

/// How long a worker stays when nothing comes.
#[cfg(feature = "cuda")]
pub(crate) const IDLE: std::time::Duration = std::time::Duration::from_micros(100);

/// All devices that this process has opened.
#[derive(Clone, Default)]
pub(crate) struct Devices {
    opened: Vec<Opened>,
}

impl Devices {
    /// The device of a place, opened now if it was not before; `None` for host memory. Its engine has
    /// the budget that is given when it is opened. A CUDA device's context is
    /// this thread's from then on, as in a program that works on that GPU itself.
    pub(crate) fn open(
        &mut self,
        place: Where,
        budget: Budget,
    ) -> Result<Option<&mut Opened>, Failure> {
        if !place.is_device() {
            return Ok(None);
        }
        let no_space = |why| Failure::NoSpace { space: place.to_string(), why };
        let at = match self.opened.iter().position(|opened| opened.place == place) {
            Some(at) => at,
            None => {
                self.opened.push(Opened::new(place, budget).map_err(no_space)?);
                self.opened.len() - 1
            }
        };
        #[cfg(feature = "cuda")]
        if let Some(cuda) = self.opened.get(at).and_then(|opened| opened.cuda.as_ref()) {
            let why = |error: gapless_mem_cuda::CudaError| error.to_string();
            cuda.device.bind_thread().map_err(|error| no_space(why(error)))?;
        }
        Ok(self.opened.get_mut(at))
    }

    /// The one that was opened first.
    pub(crate) fn first(&self) -> Option<Arc<dyn Device>> {
        self.opened.first().map(|opened| Arc::clone(&opened.device))
    }

    /// All of them.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(crate) fn all(&self) -> &[Opened] {
        &self.opened
    }
}

impl Opened {
    #[cfg(not(any(feature = "cuda", feature = "opencl")))]
    fn new(_: Where, _: Budget) -> Result<Opened, String> {
        Err("this build has no engine for devices (features cuda and opencl)".to_owned())
    }

    #[cfg(any(feature = "cuda", feature = "opencl"))]
    fn new(place: Where, budget: Budget) -> Result<Opened, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let mut config = Config { budget: budget.blocks, ..Config::default() };
        if budget.kernels_only {
            config.copy_bytes_min = u64::MAX;
        }
        #[cfg(feature = "cuda")]
        if budget.workers {
            config.workers = gapless::Workers::Idle(IDLE);
        }
        match place {
            #[cfg(feature = "cuda")]
            Where::Cuda(ordinal) => {
                let driver = gapless_mem_cuda::CudaDriver::load().map_err(|e| text(&e))?;
                let device = Arc::new(driver.device(ordinal).map_err(|e| text(&e))?);
                let engine = GpuEngine::cuda_with(Arc::clone(&device), config);
                let engine = engine.map_err(|e| text(&e))?;
                let stream = Arc::new(device.stream().map_err(|e| text(&e))?);
                let cuda = Some(Cuda { device: Arc::clone(&device), stream });
                Ok(Opened { place, device, cuda, engine, arenas: None, foreign: None })
            }
            #[cfg(feature = "opencl")]
            Where::OpenCl(number) => {
                let number = usize::try_from(number).unwrap_or(usize::MAX);
                let device = gapless_mem_opencl::OpenClDevice::open(number);
                let device = Arc::new(device.map_err(|e| text(&e))?);
                let engine = GpuEngine::opencl_with(Arc::clone(&device), config);
                Ok(Opened {
                    place,
                    device,
                    #[cfg(feature = "cuda")]
                    cuda: None,
                    engine: engine.map_err(|e| text(&e))?,
                    arenas: None,
                    foreign: None,
                })
            }
            other => Err(format!("this build has no engine for {other}")),
        }
    }

    /// Its engine.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(crate) fn engine(&self) -> &GpuEngine {
        &self.engine
    }

    /// Its cache in bytes; 0 if unknown.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.device.properties().cache_bytes
    }

    /// `len` bytes to send from and as many to receive into: the same ones each time, unless they are
    /// too short.
    pub(crate) fn arenas(&mut self, len: u64) -> Result<[Region; 2], Failure> {
        if let Some(arenas) = self.arenas
            && let [Ok(out), Ok(into)] = arenas.map(|arena| arena.sub(0, len))
        {
            return Ok([out, into]);
        }
        let arenas = [self.device.allocate(len)?, self.device.allocate(len)?];
        self.arenas = Some(arenas);
        Ok(arenas)
    }

    /// `len` bytes to send from and as many to receive into, allocated to size as a program would that knows nothing of
    /// the library. Those of the last time are freed, as [`World::invalidate`] asks for it.
    pub(crate) fn foreign(&mut self, world: &World, len: u64) -> Result<[Region; 2], Failure> {
        for region in self.foreign.take().into_iter().flatten() {
            world.invalidate(region)?;
            // SAFETY: `allocate` gave it below; the arena that had it is gone, with all messages in it, and peers have
            // let go of it.
            unsafe { self.device.free(region) }?;
        }
        let both = [self.device.allocate(len)?, self.device.allocate(len)?];
        self.foreign = Some(both);
        Ok(both)
    }

    /// The time of the least that can be asked of its engine: to pack eight bytes, and to wait. `None`
    /// without an engine.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(crate) fn launch_and_wait(&mut self) -> Result<Option<Summary>, Failure> {
        let [from, into] = self.arenas(ARENA_BYTES_LEAST)?;
        let [from, into] = [from.sub(0, 8), into.sub(0, 8)].map(|it| it.map_err(DeviceError::from));
        let (from, into) = (Typed::contiguous(from?), into?);
        let mut samples = Samples::default();
        for round in 0..LAUNCHES {
            let begin = Instant::now();
            // SAFETY: memory that lives as long as the process and that no view is of at present.
            unsafe { self.pack_and_wait(&from, into) }?;
            if round >= LAUNCHES / 4 {
                samples.push(begin.elapsed().as_secs_f64().max(1e-9));
            }
        }
        let what = || "launches".to_owned();
        samples.summary().map(Some).map_err(|error| Failure::NoSamples { what: what(), error })
    }

    /// Packs all of `from`, on a stream of CUDA's where there is one.
    ///
    /// # Safety
    /// As for [`Engine::pack`], until this returns.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    unsafe fn pack_and_wait(&self, from: &Typed, into: Region) -> Result<(), Failure> {
        let all = 0..from.packed_bytes();
        #[cfg(feature = "cuda")]
        if let Some(Cuda { stream, .. }) = &self.cuda {
            let queue = self.engine.on(stream)?;
            // SAFETY: the caller's promise.
            unsafe { queue.pack(from, all, into) }?;
            return idle(stream);
        }
        // SAFETY: the caller's promise.
        wait(&unsafe { self.engine.pack(from, all, into, &[]) }?)
    }

    #[cfg(not(any(feature = "cuda", feature = "opencl")))]
    pub(crate) fn launch_and_wait(&mut self) -> Result<Option<gapless_report::Summary>, Failure> {
        Ok(None)
    }

    /// Copies between its memory and other memory that it reaches, and waits: one call and questions after
    /// its end, as `cudaMemcpy` does it. If the device hangs, the process ends.
    ///
    /// # Safety
    /// As for [`Device::copy`], until this returns.
    pub(crate) unsafe fn copy(&self, into: Region, from: Region) -> Result<(), Failure> {
        #[cfg(feature = "cuda")]
        if let Some(Cuda { device, stream }) = &self.cuda {
            // SAFETY: the caller's promise.
            unsafe { device.copy_on(stream, into, from) }.map_err(DeviceError::from)?;
            return settled(idle(stream));
        }
        // SAFETY: the caller's promise.
        unsafe { copy(&*self.device, into, from) }
    }

    /// Lets this device reach another one's memory by itself, if that can be; copies are possible
    /// without, only slower.
    pub(crate) fn reach(&self, other: &Opened) {
        #[cfg(feature = "cuda")]
        if let (Some(mine), Some(theirs)) = (&self.cuda, &other.cuda)
            && let Err(error) = mine.device.enable_peer(theirs.device.ordinal())
        {
            tracing::info!(%error, "copies between the devices are staged by the driver");
        }
        #[cfg(not(feature = "cuda"))]
        let _ = other;
    }
}

/// Waits for a device, but not for ever. After [`Failure::Hangs`] the work goes on: its memory must stay.
pub(crate) fn wait(work: &Completion) -> Result<(), Failure> {
    until(|| Ok(work.poll()?))
}

/// Waits until something has ended, but not for ever.
fn until(mut ended: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let (mut waited, mut last) = (Duration::ZERO, Instant::now());
    while !ended()? {
        let now = Instant::now();
        waited += now.duration_since(last).min(LOOK);
        last = now;
        if waited > PATIENCE {
            return Err(Failure::Hangs { seconds: PATIENCE.as_secs() });
        }
        std::hint::spin_loop();
    }
    Ok(())
}

/// Waits for a stream, but not for ever.
#[cfg(feature = "cuda")]
fn idle(stream: &gapless_mem_cuda::Stream) -> Result<(), Failure> {
    until(|| Ok(stream.is_idle().map_err(DeviceError::from)?))
}

/// Copies between this device's memory and other memory that it reaches, and waits. If the device hangs, the process ends.
///
/// # Safety
/// As for [`Device::copy`], until this returns.
pub(crate) unsafe fn copy(device: &dyn Device, into: Region, from: Region) -> Result<(), Failure> {
    // SAFETY: the caller's promise; where the copy goes on, this does not return.
    settled(wait(&unsafe { device.copy(into, from, &[]) }?))
}

/// What came of a copy, which has ended: nobody may have memory back that a device works on.
fn settled(result: Result<(), Failure>) -> Result<(), Failure> {
    if let Err(error @ Failure::Hangs { .. }) = &result {
        gapless_mem::abort(&error.to_string());
    }
    result
}

/// Page-locked host memory for copies to and from a device; unlocked when dropped.
pub(crate) struct Locked {
    device: Arc<dyn Device>,
    bytes: Vec<u8>,
    /// Whether the device took it; copies are slower if not.
    registered: bool,
}

impl Locked {
    pub(crate) fn new(device: &Arc<dyn Device>, len: usize) -> Locked {
        let mut locked =
            Locked { device: Arc::clone(device), bytes: vec![0; len], registered: false };
        let region = locked.region();
        // SAFETY: the bytes stay where they are until `drop`, which unregisters them before.
        locked.registered = unsafe { device.register(region) }.is_ok();
        locked
    }

    pub(crate) fn region(&mut self) -> Region {
        Region::of_mut(&mut self.bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.registered
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let region = self.region();
        if self.registered
            // SAFETY: registered in `new`; all copies were waited for.
            && let Err(error) = unsafe { self.device.unregister(region) }
        {
            tracing::warn!(%error, "memory stays page-locked");
            // It must not be given to anyone else, then.
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}
