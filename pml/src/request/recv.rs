//! Receives: starting one, the states it goes through, its end.

use crate::buffer::{self, Buffer};
use crate::choose::Protocol;
use crate::comm::Comm;
use crate::digests::Digests;
use crate::drive::core::Core;
use crate::error::{Failure, PmlError};
use crate::matching::claim::MessageId;
use crate::matching::{Pattern, Place};
use crate::request::{RequestId, Status, Work};
use crate::rndv::decide::Incoming;
use crate::wire::Envelope;
use gapless_bml::Bml;
use gapless_dtype::SignatureError;
use gapless_engine::Typed;
use gapless_mem::Space;

/// Whose messages a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Any member's (`MPI_ANY_SOURCE`).
    Any,
    /// This rank's.
    Rank(u32),
}

/// Which tags a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagSel {
    /// Any (`MPI_ANY_TAG`).
    Any,
    /// This one.
    Is(i32),
}

impl From<u32> for Source {
    fn from(rank: u32) -> Source {
        Source::Rank(rank)
    }
}

impl From<i32> for TagSel {
    fn from(tag: i32) -> TagSel {
        TagSel::Is(tag)
    }
}

/// A receive in flight.
#[derive(Debug)]
pub(crate) struct Recv {
    pub(crate) buffer: Buffer,
    pub(crate) context: u32,
    /// The process it takes messages of, if it names one.
    pub(crate) source: Option<u32>,
    /// It goes on if its communicator is revoked.
    pub(crate) survives: bool,
    pub(crate) stage: RecvStage,
}

/// What a receive is waiting for.
#[derive(Debug)]
pub(crate) enum RecvStage {
    /// Being started or matched.
    Unmatched,
    /// A message.
    Posted(Place),
    /// An engine that scatters an eager message.
    Unpacking { from: u32 },
    /// A rendezvous.
    Incoming(Box<Incoming>),
}

/// The message a receive took, and how that ended.
#[derive(Clone, Debug)]
pub(crate) struct Matched {
    pub(crate) from: u32,
    pub(crate) tag: i32,
    /// The message's bytes, whether or not the receive has room for all of them.
    pub(crate) sent: u64,
    pub(crate) protocol: Protocol,
    pub(crate) failure: Option<PmlError>,
}

impl Recv {
    /// Whether a message fits.
    pub(crate) fn verdict(
        &self,
        digests: &mut Digests,
        envelope: &Envelope,
    ) -> Result<(), PmlError> {
        let typed = self.buffer.typed();
        // The same types in the same number: by far the most frequent case.
        if digests.of(typed.layout(), typed.count()) == envelope.digest {
            return Ok(());
        }
        let posted = typed.layout().signature();
        match posted.accepts_prefix(typed.count(), &envelope.digest) {
            Ok(()) => Ok(()),
            Err(SignatureError::TooLong { sent_bytes, posted_bytes }) => {
                let (sent, room) = (sent_bytes, posted_bytes);
                Err(PmlError::Truncated { sent, room })
            }
            Err(error) => Err(PmlError::SignatureMismatch { error }),
        }
    }

    /// The peer whose message it is receiving.
    pub(crate) fn receiving_from(&self) -> Option<u32> {
        match &self.stage {
            RecvStage::Unmatched | RecvStage::Posted(_) => None,
            RecvStage::Unpacking { from } => Some(*from),
            RecvStage::Incoming(incoming) => Some(incoming.from),
        }
    }
}

/// Refuses to receive into a layout that names a byte twice, as far as that is [found](gapless_dtype::Layout::overlaps).
#[inline]
fn once_each(buffer: &Typed) -> Result<(), PmlError> {
    let count = buffer.count();
    match buffer.stretch().is_none() && buffer.layout().overlaps(count) {
        true => Err(PmlError::OverlappingReceive { count }),
        false => Ok(()),
    }
}

impl Core {
    /// What a source and a tag stand for in a communicator.
    pub(crate) fn pattern(
        &self,
        comm: &Comm,
        source: Source,
        tag: TagSel,
    ) -> Result<Pattern, PmlError> {
        let source = match source {
            Source::Any => None,
            Source::Rank(rank) => Some(comm.process_of(rank, "the source of a receive or probe")?),
        };
        let tag = match tag {
            TagSel::Any => None,
            TagSel::Is(tag) if tag < 0 && !comm.is_collective() => {
                return Err(PmlError::InvalidTag { tag });
            }
            TagSel::Is(tag) => Some(tag),
        };
        self.comms.check(comm)?;
        Ok(Pattern { context: comm.context(), source, tag })
    }

    /// Whether a receive can be started; nothing is.
    pub(crate) fn check_recv(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        source: Source,
        tag: TagSel,
    ) -> Result<(), PmlError> {
        let pattern = self.pattern(comm, source, tag)?;
        once_each(buffer)?;
        buffer::engine_for(&self.engines, buffer)?;
        match self.unexpected.peek(pattern) {
            Some(_) => Ok(()),
            None => self.somebody_left(comm, pattern),
        }
    }

