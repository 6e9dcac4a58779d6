//! The sender's side of what all rendezvous have in common: the offer (RTS), and who answers it.

use crate::buffer::Buffer;
use crate::cost::longest_fragment;
use crate::drive::buffered::Copied;
use crate::drive::core::Core;
use crate::drive::operation::{Operation, Send, SendStage, To};
use crate::error::Failure;
use crate::links::{FlatLayout, Outgoing, fragment_max, send_message};
use crate::protocol::{Protocol, Protocols};
use crate::rndv::Heard;
use crate::rndv::gpudirect::is_refusal;
use crate::rndv::gpudirect::{is_taken, single_copy_costs};
use crate::rndv::layouts::Published;
use crate::rndv::offered::Offered;
use crate::rndv::staging::device_of;
use crate::status::{RequestId, Status};
use crate::tuning::Config;
use crate::wire::{
    self, CONTROL_MAX, DATA_BYTES, DataState, Envelope, INLINE_LAYOUT_MAX, LAYOUT_BYTES, Message,
    RTS_BYTES, Rts, Verdict,
};
use gapless_bml::{Bml, Rank, RdmaError, RdmaRail, RemoteKey, ReserveError};
use gapless_engine::Typed;
use gapless_mem::Region;
use std::sync::Arc;

/// What an offer gives its receiver to reach the buffer by.
#[derive(Default)]
struct Keys {
    mapped: Option<RemoteKey>,
    registered: Option<(RdmaRail, RemoteKey)>,
    layout: Option<(u64, Arc<FlatLayout>)>,
    /// Why the transport has not registered the buffer.
    refused: Option<RdmaError>,
    /// The sender's device can pack into memory that the receiver reads: the bytes of a fragment, and how many
    /// fragments at once.
    readable: Option<(u32, u32)>,
    /// The sender's buffer is page-locked for a device of its process.
    locked: bool,
}

impl Keys {
    /// Keys for another process, over a link that stands.
    fn new(
        bml: &mut Bml,
        peer: u32,
        buffer: &Buffer,
        published: &mut Published,
        (config, registers): (&Config, bool),
    ) -> Keys {
        let typed = buffer.typed();
        let share = config.shares_buffers();
        let mut keys = Keys { mapped: buffer.key(bml, peer, share), ..Keys::default() };
        let used = RTS_BYTES + keys.mapped.map_or(0, |key| key.as_bytes().len());
        let fits = used + RemoteKey::MAX_BYTES <= fragment_max(bml, peer);
        if registers && fits {
            match buffer.register(bml, Rank(peer)) {
                Ok(registered) => keys.registered = registered,
                Err(error) => keys.refused = Some(error),
            }
        }
        let scattered = typed.as_contiguous().is_none();
        if scattered && (keys.mapped.is_some() || keys.registered.is_some()) {
            keys.layout = published.publish_of(typed, buffer.indices_key(bml, peer, share));
            if keys.layout.is_none() {
                // Nobody could read there without it.
                keys.mapped = None;
                if let Some((rail, key)) = keys.registered.take() {
                    bml.deregister(rail, &key);
                }
            }
        }
        keys
    }
}

impl Offered {
    fn take(&mut self, keys: Keys) {
        self.rts.mapped = keys.mapped;
        self.rts.rdma = keys.registered.map(|(_, key)| key);
        self.registered = keys.registered;
        if let Some((fragment, depth)) = keys.readable {
            let staged = &mut self.rts.staged;
            (staged.readable, staged.fragment, staged.depth) = (true, fragment, depth);
        }
        self.rts.staged.locked = keys.locked;
        if let Some((id, flat)) = keys.layout {
            (self.rts.layout_id, self.rts.layout_bytes) = (id, flat.len());
            self.layout = Some(flat);
        }
    }
}

