//! The pair of fences that falling asleep needs.

use primitive::{Ordering, fence};

#[cfg(not(loom))]
mod primitive {
    pub(super) use std::sync::atomic::{Ordering, compiler_fence, fence};
}

#[cfg(loom)]
mod primitive {
    pub(super) use loom::sync::atomic::{Ordering, fence};
}

/// How a store of the one side is ordered before a load of the other (Dekker's problem: each side
/// stores its own word, then loads the other's, and at least one must see the other's store).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fences {
    /// Both sides pay a full fence.
    Symmetric,
    /// The sleeper interrupts every processor that runs a registered process (membarrier(2)), and
    /// so the sender, which is the side in a hurry, only has to keep its compiler in order. All processes that take
    /// part have registered.
    #[cfg(not(loom))]
    Asymmetric,
}

impl Fences {
    /// The hurried side: between publishing something and looking whether anybody sleeps.
    #[inline]
    pub fn hurried(self) {
        match self {
            Fences::Symmetric => fence(Ordering::SeqCst),
            #[cfg(not(loom))]
            Fences::Asymmetric => primitive::compiler_fence(Ordering::SeqCst),
        }
    }

    /// The patient side: between announcing sleep and looking a last time for what is awaited. `false`: the hurried
    /// side may not see the announcement, so there is no sleeping.
    #[must_use]
    pub fn patient(self) -> bool {
        fence(Ordering::SeqCst);
        match self {
            Fences::Symmetric => true,
            #[cfg(not(loom))]
            Fences::Asymmetric => crate::membarrier::barrier(),
        }
    }
}
