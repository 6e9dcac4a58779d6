//! Mapping over a simulated rail: a peer's memory is a region of ours at once, and whatever its owner
//! does to it meanwhile shows. Only ranks' own buffers can be mapped, as with real rails only memory
//! that was made for it: they stay after a death, and the endpoint's copies do not.

use crate::rail::{Rail, lock};
use gapless_btl::{AbilityId, Allocation, MapError, Mapped, Mapping, PeerId, RemoteKey};
use gapless_mem::{Lease, Region, Space};

fn bad(what: &str) -> MapError {
    MapError::BadKey { what: what.to_owned() }
}

// SAFETY: the numbers are those of the contract.
// 1. The id is made with the end.
// 2. A key is the number of a rank, the peer that may map, and a region that was found in one of its buffers.
// 3. There is no memory of devices.
// 4. Whoever maps moves data within a call of its endpoint or not at all, and revoked memory is mapped no more.
// 5. `make_private` is the contract's own, which always answers `false`.
unsafe impl Mapped for Rail {
    fn id(&self) -> AbilityId {
        self.ability
    }

    fn allocate(&mut self, _len: u64) -> Result<Allocation, MapError> {
        Err(MapError::Unavailable { reason: "ranks' buffers can all be mapped".to_owned() })
    }

    fn key(&mut self, peer: PeerId, memory: &Lease) -> Option<RemoteKey> {
        let region = memory.region();
        let peer = *self.peers.get(peer.0 as usize)?;
        let mut wire = lock(&self.wire);
        if wire.has_noticed(self.number, self.rank, peer)
            || !wire.has_met(self.number, self.rank, peer)
        {
            return None;
        }
        let (start, len) = wire.buffers.range(..=region.address()).next_back()?;
        if region.address() + region.offset() + region.len() > start + len {
            return None;
        }
        wire.shared.push((self.rank, peer, region));
        let numbers = [self.number as u64, peer.into(), wire.shared.len() as u64, region.len()];
        wire.heard(|tap| tap.operation("key", self.rank, &numbers));
        RemoteKey::new(&wire.shared.len().to_le_bytes())
    }

    fn map_for(&mut self, peer: PeerId, key: &RemoteKey, _: Space) -> Result<Mapping, MapError> {
        let from = *self.peers.get(peer.0 as usize).ok_or_else(|| bad("its peer"))?;
        let number =
            usize::from_le_bytes(key.as_bytes().try_into().map_err(|_| bad("its length"))?);
        let mut wire = lock(&self.wire);
        if wire.has_noticed(self.number, self.rank, from) {
            return Err(crate::wire::gone().into());
        }
        if wire.is_unreadable(self.number, self.rank, from) {
            return Err(MapError::Unavailable { reason: "so it was drawn".to_owned() });
        }
        let shared = wire.shared.get(number.wrapping_sub(1));
        let (owner, whom, region) = *shared.ok_or_else(|| bad("it"))?;
        if (owner, whom) != (from, self.rank) {
            return Err(bad("it is another rank's"));
        }
        if wire.revoked.contains(&(owner, self.rank, region)) {
            return Err(MapError::Unavailable { reason: "it was revoked".to_owned() });
        }
        wire.tally.maps += 1;
        let numbers = [self.number as u64, from.into(), number as u64];
        wire.heard(|tap| tap.operation("map", self.rank, &numbers));
        // SAFETY: `key` saw that it is a rank's buffer. Ranks keep their buffers until the world has ended.
        let lease = unsafe { Lease::kept_by_caller(region) };
        // SAFETY: as above. "No reference of this process covers it while the mapping is used": mappings are used
        // within calls of endpoints, and ranks, which gave the key, make references to their buffers between calls
        // only.
        Ok(unsafe { Mapping::new(lease) })
    }

    /// Endpoints move data at once or not at all, so a lost one does nothing later, unless it gets a key then.
    fn revoke_access(&mut self, peer: PeerId, region: Region) -> bool {
        let Some(&peer) = self.peers.get(peer.0 as usize) else { return false };
        let mut wire = lock(&self.wire);
        wire.revoked.push((self.rank, peer, region));
        let numbers = [self.number as u64, peer.into(), region.len()];
        wire.heard(|tap| tap.operation("revoke", self.rank, &numbers));
        false
    }
}
