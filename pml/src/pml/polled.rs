//! For callers that wait in their own loop, because they share the endpoint behind a lock and must not hold it while
//! they yield or sleep: the steps that `wait.rs` is made of.

use crate::error::{Failure, PmlError};
use crate::pml::Pml;
use crate::status::{RequestId, Settled, Status};
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
    pub fn collect(&mut self, id: RequestId) -> Result<Option<Status>, Failure> {
        self.core.requests.collect(id)
    }

    /// As [`collect`](Pml::collect), but the result stays.
    ///
    /// # Errors
    /// As there.
    pub fn peek(&self, id: RequestId) -> Result<Option<Status>, Failure> {
        self.core.requests.peek(id)
    }

    /// As [`collect`](Pml::collect), for callers that only need to know that it went well.
    #[inline]
    pub fn collect_quietly(&mut self, id: RequestId) -> Settled {
        self.core.requests.collect_quietly(id)
    }

    /// Sets the waker to call once a request has ended; `false` if it has ended already. Any function can be a
    /// [`Waker`], through [`Wake`](std::task::Wake).
    ///
    /// A waker may do anything, so none is called or dropped in here: afterwards, `waker` has the one that was
    /// replaced. [`take_woken`](Pml::take_woken) gives the wakers to call.
    ///
    /// # Errors
    /// There is no such request.
    pub fn notify(&mut self, id: RequestId, waker: &mut Option<Waker>) -> Result<bool, PmlError> {
        self.core.requests.notify(id, waker)
    }

    /// As [`notify`](Pml::notify), for a thread that sleeps until the request has ended. It has a place of its own: no
    /// other waker is replaced.
    ///
    /// # Errors
    /// There is no such request.
    pub fn notify_sleeper(
        &mut self,
        id: RequestId,
        waker: &mut Option<Waker>,
    ) -> Result<bool, PmlError> {
        self.core.requests.notify_sleeper(id, waker)
    }

    /// Whether [`take_woken`](Pml::take_woken) would give any.
    #[must_use]
    #[inline]
    pub fn has_woken(&self) -> bool {
        self.core.requests.has_woken()
    }

    /// Whether it would give any but those of [sleepers](Pml::notify_sleeper).
    #[must_use]
    pub fn has_woken_others(&self) -> bool {
        self.core.requests.has_woken_others()
    }

    /// The wakers of ended requests, for the caller to [wake](Waker::wake) once it has released the endpoint, which
    /// they may want to use. Completions that a send has [waited for](Pml::isend_after) come as wakers, too: waking one
    /// drops it.
    pub fn take_woken(&mut self) -> Vec<Waker> {
        self.core.requests.take_woken(false)
    }

    /// All wakers, also of requests that go on: for an endpoint that is given up.
    pub fn take_all_wakers(&mut self) -> Vec<Waker> {
        self.core.requests.take_woken(true)
    }

    /// Whether this process has work of its own to finish, so that a waiting caller should poll and not sleep.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.core.is_busy()
    }

    /// Prepares to sleep: arms every transport, and makes progress once more. If that does nothing (0) and the
    /// endpoint is not [busy](Pml::is_busy), the caller releases the endpoint and calls [`Waiter::block`].
    pub fn arm(&mut self, waiter: &mut Waiter) -> usize {
        let events = self.bml.arm(waiter, &mut self.core);
        self.pump(events)
    }
}
