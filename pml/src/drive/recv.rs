//! Receives: starting one, the states it goes through, its end.

use crate::arrival::{Arrival, Matched};
use crate::buffer::{self, Buffer};
use crate::comm::Comm;
use crate::drive::core::Core;
use crate::drive::operation::{Operation, Recv, RecvStage};
use crate::error::{Failure, PmlError};
use crate::matching::{MessageId, Pattern, Source, TagSel};
use crate::status::{RequestId, Status};
use crate::wire::{Label, Verdict};
use gapless_bml::Bml;
use gapless_engine::Typed;
use gapless_mem::Space;

/// Refuses to receive into a layout that names a byte twice, as far as that is [found](Typed::overlaps).
#[inline]
fn once_each(buffer: &Typed) -> Result<(), PmlError> {
    match buffer.overlaps() {
        true => Err(PmlError::OverlappingReceive { count: buffer.count() }),
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
        match self.matching.probe(pattern) {
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
        let held = self.matching.take(pattern);
        if held.is_none() {
            self.await_sender(bml, comm, pattern)?;
        }
        // SAFETY: the caller's promise is the one that a buffer takes.
        let buffer = unsafe { Buffer::promised(buffer, engine) };
        let (context, source, survives) = (pattern.context, pattern.source, comm.survives());
        let recv = Recv { buffer, context, source, survives, stage: RecvStage::Unmatched };
        let id = self.requests.insert(Operation::Recv(recv));
        match held {
            Some((label, arrival)) => self.receive_held(bml, id, label, arrival),
            None => {
                let place = self.matching.posted.post(pattern, id.index());
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
        let id = self.requests.insert(Operation::Recv(recv));
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
        let Some((label, held)) = self.matching.probe(pattern) else {
            self.await_sender(bml, comm, pattern)?;
            return Ok(None);
        };
        let bytes = held.envelope().digest.bytes;
        let protocol = held.protocol();
        let source = comm.rank_of(label.source).unwrap_or(label.source);
        Ok(Some(Status { source, tag: label.tag, bytes, protocol }))
    }

    /// Cancels a receive that no message has taken; returns whether it was in time.
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
        self.matching.posted.remove(place);
        self.requests.finish(id, Err(PmlError::Cancelled));
        true
    }

    /// Takes out the message that a receive would take.
    pub(crate) fn claim(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        source: Source,
        tag: TagSel,
    ) -> Result<Option<(MessageId, Status)>, PmlError> {
        let Some(status) = self.probe(bml, comm, source, tag)? else { return Ok(None) };
        let pattern = self.pattern(comm, source, tag)?;
        Ok(self.matching.claim(pattern, status).map(|message| (message, status)))
    }

    /// The message behind a claim, which is over; whoever asks has room for `room` bytes.
    pub(crate) fn unclaim(
        &mut self,
        message: &MessageId,
        room: u64,
    ) -> Result<(Label, Arrival), Failure> {
        let claim = self.matching.unclaim(message);
        let (label, status, held) = claim.ok_or(PmlError::NoSuchMessage)?;
        held.map(|held| (label, held)).ok_or_else(|| {
            // Its sender was lost, or the communicator revoked.
            let error = self.links.fault(label.source).unwrap_or(PmlError::Revoked);
            Failure::of_message(error, Status { bytes: status.bytes.min(room), ..status })
        })
    }

    /// Drops a message; its sender's request ends as if nothing of it had been wanted.
    pub(crate) fn drop_claim(&mut self, bml: &mut Bml, message: &MessageId) {
        if let Ok((label, arrival)) = self.unclaim(message, 0) {
            self.refuse_message(bml, label.source, arrival, Verdict::Refused);
        }
    }

    /// Ends a receive that took a message.
    pub(crate) fn finish_recv(&mut self, id: RequestId, matched: Matched) {
        let Some(recv) = self.requests.recv_mut(id) else { return };
        let (context, bytes) = (recv.context, recv.buffer.bytes());
        if let RecvStage::Incoming(incoming) = &recv.stage {
            let reply = incoming.reply;
            self.requests.unname(reply);
        }
        let Matched { from, tag, sent, protocol, failure } = matched;
        let bytes = match &failure {
            // Nothing is received, and nothing is what the status counts.
            Some(PmlError::SignatureMismatch { .. }) => 0,
            _ => sent.min(bytes),
        };
        let status = Status { source: self.comms.rank_in(context, from), tag, bytes, protocol };
        let result = match failure {
            None => Ok(status),
            Some(error) => Err(Failure::of_message(error, status)),
        };
        self.requests.finish(id, result);
    }
}
