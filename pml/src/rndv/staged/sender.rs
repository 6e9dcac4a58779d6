//! A staged message at its sender: fragments are put into the ring as places are free.

use super::pipeline::{RingMemory, StagingPipeline};
use super::{follow, lasts, outcome, second_stop};
use crate::buffer::HeldMemory;
use crate::protocol::Protocol;
use crate::rndv::{Cx, Heard, Opened, RndvEnd, RndvStep, undue, unexpected};
use crate::wire::{self, Message, Open, RingOffer, Verdict, Why};
use gapless_engine::EngineError;

/// A staged message at its sender.
#[derive(Debug)]
struct Sender {
    reply: u64,
    pipeline: StagingPipeline,
    /// The receiver was told of the ring, and has not mapped it yet.
    tentative: bool,
    /// It has failed; the request has the error.
    stopped: bool,
    /// The error of a half that could not be started, while parts are in flight.
    failed: Vec<(u64, EngineError)>,
}

impl Sender {
    fn new(reply: u64, pipeline: StagingPipeline, tentative: bool) -> Sender {
        Sender { reply, pipeline, tentative, stopped: false, failed: Vec::new() }
    }
}

/// The receiver has chosen a staged protocol.
pub(super) fn open(cx: &mut Cx<'_>, heard: &Heard<'_>) -> Opened {
    let Message::Open(open) = &heard.message else { return Opened::Broken(undue(&heard.message)) };
    let (bytes, told) = (cx.buffer.bytes(), cx.rts.staged);
    if open.cut.end() > bytes {
        let what = format!("an OPEN for {} bytes of {bytes}", open.cut.end());
        return Opened::Broken(what);
    }
    let offered = match open.protocol {
        Protocol::StagedRead => told.readable,
        protocol => told.through_host && (told.device || protocol.through_host()),
    };
    if !offered {
        return Opened::Broken(format!("an OPEN for {}, which was not offered", open.protocol));
    }
    let mut pipeline = StagingPipeline::new(open.protocol, open.cut, open.depth);
    pipeline.direct = open.direct;
    let Some(key) = &open.key else { return offer_ring(cx, open, pipeline) };
    pipeline.limit = if open.direct { pipeline.total() } else { pipeline.window.reach() };
    let mapping = match cx.link.map(key, cx.buffer.typed().space()) {
        Ok(mapping) => mapping,
        Err(error) => {
            tracing::debug!(peer = cx.peer, protocol = %open.protocol, %error, "what cannot be mapped");
            return refuse(cx, open, if lasts(&error) { Why::Unmappable } else { Why::Exhausted });
        }
    };
    let (there, needed) = (mapping.region().len(), pipeline.reach_bytes());
    if there < needed {
        let what = format!("an OPEN with a key for {there} bytes instead of {needed}");
        return Opened::Broken(what);
    }
    pipeline.ring = Some(RingMemory::Theirs(mapping));
    if open.protocol == Protocol::StagedPutCopy && !second_stop(cx, &mut pipeline) {
        return refuse(cx, open, Why::Exhausted);
    }
    cx.take_keys();
    let mut sender = Sender::new(open.reply, pipeline, false);
    Opened::after(sender.advance(cx), sender)
}

/// This protocol is impossible here; the offer stays valid.
fn refuse(cx: &mut Cx<'_>, open: &Open, why: Why) -> Opened {
    cx.control(&wire::refuse(open.reply, why));
    Opened::Refused("the sender cannot".to_owned())
}

/// Tells the receiver of a ring of ours; it may still choose another protocol.
fn offer_ring(cx: &mut Cx<'_>, open: &Open, mut pipeline: StagingPipeline) -> Opened {
    let space = cx.buffer.typed().space();
    let owner = if open.protocol.through_host() { None } else { cx.link.device(space) };
    if owner.is_none() && !open.protocol.through_host() {
        return refuse(cx, open, Why::Exhausted);
    }
    let ring = cx.stage(owner.as_ref(), pipeline.ring_bytes());
    let key = ring.as_ref().and_then(|ring| match open.protocol {
        Protocol::StagedRead => cx.link.read_key(cx.staging, ring),
        _ => cx.link.lease_key(ring.place().lease()),
    });
    pipeline.ring = ring.map(RingMemory::Own);
    let stops = !open.protocol.copies(space, true) || second_stop(cx, &mut pipeline);
    let unkeyed = key.is_none() && pipeline.ring.is_some();
    if unkeyed && open.protocol == Protocol::StagedRead {
        cx.refusals.refused(space);
    }
    let Some(key) = key.filter(|_| stops) else {
        pipeline.release(cx.staging, false);
        return refuse(cx, open, if unkeyed { Why::NoKey } else { Why::Exhausted });
    };
    let (reply, depth) = (open.reply, pipeline.window.depth());
    cx.control(&RingOffer { reply, depth, key }.wire());
    Opened::going(Sender::new(reply, pipeline, true))
}

