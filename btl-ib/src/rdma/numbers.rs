//! Numbers that adapters change: which may be, and by whom.

use crate::ib::Ib;
use crate::key::Key;
use gapless_btl::{Access, Extent, PeerId, RdmaError, RemoteKey, check_atomic};
use gapless_mem::Region;

impl Ib {
    /// Whether a number may be changed, by this device, and with this key.
    pub(super) fn may_change(
        &self,
        key: &Key,
        local: &[Region],
        remote: &[Extent],
    ) -> Result<(), RdmaError> {
        let (&[found], &[place]) = (local, remote) else { return Err(RdmaError::NotAtomic) };
        if key.access != Access::Atomic || !self.lengths.atomics {
            return Err(RdmaError::NotAtomic);
        }
        check_atomic(&found, place.offset, (key.address, key.len))
    }

    /// Whether a key is one for changes, and of this peer.
    pub(super) fn is_for_changes(&self, peer: PeerId, key: &RemoteKey) -> bool {
        let owner = self.links.get(peer.0 as usize).map(|link| link.address.id);
        let key = Key::open(key, &self.keys).ok();
        let fits = key.zip(owner);
        self.lengths.atomics
            && fits.is_some_and(|(key, owner)| key.access == Access::Atomic && key.owner == owner)
    }

    /// This process as a peer of its own.
    pub(super) fn own_name(&mut self) -> Option<PeerId> {
        if !self.lengths.atomics {
            return None;
        }
        match self.know_itself() {
            Ok(id) => Some(PeerId(id)),
            Err(error) => {
                tracing::debug!(%error, "no link to this process itself");
                None
            }
        }
    }
}
