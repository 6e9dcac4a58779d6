//! The rings of relays: those that we lend to peers, and those that we were lent. Each is made for one pair of
//! devices, serves one message at a time, and is kept for the next.
//!
//! ```text
//! lent: [ places, lane by lane | flags `ready` ]      in the receiver's memory, written by the sender
//!       [ flags `credit` ]                            in the sender's memory, written by the receiver
//! ```

use crate::request::RequestId;
use crate::staging::{Block, StagingPool};
use gapless_bml::Mapping;
use gapless_engine::{Relay, RelayMemory, RelayShape};
use gapless_mem::{OutOfRange, Region, Space};
use std::sync::Arc;

/// Rings of one peer that are kept, in either direction.
pub(super) const RINGS_MAX: usize = 4;
/// Messages that one device packs, or unpacks, at a time: the halves of both directions are resident together.
const HALVES_MAX: usize = 1;

/// Rings of a device that messages have.
fn busy(rings: &[Ring], space: Space) -> usize {
    rings.iter().filter(|ring| ring.busy && ring.space == space).count()
}

/// What both ends know of a ring.
pub(super) struct Ring {
    /// Its number at its owner.
    pub(super) number: u64,
    pub(super) peer: u32,
    /// Our device.
    pub(super) space: Space,
    /// The mark of the sender's, for one of ours.
    pub(super) mark: u64,
    /// Lanes, places and the bytes of each.
    pub(super) shape: RelayShape,
    /// Turns that its lanes have had.
    pub(super) turn: u64,
    /// Whether a message has it.
    pub(super) busy: bool,
    /// Our end.
    pub(super) relay: Arc<dyn Relay>,
    /// Our part of its memory, in staging memory: places and flags, or flags.
    pub(super) block: Option<Block>,
    /// The other part, mapped; the owner of a new ring has yet to.
    pub(super) theirs: Option<Mapping>,
    /// The next message over it, whose loan came before our half of the last one had ended.
    pub(super) next: Option<RequestId>,
}

impl Ring {
    fn region(&self) -> Option<Region> {
        self.block.as_ref().map(Block::region)
    }

    /// The places and the flags behind them.
    pub(super) fn parts(shape: &RelayShape, whole: Region) -> Result<(Region, Region), OutOfRange> {
        let (flags, _) = shape.receiver_bytes().unwrap_or((u64::MAX, u64::MAX));
        let places = shape.ring_bytes().unwrap_or(u64::MAX);
        Ok((whole.sub(0, places)?, whole.sub(flags, shape.flag_bytes())?))
    }

    /// Its memory, if both parts are known: the owner's is `lent`.
    pub(super) fn memory(&self, owner: bool) -> Option<RelayMemory> {
        let (ours, theirs) = (self.region()?, self.theirs.as_ref()?.region());
        let (lent, credit) = if owner { (ours, theirs) } else { (theirs, ours) };
        let (fragments, ready) = Ring::parts(&self.shape, lent).ok()?;
        let credit = credit.sub(0, self.shape.flag_bytes()).ok()?;
        Some(RelayMemory { fragments, ready, credit })
    }

    /// Gives its memory back; `late`: the peer may still write to it.
    pub(super) fn release(mut self, staging: &mut StagingPool, late: bool) {
        if let Some(block) = self.block.take() {
            if late { staging.give_late(block) } else { staging.give(block) }
        }
    }
}

/// All rings of an endpoint.
#[derive(Default)]
pub(crate) struct Rings {
    /// Ours, which peers send over.
    pub(super) lent: Vec<Ring>,
    /// Peers', which we send over.
    pub(super) borrowed: Vec<Ring>,
    /// How many were made; their numbers are never used again.
    pub(super) made: u64,
}

impl Rings {
    /// One of ours.
    pub(super) fn own(&mut self, number: u64) -> Option<&mut Ring> {
        self.lent.iter_mut().find(|ring| ring.number == number)
    }

    /// One of a peer's.
    pub(super) fn theirs(&mut self, peer: u32, number: u64) -> Option<&mut Ring> {
        self.borrowed.iter_mut().find(|ring| (ring.peer, ring.number) == (peer, number))
    }

    /// Whether a device of ours unpacks as many relayed messages as it may.
    pub(super) fn receives(&self, space: Space) -> bool {
        busy(&self.lent, space) >= HALVES_MAX
    }

    /// Whether it packs as many.
    pub(super) fn sends(&self, space: Space) -> bool {
        busy(&self.borrowed, space) >= HALVES_MAX
    }

    /// Gives one of ours up.
    pub(super) fn drop_own(&mut self, number: u64, staging: &mut StagingPool, late: bool) {
        if let Some(at) = self.lent.iter().position(|ring| ring.number == number) {
            self.lent.swap_remove(at).release(staging, late);
        }
    }

    /// Gives one of a peer's up, which may still write its credit; the message that waits for it.
    pub(super) fn drop_theirs(
        &mut self,
        (peer, number): (u32, u64),
        staging: &mut StagingPool,
    ) -> Option<RequestId> {
        let is = |ring: &Ring| (ring.peer, ring.number) == (peer, number);
        let at = self.borrowed.iter().position(is)?;
        let ring = self.borrowed.swap_remove(at);
        let next = ring.next;
        ring.release(staging, true);
        next
    }

    /// A peer is lost: its idle rings are given up, and those that messages have when these end.
    pub(crate) fn forget(&mut self, peer: u32, staging: &mut StagingPool) {
        for rings in [&mut self.lent, &mut self.borrowed] {
            for ring in rings.extract_if(.., |ring| ring.peer == peer && !ring.busy) {
                ring.release(staging, true);
            }
        }
    }

    /// This process leaves: nothing more is relayed.
    pub(crate) fn leave(&mut self, staging: &mut StagingPool) {
        for rings in [&mut self.lent, &mut self.borrowed] {
            for ring in rings.extract_if(.., |ring| !ring.busy) {
                ring.release(staging, false);
            }
        }
    }

    /// Has everything that is relayed give up, for an endpoint that waits for its engines.
    pub(crate) fn stop(&self) {
        for ring in self.lent.iter().chain(&self.borrowed).filter(|ring| ring.busy) {
            ring.relay.stop();
        }
    }

    /// Rings that are kept: ours, and peers'.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.lent.len(), self.borrowed.len())
    }
}
