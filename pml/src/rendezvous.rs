//! What all rendezvous have in common: the sender's offer (RTS), and the receiver's decision.
//!
//! ```text
//! sender                     receiver
//!   | RTS(offer) ------------> | matched: choose
//!   |                          |   mapped, single copy: read the sender's memory ...
//!   | <-------------- FIN ---- |   ... (mapped.rs, single_copy.rs)
//!   |                          |   or lend it ours
//!   | <------------- LEND ---- |   ... (mapped_put.rs)
//!   |                          |   or ask for it
//!   | <-------------- CTS ---- |   ... (pipeline.rs)
//! ```
//!
//! A receive that takes nothing (it has no room, or the types differ) answers FIN at once. Whenever
//! a way fails, the receiver marks it as refused and chooses again; the pipeline is the last resort.

use crate::buffer::Buffer;
use crate::choose::{Protocol, Situation, Touched, Ways, weight_of_blocks};
use crate::core::{AM_TAG, Core};
use crate::deferred::Data;
use crate::error::PmlError;
use crate::header::{
    self, CONTROL_MAX, DATA_BYTES, Envelope, INLINE_LAYOUT_MAX, RTS_BYTES, Rts, Verdict,
};
use crate::layouts::Fetch;
use crate::mapped_put::Lent;
use crate::mode::Copied;
use crate::peer::{Attempt, Outgoing};
use crate::pieces::Pieces;
use crate::recv::{Matched, RecvStage};
use crate::request::{RequestId, Work};
use crate::send::{Offered, Send, SendStage, To, single_copy_costs};
use crate::single_copy::Getting;
use crate::staged::StagedRecv;
use gapless_bml::{Bml, Rank, RemoteKey, Token};
use gapless_dtype::{Convertor, Footprint, Layout};
use gapless_engine::Typed;
use gapless_mem::Region;

/// A rendezvous at its receiver.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) from: u32,
    pub(crate) rts: Rts,
    /// Its number here.
    pub(crate) reply: u64,
    /// Bytes that are received: as many as were sent, or as there is room for.
    pub(crate) room: u64,
    /// What will be reported at the end, although all is received that can be.
    pub(crate) failure: Option<PmlError>,
    /// The sender's layout, once it is known.
    pub(crate) layout: Option<Layout>,
    pub(crate) protocol: Protocol,
    /// Those that have not failed.
    ways: Ways,
    pub(crate) stage: Stage,
}

/// What a rendezvous waits for at its receiver.
#[derive(Debug)]
pub(crate) enum Stage {
    /// A decision.
    Choosing,
    /// The sender's word that the data is there.
    Deferred,
    /// The sender's layout.
    Fetching(Fetch),
    /// An engine that moves the data.
    Moving,
    /// The transport that reads the data.
    Getting(Getting),
    /// Fragments; `unpacking` of them are with an engine.
    Streaming { pieces: Pieces, unpacking: u32 },
    /// Fragments in staging memory, or the sender's word on it.
    Staged(Box<StagedRecv>),
    /// The sender's word that it has moved everything into our buffer.
    Lent(Box<Lent>),
}

impl Incoming {
    /// Where the sender's data is, as far as keys reach.
    pub(crate) fn gapless(&self) -> bool {
        self.rts.blocks == 1
    }

    pub(crate) fn refuse(&mut self, protocol: Protocol) {
        self.ways = self.ways.without(protocol);
    }

    /// How it ended.
    pub(crate) fn matched(&mut self) -> Matched {
        Matched {
            from: self.from,
            tag: self.rts.envelope.tag,
            bytes: self.room,
            protocol: self.protocol,
            failure: self.failure.take(),
        }
    }

    /// How moving it from layout to layout would touch memory, where the sender's layout is known.
    fn touched(&self, to: &Typed) -> Option<Touched> {
        let to = (to.layout(), to.count());
        match &self.layout {
            Some(layout) => Some(Touched::between((layout, self.rts.count), to)),
            // The sender's bytes are in their order.
            None if self.gapless() => {
                let (rows, bytes) = (to.0.blocks_of(to.1)?, self.room / Footprint::SECTOR);
                let written_sectors = bytes.saturating_add(rows);
                Some(Touched { read_sectors: bytes + 2, written_sectors, rows, alike: false })
            }
            None => None,
        }
    }

