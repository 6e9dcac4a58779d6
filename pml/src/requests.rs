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

/// How an operation ended.
pub type Outcome = Result<Status, Failure>;

/// What a request is doing that is not inline.
#[derive(Debug)]
enum Work<O> {
    Operation(O),
    /// The caller's own work.
    General,
    /// It has ended; the result waits to be collected.
    Done(Result<Status, Box<Failure>>),
    /// Nothing.
    Vacant,
}

/// An eager message that left when it was submitted: it is on its way, or there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    pub(crate) status: Status,
    pub(crate) peer: u32,
    /// Its number among the messages to that peer.
    pub(crate) sequence: u32,
}

/// How a inline request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not in use.
    Vacant,
    /// Not inline: [`Work`] has it.
    Full,
    /// An eager send whose message has left: it has ended well, and can be withdrawn.
    Submitted,
    /// A posted receive; a caller that needs the full state makes an operation of it.
    Posted,
    /// It has ended well; the result waits to be collected.
    Done,
}

/// A inline request. Its message is eager. Fields without meaning in a phase keep their old values.
#[derive(Debug)]
struct Inline {
    generation: u32,
    phase: Phase,
    /// At its end, check whether it was released, or has a waker.
    watched: bool,
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

/// A receive that can be inline: it names its source and its tag, and its buffer is plain memory.
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
struct Entry<O> {
    /// The result will not be collected.
    released: bool,
    /// Whom to tell of the end.
    wakers: Wakers,
    work: Work<O>,
}

/// All requests of an endpoint.
#[derive(Debug)]
pub(crate) struct Requests<O> {
    /// As many as `entries`.
    inlines: Vec<Inline>,
    entries: Vec<Entry<O>>,
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
            inlines: Vec::new(),
            entries: Vec::new(),
            free: Vec::new(),
            woken: Woken::default(),
            names: FastMap::default(),
            next_name: 1,
            ended: Counters::default(),
        }
    }
}

