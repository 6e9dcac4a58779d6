//! The pipeline: packed fragments through the transport's slots, two copies, both ends busy. Where runs are long, and the
//! transport does that, fragments leave from the sender's buffer, and are read into the receiver's: no copy.
//!
//! ```text
//! sender                                   receiver
//!   | <--- CTS(0..end, fragment, depth) ---- | decides sizes within both ends' wishes
//!   | DATA(offset) ------------------------> | unpacked from the slot, in any order
//!   | DATA(offset) ------------------------> |
//!   | complete: all has been packed          | complete: all has been unpacked
//! ```
//!
//! The sender packs straight into slots as they become free, `fragments_per_progress` at a time, at
//! most `depth` of them with an asynchronous engine. If its engine fails, ABORT tells the receiver.
//! A part is named by its offset.

mod gathered;
mod landing;

use super::{
    Cx, Heard, Opened, ProtocolKind, RndvEnd, RndvStep, RndvTarget, SendTurn, undue, unexpected,
};
use crate::arrival::Body;
use crate::buffer::{HeldMemory, Transfer};
use crate::cost::{Model, Situation, device_fragment, wished_fragment};
use crate::error::PmlError;
use crate::protocol::Protocol;
use crate::rndv::pieces::Pieces;
use crate::wire::to_usize;
use crate::wire::{self, Cts, DATA_BYTES, Message};
use gapless_bml::ZeroCopyResult;
use gapless_engine::EngineError;
use gathered::Gathered;
use landing::Landing;
use std::ops::Range;

pub(super) const KIND: ProtocolKind = ProtocolKind {
    cost: |model, _| model.by_ends(Model::pipeline, Model::device_pipeline),
    open_recv,
    opens: |message| matches!(message, Message::Cts(_)),
    open_send,
    ..ProtocolKind::NONE
};

/// Asks the sender for everything.
fn open_recv(cx: &mut Cx<'_>, _: Protocol, situation: &Situation) -> Opened {
    let (reply, room) = cx.receipt();
    let tuning = &cx.config.tuning;
    let typed = cx.buffer.typed();
    let gapless = cx.rts.blocks == 1 && typed.as_contiguous().is_some();
    let wish = match situation.devices {
        None => wished_fragment(tuning, room, gapless, situation.latency_ns),
        Some(_) => device_fragment(situation, tuning),
    };
    let fits = u32::try_from(cx.link.fragment_max().saturating_sub(DATA_BYTES)).unwrap_or(u32::MAX);
    let fragment = cx.rts.fragment.min(wish).min(fits).max(wire::FRAGMENT_MIN);
    let cts = Cts {
        serial: cx.rts.serial,
        reply,
        offset: 0,
        end: room,
        fragment,
        depth: cx.rts.depth.min(tuning.depth).max(1),
    };
    cx.control(&cts.wire());
    let pieces = Pieces::new(0, room, u64::from(fragment));
    let ring = gathered::ring(cx, room, fragment.into());
    let landing = ring.map(|ring| Landing::new(ring, fragment.into(), room));
    let receiver = Receiver { pieces, landing, unpacking: 0, over: false };
    Opened::going(receiver)
}

/// The receiver asks for data.
fn open_send(cx: &mut Cx<'_>, heard: &Heard<'_>) -> Opened {
    let Message::Cts(cts) = &heard.message else { return Opened::Broken(undue(&heard.message)) };
    let fits = cx.link.fragment_max().saturating_sub(DATA_BYTES) as u64;
    let bytes = cx.buffer.bytes();
    if cts.end > bytes || u64::from(cts.fragment) > fits {
        let what = format!(
            "a CTS for bytes up to {} of {bytes}, in fragments of {} (at most {fits})",
            cts.end, cts.fragment
        );
        return Opened::Broken(what);
    }
    cx.take_keys();
    cx.stream();
    let Cts { reply, offset, end, fragment, depth, .. } = *cts;
    let gathered = Gathered::new(cx, offset..end, fragment);
    let next = offset;
    let sender = Sender { reply, next, end, fragment, depth, gathered, packing: 0, stopped: false };
    Opened::going(sender)
}

/// The end that packs.
#[derive(Debug)]
struct Sender {
    reply: u64,
    next: u64,
    end: u64,
    fragment: u32,
    depth: u32,
    /// Of a device over a transport that has zero-copy sends: what is packed, many fragments at a time.
    gathered: Option<Gathered>,
    /// Fragments that engines pack, or packets of a ring.
    packing: u32,
    /// No more is sent.
    stopped: bool,
}

impl Sender {
    /// The engine has failed: tells the receiver. The send ends once no engine reads its buffer any more.
    fn stop(&mut self, cx: &mut Cx<'_>, error: EngineError) {
        if !self.stopped {
            self.stopped = true;
            cx.fail(error);
            cx.control(&wire::abort(self.reply));
        }
    }

