//! Counts the threads that sleep, for threads that put tasks straight into a ring, or take outcomes of such puts, without
//! the world's lock.
//!
//! ```text
//! a thread that puts                         a thread that is about to sleep (with the lock)
//!   marks its end as busy                      counts as asleep
//!   fence                                      fence
//!   is anybody asleep? then takes the lock     is anything busy? then does not sleep
//!   and rouses
//! ```
//!
//! Both fences are sequentially consistent, so at least one of the two threads sees the other's store: no put is left
//! while all threads sleep. The fence of the thread that puts is that of the ring's announcement. Only `Xtq::advance`
//! clears the mark. It runs under the world's lock, so not between the two steps of a thread that is about to sleep, and
//! sets the mark again if it finds something in a ring. A thread that wakes may read an old mark once; it looks again
//! before it sleeps.
//!
//! Likewise, a thread that has taken outcomes fences, and then rings if anybody is asleep. A thread that waits for an
//! outcome counts as asleep, fences, and then looks once more before it sleeps.

use super::{Shared, State};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// How many threads sleep, or are about to, that would have to see to what is started without the lock.
#[derive(Debug, Default)]
pub(super) struct Asleep(AtomicU32);

/// A thread that counts as asleep until this is dropped.
#[must_use]
pub(super) struct Sleeper<'s>(&'s Asleep);

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// The caller counts as asleep, and is to look once more before it sleeps.
    pub(super) fn fall_asleep(&self) -> Sleeper<'_> {
        self.asleep.0.fetch_add(1, Ordering::Relaxed);
        let sleeper = Sleeper(&self.asleep);
        fence(Ordering::SeqCst);
        sleeper
    }

    /// The caller counts as asleep, unless there is more to do: `None`.
    pub(super) fn fall_asleep_if_idle(&self, state: &State) -> Option<Sleeper<'_>> {
        let sleeper = self.fall_asleep();
        (!state.is_busy()).then_some(sleeper)
    }

    /// The caller has ended something for which others may wait.
    pub(crate) fn tell_sleepers(&self) {
        fence(Ordering::SeqCst);
        if self.is_anybody_asleep() {
            self.ring();
        }
    }

    /// Whether somebody would have to be roused. The caller has put something, and fenced.
    #[inline]
    pub(crate) fn is_anybody_asleep(&self) -> bool {
        self.asleep.0.load(Ordering::Relaxed) > 0
    }
}