impl Core {
    /// Offers a message; the receiver decides.
    pub(crate) fn offer(
        &mut self,
        bml: &mut Bml,
        to: To,
        buffer: Buffer,
        envelope: Envelope,
        copied: Option<Copied>,
        data: DataState,
    ) -> RequestId {
        let peer = to.peer;
        let limits = bml.limits(Rank(peer));
        let (fragment_max, latency_ns) =
            limits.map_or((256, 0), |limits| (limits.max_fragment_bytes, limits.latency_ns));
        // Keys are made for a link that stands.
        let late = self.links[peer].next_sequence == 0 && bml.reserve(Rank(peer), 0).is_err();
        let blocks = if buffer.typed().as_contiguous().is_some() {
            1
        } else {
            buffer.typed().blocks().max(2)
        };
        let (low, span) = buffer.touched().map_or((0, 0), |(low, region)| (low, region.len()));
        let host = buffer.typed().space().cpu_accessible();
        let staged = self.staged_offer(bml, peer, buffer.typed().space());
        let keys =
            if late || peer == self.me { Keys::default() } else { self.keys(bml, peer, &buffer) };
        let tuning = &self.config.tuning;
        let payload = fragment_max.saturating_sub(DATA_BYTES);
        let fragment = u32::try_from(payload).unwrap_or(u32::MAX);
        let longest = match host {
            true => longest_fragment(tuning, latency_ns.into()),
            false => tuning.device_fragment_bytes,
        };
        let count = buffer.typed().count();
        let cached = self.rndv.cached.again(buffer.typed().as_contiguous());
        let stage = SendStage::Eager { serial: 0 }; // replaced below, once the request has a name
        let send = Send { buffer, to, envelope, _copied: copied, stage };
        let id = self.requests.insert(Operation::Send(Box::new(send)));
        let serial = self.requests.name(id);
        let rts = Rts {
            envelope,
            serial,
            count,
            low,
            span,
            blocks,
            layout_id: 0,
            layout_bytes: 0,
            fragment: fragment.min(longest).max(wire::FRAGMENT_MIN),
            depth: self.config.tuning.depth,
            host,
            staged,
            cached,
            data,
            mapped: None,
            rdma: None,
            inline: 0..0,
        };
        if let Some(send) = self.requests.send_mut(id) {
            let mut offered = Offered {
                rts,
                registered: None,
                without_staging: false,
                layout: None,
                late,
                fetched: false,
                failed: None,
                going: None,
                packing: false,
                unpacked: None,
                short: false,
            };
            offered.take(keys);
            send.stage = SendStage::Rendezvous(Box::new(offered));
        }
        self.links.enqueue(peer, Outgoing::Rts(id));
        self.flush_peer(bml, peer);
        id
    }

    /// What an offer to another process, over a link that stands, gives that process to reach the buffer by.
    fn keys(&mut self, bml: &mut Bml, peer: u32, buffer: &Buffer) -> Keys {
        let space = buffer.typed().space();
        let of_device = !space.cpu_accessible() && device_of(bml, space).is_some();
        let asks = of_device && is_taken(bml, peer, space) && self.rndv.refusals.asks(space);
        let registers =
            (space.cpu_accessible() || asks) && self.registers(bml, peer, buffer.typed());
        let mut keys =
            Keys::new(bml, peer, buffer, &mut self.rndv.published, (&self.config, registers));
        // Memory that the receiver maps is moved by its device.
        let across = self.rndv.facts(peer).has_devices && bml.mapped(Rank(peer)).is_some();
        if across && keys.mapped.is_none() {
            keys.locked = self.know_reaching(bml, buffer);
        }
        if !asks {
            return keys;
        }
        if keys.refused.as_ref().is_some_and(is_refusal) {
            self.rndv.refusals.refused(space);
            return keys;
        }
        if keys.registered.is_some() {
            self.rndv.refusals.taken(space);
        }
        let tuning = &self.config.tuning;
        let fragment = tuning.staged_fragment_bytes.max(wire::FRAGMENT_MIN);
        keys.readable = Some((fragment, tuning.staged_depth.clamp(1, wire::DEPTH_MAX)));
        keys
    }

