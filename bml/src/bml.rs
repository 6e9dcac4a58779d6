//! [`Bml`] itself: the rails, the peers and the handlers, and how one finds the other.
//!
//! A message costs two indexed loads and one virtual call here: no locks, no hashing, no allocation.

mod atomics;
mod bundles;
mod deaths;
mod directory;
mod leaving;
mod memory;
mod poll;
mod trials;

pub use directory::{Directory, FoundPeer};

use crate::endpoint::{Endpoint, Path};
use crate::failure_gossip::FailureGossip;
use crate::near::{Judge, Near, Nearness};
use crate::rail::{Rail, RdmaRail};
use crate::roll_call::RollCall;
use crate::{BmlError, Handler, PeerState, RailSlot, Rank, TokenSpace, select};
use deaths::{EXPLANATION_TIME, Unexplained};
use gapless_btl::loopback::{Config, Hub, Loopback};
use gapless_btl::{
    Address, AmTag, Btl, Limits, LinkError, Mapped, PeerId, Queue, Rdma, RemoteKey, ReserveError,
    Short, Token, ZeroCopyMessage, ZeroCopyResult,
};
use gapless_mem::{Device, Space};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Events taken from a rail at a time.
const EVENTS_PER_POLL: usize = 64;
/// The index of the built-in loopback.
const OWN_RAIL: usize = 0;
/// In the table of tags: bml's own.
const RESERVED: u8 = u8::MAX;

/// All transports of this process, the peers they reach, and the handlers of what arrives.
pub struct Bml {
    me: Rank,
    rails: Vec<Rail>,
    /// By rank.
    endpoints: Vec<Endpoint>,
    /// Number `n` is at `n - 1`; empty while it runs.
    handlers: Vec<Option<Box<dyn Handler + Send>>>,
    /// What each handler registered.
    ranges: Vec<RangeInclusive<u8>>,
    /// The rail that allocates memory for peers to map: the best to others, or the loopback.
    allocator: Option<usize>,
    /// The number of the handler of each tag; 0 is the handler given to `poll`.
    by_tag: [u8; 256],
    /// Taken while polling, so that a handler cannot poll again.
    events: Option<Box<Queue>>,
    round: u32,
    /// What peers that are given up, or left, are to be told: over which path, and the word.
    farewells: Vec<(Path, u8)>,
    /// What is known of ranks that are gone.
    gossip: FailureGossip,
    /// Who leaves together.
    roll_call: RollCall,
    /// Whether links to neighbours are kept, and deaths passed on.
    watches: bool,
    /// There is a duty besides polling: peers are to be told something, or may be.
    owing: bool,
    /// Peers are to be told something.
    untold: bool,
    /// The first rank that was lost, of those that did not leave in good order.
    casualty: Option<Rank>,
    /// Links that have ended without a reason that is known. They are ended here later.
    unexplained: Vec<Unexplained>,
    /// How long peers are given to tell the reason.
    explanation_time: Duration,
    /// Peers that a layer above gave up, whose loss the handlers have not heard of.
    given_up: Vec<(Rank, LinkError)>,
    /// Those that transports know, or will know when they are added.
    devices: Vec<Arc<dyn Device>>,
    /// Peers that several rails used together lead to, or did.
    bundled: Vec<Rank>,
    /// Peers whose next message came before those that a poll has just taken.
    ripe: Vec<Rank>,
    /// Tokens of messages that will not leave, and that no transport has.
    orphans: Vec<(Token, LinkError)>,
    /// Where the addresses of peers are that were not introduced.
    directory: Option<Box<dyn Directory>>,
    /// Peers whose addresses it did not have yet.
    sought: BTreeSet<Rank>,
    /// Which rails are near to which memory.
    near: Near,
    /// Peers whose rails polls measure, until all that was sent to them is confirmed.
    measured: Vec<Rank>,
}

impl Bml {
    /// The active-message tag that bml keeps for itself: processes tell each other of deaths, of leaving, and whom they
    /// have given up.
    pub const CONTROL_TAG: AmTag = AmTag(u8::MAX);

