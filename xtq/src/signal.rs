//! Signals: counters that tasks count down, and that processes wait for.

use crate::error::XtqError;
use gapless_bml::Rank;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names of signals in packets; 0 is none.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Called when a signal has ended, without any lock.
pub(crate) type Bell = Arc<dyn Fn() + Send + Sync>;

#[derive(Debug)]
struct Count {
    left: u64,
    /// Why it will never reach 0.
    failed: Option<XtqError>,
}

struct Inner {
    name: u64,
    count: Mutex<Count>,
    /// The ranks whose tasks count it down; all, if there are none.
    from: Vec<Rank>,
    bell: Bell,
}

/// A counter that ends at 0: when as many tasks have ended as it began with.
///
/// Clones are the same signal. It also ends, with an error, when a task that was to count it down fails or is refused,
/// or when a rank is lost that was to count it down. What a task has written can be seen by whoever has seen the signal
/// at 0.
#[derive(Clone)]
pub struct Signal(Arc<Inner>);

impl Signal {
    pub(crate) fn new(count: u64, from: Vec<Rank>, bell: Bell) -> Signal {
        let name = NEXT.fetch_add(1, Ordering::Relaxed);
        let count = Mutex::new(Count { left: count, failed: None });
        Signal(Arc::new(Inner { name, count, from, bell }))
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.0.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name in packets.
    pub(crate) fn name(&self) -> u64 {
        self.0.name
    }

    /// What is left to count.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.count().left
    }

    /// How it has ended, if it has: at 0, or with an error.
    #[must_use]
    pub fn poll(&self) -> Option<Result<(), XtqError>> {
        let count = self.count();
        match &count.failed {
            Some(error) => Some(Err(error.clone())),
            None => (count.left == 0).then_some(Ok(())),
        }
    }

    /// Counts down by one; at 0 it stays.
    pub fn count_down(&self) {
        let mut count = self.count();
        let ends = count.left == 1 && count.failed.is_none();
        count.left = count.left.saturating_sub(1);
        drop(count);
        if ends {
            (self.0.bell)();
        }
    }

    /// Ends it with an error, unless it has ended.
    pub(crate) fn fail(&self, error: XtqError) {
        let mut count = self.count();
        if count.left == 0 || count.failed.is_some() {
            return;
        }
        count.failed = Some(error);
        drop(count);
        (self.0.bell)();
    }

    /// A task that was to count it down has ended.
    pub(crate) fn end(&self, result: Result<(), XtqError>) {
        match result {
            Ok(()) => self.count_down(),
            Err(error) => self.fail(error),
        }
    }

    /// Whether tasks of the rank were to count it down.
    pub(crate) fn counts(&self, rank: Rank) -> bool {
        self.0.from.is_empty() || self.0.from.contains(&rank)
    }

    /// Begins anew at `count`; an error is forgotten.
    pub fn reset(&self, count: u64) {
        *self.count() = Count { left: count, failed: None };
    }

    pub(crate) fn downgrade(&self) -> Weak {
        Weak(Arc::downgrade(&self.0))
    }
}

/// A signal, if somebody still has it.
pub(crate) struct Weak(std::sync::Weak<Inner>);

impl Weak {
    pub(crate) fn upgrade(&self) -> Option<Signal> {
        self.0.upgrade().map(Signal)
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count();
        write!(f, "Signal {} at {}", self.0.name, count.left)?;
        count.failed.iter().try_for_each(|error| write!(f, ": {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn it_ends_once_at_zero_or_with_the_first_error() {
        let rung = Arc::new(AtomicU32::new(0));
        let theirs = Arc::clone(&rung);
        let bell: Bell = Arc::new(move || _ = theirs.fetch_add(1, Ordering::Relaxed));
        let signal = Signal::new(2, vec![Rank(3)], bell);
        signal.count_down();
        assert_eq!((signal.value(), signal.poll()), (1, None));
        assert_eq!((signal.counts(Rank(2)), signal.counts(Rank(3))), (false, true));
        assert_eq!((signal.poll(), rung.load(Ordering::Relaxed)), (None, 0));
        signal.count_down();
        signal.count_down();
        signal.fail(XtqError::Closed);
        assert_eq!((signal.poll(), rung.load(Ordering::Relaxed)), (Some(Ok(())), 1));
        signal.reset(1);
        signal.end(Err(XtqError::Closed));
        signal.end(Err(XtqError::PayloadTooLong { bytes: 0 }));
        signal.end(Ok(()));
        let closed = Some(Err(XtqError::Closed));
        assert_eq!((signal.poll(), rung.load(Ordering::Relaxed)), (closed, 2));
    }
}
