//! Mapped, with the ends swapped: the sender maps the receiver's memory and moves from layout to layout with one
//! copy. The receiver grants it access to its buffer meanwhile.
//!
//! ```text
//! sender                             receiver
//!   | RTS(offer) --------------------> | choose
//!   | <---- GRANT(key, layout, end) --- |
//!   | (<-> its layout, if it is long)  |
//!   | map, Engine::transfer            |
//!   | READY(0) ----------------------> | complete
//!   | complete                         |
//! ```
//!
//! It has four uses. If two processes take turns on a device, one of them moves all messages of the two, out of the
//! other's memory or into it, and the device need not switch. If the receiver's side of device memory is the denser
//! one, the sender should write it. A device writes its peer's host memory at the full rate of the bus. And a sender's
//! host memory may be page-locked for a device of its process, which writes the receiver's device memory. Between hosts
//! the receiver does the same work without a GRANT, so there this protocol must be forced.
//!
//! The sender refuses (REFUSE) what it cannot do, and failed work once no engine works any more. The offer stays
//! valid, and the receiver chooses another protocol. The key stands for the bytes that the receiver's buffer touches;
//! its layout is checked to touch exactly these before anything is written (pages whose indices a key stands for are
//! checked otherwise: `mapped.rs`). If the sender is lost, the receive ends when the transport says that the peer has
//! released the memory, or that its process is gone
//! ([`Mapped::revoke_access`](gapless_bml::Mapped::revoke_access)): a lost peer may live, and write, for long.

use super::{Cx, Heard, Opened, ProtocolKind, RndvEnd, RndvStep, mapped, undue, unexpected};
use crate::buffer::{HeldMemory, Remote, RemoteShape, Transfer};
use crate::cost::{Excluded, Model, Situation};
use crate::links::{FlatLayout, WireLayout};
use crate::protocol::Protocol;
use crate::rndv::layouts::Fetch;
use crate::tuning::Tuning;
use crate::wire::{
    self, FRAGMENT_MIN, GRANT_BYTES, Grant, INLINE_LAYOUT_MAX, LAYOUT_BYTES, Message, Why,
};
use gapless_bml::RemoteKey;
use gapless_engine::EngineError;
use gapless_mem::{Device, Region};
use std::sync::Arc;

pub(super) const KIND: ProtocolKind = ProtocolKind {
    exclude,
    cost: |model, _| model.by_ends(Model::mapped_put, Model::direct_put),
    // `consider` has checked that.
    stays_closed: |_| false,
    consider,
    open_recv,
    opens: |message| matches!(message, Message::Grant(..)),
    open_send,
    ..ProtocolKind::NONE
};

fn exclude(s: &Situation, _: &Tuning) -> Option<Excluded> {
    if s.local || !s.grants {
        return Some(Excluded::NotGrantable);
    }
    if let Some(ends) = &s.devices {
        // The receiver's device would have to do it, and a copy up is as quick.
        let far = ends.receiver && !ends.sender && !ends.locked;
        // Copies move what has no gaps in memory of the host.
        let gaps = !ends.receiver && ends.copies_only && s.receiver_blocks > 1;
        if far || gaps || mapped::maps_nothing_between(s) {
            return Some(Excluded::DeviceMemory);
        }
    }
    None
}

/// Messages in a row that a peer could not write into memory of the host, or that found no key for memory of
/// a device, before no more is granted for them.
const REFUSALS_MAX: u8 = 8;

/// Messages in a row that a peer could not write for now before it is not asked for a while.
const EXHAUSTED_MAX: u8 = 8;

/// How long that is, in messages whose buffer would have been granted.
const REST: u8 = 64;

/// What an endpoint knows of granting a peer access to its buffers; two numbers each: for memory of the host, and of
/// devices.
#[derive(Debug, Default)]
pub(crate) struct Granting {
    /// How often in a row it was refused, or found no key.
    refused: [u8; 2],
    /// How often in a row the peer could not use one for now.
    exhausted: [u8; 2],
    /// Messages that use another protocol before the peer is asked again.
    resting: [u8; 2],
}

impl Granting {
    /// Whether nothing keeps this end from granting memory of a device.
    pub(super) fn grants_devices(&self) -> bool {
        self.refused[1] == 0 && self.exhausted[1] == 0 && self.resting[1] == 0
    }
}

