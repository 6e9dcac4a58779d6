//! The calls by which a process leaves.

use crate::drive::operation::{Operation, RecvStage, SendStage};
use crate::error::PmlError;
use crate::pml::Pml;
use crate::status::RequestId;
use crate::wire::Verdict;
use gapless_bml::{LinkError, Rank};

impl Pml {
    /// Cancels a send that no receive may ever take, because its memory is needed. If its receiver has not received
    /// it when it reads of this, the send ends with [`PmlError::Cancelled`]. A send that was matched, or has left,
    /// goes on. Either way it ends once the receiver has made progress, or is lost.
    ///
    /// Unlike [`cancel_send`](Pml::cancel_send), this does not touch sends whose memory is free already.
    ///
    /// # Errors
    /// There is no such request.
    pub fn cancel_unfinished_send(&mut self, id: RequestId) -> Result<(), PmlError> {
        if !self.core.requests.is_done(id)? {
            self.core.cancel_unfinished(&mut self.bml, id);
        }
        Ok(())
    }

    /// Tells all peers with whom there is a link, and that were not told before, that no message that is matched
    /// will follow. Nothing may be sent any more. To be called again while peers are waited for: there may be new
    /// links. Where there is none, nothing has been sent.
    pub fn say_farewell(&mut self) {
        self.core.farewell(&mut self.bml);
    }

    /// Whether all peers that are not lost, and with whom there is a link, have said farewell: then every
    /// message that will ever come has come, and what matches has been matched. To be asked once no process
    /// starts anything any more.
    #[must_use]
    pub fn all_farewells(&self) -> bool {
        self.not_left().next().is_none()
    }

    /// The peers that are not lost, with whom there is a link, and that have not said farewell.
    pub fn not_left(&self) -> impl Iterator<Item = u32> {
        let peers = self.core.links.iter();
        let stay =
            peers.filter(|(rank, peer)| !peer.farewell && self.core.has_met(&self.bml, *rank));
        stay.map(|(rank, _)| rank)
    }

    /// Refuses all messages that no receive has taken, now and from now on, a matched probe's included. Their sends
    /// end with [`PmlError::Unreceived`], except those that need no answer.
    pub fn refuse_unreceived(&mut self) {
        self.core.leaving = true;
        self.core.rndv.staging.leave(&mut self.bml);
        let claimed = self.core.matching.drain_claims();
        self.core.refuse_all(&mut self.bml, claimed, Verdict::Unreceived);
        self.core.refuse_held(&mut self.bml, Verdict::Unreceived, |_, _| true);
    }

    /// Whether messages are on their way that were matched, as far as this process knows: their memory is in use.
    #[must_use]
    pub fn has_matched(&mut self) -> bool {
        let is_matched = |work: &Operation| match work {
            Operation::Send(send) => match &send.stage {
                SendStage::Rendezvous(offered) => {
                    offered.going.as_ref().is_some_and(|going| !going.is_tentative())
                }
                SendStage::Draining { .. } => true,
                SendStage::Eager { .. } | SendStage::Unanswered { .. } => false,
            },
            Operation::Recv(recv) => {
                matches!(recv.stage, RecvStage::Incoming(_) | RecvStage::Unpacking { .. })
            }
            _ => false,
        };
        self.fears_the_lost() || self.core.requests.under_way().any(|(_, work)| is_matched(work))
    }

    /// Whether sends of this process are under way, or messages of sends that have ended wait for room.
    #[must_use]
    pub fn has_sends(&mut self) -> bool {
        let is_send = |work: &Operation| matches!(work, Operation::Send(_));
        self.is_busy() || self.core.requests.under_way().any(|(_, work)| is_send(work))
    }

    /// Cancels all sends that no receive has taken, as far as this process knows. Those that none has taken end with
    /// [`PmlError::Unreceived`] once their receivers have made progress. Nothing may be sent any more.
    pub fn cancel_unmatched_sends(&mut self) {
        self.core.departing = true;
        let sends = self.core.requests.under_way();
        let sends = sends.filter(|(_, work)| matches!(work, Operation::Send(_)));
        let ids: Vec<RequestId> = sends.map(|(id, _)| id).collect();
        for id in ids {
            self.core.cancel_unfinished(&mut self.bml, id);
        }
    }

    /// [Whom to blame](gapless_bml::Bml::blame) for the loss of a peer, for an error that this process gets: if it
    /// [departs](Pml::depart), it may be because of that.
    pub fn accuse(&mut self, peer: u32) -> Option<(u32, LinkError)> {
        let (culprit, error) = self.bml.blame(Rank(peer))?;
        self.core.links.accuse(culprit.0);
        Some((culprit.0, error))
    }

    /// Tells all peers that this process leaves although others may need it ([`Bml::depart`](gapless_bml::Bml::depart)). Gives because of whom:
    /// itself, or another that has departed and that the last error named.
    pub fn depart(&mut self) -> u32 {
        self.bml.depart(self.core.links.accused().map(Rank)).0
    }

    /// Cancels all receives that no message has taken.
    pub fn cancel_unmatched_receives(&mut self) {
        let receives = self.core.requests.under_way();
        let receives = receives.filter(|(_, work)| matches!(work, Operation::Recv(_)));
        let ids: Vec<RequestId> = receives.map(|(id, _)| id).collect();
        for id in ids {
            // The caller cannot test a released request, but it can be cancelled.
            self.core.cancel_any(id);
        }
    }

    /// Whether there are receives whose lost senders may still write to their memory.
    #[must_use]
    pub fn fears_the_lost(&self) -> bool {
        self.core.rndv.has_unreleased()
    }

    /// Whether a message of this process is under way.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.core.requests.any_under_way()
    }
}
