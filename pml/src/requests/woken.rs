//! Who is to be told of requests that have ended. A waker may do anything, so none is called or dropped while the
//! endpoint is in use: the caller takes them, and calls them later.

use super::{RequestEntry, Requests};
use crate::error::PmlError;
use crate::status::RequestId;
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

impl<O> Requests<O> {
    /// The part of a request that is looked at if it is watched, in order.
    pub(super) fn watch(&mut self, index: u32) -> &mut RequestEntry<O> {
        let (slot, entry) = (&mut self.slots[index as usize], &mut self.entries[index as usize]);
        if !slot.watched {
            slot.watched = true;
            entry.released = false;
        }
        entry
    }

    /// Sets the waker for a request's end; `waker` then has the one that it replaces. Returns `false` if the request
    /// has ended.
    pub(crate) fn notify(
        &mut self,
        id: RequestId,
        waker: &mut Option<Waker>,
    ) -> Result<bool, PmlError> {
        let wakers = self.wakers(id)?;
        Ok(wakers.map(|wakers| std::mem::swap(&mut wakers.waker, waker)).is_some())
    }

    /// As [`notify`](Requests::notify), of a thread that sleeps until then, beside whoever else is to be called.
    pub(crate) fn notify_sleeper(
        &mut self,
        id: RequestId,
        waker: &mut Option<Waker>,
    ) -> Result<bool, PmlError> {
        let wakers = self.wakers(id)?;
        Ok(wakers.map(|wakers| std::mem::swap(&mut wakers.sleeper, waker)).is_some())
    }

    /// The wakers of a request, unless it has ended.
    fn wakers(&mut self, id: RequestId) -> Result<Option<&mut Wakers>, PmlError> {
        let ended = self.is_done(id)?;
        Ok((!ended).then(|| &mut self.watch(id.index()).wakers))
    }

    /// Keeps a completion of the caller's until wakers are called.
    pub(crate) fn lay_down(&mut self, completion: Completion) {
        self.woken.lay_down(completion);
    }

    #[inline]
    pub(crate) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Whether there is one that is not of a sleeping thread.
    pub(crate) fn has_woken_others(&self) -> bool {
        self.woken.has_others()
    }

    /// The wakers to call now; with `all`, also those whose requests go on.
    pub(crate) fn take_woken(&mut self, all: bool) -> Vec<Waker> {
        if all {
            self.entries.iter_mut().for_each(|entry| self.woken.add(&mut entry.wakers));
        }
        self.woken.take()
    }
}
