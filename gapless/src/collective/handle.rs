//! What handles of collectives that do not block have in common, whoever keeps the memory.

use super::Collective;
use super::reserve::Start;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::several::Pending;
use crate::shared::WorldState;
use gapless_coll::Operation;
use gapless_coll::runtime::{OpId, Started};
use gapless_pml::{PmlError, RequestId};
use std::any::Any;
use std::task::{Poll, Waker};

/// A collective in flight, or a persistent one, whose memory somebody else keeps. If it is dropped, what is in flight
/// goes on.
#[derive(Debug)]
pub(crate) struct CollectiveHandle {
    comm: Communicator,
    operation: Operation,
    id: OpId,
    /// In flight, until its result is taken.
    active: Option<RequestId>,
    /// What the world keeps if this is dropped while the collective is in flight.
    memory: Option<Box<dyn Any + Send + Sync>>,
}

impl Communicator {
    /// Begins a non-blocking collective. `note` is told which it is before anything else can happen to it, unless it
    /// is over already.
    ///
    /// # Safety
    /// Until the collective has ended or, after it was given up, the world's memory was taken back: what the
    /// description sends is valid for reads, and nothing writes it; what it receives into is valid for reads and
    /// writes, and nothing else touches it.
    pub(super) unsafe fn begin_noted(
        &self,
        collective: Collective<'_>,
        note: impl FnOnce(OpId),
    ) -> Result<Started, Error> {
        let operation = collective.operation;
        // SAFETY: the caller's promise.
        let known = match unsafe { self.begin_known(&collective) }? {
            Start::Over(ended) => return Ok(ended),
            Start::Going(turn) => Some(turn),
            Start::Unknown => None,
        };
        // SAFETY: the caller's promise.
        let (op, _reserved) = unsafe { self.op(collective, known) }?;
        let mut op = Some(op);
        let begun = self.shared.with(|state| {
            let begun = self.launch(state, &mut op)?;
            Ok(begun.inspect(|begun| note(begun.id)))
        })?;
        begun.map_err(|error| self.failed(operation, error))
    }
}

impl CollectiveHandle {
    /// Begins a collective.
    ///
    /// # Safety
    /// As for [`Communicator::begin_noted`].
    pub(crate) unsafe fn begin(
        comm: &Communicator,
        collective: Collective<'_>,
    ) -> Result<CollectiveHandle, Error> {
        let operation = collective.operation;
        // SAFETY: the caller's promise.
        let Started { id, request } = unsafe { comm.begin_noted(collective, |_| ()) }?;
        let (comm, active) = (comm.clone(), Some(request));
        Ok(CollectiveHandle { comm, operation, id, active, memory: None })
    }

    /// Describes a persistent collective.
    ///
    /// # Safety
    /// As for [`begin`](Self::begin), from each [start](Self::start) on.
    pub(crate) unsafe fn init(
        comm: &Communicator,
        collective: Collective<'_>,
    ) -> Result<CollectiveHandle, Error> {
        let operation = collective.operation;
        let ticket = comm.next_persistent(operation)?;
        // SAFETY: the caller's promise.
        let mut op = Some(unsafe { comm.persistent_op(collective, ticket) }?);
        let id = comm.shared.with(|state| {
            state.open()?;
            let op = op.take().ok_or(Error::Finalized)?;
            Ok(state.collectives.keep(comm.comm.clone(), op))
        })?;
        let comm = comm.clone();
        Ok(CollectiveHandle { comm, operation, id, active: None, memory: None })
    }

    /// Starts a persistent collective.
    ///
    /// # Safety
    /// As for [`begin`](Self::begin).
    ///
    /// # Errors
    /// It is active; the world was left or given up. It has not been started then.
    pub(crate) unsafe fn start(&mut self) -> Result<(), Error> {
        self.idle()?;
        let CollectiveHandle { comm, operation, id, active, .. } = self;
        let started = comm.shared.with(|state| {
            state.open()?;
            let WorldState { pml, collectives, spent, .. } = &mut *state;
            // SAFETY: the caller's promise.
            let started = unsafe { collectives.start((pml, spent), *id) };
            comm.shared.rouse(state);
            Ok(started)
        })?;
        *active = Some(started.map_err(|error| comm.failed(*operation, error))?);
        Ok(())
    }

    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        let fate = self.comm.fate(self.id);
        self.active = None;
        self.comm.ended(self.operation, fate?)
    }

    /// How it went, if it has ended; makes progress.
    pub(crate) fn test(&mut self) -> Option<Result<(), Error>> {
        let result = self.comm.test(self.operation, self.id)?;
        self.active = None;
        Some(result)
    }

    /// As [`test`](Self::test), with nothing taken.
    pub(crate) fn peek(&self) -> Option<Result<(), Error>> {
        let CollectiveHandle { comm, operation, id, .. } = self;
        let seen = comm.shared.with(|state| {
            comm.shared.drive_once(state);
            match state.collectives.peek(*id) {
                None if state.has_left() => Err(Error::Finalized),
                seen => Ok(seen),
            }
        });
        let ended = seen.transpose()?;
        Some(ended.and_then(|result| result.map_err(|error| comm.failed(*operation, error))))
    }

    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Result<(), Error>> {
        let polled = self.comm.poll(self.operation, self.id, waker);
        if polled.is_ready() {
            self.active = None;
        }
        polled
    }

    pub(crate) fn operation(&self) -> Operation {
        self.operation
    }

    /// Its request while it is in flight, or its result was not taken.
    pub(crate) fn active(&self) -> Option<RequestId> {
        self.active
    }

    pub(crate) fn idle(&self) -> Result<(), Error> {
        if self.active.is_some() { Err(PmlError::StillActive.into()) } else { Ok(()) }
    }

    pub(crate) fn pending(&self) -> Pending<'_> {
        Pending::new(&self.comm.shared, self.active)
    }

    /// The handle is about to be dropped. While the collective is in flight, the world keeps `memory`.
    pub(crate) fn leave(&mut self, memory: impl Any + Send + Sync) {
        self.memory = Some(Box::new(memory));
    }
}

impl Drop for CollectiveHandle {
    fn drop(&mut self) {
        let memory = self.memory.take().map(|memory| memory as _);
        let left = self.comm.shared.with_anyway(|state| {
            let WorldState { pml, torn, collectives, .. } = state;
            let pml = (!*torn).then_some(pml);
            collectives.let_go(pml, self.id, memory)
        });
        drop(left);
    }
}
