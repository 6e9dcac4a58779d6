//! Messages that have left for a target, until an answer confirms that they have arrived.

use std::sync::atomic::{AtomicU64, Ordering};

/// Messages to a target that only a later answer confirms. Threads count and flush at the same time: an answer confirms
/// what had left when it was asked for.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    left: AtomicU64,
    confirmed: AtomicU64,
}

impl Unconfirmed {
    /// One has left.
    pub(crate) fn one_more(&self) {
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    /// How many have left, if some of them are not confirmed.
    pub(crate) fn unconfirmed(&self) -> Option<u64> {
        let left = self.left.load(Ordering::Acquire);
        (self.confirmed.load(Ordering::Acquire) < left).then_some(left)
    }

    /// As many have arrived.
    pub(crate) fn confirm(&self, left: u64) {
        self.confirmed.fetch_max(left, Ordering::AcqRel);
    }

    /// The end of an epoch confirms all: no operation is under way.
    pub(crate) fn all_confirmed(&self) {
        self.confirm(self.left.load(Ordering::Acquire));
    }
}