    fn is_done(&self) -> bool {
        self.packing == 0 && (self.stopped || self.next >= self.end)
    }

    /// After a fragment, or a failure.
    fn turned(&self) -> SendTurn {
        match (self.is_done(), self.stopped) {
            (true, _) => SendTurn::Done(Protocol::Pipeline),
            (false, true) => SendTurn::Over,
            (false, false) => SendTurn::Sent,
        }
    }

    /// Has more of the buffer packed.
    fn pack(&mut self, cx: &mut Cx<'_>) {
        if let Some(gathered) = &mut self.gathered {
            match gathered.pack(cx) {
                Ok(going) => self.packing += going,
                Err(error) => self.stop(cx, error),
            }
        }
    }

    /// Sends the next fragment out of a ring, if it is packed.
    fn send_gathered(&mut self, cx: &mut Cx<'_>, range: Range<u64>) -> SendTurn {
        self.pack(cx);
        let Some(gathered) = self.gathered.as_mut().filter(|_| !self.stopped) else {
            return self.turned();
        };
        let Some((packed, part)) = gathered.next(&range) else { return SendTurn::Busy };
        let head = wire::data(self.reply, range.start);
        let copied = match cx.link.send_packed_zero_copy(packed, &head, part) {
            Ok(ZeroCopyResult::Sent) => Ok(()),
            Ok(ZeroCopyResult::Full) => return SendTurn::Full,
            // The socket takes nothing now, or the link has changed: a slot waits for it.
            Ok(ZeroCopyResult::Never) => {
                let len = to_usize(range.end - range.start);
                let Some(mut slot) = cx.reserve(DATA_BYTES + len) else { return SendTurn::Full };
                let written = slot.write(0, &head).map_err(EngineError::from);
                let copied = written.and_then(|()| packed.copy_to(&mut slot, DATA_BYTES, part));
                copied.map(|()| cx.link.send(slot))
            }
            Err(error) => Err(error.into()),
        };
        match copied {
            Ok(()) => {
                cx.counters.counts_of(Protocol::Pipeline).fragments += 1;
                self.next = range.end;
                gathered.left(range.end);
            }
            Err(error) => self.stop(cx, error),
        }
        self.turned()
    }
}

impl RndvEnd for Sender {
    fn heard(&mut self, _: &mut Cx<'_>, heard: Heard<'_>) -> RndvStep {
        unexpected(&heard.message)
    }

    /// Sends the next fragment.
    fn turn(&mut self, cx: &mut Cx<'_>) -> SendTurn {
        if self.stopped || self.next >= self.end {
            // The rest is with an engine; `landed` ends the request.
            return SendTurn::Over;
        }
        let start = self.next;
        let end = self.end.min(start.saturating_add(u64::from(self.fragment)));
        if self.gathered.is_some() {
            return self.send_gathered(cx, start..end);
        }
        if self.packing >= self.depth {
            return SendTurn::Busy;
        }
        match cx.send_zero_copy(&wire::data(self.reply, start), start..end) {
            ZeroCopyResult::Sent => {
                cx.counters.counts_of(Protocol::Pipeline).fragments += 1;
                self.next = end;
                return if self.is_done() {
                    SendTurn::Done(Protocol::Pipeline)
                } else {
                    SendTurn::Sent
                };
            }
            ZeroCopyResult::Full => return SendTurn::Full,
            ZeroCopyResult::Never => {}
        }
        let Some(mut slot) = cx.reserve(DATA_BYTES + to_usize(end - start)) else {
            return SendTurn::Full;
        };
        let packed = slot
            .write(0, &wire::data(self.reply, start))
            .map_err(EngineError::from)
            .and_then(|()| cx.buffer.pack(cx.engines, start..end, slot, DATA_BYTES));
        let counts = cx.counters.counts_of(Protocol::Pipeline);
        (counts.fragments, counts.packs) = (counts.fragments + 1, counts.packs + 1);
        match packed.map(Transfer::now) {
            Ok(Ok(slot)) => {
                self.next = end;
                cx.link.send(slot);
            }
            Ok(Err(packing)) => {
                self.next = end;
                self.packing += 1;
                cx.follow(start, packing);
            }
            Err(error) => self.stop(cx, error),
        }
        self.turned()
    }

    /// An engine has packed a fragment or a packet of a ring, or failed to.
    fn landed(
        &mut self,
        cx: &mut Cx<'_>,
        part: u64,
        result: Result<HeldMemory, EngineError>,
    ) -> RndvStep {
        self.packing -= 1;
        match result {
            Ok(HeldMemory::Slot(slot)) if !self.stopped => cx.link.send(slot),
            Ok(HeldMemory::Staging(staging)) => {
                if let Some(gathered) = &mut self.gathered {
                    gathered.packed(part, staging);
                }
            }
            Ok(_) => {}
            Err(error) => self.stop(cx, error),
        }
        if self.is_done() {
            return RndvStep::Done(Protocol::Pipeline);
        }
        cx.activate();
        RndvStep::Going
    }

