//! The worker of XTQ on a CUDA device: one block of one kernel (`gapless-kernels`, `worker`), on a stream of its own.
//!
//! The block is counted in the GPU's [ledger](Reservation). The kernel is loaded when the worker is made, because the
//! first launch of a kernel that is not may wait for all that runs. Host memory is registered, and given back, only
//! between two lives, for the same reason.

use crate::ledger::{Ask, Holder, LedgerError, Reservation};
use gapless_kernels::worker::{IMAGE, THREADS, WORKER};
use gapless_mem::{Completion, Device, DeviceError, Lease, Region, Space, Worker, WorkerLimits};
use gapless_mem_cuda::{Argument, CudaDevice, CudaError, Function, Grid, Module, Mps, Stream};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// Why there is no worker.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The driver refuses.
    #[error(transparent)]
    Driver(#[from] CudaError),
    /// Its block has no room on the device, or its ledger cannot be had.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Host memory that is registered for the worker: its lease, and how often it was asked for.
type Kept = HashMap<(u64, u64), (Lease, u32)>;

/// A worker of a CUDA device.
pub struct CudaWorker {
    device: Arc<CudaDevice>,
    function: Function,
    stream: Stream,
    /// The end of the life that was started last; `None`: it is not known, and may never come.
    last: Mutex<Option<Completion>>,
    /// It has a control block: one target's.
    taken: AtomicBool,
    kept: Mutex<Kept>,
    _block: Reservation,
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CudaWorker {
    /// One for this device; it is not started.
    ///
    /// # Errors
    /// The driver refuses; kernels that wait or stay, of this process or of others that use the device at the same time,
    /// take all of it.
    pub fn new(device: Arc<CudaDevice>) -> Result<CudaWorker, WorkerError> {
        // SAFETY: CUDA's tools made the image (`cargo xtask kernels`), and it is compiled into this program.
        let module = unsafe { Module::load(&device, IMAGE) }?;
        let function = module.function(WORKER)?;
        // Asking loads it.
        let per_unit = function.blocks_per_unit(THREADS, 0)?;
        let room = device.properties().compute_units.saturating_mul(per_unit);
        let together = device.mps() != Mps::Off;
        let ask = Ask { holder: Holder::Worker, blocks: 1, room, together, handed: 0 };
        let block = Reservation::new(device.uuid(), ask)?;
        let stream = device.stream()?;
        let last = Mutex::new(Some(Completion::Ready));
        let (taken, kept) = (AtomicBool::new(false), Mutex::default());
        Ok(CudaWorker { device, function, stream, last, taken, kept, _block: block })
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

// SAFETY: the numbers are those of the contract.
// 1. Page-locked memory from the device's pool, filled with zeros, which its owner keeps; `device_address` is where
//    kernels find it.
// 2. Host memory is registered under a clone of its lease until the last `forget`; other memory is at its own address,
//    of a device that `device_address` has found in reach.
//    Only one target has a control block of this.
// 3. The kernel touches what its control block names; whoever starts it says that the last one is over, and the stream
//    runs one after another anyway.
// 4. The completion that was recorded behind the last launch has ended, and so have all before it on the stream. Who asks
//    between a launch and its record waits; a launch without one is never over.
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
        Ok((lease, address))
    }

    fn reach(&self, memory: &Lease) -> Result<u64, DeviceError> {
        let region = memory.region();
        if !is_host(region) {
            return Ok(self.device.device_address(region)?);
        }
        let key = (region.start(), region.len());
        let mut kept = lock(&self.kept);
        if let Some((_, users)) = kept.get_mut(&key) {
            let address = self.device.device_address(region)?;
            *users += 1;
            return Ok(address);
        }
        // SAFETY: a clone of the lease is kept until it is unregistered.
        unsafe { self.device.register(region) }?;
        match self.device.device_address(region) {
            Ok(address) => {
                kept.insert(key, (memory.clone(), 1));
                Ok(address)
            }
            Err(error) => {
                // SAFETY: it was registered above, and nobody was told where.
                unsafe { self.device.unregister(region) }?;
                Err(error.into())
            }
        }
    }

    fn forget(&self, memory: &Lease) -> Result<(), DeviceError> {
        let region = memory.region();
        let key = (region.start(), region.len());
        let mut kept = lock(&self.kept);
        let Some((_, users)) = kept.get_mut(&key) else { return Ok(()) };
        *users -= 1;
        if *users > 0 {
            return Ok(());
        }
        let last = kept.remove(&key);
        // SAFETY: `reach` registered it; no worker runs, and it was not asked for again.
        let undone = unsafe { self.device.unregister(region) };
        drop(last);
        undone
    }

    unsafe fn start(&self, control: u64) -> Result<(), DeviceError> {
        let mut last = lock(&self.last);
        // SAFETY: the kernel has one parameter of 8 bytes; the caller keeps what the control block names.
        unsafe {
            self.function.launch(&self.stream, Grid::line(1, THREADS), &[Argument::of(&control)])
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
        for (_, (lease, _)) in lock(&self.kept).drain() {
            if !over {
                std::mem::forget(lease);
                continue;
            }
            // SAFETY: `reach` registered it, and no worker runs.
            if let Err(error) = unsafe { self.device.unregister(lease.region()) } {
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
