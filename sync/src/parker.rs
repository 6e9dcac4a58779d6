//! A thread that sleeps until it is told to go on.

use primitive::{Condvar, Mutex};
use std::sync::{Arc, PoisonError};
use std::task::Wake;
use std::time::Duration;

#[cfg(not(loom))]
mod primitive {
    pub(super) use std::sync::{Condvar, Mutex};
}

#[cfg(loom)]
mod primitive {
    pub(super) use loom::sync::{Condvar, Mutex};
}

/// Where one thread sleeps. A call that comes before it sleeps makes it go on at once.
///
/// As a [`Waker`](std::task::Waker) it is told of a request's end.
#[derive(Debug, Default)]
pub struct Parker {
    told: Mutex<bool>,
    wakeup: Condvar,
}

impl Parker {
    /// Tells the thread to go on.
    pub fn unpark(&self) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wakeup.notify_one();
    }

    /// Sleeps until the thread is told to go on, or was told since it last slept, or for `at_most`; it may also wake
    /// for no reason. Called by one thread.
    pub fn park(&self, at_most: Duration) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !*told {
            told =
                self.wakeup.wait_timeout(told, at_most).unwrap_or_else(PoisonError::into_inner).0;
        }
        *told = false;
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::task::Waker;

    /// Longer than any test may take.
    const FOR_EVER: Duration = Duration::from_secs(3600);

    #[test]
    fn a_word_that_comes_first_is_kept_and_counts_once() {
        let parker = Arc::new(Parker::default());
        parker.unpark();
        Waker::from(Arc::clone(&parker)).wake();
        parker.park(FOR_EVER);
        // The next sleep is one.
        assert!(!*parker.told.lock().unwrap());
        parker.park(Duration::from_millis(1));
    }

    #[test]
    fn a_sleeper_is_woken() {
        let parker = Arc::new(Parker::default());
        std::thread::scope(|threads| {
            let sleeper = threads.spawn(|| parker.park(FOR_EVER));
            while !sleeper.is_finished() {
                parker.unpark();
                std::thread::yield_now();
            }
        });
    }
}
