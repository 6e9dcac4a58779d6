//! Engines for device memory, made when a message first needs one.
//!
//! The world asks one engine for all devices of this process before the host's engine. Asked whether it serves a
//! space, it opens the driver, the device and its engine, and keeps them. So a process without CUDA or OpenCL starts
//! normally, and opens no driver it does not need. A device that could not be opened is tried again, seldom: another
//! process may use it for a while, or it may have no memory for a context. An opened device is attached to the
//! transports before the next message. Engines of OpenCL contexts are bounded: one that is given up is
//! detached before the next message, or once its work has ended, and made again when it is needed again.
//!
//! Views vouch for the handles in their spaces: their makers have promised so. A space that comes from safe code
//! (`World::alloc_device`) is only opened if its handles are known.

#[cfg(feature = "opencl")]
mod contexts;
mod lazy_engines;

use gapless_dtype_cuda::GpuEngine;
use gapless_engine::{Engine, EngineError, Reducer, Typed, first_willing};
use gapless_mem::{Completion, Device, Region, Space};
#[cfg(feature = "opencl")]
use gapless_mem_opencl::OpenClDevice;
use lazy_engines::{EngineAnswer, LazyEngines};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Locks what is consistent between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The GPUs of one world and their engines, opened when a message first needs them.
#[derive(Default)]
pub struct Accelerators {
    lazy_engines: LazyEngines<Which, GpuEngine>,
    changes: Mutex<DeviceChanges>,
    any: AtomicBool,
    /// Whether devices are opened at all.
    opens: bool,
    /// How engines of CUDA devices are made.
    #[cfg(feature = "cuda")]
    config: gapless_dtype_cuda::Config,
    /// OpenCL contexts whose engines are kept.
    #[cfg(feature = "opencl")]
    contexts: usize,
}

/// Devices that were opened or given up since transports were last told.
#[derive(Default)]
pub struct DeviceChanges {
    /// Given up, and to be detached; this comes first.
    pub gone: Vec<Arc<dyn Device>>,
    /// Opened, and to be attached.
    pub fresh: Vec<Arc<dyn Device>>,
}

impl std::fmt::Debug for Accelerators {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Accelerators")
    }
}

impl Accelerators {
    /// Without devices; `opens` says whether any are to be opened, and `contexts` of how many OpenCL contexts what they
    /// need is kept, at least one.
    #[must_use]
    pub fn new(opens: bool, contexts: usize) -> Accelerators {
        #[cfg(not(feature = "opencl"))]
        let _ = contexts;
        Accelerators {
            opens,
            #[cfg(feature = "opencl")]
            contexts,
            ..Accelerators::default()
        }
    }

    /// The same, whose engines of CUDA devices are made so.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn with_config(self, config: gapless_dtype_cuda::Config) -> Accelerators {
        Accelerators { config, ..self }
    }

    /// Gives up all that is kept of the OpenCL context of a space: engines, queues, programs, and, once
    /// [detached](Accelerators::take_changes), references to the context. Whether there was anything.
    #[must_use]
    pub fn give_up_context(&self, space: Space) -> bool {
        #[cfg(feature = "opencl")]
        if let Some(context) = Which::of(space).and_then(Which::context) {
            let its = |all: &[(Which, u64)]| {
                let all = all.iter().map(|(which, _)| *which);
                all.filter(|which| which.context() == Some(context)).collect()
            };
            self.give_up(false, its);
            return self.give_up(true, its);
        }
        let _ = space;
        false
    }

    /// Gives up engines that are open, or what is known of those that could not be opened; whether there was an engine.
    /// They wait for their work.
    #[cfg(feature = "opencl")]
    fn give_up(&self, open: bool, choose: impl FnOnce(&[(Which, u64)]) -> Vec<Which>) -> bool {
        let engines = self.lazy_engines.give_up(open, choose);
        for engine in &engines {
            let (mut changes, device) = (lock(&self.changes), engine.device());
            changes.fresh.retain(|fresh| !Arc::ptr_eq(fresh, &device));
            changes.gone.push(device);
            self.any.store(true, Ordering::Relaxed);
        }
        !engines.is_empty()
    }

    /// Opens the device of a space whose handles nobody has vouched for.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(&self, space: Space) -> Result<(), String> {
        if !self.opens {
            return Err("this world opens no devices (Builder::open_devices)".to_owned());
        }
        self.open_known(space)
    }

    /// Whether devices wait to be attached or detached.
    #[inline]
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// The devices that waited to be attached or detached; they count as that now.
    #[must_use]
    pub fn take_changes(&self) -> DeviceChanges {
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *lock(&self.changes))
    }

    /// Devices that were given up and could not be detached yet: they wait again.
    pub fn try_later(&self, gone: Vec<Arc<dyn Device>>) {
        lock(&self.changes).gone.extend(gone);
        self.any.store(true, Ordering::Relaxed);
    }
}

/// Contexts of which is kept why there is no engine.
#[cfg(feature = "opencl")]
const FAILURES: usize = 32;

/// Its name in errors.
const NAME: &str = "gpu";

