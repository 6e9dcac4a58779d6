//! Epochs: fences, post and start, locks.

use super::{Assertions, Window};
use crate::error::Error;
use gapless_dtype::AnyBits;
use gapless_osc::Lock;
#[cfg(doc)]
use gapless_osc::WindowError;

impl<T: AnyBits, M> Window<T, M> {
    /// Ends all operations between this fence and the one before, at all ranks, and begins the next epoch, in which all
    /// ranks access all (`MPI_Win_fence`, MPI 4.1 §12.5.1). Collective.
    ///
    /// # Errors
    /// An epoch of another kind is open here, or at another rank ([`WindowError::Elsewhere`]): then no rank has fenced, and
    /// epochs are as they were; what members have refused is told by the next fence. Some ranks called
    /// [`fence_last`](Window::fence_last); a member is lost, or has refused an operation.
    pub fn fence(&mut self) -> Result<(), Error> {
        self.raw.fence(Assertions::empty())
    }

    /// The same, but no epoch begins (`MPI_Win_fence` with `MPI_MODE_NOSUCCEED`). All ranks call this, or none.
    ///
    /// # Errors
    /// As [`fence`](Window::fence).
    pub fn fence_last(&mut self) -> Result<(), Error> {
        self.raw.fence(Assertions::NOSUCCEED)
    }

    /// The same with [assertions](Assertions): with `NOSUCCEED` as [`fence_last`](Window::fence_last), else as
    /// [`fence`](Window::fence).
    ///
    /// # Errors
    /// As [`fence`](Window::fence).
    pub fn fence_with(&mut self, assertions: Assertions) -> Result<(), Error> {
        self.raw.fence(assertions)
    }

    /// Exposes this rank's memory to the ranks of a group, until [`wait`](Window::wait) (`MPI_Win_post`, MPI 4.1
    /// §12.5.2). Does not wait.
    ///
    /// # Errors
    /// It is exposed already; a fence has opened an epoch; no such rank; a rank is lost.
    pub fn post(&mut self, group: &[u32]) -> Result<(), Error> {
        self.raw.post(group, Assertions::empty())
    }

    /// The same with [assertions](Assertions): with `NOCHECK` no message tells the group.
    ///
    /// # Errors
    /// As [`post`](Window::post).
    pub fn post_with(&mut self, group: &[u32], assertions: Assertions) -> Result<(), Error> {
        self.raw.post(group, assertions)
    }

    /// Begins access to the memory of a group, once all of it has [posted](Window::post) (`MPI_Win_start`).
    ///
    /// # Errors
    /// Another epoch is open; no such rank; a rank is lost.
    pub fn start(&mut self, group: &[u32]) -> Result<(), Error> {
        self.raw.start(group, Assertions::empty())
    }

    /// The same with [assertions](Assertions): with `NOCHECK`, which the group's posts have as well, it does not wait.
    ///
    /// # Errors
    /// As [`start`](Window::start).
    pub fn start_with(&mut self, group: &[u32], assertions: Assertions) -> Result<(), Error> {
        self.raw.start(group, assertions)
    }

    /// Ends that access (`MPI_Win_complete`). Operations have ended at a target when its [`wait`](Window::wait) returns.
    /// Waits for the progress of targets to which operations went by messages.
    ///
    /// # Errors
    /// Nothing was started; a rank is lost, or has refused an operation.
    pub fn complete(&mut self) -> Result<(), Error> {
        self.raw.complete()
    }

    /// Waits until all ranks that the memory was [posted](Window::post) to have completed (`MPI_Win_wait`).
    ///
    /// # Errors
    /// Nothing was posted; a rank is lost.
    pub fn wait(&mut self) -> Result<(), Error> {
        self.raw.wait()
    }

    /// The same without waiting: whether they have (`MPI_Win_test`).
    ///
    /// # Errors
    /// As [`wait`](Window::wait).
    pub fn test(&mut self) -> Result<bool, Error> {
        self.raw.test()
    }

    /// Locks the memory of a rank, which has to call nothing (`MPI_Win_lock`, MPI 4.1 §12.5.3). Waits for the lock.
    /// Several ranks may be locked at once.
    ///
    /// # Errors
    /// It is locked by this rank already; an epoch of another kind is open; no such rank; it is lost, or a holder of the
    /// lock is.
    #[inline]
    pub fn lock(&mut self, rank: u32, kind: Lock) -> Result<(), Error> {
        self.raw.lock(rank, kind, Assertions::empty())
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
        self.raw.lock(rank, kind, assertions)
    }

    /// Ends all operations on the rank, here and there, and unlocks it (`MPI_Win_unlock`).
    ///
    /// # Errors
    /// It is not locked; it is lost, or has refused an operation.
    #[inline]
    pub fn unlock(&mut self, rank: u32) -> Result<(), Error> {
        self.raw.unlock(rank)
    }

    /// Locks the memory of all ranks, shared (`MPI_Win_lock_all`). Not collective.
    ///
    /// # Errors
    /// As [`lock`](Window::lock); then none is locked.
    pub fn lock_all(&mut self) -> Result<(), Error> {
        self.raw.lock_all(Assertions::empty())
    }

    /// The same with [assertions](Assertions): with `NOCHECK` the locks are not taken.
    ///
    /// # Errors
    /// As [`lock_all`](Window::lock_all).
    pub fn lock_all_with(&mut self, assertions: Assertions) -> Result<(), Error> {
        self.raw.lock_all(assertions)
    }

    /// Ends that (`MPI_Win_unlock_all`).
    ///
    /// # Errors
    /// As [`unlock`](Window::unlock).
    pub fn unlock_all(&mut self) -> Result<(), Error> {
        self.raw.unlock_all()
    }

    /// Ends all operations of this rank on another, here and there, while it is locked (`MPI_Win_flush`, MPI 4.1 §12.5.4).
    ///
    /// # Errors
    /// It is not locked; it is lost, or has refused an operation.
    #[inline]
    pub fn flush(&self, rank: u32) -> Result<(), Error> {
        self.raw.flush(rank)
    }

    /// The same for all that are locked (`MPI_Win_flush_all`).
    ///
    /// # Errors
    /// As [`flush`](Window::flush).
    pub fn flush_all(&self) -> Result<(), Error> {
        self.raw.flush_all()
    }

    /// `MPI_Win_flush_local` (MPI 4.1 §12.5.4). All but [requests](Window::rget), which are waited for by themselves, has
    /// ended here when its call returns: so this ends nothing.
    ///
    /// # Errors
    /// The rank is not locked.
    pub fn flush_local(&self, rank: u32) -> Result<(), Error> {
        self.raw.flush_local(rank)
    }

    /// `MPI_Win_flush_local_all`, likewise.
    ///
    /// # Errors
    /// No rank is locked.
    pub fn flush_local_all(&self) -> Result<(), Error> {
        self.raw.flush_local_all()
    }

    /// Orders accesses to memory before and after it (`MPI_Win_sync`, MPI 4.1 §12.5.4), and serves other ranks: whoever
    /// waits for a change of its own memory calls this in its loop.
    pub fn sync(&self) {
        self.raw.sync();
    }
}
