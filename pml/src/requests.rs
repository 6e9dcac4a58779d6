//! The table of requests: operations in flight, and the results of those that have ended.
//!
//! Most requests are *inline*: a short message that was completed at submit, a posted receive of one, or one that has
//! ended well. These have a table of their own, a line or two each, which is written and read field by field: copying
//! larger values took longer than all the rest of a short message. What all others do, their operation `O`, is the
//! driver's business.

mod woken;

use crate::buffer::span::Span;
use crate::counters::Counters;
use crate::error::{Failure, PmlError};
use crate::hash::FastMap;
use crate::protocol::Protocol;
use crate::status::{RequestId, Settled, Status};
use woken::{Wakers, Woken};

/// The result of an operation: its [`Status`], or why it failed.
pub type RequestOutcome = Result<Status, Failure>;

/// An eager message that left when it was submitted: it is on its way, or there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    pub(crate) status: Status,
    pub(crate) peer: u32,
    /// Its number among the messages to that peer.
    pub(crate) sequence: u32,
}

/// How a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Slot: an eager send whose message has left. It has ended well, and can be cancelled.
    Submitted,
    /// Slot: a posted receive; a caller that needs the full state makes an operation of it.
    Posted,
    /// Slot: an eager message has been received; the result waits to be collected.
    Received,
    /// Not in use.
    Vacant,
    /// An operation is under way, which its entry has.
    Operation,
    /// The caller's own work is under way.
    General,
    /// It has ended well; the result waits to be collected.
    Ended,
    /// It has failed; its entry says why.
    Failed,
}

impl Phase {
    #[inline]
    fn is_inline(self) -> bool {
        matches!(self, Phase::Submitted | Phase::Posted | Phase::Received)
    }
}

/// What is known of every request; all that is known of an inline one. Fields without meaning in a phase keep their old
/// values.
#[derive(Debug)]
struct Slot {
    generation: u32,
    phase: Phase,
    /// At its end, check whether it was released, or has a waker.
    watched: bool,
    /// Of a request that has [ended](Phase::Ended): what carried its message. Messages of inline ones are eager.
    protocol: Protocol,
    /// Of a posted receive: the number of the engine for ordinary memory.
    engine: u8,
    /// The status: the other end's rank, the tag, the bytes.
    rank: u32,
    tag: i32,
    bytes: u64,
    /// The other end's number in the job.
    peer: u32,
    /// Of a message that has left: its number among those to that peer.
    sequence: u32,
    /// Of a posted receive: its context, and where it is posted.
    context: u32,
    place: u32,
    /// Of a posted receive: what the header of a message that it takes says.
    hash: u64,
    elements: u64,
    /// Of a posted receive: its buffer.
    buffer: Span,
}

/// A receive that can be slot: it names its source and its tag, and its buffer is plain memory.
#[derive(Debug)]
pub(crate) struct InlineRecv {
    /// The number of the engine for ordinary memory.
    pub(crate) engine: u8,
    /// The source's rank in the communicator.
    pub(crate) rank: u32,
    /// The source's number in the job.
    pub(crate) peer: u32,
    pub(crate) tag: i32,
    pub(crate) context: u32,
    /// The words of the header that have the hash and the elements of all that it takes.
    pub(crate) digest: (u64, u64),
}

#[derive(Debug)]
struct RequestEntry<O> {
    /// The result will not be collected.
    released: bool,
    /// Whom to tell of the end.
    wakers: Wakers,
    operation: Option<O>,
    failure: Option<Box<Failure>>,
}

/// All requests of an endpoint.
#[derive(Debug)]
pub(crate) struct Requests<O> {
    /// As many as `entries`.
    slots: Vec<Slot>,
    entries: Vec<RequestEntry<O>>,
    free: Vec<u32>,
    woken: Woken,
    /// Those that peers name in their answers, by these names.
    names: FastMap<u64, RequestId>,
    next_name: u64,
    /// How many have ended well.
    pub(crate) ended: Counters,
}

