//! Rings for ranks on this host: memory that both map.

use super::Served;
use crate::device::RingShape;
use gapless_bml::{Bml, Rank, RemoteKey};

impl Served {
    /// Makes a ring for an initiator that can map it; gives the key.
    pub(super) fn offer(&mut self, bml: &mut Bml, to: Rank) -> Option<RemoteKey> {
        let (peer, mapped) = bml.mapped(to)?;
        let memory = self.target.stocked()?.clone();
        let key = mapped.key(peer, &memory)?;
        // SAFETY: the memory was allocated for this, zeroed. Its key goes to one initiator, for its end of the ring, and
        // this process does not touch it otherwise.
        let added = unsafe { self.target.add_ring(memory, RingShape::default()) };
        added.inspect_err(|error| tracing::debug!(%to, %error, "no ring")).ok()?;
        self.initiators.push(Some(to));
        Some(key)
    }
}
