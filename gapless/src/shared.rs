//! What all handles of a world share: the message layer behind a lock, and how threads wait.
//!
//! The lock is held while messages are handled, never while a thread yields or sleeps. A thread
//! that handled events wakes those that sleep (through an event descriptor beside the transports'
//! own), because their requests may be among what ended.

use crate::accelerators::Accelerators;
use crate::error::Error;
use crate::owned::Parked;
use crate::world::attach;
use gapless_bml::{Patience, Step, Waiter};
use gapless_pml::{Pml, PmlError, RequestId, Status};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Polls in a row that one thread makes without letting go of the lock, unless others want it.
const POLLS_PER_TURN: u32 = 32;

/// How far the world has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Messages are exchanged.
    Open,
    /// It is being left: nothing new starts, what is under way goes on.
    Closed,
    /// It has been left: no byte moves any more.
    Left,
}

/// What the lock protects.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) pml: Pml,
    pub(crate) parked: Parked,
    stage: Stage,
    /// Threads that are asleep, or about to be.
    sleepers: u32,
    /// Devices that are opened on demand.
    accelerators: Arc<Accelerators>,
}

/// The part of a world that communicators, scopes and requests hold.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Threads that want the lock.
    wanting: AtomicU32,
    /// Readable while sleepers should look again.
    alarm: OwnedFd,
    /// How to wait; asked for once, because counting processors takes system calls.
    patience: Patience,
}

impl State {
    /// Starts something new, unless the world was finalized.
    pub(crate) fn open(&mut self) -> Result<&mut Pml, Error> {
        if self.stage != Stage::Open {
            return Err(Error::Finalized);
        }
        if self.accelerators.has_fresh() {
            for device in self.accelerators.take_fresh() {
                attach(self.pml.bml_mut(), &device);
            }
        }
        Ok(&mut self.pml)
    }

    /// From now on nothing new starts.
    pub(crate) fn close(&mut self) {
        if self.stage == Stage::Open {
            self.stage = Stage::Closed;
        }
    }

    /// Cancels a receive that has no message yet; whether it was cancelled.
    pub(crate) fn cancel(&mut self, id: RequestId) -> Result<bool, Error> {
        Ok(self.pml.cancel_recv(id)?)
    }

    /// Handles what has come; nothing once the world has been left.
    pub(crate) fn progress(&mut self) -> usize {
        if self.stage == Stage::Left {
            return 0;
        }
        let handled = self.pml.progress();
        if self.parked.has_abandoned() {
            self.parked.reap(&mut self.pml);
        }
        handled
    }
}

/// Waits until no engine works on any buffer. If that cannot even be found out, memory would be
/// handed back that a device still writes to: then the process ends.
fn end_engine_work(state: &mut State) {
    let drained = catch_unwind(AssertUnwindSafe(|| state.pml.drain_engines()));
    if drained.is_err() {
        std::process::abort();
    }
}

