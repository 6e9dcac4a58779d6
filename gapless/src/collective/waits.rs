//! What collectives in flight wait for, and those of them that peers are not in.

use super::live::{Entry, Live, Phase};
use gapless_coll::Executor;
use gapless_pml::{Call, Doing, Pml, RequestId};

impl Entry {
    /// What carries it out by messages, if something does.
    fn carried_by(&self) -> Option<&Executor> {
        let of_host = self.errand.as_ref().and_then(|errand| errand.executor());
        of_host.or(self.executor.as_ref())
    }

    /// It is over: peers that ask later are told what it was, if they wait for messages of it.
    pub(super) fn tell_past(&self, pml: &mut Pml) {
        let doing = self.carried_by().map(Executor::doing);
        if let Some(Doing {
            call: Call::Collective { operation, number },
            context: Some(context),
            ..
        }) = doing
        {
            pml.was_in(context, operation, number);
        }
    }
}

impl Live {
    /// What the collective is in that ends with a request.
    pub(crate) fn doing(&self, request: RequestId) -> Option<Doing> {
        let is_it = |entry: &&Entry| matches!(entry.phase, Phase::Going(id) if id == request);
        let all = self.going.values().chain(self.lined.values()).map(Box::as_ref);
        let entry = all.into_iter().find(is_it)?;
        if let Some(executor) = entry.carried_by() {
            return Some(executor.doing());
        }
        // It waits for its turn, or goes through memory, which names what does not fit together.
        let number = entry.errand.as_ref().map_or(0, |errand| errand.number);
        let call = Call::Collective { operation: 0, number };
        let context = Some(entry.comm.collective().context());
        let whom = entry.errand.as_ref().and_then(|errand| {
            errand.desk.with(|at| at.busy_page().and_then(|page| page.awaits()))
        });
        Some(Doing { call, context, whom, ..Doing::NOTHING })
    }

    /// Peers have said that they are in another operation as a collective that is in flight here: that fails. Whether one
    /// did.
    pub(crate) fn differs(&mut self, pml: &mut Pml, doing: &Doing) -> bool {
        let Call::Collective { operation: ours, number } = doing.call else { return false };
        let theirs = |theirs: &Doing| match theirs.call {
            Call::Collective { operation, number: same }
            | Call::Was { operation, number: same }
                if same == number && theirs.context == doing.context =>
            {
                Some(operation).filter(|operation| ![0, ours].contains(operation))
            }
            _ => None,
        };
        let found = pml.heard().find_map(|(peer, said)| Some((peer, theirs(said)?)));
        let Some((peer, theirs)) = found.filter(|_| ours != 0) else { return false };
        let lined =
            self.lined.values_mut().filter_map(|entry| entry.errand.as_mut()?.executor_mut());
        let going = self.going.values_mut().filter_map(|entry| entry.executor.as_mut());
        let is_it = |executor: &&mut Executor| {
            let own = executor.doing();
            (own.call, own.context) == (doing.call, doing.context)
        };
        let Some(executor) = going.chain(lined).find(is_it) else { return false };
        executor.differs(pml, peer, theirs)
    }
}
