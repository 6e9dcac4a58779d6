//! `MPI_Cancel` of sends (MPI 4.1 §3.8.4): cancels a message that no receive has taken.
//!
//! ```text
//! not left yet       nobody else knows of it: it is dropped here, and the request has ended
//!
//! offered            | NOTE(cancel, serial) -----> | not taken: dropped
//!                    | <---------- FIN(cancelled) -- | (taken: its own answer is on its way)
//!
//! eager, left        | NOTE(cancel eager, sequence, serial) --> | not taken: dropped
//!                    | <--------------- FIN(cancelled) -- |
//!                    | <---------------- FIN(received) -- | or it was taken, or is here no more
//! ```
//!
//! The receiver decides. A note is numbered like the messages, so it is read after the message that it names; a
//! message is taken by a receive or by a note, never both. An eager send has ended when its data has left; once
//! cancelled, it is in flight again until the answer has come.
//!
//! What a receiver does for a note takes time in proportion to the messages that wait there.

use crate::arrival::Arrival;
use crate::drive::core::Core;
use crate::drive::operation::{EagerCancel, Operation, SendStage};
use crate::error::PmlError;
use crate::links::Outgoing;
use crate::protocol::Protocol;
use crate::requests::Submitted;
use crate::status::{RequestId, Status};
use crate::wire::{self, NoteKind, Verdict};
use gapless_bml::Bml;

impl Core {
    /// Cancels a send, whether it needs an answer or has left long ago.
    pub(crate) fn cancel_send(&mut self, bml: &mut Bml, id: RequestId) -> Result<(), PmlError> {
        if !self.requests.is_done(id)? {
            self.cancel_unfinished(bml, id);
            return Ok(());
        }
        let Some(Submitted { status, peer, sequence }) = self.requests.submitted(id) else {
            return Ok(());
        };
        if self.links[peer].lost.is_some() {
            return Ok(());
        }
        let serial = self.requests.name(id);
        self.requests.resume(id, Operation::EagerCancel(EagerCancel { status, peer, serial }));
        self.links.enqueue(peer, Outgoing::Note(NoteKind::CancelEager { sequence, serial }));
        self.flush_peer(bml, peer);
        Ok(())
    }

    /// Whether a send that is cancelled waits for an answer of this process.
    pub(crate) fn asks_itself(&mut self, id: RequestId) -> bool {
        let cancel = self.requests.eager_cancel(id).map(|cancel| cancel.peer);
        cancel.or_else(|| Some(self.requests.send_mut(id)?.to.peer)) == Some(self.me)
    }

    /// Cancels a send in flight.
    pub(crate) fn cancel_unfinished(&mut self, bml: &mut Bml, id: RequestId) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let peer = send.to.peer;
        let serial = match &send.stage {
            SendStage::Rendezvous(offered)
                if offered.going.as_ref().is_none_or(|going| going.is_tentative()) =>
            {
                offered.rts.serial
            }
            SendStage::Unanswered { serial } | SendStage::Eager { serial } => *serial,
            _ => return,
        };
        if self.drop_unsent(bml, peer, id) || serial == 0 {
            return;
        }
        self.links.enqueue(peer, Outgoing::Note(NoteKind::Cancel { serial }));
        self.flush_peer(bml, peer);
    }

    /// Ends a send if it waits in its peer's outbox; returns whether it has ended it.
    fn drop_unsent(&mut self, bml: &mut Bml, peer: u32, id: RequestId) -> bool {
        let departing = self.departing;
        let Some(send) = self.requests.send_mut(id) else { return false };
        let result = send.outcome(Verdict::Cancelled, departing);
        let outbox = &mut self.links[peer].outbox;
        let place = outbox.iter().position(|item| match item {
            Outgoing::Eager(waits) | Outgoing::Rts(waits) => *waits == id,
            Outgoing::Packing { id: waits, .. } => *waits == id,
            _ => false,
        });
        let item = place.and_then(|place| outbox.remove(place));
        match item {
            None => return false,
            // An engine still reads the buffer.
            Some(Outgoing::Packing { packing, .. }) if packing.is_pending() => {
                self.end_packed(id, *packing, result.map_err(Into::into));
            }
            Some(Outgoing::Rts(_)) => {
                self.end_offer(bml, id, result.map_err(Into::into));
            }
            Some(_) => self.requests.finish_eager(id, result),
        }
        true
    }

    /// The sender of an eager message cancels it.
    pub(crate) fn cancel_eager(&mut self, bml: &mut Bml, from: u32, sequence: u32, serial: u64) {
        let messages = self.matching.remove_if(|label, held| {
            let eager = matches!(held, Arrival::Eager(..)) && held.serial() == Ok(None);
            label.source == from && eager && held.envelope().sequence == sequence
        });
        let verdict = match messages.is_empty() {
            true => Verdict::Received(Protocol::Eager),
            false => Verdict::Cancelled,
        };
        for (_, held) in messages {
            if let Arrival::Eager(_, body) = held {
                self.matching.pool.give(body);
            }
        }
        self.send_control(bml, from, &wire::fin(serial, verdict));
    }

    /// The answer to a cancel of an eager message; `false` if this request does not wait for one.
    pub(crate) fn eager_cancel_answered(
        &mut self,
        from: u32,
        id: RequestId,
        verdict: Verdict,
    ) -> Result<bool, String> {
        let Some(EagerCancel { status, peer, serial }) = self.requests.eager_cancel(id) else {
            return Ok(false);
        };
        let result = match verdict {
            _ if peer != from => return Err(format!("an answer to the cancel {serial} of others")),
            Verdict::Cancelled => Err(PmlError::Cancelled),
            Verdict::Received(Protocol::Eager) => Ok(status),
            other => return Err(format!("an answer {other:?} to a cancelled eager message")),
        };
        self.end_eager_cancel(id, serial, result);
        Ok(true)
    }

    /// The receiver is lost, so the fate of the message stays unknown.
    pub(crate) fn lose_eager_cancel(&mut self, id: RequestId, fault: &PmlError) {
        if let Some(EagerCancel { serial, .. }) = self.requests.eager_cancel(id) {
            self.end_eager_cancel(id, serial, Err(fault.clone()));
        }
    }

    fn end_eager_cancel(&mut self, id: RequestId, serial: u64, result: Result<Status, PmlError>) {
        self.requests.unname(serial);
        self.requests.finish_uncounted(id, result);
    }
}
