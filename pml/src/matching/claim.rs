//! Matched probe (MPI 4.1 §3.8.2): a message is taken out of matching first and received later, so
//! that no other thread's receive can take it in between.

use crate::comm::Comm;
use crate::drive::core::Core;
use crate::error::{Failure, PmlError};
use crate::matching::body::{Arrival, Body};
use crate::request::Status;
use crate::request::recv::{Source, TagSel};
use crate::wire::Label;
use crate::wire::Verdict;
use gapless_bml::Bml;
use slab::Slab;

/// A message that a matched probe has taken (`MPI_Message`). It stays until it is received or
/// dropped by [`Pml::drop_message`](crate::Pml::drop_message).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its sender waits for it to be received"]
pub struct MessageId {
    index: usize,
    number: u64,
}

#[derive(Debug)]
struct Claim {
    number: u64,
    label: Label,
    status: Status,
    /// `None` if its sender was lost before the data came, or the communicator was revoked.
    held: Option<Arrival>,
}

/// Messages that were taken and not received yet.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    claims: Slab<Claim>,
    next: u64,
    /// Whether some may still be in the transport's memory.
    parked: bool,
}

impl Claims {
    /// Whether some may be in the transport's memory.
    pub(crate) fn has_parked(&self) -> bool {
        self.parked
    }

    /// Whether any are of one of these communicators.
    pub(crate) fn are_of(&self, ids: &[u32]) -> bool {
        self.claims.iter().any(|(_, claim)| ids.contains(&(claim.label.context / 2)))
    }

    /// An offer among them. Takes time in proportion to their number.
    pub(crate) fn find_mut(&mut self, from: u32, serial: u64) -> Option<&mut Arrival> {
        let claims = self.claims.iter_mut().filter(|(_, claim)| claim.label.source == from);
        let mut held = claims.filter_map(|(_, claim)| claim.held.as_mut());
        held.find(|held| held.offer() == Some(serial))
    }

    fn take(&mut self, message: &MessageId) -> Option<Claim> {
        let found = self.claims.get(message.index).is_some_and(|c| c.number == message.number);
        found.then(|| self.claims.remove(message.index))
    }
}

fn is_parked(held: &Arrival) -> bool {
    matches!(held, Arrival::Eager(_, Body::Parked(_)))
}

impl Core {
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
        let Some((label, held)) = self.unexpected.take(pattern) else { return Ok(None) };
        let number = self.claims.next;
        self.claims.next += 1;
        self.claims.parked |= is_parked(&held);
        let index = self.claims.claims.insert(Claim { number, label, status, held: Some(held) });
        Ok(Some((MessageId { index, number }, status)))
    }

    /// The message behind a claim, which is over; whoever asks has room for so many bytes.
    pub(crate) fn unclaim(
        &mut self,
        message: &MessageId,
        room: u64,
    ) -> Result<(Label, Arrival), Failure> {
        let claim = self.claims.take(message).ok_or(PmlError::NoSuchMessage)?;
        let Some(held) = claim.held else {
            // Its sender was lost, or the communicator revoked.
            let fault = self.fault(claim.label.source);
            let error = fault.unwrap_or(PmlError::Revoked);
            let bytes = claim.status.bytes.min(room);
            return Err(Failure::of_message(error, Status { bytes, ..claim.status }));
        };
        Ok((claim.label, self.unkeep(claim.label, held)))
    }

    /// Drops a message; its sender's request ends as if nothing of it had been wanted.
    pub(crate) fn drop_claim(&mut self, bml: &mut Bml, message: &MessageId) {
        if let Ok((label, arrival)) = self.unclaim(message, 0) {
            self.refuse_message(bml, label.source, arrival, Verdict::Refused);
        }
    }

    /// Drops all messages that were taken and not received.
    pub(crate) fn refuse_claims(&mut self, bml: &mut Bml) {
        self.claims.parked = false;
        let claims: Vec<Claim> = self.claims.claims.drain().collect();
        for Claim { label, held, .. } in claims {
            if let Some(held) = held {
                let arrival = self.unkeep(label, held);
                self.refuse_message(bml, label.source, arrival, Verdict::Unreceived);
            }
        }
    }

    /// Messages of revoked communicators cannot be received any more.
    pub(crate) fn revoke_claims(&mut self, bml: &mut Bml, ids: &[u32]) {
        let mut dropped = Vec::new();
        for (_, claim) in &mut self.claims.claims {
            if ids.contains(&(claim.label.context / 2))
                && let Some(held) = claim.held.take()
            {
                dropped.push((claim.label, held));
            }
        }
        for (label, held) in dropped {
            let arrival = self.unkeep(label, held);
            self.refuse_message(bml, label.source, arrival, Verdict::Revoked);
        }
    }

    /// Offers of a lost peer cannot be received any more.
    pub(crate) fn lose_claims(&mut self, peer: u32) {
        let mut lost = Vec::new();
        for (_, claim) in &mut self.claims.claims {
            let offer = |held: &mut Arrival| matches!(held, Arrival::Rts(..));
            if claim.label.source == peer
                && let Some(held) = claim.held.take_if(offer)
            {
                lost.push((claim.label, held));
            }
        }
        for (label, held) in lost {
            self.unkeep(label, held);
        }
    }

    /// Copies what is claimed out of the transport's memory.
    pub(crate) fn spill_claims(&mut self) {
        for (_, claim) in &mut self.claims.claims {
            let Some(held) = claim.held.as_mut().filter(|held| is_parked(held)) else { continue };
            match held.copy_out(&mut self.pool) {
                Ok(()) => self.peers[claim.label.source as usize].parked -= 1,
                Err(error) => tracing::error!(%error, "a message cannot be copied out"),
            }
        }
        self.claims.parked = false;
    }
}