    fn lost(&mut self, _: &mut Cx<'_>) -> RndvStep {
        self.stopped = true;
        RndvStep::Refused("the receiver is lost".to_owned())
    }
}

/// The end that unpacks.
#[derive(Debug)]
struct Receiver {
    pieces: Pieces,
    /// Of a device over a transport that has zero-copy sends: where fragments are read to.
    landing: Option<Landing>,
    /// Fragments that engines unpack, or runs of them.
    unpacking: u32,
    /// No more comes: the sender has failed, or is lost.
    over: bool,
}

impl Receiver {
    fn step(&self) -> RndvStep {
        let unpacked = self.landing.as_ref().is_none_or(Landing::is_empty);
        match self.unpacking == 0 && (self.over || (self.pieces.complete() && unpacked)) {
            true => RndvStep::Done(Protocol::Pipeline),
            false => RndvStep::Going,
        }
    }

    /// Has what has landed unpacked.
    fn unpack_landed(&mut self, cx: &mut Cx<'_>) {
        let Some(landing) = &mut self.landing else { return };
        if self.over || cx.is_failed() {
            return landing.forget();
        }
        match landing.unpack(cx) {
            Ok(going) => self.unpacking += u32::from(going),
            Err(error) => cx.fail(error),
        }
    }
}

impl RndvEnd for Receiver {
    fn heard(&mut self, cx: &mut Cx<'_>, heard: Heard<'_>) -> RndvStep {
        let fragment = heard.fragment;
        let offset = match heard.message {
            Message::Data { offset, .. } => offset,
            Message::Abort { .. } if !self.over => {
                self.over = true;
                if let Some(landing) = &mut self.landing {
                    landing.forget();
                }
                *cx.failure = Some(PmlError::SenderFailed { rank: cx.peer });
                return self.step();
            }
            message => return unexpected(&message),
        };
        let len = (fragment.len() - DATA_BYTES) as u64;
        if let Err(what) = self.pieces.take(offset, len) {
            return RndvStep::Broken(what);
        }
        if let Some(landing) = &mut self.landing {
            landing.passed(offset);
        }
        self.unpack_landed(cx);
        if !cx.is_failed() {
            let counts = cx.counters.counts_of(Protocol::Pipeline);
            (counts.fragments, counts.unpacks) = (counts.fragments + 1, counts.unpacks + 1);
            let (body, range) = (Body::Parked(fragment), offset..offset + len);
            let unpacked = cx.buffer.unpack(cx.engines, body, DATA_BYTES as u64, range);
            match unpacked.map(Transfer::now) {
                Ok(Ok(_)) => {}
                Ok(Err(unpacking)) => {
                    self.unpacking += 1;
                    cx.follow(offset, unpacking);
                }
                Err(error) => cx.fail(error),
            }
        }
        self.step()
    }

    fn receive_target(&mut self, offset: u64, len: u64) -> RndvTarget<'_> {
        if self.over || self.pieces.lacks(offset, len).is_err() {
            return RndvTarget::Nowhere;
        }
        match &mut self.landing {
            Some(landing) => landing.receive_target(offset, len),
            None => RndvTarget::Buffer,
        }
    }

    fn target_filled(&mut self, offset: u64, len: u64) -> RndvStep {
        let landed = self.landing.as_mut().map_or(Ok(()), |landing| landing.landed(offset, len));
        if let Err(what) = landed.and_then(|()| self.pieces.take(offset, len)) {
            return RndvStep::Broken(what);
        }
        if let Some(landing) = &self.landing
            && (landing.is_due() || self.pieces.complete())
        {
            return RndvStep::Again;
        }
        self.step()
    }

    fn again(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        self.unpack_landed(cx);
        self.step()
    }

    /// An engine has unpacked a fragment or a run, or failed to.
    fn landed(
        &mut self,
        cx: &mut Cx<'_>,
        part: u64,
        result: Result<HeldMemory, EngineError>,
    ) -> RndvStep {
        self.unpacking -= 1;
        if let Some(landing) = &mut self.landing {
            landing.ended(part);
        }
        if let Err(error) = result
            && !self.over
        {
            cx.fail(error);
        }
        self.step()
    }

    fn lost(&mut self, _: &mut Cx<'_>) -> RndvStep {
        self.over = true;
        if let Some(landing) = &mut self.landing {
            landing.forget();
        }
        RndvStep::Refused("the sender is lost".to_owned())
    }
}
