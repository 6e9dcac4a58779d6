//! Tasks at other processes, without a receive there. A function of `#[gapless::task]` is called with arguments, and
//! its result is a future:
//!
//! ```
//! use gapless::xtq::Rank;
//! use gapless::{Datatype, World};
//!
//! #[derive(Datatype)]
//! #[repr(C)]
//! struct Rectangle {
//!     w: f64,
//!     h: f64,
//! }
//!
//! #[gapless::task]
//! fn area(shape: Rectangle, scale: f64) -> f64 {
//!     shape.w * shape.h * scale
//! }
//!
//! # fn main() -> Result<(), gapless::Error> {
//! let world = World::init()?;
//! let tasks = world.xtq();
//! tasks.register_task::<area>()?;
//! world.comm().barrier()?; // nobody calls before all have registered
//! let next = Rank((world.rank() + 1) % world.size());
//! let answer = tasks.call(next, area(Rectangle { w: 3.0, h: 2.0 }, 2.0))?; // begins; never waits
//! assert_eq!(answer.wait()?, 12.0); // or `.await`
//! # world.comm().barrier()?;
//! world.finalize()
//! # }
//! ```
//!
//! A call is made of a put, as in LeBeane et al., *Extended Task Queuing: Active Messages for Heterogeneous Systems*,
//! SC 2016. A process registers functions and kernels, and queues for them, under indices that all processes agree on.
//! Any other puts a task by index, with arguments and a payload. `docs/xtq.md` has the contract: who owns which memory,
//! what is refused, what is seen when.
//!
//! Like messages, tasks make progress while some thread of both processes is in a call, or has a
//! [progress thread](crate::Builder::progress_thread); what has reached a queue runs on threads of its own.

#[allow(unsafe_code, reason = "packs from memory that the put owns")]
mod layouts;
mod rings;
#[doc(hidden)]
pub mod typed;

use crate::World;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared::{Shared, stuck};
use gapless_pml::Doing;
use gapless_xtq::Tried;
use std::sync::Arc;
use std::time::Instant;

pub use gapless_bml::Rank;
/// The worker of CUDA devices, and layouts that its tasks pack and unpack by.
#[cfg(feature = "cuda")]
pub use gapless_dtype_cuda::{CudaWorker, LayoutError, WorkerLayout};
/// For device code of users: the header, the library that kernels which put tasks are linked with, and examples of both.
#[cfg(feature = "cuda")]
pub mod device_code {
    pub use gapless_kernels::worker::{EXAMPLE_PUTS, EXAMPLE_TASKS, HEADER, LANES};
}
#[cfg(feature = "opencl")]
pub use gapless_gpu::OpenClLauncher;
#[cfg(feature = "cuda")]
pub use gapless_gpu::{CudaLauncher, GpuLane};
/// Memory that kernels are registered with; what stays on an accelerator and runs tasks there; code of users for it.
pub use gapless_mem::{Lease, Worker, WorkerCode};
/// Tasks that a worker on a GPU takes itself, out of memory that initiators write: what [`Tasks::attach_worker`] uses, to be
/// used without [`Tasks`], too.
pub use gapless_xtq::device;
pub use gapless_xtq::device::{DeviceFunction, Life, WorkerCount};
pub use gapless_xtq::packet::{ARGUMENTS_MAX, ENTRIES, Launch};
pub use gapless_xtq::{
    FarRing, Function, GroupLimits, Kernel, KernelTask, Launcher, Payload, Put, PutHandle,
    QueueOptions, Refusal, RefusedTask, Retry, Signal, TargetBuffer, Task, TaskError, Waited,
    XtqError,
};
pub use layouts::{by_layout, by_pages};
#[doc(inline)]
pub use typed::{Call, CallError, CallFault, CallRequest, TaskFunction};

/// How often a thread that waits looks for answers of workers, between two looks at everything: a few microseconds.
const LOOKS: u32 = 64;
/// The same before the first of those, without the world's lock: longer than a short task takes.
const FIRST_LOOKS: u32 = 512;
/// One in so many puts that went straight into a ring makes progress, so that a program that only puts still answers its
/// peers, and learns of their end.
const PUTS_PER_POLL: u64 = 256;

/// This process's end for tasks. Clones are the same end. Ranks are those of [`World::comm`];
/// [`Communicator::target`] gives those of other communicators.
#[derive(Clone, Debug)]
pub struct Tasks {
    shared: Arc<Shared>,
    xtq: gapless_xtq::Xtq,
    calls: Arc<typed::Calls>,
}

