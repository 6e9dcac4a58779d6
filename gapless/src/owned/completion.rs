//! Completion without waiting: a request as a [`Future`], and a function to be called at its end.
//!
//! No runtime is needed or preferred. Some thread must make progress, though: a thread that waits for anything,
//! [`World::block_on`](crate::World::block_on), or the world's progress thread
//! ([`Builder::progress_thread`](crate::Builder::progress_thread)).
//!
//! Requests on borrowed memory are not futures: a future may be forgotten, and no guarantee can rely on its being
//! dropped.

use super::{OwnedBuffer, OwnedRequest};
use crate::error::Error;
use crate::shared::Shared;
use crate::shared::guard::contain;
use gapless_pml::Status;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Returns what [`OwnedRequest::wait`] returns.
///
/// # Panics
/// If it is polled again after it was ready.
impl<B: OwnedBuffer> Future for OwnedRequest<B> {
    type Output = (B, Result<Status, Error>);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        assert!(!this.done, "a request was polled after it had given its result");
        match this.shared.poll(this.id, context.waker()) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => Poll::Ready((this.take_buffer(), result)),
        }
    }
}

impl<B: OwnedBuffer> OwnedRequest<B> {
    /// Calls `then` with the buffer and the result once the operation has ended. The call comes from the thread that
    /// finds the end: this one, if it has ended already; one that makes progress; or the one that leaves the world,
    /// if that comes first ([`Error::Finalized`]). No lock is held meanwhile, so it may start other operations; it
    /// should not wait for them. If it panics, that is reported as an event and goes no further.
    pub fn on_done<F>(self, then: F)
    where
        F: FnOnce(B, Result<Status, Error>) + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let callback = Arc::new(Callback { shared, call: Mutex::new(Some((self, then))) });
        callback.look();
    }
}

/// The function to call at a request's end.
struct Callback<B: OwnedBuffer, F> {
    shared: Arc<Shared>,
    call: Mutex<Option<(OwnedRequest<B>, F)>>,
}

impl<B, F> Callback<B, F>
where
    B: OwnedBuffer,
    F: FnOnce(B, Result<Status, Error>) + Send + 'static,
{
    /// Calls it if the request has ended; otherwise registers itself as the waker.
    fn look(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let taken = {
            let mut call = self.call.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((request, _)) = &*call else { return };
            match self.shared.poll(request.id, &waker) {
                Poll::Pending => return,
                Poll::Ready(result) => call.take().map(|(request, then)| (request, then, result)),
            }
        };
        if let Some((mut request, then, result)) = taken {
            let buffer = request.take_buffer();
            let said = "a function that was called at a request's end panicked";
            contain(said, || then(buffer, result));
        }
    }
}

impl<B, F> Wake for Callback<B, F>
where
    B: OwnedBuffer,
    F: FnOnce(B, Result<Status, Error>) + Send + 'static,
{
    fn wake(self: Arc<Self>) {
        self.look();
    }
}
