//! Withdrawing messages, and leaving, so that every send ends, and no matched message is lost.
//!
//! ```text
//! sender                          receiver
//!   | NOTE(withdraw, serial) -----> | no receive has taken it: dropped
//!   | <---------- FIN(withdrawn) -- | (else nothing: the answer is on its way)
//!
//!   | NOTE(farewell) -------------> | whatever this sender will ever send has come
//!   |                               | once all have said so: what nobody received is refused
//!   | <--------- FIN(unreceived) -- |
//! ```
//!
//! Notes are numbered like messages and read after those before them.

use crate::drive::core::Core;
use crate::drive::peer::Outgoing;
use crate::error::PmlError;
use crate::matching::body::Arrival;
use crate::pml::Pml;
use crate::request::recv::RecvStage;
use crate::request::send::SendStage;
use crate::request::{RequestId, Work};
use crate::wire::Data;
use crate::wire::Label;
use crate::wire::{self, Verdict, What};
use gapless_bml::{Bml, LinkError, Rank};

impl Core {
    /// Does what a note of `from` says.
    pub(crate) fn noted(&mut self, bml: &mut Bml, from: u32, what: What) -> Result<(), String> {
        match what {
            What::Withdraw { serial } => {
                let wanted = |label: Label, arrival: &Arrival| {
                    label.source == from && arrival.serial() == Ok(Some(serial))
                };
                // It was taken: the answer is on its way, or will be.
                self.refuse_held(bml, Verdict::Withdrawn, wanted);
            }
            What::Go { serial } => self.data_told(bml, from, serial, Data::There),
            What::Fail { serial } => self.data_told(bml, from, serial, Data::Never),
            What::Recall { sequence, serial } => self.recall(bml, from, sequence, serial),
            What::Revoke { id } => self.told_revoked(bml, from, id)?,
            What::Farewell => {
                if std::mem::replace(&mut self.peers[from as usize].farewell, true) {
                    return Err("a second farewell".to_owned());
                }
            }
        }
        Ok(())
    }

    /// Drops messages that wait for a receive, and tells those senders that wait for an answer.
    pub(crate) fn refuse_held(
        &mut self,
        bml: &mut Bml,
        verdict: Verdict,
        wanted: impl Fn(Label, &Arrival) -> bool,
    ) {
        let dropped = self.unexpected.remove_if(|label, held| wanted(label, held));
        for (label, held) in dropped {
            let arrival = self.unkeep(label, held);
            self.refuse_message(bml, label.source, arrival, verdict);
        }
    }

    /// Drops a message, and tells its sender if it waits for an answer.
    pub(crate) fn refuse_message(
        &mut self,
        bml: &mut Bml,
        from: u32,
        arrival: Arrival,
        verdict: Verdict,
    ) {
        match arrival.serial() {
            // The sender of a message that was sent too early was told when it came.
            Ok(Some(serial)) if !arrival.is_late_offer() => {
                self.send_control(bml, from, &wire::fin(serial, verdict));
            }
            Ok(_) => {}
            Err(what) => self.give_up(bml, from, what),
        }
        if let Arrival::Eager(_, body) = arrival {
            self.pool.give(body);
        }
    }

    /// Whoever has a link with us, and so may have sent something, or may wait for our word.
    fn has_met(&self, bml: &Bml, peer: u32) -> bool {
        self.peers[peer as usize].lost.is_none() && bml.has_met(Rank(peer))
    }

    fn farewell(&mut self, bml: &mut Bml) {
        for peer in 0..u32::try_from(self.peers.len()).expect("ranks have 32 bits") {
            if !self.peers[peer as usize].told && self.has_met(bml, peer) {
                self.peers[peer as usize].told = true;
                self.enqueue(peer, Outgoing::Note(What::Farewell));
                self.flush_peer(bml, peer);
            }
        }
    }
}

