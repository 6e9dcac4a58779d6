//! Threads that share work with whoever has it. Work is cut into parts; the caller and the threads take one after the
//! other until none is left, so that a thread that comes late costs nothing.
//!
//! After work, a thread looks out for more for a moment, and then sleeps. Of two callers at a time, one works alone.

use crate::EngineError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread looks out for more work: the next fragment of a message comes sooner.
const LOOKOUT: Duration = Duration::from_micros(100);

/// The longest sleep before a thread looks whether it has missed something.
const SLEEP: Duration = Duration::from_secs(60);

/// How often a caller looks for the end of parts that threads have taken before it lets others use the processor.
const LOOKS: u32 = 2_000;

/// What is done with a part, by its number.
pub(crate) type Work = Box<dyn Fn(u64) -> Result<(), EngineError> + Send + Sync>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads that wait for work. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct Crew {
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
    /// Whoever has it may post work.
    turn: Mutex<()>,
}

/// Where work is posted.
#[derive(Debug, Default)]
struct Board {
    posted: Mutex<Posted>,
    changed: Condvar,
    /// Counts what was posted: changed with the lock held, and looked at without it.
    number: AtomicU64,
}

#[derive(Debug, Default)]
struct Posted {
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

impl Crew {
    /// So many threads, or fewer if the system gives no more.
    pub(crate) fn start(threads: usize) -> Crew {
        let board = Arc::new(Board::default());
        let start = |_| {
            let board = Arc::clone(&board);
            std::thread::Builder::new().name("gapless-copy".to_owned()).spawn(move || board.serve())
        };
        let threads = (0..threads).map_while(|number| start(number).ok()).collect();
        Crew { board, threads, turn: Mutex::new(()) }
    }

    /// Does all parts together with the threads; `None`, with nothing done, while another caller does that. `work` is
    /// called from when this is called until it returns, or panics, and then no more.
    ///
    /// # Panics
    /// If `work` does.
    pub(crate) fn share(&self, parts: u64, work: Work) -> Option<Result<(), EngineError>> {
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            // All of that work has ended, too.
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let (next, open) = (AtomicU64::new(0), AtomicU64::new(parts));
        let (failed, panicked) = (Mutex::new(None), AtomicBool::new(false));
        let task = Arc::new(Task { work, parts, next, open, failed, panicked });
        self.board.post(|posted| posted.task = Some(Arc::clone(&task)));
        let joins = Joins(&task);
        task.help();
        drop(joins);
        lock(&self.board.posted).task = None;
        assert!(!task.panicked.load(Ordering::Relaxed), "a part of the work has panicked");
        let failed = lock(&task.failed).take();
        Some(failed.map_or(Ok(()), Err))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.board.post(|posted| posted.ended = true);
        for thread in self.threads.drain(..) {
            // It catches the panics of its work.
            let _ = thread.join();
        }
    }
}

impl Board {
    /// Changes what is posted, and tells the threads.
    fn post(&self, change: impl FnOnce(&mut Posted)) {
        let mut posted = lock(&self.posted);
        change(&mut posted);
        // Without the lock, a thread that is about to sleep would miss it.
        self.number.fetch_add(1, Ordering::Release);
        drop(posted);
        self.changed.notify_all();
    }

    /// A thread's life.
    fn serve(&self) {
        let mut seen = 0;
        while let Some(task) = self.look_out(&mut seen) {
            // The task knows, and its caller panics.
            let _ = catch_unwind(AssertUnwindSafe(|| task.help()));
        }
    }

    /// The work that was posted after what was `seen`, once there is some; `None` at the end.
    fn look_out(&self, seen: &mut u64) -> Option<Arc<Task>> {
        let begin = Instant::now();
        while self.number.load(Ordering::Acquire) == *seen && begin.elapsed() < LOOKOUT {
            std::hint::spin_loop();
        }
        let mut posted = lock(&self.posted);
        loop {
            if posted.ended {
                return None;
            }
            let number = self.number.load(Ordering::Acquire);
            if std::mem::replace(seen, number) != number
                && let Some(task) = &posted.task
            {
                return Some(Arc::clone(task));
            }
            let woken = self.changed.wait_timeout(posted, SLEEP);
            (posted, _) = woken.unwrap_or_else(PoisonError::into_inner);
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
            let mut ends = Ends { task: self, returned: false };
            if let Err(error) = (self.work)(part) {
                lock(&self.failed).get_or_insert(error);
            }
            ends.returned = true;
        }
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task of {} parts, {:?} of them open", self.parts, self.open)
    }
}

/// A part in work: it ends when this is dropped, also by a panic.
struct Ends<'t> {
    task: &'t Task,
    /// Whether the work has returned: the thread may have been panicking before.
    returned: bool,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if !self.returned {
            self.task.panicked.store(true, Ordering::Relaxed);
        }
        self.task.open.fetch_sub(1, Ordering::Release);
    }
}

