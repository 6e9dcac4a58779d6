//! The loss of a peer: everything that needs the peer ends with [`PmlError::PeerLost`].
//!
//! What had arrived in full stays and can be received; offers of the peer are gone. Receives from
//! any source go on, because others can still send, and fail only once every other member of their
//! communicator is lost ([`PmlError::NobodyLeft`]). Requests whose buffer an engine or the transport
//! is still working on end when that work has ended.
//!
//! A peer that breaks the protocol is treated the same way, and not listened to any more. A peer that left because
//! another was lost is not blamed itself: the error names that other.

use crate::arrival::Arrival;
use crate::buffer::Transfer;
use crate::comm::Comm;
use crate::drive::core::Core;
use crate::drive::operation::{Operation, RecvStage, SendStage};
use crate::error::Failure;
use crate::error::PmlError;
use crate::links::Outgoing;
use crate::matching::Pattern;
use crate::rndv::in_flight::InFlight;
use crate::status::RequestId;
use crate::status::Status;
use crate::wire::Label;
use gapless_bml::RailSlot;
use gapless_bml::{Bml, LinkError, Rank};

impl Core {
    /// A peer has broken the protocol: it is lost to us, and told so.
    pub(crate) fn give_up(&mut self, bml: &mut Bml, peer: u32, what: String) {
        let error = LinkError::Corrupt { what };
        self.lose(bml, peer, error.clone());
        bml.give_up(Rank(peer), error);
    }

    /// A peer is gone, or not trusted any more.
    pub(crate) fn lose(&mut self, bml: &mut Bml, peer: u32, error: LinkError) {
        let blamed = bml.blame(Rank(peer)).map(|(culprit, error)| (culprit.0, error));
        let (culprit, error) = blamed.unwrap_or((peer, error));
        let Some((outbox, fault)) = self.links.lose(peer, (culprit, error)) else { return };
        let packing = |item: &Outgoing| matches!(item, Outgoing::Packing { packing, .. } if packing.is_pending());
        // What engines pack comes first: the rest goes with slots of the transport's, which may panic.
        let (at_work, rest): (Vec<_>, Vec<_>) = outbox.into_iter().partition(packing);
        for item in at_work {
            if let Outgoing::Packing { id, packing } = item {
                self.end_packed(id, *packing, Err(fault.clone().into()));
            }
        }
        drop(rest);
        let offered =
            |label: Label, held: &Arrival| label.source == peer && matches!(held, Arrival::Rts(..));
        drop(self.matching.remove_if(offered));
        drop(self.matching.void_claims(offered));
        self.rndv.lose(peer);
        let concerned: Vec<RequestId> = self
            .requests
            .under_way()
            .filter(|(_, work)| match work {
                Operation::Send(send) => send.to.peer == peer,
                Operation::EagerCancel(cancel) => cancel.peer == peer,
                Operation::Recv(recv) => {
                    recv.receiving_from().or(recv.source) == Some(peer)
                        || matches!(recv.stage, RecvStage::Posted(_)) && recv.source.is_none()
                }
            })
            .map(|(id, work)| {
                if !matches!(work, Operation::Recv(recv) if recv.source.is_none()) {
                    self.links.accuse(culprit);
                }
                id
            })
            .collect();
        for id in concerned {
            self.lose_send(bml, id, &fault);
            self.lose_eager_cancel(id, &fault);
            self.lose_recv(bml, id, &fault);
        }
    }

    /// A receive is to wait for a message. The death of the process that the receive names is to be noticed, whether or
    /// not that process ever sends.
    #[inline]
    pub(crate) fn await_sender(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        pattern: Pattern,
    ) -> Result<(), PmlError> {
        self.somebody_left(comm, pattern)?;
        if let Some(peer) = pattern.source.filter(|peer| self.links.approach(*peer)) {
            bml.reach(Rank(peer));
        }
        Ok(())
    }

    fn lose_send(&mut self, bml: &mut Bml, id: RequestId, fault: &PmlError) {
        let Some(send) = self.requests.send_mut(id) else { return };
        match &mut send.stage {
            SendStage::Eager { .. } | SendStage::Unanswered { .. } => {
                self.requests.finish_eager(id, Err(fault.clone()));
            }
            SendStage::Rendezvous(_) => self.lose_rendezvous(bml, id, fault),
            SendStage::Draining { .. } => {}
        }
    }

    fn lose_recv(&mut self, bml: &mut Bml, id: RequestId, fault: &PmlError) {
        let Some(recv) = self.requests.recv_mut(id) else { return };
        let (context, any) = (recv.context, recv.source.is_none());
        match &mut recv.stage {
            // An eager message is here in full; it will be received.
            RecvStage::Unmatched | RecvStage::Unpacking { .. } => {}
            RecvStage::Posted(place) => {
                let place = *place;
                let error = if any {
                    let Some(comm) = self.comms.of_context(context).cloned() else { return };
                    let pattern = Pattern { context, source: None, tag: None };
                    match self.somebody_left(&comm, pattern) {
                        Ok(()) => return,
                        Err(error) => error,
                    }
                } else {
                    fault.clone()
                };
                self.matching.posted.remove(place);
                self.requests.finish(id, Err(error));
            }
            RecvStage::Incoming(_) => self.lose_rendezvous(bml, id, fault),
        }
    }

    /// Ends a send whose eager message will not leave, once the engine that packs it has released the buffer.
    pub(crate) fn end_packed(
        &mut self,
        id: RequestId,
        packing: Transfer<RailSlot>,
        result: Result<Status, Failure>,
    ) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let draining = SendStage::Draining { packing: 1, result };
        if let SendStage::Eager { serial } = std::mem::replace(&mut send.stage, draining) {
            self.requests.unname(serial);
        }
        self.rndv.in_flight.push(InFlight::Wasted { id, packing });
    }

    /// Whether a member is left whose message a new receive could get.
    #[inline]
    pub(crate) fn somebody_left(&mut self, comm: &Comm, pattern: Pattern) -> Result<(), PmlError> {
        if self.links.is_whole() {
            return Ok(());
        }
        match pattern.source {
            Some(process) => self.links.fault(process).map_or(Ok(()), Err),
            None => {
                let me = self.me;
                let others = comm.peers().processes().filter(|process| *process != me);
                self.links.somebody_left(others)
            }
        }
    }
}
