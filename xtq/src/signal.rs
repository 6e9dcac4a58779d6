//! Signals: counters that tasks count down, and that processes wait for.

use crate::error::XtqError;
use gapless_bml::Rank;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Names of signals in packets; 0 is none.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Called when a signal has ended, without any lock: whether somebody waits for that end, as a put does that is held back.
#[doc(hidden)]
pub type Wakeup = Arc<dyn Fn(bool) + Send + Sync>;

/// How a signal has ended; empty as long as it has not.
pub(crate) type SignalEnd = Arc<OnceLock<Result<(), XtqError>>>;

#[derive(Debug, Default)]
struct Count {
    left: u64,
    /// Why it will never reach 0.
    failed: Option<XtqError>,
    /// Why tasks that were to count it down will not come any more, however often it begins anew.
    forsaken: Option<XtqError>,
    /// Who is to learn of its next end, and of no later one.
    awaited: Vec<SignalEnd>,
}

impl Count {
    fn end(&self) -> Option<Result<(), XtqError>> {
        match &self.failed {
            Some(error) => Some(Err(error.clone())),
            None => (self.left == 0).then_some(Ok(())),
        }
    }

    /// Tells those who wait for this end, if it has ended. Whether there are any.
    fn tell(&mut self) -> bool {
        let Some(result) = self.end() else { return false };
        let is_awaited = !self.awaited.is_empty();
        for awaited in self.awaited.drain(..) {
            // Each is told once.
            let _ = awaited.set(result.clone());
        }
        is_awaited
    }
}

struct Inner {
    name: u64,
    count: Mutex<Count>,
    /// The ranks whose tasks count it down; all, if there are none.
    from: Vec<Rank>,
    wakeup: Wakeup,
}

/// A counter that ends at 0: when as many tasks have ended as it began with.
///
/// Clones are the same signal. It also ends, with an error, when a task that was to count it down fails or is finally
/// refused, or when a rank is lost that was to count it down. What a task has written can be seen by whoever has seen
/// the signal at 0.
#[derive(Clone)]
pub struct Signal(Arc<Inner>);

impl Signal {
    #[doc(hidden)]
    pub fn new(count: u64, from: Vec<Rank>, wakeup: Wakeup) -> Signal {
        let name = NEXT.fetch_add(1, Ordering::Relaxed);
        let count = Mutex::new(Count { left: count, ..Count::default() });
        Signal(Arc::new(Inner { name, count, from, wakeup }))
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
        self.count().end()
    }

    /// Its next end, or the one that it has come to: whoever has this misses none, though the signal begins anew.
    pub(crate) fn next_end(&self) -> SignalEnd {
        let end = SignalEnd::default();
        let mut count = self.count();
        count.awaited.push(Arc::clone(&end));
        count.tell();
        end
    }

    /// Whether it is this one.
    pub(crate) fn is(&self, other: &Signal) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether its end calls this wake-up.
    #[doc(hidden)]
    pub fn rings(&self, wakeup: &Wakeup) -> bool {
        Arc::ptr_eq(&self.0.wakeup, wakeup)
    }

    /// Counts down by one; at 0 it stays.
    pub fn count_down(&self) {
        self.count_down_by(1);
    }

    /// Counts down by so many; at 0 it stays.
    pub(crate) fn count_down_by(&self, times: u64) {
        let mut count = self.count();
        let ends = (1..=times).contains(&count.left) && count.failed.is_none();
        count.left = count.left.saturating_sub(times);
        let is_awaited = count.tell();
        drop(count);
        if ends {
            (self.0.wakeup)(is_awaited);
        }
    }

    /// Ends it with an error, unless it has ended.
    #[doc(hidden)]
    pub fn fail(&self, error: XtqError) {
        let mut count = self.count();
        if count.left == 0 || count.failed.is_some() {
            return;
        }
        count.failed = Some(error);
        let is_awaited = count.tell();
        drop(count);
        (self.0.wakeup)(is_awaited);
    }

    /// A task that was to count it down has ended.
    #[doc(hidden)]
    pub fn end(&self, result: Result<(), XtqError>) {
        match result {
            Ok(()) => self.count_down(),
            Err(error) => self.fail(error),
        }
    }

    /// Whether tasks of the rank were to count it down.
    pub(crate) fn counts(&self, rank: Rank) -> bool {
        self.0.from.is_empty() || self.0.from.contains(&rank)
    }

    /// Tasks that were to count it down will not come any more. The next [`fail`](Signal::fail), or
    /// [`reset`](Signal::reset), ends it.
    pub(crate) fn forsake(&self, error: &XtqError) {
        self.count().forsaken.get_or_insert_with(|| error.clone());
    }

    /// Begins anew at `count`. An error is forgotten, unless it says that a rank is lost that was to count it down: then
    /// this ends at once.
    pub fn reset(&self, count: u64) {
        let mut now = self.count();
        now.left = count;
        now.failed = now.forsaken.clone();
        let is_awaited = now.tell();
        drop(now);
        // It may have ended; or whoever counts it, and does not ring, is to be looked at.
        (self.0.wakeup)(is_awaited);
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
        let wakeup: Wakeup = Arc::new(move |_| _ = theirs.fetch_add(1, Ordering::Relaxed));
        let signal = Signal::new(2, vec![Rank(3)], wakeup);
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
        // To begin anew rings, too.
        assert_eq!((signal.poll(), rung.load(Ordering::Relaxed)), (closed, 3));
        // An end is not missed though the signal begins anew, and is not mistaken for a later one.
        signal.reset(1);
        let first = signal.next_end();
        assert_eq!(first.get(), None);
        signal.count_down();
        signal.reset(1);
        let second = signal.next_end();
        assert_eq!((first.get(), second.get()), (Some(&Ok(())), None));
        signal.forsake(&XtqError::Closed);
        signal.reset(1);
        assert_eq!((first.get(), second.get()), (Some(&Ok(())), Some(&Err(XtqError::Closed))));
    }

    #[test]
    fn the_wakeup_says_whether_somebody_waits() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&said);
        let wakeup: Wakeup = Arc::new(move |is_awaited| theirs.lock().unwrap().push(is_awaited));
        let signal = Signal::new(1, Vec::new(), wakeup);
        signal.count_down();
        signal.reset(1);
        let _first = signal.next_end();
        signal.count_down();
        signal.reset(2);
        let _second = signal.next_end();
        signal.fail(XtqError::Closed);
        signal.reset(1);
        let _third = signal.next_end();
        signal.reset(0);
        let said = std::mem::take(&mut *said.lock().unwrap());
        assert_eq!(said, [false, false, true, false, true, false, true]);
    }
}
