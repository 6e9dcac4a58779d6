//! Threads that work on a window of this process while it may be freed.

use crate::exposure::Exposure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether threads are at work on a window, and whether it is gone.
#[derive(Debug, Default)]
pub(crate) struct Users {
    count: AtomicUsize,
    gone: AtomicBool,
}

impl Users {
    /// The window goes: waits until no thread is at work on it any more. None of them waits for others then.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Release);
        while self.count.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }

    /// Whether a thread is at work on it.
    #[cfg(test)]
    pub(crate) fn are_at_work(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub(crate) fn are_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// A window of this process, as a thread has it: the window does not go meanwhile.
pub(crate) struct InUse {
    pub(crate) exposure: Exposure,
    /// This process's rank.
    pub(crate) rank: u32,
    pub(crate) processes: Arc<[u32]>,
    pub(crate) users: Arc<Users>,
}

impl InUse {
    /// To be made under the lock under which the window is taken out.
    pub(crate) fn new(
        exposure: Exposure,
        (rank, processes): (u32, &Arc<[u32]>),
        users: &Arc<Users>,
    ) -> InUse {
        users.count.fetch_add(1, Ordering::Relaxed);
        InUse { exposure, rank, processes: Arc::clone(processes), users: Arc::clone(users) }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.users.count.fetch_sub(1, Ordering::Release);
    }
}