    /// Process `me` of `size`, with the loopback to itself and no transports yet.
    ///
    /// # Panics
    /// If `me` is not below `size`.
    #[must_use]
    pub fn new(me: Rank, size: u32) -> Bml {
        assert!(me.0 < size, "no {me} in a job of {size} processes");
        let mut own = Loopback::with(&Hub::new(), Config { name: "self", ..Config::default() });
        let address = own.address();
        let peer = own.connect(&address).expect("a fresh loopback reaches itself");
        let mut rail = Rail::new(Box::new(own), true);
        rail.name_peer(peer, me).expect("the first peer of the rail");
        let mut endpoints: Vec<Endpoint> = (0..size).map(|_| Endpoint::new()).collect();
        endpoints[me.0 as usize].set_paths(vec![Path::new(OWN_RAIL, peer)]);
        let mut by_tag = [0; 256];
        by_tag[usize::from(Bml::CONTROL_TAG.0)] = RESERVED;
        Bml {
            me,
            rails: vec![rail],
            endpoints,
            handlers: Vec::new(),
            ranges: Vec::new(),
            allocator: Some(OWN_RAIL),
            by_tag,
            events: Some(Box::new(Queue::with_capacity(EVENTS_PER_POLL))),
            round: 0,
            farewells: Vec::new(),
            gossip: FailureGossip::new(me, size),
            roll_call: RollCall::new(size),
            watches: false,
            owing: false,
            untold: false,
            casualty: None,
            unexplained: Vec::new(),
            explanation_time: EXPLANATION_TIME,
            given_up: Vec::new(),
            devices: Vec::new(),
            bundled: Vec::new(),
            ripe: Vec::new(),
            orphans: Vec::new(),
            directory: None,
            sought: BTreeSet::new(),
            near: Near::default(),
            measured: Vec::new(),
        }
    }

    /// This process.
    #[must_use]
    pub fn me(&self) -> Rank {
        self.me
    }

