//! Matched probe (MPI 4.1 §3.8.2): a message is taken out of matching first and received later, so
//! that no other thread's receive can take it in between.

use crate::arrival::Arrival;
use crate::status::Status;
use crate::wire::Label;
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
pub(super) struct Claims {
    claims: Slab<Claim>,
    next: u64,
    /// Whether some may still be in the transport's memory.
    parked: bool,
}

impl Claims {
    /// Whether some may be in the transport's memory.
    pub(super) fn has_parked(&self) -> bool {
        self.parked
    }

    /// Whether any are of one of these communicators.
    pub(super) fn are_of(&self, ids: &[u32]) -> bool {
        self.claims.iter().any(|(_, claim)| ids.contains(&(claim.label.context / 2)))
    }

    /// An offer among them. Takes time in proportion to their number.
    pub(super) fn find_mut(&mut self, from: u32, serial: u64) -> Option<&mut Arrival> {
        let claims = self.claims.iter_mut().filter(|(_, claim)| claim.label.source == from);
        let mut held = claims.filter_map(|(_, claim)| claim.held.as_mut());
        held.find(|held| held.offer() == Some(serial))
    }

    /// Takes a message that was claimed.
    pub(super) fn insert(&mut self, label: Label, status: Status, held: Arrival) -> MessageId {
        let number = self.next;
        self.next += 1;
        self.parked |= held.is_parked();
        let index = self.claims.insert(Claim { number, label, status, held: Some(held) });
        MessageId { index, number }
    }

    /// Ends a claim; the message is not there if its sender was lost, or its communicator revoked.
    pub(super) fn take(&mut self, message: &MessageId) -> Option<(Label, Status, Option<Arrival>)> {
        let found = self.claims.get(message.index).is_some_and(|c| c.number == message.number);
        let Claim { label, status, held, .. } = found.then(|| self.claims.remove(message.index))?;
        Some((label, status, held))
    }

    /// Takes those messages out that `gone` selects.
    pub(super) fn void(
        &mut self,
        mut gone: impl FnMut(Label, &Arrival) -> bool,
    ) -> Vec<(Label, Arrival)> {
        let claims = self.claims.iter_mut().map(|(_, claim)| claim);
        let voided = claims.filter_map(|Claim { label, held, .. }| {
            Some((*label, held.take_if(|held| gone(*label, held))?))
        });
        voided.collect()
    }

    /// Ends all claims.
    pub(super) fn clear(&mut self) {
        self.claims.clear();
        self.parked = false;
    }

    /// Those in the transport's memory, which are copied out now.
    pub(super) fn parked(&mut self) -> impl Iterator<Item = (Label, &mut Arrival)> {
        self.parked = false;
        let claims = self.claims.iter_mut();
        let held = claims.filter_map(|(_, claim)| Some((claim.label, claim.held.as_mut()?)));
        held.filter(|(_, held)| held.is_parked())
    }
}
