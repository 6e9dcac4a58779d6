//! What collectives in flight wait for, and which of these collectives peers are not in.

use gapless_pml::{Doing, Pml, RequestId, WaitingCall};

use super::InFlight;
use super::in_flight::{OpEntry, Phase};
use crate::Executor;

impl OpEntry {
    /// The collective is over: peers that ask later are told what it was, if they wait for messages of it.
    pub(super) fn tell_past(&self, pml: &mut Pml) {
        let doing = self.op.carried_by().map(Executor::doing);
        if let Some(Doing {
            call: WaitingCall::Collective { operation, number },
            context: Some(context),
            ..
        }) = doing
        {
            pml.was_in(context, operation, number);
        }
    }
}

impl InFlight {
    /// What the collective is in that ends with a request.
    #[must_use]
    pub fn doing(&self, request: RequestId) -> Option<Doing> {
        let is_it = |entry: &&OpEntry| matches!(entry.phase, Phase::Going(id) if id == request);
        let entry = self.entries().find(is_it)?;
        if let Some(executor) = entry.op.carried_by() {
            return Some(executor.doing());
        }
        // It waits for its turn, or goes through memory, which names what does not fit together.
        let call = WaitingCall::Collective { operation: 0, number: entry.op.number() };
        let context = Some(entry.comm.collective().context());
        let whom = entry.queue.with(|state| state.working().and_then(|module| module.awaits()));
        Some(Doing { call, context, whom, ..Doing::NOTHING })
    }

    /// Peers have said that they are in another operation as a collective that is in flight here: that fails. Whether
    /// one did.
    pub fn differs(&mut self, pml: &mut Pml, doing: &Doing) -> bool {
        let WaitingCall::Collective { operation: ours, number } = doing.call else { return false };
        let theirs = |theirs: &Doing| match theirs.call {
            WaitingCall::Collective { operation, number: same }
            | WaitingCall::Was { operation, number: same }
                if same == number && theirs.context == doing.context =>
            {
                Some(operation).filter(|operation| ![0, ours].contains(operation))
            }
            _ => None,
        };
        let found = pml.heard().find_map(|(peer, said)| Some((peer, theirs(said)?)));
        let Some((peer, theirs)) = found.filter(|_| ours != 0) else { return false };
        let mut carried = self.entries_mut().filter_map(|entry| {
            let op = &mut *entry.op;
            op.hosted.as_deref_mut().or(op.executor.as_deref_mut())
        });
        let is_it = |executor: &&mut Executor| {
            let own = executor.doing();
            (own.call, own.context) == (doing.call, doing.context)
        };
        let Some(executor) = carried.find(is_it) else { return false };
        executor.differs(pml, peer, theirs)
    }
}
