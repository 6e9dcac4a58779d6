//! Staged rendezvous: device memory moves through staging memory, fragment by fragment, both ends
//! busy, driven by the receiver (Wu et al. 2016 §4).
//!
//! ```text
//! put                                       get, or through the host
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
//! FREE(n): fragments below `n` may be put into the ring. The ring has `depth` places, and fragment `i` lies in place
//! `i` modulo the depth. A receiver's buffer without gaps that the sender can map is a ring with a place for every
//! fragment: nothing is taken out or freed.
//!
//! A lack of resources is no error. REFUSE (or, for a RING, simply another decision) leaves the offer valid, and the
//! receiver chooses another protocol. If the sender's engine fails, it says ABORT once none of its engines works any
//! more, and waits for FIN, because a FREE may be in flight. If the receiver's engine fails, it takes the other
//! fragments and drops them. If a peer is lost, staging memory is freed when our engines have ended; memory that the
//! peer may write is freed when the transport says that the peer has released it.

pub(crate) mod pipeline;
mod reader;
mod receiver;
mod sender;
mod window;

use super::{Cx, ProtocolKind};
use crate::buffer::HeldMemory;
use crate::cost::{Excluded, Situation};
use crate::protocol::Protocol;
use crate::wire::{self, Message, Why};
use gapless_bml::MapError;
use gapless_engine::EngineError;
use gapless_mem::Space;
use pipeline::{StagingPipeline, Started};

/// What all staged protocols have in common.
const STAGED: ProtocolKind = ProtocolKind {
    cost: |model, by| model.staged(by),
    open_recv: receiver::open,
    opens: |message| matches!(message, Message::Open(_)),
    open_send: sender::open,
    ..ProtocolKind::NONE
};

pub(super) const BETWEEN_DEVICES: ProtocolKind =
    ProtocolKind { exclude: between_devices, ..STAGED };

// Both puts depend on the same facts, which are checked once.
pub(super) const PUT: ProtocolKind = ProtocolKind { consider, ..BETWEEN_DEVICES };

pub(super) const THROUGH_HOST: ProtocolKind = ProtocolKind { exclude: through_host, ..STAGED };

pub(super) const READ: ProtocolKind = ProtocolKind {
    exclude: |s, _| s.staged_read.is_none().then_some(Excluded::NoStaging),
    cost: |model, _| model.staged_read(),
    open_recv: reader::open,
    ..STAGED
};

fn between_devices(s: &Situation, _: &crate::tuning::Tuning) -> Option<Excluded> {
    let possible = s
        .staged
        .is_some_and(|staging| staging.sender_device && staging.receiver_device && staging.shared);
    (!possible || s.local).then_some(Excluded::NoStaging)
}

fn through_host(s: &Situation, _: &crate::tuning::Tuning) -> Option<Excluded> {
    let possible = s.staged.is_some_and(|staging| staging.sender_device || staging.receiver_device);
    (!possible || s.local).then_some(Excluded::NoStaging)
}

/// Whether the receiver's buffer can be a ring with a place for every fragment.
fn consider(cx: &mut Cx<'_>, s: &mut Situation) {
    // A key costs a question to the driver, and what is short is mapped.
    let maps = s.mapped && !cx.facts.closed[Protocol::Mapped.index()];
    if maps && s.bytes <= SHORT_MAX && cx.config.force.is_none() {
        return;
    }
    let (_, room) = cx.receipt();
    let share = cx.config.shares_buffers();
    if let Some(staging) = &mut s.staged {
        staging.direct =
            staging.receiver_device && cx.link.start_key(cx.buffer, room, share).is_some();
    }
}

/// Bytes up to which nothing staged is quicker than what is mapped.
const SHORT_MAX: u64 = 64 << 10;

/// Messages in a row that find no key for a protocol before it is excluded for good: a transport may be out of keys
/// for a moment.
const UNKEYED_MAX: u8 = 8;

/// Why a protocol turns out to be impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    /// Another message may use it.
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

/// Whether other messages would also fail to map.
pub(super) fn lasts(error: &MapError) -> bool {
    matches!(error, MapError::Device(_) | MapError::System { .. })
}

impl Protocol {
    /// Whether the sender puts fragments into memory of the receiver.
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

    /// The protocols that need the same of a link, this one included.
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
            Protocol::StagedRead => &[Protocol::StagedRead],
            _ => &[],
        }
    }

    /// Whether a copy engine is between a ring that the sender keeps and a buffer in `space`.
    fn copies(self, space: Space, sender: bool) -> bool {
        match self {
            Protocol::StagedGetCopy => !sender,
            Protocol::CopyInOut => !space.cpu_accessible(),
            _ => false,
        }
    }
}

/// Gives a pipeline a copier, and memory to pack into if the buffer has gaps; returns whether there is any.
fn second_stop(cx: &mut Cx<'_>, pipeline: &mut StagingPipeline) -> bool {
    let typed = cx.buffer.typed();
    let Some(device) = cx.link.device(typed.space()) else { return false };
    if typed.as_contiguous().is_none() {
        pipeline.local = cx.stage(Some(&device), pipeline.ring_bytes());
        if pipeline.local.is_none() {
            return false;
        }
    }
    pipeline.copier = Some(device);
    true
}

/// The immediate result of an engine's step on a fragment; `None` if it is in flight, as the part of that number.
fn follow(
    cx: &mut Cx<'_>,
    index: u64,
    failed: &mut Vec<(u64, EngineError)>,
    step: Result<Started, EngineError>,
) -> Option<Result<(), EngineError>> {
    match step {
        Ok(Started { moving, failed: rest }) => match moving.now() {
            Ok(_) => Some(rest.map_or(Ok(()), Err)),
            Err(moving) => {
                failed.extend(rest.map(|error| (index, error)));
                cx.follow(index, moving);
                None
            }
        },
        Err(error) => Some(Err(error)),
    }
}

/// The result of a part; a half that could not be started fails after it.
fn outcome(
    failed: &mut Vec<(u64, EngineError)>,
    part: u64,
    result: Result<HeldMemory, EngineError>,
) -> Result<(), EngineError> {
    let result = result.map(drop);
    let rest = failed.iter().position(|(index, _)| *index == part);
    match rest.map(|at| failed.swap_remove(at)) {
        Some((_, error)) => result.and(Err(error)),
        None => result,
    }
}

/// At the receiver: a fragment was taken out of its place, or is lost; whether that was all. `reads`: another one is
/// being read.
fn taken_out(
    cx: &mut Cx<'_>,
    pipeline: &mut StagingPipeline,
    over: receiver::Over,
    (index, result): (u64, Result<(), EngineError>),
    reads: bool,
) -> bool {
    let freed = pipeline.taken_out(index);
    if over != receiver::Over::No {
        return pipeline.working == 0 && !reads;
    }
    if let Err(error) = result {
        cx.fail(error);
    }
    let complete = pipeline.window.complete();
    if let Some(limit) = freed.filter(|_| !complete) {
        cx.control(&wire::free(cx.rts.serial, limit));
    }
    complete
}
