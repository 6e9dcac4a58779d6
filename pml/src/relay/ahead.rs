//! Short messages that are begun before their receivers are asked, over a ring that stands (`standing.rs`).
//!
//! ```text
//! sender                             receiver
//!   | RTS(ring, turn) ----------------> | matched: begin to unpack
//!   | begin to pack, at the same time   |
//!   |  ===== ring and flags ==========> |
//!   ■ all is in the ring                | all is out of the ring
//!   | <---------------- FIN(relay) ---- □
//! ```
//!
//! The message fits into the ring whole, so the sender's half waits for nobody: it is resident when its device comes
//! to it, whatever the receiver does. The receiver's half is begun when the message is matched, after the sender's
//! was, or at the same time; so among halves of both directions none waits for one that is behind it on a device. (Where
//! receivers' halves of 16 rings or more, or of some and of a long relay, fill two devices at once, a sender's may not
//! find room beside them: then they give up by patience, which is short, and ask for their messages.) A
//! ring has one message at a time, from `isend` to the receiver's answer; what finds it busy goes another way, eagerly if
//! it is short enough.
//!
//! A send in standard mode whose message is one fragment ends when its half has: its data has left. So programs that send short
//! messages before they receive get on as they would with eager ones. The rest of the message goes by another
//! request, which nobody asks for.
//!
//! **What goes wrong**: a receiver that cannot have its half (another buffer than one of that device, no lanes, a failure) asks for the
//! data by CTS, and the sender has it, in its buffer or in the ring. A sender whose half fails says so by
//! a NOTE, and the receiver's half is ended. Any answer but FIN(relay) ends the ring: its owner keeps the memory until its peer has
//! let go of it.

use super::sender::{Phase, RelaySend, relaying};
use super::{RelayRecv, RelayShape};
use crate::body::Arrival;
use crate::buffer::Buffer;
use crate::core::Core;
use crate::deferred::Data;
use crate::error::PmlError;
use crate::header::{self, Begun, Cts, DATA_BYTES, Envelope, Rts, StagedOffer, Verdict, What};
use crate::mode::{Copied, SendMode};
use crate::peer::Outgoing;
use crate::protocol::Protocol;
use crate::recv::RecvStage;
use crate::rendezvous::Stage;
use crate::request::{RequestId, Work};
use crate::send::{Offered, Ready, Send, SendStage, To};
use gapless_bml::Bml;
use gapless_dtype::{Layout, Shape};
use gapless_engine::{EngineError, RelayOutcome, Typed};
use gapless_mem::Region;

/// What its receiver has said to a message that was begun.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// It wants the data another way.
    Grant(Cts),
    /// It wants nothing of it.
    Over(Verdict),
}

/// A message that was begun before its receiver was asked, at its sender.
#[derive(Debug, Default)]
pub(crate) struct BegunSend {
    /// Kept until our half has ended.
    answer: Option<Answer>,
    /// Our half did not lay all of it.
    broken: bool,
    /// The user's request has ended; what is left of the message is in the ring alone.
    parted: bool,
}

/// Whether a layout is moved without a plan that would have to be made first.
fn is_regular(layout: &Layout) -> bool {
    !matches!(layout.shape(), Shape::EqualBlocks { .. } | Shape::General)
}

/// Bytes that a ring holds in one turn of all lanes.
fn room(shape: &RelayShape) -> u64 {
    u64::from(shape.lanes) * u64::from(shape.fragment)
}

impl Core {
    /// The ring of a peer's that a message is to be begun over, if there is one for it. If there could be, it is wished for.
    #[inline(never)]
    pub(crate) fn ring_for(
        &mut self,
        bml: &mut Bml,
        ready: &Ready,
        buffer: &Typed,
        mode: SendMode,
    ) -> Option<u64> {
        let peer = ready.to.peer;
        let (bytes, space) = (buffer.packed_bytes(), buffer.space());
        let asks = matches!(mode, SendMode::Standard | SendMode::Synchronous);
        let open =
            self.begins_ahead() && !self.peers[peer as usize].closed[Protocol::Relay.index()];
        let short = bytes > 0 && bytes <= self.config.tuning.relay_ahead_bytes_max;
        if peer == self.me || !(asks && open && short && is_regular(buffer.layout())) {
            return None;
        }
        let Some(ring) = self.rings.standing(peer, space) else {
            self.wish_ring(bml, peer, ready.engine, space);
            return None;
        };
        let free = ring.is_open() && !ring.busy;
        (free && bytes <= room(&ring.shape)).then_some(ring.number)
    }

