//! Engines that are opened when first needed, kept if that succeeds, and tried again later if not.
//!
//! Each engine has its own lock while it is being opened: callers that want the same one wait for it, callers that
//! want another do not. Opening a device takes from milliseconds to seconds.

use super::lock;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a failure counts before the next attempt; twice as long after each further one …
const RETRY_MIN: Duration = Duration::from_secs(1);

/// … up to this.
const RETRY_MAX: Duration = Duration::from_secs(64);

/// Engines of type `E`, by their devices.
pub(super) struct LazyEngines<K, E> {
    known: Mutex<Vec<(K, EngineSlot<E>)>>,
}

enum EngineSlot<E> {
    Open(E),
    Closed(Arc<Mutex<Attempts<E>>>),
}

/// What has been tried so far.
struct Attempts<E> {
    /// Set by the attempt that succeeded, for those who waited for it.
    open: Option<E>,
    /// Failed attempts.
    failures: u32,
    /// The earliest time of the next attempt.
    next: Option<Instant>,
}

/// The result of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EngineAnswer<E> {
    /// It was there.
    Known(E),
    /// It was opened now; true if an attempt had failed before.
    Opened(E, bool),
    /// It could not be opened now, for this reason; so many attempts have failed.
    Failed(String, u32),
    /// An attempt failed recently.
    FailedBefore,
}

impl<K, E> Default for LazyEngines<K, E> {
    fn default() -> LazyEngines<K, E> {
        LazyEngines { known: Mutex::default() }
    }
}

impl<K: Copy + PartialEq, E: Clone> LazyEngines<K, E> {
    /// The engine for `key`; opened by `open` if it is not there and no attempt has just failed.
    pub(super) fn get(
        &self,
        key: K,
        now: impl Fn() -> Instant,
        open: impl FnOnce() -> Result<E, String>,
    ) -> EngineAnswer<E> {
        let attempts = {
            let mut known = lock(&self.known);
            match known.iter().find(|(other, _)| *other == key) {
                Some((_, EngineSlot::Open(engine))) => return EngineAnswer::Known(engine.clone()),
                Some((_, EngineSlot::Closed(attempts))) => Arc::clone(attempts),
                None => {
                    let none = Attempts { open: None, failures: 0, next: None };
                    let attempts = Arc::new(Mutex::new(none));
                    known.push((key, EngineSlot::Closed(Arc::clone(&attempts))));
                    attempts
                }
            }
        };
        let mut attempts = lock(&attempts);
        if let Some(engine) = &attempts.open {
            return EngineAnswer::Known(engine.clone());
        }
        if attempts.next.is_some_and(|next| now() < next) {
            return EngineAnswer::FailedBefore;
        }
        match open() {
            Ok(engine) => {
                attempts.open = Some(engine.clone());
                let mut known = lock(&self.known);
                if let Some((_, slot)) = known.iter_mut().find(|(other, _)| *other == key) {
                    *slot = EngineSlot::Open(engine.clone());
                }
                EngineAnswer::Opened(engine, attempts.failures > 0)
            }
            Err(why) => {
                let wait = RETRY_MIN.saturating_mul(1 << attempts.failures.min(16)).min(RETRY_MAX);
                attempts.failures = attempts.failures.saturating_add(1);
                // Counted from the end of the attempt, which may take longer than the wait.
                attempts.next = now().checked_add(wait);
                EngineAnswer::Failed(why, attempts.failures)
            }
        }
    }

    /// How many have been asked for.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.known).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn what_is_open_is_not_opened_again() {
        let engines = LazyEngines::default();
        assert_eq!(engines.get(1, Instant::now, || Ok('a')), EngineAnswer::Opened('a', false));
        let never = || panic!("it is there");
        assert_eq!(engines.get(1, Instant::now, never), EngineAnswer::Known('a'));
        assert_eq!(engines.get(2, Instant::now, || Ok('b')), EngineAnswer::Opened('b', false));
        assert_eq!(engines.len(), 2);
    }

    #[test]
    fn a_failure_stands_for_a_while_and_longer_each_time() {
        let engines: LazyEngines<u8, char> = LazyEngines::default();
        let clock = Cell::new(Instant::now());
        let tries = Cell::new(0);
        let fail = || {
            tries.set(tries.get() + 1);
            Err("busy".to_owned())
        };
        for (failures, seconds) in (1..).zip([1, 2, 4, 8, 16, 32, 64, 64, 64]) {
            let found = engines.get(1, || clock.get(), fail);
            assert_eq!(found, EngineAnswer::Failed("busy".to_owned(), failures));
            let long = Duration::from_secs(seconds);
            let failed = clock.get();
            clock.set(failed + long - Duration::from_nanos(1));
            assert_eq!(engines.get(1, || clock.get(), fail), EngineAnswer::FailedBefore);
            clock.set(failed + long);
        }
        assert_eq!(tries.get(), 9);
        assert_eq!(engines.get(1, || clock.get(), || Ok('a')), EngineAnswer::Opened('a', true));
        assert_eq!(engines.get(1, || clock.get(), fail), EngineAnswer::Known('a'));
    }

    /// One is opened slowly: another can be had meanwhile, and who wants the same one gets it, opened once.
    #[test]
    fn opening_one_does_not_hold_up_another() {
        let engines: LazyEngines<u8, char> = LazyEngines::default();
        let opened = AtomicU32::new(0);
        let (started, has_started) = channel();
        let (go_on, may_go_on) = channel::<()>();
        std::thread::scope(|threads| {
            let (engines, opened) = (&engines, &opened);
            threads.spawn(move || {
                let slowly = || {
                    opened.fetch_add(1, Ordering::Relaxed);
                    started.send(()).unwrap();
                    may_go_on.recv().unwrap();
                    Ok('a')
                };
                assert_eq!(engines.get(1, Instant::now, slowly), EngineAnswer::Opened('a', false));
            });
            has_started.recv().unwrap();
            let same = threads.spawn(|| {
                let again = || {
                    opened.fetch_add(1, Ordering::Relaxed);
                    Ok('c')
                };
                engines.get(1, Instant::now, again)
            });
            assert_eq!(engines.get(2, Instant::now, || Ok('b')), EngineAnswer::Opened('b', false));
            go_on.send(()).unwrap();
            assert_eq!(same.join().unwrap(), EngineAnswer::Known('a'));
        });
        assert_eq!(opened.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_attempt_that_panics_is_one_that_may_be_made_again() {
        let engines: LazyEngines<u8, char> = LazyEngines::default();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            engines.get(1, Instant::now, || panic!("in the driver"))
        }));
        assert!(caught.is_err());
        assert_eq!(engines.get(1, Instant::now, || Ok('a')), EngineAnswer::Opened('a', false));
    }
}
