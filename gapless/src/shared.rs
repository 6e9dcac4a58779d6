//! What all handles of a world share: the message layer behind a lock, and how threads wait.
//!
//! The lock is held while messages are handled, never while a thread yields or sleeps. A thread
//! that handled events wakes those that sleep (through an event descriptor beside the transports'
//! own), because their requests may be among what ended.

use crate::error::Error;
use crate::owned::Parked;
use gapless_bml::{Step, Waiter};
use gapless_pml::{Pml, PmlError, RequestId, Status};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Polls in a row that one thread makes without letting go of the lock, unless others want it.
const POLLS_PER_TURN: u32 = 32;

/// What the lock protects.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) pml: Pml,
    pub(crate) parked: Parked,
    /// The world was finalized: nothing new starts.
    pub(crate) closed: bool,
    /// Threads that are asleep, or about to be.
    sleepers: u32,
}

/// The part of a world that communicators, scopes and requests hold.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Threads that want the lock.
    wanting: AtomicU32,
    /// Readable while sleepers should look again.
    alarm: OwnedFd,
    /// Processes of the job on this host, for deciding how to wait.
    local_ranks: usize,
}

impl State {
    /// Starts something new, unless the world was finalized.
    pub(crate) fn open(&mut self) -> Result<&mut Pml, Error> {
        if self.closed { Err(Error::Finalized) } else { Ok(&mut self.pml) }
    }

    /// Cancels a receive that has no message yet; whether it was cancelled.
    pub(crate) fn cancel(&mut self, id: RequestId) -> Result<bool, Error> {
        Ok(self.pml.cancel_recv(id)?)
    }

    /// Handles what has come.
    fn progress(&mut self) -> usize {
        let handled = self.pml.progress();
        if self.parked.has_abandoned() {
            self.parked.reap(&mut self.pml);
        }
        handled
    }
}

impl Shared {
    pub(crate) fn new(pml: Pml, local_ranks: usize) -> Result<Shared, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let alarm = eventfd(0, flags)
            .map_err(|e| Error::System { operation: "eventfd", reason: e.to_string() })?;
        let state = State { pml, parked: Parked::default(), closed: false, sleepers: 0 };
        Ok(Shared { state: Mutex::new(state), wanting: AtomicU32::new(0), alarm, local_ranks })
    }

    /// The state, for whoever is about to use the message layer.
    ///
    /// # Errors
    /// A panic has left it in disorder.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, State>, Error> {
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let guard = self.state.lock();
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        guard.map_err(|_| Error::Poisoned)
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

    fn quiet(&self) {
        let _ = rustix::io::read(&self.alarm, &mut [0u8; 8]);
    }

    /// Makes progress until `ready` gives something.
    ///
    /// # Errors
    /// A panic in another thread.
    pub(crate) fn wait_until<T>(
        &self,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Error> {
        let mut waiter = Waiter::new(self.local_ranks);
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
    /// Does not return before the request has ended, except with [`Error::Poisoned`], after which
    /// nothing touches any buffer any more.
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
        Ok(state.pml.collect(id)?)
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