/// Which device serves a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    #[cfg(feature = "cuda")]
    Cuda { ordinal: u32 },
    #[cfg(feature = "opencl")]
    OpenCl { context: u64, device: u64, queue: Option<u64> },
}

impl Which {
    /// `None` for memory that is no device's.
    fn of(space: Space) -> Option<Which> {
        match space {
            #[cfg(feature = "cuda")]
            Space::Cuda { device } => Some(Which::Cuda { ordinal: device }),
            // Any device reaches it.
            #[cfg(feature = "cuda")]
            Space::Managed => Some(Which::Cuda { ordinal: 0 }),
            #[cfg(feature = "opencl")]
            Space::OpenCl { context, device, queue } => {
                Some(Which::OpenCl { context, device, queue })
            }
            _ => None,
        }
    }

    /// Makes the engine.
    ///
    /// # Safety
    /// The handles of an OpenCL space are live.
    unsafe fn open(self, accelerators: &Accelerators) -> Result<GpuEngine, String> {
        #[cfg(not(feature = "cuda"))]
        let _ = accelerators;
        match self {
            #[cfg(feature = "cuda")]
            Which::Cuda { ordinal } => accelerators.cuda(ordinal),
            #[cfg(feature = "opencl")]
            Which::OpenCl { context, device, queue } => {
                let space = Space::OpenCl { context, device, queue };
                // SAFETY: the caller's promise.
                let device = unsafe { OpenClDevice::adopt(space) };
                opencl(device.map_err(|error| error.to_string())?)
            }
        }
    }
}

/// In which device's memory an address lies, or in managed memory: what the drivers know that somebody in this process has
/// opened. What is page-locked is ordinary memory. No address is an OpenCL buffer's.
#[must_use]
#[inline]
pub fn space_at(address: u64) -> Option<Space> {
    #[cfg(feature = "cuda")]
    if let Some(found) = gapless_mem_cuda::space_at(address) {
        return Some(found).filter(|space| *space != Space::Pinned);
    }
    let _ = address;
    None
}

#[cfg(feature = "opencl")]
fn opencl(device: OpenClDevice) -> Result<GpuEngine, String> {
    GpuEngine::opencl(Arc::new(device)).map_err(|error| error.to_string())
}

impl Accelerators {
    #[cfg(feature = "cuda")]
    fn cuda(&self, ordinal: u32) -> Result<GpuEngine, String> {
        let driver = gapless_mem_cuda::CudaDriver::load();
        let device = driver.and_then(|driver| driver.device(ordinal));
        let device = device.map_err(|error| error.to_string())?;
        let engine = GpuEngine::cuda_with(Arc::new(device), self.config.clone());
        engine.map_err(|error| error.to_string())
    }

    /// The engine of a view's space, made now if it does not exist.
    fn engine(&self, space: Space) -> Option<GpuEngine> {
        let which = Which::of(space)?;
        // SAFETY: asked for by the message layer alone, about views, whose makers vouch for their
        // regions: a buffer's context, device and queue live while it does, and the device takes
        // references of its own.
        self.take(space, which, || unsafe { which.open(self) }).ok()
    }

    /// Makes the engine of a space of unknown origin: its handles are used only if another device of this process
    /// has them.
    fn open_known(&self, space: Space) -> Result<(), String> {
        let found = match Which::of(space)
            .ok_or("no device is opened for such memory: Builder::device hands one over")?
        {
            #[cfg(feature = "cuda")]
            which @ Which::Cuda { ordinal } => self.take(space, which, || self.cuda(ordinal)),
            #[cfg(feature = "opencl")]
            which @ Which::OpenCl { .. } => {
                // Before anything is kept under this name: safe code can invent any number of names.
                let device = OpenClDevice::known(space).map_err(|error| error.to_string())?;
                self.take(space, which, || opencl(device))
            }
        };
        found.map(drop)
    }

    /// The engine of a device, made by `open` if there is none.
    fn take(
        &self,
        space: Space,
        which: Which,
        open: impl FnOnce() -> Result<GpuEngine, String>,
    ) -> Result<GpuEngine, String> {
        let why = match self.lazy_engines.get(which, Instant::now, open) {
            EngineAnswer::Known(engine) => return Ok(engine),
            EngineAnswer::Opened(engine, late) => {
                lock(&self.changes).fresh.push(engine.device());
                self.any.store(true, Ordering::Relaxed);
                #[cfg(feature = "opencl")]
                self.give_up(true, |all| contexts::surplus(all, self.contexts));
                if late {
                    tracing::info!(%space, "memory of this device has an engine now");
                }
                return Ok(engine);
            }
            EngineAnswer::Failed(why, 1) => {
                #[cfg(feature = "opencl")]
                self.give_up(false, |all| contexts::surplus(all, FAILURES));
                tracing::warn!(%space, why, "no engine for memory of this device");
                return Err(why);
            }
            EngineAnswer::Failed(why, _) => why,
            EngineAnswer::FailedBefore => {
                return Err("it could not be opened a moment ago".to_owned());
            }
        };
        tracing::debug!(%space, why, "still no engine for memory of this device");
        Err(why)
    }
}

