//! Who is to be told of requests that have ended. A waker may do anything, so none is called or dropped while the
//! endpoint is in use: the caller takes them, and calls them later.

use gapless_mem::{Completion, Pending};
use std::sync::Arc;
use std::task::{Wake, Waker};

/// The wakers of one request.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    /// Whoever asked last to be called at the end.
    pub(super) waker: Option<Waker>,
    /// A thread that sleeps until then.
    pub(super) sleeper: Option<Waker>,
}

/// Wakers to call now: their requests have ended.
#[derive(Debug, Default)]
pub(super) struct Woken {
    list: Vec<Waker>,
    /// How many of them are not of sleeping threads.
    others: usize,
}

/// Work of the caller's that is over, dropped where wakers are called.
struct Spent(#[expect(dead_code, reason = "it is dropped")] Arc<dyn Pending>);

impl Wake for Spent {
    fn wake(self: Arc<Self>) {}
}

impl Woken {
    /// Those of a request that has ended, or is given up.
    pub(super) fn add(&mut self, wakers: &mut Wakers) {
        self.others += usize::from(wakers.waker.is_some());
        self.list.extend(wakers.waker.take().into_iter().chain(wakers.sleeper.take()));
    }

    /// Keeps a completion of the caller's until wakers are called: with it goes what may be anybody's, and may want to
    /// use the endpoint.
    pub(super) fn lay_down(&mut self, completion: Completion) {
        if let Completion::Pending(work) = completion {
            self.others += 1;
            self.list.push(Waker::from(Arc::new(Spent(work))));
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether there is one that is not of a sleeping thread.
    pub(super) fn has_others(&self) -> bool {
        self.others > 0
    }

    pub(super) fn take(&mut self) -> Vec<Waker> {
        self.others = 0;
        std::mem::take(&mut self.list)
    }
}