    /// Offers a message that its device begins to lay into a ring.
    pub(crate) fn begin_ahead(
        &mut self,
        bml: &mut Bml,
        to: To,
        buffer: Buffer,
        envelope: Envelope,
        number: u64,
    ) -> RequestId {
        let (peer, bytes) = (to.peer, buffer.bytes());
        let stage = SendStage::Eager { serial: 0 }; // replaced below, once the request has a name
        let send = Send { buffer, to, envelope, _copied: None, stage };
        let id = self.requests.insert(Work::Send(Box::new(send)));
        let serial = self.new_serial(id);
        let payload = Core::fragment_max(bml, peer).saturating_sub(DATA_BYTES);
        let fragment = u32::try_from(payload).unwrap_or(u32::MAX);
        let Some(ring) = self.rings.theirs(peer, number) else { return id };
        ring.busy = true;
        let (shape, turn) = (ring.shape, ring.turn);
        let rts = Rts {
            envelope,
            serial,
            count: 1,
            low: 0,
            span: bytes,
            blocks: 1,
            layout_id: 0,
            layout_bytes: 0,
            fragment: fragment.min(self.config.tuning.fragment_bytes).max(header::FRAGMENT_MIN),
            depth: self.config.tuning.depth,
            host: false,
            staged: StagedOffer::default(),
            relay: 0,
            data: Data::There,
            begun: Some(Begun { ring: number, turn }),
            mapped: None,
            rdma: None,
            inline: 0..0,
        };
        let relayed = RelaySend {
            reply: 0,
            ring: number,
            shape,
            turn,
            end: bytes,
            phase: Phase::Running,
            key: None,
            stopped: false,
            received: false,
            begun: Some(BegunSend::default()),
        };
        if let Some(send) = self.requests.send_mut(id) {
            let offered = Offered {
                rts,
                registered: None,
                layout: None,
                fetched: false,
                helping: None,
                ring: None,
                relay: Some(Box::new(relayed)),
                failed: None,
            };
            send.stage = SendStage::Offered(Box::new(offered));
        }
        // First the word, so that the other half is on its way while ours is launched.
        self.enqueue(peer, Outgoing::Rts(id));
        self.flush_peer(bml, peer);
        self.pack_relayed(bml, id);
        id
    }

    /// Whether a send was begun before its receiver was asked.
    pub(crate) fn is_begun(&mut self, id: RequestId) -> bool {
        self.relay_send(id).is_some_and(|relayed| relayed.begun.is_some())
    }

    /// Our half of a message has ended.
    pub(super) fn begun_sent(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        result: Result<(), EngineError>,
    ) {
        let Some(peer) = self.requests.send_mut(id).map(|send| send.to.peer) else { return };
        if let Err(error) = &result {
            self.relay_failed(peer, &error.to_string());
        }
        let Some(send) = self.requests.send_mut(id) else { return };
        let Some(relayed) = relaying(send) else { return };
        let Some(ring) = self.rings.theirs(peer, relayed.ring) else { return };
        let outcome = ring.relay.outcome();
        let done = result.is_ok() && outcome == RelayOutcome::Done;
        if done {
            ring.turn += relayed.shape.turns(relayed.end);
        } else {
            tracing::debug!(peer, ?outcome, ?result, "a message that was begun and failed here");
        }
        relayed.phase = Phase::Sent;
        let Some(begun) = &mut relayed.begun else { return };
        begun.broken = !done;
        let answered = begun.answer.is_some();
        if relayed.received {
            self.end_relayed(bml, id, !done);
        } else if answered {
            self.settle_begun(bml, id);
        } else if done {
            self.begun_left(id);
        } else if let SendStage::Offered(offered) = &send.stage {
            let what = What::Failed { serial: offered.rts.serial };
            self.enqueue(peer, Outgoing::Note(what));
            self.flush_peer(bml, peer);
        }
    }

