//! Epochs: fences, post and start, locks.

use super::{Assertions, Window};
use crate::error::Error;
use crate::shared::Shared;
use gapless_dtype::AnyBits;
use gapless_engine::ReduceOp;
use gapless_osc::{Lock, WindowCall, WindowError};

impl<T: AnyBits, M> Window<T, M> {
    /// Does a call that begins or ends an epoch.
    #[inline]
    fn timed(
        &mut self,
        call: WindowCall,
        act: impl FnOnce(&mut gapless_osc::Window, &Shared) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let began = self.began();
        let done = act(&mut self.inner, &self.comm.shared);
        self.note(call, 0, began);
        done
    }

    /// Ends all operations between this fence and the one before, at all ranks, and begins the next epoch, in which all
    /// ranks access all (`MPI_Win_fence`, MPI 4.1 §12.5.1). Collective.
    ///
    /// # Errors
    /// An epoch of another kind is open here, or at another rank ([`WindowError::Elsewhere`]): then no rank has fenced, and
    /// epochs are as they were; what members have refused is told by the next fence. Some ranks called [`fence_last`](Window::fence_last); a member is lost, or has refused an
    /// operation.
    pub fn fence(&mut self) -> Result<(), Error> {
        self.meet(false)
    }

    /// The same, but no epoch begins (`MPI_Win_fence` with `MPI_MODE_NOSUCCEED`). All ranks call this, or none.
    ///
    /// # Errors
    /// As [`fence`](Window::fence).
    pub fn fence_last(&mut self) -> Result<(), Error> {
        self.meet(true)
    }

    /// The same with [assertions](Assertions): with `NOSUCCEED` as [`fence_last`](Window::fence_last), else as
    /// [`fence`](Window::fence).
    ///
    /// # Errors
    /// As [`fence`](Window::fence).
    pub fn fence_with(&mut self, assertions: Assertions) -> Result<(), Error> {
        match assertions.contains(Assertions::NOSUCCEED) {
            true => self.fence_last(),
            false => self.fence(),
        }
    }

    fn meet(&mut self, last: bool) -> Result<(), Error> {
        let began = self.began();
        let met = self.meet_all(last);
        self.note(WindowCall::Fence, 0, began);
        met
    }

    fn meet_all(&mut self, last: bool) -> Result<(), Error> {
        // Whatever comes of this rank's part, the others wait.
        let refused = self.inner.may_fence().err();
        let flushed = match &refused {
            None => self.inner.before_fence(self.shared()),
            Some(_) => Ok(()),
        };
        let call = if last { "fence_last" } else { "fence" };
        let mine = [i32::from(last), i32::from(!last), self.refusal(refused.is_some())];
        let mut all = [0; 3];
        let met = self.comm.allreduce(&mine, &mut all, ReduceOp::Min);
        if met.is_ok() && all[2] != i32::MAX {
            // All know, and no rank has fenced.
            let rank = all[2].unsigned_abs();
            self.owed = self.owed.take().or(flushed.err());
            return Err(refused.unwrap_or(WindowError::Elsewhere { call, rank }).into());
        }
        let agreed = met.is_ok() && (all[..2] == [1, 0] || all[..2] == [0, 1]);
        self.inner.fenced(agreed.then_some(last));
        met?;
        if !agreed {
            let rank = self.rank();
            return Err(WindowError::Differs { rank, what: "kinds of fences" }.into());
        }
        self.owed.take().map_or(flushed, Err)
    }

    /// What a rank gives to a minimum, to say whether it was refused what all are about to do.
    pub(super) fn refusal(&self, refused: bool) -> i32 {
        if refused { i32::try_from(self.rank()).unwrap_or(i32::MAX - 1) } else { i32::MAX }
    }

    /// Exposes this rank's memory to the ranks of a group, until [`wait`](Window::wait) (`MPI_Win_post`, MPI 4.1
    /// §12.5.2). Does not wait.
    ///
    /// # Errors
    /// It is exposed already; a fence has opened an epoch; no such rank; a rank is lost.
    pub fn post(&mut self, group: &[u32]) -> Result<(), Error> {
        self.timed(WindowCall::Post, |inner, shared| inner.post(shared, group))
    }

    /// The same with [assertions](Assertions): with `NOCHECK` no message tells the group.
    ///
    /// # Errors
    /// As [`post`](Window::post).
    pub fn post_with(&mut self, group: &[u32], assertions: Assertions) -> Result<(), Error> {
        match assertions.contains(Assertions::NOCHECK) {
            true => Ok(self.inner.post_unchecked(group)?),
            false => self.post(group),
        }
    }

    /// Begins access to the memory of a group, once all of it has [posted](Window::post) (`MPI_Win_start`).
    ///
    /// # Errors
    /// Another epoch is open; no such rank; a rank is lost.
    pub fn start(&mut self, group: &[u32]) -> Result<(), Error> {
        self.timed(WindowCall::Start, |inner, shared| inner.start(shared, group))
    }

    /// The same with [assertions](Assertions): with `NOCHECK`, which the group's posts have as well, it does not wait.
    ///
    /// # Errors
    /// As [`start`](Window::start).
    pub fn start_with(&mut self, group: &[u32], assertions: Assertions) -> Result<(), Error> {
        match assertions.contains(Assertions::NOCHECK) {
            true => Ok(self.inner.start_unchecked(group)?),
            false => self.start(group),
        }
    }

