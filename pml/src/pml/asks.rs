//! Who hangs: the calls of `asks.rs`.

use crate::asks::{Answer, WaiterId};
use crate::drive::operation::{Operation, RecvStage};
use crate::pml::Pml;
use crate::status::RequestId;
use crate::wire::{self, Doing, WaitingCall};
use gapless_bml::{Rank, now_ns};

impl Pml {
    /// A thread has waited for a while in this call, and says so again from time to time; `waiter` is its entry, or becomes
    /// it. A peer that asks is answered so, until the thread [gets up](Pml::waits_no_more).
    pub fn waits_in(&mut self, waiter: &mut Option<WaiterId>, doing: &Doing) {
        self.core.asks.waits_in(waiter, doing);
    }

    /// A thread does not wait any more.
    pub fn waits_no_more(&mut self, waiter: WaiterId) {
        self.core.asks.waits_no_more(waiter);
    }

    /// A collective is over here. Whoever asks for it later is told which it was.
    pub fn was_in(&mut self, context: u32, operation: u8, number: u64) {
        self.core.asks.was_in(context, operation, number);
    }

    /// Asks a peer what it is in, unless it was asked a moment ago, and gives what has come of that so far. The peer is
    /// told what this process is in.
    pub fn ask(&mut self, peer: u32, doing: &Doing) -> Answer {
        if !self.core.links.has(peer) {
            return Answer::Lost;
        }
        if !self.bml.has_met(Rank(peer)) {
            return Answer::Unlinked;
        }
        let now = now_ns();
        if self.core.asks.asks_now(peer, now) {
            let question = wire::asking(true, &self.core.told_to(peer, doing));
            self.core.send_control(&mut self.bml, peer, &question);
        }
        self.core.asks.answer_of(peer, now)
    }

    /// What peers have said a moment ago that they are in, in questions and answers.
    pub fn heard(&self) -> impl Iterator<Item = (u32, &Doing)> {
        self.core.asks.heard(now_ns())
    }

    /// What a request that has not ended waits for: messages alone, not work of the caller's own.
    #[must_use]
    pub fn awaits(&self, id: RequestId) -> Option<Doing> {
        if let Some((peer, context, tag)) = self.core.requests.inline_recv_label(id) {
            let call = WaitingCall::Receive { tag: Some(tag) };
            return Some(Doing { call, context: Some(context), whom: Some(peer), millis: 0 });
        }
        let (call, context, whom) = match self.core.requests.operation(id)? {
            Operation::Send(send) => {
                let call = WaitingCall::Send { tag: send.envelope.tag };
                let collective = self.core.comms.of_context(2 * send.to.comm).is_some_and(|comm| {
                    send.envelope.context == comm.collective().context_at(send.to.rank)
                });
                (call, 2 * send.to.comm + u32::from(collective), Some(send.to.peer))
            }
            Operation::Recv(recv) => {
                let tag = match &recv.stage {
                    RecvStage::Posted(place) => self.core.matching.posted.tag(*place),
                    RecvStage::Incoming(incoming) => Some(incoming.rts.envelope.tag),
                    RecvStage::Unmatched | RecvStage::Unpacking { .. } => None,
                };
                (WaitingCall::Receive { tag }, recv.context, recv.receiving_from().or(recv.source))
            }
            _ => return None,
        };
        Some(Doing { call, context: Some(context), whom, millis: 0 })
    }
}
