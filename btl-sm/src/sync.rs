//! The one switch between the standard library's atomics and loom's, and the pair of fences that
//! the sleeping handshake needs.
//!
//! Built with `--cfg loom`, only this file, [`ring`](crate::ring), [`doze`](crate::doze),
//! [`credit`](crate::credit) and [`recycle`](crate::recycle) exist: the algorithms that loom explores.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};

/// How a store of the one side is ordered before a load of the other (Dekker's problem: each side
/// stores its own word, then loads the other's, and at least one must see the other's store).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fences {
    /// Both sides pay a full fence.
    Symmetric,
    /// The sleeper interrupts every processor that runs a registered process (membarrier(2)), and
    /// so the sender, which is the side in a hurry, only has to keep its compiler in order.
    #[cfg(not(loom))]
    Asymmetric,
}

impl Fences {
    /// The hurried side: between publishing a message and looking whether anybody sleeps.
    pub(crate) fn hurried(self) {
        match self {
            Fences::Symmetric => fence(Ordering::SeqCst),
            #[cfg(not(loom))]
            Fences::Asymmetric => compiler_fence(Ordering::SeqCst),
        }
    }

    /// The patient side: between announcing sleep and looking for messages a last time. `false`: the hurried side may
    /// not see the announcement, so there is no sleeping.
    #[must_use]
    pub(crate) fn patient(self) -> bool {
        fence(Ordering::SeqCst);
        match self {
            Fences::Symmetric => true,
            #[cfg(not(loom))]
            Fences::Asymmetric => gapless_sync::membarrier::barrier(),
        }
    }
}
