//! Puts and gets that a device of this process does while the caller goes on: between its memory and a target's that it
//! maps. Each ends by itself, in any order; a flush of the target ends all of them, and so does the end of the epoch.

use crate::device::DeviceExposure;
use crate::error::WindowError;
use crate::notices::raise;
use crate::place::{Access, AccessKind};
use crate::window::{Driver, Window, nobody};
use gapless_engine::{EngineError, Typed};
use gapless_mem::Outstanding;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Operations of a window that are under way at most. With so many, a call waits for the oldest first.
const MOST: usize = 1 << 14;

/// A put or get that a device does. Whoever drops it does not learn how it ends.
#[derive(Clone)]
pub struct PendingMove(Arc<Moving>);

/// The operation.
struct Moving {
    rank: u32,
    /// Until it is known to be over. Dropping it waits for it.
    work: Mutex<Option<Outstanding>>,
    ended: OnceLock<Result<(), EngineError>>,
    /// Keeps the target's memory mapped.
    target: DeviceExposure,
    notice: Option<u32>,
}

/// Those of a window.
#[derive(Default)]
pub(crate) struct Moves(Mutex<VecDeque<PendingMove>>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PendingMove {
    /// How it ended, if it has: with a notice at the target, if it has one and all went well.
    ///
    /// # Errors
    /// The device's, or what it found wrong with an index.
    #[must_use]
    pub fn test(&self) -> Option<Result<(), WindowError>> {
        if self.0.ended.get().is_none() {
            let mut work = locked(&self.0.work);
            let ended = match work.as_ref().map(|work| work.work().poll()) {
                Some(Ok(false)) => return None,
                Some(Err(error)) => Err(error.into()),
                Some(Ok(true)) | None => Ok(()),
            };
            *work = None;
            if self.0.ended.set(ended).is_ok()
                && let (Some(counter), Some(Ok(()))) = (self.0.notice, self.0.ended.get())
            {
                raise(self.0.target.header.notice(counter));
            }
        }
        Some(self.0.ended.get()?.clone().map_err(WindowError::from))
    }

    /// Waits until it has ended, as [`test`](PendingMove::test), and makes progress.
    ///
    /// # Errors
    /// As there; no progress is possible any more.
    pub fn wait<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        let ended = driver.until(true, nobody, |_| self.test())?;
        Ok(ended?)
    }

    /// Waits for the device, if nobody makes progress any more: nothing touches the memory then.
    pub fn drain(&self) {
        if let Some(work) = locked(&self.0.work).as_ref() {
            work.work().drain();
        }
        let _ = self.test();
    }
}

impl fmt::Debug for PendingMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingMove(rank {}, ended {})", self.0.rank, self.0.ended.get().is_some())
    }
}

impl fmt::Debug for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} moves", locked(&self.0).len())
    }
}

impl Window {
    /// Begins to move all that `origin` describes to or from a target's memory of a device that this process maps.
    /// `None`: it takes another way, and nothing was done.
    ///
    /// # Safety
    /// Until the operation has ended, `origin` describes memory that is valid for reads, and that nobody writes; of a get,
    /// valid for writes, without a byte twice, and nobody else's.
    ///
    /// # Errors
    /// The target is lost; the device's.
    pub unsafe fn begin_move<D: Driver>(
        &self,
        driver: &D,
        way: AccessKind,
        access: &Access,
        origin: &Typed,
    ) -> Result<Option<PendingMove>, D::Error> {
        let Some(near) = self.typed_device(access).filter(|_| access.packed_bytes() > 0) else {
            return Ok(None);
        };
        self.check_alive(access.rank)?;
        let oldest = {
            let mut moves = locked(&self.moves.0);
            // What went wrong is told by a flush.
            while moves.front().is_some_and(|one| matches!(one.test(), Some(Ok(())))) {
                moves.pop_front();
            }
            if moves.len() >= MOST { moves.pop_front() } else { None }
        };
        if let Some(oldest) = oldest {
            oldest.wait(driver)?;
        }
        let begun = match way {
            // SAFETY: the caller's promise.
            AccessKind::Write => unsafe { near.memory.begin_store_from(&access.target, origin) },
            // SAFETY: the caller's promise.
            AccessKind::Read => unsafe { near.memory.begin_load_into(&access.target, origin) },
            AccessKind::Change => return Ok(None),
        };
        let Some(work) = begun.map_err(WindowError::from)? else { return Ok(None) };
        let moving = PendingMove(Arc::new(Moving {
            rank: access.rank,
            work: Mutex::new(Some(work)),
            ended: OnceLock::new(),
            target: near.clone(),
            notice: access.notice,
        }));
        // Nothing after the start may fail: whoever asked is to know of it.
        locked(&self.moves.0).push_back(moving.clone());
        Ok(Some(moving))
    }

    /// Waits until all moves of a target have ended.
    ///
    /// # Errors
    /// The first failure of several.
    pub(crate) fn end_moves<D: Driver>(&self, driver: &D, rank: u32) -> Result<(), D::Error> {
        let of_rank: VecDeque<PendingMove> = {
            let mut moves = locked(&self.moves.0);
            if moves.is_empty() {
                return Ok(());
            }
            let (of_rank, others) = moves.drain(..).partition(|one| one.0.rank == rank);
            *moves = others;
            of_rank
        };
        of_rank.iter().map(|one| one.wait(driver)).fold(Ok(()), Result::and)
    }
}
