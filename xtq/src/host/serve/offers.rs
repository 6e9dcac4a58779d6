//! Rings for ranks on this host: memory that both map.

use super::Served;
use crate::device::RingShape;
use gapless_bml::{Bml, Rank, RemoteKey};

impl Served {
    /// Makes a ring for an initiator that can map it; gives the key.
    pub(super) fn offer(&mut self, bml: &mut Bml, to: Rank) -> Option<RemoteKey> {
        let shape = RingShape::default();
        let said = |error: &dyn std::fmt::Display| tracing::debug!(%to, %error, "no ring");
        let memory = bml.allocate(shape.bytes())?.inspect_err(|error| said(error)).ok()?;
        let (peer, mapped) = bml.mapped(to)?;
        let key = mapped.key(peer, memory.lease())?;
        // SAFETY: the memory was just allocated, zeroed. Its key goes to one initiator, for its end of the ring, and this
        // process does not touch it otherwise.
        let added = unsafe { self.target.add_ring(memory.lease().clone(), shape) };
        added.inspect_err(|error| said(error)).ok()?;
        self.initiators.push(Some(to));
        Some(key)
    }
}
