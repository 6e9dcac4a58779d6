//! Sends that wait for work of the caller's: the message is matched at once, in order, and its data is read only when
//! that work has ended.
//!
//! ```text
//! sender                                receiver
//!   | RTS(offer, later) --------------> | matched, and nothing more
//!   | the caller's work ends            |
//!   | NOTE(go, serial) ---------------> | choose, as for any offer
//!   |   or: that work has failed        |
//!   | NOTE(fail, serial) -------------> | ends with SenderFailed
//!   | <----------------- FIN(refused) - |
//! ```
//!
//! Short messages are offered, too. An eager message's data would have to leave in order, and later messages would wait
//! for work that may itself wait for later messages. For the same reason engines are told nothing before the work has
//! ended: their streams serve all messages.
//!
//! The cost of a note on an unmatched message is in proportion to the messages that wait at the receiver.

use crate::arrival::Arrival;
use crate::buffer::Buffer;
use crate::comm::Comm;
use crate::drive::core::Core;
use crate::drive::operation::SendStage;
use crate::error::PmlError;
use crate::links::Outgoing;
use crate::rndv::in_flight::InFlight;
use crate::rndv::incoming::IncomingStage;
use crate::status::RequestId;
use crate::wire::{self, DataState, NoteKind, SendMode, Verdict};
use gapless_bml::Bml;
use gapless_engine::{EngineError, Typed};
use gapless_mem::Completion;

/// The completions of `after` that have not ended.
fn outstanding(after: &[Completion]) -> Result<Vec<Completion>, EngineError> {
    let mut left = Vec::new();
    for completion in after {
        if !completion.poll()? {
            left.push(completion.clone());
        }
    }
    Ok(left)
}

impl Core {
    /// Starts a send whose data is there once all of `after` have ended.
    ///
    /// # Safety
    /// As [`Pml::isend_after`](crate::Pml::isend_after).
    pub(crate) unsafe fn isend_after(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        buffer: &Typed,
        (rank, tag): (u32, i32),
        after: &[Completion],
    ) -> Result<RequestId, PmlError> {
        let mut left = outstanding(after)?;
        let Some(completion) = left.pop() else {
            // SAFETY: the caller's promise, and all work that it names has ended.
            return unsafe { self.isend(bml, comm, buffer, (rank, tag), SendMode::Standard) };
        };
        // SAFETY: the caller's promise is passed on.
        let id = unsafe { self.offer_later(bml, comm, buffer, (rank, tag)) }?;
        self.rndv.in_flight.push(InFlight::Await { id, completion, left });
        Ok(id)
    }

    /// Work that a send waits for has ended, or failed.
    pub(crate) fn awaited(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        mut left: Vec<Completion>,
        result: Result<(), EngineError>,
    ) {
        if result.is_ok()
            && self.requests.send_mut(id).is_some()
            && let Some(completion) = left.pop()
        {
            self.rndv.in_flight.push(InFlight::Await { id, completion, left });
            return;
        }
        left.into_iter().for_each(|completion| self.requests.lay_down(completion));
        let Some(send) = self.requests.send_mut(id) else { return };
        let peer = send.to.peer;
        let SendStage::Rendezvous(offered) = &mut send.stage else { return };
        let serial = offered.rts.serial;
        let what = match result {
            Ok(()) => {
                offered.rts.data = DataState::Present;
                NoteKind::Go { serial }
            }
            Err(error) => {
                offered.failed = Some(error.into());
                NoteKind::Fail { serial }
            }
        };
        self.links.enqueue(peer, Outgoing::Note(what));
        self.flush_peer(bml, peer);
    }

    /// Makes a receive wait for its sender's note, or end for want of data; returns whether it does. An error is the
    /// sender's: it has offered two messages under one name.
    pub(crate) fn defer(&mut self, bml: &mut Bml, id: RequestId) -> Result<bool, String> {
        let Some((incoming, _)) = self.requests.incoming(id) else { return Ok(true) };
        Ok(match incoming.rts.data {
            DataState::Present => false,
            DataState::Pending => {
                incoming.stage = IncomingStage::Deferred;
                let (from, serial) = (incoming.from, incoming.rts.serial);
                self.rndv.defer(from, serial, id)?;
                true
            }
            DataState::Failed => {
                let (from, serial) = (incoming.from, incoming.rts.serial);
                incoming.failure = Some(PmlError::SenderFailed { rank: from });
                self.send_control(bml, from, &wire::fin(serial, Verdict::Refused));
                self.finish_incoming(id);
                true
            }
        })
    }

    /// A note on the data of an offer. An unknown offer was refused.
    pub(crate) fn data_told(&mut self, bml: &mut Bml, from: u32, serial: u64, data: DataState) {
        if let Some(id) = self.rndv.undefer(from, serial) {
            let Some((incoming, _)) = self.requests.incoming(id) else { return };
            if incoming.from != from || !matches!(incoming.stage, IncomingStage::Deferred) {
                return;
            }
            incoming.rts.data = data;
            incoming.stage = IncomingStage::Choosing;
            // It is not deferred again.
            if self.defer(bml, id) == Ok(false)
                && let Err(what) = self.proceed(bml, id)
            {
                self.give_up(bml, from, what);
            }
            return;
        }
        if let Some(Arrival::Rts(rts, _)) = self.matching.held_offer(from, serial)
            && rts.data == DataState::Pending
        {
            rts.data = data;
        }
    }
}

impl Core {
    /// Offers a message whose data comes later.
    ///
    /// # Safety
    /// As [`Pml::isend_after`](crate::Pml::isend_after).
    unsafe fn offer_later(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        buffer: &Typed,
        to: (u32, i32),
    ) -> Result<RequestId, PmlError> {
        let checked = self.check_send(bml, comm, buffer, to, SendMode::Standard)?;
        // SAFETY: the caller's promise is the one that a buffer takes; it is read only after the work
        // that writes it has ended.
        let buffer = unsafe { Buffer::promised(buffer, checked.engine) };
        Ok(self.offer(bml, checked.to, buffer, checked.envelope, None, DataState::Pending))
    }
}