    /// Ends that access (`MPI_Win_complete`). Operations have ended at a target when its [`wait`](Window::wait) returns.
    /// Waits for the progress of targets to which operations went by messages.
    ///
    /// # Errors
    /// Nothing was started; a rank is lost, or has refused an operation.
    pub fn complete(&mut self) -> Result<(), Error> {
        self.timed(WindowCall::Complete, |inner, shared| inner.complete(shared))
    }

    /// Waits until all ranks that the memory was [posted](Window::post) to have completed (`MPI_Win_wait`).
    ///
    /// # Errors
    /// Nothing was posted; a rank is lost.
    pub fn wait(&mut self) -> Result<(), Error> {
        self.timed(WindowCall::Wait, |inner, shared| inner.wait(shared))
    }

    /// The same without waiting: whether they have (`MPI_Win_test`).
    ///
    /// # Errors
    /// As [`wait`](Window::wait).
    pub fn test(&mut self) -> Result<bool, Error> {
        self.inner.test(&*self.comm.shared)
    }

    /// Locks the memory of a rank, which has to call nothing (`MPI_Win_lock`, MPI 4.1 §12.5.3). Waits for the lock.
    /// Several ranks may be locked at once.
    ///
    /// # Errors
    /// It is locked by this rank already; an epoch of another kind is open; no such rank; it is lost, or a holder of the
    /// lock is.
    #[inline]
    pub fn lock(&mut self, rank: u32, kind: Lock) -> Result<(), Error> {
        self.timed(WindowCall::Lock, |inner, shared| match inner.lock_now(shared, rank, kind) {
            true => Ok(()),
            false => inner.lock(shared, rank, kind),
        })
    }

    /// The same with [assertions](Assertions): with `NOCHECK` the lock is not taken.
    ///
    /// # Errors
    /// As [`lock`](Window::lock).
    pub fn lock_with(
        &mut self,
        rank: u32,
        kind: Lock,
        assertions: Assertions,
    ) -> Result<(), Error> {
        match assertions.contains(Assertions::NOCHECK) {
            true => Ok(self.inner.lock_unchecked(rank, kind)?),
            false => self.lock(rank, kind),
        }
    }

    /// Ends all operations on the rank, here and there, and unlocks it (`MPI_Win_unlock`).
    ///
    /// # Errors
    /// It is not locked; it is lost, or has refused an operation.
    #[inline]
    pub fn unlock(&mut self, rank: u32) -> Result<(), Error> {
        self.timed(WindowCall::Unlock, |inner, shared| match inner.unlock_now(shared, rank) {
            true => Ok(()),
            false => inner.unlock(shared, rank),
        })
    }

    /// Locks the memory of all ranks, shared (`MPI_Win_lock_all`). Not collective.
    ///
    /// # Errors
    /// As [`lock`](Window::lock); then none is locked.
    pub fn lock_all(&mut self) -> Result<(), Error> {
        self.timed(WindowCall::Lock, |inner, shared| inner.lock_all(shared))
    }

    /// The same with [assertions](Assertions): with `NOCHECK` the locks are not taken.
    ///
    /// # Errors
    /// As [`lock_all`](Window::lock_all).
    pub fn lock_all_with(&mut self, assertions: Assertions) -> Result<(), Error> {
        match assertions.contains(Assertions::NOCHECK) {
            true => Ok(self.inner.lock_all_unchecked()?),
            false => self.lock_all(),
        }
    }

    /// Ends that (`MPI_Win_unlock_all`).
    ///
    /// # Errors
    /// As [`unlock`](Window::unlock).
    pub fn unlock_all(&mut self) -> Result<(), Error> {
        self.timed(WindowCall::Unlock, |inner, shared| inner.unlock_all(shared))
    }

    /// Ends all operations of this rank on another, here and there, while it is locked (`MPI_Win_flush`, MPI 4.1 §12.5.4).
    ///
    /// # Errors
    /// It is not locked; it is lost, or has refused an operation.
    #[inline]
    pub fn flush(&self, rank: u32) -> Result<(), Error> {
        let began = self.began();
        if self.inner.flush_now(self.shared(), rank) {
            self.note(WindowCall::Flush, 0, began);
            return Ok(());
        }
        let result = self.inner.flush(self.shared(), rank);
        self.note(WindowCall::Flush, 0, began);
        result
    }

    /// The same for all that are locked (`MPI_Win_flush_all`).
    ///
    /// # Errors
    /// As [`flush`](Window::flush).
    pub fn flush_all(&self) -> Result<(), Error> {
        let began = self.began();
        let result = self.inner.flush_all(self.shared());
        self.note(WindowCall::Flush, 0, began);
        result
    }

    /// `MPI_Win_flush_local`. Operations have ended here when they return, so this only checks.
    ///
    /// # Errors
    /// The rank is not locked.
    pub fn flush_local(&self, rank: u32) -> Result<(), Error> {
        Ok(self.inner.flush_local(rank)?)
    }

    /// `MPI_Win_flush_local_all`, likewise.
    ///
    /// # Errors
    /// No rank is locked.
    pub fn flush_local_all(&self) -> Result<(), Error> {
        Ok(self.inner.flush_local_all()?)
    }

    /// Orders accesses to memory before and after it (`MPI_Win_sync`, MPI 4.1 §12.5.4), and serves other ranks: whoever
    /// waits for a change of its own memory calls this in its loop.
    pub fn sync(&self) {
        self.inner.sync(self.shared());
    }
}
