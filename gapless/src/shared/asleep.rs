//! Threads that sleep, beside threads that put tasks straight into a ring, or take outcomes of tasks in rings, without
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
//! At least one of the two threads sees the other's store ([`Asleep`](gapless_sync::Asleep)), so no put is left while
//! all threads sleep. The fence of the thread that puts is that of the ring's announcement. Only `Xtq::advance` clears
//! the mark that an end is busy. `Xtq::advance` runs under the world's lock, so not between the two steps of a thread
//! that is about to sleep, and sets the mark again if it finds something in a ring. A thread that wakes may read an old
//! mark once; it looks again before it sleeps.
//!
//! Likewise, a thread that has taken outcomes fences, and then signals if anybody is asleep. A thread that waits for an
//! outcome counts as asleep, fences, and then looks once more before it sleeps.

use super::{Shared, WorldState};
use gapless_sync::Sleeper;

impl Shared {
    /// The caller counts as asleep, and is to look once more before it sleeps.
    pub(super) fn fall_asleep(&self) -> Sleeper<'_> {
        self.asleep.fall_asleep()
    }

    /// The caller counts as asleep; `None` if there is more to do.
    pub(super) fn fall_asleep_if_idle(&self, state: &WorldState) -> Option<Sleeper<'_>> {
        let sleeper = self.fall_asleep();
        (!state.is_busy()).then_some(sleeper)
    }

    /// The caller has ended something for which others may wait.
    pub(crate) fn tell_sleepers(&self) {
        if self.asleep.has_missed() {
            self.signal();
        }
    }

    /// Whether a thread sleeps that must be roused. The caller has put a task, and fenced.
    #[inline]
    pub(crate) fn is_anybody_asleep(&self) -> bool {
        self.asleep.is_anybody()
    }
}
