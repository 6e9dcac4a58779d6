//! Engines that are opened when first needed, kept if that succeeds, and tried again later if not; when each was used
//! last, so that whoever bounds them gives up the right ones.
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
    known: Mutex<Known<K, E>>,
}

struct Known<K, E> {
    entries: Vec<Entry<K, E>>,
    /// Requests so far.
    clock: u64,
}

struct Entry<K, E> {
    key: K,
    slot: EngineSlot<E>,
    /// The clock at the last request.
    used: u64,
}

enum EngineSlot<E> {
    Open(E),
    Closed(Arc<Mutex<Attempts<E>>>),
}

/// What has been tried so far.
struct Attempts<E> {
    /// Set by the attempt that succeeded, for those who waited for it.
    open: Option<E>,
    /// Failed attempts, and why the last one failed.
    failures: u32,
    why: String,
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
        LazyEngines { known: Mutex::new(Known { entries: Vec::new(), clock: 0 }) }
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
            known.clock += 1;
            let used = known.clock;
            match known.of(key) {
                Some(entry) => {
                    entry.used = used;
                    match &entry.slot {
                        EngineSlot::Open(engine) => return EngineAnswer::Known(engine.clone()),
                        EngineSlot::Closed(attempts) => Arc::clone(attempts),
                    }
                }
                None => {
                    let none =
                        Attempts::<E> { open: None, failures: 0, why: String::new(), next: None };
                    let attempts = Arc::new(Mutex::new(none));
                    let slot = EngineSlot::Closed(Arc::clone(&attempts));
                    known.entries.push(Entry { key, slot, used });
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
                let (slot, used) = (EngineSlot::Open(engine.clone()), known.clock);
                match known.of(key) {
                    Some(entry) => entry.slot = slot,
                    // It was given up meanwhile.
                    None => known.entries.push(Entry { key, slot, used }),
                }
                EngineAnswer::Opened(engine, attempts.failures > 0)
            }
            Err(why) => {
                let wait = RETRY_MIN.saturating_mul(1 << attempts.failures.min(16)).min(RETRY_MAX);
                attempts.failures = attempts.failures.saturating_add(1);
                attempts.why.clone_from(&why);
                // Counted from the end of the attempt, which may take longer than the wait.
                attempts.next = now().checked_add(wait);
                EngineAnswer::Failed(why, attempts.failures)
            }
        }
    }

    /// Why the engine for `key` could not be opened the last time.
    pub(super) fn failure(&self, key: K) -> Option<String> {
        let attempts = match &lock(&self.known).of(key)?.slot {
            EngineSlot::Open(_) => return None,
            EngineSlot::Closed(attempts) => Arc::clone(attempts),
        };
        let attempts = lock(&attempts);
        (attempts.failures > 0).then(|| attempts.why.clone())
    }

    /// Gives up those that `choose` names: of the open ones, or of those that could not be opened. It is told all keys
    /// and when each was used last. Returns the engines.
    #[cfg_attr(not(feature = "opencl"), allow(dead_code, reason = "there are as many as devices"))]
    pub(super) fn give_up(&self, open: bool, choose: impl FnOnce(&[(K, u64)]) -> Vec<K>) -> Vec<E> {
        let mut known = lock(&self.known);
        let asked = |one: &Entry<K, E>| matches!(one.slot, EngineSlot::Open(_)) == open;
        let all = known.entries.iter().filter(|one| asked(one));
        let all: Vec<(K, u64)> = all.map(|one| (one.key, one.used)).collect();
        let chosen = choose(&all);
        let gone = known.entries.extract_if(.., |one| asked(one) && chosen.contains(&one.key));
        let engine = |one: Entry<K, E>| match one.slot {
            EngineSlot::Open(engine) => Some(engine),
            EngineSlot::Closed(_) => None,
        };
        gone.filter_map(engine).collect()
    }

    /// How many have been asked for.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.known).entries.len()
    }
}

impl<K: PartialEq, E> Known<K, E> {
    fn of(&mut self, key: K) -> Option<&mut Entry<K, E>> {
        self.entries.iter_mut().find(|one| one.key == key)
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
    fn what_was_given_up_is_opened_again() {
        let engines = LazyEngines::default();
        for key in [1, 2, 3, 1] {
            let _ = engines.get(key, Instant::now, || Ok(key * 10));
        }
        let _ = engines.get(4, Instant::now, || Err("busy".to_owned()));
        assert_eq!(engines.failure(4).as_deref(), Some("busy"));
        let gone = engines.give_up(true, |all| {
            assert_eq!(all, [(1, 4), (2, 2), (3, 3)]);
            vec![2, 4, 9]
        });
        assert_eq!((gone, engines.len()), (vec![20], 3));
        assert!(engines.give_up(false, |all| all.iter().map(|(key, _)| *key).collect()).is_empty());
        assert_eq!((engines.failure(4), engines.failure(1), engines.len()), (None, None, 2));
        assert_eq!(engines.get(2, Instant::now, || Ok(21)), EngineAnswer::Opened(21, false));
        let again = engines.get(4, Instant::now, || Ok(41));
        assert_eq!(again, EngineAnswer::Opened(41, false), "its failure was forgotten");
        assert_eq!(engines.get(1, Instant::now, || Ok(0)), EngineAnswer::Known(10));
        // One that is given up while it is being opened stays.
        let opened = engines.get(5, Instant::now, || {
            assert!(engines.give_up(false, |_| vec![5]).is_empty());
            Ok(50)
        });
        assert_eq!(opened, EngineAnswer::Opened(50, false));
        assert_eq!(engines.get(5, Instant::now, || Ok(0)), EngineAnswer::Known(50));
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
