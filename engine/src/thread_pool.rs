//! Threads that share work with whoever has it. Work is cut into parts; the caller and the threads take one after the
//! other until none is left, so that a thread that comes late costs nothing.
//!
//! After work, a thread spins for a moment, in case more comes, and then sleeps. Of two callers at a time, one works
//! alone.

use crate::EngineError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread spins for more work: the next fragment of a message comes sooner.
const SPIN: Duration = Duration::from_micros(100);

/// The longest sleep: every wait is bounded.
const SLEEP: Duration = Duration::from_secs(60);

/// How often a caller looks for the end of parts that threads have taken before it lets others use the processor.
const SPINS_MAX: u32 = 2_000;

/// What is done with a part, by its number.
pub(crate) type Work = Box<dyn Fn(u64) -> Result<(), EngineError> + Send + Sync>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads that wait for work. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct ThreadPool {
    queue: Arc<WorkQueue>,
    threads: Vec<JoinHandle<()>>,
    /// Whoever has it may post work.
    caller: Mutex<()>,
}

/// Where work is posted: one task at a time.
#[derive(Debug, Default)]
struct WorkQueue {
    state: Mutex<PostedWork>,
    changed: Condvar,
    /// Counts changes of the state: incremented with the lock held, and looked at without it.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct PostedWork {
    task: Option<Arc<Task>>,
    ended: bool,
}

/// Work in parts.
struct Task {
    work: Work,
    parts: u64,
    /// The next part to take, if it is one.
    next: AtomicU64,
    /// Parts that have not ended.
    open: AtomicU64,
    failed: Mutex<Option<EngineError>>,
    panicked: AtomicBool,
}

impl ThreadPool {
    /// So many threads, or fewer if the system gives no more.
    pub(crate) fn start(threads: usize) -> ThreadPool {
        let queue = Arc::new(WorkQueue::default());
        let start = |_| {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new().name("gapless-copy".to_owned()).spawn(move || queue.serve())
        };
        let threads = (0..threads).map_while(|number| start(number).ok()).collect();
        ThreadPool { queue, threads, caller: Mutex::new(()) }
    }

    /// How many threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Does all parts together with the threads; `None`, with nothing done, while another caller does that. `work` is
    /// called from when this is called until it returns, or panics, and then no more.
    ///
    /// # Panics
    /// If `work` does.
    pub(crate) fn run(&self, parts: u64, work: Work) -> Option<Result<(), EngineError>> {
        let _caller = match self.caller.try_lock() {
            Ok(caller) => caller,
            // All of that work has ended, too.
            Err(TryLockError::Poisoned(caller)) => caller.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let (next, open) = (AtomicU64::new(0), AtomicU64::new(parts));
        let (failed, panicked) = (Mutex::new(None), AtomicBool::new(false));
        let task = Arc::new(Task { work, parts, next, open, failed, panicked });
        self.queue.change(|state| state.task = Some(Arc::clone(&task)));
        let wait = WaitForParts { queue: &self.queue, task: &task };
        task.help();
        drop(wait);
        assert!(!task.panicked.load(Ordering::Relaxed), "a part of the work has panicked");
        let failed = lock(&task.failed).take();
        Some(failed.map_or(Ok(()), Err))
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.queue.change(|state| state.ended = true);
        for thread in self.threads.drain(..) {
            // It catches the panics of its work.
            let _ = thread.join();
        }
    }
}

impl WorkQueue {
    /// Changes the state, and tells the threads.
    fn change(&self, change: impl FnOnce(&mut PostedWork)) {
        let mut state = lock(&self.state);
        change(&mut state);
        // Before the lock is released: a thread that holds it sees both or waits for neither.
        self.changes.fetch_add(1, Ordering::Release);
        drop(state);
        self.changed.notify_all();
    }

    /// A thread's life.
    fn serve(&self) {
        let mut seen = 0;
        while let Some(task) = self.next(&mut seen) {
            // The task knows, and its caller panics.
            let _ = catch_unwind(AssertUnwindSafe(|| task.help()));
        }
    }

    /// The work that was posted after the changes that were `seen`, once there is some; `None` at the end.
    fn next(&self, seen: &mut u64) -> Option<Arc<Task>> {
        let begin = Instant::now();
        while self.changes.load(Ordering::Acquire) == *seen && begin.elapsed() < SPIN {
            std::hint::spin_loop();
        }
        let mut state = lock(&self.state);
        loop {
            if state.ended {
                return None;
            }
            let changes = self.changes.load(Ordering::Acquire);
            if std::mem::replace(seen, changes) != changes
                && let Some(task) = &state.task
            {
                return Some(Arc::clone(task));
            }
            let woken = self.changed.wait_timeout(state, SLEEP);
            (state, _) = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Task {
    /// Takes part after part until none is left.
    fn help(&self) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.parts {
                return;
            }
            let mut guard = PartGuard { task: self, returned: false };
            let result = (self.work)(part);
            guard.returned = true;
            if let Err(error) = result {
                lock(&self.failed).get_or_insert(error);
            }
        }
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task of {} parts, {:?} of them open", self.parts, self.open)
    }
}

/// A part in work: it ends when this is dropped, also by a panic.
struct PartGuard<'t> {
    task: &'t Task,
    /// The work did not panic.
    returned: bool,
}

impl Drop for PartGuard<'_> {
    fn drop(&mut self) {
        if !self.returned {
            self.task.panicked.store(true, Ordering::Relaxed);
        }
        self.task.open.fetch_sub(1, Ordering::Release);
    }
}

