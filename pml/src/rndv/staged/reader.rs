//! Staged read: the sender packs into memory of its device that the receiver's adapter reads (GPUDirect), fragment by
//! fragment. Nothing is mapped, so it works between hosts.
//!
//! ```text
//! sender                       receiver
//!   | RTS(offer) ---------------> | choose
//!   | <-------------------- OPEN  |
//!   | its ring, registered        |
//!   | RING(key) ----------------> | read a few bytes: do both adapters and devices go along with it?
//!   | <------------ FREE(depth) - |
//!   | pack 0, READY(0) ---------> | read 0, unpack it
//!   | pack 1, READY(1) ---------> | read 1, unpack it
//!   | <---------------- FREE(n) - |
//!   | <-------------------- FIN - | all unpacked
//! ```
//!
//! The sender is that of the other staged protocols. One fragment is read at a time, while others are packed and unpacked.
//! A buffer without gaps is read into where it is; for one with gaps, fragments lie in staging memory of the receiver's
//! device first. Slabs of staging memory are registered once, and stay so.
//!
//! The read of a few bytes comes before the sender packs anything: until FREE, the receiver may choose another protocol. A
//! read that is refused later is tried again; the receive fails if that does not help.

use super::pipeline::StagingPipeline;
use super::receiver::Over;
use super::{Obstacle, follow, outcome, receiver, taken_out};
use crate::buffer::HeldMemory;
use crate::cost::{self, Situation};
use crate::error::PmlError;
use crate::protocol::Protocol;
use crate::rndv::gpudirect::is_refusal;
use crate::rndv::{Cx, Heard, Opened, RndvEnd, RndvStep, unexpected};
use crate::wire::cut::Cut;
use crate::wire::{self, DEPTH_MAX, Message, RingOffer, Verdict};
use gapless_bml::{Extent, RdmaError, RemoteKey, Token, TokenSpace};
use gapless_engine::EngineError;
use gapless_mem::DeviceError;
use std::collections::VecDeque;

/// The part that the transport's operation is; the work on fragment `i` is part `i + 1`.
const READ: u64 = 0;
/// How often a fragment's read is tried that is refused, at steps of progress in turn.
const TRIES: u32 = 100;
/// Bytes that are read before anything is packed, at most.
const PROBE: u64 = 64;

/// What is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// The first bytes of the ring, whatever they are.
    Probe,
    Fragment(u64),
}

/// A message at its receiver.
#[derive(Debug)]
struct Reader {
    pipeline: StagingPipeline,
    /// The key of the sender's ring, once it has told that.
    ring: Option<RemoteKey>,
    /// Fragments may come.
    going: bool,
    over: Over,
    /// Fragments that are there, and are to be read.
    waiting: VecDeque<u64>,
    reading: Option<Reading>,
    /// How often it was refused.
    refused: u32,
    /// The error of a half that could not be started, while parts are in flight.
    failed: Vec<(u64, EngineError)>,
}

/// Asks the sender to pack.
pub(super) fn open(cx: &mut Cx<'_>, _: Protocol, s: &Situation) -> Opened {
    let told = cx.rts.staged;
    let shape = cost::read_shape(s, told.fragment, &cx.config.tuning);
    let Some(cut) = Cut::new(s.bytes, shape) else {
        return Opened::Refused("it cannot be cut into fragments".to_owned());
    };
    let wished = told.depth.min(cx.config.tuning.staged_depth).clamp(1, DEPTH_MAX);
    let depth = u32::try_from(cut.total()).unwrap_or(DEPTH_MAX).min(wished);
    let mut pipeline = StagingPipeline::new(Protocol::StagedRead, cut, depth);
    if cx.buffer.typed().as_contiguous().is_none() {
        let Some(device) = cx.link.device(cx.buffer.typed().space()) else {
            return Opened::Refused("its device is not attached".to_owned());
        };
        pipeline.local = cx.stage(Some(&device), pipeline.ring_bytes());
        if pipeline.local.is_none() {
            let (why, passing) = ("staging memory is exhausted", Obstacle::Passing);
            return Opened::Refused(receiver::impossible(cx, pipeline.protocol, why, passing));
        }
    }
    receiver::tell_open(cx, &pipeline, None);
    Opened::going(Reader {
        pipeline,
        ring: None,
        going: false,
        over: Over::No,
        waiting: VecDeque::new(),
        reading: None,
        refused: 0,
        failed: Vec::new(),
    })
}

