//! Counts the threads that sleep, for threads that publish something without the lock under which the others fall
//! asleep.
//!
//! ```text
//! a thread that publishes                    a thread that is about to sleep
//!   stores what it publishes                   counts as asleep
//!   fence                                      fence
//!   is anybody asleep? then rouses             is there anything? then does not sleep
//! ```
//!
//! Both fences are sequentially consistent, so at least one of the two threads sees the other's store: nothing is left
//! while all threads sleep. loom explores it: `models`, below.

use primitive::{AtomicU32, Ordering, fence};

#[cfg(not(loom))]
mod primitive {
    pub(super) use std::sync::atomic::{AtomicU32, Ordering, fence};
}

#[cfg(loom)]
mod primitive {
    pub(super) use loom::sync::atomic::{AtomicU32, Ordering, fence};
}

/// How many threads sleep, or are about to.
#[derive(Debug, Default)]
pub struct Asleep(AtomicU32);

/// A thread that counts as asleep until this is dropped.
#[must_use]
#[derive(Debug)]
pub struct Sleeper<'s>(&'s Asleep);

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Asleep {
    /// The caller counts as asleep, and is to look once more before it sleeps.
    pub fn fall_asleep(&self) -> Sleeper<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let sleeper = Sleeper(self);
        fence(Ordering::SeqCst);
        sleeper
    }

    /// Whether somebody is to be roused for what the caller has published.
    #[inline]
    #[must_use]
    pub fn has_missed(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_anybody()
    }

    /// The same, if the caller has executed a sequentially consistent fence since it published that.
    #[inline]
    #[must_use]
    pub fn is_anybody(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn who_wakes_does_not_count_any_more() {
        let asleep = Asleep::default();
        assert!(!asleep.has_missed());
        let (first, second) = (asleep.fall_asleep(), asleep.fall_asleep());
        drop(first);
        assert!(asleep.has_missed());
        drop(second);
        assert!(!asleep.has_missed());
    }
}

// RUSTFLAGS="--cfg loom" cargo test -p gapless-sync --lib --release asleep
// With either fence weakened to `AcqRel`, both models fail.
#[cfg(test)]
#[cfg(loom)]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    /// A thread that is about to sleep. Gives whether it sleeps.
    fn sleeps(asleep: &Asleep, published: &AtomicBool) -> bool {
        let sleeper = asleep.fall_asleep();
        let found = published.load(Ordering::Relaxed);
        if !found {
            // Nobody wakes it in this model.
            std::mem::forget(sleeper);
        }
        !found
    }

    #[test]
    fn nobody_sleeps_while_something_is_left() {
        loom::model(|| {
            let shared = Arc::new((Asleep::default(), AtomicBool::new(false)));
            let sleeper = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || sleeps(&shared.0, &shared.1))
            };
            let (asleep, published) = &*shared;
            published.store(true, Ordering::Relaxed);
            let roused = asleep.has_missed();
            let slept = sleeper.join().unwrap();
            assert!(roused || !slept, "it sleeps, and nobody rouses it");
            assert_eq!(asleep.is_anybody(), slept);
        });
    }

    #[test]
    fn a_thread_that_wakes_hides_no_other() {
        loom::model(|| {
            let shared = Arc::new((Asleep::default(), AtomicBool::new(false)));
            let sleepers = [(); 2].map(|()| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || sleeps(&shared.0, &shared.1))
            });
            shared.1.store(true, Ordering::Relaxed);
            let roused = shared.0.has_missed();
            let slept = sleepers.map(|sleeper| sleeper.join().unwrap());
            assert!(roused || slept == [false; 2], "one sleeps, and nobody rouses it");
        });
    }
}