impl<O> Default for Requests<O> {
    fn default() -> Self {
        Requests {
            slots: Vec::new(),
            entries: Vec::new(),
            free: Vec::new(),
            woken: Woken::default(),
            names: FastMap::default(),
            next_name: 1,
            ended: Counters::default(),
        }
    }
}

impl Slot {
    #[inline]
    fn status(&self, protocol: Protocol) -> Status {
        let Slot { rank, tag, bytes, .. } = *self;
        Status { source: rank, tag, bytes, protocol }
    }

    #[inline]
    fn set(&mut self, status: &Status) {
        (self.rank, self.tag, self.bytes) = (status.source, status.tag, status.bytes);
    }

    fn end(&mut self, status: &Status) {
        self.set(status);
        (self.phase, self.protocol) = (Phase::Ended, status.protocol);
    }
}

impl<O> Requests<O> {
    /// A place of the table that is not in use.
    #[inline]
    fn place(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| self.grow())
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let index = u32::try_from(self.entries.len()).expect("fewer than 2^32 requests");
        let wakers = Wakers::default();
        self.entries.push(RequestEntry { released: false, wakers, operation: None, failure: None });
        self.slots.push(Slot {
            generation: 0,
            phase: Phase::Vacant,
            watched: false,
            protocol: Protocol::Eager,
            engine: 0,
            rank: 0,
            tag: 0,
            bytes: 0,
            peer: 0,
            sequence: 0,
            context: 0,
            place: 0,
            hash: 0,
            elements: 0,
            buffer: Span::nothing(),
        });
        index
    }

    /// Adds a request.
    pub(crate) fn insert(&mut self, operation: O) -> RequestId {
        let index = self.place();
        let entry = &mut self.entries[index as usize];
        (entry.operation, entry.released) = (Some(operation), false);
        self.enter(index, Phase::Operation)
    }

    /// Adds a request for the caller's own work.
    pub(crate) fn insert_general(&mut self) -> RequestId {
        let index = self.place();
        self.enter(index, Phase::General)
    }

    /// Adds a request that has ended well, and whose message is counted elsewhere.
    pub(crate) fn insert_done(&mut self, status: Status) -> RequestId {
        let index = self.place();
        self.slots[index as usize].end(&status);
        self.enter(index, Phase::Ended)
    }

    #[inline]
    fn enter(&mut self, index: u32, phase: Phase) -> RequestId {
        let slot = &mut self.slots[index as usize];
        (slot.phase, slot.watched) = (phase, false);
        RequestId::new(index, slot.generation)
    }

    /// Adds an eager send whose message has left.
    #[inline]
    pub(crate) fn insert_submitted(&mut self, submitted: &Submitted) -> RequestId {
        let index = self.place();
        let slot = &mut self.slots[index as usize];
        (slot.peer, slot.sequence) = (submitted.peer, submitted.sequence);
        slot.set(&submitted.status);
        (slot.phase, slot.watched) = (Phase::Submitted, false);
        RequestId::new(index, slot.generation)
    }

    /// Adds a receive for a short message; `promise` makes its buffer, `post` posts it by its place in the table.
    #[inline(always)] // field by field into the table, or not at all
    pub(crate) fn insert_inline_recv(
        &mut self,
        recv: &InlineRecv,
        promise: impl FnOnce(&mut Span),
        post: impl FnOnce(u32) -> u32,
    ) -> RequestId {
        let index = self.place();
        let slot = &mut self.slots[index as usize];
        (slot.phase, slot.watched) = (Phase::Posted, false);
        (slot.rank, slot.tag) = (recv.rank, recv.tag);
        (slot.peer, slot.context) = (recv.peer, recv.context);
        (slot.hash, slot.elements) = recv.digest;
        slot.engine = recv.engine;
        promise(&mut slot.buffer);
        slot.bytes = slot.buffer.bytes();
        slot.place = post(index);
        RequestId::new(index, slot.generation)
    }

    #[inline]
    fn slot(&self, id: RequestId) -> Option<&Slot> {
        let slot = self.slots.get(id.index() as usize)?;
        (slot.generation == id.generation()).then_some(slot)
    }

    /// What a request does that is under way and not inline.
    pub(crate) fn operation(&self, id: RequestId) -> Option<&O> {
        self.slot(id)?;
        self.entries[id.index() as usize].operation.as_ref()
    }

    /// The same, to be changed.
    pub(crate) fn operation_mut(&mut self, id: RequestId) -> Option<&mut O> {
        self.slot(id)?;
        self.entries[id.index() as usize].operation.as_mut()
    }

    /// Whether a request stands for work of the caller's that goes on.
    pub(crate) fn is_general(&self, id: RequestId) -> bool {
        self.slot(id).is_some_and(|slot| slot.phase == Phase::General)
    }

    /// Why a request has failed whose result was not collected.
    pub(crate) fn failure(&self, id: RequestId) -> Option<&Failure> {
        self.slot(id)?;
        self.entries[id.index() as usize].failure.as_deref()
    }

    /// A name for a request that a peer will answer; never the same twice.
    pub(crate) fn name(&mut self, id: RequestId) -> u64 {
        let name = self.next_name;
        self.next_name += 1;
        self.names.insert(name, id);
        name
    }

    /// The request of a name.
    pub(crate) fn named(&self, name: u64) -> Option<RequestId> {
        self.names.get(&name).copied()
    }

    /// No answer is expected any more.
    pub(crate) fn unname(&mut self, name: u64) {
        self.names.remove(&name);
    }

    /// The name of the request at a place of the table.
    pub(crate) fn id_at(&self, index: u32) -> Option<RequestId> {
        let slot = self.slots.get(index as usize)?;
        Some(RequestId::new(index, slot.generation))
    }

    /// Ends the posted receive at a place of the table, if it is slot, takes a message of this description, and
    /// `put` puts the data into its buffer; returns whether all this holds. If not, nothing has changed.
    #[inline]
    pub(crate) fn finish_inline_recv(
        &mut self,
        index: u32,
        digest: (u64, u64),
        put: impl FnOnce(&Span) -> bool,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize) else { return false };
        let expected = slot.phase == Phase::Posted && (slot.hash, slot.elements) == digest;
        if !expected || !put(&slot.buffer) {
            return false;
        }
        self.ended.ended(Protocol::Eager, slot.bytes);
        slot.phase = Phase::Received;
        slot.buffer.let_go();
        if slot.watched {
            self.end_watched(index);
        }
        true
    }

    /// The buffer of the posted receive at a place of the table, if it is slot, and takes a message of this description.
    pub(crate) fn inline_recv_buffer(&self, index: u32, digest: (u64, u64)) -> Option<&Span> {
        let slot = self.slots.get(index as usize)?;
        let expected = slot.phase == Phase::Posted && (slot.hash, slot.elements) == digest;
        expected.then_some(&slot.buffer)
    }

    #[cold]
    fn end_watched(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        self.woken.add(&mut entry.wakers);
        if entry.released {
            self.vacate(index);
        }
    }

    /// Ends a request. Its result waits to be collected, or is dropped if the request was released.
    pub(crate) fn finish(&mut self, id: RequestId, result: Result<Status, impl Into<Failure>>) {
        if self.slot(id).is_some()
            && let Ok(status) = &result
        {
            self.ended.ended(status.protocol, status.bytes);
        }
        self.end(id, result.map_err(Into::into));
    }

    /// Ends an eager send whose message has left.
    pub(crate) fn finish_submitted(&mut self, id: RequestId, submitted: Submitted) {
        self.ended.ended(submitted.status.protocol, submitted.status.bytes);
        self.end(id, Ok(submitted.status));
        // Unless it was vacated by that.
        if let Some(slot) = self.slots.get_mut(id.index() as usize)
            && slot.generation == id.generation()
            && slot.phase == Phase::Ended
        {
            slot.phase = Phase::Submitted;
            (slot.peer, slot.sequence) = (submitted.peer, submitted.sequence);
        }
    }

    /// Ends a request that stands for no message, or whose message was counted when it left.
    pub(crate) fn finish_uncounted(&mut self, id: RequestId, result: Result<Status, PmlError>) {
        self.end(id, result.map_err(Failure::from));
    }

    fn end(&mut self, id: RequestId, result: RequestOutcome) {
        let Some(slot) = self.slots.get_mut(id.index() as usize) else { return };
        if slot.generation != id.generation() {
            return;
        }
        slot.buffer.let_go();
        let entry = &mut self.entries[id.index() as usize];
        entry.operation = None;
        match result {
            Ok(status) => slot.end(&status),
            Err(failure) => {
                slot.phase = Phase::Failed;
                entry.failure = Some(Box::new(failure));
            }
        }
        if slot.watched {
            self.end_watched(id.index());
        }
    }

    /// The message of an eager send that has ended, and whose result was not collected.
    pub(crate) fn submitted(&self, id: RequestId) -> Option<Submitted> {
        let slot = self.slot(id).filter(|slot| slot.phase == Phase::Submitted)?;
        let status = slot.status(Protocol::Eager);
        Some(Submitted { status, peer: slot.peer, sequence: slot.sequence })
    }

    /// Makes a request that was completed at submit do something again.
    pub(crate) fn resume(&mut self, id: RequestId, operation: O) {
        self.slots[id.index() as usize].phase = Phase::Operation;
        self.entries[id.index() as usize].operation = Some(operation);
    }

    fn vacate(&mut self, index: u32) {
        let (slot, entry) = (&mut self.slots[index as usize], &mut self.entries[index as usize]);
        (slot.phase, slot.watched) = (Phase::Vacant, false);
        slot.buffer.let_go();
        slot.generation = slot.generation.wrapping_add(1);
        (entry.operation, entry.failure) = (None, None);
        // It has no waker, or its waker is called now: none is dropped in here.
        self.woken.add(&mut entry.wakers);
        self.free.push(index);
    }

    /// Whether a request has ended.
    ///
    /// # Errors
    /// There is no such request.
    pub(crate) fn is_done(&self, id: RequestId) -> Result<bool, PmlError> {
        let slot = self.slot(id).ok_or(PmlError::NoSuchRequest)?;
        let entry = &self.entries[id.index() as usize];
        if slot.watched && entry.released {
            return Err(PmlError::NoSuchRequest);
        }
        match slot.phase {
            Phase::Vacant => Err(PmlError::NoSuchRequest),
            Phase::Posted | Phase::Operation | Phase::General => Ok(false),
            Phase::Submitted | Phase::Received | Phase::Ended | Phase::Failed => Ok(true),
        }
    }

    /// Takes the result of a request that has ended; `None` while it is in flight.
    #[inline]
    pub(crate) fn collect(&mut self, id: RequestId) -> Result<Option<Status>, Failure> {
        let slot = self.slots.get_mut(id.index() as usize).ok_or(PmlError::NoSuchRequest)?;
        if slot.generation != id.generation() {
            return Err(PmlError::NoSuchRequest.into());
        }
        if slot.watched || !slot.phase.is_inline() {
            return self.collect_full(id);
        }
        if slot.phase == Phase::Posted {
            return Ok(None);
        }
        let status = slot.status(Protocol::Eager);
        slot.phase = Phase::Vacant;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index());
        Ok(Some(status))
    }

    /// The result of a request that has ended, which stays to be collected; `None` while it is in flight.
    pub(crate) fn peek(&self, id: RequestId) -> Result<Option<Status>, Failure> {
        if !self.is_done(id)? {
            return Ok(None);
        }
        let (slot, entry) = (&self.slots[id.index() as usize], &self.entries[id.index() as usize]);
        let protocol = if slot.phase == Phase::Ended { slot.protocol } else { Protocol::Eager };
        match &entry.failure {
            None => Ok(Some(slot.status(protocol))),
            Some(failure) => Err((**failure).clone()),
        }
    }

    #[inline(never)]
    fn collect_full(&mut self, id: RequestId) -> Result<Option<Status>, Failure> {
        let result = self.peek(id);
        if !matches!(result, Ok(None)) {
            // If there is no such request, this does nothing.
            let _ = self.release(id);
        }
        result
    }

    /// As [`collect`](Requests::collect), for callers that only need to know that it went well.
    #[inline]
    pub(crate) fn collect_quietly(&mut self, id: RequestId) -> Settled {
        let Some(slot) = self.slots.get_mut(id.index() as usize) else { return Settled::Asks };
        if slot.generation != id.generation() || slot.watched {
            return Settled::Asks;
        }
        match slot.phase {
            Phase::Submitted | Phase::Received => {}
            Phase::Posted => return Settled::NotYet,
            _ => return Settled::Asks,
        }
        slot.phase = Phase::Vacant;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index());
        Settled::Well
    }

    /// The result will not be collected. The operation goes on.
    pub(crate) fn release(&mut self, id: RequestId) -> Result<(), PmlError> {
        if self.is_done(id)? {
            self.vacate(id.index());
        } else {
            self.watch(id.index()).released = true;
        }
        Ok(())
    }

    /// Whether any message is in flight.
    pub(crate) fn any_under_way(&self) -> bool {
        let goes_on = |phase| matches!(phase, Phase::Posted | Phase::Operation);
        self.slots.iter().any(|slot| goes_on(slot.phase))
    }

    /// Places of the table: as many as there ever were requests at once.
    pub(crate) fn places(&self) -> usize {
        self.entries.len()
    }

    /// What all requests do that are under way and not slot.
    pub(crate) fn operations_mut(&mut self) -> impl Iterator<Item = &mut O> {
        self.entries.iter_mut().filter_map(|entry| entry.operation.as_mut())
    }

    /// Of an inline posted receive: the process, the context and the tag.
    pub(crate) fn inline_recv_label(&self, id: RequestId) -> Option<(u32, u32, i32)> {
        let slot = self.slot(id).filter(|slot| slot.phase == Phase::Posted)?;
        Some((slot.peer, slot.context, slot.tag))
    }
}

