//! One transport of ours, and what we know of it.

use crate::{BmlError, Rank};
use gapless_btl::{
    Abilities, Btl, Ended, LinkError, Mapped, POLLS_PER_LOOK, PeerId, Rdma, RemoteKey, SHORT_BYTES,
    Slot, Token,
};
use gapless_mem::{DeviceError, OutOfRange, Region};

/// A rail that has reported nothing for this many polls is polled less often.
const QUIET_POLLS: u32 = 64;
/// How much less often: once in so many rounds (a power of two).
const QUIET_STRIDE: u32 = POLLS_PER_LOOK;

/// A transport and the ranks behind its peers.
pub(crate) struct Rail {
    pub(crate) btl: Box<dyn Btl>,
    /// Its abilities that memory is granted to.
    abilities: Abilities,
    /// The network that it is on, if that was told.
    pub(crate) network: Option<Box<str>>,
    /// Who is behind each [`PeerId`].
    pub(crate) ranks: Vec<Rank>,
    /// The longest message that goes out as a [`Short`](gapless_btl::Short) one.
    pub(crate) short_max: usize,
    /// Polls in a row that reported nothing, up to [`QUIET_POLLS`].
    quiet: u32,
    /// The built-in loopback: it has events only after we used it.
    own: bool,
    /// The quickest rail to others, polled every time.
    pub(crate) first: bool,
}

impl Rail {
    pub(crate) fn new(btl: Box<dyn Btl>, own: bool) -> Rail {
        let limits = btl.limits();
        let short_max = SHORT_BYTES.min(limits.eager_bytes).min(limits.max_fragment_bytes);
        let abilities = Abilities::default();
        let (network, ranks) = (None, Vec::new());
        Rail { btl, abilities, network, ranks, short_max, quiet: 0, own, first: false }
    }

    /// One-sided operations; `None` if the transport has none, or shows another's.
    pub(crate) fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        self.abilities.rdma(&mut *self.btl)
    }

    /// Mapping; `None` likewise.
    pub(crate) fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        self.abilities.mapped(&mut *self.btl)
    }

    /// The token and the result of an operation that was started here.
    pub(crate) fn ended(&self, ended: Ended) -> Option<(Token, Result<(), LinkError>)> {
        self.abilities.ended(ended)
    }

    pub(crate) fn deregister(&mut self, key: &RemoteKey) {
        self.abilities.deregister(&mut *self.btl, key);
    }

    /// Whether a peer may still have the memory mapped.
    pub(crate) fn invalidate(&mut self, region: Region) -> bool {
        self.abilities.invalidate(&mut *self.btl, region)
    }

    /// Whether `rank`, by any name that it has here, may still use the memory.
    pub(crate) fn revoke_access(&mut self, rank: Rank, region: Region) -> bool {
        let Rail { btl, abilities, ranks, .. } = self;
        let names = (0..).map(PeerId).zip(ranks).filter(|(_, known)| **known == rank);
        names
            .fold(false, |used, (peer, _)| abilities.revoke_access(&mut **btl, peer, region) | used)
    }

    /// Takes the memory back from `rank`, whatever that is doing, and from all others if need be; whether `rank`
    /// does not use it any more.
    pub(crate) fn take_back(&mut self, rank: Rank, region: Region) -> bool {
        !self.revoke_access(rank, region) || self.abilities.make_private(&mut *self.btl, region)
    }

    /// What it is called by whom it may reach: its network, or its own name.
    pub(crate) fn network(&self) -> &str {
        self.network.as_deref().unwrap_or_else(|| self.name())
    }

    pub(crate) fn is_own(&self) -> bool {
        self.own
    }

    pub(crate) fn name(&self) -> &'static str {
        self.btl.limits().name
    }

    /// Who is behind a peer, unless the transport made the number up.
    pub(crate) fn rank(&self, peer: PeerId) -> Option<Rank> {
        self.ranks.get(peer.0 as usize).copied()
    }

    /// Notes that `rank` is behind `peer`, whom the transport just named.
    pub(crate) fn name_peer(&mut self, peer: PeerId, rank: Rank) -> Result<(), BmlError> {
        match self.rank(peer) {
            Some(same) if same == rank => Ok(()),
            Some(other) => {
                Err(BmlError::AddressInUse { peer: rank, other, rail: self.name().to_owned() })
            }
            None if peer.0 as usize == self.ranks.len() => {
                self.ranks.push(rank);
                Ok(())
            }
            None => {
                let what = format!("{peer} is not the next number of transport {}", self.name());
                Err(BmlError::PeerLost { peer: rank, error: LinkError::Corrupt { what } })
            }
        }
    }

    /// Has the link to a peer made, if nobody has asked for it so far.
    pub(crate) fn meet(&mut self, peer: PeerId) {
        if !self.btl.has_met(peer) {
            self.mark_active();
            // No room is no harm: the link was asked for. A peer that is gone is reported by a poll.
            drop(self.btl.reserve(peer, 0));
        }
    }

    /// Whether it should be polled in this round.
    #[inline]
    pub(crate) fn due(&self, round: u32) -> bool {
        if self.own {
            return self.quiet == 0;
        }
        self.first || self.quiet < QUIET_POLLS || round.is_multiple_of(QUIET_STRIDE)
    }

    /// Whether polling it would find nothing, if a quick check can tell.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        (self.own && self.quiet > 0) || self.btl.is_quiet()
    }

    /// Notes that the transport was used, or reported an event: it is polled often again.
    #[inline]
    pub(crate) fn mark_active(&mut self) {
        self.quiet = 0;
    }

    /// A poll reported nothing.
    pub(crate) fn was_quiet(&mut self) {
        if self.quiet < QUIET_POLLS {
            self.quiet += 1;
        }
    }
}

