//! Who hangs: what this process's waiting threads are in, and what peers say that they are in.
//!
//! ```text
//! process that has waited long               the one that it waits for
//!   | ASK(what I am in) ------------------> | in any call that makes progress, also if it sleeps
//!   | <------------------ SAY(what I am in) |
//! ```
//!
//! Nothing is kept up to date for this: a caller that has slept for a while says (`Pml::waits_in`) what it is in. A peer
//! has one question at a time, and one a second at most; so a process has one answer to a peer on its way at most.

use crate::comm::Comm;
use crate::wire::{Doing, WaitingCall};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The time between two questions to a peer.
const AGAIN: Duration = Duration::from_secs(1);

/// For so long a peer is believed to be in what it has said.
const FRESH: Duration = Duration::from_secs(3);

/// Collectives that are over and remembered.
const PAST_MAX: usize = 64;

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

/// Names a thread that waits, in the list of what the threads of this process are in.
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
    /// A thread waits in a call; `waiter` is its entry, or becomes it.
    pub(crate) fn waits_in(&mut self, waiter: &mut Option<WaiterId>, doing: &Doing) {
        let found = waiter.and_then(|waiter| self.doing.iter_mut().find(|(it, _)| *it == waiter));
        match found {
            Some((_, known)) => *known = *doing,
            None => {
                self.waiters += 1;
                *waiter = Some(WaiterId(self.waiters));
                self.doing.push((WaiterId(self.waiters), *doing));
            }
        }
    }

    pub(crate) fn waits_no_more(&mut self, waiter: WaiterId) {
        self.doing.retain(|(it, _)| *it != waiter);
    }

    pub(crate) fn was_in(&mut self, context: u32, operation: u8, number: u64) {
        if self.past.len() == PAST_MAX {
            self.past.pop_front();
        }
        self.past.push_back((context, number, operation));
    }

    /// Whether a peer is to be asked now; then it owes the answer.
    pub(crate) fn asks_now(&mut self, peer: u32, now: u64) -> bool {
        let state = self.peers.entry(peer).or_default();
        let asks = !state.owes && state.asked.is_none_or(|asked| since(asked, now) >= AGAIN);
        if asks {
            (state.asked, state.owes) = (Some(now), true);
        }
        asks
    }

    /// What has come of asking a peer.
    pub(crate) fn answer_of(&self, peer: u32, now: u64) -> Answer {
        let Some(state) = self.peers.get(&peer) else { return Answer::Silent(Duration::ZERO) };
        let silent = state.asked.map_or(Duration::ZERO, |asked| since(asked, now));
        match state.said {
            Some((said, then)) if since(then, now) < FRESH && !(state.owes && silent >= AGAIN) => {
                Answer::Said(said, since(then, now))
            }
            _ => Answer::Silent(silent),
        }
    }

    /// A peer has said what it is in. An error is its fault.
    pub(crate) fn said(
        &mut self,
        from: u32,
        is_question: bool,
        doing: Doing,
        now: u64,
    ) -> Result<(), String> {
        let peer = self.peers.entry(from).or_default();
        if !is_question && !std::mem::take(&mut peer.owes) {
            return Err("an answer to no question".to_owned());
        }
        peer.said = Some((doing, now));
        Ok(())
    }

    /// What peers have said a moment ago.
    pub(crate) fn heard(&self, now: u64) -> impl Iterator<Item = (u32, &Doing)> {
        self.peers.iter().filter_map(move |(peer, state)| {
            let (said, _) = state.said.as_ref().filter(|(_, then)| since(*then, now) < FRESH)?;
            Some((*peer, said))
        })
    }

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
    pub(crate) fn answer(&self, theirs: &Doing) -> Doing {
        let here = |doing: &&Doing| doing.context.is_some() && doing.context == theirs.context;
        let all = || self.doing.iter().map(|(_, doing)| doing);
        let same = all().filter(here).find(|doing| doing.number() == theirs.number());
        if let Some(same) = same {
            return *same;
        }
        if let (WaitingCall::Collective { number, .. }, Some(context)) =
            (theirs.call, theirs.context)
        {
            let is_it = |past: &&(u32, u64, u8)| (past.0, past.1) == (context, number);
            if let Some((_, _, operation)) = self.past.iter().rfind(is_it) {
                let call = WaitingCall::Was { operation: *operation, number };
                return Doing { call, context: Some(context), whom: None, millis: 0 };
            }
        }
        all().find(here).or_else(|| all().next()).copied().unwrap_or(Doing::NOTHING)
    }
}

/// How long ago that was.
fn since(then: u64, now: u64) -> Duration {
    Duration::from_nanos(now.saturating_sub(then))
}

impl Doing {
    fn number(&self) -> Option<u64> {
        match self.call {
            WaitingCall::Collective { number, .. } | WaitingCall::Was { number, .. } => {
                Some(number)
            }
            _ => None,
        }
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
