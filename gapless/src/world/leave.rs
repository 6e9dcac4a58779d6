//! Leaving a job: in good order, or with an error once a peer is known to have died.

use super::{Connection, World};
use crate::error::Error;
use crate::shared::State;
use crate::wireup::{Wireup, WireupError};
use gapless_bml::{PeerState, Rank};
use gapless_pml::PmlError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a fence may still take once a peer is gone. Who leaves in good order passed the last
/// fence, and the launcher is about to tell us so; who died never comes. Launchers that end the job
/// for that do so sooner.
const AFTER_LOSS: Duration = Duration::from_secs(5);

impl World {
    /// Leaves the job in good order (`MPI_Finalize`, MPI 4.1 §11.2.2): waits until every process of
    /// the job is here, ends what is still under way, and tells the launcher.
    ///
    /// Every operation under way ends: whatever matches is received and sent in full; receives that no
    /// message matches are cancelled ([`PmlError::Cancelled`]), sends that no receive matches end
    /// with [`PmlError::Unreceived`], those excepted that ended before. Communicators and requests that
    /// outlive this call get [`Error::Finalized`] for anything new.
    ///
    /// # Errors
    /// Another process died, which ends the wait for it within seconds under every launcher, or the
    /// launcher is gone.
    pub fn finalize(mut self) -> Result<(), Error> {
        self.leave()
    }

    pub(super) fn leave(&mut self) -> Result<(), Error> {
        let Some(Connection(wireup)) = self.wireup.take() else { return Ok(()) };
        let mut wireup = wireup.into_inner().map_err(|_| Error::Poisoned)?;
        self.shared.lock()?.close();
        // Nobody starts anything after the first fence, and everybody has told everybody what the last
        // message was: so it is known when all has come, and what matches has matched. Nobody leaves
        // before the second fence, by which all requests have ended everywhere. What was started here
        // and still waits for room goes on its way before that.
        let mut died = None;
        let left = self
            .shared
            .wait_until(|state| (!state.pml.is_busy()).then_some(()))
            .and_then(|()| {
                self.shared.lock()?.pml.say_farewell();
                self.fence(&mut *wireup)
            })
            .and_then(|()| {
                // Some launchers do not count the dead.
                died = first_loss(&mut *self.shared.lock()?, wireup.size());
                self.end_requests()
            })
            .and_then(|()| self.fence(&mut *wireup));
        self.shared.abandon();
        self.end_thread();
        left?;
        wireup.finalize()?;
        died.map_or(Ok(()), |died| Err(died.into()))
    }

    /// Waits for all processes, and serves their requests meanwhile.
    fn fence(&self, wireup: &mut dyn Wireup) -> Result<(), Error> {
        let size = wireup.size();
        if size == 1 {
            return Ok(wireup.fence()?);
        }
        let shared = &self.shared;
        let (passed, hopeless) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut loss = None;
        std::thread::scope(|threads| {
            let fence = threads.spawn(|| {
                let since = std::cell::Cell::new(None::<Instant>);
                let result = wireup.fence_while(&|| {
                    if since.get().is_none() && hopeless.load(Ordering::Acquire) {
                        since.set(Some(Instant::now()));
                    }
                    since.get().is_none_or(|since| since.elapsed() < AFTER_LOSS)
                });
                passed.store(true, Ordering::Release);
                shared.ring();
                result
            });
            let waited = shared.wait_until(|state| {
                if loss.is_none() {
                    loss = first_loss(state, size);
                    hopeless.store(loss.is_some(), Ordering::Release);
                }
                passed.load(Ordering::Acquire).then_some(())
            });
            // Whoever cannot serve messages any more does not wait for others for ever.
            hopeless.fetch_or(waited.is_err(), Ordering::AcqRel);
            let fenced = fence.join().unwrap_or_else(|_| {
                let reason = "its thread panicked".to_owned();
                Err(WireupError::LauncherGone { doing: "fence", reason })
            });
            waited?;
            match (fenced, loss) {
                (Err(WireupError::GivenUp), Some(loss)) => Err(loss.into()),
                (fenced, _) => fenced.map_err(Error::from),
            }
        })
    }

    /// Ends all requests: those that match by going on, the others by calling them off.
    fn end_requests(&self) -> Result<(), Error> {
        self.shared.wait_until(|state| state.pml.all_farewells().then_some(()))?;
        {
            let mut state = self.shared.lock()?;
            state.pml.cancel_unmatched();
            state.pml.refuse_unreceived();
        }
        self.shared.ring();
        self.shared
            .wait_until(|state| (!state.pml.is_busy() && !state.pml.has_requests()).then_some(()))
    }

    /// Ends the progress thread, if there is one.
    pub(super) fn end_thread(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.end(&self.shared);
        }
    }
}

/// The lowest peer that is known to be gone. Before the last fence that means that it died.
fn first_loss(state: &mut State, size: u32) -> Option<PmlError> {
    let bml = state.pml.bml_mut();
    (0..size).find_map(|rank| match bml.state(Rank(rank)) {
        PeerState::Lost(error) => Some(PmlError::PeerLost { rank, error: error.clone() }),
        _ => None,
    })
}