/// What decides whether a receiver's buffer is granted to its sender.
fn consider(cx: &mut Cx<'_>, s: &mut Situation) {
    let share = cx.config.shares_buffers();
    let forced = cx.config.force == Some(Protocol::MappedPut);
    let space = cx.buffer.typed().space();
    let (from_host, host) = (cx.rts.host, space.cpu_accessible());
    let at = usize::from(!host);
    let closed = cx.facts.closed[Protocol::MappedPut.index()] && !host;
    if s.local || closed || cx.facts.granting.refused[at] >= REFUSALS_MAX {
        return;
    }
    s.grants = match (from_host, host) {
        (true, true) if !forced => false,
        (_, true) => cx.link.key(cx.buffer, share).is_some(),
        (true, false) if !cx.rts.staged.locked => false,
        // Its key is requested when it is needed: exporting memory takes time.
        (_, false) => share && shares(cx.link.device(space)) && cx.link.maps(),
    };
    let resting = &mut cx.facts.granting.resting[at];
    if s.grants && *resting > 0 {
        *resting -= 1;
        s.grants = false;
    }
    let typed = cx.buffer.typed();
    if !s.grants || typed.as_contiguous().is_some() {
        return;
    }
    s.grants = if typed.has_device_indices() {
        cx.link.indices_key(cx.buffer, share).is_some()
    } else {
        // The sender has it, or fetches it; too long a one it could not keep.
        let published = cx.published.publish_of(typed, None);
        let most = cx.config.bounds.layout_cache_bytes;
        published.is_some_and(|(_, flat)| flat.len() <= most)
    };
}

/// Whether peers' devices map memory of this one.
fn shares(device: Option<Arc<dyn Device>>) -> bool {
    device.is_some_and(|device| device.abilities().shares.is_some())
}

/// Most bytes of a flattened layout that a GRANT to the peer carries.
fn inline_max(cx: &Cx<'_>) -> usize {
    let room = cx.link.fragment_max().saturating_sub(GRANT_BYTES + RemoteKey::MAX_BYTES);
    room.min(INLINE_LAYOUT_MAX)
}

/// Grants the sender access to the receive's buffer.
fn open_recv(cx: &mut Cx<'_>, _: Protocol, _: &Situation) -> Opened {
    let share = cx.config.shares_buffers();
    let (reply, room) = cx.receipt();
    let key = cx.link.key(cx.buffer, share);
    let Some(((low, region), key)) = cx.buffer.touched().zip(key) else {
        return Opened::Refused(not_granted(cx, Why::NoKey));
    };
    let typed = cx.buffer.typed();
    let gaps = typed.as_contiguous().is_none();
    let indices = cx.link.indices_key(cx.buffer, share);
    let layout = if gaps { cx.published.publish_of(typed, indices) } else { None };
    if gaps && layout.is_none() {
        return Opened::Refused(not_granted(cx, Why::NoKey));
    }
    let (layout_id, layout_bytes) =
        layout.as_ref().map_or((0, 0), |(name, flat)| (*name, flat.len()));
    let fits = cx.link.fragment_max().saturating_sub(LAYOUT_BYTES);
    let grant = Grant {
        serial: cx.rts.serial,
        reply,
        end: room,
        count: typed.count(),
        low,
        span: region.len(),
        layout_id,
        layout_bytes,
        piece: u32::try_from(fits).unwrap_or(u32::MAX).max(FRAGMENT_MIN),
        key,
    };
    let inline = layout.as_ref().map_or(&[][..], |(_, flat)| flat.inline(inline_max(cx)));
    let message = grant.wire(inline);
    cx.control(&message);
    Opened::going(Granted { region, layout })
}

/// The buffer cannot be granted, or its sender could not use it; nobody works on it.
fn not_granted(cx: &mut Cx<'_>, why: Why) -> String {
    let host = cx.buffer.typed().space().cpu_accessible();
    let text = match why {
        Why::Exhausted => "the sender could not move it there",
        Why::NoKey => "the receiver's memory has no key",
        Why::Unmappable => "the sender cannot map the memory",
    };
    let at = usize::from(!host);
    let Granting { refused, exhausted, resting, .. } = &mut cx.facts.granting;
    match why {
        // An index may be bad, or the list out of reach: that says nothing of other buffers.
        Why::Exhausted if cx.buffer.typed().has_device_indices() => {}
        Why::Exhausted => {
            exhausted[at] = exhausted[at].saturating_add(1);
            if exhausted[at] >= EXHAUSTED_MAX {
                resting[at] = REST;
            }
        }
        // Memory of the host can be mapped although that of devices cannot, and other memory of it.
        Why::Unmappable if !host => cx.close(Protocol::MappedPut, text),
        Why::NoKey | Why::Unmappable => refused[at] = refused[at].saturating_add(1),
    }
    text.to_owned()
}