/// A posted receive that is inline no more.
pub(crate) struct PostedRecv {
    pub(crate) buffer: Span,
    /// The number of the engine for ordinary memory.
    pub(crate) engine: u8,
    pub(crate) context: u32,
    /// The source's number in the job.
    pub(crate) peer: u32,
    /// Where it is posted.
    pub(crate) place: u32,
}

impl<O: From<PostedRecv>> Requests<O> {
    /// Makes an inline posted receive a full one.
    pub(crate) fn write_out(&mut self, id: RequestId) {
        if self.slot(id).is_some_and(|slot| slot.phase == Phase::Posted) {
            self.write_out_at(id.index());
        }
    }

    fn write_out_at(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.phase = Phase::Operation;
        let posted = PostedRecv {
            buffer: std::mem::replace(&mut slot.buffer, Span::nothing()),
            engine: slot.engine,
            context: slot.context,
            peer: slot.peer,
            place: slot.place,
        };
        self.entries[index as usize].operation = Some(posted.into());
    }

    /// All operations under way, for a peer's death.
    pub(crate) fn under_way(&mut self) -> impl Iterator<Item = (RequestId, &O)> {
        for index in (0u32..).take(self.slots.len()) {
            if self.slots[index as usize].phase == Phase::Posted {
                self.write_out_at(index);
            }
        }
        let all = self.slots.iter().zip(&self.entries);
        (0u32..).zip(all).filter_map(|(index, (slot, entry))| {
            Some((RequestId::new(index, slot.generation), entry.operation.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests;