impl World {
    /// This process's end for tasks: what others may put here, and putting tasks at others.
    #[must_use]
    pub fn xtq(&self) -> Tasks {
        let (shared, calls) = (Arc::clone(self.shared()), Arc::clone(&self.calls));
        Tasks { shared, xtq: self.xtq.clone(), calls }
    }
}

impl Communicator {
    /// The process that has this rank here, as the target of a task.
    ///
    /// # Errors
    /// There is no such rank.
    pub fn target(&self, rank: u32) -> Result<Rank, Error> {
        Ok(Rank(self.comm.process(rank)?))
    }
}

impl Tasks {
    /// Lets others put tasks of this function, by a coordinated index; replaces what was there.
    ///
    /// # Errors
    /// There is no such index.
    pub fn register_function(&self, index: u8, function: Function) -> Result<(), Error> {
        Ok(self.xtq.register_function(index, function)?)
    }

    /// From now on tasks of this function are refused.
    ///
    /// # Errors
    /// There is no such index.
    pub fn unregister_function(&self, index: u8) -> Result<(), Error> {
        Ok(self.xtq.unregister_function(index)?)
    }

    /// Lets others put tasks of this kernel, by a coordinated index; replaces what was there.
    ///
    /// # Safety
    /// As [`gapless_xtq::Xtq::register_kernel`]: whatever its arguments from the third on, its grid and its payload
    /// are, the kernel stays inside its registered memory and the payload, does not write the payload, and terminates.
    /// Nothing else touches its registered memory meanwhile, and it stays allocated: after
    /// [`World::finalize`] has failed, until [`has_settled`](Tasks::has_settled) says that no task runs any more.
    ///
    /// # Errors
    /// There is no such index; arguments of a length that no packet has.
    pub unsafe fn register_kernel(&self, index: u8, kernel: Kernel) -> Result<(), Error> {
        // SAFETY: the caller's promise is passed on.
        Ok(unsafe { self.xtq.register_kernel(index, kernel) }?)
    }

    /// From now on tasks of this kernel are refused.
    ///
    /// # Errors
    /// There is no such index.
    pub fn unregister_kernel(&self, index: u8) -> Result<(), Error> {
        Ok(self.xtq.unregister_kernel(index)?)
    }

    /// Makes a queue for tasks of others, by a coordinated index. The tasks of one that was there still run.
    ///
    /// # Errors
    /// There is no such index; a queue without room.
    pub fn register_queue(&self, index: u8, options: QueueOptions) -> Result<(), Error> {
        Ok(self.xtq.register_queue(index, options)?)
    }

    /// From now on tasks for this queue are refused; those in it still run.
    ///
    /// # Errors
    /// There is no such index.
    pub fn unregister_queue(&self, index: u8) -> Result<(), Error> {
        Ok(self.xtq.unregister_queue(index)?)
    }

    /// Posts a receive buffer for payloads of up to its length. It is posted again when the task that had it has ended,
    /// unless the task took it ([`Task::take_payload`]).
    pub fn post(&self, buffer: Vec<u8>) {
        self.xtq.post(buffer);
    }

    /// Takes back the receive buffers that no task has now.
    #[must_use]
    pub fn take_posted(&self) -> Vec<Vec<u8>> {
        self.xtq.take_posted()
    }

    /// Gives this process a worker, which stays on an accelerator: from now on kernels [of it](Kernel::of_worker) can be
    /// registered. Ranks that can map this one's memory get a ring with their first put of one. From then on no CPU of this
    /// process has a part in their puts, as long as the worker stays (`life`). What comes by messages (from other hosts, in
    /// a line) and starting a worker that has left take progress here.
    ///
    /// ```no_run
    /// # #[cfg(feature = "cuda")]
    /// # fn attach(world: &gapless::World) -> Result<(), Box<dyn std::error::Error>> {
    /// use gapless::CudaDriver;
    /// use gapless::xtq::{CudaWorker, Life};
    /// let worker = CudaWorker::new(CudaDriver::load()?.device(0)?.into())?;
    /// world.xtq().attach_worker(std::sync::Arc::new(worker), Life::default())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There is one already; the accelerator refuses; the world was left.
    pub fn attach_worker(&self, worker: Arc<dyn Worker>, life: Life) -> Result<(), Error> {
        self.shared.prepare_rings(&self.xtq);
        Ok(self.xtq.attach_worker(worker, life)?)
    }

