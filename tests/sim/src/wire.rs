//! Everything between the ranks: links with their own latency and bandwidth, credits, storms of
//! "full", messages in flight, deaths, and the virtual clock. Times are in virtual nanoseconds.
//!
//! Each link (one direction between two ranks on one rail) draws from a sequence of its own, so that
//! leaving some messages out of a world changes the rest as little as possible.

use crate::plan::{Knobs, RailPlan};
use crate::store::Store;
use crate::story::Story;
use crate::tap::Tap;
use gapless_btl::{AmTag, Extent, LinkError, PeerId, ReserveError, Slot, Token};
use gapless_dtype::testkit::Rng;
use gapless_mem::Region;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Something that waits to be reported to a rank by a rail.
#[derive(Debug)]
pub(crate) enum Item {
    /// A message.
    Parcel { from: u32, tag: AmTag, region: Region, index: u64, sent_tick: u64 },
    /// The end of a slot that was sent with a token.
    Sent { token: Token, alive: bool },
    /// The end of a one-sided operation; what is to be moved by then, unless it failed.
    Got { token: Token, from: u32, work: Option<Work> },
    /// A peer is gone.
    Lost { from: u32 },
}

/// What a one-sided operation moves.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) key: u64,
    pub(crate) remote: Vec<Extent>,
    pub(crate) local: Vec<Region>,
}

/// One direction between two ranks on one rail.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) rail: usize,
    rng: Rng,
    latency_ns: u64,
    picoseconds_per_byte: u64,
    /// Before this the link is not up.
    up_at: u64,
    /// The wire is taken until then.
    free_at: u64,
    last_due: u64,
    /// Slots that are out, and when the sender learns that some are back.
    used: usize,
    returns: VecDeque<u64>,
    storm_until: u64,
    cut: bool,
}

/// What has happened, for floors below which a run of many seeds proves little.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) parcels: u64,
    pub(crate) overtakings: u64,
    pub(crate) out_of_credit: u64,
    pub(crate) storms: u64,
    pub(crate) lost_in_flight: u64,
    pub(crate) cuts: u64,
    pub(crate) calls: u64,
    pub(crate) gets: u64,
    pub(crate) maps: u64,
}

/// The network of a world.
pub(crate) struct Wire {
    /// The virtual clock.
    pub(crate) now: u64,
    /// Numbers everything that happens, whatever the clock says.
    pub(crate) tick: u64,
    pub(crate) store: Arc<Store>,
    pub(crate) story: Story,
    /// Who listens, if anybody does.
    pub(crate) tap: Option<Tap>,
    pub(crate) tally: Tally,
    /// Ranks that have something to look at, and when.
    pub(crate) wakes: Vec<(u64, u32)>,
    /// Ranks that may find room again, and when. No descriptor tells of that: only those who know
    /// that they wait for it, and so poll, notice.
    pub(crate) room: Vec<(u64, u32)>,
    /// When each message between two ranks left and was handed over, in ticks.
    pub(crate) handed: BTreeMap<(u32, u32), Vec<(u64, u64)>>,
    /// A rank that dies in the middle of what it sends, and how many messages it has left.
    pub(crate) last_words: BTreeMap<u32, u64>,
    /// Ranks whose process has ended.
    pub(crate) dead: BTreeSet<u32>,
    seed: u64,
    size: u32,
    rails: Vec<RailPlan>,
    knobs: Knobs,
    links: Vec<Link>,
    by_ends: BTreeMap<(usize, u32, u32), usize>,
    /// Pairs of ranks that have asked for their link, by rail; the lower rank first.
    met: BTreeSet<(usize, u32, u32)>,
    /// By rank and rail.
    inboxes: Vec<BTreeMap<(u64, u64), Item>>,
    serial: u64,
    /// Whose loss was reported to whom, by rail.
    noticed: BTreeSet<(usize, u32, u32)>,
    /// Memory that peers may read, by key.
    pub(crate) keys: BTreeMap<u64, (u32, Region)>,
    pub(crate) next_key: u64,
    /// Buffers of ranks: where each starts, and its length.
    pub(crate) buffers: BTreeMap<u64, u64>,
    /// Memory that peers may map, by key.
    pub(crate) shared: Vec<(u32, u32, Region)>,
    /// Of whom, who is not to map what any more.
    pub(crate) revoked: Vec<(u32, u32, Region)>,
    /// Pairs of ranks that lost a link.
    pub(crate) harmed: BTreeSet<(u32, u32)>,
    /// Promises that whoever uses the rails has broken.
    pub(crate) broken: Vec<String>,
}

