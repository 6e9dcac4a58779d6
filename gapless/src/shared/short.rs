//! Short cuts for short messages: the lock is held for the whole operation, and nothing is copied in memory.

use super::{Shared, StateGuard, WorldState};
use crate::error::Error;
use gapless_engine::Typed;
use gapless_pml::{Comm, Next, Source, Status, TagSel};
use std::sync::atomic::Ordering;

/// How often something is looked for with the lock held: an awaited message, before its receive is posted, or what
/// other processes write to shared memory.
pub(super) const LOOKS: u32 = 256;

/// Looks without a pause in between: a reply to our own message comes within fewer.
pub(super) const TIGHT_LOOKS: u32 = 128;

impl Shared {
    /// Does work that neither waits nor ends a request, if the lock is free; `None` if it is not, or if `act` returns
    /// that.
    #[inline(always)] // what holds the lock stays in registers
    pub(crate) fn briefly<T>(&self, act: impl FnOnce(&mut WorldState) -> Option<T>) -> Option<T> {
        let state = self.state.try_enter()?;
        if self.state.is_poisoned() {
            state.done();
            return None;
        }
        let mut state = StateGuard::new(state);
        let done = act(&mut state);
        state.done();
        done
    }

    /// Receives a short message for a caller that has the lock and waits for nothing else, within a few looks.
    /// Looking delays nobody: after a microsecond or two, or as soon as another thread wants the lock, the receive is
    /// posted like any other.
    ///
    /// # Safety
    /// Until this returns, `typed` describes memory that is valid for writes, and nothing else touches it.
    ///
    /// # Errors
    /// The world was finalized.
    #[inline]
    pub(crate) unsafe fn look_for(
        &self,
        state: &mut WorldState,
        comm: &Comm,
        typed: &Typed,
        (source, tag): (Source, TagSel),
    ) -> Result<Option<Status>, Error> {
        self.now_and_then(state);
        let pml = state.open()?;
        let Some(awaited) = pml.awaited(comm, typed, source, tag) else { return Ok(None) };
        let looks = if self.patience.spins() { LOOKS } else { 1 };
        for look in 0..looks {
            // SAFETY: the caller's promise; while the lock is held nobody else does anything with `pml`.
            match unsafe { pml.take_awaited(&awaited) } {
                Next::Taken => return Ok(Some(awaited.status())),
                Next::Kept => break,
                Next::Nothing if self.wanting.load(Ordering::Relaxed) > 0 => break,
                Next::Nothing if look >= TIGHT_LOOKS => std::hint::spin_loop(),
                Next::Nothing => {}
            }
        }
        Ok(None)
    }
}
