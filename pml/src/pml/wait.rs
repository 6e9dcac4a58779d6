//! Calls that wait, and calls on several requests (MPI 4.1 §3.7.3, §3.7.5).
//!
//! A wait ends when its request ends, at the latest when the peer is lost. While this process has work of its own to
//! finish it polls; otherwise it waits as the [`Waiter`](gapless_bml::Waiter) says: spin or yield, then block.

use crate::comm::Comm;
use crate::error::PmlError;
use crate::matching::{MessageId, Source, TagSel};
use crate::pml::Pml;
use crate::requests::RequestOutcome;
use crate::status::{RequestId, Status};

/// Polls in a row without effect before the processor is yielded, while own work waits for a peer
/// to make room or for an engine.
const BUSY_SPINS: u32 = 64;

impl Pml {
    /// Drives until `done` gives something.
    pub(crate) fn wait_for<T, E>(
        &mut self,
        mut done: impl FnMut(&mut Pml) -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        self.waiter.restart();
        let mut idle = 0u32;
        loop {
            if let Some(value) = done(self)? {
                return Ok(value);
            }
            if self.core.is_busy() {
                if self.progress() > 0 {
                    idle = 0;
                } else {
                    idle += 1;
                    if idle > BUSY_SPINS {
                        std::thread::yield_now();
                    }
                }
            } else {
                let events = self.bml.wait(&mut self.waiter, &mut self.core);
                self.pump(events);
            }
        }
    }

    /// Waits until a request has ended, and gives its result.
    ///
    /// # Errors
    /// The request's failure, or there is no such request. Either way it is gone.
    pub fn wait(&mut self, id: RequestId) -> RequestOutcome {
        self.wait_for(|pml| pml.core.requests.collect(id))
    }

    /// Waits until one of several requests has ended; gives its place in `ids` and its result.
    /// Requests that are not there count as ended with [`PmlError::NoSuchRequest`].
    ///
    /// # Errors
    /// `ids` is empty.
    pub fn wait_any(&mut self, ids: &[RequestId]) -> Result<(usize, RequestOutcome), PmlError> {
        if ids.is_empty() {
            return Err(PmlError::NothingToWaitFor);
        }
        self.wait_for(|pml| Ok(pml.ended(ids)))
    }

    /// Waits until at least one of several requests has ended; gives all that have, with their
    /// places in `ids`.
    ///
    /// # Errors
    /// `ids` is empty.
    pub fn wait_some(
        &mut self,
        ids: &[RequestId],
    ) -> Result<Vec<(usize, RequestOutcome)>, PmlError> {
        let first = self.wait_any(ids)?;
        Ok(self.all_ended(ids, first))
    }

    /// Waits until all of several requests have ended; gives their results in the order of `ids`.
    pub fn wait_all(&mut self, ids: &[RequestId]) -> Vec<RequestOutcome> {
        ids.iter().map(|&id| self.wait(id)).collect()
    }

    /// One of several requests that has ended, if any; makes progress first.
    pub fn test_any(&mut self, ids: &[RequestId]) -> Option<(usize, RequestOutcome)> {
        self.progress();
        self.ended(ids)
    }

    /// Those of several requests that have ended; makes progress first.
    pub fn test_some(&mut self, ids: &[RequestId]) -> Vec<(usize, RequestOutcome)> {
        match self.test_any(ids) {
            Some(first) => self.all_ended(ids, first),
            None => Vec::new(),
        }
    }

    /// The results of several requests, if all have ended; else none is taken. Makes progress first.
    pub fn test_all(&mut self, ids: &[RequestId]) -> Option<Vec<RequestOutcome>> {
        self.progress();
        // A request that is not there is over as well.
        if ids.iter().any(|&id| self.core.requests.is_done(id) == Ok(false)) {
            return None;
        }
        Some(self.wait_all(ids))
    }

    fn outcome(&mut self, id: RequestId) -> Option<RequestOutcome> {
        self.core.requests.collect(id).transpose()
    }

    fn ended(&mut self, ids: &[RequestId]) -> Option<(usize, RequestOutcome)> {
        let mut each = ids.iter().enumerate();
        each.find_map(|(at, &id)| self.outcome(id).map(|outcome| (at, outcome)))
    }

    fn all_ended(
        &mut self,
        ids: &[RequestId],
        first: (usize, RequestOutcome),
    ) -> Vec<(usize, RequestOutcome)> {
        let place = first.0;
        let mut ended = vec![first];
        for (at, &id) in ids.iter().enumerate().filter(|(at, _)| *at != place) {
            ended.extend(self.outcome(id).map(|outcome| (at, outcome)));
        }
        ended.sort_by_key(|(at, _)| *at);
        ended
    }

    /// Waits for a message that a receive would take (`MPI_Probe`, MPI 4.1 §3.8.1).
    ///
    /// # Errors
    /// A rank or tag that is not there; nobody is left who could send.
    pub fn probe(&mut self, comm: &Comm, source: Source, tag: TagSel) -> Result<Status, PmlError> {
        self.wait_for(|pml| pml.core.probe(&mut pml.bml, comm, source, tag))
    }
    /// Waits for a message and takes it, for [`imrecv`](Pml::imrecv) to receive (`MPI_Mprobe`, MPI
    /// 4.1 §3.8.2).
    ///
    /// # Errors
    /// As [`probe`](Pml::probe).
    pub fn mprobe(
        &mut self,
        comm: &Comm,
        source: Source,
        tag: TagSel,
    ) -> Result<(MessageId, Status), PmlError> {
        self.wait_for(|pml| pml.core.claim(&mut pml.bml, comm, source, tag))
    }
}
