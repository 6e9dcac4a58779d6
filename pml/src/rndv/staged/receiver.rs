//! A staged message at its receiver: fragments are taken out of the ring as they come.

use super::pipeline::{RingMemory, StagingPipeline, Started};
use super::{Obstacle, UNKEYED_MAX, follow, lasts, outcome, second_stop, taken_out};
use crate::buffer::HeldMemory;
use crate::cost::{self, Situation};
use crate::error::PmlError;
use crate::protocol::Protocol;
use crate::rndv::{Cx, Heard, Opened, RndvEnd, RndvStep, unexpected};
use crate::wire::cut::Cut;
use crate::wire::{self, DEPTH_MAX, Message, Open, RingOffer, Verdict, Why};
use gapless_bml::RemoteKey;
use gapless_engine::EngineError;
use gapless_mem::{Region, Space};

/// A staged message at its receiver.
#[derive(Debug)]
struct Receiver {
    pipeline: StagingPipeline,
    /// Fragments may come.
    going: bool,
    over: Over,
    /// The error of a half that could not be started, while parts are in flight.
    failed: Vec<(u64, EngineError)>,
}

/// Whether the sender goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    No,
    /// It has failed, and waits for FIN.
    Aborted,
    Lost,
}

/// Asks the sender for a message by a staged protocol.
pub(super) fn open(cx: &mut Cx<'_>, protocol: Protocol, s: &Situation) -> Opened {
    let Some(staging) = &s.staged else {
        return Opened::Refused("nothing is staged to this peer".to_owned());
    };
    let shape = cost::staged_shape(protocol, s, staging, &cx.config.tuning);
    let Some(cut) = Cut::new(s.bytes, shape) else {
        return Opened::Refused("it cannot be cut into fragments".to_owned());
    };
    let depth = u32::try_from(cut.total()).unwrap_or(DEPTH_MAX).min(staging.depth);
    let pipeline = StagingPipeline::new(protocol, cut, depth);
    let opened = if protocol.puts() { open_put(cx, pipeline) } else { open_get(cx, pipeline) };
    match opened {
        Ok((pipeline, key)) => Opened::going(ask(cx, pipeline, key)),
        Err((why, obstacle)) => Opened::Refused(impossible(cx, protocol, why, obstacle)),
    }
}