/// Nobody works on the task any more when this has been dropped, and it is posted no more: parts that nobody has taken
/// are taken away, as after a panic, and the others are waited for.
struct WaitForParts<'t> {
    queue: &'t WorkQueue,
    task: &'t Task,
}

impl Drop for WaitForParts<'_> {
    fn drop(&mut self) {
        let Task { parts, next, open, .. } = self.task;
        let taken = next.swap(*parts, Ordering::Relaxed).min(*parts);
        open.fetch_sub(parts - taken, Ordering::Relaxed);
        let mut spins = 0;
        // What threads have written is seen after this.
        while open.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < SPINS_MAX {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        lock(&self.queue.state).task = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread::ThreadId;

    const PARTS: u64 = 100;

    fn each() -> Arc<Vec<AtomicU64>> {
        Arc::new((0..PARTS).map(|_| AtomicU64::new(0)).collect())
    }

    fn count(counts: &Arc<Vec<AtomicU64>>) -> Work {
        let counts = Arc::clone(counts);
        Box::new(move |part| {
            counts[usize::try_from(part).unwrap()].fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }

    #[test]
    fn each_part_is_done_once_however_many_threads_there_are() {
        for threads in 0..4 {
            let pool = ThreadPool::start(threads);
            for round in 1..200 {
                let counts = each();
                assert_eq!(pool.run(PARTS, count(&counts)), Some(Ok(())));
                let all = counts.iter().map(|count| count.load(Ordering::Relaxed));
                assert!(all.eq((0..PARTS).map(|_| 1)), "{threads} threads, round {round}");
            }
        }
    }

    /// Two parts that wait for each other need two threads at a time.
    #[test]
    fn threads_work_beside_the_caller_again_and_again() {
        let pool = ThreadPool::start(1);
        for _ in 0..20 {
            let (met, who) = (Barrier::new(2), Arc::new(Mutex::new(Vec::<ThreadId>::new())));
            let names = Arc::clone(&who);
            let work: Work = Box::new(move |_| {
                met.wait();
                lock(&names).push(std::thread::current().id());
                Ok(())
            });
            assert_eq!(pool.run(2, work), Some(Ok(())));
            let who = lock(&who);
            assert!(who.len() == 2 && who[0] != who[1]);
        }
    }

    #[test]
    fn a_second_caller_is_told_to_work_alone() {
        let pool = Arc::new(ThreadPool::start(1));
        let other = Arc::clone(&pool);
        let work: Work = Box::new(move |_| {
            assert_eq!(other.run(1, Box::new(|_| Ok(()))), None);
            Ok(())
        });
        assert_eq!(pool.run(3, work), Some(Ok(())));
    }

    #[test]
    fn an_error_of_any_part_is_the_result() {
        let pool = ThreadPool::start(2);
        for failing in [0, 1, PARTS - 1] {
            let error = EngineError::NoSource;
            let work: Work =
                Box::new(
                    move |part| if part == failing { Err(EngineError::NoSource) } else { Ok(()) },
                );
            assert_eq!(pool.run(PARTS, work), Some(Err(error)));
        }
        assert_eq!(pool.run(PARTS, count(&each())), Some(Ok(())));
    }

    /// A value that is dropped by a panic waits for its message.
    #[test]
    fn work_that_is_done_while_its_caller_panics_is_done() {
        struct Late<'p>(&'p ThreadPool);

        impl Drop for Late<'_> {
            fn drop(&mut self) {
                let counts = each();
                assert_eq!(self.0.run(PARTS, count(&counts)), Some(Ok(())));
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }

        for threads in 0..2 {
            let pool = ThreadPool::start(threads);
            let panics = || {
                let _late = Late(&pool);
                panic!("the caller's own");
            };
            assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        }
    }

    #[test]
    fn a_panic_is_the_callers_and_no_part_runs_after_it() {
        let pool = ThreadPool::start(2);
        for failing in [0, 1, 7] {
            let running = Arc::new(AtomicU64::new(0));
            let counts = Arc::clone(&running);
            let work: Work = Box::new(move |part| {
                counts.fetch_add(1, Ordering::Relaxed);
                assert_ne!(part, failing);
                std::thread::yield_now();
                counts.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            });
            assert!(catch_unwind(AssertUnwindSafe(|| pool.run(PARTS, work))).is_err());
            assert_eq!(
                running.load(Ordering::Relaxed),
                1,
                "all but the one that panicked have ended"
            );
            assert_eq!(pool.run(PARTS, count(&each())), Some(Ok(())));
        }
    }

    /// The work is the caller's again, as is what it holds.
    #[test]
    fn work_that_has_panicked_is_not_kept() {
        let (pool, held) = (ThreadPool::start(0), Arc::new(()));
        let holds = Arc::clone(&held);
        let work: Work = Box::new(move |_| panic!("{:?} is held", holds));
        assert!(catch_unwind(AssertUnwindSafe(|| pool.run(1, work))).is_err());
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
