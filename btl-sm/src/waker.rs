//! Waking a peer that sleeps.

use crate::arm::{Reason, must_signal};
use crate::lane::Lane;
use crate::socket::{self, Socket};
use crate::sync::{AtomicU32, Fences};
use crate::wire;
use std::sync::Arc;

/// What it takes to wake one peer; shared by the link and the fragments that came over it.
#[derive(Debug)]
pub(crate) struct Waker {
    /// The peer's lane: its sleep flag is there.
    pub(crate) lane: Arc<Lane>,
    /// Our socket to it.
    pub(crate) socket: Arc<Socket>,
    /// The last sleep that was signalled.
    signalled: AtomicU32,
    pub(crate) fences: Fences,
}

impl Waker {
    pub(crate) fn new(lane: Arc<Lane>, socket: Arc<Socket>, fences: Fences) -> Waker {
        Waker { lane, socket, signalled: AtomicU32::new(0), fences }
    }

    /// Signals if the peer sleeps and `reason` concerns it. Costs a load while it is awake.
    #[inline]
    pub(crate) fn wake(&self, reason: Reason) {
        if must_signal(self.lane.sleep(), &self.signalled, self.fences, reason) {
            self.signal();
        }
    }

    #[cold]
    fn signal(&self) {
        // A full socket is readable at the other end and so wakes as well; a broken one means that
        // nobody is there to be woken.
        let _ = socket::send(&self.socket, &[wire::WAKE], None);
    }
}
