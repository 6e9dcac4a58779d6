//! For callers that wait in their own way, because they share the endpoint behind a lock and must
//! not hold it while they yield or sleep: the steps that `wait.rs` is made of.

use crate::error::PmlError;
use crate::pml::Pml;
use crate::request::{RequestId, Status};
use gapless_bml::Waiter;

impl Pml {
    /// Whether a request has ended; its result is still there.
    ///
    /// # Errors
    /// There is no such request.
    pub fn is_done(&self, id: RequestId) -> Result<bool, PmlError> {
        self.core.requests.is_done(id)
    }

    /// The result of a request if it has ended; makes no progress, unlike [`test`](Pml::test).
    ///
    /// # Errors
    /// The request's failure, or there is no such request. Either way it is gone.
    pub fn collect(&mut self, id: RequestId) -> Result<Option<Status>, PmlError> {
        self.core.requests.collect(id)
    }

    /// Whether this process has work of its own to finish, so that whoever waits should poll and
    /// not sleep.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.core.is_busy()
    }

    /// Prepares to sleep: arms every transport, and makes progress once more. If that does nothing
    /// (0) and the endpoint is not [busy](Pml::is_busy), the caller lets go of the endpoint and
    /// calls [`Waiter::block`].
    pub fn arm(&mut self, waiter: &mut Waiter) -> usize {
        let events = self.bml.arm(waiter, &mut self.core);
        self.pump(events)
    }
}
