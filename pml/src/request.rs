//! The table of requests: operations in flight, and the results of those that have ended.
//!
//! Most requests are light: a short message that has left, a posted receive of one, or one that has ended well. These
//! have a table of their own, a line or two each, which is written and read field by field: copying larger values
//! took longer than all the rest of a short message.

pub(crate) mod cancel;
#[allow(unsafe_code, reason = "declares and hands on the obligations of sends")]
pub(crate) mod deferred;
#[allow(unsafe_code, reason = "hands the caller's promise on")]
mod exchange;
mod general;
pub(crate) mod mode;
pub(crate) mod persistent;
mod polled;
#[allow(unsafe_code, reason = "takes the caller's promise")]
pub(crate) mod recv;
#[allow(unsafe_code, reason = "takes the caller's promise")]
pub(crate) mod send;
mod status;
pub(crate) mod wait;
mod woken;

pub use mode::BUFFERED_OVERHEAD;
pub use persistent::Persistent;
pub use recv::{Source, TagSel};
pub use status::{RequestId, Status};
pub use wait::Outcome;

use crate::choose::Protocol;
use crate::counters::Counters;
use crate::eager::stretch::Stretch;
use crate::error::{Failure, PmlError};
use crate::matching::Place;
use crate::request::recv::{Recv, RecvStage};
use crate::request::send::Send;
use gapless_mem::Completion;
use std::task::Waker;
use woken::{Wakers, Woken};

/// What a request is doing that is not light.
#[derive(Debug)]
pub(crate) enum Work {
    /// Boxed: most sends end at once and never get here.
    Send(Box<Send>),
    Recv(Recv),
    /// An eager send that was withdrawn, and waits for the answer.
    Recalled(Recalled),
    /// The caller's own work.
    General,
    /// It has ended; the result waits to be collected.
    Done(Result<Status, Box<Failure>>),
    /// Nothing.
    Vacant,
}

/// An eager message on its way, or there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub(crate) status: Status,
    pub(crate) peer: u32,
    /// Its number among the messages to that peer.
    pub(crate) sequence: u32,
}

/// An eager message that its sender withdraws.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recalled {
    /// The result, if it is too late.
    pub(crate) status: Status,
    pub(crate) peer: u32,
    /// What the answer will name.
    pub(crate) serial: u64,
}

/// How a light request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not in use.
    Vacant,
    /// Not light: [`Work`] has it.
    Heavy,
    /// An eager send whose message has left: it has ended well, and can be withdrawn.
    Left,
    /// A posted receive; a caller that needs the full state replaces it by a [`Work::Recv`].
    Posted,
    /// It has ended well; the result waits to be collected.
    Done,
}

/// A light request. Its message is eager. Fields without meaning in a phase keep their old values.
#[derive(Debug)]
struct Light {
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
    buffer: Stretch,
}

/// A receive that can be light: it names its source and its tag, and its buffer is plain memory.
#[derive(Debug)]
pub(crate) struct Brief {
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
struct Entry {
    /// The result will not be collected.
    released: bool,
    /// Whom to tell of the end.
    wakers: Wakers,
    work: Work,
}

/// What became of a request that was [collected quietly](crate::Pml::collect_quietly).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It has ended well, and is gone.
    Well,
    /// It is in flight.
    NotYet,
    /// Unchanged: collecting it says why.
    Asks,
}

/// All requests of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// As many as `entries`.
    lights: Vec<Light>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    woken: Woken,
    /// How many have ended well.
    pub(crate) ended: Counters,
}

impl Light {
    #[inline]
    fn status(&self) -> Status {
        let Light { rank, tag, bytes, .. } = *self;
        Status { source: rank, tag, bytes, protocol: Protocol::Eager }
    }
}

