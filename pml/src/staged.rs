//! Staged rendezvous: device memory moves through staging memory, fragment by fragment, both ends
//! busy, driven by the receiver (Wu et al. 2016 §4).
//!
//! ```text
//! put (put.rs)                              get, or through the host (get.rs)
//! sender                receiver            sender                receiver
//!   | RTS(offer) ---------> | choose          | RTS(offer) ---------> | choose
//!   | <---- OPEN(key) ----- | its ring        | <------- OPEN ------- |
//!   | map                   |                 | its ring              |
//!   |                       |                 | RING(key) ----------> | map
//!   |                       |                 | <---- FREE(depth) --- |
//!   | lay 0, READY(0) ----> | take 0 out      | lay 0, READY(0) ----> | take 0 out
//!   | lay 1, READY(1) ----> | take 1 out      | lay 1, READY(1) ----> | take 1 out
//!   | <----- FREE(n) ------ |                 | <----- FREE(n) ------ |
//!   |  …                    |                 |  …                    |
//!   ■ all laid              □ all taken       | <-------- FIN ------- □ all taken
//!                                             ■
//! ```
//!
//! FREE(n): fragments below `n` may be laid. The ring has `depth` places, and fragment `i` lies in place
//! `i` modulo the depth; a receiver's buffer without gaps that the sender can map is a ring with a
//! place for every fragment, and there is nothing to take out or to free.
//!
//! What cannot be had is no error: REFUSE (or, of a RING, simply another decision) leaves the offer
//! standing, and the receiver chooses again among the other ways. If the sender's engine fails, it
//! says ABORT once none of its engines works any more, and waits for FIN, because a FREE may be on its
//! way. If the receiver's fails, it takes the other fragments and drops them. If a peer is lost, staging
//! memory goes back when our engines have ended, and what the peer may write to when the transport
//! says that it has it no more.

pub(crate) mod course;
pub(crate) mod cut;
mod get;
mod put;
mod receiver;
mod sender;
mod window;

use crate::choose::{self, Situation};
use crate::core::Core;
use crate::error::PmlError;
use crate::header::{DEPTH_MAX, FRAGMENT_MIN, StagedOffer, Why};
use crate::inflight::{Flight, InFlight};
use crate::protocol::Protocol;
use crate::rendezvous::Stage;
use crate::request::RequestId;
use crate::staging::device_of;
use course::{Course, Step};
use cut::Cut;
use gapless_bml::{Bml, MapError, Mapping, Rank, RemoteKey};
use gapless_engine::EngineError;
use gapless_mem::{Completion, Device, Space};
use std::sync::Arc;

/// Messages in a row that find no key on a way before it is given up for good: a transport may be
/// short of keys for a moment.
const UNKEYED_MAX: u8 = 8;

/// Why a way cannot be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    /// Another message may go it.
    Passing,
    /// There was no key.
    NoKey,
    /// No message ever will.
    Lasting,
}

impl From<Why> for Obstacle {
    fn from(why: Why) -> Obstacle {
        match why {
            Why::Exhausted => Obstacle::Passing,
            Why::NoKey => Obstacle::NoKey,
            Why::Unmappable => Obstacle::Lasting,
        }
    }
}

/// A staged message at its sender.
#[derive(Debug)]
pub(crate) struct StagedSend {
    pub(crate) serial: u64,
    pub(crate) reply: u64,
    pub(crate) course: Course,
    /// How it will end.
    pub(crate) failed: Option<PmlError>,
}

/// A staged message at its receiver.
#[derive(Debug)]
pub(crate) struct StagedRecv {
    pub(crate) course: Course,
    /// Fragments may come.
    pub(crate) going: bool,
    /// The sender is lost, and may still have our buffer mapped.
    pub(crate) leaving: bool,
}

/// The number that processes of this host know a device by; 0 if it has none.
fn mark_of(device: &Arc<dyn Device>) -> u64 {
    let fold = |id: u128| {
        let bytes = id.to_le_bytes();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        (word(0) ^ word(8)).max(1)
    };
    device.identity().map_or(0, fold)
}