    /// Checks the sender's layout against what it told of its buffer.
    fn check_layout(&self, layout: &Layout) -> Result<(), String> {
        let rts = &self.rts;
        let packed = packed_size(layout, rts.count, rts.low, rts.span)?;
        if packed != rts.envelope.digest.bytes {
            return Err("a layout that is not the one of the offer".to_owned());
        }
        Ok(())
    }
}

/// The packed bytes of `count` instances of a peer's layout, which must touch just `span` bytes from `low` on.
pub(crate) fn packed_size(layout: &Layout, count: u64, low: i64, span: u64) -> Result<u64, String> {
    let convertor = Convertor::new(layout, count).map_err(|error| error.to_string())?;
    let told = (low, low.saturating_add(i64::try_from(span).unwrap_or(i64::MAX)));
    if convertor.bounds() != Some(told) {
        return Err("a layout that touches other bytes than was told".to_owned());
    }
    Ok(convertor.packed_size())
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
        data: Data,
    ) -> RequestId {
        let peer = to.peer;
        let fragment_max = Core::fragment_max(bml, peer);
        let blocks =
            if buffer.typed().as_contiguous().is_some() { 1 } else { buffer.blocks().max(2) };
        let (low, span) = buffer.touched().map_or((0, 0), |(low, region)| (low, region.len()));
        let host = buffer.typed().space().cpu_accessible();
        let staged = self.staged_offer(bml, peer, buffer.typed().space());
        let share = self.config.share_device_buffers;
        let (mut mapped, mut registered, mut layout) = (None, None, None);
        if peer != self.me {
            mapped = buffer.touched().and_then(|(_, touched)| map_key(bml, peer, touched, share));
            let used = RTS_BYTES + mapped.map_or(0, |key| key.as_bytes().len());
            if host && used + RemoteKey::MAX_BYTES <= fragment_max {
                registered = buffer.register(bml, Rank(peer));
            }
            if blocks > 1 && (mapped.is_some() || registered.is_some()) {
                layout = self.published.publish(buffer.typed().layout());
                if layout.is_none() {
                    // Nobody could read there without it.
                    mapped = None;
                    if let Some((rail, key)) = registered.take() {
                        bml.deregister(rail, &key);
                    }
                }
            }
        }
        let payload = fragment_max.saturating_sub(DATA_BYTES);
        let fragment = u32::try_from(payload).unwrap_or(u32::MAX);
        let (layout_id, layout_bytes) =
            layout.as_ref().map_or((0, 0), |(id, bytes)| (*id, bytes.len() as u64));
        let count = buffer.typed().count();
        let stage = SendStage::Eager { serial: 0 }; // replaced below, once the request has a name
        let send = Send { buffer, to, envelope, _copied: copied, stage };
        let id = self.requests.insert(Work::Send(Box::new(send)));
        let serial = self.new_serial(id);
        let rts = Rts {
            envelope,
            serial,
            count,
            low,
            span,
            blocks,
            layout_id,
            layout_bytes,
            fragment: fragment.min(self.config.tuning.fragment_bytes).max(header::FRAGMENT_MIN),
            depth: self.config.tuning.depth,
            host,
            staged,
            data,
            mapped,
            rdma: registered.map(|(_, key)| key),
            inline: 0..0,
        };
        let layout = layout.map(|(_, bytes)| bytes);
        if let Some(send) = self.requests.send_mut(id) {
            let offered =
                Offered { rts, registered, layout, fetched: false, ring: None, failed: None };
            send.stage = SendStage::Offered(Box::new(offered));
        }
        self.enqueue(peer, Outgoing::Rts(id));
        self.flush_peer(bml, peer);
        id
    }

    /// Sends an offer, if there is room.
    pub(crate) fn attempt_rts(&mut self, bml: &mut Bml, peer: u32, id: RequestId) -> Attempt {
        let Some(send) = self.requests.send_mut(id) else { return Attempt::Sent };
        let SendStage::Offered(offered) = &mut send.stage else { return Attempt::Sent };
        let room = Core::fragment_max(bml, peer).saturating_sub(RTS_BYTES);
        let keys = [offered.rts.mapped, offered.rts.rdma].into_iter().flatten();
        let room = room.saturating_sub(keys.map(|key| key.as_bytes().len()).sum());
        let inline = match &offered.layout {
            Some(layout) if layout.len() <= room.min(INLINE_LAYOUT_MAX) => &layout[..],
            _ => &[],
        };
        let mut bytes = [0; CONTROL_MAX];
        let len = offered.rts.write(inline, &mut bytes);
        let Some(mut slot) = self.reserve(bml, peer, len) else {
            return Attempt::Waits(Outgoing::Rts(id));
        };
        let sequence = self.next_sequence(peer);
        header::set_sequence(&mut bytes, sequence);
        if let Err(error) = slot.write(0, &bytes[..len]) {
            tracing::error!(%error, "a slot that cannot be written");
        }
        bml.send(slot, AM_TAG, Token::NONE);
        Attempt::Sent
    }

    /// The offer of a rendezvous of ours that `from` answers.
    pub(crate) fn offered(
        &mut self,
        from: u32,
        serial: u64,
    ) -> Result<(RequestId, &mut Send), String> {
        let unknown = || format!("an answer to rendezvous {serial}, which is not under way");
        let id = *self.serials.get(&serial).ok_or_else(unknown)?;
        let send = self.requests.send_mut(id).ok_or_else(unknown)?;
        match &send.stage {
            SendStage::Offered(offered) if send.to.peer == from => {
                // Whoever does not wait for our word would have us read what is being written.
                if offered.rts.data != Data::There {
                    return Err(format!("rendezvous {serial} is begun before its data is there"));
                }
            }
            _ => return Err(unknown()),
        }
        Ok((id, send))
    }

    /// The receiver has what it wants, or wants nothing.
    pub(crate) fn fin(
        &mut self,
        bml: &mut Bml,
        from: u32,
        serial: u64,
        verdict: Verdict,
    ) -> Result<(), String> {
        let unknown = || format!("an answer to message {serial}, which is not under way");
        let id = *self.serials.get(&serial).ok_or_else(unknown)?;
        if self.recalled(from, id, verdict)? {
            return Ok(());
        }
        let send = self.requests.send_mut(id).ok_or_else(unknown)?;
        let eager = match send.stage {
            SendStage::Staged(_) if send.to.peer == from => return self.staged_fin(id, verdict),
            SendStage::Offered(_) => false,
            SendStage::Unanswered { .. } => true,
            _ => return Err(unknown()),
        };
        if send.to.peer != from {
            return Err(unknown());
        }
        let (rank, tag) = (send.to.rank, send.envelope.tag);
        let result = match verdict {
            Verdict::Received(protocol) => Ok(send.status(protocol)),
            Verdict::Refused => match &mut send.stage {
                SendStage::Offered(offered) if offered.failed.is_some() => {
                    offered.failed.take().map_or(Ok(send.status(Protocol::Pipeline)), Err)
                }
                _ => Ok(send.status(Protocol::Pipeline)),
            },
            Verdict::NotReady => Err(PmlError::NotReady { rank, tag }),
            Verdict::Withdrawn => Err(PmlError::Cancelled),
            Verdict::Unreceived => Err(PmlError::Unreceived { rank, tag }),
        };
        if eager {
            self.finish_eager(id, result);
        } else {
            self.withdraw_offer(bml, id);
            self.requests.finish(id, result);
        }
        Ok(())
    }

    /// Takes keys and name of an offer back.
    pub(crate) fn withdraw_offer(&mut self, bml: &mut Bml, id: RequestId) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let SendStage::Offered(offered) = &mut send.stage else { return };
        self.serials.remove(&offered.rts.serial);
        if let Some(mut unwanted) = offered.ring.take() {
            unwanted.course.release(&mut self.staging, false);
        }
        if let Some((rail, key)) = &offered.registered {
            bml.deregister(*rail, key);
        }
    }

    /// Gives an offer to its receive.
    pub(crate) fn receive_offer(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        from: u32,
        rts: Rts,
        layout: &[u8],
    ) -> Result<(), String> {
        let reply = self.new_serial(id);
        let Some(recv) = self.requests.recv_mut(id) else { return Ok(()) };
        let sent = rts.envelope.digest.bytes;
        let mut room = sent.min(recv.buffer.bytes());
        let failure = recv.verdict(&mut self.digests, &rts.envelope).err();
        if let Some(PmlError::SignatureMismatch { .. }) = failure {
            room = 0;
        }
        let (layout_id, gapless) = (rts.layout_id, rts.blocks == 1);
        let (serial, span) = (rts.serial, rts.span);
        recv.stage = RecvStage::Incoming(Box::new(Incoming {
            from,
            rts,
            reply,
            room,
            failure,
            layout: None,
            protocol: Protocol::Pipeline,
            ways: Ways::ALL.without(Protocol::Eager),
            stage: Stage::Choosing,
        }));
        if gapless && span != sent {
            return Err(format!("an offer of {sent} bytes without gaps that span {span}"));
        }
        if room == 0 {
            self.send_control(bml, from, &header::fin(serial, Verdict::Refused));
            self.finish_incoming(id);
            return Ok(());
        }
        let layouts = &mut self.peers[from as usize].layouts;
        if !layout.is_empty() {
            let layout = layouts.insert(layout_id, layout, &self.config.bounds)?;
            self.set_layout(id, layout)?;
        } else if let Some(layout) = layouts.get(layout_id) {
            self.set_layout(id, Some(layout))?;
        }
        if !self.defer(bml, id)? {
            self.proceed(bml, id);
        }
        Ok(())
    }

    /// The rendezvous that a receive is in.
    pub(crate) fn incoming(&mut self, id: RequestId) -> Option<(&mut Incoming, &Buffer)> {
        let recv = self.requests.recv_mut(id)?;
        match &mut recv.stage {
            RecvStage::Incoming(incoming) => Some((incoming, &recv.buffer)),
            _ => None,
        }
    }

    /// The sender's layout has become known, or will never be: then only ways without it are left.
    pub(crate) fn set_layout(
        &mut self,
        id: RequestId,
        layout: Option<Layout>,
    ) -> Result<(), String> {
        let Some((incoming, _)) = self.incoming(id) else { return Ok(()) };
        if incoming.gapless() {
            return Ok(());
        }
        match &layout {
            Some(layout) => incoming.check_layout(layout)?,
            None => {
                tracing::debug!(peer = incoming.from, "a layout that is too large to be decoded");
                incoming.refuse(Protocol::Mapped);
                incoming.refuse(Protocol::SingleCopy);
            }
        }
        incoming.layout = layout;
        Ok(())
    }

    /// Chooses among the ways that are left, and goes it.
    pub(crate) fn proceed(&mut self, bml: &mut Bml, id: RequestId) {
        let (me, share) = (self.me, self.config.share_device_buffers);
        let Some((incoming, buffer)) = self.incoming(id) else { return };
        let from = incoming.from;
        let mut situation = Situation {
            bytes: incoming.room,
            sender_blocks: incoming.rts.blocks.max(1),
            sender_span: incoming.rts.span,
            receiver_blocks: buffer.blocks().max(1),
            devices: None,
            local: from == me,
            link_eager_bytes: 0,
            latency_ns: 0.0,
            bandwidth_mb_s: 1.0,
            mapped: incoming.rts.mapped.is_some(),
            lends: false,
            single_copy: None,
            layout_fetch_bytes: if incoming.gapless() || incoming.layout.is_some() {
                0
            } else {
                incoming.rts.layout_bytes
            },
            layout_fetch_max: 0,
            lent_layout_bytes: 0,
            touched: None,
            staged: None,
        };
        let (theirs, space) = (incoming.rts.staged, buffer.typed().space());
        let whole =
            buffer.typed().as_contiguous().and_then(|whole| whole.sub(0, incoming.room).ok());
        let theirs_on_device = !incoming.rts.host;
        situation.staged = self.staging(bml, from, &theirs, space);
        situation.devices = self.device_ends(bml, theirs_on_device, theirs.mark, space);
        if let Some(ends) = &mut situation.devices {
            ends.sender_keeps = from < me;
        }
        if let (Some(_), Some((incoming, buffer))) = (situation.devices, self.incoming(id)) {
            situation.touched = incoming.touched(buffer.typed());
            if !space.cpu_accessible() {
                let weight = weight_of_blocks(buffer.typed().layout());
                situation.receiver_blocks = situation.receiver_blocks.saturating_mul(weight);
            }
        }
        self.consider_lending(bml, id, &mut situation);
        if let (Some(staging), Some(whole)) = (&mut situation.staged, whole) {
            staging.direct = staging.receiver_device && map_key(bml, from, whole, share).is_some();
        }
        let Some((incoming, _)) = self.incoming(id) else { return };
        if incoming.rts.rdma.is_some() {
            situation.single_copy = single_copy_costs(bml, from);
        }
        if let Some(limits) = bml.limits(Rank(from)) {
            situation.latency_ns = f64::from(limits.latency_ns);
            situation.bandwidth_mb_s = f64::from(limits.bandwidth_mb_s);
        }
        situation.layout_fetch_max = self.config.bounds.layout_cache_bytes;
        let Some((incoming, _)) = self.incoming(id) else { return };
        let mut ways = incoming.ways;
        let closed = self.peers[from as usize].closed;
        for way in Protocol::ALL.into_iter().filter(|way| closed[way.index()]) {
            let open = match way {
                // Memory of the host can be mapped although that of devices cannot.
                Protocol::Mapped => situation.devices.is_none(),
                // Answered with the rest of what it takes.
                Protocol::MappedPut => true,
                _ => false,
            };
            ways = if open { ways } else { ways.without(way) };
        }
        let (tuning, force) = (&self.config.tuning, self.config.force);
        let protocol = self.recent.choose(&situation, tuning, force, ways);
        let Some((incoming, _)) = self.incoming(id) else { return };
        incoming.protocol = protocol;
        let fetch = situation.layout_fetch_bytes > 0;
        match protocol {
            Protocol::Local => self.move_local(bml, id),
            Protocol::Mapped | Protocol::SingleCopy if fetch => self.fetch_layout(bml, id),
            Protocol::Mapped => self.move_mapped(bml, id),
            Protocol::MappedPut => self.lend(bml, id),
            Protocol::SingleCopy => self.start_getting(bml, id),
            Protocol::Pipeline | Protocol::Eager => self.grant(bml, id, 0),
            way => match situation.staged {
                Some(staging) => self.open_staged(bml, id, way, &situation, &staging),
                None => self.refuse(bml, id, way, "nothing is staged to this peer"),
            },
        }
    }

    /// A way has failed: tries another.
    pub(crate) fn refuse(&mut self, bml: &mut Bml, id: RequestId, way: Protocol, why: &str) {
        if let Some((incoming, _)) = self.incoming(id) {
            tracing::debug!(peer = incoming.from, %way, why, "falling back");
            incoming.refuse(way);
            self.proceed(bml, id);
        }
    }

    /// All is received without the sender's doing: tells it, and ends the receive.
    pub(crate) fn finish_and_tell(&mut self, bml: &mut Bml, id: RequestId) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let (from, message) =
            (incoming.from, header::fin(incoming.rts.serial, Verdict::Received(incoming.protocol)));
        self.finish_incoming(id);
        self.send_control(bml, from, &message);
    }

    /// Ends a receive that is in a rendezvous.
    pub(crate) fn finish_incoming(&mut self, id: RequestId) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let matched = incoming.matched();
        self.finish_recv(id, matched);
    }
}

/// A key with which `peer` can map memory of the user's; that of a device only if users `share` it,
/// who must withdraw it before they free it.
pub(crate) fn map_key(bml: &mut Bml, peer: u32, touched: Region, share: bool) -> Option<RemoteKey> {
    if !touched.space().cpu_accessible() && !share {
        return None;
    }
    let (id, mapped) = bml.mapped(Rank(peer))?;
    mapped.key(id, touched)
}