impl Sender {
    /// Starts a fragment, if there is room.
    ///
    /// It starts no more than that: a launch takes microseconds, in which the first fragment may have ended, and its
    /// receiver waits for READY. The next is launched after the work in flight has been checked. A processor has
    /// copied a fragment when this returns: its READY leaves before it copies the next.
    fn advance(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        if self.stopped {
            return RndvStep::Going;
        }
        let pipeline = &mut self.pipeline;
        // The receiver cannot start before it has the first, which is short: nothing delays its READY.
        if pipeline.protocol.gets() && pipeline.window.next() == 1 && pipeline.window.in_work() == 1
        {
            return RndvStep::Again;
        }
        let Some(index) = pipeline.next().filter(|next| pipeline.window.begin(*next).is_ok())
        else {
            return RndvStep::Going;
        };
        pipeline.working += 1;
        let protocol = pipeline.protocol;
        let ahead = match pipeline.direct {
            true => u64::from(pipeline.window.in_work()),
            false => {
                (index + 1 + u64::from(pipeline.window.depth())).saturating_sub(pipeline.limit)
            }
        };
        cx.counters.saw_depth(protocol, ahead.min(u64::from(pipeline.window.depth())));
        let step = pipeline.gather(cx.engines, cx.buffer, index, cx.counters.counts_of(protocol));
        let Some(result) = follow(cx, index, &mut self.failed, step) else {
            return RndvStep::Again;
        };
        match self.gathered(cx, index, result) {
            RndvStep::Going => RndvStep::Again,
            ended => ended,
        }
    }

    /// A fragment is in its place, or never will be.
    fn gathered(
        &mut self,
        cx: &mut Cx<'_>,
        index: u64,
        result: Result<(), EngineError>,
    ) -> RndvStep {
        let protocol = self.pipeline.protocol;
        match result {
            Ok(()) => self.pipeline.ended(index),
            Err(error) => {
                self.pipeline.failed();
                self.stopped = true;
                cx.fail(error);
            }
        }
        if self.stopped {
            if self.pipeline.working == 0 {
                self.stop_all(cx);
            }
            return RndvStep::Going;
        }
        cx.control(&wire::ready(self.reply, index));
        // A receiver that takes fragments out of our ring sends FIN at the end.
        if self.pipeline.window.complete() && protocol.puts() {
            self.pipeline.release(cx.staging, false);
            return RndvStep::Done(protocol);
        }
        RndvStep::Going
    }

    /// It has failed, and its engines have ended. FIN ends it, unless the peer is lost.
    fn stop_all(&mut self, cx: &mut Cx<'_>) {
        if cx.state.lost.is_some() {
            self.pipeline.release(cx.staging, false);
        } else {
            cx.control(&wire::abort(self.reply));
        }
    }

    /// The receiver's FIN.
    fn fin(&mut self, cx: &mut Cx<'_>, verdict: Verdict) -> RndvStep {
        let protocol = self.pipeline.protocol;
        let received = verdict == Verdict::Received(protocol) && self.pipeline.window.complete();
        if self.pipeline.working > 0 || !(self.stopped || received) {
            return RndvStep::Broken(format!("{verdict:?} of a staged message in flight"));
        }
        self.pipeline.release(cx.staging, false);
        RndvStep::Done(protocol)
    }

    /// More fragments may be put into the ring.
    fn freed(&mut self, cx: &mut Cx<'_>, limit: u64) -> RndvStep {
        let (now, most) = (self.pipeline.limit, self.pipeline.window.reach());
        if limit <= now || limit > most {
            return RndvStep::Broken(format!("fragments below {limit} freed, of {now} to {most}"));
        }
        if std::mem::take(&mut self.tentative) {
            cx.take_keys();
        }
        self.pipeline.limit = limit;
        self.advance(cx)
    }
}

impl RndvEnd for Sender {
    fn heard(&mut self, cx: &mut Cx<'_>, heard: Heard<'_>) -> RndvStep {
        match heard.message {
            Message::Free { limit, .. } => self.freed(cx, limit),
            Message::Fin { verdict, .. } => self.fin(cx, verdict),
            message => unexpected(&message),
        }
    }

    fn again(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        self.advance(cx)
    }

    fn landed(
        &mut self,
        cx: &mut Cx<'_>,
        part: u64,
        result: Result<HeldMemory, EngineError>,
    ) -> RndvStep {
        let result = outcome(&mut self.failed, part, result);
        match self.gathered(cx, part, result) {
            RndvStep::Going => self.advance(cx),
            ended => ended,
        }
    }

    fn lost(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        self.stopped = true;
        if self.pipeline.working == 0 {
            self.pipeline.release(cx.staging, false);
        }
        RndvStep::Refused("the receiver is lost".to_owned())
    }

    fn is_tentative(&self) -> bool {
        self.tentative
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.pipeline.release(cx.staging, false);
    }
}
