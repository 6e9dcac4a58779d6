//! Who hangs: what this process's waiting threads are in, and what peers say that they are in.
//!
//! ```text
//! process that has waited long               the one that it waits for
//!   | ASK(what I am in) ------------------> | in any call that makes progress, also if it sleeps
//!   | <------------------ SAY(what I am in) |
//! ```
//!
//! Nothing is kept up to date for this: a caller that has slept for a while [says](Pml::waits_in) what it is in. A peer
//! has one question at a time, and one a second at most; so a process has one answer to a peer on its way at most.

use crate::comm::Comm;
use crate::drive::core::Core;
use crate::drive::peer::Outgoing;
use crate::pml::Pml;
use crate::request::recv::RecvStage;
use crate::request::{RequestId, Work};
use crate::wire;
use gapless_bml::{Bml, Rank, now_ns};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The time between two questions to a peer.
const AGAIN: Duration = Duration::from_secs(1);

/// For so long a peer is believed to be in what it has said.
const FRESH: Duration = Duration::from_secs(3);

/// Collectives that are over and remembered.
const PAST_MAX: usize = 64;

/// The call that a process waits in. What collectives' operations are called is the business of their layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// None that waits.
    Nothing,
    /// A message is sent.
    Send {
        /// Its tag.
        tag: i32,
    },
    /// A message is received.
    Receive {
        /// Its tag; `None`: any.
        tag: Option<i32>,
    },
    /// A message is waited for, and not received.
    Probe {
        /// Its tag; `None`: any.
        tag: Option<i32>,
    },
    /// A collective.
    Collective {
        /// Which operation; 0: not known so far.
        operation: u8,
        /// Which of the communicator's.
        number: u64,
    },
    /// An operation on a window, its making included.
    Window,
    /// A task that was put somewhere, or is to come.
    Task,
    /// The making of a communicator, or an agreement.
    Making,
    /// The world's end.
    Leaving,
    /// Any other.
    Other,
    /// None; but the collective that was asked for was this operation here, and is over.
    Was {
        /// Which operation.
        operation: u8,
        /// Which of the communicator's.
        number: u64,
    },
}

/// What a process is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doing {
    /// The call.
    pub call: Call,
    /// The communicator's context in this process, if there is one.
    pub context: Option<u32>,
    /// The process that it waits for, if it is one.
    pub whom: Option<u32>,
    /// For how long it has waited.
    pub millis: u32,
}

impl Doing {
    /// In nothing that waits.
    pub const NOTHING: Doing = Doing { call: Call::Nothing, context: None, whom: None, millis: 0 };
}

/// What has come of asking a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has said this, so long ago at most.
    Said(Doing, Duration),
    /// It has not answered for so long.
    Silent(Duration),
    /// There is no link with it.
    Unlinked,
    /// It is lost.
    Lost,
}

/// The name of a thread's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterId(u64);

/// What is known of a peer.
#[derive(Debug, Default)]
struct Peer {
    /// When it was asked last.
    asked: Option<u64>,
    /// Whether it owes the answer.
    owes: bool,
    /// What it has said last, in a question or an answer, and when.
    said: Option<(Doing, u64)>,
}

/// What this process's threads and its peers are in.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    /// Of each thread that has waited for a while, the one that has waited longest first.
    doing: Vec<(WaiterId, Doing)>,
    waiters: u64,
    peers: BTreeMap<u32, Peer>,
    /// Contexts, numbers and operations of collectives that are over, the last one last.
    past: VecDeque<(u32, u64, u8)>,
}

impl Asks {
    /// A communicator is gone, and another one may have its contexts some day.
    pub(crate) fn forget(&mut self, comm: &Comm) {
        let contexts = [comm.context(), comm.collective().context()];
        self.past.retain(|(context, ..)| !contexts.contains(context));
        for peer in self.peers.values_mut() {
            let is_of = |said: &mut (Doing, u64)| {
                said.0.context.is_some_and(|context| contexts.contains(&context))
            };
            peer.said.take_if(is_of);
        }
    }