impl Requests {
    /// A place of the table that is not in use.
    #[inline]
    fn place(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| self.grow())
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let index = u32::try_from(self.entries.len()).expect("fewer than 2^32 requests");
        self.entries.push(Entry { released: false, wakers: Wakers::default(), work: Work::Vacant });
        self.lights.push(Light {
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
            buffer: Stretch::nothing(),
        });
        index
    }

    /// Adds a request.
    pub(crate) fn insert(&mut self, work: Work) -> RequestId {
        let index = self.place();
        let (light, entry) = (&mut self.lights[index as usize], &mut self.entries[index as usize]);
        (light.phase, light.watched) = (Phase::Heavy, false);
        (entry.work, entry.released) = (work, false);
        RequestId::new(index, light.generation)
    }

    /// Adds an eager send whose message has left.
    #[inline]
    pub(crate) fn insert_left(&mut self, left: &Left) -> RequestId {
        let index = self.place();
        let light = &mut self.lights[index as usize];
        (light.phase, light.watched) = (Phase::Left, false);
        (light.peer, light.sequence) = (left.peer, left.sequence);
        (light.rank, light.tag) = (left.status.source, left.status.tag);
        light.bytes = left.status.bytes;
        RequestId::new(index, light.generation)
    }

    /// Adds a receive for a short message; `promise` makes its buffer, `post` posts it by its place in the table.
    #[inline(always)] // field by field into the table, or not at all
    pub(crate) fn insert_brief(
        &mut self,
        brief: &Brief,
        promise: impl FnOnce(&mut Stretch),
        post: impl FnOnce(u32) -> u32,
    ) -> RequestId {
        let index = self.place();
        let light = &mut self.lights[index as usize];
        (light.phase, light.watched) = (Phase::Posted, false);
        (light.rank, light.tag) = (brief.rank, brief.tag);
        (light.peer, light.context) = (brief.peer, brief.context);
        (light.hash, light.elements) = brief.digest;
        light.engine = brief.engine;
        promise(&mut light.buffer);
        light.bytes = light.buffer.bytes();
        light.place = post(index);
        RequestId::new(index, light.generation)
    }

    #[inline]
    fn light(&self, id: RequestId) -> Option<&Light> {
        let light = self.lights.get(id.index() as usize)?;
        (light.generation == id.generation()).then_some(light)
    }

    /// The work of a request that is not light.
    pub(crate) fn heavy(&self, id: RequestId) -> Option<&Work> {
        let light = self.light(id)?;
        (light.phase == Phase::Heavy).then(|| &self.entries[id.index() as usize].work)
    }

    /// The same, to be changed.
    pub(crate) fn heavy_mut(&mut self, id: RequestId) -> Option<&mut Work> {
        let light = self.light(id)?;
        (light.phase == Phase::Heavy).then(|| &mut self.entries[id.index() as usize].work)
    }

    /// The name of the request at a place of the table.
    pub(crate) fn id_at(&self, index: u32) -> Option<RequestId> {
        let light = self.lights.get(index as usize)?;
        Some(RequestId::new(index, light.generation))
    }

    /// A send that is in flight.
    pub(crate) fn send_mut(&mut self, id: RequestId) -> Option<&mut Send> {
        match self.heavy_mut(id)? {
            Work::Send(send) => Some(send),
            _ => None,
        }
    }

    /// A receive that is in flight.
    pub(crate) fn recv_mut(&mut self, id: RequestId) -> Option<&mut Recv> {
        if self.light(id)?.phase == Phase::Posted {
            self.write_out(id.index());
        }
        match self.heavy_mut(id)? {
            Work::Recv(recv) => Some(recv),
            _ => None,
        }
    }

    /// Turns a light posted receive into a full one.
    fn write_out(&mut self, index: u32) {
        let light = &mut self.lights[index as usize];
        light.phase = Phase::Heavy;
        let buffer = std::mem::replace(&mut light.buffer, Stretch::nothing());
        self.entries[index as usize].work = Work::Recv(Recv {
            buffer: buffer.into_buffer(light.engine.into()),
            context: light.context,
            source: Some(light.peer),
            survives: false,
            stage: RecvStage::Posted(Place::straight(light.place)),
        });
    }

    /// Ends the posted receive at a place of the table, if it is light, takes a message of this description, and
    /// `put` puts the data into its buffer; returns whether all this holds. If not, nothing has changed.
    #[inline]
    pub(crate) fn finish_brief(
        &mut self,
        index: u32,
        digest: (u64, u64),
        put: impl FnOnce(&Stretch) -> bool,
    ) -> bool {
        let Some(light) = self.lights.get_mut(index as usize) else { return false };
        let expected = light.phase == Phase::Posted && (light.hash, light.elements) == digest;
        if !expected || !put(&light.buffer) {
            return false;
        }
        self.ended.ended(Protocol::Eager, light.bytes);
        light.phase = Phase::Done;
        light.buffer.let_go();
        if light.watched {
            self.end_watched(index);
        }
        true
    }

    /// The buffer of the posted receive at a place of the table, if it is light, and takes a message of this description.
    pub(crate) fn brief_buffer(&self, index: u32, digest: (u64, u64)) -> Option<&Stretch> {
        let light = self.lights.get(index as usize)?;
        let expected = light.phase == Phase::Posted && (light.hash, light.elements) == digest;
        expected.then_some(&light.buffer)
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
        if self.light(id).is_some()
            && let Ok(status) = &result
        {
            self.ended.ended(status.protocol, status.bytes);
        }
        self.end(id, result.map_err(Into::into));
    }

    /// Ends an eager send whose message has left.
    pub(crate) fn finish_left(&mut self, id: RequestId, left: Left) {
        self.ended.ended(left.status.protocol, left.status.bytes);
        self.end(id, Ok(left.status));
        // Unless it was vacated by that.
        if let Some(light) = self.lights.get_mut(id.index() as usize)
            && light.generation == id.generation()
            && light.phase == Phase::Heavy
        {
            self.entries[id.index() as usize].work = Work::Vacant;
            light.phase = Phase::Left;
            (light.peer, light.sequence) = (left.peer, left.sequence);
            (light.rank, light.tag) = (left.status.source, left.status.tag);
            light.bytes = left.status.bytes;
        }
    }

    /// Ends a request that stands for no message, or whose message was counted when it left.
    pub(crate) fn finish_uncounted(&mut self, id: RequestId, result: Result<Status, PmlError>) {
        self.end(id, result.map_err(Failure::from));
    }

    fn end(&mut self, id: RequestId, result: Outcome) {
        let Some(light) = self.lights.get_mut(id.index() as usize) else { return };
        if light.generation != id.generation() {
            return;
        }
        light.phase = Phase::Heavy;
        light.buffer.let_go();
        let watched = light.watched;
        self.entries[id.index() as usize].work = Work::Done(result.map_err(Box::new));
        if watched {
            self.end_watched(id.index());
        }
    }

    /// The message of an eager send that has ended, and whose result was not collected.
    pub(crate) fn left(&self, id: RequestId) -> Option<Left> {
        let light = self.light(id).filter(|light| light.phase == Phase::Left)?;
        Some(Left { status: light.status(), peer: light.peer, sequence: light.sequence })
    }

    /// Makes an ended eager send wait for the fate of its message.
    pub(crate) fn recall(&mut self, id: RequestId, recalled: Recalled) {
        self.lights[id.index() as usize].phase = Phase::Heavy;
        self.entries[id.index() as usize].work = Work::Recalled(recalled);
    }

    /// What a withdrawn send waits for.
    pub(crate) fn recalled(&self, id: RequestId) -> Option<Recalled> {
        match self.heavy(id)? {
            Work::Recalled(recalled) => Some(*recalled),
            _ => None,
        }
    }

    /// The part of a request that is looked at if it is watched, in order.
    fn watch(&mut self, index: u32) -> &mut Entry {
        let (light, entry) = (&mut self.lights[index as usize], &mut self.entries[index as usize]);
        if !light.watched {
            light.watched = true;
            entry.released = false;
        }
        entry
    }

    /// Sets the waker for a request's end; `waker` then has the one that it replaces. Returns `false` if the request
    /// has ended.
    pub(crate) fn notify(
        &mut self,
        id: RequestId,
        waker: &mut Option<Waker>,
    ) -> Result<bool, PmlError> {
        let wakers = self.wakers(id)?;
        Ok(wakers.map(|wakers| std::mem::swap(&mut wakers.waker, waker)).is_some())
    }

    /// As [`notify`](Requests::notify), of a thread that sleeps until then, beside whoever else is to be called.
    pub(crate) fn notify_sleeper(
        &mut self,
        id: RequestId,
        waker: &mut Option<Waker>,
    ) -> Result<bool, PmlError> {
        let wakers = self.wakers(id)?;
        Ok(wakers.map(|wakers| std::mem::swap(&mut wakers.sleeper, waker)).is_some())
    }

    /// The wakers of a request, unless it has ended.
    fn wakers(&mut self, id: RequestId) -> Result<Option<&mut Wakers>, PmlError> {
        let ended = self.is_done(id)?;
        Ok((!ended).then(|| &mut self.watch(id.index()).wakers))
    }

    /// Keeps a completion of the caller's until wakers are called.
    pub(crate) fn lay_down(&mut self, completion: Completion) {
        self.woken.lay_down(completion);
    }

    #[inline]
    pub(crate) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Whether there is one that is not of a sleeping thread.
    pub(crate) fn has_woken_others(&self) -> bool {
        self.woken.has_others()
    }

    /// The wakers to call now; with `all`, also those whose requests go on.
    pub(crate) fn take_woken(&mut self, all: bool) -> Vec<Waker> {
        if all {
            self.entries.iter_mut().for_each(|entry| self.woken.add(&mut entry.wakers));
        }
        self.woken.take()
    }

    fn vacate(&mut self, index: u32) {
        let (light, entry) = (&mut self.lights[index as usize], &mut self.entries[index as usize]);
        (light.phase, light.watched) = (Phase::Vacant, false);
        light.buffer.let_go();
        light.generation = light.generation.wrapping_add(1);
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
        let light = self.light(id).ok_or(PmlError::NoSuchRequest)?;
        let entry = &self.entries[id.index() as usize];
        if light.watched && entry.released {
            return Err(PmlError::NoSuchRequest);
        }
        match light.phase {
            Phase::Vacant => Err(PmlError::NoSuchRequest),
            Phase::Heavy => Ok(matches!(entry.work, Work::Done(_))),
            Phase::Left | Phase::Done => Ok(true),
            Phase::Posted => Ok(false),
        }
    }

    /// Takes the result of a request that has ended; `None` while it is in flight.
    #[inline]
    pub(crate) fn collect(&mut self, id: RequestId) -> Result<Option<Status>, Failure> {
        let light = self.lights.get_mut(id.index() as usize).ok_or(PmlError::NoSuchRequest)?;
        if light.generation != id.generation() {
            return Err(PmlError::NoSuchRequest.into());
        }
        if light.watched || matches!(light.phase, Phase::Heavy | Phase::Vacant) {
            return self.collect_heavy(id);
        }
        if light.phase == Phase::Posted {
            return Ok(None);
        }
        let status = light.status();
        light.phase = Phase::Vacant;
        light.generation = light.generation.wrapping_add(1);
        self.free.push(id.index());
        Ok(Some(status))
    }

    #[inline(never)]
    fn collect_heavy(&mut self, id: RequestId) -> Result<Option<Status>, Failure> {
        if !self.is_done(id)? {
            return Ok(None);
        }
        let (light, entry) =
            (&self.lights[id.index() as usize], &mut self.entries[id.index() as usize]);
        let result = match std::mem::replace(&mut entry.work, Work::Vacant) {
            Work::Done(result) if light.phase == Phase::Heavy => result,
            _ => Ok(light.status()),
        };
        self.vacate(id.index());
        result.map(Some).map_err(|failure| *failure)
    }

    /// As [`collect`](Requests::collect), for callers that only need to know that it went well.
    #[inline]
    pub(crate) fn collect_quietly(&mut self, id: RequestId) -> Settled {
        let Some(light) = self.lights.get_mut(id.index() as usize) else { return Settled::Asks };
        if light.generation != id.generation() || light.watched {
            return Settled::Asks;
        }
        match light.phase {
            Phase::Left | Phase::Done => {}
            Phase::Posted => return Settled::NotYet,
            Phase::Heavy | Phase::Vacant => return Settled::Asks,
        }
        light.phase = Phase::Vacant;
        light.generation = light.generation.wrapping_add(1);
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
        self.lights.iter().zip(&self.entries).any(|(light, entry)| match light.phase {
            Phase::Posted => true,
            Phase::Heavy => !matches!(entry.work, Work::Done(_)),
            Phase::Vacant | Phase::Left | Phase::Done => false,
        })
    }

    /// Places of the table: as many as there ever were requests at once.
    pub(crate) fn places(&self) -> usize {
        self.entries.len()
    }

    /// All that requests do, or did, that are not light.
    pub(crate) fn works_mut(&mut self) -> impl Iterator<Item = &mut Work> {
        let all = self.lights.iter().zip(&mut self.entries);
        all.filter(|(light, _)| light.phase == Phase::Heavy).map(|(_, entry)| &mut entry.work)
    }

    /// All operations under way, for a peer's death.
    pub(crate) fn under_way(&mut self) -> impl Iterator<Item = (RequestId, &Work)> {
        for index in (0u32..).take(self.lights.len()) {
            if self.lights[index as usize].phase == Phase::Posted {
                self.write_out(index);
            }
        }
        let all = self.lights.iter().zip(&self.entries);
        (0u32..).zip(all).filter_map(|(index, (light, entry))| match entry.work {
            Work::Send(_) | Work::Recv(_) | Work::Recalled(_) if light.phase == Phase::Heavy => {
                Some((RequestId::new(index, light.generation), &entry.work))
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