impl Pml {
    /// Withdraws a send that no receive may ever take, because its memory is needed. If its receiver has not received
    /// it when it reads of this, the send ends with [`PmlError::Cancelled`]. A send that was matched, or has left,
    /// goes on. Either way it ends once the receiver has made progress, or is lost.
    ///
    /// Unlike [`cancel_send`](Pml::cancel_send), this does not touch sends whose memory is free already.
    ///
    /// # Errors
    /// There is no such request.
    pub fn withdraw_send(&mut self, id: RequestId) -> Result<(), PmlError> {
        if !self.core.requests.is_done(id)? {
            self.core.withdraw(&mut self.bml, id);
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
        let peers = (0u32..).zip(&self.core.peers);
        let stay =
            peers.filter(|(rank, peer)| !peer.farewell && self.core.has_met(&self.bml, *rank));
        stay.map(|(rank, _)| rank)
    }

    /// Refuses all messages that no receive has taken, now and from now on, a matched probe's included. Their sends
    /// end with [`PmlError::Unreceived`], except those that need no answer.
    pub fn refuse_unreceived(&mut self) {
        self.core.leaving = true;
        self.core.staging.leave(&mut self.bml);
        self.core.refuse_claims(&mut self.bml);
        self.core.refuse_held(&mut self.bml, Verdict::Unreceived, |_, _| true);
    }

    /// Whether messages are on their way that were matched, as far as this process knows: their memory is in use.
    #[must_use]
    pub fn has_matched(&mut self) -> bool {
        let is_matched = |work: &Work| match work {
            Work::Send(send) => match &send.stage {
                SendStage::Rendezvous(offered) => {
                    offered.going.as_ref().is_some_and(|going| !going.is_tentative())
                }
                SendStage::Draining { .. } => true,
                SendStage::Eager { .. } | SendStage::Unanswered { .. } => false,
            },
            Work::Recv(recv) => {
                matches!(recv.stage, RecvStage::Incoming(_) | RecvStage::Unpacking { .. })
            }
            _ => false,
        };
        self.fears_the_lost() || self.core.requests.under_way().any(|(_, work)| is_matched(work))
    }

    /// Whether sends of this process are under way, or messages of sends that have ended wait for room.
    #[must_use]
    pub fn has_sends(&mut self) -> bool {
        let is_send = |work: &Work| matches!(work, Work::Send(_));
        self.is_busy() || self.core.requests.under_way().any(|(_, work)| is_send(work))
    }

    /// Withdraws all sends that no receive has taken, as far as this process knows. Those that none has taken end with
    /// [`PmlError::Unreceived`] once their receivers have made progress. Nothing may be sent any more.
    pub fn withdraw_unmatched(&mut self) {
        self.core.departing = true;
        let sends = self.core.requests.under_way();
        let sends = sends.filter(|(_, work)| matches!(work, Work::Send(_)));
        let ids: Vec<RequestId> = sends.map(|(id, _)| id).collect();
        for id in ids {
            self.core.withdraw(&mut self.bml, id);
        }
    }

    /// [Whom to blame](Bml::blame) for the loss of a peer, for an error that this process gets: if it
    /// [departs](Pml::depart), it may be because of that.
    pub fn accuse(&mut self, peer: u32) -> Option<(u32, LinkError)> {
        let (culprit, error) = self.bml.blame(Rank(peer))?;
        self.core.accused = Some(culprit.0);
        Some((culprit.0, error))
    }

    /// Tells all peers that this process leaves although others may need it ([`Bml::depart`]). Gives because of whom:
    /// itself, or another that has departed and that the last error named.
    pub fn depart(&mut self) -> u32 {
        self.bml.depart(self.core.accused.map(Rank)).0
    }

    /// Cancels all receives that no message has taken.
    pub fn cancel_unmatched(&mut self) {
        let receives = self.core.requests.under_way();
        let receives = receives.filter(|(_, work)| matches!(work, Work::Recv(_)));
        let ids: Vec<RequestId> = receives.map(|(id, _)| id).collect();
        for id in ids {
            // The caller cannot test a released request, but it can be cancelled.
            self.core.cancel_any(id);
        }
    }

    /// Whether there are receives whose lost senders may still write to their memory.
    #[must_use]
    pub fn fears_the_lost(&self) -> bool {
        !self.core.leaving_buffers.is_empty()
    }

    /// Whether an operation of this process is under way.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.core.requests.any_under_way()
    }
}
