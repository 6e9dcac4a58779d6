//! Partitioned messages (MPI 4.1 §4.2): the sender hands a message over part by part.
//!
//! Each partition of the sender is an ordinary message in the communicator's collective context, with a tag of its own.
//! When a send is described, it announces which tags these are, and how long a partition is. Announcements of one source
//! and tag belong to receives in the order in which these were described.
//!
//! ```text
//! sender                                                            receiver
//!   | ANNOUNCE  0 tag | 8 partitions | 16 bytes of each | 24 first --> |  once
//!   | partition p, with tag first + p ------------------------------> |  in each start
//! ```
//!
//! A receiver that knows its sender's partitions posts a receive for each, into whatever part of its memory that is.

use super::request::{Request, RequestKind, Work};
use crate::collective::cut;
use crate::communicator::Communicator;
use crate::error::Error;
use gapless_dtype::{Datatype, Primitive, Run};
use gapless_engine::Typed;
use gapless_mem::Region;
use gapless_pml::{
    Comm, PARTITION_TAGS, Pml, PmlError, Protocol, RequestId, SendMode, Source, Status, TagSel,
    partition_tag,
};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Which of the tags announcements have.
const ANNOUNCE: u32 = 0;

/// Bytes of an announcement.
const ANNOUNCE_BYTES: usize = 32;

/// Runs that a convertor gives at a time.
const RUNS: usize = 64;

/// What a sender tells of itself.
#[derive(Clone, Copy, Debug)]
struct Announcement {
    source: u32,
    tag: i32,
    partitions: u32,
    /// Of each partition.
    bytes: u64,
    /// The number of the first partition's tag.
    first: u32,
}

impl Announcement {
    fn to_bytes(self) -> [u8; ANNOUNCE_BYTES] {
        let Announcement { tag, partitions, bytes, first, .. } = self;
        let words = [u64::from(tag.cast_unsigned()), partitions.into(), bytes, first.into()];
        let mut all = [0; ANNOUNCE_BYTES];
        for (place, word) in all.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        all
    }

    /// `None`: no sender has written this.
    fn read(source: u32, all: &[u8; ANNOUNCE_BYTES]) -> Option<Announcement> {
        let mut words = all.chunks_exact(8).filter_map(|word| word.try_into().ok());
        let mut word = || words.next().map(u64::from_le_bytes);
        let tag = i32::try_from(word()?).ok()?;
        let partitions = u32::try_from(word()?).ok()?;
        let (bytes, first) = (word()?, u32::try_from(word()?).ok()?);
        let fits = first.checked_add(partitions).is_some_and(|end| end <= PARTITION_TAGS);
        fits.then_some(Announcement { source, tag, partitions, bytes, first })
    }
}

/// The partitioned messages of a communicator.
#[derive(Debug, Default)]
pub(crate) struct Channels(Mutex<AllChannels>);

#[derive(Debug, Default)]
struct AllChannels {
    /// The number of the next sender's first tag.
    next: u32,
    /// Announcements that no receive was described for, in the order in which they came.
    heard: Vec<Announcement>,
    /// Receives that have no announcement, in the order in which they were described. A dropped one takes its own, too.
    waiting: Vec<(u32, i32, Weak<Partitioned>)>,
    reading: Vec<ReadingAnnouncement>,
}

/// An announcement on its way into this memory, which stays for ever if its end is never seen.
#[derive(Debug)]
struct ReadingAnnouncement {
    source: u32,
    request: RequestId,
    memory: ManuallyDrop<Box<[u8; ANNOUNCE_BYTES]>>,
}

/// One end of a partitioned message.
#[derive(Debug)]
pub(crate) struct Partitioned {
    comm: Communicator,
    context: Comm,
    sends: bool,
    /// The other end's rank.
    peer: u32,
    tag: i32,
    partitions: u32,
    typed: Typed,
    state: Mutex<Progress>,
}