impl Inline {
    #[inline]
    fn status(&self) -> Status {
        let Inline { rank, tag, bytes, .. } = *self;
        Status { source: rank, tag, bytes, protocol: Protocol::Eager }
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
        self.entries.push(Entry { released: false, wakers: Wakers::default(), work: Work::Vacant });
        self.inlines.push(Inline {
            generation: 0,
            phase: Phase::Vacant,
            watched: false,
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
        self.insert_work(Work::Operation(operation))
    }

    /// Adds a request for the caller's own work.
    pub(crate) fn insert_general(&mut self) -> RequestId {
        self.insert_work(Work::General)
    }

    /// Adds a request that has ended well, and whose message is counted elsewhere.
    pub(crate) fn insert_done(&mut self, status: Status) -> RequestId {
        self.insert_work(Work::Done(Ok(status)))
    }

    fn insert_work(&mut self, work: Work<O>) -> RequestId {
        let index = self.place();
        let (inline, entry) =
            (&mut self.inlines[index as usize], &mut self.entries[index as usize]);
        (inline.phase, inline.watched) = (Phase::Full, false);
        (entry.work, entry.released) = (work, false);
        RequestId::new(index, inline.generation)
    }

    /// Adds an eager send whose message has left.
    #[inline]
    pub(crate) fn insert_submitted(&mut self, submitted: &Submitted) -> RequestId {
        let index = self.place();
        let inline = &mut self.inlines[index as usize];
        (inline.phase, inline.watched) = (Phase::Submitted, false);
        (inline.peer, inline.sequence) = (submitted.peer, submitted.sequence);
        (inline.rank, inline.tag) = (submitted.status.source, submitted.status.tag);
        inline.bytes = submitted.status.bytes;
        RequestId::new(index, inline.generation)
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
        let inline = &mut self.inlines[index as usize];
        (inline.phase, inline.watched) = (Phase::Posted, false);
        (inline.rank, inline.tag) = (recv.rank, recv.tag);
        (inline.peer, inline.context) = (recv.peer, recv.context);
        (inline.hash, inline.elements) = recv.digest;
        inline.engine = recv.engine;
        promise(&mut inline.buffer);
        inline.bytes = inline.buffer.bytes();
        inline.place = post(index);
        RequestId::new(index, inline.generation)
    }

    #[inline]
    fn inline(&self, id: RequestId) -> Option<&Inline> {
        let inline = self.inlines.get(id.index() as usize)?;
        (inline.generation == id.generation()).then_some(inline)
    }

    fn work(&self, id: RequestId) -> Option<&Work<O>> {
        let inline = self.inline(id)?;
        (inline.phase == Phase::Full).then(|| &self.entries[id.index() as usize].work)
    }

    /// What a request does that is under way and not inline.
    pub(crate) fn operation(&self, id: RequestId) -> Option<&O> {
        match self.work(id)? {
            Work::Operation(operation) => Some(operation),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn operation_mut(&mut self, id: RequestId) -> Option<&mut O> {
        let inline = self.inline(id)?;
        if inline.phase != Phase::Full {
            return None;
        }
        match &mut self.entries[id.index() as usize].work {
            Work::Operation(operation) => Some(operation),
            _ => None,
        }
    }

    /// Whether a request stands for work of the caller's that goes on.
    pub(crate) fn is_general(&self, id: RequestId) -> bool {
        matches!(self.work(id), Some(Work::General))
    }

    /// Why a request has failed whose result was not collected.
    pub(crate) fn failure(&self, id: RequestId) -> Option<&Failure> {
        match self.work(id)? {
            Work::Done(Err(failure)) => Some(failure),
            _ => None,
        }
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
        let inline = self.inlines.get(index as usize)?;
        Some(RequestId::new(index, inline.generation))
    }

    /// Ends the posted receive at a place of the table, if it is inline, takes a message of this description, and
    /// `put` puts the data into its buffer; returns whether all this holds. If not, nothing has changed.
    #[inline]
    pub(crate) fn finish_inline_recv(
        &mut self,
        index: u32,
        digest: (u64, u64),
        put: impl FnOnce(&Span) -> bool,
    ) -> bool {
        let Some(inline) = self.inlines.get_mut(index as usize) else { return false };
        let expected = inline.phase == Phase::Posted && (inline.hash, inline.elements) == digest;
        if !expected || !put(&inline.buffer) {
            return false;
        }
        self.ended.ended(Protocol::Eager, inline.bytes);
        inline.phase = Phase::Done;
        inline.buffer.let_go();
        if inline.watched {
            self.end_watched(index);
        }
        true
    }

    /// The buffer of the posted receive at a place of the table, if it is inline, and takes a message of this description.
    pub(crate) fn inline_recv_buffer(&self, index: u32, digest: (u64, u64)) -> Option<&Span> {
        let inline = self.inlines.get(index as usize)?;
        let expected = inline.phase == Phase::Posted && (inline.hash, inline.elements) == digest;
        expected.then_some(&inline.buffer)
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
        if self.inline(id).is_some()
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
        if let Some(inline) = self.inlines.get_mut(id.index() as usize)
            && inline.generation == id.generation()
            && inline.phase == Phase::Full
        {
            self.entries[id.index() as usize].work = Work::Vacant;
            inline.phase = Phase::Submitted;
            (inline.peer, inline.sequence) = (submitted.peer, submitted.sequence);
            (inline.rank, inline.tag) = (submitted.status.source, submitted.status.tag);
            inline.bytes = submitted.status.bytes;
        }
    }

    /// Ends a request that stands for no message, or whose message was counted when it left.
    pub(crate) fn finish_uncounted(&mut self, id: RequestId, result: Result<Status, PmlError>) {
        self.end(id, result.map_err(Failure::from));
    }

    fn end(&mut self, id: RequestId, result: Outcome) {
        let Some(inline) = self.inlines.get_mut(id.index() as usize) else { return };
        if inline.generation != id.generation() {
            return;
        }
        inline.phase = Phase::Full;
        inline.buffer.let_go();
        let watched = inline.watched;
        self.entries[id.index() as usize].work = Work::Done(result.map_err(Box::new));
        if watched {
            self.end_watched(id.index());
        }
    }

    /// The message of an eager send that has ended, and whose result was not collected.
    pub(crate) fn submitted(&self, id: RequestId) -> Option<Submitted> {
        let inline = self.inline(id).filter(|inline| inline.phase == Phase::Submitted)?;
        Some(Submitted { status: inline.status(), peer: inline.peer, sequence: inline.sequence })
    }

    /// Makes a request that was completed at submit do something again.
    pub(crate) fn resume(&mut self, id: RequestId, operation: O) {
        self.inlines[id.index() as usize].phase = Phase::Full;
        self.entries[id.index() as usize].work = Work::Operation(operation);
    }

    fn vacate(&mut self, index: u32) {
        let (inline, entry) =
            (&mut self.inlines[index as usize], &mut self.entries[index as usize]);
        (inline.phase, inline.watched) = (Phase::Vacant, false);
        inline.buffer.let_go();
        inline.generation = inline.generation.wrapping_add(1);
        entry.work = Work::Vacant;
        // It has no waker, or its waker is called now: none is dropped in here.
        self.woken.add(&mut entry.wakers);
        self.free.push(index);
    }

    /// Whether a request has ended.
    ///
    /// # Errors
    /// There is no such request.
    pub(crate) fn is_done(&self, id: RequestId) -> Result<bool, PmlError> {
        let inline = self.inline(id).ok_or(PmlError::NoSuchRequest)?;
        let entry = &self.entries[id.index() as usize];
        if inline.watched && entry.released {
            return Err(PmlError::NoSuchRequest);
        }
        match inline.phase {
            Phase::Vacant => Err(PmlError::NoSuchRequest),
            Phase::Full => Ok(matches!(entry.work, Work::Done(_))),
            Phase::Submitted | Phase::Done => Ok(true),
            Phase::Posted => Ok(false),
        }
    }

    /// Takes the result of a request that has ended; `None` while it is in flight.
    #[inline]
    pub(crate) fn collect(&mut self, id: RequestId) -> Result<Option<Status>, Failure> {
        let inline = self.inlines.get_mut(id.index() as usize).ok_or(PmlError::NoSuchRequest)?;
        if inline.generation != id.generation() {
            return Err(PmlError::NoSuchRequest.into());
        }
        if inline.watched || matches!(inline.phase, Phase::Full | Phase::Vacant) {
            return self.collect_full(id);
        }
        if inline.phase == Phase::Posted {
            return Ok(None);
        }
        let status = inline.status();
        inline.phase = Phase::Vacant;
        inline.generation = inline.generation.wrapping_add(1);
        self.free.push(id.index());
        Ok(Some(status))
    }

    #[inline(never)]
    fn collect_full(&mut self, id: RequestId) -> Result<Option<Status>, Failure> {
        if !self.is_done(id)? {
            return Ok(None);
        }
        let (inline, entry) =
            (&self.inlines[id.index() as usize], &mut self.entries[id.index() as usize]);
        let result = match std::mem::replace(&mut entry.work, Work::Vacant) {
            Work::Done(result) if inline.phase == Phase::Full => result,
            _ => Ok(inline.status()),
        };
        self.vacate(id.index());
        result.map(Some).map_err(|failure| *failure)
    }

    /// As [`collect`](Requests::collect), for callers that only need to know that it went well.
    #[inline]
    pub(crate) fn collect_quietly(&mut self, id: RequestId) -> Settled {
        let Some(inline) = self.inlines.get_mut(id.index() as usize) else { return Settled::Asks };
        if inline.generation != id.generation() || inline.watched {
            return Settled::Asks;
        }
        match inline.phase {
            Phase::Submitted | Phase::Done => {}
            Phase::Posted => return Settled::NotYet,
            Phase::Full | Phase::Vacant => return Settled::Asks,
        }
        inline.phase = Phase::Vacant;
        inline.generation = inline.generation.wrapping_add(1);
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

    /// Whether any operation is in flight.
    pub(crate) fn any_under_way(&self) -> bool {
        self.inlines.iter().zip(&self.entries).any(|(inline, entry)| match inline.phase {
            Phase::Posted => true,
            Phase::Full => !matches!(entry.work, Work::Done(_)),
            Phase::Vacant | Phase::Submitted | Phase::Done => false,
        })
    }

    /// Places of the table: as many as there ever were requests at once.
    pub(crate) fn places(&self) -> usize {
        self.entries.len()
    }

    /// What all requests do that are under way and not inline.
    pub(crate) fn operations_mut(&mut self) -> impl Iterator<Item = &mut O> {
        let all = self.inlines.iter().zip(&mut self.entries);
        let full = all.filter(|(inline, _)| inline.phase == Phase::Full);
        full.filter_map(|(_, entry)| match &mut entry.work {
            Work::Operation(operation) => Some(operation),
            _ => None,
        })
    }

    /// Of an inline posted receive: the process, the context and the tag.
    pub(crate) fn inline_recv_label(&self, id: RequestId) -> Option<(u32, u32, i32)> {
        let inline = self.inline(id).filter(|inline| inline.phase == Phase::Posted)?;
        Some((inline.peer, inline.context, inline.tag))
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
        if self.inline(id).is_some_and(|inline| inline.phase == Phase::Posted) {
            self.write_out_at(id.index());
        }
    }

    fn write_out_at(&mut self, index: u32) {
        let inline = &mut self.inlines[index as usize];
        inline.phase = Phase::Full;
        let posted = PostedRecv {
            buffer: std::mem::replace(&mut inline.buffer, Span::nothing()),
            engine: inline.engine,
            context: inline.context,
            peer: inline.peer,
            place: inline.place,
        };
        self.entries[index as usize].work = Work::Operation(posted.into());
    }

    /// All operations under way, for a peer's death.
    pub(crate) fn under_way(&mut self) -> impl Iterator<Item = (RequestId, &O)> {
        for index in (0u32..).take(self.inlines.len()) {
            if self.inlines[index as usize].phase == Phase::Posted {
                self.write_out_at(index);
            }
        }
        let all = self.inlines.iter().zip(&self.entries);
        (0u32..).zip(all).filter_map(|(index, (inline, entry))| match &entry.work {
            Work::Operation(operation) if inline.phase == Phase::Full => {
                Some((RequestId::new(index, inline.generation), operation))
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
