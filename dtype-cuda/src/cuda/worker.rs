//! The worker of XTQ on a CUDA device: blocks of one kernel (`gapless-kernels`, `worker`), on a stream of its own.
//!
//! The blocks are counted in the GPU's [ledger](Reservation). The kernel is loaded when the worker is made, because the
//! first launch of a kernel that is not may wait for all that runs. Host memory is registered for the first time, and
//! is given back, between two lives, for the same reason. What is registered already is only counted, also while the
//! worker runs.

use crate::ledger::{Ask, Holder, Holding, LedgerError, Reservation, reserved};
use gapless_kernels::worker::{
    BLOCKS_MAX, FIRST_WORDS, IMAGE, LINKED_IMAGE, PARAMETER_WORDS, REGISTERS_MAX, SLOT_AT, THREADS,
    WORKER, call_by_number,
};
use gapless_mem::{
    Completion, Device, DeviceError, Lease, Region, Space, Words, Worker, WorkerCode,
    WorkerFunction, WorkerLimits,
};
use gapless_mem_cuda::{Argument, CudaDevice, CudaError, Function, Grid, Module, Mps, Stream};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why there is no worker.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The driver refuses.
    #[error(transparent)]
    Driver(#[from] CudaError),
    /// Its blocks have no room on the device, or its ledger cannot be had.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A number of blocks that no worker has.
    #[error("a worker of {wanted} thread blocks: it has 1 to {BLOCKS_MAX}")]
    Blocks {
        /// The number.
        wanted: u32,
    },
    /// Another process has kernels on the device that wait or stay, and without the Multi-Process Service the device runs
    /// one process at a time: a worker would keep the other one away, and be kept away by it.
    #[error(
        "process {process} has kernels on {device} that wait or stay (`gapless info` lists them), and without MPS \
         processes take turns there: start nvidia-cuda-mps-control, or take another GPU for one of both"
    )]
    TakesTurns {
        /// The device.
        device: String,
        /// The other process.
        process: u32,
    },
}

/// A process with which a worker of this one would take turns on a device of which these are the reservations.
pub(super) fn takes_turns(own: u32, together: bool, all: &[Holding]) -> Option<u32> {
    let busy = |holding: &&Holding| holding.process != own && !holding.claims.is_empty();
    all.iter().find(busy).filter(|_| !together).map(|holding| holding.process)
}

/// The blocks of a worker on a device that has room for so many; `together`: processes use it at the same time.
fn own_blocks(
    uuid: [u8; 16],
    device: Space,
    (blocks, room): (u32, u32),
    together: bool,
) -> Result<Reservation, WorkerError> {
    let ask = Ask { holder: Holder::Worker, blocks, room, together, handed: 0 };
    let reserved_here = Reservation::new(uuid, ask)?;
    // Whoever comes at the same time finds this one's.
    match takes_turns(std::process::id(), together, &reserved(uuid)?) {
        Some(process) => Err(WorkerError::TakesTurns { device: device.to_string(), process }),
        None => Ok(reserved_here),
    }
}

/// How long the first life of a linked worker may take.
const TRIAL: Duration = Duration::from_secs(10);

/// Bytes of a control block (`kernels/src/worker.h`).
const CONTROL_BYTES: u64 = 16384;

/// Host memory that is registered for the worker.
struct Kept {
    memory: Lease,
    /// Where the worker finds it.
    address: u64,
    /// How often it was asked for.
    users: u32,
}

/// By first address and length.
type KeptLeases = HashMap<(u64, u64), Kept>;

