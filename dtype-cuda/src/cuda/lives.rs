//! Lives of a persistent kernel on a CUDA device: one block, on a stream of its own.
//!
//! Without the Multi-Process Service processes take turns on a device, and a persistent kernel keeps the others away.
//! So its block stands in the device's [ledger](Reservation), and no life begins while another process has something
//! there.

use super::worker::{WorkerError, takes_turns};
use crate::config::Workers;
use crate::ledger::{Ask, Holder, Reservation, reserved};
use crate::persistent::{Lives, PersistentKernel};
use gapless_kernels::copy_worker;
use gapless_kernels::persistent::{CONTROL_BYTES, Command, THREADS};
use gapless_mem::{Completion, Device, DeviceError, Lease, Words};
use gapless_mem_cuda::{Argument, CudaDevice, Function, Grid, Module, Mps, Stream};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// After this a life takes no more commands: what waits for all of the device waits so long, and for the command that runs.
const LIFE: Duration = Duration::from_millis(5);

/// The ledger is read at most once in this time.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What starts lives, of kernels with this parameter.
pub(crate) struct CudaLives<P> {
    device: Arc<CudaDevice>,
    function: Function,
    stream: Stream,
    parameter: P,
    /// Whether commands may wait for other processes.
    waits: bool,
    /// How long a life stays without commands, and when one was last wanted.
    idle: Duration,
    wanted: Mutex<Option<Instant>>,
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
/// As [`CudaPersistent::new`].
pub(crate) fn copy_worker(
    device: &Arc<CudaDevice>,
    workers: Workers,
) -> Result<Option<CudaPersistent<[u64; 3]>>, WorkerError> {
    if workers == Workers::Never {
        return Ok(None);
    }
    // SAFETY: CUDA's tools made the image (`cargo xtask kernels`), and it is compiled into this program.
    let module = unsafe { Module::load(device, copy_worker::IMAGE) }?;
    let function = module.function(copy_worker::KERNEL)?;
    // SAFETY: the kernel stays as its contract says, and has one parameter of three words.
    unsafe { CudaPersistent::new(device, function, workers, false, |start| start) }
}

/// A persistent kernel, which stays on a device while it is used, and runs what this process gives it without a launch
/// (`gapless_kernels::persistent`). Its block is in the device's [ledger](crate::Reservation). Dropping it, and all that
/// was [given](CudaPersistent::give), waits until it has left, but no longer than 5 s.
pub struct CudaPersistent<P: Copy + Send + Sync + 'static>(Arc<PersistentKernel<CudaLives<P>>>);

impl<P: Copy + Send + Sync + 'static> CudaPersistent<P> {
    /// One that is away. `parameter` makes the kernel's parameter of its first three words: where its control block is;
    /// after how many nanoseconds without a command it leaves; after how many in all. `waits`: its commands may wait for
    /// other processes. `None`: there is to be none.
    ///
    /// # Safety
    /// `function` does what `gapless_kernels::persistent` says, by one block, and `P` is its only parameter. What that
    /// names is valid until this and all completions are dropped, and commands end by themselves before that.
    ///
    /// # Errors
    /// As [`CudaWorker::new`](super::CudaWorker::new), but that another process is no reason: the kernel waits until that
    /// one has left.
    pub unsafe fn new(
        device: &Arc<CudaDevice>,
        function: Function,
        workers: Workers,
        waits: bool,
        parameter: impl FnOnce([u64; 3]) -> P,
    ) -> Result<Option<CudaPersistent<P>>, WorkerError> {
        let [idle, life] = match workers {
            Workers::Never => return Ok(None),
            Workers::Idle(idle) => [idle.min(LIFE), LIFE],
        };
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
            parameter: parameter([control, nanoseconds(idle), nanoseconds(life)]),
            waits,
            idle,
            wanted: Mutex::default(),
            alone: Mutex::default(),
            _reserved: reserved_here,
        };
        Ok(Some(CudaPersistent(Arc::new(PersistentKernel::new(words, lives)))))
    }

    /// Has it started, for what comes, if it is away and may be: not at the first call of several that come within the
    /// time that it stays without any; nor while another process takes turns with this one.
    pub fn wake(&self) {
        self.0.wake();
    }

    /// How many commands it was given.
    #[must_use]
    pub fn given(&self) -> u64 {
        self.0.given()
    }

    /// Gives it a command. `None`: it is away, or has too much to do, and nothing was done.
    ///
    /// # Safety
    /// The command is of the kind that the kernel runs. What it works on stays valid, and free of races, until the
    /// completion.
    #[must_use]
    pub unsafe fn give(&self, command: &Command) -> Option<Completion> {
        // SAFETY: the caller's own promise.
        unsafe { self.0.give(command) }
    }
}

impl<P: Copy + Send + Sync + 'static> fmt::Debug for CudaPersistent<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaPersistent, {} commands so far", self.given())
    }
}

// SAFETY: lives run on one stream, one after another, and nothing else does; it is idle when all are over. No event is
// recorded behind them: what waits for a life would keep work of other streams waiting, as far as they share a hardware
// queue. An error of the stream's is one after which the device does nothing any more.
unsafe impl<P: Copy + Send + Sync> Lives for CudaLives<P> {
    fn start(&self) -> Result<(), DeviceError> {
        let arguments = [Argument::of(&self.parameter)];
        // SAFETY: the kernel has this one parameter, and what that names is kept (`CudaPersistent::new`). The control
        // block is kept until no life runs (`PersistentKernel`); what commands name, until they have ended.
        unsafe { self.function.launch(&self.stream, Grid::line(1, THREADS), &arguments) }?;
        Ok(())
    }

    /// Not for what comes seldom, which would find it gone; nor while another process takes turns with this one.
    fn may_start(&self) -> bool {
        let now = Instant::now();
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let before = wanted.replace(now);
        if before.is_none_or(|before| now - before > self.idle) {
            return false;
        }
        drop(wanted);
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

    fn waits(&self) -> bool {
        self.waits
    }

    fn is_over(&self) -> Result<bool, DeviceError> {
        Ok(self.stream.is_idle()?)
    }
}