impl Shared {
    pub(crate) fn new(
        pml: Pml,
        local_ranks: usize,
        accelerators: Arc<Accelerators>,
    ) -> Result<Shared, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let alarm = eventfd(0, flags)
            .map_err(|e| Error::System { operation: "eventfd", reason: e.to_string() })?;
        let parked = Parked::default();
        let state = State { pml, parked, stage: Stage::Open, sleepers: 0, accelerators };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let patience = Patience::new(local_ranks, cores);
        Ok(Shared { state: Mutex::new(state), wanting: AtomicU32::new(0), alarm, patience })
    }

    /// The state, for whoever is about to use the message layer.
    ///
    /// # Errors
    /// A panic has left it in disorder.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, State>, Error> {
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let guard = self.state.lock();
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        guard.map_err(|poisoned| {
            // Whoever is told so takes its memory back: engines must have let go of it.
            end_engine_work(&mut poisoned.into_inner());
            Error::Poisoned
        })
    }

    /// The state, even after a panic: for buffers, whose table is always in order. After a panic
    /// the message layer moves no more bytes.
    pub(crate) fn lock_anyway(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sleeping threads look again.
    pub(crate) fn ring(&self) {
        // Full means that it rings already.
        let _ = rustix::io::write(&self.alarm, &1u64.to_ne_bytes());
    }

    /// Something was started: it may have ended what sleeping threads wait for (a message to this
    /// process itself).
    pub(crate) fn rouse(&self, state: &State) {
        if state.sleepers > 0 {
            self.ring();
        }
    }

    fn quiet(&self) {
        let _ = rustix::io::read(&self.alarm, &mut [0u8; 8]);
    }

    /// The world has been left: whoever still waits is told so.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock_anyway();
        state.stage = Stage::Left;
        // Whoever waits is about to take its memory back.
        end_engine_work(&mut state);
        drop(state);
        self.ring();
    }

    /// Makes progress until `ready` gives something.
    ///
    /// # Errors
    /// A panic in another thread; the world has been left before.
    pub(crate) fn wait_until<T>(
        &self,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Error> {
        let mut waiter = Waiter::with(self.patience);
        loop {
            let mut state = self.lock()?;
            let mut step = Step::Spin;
            for _ in 0..POLLS_PER_TURN {
                let handled = state.progress();
                if handled > 0 {
                    waiter.stir();
                    if state.sleepers > 0 {
                        self.ring();
                    }
                }
                if let Some(value) = ready(&mut state) {
                    return Ok(value);
                }
                if state.stage == Stage::Left {
                    return Err(Error::Finalized);
                }
                if handled == 0 {
                    step = match waiter.step() {
                        // Work of our own waits for room at a peer: polling is what moves it.
                        Step::Block if state.pml.is_busy() => Step::Yield,
                        step => step,
                    };
                }
                if step != Step::Spin || self.wanting.load(Ordering::Relaxed) > 0 {
                    break;
                }
                std::hint::spin_loop();
            }
            match step {
                Step::Spin => drop(state),
                Step::Yield => {
                    drop(state);
                    std::thread::yield_now();
                }
                Step::Block => self.sleep(state, &mut waiter)?,
            }
        }
    }

    /// Sleeps until a transport has something, another thread rings, or patience ends.
    fn sleep(&self, mut state: MutexGuard<'_, State>, waiter: &mut Waiter) -> Result<(), Error> {
        if state.pml.arm(waiter) > 0 || state.pml.is_busy() {
            waiter.stir();
            if state.sleepers > 0 {
                self.ring();
            }
            return Ok(());
        }
        waiter.watch(self.alarm.as_raw_fd());
        state.sleepers += 1;
        drop(state);
        waiter.block();
        let mut state = self.lock()?;
        state.sleepers -= 1;
        if state.sleepers == 0 {
            self.quiet();
        }
        Ok(())
    }

    /// Waits for one request and collects its result.
    ///
    /// Does not return before the request has ended, except with [`Error::Poisoned`] or
    /// [`Error::Finalized`], after which nothing touches any buffer any more.
    pub(crate) fn wait(&self, id: RequestId) -> Result<Status, Error> {
        self.wait_until(|state| match state.pml.collect(id) {
            Ok(None) => None,
            Ok(Some(status)) => Some(Ok(status)),
            Err(error) => Some(Err(Error::from(error))),
        })?
    }

    /// Makes progress once, and collects a request's result if it has ended.
    pub(crate) fn test(&self, id: RequestId) -> Result<Option<Status>, Error> {
        let mut state = self.lock()?;
        if state.progress() > 0 && state.sleepers > 0 {
            self.ring();
        }
        match state.pml.collect(id)? {
            None if state.stage == Stage::Left => Err(Error::Finalized),
            result => Ok(result),
        }
    }

    /// Makes progress once, and then looks at the message layer.
    ///
    /// # Errors
    /// A panic in another thread; the world has been left before.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Pml) -> T) -> Result<T, Error> {
        let mut state = self.lock()?;
        if state.progress() > 0 && state.sleepers > 0 {
            self.ring();
        }
        if state.stage == Stage::Left {
            return Err(Error::Finalized);
        }
        Ok(look(&state.pml))
    }

    /// Waits until a request has ended, without collecting its result.
    pub(crate) fn wait_ended(&self, id: RequestId) -> Result<(), Error> {
        self.wait_until(|state| match state.pml.is_done(id) {
            Ok(false) => None,
            Ok(true) | Err(PmlError::NoSuchRequest) => Some(Ok(())),
            Err(error) => Some(Err(error.into())),
        })?
    }
}