pub(crate) fn gone() -> LinkError {
    LinkError::PeerGone { reason: "its simulated link has ended".to_owned() }
}

impl Wire {
    pub(crate) fn new(plan: &crate::plan::Plan, story: Story) -> Wire {
        let inboxes = plan.size as usize * plan.rails.len();
        Wire {
            now: 0,
            tick: 0,
            store: Arc::default(),
            story,
            tap: None,
            tally: Tally::default(),
            wakes: Vec::new(),
            room: Vec::new(),
            handed: BTreeMap::new(),
            last_words: BTreeMap::new(),
            dead: BTreeSet::new(),
            seed: plan.seed,
            size: plan.size,
            rails: plan.rails.clone(),
            knobs: plan.knobs.clone(),
            links: Vec::new(),
            by_ends: BTreeMap::new(),
            met: BTreeSet::new(),
            inboxes: (0..inboxes).map(|_| BTreeMap::new()).collect(),
            serial: 0,
            noticed: BTreeSet::new(),
            keys: BTreeMap::new(),
            next_key: 0,
            buffers: BTreeMap::new(),
            shared: Vec::new(),
            revoked: Vec::new(),
            harmed: BTreeSet::new(),
            broken: Vec::new(),
        }
    }

    /// Tells whoever listens.
    pub(crate) fn heard(&mut self, event: impl FnOnce(&mut Tap)) {
        if let Some(tap) = &mut self.tap {
            event(tap);
        }
    }

    fn inbox(&self, rank: u32, rail: usize) -> usize {
        rank as usize * self.rails.len() + rail
    }

    pub(crate) fn link(&mut self, rail: usize, from: u32, to: u32) -> usize {
        if let Some(&at) = self.by_ends.get(&(rail, from, to)) {
            return at;
        }
        let name = (rail as u64) << 40 | u64::from(from) << 20 | u64::from(to);
        let mut rng = Rng::new(self.seed ^ Rng::new(name).next_u64());
        let plan = &self.rails[rail];
        let latency_ns = plan.latency_ns / 4 + rng.below(plan.latency_ns);
        let up_at = if rng.chance(20) { rng.below(20_000) } else { 0 };
        self.links.push(Link {
            from,
            to,
            rail,
            latency_ns,
            picoseconds_per_byte: 20 + rng.below(plan.picoseconds_per_byte),
            up_at,
            rng,
            free_at: 0,
            last_due: 0,
            used: 0,
            returns: VecDeque::new(),
            storm_until: 0,
            cut: false,
        });
        let at = self.links.len() - 1;
        self.by_ends.insert((rail, from, to), at);
        at
    }

    /// Whether the link between two ranks was asked for.
    pub(crate) fn has_met(&self, rail: usize, a: u32, b: u32) -> bool {
        self.met.contains(&(rail, a.min(b), a.max(b)))
    }

    /// Notes that the link between two ranks is up from the beginning.
    pub(crate) fn connect(&mut self, rail: usize, a: u32, b: u32) {
        self.met.insert((rail, a.min(b), a.max(b)));
    }

    /// Somebody needs the link between two ranks. It is up a little later, or, if one of them is dead, is reported
    /// lost.
    pub(crate) fn call(&mut self, rail: usize, from: u32, to: u32) {
        if self.has_met(rail, from, to) {
            return;
        }
        self.connect(rail, from, to);
        self.tally.calls += 1;
        self.story.tell(self.now, from, Some(to), || format!("makes a link on rail {rail}"));
        let now = self.now;
        for (one, other) in [(from, to), (to, from)] {
            let at = self.link(rail, one, other);
            let link = &mut self.links[at];
            link.up_at = link.up_at.max(now + link.latency_ns);
        }
        if self.dead.contains(&from) || self.dead.contains(&to) {
            self.cut(rail, from, to);
        }
    }

    /// Books credits that were given back since the last call.
    pub(crate) fn settle(&mut self) {
        for at in self.store.take_returned() {
            let delay = self.links[at].rng.below(self.knobs.credit_ns_max + 1);
            let link = &mut self.links[at];
            let due = (self.now + delay).max(link.returns.back().copied().unwrap_or(0));
            link.returns.push_back(due);
            self.room.push((due, link.from));
        }
    }