    /// Sends an offer, if there is room.
    pub(crate) fn attempt_rts(
        &mut self,
        bml: &mut Bml,
        peer: u32,
        id: RequestId,
    ) -> Option<Outgoing> {
        let send = self.requests.send_mut(id)?;
        let SendStage::Rendezvous(offered) = &mut send.stage else { return None };
        if std::mem::take(&mut offered.late) {
            match bml.reserve(Rank(peer), 0) {
                Err(ReserveError::Full) => {
                    offered.late = true;
                    return Some(Outgoing::Rts(id));
                }
                // What is wrong is found again below.
                Err(_) => {}
                Ok(_) => {
                    let buffer = send.buffer.clone();
                    let keys = self.keys(bml, peer, &buffer);
                    self.requests.offered(id)?.take(keys);
                }
            }
        }
        let offered = self.requests.offered(id)?;
        let room = fragment_max(bml, peer).saturating_sub(RTS_BYTES);
        let keys = [offered.rts.mapped, offered.rts.rdma].into_iter().flatten();
        let room = room.saturating_sub(keys.map(|key| key.as_bytes().len()).sum());
        let most = room.min(INLINE_LAYOUT_MAX);
        let inline = offered.layout.as_ref().map_or(&[][..], |flat| flat.inline(most));
        let mut bytes = [0; CONTROL_MAX];
        let len = offered.rts.write(inline, &mut bytes);
        let Some(slot) = self.reserve(bml, peer, len) else {
            return Some(Outgoing::Rts(id));
        };
        let sequence = self.links.next_sequence(peer);
        wire::set_sequence(&mut bytes, sequence);
        send_message(bml, slot, &bytes[..len], &[]);
        None
    }

    /// A message for a send of ours, by the offer's name.
    pub(super) fn heard_by_sender(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        heard: Heard<'_>,
    ) -> Result<(), String> {
        let unknown =
            |message: &Message| Err(format!("{message:?} for a send that is not offered"));
        let Some(send) = self.requests.send_mut(id) else { return unknown(&heard.message) };
        let SendStage::Rendezvous(offered) = &mut send.stage else {
            return unknown(&heard.message);
        };
        let (peer, host) = (send.to.peer, offered.rts.host);
        let opened =
            Protocol::ALL.into_iter().find(|protocol| (protocol.kind().opens)(&heard.message));
        let decided = opened.is_some()
            || matches!(heard.message, Message::Fin { .. } | Message::LayoutRequest { .. });
        let stands = offered.going.as_ref().is_none_or(|going| going.is_tentative());
        if !(decided && stands) {
            return match (offered.going.is_some(), opened) {
                (true, None) => self.call(bml, id, |going, cx| going.heard(cx, heard)),
                (true, Some(_)) => Err(format!("{:?}, a second decision", heard.message)),
                (false, _) => unknown(&heard.message),
            };
        }
        // A peer that does not wait for our note would have us read data that is still being written.
        if offered.rts.data != DataState::Present && !matches!(heard.message, Message::Fin { .. }) {
            let serial = offered.rts.serial;
            return Err(format!("rendezvous {serial} was started before its data is there"));
        }
        if let Message::LayoutRequest { reply, piece, .. } = heard.message {
            return self.layout_wanted(bml, id, reply, piece);
        }
        if let (Message::Open(..), true) = (&heard.message, host) {
            self.rndv.facts(peer).has_devices = true;
        }
        self.stop(bml, id);
        match (opened, &heard.message) {
            (Some(protocol), _) => self.open_send(bml, id, protocol, &heard),
            (None, Message::Fin { verdict, .. }) => {
                self.answered(bml, id, *verdict);
                Ok(())
            }
            (None, message) => unknown(message),
        }
    }

