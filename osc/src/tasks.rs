//! Accumulations as tasks of XTQ (LeBeane et al. 2016, §V.C.1): the origin puts the operands as a packet, a registered
//! function or kernel of the target combines them, and the end of the task is the acknowledgement that flushes wait for.
//!
//! ```text
//! origin                                                target
//!   put: which window, operation, type ──────────────►  a thread: stripes, elements; or the worker of its accelerator
//!        runs of bytes, operands                                                │
//!   flush, unlock, fence, complete ◄───── the task has ended, or why it failed ◄┘
//! ```
//!
//! All ranks of a window agree on one way when it is made ([`Accumulations`]).
//!
//! - [`Tasks`](Accumulations::Tasks): one function for all windows, whose arguments name the window. Puts of one origin to
//!   one target stand in a line, and run one after the other. The function takes the same mutexes of stripes as all
//!   other changes do (`exposure.rs`), so what it does is atomic against those.
//! - [`Worker`](Accumulations::Worker): a kernel for each window, of the worker of the target's accelerator, which nobody
//!   else changes elements beside: its operations are not the processor's. So a window has no other changes, and
//!   the kernel's operations alone. They are atomic because the worker runs all of them one after another, in one queue of
//!   width 1; so plain loads and stores do, 16 bytes at a time.
//!
//! What a rank does otherwise to a target waits until its tasks there have ended, and a task waits until the messages
//! before it are done: so its operations happen in the order of the calls. `put_tasks.rs` is the origin's side,
//! `tasks/run.rs` the target's.

pub(crate) mod run;

use crate::core::Osc;
use crate::error::WindowError;
use crate::exposure::WindowPart;
use gapless_bml::{AmTag, Bml, BmlError};
use gapless_mem::{Lease, Worker};
use gapless_xtq::device::{DeviceFunction, Life, TargetError};
use gapless_xtq::packet::ENTRIES;
use gapless_xtq::{Config, Function, Kernel, PutHandle, QueueOptions, Xtq, XtqError};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The active-message tag of accumulations that go as tasks of XTQ.
pub const TASKS_TAG: AmTag = AmTag(17);

/// Of the function that does accumulations.
pub(crate) const FUNCTION: u8 = 0;
/// Queues of the function: an origin has one of them.
pub(crate) const QUEUES: u8 = 4;
/// The queue of the worker's kernels.
pub(crate) const WORKER_QUEUE: u8 = QUEUES;
/// What queues hold: more than all that origins have under way, of a few.
const CAPACITY: u32 = 1024;
/// Bytes of a payload, at most.
pub(crate) const BODY: usize = 64 << 10;
/// Receive buffers of the function: how many of which length.
const BUFFERS: [(usize, usize); 2] = [(64, 4 << 10), (8, BODY)];
/// Puts of an origin to a target that have not ended, at most.
pub(crate) const UNDER_WAY: usize = 32;
/// Bytes of a run in a payload: where, and how long.
pub(crate) const RUN: usize = 16;
/// Work-items of a task of the worker, at most.
pub(crate) const ITEMS: u64 = 256;
/// Bytes of arguments of the worker's function.
pub(crate) const ARGUMENTS: u16 = 32;

/// How accumulations are carried out at their targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accumulations {
    /// In memory that the origin maps, else by messages; in a window of numbers perhaps by adapters.
    #[default]
    Ordinary,
    /// As tasks that threads of the target run.
    Tasks,
    /// As tasks of the worker of the target's accelerator.
    Worker,
}

impl Accumulations {
    /// A name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Accumulations::Ordinary => "mapped memory, messages or adapters",
            Accumulations::Tasks => "tasks on the target's threads",
            Accumulations::Worker => "tasks of the worker of the target's accelerator",
        }
    }
}

/// Carries out accumulations as tasks of XTQ: this process's end, beside the one that programs use. Clones are the same
/// end.
#[derive(Clone)]
pub struct Tasks(Arc<Ends>);

struct Ends {
    xtq: Xtq,
    osc: Osc,
    /// Whether the function can be put.
    is_ready: Mutex<bool>,
    kernels: Mutex<Kernels>,
}

/// Kernels of windows.
#[derive(Default)]
struct Kernels {
    /// Those that there are, a bit each.
    taken: u64,
    /// Receive buffers that the worker has.
    buffers: usize,
    /// The one after the last that was given: what is late for a window that was dropped does not find a new one.
    next: u8,
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tasks").field(&self.0.xtq).finish()
    }
}

