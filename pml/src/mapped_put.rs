//! Mapped, the other way round: the sender maps the receiver's memory and moves from layout to layout with
//! one copy. The receiver lends its buffer meanwhile.
//!
//! ```text
//! sender                             receiver
//!   | RTS(offer) --------------------> | choose
//!   | <---- LEND(key, layout, end) --- |
//!   | (<-> its layout, if it is long)  |
//!   | map, Engine::transfer            |
//!   | READY(0) ----------------------> | complete
//!   | complete                         |
//! ```
//!
//! It serves where two processes take turns on a device: then one of them moves all messages of the two,
//! out of the other's memory or into it, and the device need not change hands; where the receiver's
//! side of device memory is the denser one; and where a device writes the memory of its peer's host, which
//! it does at the full rate of the bus. Between hosts the receiver does the same work and need not
//! ask, so that there it must be forced.
//!
//! What cannot be done is refused (REFUSE), and so is work that has failed, once no engine does any more:
//! the offer stands, and the receiver chooses among the other ways. The key stands for the bytes that the
//! receiver's buffer touches; its layout is checked to touch just these before anything is written. The
//! receive of a sender that is lost ends when the transport says that the peer has let go of the
//! memory, or that its process is gone ([`Mapped::recall`](gapless_bml::Mapped::recall)), as in `staged.rs`: a
//! peer that was given up may live, and write, for long.

use crate::choose::{Protocol, Situation};
use crate::core::Core;
use crate::error::PmlError;
use crate::hash::FastMap;
use crate::header::{self, FRAGMENT_MIN, INLINE_LAYOUT_MAX, LAYOUT_BYTES, LEND_BYTES, Lend, Why};
use crate::inflight::{Flight, InFlight};
use crate::layouts::Fetch;
use crate::mapped::{Far, remote};
use crate::peer::Outgoing;
use crate::rendezvous::{Stage, map_key, packed_size};
use crate::request::RequestId;
use crate::send::{Offered, SendStage};
use crate::staged::map_peer;
use crate::staging::device_of;
use gapless_bml::{Bml, Fragment, Rank, RemoteKey};
use gapless_dtype::Layout;
use gapless_engine::EngineError;
use gapless_mem::{Completion, Region, Space};
use std::sync::Arc;

/// Messages in a row that a peer could not write into memory of the host, or that found no key for memory of
/// a device, before no more is lent for them.
const REFUSALS_MAX: u8 = 8;

/// Messages in a row that a peer could not write for the moment before it is not asked for a while.
const EXHAUSTED_MAX: u8 = 8;

/// How long that is, in messages that would have been lent a buffer.
const REST: u8 = 64;

/// What an endpoint knows of lending a peer its buffers; two numbers each: for memory of the host, and of
/// devices.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    /// How often in a row it was refused, or found no key.
    refused: [u8; 2],
    /// How often in a row the peer could make no use of one for the moment.
    exhausted: [u8; 2],
    /// Messages that go another way before the peer is asked again.
    resting: [u8; 2],
    /// Layouts of ours that it has fetched, by their names, and may have forgotten since.
    fetched: FastMap<u64, ()>,
}

/// A receive whose buffer its sender writes.
#[derive(Debug)]
pub(crate) struct Lent {
    /// What the key stands for.
    region: Region,
    /// The flattened layout, with its name, until the sender has fetched it.
    layout: Option<(u64, Arc<[u8]>)>,
}

impl Lent {
    pub(crate) fn region(&self) -> Region {
        self.region
    }
}

/// A send that writes its receiver's memory, or learns how that is laid out.
#[derive(Debug)]
pub(crate) struct Putting {
    /// What stands if it comes to nothing.
    offered: Box<Offered>,
    lend: Lend,
    doing: Doing,
}

#[derive(Debug)]
enum Doing {
    /// Nothing that lasts.
    Starting,
    /// The receiver's layout is on its way here.
    Fetching(Fetch),
    /// An engine moves the data. If the receiver is lost meanwhile, that is how the send will end.
    Moving(Option<PmlError>),
}