impl Reader {
    /// The sender has told of its ring.
    fn ring(&mut self, cx: &mut Cx<'_>, ring: &RingOffer) -> RndvStep {
        if self.ring.is_some() || ring.depth > self.pipeline.window.depth() {
            let what = format!("a ring of {} places that was not requested", ring.depth);
            return RndvStep::Broken(what);
        }
        self.pipeline.narrow(ring.depth);
        self.ring = Some(ring.key);
        self.reading = Some(Reading::Probe);
        self.read(cx)
    }

    /// Starts to read what is due.
    fn read(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        let Some(reading) = self.reading else { return RndvStep::Going };
        match self.try_read(cx, reading) {
            Ok(()) => {
                self.refused = 0;
                RndvStep::Going
            }
            Err(RdmaError::Full) => RndvStep::Again,
            // It went well before: a lack of something, perhaps, that passes.
            Err(error)
                if is_refusal(&error) && reading != Reading::Probe && self.refused < TRIES =>
            {
                self.refused += 1;
                RndvStep::Again
            }
            Err(error) => {
                if reading == Reading::Probe {
                    cx.refusals.not_started(cx.buffer.typed().space(), &error);
                }
                self.not_read(cx, &error.to_string())
            }
        }
    }

    fn try_read(&self, cx: &mut Cx<'_>, reading: Reading) -> Result<(), RdmaError> {
        let unavailable = |reason: &str| RdmaError::Unavailable { reason: reason.to_owned() };
        let (reply, _) = cx.receipt();
        let token: Token =
            TokenSpace::REST.token(reply).ok_or_else(|| unavailable("2^56 receives"))?;
        let key = self.ring.ok_or_else(|| unavailable("no ring"))?;
        let (index, most) = match reading {
            Reading::Probe => (0, PROBE),
            Reading::Fragment(index) => (index, u64::MAX),
        };
        let range = self.pipeline.cut().range(index);
        let len = (range.end - range.start).min(most);
        let from = [Extent { offset: self.pipeline.start_of(index), len }];
        if self.pipeline.local.is_some() {
            let place = self.pipeline.local_place(index).and_then(|it| Ok(it.sub(0, len)?));
            let place = place.map_err(|error| unavailable(&error.to_string()))?;
            return cx.link.get_into(&place, (&key, &from), token, cx.read);
        }
        cx.scratch.get(&mut cx.link, cx.buffer, (range.start, len), (&key, &from), token, cx.read)
    }

    /// What is due cannot be read.
    fn not_read(&mut self, cx: &mut Cx<'_>, why: &str) -> RndvStep {
        match self.reading.take() {
            Some(Reading::Fragment(index)) => {
                let failed = DeviceError::Failed {
                    device: "the transport".to_owned(),
                    operation: "get",
                    reason: why.to_owned(),
                };
                let step = self.taken_out(cx, index, Err(failed.into()));
                self.after(cx, step)
            }
            // The sender takes its ring back when it receives the next decision.
            _ => self.impossible(cx, why, Obstacle::Passing),
        }
    }

    /// Nothing was moved; another protocol is chosen.
    fn impossible(&mut self, cx: &mut Cx<'_>, why: &str, obstacle: Obstacle) -> RndvStep {
        self.pipeline.release(cx.staging, false);
        RndvStep::Refused(receiver::impossible(cx, self.pipeline.protocol, why, obstacle))
    }

    /// A fragment is in the ring.
    fn ready(&mut self, cx: &mut Cx<'_>, index: u64) -> RndvStep {
        match self.pipeline.arrives(index) {
            Ok(there) => cx.counters.saw_depth(self.pipeline.protocol, there),
            Err(what) => return RndvStep::Broken(what),
        }
        self.waiting.push_back(index);
        self.next(cx)
    }

    /// Reads the next fragment, if there is one and nothing else is being read.
    fn next(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        while self.reading.is_none()
            && let Some(index) = self.waiting.pop_front()
        {
            // After a failure, fragments are taken as they come, and dropped.
            if cx.is_failed() {
                match self.taken_out(cx, index, Ok(())) {
                    RndvStep::Going => continue,
                    ended => return ended,
                }
            }
            self.reading = Some(Reading::Fragment(index));
            return self.read(cx);
        }
        RndvStep::Going
    }

    /// A fragment was taken out: what waits is read next. After a failure it is dropped instead, by one call of `next`.
    fn after(&mut self, cx: &mut Cx<'_>, step: RndvStep) -> RndvStep {
        match step {
            RndvStep::Going => self.next(cx),
            ended => ended,
        }
    }

