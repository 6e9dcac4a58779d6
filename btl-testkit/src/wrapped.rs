//! The transport inside a wrapper, and the abilities that it has shown first.

use gapless_btl::{
    Abilities, Btl, MapError, Mapped, PeerId, Rdma, RdmaError, RdmaLimits, RemoteKey,
};
use gapless_mem::{Lasting, Space};
use std::sync::Arc;

/// A wrapped transport. Its methods are those of [`Rdma`] that touch no memory, answered by the transport's ability, or
/// as one would that can do nothing.
#[derive(Debug)]
pub(crate) struct Wrapped<B> {
    pub(crate) btl: B,
    pub(crate) abilities: Abilities,
    rdma_limits: Option<RdmaLimits>,
    /// So many peers have names.
    peers: u32,
    /// What the transport said of each peer when `rdma` was last asked for.
    reaches: Vec<Option<bool>>,
}

impl<B: Btl> Wrapped<B> {
    pub(crate) fn new(mut btl: B) -> Wrapped<B> {
        let mut abilities = Abilities::default();
        let rdma_limits = abilities.rdma(&mut btl).map(|rdma| rdma.rdma_limits().clone());
        Wrapped { btl, abilities, rdma_limits, peers: 0, reaches: Vec::new() }
    }

    /// A peer has this name.
    pub(crate) fn name(&mut self, id: PeerId) {
        self.peers = self.peers.max(id.0.saturating_add(1));
    }

    /// Whether it has one-sided operations. Notes which peers they reach.
    pub(crate) fn shows_rdma(&mut self) -> bool {
        let Some(rdma) = self.abilities.rdma(&mut self.btl) else { return false };
        self.reaches.clear();
        self.reaches.extend((0..self.peers).map(|peer| rdma.reaches(PeerId(peer))));
        true
    }

    /// Whether it maps memory.
    pub(crate) fn shows_mapped(&mut self) -> bool {
        self.abilities.mapped(&mut self.btl).is_some()
    }

    pub(crate) fn rdma(&mut self) -> Result<&mut dyn Rdma, RdmaError> {
        let reason = "the transport has no one-sided operations".to_owned();
        self.abilities.rdma(&mut self.btl).ok_or(RdmaError::Unavailable { reason })
    }

    pub(crate) fn mapped(&mut self) -> Result<&mut dyn Mapped, MapError> {
        let reason = "the transport does not map memory".to_owned();
        self.abilities.mapped(&mut self.btl).ok_or(MapError::Unavailable { reason })
    }

    pub(crate) fn rdma_limits(&self) -> &RdmaLimits {
        self.rdma_limits.as_ref().expect("`rdma` gives out only what the transport has")
    }

    pub(crate) fn reaches(&self, peer: PeerId) -> Option<bool> {
        self.reaches.get(peer.0 as usize).copied().flatten()
    }

    pub(crate) fn takes(&mut self, space: Space) -> bool {
        self.rdma().is_ok_and(|rdma| rdma.takes(space))
    }

    pub(crate) fn remember(&mut self, memory: &Arc<Lasting>) {
        if let Ok(rdma) = self.rdma() {
            rdma.remember(memory);
        }
    }

    pub(crate) fn has_atomics(&mut self) -> bool {
        self.rdma().is_ok_and(|rdma| rdma.has_atomics())
    }

    pub(crate) fn own(&mut self) -> Option<PeerId> {
        self.rdma().ok()?.own()
    }

    pub(crate) fn changes(&mut self, peer: PeerId, key: &RemoteKey) -> Option<bool> {
        self.rdma().map_or(Some(false), |rdma| rdma.changes(peer, key))
    }

    pub(crate) fn has_single_copy_reads(&mut self, peer: PeerId) -> bool {
        self.rdma().is_ok_and(|rdma| rdma.has_single_copy_reads(peer))
    }
}