impl Core {
    /// What a receiver's buffer has to do with whether it is lent.
    pub(crate) fn consider_lending(&mut self, bml: &mut Bml, id: RequestId, s: &mut Situation) {
        let (share, forced) =
            (self.config.share_device_buffers, self.config.force == Some(Protocol::MappedPut));
        let Some((incoming, buffer)) = self.incoming(id) else { return };
        let (from, from_host) = (incoming.from, incoming.rts.host);
        let buffer = buffer.clone();
        let space = buffer.typed().space();
        let host = space.cpu_accessible();
        let peer = &self.peers[from as usize];
        let closed = peer.closed[Protocol::MappedPut.index()] && !host;
        if s.local || closed || peer.lending.refused[usize::from(!host)] >= REFUSALS_MAX {
            return;
        }
        s.lends = match (from_host, host) {
            (true, true) if !forced => false,
            (_, true) => {
                let touched = buffer.touched();
                touched.is_some_and(|(_, region)| map_key(bml, from, region, share).is_some())
            }
            (true, false) => false,
            // Its key is asked for when it is needed: to export memory takes time.
            (false, false) => {
                share && device_of(bml, space).is_some() && bml.mapped(Rank(from)).is_some()
            }
        };
        let resting = &mut self.peers[from as usize].lending.resting[usize::from(!host)];
        if s.lends && *resting > 0 {
            *resting -= 1;
            s.lends = false;
        }
        if s.lends && buffer.typed().as_contiguous().is_none() {
            let Some((name, flat)) = self.published.publish(buffer.typed().layout()) else {
                s.lends = false;
                return;
            };
            let fetched = &self.peers[from as usize].lending.fetched;
            let known = flat.len() <= inline_max(bml, from) || fetched.contains_key(&name);
            s.lent_layout_bytes = if known { 0 } else { flat.len() as u64 };
        }
    }

    /// Lends the buffer of a receive to its sender.
    pub(crate) fn lend(&mut self, bml: &mut Bml, id: RequestId) {
        let share = self.config.share_device_buffers;
        let Some((incoming, buffer)) = self.incoming(id) else { return };
        let (from, buffer) = (incoming.from, buffer.clone());
        let touched = buffer.touched();
        let key = touched.and_then(|(_, region)| map_key(bml, from, region, share));
        let Some(((low, region), key)) = touched.zip(key) else {
            return self.put_refused(bml, id, Why::NoKey);
        };
        let gaps = buffer.typed().as_contiguous().is_none();
        let layout = if gaps { self.published.publish(buffer.typed().layout()) } else { None };
        if gaps && layout.is_none() {
            return self.put_refused(bml, id, Why::NoKey);
        }
        let (layout_id, layout_bytes) =
            layout.as_ref().map_or((0, 0), |(name, flat)| (*name, flat.len() as u64));
        let fits = Core::fragment_max(bml, from).saturating_sub(LAYOUT_BYTES);
        let Some((incoming, _)) = self.incoming(id) else { return };
        let lend = Lend {
            serial: incoming.rts.serial,
            reply: incoming.reply,
            end: incoming.room,
            count: buffer.typed().count(),
            low,
            span: region.len(),
            layout_id,
            layout_bytes,
            piece: u32::try_from(fits).unwrap_or(u32::MAX).max(FRAGMENT_MIN),
            key,
        };
        let inline = match &layout {
            Some((_, flat)) if flat.len() <= inline_max(bml, from) => &flat[..],
            _ => &[],
        };
        let message = lend.wire(inline);
        incoming.stage = Stage::Lent(Box::new(Lent { region, layout }));
        self.send_long(bml, from, message);
    }

    /// The receive of ours that was lent to `from` and that it knows by this number.
    pub(crate) fn lender(&mut self, from: u32, reply: u64) -> Option<RequestId> {
        let id = *self.serials.get(&reply)?;
        let (incoming, _) = self.incoming(id)?;
        (incoming.from == from && matches!(incoming.stage, Stage::Lent(_))).then_some(id)
    }

