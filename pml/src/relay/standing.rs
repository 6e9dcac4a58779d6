//! Rings that stand: lent once for the short messages between two devices, before any of them needs it.
//!
//! ```text
//! sender                           receiver
//!   | WISH(device) ----------------> | kept until a receive shows which device of its own takes the messages
//!   | <---- LOAN(ring, 0, device) -- | makes a ring, clears its flags
//!   | map it, clear the credit       |
//!   | GO(credit) ------------------> | map the credit: messages may be begun over it (ahead.rs)
//! ```
//!
//! No message waits for this: they go other ways until the ring is there. What cannot be had is no error (QUIT), and is not asked
//! for again. A ring over which something has failed is given up by both ends: by its owner when it knows, or when its
//! peer wishes for another one. Both ends count, and after some it is neither wished for nor lent. Such rings have few lanes and short places: any message that goes over one fits into it whole.

use super::rings::{RINGS_MAX, Ring, Standing, Wish, Wished};
use super::sender::Refusal;
use super::{RelayShape, SHORT_DEPTH, SHORT_LANES, SHORT_PLACE_BYTES};
use crate::core::Core;
use crate::header::{self, Go, Loan, Quit};
use crate::inflight::{Flight, InFlight};
use crate::protocol::Protocol;
use crate::staged::map_peer;
use gapless_bml::{Bml, Rank};
use gapless_engine::EngineError;
use gapless_mem::{Completion, Space};

impl Core {
    /// Whether messages may be begun before their receivers are asked.
    pub(super) fn begins_ahead(&self) -> bool {
        match self.config.force {
            None => self.config.relay_ahead,
            Some(forced) => forced == Protocol::Relay,
        }
    }

    /// Lanes of a ring that stands, for a device of ours; 0 if there can be none.
    fn short_lanes(&self, bml: &mut Bml, peer: u32, (engine, space): (usize, Space)) -> u32 {
        // Numbers of messages tell which of them are over.
        let ordered = bml.limits(Rank(peer)).is_some_and(|limits| limits.ordered);
        let stages = ordered && self.staged_offer(bml, peer, space).device;
        match self.engines[engine].relays().filter(|_| stages && self.begins_ahead()) {
            Some(relays) => relays.lanes(space, false).min(SHORT_LANES),
            None => 0,
        }
    }

    /// Asks a peer for a ring for messages out of `space`, unless it was asked before.
    pub(super) fn wish_ring(&mut self, bml: &mut Bml, peer: u32, engine: usize, space: Space) {
        let is = |wished: &&mut Wished| (wished.peer, wished.space) == (peer, space);
        if let Some(wished) = self.rings.wished.iter_mut().find(is) {
            if std::mem::take(&mut wished.again) {
                wished.answered = false;
                let lanes = u8::try_from(wished.lanes).unwrap_or(u8::MAX);
                let message = header::wish(lanes, wished.mark);
                self.send_control(bml, peer, &message);
            }
            return;
        }
        let lanes = self.short_lanes(bml, peer, (engine, space));
        let mark = self.staged_offer(bml, peer, space).mark;
        // Two devices that their peer could not tell apart.
        let told =
            self.rings.wished.iter().any(|wished| (wished.peer, wished.mark) == (peer, mark));
        let answered = lanes == 0 || told;
        let (lost, again) = (0, false);
        self.rings.wished.push(Wished { peer, space, engine, mark, lanes, answered, lost, again });
        if !answered {
            let lanes = u8::try_from(lanes).unwrap_or(u8::MAX);
            self.send_control(bml, peer, &header::wish(lanes, mark));
        }
    }

    /// A peer wishes for a ring.
    pub(crate) fn ring_wished(&mut self, from: u32, lanes: u8, mark: u64) -> Result<(), String> {
        let wishes = &mut self.rings.wishes;
        wishes.retain(|wish| (wish.peer, wish.mark) != (from, mark));
        if wishes.iter().filter(|wish| wish.peer == from).count() >= RINGS_MAX {
            return Err("more wishes for rings than there can be rings".to_owned());
        }
        if !self.leaving {
            wishes.push(Wish { peer: from, mark, lanes: u32::from(lanes) });
        }
        Ok(())
    }