    /// How many processes the job has.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.endpoints.len()).expect("made of a u32")
    }

    /// Adds a transport; peers connected from now on may use it.
    pub fn add(&mut self, mut btl: Box<dyn Btl>) {
        let rail = btl.limits().name;
        for device in &self.devices {
            self.near.ask((self.rails.len(), rail), &**device);
            if let Err(error) = btl.attach(device) {
                tracing::info!(rail, %error, "messages of a device are staged");
            }
        }
        self.rails.push(Rail::new(btl, false));
        for rail in &mut self.rails {
            rail.first = false;
        }
        let mut order = self.order(|rail| !rail.is_own());
        self.rails[order[0]].first = true;
        order.push(OWN_RAIL);
        self.allocator = order.into_iter().find(|&at| self.rails[at].mapped().is_some());
    }

    /// Where peers reach this process: the name and address of every transport, for publishing.
    #[must_use]
    pub fn addresses(&self) -> Vec<(String, Address)> {
        let rails = self.rails.iter().filter(|rail| !rail.is_own());
        rails.map(|rail| (rail.name().to_owned(), rail.btl.address())).collect()
    }

    /// Those rails that pass, best first.
    fn order(&self, pass: impl Fn(&Rail) -> bool) -> Vec<usize> {
        let indices: Vec<usize> = (0..self.rails.len()).filter(|&i| pass(&self.rails[i])).collect();
        let limits: Vec<&Limits> = indices.iter().map(|&i| self.rails[i].btl.limits()).collect();
        select::order(&limits).into_iter().map(|i| indices[i]).collect()
    }

    /// Starts links to `peer` over every transport that both ends have, given what its [`addresses`](Bml::addresses)
    /// returned there. Does not wait: until a link is up, `reserve` says `Full`. Connecting again is harmless, and
    /// uses transports added since, unless several rails are used together: those stay the same.
    ///
    /// Several rails are used together if both ends have two or more in common, and all of these retain what they send
    /// ([`Btl::retains`]). The two ends must have added the same transports, and give all addresses, before the first
    /// message.
    ///
    /// # Errors
    /// No transport that keeps order reaches it; it is gone; two ranks with one address.
    pub fn connect(&mut self, peer: Rank, addresses: &[(String, Address)]) -> Result<(), BmlError> {
        self.take_up(peer, (addresses, true), |btl, address| btl.connect(address))
    }

    /// As [`connect`](Bml::connect), but where transports can put that off, a link is made when it is first needed:
    /// until then the peer costs a row in a table, and its death goes unnoticed unless others tell of it
    /// ([`watch`](Bml::watch)).
    ///
    /// # Errors
    /// As [`connect`](Bml::connect), as far as that is known without asking the peer.
    pub fn introduce(
        &mut self,
        peer: Rank,
        addresses: &[(String, Address)],
    ) -> Result<(), BmlError> {
        self.take_up(peer, (addresses, true), |btl, address| btl.introduce(address))
    }

    /// As [`introduce`](Bml::introduce), but of several rails one carries the messages, whatever they can: nothing is
    /// numbered, and the next one takes over only if nothing was sent. Both ends must do the same.
    ///
    /// # Errors
    /// As [`introduce`](Bml::introduce).
    pub fn introduce_apart(
        &mut self,
        peer: Rank,
        addresses: &[(String, Address)],
    ) -> Result<(), BmlError> {
        self.take_up(peer, (addresses, false), |btl, address| btl.introduce(address))
    }

    fn take_up(
        &mut self,
        peer: Rank,
        (addresses, together): (&[(String, Address)], bool),
        name: impl Fn(&mut dyn Btl, &Address) -> Result<PeerId, LinkError>,
    ) -> Result<(), BmlError> {
        if let PeerState::Lost(error) = self.endpoint(peer)?.state() {
            return Err(BmlError::PeerLost { peer, error: error.clone() });
        }
        let mut tried = Vec::new();
        let mut paths = Vec::new();
        for at in self.order(|_| true) {
            let rail = &mut self.rails[at];
            if rail.is_own() {
                if peer == self.me {
                    paths.push(Path::new(at, PeerId(0)));
                }
                continue;
            }
            let transport = rail.name();
            for (_, address) in addresses.iter().filter(|(theirs, _)| theirs == transport) {
                match name(&mut *rail.btl, address) {
                    Ok(id) => {
                        rail.name_peer(id, peer)?;
                        rail.mark_active();
                        paths.push(Path::new(at, id));
                        break;
                    }
                    Err(error) => tried.push((transport.to_owned(), error)),
                }
            }
        }
        // To ourselves the loopback is best, whatever others promise.
        paths.sort_by_key(|path| path.rail != OWN_RAIL);
        if paths.is_empty() {
            return Err(BmlError::NoRail { peer, tried });
        }
        for (rail, error) in &tried {
            tracing::debug!(%peer, rail, %error, "a transport does not reach the peer");
        }
        let carrier = self.rails[paths[0].rail].name();
        tracing::debug!(%peer, rail = carrier, paths = paths.len(), "known");
        if together && self.endpoints[peer.0 as usize].bundle.is_none() {
            self.bundle(peer, addresses, &paths);
        }
        if self.endpoints[peer.0 as usize].bundle.is_none() {
            self.endpoints[peer.0 as usize].set_paths(paths);
        }
        Ok(())
    }

    fn endpoint(&self, rank: Rank) -> Result<&Endpoint, BmlError> {
        let size = self.size();
        self.endpoints.get(rank.0 as usize).ok_or(BmlError::NoSuchRank { rank, size })
    }

    /// Gives a range of active-message tags to a handler. Tags without one go to the handler that
    /// is given to [`poll`](Bml::poll).
    ///
    /// # Errors
    /// The range is empty or has [`Bml::CONTROL_TAG`] in it, or overlaps another's.
    pub fn register(
        &mut self,
        tags: RangeInclusive<u8>,
        handler: Box<dyn Handler + Send>,
    ) -> Result<TokenSpace, BmlError> {
        if tags.is_empty() || tags.contains(&Bml::CONTROL_TAG.0) {
            return Err(BmlError::BadTags { tags });
        }
        let overlaps = |range: &&RangeInclusive<u8>| {
            range.start() <= tags.end() && tags.start() <= range.end()
        };
        if let Some(taken) = self.ranges.iter().find(overlaps) {
            return Err(BmlError::TagsTaken { tags, taken: taken.clone() });
        }
        self.handlers.push(Some(handler));
        // There are 255 tags to give and each range has one at least, so numbers end at 255; the
        // last one, were every range a single tag, would collide with `Token::NONE`.
        let number = match u8::try_from(self.handlers.len()) {
            Ok(number) if number < RESERVED => number,
            _ => {
                self.handlers.pop();
                return Err(BmlError::BadTags { tags });
            }
        };
        for tag in tags.clone() {
            self.by_tag[usize::from(tag)] = number;
        }
        self.ranges.push(tags);
        Ok(TokenSpace::of(number))
    }

    /// The tokens of the handler that has `tag`.
    #[must_use]
    pub fn token_space(&self, tag: AmTag) -> TokenSpace {
        match self.by_tag[usize::from(tag.0)] {
            RESERVED => TokenSpace::REST,
            number => TokenSpace::of(number),
        }
    }

    /// What the transport that carries the messages to `peer` promises; `None` unless it is up, or if it is still to be
    /// [looked up](Bml::look_up).
    #[must_use]
    pub fn limits(&self, peer: Rank) -> Option<&Limits> {
        let endpoint = self.endpoint(peer).ok()?;
        let Some(carrier) = endpoint.carrier() else {
            return endpoint.bundle.as_deref().map(|bundle| &bundle.limits);
        };
        Some(self.rails[carrier.rail].btl.limits())
    }

    /// What is known of `peer`; ranks outside the job are unknown.
    #[must_use]
    pub fn state(&self, peer: Rank) -> &PeerState {
        self.endpoint(peer).map_or(&PeerState::Unknown, Endpoint::state)
    }

    /// Room for a message of `len` bytes to `to`.
    ///
    /// # Errors
    /// [`ReserveError::Full`]: poll and retry. Too long for a fragment; the peer is lost or was
    /// never connected.
    #[inline]
    pub fn reserve(&mut self, to: Rank, len: usize) -> Result<RailSlot, ReserveError> {
        let endpoint = self.endpoints.get_mut(to.0 as usize);
        let Some(carrier) = endpoint.and_then(Endpoint::carrier_mut) else {
            return self.reserve_in_bundle(to, len, None);
        };
        match self.rails[carrier.rail].btl.reserve(carrier.peer, len) {
            Ok(slot) => {
                carrier.used = true;
                Ok(RailSlot { slot, rail: carrier.rail })
            }
            Err(error) => Err(self.no_room(to, error)),
        }
    }

    /// The same for a message whose bytes lie in `space` until they are packed: of several rails used together, those
    /// that are [near](Bml::judge_nearness_by) to that memory are preferred.
    ///
    /// # Errors
    /// As for [`reserve`](Bml::reserve).
    pub fn reserve_for(
        &mut self,
        to: Rank,
        len: usize,
        space: Space,
    ) -> Result<RailSlot, ReserveError> {
        let endpoint = self.endpoints.get_mut(to.0 as usize);
        match endpoint.and_then(Endpoint::carrier_mut) {
            Some(_) => self.reserve(to, len),
            // Processors reach all adapters alike, as far as is known.
            None => self.reserve_in_bundle(to, len, Some(space).filter(|it| !it.cpu_accessible())),
        }
    }

    /// Has somebody say how near a rail, by its name, is to a device's memory. Those are asked about that are attached or
    /// added later; a rail of which nothing is known counts as the nearest.
    pub fn judge_nearness_by(&mut self, judge: Judge) {
        self.near.judge_by(judge);
    }

    #[cold]
    fn unreachable(&self, to: Rank) -> ReserveError {
        ReserveError::Link(match self.state(to) {
            PeerState::Lost(error) => error.clone(),
            _ => LinkError::Unreachable { reason: format!("{to} was never connected") },
        })
    }

    /// Sends what the slot holds. Messages to one peer arrive in the order of `send`. Unless `done`
    /// is [`Token::NONE`], one [`RankEvent::Sent`](crate::RankEvent::Sent) with it follows, for the handler
    /// of `tag`; only the lower 56 bits of the token come back.
    ///
    /// # Panics
    /// If `tag` is [`Bml::CONTROL_TAG`]; may panic if the slot is another `Bml`'s.
    #[inline]
    pub fn send(&mut self, slot: RailSlot, tag: AmTag, done: Token) {
        let number = self.by_tag[usize::from(tag.0)];
        assert!(number != RESERVED, "active-message tag {} is bml's own", tag.0);
        let done = TokenSpace::of(number).stamp(done);
        let Some(rail) = self.rails.get_mut(slot.rail) else {
            return self.send_in_bundle(slot, tag, done);
        };
        rail.mark_active();
        rail.btl.send(slot.slot, tag, done);
    }

    /// Sends a short message, if that can be done at once and the link takes it eagerly; `false`, with nothing sent, if
    /// not, and for [`Bml::CONTROL_TAG`]. In order with [`send`](Bml::send).
    #[inline]
    pub fn send_short(&mut self, to: Rank, tag: AmTag, message: Short<'_>) -> bool {
        let endpoint = self.endpoints.get_mut(to.0 as usize);
        let Some(carrier) = endpoint.and_then(Endpoint::carrier_mut) else {
            return self.send_short_in_bundle(to, tag, message);
        };
        let rail = &mut self.rails[carrier.rail];
        if message.len() > rail.short_max || self.by_tag[usize::from(tag.0)] == RESERVED {
            return false;
        }
        rail.mark_active();
        let sent = rail.btl.send_short(carrier.peer, tag, message);
        carrier.used |= sent;
        sent
    }

    /// Sends a message straight out of the caller's memory, if the transport does that: [`Btl::send_zero_copy`]. To a
    /// peer with several rails it never does, because what is retained there needs memory of ours. In order with
    /// [`send`](Bml::send).
    pub fn send_zero_copy(
        &mut self,
        to: Rank,
        tag: AmTag,
        message: &ZeroCopyMessage<'_>,
    ) -> ZeroCopyResult {
        let endpoint = self.endpoints.get_mut(to.0 as usize);
        let Some(carrier) = endpoint.and_then(Endpoint::carrier_mut) else {
            return ZeroCopyResult::Never;
        };
        if self.by_tag[usize::from(tag.0)] == RESERVED {
            return ZeroCopyResult::Never;
        }
        let rail = &mut self.rails[carrier.rail];
        let result = rail.btl.send_zero_copy(carrier.peer, tag, message);
        if result == ZeroCopyResult::Sent {
            rail.mark_active();
            carrier.used = true;
        }
        result
    }

    /// Whether long messages to `to`, and from there, need no buffers of the transport: [`Btl::has_zero_copy`].
    #[must_use]
    pub fn has_zero_copy(&self, to: Rank) -> bool {
        let carrier = self.endpoints.get(to.0 as usize).and_then(Endpoint::carrier);
        carrier.is_some_and(|it| self.rails[it.rail].btl.has_zero_copy(it.peer))
    }

    /// Whether the rail that carries messages to `to` was [judged](Bml::judge_nearness_by) [far](Nearness::Far) from a
    /// device's memory: its adapter is, or, if it is the only rail of a network, the processors of this process are.
    /// `false` if nobody has judged it, and where several rails carry together.
    #[must_use]
    pub fn is_far_from(&self, to: Rank, space: Space) -> bool {
        let carrier = self.endpoints.get(to.0 as usize).and_then(Endpoint::carrier);
        carrier.is_some_and(|it| self.near.of(it.rail, space) == Some(Nearness::Far))
    }

    /// One-sided operations with `peer`, over the best rail whose wire and permissions allow them
    /// as far as is known by now. Stamp tokens with [`token_space`](Bml::token_space), or keep them
    /// below [`TokenSpace::MAX`] for the handler given to `poll`.
    pub fn rdma(&mut self, peer: Rank) -> Option<(PeerId, &mut dyn Rdma)> {
        self.rdma_and_rail(peer).map(|(_, peer, rdma)| (peer, rdma))
    }

    /// The same, and the rail, as [`rdma_rail`](Bml::rdma_rail) would give it: in one look.
    pub fn rdma_and_rail(&mut self, peer: Rank) -> Option<(RdmaRail, PeerId, &mut dyn Rdma)> {
        let path = self.rdma_path(peer)?;
        let rail = &mut self.rails[path.rail];
        rail.mark_active();
        Some((RdmaRail(path.rail), path.peer, rail.rdma()?))
    }

    /// The rail that [`rdma`](Bml::rdma) would use now. A registration that is made there must be undone there,
    /// whatever has become of the peer by then.
    pub fn rdma_rail(&mut self, peer: Rank) -> Option<RdmaRail> {
        self.rdma_path(peer).map(|path| RdmaRail(path.rail))
    }

    /// Undoes a registration that was made while [`rdma_rail`](Bml::rdma_rail) gave `rail`; also
    /// after the peer that it was made for is lost.
    pub fn deregister(&mut self, rail: RdmaRail, key: &RemoteKey) {
        if let Some(rail) = self.rails.get_mut(rail.0) {
            rail.deregister(key);
        }
    }

    fn rdma_path(&mut self, peer: Rank) -> Option<Path> {
        self.look_up(peer);
        let endpoint = self.endpoints.get(peer.0 as usize)?;
        let rails = &mut self.rails;
        // Keys are of one rail, so of a bundle only one has operations.
        let only = endpoint.bundle.as_deref().map(|bundle| bundle.one_sided);
        let fits = |path: &Path| only.is_none_or(|only| only == Some(path.rail));
        endpoint.all_paths().filter(fits).find(|path| {
            let rail = &mut rails[path.rail];
            let reaches = rail.rdma().map(|rdma| rdma.reaches(path.peer));
            if reaches == Some(None) {
                rail.meet(path.peer);
            }
            reaches == Some(Some(true))
        })
    }

    /// Mapping the memory of `peer`, over the rail of [`allocate`](Bml::allocate) if it reaches the peer, otherwise
    /// over the best rail that maps.
    pub fn mapped(&mut self, peer: Rank) -> Option<(PeerId, &mut dyn Mapped)> {
        if self.is_far(peer) {
            return None;
        }
        self.look_up(peer);
        let allocator = self.allocator;
        let paths = self.endpoints.get(peer.0 as usize)?.paths();
        let rails = &mut self.rails;
        let path = paths.iter().find(|path| Some(path.rail) == allocator);
        let path =
            path.or_else(|| paths.iter().find(|path| rails[path.rail].mapped().is_some()))?;
        let rail = &mut self.rails[path.rail];
        rail.mark_active();
        rail.meet(path.peer);
        Some((path.peer, rail.mapped()?))
    }

    /// Whether a panic has left a poll: what that poll had brought is lost, and no other one does anything.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.events.is_none()
    }
}

#[cfg(test)]
impl Bml {
    /// The `nth` best path to a peer.
    pub(crate) fn path_for_tests(&self, peer: Rank, nth: usize) -> (usize, PeerId) {
        let path = self.endpoints[peer.0 as usize].paths()[nth];
        (path.rail, path.peer)
    }

    pub(crate) fn btl_for_tests(&mut self, rail: usize) -> &mut dyn Btl {
        &mut *self.rails[rail].btl
    }
}

impl std::fmt::Debug for Bml {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rails: Vec<_> = self.rails.iter().map(Rail::name).collect();
        write!(f, "Bml of {} in {} with {rails:?}", self.me, self.endpoints.len())
    }
}
