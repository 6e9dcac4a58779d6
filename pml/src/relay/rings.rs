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
use std::collections::HashMap;
use std::sync::Arc;

/// Rings of one peer that are kept, in either direction.
pub(super) const RINGS_MAX: usize = 4;
/// Standing rings that may be lost with a peer before no more are asked for, and none is lent any more: each takes as
/// long to be made as a hundred messages, and memory until the peer has let go of it.
const LOSSES_MAX: u8 = 8;
/// Messages that one device packs, or unpacks, at a time: the halves of both directions are resident together.
const HALVES_MAX: usize = 1;

/// Rings of a device that messages have.
fn busy(rings: &[Ring], space: Space) -> usize {
    // Messages that were begun ahead have one half that waits for nobody.
    let counts = |ring: &&Ring| ring.busy && ring.space == space && ring.standing.is_none();
    rings.iter().filter(counts).count()
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
    /// What it is to begin messages over, before their receivers are asked; `None`: it is lent to each message.
    pub(super) standing: Option<Standing>,
}

/// How far a ring is that is to stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its flags are cleared; at its owner, the name of its loan.
    Clearing(u64),
    /// The sender has this loan, and is to say GO.
    Lent(u64),
    /// Messages may be begun over it; at its owner, the name of its loan.
    Open(u64),
}

/// A ring that we have wished for.
pub(super) struct Wished {
    pub(super) peer: u32,
    pub(super) space: Space,
    pub(super) engine: usize,
    /// Our device, as the peer knows it.
    pub(super) mark: u64,
    pub(super) lanes: u32,
    /// A ring has come for it, or none is waited for.
    pub(super) answered: bool,
    /// How many rings that came were given up.
    pub(super) lost: u8,
    /// Nothing stands in the way of asking for another one.
    pub(super) again: bool,
}

/// A ring that a peer has wished for.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub(super) peer: u32,
    pub(super) mark: u64,
    pub(super) lanes: u32,
}

impl Ring {
    pub(super) fn region(&self) -> Option<Region> {
        self.block.as_ref().map(Block::region)
    }

    /// Whether messages may be begun over it.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.standing, Some(Standing::Open(_)))
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

    /// Gives its memory back; `late`: the peer may still write to it. What our device may still touch, because
    /// a kernel of ours does not end, is nobody's any more, and stays mapped.
    pub(super) fn release(mut self, staging: &mut StagingPool, late: bool) {
        let Some(block) = self.block.take() else { return };
        if !self.relay.has_ended() {
            tracing::error!(peer = self.peer, "a relay's half does not end: its ring is lost");
            staging.lose(block);
            std::mem::forget(self.theirs.take());
        } else if late {
            staging.give_late(block);
        } else {
            staging.give(block);
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
    /// Those that we have asked for, and those that we were asked for and have not lent yet.
    pub(super) wished: Vec<Wished>,
    pub(super) wishes: Vec<Wish>,
    /// How many standing rings of ours each peer has lost us.
    losses: HashMap<u32, u8>,
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

    /// Whether peers have asked for rings.
    #[inline]
    pub(crate) fn are_wished(&self) -> bool {
        !self.wishes.is_empty()
    }

    /// The ring that waits for the answer to this loan, which no message needs.
    pub(super) fn lent_as(&self, peer: u32, loan: u64) -> Option<u64> {
        let is = |ring: &&Ring| ring.peer == peer && ring.standing == Some(Standing::Lent(loan));
        self.lent.iter().find(is).map(|ring| ring.number)
    }

    /// Whether this was a loan that needs no answer any more, because its ring was given up meanwhile.
    pub(super) fn is_dropped(&self, peer: u32, loan: u64) -> bool {
        let open = Some(Standing::Open(loan));
        !self.lent.iter().any(|ring| ring.peer == peer && ring.standing == open)
    }

    /// The standing ring of a peer's for messages out of `space`.
    pub(super) fn standing(&self, peer: u32, space: Space) -> Option<&Ring> {
        let is = |ring: &&Ring| ring.peer == peer && ring.space == space && ring.standing.is_some();
        self.borrowed.iter().find(is)
    }

    /// Lanes of messages into a device that were begun ahead and that it unpacks now.
    pub(super) fn lanes_begun(&self, space: Space) -> u32 {
        let begun = |ring: &&Ring| ring.busy && ring.space == space && ring.standing.is_some();
        self.lent.iter().filter(begun).map(|ring| ring.shape.lanes).sum()
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
            let ring = self.lent.swap_remove(at);
            if ring.standing.is_some() {
                self.count_losses(ring.peer, 1);
            }
            ring.release(staging, late);
        }
    }

    /// A message over a ring of ours is for other memory. Where that was the first one, such are probably the rule:
    /// two such rings, and there are no more.
    pub(super) fn went_astray(&mut self, number: u64) {
        if let Some(peer) = self.own(number).filter(|ring| ring.turn == 0).map(|ring| ring.peer) {
            self.count_losses(peer, LOSSES_MAX / 2 - 1);
        }
    }

    fn count_losses(&mut self, peer: u32, more: u8) {
        let losses = self.losses.entry(peer).or_default();
        *losses = losses.saturating_add(more);
    }

    /// Whether standing rings are lent to a peer.
    pub(super) fn lends_to(&self, peer: u32) -> bool {
        self.losses.get(&peer).is_none_or(|losses| *losses < LOSSES_MAX)
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
        if ring.standing.is_some() {
            let is = |wished: &&mut Wished| (wished.peer, wished.space) == (peer, ring.space);
            if let Some(wished) = self.wished.iter_mut().find(is) {
                wished.lost = wished.lost.saturating_add(1);
                wished.again = wished.lost < LOSSES_MAX;
            }
        }
        ring.release(staging, true);
        next
    }

    /// A peer is lost: its idle rings are given up, and those that messages have when these end.
    pub(crate) fn forget(&mut self, peer: u32, staging: &mut StagingPool) {
        self.wishes.retain(|wish| wish.peer != peer);
        self.wished.retain(|wished| wished.peer != peer);
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
                // Somebody may have begun a message that nobody will receive.
                let late = ring.standing.is_some();
                ring.release(staging, late);
            }
        }
        self.wishes.clear();
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
