//! A relayed message at its sender, which maps the ring. Its offer stands meanwhile.

use super::ahead::BegunSend;
use super::rings::{RINGS_MAX, Ring, Standing};
use super::{PATIENCE, clear};
use crate::core::Core;
use crate::error::PmlError;
use crate::header::{self, Go, Loan, Quit, Verdict};
use crate::protocol::Protocol;
use crate::request::RequestId;
use crate::send::{Send, SendStage};
use crate::staged::map_peer;
use crate::staging::device_of;
use gapless_bml::{Bml, Rank, RemoteKey};
use gapless_engine::{EngineError, RelayEnd, RelayOutcome, RelayShape};
use gapless_mem::{Completion, Space};

/// How far a relayed message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Our half of the message before it has not ended.
    Waiting,
    /// The flags of a new ring are cleared.
    Clearing,
    /// Our device packs.
    Running,
    /// It has packed all.
    Sent,
}

/// A relayed message at its sender.
#[derive(Debug)]
pub(crate) struct RelaySend {
    /// What the receiver calls it; 0 for one that was begun before the receiver was asked.
    pub(super) reply: u64,
    /// The ring's number at the receiver.
    pub(super) ring: u64,
    pub(super) shape: RelayShape,
    /// Turns that the ring's lanes have had.
    pub(super) turn: u64,
    pub(super) end: u64,
    pub(super) phase: Phase,
    /// The key of credit that the receiver has not mapped.
    pub(super) key: Option<RemoteKey>,
    /// The receiver has given up.
    pub(super) stopped: bool,
    /// The receiver has everything.
    pub(super) received: bool,
    /// It was begun before the receiver was asked.
    pub(super) begun: Option<BegunSend>,
}

/// Why a ring cannot be had.
pub(super) enum Refusal {
    /// The receiver breaks the protocol.
    Wrong(String),
    /// It is told so.
    Quit(Quit),
}

impl From<String> for Refusal {
    fn from(what: String) -> Refusal {
        Refusal::Wrong(what)
    }
}

pub(super) fn relaying(send: &mut Send) -> Option<&mut RelaySend> {
    match &mut send.stage {
        SendStage::Offered(offered) => offered.relay.as_deref_mut(),
        _ => None,
    }
}

impl Core {
    pub(super) fn relay_send(&mut self, id: RequestId) -> Option<&mut RelaySend> {
        relaying(self.requests.send_mut(id)?)
    }

    /// The receiver has decided for a relay.
    pub(crate) fn relay_lent(
        &mut self,
        bml: &mut Bml,
        from: u32,
        loan: &Loan,
    ) -> Result<(), String> {
        if loan.serial == 0 {
            return self.standing_lent(bml, from, loan);
        }
        let (id, send) = self.offered(from, loan.serial)?;
        let bytes = send.buffer.bytes();
        let ends = (send.buffer.typed().space(), send.buffer.engine());
        let SendStage::Offered(offered) = &mut send.stage else { return Ok(()) };
        let told = offered.rts.relay;
        if loan.end > bytes {
            return Err(format!("a LOAN for {} bytes of {bytes}", loan.end));
        }
        if loan.lanes > u16::from(told) {
            return Err(format!("a LOAN with {} lanes of {told}", loan.lanes));
        }
        // A ring of another way, which is not wanted.
        if let Some(mut earlier) = offered.ring.take() {
            earlier.course.release(&mut self.staging, false);
        }
        match self.borrow_ring(bml, from, ends, loan) {
            Ok((key, cleared)) => {
                let Some(ring) = self.rings.theirs(from, loan.ring) else { return Ok(()) };
                let waits = std::mem::replace(&mut ring.busy, true);
                let phase = if waits { Phase::Waiting } else { Phase::Clearing };
                ring.next = waits.then_some(id);
                let shape = RelayShape {
                    lanes: u32::from(loan.lanes),
                    depth: u32::from(loan.depth),
                    fragment: loan.fragment,
                };
                let relayed = RelaySend {
                    reply: loan.reply,
                    ring: loan.ring,
                    shape,
                    turn: loan.turn,
                    end: loan.end,
                    phase,
                    key,
                    stopped: false,
                    received: false,
                    begun: None,
                };
                if let Some(send) = self.requests.send_mut(id)
                    && let SendStage::Offered(offered) = &mut send.stage
                {
                    offered.relay = Some(Box::new(relayed));
                }
                if phase == Phase::Clearing {
                    self.follow_relay(bml, id, true, Ok(cleared));
                }
                Ok(())
            }
            Err(Refusal::Quit(why)) => {
                self.send_control(bml, from, &header::quit(loan.reply, why));
                Ok(())
            }
            Err(Refusal::Wrong(what)) => Err(what),
        }
    }

