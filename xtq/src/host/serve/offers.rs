//! Rings for ranks on this host: memory that both map, and slots in the worker's own memory, if the rank's processor maps
//! that.

use super::super::grant::two_keys;
use super::Served;
use crate::device::{RINGS_MAX, RingParts, RingShape};
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

    /// Memory for a ring whose slots lie in the worker's own memory, if the initiator's processor maps that. Gives both keys.
    pub(super) fn propose(&mut self, bml: &mut Bml, to: Rank) -> Option<Vec<u8>> {
        if self.target.rings() + self.proposed.len() >= RINGS_MAX {
            return None;
        }
        let said = |error: &dyn std::fmt::Display| tracing::debug!(%to, %error, "no slots nearby");
        let memory = bml.allocate(RingShape::default().bytes())?;
        let whole = memory.inspect_err(|error| said(error)).ok()?.lease().clone();
        let slots = self.target.near(RingParts::SLOTS_BYTES);
        let (slots, export) = slots.inspect_err(|error| said(error)).ok()?;
        let (peer, mapped) = bml.mapped(to)?;
        let key = mapped.key(peer, &whole)?;
        // Last: it is to be ended.
        let slots_key = mapped.key_for_processor(peer, export, RingParts::SLOTS_BYTES)?;
        let parts = RingParts { whole, slots: Some(slots), bodies: None, status: None };
        self.proposed.insert(to.0, Proposed { parts, slots_key });
        Some(two_keys(&key, Some(&slots_key)))
    }

    /// The worker gets a ring that was proposed, with the slots there or without. Whether it has.
    pub(super) fn join(&mut self, bml: &mut Bml, rank: Rank, near: bool) -> bool {
        let Some(proposed) = self.proposed.remove(&rank.0) else { return false };
        let mut parts = proposed.end(bml, rank);
        if !near {
            // No worker runs.
            parts.slots = None;
        }
        // SAFETY: the memory was allocated for this ring, zeroed. Its keys went to one initiator, for its end of the ring, and
        // this process does not touch it otherwise.
        let added = unsafe { self.target.add_ring_of_parts(parts, RingShape::default()) };
        let added = added.inspect_err(|error| tracing::debug!(%rank, %error, "no ring"));
        if added.is_ok() {
            self.initiators.push(Some(rank));
        }
        added.is_ok()
    }

    /// Gives back what was proposed to ranks that are lost or have declined. No worker runs.
    pub(super) fn forget_proposed(&mut self, bml: &mut Bml, is_proposed: impl Fn(Rank) -> bool) {
        for (rank, proposed) in self.proposed.extract_if(.., |rank, _| !is_proposed(Rank(*rank))) {
            proposed.end(bml, Rank(rank));
        }
    }
}

/// A ring that was proposed, and the key to its slots.
pub(super) struct Proposed {
    parts: RingParts,
    slots_key: RemoteKey,
}

impl Proposed {
    /// The key to the slots has served: the initiator has mapped them, or never will.
    fn end(self, bml: &mut Bml, rank: Rank) -> RingParts {
        if let Some((peer, mapped)) = bml.mapped(rank) {
            mapped.end_key_for_processor(peer, &self.slots_key);
        }
        self.parts
    }
}

#[cfg(test)]
impl Served {
    /// The key that a rank was told, until it has served.
    pub(in crate::host) fn key_to_slots(&self, of: Rank) -> Option<RemoteKey> {
        self.proposed.get(&of.0).map(|proposed| proposed.slots_key)
    }
}
