//! Memory that other processes have exported, mapped for the processor of this one: by Vulkan (`vulkan.rs`), without CUDA.
//!
//! What `cuMemAlloc` gave cannot be mapped so; what [`allocate_shareable`](crate::CudaDevice::allocate_shareable) gave can.
//! Vulkan takes some tenths of a second to open, so a thread does that when it is first asked for.

use crate::CudaError;
use crate::context::lock;
use crate::key::{Kind, MemoryKey};
use crate::vulkan::Gpu;
use gapless_mem::{DeviceError, Export, Mapper, Region, Space};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

/// A GPU that is being opened.
struct Opening {
    found: Arc<OnceLock<Result<Gpu, String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Opening {
    fn new(uuid: [u8; 16]) -> Opening {
        let found = Arc::<OnceLock<_>>::default();
        let opened = Arc::clone(&found);
        let open = move || _ = opened.set(Gpu::open(uuid));
        let thread = std::thread::Builder::new().name("gapless-vulkan".to_owned()).spawn(open);
        let thread = thread.map_err(|error| _ = found.set(Err(format!("no thread: {error}"))));
        Opening { found, thread: thread.ok() }
    }

    /// What was found; `None`: the thread is looking.
    fn found(&self) -> Option<&Result<Gpu, String>> {
        if self.found.get().is_none() && self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            // It has ended without a word: it has panicked.
            _ = self.found.set(Err("opening it has panicked".to_owned()));
        }
        self.found.get()
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // What it does cannot be cut short, and a process that ends meanwhile could crash in the driver.
            _ = thread.join();
        }
    }
}

/// Maps memory of CUDA devices for the processor of this process, which need not use CUDA itself.
///
/// ```no_run
/// # use gapless_mem::{Export, Mapper, Region, DeviceError};
/// # fn wait(export: impl Fn() -> Export) -> Result<Region, DeviceError> {
/// let mapper = gapless_mem_cuda::ProcessorMapper::new();
/// loop {
///     if let Some(region) = mapper.map(export())? {
///         break Ok(region);
///     }
///     std::thread::yield_now();
/// }
/// # }
/// ```
#[derive(Default)]
pub struct ProcessorMapper(Mutex<Opened>);

#[derive(Default)]
struct Opened {
    /// By UUID.
    gpus: BTreeMap<[u8; 16], Opening>,
    /// Whose memory is mapped, by first address.
    mapped: BTreeMap<u64, [u8; 16]>,
}

fn unavailable(reason: String) -> DeviceError {
    DeviceError::Failed { device: "Vulkan".to_owned(), operation: "mapping memory", reason }
}

impl ProcessorMapper {
    /// Opens nothing yet.
    #[must_use]
    pub fn new() -> ProcessorMapper {
        ProcessorMapper::default()
    }

    /// By which library memory of this GPU is mapped; an error says why it is not. Waits until that is known.
    ///
    /// # Errors
    /// What was tried, and why it failed.
    pub fn probe(&self, uuid: [u8; 16]) -> Result<&'static str, String> {
        let mut opened = lock(&self.0);
        let gpu = opened.gpus.entry(uuid).or_insert_with(|| Opening::new(uuid));
        if let Some(thread) = gpu.thread.take() {
            _ = thread.join();
        }
        match gpu.found.get() {
            Some(Ok(gpu)) => Ok(gpu.name()),
            Some(Err(why)) => Err(why.clone()),
            None => Err("opening it has panicked".to_owned()),
        }
    }
}

impl std::fmt::Debug for ProcessorMapper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProcessorMapper of {} GPUs", lock(&self.0).gpus.len())
    }
}

// SAFETY: the numbers are those of the contract.
// 1. Vulkan maps the whole allocation, which its import keeps whatever the exporter does, at addresses that it has for this
//    alone; the key's range lies inside. That the driver refuses a length that is more than the descriptor's is tested on it
//    (`tests/hardware/processor.rs`).
// 2. What follows a mapping is entering it into a table; if that panics, it stays mapped, and nobody has it.
unsafe impl Mapper for ProcessorMapper {
    fn map(&self, export: Export) -> Result<Option<Region>, DeviceError> {
        let key = MemoryKey::decode(&export.bytes, export.descriptors.len())?;
        let (Kind::Descriptor, Some(file)) = (key.kind, export.descriptors.into_iter().next())
        else {
            let reason = "only memory that travels as a descriptor can be mapped for the processor";
            return Err(CudaError::Malformed { object: "memory key", reason }.into());
        };
        let mut opened = lock(&self.0);
        let Opened { gpus, mapped } = &mut *opened;
        let gpu = gpus.entry(key.uuid).or_insert_with(|| Opening::new(key.uuid));
        let gpu = match gpu.found() {
            Some(Ok(gpu)) => gpu,
            Some(Err(why)) => return Err(unavailable(why.clone())),
            None => return Ok(None),
        };
        let start = gpu.map(file, key.size).map_err(unavailable)?;
        mapped.insert(start, key.uuid);
        Ok(Some(Region::new(Space::Host, start, key.offset, key.len)))
    }

    unsafe fn unmap(&self, region: Region) -> Result<(), DeviceError> {
        let mut opened = lock(&self.0);
        let Opened { gpus, mapped } = &mut *opened;
        let uuid = mapped.remove(&region.address());
        let gpu = uuid.and_then(|uuid| gpus.get(&uuid)?.found()?.as_ref().ok());
        // SAFETY: the caller's own promise.
        match gpu.is_some_and(|gpu| unsafe { gpu.unmap(region.address()) }) {
            true => Ok(()),
            false => Err(unavailable("nothing was mapped there".to_owned())),
        }
    }
}
