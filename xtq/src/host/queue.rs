//! Queues of tasks, and the threads that run them: the command processor of this back end.
//!
//! A queue holds as many tasks as it was registered for; beginning one makes room. One of its tasks runs at a time, or
//! as many as it was registered for. The threads take queues in turn, a task at a time, so a long queue does not hold
//! up a short one.

use super::Inner;
use super::run::Ready;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// How large a queue is, and how many of its tasks run at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Tasks that wait, at most; at least 1.
    pub capacity: u32,
    /// Tasks that run at a time, at most; at least 1. At 1, they run in the order in which they came.
    pub width: u32,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions { capacity: 64, width: 1 }
    }
}

#[derive(Default)]
struct Tasks {
    waiting: VecDeque<Ready>,
    running: u32,
}

impl Tasks {
    fn may_begin(&self, width: u32) -> bool {
        self.running < width
            && self.waiting.front().is_some_and(|task| self.running == 0 || !task.is_barrier())
    }
}

/// One queue.
pub(super) struct Queue {
    pub(super) name: u64,
    options: QueueOptions,
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
    pub(super) fn push(&self, task: Ready) {
        self.tasks().waiting.push_back(task);
    }

    /// The next task, if it may begin.
    fn begin(&self) -> Option<Ready> {
        let mut tasks = self.tasks();
        if !tasks.may_begin(self.options.width) {
            return None;
        }
        tasks.running += 1;
        tasks.waiting.pop_front()
    }

    /// A task has ended. Gives how many may begin because of that, at most.
    fn finish(&self) -> usize {
        let mut tasks = self.tasks();
        tasks.running = tasks.running.saturating_sub(1);
        if !tasks.may_begin(self.options.width) {
            return 0;
        }
        tasks.waiting.len().min((self.options.width - tasks.running) as usize)
    }

    /// Takes out what has not begun.
    pub(super) fn clear(&self) -> VecDeque<Ready> {
        std::mem::take(&mut self.tasks().waiting)
    }
}

/// The threads. They end when nobody can give them anything any more; a task that runs then is not waited for.
#[derive(Default)]
pub(super) struct Pool(OnceLock<Option<Sender<Arc<Queue>>>>);

impl Pool {
    /// Makes the threads, at first use; whether there are any.
    pub(super) fn start(&self, threads: usize) -> bool {
        let started = self.0.get_or_init(|| {
            let (sender, receiver) = unbounded();
            let made = (0..threads.max(1)).filter(|_| spawn(receiver.clone())).count();
            (made > 0).then_some(sender)
        });
        started.is_some()
    }

    /// A thread is to look at this queue.
    pub(super) fn look_at(&self, queue: &Arc<Queue>) {
        if let Some(Some(sender)) = self.0.get() {
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
    let Some(mut task) = queue.begin() else { return };
    let inner: Arc<Inner> = task.inner();
    let result = task.run();
    for _ in 0..queue.finish() {
        inner.pool.look_at(queue);
    }
    inner.ended(task, result);
}
