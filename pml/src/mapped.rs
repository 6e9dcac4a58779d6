//! Mapped: the receiver maps the sender's memory and moves from layout to layout with one copy.
//!
//! ```text
//! sender                          receiver
//!   | RTS(mapped key, layout) ---> | map, Engine::transfer
//!   | <-------------------- FIN -- | complete
//!   | complete                     |
//! ```
//!
//! Of memory of the host, the sender copies a part, if it can (`help.rs`).
//!
//! The key stands for the bytes that the sender's buffer touches. Its layout was checked to touch
//! just these before anything is read.

use crate::buffer::Buffer;
use crate::choose::Protocol;
use crate::core::Core;
use crate::inflight::{Flight, InFlight};
use crate::rendezvous::{Incoming, Stage};
use crate::request::RequestId;
use crate::staged::map_peer;
use crate::staging::device_of;
use gapless_bml::{Bml, Mapping};
use gapless_dtype::Layout;
use gapless_engine::{EngineError, Typed};
use gapless_mem::{Completion, Region, Space};

/// What the other end has told of its buffer.
#[derive(Clone, Copy)]
pub(crate) struct Far<'a> {
    /// The bytes it touches, relative to displacement 0.
    pub(crate) low: i64,
    pub(crate) span: u64,
    /// Instances of the layout.
    pub(crate) count: u64,
    /// `None` if it has no gaps. A layout was checked to touch just these bytes.
    pub(crate) layout: Option<&'a Layout>,
}

/// The other end's buffer, as it lies in a mapping of what it touches.
pub(crate) fn remote(far: Far<'_>, mapping: &Mapping) -> Result<Typed, String> {
    let Far { low, span, count, layout } = far;
    let mapped = mapping.region();
    if mapped.len() < span {
        return Err(format!("a key for {} bytes of a buffer that spans {span}", mapped.len()));
    }
    let Some(layout) = layout else {
        let whole = mapped.sub(0, span).map_err(|error| error.to_string())?;
        return Ok(Typed::contiguous(whole));
    };
    // The mapping starts at displacement `low`. Where that is behind displacement 0, the region
    // below begins before the mapping: only bytes from `low` on are touched, as `check_layout` found.
    let (region, origin) = match u64::try_from(low) {
        Ok(before) => {
            let start = mapped.address().wrapping_sub(before);
            (Region::new(mapped.space(), start, mapped.offset(), before + span), 0)
        }
        Err(_) => (mapped, low.unsigned_abs()),
    };
    Typed::new(region, origin, layout, count).map_err(|error| error.to_string())
}

/// Maps what an offer is of, for work of the device whose space is `space`. An error says whether
/// other messages would meet it, too.
fn start(
    bml: &mut Bml,
    incoming: &Incoming,
    space: Space,
) -> Result<(Mapping, Typed), (String, bool)> {
    let once = |why: String| (why, false);
    let key = incoming.rts.mapped.as_ref().ok_or_else(|| once("no key".to_owned()))?;
    let mapping = map_peer(bml, incoming.from, key, space);
    let mapping = mapping.map_err(|error| (error.to_string(), Core::lasts(&error)))?;
    let rts = &incoming.rts;
    let layout = match incoming.gapless() {
        true => None,
        false => {
            Some(incoming.layout.as_ref().ok_or_else(|| once("an unknown layout".to_owned()))?)
        }
    };
    let far = Far { low: rts.low, span: rts.span, count: rts.count, layout };
    let remote = remote(far, &mapping).map_err(once)?;
    Ok((mapping, remote))
}

impl Core {
    /// Moves the data out of the sender's memory.
    pub(crate) fn move_mapped(&mut self, bml: &mut Bml, id: RequestId) {
        let Some((incoming, buffer)) = self.incoming(id) else { return };
        let buffer = buffer.clone();
        let room = incoming.room;
        let (from, on_host) = (incoming.from, incoming.rts.host);
        let (mapping, remote) = match start(bml, incoming, buffer.typed().space()) {
            Ok(started) => started,
            Err((why, lasts)) => {
                if lasts && !on_host {
                    self.close_way(from, Protocol::Mapped, &why);
                }
                return self.refuse(bml, id, Protocol::Mapped, &why);
            }
        };
        // Neither side has gaps, and a copy engine is quicker than a kernel. It makes a detour of host
        // memory that its device does not know.
        let least = self.config.tuning.copy_bytes_min;
        let known = mapping.region().space() != Space::Host;
        let copier = device_of(bml, buffer.typed().space()).filter(|_| known && room >= least);
        let sides = buffer.typed().as_contiguous().zip(remote.as_contiguous());
        let moved = match (copier, sides) {
            (Some(copier), Some((into, from))) => buffer.copy_mapped(&copier, (into, from), room),
            _ => buffer.fetch_mapped(&self.engines, &mapping, &remote, 0..room),
        };
        match moved {
            Ok(Completion::Ready) => self.finish_and_tell(bml, id),
            Ok(completion) => {
                self.set_moving(id);
                let mapping = Some(mapping);
                let work = Flight::Move { id, way: Protocol::Mapped, mapping };
                self.in_flight.push(InFlight { completion, work });
            }
            Err(error) => self.refuse(bml, id, Protocol::Mapped, &error.to_string()),
        }
    }

    /// Moves the data out of another buffer of this process.
    ///
    /// ```text
    /// RTS to myself ---> | Engine::transfer, both complete
    /// ```
    pub(crate) fn move_local(&mut self, bml: &mut Bml, id: RequestId) {
        let me = self.me;
        let Some((incoming, buffer)) = self.incoming(id) else { return };
        let (buffer, serial, room) = (buffer.clone(), incoming.rts.serial, incoming.room);
        let source: Buffer = match self.offered(me, serial) {
            Ok((_, send)) => send.buffer.clone(),
            Err(why) => return self.refuse(bml, id, Protocol::Local, &why),
        };
        match buffer.fetch_local(&self.engines, &source, 0..room) {
            Ok(Completion::Ready) => self.moved(bml, id, Protocol::Local, Ok(())),
            Ok(completion) => {
                self.set_moving(id);
                let work = Flight::Move { id, way: Protocol::Local, mapping: None };
                self.in_flight.push(InFlight { completion, work });
            }
            Err(error) => self.refuse(bml, id, Protocol::Local, &error.to_string()),
        }
    }

    fn set_moving(&mut self, id: RequestId) {
        if let Some((incoming, _)) = self.incoming(id) {
            incoming.stage = Stage::Moving;
        }
    }

    /// An engine has moved the data, or failed to.
    pub(crate) fn moved(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        way: Protocol,
        result: Result<(), EngineError>,
    ) {
        match result {
            Ok(()) => self.finish_and_tell(bml, id),
            Err(error) => {
                let lost = self.incoming(id).is_some_and(|(incoming, _)| incoming.is_lost());
                if lost {
                    return self.finish_incoming(id);
                }
                self.refuse(bml, id, way, &error.to_string());
            }
        }
    }
}