    /// Room for a message, or why there is none.
    pub(crate) fn reserve(
        &mut self,
        (rail, from, to): (usize, u32, u32),
        peer: PeerId,
        len: usize,
    ) -> Result<Slot, ReserveError> {
        self.settle();
        if self.noticed.contains(&(rail, from, to)) {
            return Err(gone().into());
        }
        let max = self.rails[rail].max_fragment_bytes;
        if len > max {
            return Err(ReserveError::TooLong { len, max });
        }
        let (now, slots) = (self.now, self.rails[rail].slots);
        let at = self.link(rail, from, to);
        let storm = self.knobs.storm_per_mille;
        let link = &mut self.links[at];
        while link.returns.front().is_some_and(|due| *due <= now) {
            link.returns.pop_front();
            link.used -= 1;
        }
        let until = link.up_at.max(link.storm_until);
        if now < until {
            self.room.push((until, from));
            return Err(ReserveError::Full);
        }
        if storm > 0 && link.rng.below(1000) < storm {
            link.storm_until = now + 1 + link.rng.below(10_000);
            self.room.push((link.storm_until, from));
            self.tally.storms += 1;
            return Err(ReserveError::Full);
        }
        if link.used >= slots {
            self.tally.out_of_credit += 1;
            self.story.tell(now, from, Some(to), || "has no credit left".to_owned());
            return Err(ReserveError::Full);
        }
        link.used += 1;
        Ok(self.store.slot(peer, len, at))
    }

