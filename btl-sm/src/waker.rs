//! Ringing a peer that sleeps.

use crate::arm::{Reason, must_ring};
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
    /// The last sleep that was rung for.
    rung: AtomicU32,
    pub(crate) fences: Fences,
}

impl Waker {
    pub(crate) fn new(lane: Arc<Lane>, socket: Arc<Socket>, fences: Fences) -> Waker {
        Waker { lane, socket, rung: AtomicU32::new(0), fences }
    }

    /// Rings if the peer sleeps and `reason` concerns it. Costs a load while it is awake.
    #[inline]
    pub(crate) fn wake(&self, reason: Reason) {
        if must_ring(self.lane.sleep(), &self.rung, self.fences, reason) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        // A full socket is readable at the other end and so wakes as well; a broken one means that
        // nobody is there to be woken.
        let _ = socket::send(&self.socket, &[wire::RING], None);
    }
}
