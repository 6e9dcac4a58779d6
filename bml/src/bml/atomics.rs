//! Numbers in processes' memory that all of them change atomically, by one rail of each.
//!
//! A rail's changes are atomic against each other, and against nothing else ([`Rdma::atomic`]). So memory is registered with
//! one rail, whose key all processes use, the owner too. Each process has one such rail, and they meet over these, whatever
//! carries their messages: those of one host, too, which else use no network. Hosts that are on several networks agree on
//! one of them.

use super::Bml;
use crate::{Rank, RdmaRail};
use gapless_btl::{Address, Btl, PeerId, Rdma, RemoteKey};

impl Bml {
    /// [Adds](Bml::add) a transport that is on a network of this name. The rails of two processes on one network reach each
    /// other.
    pub fn add_on(&mut self, btl: Box<dyn Btl>, network: &str) {
        self.add(btl);
        if let Some(rail) = self.rails.last_mut() {
            rail.network = Some(network.into());
        }
    }

    /// Rails to others with which memory can be registered for atomic changes, the best first.
    fn with_atomics(&mut self) -> Vec<usize> {
        let mut rails = self.order(|rail| !rail.is_own());
        rails.retain(|&at| self.rails[at].rdma().is_some_and(|rdma| rdma.has_atomics()));
        rails
    }

    /// The networks of the rails with which memory can be registered for atomic changes, the best first. A rail
    /// without a [network](Bml::add_on) counts as one of its own name.
    pub fn networks_with_atomics(&mut self) -> Vec<String> {
        let mut networks: Vec<String> = Vec::new();
        for at in self.with_atomics() {
            let network = self.rails[at].network();
            if !networks.iter().any(|known| known == network) {
                networks.push(network.to_owned());
            }
        }
        networks
    }

    /// The best rail to others, on this network if one is given, with which memory can be registered for atomic changes; its
    /// address, and its operations. A registration is undone by [`deregister`](Bml::deregister).
    pub fn atomics(&mut self, network: Option<&str>) -> Option<(RdmaRail, Address, &mut dyn Rdma)> {
        let rails = self.with_atomics();
        let is_on = |at: &usize| network.is_none_or(|network| self.rails[*at].network() == network);
        let at = rails.into_iter().find(is_on)?;
        let rail = &mut self.rails[at];
        Some((RdmaRail(at), rail.btl.address(), rail.rdma()?))
    }

    /// Makes a peer's rail of [`atomics`](Bml::atomics) known to ours, for changes alone: no messages go that way because of
    /// it. Both call this. `peer` may be this process. Gives whether the two can reach each other, as far as that is known
    /// now.
    pub fn meet_for_changes(&mut self, rail: RdmaRail, peer: Rank, address: &Address) -> bool {
        let Some(at) = self.rails.get_mut(rail.0) else { return false };
        let named = if peer == self.me {
            at.rdma().and_then(|rdma| rdma.own())
        } else {
            let named = at.btl.introduce(address);
            if let Err(error) = &named {
                tracing::debug!(%peer, %error, "numbers cannot be changed there");
            }
            named.ok()
        };
        at.mark_active();
        named.is_some_and(|named| at.name_peer(named, peer).is_ok())
    }

    /// Whether numbers in the memory that `key` stands for, which `peer` has made, can be changed by this rail. `None` while
    /// that is not known: the link is made for it, so ask again after some progress.
    pub fn changes(&mut self, rail: RdmaRail, peer: Rank, key: &RemoteKey) -> Option<bool> {
        let mut answer = Some(false);
        for name in self.names(rail, peer) {
            let rail = &mut self.rails[rail.0];
            match rail.rdma().map_or(Some(false), |rdma| rdma.changes(name, key)) {
                Some(true) => return Some(true),
                Some(false) => {}
                None => {
                    rail.mark_active();
                    rail.meet(name);
                    answer = None;
                }
            }
        }
        answer
    }

    /// The operations by which numbers that `key` stands for are changed, and the name of `peer` there, where
    /// [`changes`](Bml::changes) says yes.
    pub fn changing(
        &mut self,
        rail: RdmaRail,
        peer: Rank,
        key: &RemoteKey,
    ) -> Option<(PeerId, &mut dyn Rdma)> {
        let names = self.names(rail, peer);
        let rail = self.rails.get_mut(rail.0)?;
        rail.mark_active();
        let rdma = rail.rdma()?;
        let name = names.into_iter().find(|&name| rdma.changes(name, key) == Some(true))?;
        Some((name, rdma))
    }

    /// What a peer is called on a rail: mostly one name.
    fn names(&self, rail: RdmaRail, peer: Rank) -> Vec<PeerId> {
        let ranks = self.rails.get(rail.0).map_or(&[][..], |rail| &rail.ranks);
        let names = (0..).map(PeerId).zip(ranks);
        names.filter(|(_, rank)| **rank == peer).map(|(name, _)| name).collect()
    }
}
