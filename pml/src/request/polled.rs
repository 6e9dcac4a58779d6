//! For callers that wait in their own way, because they share the endpoint behind a lock and must
//! not hold it while they yield or sleep: the steps that `wait.rs` is made of.

use crate::error::PmlError;
use crate::pml::Pml;
use crate::request::{RequestId, Settled, Status};
use gapless_bml::Waiter;
use std::task::Waker;

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
    #[inline]
    pub fn collect(&mut self, id: RequestId) -> Result<Option<Status>, PmlError> {
        self.core.requests.collect(id)
    }

    /// As [`collect`](Pml::collect), for whoever does not want to know more than that it went well.
    #[inline]
    pub fn collect_quietly(&mut self, id: RequestId) -> Settled {
        self.core.requests.collect_quietly(id)
    }

    /// Has `waker` told once a request has ended, in place of whoever was to be told before; `false` if
    /// it has ended already. Any function can be a [`Waker`], by way of [`Wake`](std::task::Wake).
    ///
    /// Nobody is called in here, and nobody dropped, who may do anything then: in `waker` there is afterwards
    /// whoever is not told any more. Those who are told: see [`take_woken`](Pml::take_woken).
    ///
    /// # Errors
    /// There is no such request.
    pub fn notify(&mut self, id: RequestId, waker: &mut Option<Waker>) -> Result<bool, PmlError> {
        self.core.requests.notify(id, waker)
    }

    /// Whether somebody is to be told of the end of a request.
    #[must_use]
    #[inline]
    pub fn has_woken(&self) -> bool {
        self.core.requests.has_woken()
    }

    /// Those who are to be told of the end of their requests, for the caller to
    /// [wake](Waker::wake) once it has let go of the endpoint, which they may want to use.
    pub fn take_woken(&mut self) -> Vec<Waker> {
        self.core.requests.take_woken(false)
    }

    /// All who are to be told of the end of a request, also of one that goes on: for an endpoint that
    /// is being given up.
    pub fn take_all_wakers(&mut self) -> Vec<Waker> {
        self.core.requests.take_woken(true)
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