/// How far it is.
#[derive(Debug, Default)]
struct Progress {
    /// What the sender has announced; known to a receiver once it has heard that.
    announced: Option<Announcement>,
    /// The memory of each of the sender's partitions.
    parts: Vec<Typed>,
    /// The messages of this start, as far as they were started.
    messages: Vec<Option<RequestId>>,
    /// Whether a receiver has posted this start's receives.
    posted: bool,
    /// So many of the messages have ended.
    ended: usize,
    bytes: u64,
    failed: Option<Error>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Channels {
    /// Takes tags for a sender's partitions.
    fn tags(&self, partitions: u32) -> Result<u32, Error> {
        let mut all = lock(&self.0);
        if partitions >= PARTITION_TAGS {
            return Err(Error::Partition { partition: PARTITION_TAGS, partitions });
        }
        let end = all.next.max(ANNOUNCE + 1) + partitions;
        // After 2^28 partitions tags start again. A send described before must be gone by then: nothing checks that.
        let end = if end > PARTITION_TAGS { ANNOUNCE + 1 + partitions } else { end };
        all.next = end;
        Ok(end - partitions)
    }

    /// A receive was described.
    fn await_announcement(&self, receive: &Arc<Partitioned>) {
        let mut all = lock(&self.0);
        let is_its = |one: &Announcement| (one.source, one.tag) == (receive.peer, receive.tag);
        match all.heard.iter().position(is_its) {
            Some(at) => lock(&receive.state).announced = Some(all.heard.remove(at)),
            None => all.waiting.push((receive.peer, receive.tag, Arc::downgrade(receive))),
        }
    }

    /// Hears the announcements of a sender that have come.
    fn hear(&self, pml: &mut Pml, context: &Comm, source: u32) -> Result<(), PmlError> {
        let mut all = lock(&self.0);
        loop {
            if let Some(at) = all.reading.iter().position(|one| one.source == source) {
                let ended = match pml.collect(all.reading[at].request) {
                    Ok(None) => return Ok(()),
                    ended => ended,
                };
                let ReadingAnnouncement { memory, .. } = all.reading.swap_remove(at);
                // Its request has ended: nothing writes it any more.
                let memory = ManuallyDrop::into_inner(memory);
                ended.map_err(|failure| failure.error)?;
                let told = Announcement::read(source, &memory);
                all.pass_on(told.ok_or(PmlError::Bug { what: "an announcement of nothing" })?);
            }
            let tag = TagSel::Is(partition_tag(ANNOUNCE));
            let Some((message, _)) = pml.claim(context, Source::Rank(source), tag)? else {
                return Ok(());
            };
            let mut memory = ManuallyDrop::new(Box::new([0; ANNOUNCE_BYTES]));
            let typed = Typed::contiguous(Region::of_mut(&mut memory[..]));
            // SAFETY: the memory is freed only by the lines above, once the request has ended.
            let request =
                unsafe { pml.imrecv(&message, &typed) }.map_err(|failure| failure.error)?;
            all.reading.push(ReadingAnnouncement { source, request, memory });
        }
    }
}

impl AllChannels {
    fn pass_on(&mut self, told: Announcement) {
        let is_its = |&(peer, tag, _): &(u32, i32, _)| (peer, tag) == (told.source, told.tag);
        match self.waiting.iter().position(is_its) {
            Some(at) => {
                if let Some(receive) = self.waiting.remove(at).2.upgrade() {
                    lock(&receive.state).announced = Some(told);
                }
            }
            None => self.heard.push(told),
        }
    }
}

impl Partitioned {
    /// Describes one end: a send, or a receive. A send is announced.
    pub(super) fn new(
        comm: &Communicator,
        (partitions, typed): (u32, &Typed),
        (sends, peer, tag): (bool, u32, i32),
    ) -> Result<Arc<Partitioned>, Error> {
        if tag < 0 {
            return Err(PmlError::InvalidTag { tag }.into());
        }
        comm.comm.process(peer)?;
        let count = typed.count();
        if !count.is_multiple_of(u64::from(partitions.max(1))) {
            return Err(Error::Partition { partition: partitions, partitions });
        }
        let context = comm.comm.collective();
        let (comm, typed) = (comm.clone(), typed.clone());
        let state = Mutex::default();
        let one = Partitioned { comm, context, sends, peer, tag, partitions, typed, state };
        let one = Arc::new(one);
        if sends {
            one.announce()?;
        } else {
            one.comm.common.channels.await_announcement(&one);
        }
        Ok(one)
    }