    /// The ring of a loan: one that is mapped, or a new one, the key of its credit and the clearing of that.
    pub(super) fn borrow_ring(
        &mut self,
        bml: &mut Bml,
        from: u32,
        (space, engine): (Space, usize),
        loan: &Loan,
    ) -> Result<(Option<RemoteKey>, Completion), Refusal> {
        let passing = |_| Refusal::Quit(Quit::Passing);
        let standing = (loan.serial == 0).then_some(Standing::Clearing(loan.reply));
        let (lanes, depth) = (u32::from(loan.lanes), u32::from(loan.depth));
        let shape = RelayShape { lanes, depth, fragment: loan.place };
        if let Some(ring) = self.rings.theirs(from, loan.ring) {
            let stands = standing.is_some() || ring.standing.is_some();
            if stands || loan.key.is_some() || ring.shape != shape || ring.next.is_some() {
                return Err(Refusal::Wrong(format!("a LOAN that is not of this ring: {loan:?}")));
            }
            // Two devices of ours that the receiver takes for one.
            let (fits, busy) = (ring.space == space, ring.busy);
            let free = fits && (busy || !self.rings.sends(space));
            return if free { Ok((None, Completion::Ready)) } else { Err(passing(())) };
        }
        // One that we have given up meanwhile.
        let Some(key) = &loan.key else { return Err(Refusal::Quit(Quit::GaveUp)) };
        if loan.turn != 0 {
            return Err(Refusal::Wrong(format!("a new ring that had {} turns", loan.turn)));
        }
        let alike =
            |ring: &&Ring| ring.peer == from && ring.standing.is_some() == standing.is_some();
        let there = self.rings.borrowed.iter().filter(alike).count();
        let full = there >= RINGS_MAX || standing.is_none() && self.rings.sends(space);
        let device = device_of(bml, space).filter(|_| !full);
        let device = device.ok_or(Refusal::Quit(Quit::Passing))?;
        let theirs = map_peer(bml, from, key, space).map_err(|error| {
            tracing::debug!(peer = from, %error, "a ring that cannot be mapped");
            Refusal::Quit(if Core::lasts(&error) { Quit::Lasting } else { Quit::Passing })
        })?;
        let needed = shape.receiver_bytes().map_or(u64::MAX, |(_, bytes)| bytes);
        if theirs.region().len() < needed {
            let there = theirs.region().len();
            return Err(Refusal::Wrong(format!("a ring of {there} bytes instead of {needed}")));
        }
        let relay = self.relays(engine).and_then(|to| to.relay(RelayEnd::Sender, space, lanes));
        let relay = relay.map_err(|error| {
            tracing::debug!(%error, "no half of a relay");
            passing(())
        })?;
        // As for rings: peers decide how many there are.
        let bound = self.config.bounds.staging_bytes / 2;
        let block = self.staging.take(bml, Some(&device), shape.flag_bytes(), bound);
        let block = block.ok_or(Refusal::Quit(Quit::Passing))?;
        let credit = block.region();
        let key = bml.mapped(Rank(from)).and_then(|(peer, mapped)| mapped.key(peer, credit));
        let (Some(key), Ok(cleared)) = (key, clear(bml, credit)) else {
            self.staging.give(block);
            return Err(passing(()));
        };
        self.rings.borrowed.push(Ring {
            number: loan.ring,
            peer: from,
            space,
            mark: 0,
            shape,
            turn: 0,
            busy: false,
            relay,
            block: Some(block),
            theirs: Some(theirs),
            next: None,
            standing,
        });
        Ok((Some(key), cleared))
    }