    /// The sender asks how the buffer that it was lent is laid out.
    pub(crate) fn lent_layout_request(
        &mut self,
        id: RequestId,
        (reply, serial): (u64, u64),
        piece: Option<usize>,
    ) -> Result<(), String> {
        let undue = || format!("a request for the layout of receive {reply} that is not due");
        let (incoming, _) = self.incoming(id).ok_or_else(undue)?;
        let (from, named) = (incoming.from, incoming.rts.serial);
        let Stage::Lent(lent) = &mut incoming.stage else { return Err(undue()) };
        let piece = piece.filter(|_| named == serial).ok_or_else(undue)?;
        let (name, bytes) = lent.layout.take().ok_or_else(undue)?;
        let most = self.config.bounds.layout_cache_entries;
        let fetched = &mut self.peers[from as usize].lending.fetched;
        if fetched.len() >= most {
            fetched.clear();
        }
        fetched.insert(name, ());
        self.enqueue(from, Outgoing::Layout { reply: serial, next: 0, piece, bytes });
        Ok(())
    }

    /// The sender has moved everything into the buffer that it was lent.
    pub(crate) fn put_done(&mut self, id: RequestId, index: u64) -> Result<(), String> {
        let Some((incoming, buffer)) = self.incoming(id) else { return Ok(()) };
        if index != 0 {
            return Err(format!("fragment {index} of a message that is moved as one"));
        }
        let (from, host) = (incoming.from, buffer.typed().space().cpu_accessible());
        let lending = &mut self.peers[from as usize].lending;
        lending.refused[usize::from(!host)] = 0;
        lending.exhausted[usize::from(!host)] = 0;
        self.finish_incoming(id);
        Ok(())
    }

    /// The buffer cannot be lent, or its sender could not make use of it; nobody works on it.
    pub(crate) fn put_refused(&mut self, bml: &mut Bml, id: RequestId, why: Why) {
        let Some((incoming, buffer)) = self.incoming(id) else { return };
        let (from, host) = (incoming.from, buffer.typed().space().cpu_accessible());
        incoming.stage = Stage::Choosing;
        let text = match why {
            Why::Exhausted => "the sender could not move it there",
            Why::NoKey => "the receiver's memory has no key",
            Why::Unmappable => "the sender cannot map the memory",
        };
        let at = usize::from(!host);
        let Lending { refused, exhausted, resting, .. } = &mut self.peers[from as usize].lending;
        match why {
            Why::Exhausted => {
                exhausted[at] = exhausted[at].saturating_add(1);
                if exhausted[at] >= EXHAUSTED_MAX {
                    resting[at] = REST;
                }
            }
            // Memory of the host can be mapped although that of devices cannot, and other memory of it.
            Why::Unmappable if !host => self.close_way(from, Protocol::MappedPut, text),
            Why::NoKey | Why::Unmappable => refused[at] = refused[at].saturating_add(1),
        }
        self.refuse(bml, id, Protocol::MappedPut, text);
    }

    /// The sender of a receive that was lent is lost: it ends when nobody has its memory any more.
    pub(crate) fn end_lost_lender(&mut self, id: RequestId) {
        self.leaving_buffers.push(id);
    }

