//! What touches memory: starting messages, and calling engines and reducers.
//!
//! All memory is either of the buffers, which the caller of [`Executor::new`](super::Executor::new) grants until
//! nothing is in flight, or of the executor's own, which is kept as long. A schedule's rules keep steps that are under
//! way at once from touching a common byte unless both only read, and buffers do not overlap. The functions here rely
//! on that: each states which memory it grants, and to whom.
use std::ops::Range;

use gapless_engine::{Engine, EngineError, Reducer, Typed};
use gapless_mem::{Completion, Region};
use gapless_pml::{Comm, Pml, PmlError, RequestId, Source, TagSel};

use super::ExecutorPlan;
use super::call_buffers::{Combine, Spot, TypedRange};
use super::error::CollError;
use super::sm::{SharedSegment, SmCall, StepHandle};
use super::tasks;
use crate::call::Call;
use crate::operation::Operation;
use crate::schedule::Place;

/// What a collective works with.
pub(super) struct Tools<'a> {
    pub(super) pml: &'a mut Pml,
    pub(super) engine: &'a dyn Engine,
    pub(super) reducer: &'a dyn Reducer,
    /// The shared segment of this rank's host, and the number of the first step on it.
    pub(super) segment: Option<(&'a mut SharedSegment, u64)>,
}

/// Work of engines that may be under way.
#[derive(Debug, Default)]
pub(super) struct EngineWork {
    pending: Vec<Completion>,
    failure: Option<Box<EngineError>>,
}

impl EngineWork {
    pub(super) fn add(&mut self, work: Completion) {
        self.pending.push(work);
    }

    /// How it went, if all is over.
    pub(super) fn result(&mut self) -> Option<Result<(), EngineError>> {
        let failure = &mut self.failure;
        self.pending.retain(|work| match work.poll() {
            Ok(over) => !over,
            // It is over, too.
            Err(error) => {
                failure.get_or_insert_with(|| Box::new(error.into()));
                false
            }
        });
        let over = self.pending.is_empty();
        over.then(|| self.failure.take().map_or(Ok(()), |error| Err(*error)))
    }

    pub(super) fn fail(&mut self, error: EngineError) {
        self.failure.get_or_insert_with(|| Box::new(error));
    }

    /// Keeps the error of what could not be started.
    pub(super) fn started(&mut self, started: Result<(), EngineError>) {
        if let Err(error) = started {
            self.fail(error);
        }
    }

    /// Whether all is over, and well.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.pending.is_empty() && self.failure.is_none()
    }

    /// Whether nothing has ever begun, or gone wrong: nothing is to be dropped.
    #[inline]
    pub(super) fn is_bare(&self) -> bool {
        self.pending.capacity() == 0 && self.failure.is_none()
    }

    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Waits until all is over.
    #[inline]
    pub(super) fn drain(&mut self) {
        if self.is_pending() {
            self.pending.drain(..).for_each(|work| work.drain());
        }
    }
}