    fn announce(&self) -> Result<(), Error> {
        let Partitioned { comm, context, peer, tag, partitions, typed, .. } = self;
        // Too many are refused here.
        let first = comm.common.channels.tags(*partitions)?;
        let each = typed.count() / u64::from((*partitions).max(1));
        let starts: Vec<u64> = (0..u64::from(*partitions)).map(|at| at * each).collect();
        let parts = cut(typed, &vec![each; starts.len()], &starts)?;
        let bytes = typed.packed_bytes() / u64::from((*partitions).max(1));
        let source = comm.rank();
        let told = Announcement { source, tag: *tag, partitions: *partitions, bytes, first };
        let words = told.to_bytes();
        let message = Typed::contiguous(Region::of(&words));
        comm.shared.with(|state| {
            let pml = state.open()?;
            // SAFETY: the bytes are borrowed until this returns.
            let sent =
                unsafe { pml.isend_copy(context, &message, *peer, partition_tag(ANNOUNCE)) }?;
            pml.release(sent)?;
            comm.shared.rouse(state);
            Ok(())
        })?;
        let mut state = lock(&self.state);
        (state.announced, state.parts) = (Some(told), parts);
        Ok(())
    }

    /// Starts it. The caller has the world's lock.
    pub(super) fn start(&self, pml: &mut Pml) {
        let state = &mut *lock(&self.state);
        let Progress { announced, parts, .. } = std::mem::take(state);
        let messages = if self.sends { vec![None; parts.len()] } else { Vec::new() };
        *state = Progress { announced, parts, messages, ..Progress::default() };
        self.post(pml, state);
    }

    /// A receiver that knows its sender's partitions posts its receives.
    fn post(&self, pml: &mut Pml, state: &mut Progress) {
        let Some(told) = state.announced.filter(|_| !self.sends && !state.posted) else { return };
        if state.parts.is_empty() {
            let parts: Result<Vec<Typed>, Error> =
                (0..told.partitions).map(|at| self.part(told.bytes, at)).collect();
            match parts {
                Ok(parts) => state.parts = parts,
                Err(error) => state.failed = Some(error),
            }
        }
        state.posted = true;
        for (at, part) in (told.first..).zip(&state.parts) {
            let tag = TagSel::Is(partition_tag(at));
            // SAFETY: whoever described the receive vouches for the memory from each start on, until that has ended:
            // not before all of these requests have.
            match unsafe { pml.irecv(&self.context, part, Source::Rank(self.peer), tag) } {
                Ok(id) => state.messages.push(Some(id)),
                Err(error) => {
                    state.failed.get_or_insert(error.into());
                    return;
                }
            }
        }
    }

    /// The memory of a sender's partition of so many bytes, as far as there is any.
    fn part(&self, bytes: u64, at: u32) -> Result<Typed, Error> {
        let total = self.typed.packed_bytes();
        let start = bytes.saturating_mul(at.into()).min(total);
        let len = bytes.min(total - start);
        let size = if self.typed.count() == 0 { 0 } else { total / self.typed.count() };
        if size > 0 && start.is_multiple_of(size) && len.is_multiple_of(size) {
            let mut blocks = cut(&self.typed, &[len / size], &[start / size])?;
            if let Some(block) = blocks.pop() {
                return Ok(block);
            }
        }
        let mut convertor = self.typed.convertor()?;
        convertor.seek(start).map_err(gapless_engine::EngineError::from)?;
        let (mut lens, mut displacements, mut left) = (Vec::new(), Vec::new(), len);
        while left > 0 {
            let mut runs = [Run { displacement: 0, len: 0 }; RUNS];
            let (used, taken) = convertor.iov(&mut runs, left);
            if taken == 0 {
                break;
            }
            lens.extend(runs[..used].iter().map(|run| run.len));
            displacements.extend(runs[..used].iter().map(|run| run.displacement));
            left -= taken;
        }
        let pieces =
            Datatype::hindexed(&lens, &displacements, &Primitive::Byte.into())?.commit()?;
        Ok(Typed::new(self.typed.region(), self.typed.origin(), &pieces, 1)?)
    }

