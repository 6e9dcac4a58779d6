//! A relayed message at its receiver, which lends the ring.

use super::rings::{RINGS_MAX, Ring, Standing};
use super::{DEPTH, PATIENCE, PLACE_BYTES, SHORT_PATIENCE, clear, fragment_for};
use crate::core::Core;
use crate::error::PmlError;
use crate::header::{self, Go, Loan, Quit};
use crate::protocol::Protocol;
use crate::recv::RecvStage;
use crate::rendezvous::Stage;
use crate::request::RequestId;
use crate::staged::map_peer;
use crate::staging::device_of;
use gapless_bml::{Bml, Rank, RemoteKey};
use gapless_engine::{EngineError, RelayEnd, RelayOutcome, RelayShape};
use gapless_mem::{Completion, Space};

/// How far a relayed message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The flags of a new ring are cleared.
    Clearing,
    /// The sender has it, and is to say GO.
    Lent,
    /// Our device unpacks.
    Running,
    /// It has failed, and the sender is to QUIT.
    Failed,
}

/// A relayed message at its receiver.
#[derive(Debug)]
pub(crate) struct RelayRecv {
    ring: u64,
    shape: RelayShape,
    phase: Phase,
    /// The key of a ring that the sender has not mapped.
    key: Option<RemoteKey>,
    /// The sender has quit.
    quit: bool,
    /// The sender began before it asked.
    begun: bool,
}

impl RelayRecv {
    /// One that its sender has begun.
    pub(super) fn begun(ring: u64, shape: RelayShape) -> RelayRecv {
        RelayRecv { ring, shape, phase: Phase::Running, key: None, quit: false, begun: true }
    }

    /// The ring, if the sender began before it asked.
    pub(super) fn begun_over(&self) -> Option<u64> {
        self.begun.then_some(self.ring)
    }

    /// Whether a device works on it.
    pub(crate) fn working(&self) -> bool {
        matches!(self.phase, Phase::Clearing | Phase::Running)
    }
}

impl Core {
    /// Goes this way: with a ring that is there, or a new one.
    pub(crate) fn open_relay(&mut self, bml: &mut Bml, id: RequestId) {
        let Some((incoming, buffer)) = self.incoming(id) else { return };
        let (from, room, offered) = (incoming.from, incoming.room, incoming.rts.relay);
        let (engine, space) = (buffer.engine(), buffer.typed().space());
        let mark = incoming.rts.staged.mark;
        let ends = self.device_ends(bml, true, mark, space);
        let beside = ends.is_some_and(|ends| ends.one_device);
        let lanes = self.relay_lanes(bml, engine, space, beside).min(u32::from(offered));
        let idle = |ring: &&Ring| {
            let ends = (ring.peer, ring.space, ring.mark) == (from, space, mark);
            ends && ring.standing.is_none() && !ring.busy && ring.shape.lanes == lanes
        };
        let found = self.rings.lent.iter().find(idle).map(|ring| ring.number);
        let made = match found {
            _ if self.rings.receives(space) => Err("the device relays others"),
            Some(number) => Ok((number, None, Completion::Ready)),
            None => {
                let shape = RelayShape { lanes, depth: u32::from(DEPTH), fragment: PLACE_BYTES };
                self.make_ring(bml, (from, mark), (engine, space), shape, None)
            }
        };
        let (number, key, cleared) = match made {
            Ok(made) => made,
            Err(why) => return self.refuse(bml, id, Protocol::Relay, why),
        };
        let Some(ring) = self.rings.own(number) else { return };
        ring.busy = true;
        let fragment = fragment_for(room, lanes, PLACE_BYTES);
        let shape = RelayShape { fragment, ..ring.shape };
        let phase = Phase::Clearing;
        let relayed = RelayRecv { ring: number, shape, phase, key, quit: false, begun: false };
        if let Some((incoming, _)) = self.incoming(id) {
            incoming.stage = Stage::Relay(Box::new(relayed));
        }
        self.follow_relay(bml, id, false, Ok(cleared));
    }