impl Tools<'_> {
    /// Starts to send. Grants `data` for reading until the request has ended.
    pub(super) fn send(
        &mut self,
        (comm, to): (&Comm, u32),
        data: &Typed,
        tag: i32,
    ) -> Result<RequestId, PmlError> {
        // SAFETY: the memory is of a buffer or the executor's own (see the module's text); it stays valid until the
        // request has ended, as the step does not end before.
        unsafe { self.pml.isend(comm, data, to, tag) }
    }

    /// Starts to send a copy of a few bytes.
    pub(super) fn send_copy(
        &mut self,
        (comm, to): (&Comm, u32),
        bytes: &[u8],
        tag: i32,
    ) -> Result<RequestId, PmlError> {
        let data = Typed::contiguous(Region::of(bytes));
        // SAFETY: `bytes` is borrowed until this returns.
        unsafe { self.pml.isend_copy(comm, &data, to, tag) }
    }

    /// Starts to receive. Grants `into` for writing until the request has ended.
    pub(super) fn receive(
        &mut self,
        (comm, from): (&Comm, u32),
        into: &Typed,
        tag: i32,
    ) -> Result<RequestId, PmlError> {
        // SAFETY: as in `send`; no other step touches what a receive that is under way writes.
        unsafe { self.pml.irecv(comm, into, Source::Rank(from), TagSel::Is(tag)) }
    }

    /// Begins a step of several ranks. Grants the memory of its buffers until it has ended.
    pub(super) fn begin_share(
        &mut self,
        operation: Operation,
        number: u64,
        call: SmCall,
    ) -> Result<StepHandle, CollError> {
        let Some((segment, first)) = &mut self.segment else {
            return Err(CollError::NotShared { operation });
        };
        // SAFETY: as in `send`: the step does not end before this segment's part in it, and no other step touches what
        // this one writes. If the executor is dropped before, memory of its own is never freed, and whoever has granted
        // the buffers gives the segment up before they go (`Executor::advance_with`).
        unsafe { segment.begin_step(first.saturating_add(number), call) }
    }

    /// Begins a step of several ranks at a rank that has failed. An error: it has ended.
    pub(super) fn fail_share(
        &mut self,
        number: u64,
        (call, of): (&Call<'_>, (usize, usize)),
        failure: CollError,
    ) -> Result<StepHandle, CollError> {
        let Some((segment, first)) = &mut self.segment else { return Err(failure) };
        segment.fail_step(first.saturating_add(number), (call, of), failure, self.pml)
    }

    /// Goes on with a step of several ranks; how it went, if it has ended.
    pub(super) fn advance_share(&mut self, begun: &StepHandle) -> Option<Result<(), CollError>> {
        // Whoever has begun it on a shared segment brings that along.
        let Some((segment, _)) = self.segment.as_mut() else { return begun.without_segment() };
        segment.advance_step(begun, self.pml, self.engine, self.reducer)
    }

    /// What a task does that comes for a place; `None`: the place is no plain memory of the host. Grants the place from
    /// when the work is opened until it is withdrawn, or its step has ended.
    pub(super) fn task(&self, plan: &ExecutorPlan, place: &Place) -> Option<tasks::TaskWork> {
        let Spot::Direct(typed) = plan.spot(place) else { return None };
        let region = typed.as_contiguous().filter(|region| region.as_ptr().is_some())?;
        let combine = plan.combine.clone()?;
        // SAFETY: the memory is of a buffer or the executor's own, as in `send`. It stays valid until the step has
        // ended, or the run is let go, which withdraws all works. A work is opened when the message begins that says
        // «ready», whose predecessors have ended; no other step touches the place between then and the end of the
        // task's.
        Some(unsafe { tasks::TaskWork::combining(region, combine) })
    }

    /// A copy of plain memory of the host; `None` if it is something else.
    pub(super) fn bytes_of(&self, typed: &Typed) -> Option<Vec<u8>> {
        let region = typed.as_contiguous().filter(|region| region.as_ptr().is_some())?;
        let mut bytes = Vec::new();
        let len = usize::try_from(region.len()).ok()?;
        bytes.try_reserve_exact(len).ok()?;
        bytes.resize(len, 0);
        // SAFETY: as in `send`, for as long as this runs: no other step writes what a put that is under way reads.
        unsafe { gapless_mem::read(&region, 0, &mut bytes) }.ok()?;
        Some(bytes)
    }

    /// Starts to pack pieces one behind the other. Grants both until `work` is over.
    pub(super) fn pack(
        &self,
        pieces: &[TypedRange],
        packed: Region,
        work: &mut EngineWork,
    ) -> Result<(), EngineError> {
        for ((typed, range), part) in split(pieces, packed) {
            // SAFETY: as in `send`; the packed memory was made for this step alone.
            work.add(unsafe { self.engine.pack(typed, range, part?, &[]) }?);
        }
        Ok(())
    }

    /// Starts to unpack pieces once all `work` so far is over. Grants both until all of it is over.
    pub(super) fn unpack(
        &self,
        packed: Region,
        pieces: &[TypedRange],
        work: &mut EngineWork,
    ) -> Result<(), EngineError> {
        let after = work.pending.clone();
        for ((typed, range), part) in split(pieces, packed) {
            // SAFETY: as in `pack`; no other step touches what this one writes.
            work.add(unsafe { self.engine.unpack(part?, typed, range, &after) }?);
        }
        Ok(())
    }

    /// Starts to copy a packed stream to another of the same length. Grants both until `work` is over.
    pub(super) fn copy(
        &self,
        from: &Typed,
        into: &Typed,
        work: &mut EngineWork,
    ) -> Result<(), EngineError> {
        let range = 0..from.packed_bytes();
        // SAFETY: as in `unpack`; the places of a copy share no byte.
        work.add(unsafe { self.engine.transfer(from, into, range, &[]) }?);
        Ok(())
    }

    /// Starts to combine, once all `work` so far is over. Grants all buffers until all of it is over.
    pub(super) fn reduce(
        &self,
        combine: &Combine,
        sources: &[Typed],
        into: &Typed,
        work: &mut EngineWork,
    ) -> Result<(), EngineError> {
        let after = work.pending.clone();
        let range = 0..into.packed_bytes();
        // SAFETY: as in `unpack`. The target of a schedule's reduction is one of its sources or shares no byte with
        // any; one place is described in one way, so a source that is the target has its memory, origin and layout.
        work.add(unsafe { self.reducer.reduce_into(combine.op(), sources, into, range, &after) }?);
        Ok(())
    }
}

/// Pieces, and where they lie in packed memory one behind the other.
fn split(
    pieces: &[TypedRange],
    packed: Region,
) -> impl Iterator<Item = ((&Typed, Range<u64>), Result<Region, EngineError>)> {
    let mut at = 0;
    pieces.iter().map(move |(typed, range)| {
        let len = range.end - range.start;
        at += len;
        ((typed, range.clone()), packed.sub(at - len, len).map_err(EngineError::from))
    })
}