    /// A read has ended.
    fn was_read(&mut self, cx: &mut Cx<'_>, result: Result<HeldMemory, EngineError>) -> RndvStep {
        let reading = self.reading.take();
        if self.over == Over::Lost {
            if let Some(Reading::Fragment(index)) = reading {
                self.pipeline.ended(index);
            }
            self.let_go(cx);
            return RndvStep::Going;
        }
        let index = match (reading, result) {
            (Some(Reading::Fragment(index)), Err(error)) => {
                let step = self.taken_out(cx, index, Err(error));
                return self.after(cx, step);
            }
            (Some(Reading::Fragment(index)), Ok(_)) => index,
            (_, Err(error)) => return self.impossible(cx, &error.to_string(), Obstacle::Passing),
            (_, Ok(_)) => {
                cx.refusals.taken(cx.buffer.typed().space());
                self.going = true;
                self.pipeline.limit = self.pipeline.window.reach();
                cx.control(&wire::free(cx.rts.serial, self.pipeline.limit));
                return RndvStep::Going;
            }
        };
        let is_failed = cx.is_failed();
        let counts = cx.counters.counts_of(self.pipeline.protocol);
        let range = self.pipeline.cut().range(index);
        counts.fragments += 1;
        let unpacked = if self.pipeline.local.is_some() && !is_failed {
            counts.staged_bytes += range.end - range.start;
            counts.unpacks += 1;
            let step = self.pipeline.unpack_local(cx.engines, cx.buffer, index);
            follow(cx, index + 1, &mut self.failed, step)
        } else {
            Some(Ok(()))
        };
        // The next is read while this one is unpacked.
        let step = unpacked.map_or(RndvStep::Going, |result| self.taken_out(cx, index, result));
        self.after(cx, step)
    }

    /// A fragment was taken out, or is lost.
    fn taken_out(
        &mut self,
        cx: &mut Cx<'_>,
        index: u64,
        result: Result<(), EngineError>,
    ) -> RndvStep {
        let reads = self.reading.is_some();
        match taken_out(cx, &mut self.pipeline, self.over, (index, result), reads) {
            true => self.end(cx),
            false => RndvStep::Going,
        }
    }

    /// Whether nobody works on it.
    fn is_idle(&self) -> bool {
        self.reading.is_none() && self.pipeline.working == 0
    }

    /// Nothing more comes.
    fn end(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        let protocol = self.pipeline.protocol;
        let verdict = match self.over {
            Over::Lost => {
                self.let_go(cx);
                return RndvStep::Going;
            }
            Over::Aborted => Verdict::Refused,
            Over::No => Verdict::Received(protocol),
        };
        cx.facts.unkeyed[protocol.index()] = 0;
        self.pipeline.release(cx.staging, false);
        cx.control(&wire::fin(cx.rts.serial, verdict));
        RndvStep::Done(protocol)
    }

    /// The sender is lost.
    fn let_go(&mut self, cx: &mut Cx<'_>) {
        if self.is_idle() {
            self.pipeline.release(cx.staging, false);
        }
    }

    /// Fragments that are not read any more.
    fn drop_waiting(&mut self) {
        for index in self.waiting.drain(..) {
            self.pipeline.ended(index);
        }
    }
}

impl RndvEnd for Reader {
    fn heard(&mut self, cx: &mut Cx<'_>, heard: Heard<'_>) -> RndvStep {
        match heard.message {
            Message::Ring(ring) => self.ring(cx, &ring),
            Message::Ready { index, .. } => self.ready(cx, index),
            Message::Refuse { why, .. } if self.ring.is_none() => {
                self.impossible(cx, "the sender has no such memory", why.into())
            }
            Message::Abort { .. } if self.going && self.over == Over::No => {
                self.over = Over::Aborted;
                *cx.failure = Some(PmlError::SenderFailed { rank: cx.peer });
                self.drop_waiting();
                if self.is_idle() { self.end(cx) } else { RndvStep::Going }
            }
            message => unexpected(&message),
        }
    }

    /// The transport has room again, perhaps.
    fn again(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        if cx.read.is_under_way() { RndvStep::Going } else { self.read(cx) }
    }

    fn landed(
        &mut self,
        cx: &mut Cx<'_>,
        part: u64,
        result: Result<HeldMemory, EngineError>,
    ) -> RndvStep {
        if part == READ {
            return self.was_read(cx, result);
        }
        let result = outcome(&mut self.failed, part, result);
        let step = self.taken_out(cx, part - 1, result);
        self.after(cx, step)
    }

    fn lost(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        self.over = Over::Lost;
        self.drop_waiting();
        // What the transport has not taken yet is not read any more.
        if !cx.read.is_under_way()
            && let Some(Reading::Fragment(index)) = self.reading.take()
        {
            self.pipeline.ended(index);
        }
        self.let_go(cx);
        RndvStep::Refused("the sender is lost".to_owned())
    }
}
