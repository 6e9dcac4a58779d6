//! Epochs: fences, post and start, locks (MPI 4.1 §12.5).

use super::Window;
use crate::error::Error;
use crate::window::Assertions;
use gapless_engine::ReduceOp;
use gapless_osc::{Lock, WindowCall, WindowError};
use std::sync::PoisonError;

impl Window {
    /// Ends all operations between this fence and the one before, at all ranks, and begins the next epoch, in which all
    /// ranks access all, unless `NOSUCCEED` is asserted, by all ranks or by none (`MPI_Win_fence`, MPI 4.1 §12.5.1).
    /// Collective.
    ///
    /// # Errors
    /// An epoch of another kind is open here, or at another rank ([`WindowError::Elsewhere`]): then no rank has fenced, and
    /// epochs are as they were; what members have refused is told by the next fence. Ranks differ in `NOSUCCEED`; a member
    /// is lost, or has refused an operation.
    pub fn fence(&self, assertions: Assertions) -> Result<(), Error> {
        let last = assertions.contains(Assertions::NOSUCCEED);
        self.timed(WindowCall::Fence, 0, || self.meet(last))
    }

    fn meet(&self, last: bool) -> Result<(), Error> {
        // Whatever comes of this rank's part, the others wait.
        let refused = self.inner.begin_fence().err();
        let flushed = match &refused {
            None => self.inner.before_fence(self.shared()),
            Some(_) => Ok(()),
        };
        let call = if last { "fence_last" } else { "fence" };
        let mine = [i32::from(last), i32::from(!last), self.refusal(refused.is_some())];
        let mut all = [0; 3];
        let met = self.comm.allreduce(&mine, &mut all, ReduceOp::Min);
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        if met.is_ok() && all[2] != i32::MAX {
            // All know, and no rank has fenced.
            let rank = all[2].unsigned_abs();
            *owed = owed.take().or(flushed.err());
            return Err(match refused {
                Some(refused) => refused,
                None => {
                    self.inner.not_fenced();
                    WindowError::Elsewhere { call, rank }
                }
            }
            .into());
        }
        let agreed = met.is_ok() && (all[..2] == [1, 0] || all[..2] == [0, 1]);
        self.inner.fenced(agreed.then_some(last));
        met?;
        if !agreed {
            let rank = self.rank();
            return Err(WindowError::Differs { rank, what: "kinds of fences" }.into());
        }
        owed.take().map_or(flushed, Err)
    }

    /// What a rank gives to a minimum, to say whether it was refused what all are about to do.
    pub(crate) fn refusal(&self, refused: bool) -> i32 {
        if refused { i32::try_from(self.rank()).unwrap_or(i32::MAX - 1) } else { i32::MAX }
    }

    /// Exposes this rank's memory to the ranks of a group, until [`wait`](Window::wait) (`MPI_Win_post`, MPI 4.1
    /// §12.5.2). Does not wait. With `NOCHECK` no message tells the group.
    ///
    /// # Errors
    /// It is exposed already; a fence has opened an epoch; no such rank, or one twice; a rank is lost.
    pub fn post(&self, group: &[u32], assertions: Assertions) -> Result<(), Error> {
        match assertions.contains(Assertions::NOCHECK) {
            true => Ok(self.inner.post_unchecked(group)?),
            false => self.timed(WindowCall::Post, 0, || self.inner.post(self.shared(), group)),
        }
    }

    /// Begins access to the memory of a group, once all of it has [posted](Window::post) (`MPI_Win_start`). With `NOCHECK`,
    /// which the group's posts have as well, it does not wait.
    ///
    /// # Errors
    /// Another epoch is open; no such rank, or one twice; a rank is lost.
    pub fn start(&self, group: &[u32], assertions: Assertions) -> Result<(), Error> {
        match assertions.contains(Assertions::NOCHECK) {
            true => Ok(self.inner.start_unchecked(group)?),
            false => self.timed(WindowCall::Start, 0, || self.inner.start(self.shared(), group)),
        }
    }

    /// Ends that access (`MPI_Win_complete`). Operations have ended at a target when its [`wait`](Window::wait) returns.
    /// Waits for the progress of targets to which operations went by messages.
    ///
    /// # Errors
    /// Nothing was started; a rank is lost, or has refused an operation: the epoch has ended nevertheless.
    pub fn complete(&self) -> Result<(), Error> {
        self.timed(WindowCall::Complete, 0, || self.inner.complete(self.shared()))
    }

