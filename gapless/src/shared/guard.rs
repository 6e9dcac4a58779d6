//! Panics that are not ours: of what users have given us to call or to drop, and of engines, devices and transports.
//!
//! While a call of ours has granted memory, no panic leaves it: what a user gave us is [contained](contain), and
//! whatever unwinds with the lock held [gives the world up](give_up) first.

use super::{WorldStage, WorldState};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::thread::Result as Ended;

/// What somebody panicked with, or what came of it. The payload is forgotten: dropping it may panic as well.
pub(crate) fn caught<T>(ended: Ended<T>) -> Option<T> {
    ended.map_err(std::mem::forget).ok()
}

/// Calls what a user gave us. A panic goes no further than to the log, as `said`.
pub(crate) fn contain(said: &str, act: impl FnOnce()) {
    if caught(catch_unwind(AssertUnwindSafe(act))).is_none() {
        // Whoever listens to the log is a user, too.
        let _ = caught(catch_unwind(|| tracing::error!("{said}")));
    }
}

/// Calls the wakers; a panic goes to the log.
pub(super) fn wake(woken: Vec<Waker>) {
    for waker in woken {
        contain("somebody who was told of a request's end panicked", || waker.wake());
    }
}

/// Drops what was given up under the lock; what its owners do then is their own affair.
pub(super) fn lay_down(spent: Vec<Box<dyn Any + Send>>) {
    for one in spent {
        contain("a buffer panicked when it was dropped", || drop(one));
    }
}

/// Ends all use of memory by messages, so that it may go back to its owners; nothing moves any more. Gives whoever
/// waits to be told. Never unwinds: where memory cannot be taken back, the process aborts with one line.
pub(super) fn give_up(state: &mut WorldState) -> Vec<Waker> {
    if state.stage != WorldStage::Left {
        state.stage = WorldStage::Left;
        state.pml.take_back();
        state.windows.drain_transfers();
        state.collectives.give_up(&mut state.spent);
        for tasks in [&state.xtq, &state.carried, &state.window_tasks] {
            tasks.end_reach(state.pml.bml_mut());
        }
        state.spent.push(state.xtq.abandon());
        state.spent.push(state.carried.abandon());
        state.spent.push(state.window_tasks.abandon());
        state.spent.push(state.calls.abandon());
        state.spent.push(Box::new(std::mem::take(&mut state.works)));
    }
    state.pml.take_all_wakers()
}
