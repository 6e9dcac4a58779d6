//! Puts and gets that a device of this process does while the caller goes on: to or from memory of a target that it
//! maps, or that is page-locked for it. Each ends by itself, in any order, and gives its notice when its process makes
//! progress; a flush of the target ends all of them, and so does the end of the epoch.

use crate::core::Osc;
use crate::error::WindowError;
use crate::exposure::WindowPart;
use crate::notices::raise;
use crate::place::{Access, AccessKind};
use crate::window::{Driver, Window, nobody};
use gapless_engine::{EngineError, Typed};
use gapless_mem::Outstanding;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Operations of a process that are under way at most. With so many, a call waits for the oldest first.
const MOST: usize = 1 << 14;

/// Operations that are looked at each time the process makes progress.
const LOOKS: usize = 8;

/// A put or get that a device does. Whoever drops it does not learn how it ends.
#[derive(Clone)]
pub struct PendingTransfer(Arc<Transfer>);

/// The operation.
struct Transfer {
    window: u32,
    rank: u32,
    /// Until it is known to be over. Dropping it waits for it.
    work: Mutex<Option<Outstanding>>,
    ended: OnceLock<Result<(), EngineError>>,
    /// Whoever asked knows how it ended: a flush needs not say so again.
    told: AtomicBool,
    /// That it has ended was seen by whoever makes progress.
    seen: AtomicBool,
    /// Keeps the target's memory mapped.
    target: WindowPart,
    notice: Option<u32>,
}

/// Those of all windows of a process.
#[derive(Default)]
pub(crate) struct Transfers {
    list: Mutex<TransferList>,
    /// How many are not known to be over.
    under_way: AtomicUsize,
    /// How many the list has.
    kept: AtomicUsize,
}

#[derive(Default)]
struct TransferList {
    /// Those under way, and the first failure at each rank of a window that nobody was told of.
    all: Vec<PendingTransfer>,
    /// Where it is looked next.
    next: usize,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PendingTransfer {
    /// How it ended, if it has: with a notice at the target, if it has one and all went well.
    #[must_use]
    pub fn test(&self) -> Option<Result<(), WindowError>> {
        if !self.is_over() {
            let mut work = locked(&self.0.work);
            // Whoever sees that it has ended sees its notice given, too.
            if !self.is_over() {
                let ended = match work.as_ref().map(|work| work.work().poll()) {
                    Some(Ok(false)) => return None,
                    Some(Err(error)) => Err(error.into()),
                    Some(Ok(true)) | None => Ok(()),
                };
                if let (Some(counter), Ok(())) = (self.0.notice, &ended) {
                    raise(self.0.target.header().notice(counter));
                }
                // Nobody else sets it: the lock is this thread's.
                let _ = self.0.ended.set(ended);
                *work = None;
            }
        }
        Some(self.0.ended.get()?.clone().map_err(WindowError::from))
    }

    /// As [`test`](PendingTransfer::test); a failure that this gives is not told again by a flush.
    #[must_use]
    pub fn take(&self) -> Option<Result<(), WindowError>> {
        let ended = self.test()?;
        self.0.told.store(true, Ordering::Relaxed);
        Some(ended)
    }

    /// Waits until it has ended, and makes progress.
    ///
    /// # Errors
    /// The device's, or what it found wrong with an index; no progress is possible any more: then the device may still
    /// be at work ([`drain`](PendingTransfer::drain)).
    pub fn wait<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        let ended = driver.until(true, nobody, |_| self.take())?;
        Ok(ended?)
    }

    /// Waits for the device, whether anybody makes progress or not: nothing touches the memory then. Never unwinds.
    pub fn drain(&self) {
        // Not with the lock: others ask meanwhile, and hold more than this one.
        let work = locked(&self.0.work).as_ref().map(|work| work.work().clone());
        if let Some(work) = work {
            work.drain();
        }
    }

    /// Whether it has ended, and there is nothing to tell of that.
    #[must_use]
    pub fn is_done_with(&self) -> bool {
        self.is_over() && !self.is_owed()
    }

    fn is_over(&self) -> bool {
        self.0.ended.get().is_some()
    }

    /// Whether it has failed, and nobody knows.
    fn is_owed(&self) -> bool {
        matches!(self.0.ended.get(), Some(Err(_))) && !self.0.told.load(Ordering::Relaxed)
    }
}

impl Transfers {
    /// Whether some are under way.
    #[inline]
    pub(crate) fn are_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Whether a flush may have to wait for some, or to tell how one ended. If not, what they all did is seen.
    #[inline]
    pub(crate) fn are_kept(&self) -> bool {
        self.kept.load(Ordering::Acquire) > 0
    }

    fn add(&self, one: PendingTransfer) {
        let mut list = locked(&self.list);
        list.all.push(one);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.kept.store(list.all.len(), Ordering::Release);
    }

    /// Looks at some of them. Gives how many have ended.
    pub(crate) fn advance(&self) -> usize {
        if !self.are_under_way() {
            return 0;
        }
        let some: Vec<PendingTransfer> = {
            let mut list = locked(&self.list);
            let start = if list.next < list.all.len() { list.next } else { 0 };
            let end = list.all.len().min(start + LOOKS);
            list.next = end;
            list.all[start..end].to_vec()
        };
        let has_ended = |one: &&PendingTransfer| {
            one.test().is_some() && !one.0.seen.swap(true, Ordering::Relaxed)
        };
        let ended = some.iter().filter(has_ended).count();
        if ended > 0 {
            self.sweep();
        }
        ended
    }