/// A worker of a CUDA device. [Functions of users](gapless_mem::WorkerCode) are relocatable PTX, cubins or fat binaries;
/// [`HEADER`](gapless_kernels::worker::HEADER) has their type and their rules.
pub struct CudaWorker {
    device: Arc<CudaDevice>,
    /// The kernel without functions of users, and that with those that are linked.
    function: Function,
    linked: Mutex<Option<(Function, Module)>>,
    stream: Stream,
    /// The end of the life that was started last; `None`: it is not known, and may never come.
    last: Mutex<Option<Completion>>,
    /// It has a control block: one target's.
    taken: AtomicBool,
    /// That, once it has.
    control: OnceLock<Words>,
    kept: Mutex<KeptLeases>,
    blocks: u32,
    /// How many lives there were, trials included.
    lives: AtomicU64,
    _reserved: Reservation,
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread has may take it as long as all work of the device.
fn try_lock<T>(what: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match what.try_lock() {
        Ok(held) => Some(held),
        Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl CudaWorker {
    /// One for this device, of one thread block; it is not started.
    ///
    /// # Errors
    /// As [`with_blocks`](CudaWorker::with_blocks).
    pub fn new(device: Arc<CudaDevice>) -> Result<CudaWorker, WorkerError> {
        CudaWorker::with_blocks(device, 1)
    }

    /// One for this device, of so many thread blocks, which is not started. The first block takes all tasks; the others
    /// help with those of 32 KiB and more, and with functions of users whose grid has several groups: these run side by
    /// side, in any order. Each block takes about a multiprocessor from the application as long as the worker stays.
    ///
    /// # Errors
    /// - [`Blocks`](WorkerError::Blocks): no worker has so many blocks, or none.
    /// - [`Ledger`](WorkerError::Ledger): the device has no room for them beside other kernels that wait or stay, of
    ///   this process or of others that use the device at the same time.
    /// - [`TakesTurns`](WorkerError::TakesTurns): another process has such kernels there, and there is no Multi-Process
    ///   Service.
    /// - [`Driver`](WorkerError::Driver): the driver refuses.
    pub fn with_blocks(device: Arc<CudaDevice>, blocks: u32) -> Result<CudaWorker, WorkerError> {
        if blocks == 0 || blocks > BLOCKS_MAX {
            return Err(WorkerError::Blocks { wanted: blocks });
        }
        // SAFETY: CUDA's tools made the image (`cargo xtask kernels`), and it is compiled into this program.
        let module = unsafe { Module::load(&device, IMAGE) }?;
        let function = module.function(WORKER)?;
        // Asking loads it.
        let per_unit = function.blocks_per_unit(THREADS, 0)?;
        let room = device.properties().compute_units.saturating_mul(per_unit);
        let together = device.mps() != Mps::Off;
        let reserved_here = own_blocks(device.uuid(), device.space(), (blocks, room), together)?;
        let stream = device.stream()?;
        let last = Mutex::new(Some(Completion::Ready));
        let (taken, kept) = (AtomicBool::new(false), Mutex::default());
        let (linked, control) = (Mutex::default(), OnceLock::new());
        Ok(CudaWorker {
            device,
            function,
            linked,
            stream,
            last,
            taken,
            control,
            kept,
            blocks,
            lives: AtomicU64::new(0),
            _reserved: reserved_here,
        })
    }

    /// The worker with these functions of users.
    fn with(&self, functions: &[WorkerFunction]) -> Result<(Function, Module), DeviceError> {
        let numbered = functions.iter().map(|function| (function.number, &*function.name));
        let calls = call_by_number(numbered)
            .map_err(|error| DeviceError::Link { log: error.to_string() })?;
        let mut codes: Vec<&WorkerCode> = Vec::new();
        for function in functions {
            if !codes.iter().any(|code| code.is(&function.code)) {
                codes.push(&function.code);
            }
        }
        let names: Vec<CString> = (0..codes.len())
            .map(|number| CString::new(format!("code {number} of users")).unwrap_or_default())
            .collect();
        let own: [(&CStr, &[u8]); 2] = [(c"worker", LINKED_IMAGE), (c"calls", calls.as_bytes())];
        let users = names.iter().zip(&codes).map(|(name, code)| (name.as_c_str(), code.image()));
        let images: Vec<(&CStr, &[u8])> = own.into_iter().chain(users).collect();
        // SAFETY: CUDA's tools made the worker's image; the calls are PTX of this crate's; whoever made the codes has
        // promised the same of them.
        let module = unsafe { Module::link(&self.device, &images, REGISTERS_MAX) }?;
        let loaded = module.function(WORKER).and_then(|function| {
            let blocks = function.blocks_per_unit(THREADS, 0)?;
            Ok((function, blocks))
        });
        let log = match loaded {
            Ok((function, 1..)) => {
                return match self.try_out(&function) {
                    Ok(()) => Ok((function, module)),
                    Err(error) => {
                        // It may have begun, or begin.
                        std::mem::forget(module);
                        Err(error)
                    }
                };
            }
            Ok(_) => {
                "functions of users take more registers or shared memory than a multiprocessor has"
                    .to_owned()
            }
            Err(error) => error.to_string(),
        };
        // SAFETY: it was just loaded, and nothing of it was launched.
        if let Err(error) = unsafe { module.unload() } {
            tracing::debug!(%error, "an image stays loaded");
        }
        Err(DeviceError::Link { log })
    }

    /// A life without rings, which ends at once. The first launch of a kernel with a stack may wait for all that runs on the
    /// device, and the worker of another target might.
    fn try_out(&self, function: &Function) -> Result<(), DeviceError> {
        let control = self.device.pinned(CONTROL_BYTES)?;
        // SAFETY: the buffer is new, and nothing works on it.
        unsafe { gapless_mem::fill(&control.region(), 0) }?;
        let address = self.device.device_address(control.region())?;
        // From here on the kernel may read it, unless it is known to have ended.
        let control = ManuallyDrop::new(control);
        let mut start = [0u64; PARAMETER_WORDS];
        start[..2].copy_from_slice(&[address, self.next_life()]);
        // SAFETY: the kernel has one parameter of so many words. A control block of zeros names nothing, and its life is
        // over as it begins; the buffer is kept until that is.
        unsafe { function.launch(&self.stream, Grid::line(1, THREADS), &[Argument::of(&start)]) }?;
        let (ended, begun) = (self.stream.record()?, Instant::now());
        while !ended.poll()? {
            if begun.elapsed() > TRIAL {
                let log =
                    format!("its first life has not ended in {TRIAL:?}: what else runs there?");
                return Err(DeviceError::Link { log });
            }
            std::thread::yield_now();
        }
        drop(ManuallyDrop::into_inner(control));
        Ok(())
    }

    /// Blocks tell lives apart by this. Never 0, and below 2³²; it begins anew at 1.
    fn next_life(&self) -> u64 {
        1 + self.lives.fetch_add(1, Ordering::Relaxed) % u64::from(u32::MAX)
    }

    /// Its thread blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }
}

fn is_host(region: Region) -> bool {
    region.space() == Space::Host
}

fn key(region: Region) -> (u64, u64) {
    (region.start(), region.len())
}

// SAFETY: the numbers are those of the contract.
// 1. Page-locked memory from the device's pool, filled with zeros, which its owner keeps; `device_address` is where
//    kernels find it. This reads it, as words, when it starts a life.
// 2. Host memory is registered under a clone of its lease until `users` is 0; other memory is at its own address, of a
//    device that `device_address` has found in reach, or page-locked, for as long as it is allocated.
// 3. `kept` and the table of registered ranges are asked only if no thread has them, and no range is registered for the
//    first time, or for the last.
// 4. The kernel touches what its control block names, but for functions of users, whose code others vouch for; whoever
//    starts it says that the last one is over, and the stream runs one after another anyway. Only one target has a
//    control block of this.
// 5. The completion that was recorded behind the last launch has ended, and so have all before it on the stream. Who
//    asks between a launch and its record waits; a launch without one is never over.
unsafe impl Worker for CudaWorker {
    fn limits(&self) -> WorkerLimits {
        WorkerLimits { items_max: THREADS, local_bytes_max: 0 }
    }

    fn control(&self, len: u64) -> Result<(Lease, u64), DeviceError> {
        if self.taken.swap(true, Ordering::AcqRel) {
            return Err(DeviceError::Unsupported { what: "a second target of one worker" });
        }
        let buffer = self.device.pinned(len)?;
        let region = buffer.region();
        // SAFETY: the buffer was given to this call alone, and nothing works on it.
        unsafe { gapless_mem::fill(&region, 0) }?;
        let address = self.device.device_address(region)?;
        // SAFETY: the buffer keeps its memory.
        let lease = unsafe { Lease::new(region, Arc::new(buffer)) };
        // SAFETY: zeroed memory, which whoever asked for it and the worker touch as words (`start`).
        let _ = self.control.set(unsafe { Words::new(lease.clone()) }?);
        Ok((lease, address))
    }

    fn reach(&self, memory: &Lease) -> Result<u64, DeviceError> {
        let region = memory.region();
        if !is_host(region) {
            return Ok(self.device.device_address(region)?);
        }
        let mut kept = lock(&self.kept);
        if let Some(known) = kept.get_mut(&key(region)) {
            known.users += 1;
            return Ok(known.address);
        }
        // SAFETY: a clone of the lease is kept until it is unregistered.
        unsafe { self.device.register(region) }?;
        match self.device.device_address(region) {
            Ok(address) => {
                kept.insert(key(region), Kept { memory: memory.clone(), address, users: 1 });
                Ok(address)
            }
            Err(error) => {
                // SAFETY: it was registered above, and nobody was told where.
                unsafe { self.device.unregister(region) }?;
                Err(error.into())
            }
        }
    }

    fn reach_now(&self, memory: &Lease) -> Result<Option<u64>, DeviceError> {
        let region = memory.region();
        if !is_host(region) {
            return Ok(self.device.device_address_now(region)?);
        }
        let Some(mut kept) = try_lock(&self.kept) else { return Ok(None) };
        if let Some(known) = kept.get_mut(&key(region)) {
            known.users += 1;
            return Ok(Some(known.address));
        }
        // SAFETY: a clone of the lease is kept until it is unregistered.
        let again = unsafe { self.device.register_again(region) };
        if let Some(address) = again {
            kept.insert(key(region), Kept { memory: memory.clone(), address, users: 1 });
        }
        Ok(again)
    }

    unsafe fn forget(&self, memory: &Lease) -> Result<(), DeviceError> {
        let region = memory.region();
        let mut kept = lock(&self.kept);
        let Some(known) = kept.get_mut(&key(region)) else { return Ok(()) };
        known.users -= 1;
        if known.users > 0 {
            return Ok(());
        }
        let last = kept.remove(&key(region));
        // SAFETY: this registered it, and all who had it reached say that no worker uses it.
        let undone = unsafe { self.device.unregister(region) };
        drop(last);
        undone
    }

    unsafe fn forget_now(&self, memory: &Lease) -> Result<bool, DeviceError> {
        if !is_host(memory.region()) {
            return Ok(true);
        }
        let Some(mut kept) = try_lock(&self.kept) else { return Ok(false) };
        match kept.get_mut(&key(memory.region())) {
            Some(known) if known.users == 1 => return Ok(false),
            Some(known) => known.users -= 1,
            None => {}
        }
        Ok(true)
    }

    fn link(&self, functions: &[WorkerFunction]) -> Result<(), DeviceError> {
        // Held, so that none starts meanwhile.
        let last = lock(&self.last);
        if last.as_ref().map_or(Ok(false), Completion::poll) == Ok(false) {
            return Err(DeviceError::Unsupported { what: "linking while a worker runs" });
        }
        let new = if functions.is_empty() { None } else { Some(self.with(functions)?) };
        let old = std::mem::replace(&mut *lock(&self.linked), new);
        if let Some((_, module)) = old {
            // SAFETY: no worker runs, and the next one is another image's.
            if let Err(error) = unsafe { module.unload() } {
                tracing::debug!(%error, "an image stays loaded");
            }
        }
        Ok(())
    }

    unsafe fn start(&self, control: u64) -> Result<(), DeviceError> {
        let mut last = lock(&self.last);
        let linked = lock(&self.linked);
        let function = linked.as_ref().map_or(&self.function, |(function, _)| function);
        // What a life needs first comes with the launch, as it is now. The one before has written some of these words; it
        // is over, says the caller, who has seen that by `is_over`: so its stores are seen here.
        let mut start = [0u64; PARAMETER_WORDS];
        let words = self.control.get().map(Words::all).unwrap_or_default();
        let (first, slot) = start[2..].split_at_mut(FIRST_WORDS);
        let behind = words.get(SLOT_AT..).unwrap_or_default();
        for (to, word) in first.iter_mut().zip(words).chain(slot.iter_mut().zip(behind)) {
            *to = word.load(Ordering::Acquire);
        }
        start[..2].copy_from_slice(&[control, self.next_life()]);
        // SAFETY: the kernel has one parameter of so many words; the caller keeps what the control block names.
        unsafe {
            function.launch(&self.stream, Grid::line(self.blocks, THREADS), &[Argument::of(&start)])
        }?;
        *last = None;
        *last = Some(self.stream.record()?);
        Ok(())
    }

    fn is_over(&self) -> Result<bool, DeviceError> {
        lock(&self.last).as_ref().map_or(Ok(false), Completion::poll)
    }
}

impl Drop for CudaWorker {
    fn drop(&mut self) {
        // What may still be touched stays registered, and leaks.
        let over = self.is_over() != Ok(false);
        for (_, Kept { memory, .. }) in lock(&self.kept).drain() {
            if !over {
                std::mem::forget(memory);
                continue;
            }
            // SAFETY: this registered it, and no worker runs.
            if let Err(error) = unsafe { self.device.unregister(memory.region()) } {
                tracing::debug!(%error, "host memory stays registered");
            }
        }
    }
}

impl std::fmt::Debug for CudaWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaWorker on {:?}", self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    #[test]
    fn a_worker_takes_no_turns_with_other_processes() {
        let ask = Ask { holder: Holder::Stream, blocks: 2, room: 8, together: false, handed: 0 };
        let of = |process, claims: &[Ask]| Holding { process, claims: claims.to_vec() };
        let all = [of(7, &[ask]), of(8, &[]), of(9, &[ask])];
        assert_eq!(takes_turns(7, false, &all), Some(9));
        assert_eq!((takes_turns(7, true, &all), takes_turns(7, false, &all[..2])), (None, None));
        assert_eq!(takes_turns(9, false, &[]), None);
        let error = WorkerError::TakesTurns { device: "CUDA device 0".to_owned(), process: 9 };
        assert!(error.to_string().contains("process 9 has kernels on CUDA device 0"), "{error}");
    }

    const UUID: &str = "GAPLESS_TEST_WORKER_GPU";

    /// No GPU has this number, and no other test: it is the time and this process.
    fn drawn() -> [u8; 16] {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        (since.as_nanos() << 32 | u128::from(std::process::id())).to_le_bytes()
    }

    fn block(uuid: [u8; 16], together: bool) -> Result<Reservation, WorkerError> {
        own_blocks(uuid, Space::Cuda { device: 0 }, (1, 132), together)
    }

    /// Not a test: what the next one starts and kills.
    #[test]
    fn a_process_that_has_a_worker() {
        let Ok(uuid) = std::env::var(UUID) else { return };
        let uuid: u128 = uuid.parse().unwrap();
        let _block = block(uuid.to_le_bytes(), false).unwrap();
        println!("\nit has one");
        std::thread::sleep(Duration::from_secs(60));
    }

    /// A process that is killed when this is dropped.
    struct Other(Child);

    impl Drop for Other {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Two processes, and a GPU that is not there, but in the ledger.
    #[test]
    fn the_second_process_on_a_gpu_gets_no_worker_unless_both_use_it_at_once() {
        if crate::ledger_folder().is_none() {
            println!(
                "SKIPPED: two processes with workers on a GPU: there is no folder for a ledger"
            );
            return;
        }
        let uuid = drawn();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cuda::worker::tests::a_process_that_has_a_worker", "--nocapture"])
            .env(UUID, u128::from_le_bytes(uuid).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut other = Other(child);
        let mut said = BufReader::new(other.0.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap() == "it has one"));
        let refused = block(uuid, false).map(drop).unwrap_err();
        let is_named =
            matches!(&refused, WorkerError::TakesTurns { process, .. } if *process == other.0.id());
        assert!(is_named, "{refused}");
        let text = refused.to_string();
        assert!(
            text.contains("MPS") && text.contains(&Space::Cuda { device: 0 }.to_string()),
            "{text}"
        );
        // What was refused has left nothing: with the service there is room for one more.
        assert_eq!(crate::reserved_here(uuid), 0);
        drop(block(uuid, true).unwrap());
        drop(other);
        drop(block(uuid, false).unwrap());
    }
}