    /// Posts a receive buffer for payloads of the worker's kernels: memory that the worker reaches. It is posted again when
    /// the task that had it has ended.
    ///
    /// # Errors
    /// There is no worker; it has too many, or cannot reach the memory.
    ///
    /// # Safety
    /// Until it is [taken back](Tasks::take_from_worker), or the world is gone, nobody but tasks touches it.
    pub unsafe fn post_to_worker(&self, buffer: Lease) -> Result<(), Error> {
        // SAFETY: the caller's promise is passed on.
        Ok(unsafe { self.xtq.post_to_worker(buffer) }?)
    }

    /// Takes back all receive buffers of the worker.
    ///
    /// # Errors
    /// There is no worker; it does not answer, and may still use them.
    pub fn take_from_worker(&self) -> Result<Vec<Lease>, Error> {
        Ok(self.xtq.take_from_worker()?)
    }

    /// Tells the worker to leave, and keeps it away until `true`: the application has the accelerator to itself. Puts wait.
    ///
    /// # Errors
    /// There is no worker; what it runs takes too long.
    pub fn keep_worker(&self, stays: bool) -> Result<(), Error> {
        Ok(self.xtq.keep_worker(stays)?)
    }

    /// Whether the worker is on its accelerator now.
    #[must_use]
    pub fn has_resident_worker(&self) -> bool {
        self.xtq.has_resident_worker()
    }

    /// How often tasks of this kernel of the worker's have ended, if it was registered [`counted`](Kernel::counted): each
    /// look is one load, and needs no progress.
    #[must_use]
    pub fn count_of(&self, index: u8) -> Option<WorkerCount> {
        self.xtq.count_of(index)
    }

    /// A signal that ends when it was counted down so often.
    #[must_use]
    pub fn signal(&self, count: u64) -> Signal {
        self.xtq.signal(count)
    }

    /// As [`signal`](Tasks::signal), counted down by tasks of these ranks (of all, if none are named): if one of them
    /// is lost, the signal ends with an error that names it.
    #[must_use]
    pub fn signal_from(&self, count: u64, ranks: &[u32]) -> Signal {
        let ranks: Vec<Rank> = ranks.iter().copied().map(Rank).collect();
        self.xtq.signal_from(count, &ranks)
    }

    /// Puts a task, and sends it if there is room. Never waits. A put that goes straight into the ring of a worker does not
    /// take the world's lock.
    ///
    /// # Errors
    /// Nothing was put: no such rank; a command that no packet can express; as many puts to that target as this process
    /// [keeps](crate::Builder::put_room) have not ended; the world was left.
    pub fn put(&self, put: Put) -> Result<PutHandle, Error> {
        let target = put.target();
        match self.try_put(put)? {
            Tried::Put(handle) => Ok(handle),
            Tried::Full { puts, bytes, .. } => Err(XtqError::Full { target, puts, bytes }.into()),
        }
    }

    /// As [`put`](Tasks::put), and if there is no [room](crate::Builder::put_room) waits until earlier puts to that target
    /// have ended. A put that has a [limit](Put::within) waits no longer than that; when it is put, its limit begins
    /// anew. Not for tasks, which must not wait.
    ///
    /// # Errors
    /// As [`put`](Tasks::put); there was no room within the limit: [`TimedOut`](XtqError::TimedOut).
    pub fn put_when_room(&self, put: Put) -> Result<PutHandle, Error> {
        let (target, limit, start) = (put.target(), put.limit(), Instant::now());
        let mut next = put;
        loop {
            next = match self.try_put(next)? {
                Tried::Put(handle) => return Ok(handle),
                Tried::Full { put, .. } => put,
            };
            let is_late = || limit.is_some_and(|limit| start.elapsed() > limit);
            let room = || (self.xtq.has_room(&next) || is_late()).then_some(());
            self.wait_until(None, room)?;
            if let Some(limit) = limit.filter(|_| is_late()) {
                let (waited, may_run) = (Waited::Earlier, false);
                return Err(XtqError::TimedOut { target, limit, waited, may_run }.into());
            }
        }
    }