    /// Waits until all ranks that the memory was [posted](Window::post) to have completed (`MPI_Win_wait`).
    ///
    /// # Errors
    /// Nothing was posted; another thread waits; a rank is lost.
    pub fn wait(&self) -> Result<(), Error> {
        self.timed(WindowCall::Wait, 0, || self.inner.wait(self.shared()))
    }

    /// The same without waiting: whether they have (`MPI_Win_test`).
    ///
    /// # Errors
    /// As [`wait`](Window::wait).
    pub fn test(&self) -> Result<bool, Error> {
        self.inner.test(self.shared())
    }

    /// Locks the memory of a rank, which has to call nothing (`MPI_Win_lock`, MPI 4.1 §12.5.3). Waits for the lock, which
    /// hinders no other thread from using other targets. With `NOCHECK` the lock is not taken.
    ///
    /// # Errors
    /// It is locked by this rank already, or about to be; an epoch of another kind is open; no such rank; it is lost, or a
    /// holder of the lock is.
    #[inline]
    pub fn lock(&self, rank: u32, kind: Lock, assertions: Assertions) -> Result<(), Error> {
        if assertions.contains(Assertions::NOCHECK) {
            return Ok(self.inner.lock_unchecked(rank, kind)?);
        }
        self.timed(WindowCall::Lock, 0, || match self.inner.lock_now(self.shared(), rank, kind) {
            true => Ok(()),
            false => self.inner.lock(self.shared(), rank, kind),
        })
    }

    /// Ends all operations on the rank, here and there, and unlocks it (`MPI_Win_unlock`).
    ///
    /// # Errors
    /// It is not locked; it is lost, or has refused an operation: the epoch has ended nevertheless.
    #[inline]
    pub fn unlock(&self, rank: u32) -> Result<(), Error> {
        self.timed(WindowCall::Unlock, 0, || match self.inner.unlock_now(self.shared(), rank) {
            true => Ok(()),
            false => self.inner.unlock(self.shared(), rank),
        })
    }

    /// Locks the memory of all ranks, shared (`MPI_Win_lock_all`). Not collective. With `NOCHECK` the locks are not taken.
    ///
    /// # Errors
    /// As [`lock`](Window::lock); then none is locked.
    pub fn lock_all(&self, assertions: Assertions) -> Result<(), Error> {
        match assertions.contains(Assertions::NOCHECK) {
            true => Ok(self.inner.lock_all_unchecked()?),
            false => self.timed(WindowCall::Lock, 0, || self.inner.lock_all(self.shared())),
        }
    }

    /// Ends that (`MPI_Win_unlock_all`).
    ///
    /// # Errors
    /// As [`unlock`](Window::unlock); the first failure of several.
    pub fn unlock_all(&self) -> Result<(), Error> {
        self.timed(WindowCall::Unlock, 0, || self.inner.unlock_all(self.shared()))
    }

    /// Ends all operations of this rank on another, here and there, while it is locked (`MPI_Win_flush`, MPI 4.1 §12.5.4):
    /// those that were begun before.
    ///
    /// # Errors
    /// It is not locked; it is lost, or has refused an operation.
    #[inline]
    pub fn flush(&self, rank: u32) -> Result<(), Error> {
        self.timed(WindowCall::Flush, 0, || match self.inner.flush_now(self.shared(), rank) {
            true => Ok(()),
            false => self.inner.flush(self.shared(), rank),
        })
    }

    /// The same for all that are locked (`MPI_Win_flush_all`).
    ///
    /// # Errors
    /// As [`flush`](Window::flush).
    pub fn flush_all(&self) -> Result<(), Error> {
        self.timed(WindowCall::Flush, 0, || self.inner.flush_all(self.shared()))
    }

    /// Ends all operations of this rank on another here (`MPI_Win_flush_local`): what they read is there.
    ///
    /// # Errors
    /// The rank is not locked; it is lost, or has refused to be read.
    pub fn flush_local(&self, rank: u32) -> Result<(), Error> {
        self.inner.flush_local(self.shared(), rank)
    }

    /// The same for all that are locked (`MPI_Win_flush_local_all`).
    ///
    /// # Errors
    /// No rank is locked; as [`flush_local`](Window::flush_local).
    pub fn flush_local_all(&self) -> Result<(), Error> {
        self.inner.flush_local_all(self.shared())
    }

    /// Orders accesses to memory before and after it (`MPI_Win_sync`, MPI 4.1 §12.5.4), and serves other ranks: whoever
    /// waits for a change of its own memory calls this in its loop.
    pub fn sync(&self) {
        self.inner.sync(self.shared());
    }
}