    /// Forgets those that are over, but for what is still to be told.
    fn sweep(&self) {
        let mut list = locked(&self.list);
        let (mut owed, mut under_way) = (Vec::new(), 0);
        list.all.retain(|one| {
            // Looked at once: it may end meanwhile.
            if !one.is_over() {
                under_way += 1;
                return true;
            }
            let place = (one.0.window, one.0.rank);
            let first = one.is_owed() && !owed.contains(&place);
            if first {
                owed.push(place);
            }
            first
        });
        self.under_way.store(under_way, Ordering::Relaxed);
        self.kept.store(list.all.len(), Ordering::Release);
    }

    /// Those of a window, at one rank or at all.
    fn of(&self, window: u32, rank: Option<u32>) -> Vec<PendingTransfer> {
        let list = locked(&self.list);
        let is_of = |one: &&PendingTransfer| {
            one.0.window == window && rank.is_none_or(|rank| one.0.rank == rank)
        };
        list.all.iter().filter(is_of).cloned().collect()
    }

    /// The one that began first, if there are too many.
    fn oldest_of_too_many(&self) -> Option<PendingTransfer> {
        let list = locked(&self.list);
        if list.all.len() < MOST {
            None
        } else {
            list.all.iter().find(|one| !one.is_over()).cloned()
        }
    }

    /// Waits for all of a window, which is gone: nobody is told how they end.
    pub(crate) fn give_up(&self, window: u32) {
        let all = self.of(window, None);
        for one in &all {
            one.drain();
            // It is over: a notice is given if it is due.
            let _ = one.take();
        }
        if !all.is_empty() {
            self.sweep();
        }
    }

    /// Waits for all devices: no progress is made any more, and memory goes back to its owners. Never unwinds.
    pub(crate) fn drain(&self) {
        let all = locked(&self.list).all.clone();
        all.iter().for_each(PendingTransfer::drain);
    }
}

impl Osc {
    /// Waits until no device of this process works on memory of operations any more: nobody makes progress from now on.
    /// Never unwinds.
    pub fn drain_transfers(&self) {
        self.transfers().drain();
    }
}

impl fmt::Debug for PendingTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingTransfer(rank {}, ended {})", self.0.rank, self.is_over())
    }
}

impl Window {
    /// Begins to transfer all that `origin` describes to or from a target's memory that this process maps, if that or
    /// the origin's is a device's. `None`: it takes another way, and nothing was done.
    ///
    /// # Safety
    /// Until the operation has ended, `origin` describes memory that is valid for reads, and that nobody writes; of a
    /// get, valid for writes, without a byte twice, and nobody else's.
    ///
    /// # Errors
    /// The target is lost; the device's.
    pub unsafe fn begin_transfer<D: Driver>(
        &self,
        driver: &D,
        way: AccessKind,
        access: &Access,
        origin: &Typed,
    ) -> Result<Option<PendingTransfer>, D::Error> {
        let transfers = self.osc().transfers();
        if transfers.advance() > 0 {
            // Others may wait for what has ended.
            driver.progress();
        }
        if let Some(oldest) = transfers.oldest_of_too_many() {
            // How it ended is for others to learn.
            let _ = driver.until(true, nobody, |_| oldest.test())?;
            transfers.sweep();
        }
        // SAFETY: the caller's promise.
        let begun = unsafe { self.start_transfer(way, access, origin) }?;
        let Some((target, work)) = begun else { return Ok(None) };
        let transfer = PendingTransfer(Arc::new(Transfer {
            window: self.handle.id(),
            rank: access.rank,
            work: Mutex::new(Some(work)),
            ended: OnceLock::new(),
            told: AtomicBool::new(false),
            seen: AtomicBool::new(false),
            target,
            notice: access.notice,
        }));
        // Nothing after the start may fail: whoever asked is to know of it.
        transfers.add(transfer.clone());
        Ok(Some(transfer))
    }

    /// Waits until no device of this process works on a target's memory for this window: others are about to take
    /// theirs back.
    pub fn drop_transfers(&self) {
        self.osc().transfers().give_up(self.handle.id());
    }

    /// Waits until all transfers of a target have ended. Their devices are done with the memory, also if this fails.
    ///
    /// # Errors
    /// The first failure that nobody was told of.
    pub(crate) fn end_transfers<D: Driver>(&self, driver: &D, rank: u32) -> Result<(), D::Error> {
        let transfers = self.osc().transfers();
        let of_rank = transfers.of(self.handle.id(), Some(rank));
        let mut result = Ok(());
        for one in &of_rank {
            if let Err(error) = driver.until(true, nobody, |_| one.test()) {
                one.drain();
                result = result.and(Err(error));
            } else if one.is_owed()
                && let Some(Err(error)) = one.take()
            {
                result = result.and(Err(error.into()));
            }
        }
        if !of_rank.is_empty() {
            transfers.sweep();
        }
        result
    }
}
