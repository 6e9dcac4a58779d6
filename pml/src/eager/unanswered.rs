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
//! If other protocols, or nobody, answer the offers, messages to that peer are eager again for a while. So are those that
//! come while many offers wait, or while others wait for room: in a crowd an eager message's kernels are shared, and a
//! rendezvous of its own costs the processors more.
//!
//! If two processes both send first, both sends end as long as both processes make progress. More is not promised for
//! device memory: a message whose sender makes no progress for those 50 µs does not leave.

use crate::buffer::Transfer;
use crate::choose::{Protocol, Protocols};
use crate::drive::core::{AM_TAG, Core};
use crate::drive::inflight::InFlight;
use crate::error::Failure;
use crate::matching::body::{Arrival, Body};
use crate::request::send::{SendStage, to_usize};
use crate::request::{RequestId, Status};
use crate::rndv::staging::device_of;
use crate::wire::SendMode;
use crate::wire::{self, PAYLOAD_BYTES, Verdict};
use gapless_bml::{Bml, Fragment, RailSlot, Rank, Token};
use gapless_engine::{EngineError, Typed};
use std::time::{Duration, Instant};

/// How long an offer waits for an answer before its data is packed.
///
/// This is no key of the tuning. Those are costs, which `gapless tune` measures and a protocol is chosen by; this predicts
/// nothing. It is a promise (RELIABILITY.md, "Device memory and progress"): with a longer time in some file, sends that
/// nobody receives yet would end later than documented. A shorter one packs what a posted receive is about to answer:
/// between two H200s that takes 15 to 30 µs.
const PATIENCE: Duration = Duration::from_micros(50);

/// Offers whose data is packed at a time: each takes a slot of the link.
const PACKING_MAX: u32 = 16;

/// Offers in a row that were not moved by one kernel, before messages to that peer are eager again for a while.
const VAIN_MAX: u8 = 8;

/// How long that is, in messages that would have been offered.
const REST: u8 = 64;

/// Offers that wait for an answer before more messages are eager.
const CROWD: usize = 32;

/// What is known of offering short messages to a peer.
#[derive(Debug, Default)]
pub(crate) struct Offering {
    /// Offers in a row that were not better than eager.
    vain: u8,
    /// Messages that are eager before another is offered.
    resting: u8,
    /// Whether the last buffer that the peer granted lies in host memory. Offering gains nothing then: an eager message
    /// also takes one kernel, and no rendezvous.
    pub(crate) puts_into_host: bool,
}

impl Offering {
    /// An offer has ended, by this protocol.
    pub(crate) fn ended(&mut self, by: Protocol) {
        let well = match by {
            Protocol::Mapped => true,
            Protocol::MappedPut => !self.puts_into_host,
            _ => false,
        };
        self.vain = if well { 0 } else { self.vain + 1 };
        if self.vain >= VAIN_MAX {
            // One more in vain, and it rests again.
            (self.vain, self.resting) = (VAIN_MAX - 1, REST);
        }
    }

    /// Whether the next message is to be offered.
    fn is_wanted(&mut self) -> bool {
        let rests = self.resting > 0;
        self.resting = self.resting.saturating_sub(1);
        !rests
    }
}