    /// Ends a user's request whose message has left, if it has: the offer, and all of the data.
    pub(crate) fn begun_left(&mut self, id: RequestId) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let (peer, status) = (send.to.peer, send.status(Protocol::Relay));
        let standard = send.envelope.mode == SendMode::Standard;
        let SendStage::Offered(offered) = &mut send.stage else { return };
        let serial = offered.rts.serial;
        let Some(relayed) = offered.relay.as_deref_mut() else { return };
        let whole = relayed.end <= u64::from(relayed.shape.fragment);
        let sent = relayed.phase == Phase::Sent;
        let Some(begun) = relayed.begun.as_mut().filter(|begun| !begun.broken) else { return };
        let waits = |item: &Outgoing| matches!(item, Outgoing::Rts(waits) if *waits == id);
        let offered = !self.peers[peer as usize].outbox.iter().any(waits);
        if !(standard && whole && sent && offered) || begun.answer.is_some() || begun.parted {
            return;
        }
        begun.parted = true;
        match self.requests.part(id, status) {
            Some(rest) => {
                self.serials.insert(serial, rest);
                // To those who ask which communicators are in use it has ended, too.
                if let Some(send) = self.requests.send_mut(rest) {
                    send.to.comm = u32::MAX;
                }
            }
            None => {
                // Nobody asks: it is its own rest, and its buffer is the user's again all the same, as far as
                // anybody was promised: not before the end of the request.
                if let Some(begun) = self.relay_send(id).and_then(|relayed| relayed.begun.as_mut())
                {
                    begun.parted = false;
                }
            }
        }
    }

    /// The receiver asks for the data of a message that was begun; whether it is one.
    pub(crate) fn hold_grant(
        &mut self,
        bml: &mut Bml,
        from: u32,
        cts: &Cts,
    ) -> Result<bool, String> {
        let Some(&id) = self.serials.get(&cts.serial) else { return Ok(false) };
        if !self.is_begun(id) {
            return Ok(false);
        }
        self.begun_answered(bml, id, from, Answer::Grant(*cts))?;
        Ok(true)
    }

    /// The receiver's last word on a message that was begun.
    pub(super) fn begun_fin(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        from: u32,
        verdict: Verdict,
    ) -> Result<(), String> {
        match verdict {
            Verdict::Received(Protocol::Relay) | Verdict::Refused => {}
            Verdict::Withdrawn | Verdict::Unreceived => {}
            _ => return Err(format!("{verdict:?} of a message that is being relayed")),
        }
        self.begun_answered(bml, id, from, Answer::Over(verdict))
    }

    fn begun_answered(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        from: u32,
        answer: Answer,
    ) -> Result<(), String> {
        let Some(send) = self.requests.send_mut(id) else { return Ok(()) };
        let peer = send.to.peer;
        let Some(relayed) = relaying(send) else { return Ok(()) };
        let Some(begun) = &mut relayed.begun else { return Ok(()) };
        if peer != from || relayed.received || begun.answer.is_some() {
            return Err(format!("{answer:?} to a message that has its answer, or is another's"));
        }
        let (ended, broken) = (relayed.phase == Phase::Sent, begun.broken);
        if let Answer::Over(Verdict::Received(_)) = answer {
            relayed.received = true;
            self.peers[peer as usize].unkeyed[Protocol::Relay.index()] = 0;
            if ended {
                self.end_relayed(bml, id, broken);
            }
            return Ok(());
        }
        begun.answer = Some(answer);
        if ended {
            self.settle_begun(bml, id);
        }
        Ok(())
    }

    /// Our half has ended, and the receiver does not take the message from it.
    fn settle_begun(&mut self, bml: &mut Bml, id: RequestId) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let peer = send.to.peer;
        let SendStage::Offered(offered) = &mut send.stage else { return };
        let Some(relayed) = offered.relay.take() else { return };
        let Some(begun) = &relayed.begun else { return };
        let serial = offered.rts.serial;
        let done = match begun.answer {
            Some(Answer::Grant(cts)) => {
                let kept = if begun.parted { self.recover(id, peer, &relayed) } else { Ok(()) };
                self.give_ring_up(bml, peer, relayed.ring);
                match kept {
                    Ok(()) => self.clear_to_send(bml, peer, cts),
                    Err(error) => {
                        self.send_control(bml, peer, &header::abort(cts.reply));
                        self.withdraw_offer(bml, id);
                        self.requests.finish(id, Err(error));
                        Ok(())
                    }
                }
            }
            Some(Answer::Over(verdict)) => {
                self.give_ring_up(bml, peer, relayed.ring);
                self.fin(bml, peer, serial, verdict)
            }
            None => Ok(()),
        };
        if let Err(what) = done {
            self.give_up(bml, peer, what);
        }
    }

    /// Takes what a send's data is left in, the ring, out of it, so that it can be sent another way.
    fn recover(&mut self, id: RequestId, peer: u32, relayed: &RelaySend) -> Result<(), PmlError> {
        let gone = || {
            EngineError::from(gapless_mem::DeviceError::Unsupported { what: "a ring that is gone" })
        };
        let memory = self.rings.theirs(peer, relayed.ring).and_then(|ring| ring.memory(false));
        let place = relayed.turn % u64::from(relayed.shape.depth.max(1));
        let at = place * u64::from(relayed.shape.fragment);
        let region: Region = memory
            .and_then(|memory| memory.fragments.sub(at, relayed.end).ok())
            .ok_or_else(gone)?;
        let Some(send) = self.requests.send_mut(id) else { return Ok(()) };
        let (buffer, bytes) = send.buffer.recovered(&self.engines, region)?;
        send.buffer = buffer;
        send._copied = Some(Copied { _bytes: bytes, _share: None });
        Ok(())
    }

    /// Receives a message whose sender has begun it.
    pub(crate) fn receive_begun(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        begun: Begun,
    ) -> Result<(), String> {
        let Some((incoming, buffer)) = self.incoming(id) else { return Ok(()) };
        let (from, sent) = (incoming.from, incoming.rts.envelope.digest.bytes);
        let (engine, space) = (buffer.engine(), buffer.typed().space());
        if begun.ring > self.rings.made {
            return Err(format!(
                "a message that was begun over ring {}, which never was",
                begun.ring
            ));
        }
        let lanes = self.rings.lanes_begun(space);
        // One that we have given up meanwhile is another way's reason.
        let ring = self.rings.own(begun.ring).filter(|ring| ring.peer == from);
        let Some(ring) = ring.filter(|ring| ring.is_open()) else {
            self.fetch_begun(bml, id, "its ring is no more");
            return Ok(());
        };
        if ring.busy || ring.turn != begun.turn || sent > room(&ring.shape) {
            return Err(format!(
                "{sent} bytes begun in turn {} of ring {} in turn {}, busy: {}",
                begun.turn, begun.ring, ring.turn, ring.busy
            ));
        }
        let (shape, mark) = (ring.shape, ring.mark);
        if ring.space != space {
            self.rings.went_astray(begun.ring);
            self.fetch_begun(bml, id, "its ring is in another device's memory");
            return Ok(());
        }
        let ends = self.device_ends(bml, true, mark, space);
        let beside = ends.is_some_and(|ends| ends.one_device);
        let most = self.engines[engine].relays().map_or(0, |relays| relays.lanes(space, beside));
        if lanes + shape.lanes > most {
            self.fetch_begun(bml, id, "the device waits for many others");
            return Ok(());
        }
        if let Some(ring) = self.rings.own(begun.ring) {
            ring.busy = true;
        }
        if let Some((incoming, _)) = self.incoming(id) {
            incoming.protocol = Protocol::Relay;
            incoming.stage = Stage::Relay(Box::new(RelayRecv::begun(begun.ring, shape)));
        }
        self.unpack_relayed(bml, id, begun.ring, shape);
        Ok(())
    }

    /// Asks for a message that was begun by the pipeline, and gives its ring up. That is no failure of relays: what
    /// was, its end has counted.
    pub(super) fn fetch_begun(&mut self, bml: &mut Bml, id: RequestId, why: &str) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let from = incoming.from;
        let ring = incoming.rts.begun.map(|begun| begun.ring);
        tracing::debug!(peer = from, why, "a message that was begun and is asked for");
        incoming.stage = Stage::Choosing;
        if let Some(own) = ring.and_then(|number| self.rings.own(number)) {
            own.busy &= own.peer != from;
        }
        self.drop_begun(from, ring);
        self.grant(bml, id, 0);
    }

    /// A sender's half has failed: ours, if there is one, need not wait for it.
    pub(crate) fn begun_failed(&mut self, from: u32, serial: u64) {
        let concerned = |work: &Work| match work {
            Work::Recv(recv) => match &recv.stage {
                RecvStage::Incoming(incoming) if incoming.from == from => match &incoming.stage {
                    Stage::Relay(relayed) if incoming.rts.serial == serial => relayed.begun_over(),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        };
        if let Some(ring) = self.requests.under_way().find_map(|(_, work)| concerned(work)) {
            if let Some(ring) = self.rings.own(ring) {
                ring.relay.stop();
            }
            return;
        }
        // Not matched yet: its receive finds no ring, and asks for the data by CTS, as the sender expects.
        let mut ring = None;
        let mut find = |source: u32, held: &mut Arrival| match held {
            Arrival::Rts(rts, _) if source == from && rts.serial == serial => {
                ring = rts.begun.map(|begun| begun.ring);
                true
            }
            _ => false,
        };
        if !self.unexpected.any_mut(|label, held| find(label.source, held)) {
            self.claims.any_mut(|label, held| find(label.source, held));
        }
        self.drop_begun(from, ring);
    }

    /// Nothing is received of a message that may have been begun: then nothing more is over its ring.
    pub(crate) fn forgo_begun(&mut self, from: u32, begun: Option<Begun>) {
        self.drop_begun(from, begun.map(|begun| begun.ring));
    }

    /// Gives a ring of ours up that its sender still writes to, perhaps.
    fn drop_begun(&mut self, from: u32, ring: Option<u64>) {
        let own = ring.and_then(|number| self.rings.own(number));
        let own = own.filter(|own| own.peer == from && own.standing.is_some() && !own.busy);
        if let Some(number) = own.map(|own| own.number) {
            self.rings.drop_own(number, &mut self.staging, true);
        }
    }
}