    /// Puts a message in flight.
    pub(crate) fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        let (region, index) = slot.into_parts();
        let at = self.store.home(index).expect("a slot of this world");
        let (from, to, rail) = (self.links[at].from, self.links[at].to, self.links[at].rail);
        self.heard(|tap| tap.message((rail, from, to), tag, &region));
        let mut alive = !self.links[at].cut && !self.dead.contains(&from);
        if let Some(left) = self.last_words.get_mut(&from) {
            alive &= *left > 0;
            *left = left.saturating_sub(1);
        }
        if done != Token::NONE {
            self.post(from, rail, self.now, Item::Sent { token: done, alive });
        }
        let len = region.len();
        if !alive {
            self.tally.lost_in_flight += 1;
            self.story.tell(self.now, from, Some(to), || format!("sends {len} bytes nowhere"));
            return;
        }
        let (now, shuffle_ns) = (self.now, self.rails[rail].shuffle_ns);
        let jitter_ns = self.knobs.jitter_ns;
        let link = &mut self.links[at];
        link.free_at = link.free_at.max(now) + len * link.picoseconds_per_byte / 1000;
        let mut due = link.free_at + link.latency_ns + link.rng.below(jitter_ns + 1);
        if shuffle_ns > 0 {
            due += link.rng.below(shuffle_ns);
            self.tally.overtakings += u64::from(due < link.last_due);
        } else {
            due = due.max(link.last_due);
        }
        link.last_due = link.last_due.max(due);
        self.tally.parcels += 1;
        let sent_tick = self.tick;
        self.story.parcel(now, (from, to), &region, due);
        self.post(to, rail, due, Item::Parcel { from, tag, region, index, sent_tick });
    }

    /// Has something reported to a rank once its time has come.
    pub(crate) fn post(&mut self, rank: u32, rail: usize, due: u64, item: Item) {
        self.serial += 1;
        let inbox = self.inbox(rank, rail);
        self.inboxes[inbox].insert((due, self.serial), item);
        self.wakes.push((due, rank));
    }

    /// What a rank may hear of next, if its time has come.
    pub(crate) fn take(&mut self, rank: u32, rail: usize) -> Option<Item> {
        let inbox = self.inbox(rank, rail);
        let (&(due, _), _) = self.inboxes[inbox].first_key_value()?;
        if due > self.now {
            return None;
        }
        let (_, item) = self.inboxes[inbox].pop_first()?;
        match &item {
            Item::Parcel { from, sent_tick, .. } => {
                let (from, sent_tick) = (*from, *sent_tick);
                self.handed.entry((from, rank)).or_default().push((sent_tick, self.tick));
            }
            Item::Lost { from } => {
                self.noticed.insert((rail, rank, *from));
                let from = *from;
                self.story.tell(self.now, rank, Some(from), || {
                    format!("hears on rail {rail} of the loss of")
                });
            }
            Item::Sent { .. } | Item::Got { .. } => {}
        }
        Some(item)
    }

    /// Whether this end knows that the link has ended.
    pub(crate) fn has_noticed(&self, rail: usize, rank: u32, peer: u32) -> bool {
        self.noticed.contains(&(rail, rank, peer))
    }

    /// Whether the link has ended.
    pub(crate) fn is_cut(&mut self, rail: usize, from: u32, to: u32) -> bool {
        let at = self.link(rail, from, to);
        self.links[at].cut
    }

    /// How long something of `bytes` takes on a link, now.
    pub(crate) fn travel_ns(&mut self, rail: usize, from: u32, to: u32, bytes: u64) -> u64 {
        let jitter_ns = self.knobs.jitter_ns;
        let at = self.link(rail, from, to);
        let link = &mut self.links[at];
        link.latency_ns + bytes * link.picoseconds_per_byte / 1000 + link.rng.below(jitter_ns + 1)
    }

    /// Whether memory turns out to be out of reach.
    pub(crate) fn is_unreadable(&mut self, rail: usize, rank: u32, from: u32) -> bool {
        let at = self.link(rail, rank, from);
        self.links[at].rng.chance(self.knobs.unreadable_per_cent)
    }

    /// Whether a one-sided operation is put off.
    pub(crate) fn refuses_get(&mut self, rail: usize, rank: u32, from: u32) -> bool {
        let (storm, now) = (self.knobs.storm_per_mille, self.now);
        let at = self.link(rail, rank, from);
        let refused = self.links[at].rng.below(1000) < storm;
        if refused {
            self.tally.storms += 1;
            self.room.push((now + 1_000, rank));
        }
        refused
    }

    /// Ends the link between two ranks on one rail. What arrives within one latency arrives; the rest
    /// is lost. Both ends hear of it within the rail's promise.
    pub(crate) fn cut(&mut self, rail: usize, a: u32, b: u32) {
        self.connect(rail, a, b);
        for (from, to) in [(a, b), (b, a)] {
            self.harmed.insert((from, to));
            let at = self.link(rail, from, to);
            if std::mem::replace(&mut self.links[at].cut, true) {
                continue;
            }
            self.tally.cuts += 1;
            let (now, notice_ns) = (self.now, self.knobs.notice_ns_max);
            let link = &mut self.links[at];
            let last = now + link.rng.below(link.latency_ns + 1);
            let heard = last + 1 + link.rng.below(notice_ns);
            let inbox = self.inbox(to, rail);
            let ours = |item: &Item| matches!(item, Item::Parcel { from: f, .. } if *f == from);
            let late = self.inboxes[inbox].iter().filter(|(key, item)| key.0 > last && ours(item));
            let late: Vec<(u64, u64)> = late.map(|(key, _)| *key).collect();
            self.tally.lost_in_flight += late.len() as u64;
            late.into_iter().for_each(|key| drop(self.inboxes[inbox].remove(&key)));
            self.end_gets(to, rail, from);
            // After everything else that concerns the peer, one-sided operations included.
            self.post(to, rail, heard, Item::Lost { from });
        }
    }

    /// One-sided operations of `rank` that are in flight with a peer fail now.
    fn end_gets(&mut self, rank: u32, rail: usize, peer: u32) {
        let (inbox, now) = (self.inbox(rank, rail), self.now);
        let pending = self.inboxes[inbox].iter().filter(|(key, item)| {
            key.0 > now && matches!(item, Item::Got { from, .. } if *from == peer)
        });
        let pending: Vec<(u64, u64)> = pending.map(|(key, _)| *key).collect();
        for key in pending {
            if let Some(Item::Got { token, from, .. }) = self.inboxes[inbox].remove(&key) {
                self.post(rank, rail, now, Item::Got { token, from, work: None });
            }
        }
    }

    /// Ends a process.
    pub(crate) fn kill(&mut self, rank: u32) {
        if !self.dead.insert(rank) {
            return;
        }
        self.story.tell(self.now, rank, None, || "dies".to_owned());
        for rail in 0..self.rails.len() {
            for other in (0..self.size).filter(|&other| other != rank) {
                if self.has_met(rail, rank, other) {
                    self.cut(rail, rank, other);
                }
                // The others learn of it from somebody, or when they call.
                self.harmed.extend([(rank, other), (other, rank)]);
            }
        }
    }
}