/// A pipeline to request of the sender, with the key of a ring if it puts; or why that is impossible.
type Asked = Result<(StagingPipeline, Option<RemoteKey>), (&'static str, Obstacle)>;

/// A ring for the sender, or the buffer itself if it has no gaps and a key.
fn open_put(cx: &mut Cx<'_>, mut pipeline: StagingPipeline) -> Asked {
    let share = cx.config.shares_buffers();
    let (_, room) = cx.receipt();
    let typed = cx.buffer.typed();
    let device = cx.link.device(typed.space());
    let whole = typed.as_contiguous().and_then(|whole| whole.sub(0, room).ok());
    let key = cx.link.start_key(cx.buffer, room, share);
    if let Some((key, whole)) = key.zip(whole) {
        pipeline.direct = true;
        pipeline.limit = pipeline.total();
        pipeline.ring = Some(RingMemory::Buffer(whole));
        return Ok((pipeline, Some(key)));
    }
    let device = device.ok_or(("its device is not attached", Obstacle::Passing))?;
    let block = cx.stage(Some(&device), pipeline.ring_bytes());
    let block = block.ok_or(("staging memory is exhausted", Obstacle::Passing))?;
    pipeline.limit = pipeline.window.reach();
    let key = cx.link.lease_key(block.place().lease());
    if key.is_none() {
        cx.staging.give(block);
        return Err(("staging memory has no key", Obstacle::NoKey));
    }
    pipeline.ring = Some(RingMemory::Own(block));
    Ok((pipeline, key))
}

/// The memory needed here to take fragments out of a ring of the sender's.
fn open_get(cx: &mut Cx<'_>, mut pipeline: StagingPipeline) -> Asked {
    let space = cx.buffer.typed().space();
    if pipeline.protocol.copies(space, false) && !second_stop(cx, &mut pipeline) {
        return Err(("staging memory is exhausted", Obstacle::Passing));
    }
    Ok((pipeline, None))
}

fn ask(cx: &mut Cx<'_>, pipeline: StagingPipeline, key: Option<RemoteKey>) -> Receiver {
    tell_open(cx, &pipeline, key);
    Receiver { pipeline, going: key.is_some(), over: Over::No, failed: Vec::new() }
}

/// Tells the sender of the decision.
pub(super) fn tell_open(cx: &mut Cx<'_>, pipeline: &StagingPipeline, key: Option<RemoteKey>) {
    let (reply, _) = cx.receipt();
    let open = Open {
        protocol: pipeline.protocol,
        serial: cx.rts.serial,
        reply,
        cut: pipeline.cut(),
        depth: pipeline.window.depth(),
        direct: pipeline.direct,
        key,
    };
    cx.control(&open.wire());
}

/// This protocol is impossible; nothing was moved.
pub(super) fn impossible(
    cx: &mut Cx<'_>,
    protocol: Protocol,
    why: &str,
    obstacle: Obstacle,
) -> String {
    let unkeyed = &mut cx.facts.unkeyed[protocol.index()];
    let lasting = match obstacle {
        Obstacle::Passing => false,
        Obstacle::Lasting => true,
        Obstacle::NoKey => {
            *unkeyed = unkeyed.saturating_add(1);
            *unkeyed >= UNKEYED_MAX
        }
    };
    // Its relatives need the same.
    for kin in protocol.kin() {
        if lasting {
            cx.close(*kin, why);
        }
        cx.rule_out(*kin);
    }
    why.to_owned()
}

impl Receiver {
    fn impossible(&mut self, cx: &mut Cx<'_>, why: &str, obstacle: Obstacle) -> RndvStep {
        self.pipeline.release(cx.staging, false);
        RndvStep::Refused(impossible(cx, self.pipeline.protocol, why, obstacle))
    }

    /// The sender has told of its ring.
    fn ring(&mut self, cx: &mut Cx<'_>, ring: &RingOffer) -> RndvStep {
        let pipeline = &mut self.pipeline;
        if self.going || pipeline.protocol.puts() || ring.depth > pipeline.window.depth() {
            let what = format!("a ring of {} places that was not requested", ring.depth);
            return RndvStep::Broken(what);
        }
        pipeline.narrow(ring.depth);
        let (needed, host) = (pipeline.ring_bytes(), pipeline.protocol.through_host());
        // With ramps, fewer places may take more than a place for every fragment.
        if pipeline.local.as_ref().is_some_and(|local| local.place().region().len() < needed) {
            return self.impossible(cx, "a ring of too few places", Obstacle::Passing);
        }
        let user = if host { Space::Host } else { cx.buffer.typed().space() };
        let mapping = match cx.link.map(&ring.key, user) {
            Ok(mapping) => mapping,
            // The sender takes its ring back when it receives the next decision.
            Err(error) => {
                let lasts = lasts(&error);
                let obstacle = if lasts { Obstacle::Lasting } else { Obstacle::Passing };
                return self.impossible(cx, &error.to_string(), obstacle);
            }
        };
        let there = mapping.region().len();
        if there < needed {
            return RndvStep::Broken(format!("a ring of {there} bytes instead of {needed}"));
        }
        pipeline.ring = Some(RingMemory::Theirs(mapping));
        pipeline.limit = pipeline.window.reach();
        self.going = true;
        cx.control(&wire::free(cx.rts.serial, pipeline.limit));
        RndvStep::Going
    }

    /// A fragment is in its place.
    fn ready(&mut self, cx: &mut Cx<'_>, index: u64) -> RndvStep {
        let pipeline = &mut self.pipeline;
        let (protocol, there) = (pipeline.protocol, pipeline.arrives(index));
        match there {
            Ok(there) => cx.counters.saw_depth(protocol, there),
            Err(what) => return RndvStep::Broken(what),
        }
        let step = match cx.is_failed() {
            true => Ok(Started::nothing()),
            false => {
                pipeline.scatter(cx.engines, cx.buffer, index, cx.counters.counts_of(protocol))
            }
        };
        match follow(cx, index, &mut self.failed, step) {
            Some(result) => self.taken_out(cx, index, result),
            None => RndvStep::Going,
        }
    }

    /// A fragment was taken out of its place, or lost there.
    fn taken_out(
        &mut self,
        cx: &mut Cx<'_>,
        index: u64,
        result: Result<(), EngineError>,
    ) -> RndvStep {
        match taken_out(cx, &mut self.pipeline, self.over, (index, result), false) {
            true => self.end(cx),
            false => RndvStep::Going,
        }
    }

    /// No engine works on it any more, and nothing more comes.
    fn end(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        let protocol = self.pipeline.protocol;
        let verdict = match self.over {
            Over::Lost => {
                self.let_go(cx);
                return RndvStep::Going;
            }
            Over::Aborted => Some(Verdict::Refused),
            Over::No => (!protocol.puts()).then_some(Verdict::Received(protocol)),
        };
        cx.facts.unkeyed[protocol.index()] = 0;
        self.pipeline.release(cx.staging, false);
        if let Some(verdict) = verdict {
            cx.control(&wire::fin(cx.rts.serial, verdict));
        }
        RndvStep::Done(protocol)
    }

    /// The sender is lost, and no engine of ours works any more. Memory that the sender may still write is kept until
    /// it cannot.
    fn let_go(&mut self, cx: &mut Cx<'_>) {
        if self.granted().is_none() {
            let late = self.pipeline.protocol.puts();
            self.pipeline.release(cx.staging, late);
        }
    }

    /// The sender cannot carry out the decision.
    fn refused(&mut self, cx: &mut Cx<'_>, why: Why) -> RndvStep {
        let pipeline = &self.pipeline;
        if !pipeline.window.is_fresh() || (self.going && !pipeline.protocol.puts()) {
            return RndvStep::Broken("a protocol that was refused after it had started".to_owned());
        }
        let text = match why {
            Why::Exhausted => "the sender has no memory for it now",
            Why::NoKey => "the sender's memory has no key",
            Why::Unmappable => "the sender cannot map the memory",
        };
        self.impossible(cx, text, why.into())
    }

    /// The sender has failed.
    fn aborted(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        self.over = Over::Aborted;
        *cx.failure = Some(PmlError::SenderFailed { rank: cx.peer });
        if self.pipeline.working == 0 { self.end(cx) } else { RndvStep::Going }
    }
}

impl RndvEnd for Receiver {
    fn heard(&mut self, cx: &mut Cx<'_>, heard: Heard<'_>) -> RndvStep {
        match heard.message {
            Message::Ring(ring) => self.ring(cx, &ring),
            Message::Ready { index, .. } => self.ready(cx, index),
            Message::Refuse { why, .. } => self.refused(cx, why),
            Message::Abort { .. } if self.going && self.over == Over::No => self.aborted(cx),
            message => unexpected(&message),
        }
    }

    fn landed(
        &mut self,
        cx: &mut Cx<'_>,
        part: u64,
        result: Result<HeldMemory, EngineError>,
    ) -> RndvStep {
        let result = outcome(&mut self.failed, part, result);
        self.taken_out(cx, part, result)
    }

    fn lost(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        self.over = Over::Lost;
        if self.pipeline.working == 0 {
            self.let_go(cx);
        }
        RndvStep::Refused("the sender is lost".to_owned())
    }

    fn granted(&self) -> Option<Region> {
        match self.pipeline.ring {
            Some(RingMemory::Buffer(region)) => Some(region),
            _ => None,
        }
    }
}