    /// The receiver asks for the layout of an offered buffer.
    fn layout_wanted(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        reply: u64,
        piece: u64,
    ) -> Result<(), String> {
        let Some(send) = self.requests.send_mut(id) else { return Ok(()) };
        let peer = send.to.peer;
        let SendStage::Rendezvous(offered) = &mut send.stage else { return Ok(()) };
        let fits = fragment_max(bml, peer).saturating_sub(LAYOUT_BYTES);
        let piece = usize::try_from(piece).ok().filter(|piece| *piece <= fits);
        let (Some(layout), Some(piece), false) = (&offered.layout, piece, offered.fetched) else {
            let serial = offered.rts.serial;
            return Err(format!("a request for the layout of rendezvous {serial} that is not due"));
        };
        offered.fetched = true;
        let item = Outgoing::Layout { reply, next: 0, piece, flat: Arc::clone(layout) };
        self.links.enqueue(peer, item);
        Ok(())
    }

    /// The receiver has what it needs of a valid offer, or wants nothing.
    fn answered(&mut self, bml: &mut Bml, id: RequestId, verdict: Verdict) {
        let departing = self.departing;
        let Some(send) = self.requests.send_mut(id) else { return };
        let outcome = send.outcome(verdict, departing).map_err(Failure::from);
        let SendStage::Rendezvous(offered) = &mut send.stage else { return };
        let result = match verdict {
            Verdict::Refused => {
                offered.failed.take().map_or(outcome, |it| Err(Failure::of_offer(it)))
            }
            Verdict::Cancelled => offered.unpacked.take().map_or(outcome, |it| Err(it.into())),
            _ => outcome,
        };
        self.end_offer(bml, id, result);
    }

    /// Ends a send that was offered, on which nobody works any more: revokes its keys and its name.
    pub(crate) fn end_offer(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        result: Result<Status, Failure>,
    ) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let SendStage::Rendezvous(offered) = &mut send.stage else { return };
        let (serial, packing, short) = (offered.rts.serial, offered.packing, offered.short);
        if let Some((rail, key)) = &offered.registered {
            bml.deregister(*rail, key);
        }
        if short && let Ok(status) = &result {
            self.rndv.facts(send.to.peer).offering.ended(status.protocol);
        }
        self.requests.unname(serial);
        self.requests.finish_offered(id, packing, result);
    }

    /// Whether a sender registers its buffer for the receiver to read. Where registering has a price, the sender does so
    /// if single copy is forced, or would be chosen between two buffers like this one.
    pub(crate) fn registers(&mut self, bml: &mut Bml, peer: u32, buffer: &Typed) -> bool {
        let space = buffer.space();
        // Only devices read indices in their memory.
        if buffer.has_device_indices() {
            return false;
        }
        let Some(costs) = single_copy_costs(bml, peer, space) else { return false };
        if space.cpu_accessible() && !costs.registers() {
            return true;
        }
        if !(costs.devices && is_dense(buffer)) {
            return false;
        }
        let s = self.expectation(bml, peer, buffer);
        let (tuning, force) = (&self.config.tuning, self.config.force);
        let offered = Protocols::ALL.without(Protocol::Eager);
        let expected = self.recent.choose(&s, tuning, force, offered);
        expected == Protocol::SingleCopy
    }
}

/// A buffer that spans more than this many times its bytes is not registered where registering has a price: all of the
/// span would be locked in memory, and readable by the peer, gaps included.
const SPAN_MAX: u64 = 4;

/// Whether a buffer may be registered: one that is no list of addresses, and has no long gaps.
fn is_dense(buffer: &Typed) -> bool {
    buffer.region() != Region::bottom() && buffer.span() / SPAN_MAX <= buffer.packed_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Pages, Primitive};
    use gapless_mem::Space;

    #[test]
    fn pages_far_apart_are_not_dense() {
        let pool = Region::new(Space::Device { kind: "fake", device: 0 }, 1 << 20, 0, 1 << 20);
        let page = Datatype::contiguous(64, &Primitive::Byte.into()).unwrap().commit().unwrap();
        let dense = |list: &[u32]| {
            is_dense(&Typed::pages(pool, 0, &Pages::new(&page, 64, list).unwrap()).unwrap())
        };
        assert!(dense(&[2, 1, 3]) && dense(&[1, 12, 5]) && !dense(&[1, 16, 5]));
    }
}