/// A receive whose buffer its sender writes.
#[derive(Debug)]
struct Granted {
    /// What the key stands for.
    region: Region,
    /// The buffer's layout, with its name, until the sender has fetched it.
    layout: Option<(u64, Arc<FlatLayout>)>,
}

impl Granted {
    /// The sender asks for the buffer's layout.
    fn layout_request(&mut self, cx: &mut Cx<'_>, serial: u64, piece: u64) -> Option<()> {
        let fits = cx.link.fragment_max().saturating_sub(LAYOUT_BYTES);
        let piece = usize::try_from(piece).ok().filter(|piece| *piece <= fits)?;
        let (_, flat) = self.layout.take_if(|_| serial == cx.rts.serial)?;
        cx.layout(serial, piece, flat);
        Some(())
    }
}

impl RndvEnd for Granted {
    fn heard(&mut self, cx: &mut Cx<'_>, heard: Heard<'_>) -> RndvStep {
        match heard.message {
            // The sender has moved everything into the buffer.
            Message::Ready { index: 0, .. } => {
                let at = usize::from(!cx.buffer.typed().space().cpu_accessible());
                cx.facts.granting.refused[at] = 0;
                cx.facts.granting.exhausted[at] = 0;
                RndvStep::Done(Protocol::MappedPut)
            }
            Message::Ready { index, .. } => {
                RndvStep::Broken(format!("fragment {index} of a message that is moved as one"))
            }
            Message::Refuse { why, .. } => RndvStep::Refused(not_granted(cx, why)),
            Message::LayoutRequest { reply, piece, .. } => {
                match self.layout_request(cx, reply, piece) {
                    Some(()) => RndvStep::Going,
                    None => unexpected(&heard.message),
                }
            }
            message => unexpected(&message),
        }
    }

    fn landed(&mut self, _: &mut Cx<'_>, _: u64, _: Result<HeldMemory, EngineError>) -> RndvStep {
        RndvStep::Going
    }

    fn lost(&mut self, _: &mut Cx<'_>) -> RndvStep {
        RndvStep::Refused("the sender is lost".to_owned())
    }

    fn granted(&self) -> Option<Region> {
        Some(self.region)
    }
}

/// A send that writes its receiver's memory, or fetches its layout.
#[derive(Debug)]
struct Putting {
    grant: Grant,
    /// The receiver's layout, on its way here.
    fetch: Option<Fetch>,
}

/// The receiver grants access to its buffer.
fn open_send(cx: &mut Cx<'_>, heard: &Heard<'_>) -> Opened {
    let Message::Grant(grant, inline) = &heard.message else {
        return Opened::Broken(undue(&heard.message));
    };
    let (bytes, inline) = (cx.buffer.bytes(), heard.bytes.get(inline.clone()).unwrap_or(&[]));
    if grant.end > bytes {
        return Opened::Broken(format!("a GRANT for {} bytes of {bytes}", grant.end));
    }
    let mut putting = Putting { grant: **grant, fetch: None };
    let step = putting.start(cx, inline);
    Opened::after(step, putting)
}

impl Putting {
    fn start(&mut self, cx: &mut Cx<'_>, inline: &[u8]) -> RndvStep {
        let grant = self.grant;
        if grant.layout_bytes == 0 {
            return self.put(cx, None);
        }
        let layouts = &mut cx.facts.layouts;
        let known = match inline {
            [] => layouts.get(grant.layout_id).map(Some),
            flat => match layouts.insert(grant.layout_id, flat, &cx.config.bounds) {
                Ok(layout) => Some(layout),
                Err(what) => return RndvStep::Broken(what),
            },
        };
        match known {
            Some(Some(layout)) => self.put(cx, Some(layout)),
            // Beyond the decoder's bounds, or the cache's.
            Some(None) => self.stop_putting(cx, Why::Exhausted),
            None if grant.layout_bytes > cx.config.bounds.layout_cache_bytes => {
                self.stop_putting(cx, Why::Exhausted)
            }
            None => {
                let fits = cx.link.fragment_max().saturating_sub(LAYOUT_BYTES) as u64;
                let piece = u64::from(grant.piece).min(fits).max(1);
                self.fetch = Some(Fetch::new(grant.layout_bytes, piece));
                cx.control(&wire::layout_request(grant.reply, grant.serial, piece));
                RndvStep::Going
            }
        }
    }

