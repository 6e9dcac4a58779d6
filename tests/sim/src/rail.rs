//! One end of one simulated rail: what `bml` sees of the [`Wire`].

use crate::onesided::move_bytes;
use crate::plan::RailPlan;
use crate::wire::{Item, Wire, gone};
use gapless_btl::{
    AbilityId, Address, AmTag, Btl, Event, Limits, LinkError, Mapped, PeerId, Rdma, ReserveError,
    Sink, Slot, Token,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The wire, as the ends of its rails share it. All of them are in one thread.
pub(crate) type Shared = Arc<Mutex<Wire>>;

/// Takes the wire for a moment.
pub(crate) fn lock(wire: &Shared) -> MutexGuard<'_, Wire> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A rank's end of a rail.
pub(crate) struct Rail {
    pub(crate) wire: Shared,
    pub(crate) rank: u32,
    pub(crate) number: usize,
    limits: Limits,
    pub(crate) rdma_limits: gapless_btl::RdmaLimits,
    rdma: bool,
    mapped: bool,
    /// The name of its [`Rdma`] and its [`Mapped`].
    pub(crate) ability: AbilityId,
    /// Reports that one poll makes at most.
    burst: usize,
    /// Ranks, by [`PeerId`].
    pub(crate) peers: Vec<u32>,
    /// By rank.
    names: Vec<Option<PeerId>>,
}

impl Rail {
    pub(crate) fn new(wire: Shared, plan: &RailPlan, number: usize, rank: u32, size: u32) -> Rail {
        Rail {
            wire,
            rank,
            number,
            limits: Limits {
                name: plan.name,
                eager_bytes: plan.eager_bytes,
                max_fragment_bytes: plan.max_fragment_bytes,
                ordered: plan.ordered,
                latency_ns: 500,
                bandwidth_mb_s: 10_000,
                death_notice_ms: 1,
            },
            rdma_limits: gapless_btl::RdmaLimits {
                max_pieces: plan.pieces_max,
                operation_ns: 50,
                piece_ns: 10,
                bandwidth_mb_s: 10_000,
                register_ns: 0,
                register_mib_ns: 0,
            },
            rdma: plan.rdma,
            mapped: plan.mapped,
            ability: AbilityId::new(),
            burst: plan.burst,
            peers: Vec::new(),
            names: vec![None; size as usize],
        }
    }
}

impl Btl for Rail {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> Address {
        Address::new(&self.rank.to_le_bytes()).expect("four bytes")
    }

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let name = self.introduce(peer)?;
        lock(&self.wire).connect(self.number, self.rank, self.peers[name.0 as usize]);
        Ok(name)
    }

    fn has_met(&self, peer: PeerId) -> bool {
        let met = |&peer: &u32| lock(&self.wire).has_met(self.number, self.rank, peer);
        self.peers.get(peer.0 as usize).is_some_and(met)
    }

    fn introduce(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let bad = || LinkError::BadAddress { what: "not a rank".to_owned() };
        let rank = u32::from_le_bytes(peer.as_bytes().try_into().map_err(|_| bad())?);
        let name = self.names.get_mut(rank as usize).ok_or_else(bad)?;
        let next = u32::try_from(self.peers.len()).map_err(|_| bad())?;
        if name.is_none() {
            self.peers.push(rank);
        }
        Ok(*name.get_or_insert(PeerId(next)))
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        let Some(&peer) = self.peers.get(to.0 as usize) else {
            return Err(LinkError::Unreachable { reason: format!("{to} is nobody") }.into());
        };
        let mut wire = lock(&self.wire);
        wire.call(self.number, self.rank, peer);
        wire.reserve((self.number, self.rank, peer), to, len)
    }

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        lock(&self.wire).send(slot, tag, done);
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        if only.is_some() {
            return 0;
        }
        let mut wire = lock(&self.wire);
        let store = Arc::clone(&wire.store);
        let most = self.burst.min(sink.room());
        for told in 0..most {
            let Some(item) = wire.take(self.rank, self.number) else { return told };
            let name = |rank: u32| self.names.get(rank as usize).copied().flatten();
            match item {
                Item::Parcel { from, tag, region, index, .. } => {
                    let from = name(from).expect("all ranks are connected before they talk");
                    let fragment = store.fragment(region, index);
                    sink.event(Event::Arrived { from, tag, fragment });
                }
                Item::Sent { token, alive } => {
                    let result = if alive { Ok(()) } else { Err(gone()) };
                    sink.event(Event::Sent { token, result });
                }
                Item::Got { token, from, work } => {
                    let moved =
                        work.is_some_and(|work| move_bytes(&mut wire, (self.rank, from), &work));
                    let result = if moved { Ok(()) } else { Err(gone()) };
                    sink.event(self.completed(token, result));
                }
                Item::Lost { from } => {
                    let peer = name(from).expect("all ranks are connected before they die");
                    sink.event(Event::Lost { peer, error: gone() });
                }
            }
        }
        most
    }

    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        if self.rdma { Some(self) } else { None }
    }

    fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        if self.mapped { Some(self) } else { None }
    }
}