    /// A ring for the messages of a peer to a device of ours: its number, its key, and the clearing of its
    /// flags.
    pub(super) fn make_ring(
        &mut self,
        bml: &mut Bml,
        (peer, mark): (u32, u64),
        (engine, space): (usize, Space),
        shape: RelayShape,
        standing: Option<Standing>,
    ) -> Result<(u64, Option<RemoteKey>, Completion), &'static str> {
        let alike =
            |ring: &&Ring| ring.peer == peer && ring.standing.is_some() == standing.is_some();
        if self.rings.lent.iter().filter(alike).count() >= RINGS_MAX {
            return Err("all rings for this peer are in use");
        }
        let lanes = shape.lanes;
        let (_, bytes) = shape.receiver_bytes().ok_or("no lanes for a relay")?;
        let device = device_of(bml, space).ok_or("its device is not attached")?;
        let relay = self.relays(engine).and_then(|to| to.relay(RelayEnd::Receiver, space, lanes));
        let relay = relay.map_err(|_| "the device does not relay")?;
        // Half of it stays for others: rings are kept.
        let bound = self.config.bounds.staging_bytes / 2;
        let block = self.staging.take(bml, Some(&device), bytes, bound);
        let block = block.ok_or("no staging memory for a ring")?;
        let whole = block.region();
        let key = bml.mapped(Rank(peer)).and_then(|(to, mapped)| mapped.key(to, whole));
        let cleared = Ring::parts(&shape, whole)
            .map_err(EngineError::from)
            .and_then(|(_, ready)| Ok(clear(bml, ready)?));
        let (Some(key), Ok(cleared)) = (key, cleared) else {
            self.staging.give(block);
            return Err("the ring's memory has no key, or cannot be cleared");
        };
        self.rings.made += 1;
        let number = self.rings.made;
        self.rings.lent.push(Ring {
            number,
            peer,
            space,
            mark,
            shape,
            turn: 0,
            busy: false,
            relay,
            block: Some(block),
            theirs: None,
            next: None,
            standing,
        });
        Ok((number, Some(key), cleared))
    }

    /// The relayed receive of ours that `from` speaks of.
    fn relayed(&mut self, from: u32, reply: u64) -> Result<(RequestId, &mut RelayRecv), String> {
        let unknown = || format!("a word on receive {reply}, which is not relayed");
        let id = self.receiving(reply)?;
        let recv = self.requests.recv_mut(id).ok_or_else(unknown)?;
        match &mut recv.stage {
            RecvStage::Incoming(incoming) if incoming.from == from => match &mut incoming.stage {
                Stage::Relay(relayed) => Ok((id, relayed)),
                _ => Err(unknown()),
            },
            _ => Err(unknown()),
        }
    }

    /// The same, by its request.
    pub(super) fn relayed_recv(&mut self, id: RequestId) -> Option<&mut RelayRecv> {
        match &mut self.incoming(id)?.0.stage {
            Stage::Relay(relayed) => Some(relayed),
            _ => None,
        }
    }

    /// The sender has begun.
    pub(crate) fn relay_go(&mut self, bml: &mut Bml, from: u32, go: &Go) -> Result<(), String> {
        if let Some(number) = self.rings.lent_as(from, go.reply) {
            return self.standing_go(bml, from, number, go);
        }
        // It crossed our leaving: the ring is gone, and its sender learns of that from what it begins.
        if self.is_past(go.reply) && self.rings.is_dropped(from, go.reply) {
            return Ok(());
        }
        let (id, relayed) = self.relayed(from, go.reply)?;
        let (number, shape) = (relayed.ring, relayed.shape);
        if relayed.phase != Phase::Lent {
            return Err("a GO that nobody waits for".to_owned());
        }
        let Some(ring) = self.rings.own(number) else { return Ok(()) };
        if go.key.is_some() != ring.theirs.is_none() {
            return Err(format!("a GO with {:?} for ring {number}", go.key));
        }
        if let Some(key) = &go.key {
            let space = ring.space;
            match map_peer(bml, from, key, space) {
                Ok(mapping) if mapping.region().len() < shape.flag_bytes() => {
                    return Err(format!("credit in {} bytes", mapping.region().len()));
                }
                Ok(mapping) => {
                    if let Some(ring) = self.rings.own(number) {
                        ring.theirs = Some(mapping);
                    }
                }
                Err(error) => {
                    if Core::lasts(&error) {
                        self.close_way(from, Protocol::Relay, &error.to_string());
                    }
                    self.fail_relayed(bml, id);
                    return Ok(());
                }
            }
        }
        self.unpack_relayed(bml, id, number, shape);
        Ok(())
    }

    /// Begins to unpack.
    pub(super) fn unpack_relayed(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        number: u64,
        shape: RelayShape,
    ) {
        let begun = self.relayed_recv(id).is_some_and(|relayed| relayed.begun);
        let patience = if begun { SHORT_PATIENCE } else { PATIENCE };
        let Some(ring) = self.rings.own(number) else { return };
        let (relay, memory, turn) = (ring.relay.clone(), ring.memory(true), ring.turn);
        let Some((incoming, buffer)) = self.incoming(id) else { return };
        let (buffer, room) = (buffer.clone(), incoming.room);
        let begun = match memory {
            Some(memory) => buffer.relay(&relay, room, &shape, &memory, turn, patience),
            None => Err(EngineError::from(gapless_mem::DeviceError::Unsupported {
                what: "a ring without its memory",
            })),
        };
        if let Some(relayed) = self.relayed_recv(id) {
            relayed.phase = Phase::Running;
        }
        let tally = self.counters.tally(Protocol::Relay);
        tally.unpacks += 1;
        tally.staged_bytes = tally.staged_bytes.saturating_add(room);
        tally.fragments += room.div_ceil(u64::from(shape.fragment));
        self.follow_relay(bml, id, false, begun);
    }

    /// Its flags are clear, or our device has ended.
    pub(super) fn relay_received(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        result: Result<(), EngineError>,
    ) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let (from, lost) = (incoming.from, incoming.is_lost());
        let (serial, reply, room) = (incoming.rts.serial, incoming.reply, incoming.room);
        let Stage::Relay(relayed) = &mut incoming.stage else { return };
        let (number, shape, quit) = (relayed.ring, relayed.shape, relayed.quit);
        let ahead = relayed.begun;
        let clearing = relayed.phase == Phase::Clearing;
        if lost {
            return self.end_lost_relay(id);
        }
        if clearing {
            if let Err(error) = result {
                self.drop_recv_ring(id, false);
                return self.refuse(bml, id, Protocol::Relay, &error.to_string());
            }
            relayed.phase = Phase::Lent;
            let key = relayed.key;
            let Some(ring) = self.rings.own(number) else { return };
            let loan = Loan {
                serial,
                reply,
                end: room,
                ring: number,
                turn: ring.turn,
                lanes: u16::try_from(shape.lanes).unwrap_or(u16::MAX),
                depth: DEPTH,
                place: PLACE_BYTES,
                fragment: shape.fragment,
                key,
            };
            return self.send_long(bml, from, loan.wire());
        }
        let Some(ring) = self.rings.own(number) else { return };
        let outcome = ring.relay.outcome();
        if result.is_ok() && outcome == RelayOutcome::Done {
            ring.turn += shape.turns(room);
            ring.busy = false;
            if quit {
                self.rings.drop_own(number, &mut self.staging, false);
            }
            let failures = &mut self.peers[from as usize].unkeyed[Protocol::Relay.index()];
            *failures = 0;
            if let Some((incoming, _)) = self.incoming(id) {
                incoming.stage = Stage::Choosing;
            }
            return self.finish_and_tell(bml, id);
        }
        tracing::debug!(peer = from, ?outcome, ?result, "a relayed message that failed here");
        match (ahead, quit) {
            (true, _) => {
                // One that was late, or was ended, is no fault of our device's.
                if let Err(error) = &result {
                    self.relay_failed(from, &error.to_string());
                }
                self.fetch_begun(bml, id, "our half gave up, or theirs did");
            }
            (false, true) => self.fall_back(bml, id),
            (false, false) => self.fail_relayed(bml, id),
        }
    }

    /// Our half cannot be, or has ended without all of the message: the sender's is to end.
    fn fail_relayed(&mut self, bml: &mut Bml, id: RequestId) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let (from, serial) = (incoming.from, incoming.rts.serial);
        if let Stage::Relay(relayed) = &mut incoming.stage {
            relayed.phase = Phase::Failed;
        }
        self.send_control(bml, from, &header::stop(serial));
    }

    /// The sender's half has ended, or never begins.
    pub(crate) fn relay_quit(
        &mut self,
        bml: &mut Bml,
        from: u32,
        reply: u64,
        why: Quit,
    ) -> Result<(), String> {
        if let Some(number) = self.rings.lent_as(from, reply) {
            return self.standing_quit(from, number, why);
        }
        // It crossed our FIN, or what else ended the receive: the ring is given up when it is lent again.
        if self.is_past(reply) {
            return Ok(());
        }
        let (id, relayed) = self.relayed(from, reply)?;
        if relayed.begun {
            return Err(format!("the end of receive {reply}, which was begun without a LOAN"));
        }
        if std::mem::replace(&mut relayed.quit, true) {
            return Err("somebody quits twice".to_owned());
        }
        let (number, phase, known) = (relayed.ring, relayed.phase, relayed.key.is_none());
        match phase {
            Phase::Clearing => return Err("somebody quits before the beginning".to_owned()),
            Phase::Lent => {
                if why == Quit::Lasting {
                    self.close_way(from, Protocol::Relay, "the sender cannot map the memory");
                }
                if why == Quit::Passing && known {
                    self.idle_ring(id);
                }
                self.drop_recv_ring(id, false);
                self.refuse(bml, id, Protocol::Relay, "the sender cannot relay this one");
            }
            Phase::Running => {
                if let Some(ring) = self.rings.own(number) {
                    ring.relay.stop();
                }
            }
            Phase::Failed => self.fall_back(bml, id),
        }
        Ok(())
    }

    /// Both halves have ended: another way.
    fn fall_back(&mut self, bml: &mut Bml, id: RequestId) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let from = incoming.from;
        self.drop_recv_ring(id, false);
        self.relay_failed(from, "one half did not come, or gave up");
        self.refuse(bml, id, Protocol::Relay, "a relay that failed");
    }

    /// Keeps a message's ring for others.
    fn idle_ring(&mut self, id: RequestId) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        if let Stage::Relay(relayed) = &incoming.stage {
            let number = relayed.ring;
            incoming.stage = Stage::Choosing;
            if let Some(ring) = self.rings.own(number) {
                ring.busy = false;
            }
        }
    }

    /// Gives a message's ring up; `late`: the sender may still write to it.
    fn drop_recv_ring(&mut self, id: RequestId, late: bool) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        if let Stage::Relay(relayed) = &incoming.stage {
            let number = relayed.ring;
            incoming.stage = Stage::Choosing;
            self.rings.drop_own(number, &mut self.staging, late);
        }
    }

    /// The sender of a relayed message is lost: our device is to give up; whether it still works.
    pub(crate) fn stop_lost_relay(&mut self, id: RequestId) -> bool {
        let Some(relayed) = self.relayed_recv(id) else { return false };
        let (number, working) = (relayed.ring, relayed.working());
        if let Some(ring) = self.rings.own(number) {
            ring.relay.stop();
        }
        working
    }

    /// The sender of a relayed message is lost, and our device does not work on it.
    pub(crate) fn end_lost_relay(&mut self, id: RequestId) {
        self.drop_recv_ring(id, true);
        if let Some((incoming, _)) = self.incoming(id) {
            debug_assert!(matches!(incoming.failure, Some(PmlError::PeerLost { .. })));
        }
        self.finish_incoming(id);
    }
}
