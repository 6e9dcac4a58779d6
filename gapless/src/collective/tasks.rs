//! Carries the tasks of collectives, by an end of XTQ that is the world's own: its indices, queues and receive buffers
//! are apart from those of [`World::xtq`](crate::World::xtq).
//!
//! One function stands for all tasks. Its two arguments name the [`TaskWork`] that a rank expects; the payload goes
//! into a receive buffer that was posted for it, and the work runs on a thread of that end. Whoever waits for the
//! collective is told by [`Carrier::hear`], and woken by the wake-up of that end.
//!
//! If this process has a worker for collectives, tasks that it can combine go to that (`tasks/task_kernels.rs`), and
//! those that fail by the function, without a payload.

#[allow(unsafe_code, reason = "lends memory, and gives it to a worker")]
mod task_kernels;

pub(crate) use task_kernels::{PAYLOAD_MAX, ROOM};

use gapless_bml::Rank;
use gapless_coll::{Awaited, Leaving, Lender, TaskFault, TaskKernel, TaskName, TaskWork, Tasks};
use gapless_mem::{Lease, Worker};
use gapless_xtq::device::Life;
use gapless_xtq::{
    Function, Put, PutHandle, QueueOptions, Retry, Signal, Task, TaskError, Xtq, XtqError,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use task_kernels::{TakenKernel, TaskKernels};

/// The index of the function, and that of its queue.
const INDEX: u8 = 0;

/// Tasks that wait in the queue: all that may come, as each was asked for.
const CAPACITY: u32 = u32::MAX;
/// Tasks that run at a time: no order is asked of them that ranks' messages have not made.
const WIDTH: u32 = 2;

/// How often a task is sent that its target refuses for now: for about two seconds. It has a receive buffer for each
/// that it expects, so only longer ones are refused again and again: of a rank whose vector is longer.
const ATTEMPTS: u32 = 1600;

/// Bytes of a payload that is combined where progress is made.
const QUICK_MAX: u32 = 64 << 10;

/// Who puts a task, and its name.
type Key = (u32, TaskName);

/// What is expected here.
#[derive(Debug, Default)]
struct PendingTasks {
    /// With each: whether a receive buffer was posted for it.
    works: Mutex<HashMap<Key, (TaskWork, bool)>>,
    /// Whether a task has ended since somebody looked.
    news: AtomicBool,
}

impl PendingTasks {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, (TaskWork, bool)>> {
        // Nothing panics while it is held.
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, key: &Key) -> Option<(TaskWork, bool)> {
        self.lock().remove(key)
    }

    /// What is expected of this task, if anything. `None`: a function of a user's would run.
    fn take_plain(&self, key: &Key) -> Option<Option<(TaskWork, bool)>> {
        let mut works = self.lock();
        let is_plain = works.get(key).is_none_or(|(work, _)| work.is_plain());
        is_plain.then(|| works.remove(key))
    }

    /// A task has come, of which this was expected.
    fn run(
        &self,
        expected: Option<(TaskWork, bool)>,
        task: &mut Task<'_>,
    ) -> Result<(), TaskError> {
        let Some((work, posted)) = expected else {
            // Its receive buffer, which was another's, is posted again.
            return Err(TaskError::from("nobody expects it"));
        };
        work.run(task.payload());
        // One buffer was posted for it: the one that it has had, or one that is left.
        match task.take_payload() {
            payload if payload.is_empty() => {
                if posted {
                    reclaim(task.xtq(), work.bytes());
                }
            }
            payload => drop(payload),
        }
        self.news.store(true, Ordering::Release);
        Ok(())
    }
}

fn key(task: &Task<'_>) -> Key {
    let [_, _, first, second] = task.arguments();
    (task.initiator().0, TaskName::from_words([first, second]))
}

/// This process's end.
#[derive(Debug)]
pub(crate) struct Carrier {
    xtq: Xtq,
    pending: Arc<PendingTasks>,
    /// Whether the function is registered: for the first task that is expected.
    registered: OnceLock<Result<(), XtqError>>,
    /// Of each rank that was to put a task: what ends when it is lost.
    watched: Mutex<HashMap<u32, Signal>>,
    /// What the worker combines, if there is one.
    kernels: OnceLock<Arc<TaskKernels>>,
    /// Whether there is, or was, one.
    is_attached: AtomicBool,
    /// Whether the worker is kept away: then threads combine.
    is_kept_away: AtomicBool,
}

impl Carrier {
    pub(crate) fn new(xtq: Xtq) -> Carrier {
        let (registered, watched, kernels) = (OnceLock::new(), Mutex::default(), OnceLock::new());
        let (is_attached, is_kept_away) = Default::default();
        let pending = Arc::default();
        Carrier { xtq, pending, registered, watched, kernels, is_attached, is_kept_away }
    }

    /// From now on a worker combines what it can, in this memory.
    ///
    /// # Errors
    /// There is one already; the accelerator refuses; this process is leaving.
    ///
    /// # Safety
    /// As long as this process has not left, nobody else touches the receive buffers, or the memory.
    #[allow(unsafe_code, reason = "passes memory on, for which the caller vouches")]
    pub(crate) unsafe fn attach_worker(
        &self,
        worker: Arc<dyn Worker>,
        life: Life,
        (buffers, memory): (Vec<Lease>, Lease),
    ) -> Result<(), XtqError> {
        // What is late for one that is gone must not meet another: there is one for ever.
        if self.is_attached.swap(true, Ordering::AcqRel) {
            return Err(XtqError::Worker { has: true });
        }
        // SAFETY: the caller's promise.
        match unsafe { TaskKernels::new(&self.xtq, (worker, life), (buffers, memory)) } {
            Ok(kernels) => {
                let _ = self.kernels.set(Arc::new(kernels));
                Ok(())
            }
            Err(error) => {
                // Nobody was told of it.
                self.is_attached.store(self.xtq.has_worker(), Ordering::Release);
                Err(error)
            }
        }
    }

    /// What the worker combines, as long as there is one.
    fn kernels(&self) -> Option<&Arc<TaskKernels>> {
        self.kernels.get().filter(|_| self.xtq.has_worker())
    }

    /// Whether a worker combines tasks here.
    pub(crate) fn has_worker(&self) -> bool {
        self.kernels().is_some()
    }

    /// Sends the worker away, or has it come back. Meanwhile no task gets a kernel; one that has told of its kernel
    /// waits.
    ///
    /// # Errors
    /// There is no worker; what it runs takes too long.
    pub(crate) fn keep_worker(&self, stays: bool) -> Result<(), XtqError> {
        // Before it goes, as afterwards nobody may be sent to it; also if it goes late.
        self.is_kept_away.store(!stays, Ordering::Release);
        self.xtq.keep_worker(stays)
    }

    /// What ends when a rank is lost; nothing counts it.
    fn watch(&self, rank: u32) -> Signal {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = || self.xtq.signal_from(1, &[Rank(rank)]);
        watched.entry(rank).or_insert_with(watch).clone()
    }

    /// The end.
    pub(crate) fn end(&self) -> Xtq {
        self.xtq.clone()
    }

    /// Whether a task has ended since the last [`hear`](Self::hear).
    pub(crate) fn has_news(&self) -> bool {
        self.pending.news.load(Ordering::Acquire)
    }

    /// Somebody is about to look for tasks that have ended.
    pub(crate) fn hear(&self) {
        if self.has_news() {
            // It reads the last of what tasks have stored, so all that have stored before are seen to be over.
            self.pending.news.swap(false, Ordering::AcqRel);
        }
    }

    fn register(&self) -> Result<(), XtqError> {
        let (pending, quick) = (Arc::clone(&self.pending), Arc::clone(&self.pending));
        let function =
            Function::new(u32::MAX, move |task| pending.run(pending.take(&key(task)), task));
        // A user's operation may take long, or call this library.
        let function = function
            .quick(QUICK_MAX, move |task| Some(quick.run(quick.take_plain(&key(task))?, task)));
        self.xtq.register_function(INDEX, function)?;
        self.xtq.register_queue(INDEX, QueueOptions { capacity: CAPACITY, width: WIDTH })
    }
}

/// Takes a receive buffer back that was posted for a payload which does not come.
fn reclaim(xtq: &Xtq, bytes: u64) {
    // The shortest that is as long: each payload that comes still has one.
    drop(usize::try_from(bytes).ok().and_then(|bytes| xtq.take_posted_for(bytes)));
}

fn fault(error: XtqError) -> TaskFault {
    match error {
        XtqError::Lost { rank: Rank(process), error } => TaskFault::Lost { process, error },
        other => TaskFault::Other(other.to_string()),
    }
}

impl Tasks for Carrier {
    fn expect(
        &self,
        from: u32,
        name: TaskName,
        work: TaskWork,
    ) -> Result<Box<dyn Awaited>, TaskFault> {
        self.registered.get_or_init(|| self.register()).clone().map_err(fault)?;
        let (key, bytes) = ((from, name), work.bytes());
        // What comes to a worker's kernel has receive buffers there.
        let kernels = self.kernels().filter(|_| !self.is_kept_away.load(Ordering::Acquire));
        let taken = kernels.and_then(|kernels| kernels.take(&work));
        let posted = taken.is_none();
        if posted {
            let mut buffer = Vec::new();
            let room =
                usize::try_from(bytes).ok().filter(|len| buffer.try_reserve_exact(*len).is_ok());
            let Some(len) = room else {
                return Err(TaskFault::Other(format!("no memory for a payload of {bytes} bytes")));
            };
            buffer.resize(len, 0);
            self.xtq.post(buffer);
        }
        let signal = self.watch(from);
        self.pending.lock().insert(key, (work, posted));
        let (xtq, pending, told) =
            (self.xtq.clone(), Arc::clone(&self.pending), AtomicBool::new(false));
        Ok(Box::new(Waiting { key, bytes, signal, xtq, pending, taken, told }))
    }

    fn put(
        &self,
        to: u32,
        name: TaskName,
        payload: Vec<u8>,
    ) -> Result<Box<dyn Leaving>, TaskFault> {
        let put = Put::function(Rank(to), INDEX, INDEX, name.words());
        let put = put.payload(payload).retry(Retry::InAnyOrder).attempts(ATTEMPTS);
        Ok(Box::new(Away(self.xtq.put(put).map_err(fault)?)))
    }

    fn put_at(
        &self,
        to: u32,
        _: TaskName,
        kernel: TaskKernel,
        payload: Vec<u8>,
    ) -> Result<Box<dyn Leaving>, TaskFault> {
        let put = task_kernels::put(Rank(to), kernel, payload);
        let put =
            put.ok_or_else(|| TaskFault::Other(format!("no kernel has {:?}", kernel.words)))?;
        let put = put.retry(Retry::InAnyOrder).attempts(ATTEMPTS);
        Ok(Box::new(Away(self.xtq.put(put).map_err(fault)?)))
    }

    fn lender(&self) -> Option<Arc<dyn Lender>> {
        self.kernels().map(|kernels| kernels.lender())
    }
}

/// A task that is expected.
#[derive(Debug)]
struct Waiting {
    key: Key,
    bytes: u64,
    signal: Signal,
    xtq: Xtq,
    pending: Arc<PendingTasks>,
    /// The worker combines it.
    taken: Option<TakenKernel>,
    /// Its initiator may know that.
    told: AtomicBool,
}

impl Awaited for Waiting {
    fn failed(&self) -> Option<TaskFault> {
        self.signal.poll()?.err().map(fault)
    }

    fn kernel(&self) -> Option<TaskKernel> {
        let taken = self.taken.as_ref()?;
        self.told.store(true, Ordering::Relaxed);
        Some(taken.kernel)
    }

    fn comes_not(&self) -> bool {
        // One that was given up may still run what it has.
        let over = self.xtq.has_worker();
        self.told.fetch_and(!over, Ordering::Relaxed);
        over
    }

    fn is_done(&self) -> bool {
        self.taken.as_ref().is_some_and(TakenKernel::is_done)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(taken) = &self.taken {
            taken.leave(self.told.load(Ordering::Relaxed));
        }
        if self.pending.take(&self.key).is_some_and(|(_, posted)| posted) {
            reclaim(&self.xtq, self.bytes);
        }
    }
}

/// A task that was put.
#[derive(Debug)]
struct Away(PutHandle);

impl Leaving for Away {
    fn taken(&self) -> Option<Result<(), TaskFault>> {
        Some(self.0.outcome()?.map_err(fault))
    }
}
