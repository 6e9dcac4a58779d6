//! Completion without waiting: an operation as a [`Future`], and a function to be called at its end.
//!
//! No runtime is needed or preferred. Some thread must make progress, though: a thread that waits for anything,
//! [`World::block_on`](crate::World::block_on), or the world's progress thread
//! ([`Builder::progress_thread`](crate::Builder::progress_thread)).
//!
//! Operations on borrowed memory are not futures: a future may be forgotten, and no guarantee can rely on its being
//! dropped. So `OwnedRequest` and `OwnedCollective` are futures, and so is `&mut` of a persistent operation that was
//! started (`IntoFuture`).

use crate::shared::guard::contain;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// An operation that owns its buffers.
pub trait Watched {
    /// What it gives when it has ended.
    type Ended;

    /// That, if it has ended; then it is not asked again. Otherwise `waker` is called when it has.
    fn poll_end(&mut self, waker: &Waker) -> Poll<Self::Ended>;
}

/// The end of a persistent operation, as a [`Future`]: what awaiting `&mut` of it makes. It gives what `wait` gives.
///
/// Dropping or forgetting it leaves the operation as it is.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct Ending<'p, P>(pub(crate) &'p mut P);

impl<P: Watched> Future for Ending<'_, P> {
    type Output = P::Ended;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<P::Ended> {
        self.get_mut().0.poll_end(context.waker())
    }
}

/// Calls `then` with what an operation gives, once it has ended.
pub(crate) fn on_done<Q, F>(one: Q, then: F)
where
    Q: Watched + Send + 'static,
    F: FnOnce(Q::Ended) + Send + 'static,
{
    Arc::new(Callback { call: Mutex::new(Some((one, then))) }).look();
}

/// The function to call at an operation's end.
struct Callback<Q, F> {
    call: Mutex<Option<(Q, F)>>,
}

impl<Q, F> Callback<Q, F>
where
    Q: Watched + Send + 'static,
    F: FnOnce(Q::Ended) + Send + 'static,
{
    /// Calls it if the operation has ended; otherwise registers itself as the waker.
    fn look(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let taken = {
            let mut call = self.call.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((one, _)) = &mut *call else { return };
            match one.poll_end(&waker) {
                Poll::Pending => return,
                Poll::Ready(ended) => call.take().map(|(one, then)| (one, then, ended)),
            }
        };
        if let Some((one, then, ended)) = taken {
            drop(one);
            contain("a function that was called at the end of an operation panicked", || {
                then(ended)
            });
        }
    }
}

impl<Q, F> Wake for Callback<Q, F>
where
    Q: Watched + Send + 'static,
    F: FnOnce(Q::Ended) + Send + 'static,
{
    fn wake(self: Arc<Self>) {
        self.look();
    }
}
