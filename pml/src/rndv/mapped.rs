//! Mapped: the receiver maps the sender's memory and moves from layout to layout with one copy.
//!
//! ```text
//! sender                          receiver
//!   | RTS(mapped key, layout) ---> | map, Engine::transfer
//!   | <-------------------- FIN -- | complete
//!   | complete                     |
//! ```
//!
//! The key stands for the bytes that the sender's buffer touches. Its layout was checked to touch
//! just these before anything is read.

use super::staged::{lasts, map_peer};
use super::{Cx, Heard, Kind, Opened, Rendezvous, Step, unexpected};
use crate::choose::{Excluded, Model, Situation};
use crate::rndv::protocol::Protocol;
use crate::rndv::staging::device_of;
use gapless_bml::Mapping;
use gapless_dtype::Layout;
use gapless_engine::{EngineError, Typed};
use gapless_mem::{Completion, Region, Space};

pub(super) const KIND: Kind = Kind {
    name: "mapped",
    wire: 3,
    wants_layout: true,
    exclude,
    cost: |s, tuning| match &s.devices {
        None => Model::new(s, tuning).mapped(),
        Some(ends) => Model::new(s, tuning).direct(ends),
    },
    // Memory of the host can be mapped although that of devices cannot.
    stays_closed: |s| s.devices.is_some(),
    open_recv,
    ..Kind::NONE
};

fn exclude(s: &Situation, _: &crate::tuning::Tuning) -> Option<Excluded> {
    if !s.mapped {
        return Some(Excluded::NotMappable);
    }
    // Its own device would have to do it, and a copy down is as quick.
    if s.devices.is_some_and(|ends| ends.sender && !ends.receiver) {
        return Some(Excluded::DeviceMemory);
    }
    (s.layout_fetch_bytes > s.layout_fetch_max).then_some(Excluded::LayoutTooLong)
}

/// What the other end says about its buffer.
#[derive(Clone, Copy)]
pub(super) struct Far<'a> {
    /// The bytes it touches, relative to displacement 0.
    pub(super) low: i64,
    pub(super) span: u64,
    /// Instances of the layout.
    pub(super) count: u64,
    /// `None` if it has no gaps. A layout was checked to touch just these bytes.
    pub(super) layout: Option<&'a Layout>,
}

/// The other end's buffer, as it lies in a mapping of what it touches.
pub(super) fn remote(far: Far<'_>, mapping: &Mapping) -> Result<Typed, String> {
    let Far { low, span, count, layout } = far;
    let mapped = mapping.region();
    if mapped.len() < span {
        return Err(format!("a key for {} bytes of a buffer that spans {span}", mapped.len()));
    }
    let Some(layout) = layout else {
        let whole = mapped.sub(0, span).map_err(|error| error.to_string())?;
        return Ok(Typed::contiguous(whole));
    };
    // The mapping starts at displacement `low`. If that is after displacement 0, the region below starts before the
    // mapping: only bytes from `low` on are touched, as `check_layout` found.
    let (region, origin) = match u64::try_from(low) {
        Ok(before) => {
            let start = mapped.address().wrapping_sub(before);
            (Region::new(mapped.space(), start, mapped.offset(), before + span), 0)
        }
        Err(_) => (mapped, low.unsigned_abs()),
    };
    Typed::new(region, origin, layout, count).map_err(|error| error.to_string())
}

/// Maps the memory of an offer. An error says whether other messages would fail, too.
fn start(cx: &mut Cx<'_>) -> Result<(Mapping, Typed), (String, bool)> {
    let once = |why: String| (why, false);
    let rts = cx.rts;
    let key = rts.mapped.as_ref().ok_or_else(|| once("no key".to_owned()))?;
    let mapping = map_peer(cx.bml, cx.peer, key, cx.buffer.typed().space());
    let mapping = mapping.map_err(|error| (error.to_string(), lasts(&error)))?;
    let layout = match rts.blocks == 1 {
        true => None,
        false => {
            let known = cx.at_receiver.as_ref().and_then(|at| at.layout);
            Some(known.ok_or_else(|| once("an unknown layout".to_owned()))?)
        }
    };
    let far = Far { low: rts.low, span: rts.span, count: rts.count, layout };
    let remote = remote(far, &mapping).map_err(once)?;
    Ok((mapping, remote))
}

/// Moves the data out of the sender's memory.
fn open_recv(cx: &mut Cx<'_>, _: &Situation) -> Opened {
    let (_, room) = cx.receipt();
    let (mapping, remote) = match start(cx) {
        Ok(started) => started,
        Err((why, lasts)) => {
            if lasts && !cx.rts.host {
                cx.close(Protocol::Mapped, &why);
            }
            return (None, Step::Refused(why));
        }
    };
    // Neither side has gaps, and a copy engine is quicker than a kernel. For host memory that its device does not
    // know, it would need a detour.
    let least = cx.config.tuning.copy_bytes_min;
    let known = mapping.region().space() != Space::Host;
    let typed = cx.buffer.typed();
    let copier = device_of(cx.bml, typed.space()).filter(|_| known && room >= least);
    let sides = typed.as_contiguous().zip(remote.as_contiguous());
    let moved = match (copier, sides) {
        (Some(copier), Some((into, from))) => cx.buffer.copy_mapped(&copier, (into, from), room),
        _ => cx.buffer.fetch_mapped(cx.engines, &mapping, &remote, 0..room),
    };
    match moved {
        Ok(Completion::Ready) => {
            cx.received(Protocol::Mapped);
            (None, Step::Done(Protocol::Mapped))
        }
        Ok(completion) => {
            cx.follow(0, completion);
            let moving = Moving { way: Protocol::Mapped, _mapping: Some(mapping) };
            (Some(Box::new(moving)), Step::Going)
        }
        Err(error) => (None, Step::Refused(error.to_string())),
    }
}

/// An engine moves the whole message.
#[derive(Debug)]
pub(super) struct Moving {
    way: Protocol,
    /// The memory that it reads, kept until it has ended.
    _mapping: Option<Mapping>,
}

impl Moving {
    /// Out of a buffer of this process.
    pub(super) fn here(way: Protocol) -> Moving {
        Moving { way, _mapping: None }
    }
}

impl Rendezvous for Moving {
    fn heard(&mut self, _: &mut Cx<'_>, heard: Heard<'_>) -> Step {
        unexpected(&heard.message)
    }

    fn landed(&mut self, cx: &mut Cx<'_>, _: u64, result: Result<(), EngineError>) -> Step {
        match result {
            Ok(()) => {
                cx.received(self.way);
                Step::Done(self.way)
            }
            Err(error) => Step::Refused(error.to_string()),
        }
    }

    /// All the data is at hand.
    fn lost(&mut self, _: &mut Cx<'_>) -> Step {
        Step::Going
    }
}