    /// A partition of an active send may be sent. The caller has the world's lock.
    pub(super) fn ready(&self, pml: &mut Pml, partition: u32) -> Result<(), Error> {
        let state = &mut *lock(&self.state);
        let at = partition as usize;
        let (Some(told), true) = (state.announced, self.sends) else {
            return Err(PmlError::NoSuchRequest.into());
        };
        match (state.messages.get_mut(at), state.parts.get(at)) {
            (Some(message @ None), Some(part)) => {
                let tag = partition_tag(told.first + partition);
                let standard = SendMode::Standard;
                // SAFETY: as in `post`, of the memory of this partition from now on.
                let sent = unsafe { pml.isend_mode(&self.context, part, self.peer, tag, standard) };
                // What could not be sent counts as over.
                *message = Some(sent.as_ref().map_or(RequestId::OVER, |id| *id));
                if let Err(error) = sent {
                    let error = Error::from(error);
                    state.failed.get_or_insert(error.clone());
                    return Err(error);
                }
                Ok(())
            }
            _ => Err(Error::Partition { partition, partitions: self.partitions }),
        }
    }

    /// Whether a partition of an active receive has come. The caller has the world's lock.
    pub(super) fn has_arrived(&self, pml: &Pml, partition: u32) -> Result<bool, Error> {
        if self.sends {
            return Err(PmlError::NoSuchRequest.into());
        }
        if partition >= self.partitions {
            return Err(Error::Partition { partition, partitions: self.partitions });
        }
        let state = lock(&self.state);
        let Some(told) = state.announced.filter(|_| state.posted) else { return Ok(false) };
        let len = self.typed.packed_bytes() / u64::from(self.partitions);
        let start = len * u64::from(partition);
        let of = state.messages.len();
        let messages = match len > 0 && told.bytes > 0 {
            true => overlapping(start..start + len, told.bytes, of),
            false => share(partition, self.partitions, of),
        };
        let over = |at: usize| {
            let id = state.messages.get(at).copied().flatten();
            at < state.ended || id.is_none_or(|id| pml.is_done(id) != Ok(false))
        };
        Ok(messages.into_iter().all(over))
    }
}

/// Which of so many messages of nothing are a partition's.
fn share(partition: u32, partitions: u32, messages: usize) -> Range<usize> {
    let at = |number: u64| number * messages as u64;
    let (start, end, of) = (at(partition.into()), at(u64::from(partition) + 1), partitions.into());
    overlapping(start..end, of, messages)
}

/// Which of so many messages of some bytes have a byte in the range.
fn overlapping(range: Range<u64>, bytes: u64, messages: usize) -> Range<usize> {
    let at = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).min(messages);
    at(range.start / bytes)..at(range.end.div_ceil(bytes))
}

impl Request {
    /// Describes a send of which each partition is handed over by [`pready`](Request::pready) once it was
    /// [started](Request::start) (`MPI_Psend_init`, MPI 4.1 §4.2.1). `typed` is all of the message, cut into `partitions`
    /// of as many instances each.
    ///
    /// # Safety
    /// From each start on, until what was started has ended: the memory is valid for reads, and nothing writes a
    /// partition once it was handed over.
    ///
    /// # Errors
    /// No such rank; a negative tag; [`Error::Partition`]: the instances are no multiple of `partitions`.
    pub unsafe fn psend_init(
        comm: &Communicator,
        (partitions, typed): (u32, &Typed),
        dest: u32,
        tag: i32,
    ) -> Result<Request, Error> {
        let end = Partitioned::new(comm, (partitions, typed), (true, dest, tag))?;
        Ok(Request::new(&comm.shared, RequestKind::Partitioned(end), None))
    }

