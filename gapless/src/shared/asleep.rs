//! Who sleeps, for those that start or end something without the world's lock: puts of tasks that go straight into a ring,
//! and their outcomes.
//!
//! ```text
//! who puts                                   who is about to sleep (with the lock)
//!   marks its end as busy                      counts as asleep
//!   fence                                      fence
//!   is anybody asleep? then takes the lock     is anything busy? then does not sleep
//!   and rouses
//! ```
//!
//! Both fences are sequentially consistent. So at least one of them sees the other's store, and no put is left to itself
//! while all threads sleep. The fence of who puts is the one of a ring's announcement. This also needs that nobody clears
//! the mark in between: only `Xtq::advance` does, under the world's lock, which who is about to sleep holds, and it sets
//! the mark again if it finds something in a ring. A thread that rises may read an old mark once; it looks again before it
//! sleeps.
//!
//! Likewise, who takes outcomes fences and then rings if anybody is asleep, and who waits for one counts as asleep, fences,
//! and then looks once more before it sleeps.

use super::{Shared, State};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// How many threads sleep, or are about to, that would have to see to what is started without the lock.
#[derive(Debug, Default)]
pub(super) struct Asleep(AtomicU32);

impl Shared {
    /// The caller counts as asleep until it [rises](Shared::rise), and is to look once more before it sleeps.
    pub(super) fn fall_asleep(&self) {
        self.asleep.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether there is more to do; if not, the caller counts as asleep until it [rises](Shared::rise).
    pub(super) fn has_more(&self, state: &State) -> bool {
        self.fall_asleep();
        let is_busy = state.is_busy();
        if is_busy {
            self.rise();
        }
        is_busy
    }

    /// The caller sleeps no more.
    pub(super) fn rise(&self) {
        self.asleep.0.fetch_sub(1, Ordering::Relaxed);
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