    /// The answer to a question of a process that is in `theirs`; contexts are as they are called here.
    fn answer(&self, theirs: &Doing) -> Doing {
        let here = |doing: &&Doing| doing.context.is_some() && doing.context == theirs.context;
        let all = || self.doing.iter().map(|(_, doing)| doing);
        let same = all().filter(here).find(|doing| doing.number() == theirs.number());
        if let Some(same) = same {
            return *same;
        }
        if let (Call::Collective { number, .. }, Some(context)) = (theirs.call, theirs.context) {
            let is_it = |past: &&(u32, u64, u8)| (past.0, past.1) == (context, number);
            if let Some((_, _, operation)) = self.past.iter().rfind(is_it) {
                let call = Call::Was { operation: *operation, number };
                return Doing { call, context: Some(context), whom: None, millis: 0 };
            }
        }
        all().find(here).or_else(|| all().next()).copied().unwrap_or(Doing::NOTHING)
    }
}

impl Doing {
    fn number(&self) -> Option<u64> {
        match self.call {
            Call::Collective { number, .. } | Call::Was { number, .. } => Some(number),
            _ => None,
        }
    }
}

impl Core {
    /// A peer asks, or answers. An error is its fault.
    pub(crate) fn asked(
        &mut self,
        bml: &mut Bml,
        from: u32,
        is_question: bool,
        doing: Doing,
    ) -> Result<(), String> {
        if doing.whom.is_some_and(|whom| whom as usize >= self.peers.len()) {
            return Err(format!("that it waits for process {:?}", doing.whom));
        }
        let peer = self.asks.peers.entry(from).or_default();
        if !is_question && !std::mem::take(&mut peer.owes) {
            return Err("an answer to no question".to_owned());
        }
        peer.said = Some((doing, now_ns()));
        if !is_question {
            return Ok(());
        }
        let outbox = &self.peers[from as usize].outbox;
        if outbox
            .iter()
            .any(|item| matches!(item, Outgoing::Control(bytes, _) if wire::is_say(bytes)))
        {
            return Err("a question before the answer to the last one".to_owned());
        }
        let answer = self.told_to(from, &self.asks.answer(&doing));
        self.send_control(bml, from, &wire::asking(false, &answer));
        Ok(())
    }

    /// What this process is in, as it is told to a peer, which calls contexts otherwise.
    fn told_to(&self, peer: u32, doing: &Doing) -> Doing {
        let there = |context: u32| {
            let comm = self.comms.of_context(context)?;
            let comm = if context % 2 == 1 { comm.collective() } else { Comm::clone(comm) };
            Some(comm.context_at(comm.rank_of(peer)?))
        };
        Doing { context: doing.context.and_then(there), ..*doing }
    }
}

impl Pml {
    /// A thread has waited for a while in this call, and says so again from time to time; `waiter` is its entry, or becomes
    /// it. A peer that asks is answered so, until the thread [gets up](Pml::waits_no_more).
    pub fn waits_in(&mut self, waiter: &mut Option<WaiterId>, doing: &Doing) {
        let asks = &mut self.core.asks;
        let found = waiter.and_then(|waiter| asks.doing.iter_mut().find(|(it, _)| *it == waiter));
        match found {
            Some((_, known)) => *known = *doing,
            None => {
                asks.waiters += 1;
                *waiter = Some(WaiterId(asks.waiters));
                asks.doing.push((WaiterId(asks.waiters), *doing));
            }
        }
    }

    /// A thread does not wait any more.
    pub fn waits_no_more(&mut self, waiter: WaiterId) {
        self.core.asks.doing.retain(|(it, _)| *it != waiter);
    }

    /// A collective is over here. Whoever asks for it later is told which it was.
    pub fn was_in(&mut self, context: u32, operation: u8, number: u64) {
        let past = &mut self.core.asks.past;
        if past.len() == PAST_MAX {
            past.pop_front();
        }
        past.push_back((context, number, operation));
    }