    /// The receiver lends its buffer; `inline` is its layout, if that is with it.
    pub(crate) fn lent(
        &mut self,
        bml: &mut Bml,
        from: u32,
        lend: &Lend,
        inline: &[u8],
    ) -> Result<(), String> {
        let (id, send) = self.offered(from, lend.serial)?;
        let bytes = send.buffer.bytes();
        if lend.end > bytes {
            return Err(format!("a LEND for {} bytes of {bytes}", lend.end));
        }
        let mut earlier = None;
        match std::mem::replace(&mut send.stage, SendStage::Eager { serial: 0 }) {
            SendStage::Offered(mut offered) => {
                earlier = offered.ring.take();
                let putting = Putting { offered, lend: *lend, doing: Doing::Starting };
                send.stage = SendStage::Putting(Box::new(putting));
            }
            other => send.stage = other,
        }
        // A ring that was offered before, and is not wanted.
        if let Some(mut earlier) = earlier {
            earlier.course.release(&mut self.staging, false);
        }
        if lend.layout_bytes == 0 {
            return self.start_put(bml, id, None);
        }
        let layouts = &mut self.peers[from as usize].layouts;
        let known = match inline {
            [] => layouts.get(lend.layout_id).map(Some),
            flat => Some(layouts.insert(lend.layout_id, flat, &self.config.bounds)?),
        };
        match known {
            Some(Some(layout)) => self.start_put(bml, id, Some(layout)),
            // More than is decoded here, or kept.
            Some(None) => {
                self.stop_putting(bml, id, Why::Exhausted);
                Ok(())
            }
            None if lend.layout_bytes > self.config.bounds.layout_cache_bytes => {
                self.stop_putting(bml, id, Why::Exhausted);
                Ok(())
            }
            None => {
                let fits = Core::fragment_max(bml, from).saturating_sub(LAYOUT_BYTES) as u64;
                let piece = u64::from(lend.piece).min(fits).max(1);
                if let Some(putting) = self.putting(id) {
                    putting.doing = Doing::Fetching(Fetch::new(lend.layout_bytes, piece));
                }
                let message = header::layout_request(lend.reply, lend.serial, piece);
                self.send_control(bml, from, &message);
                Ok(())
            }
        }
    }

    fn putting(&mut self, id: RequestId) -> Option<&mut Putting> {
        match &mut self.requests.send_mut(id)?.stage {
            SendStage::Putting(putting) => Some(putting),
            _ => None,
        }
    }

    /// A piece of the receiver's layout has arrived.
    pub(crate) fn put_layout_data(
        &mut self,
        bml: &mut Bml,
        (from, id): (u32, RequestId),
        (offset, length): (u64, u64),
        fragment: &Fragment,
    ) -> Result<(), String> {
        let unknown = || "a piece of layout for a send that did not ask".to_owned();
        let peer = self.requests.send_mut(id).map(|send| send.to.peer);
        let putting = self.putting(id).filter(|_| peer == Some(from)).ok_or_else(unknown)?;
        let name = putting.lend.layout_id;
        let Doing::Fetching(fetch) = &mut putting.doing else { return Err(unknown()) };
        let Some(flat) = fetch.take(offset, length, fragment)? else { return Ok(()) };
        putting.doing = Doing::Starting;
        let layouts = &mut self.peers[from as usize].layouts;
        match layouts.insert(name, &flat, &self.config.bounds)? {
            Some(layout) => self.start_put(bml, id, Some(layout)),
            None => {
                self.stop_putting(bml, id, Why::Exhausted);
                Ok(())
            }
        }
    }

    /// Moves the data into the receiver's memory. An error is the receiver's fault.
    fn start_put(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        layout: Option<Layout>,
    ) -> Result<(), String> {
        let Some(send) = self.requests.send_mut(id) else { return Ok(()) };
        let (peer, buffer) = (send.to.peer, send.buffer.clone());
        let Some(&mut Putting { lend, .. }) = self.putting(id) else { return Ok(()) };
        let Lend { end, count, low, span, .. } = lend;
        if let Some(layout) = &layout {
            let packed = packed_size(layout, count, low, span)?;
            if end > packed {
                return Err(format!("a LEND for {end} bytes of a buffer for {packed}"));
            }
        }
        let space = buffer.typed().space();
        let mapping = match map_peer(bml, peer, &lend.key, space) {
            Ok(mapping) => mapping,
            Err(error) => {
                tracing::debug!(peer, %error, "what was lent cannot be mapped");
                let why = if Core::lasts(&error) { Why::Unmappable } else { Why::Exhausted };
                self.stop_putting(bml, id, why);
                return Ok(());
            }
        };
        let remote = remote(Far { low, span, count, layout: layout.as_ref() }, &mapping)?;
        // Neither side has gaps, and a copy engine is quicker than a kernel.
        let least = self.config.tuning.copy_bytes_min;
        let known = mapping.region().space() != Space::Host;
        let copier = device_of(bml, space).filter(|_| known && end >= least);
        let sides = remote.as_contiguous().zip(buffer.typed().as_contiguous());
        let moved = match (copier, sides) {
            (Some(copier), Some((into, from))) => {
                self.counters.tally(Protocol::MappedPut).copies += 1;
                buffer.copy_mapped(&copier, (into, from), end)
            }
            _ => buffer.put_mapped(&self.engines, &mapping, &remote, 0..end),
        };
        match moved {
            Ok(Completion::Ready) => self.put(bml, id, Ok(())),
            Ok(completion) => {
                if let Some(putting) = self.putting(id) {
                    putting.doing = Doing::Moving(None);
                }
                self.in_flight.push(InFlight { completion, work: Flight::Put { id, mapping } });
            }
            Err(error) => {
                tracing::debug!(peer, %error, "what was lent cannot be written");
                let never = matches!(error, EngineError::WrongSpace { .. });
                self.stop_putting(bml, id, if never { Why::Unmappable } else { Why::Exhausted });
            }
        }
        Ok(())
    }

