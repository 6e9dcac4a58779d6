//! The thread that makes progress, if there is one.

use super::{Shared, WorldStage, WorldState};
use crate::error::Error;
use gapless_bml::{Patience, Waiter};
use gapless_sync::Sleeper;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the progress thread pauses while other threads wait, and so poll.
const OTHERS_POLL: Duration = Duration::from_millis(1);
/// How long the progress thread sleeps while work of this process waits for a peer or an engine.
const BUSY_NAP: Duration = Duration::from_micros(50);

/// What the progress thread has found.
enum Attended<'s> {
    /// There is more to do, perhaps.
    Something,
    /// A peer has to make room, or an engine to end: nobody will signal.
    Busy,
    /// Nothing: the thread is to sleep.
    Nothing(Sleeper<'s>),
}

impl Shared {
    /// From now on there is a progress thread.
    pub(crate) fn expect_thread(&self) {
        self.has_thread.store(true, Ordering::Relaxed);
    }

    /// Makes the progress thread check again.
    pub(crate) fn nudge(&self) {
        self.wakeups.nudge.signal();
    }

    /// What the progress thread does until `stop`: handles arrivals while no other thread does. The transports wake
    /// it; a sleep lasts 50 ms at most.
    pub(crate) fn attend(&self, stop: &AtomicBool) {
        let patience = Patience { spin: Duration::ZERO, yields: 0, ..self.patience };
        let mut waiter = Waiter::with(patience);
        while !stop.load(Ordering::Acquire) {
            if self.waiting.load(Ordering::Relaxed) > 0 {
                std::thread::sleep(OTHERS_POLL);
                continue;
            }
            match self.with(|state| self.attend_once(state, &mut waiter)) {
                Ok(Attended::Something) => {}
                Ok(Attended::Busy) => std::thread::sleep(BUSY_NAP),
                Ok(Attended::Nothing(asleep)) => {
                    waiter.block();
                    drop(asleep);
                    let awake = self.with(|state| {
                        state.progress_thread_sleeps = false;
                        self.wakeups.nudge.clear();
                        Ok(())
                    });
                    if awake.is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    fn attend_once(
        &self,
        state: &mut WorldState,
        waiter: &mut Waiter,
    ) -> Result<Attended<'_>, Error> {
        if state.stage == WorldStage::Left {
            return Err(Error::Finalized);
        }
        if self.drive(state) > 0 {
            return Ok(Attended::Something);
        }
        if state.is_busy() {
            return Ok(Attended::Busy);
        }
        if !state.arm_collectives() {
            self.rouse(state);
            return Ok(Attended::Busy);
        }
        let handled = state.pml.arm(waiter);
        if handled > 0 {
            self.rouse(state);
        }
        if handled > 0 {
            return Ok(Attended::Something);
        }
        let Some(asleep) = self.fall_asleep_if_idle(state) else {
            return Ok(Attended::Something);
        };
        waiter.watch(self.wakeups.nudge.as_raw_fd());
        state.progress_thread_sleeps = true;
        Ok(Attended::Nothing(asleep))
    }
}