/// An offer whose data follows if nobody answers.
#[derive(Debug)]
pub(crate) struct Unanswered {
    id: RequestId,
    since: Instant,
}

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
        if self.unanswered.len() >= CROWD || !self.peers[peer as usize].outbox.is_empty() {
            return false;
        }
        bml.look_up(Rank(peer));
        let ordered = bml.limits(Rank(peer)).is_some_and(|limits| limits.ordered);
        let mapped = config.share_device_buffers
            && device_of(bml, buffer.space()).is_some()
            && bml.mapped(Rank(peer)).is_some();
        let possible = peer != self.me && config.force.is_none() && ordered && mapped;
        if !possible || !self.peers[peer as usize].offering.is_wanted() {
            return false;
        }
        let mut situation = self.expectation(bml, peer, buffer);
        (situation.mapped, situation.grants) = (true, true);
        let mut protocols = Protocols::of(&[Protocol::Eager]);
        for protocol in [Protocol::Mapped, Protocol::MappedPut] {
            if !self.peers[peer as usize].closed[protocol.index()] {
                protocols = protocols.with(protocol);
            }
        }
        self.recent.choose(&situation, &self.config.tuning, None, protocols) != Protocol::Eager
    }

    /// Makes the data of an offer follow if nobody answers.
    pub(crate) fn expect_answer(&mut self, id: RequestId) {
        if let Some(send) = self.requests.send_mut(id)
            && let SendStage::Rendezvous(offered) = &mut send.stage
        {
            offered.short = true;
        }
        self.unanswered.push_back(Unanswered { id, since: Instant::now() });
    }

    /// Checks which offers have waited for too long; returns how many no longer wait. They are in order of age.
    pub(crate) fn poll_unanswered(&mut self, bml: &mut Bml) -> usize {
        let (before, now) = (self.unanswered.len(), Instant::now());
        let mut at = 0;
        while let Some(&Unanswered { id, since }) = self.unanswered.get(at) {
            let stands = match self.requests.send_mut(id).map(|send| &send.stage) {
                Some(SendStage::Rendezvous(offered)) => offered.going.is_none(),
                _ => false,
            };
            if stands {
                let young = now.duration_since(since) < PATIENCE;
                if young || self.payloads >= PACKING_MAX {
                    break;
                }
                if matches!(self.follow_with_data(bml, id), Followed::Waits) {
                    at += 1;
                    continue;
                }
            }
            self.unanswered.remove(at);
        }
        before - self.unanswered.len()
    }

    /// Packs the data of an offer that nobody has answered.
    fn follow_with_data(&mut self, bml: &mut Bml, id: RequestId) -> Followed {
        let Some(send) = self.requests.send_mut(id) else { return Followed::Over };
        let (peer, bytes) = (send.to.peer, send.buffer.bytes());
        if !self.peers[peer as usize].outbox.is_empty() {
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
                self.payloads += 1;
                self.in_flight.push(InFlight::Payload { id, packing });
            }
            Err(error) => self.ask_back(bml, id, error),
        }
        Followed::Over
    }

    /// The data of an offer cannot be packed: nobody will receive it, unless a receive has taken it.
    fn ask_back(&mut self, bml: &mut Bml, id: RequestId, error: EngineError) {
        if let Some(send) = self.requests.send_mut(id)
            && let SendStage::Rendezvous(offered) = &mut send.stage
        {
            offered.unpacked = Some(error.into());
            self.withdraw(bml, id);
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
        self.payloads = self.payloads.saturating_sub(1);
        let Some(send) = self.requests.send_mut(id) else { return };
        let SendStage::Rendezvous(offered) = &mut send.stage else {
            // Only this has kept the send from ending.
            drop(slot);
            return self.drained(id);
        };
        offered.packing = false;
        match result {
            Ok(()) if offered.going.is_none() => self.send_payload(bml, id, slot),
            Ok(()) => {}
            Err(error) => self.ask_back(bml, id, error),
        }
    }

    fn send_payload(&mut self, bml: &mut Bml, id: RequestId, mut slot: RailSlot) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let SendStage::Rendezvous(offered) = &send.stage else { return };
        if let Err(error) = slot.write(0, &wire::payload(offered.rts.serial)) {
            tracing::error!(%error, "a slot that cannot be written");
        }
        bml.send(slot, AM_TAG, Token::NONE);
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
        let Some((held, pool)) = self.held_offer(from, serial) else { return Ok(()) };
        let envelope = *held.envelope();
        if envelope.digest.bytes != bytes || envelope.mode != SendMode::Standard {
            return Err(format!("{bytes} bytes of data for an offer of others"));
        }
        let mut arrival = Arrival::Eager(envelope, Body::Parked(fragment));
        // In the transport's memory it might prevent the message from arriving that its receive waits for.
        arrival.copy_out(pool).map_err(|error| error.to_string())?;
        *held = arrival;
        self.offers.remove(&(from, serial));
        let message = wire::fin(serial, Verdict::Received(Protocol::Eager));
        self.send_control(bml, from, &message);
        Ok(())
    }

    /// Ends a send at once, or when no engine reads its buffer any more.
    pub(crate) fn finish_offered(
        &mut self,
        id: RequestId,
        packing: bool,
        result: Result<Status, Failure>,
    ) {
        match self.requests.send_mut(id) {
            Some(send) if packing => send.stage = SendStage::Draining { packing: 1, result },
            _ => self.requests.finish(id, result),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_in_vain_rest_for_a_while_and_one_that_pays_counts_anew() {
        let mut offering = Offering::default();
        for _ in 0..3 * u32::from(VAIN_MAX) {
            assert!(offering.is_wanted());
            offering.ended(Protocol::Eager);
            offering.ended(Protocol::Mapped);
        }
        (0..VAIN_MAX).for_each(|_| offering.ended(Protocol::StagedPut));
        assert!((0..REST).all(|_| !offering.is_wanted()));
        assert!(offering.is_wanted());
        offering.ended(Protocol::StagedPut);
        assert!((0..REST).all(|_| !offering.is_wanted()), "one more in vain, and it rests again");
        offering.ended(Protocol::MappedPut);
        assert!(offering.is_wanted());
    }

    #[test]
    fn a_put_into_memory_of_the_host_is_no_better_than_eager() {
        let mut offering = Offering { puts_into_host: true, ..Offering::default() };
        (0..VAIN_MAX).for_each(|_| offering.ended(Protocol::MappedPut));
        assert!(!offering.is_wanted());
    }
}