/// Maps a peer's memory for work on a buffer in `user`.
pub(crate) fn map_peer(
    bml: &mut Bml,
    peer: u32,
    key: &RemoteKey,
    user: Space,
) -> Result<Mapping, MapError> {
    let none = || MapError::Unavailable { reason: "no rail maps memory".to_owned() };
    // The space of the device that works on it, by the name that it is attached under.
    let user = device_of(bml, user).map_or(Space::Host, |device| device.space());
    let (peer, mapped) = bml.mapped(Rank(peer)).ok_or_else(none)?;
    mapped.map_for(peer, key, user)
}

impl Protocol {
    /// Whether the sender lays fragments into memory of the receiver.
    pub(crate) fn puts(self) -> bool {
        matches!(self, Protocol::StagedPut | Protocol::StagedPutCopy)
    }

    /// Whether the receiver takes fragments out of memory of the sender's device.
    fn gets(self) -> bool {
        matches!(self, Protocol::StagedGet | Protocol::StagedGetCopy)
    }

    /// Whether fragments lie in host memory.
    pub(crate) fn through_host(self) -> bool {
        matches!(self, Protocol::CopyInOut | Protocol::ZeroCopyInOut)
    }

    /// Those that need the same of a link, this one included.
    fn kin(self) -> &'static [Protocol] {
        match self {
            Protocol::StagedPut | Protocol::StagedPutCopy => {
                &[Protocol::StagedPut, Protocol::StagedPutCopy]
            }
            Protocol::StagedGet | Protocol::StagedGetCopy => {
                &[Protocol::StagedGet, Protocol::StagedGetCopy]
            }
            Protocol::CopyInOut | Protocol::ZeroCopyInOut => {
                &[Protocol::CopyInOut, Protocol::ZeroCopyInOut]
            }
            _ => &[],
        }
    }
}

impl Core {
    /// Sees that the device of a buffer is attached to the transports.
    #[cold]
    pub(crate) fn know_device(&mut self, bml: &mut Bml, engine: usize, space: Space) {
        if device_of(bml, space).is_some() {
            return;
        }
        let Some(device) = self.engines[engine].device(space) else { return };
        if let Err(error) = bml.attach(&device) {
            let name = &device.properties().name;
            tracing::info!(name, %error, "a transport does not know this device");
        }
    }

    /// What a sender of a buffer in `space` tells of staging.
    pub(crate) fn staged_offer(&self, bml: &mut Bml, peer: u32, space: Space) -> StagedOffer {
        let device = device_of(bml, space);
        let host = space.cpu_accessible();
        // Nothing is staged between two host buffers; who sends one knows no device, as a rule.
        if peer == self.me || !(host || device.is_some()) || bml.mapped(Rank(peer)).is_none() {
            return StagedOffer::default();
        }
        StagedOffer {
            device: device.is_some(),
            through_host: true,
            fragment: self.config.tuning.staged_fragment_bytes.max(FRAGMENT_MIN),
            depth: self.config.tuning.staged_depth.clamp(1, DEPTH_MAX),
            mark: device.as_ref().map_or(0, mark_of),
        }
    }

    /// Which staged ways there are between a sender and a buffer of ours in `space`.
    pub(crate) fn staging(
        &self,
        bml: &mut Bml,
        from: u32,
        theirs: &StagedOffer,
        space: Space,
    ) -> Option<choose::Staging> {
        // Their messages are not numbered.
        if !bml.limits(Rank(from)).is_some_and(|limits| limits.ordered) {
            return None;
        }
        let ours = self.staged_offer(bml, from, space);
        if !(theirs.through_host && ours.through_host && (theirs.device || ours.device)) {
            return None;
        }
        Some(choose::Staging {
            sender_device: theirs.device,
            receiver_device: ours.device,
            one_device: ours.mark != 0 && ours.mark == theirs.mark,
            direct: false,
            fragment_bytes: theirs.fragment.min(ours.fragment),
            depth: theirs.depth.min(ours.depth),
        })
    }

    /// The same as a sender expects it, who takes the receiver's device to be another one like its
    /// own.
    pub(crate) fn expected_staging(
        &self,
        bml: &mut Bml,
        peer: u32,
        space: Space,
    ) -> Option<choose::Staging> {
        if space.cpu_accessible() {
            return None;
        }
        let ours = self.staged_offer(bml, peer, space);
        self.staging(bml, peer, &StagedOffer { mark: 0, ..ours }, space)
    }