    /// Asks a peer what it is in, unless it was asked a moment ago, and gives what has come of that so far. The peer is
    /// told what this process is in.
    pub fn ask(&mut self, peer: u32, doing: &Doing) -> Answer {
        match self.core.peers.get(peer as usize) {
            Some(state) if state.lost.is_none() => {}
            _ => return Answer::Lost,
        }
        if !self.bml.has_met(Rank(peer)) {
            return Answer::Unlinked;
        }
        let now = now_ns();
        let state = self.core.asks.peers.entry(peer).or_default();
        let since = |then: u64| Duration::from_nanos(now.saturating_sub(then));
        if !state.owes && state.asked.is_none_or(|asked| since(asked) >= AGAIN) {
            (state.asked, state.owes) = (Some(now), true);
            let question = wire::asking(true, &self.core.told_to(peer, doing));
            self.core.send_control(&mut self.bml, peer, &question);
        }
        let state = self.core.asks.peers.entry(peer).or_default();
        let silent = state.asked.map_or(Duration::ZERO, since);
        match state.said {
            Some((said, then)) if since(then) < FRESH && !(state.owes && silent >= AGAIN) => {
                Answer::Said(said, since(then))
            }
            _ => Answer::Silent(silent),
        }
    }

    /// What peers have said a moment ago that they are in, in questions and answers.
    pub fn heard(&self) -> impl Iterator<Item = (u32, &Doing)> {
        let now = now_ns();
        let is_fresh = move |then: u64| Duration::from_nanos(now.saturating_sub(then)) < FRESH;
        let said = self.core.asks.peers.iter();
        said.filter_map(move |(peer, state)| {
            let (said, _) = state.said.as_ref().filter(|(_, then)| is_fresh(*then))?;
            Some((*peer, said))
        })
    }

    /// What a request that has not ended waits for: messages alone, not work of the caller's own.
    #[must_use]
    pub fn awaits(&self, id: RequestId) -> Option<Doing> {
        if let Some((peer, context, tag)) = self.core.requests.brief_label(id) {
            let call = Call::Receive { tag: Some(tag) };
            return Some(Doing { call, context: Some(context), whom: Some(peer), millis: 0 });
        }
        let (call, context, whom) = match self.core.requests.heavy(id)? {
            Work::Send(send) => {
                let call = Call::Send { tag: send.envelope.tag };
                let collective = self.core.comms.of_context(2 * send.to.comm).is_some_and(|comm| {
                    send.envelope.context == comm.collective().context_at(send.to.rank)
                });
                (call, 2 * send.to.comm + u32::from(collective), Some(send.to.peer))
            }
            Work::Recv(recv) => {
                let tag = match &recv.stage {
                    RecvStage::Posted(place) => self.core.posted.tag(*place),
                    RecvStage::Incoming(incoming) => Some(incoming.rts.envelope.tag),
                    RecvStage::Unmatched | RecvStage::Unpacking { .. } => None,
                };
                (Call::Receive { tag }, recv.context, recv.receiving_from().or(recv.source))
            }
            _ => return None,
        };
        Some(Doing { call, context: Some(context), whom, millis: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another communicator may get its contexts: nothing that was said of it is true of that one.
    #[test]
    fn what_was_said_of_a_communicator_goes_with_it() {
        let mut asks = Asks::default();
        let (own, other) = (Comm::myself(0), Comm::world(0, 2));
        let doing = |comm: &Comm| Doing { context: Some(comm.context()), ..Doing::NOTHING };
        for (comm, peer) in [(&own, 1), (&other, 2)] {
            asks.past.push_back((comm.collective().context(), 5, 7));
            asks.peers.entry(peer).or_default().said = Some((doing(comm), 0));
        }
        asks.forget(&own);
        assert_eq!(asks.past, [(other.collective().context(), 5, 7)]);
        let said: Vec<u32> =
            asks.peers.iter().filter(|(_, it)| it.said.is_some()).map(|(peer, _)| *peer).collect();
        assert_eq!(said, [2]);
    }
}