    /// An engine has moved the data, or failed to.
    pub(crate) fn put(&mut self, bml: &mut Bml, id: RequestId, result: Result<(), EngineError>) {
        let Some(putting) = self.putting(id) else { return };
        let reply = putting.lend.reply;
        if let Doing::Moving(Some(fault)) = &putting.doing {
            let fault = fault.clone();
            return self.end_put(bml, id, Err(fault));
        }
        match result {
            Ok(()) => {
                let Some(send) = self.requests.send_mut(id) else { return };
                let peer = send.to.peer;
                self.end_put(bml, id, Ok(()));
                self.send_control(bml, peer, &header::ready(reply, 0));
            }
            Err(error) => {
                tracing::debug!(%error, "an engine that did not write what was lent");
                self.stop_putting(bml, id, Why::Exhausted);
            }
        }
    }

    /// The offer stands again.
    fn restore_offer(&mut self, id: RequestId) {
        let Some(send) = self.requests.send_mut(id) else { return };
        match std::mem::replace(&mut send.stage, SendStage::Eager { serial: 0 }) {
            SendStage::Putting(putting) => send.stage = SendStage::Offered(putting.offered),
            other => send.stage = other,
        }
    }

    /// This way is not gone; no engine works on what was lent.
    fn stop_putting(&mut self, bml: &mut Bml, id: RequestId, why: Why) {
        let Some(putting) = self.putting(id) else { return };
        let reply = putting.lend.reply;
        let Some(send) = self.requests.send_mut(id) else { return };
        let peer = send.to.peer;
        self.restore_offer(id);
        self.send_control(bml, peer, &header::refuse(reply, why));
    }

    /// Ends a send on which no engine works any more.
    fn end_put(&mut self, bml: &mut Bml, id: RequestId, result: Result<(), PmlError>) {
        self.restore_offer(id);
        self.withdraw_offer(bml, id);
        let Some(send) = self.requests.send_mut(id) else { return };
        let status = send.status(Protocol::MappedPut);
        self.requests.finish(id, result.map(|()| status));
    }

    /// The receiver of a send that writes its memory is lost.
    pub(crate) fn lose_put(&mut self, bml: &mut Bml, id: RequestId, fault: &PmlError) {
        let Some(putting) = self.putting(id) else { return };
        match &mut putting.doing {
            Doing::Starting | Doing::Fetching(_) => self.end_put(bml, id, Err(fault.clone())),
            Doing::Moving(ending) => *ending = Some(fault.clone()),
        }
    }
}

/// Most bytes of a flattened layout that a LEND to a peer carries.
fn inline_max(bml: &Bml, peer: u32) -> usize {
    let room = Core::fragment_max(bml, peer).saturating_sub(LEND_BYTES + RemoteKey::MAX_BYTES);
    room.min(INLINE_LAYOUT_MAX)
}