    /// What is known of the devices of a sender, who has told its device's mark (0: none), and of a
    /// buffer of ours in `space`.
    pub(crate) fn device_ends(
        &self,
        bml: &Bml,
        sender: bool,
        mark: u64,
        space: Space,
    ) -> Option<choose::DeviceEnds> {
        let receiver = !space.cpu_accessible();
        if !sender && !receiver {
            return None;
        }
        let device = device_of(bml, space);
        let same = device.filter(|device| mark != 0 && mark_of(device) == mark);
        let turns = same.as_ref().is_some_and(|device| device.takes_turns());
        Some(choose::DeviceEnds {
            sender,
            receiver,
            one_device: same.is_some(),
            turns,
            sender_keeps: false,
        })
    }

    /// Goes a staged way.
    pub(crate) fn open_staged(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        way: Protocol,
        situation: &Situation,
        staging: &choose::Staging,
    ) {
        let shape = choose::staged_shape(way, situation, staging, &self.config.tuning);
        let Some(cut) = Cut::new(situation.bytes, shape) else {
            return self.refuse(bml, id, way, "it cannot be cut into fragments");
        };
        let depth = u32::try_from(cut.total()).unwrap_or(DEPTH_MAX).min(staging.depth);
        let course = Course::new(way, cut, depth);
        if way.puts() {
            self.open_put(bml, id, course);
        } else {
            self.open_get(bml, id, course);
        }
    }

    /// A way is closed to a peer for good, as far as anybody can tell.
    pub(crate) fn close_way(&mut self, peer: u32, way: Protocol, why: &str) {
        let closed = &mut self.peers[peer as usize].closed;
        if !std::mem::replace(&mut closed[way.index()], true) {
            tracing::info!(peer, %way, why, "messages of devices take other ways to this peer");
        }
        way.kin().iter().for_each(|kin| closed[kin.index()] = true);
    }

    /// Whether a failure to map is one that other messages would meet, too.
    pub(crate) fn lasts(error: &MapError) -> bool {
        matches!(error, MapError::Device(_) | MapError::System { .. })
    }

    /// A way could not be gone; nothing was moved. Tries another.
    fn refuse_staged(&mut self, bml: &mut Bml, id: RequestId, why: &str, obstacle: Obstacle) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let (from, way) = (incoming.from, incoming.protocol);
        if let Stage::Staged(_) = incoming.stage {
            self.release_recv(id, false);
        }
        let unkeyed = &mut self.peers[from as usize].unkeyed[way.index()];
        match obstacle {
            Obstacle::Passing => {}
            Obstacle::Lasting => self.close_way(from, way, why),
            Obstacle::NoKey => {
                *unkeyed = unkeyed.saturating_add(1);
                if *unkeyed >= UNKEYED_MAX {
                    self.close_way(from, way, why);
                }
            }
        }
        if let Some((incoming, _)) = self.incoming(id) {
            // What its kin needs is the same.
            way.kin().iter().for_each(|kin| incoming.refuse(*kin));
        }
        self.refuse(bml, id, way, why);
    }

    /// Waits for a step's end, or takes it as it comes; whether it waits.
    pub(super) fn follow(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        index: u64,
        step: Result<Step, EngineError>,
        out: bool,
    ) -> bool {
        let result = match step {
            Ok(Step { completion: completion @ Completion::Pending(_), failed }) => {
                let work = Flight::Staged { id, index, out, failed };
                self.in_flight.push(InFlight { completion, work });
                return true;
            }
            Ok(Step { failed, .. }) => failed.map_or(Ok(()), Err),
            Err(error) => Err(error),
        };
        if out {
            self.gathered(bml, id, index, result);
        } else {
            self.taken_out(bml, id, index, result);
        }
        false
    }

    /// An engine's work on a fragment has ended.
    pub(crate) fn staged_landed(
        &mut self,
        bml: &mut Bml,
        (id, index, out): (RequestId, u64, bool),
        result: Result<(), EngineError>,
    ) {
        if out {
            self.gathered(bml, id, index, result);
            self.advance_send(bml, id);
        } else {
            self.taken_out(bml, id, index, result);
        }
    }
}
