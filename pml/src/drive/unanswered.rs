//! Short messages out of device memory: offered, and packed only if nobody answers.
//!
//! ```text
//! sender                              receiver
//!   | RTS(offer) -------------------> | a receive is posted: mapped, mapped put, …: one kernel
//!   |                                 |
//!   | no answer for 50 µs: pack       | no receive is posted
//!   | PAYLOAD(serial, data) --------> | in the offer's place: an eager message from now on
//!   | <---------------- FIN(eager) -- |
//! ```
//!
//! One kernel that moves a message from layout to layout is quicker than one that packs and another that unpacks; if
//! two processes take turns on a device it is ten times as quick. But an eager send ends even if its receive is
//! posted later, and programs rely on that. So the data follows an offer that nobody answers. If the offer still
//! waits, the receiver puts the data in its place and answers. If the receive has started, the receiver drops the
//! data, and the message goes on by the chosen protocol. Either way the message is matched in order.
//!
//! An answer is GRANT, OPEN, CTS or FIN. *Mapped* has no other answer than FIN, which says that the receiver's kernel has
//! **ended**. If that takes more than 50 µs (the first use of a mapping, a busy device, another process's turn on it),
//! the sender cannot know that its offer was taken: it packs, and the receiver drops the data. That costs a kernel and a
//! slot; the message is received as it would have been. A word at the start of every kernel would cost each mapped
//! message one control message more.
//!
//! If other protocols, or nobody, answer the offers, messages to that peer are eager again for a while. So are messages
//! that come while many offers wait, or while others wait for room: in a crowd an eager message's kernels are shared,
//! and a rendezvous of its own costs the processors more.
//!
//! If two processes both send first, both sends end as long as both processes make progress. More is not promised for
//! device memory: a message whose sender makes no progress for those 50 µs does not leave.

use crate::arrival::{Arrival, Body};
use crate::buffer::Transfer;
use crate::drive::core::Core;
use crate::drive::operation::SendStage;
use crate::links::send_message;
use crate::protocol::{Protocol, Protocols};
use crate::rndv::in_flight::InFlight;
use crate::rndv::staging::device_of;
use crate::status::RequestId;
use crate::wire::{self, PAYLOAD_BYTES, SendMode, Verdict, to_usize};
use gapless_bml::{Bml, Fragment, RailSlot, Rank, now_ns};
use gapless_engine::{EngineError, Typed};

/// What became of an attempt to have data follow its offer.
enum Followed {
    /// The data follows, or need not.
    Over,
    /// The transport has no room, or the offer has not left.
    Waits,
}

impl Core {
    /// Whether a message that would be eager should be offered: its data is in device memory that the receiver may
    /// map.
    pub(crate) fn is_better_offered(&mut self, bml: &mut Bml, peer: u32, buffer: &Typed) -> bool {
        let config = &self.config;
        if self.rndv.unanswered.is_crowded() || !self.links[peer].outbox.is_empty() {
            return false;
        }
        bml.look_up(Rank(peer));
        let ordered = bml.limits(Rank(peer)).is_some_and(|limits| limits.ordered);
        let mapped = config.shares_buffers()
            && device_of(bml, buffer.space()).is_some()
            && bml.mapped(Rank(peer)).is_some();
        let possible = peer != self.me && config.force.is_none() && ordered && mapped;
        if !possible || !self.rndv.facts(peer).offering.is_wanted() {
            return false;
        }
        let mut protocols = Protocols::of(&[Protocol::Eager]);
        for protocol in [Protocol::Mapped, Protocol::MappedPut] {
            if !self.rndv.facts(peer).closed[protocol.index()] {
                protocols = protocols.with(protocol);
            }
        }
        if let Some(pays) = self.rndv.facts(peer).offering.pays.again(buffer, &protocols) {
            return pays;
        }
        let mut situation = self.expectation(bml, peer, buffer);
        (situation.mapped, situation.grants) = (true, true);
        let tuning = &self.config.tuning;
        let chosen = self.recent.choose(&situation, tuning, None, protocols);
        let pays = chosen != Protocol::Eager;
        self.rndv.facts(peer).offering.pays.keep(buffer, protocols, pays);
        pays
    }

