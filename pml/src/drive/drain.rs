//! The end of an endpoint whose callers want their memory back (`pml/take_back.rs`).

use crate::drive::core::Core;
use crate::drive::operation::{Operation, Recv, RecvStage};
use crate::links::Outgoing;
use crate::rndv::incoming::{Incoming, IncomingStage};
use gapless_bml::{Bml, Handler, RankEvent};
use gapless_mem::Region;

impl Core {
    /// Waits until no engine works on anything of ours any more; nothing new is begun.
    pub(crate) fn drain_engines(&mut self) {
        for item in self.links.iter().flat_map(|(_, peer)| &peer.outbox) {
            if let Outgoing::Packing { packing, .. } = item {
                packing.drain();
            }
        }
        let awaited = self.rndv.in_flight.drain();
        awaited.into_iter().for_each(|completion| self.requests.lay_down(completion));
        self.rndv.again.clear();
        self.rndv.unanswered.clear();
        self.links.clear();
    }

    /// Receives that a peer has a part in.
    fn incoming_all(&mut self) -> impl Iterator<Item = &mut Incoming> {
        self.requests.operations_mut().filter_map(|work| match work {
            Operation::Recv(Recv { stage: RecvStage::Incoming(incoming), .. }) => {
                Some(&mut **incoming)
            }
            _ => None,
        })
    }

    /// How many one-sided reads of this process are under way.
    pub(crate) fn one_sided_reads(&mut self) -> usize {
        self.incoming_all().filter(|incoming| incoming.read.is_under_way()).count()
    }

    /// What peers may still write, and who.
    pub(crate) fn granted(&mut self) -> Vec<(u32, Region)> {
        let granted = self.incoming_all().filter_map(|incoming| match &incoming.stage {
            IncomingStage::Going(going) => Some((incoming.from, going.granted()?)),
            _ => None,
        });
        granted.collect()
    }
}

/// Handles the ends of one-sided reads, and nothing else.
pub(crate) struct Ending<'c>(pub(crate) &'c mut Core);

impl Handler for Ending<'_> {
    fn handle(&mut self, _: &mut Bml, event: RankEvent) {
        if let RankEvent::Completed { token, .. } = event
            && let Some(id) = self.0.requests.named(token.0)
            && let Some((incoming, _)) = self.0.requests.incoming(id)
        {
            incoming.read.end();
        }
    }
}
