//! Queues of tasks, and the threads that run them: the command processor of this back end.
//!
//! A queue holds as many tasks as it was registered for; beginning one makes room. One of its tasks runs at a time, or
//! as many as it was registered for. A queue with a task that may begin stands in the threads' list, once; a thread
//! takes the first queue, begins one task of it, and puts it to the end of the list if another may begin. So a long
//! queue does not hold up a short one, longer than one task of each takes.

use super::Inner;
use super::run::Ready;
use crate::error::XtqError;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Quick tasks of a queue that run in a row where progress is made.
const QUICK_MAX: usize = 16;

/// How large a queue is, and how many of its tasks run at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Tasks that wait, at most; at least 1. Tasks that come by a worker's ring are not bounded by this, and
    /// registering the queue is no error all the same: they wait in the ring, or at their initiator, and are never
    /// refused for a full queue.
    pub capacity: u32,
    /// Tasks that run at a time, at most; at least 1. At 1, they run in the order in which they came.
    pub width: u32,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions { capacity: 64, width: 1 }
    }
}

impl QueueOptions {
    /// # Errors
    /// A queue that holds or runs nothing.
    #[doc(hidden)]
    pub fn check(self) -> Result<(), XtqError> {
        let QueueOptions { capacity, width } = self;
        if capacity == 0 || width == 0 { Err(XtqError::NoRoom { capacity, width }) } else { Ok(()) }
    }
}

#[derive(Default)]
struct Tasks {
    waiting: VecDeque<Ready>,
    running: u32,
    /// Whether the queue stands in the threads' list.
    listed: bool,
}

impl Tasks {
    fn may_begin(&self, width: u32) -> bool {
        self.running < width
            && self.waiting.front().is_some_and(|task| self.running == 0 || !task.is_barrier())
    }

    /// Whether the queue is to be put into the list.
    fn list(&mut self, width: u32) -> bool {
        let now = !self.listed && self.may_begin(width);
        self.listed |= now;
        now
    }
}

/// One queue.
pub(super) struct Queue {
    pub(super) name: u64,
    pub(super) options: QueueOptions,
    tasks: Mutex<Tasks>,
}

impl Queue {
    pub(super) fn new(name: u64, options: QueueOptions) -> Queue {
        Queue { name, options, tasks: Mutex::default() }
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_full(&self) -> bool {
        self.tasks().waiting.len() >= self.options.capacity as usize
    }

    /// Only after [`is_full`](Queue::is_full) has said that there is room, under the lock under which all tasks come.
    /// Gives whether the queue is to be put into the list.
    #[must_use]
    pub(super) fn push(&self, task: Ready) -> bool {
        let mut tasks = self.tasks();
        tasks.waiting.push_back(task);
        tasks.list(self.options.width)
    }

    /// The queue was taken out of the list. Gives the next task, if it may begin, and whether the queue is to be put
    /// into the list again.
    fn begin(&self) -> (Option<Ready>, bool) {
        let mut tasks = self.tasks();
        tasks.listed = false;
        if !tasks.may_begin(self.options.width) {
            return (None, false);
        }
        tasks.running += 1;
        (tasks.waiting.pop_front(), tasks.list(self.options.width))
    }

    /// The queue was to be put into the list, and a quick task runs instead if it is the next. Else gives whether the queue
    /// is to be put into the list after all.
    fn begin_quick(&self) -> Result<(Ready, bool), bool> {
        let mut tasks = self.tasks();
        if !tasks.may_begin(self.options.width) {
            tasks.listed = false;
            return Err(false);
        }
        let quick = tasks.waiting.front().is_some_and(|task| task.is_quick());
        let next = if quick { tasks.waiting.pop_front() } else { None };
        let Some(task) = next else { return Err(true) };
        tasks.running += 1;
        tasks.listed = false;
        Ok((task, tasks.list(self.options.width)))
    }

    /// A quick task would have to wait: it is the next one again. Gives whether the queue is to be put into the list.
    fn put_back(&self, task: Ready) -> bool {
        let mut tasks = self.tasks();
        tasks.waiting.push_front(task);
        tasks.running = tasks.running.saturating_sub(1);
        tasks.list(self.options.width)
    }

    /// A task has ended. Gives whether the queue is to be put into the list.
    fn finish(&self) -> bool {
        let mut tasks = self.tasks();
        tasks.running = tasks.running.saturating_sub(1);
        tasks.list(self.options.width)
    }

    /// Takes out what has not begun.
    pub(super) fn clear(&self) -> VecDeque<Ready> {
        std::mem::take(&mut self.tasks().waiting)
    }
}

/// The threads. They end when nobody can give them anything any more; a task that runs then is not waited for.
#[derive(Default)]
pub(super) struct Pool(OnceLock<Sender<Arc<Queue>>>);

impl Pool {
    /// Makes the threads by `spawn`, at first use; whether there are any. If none could be made, the next call tries
    /// again.
    fn start_by(&self, threads: usize, spawn: impl Fn(Receiver<Arc<Queue>>) -> bool) -> bool {
        if self.0.get().is_some() {
            return true;
        }
        let (sender, receiver) = unbounded();
        let made = (0..threads.max(1)).filter(|_| spawn(receiver.clone())).count();
        // Whoever came first has made some.
        made > 0 && (self.0.set(sender).is_ok() || self.0.get().is_some())
    }

    pub(super) fn start(&self, threads: usize) -> bool {
        self.start_by(threads, spawn)
    }

    /// Puts this queue into the list, if it is to be put there.
    pub(super) fn list(&self, queue: &Arc<Queue>, listed: bool) {
        if let Some(sender) = self.0.get().filter(|_| listed) {
            // The threads live as long as the sender.
            let _ = sender.send(Arc::clone(queue));
        }
    }
}

fn spawn(receiver: Receiver<Arc<Queue>>) -> bool {
    let thread = std::thread::Builder::new().name("gapless-task".to_owned());
    let spawned = thread.spawn(move || {
        for queue in receiver {
            work(&queue);
        }
    });
    if let Err(error) = &spawned {
        tracing::warn!(%error, "a thread for tasks could not be made");
    }
    spawned.is_ok()
}

/// Runs the queue's next task, if it may begin.
fn work(queue: &Arc<Queue>) {
    let (Some(mut task), more) = queue.begin() else { return };
    let inner: Arc<Inner> = task.inner();
    inner.pool.list(queue, more);
    let result = task.run();
    inner.pool.list(queue, queue.finish());
    inner.ended(task, result);
}

/// Runs the quick tasks at the head of a queue that was to be put into the list; a thread has what is behind.
pub(super) fn work_quickly(inner: &Inner, queue: &Arc<Queue>) {
    for _ in 0..QUICK_MAX {
        let (mut task, more) = match queue.begin_quick() {
            Ok(begun) => begun,
            Err(listed) => return inner.pool.list(queue, listed),
        };
        // At width 1 there is nothing more before this one has ended.
        inner.pool.list(queue, more);
        let Some(result) = task.try_quick() else {
            return inner.pool.list(queue, queue.put_back(task));
        };
        let again = queue.finish();
        inner.ended(task, result);
        if !again {
            return;
        }
    }
    inner.pool.list(queue, true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_could_not_be_made_are_made_later() {
        let pool = Pool::default();
        assert!(!pool.start_by(2, |_| false));
        assert!(pool.start_by(2, |_| true));
        assert!(pool.start_by(2, |_| panic!("they are there")));
    }
}