    /// Lends the rings that were wished for by `source`, or by anybody, for receives into `space`.
    #[cold]
    pub(crate) fn lend_wished(
        &mut self,
        bml: &mut Bml,
        engine: usize,
        space: Space,
        source: Option<u32>,
    ) {
        let concerned = |wish: &mut Wish| source.is_none_or(|source| source == wish.peer);
        let wishes: Vec<Wish> = self.rings.wishes.extract_if(.., concerned).collect();
        for wish in wishes {
            if let Err(why) = self.lend_standing(bml, wish, (engine, space)) {
                tracing::debug!(peer = wish.peer, why, "no ring for short messages");
            }
        }
    }

    fn lend_standing(
        &mut self,
        bml: &mut Bml,
        wish: Wish,
        (engine, space): (usize, Space),
    ) -> Result<(), &'static str> {
        let Wish { peer, mark, lanes } = wish;
        // It wishes because it has none any more.
        let old = |ring: &&Ring| {
            (ring.peer, ring.mark) == (peer, mark) && ring.standing.is_some() && !ring.busy
        };
        if let Some(number) = self.rings.lent.iter().find(old).map(|ring| ring.number) {
            self.rings.drop_own(number, &mut self.staging, true);
        }
        let ends = self.device_ends(bml, true, mark, space);
        // On one device the receiver's kernel would keep the sender's from its place, or from its turn.
        if ends.is_none_or(|ends| ends.one_device) {
            return Err("they are not two devices");
        }
        if self.peers[peer as usize].closed[Protocol::Relay.index()] {
            return Err("messages of that peer are relayed no more");
        }
        if !self.rings.lends_to(peer) {
            return Err("it has lost too many");
        }
        let lanes = self.short_lanes(bml, peer, (engine, space)).min(lanes);
        let shape =
            RelayShape { lanes, depth: u32::from(SHORT_DEPTH), fragment: SHORT_PLACE_BYTES };
        let name = self.new_name();
        let standing = Some(Standing::Clearing(name));
        let (number, _, cleared) =
            self.make_ring(bml, (peer, mark), (engine, space), shape, standing)?;
        if let Some(ring) = self.rings.own(number) {
            ring.busy = true;
        }
        self.follow_clearing(bml, peer, (number, false), cleared);
        Ok(())
    }

    fn follow_clearing(
        &mut self,
        bml: &mut Bml,
        peer: u32,
        (ring, out): (u64, bool),
        cleared: Completion,
    ) {
        match cleared {
            completion @ Completion::Pending(_) => {
                let work = Flight::Clear { peer, ring, out };
                self.in_flight.push(InFlight { completion, work });
            }
            Completion::Ready => self.ring_cleared(bml, peer, (ring, out), Ok(())),
        }
    }

    /// The flags of a ring are clear: the other end may have it.
    pub(crate) fn ring_cleared(
        &mut self,
        bml: &mut Bml,
        peer: u32,
        (number, out): (u64, bool),
        result: Result<(), EngineError>,
    ) {
        let lost = self.peers[peer as usize].lost.is_some();
        let useless = result.is_err() || lost || self.leaving;
        let ring = if out { self.rings.theirs(peer, number) } else { self.rings.own(number) };
        let Some(ring) = ring else { return };
        ring.busy = false;
        let Some(Standing::Clearing(name)) = ring.standing else { return };
        if useless {
            self.unlend(bml, peer, (number, out), name);
            return;
        }
        let (credit, whole) = (ring.region(), ring.region());
        let (shape, mark) = (ring.shape, ring.mark);
        ring.standing = Some(if out { Standing::Open(name) } else { Standing::Lent(name) });
        let key = if out { credit } else { whole };
        let key = key.and_then(|region| {
            bml.mapped(Rank(peer)).and_then(|(to, mapped)| mapped.key(to, region))
        });
        let Some(key) = key else { return self.unlend(bml, peer, (number, out), name) };
        let message = if out {
            Go { reply: name, key: Some(key) }.wire()
        } else {
            Loan {
                serial: 0,
                reply: name,
                end: mark,
                ring: number,
                turn: 0,
                lanes: u16::try_from(shape.lanes).unwrap_or(u16::MAX),
                depth: SHORT_DEPTH,
                place: shape.fragment,
                fragment: shape.fragment,
                key: Some(key),
            }
            .wire()
        };
        self.send_long(bml, peer, message);
    }

    /// A ring that the other end does not get after all.
    fn unlend(&mut self, bml: &mut Bml, peer: u32, (number, out): (u64, bool), name: u64) {
        if out {
            self.send_control(bml, peer, &header::quit(name, Quit::GaveUp));
            if let Some(ring) = self.rings.theirs(peer, number) {
                // It is not asked for again.
                ring.standing = None;
            }
            self.rings.drop_theirs((peer, number), &mut self.staging);
        } else {
            self.rings.drop_own(number, &mut self.staging, true);
        }
    }

    /// A ring that we have wished for.
    pub(super) fn standing_lent(
        &mut self,
        bml: &mut Bml,
        from: u32,
        loan: &Loan,
    ) -> Result<(), String> {
        let wish = |wished: &&mut Wished| {
            (wished.peer, wished.mark, wished.answered) == (from, loan.end, false)
        };
        let wished = self.rings.wished.iter_mut().find(wish);
        let wished =
            wished.ok_or_else(|| format!("a ring that nobody has wished for: {loan:?}"))?;
        wished.answered = true;
        let (ends, lanes) = ((wished.space, wished.engine), wished.lanes);
        if u32::from(loan.lanes) > lanes {
            return Err(format!("a ring with {} lanes of {lanes}", loan.lanes));
        }
        if self.rings.theirs(from, loan.ring).is_some() {
            return Err(format!("ring {} is lent twice", loan.ring));
        }
        let borrowed = match self.leaving {
            true => Err(Refusal::Quit(Quit::Passing)),
            false => self.borrow_ring(bml, from, ends, loan),
        };
        match borrowed {
            Ok((_, cleared)) => {
                if let Some(ring) = self.rings.theirs(from, loan.ring) {
                    ring.busy = true;
                }
                self.follow_clearing(bml, from, (loan.ring, true), cleared);
                Ok(())
            }
            Err(Refusal::Quit(why)) => {
                self.send_control(bml, from, &header::quit(loan.reply, why));
                Ok(())
            }
            Err(Refusal::Wrong(what)) => Err(what),
        }
    }

    /// The sender has mapped a ring that it wished for.
    pub(super) fn standing_go(
        &mut self,
        bml: &mut Bml,
        from: u32,
        number: u64,
        go: &Go,
    ) -> Result<(), String> {
        let Some(ring) = self.rings.own(number) else { return Ok(()) };
        let (space, needed) = (ring.space, ring.shape.flag_bytes());
        let key =
            go.key.as_ref().ok_or_else(|| format!("a GO without credit for ring {number}"))?;
        match map_peer(bml, from, key, space) {
            Ok(mapping) if mapping.region().len() < needed => {
                return Err(format!("credit in {} bytes", mapping.region().len()));
            }
            Ok(mapping) => {
                if let Some(ring) = self.rings.own(number) {
                    ring.theirs = Some(mapping);
                    ring.standing = Some(Standing::Open(go.reply));
                }
            }
            // What is begun over it is received another way, which its sender learns from.
            Err(error) => {
                tracing::debug!(peer = from, %error, "a ring whose credit cannot be mapped");
                self.rings.drop_own(number, &mut self.staging, true);
            }
        }
        Ok(())
    }

    /// The sender does not take a ring that it wished for.
    pub(super) fn standing_quit(
        &mut self,
        from: u32,
        number: u64,
        why: Quit,
    ) -> Result<(), String> {
        if why == Quit::Lasting {
            self.close_way(from, Protocol::Relay, "the sender cannot map the memory");
        }
        self.rings.drop_own(number, &mut self.staging, true);
        Ok(())
    }
}
