//! Carries the tasks of collectives, by an end of XTQ that is the world's own: its indices, queues and receive buffers
//! are apart from those of [`World::xtq`](crate::World::xtq).
//!
//! One function stands for all tasks. Its two arguments name the [`TaskWork`] that a rank expects; the payload goes
//! into a receive buffer that was posted for it, and the work runs on a thread of that end. Whoever waits for the
//! collective is told by [`Carrier::hear`], and woken by the wake-up of that end.

use gapless_bml::Rank;
use gapless_coll::{Awaited, Leaving, TaskFault, TaskName, TaskWork, Tasks};
use gapless_xtq::{
    Function, Put, PutHandle, QueueOptions, Retry, Signal, Task, TaskError, Xtq, XtqError,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

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
    /// A receive buffer was posted for each.
    works: Mutex<HashMap<Key, TaskWork>>,
    /// Whether a task has ended since somebody looked.
    news: AtomicBool,
}

impl PendingTasks {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, TaskWork>> {
        // Nothing panics while it is held.
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, key: &Key) -> Option<TaskWork> {
        self.lock().remove(key)
    }

    /// What is expected of this task, if anything. `None`: a function of a user's would run.
    fn take_plain(&self, key: &Key) -> Option<Option<TaskWork>> {
        let mut works = self.lock();
        let is_plain = works.get(key).is_none_or(TaskWork::is_plain);
        is_plain.then(|| works.remove(key))
    }

    /// A task has come, of which this was expected.
    fn run(&self, expected: Option<TaskWork>, task: &mut Task<'_>) -> Result<(), TaskError> {
        let Some(work) = expected else {
            // Its receive buffer, which was another's, is posted again.
            return Err(TaskError::from("nobody expects it"));
        };
        work.run(task.payload());
        // One buffer was posted for it: the one that it has had, or one that is left.
        match task.take_payload() {
            payload if payload.is_empty() => reclaim(task.xtq(), work.bytes()),
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
}

impl Carrier {
    pub(crate) fn new(xtq: Xtq) -> Carrier {
        let (registered, watched) = (OnceLock::new(), Mutex::default());
        Carrier { xtq, pending: Arc::default(), registered, watched }
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
        let mut buffer = Vec::new();
        let room = usize::try_from(bytes).ok().filter(|len| buffer.try_reserve_exact(*len).is_ok());
        let Some(len) = room else {
            return Err(TaskFault::Other(format!("no memory for a payload of {bytes} bytes")));
        };
        buffer.resize(len, 0);
        self.xtq.post(buffer);
        let signal = self.watch(from);
        self.pending.lock().insert(key, work);
        let (xtq, pending) = (self.xtq.clone(), Arc::clone(&self.pending));
        Ok(Box::new(Waiting { key, bytes, signal, xtq, pending }))
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
}

/// A task that is expected.
#[derive(Debug)]
struct Waiting {
    key: Key,
    bytes: u64,
    signal: Signal,
    xtq: Xtq,
    pending: Arc<PendingTasks>,
}

impl Awaited for Waiting {
    fn failed(&self) -> Option<TaskFault> {
        self.signal.poll()?.err().map(fault)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.pending.take(&self.key).is_some() {
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