/// Nobody works on the task any more when this has been dropped: parts that nobody has taken are taken away, as after a
/// panic, and the others are waited for.
struct Joins<'t>(&'t Task);

impl Drop for Joins<'_> {
    fn drop(&mut self) {
        let Task { parts, next, open, .. } = self.0;
        let taken = next.swap(*parts, Ordering::Relaxed).min(*parts);
        open.fetch_sub(parts - taken, Ordering::Relaxed);
        let mut looks = 0;
        // What threads have written is seen after this.
        while open.load(Ordering::Acquire) > 0 {
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
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
            let crew = Crew::start(threads);
            for round in 1..200 {
                let counts = each();
                assert_eq!(crew.share(PARTS, count(&counts)), Some(Ok(())));
                let all = counts.iter().map(|count| count.load(Ordering::Relaxed));
                assert!(all.eq((0..PARTS).map(|_| 1)), "{threads} threads, round {round}");
            }
        }
    }

    /// Two parts that wait for each other need two threads at a time.
    #[test]
    fn threads_work_beside_the_caller_again_and_again() {
        let crew = Crew::start(1);
        for _ in 0..20 {
            let (met, who) = (Barrier::new(2), Arc::new(Mutex::new(Vec::<ThreadId>::new())));
            let names = Arc::clone(&who);
            let work: Work = Box::new(move |_| {
                met.wait();
                lock(&names).push(std::thread::current().id());
                Ok(())
            });
            assert_eq!(crew.share(2, work), Some(Ok(())));
            let who = lock(&who);
            assert!(who.len() == 2 && who[0] != who[1]);
        }
    }

    #[test]
    fn a_second_caller_is_told_to_work_alone() {
        let crew = Arc::new(Crew::start(1));
        let other = Arc::clone(&crew);
        let work: Work = Box::new(move |_| {
            assert_eq!(other.share(1, Box::new(|_| Ok(()))), None);
            Ok(())
        });
        assert_eq!(crew.share(3, work), Some(Ok(())));
    }

    #[test]
    fn an_error_of_any_part_is_the_result() {
        let crew = Crew::start(2);
        for failing in [0, 1, PARTS - 1] {
            let error = EngineError::NoSource;
            let work: Work =
                Box::new(
                    move |part| if part == failing { Err(EngineError::NoSource) } else { Ok(()) },
                );
            assert_eq!(crew.share(PARTS, work), Some(Err(error)));
        }
        assert_eq!(crew.share(PARTS, count(&each())), Some(Ok(())));
    }

    /// A value that is dropped by a panic waits for its message.
    #[test]
    fn work_that_is_done_while_its_caller_panics_is_done() {
        struct Late<'c>(&'c Crew);

        impl Drop for Late<'_> {
            fn drop(&mut self) {
                let counts = each();
                assert_eq!(self.0.share(PARTS, count(&counts)), Some(Ok(())));
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }

        for threads in 0..2 {
            let crew = Crew::start(threads);
            let panics = || {
                let _late = Late(&crew);
                panic!("the caller's own");
            };
            assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        }
    }

    #[test]
    fn a_panic_is_the_callers_and_no_part_runs_after_it() {
        let crew = Crew::start(2);
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
            assert!(catch_unwind(AssertUnwindSafe(|| crew.share(PARTS, work))).is_err());
            assert_eq!(
                running.load(Ordering::Relaxed),
                1,
                "all but the one that panicked have ended"
            );
            assert_eq!(crew.share(PARTS, count(&each())), Some(Ok(())));
        }
    }
}