    /// Makes the data of an offer follow if nobody answers.
    pub(crate) fn expect_answer(&mut self, id: RequestId) {
        if let Some(offered) = self.requests.offered(id) {
            offered.short = true;
        }
        self.rndv.unanswered.push(id, now_ns());
    }

    /// Checks which offers have waited for too long; returns how many no longer wait. Offers are in order of age.
    pub(crate) fn poll_unanswered(&mut self, bml: &mut Bml) -> usize {
        let (before, now) = (self.rndv.unanswered.len(), now_ns());
        let mut at = 0;
        while let Some(id) = self.rndv.unanswered.get(at) {
            if self.requests.offered(id).is_some_and(|offered| offered.going.is_none()) {
                if !self.rndv.unanswered.is_due(at, now) {
                    break;
                }
                if matches!(self.follow_with_data(bml, id), Followed::Waits) {
                    at += 1;
                    continue;
                }
            }
            self.rndv.unanswered.remove(at);
        }
        before - self.rndv.unanswered.len()
    }

    /// Packs the data of an offer that nobody has answered.
    fn follow_with_data(&mut self, bml: &mut Bml, id: RequestId) -> Followed {
        let Some(send) = self.requests.send_mut(id) else { return Followed::Over };
        let (peer, bytes) = (send.to.peer, send.buffer.bytes());
        if !self.links[peer].outbox.is_empty() {
            return Followed::Waits;
        }
        let Some(slot) = self.reserve(bml, peer, PAYLOAD_BYTES + to_usize(bytes)) else {
            return Followed::Waits;
        };
        let Some(send) = self.requests.send_mut(id) else { return Followed::Over };
        let packed = send.buffer.pack(&self.engines, 0..bytes, slot, PAYLOAD_BYTES);
        let SendStage::Rendezvous(offered) = &mut send.stage else { return Followed::Over };
        match packed.map(Transfer::now) {
            Ok(Ok(slot)) => self.send_payload(bml, id, slot),
            Ok(Err(packing)) => {
                offered.packing = true;
                self.rndv.unanswered.packs();
                self.rndv.in_flight.push(InFlight::Payload { id, packing });
            }
            Err(error) => self.ask_back(bml, id, error),
        }
        Followed::Over
    }

    /// The data of an offer cannot be packed: nobody will receive it, unless a receive has taken it.
    fn ask_back(&mut self, bml: &mut Bml, id: RequestId, error: EngineError) {
        if let Some(offered) = self.requests.offered(id) {
            offered.unpacked = Some(error.into());
            self.cancel_unfinished(bml, id);
        }
    }

    /// The data of an offer is packed, or will not be.
    pub(crate) fn payload_packed(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        slot: RailSlot,
        result: Result<(), EngineError>,
    ) {
        self.rndv.unanswered.packed();
        let Some(offered) = self.requests.offered(id) else {
            // Only this has kept the send from ending.
            drop(slot);
            return self.requests.drained(id);
        };
        offered.packing = false;
        match result {
            Ok(()) if offered.going.is_none() => self.send_payload(bml, id, slot),
            Ok(()) => {}
            Err(error) => self.ask_back(bml, id, error),
        }
    }

    fn send_payload(&mut self, bml: &mut Bml, id: RequestId, slot: RailSlot) {
        let Some(offered) = self.requests.offered(id) else { return };
        send_message(bml, slot, &wire::payload(offered.rts.serial), &[]);
    }

    /// The data of an offer has arrived: it replaces the offer, unless the receive has started.
    pub(crate) fn payload(
        &mut self,
        bml: &mut Bml,
        from: u32,
        serial: u64,
        fragment: Fragment,
    ) -> Result<(), String> {
        let bytes = (fragment.len() - PAYLOAD_BYTES) as u64;
        let Some(held) = self.matching.held_offer(from, serial) else { return Ok(()) };
        let envelope = *held.envelope();
        if envelope.digest.bytes != bytes || envelope.mode != SendMode::Standard {
            return Err(format!("{bytes} bytes of data for an offer of others"));
        }
        let arrival = Arrival::Eager(envelope, Body::Parked(fragment));
        self.matching.replace_offer(from, serial, arrival)?;
        let message = wire::fin(serial, Verdict::Received(Protocol::Eager));
        self.send_control(bml, from, &message);
        Ok(())
    }
}