    /// Its flags are clear, or our device has ended.
    pub(super) fn relay_sent(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        result: Result<(), EngineError>,
    ) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let peer = send.to.peer;
        let Some(relayed) = relaying(send) else { return };
        let (number, phase) = (relayed.ring, relayed.phase);
        let (stopped, received) = (relayed.stopped, relayed.received);
        let turns = relayed.shape.turns(relayed.end);
        if self.peers[peer as usize].lost.is_some() {
            return self.end_lost_relay_send(bml, id);
        }
        if self.is_begun(id) {
            return self.begun_sent(bml, id, result);
        }
        if phase == Phase::Clearing {
            match result {
                Ok(()) if !stopped => self.start_relay(bml, id),
                _ => self.quit_relay(bml, id, Quit::Passing),
            }
            return;
        }
        let Some(ring) = self.rings.theirs(peer, number) else { return };
        let outcome = ring.relay.outcome();
        let done = result.is_ok() && outcome == RelayOutcome::Done;
        if done {
            ring.turn += turns;
        } else {
            tracing::debug!(peer, ?outcome, ?result, "a relayed message that failed here");
        }
        match (done, stopped) {
            // What the receiver has is what counts.
            _ if received => self.end_relayed(bml, id, !done),
            (true, false) => {
                if let Some(relayed) = self.relay_send(id) {
                    relayed.phase = Phase::Sent;
                }
            }
            _ => self.quit_relay(bml, id, Quit::GaveUp),
        }
    }

    /// Says GO, and begins to pack.
    fn start_relay(&mut self, bml: &mut Bml, id: RequestId) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let peer = send.to.peer;
        let Some(relayed) = relaying(send) else { return };
        let number = relayed.ring;
        let expected = relayed.turn;
        if self.rings.theirs(peer, number).is_none_or(|ring| ring.turn != expected) {
            return self.quit_relay(bml, id, Quit::GaveUp);
        }
        let Some(relayed) = self.relay_send(id) else { return };
        let go = Go { reply: relayed.reply, key: relayed.key.take() };
        relayed.phase = Phase::Running;
        self.send_long(bml, peer, go.wire());
        self.pack_relayed(bml, id);
    }

    /// Begins to pack.
    pub(super) fn pack_relayed(&mut self, bml: &mut Bml, id: RequestId) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let (peer, buffer) = (send.to.peer, send.buffer.clone());
        let Some(relayed) = relaying(send) else { return };
        let (shape, end, number) = (relayed.shape, relayed.end, relayed.ring);
        let Some(ring) = self.rings.theirs(peer, number) else { return };
        let (relay, memory, turn) = (ring.relay.clone(), ring.memory(false), ring.turn);
        let begun = match memory {
            Some(memory) => buffer.relay(&relay, end, &shape, &memory, turn, PATIENCE),
            None => Err(EngineError::from(gapless_mem::DeviceError::Unsupported {
                what: "a ring without its memory",
            })),
        };
        let tally = self.counters.tally(Protocol::Relay);
        tally.packs += 1;
        tally.staged_bytes = tally.staged_bytes.saturating_add(end);
        let fragments = end.div_ceil(u64::from(shape.fragment));
        tally.fragments += fragments;
        let places = u64::from(shape.lanes) * u64::from(shape.depth);
        self.counters.saw_depth(Protocol::Relay, fragments.min(places));
        self.follow_relay(bml, id, true, begun);
    }

    /// Nothing of ours touches the ring any more, and the message is not over: the receiver chooses again.
    fn quit_relay(&mut self, bml: &mut Bml, id: RequestId, why: Quit) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let peer = send.to.peer;
        let SendStage::Offered(offered) = &mut send.stage else { return };
        let Some(relayed) = offered.relay.take() else { return };
        self.send_control(bml, peer, &header::quit(relayed.reply, why));
        self.give_ring_up(bml, peer, relayed.ring);
    }

    /// A ring of a peer's is of no use any more, to whoever waits for it neither.
    pub(super) fn give_ring_up(&mut self, bml: &mut Bml, peer: u32, number: u64) {
        if let Some(next) = self.rings.drop_theirs((peer, number), &mut self.staging) {
            self.quit_relay(bml, next, Quit::GaveUp);
        }
    }

    /// The receiver has everything, and our device has ended.
    pub(super) fn end_relayed(&mut self, bml: &mut Bml, id: RequestId, broken: bool) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let peer = send.to.peer;
        let status = send.status(Protocol::Relay);
        let SendStage::Offered(offered) = &mut send.stage else { return };
        let Some(relayed) = offered.relay.take() else { return };
        self.withdraw_offer(bml, id);
        self.requests.finish(id, Ok(status));
        if broken {
            return self.give_ring_up(bml, peer, relayed.ring);
        }
        let Some(ring) = self.rings.theirs(peer, relayed.ring) else { return };
        ring.busy = ring.next.is_some();
        if let Some(next) = ring.next.take() {
            if let Some(relayed) = self.relay_send(next) {
                relayed.phase = Phase::Clearing;
            }
            self.relay_sent(bml, next, Ok(()));
        }
    }

    /// The receiver's last word on an offer; whether it was one that is relayed.
    pub(crate) fn relay_fin(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        from: u32,
        verdict: Verdict,
    ) -> Result<bool, String> {
        let Some(send) = self.requests.send_mut(id) else { return Ok(false) };
        let peer = send.to.peer;
        let Some(relayed) = relaying(send) else { return Ok(false) };
        if relayed.begun.is_some() {
            return self.begun_fin(bml, id, from, verdict).map(|()| true);
        }
        let expected = verdict == Verdict::Received(Protocol::Relay) && !relayed.received;
        let begun = matches!(relayed.phase, Phase::Running | Phase::Sent);
        if peer != from || !expected || !begun {
            return Err(format!("{verdict:?} of a message that is being relayed"));
        }
        relayed.received = true;
        if relayed.phase == Phase::Sent {
            self.end_relayed(bml, id, false);
        }
        Ok(true)
    }

    /// The receiver's half has failed: ours is to end.
    pub(crate) fn relay_stop(
        &mut self,
        bml: &mut Bml,
        from: u32,
        serial: u64,
    ) -> Result<(), String> {
        let unknown = || format!("a word on rendezvous {serial}, which is not relayed");
        let id = *self.serials.get(&serial).ok_or_else(unknown)?;
        let send = self.requests.send_mut(id).ok_or_else(unknown)?;
        if send.to.peer != from || !matches!(send.stage, SendStage::Offered(_)) {
            return Err(unknown());
        }
        // Our QUIT was on its way.
        let Some(relayed) = relaying(send) else { return Ok(()) };
        if relayed.begun.is_some() {
            return Err(format!("rendezvous {serial} is stopped, which nobody said GO to"));
        }
        if std::mem::replace(&mut relayed.stopped, true) || relayed.received {
            return Err(format!("rendezvous {serial} is stopped after its end"));
        }
        let (number, phase) = (relayed.ring, relayed.phase);
        match phase {
            Phase::Waiting | Phase::Clearing => {}
            Phase::Running => {
                if let Some(ring) = self.rings.theirs(from, number) {
                    ring.relay.stop();
                }
            }
            Phase::Sent => self.quit_relay(bml, id, Quit::GaveUp),
        }
        Ok(())
    }

    /// The receiver of an offer is lost: whether our device has to end first, which it is told to.
    pub(crate) fn stop_lost_relay_send(&mut self, id: RequestId) -> bool {
        let Some(send) = self.requests.send_mut(id) else { return false };
        let peer = send.to.peer;
        let Some(relayed) = relaying(send) else { return false };
        let (number, phase) = (relayed.ring, relayed.phase);
        match phase {
            Phase::Waiting => {
                if let Some(ring) = self.rings.theirs(peer, number) {
                    ring.next = None;
                }
                if let Some(send) = self.requests.send_mut(id)
                    && let SendStage::Offered(offered) = &mut send.stage
                {
                    offered.relay = None;
                }
                false
            }
            Phase::Sent => {
                self.drop_send_ring(id);
                false
            }
            Phase::Clearing | Phase::Running => {
                if let Some(ring) = self.rings.theirs(peer, number) {
                    ring.relay.stop();
                }
                true
            }
        }
    }

    /// The receiver is lost, and so is the ring, for whoever waits for it, too (who is lost by itself).
    fn drop_send_ring(&mut self, id: RequestId) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let peer = send.to.peer;
        let SendStage::Offered(offered) = &mut send.stage else { return };
        if let Some(relayed) = offered.relay.take() {
            self.rings.drop_theirs((peer, relayed.ring), &mut self.staging);
        }
    }

    /// The receiver is lost, and our device has ended.
    fn end_lost_relay_send(&mut self, bml: &mut Bml, id: RequestId) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let peer = send.to.peer;
        self.drop_send_ring(id);
        self.withdraw_offer(bml, id);
        if let Some(error) = self.peers[peer as usize].lost.clone() {
            self.requests.finish(id, Err(PmlError::PeerLost { rank: peer, error }));
        }
    }
}
