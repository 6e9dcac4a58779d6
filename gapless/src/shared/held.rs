//! The lock, held, and how to let go of it.

use super::guard::{give_up, lay_down, wake};
use super::prefetch::Prefetch;
use super::{Shared, WorldState};
use crate::error::Error;
use gapless_pml::{RequestId, Status};
use gapless_sync::Pass;
use std::ops::{Deref, DerefMut};

/// An operation that was started.
pub(crate) enum Started {
    /// It has ended already.
    Over(Status),
    InFlight(RequestId),
}

/// The lock, held. Letting go of it ([`done`](StateGuard::done)) tells whoever is to be told of requests that have
/// ended. Dropping it without that is what a panic does: then the world is given up, and the lock poisoned.
#[derive(Debug)]
pub(crate) struct StateGuard<'s> {
    /// `None` only while it is let go of.
    guard: Option<Pass<'s, WorldState>>,
}

impl Deref for StateGuard<'_> {
    type Target = WorldState;

    #[inline]
    fn deref(&self) -> &WorldState {
        self.guard.as_ref().expect("it is held until it is let go of")
    }
}

impl DerefMut for StateGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut WorldState {
        self.guard.as_mut().expect("it is held until it is let go of")
    }
}

impl<'s> StateGuard<'s> {
    #[inline]
    pub(super) fn new(pass: Pass<'s, WorldState>) -> StateGuard<'s> {
        StateGuard { guard: Some(pass) }
    }

    /// Lets go of the lock.
    #[inline]
    pub(crate) fn done(mut self) {
        if let Some(pass) = self.guard.take() {
            if pass.owes() {
                settle(pass);
            } else {
                pass.done();
            }
        }
    }
}

/// Lets go of the lock, and does what is left to do then.
#[cold]
fn settle(mut pass: Pass<'_, WorldState>) {
    let (woken, spent) = (pass.pml.take_woken(), std::mem::take(&mut pass.spent));
    pass.done();
    wake(woken);
    lay_down(spent);
}

impl Drop for StateGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(pass) = self.guard.take() {
            break_off(pass);
        }
    }
}

/// A panic leaves the state in disorder: whoever has granted it memory gets that back, and an error, from now on.
#[cold]
fn break_off(mut pass: Pass<'_, WorldState>) {
    debug_assert!(std::thread::panicking(), "a lock that was not let go of");
    pass.torn = true;
    let woken = give_up(&mut pass);
    drop(pass);
    wake(woken);
}

impl Shared {
    /// Does something with the lock held.
    ///
    /// # Errors
    /// A panic has left the state in disorder; what `act` gives.
    #[inline(always)] // what it does stays where it is
    pub(crate) fn with<T>(
        &self,
        act: impl FnOnce(&mut WorldState) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut state = self.lock()?;
        let result = act(&mut state);
        state.done();
        result
    }

    /// Handles arrivals while this thread waits for something else. Does nothing in a function that the library calls; of
    /// a panic whoever next calls is told.
    #[cfg(feature = "cuda")]
    pub(crate) fn progress_beside(&self) {
        if !self.state.is_mine() {
            let _ = self.with(|state| Ok(state.progress()));
        }
    }

    /// Begins an operation with the lock held, and waits for it: the caller's memory is granted until this returns.
    /// While it waits, it prefetches `prefetch`.
    ///
    /// # Errors
    /// As [`with`](Shared::with); the operation's failure.
    #[inline(always)] // as above
    pub(crate) fn finish(
        &self,
        prefetch: impl FnOnce() -> Prefetch,
        begin: impl FnOnce(&mut WorldState) -> Result<Started, Error>,
    ) -> Result<Status, Error> {
        let mut state = self.lock()?;
        match begin(&mut state) {
            Ok(Started::InFlight(id)) => self.wait_for(state, id, prefetch()),
            Ok(Started::Over(status)) => {
                state.done();
                Ok(status)
            }
            Err(error) => {
                state.done();
                Err(error)
            }
        }
    }

    /// As [`with`](Shared::with), also after a panic. Only for the table of buffers, which a panic cannot damage: the
    /// message layer moves no more bytes, and is not to be asked for anything.
    pub(crate) fn with_anyway<T>(&self, act: impl FnOnce(&mut WorldState) -> T) -> T {
        let mut state = StateGuard::new(self.state.enter());
        let value = act(&mut state);
        state.done();
        value
    }
}
