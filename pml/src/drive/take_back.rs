//! Taking memory back: the end of an endpoint whose callers want their buffers although requests are under way. It
//! is given up, or a panic has left it, and nobody can tell what is whole.

use crate::drive::core::Core;
use crate::drive::inflight::InFlight;
use crate::drive::peer::Outgoing;
use crate::pml::Pml;
use crate::request::Work;
use crate::request::recv::{Recv, RecvStage};
use crate::rndv::decide::{Incoming, Stage};
use gapless_bml::{Bml, Handler, Rank, RankEvent};
use gapless_mem::{Region, abort, abort_on_unwind};

impl Core {
    /// Waits until no engine works on anything of ours any more; nothing new is begun.
    fn drain_engines(&mut self) {
        for item in self.peers.iter().flat_map(|peer| &peer.outbox) {
            if let Outgoing::Packing { packing, .. } = item {
                packing.drain();
            }
        }
        self.in_flight.iter().for_each(InFlight::drain);
        // Only now: what goes with them may be anybody's, and panic.
        for work in self.in_flight.drain(..) {
            if let InFlight::Await { completion, left, .. } = work {
                [completion].into_iter().chain(left).for_each(|it| self.requests.lay_down(it));
            }
        }
        self.again.clear();
        self.unanswered.clear();
        for peer in &mut self.peers {
            peer.streams.clear();
            peer.outbox.clear();
        }
    }

    /// Receives that a peer has a part in.
    fn incoming_all(&mut self) -> impl Iterator<Item = &mut Incoming> {
        self.requests.works_mut().filter_map(|work| match work {
            Work::Recv(Recv { stage: RecvStage::Incoming(incoming), .. }) => Some(&mut **incoming),
            _ => None,
        })
    }

    /// One-sided operations of ours that are under way.
    fn gets(&mut self) -> usize {
        self.incoming_all().filter(|incoming| incoming.gets.is_under_way()).count()
    }

    /// What peers may still write, and who.
    fn granted(&mut self) -> Vec<(u32, Region)> {
        let granted = self.incoming_all().filter_map(|incoming| match &incoming.stage {
            Stage::Going(going) => Some((incoming.from, going.granted()?)),
            _ => None,
        });
        granted.collect()
    }
}

/// Hears of the end of one-sided operations, and of nothing else.
struct Ending<'c>(&'c mut Core);

impl Handler for Ending<'_> {
    fn handle(&mut self, _: &mut Bml, event: RankEvent) {
        if let RankEvent::Completed { token, .. } = event
            && let Some(&id) = self.0.serials.get(&token.0)
            && let Some((incoming, _)) = self.0.incoming(id)
        {
            incoming.gets.end();
        }
    }
}

impl Pml {
    /// Takes all memory back: from engines and one-sided operations, which are waited for, and from peers that
    /// were granted memory of the host to write, whatever they are doing (`Bml::take_back`). For an
    /// endpoint that is given up, also after a panic has left a call of it. Requests in flight never end. Afterwards
    /// nothing may be called but what asks for results ([`collect`](Pml::collect),
    /// [`collect_quietly`](Pml::collect_quietly), [`is_done`](Pml::is_done), [`release`](Pml::release)), what concerns
    /// wakers ([`notify`](Pml::notify), [`has_woken`](Pml::has_woken), [`take_woken`](Pml::take_woken),
    /// [`take_all_wakers`](Pml::take_all_wakers)), and `Bml::recall` and `Bml::withdraw`.
    ///
    /// Memory of devices cannot be taken back from peers: they may write it until they let go of it
    /// (`Bml::recall`, `Bml::withdraw`).
    ///
    /// Never unwinds. Where memory cannot be taken back the process aborts, with one line that says why.
    pub fn take_back(&mut self) {
        abort_on_unwind("a panic while memory was taken back", || {
            self.core.drain_engines();
            while self.core.gets() > 0 {
                if self.bml.is_torn() {
                    abort("a panic has lost the end of an operation on memory that is taken back");
                }
                self.bml.poll_for(&mut Ending(&mut self.core));
                std::thread::yield_now();
            }
            for (peer, region) in self.core.granted() {
                let alone = self.bml.take_back(Rank(peer), region);
                if !alone && region.space().cpu_accessible() {
                    abort("memory that a peer may still write cannot be taken back");
                }
            }
        });
    }
}

impl Drop for Pml {
    fn drop(&mut self) {
        self.core.drain_engines();
        self.core.staging.close(&mut self.bml);
    }
}
