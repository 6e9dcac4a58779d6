//! Blocking collectives through memory that processes share: a caller looks for what other processes write there, at
//! first without the world's lock.

use super::short::{LOOKS, TIGHT_LOOKS};
use super::{Look, Shared, WorldStage, WorldState};
use crate::error::Error;
use gapless_pml::Doing;
use std::sync::atomic::Ordering;

/// How often a waiting caller looks without the lock between two times that it makes progress; how often it makes
/// progress before it waits like any other.
const FREE_LOOKS: (u32, u32) = (64, 64);

/// How often in a row a waiting caller finds something before it makes progress all the same.
const FINDS: u32 = 32;

/// Whether a caller that looks makes progress now: if it has found nothing, and also if it seems to get on for ever.
/// That a peer is lost shows only by progress. `finds`: in a row.
fn drives(found: bool, finds: &mut u32) -> bool {
    *finds = if found { *finds + 1 } else { 0 };
    let many = *finds >= FINDS;
    if many {
        *finds = 0;
    }
    many || !found
}

/// A blocking collective that is not in [`WorldState::collectives`], counted in `WorldState::blocking`: whoever leaves
/// the world in good order waits for it. However the call ends, the collective is counted off. This value is made
/// before the lock is taken, so that it outlives the lock if the call unwinds.
#[derive(Debug)]
pub(crate) struct BlockingCollective<'s> {
    shared: &'s Shared,
    counted: bool,
}

impl<'s> BlockingCollective<'s> {
    /// Nothing so far.
    pub(crate) fn new(shared: &'s Shared) -> BlockingCollective<'s> {
        BlockingCollective { shared, counted: false }
    }

    /// It begins.
    ///
    /// # Errors
    /// The world was finalized.
    pub(crate) fn begin(&mut self, state: &mut WorldState) -> Result<(), Error> {
        state.open()?;
        if !self.counted {
            state.blocking += 1;
            self.counted = true;
        }
        Ok(())
    }

    /// It has ended.
    pub(crate) fn end(&mut self, state: &mut WorldState) {
        if self.counted {
            state.blocking -= 1;
            self.counted = false;
            if state.stage == WorldStage::Closed {
                // Whoever leaves may sleep until then.
                self.shared.signal();
            }
        }
    }
}

impl Drop for BlockingCollective<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.shared.with_anyway(|state| self.end(state));
        }
    }
}

impl Shared {
    /// Waits for something that a few loads, without the lock, can find: `look` says whether `ready` would get on. The
    /// last argument of `ready` says whether the caller waits like any other from now on, and so perhaps sleeps.
    /// `ready` is not asked once the world has been left. Until this returns, nobody leaves the world in good order.
    /// `call`: which call waits.
    ///
    /// # Errors
    /// The world was finalized, or a panic in another thread has given it up.
    pub(crate) fn wait_looking<W, T>(
        &self,
        (call, what): (&dyn Fn() -> Doing, &mut W),
        look: impl Fn(&mut W) -> bool,
        mut ready: impl FnMut(&mut W, &mut WorldState, bool) -> Look<T>,
    ) -> Result<T, Error> {
        let mut blocking = BlockingCollective::new(self);
        let mut state = self.lock()?;
        self.now_and_then(&mut state);
        if let Err(error) = blocking.begin(&mut state) {
            state.done();
            return Err(error);
        }
        let mut find = |what: &mut W, state: &mut WorldState, may_sleep: bool| {
            if state.has_left() {
                return Look::NotYet;
            }
            let look = ready(what, state, may_sleep);
            if matches!(look, Look::Found(_)) {
                blocking.end(state);
            }
            look
        };
        let (looks, turns) = FREE_LOOKS;
        let turns = if self.patience.spins() { turns } else { 0 };
        let (mut turn, mut finds) = (0, 0);
        while turn < turns {
            if state.has_left() {
                break;
            }
            if let Look::Found(found) = find(what, &mut state, false) {
                state.done();
                return Ok(found);
            }
            state.done();
            let found = (0..looks).any(|_| {
                if turn > 0 {
                    std::hint::spin_loop();
                }
                look(what)
            });
            state = self.lock()?;
            // If it gets on, what comes next is waited for from the start.
            turn = if found { 0 } else { turn + 1 };
            if drives(found, &mut finds) {
                self.drive(&mut state);
            }
            if state.want_processor(self.cores) {
                break;
            }
        }
        self.wait_held_in(state, call, |state| find(what, state, true))
    }

    /// Does something that looks for what other processes write, with the lock held: as long as the second argument of
    /// `act` says that it may look once more, which it does not if another thread wants the lock.
    ///
    /// # Errors
    /// The world was finalized.
    #[inline]
    pub(crate) fn look_often<T>(
        &self,
        act: impl FnOnce(&mut WorldState, &mut dyn FnMut() -> bool) -> T,
    ) -> Result<T, Error> {
        let mut state = self.lock()?;
        if let Err(error) = state.open() {
            state.done();
            return Err(error);
        }
        let done = self.look_held(&mut state, act);
        // Not before: what ends may have functions called, which find that this has begun.
        self.now_and_then(&mut state);
        state.done();
        Ok(done)
    }

    /// As [`look_often`](Shared::look_often), with the lock held already, whatever has become of the world.
    #[inline]
    pub(crate) fn look_held<T>(
        &self,
        state: &mut WorldState,
        act: impl FnOnce(&mut WorldState, &mut dyn FnMut() -> bool) -> T,
    ) -> T {
        let (mut looks, looks_max) = (0, if self.patience.spins() { LOOKS } else { 1 });
        act(state, &mut || {
            looks += 1;
            if looks >= TIGHT_LOOKS {
                std::hint::spin_loop();
            }
            looks < looks_max && self.wanting.load(Ordering::Relaxed) == 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{FINDS, drives};

    #[test]
    fn who_finds_something_for_ever_makes_progress_too() {
        let mut finds = 0;
        let driven = |found: &[bool], finds: &mut u32| {
            found.iter().filter(|found| drives(**found, finds)).count()
        };
        assert_eq!(driven(&[false; 10], &mut finds), 10);
        let most = FINDS as usize;
        assert_eq!(driven(&vec![true; most - 1], &mut finds), 0);
        assert_eq!(driven(&vec![true; 3 * most + 1], &mut finds), 4);
    }
}