    /// Moves the data into the receiver's memory.
    fn put(&mut self, cx: &mut Cx<'_>, layout: Option<WireLayout>) -> RndvStep {
        let Grant { end, count, low, span, .. } = self.grant;
        let user = cx.moving_engine().1;
        let mapped = match cx.link.map_buffer(&self.grant.key, layout.as_ref(), user) {
            Ok(mapped) => mapped,
            Err((error, lasts)) => {
                tracing::debug!(peer = cx.peer, %error, "a buffer that cannot be mapped");
                let why = if lasts { Why::Unmappable } else { Why::Exhausted };
                return self.stop_putting(cx, why);
            }
        };
        let shape = RemoteShape { low, span, count, layout: layout.as_ref() };
        let remote = match Remote::new(shape, mapped) {
            Ok(remote) => remote,
            Err(what) => return RndvStep::Broken(what),
        };
        let packed = remote.typed().packed_bytes();
        if end > packed {
            let what = format!("a GRANT for {end} bytes of a buffer for {packed}");
            return RndvStep::Broken(what);
        }
        cx.facts.offering.puts_into_host = remote.typed().space().cpu_accessible();
        let lists = cx.buffer.typed().has_device_indices() || remote.typed().has_device_indices();
        let mover = mapped::mover(cx, Protocol::MappedPut, &remote, end);
        let moved = cx.buffer.copy_to_remote(&mover, remote, end);
        match moved.map(Transfer::now) {
            Ok(Ok(_)) => self.done(cx),
            Ok(Err(moving)) => {
                cx.follow(0, moving);
                RndvStep::Going
            }
            Err(error) => {
                tracing::debug!(peer = cx.peer, %error, "a buffer that cannot be written");
                // Indices that the engine does not reach say nothing of other buffers.
                let never = !lists && matches!(error, EngineError::WrongSpace { .. });
                self.stop_putting(cx, if never { Why::Unmappable } else { Why::Exhausted })
            }
        }
    }

    fn done(&self, cx: &mut Cx<'_>) -> RndvStep {
        cx.take_keys();
        cx.control(&wire::ready(self.grant.reply, 0));
        RndvStep::Done(Protocol::MappedPut)
    }

    /// This protocol has failed; no engine works on the receiver's buffer.
    fn stop_putting(&self, cx: &mut Cx<'_>, why: Why) -> RndvStep {
        cx.control(&wire::refuse(self.grant.reply, why));
        RndvStep::Refused("the receiver's buffer cannot be written".to_owned())
    }
}

impl RndvEnd for Putting {
    fn heard(&mut self, cx: &mut Cx<'_>, heard: Heard<'_>) -> RndvStep {
        let (Message::LayoutData { offset, length, .. }, Some(fetch)) =
            (&heard.message, &mut self.fetch)
        else {
            return unexpected(&heard.message);
        };
        let flat = match fetch.take(*offset, *length, &heard.fragment) {
            Ok(Some(flat)) => flat,
            Ok(None) => return RndvStep::Going,
            Err(what) => return RndvStep::Broken(what),
        };
        self.fetch = None;
        match cx.facts.layouts.insert(self.grant.layout_id, &flat, &cx.config.bounds) {
            Ok(Some(layout)) => self.put(cx, Some(layout)),
            Ok(None) => self.stop_putting(cx, Why::Exhausted),
            Err(what) => RndvStep::Broken(what),
        }
    }

    /// An engine has moved the data, or failed to.
    fn landed(
        &mut self,
        cx: &mut Cx<'_>,
        _: u64,
        result: Result<HeldMemory, EngineError>,
    ) -> RndvStep {
        match result {
            Ok(_) => self.done(cx),
            Err(error) => {
                tracing::debug!(%error, "an engine that did not write the receiver's buffer");
                self.stop_putting(cx, Why::Exhausted)
            }
        }
    }

    fn lost(&mut self, _: &mut Cx<'_>) -> RndvStep {
        RndvStep::Refused("the receiver is lost".to_owned())
    }
}