/// A rail of this process with one-sided operations; rails are never taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaRail(pub(crate) usize);

/// Room for one message, in the rail that carries the messages to its peer.
#[derive(Debug)]
pub struct RailSlot {
    pub(crate) slot: Slot,
    /// The rail's index; of a bundle, its complement.
    pub(crate) rail: usize,
}

impl RailSlot {
    /// How many bytes will be sent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slot.len()
    }

    /// Whether an empty message will be sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slot.is_empty()
    }

    /// The bytes that will be sent, for engines to pack into; valid while the slot lives.
    #[must_use]
    pub fn region(&self) -> Region {
        self.slot.region()
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// They do not lie inside, or the slot is not in memory that the CPU may touch.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.slot.write(offset, bytes)
    }

    /// Sends fewer bytes than were reserved.
    ///
    /// # Errors
    /// `len` is more than the slot holds; nothing changes.
    pub fn truncate(&mut self, len: usize) -> Result<(), OutOfRange> {
        self.slot.truncate(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_btl::loopback::{Hub, Loopback};

    fn rail(own: bool) -> Rail {
        Rail::new(Box::new(Loopback::new(&Hub::new())), own)
    }

    fn polled_of(rail: &Rail, rounds: u32) -> usize {
        (0..rounds).filter(|&round| rail.due(round)).count()
    }

    #[test]
    fn quiet_rails_are_polled_less_often_and_the_first_always() {
        let mut rail = rail(false);
        assert_eq!(polled_of(&rail, 160), 160);
        (0..QUIET_POLLS).for_each(|_| rail.was_quiet());
        assert_eq!(polled_of(&rail, 160), 10);
        rail.first = true;
        assert_eq!(polled_of(&rail, 160), 160);
        rail.first = false;
        rail.mark_active();
        assert_eq!(polled_of(&rail, 160), 160);
    }

    #[test]
    fn the_loopback_is_polled_only_when_it_has_something() {
        let mut rail = rail(true);
        rail.was_quiet();
        assert_eq!(polled_of(&rail, 160), 0);
        rail.mark_active();
        assert_eq!(polled_of(&rail, 160), 160);
    }

    #[test]
    fn numbers_out_of_turn_are_refused() {
        let mut rail = rail(false);
        assert!(rail.name_peer(PeerId(1), Rank(5)).is_err());
        rail.name_peer(PeerId(0), Rank(5)).unwrap();
        rail.name_peer(PeerId(0), Rank(5)).unwrap();
        assert!(rail.name_peer(PeerId(0), Rank(6)).is_err());
        assert_eq!(rail.rank(PeerId(0)), Some(Rank(5)));
        assert_eq!(rail.rank(PeerId(9)), None);
    }
}
