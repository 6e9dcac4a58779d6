//! Memory that other processes have exported, mapped for the processor of this one: by Vulkan (`vulkan.rs`), without CUDA,
//! on a thread (`mapping_thread.rs`).
//!
//! What `cuMemAlloc` gave cannot be mapped so; what [`allocate_shareable`](crate::CudaDevice::allocate_shareable) gave can.

use crate::CudaError;
use crate::context::lock;
use crate::key::{Kind, MemoryKey};
use crate::mapping_thread::{Caller, MappingThread, Maps, refuse, unavailable};
use crate::vulkan::Gpu;
use gapless_mem::{Answer, DeviceError, Export, Mapper, Region};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// GPUs that a mapper opens at most, each on a thread. Peers name them, and may name some that do not exist.
const GPUS_MAX: usize = 64;
/// How long [`probe`](ProcessorMapper::probe) waits for a driver to open.
const PROBE: Duration = Duration::from_secs(10);
/// How long dropping a mapper waits for drivers that are at work. Opening one has taken half a second.
const LEAVE: Duration = Duration::from_secs(2);

type Held = <Gpu as Maps>::Held;

/// Maps memory of CUDA devices for the processor of this process, which need not use CUDA itself.
///
/// A thread opens Vulkan for a GPU when its memory is first asked for, which takes some tenths of a second, and maps from
/// then on. Nobody waits for that. Dropping the mapper unmaps everything; it waits for the threads, but no longer than
/// two seconds: one that a driver does not let go is left behind with all that it has.
///
/// ```no_run
/// # use gapless_mem::{DeviceError, Export, Lease, Mapper, ProcessorMapping};
/// # use std::sync::Arc;
/// # fn wait(export: Export, len: u64) -> Result<Lease, DeviceError> {
/// let mapper: Arc<dyn Mapper> = Arc::new(gapless_mem_cuda::ProcessorMapper::new());
/// let thread = std::thread::current();
/// let bell = Arc::new(move || thread.unpark());
/// let mut mapping = ProcessorMapping::begin(&mapper, export, len, bell);
/// loop {
///     if let Some(memory) = mapping.take() {
///         break memory;
///     }
///     std::thread::park_timeout(std::time::Duration::from_secs(1));
/// }
/// # }
/// ```
#[derive(Default)]
pub struct ProcessorMapper {
    /// By the GPU's UUID.
    gpus: Mutex<BTreeMap<[u8; 16], MappingThread<Held>>>,
}

impl ProcessorMapper {
    /// Opens nothing yet.
    #[must_use]
    pub fn new() -> ProcessorMapper {
        ProcessorMapper::default()
    }

    /// By which library memory of this GPU is mapped; an error says why it is not. Waits until that is known, 10 s at most.
    ///
    /// # Errors
    /// What was tried, and why it failed; the driver does not answer.
    pub fn probe(&self, uuid: [u8; 16]) -> Result<&'static str, String> {
        self.thread(uuid)?.opened(PROBE)
    }

    /// The thread of this GPU.
    fn thread(&self, uuid: [u8; 16]) -> Result<Caller<Held>, String> {
        let mut gpus = lock(&self.gpus);
        if gpus.len() >= GPUS_MAX && !gpus.contains_key(&uuid) {
            return Err(format!("memory of {GPUS_MAX} other GPUs was asked for"));
        }
        let thread =
            gpus.entry(uuid).or_insert_with(|| MappingThread::new(move || Gpu::open(uuid)));
        Ok(thread.caller())
    }
}

impl std::fmt::Debug for ProcessorMapper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProcessorMapper of {} GPUs", lock(&self.gpus).len())
    }
}

/// What maps an export: a key with a descriptor.
fn read(export: Export) -> Result<(OwnedFd, MemoryKey), DeviceError> {
    let key = MemoryKey::decode(&export.bytes, export.descriptors.len())?;
    match (&key.kind, export.descriptors.into_iter().next()) {
        (Kind::Descriptor, Some(file)) => Ok((file, key)),
        _ => {
            let reason = "only memory that travels as a descriptor can be mapped for the processor";
            Err(CudaError::Malformed { object: "memory key", reason }.into())
        }
    }
}

// SAFETY: the numbers are those of the contract.
// 1. Vulkan maps the whole allocation, which its import keeps whatever the exporter does, at addresses that it has for this
//    alone; the key's range lies inside. That the driver refuses a length that is more than the descriptor's is tested on it
//    (`tests/hardware/processor.rs`).
// 2. What follows a mapping on its thread is entering it into a table; if that panics, it stays mapped, and nobody has it.
unsafe impl Mapper for ProcessorMapper {
    fn map(&self, export: Export, answer: Answer) {
        match read(export) {
            Ok((file, key)) => match self.thread(key.uuid) {
                Ok(thread) => thread.map(file, key, answer),
                Err(why) => refuse(answer, why),
            },
            // Nothing is mapped, so nothing comes back.
            Err(error) => _ = answer.give(Err(error)),
        }
    }

    unsafe fn unmap(&self, region: Region) -> Result<(), DeviceError> {
        let gpus = lock(&self.gpus);
        // SAFETY: the caller's own promise.
        match gpus.values().any(|thread| unsafe { thread.unmap(region.address()) }) {
            true => Ok(()),
            false => Err(unavailable("nothing was mapped there".to_owned())),
        }
    }
}

impl Drop for ProcessorMapper {
    fn drop(&mut self) {
        let gpus = std::mem::take(&mut *lock(&self.gpus));
        gpus.values().for_each(MappingThread::close);
        let until = Instant::now() + LEAVE;
        for thread in gpus.into_values() {
            if !thread.end(until) {
                tracing::warn!("a driver of Vulkan does not come back: it is left behind");
            }
        }
    }
}