    /// Starts a receive.
    ///
    /// # Safety
    /// As [`Pml::irecv`](crate::Pml::irecv).
    pub(crate) unsafe fn irecv(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        buffer: &Typed,
        rank: Source,
        tag: TagSel,
    ) -> Result<RequestId, PmlError> {
        let pattern = self.pattern(comm, rank, tag)?;
        once_each(buffer)?;
        let engine = match self.host {
            Some(engine) if buffer.space() == Space::Host => engine,
            _ => buffer::engine_for(&self.engines, buffer)?,
        };
        if !buffer.space().cpu_accessible() {
            self.know_device(bml, engine, buffer.space());
        }
        let held = self.unexpected.take(pattern);
        if held.is_none() {
            self.somebody_left(comm, pattern)?;
            if let Some(source) = pattern.source {
                self.approach(bml, source);
            }
        }
        // SAFETY: the caller's promise is the one that a buffer takes.
        let buffer = unsafe { Buffer::promised(buffer, engine) };
        let (context, source, survives) = (pattern.context, pattern.source, comm.survives());
        let recv = Recv { buffer, context, source, survives, stage: RecvStage::Unmatched };
        let id = self.requests.insert(Work::Recv(recv));
        match held {
            Some((label, held)) => {
                let arrival = self.unkeep(label, held);
                self.receive_held(bml, id, label, arrival);
            }
            None => {
                let place = self.posted.post(pattern, id.index());
                if let Some(recv) = self.requests.recv_mut(id) {
                    recv.stage = RecvStage::Posted(place);
                }
            }
        }
        Ok(id)
    }

    /// Starts to receive a message that was claimed.
    ///
    /// # Safety
    /// As [`Pml::irecv`](crate::Pml::irecv).
    pub(crate) unsafe fn imrecv(
        &mut self,
        bml: &mut Bml,
        message: &MessageId,
        buffer: &Typed,
    ) -> Result<RequestId, Failure> {
        once_each(buffer)?;
        let engine = buffer::engine_for(&self.engines, buffer)?;
        if !buffer.space().cpu_accessible() {
            self.know_device(bml, engine, buffer.space());
        }
        let (label, arrival) = self.unclaim(message, buffer.packed_bytes())?;
        // SAFETY: the caller's promise is the one that a buffer takes.
        let buffer = unsafe { Buffer::promised(buffer, engine) };
        let (context, source) = (label.context, Some(label.source));
        let stage = RecvStage::Unmatched;
        let recv = Recv { buffer, context, source, survives: false, stage };
        let id = self.requests.insert(Work::Recv(recv));
        self.receive_held(bml, id, label, arrival);
        Ok(id)
    }

    /// The message that a receive would take.
    pub(crate) fn probe(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        source: Source,
        tag: TagSel,
    ) -> Result<Option<Status>, PmlError> {
        let pattern = self.pattern(comm, source, tag)?;
        let Some((label, held)) = self.unexpected.peek(pattern) else {
            self.somebody_left(comm, pattern)?;
            if let Some(source) = pattern.source {
                self.approach(bml, source);
            }
            return Ok(None);
        };
        let bytes = held.envelope().digest.bytes;
        let protocol = held.protocol();
        let source = comm.rank_of(label.source).unwrap_or(label.source);
        Ok(Some(Status { source, tag: label.tag, bytes, protocol }))
    }

    /// Withdraws a receive that no message has taken; returns whether it was in time.
    pub(crate) fn cancel(&mut self, id: RequestId) -> Result<bool, PmlError> {
        if self.requests.is_done(id)? {
            return Ok(false);
        }
        Ok(self.cancel_any(id))
    }

    /// As [`cancel`](Core::cancel), also for released requests.
    pub(crate) fn cancel_any(&mut self, id: RequestId) -> bool {
        let Some(recv) = self.requests.recv_mut(id) else { return false };
        let RecvStage::Posted(place) = recv.stage else { return false };
        self.posted.withdraw(place);
        self.requests.finish(id, Err(PmlError::Cancelled));
        true
    }

    /// The rank of a process in the communicator of a context.
    pub(crate) fn rank_in(&self, context: u32, process: u32) -> u32 {
        self.comms.rank_in(context, process)
    }

    /// Ends a receive that took a message.
    pub(crate) fn finish_recv(&mut self, id: RequestId, matched: Matched) {
        let Some(recv) = self.requests.recv_mut(id) else { return };
        if let RecvStage::Incoming(incoming) = &recv.stage {
            self.serials.remove(&incoming.reply);
        }
        let Matched { from, tag, sent, protocol, failure } = matched;
        let room = match &failure {
            // Nothing is received, and nothing is what the status counts.
            Some(PmlError::SignatureMismatch { .. }) => 0,
            _ => recv.buffer.bytes(),
        };
        let (context, bytes) = (recv.context, sent.min(room));
        let status = Status { source: self.rank_in(context, from), tag, bytes, protocol };
        let result = match failure {
            None => Ok(status),
            Some(error) => Err(Failure::of_message(error, status)),
        };
        self.requests.finish(id, result);
    }
}