pub(crate) fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves nothing half done behind these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tasks {
    /// Makes the end of the process of `bml`, before any other process can send it a task.
    ///
    /// # Errors
    /// Somebody has the tag.
    pub fn attach(bml: &mut Bml, osc: &Osc, config: Config) -> Result<Tasks, BmlError> {
        let xtq = Xtq::attach_at(bml, TASKS_TAG, config)?;
        let (is_ready, kernels) = Default::default();
        Ok(Tasks(Arc::new(Ends { xtq, osc: osc.clone(), is_ready, kernels })))
    }

    /// The end itself, which has to make progress.
    #[must_use]
    pub fn xtq(&self) -> &Xtq {
        &self.0.xtq
    }

    /// Lets others put accumulations here. Before a window is made whose accumulations are tasks.
    ///
    /// # Errors
    /// This process is leaving.
    pub fn prepare(&self) -> Result<(), WindowError> {
        let mut is_ready = unpoisoned(&self.0.is_ready);
        if *is_ready {
            return Ok(());
        }
        let (xtq, osc) = (&self.0.xtq, self.0.osc.clone());
        let longest = u32::try_from(BODY).unwrap_or(u32::MAX);
        let quick = osc.clone();
        let function = Function::new(longest, move |task| run::run(&osc, task))
            .quick(longest, move |task| run::try_run(&quick, task));
        let register = || {
            xtq.register_function(FUNCTION, function)?;
            let options = QueueOptions { capacity: CAPACITY, width: 1 };
            (0..=WORKER_QUEUE).try_for_each(|queue| xtq.register_queue(queue, options))
        };
        register().map_err(|error| transport(&error))?;
        for (count, bytes) in BUFFERS {
            (0..count).for_each(|_| xtq.post(vec![0; bytes]));
        }
        *is_ready = true;
        Ok(())
    }

    /// Gives windows a worker, and receive buffers for payloads of its tasks.
    ///
    /// # Errors
    /// There is one; the accelerator refuses; this process is leaving.
    ///
    /// # Safety
    /// As long as this process has not left, nobody else touches the buffers.
    #[allow(unsafe_code, reason = "passes memory on, for which the caller vouches")]
    pub unsafe fn attach_worker(
        &self,
        worker: Arc<dyn Worker>,
        life: Life,
        buffers: Vec<Lease>,
    ) -> Result<(), WindowError> {
        self.prepare()?;
        let mut kernels = unpoisoned(&self.0.kernels);
        match self.0.xtq.attach_worker(worker, life) {
            Ok(()) => {}
            // The last call has failed to give it any.
            Err(XtqError::Worker { has: true }) if kernels.buffers == 0 => {}
            Err(error) => return Err(transport(&error)),
        }
        for buffer in buffers {
            // SAFETY: the caller's promise.
            match unsafe { self.0.xtq.post_to_worker(buffer) } {
                Ok(()) => kernels.buffers += 1,
                // Fewer do, too.
                Err(error) if kernels.buffers > 0 => {
                    tracing::debug!(%error, "a receive buffer that a worker cannot have");
                }
                Err(error) => return Err(transport(&error)),
            }
        }
        Ok(())
    }

    /// Lets others put accumulations into this window's memory that the worker does.
    ///
    /// # Errors
    /// There is no worker, or it cannot reach the memory; there are 64 such windows.
    #[allow(unsafe_code, reason = "gives the worker memory that is touched by atomic accesses")]
    pub fn host_kernel(&self, part: &WindowPart) -> Result<KernelHandle, WindowError> {
        let mut kernels = unpoisoned(&self.0.kernels);
        let mut all = (0..64u8).take(ENTRIES).map(|at| (kernels.next + at) % 64);
        let free = all.find(|index| kernels.taken >> index & 1 == 0);
        let index = free.ok_or_else(|| WindowError::Transport {
            why: format!("a process has at most {ENTRIES} windows of a worker"),
        })?;
        if kernels.buffers == 0 {
            return Err(WindowError::Transport { why: "no worker was attached".to_owned() });
        }
        kernels.taken |= 1 << index;
        kernels.next = (index + 1) % 64;
        let longest = u32::try_from(BODY).unwrap_or(u32::MAX);
        let kernel = Kernel::of_worker(DeviceFunction::Combine, longest);
        let kernel = kernel.buffer(part.lease().clone());
        // SAFETY: the worker's function stays inside its buffer. That is a window's, of which no reference exists, and
        // whose contents nobody relies on (`WindowPart`); its lease keeps it.
        let registered = unsafe { self.0.xtq.register_kernel(index, kernel) };
        match registered {
            Ok(()) => Ok(KernelHandle { tasks: self.clone(), index: Some(index) }),
            Err(error) => {
                // Who is busy will have it: the index stays taken.
                if !matches!(error, XtqError::Target(TargetError::Busy(_))) {
                    kernels.taken &= !(1 << index);
                }
                Err(transport(&error))
            }
        }
    }
}

/// Puts to one target.
#[derive(Debug, Default)]
pub(crate) struct Puts {
    /// Whether those under way keep their order by themselves, so that there may be many.
    pub(crate) many: bool,
    pub(crate) under_way: VecDeque<PutHandle>,
    /// What went wrong first, and was not told yet.
    pub(crate) failed: Option<XtqError>,
}

impl Puts {
    pub(crate) fn collect(&mut self) {
        while let Some(outcome) = self.under_way.front().and_then(PutHandle::outcome) {
            self.under_way.pop_front();
            if let Err(error) = outcome {
                self.failed.get_or_insert(error);
            }
        }
    }
}

/// What a window has whose accumulations are tasks.
#[derive(Debug)]
pub(crate) struct Carried {
    pub(crate) tasks: Tasks,
    pub(crate) way: Accumulations,
    /// This rank's own.
    pub(crate) kernel: Option<KernelHandle>,
    /// By rank.
    pub(crate) puts: Box<[Mutex<Puts>]>,
}

/// A window's kernel, until it is dropped.
#[derive(Debug)]
pub struct KernelHandle {
    tasks: Tasks,
    /// None: it was taken out, or may still be the worker's.
    index: Option<u8>,
}

impl KernelHandle {
    /// The kernel's index here, which others put into their packets.
    #[must_use]
    pub fn index(&self) -> u8 {
        self.index.unwrap_or(0)
    }

    /// Takes the kernel out: then nobody touches the memory by it. If the worker does not answer, it may still have it, and
    /// the index is not used again.
    pub(crate) fn end(&mut self) -> Result<(), WindowError> {
        let Some(index) = self.index.take() else { return Ok(()) };
        let mut kernels = unpoisoned(&self.tasks.0.kernels);
        self.tasks.0.xtq.unregister_kernel(index).map_err(|error| transport(&error))?;
        kernels.taken &= !(1 << index);
        Ok(())
    }
}

impl Drop for KernelHandle {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::debug!(%error, "a window's kernel that stays");
        }
    }
}

fn transport(error: &XtqError) -> WindowError {
    WindowError::Transport { why: error.to_string() }
}
