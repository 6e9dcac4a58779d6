//! Flushes, fences and the like: what an origin does until its operations have ended at targets (MPI 4.1 §12.5.1, §12.5.4).

use crate::error::WindowError;
use crate::window::{Driver, Window};
use crate::wire::WindowMessage;
use std::sync::atomic::{Ordering, fence};

impl Window {
    /// Asks a target whether all is done, if anything was sent to it: the question, and how much it is about.
    fn ask_flush<D: Driver>(&self, driver: &D, rank: u32) -> Result<Option<(u64, u64)>, D::Error> {
        let Some(left) = self.sent[rank as usize].unconfirmed() else { return Ok(None) };
        let token = self.question(driver, rank, self.head(WindowMessage::Flush, rank))?;
        Ok(Some((token, left)))
    }

    /// Waits for the answer. A fault is told once: what was sent is over.
    fn flushed<D: Driver>(
        &self,
        driver: &D,
        rank: u32,
        (token, left): (u64, u64),
    ) -> Result<(), D::Error> {
        let answer = self.answer(driver, rank, token);
        self.sent[rank as usize].confirm(left);
        answer
    }

    /// Waits until all is done that went to a target by messages, if something did.
    pub(crate) fn confirm<D: Driver>(&self, driver: &D, rank: u32) -> Result<(), D::Error> {
        let asked = if self.is_remote(rank) { self.ask_flush(driver, rank)? } else { None };
        asked.map_or(Ok(()), |asked| self.flushed(driver, rank, asked))
    }

    /// Ends all operations on a target, here and there (`MPI_Win_flush`, MPI 4.1 §12.5.4).
    ///
    /// # Errors
    /// No epoch of a lock is open for the target; it is lost, or has refused an operation.
    #[inline]
    pub fn flush<D: Driver>(&self, driver: &D, rank: u32) -> Result<(), D::Error> {
        self.epochs.may_flush(rank, "flush")?;
        let ended = self.end_tasks(driver, rank).and(self.end_transfers(driver, rank));
        let flushed = if self.is_remote(rank) {
            let flushed = self.ask_flush(driver, rank).and_then(|asked| match asked {
                Some(asked) => self.flushed(driver, rank, asked),
                // Who only flushes hears of deaths, too.
                None => {
                    self.progress_now_and_then(driver, 1);
                    Ok(())
                }
            });
            flushed.and(self.end_reads(driver, rank))
        } else {
            self.in_order(driver);
            Ok(())
        };
        ended.and(flushed)?;
        Ok(self.check_alive(rank)?)
    }

    /// The same for all targets (`MPI_Win_flush_all`).
    ///
    /// # Errors
    /// As [`flush`](Window::flush); the first failure of several.
    pub fn flush_all<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        self.epochs.open().may_flush_all("flush_all")?;
        self.flush_everything(driver)
    }

    /// Ends all operations on a target here (`MPI_Win_flush_local`): what was read is there. What was given may be changed
    /// as soon as an operation returns.
    ///
    /// # Errors
    /// No epoch of a lock is open for the target; it is lost, or has refused to be read.
    pub fn flush_local<D: Driver>(&self, driver: &D, rank: u32) -> Result<(), D::Error> {
        self.epochs.may_flush(rank, "flush_local")?;
        self.end_reads(driver, rank).and(self.end_transfers(driver, rank))
    }

    /// The same for all targets (`MPI_Win_flush_local_all`).
    ///
    /// # Errors
    /// As [`flush_local`](Window::flush_local); the first failure of several.
    pub fn flush_local_all<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        self.epochs.open().may_flush_all("flush_local_all")?;
        self.end_all_reads(driver)
    }

    fn end_all_reads<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        let mut result = Ok(());
        for rank in self.all_ranks() {
            result = result.and(self.end_reads(driver, rank)).and(self.end_transfers(driver, rank));
        }
        result
    }

    /// Orders this rank's accesses to its own memory and others' (`MPI_Win_sync`), and serves peers.
    pub fn sync<D: Driver>(&self, driver: &D) {
        fence(Ordering::SeqCst);
        match self.all_ranks().any(|rank| self.is_remote(rank)) {
            true => driver.progress(),
            false => self.progress_now_and_then(driver, 1),
        }
    }

    fn flush_everything<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        fence(Ordering::SeqCst);
        let mut result = Ok(());
        let mut asked = Vec::new();
        for rank in self.all_ranks() {
            match self.ask_flush(driver, rank) {
                Ok(one) => asked.extend(one.map(|one| (rank, one))),
                Err(error) => result = result.and(Err(error)),
            }
        }
        for rank in self.all_ranks() {
            result = result.and(self.end_tasks(driver, rank)).and(self.end_transfers(driver, rank));
        }
        for (rank, one) in asked {
            result = result.and(self.flushed(driver, rank, one));
        }
        result = result.and(self.end_all_reads(driver));
        self.progress_now_and_then(driver, 1);
        result
    }

    /// A fence begins (`MPI_Win_fence`, MPI 4.1 §12.5.1). If it is not possible, the other ranks are to be told where they
    /// meet. Else all operations of this rank [end](Window::before_fence), the ranks meet in a collective of the caller's, and
    /// each calls [`fenced`](Window::fenced), or [`not_fenced`](Window::not_fenced).
    ///
    /// # Errors
    /// Epochs that do not go with it.
    pub fn begin_fence(&self) -> Result<(), WindowError> {
        self.epochs.open().begin_fence("fence")
    }

    /// Ends all operations of this rank.
    ///
    /// # Errors
    /// A target is lost, or has refused an operation. Meet nevertheless.
    pub fn before_fence<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        self.flush_everything(driver)
    }

    /// All ranks have met, and this is the last fence of its kind for all, or for none. `None`: they have not met.
    pub fn fenced(&self, last: Option<bool>) {
        let mut epochs = self.epochs.open();
        match last {
            Some(last) => epochs.fenced(last),
            None => epochs.break_off(),
        }
    }

    /// All ranks know that one was refused the fence: epochs are as they were.
    pub fn not_fenced(&self) {
        self.epochs.open().stay();
    }

    /// Whether the window may be freed now, by all ranks together.
    ///
    /// # Errors
    /// An epoch is open.
    pub fn may_free(&self) -> Result<(), WindowError> {
        self.epochs.open().may_free()
    }
}