/// The spaces whose engines may move between two memories, in the order in which they are asked: the receiver's
/// comes first, but what is everybody's goes by the other.
fn movers(src: Space, dst: Space) -> impl Iterator<Item = Space> {
    let order = if dst == Space::Managed { [src, dst] } else { [dst, src] };
    let twice = Which::of(src) == Which::of(dst);
    let known = order.into_iter().filter(|space| Which::of(*space).is_some());
    known.take(if twice { 1 } else { 2 })
}

/// One engine for the memory of all devices of a world; it opens a device when that is first needed.
#[derive(Debug)]
pub struct OnDemand(Arc<Accelerators>);

impl OnDemand {
    /// That of these.
    #[must_use]
    pub fn new(accelerators: &Arc<Accelerators>) -> OnDemand {
        OnDemand(Arc::clone(accelerators))
    }

    fn engine(&self, space: Space) -> Result<GpuEngine, EngineError> {
        self.0.engine(space).ok_or(EngineError::WrongSpace { engine: NAME, space })
    }
}

// SAFETY: all work is handed on to a `GpuEngine`, by which the contract holds.
unsafe impl Engine for OnDemand {
    fn name(&self) -> &'static str {
        NAME
    }

    fn serves(&self, space: Space) -> bool {
        self.0.engine(space).is_some()
    }

    fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
        Some(self.0.engine(space)?.device())
    }

    fn reaches(&self, host: Region, from: Option<Space>) -> Option<(&dyn Engine, Arc<dyn Device>)> {
        #[cfg(feature = "cuda")]
        if self.0.opens {
            let start = host.address().checked_add(host.offset())?;
            // It may be page-locked for others, too.
            let first = gapless_mem_cuda::page_locked_for(start)?;
            let space = from.unwrap_or(Space::Cuda { device: first });
            let engine = self.0.engine(space)?;
            let (_, device) = engine.reaches(host, Some(space))?;
            return Some((self, device));
        }
        let _ = (host, from);
        None
    }

    fn refusal(&self, space: Space) -> Option<String> {
        // Of a CUDA device there is one thing to say: it cannot be opened, as the log has told.
        if !matches!(space, Space::OpenCl { .. }) {
            return None;
        }
        self.0.lazy_engines.failure(Which::of(space)?)
    }

    fn reducer(&self, space: Space) -> Option<Arc<dyn Reducer>> {
        Engine::reducer(&self.0.engine(space)?, space)
    }

    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's promise.
        unsafe { self.engine(src.space())?.pack(src, range, dst, after) }
    }

    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's promise.
        unsafe { self.engine(dst.space())?.unpack(src, dst, range, after) }
    }

    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let tries = movers(src.space(), dst.space()).map(|space| {
            // SAFETY: the caller's promise.
            unsafe { self.engine(space)?.transfer(src, dst, range.clone(), after) }
        });
        let refused = EngineError::WrongSpace { engine: NAME, space: dst.space() };
        first_willing(tries).unwrap_or(Err(refused))
    }

    unsafe fn copy_all(
        &self,
        pairs: &[(Region, Region)],
        after: &[Completion],
    ) -> Result<Option<Completion>, EngineError> {
        let Some((into, _)) = pairs.first() else { return Ok(None) };
        // SAFETY: the caller's promise.
        unsafe { self.engine(into.space())?.copy_all(pairs, after) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_opens_nothing() {
        let accelerators = Arc::new(Accelerators::default());
        let engine = OnDemand::new(&accelerators);
        for space in [Space::Host, Space::Pinned, Space::Device { kind: "fake", device: 0 }] {
            assert!(!engine.serves(space));
        }
        assert!(accelerators.lazy_engines.len() == 0 && !accelerators.has_changes());
    }

    #[test]
    #[cfg(feature = "cuda")]
    fn both_ends_have_a_say_in_who_moves_a_message() {
        let [zero, one] = [0, 1].map(|device| Space::Cuda { device });
        for (src, dst, expected) in [
            (one, zero, &[zero, one][..]),
            (one, one, &[one]),
            (one, Space::Managed, &[one, Space::Managed]),
            (Space::Managed, one, &[one, Space::Managed]),
            (Space::Managed, Space::Managed, &[Space::Managed]),
            (one, Space::Host, &[one]),
            (Space::Pinned, one, &[one]),
            (Space::Host, Space::Host, &[]),
        ] {
            let found: Vec<Space> = movers(src, dst).collect();
            assert_eq!(found, expected, "{src} to {dst}");
        }
    }

    #[test]
    #[cfg(feature = "cuda")]
    fn a_device_that_is_not_there_serves_nothing() {
        let accelerators = Arc::new(Accelerators::default());
        let engine = OnDemand::new(&accelerators);
        let space = Space::Cuda { device: 4_000_000 };
        for _ in 0..2 {
            assert!(!engine.serves(space));
            assert_eq!(accelerators.lazy_engines.len(), 1);
        }
        assert!(!accelerators.has_changes());
    }
}