    /// Describes a receive from a partitioned send, whose partitions may be others (`MPI_Precv_init`, MPI 4.1 §4.2.1).
    /// Sends and receives of two ranks and a tag belong together in the order in which they are described.
    /// [`parrived`](Request::parrived) says which partitions have come.
    ///
    /// # Safety
    /// From each start on, until what was started has ended: the memory is valid for reads and writes, and nothing else
    /// touches a partition that has not come.
    ///
    /// # Errors
    /// As [`psend_init`](Request::psend_init).
    pub unsafe fn precv_init(
        comm: &Communicator,
        (partitions, typed): (u32, &Typed),
        source: u32,
        tag: i32,
    ) -> Result<Request, Error> {
        let end = Partitioned::new(comm, (partitions, typed), (false, source, tag))?;
        Ok(Request::new(&comm.shared, RequestKind::Partitioned(end), None))
    }

    /// A partition of an active partitioned send may be sent (`MPI_Pready`, MPI 4.1 §4.2.2). Any thread may say so.
    ///
    /// # Errors
    /// [`Error::Partition`]: there is none of this number, or it was handed over already. [`Error::Inactive`];
    /// [`PmlError::NoSuchRequest`]: it is no partitioned send. The receiver is lost.
    pub fn pready(&self, partition: u32) -> Result<(), Error> {
        let end = self.partitioned()?;
        self.active.ok_or(Error::Inactive)?;
        self.shared.with(|state| {
            end.ready(state.open()?, partition)?;
            self.shared.rouse(state);
            Ok(())
        })
    }

    /// Whether a partition of a partitioned receive has come (`MPI_Parrived`, MPI 4.1 §4.2.2), which it has if the
    /// request is inactive; makes progress. Why one has failed, waiting says.
    ///
    /// # Errors
    /// [`Error::Partition`]: there is none of this number; [`PmlError::NoSuchRequest`]: it is no partitioned receive.
    pub fn parrived(&self, partition: u32) -> Result<bool, Error> {
        let end = self.partitioned()?;
        self.shared.with(|state| {
            self.shared.drive_once(state);
            let arrived = end.has_arrived(&state.pml, partition)?;
            Ok(arrived || self.active.is_none())
        })
    }

    fn partitioned(&self) -> Result<&Partitioned, Error> {
        match &self.kind {
            RequestKind::Partitioned(end) => Ok(end),
            _ => Err(PmlError::NoSuchRequest.into()),
        }
    }
}

impl Work for Partitioned {
    fn advance(&self, pml: &mut Pml) -> bool {
        let unheard = !self.sends && lock(&self.state).announced.is_none();
        if unheard && let Err(error) = self.comm.common.channels.hear(pml, &self.context, self.peer)
        {
            lock(&self.state).failed.get_or_insert(error.into());
            return true;
        }
        let state = &mut *lock(&self.state);
        self.post(pml, state);
        if state.announced.is_none() {
            return false;
        }
        while let Some(message) = state.messages.get(state.ended) {
            match message.map(|id| pml.collect(id)) {
                None | Some(Ok(None)) => return false,
                Some(Ok(Some(status))) => state.bytes += status.bytes,
                Some(Err(failure)) => {
                    state.failed.get_or_insert(failure.into());
                }
            }
            state.ended += 1;
        }
        true
    }

    fn finish(&self) -> Result<Status, Error> {
        let Progress { bytes, ref mut failed, .. } = *lock(&self.state);
        let (source, tag) = (self.peer, self.tag);
        let status = Status { source, tag, bytes, protocol: Protocol::Eager };
        failed.take().map_or(Ok(status), Err)
    }
}
