//! Who sleeps, for those that start something without the world's lock: puts of tasks that go straight into a ring.
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
//! while all threads sleep. The fence of who puts is the one of a ring's announcement.

use super::{Shared, State};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// How many threads sleep, or are about to, that would have to see to what is started without the lock.
#[derive(Debug, Default)]
pub(super) struct Asleep(AtomicU32);

impl Shared {
    /// Whether there is more to do; if not, the caller counts as asleep until it [rises](Shared::rise).
    pub(super) fn has_more(&self, state: &State) -> bool {
        self.asleep.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
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

    /// Whether somebody would have to be roused. The caller has put something, and fenced.
    #[inline]
    pub(crate) fn is_anybody_asleep(&self) -> bool {
        self.asleep.0.load(Ordering::Relaxed) > 0
    }
}
