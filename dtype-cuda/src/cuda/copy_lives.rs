//! Lives of the copy worker on a CUDA device: one block of a kernel, on a stream of its own.
//!
//! Without the Multi-Process Service processes take turns on a device, and a worker that stays keeps the others away.
//! So its block stands in the device's [ledger](Reservation), and no life begins while another process has something
//! there.

use super::worker::{WorkerError, takes_turns};
use crate::config::Workers;
use crate::copy_worker::{CopyWorker, Lives};
use crate::ledger::{Ask, Holder, Reservation, reserved};
use gapless_kernels::copy_worker::{CONTROL_BYTES, IMAGE, KERNEL, THREADS};
use gapless_mem::{Device, DeviceError, Lease, Words};
use gapless_mem_cuda::{Argument, CudaDevice, Function, Grid, Module, Mps, Stream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a life takes at most: what waits for all of the device waits no longer.
const LIFE: Duration = Duration::from_millis(5);

/// The ledger is read at most once in this time.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What starts lives.
pub(crate) struct CudaLives {
    device: Arc<CudaDevice>,
    function: Function,
    stream: Stream,
    /// The kernel's parameter.
    start: [u64; 3],
    /// Whether no other process was there, and when that was asked; where processes take turns.
    alone: Mutex<Option<(Instant, bool)>>,
    _reserved: Reservation,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The copy worker of a device; `None`: there is to be none.
///
/// # Errors
/// As [`CudaWorker::new`](super::CudaWorker::new), but that another process is no reason: the worker waits until that
/// one has left.
pub(crate) fn copy_worker(
    device: &Arc<CudaDevice>,
    workers: Workers,
) -> Result<Option<CopyWorker<CudaLives>>, WorkerError> {
    let [idle, life] = match workers {
        Workers::Never => return Ok(None),
        Workers::Idle(idle) => [idle.min(LIFE), LIFE],
    };
    // SAFETY: CUDA's tools made the image (`cargo xtask kernels`), and it is compiled into this program.
    let module = unsafe { Module::load(device, IMAGE) }?;
    let function = module.function(KERNEL)?;
    // Asking loads it: the first launch of a kernel that is not may wait for all that runs.
    let per_unit = function.blocks_per_unit(THREADS, 0)?;
    let room = device.properties().compute_units.saturating_mul(per_unit);
    let together = device.mps() != Mps::Off;
    let ask = Ask { holder: Holder::Worker, blocks: 1, room, together, handed: 0 };
    let reserved_here = Reservation::new(device.uuid(), ask)?;
    let stream = device.stream()?;
    let buffer = device.pinned(CONTROL_BYTES)?;
    let region = buffer.region();
    // SAFETY: the buffer is new, and nothing works on it.
    unsafe { gapless_mem::fill(&region, 0) }.map_err(gapless_mem_cuda::CudaError::from)?;
    let control = device.device_address(region)?;
    // SAFETY: the buffer keeps its memory.
    let lease = unsafe { Lease::new(region, Arc::new(buffer)) };
    // SAFETY: zeroed memory, which is touched as words from here on.
    let words = unsafe { Words::new(lease) }.map_err(gapless_mem_cuda::CudaError::from)?;
    let lives = CudaLives {
        device: Arc::clone(device),
        function,
        stream,
        start: [control, nanoseconds(idle), nanoseconds(life)],
        alone: Mutex::default(),
        _reserved: reserved_here,
    };
    Ok(Some(CopyWorker::new(words, lives)))
}

// SAFETY: lives run on one stream, one after another, and nothing else does; it is idle when all are over. No event is
// recorded behind them: what waits for a life would keep work of other streams waiting, as far as they share a hardware
// queue. An error of the stream's is one after which the device does nothing any more.
unsafe impl Lives for CudaLives {
    fn start(&self) -> Result<(), DeviceError> {
        let arguments = [Argument::of(&self.start)];
        // SAFETY: the kernel has one parameter of three words. The control block is kept until no life runs
        // (`CopyWorker`); what commands name, until they have ended.
        unsafe { self.function.launch(&self.stream, Grid::line(1, THREADS), &arguments) }?;
        Ok(())
    }

    fn may_start(&self) -> bool {
        if self.device.mps() != Mps::Off {
            return true;
        }
        let mut alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, answer)) = *alone
            && at.elapsed() < LOOK_AGAIN
        {
            return answer;
        }
        // What cannot be read may name others.
        let others = |all: Vec<_>| takes_turns(std::process::id(), false, &all).is_some();
        let answer = reserved(self.device.uuid()).is_ok_and(|all| !others(all));
        *alone = Some((Instant::now(), answer));
        answer
    }

    fn is_over(&self) -> Result<bool, DeviceError> {
        Ok(self.stream.is_idle()?)
    }
}