    #[inline]
    fn try_put(&self, put: Put) -> Result<Tried, Error> {
        let direct = match self.xtq.put_direct(put) {
            Ok(direct) => direct,
            Err(put) => return self.send(put),
        };
        let is_due = direct.number() % PUTS_PER_POLL == PUTS_PER_POLL - 1;
        if is_due || !direct.is_served() || self.shared.is_anybody_asleep() {
            self.look_around();
        }
        Ok(Tried::Put(direct.handle))
    }

    /// Puts a task with the world's lock: it goes by a message, waits for something, has no room, or is wrong.
    #[cold]
    fn send(&self, put: Put) -> Result<Tried, Error> {
        self.shared.with(|state| {
            state.open()?;
            let tried = self.xtq.try_put(put)?;
            self.shared.drive(state);
            self.shared.rouse(state);
            Ok(tried)
        })
    }

    /// Makes progress after a put, and wakes whoever is to see to it.
    #[cold]
    fn look_around(&self) {
        // A world that has been given up has ended all puts.
        let _ = self.shared.with(|state| {
            self.shared.drive(state);
            self.shared.rouse(state);
            Ok(())
        });
    }

    /// Waits until the signal has ended, and makes progress meanwhile.
    ///
    /// # Errors
    /// It ended with an error: a task was refused or failed, a rank was lost. The world was left before. It is another
    /// world's; this thread is inside [`TargetBuffer::with`].
    pub fn wait(&self, signal: &Signal) -> Result<(), Error> {
        if !self.xtq.is_our_signal(signal) {
            return Err(XtqError::ForeignSignal.into());
        }
        Ok(self.wait_until(None, || signal.poll())??)
    }

    /// Waits until the put has ended: with the task if it is acknowledged, otherwise when the target has accepted it.
    ///
    /// # Errors
    /// It was refused; the task failed; the target was lost. The world was left before. It was put by another world; this
    /// thread is inside [`TargetBuffer::with`].
    pub fn wait_for(&self, put: &PutHandle) -> Result<(), Error> {
        if !self.xtq.is_ours(put) {
            return Err(XtqError::ForeignPut.into());
        }
        Ok(self.wait_until(Some(put), || put.outcome())??)
    }

    /// Waits for something that tasks end. Answers of a worker are words in memory: as long as one is to come, they are
    /// looked at more often than all else, unless other threads want the lock. A look takes some tens of nanoseconds, so
    /// other messages wait some ten microseconds longer at first. What has ended is found also if the world was left since.
    fn wait_until<T>(
        &self,
        put: Option<&PutHandle>,
        ended: impl Fn() -> Option<T>,
    ) -> Result<T, Error> {
        gapless_xtq::Xtq::may_wait()?;
        let look = |times: u32| {
            for _ in 0..times {
                let found = ended();
                if found.is_some() || self.shared.is_wanted() {
                    return found;
                }
                match self.xtq.take_outcomes() {
                    None => return None,
                    Some(0) => {}
                    Some(_) => self.shared.tell_sleepers(),
                }
                std::hint::spin_loop();
            }
            ended()
        };
        match look(FIRST_LOOKS) {
            Some(found) => Ok(found),
            None => {
                let what = || Doing { whom: self.xtq.target_of(put), ..stuck::TASK };
                self.shared.wait_in(&what, |_| look(LOOKS))
            }
        }
    }

    /// Whether all that was put from here has ended, and all that was put here has run. After [`World::finalize`],
    /// also if that failed: whether no task runs here any more.
    #[must_use]
    pub fn has_settled(&self) -> bool {
        self.xtq.has_settled() && self.calls.xtq().has_settled()
    }

    /// Makes progress once, without waiting.
    ///
    /// # Errors
    /// A panic in another thread.
    pub fn progress(&self) -> Result<(), Error> {
        self.shared.with(|state| {
            self.shared.drive_once(state);
            Ok(())
        })
    }

    /// Whether tasks that are refused here are noted for [`take_refusals`](Tasks::take_refusals), the last 256 of them.
    pub fn watch_refusals(&self, yes: bool) {
        self.xtq.watch_refusals(yes);
    }

    /// How many refusals were forgotten before they were taken, since the watch began.
    #[must_use]
    pub fn forgotten_refusals(&self) -> u64 {
        self.xtq.forgotten_refusals()
    }

    /// The tasks that were refused here since the last call.
    #[must_use]
    pub fn take_refusals(&self) -> Vec<RefusedTask> {
        self.xtq.take_refusals()
    }
}

#[cfg(test)]
mod tests;
