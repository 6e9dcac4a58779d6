//! What is this end's, and what the calling thread may do here.

use super::Xtq;
use crate::error::XtqError;
use crate::put::PutHandle;
use crate::signal::Signal;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

impl Xtq {
    /// How many tasks wait or run here. They need processors: a caller that spins may have to give way.
    #[inline]
    #[must_use]
    pub fn live(&self) -> usize {
        self.inner.live.load(Ordering::Relaxed)
    }

    /// From now on receive buffers are made when payloads come, of so many bytes together, and none need be posted: for
    /// functions that do not [take](crate::Task::take_payload) theirs.
    pub fn make_buffers(&self, bytes: usize) {
        self.inner.with(|state| state.target.posted.room = Some(bytes));
    }

    /// Whether this thread may wait for tasks.
    ///
    /// # Errors
    /// [`XtqError::Holding`]: it is inside [`TargetBuffer::with`](crate::TargetBuffer::with).
    pub fn may_wait() -> Result<(), XtqError> {
        if crate::within::holds() { Err(XtqError::Holding) } else { Ok(()) }
    }

    /// Whether the put was made here.
    #[must_use]
    pub fn is_ours(&self, put: &PutHandle) -> bool {
        put.belongs_to(self.inner.number)
    }

    /// The process that what is under way goes to: this put, or all puts.
    #[must_use]
    pub fn target_of(&self, put: Option<&PutHandle>) -> Option<u32> {
        let state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.initiator.target_of(put)
    }

    /// Whether the signal was made here.
    #[must_use]
    pub fn is_our_signal(&self, signal: &Signal) -> bool {
        signal.rings(&self.inner.wakeup)
    }

    /// Whether the calling thread runs a task of this end's: it must not wait until all tasks have ended.
    #[must_use]
    pub fn runs_here(&self) -> bool {
        crate::within::runs(Arc::as_ptr(&self.inner))
    }
}
