//! The receiver's side of what all rendezvous have in common: an offer is matched, and its protocol chosen.
//!
//! A receive that takes nothing (it has no room, or the types differ) answers FIN at once. If a protocol fails, the
//! receiver excludes it and chooses again; the pipeline is the last resort.

use crate::buffer::OneSidedRead;
use crate::cost::{Situation, weight_of_blocks};
use crate::drive::core::Core;
use crate::drive::operation::RecvStage;
use crate::error::PmlError;
use crate::links::{FlatLayout, Outgoing, WireLayout, fragment_max, send_message};
use crate::protocol::{Protocol, Protocols};
use crate::rndv::RndvStep;
use crate::rndv::decided::OfferFacts;
use crate::rndv::gpudirect::single_copy_costs;
use crate::rndv::incoming::{Incoming, IncomingStage};
use crate::rndv::layouts::Fetch;
use crate::status::RequestId;
use crate::wire::LAYOUT_BYTES;
use crate::wire::{self, Rts, Verdict};
use gapless_bml::Fragment;
use gapless_bml::{Bml, Rank};
use std::sync::Arc;

impl Core {
    /// Gives an offer to its receive.
    pub(crate) fn receive_offer(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        from: u32,
        rts: Rts,
        layout: &[u8],
    ) -> Result<(), String> {
        let reply = self.requests.name(id);
        let Some(recv) = self.requests.recv_mut(id) else { return Ok(()) };
        let sent = rts.envelope.digest.bytes;
        let mut room = sent.min(recv.buffer.bytes());
        let failure = recv.check_fit(&mut self.digests, &rts.envelope).err();
        if let Some(PmlError::SignatureMismatch { .. }) = failure {
            room = 0;
        }
        let (layout_id, gapless) = (rts.layout_id, rts.blocks == 1);
        let (serial, span, of_device) = (rts.serial, rts.span, !rts.host);
        let cached = self.rndv.cached.again(recv.buffer.typed().as_contiguous()) && rts.cached;
        recv.stage = RecvStage::Incoming(Box::new(Incoming {
            from,
            rts,
            reply,
            cached,
            room,
            failure,
            layout: None,
            protocol: Protocol::Pipeline,
            protocols: Protocols::ALL.without(Protocol::Eager),
            stage: IncomingStage::Choosing,
            without_staging: false,
            read: OneSidedRead::default(),
        }));
        if gapless && span != sent {
            return Err(format!("an offer of {sent} bytes without gaps that span {span}"));
        }
        if room == 0 {
            self.send_control(bml, from, &wire::fin(serial, Verdict::Refused));
            self.finish_incoming(id);
            return Ok(());
        }
        let facts = self.rndv.facts(from);
        facts.has_devices |= of_device;
        let layouts = &mut facts.layouts;
        if !layout.is_empty() {
            let layout = layouts.insert(layout_id, layout, &self.config.bounds)?;
            self.set_layout(id, layout)?;
        } else if let Some(layout) = layouts.get(layout_id) {
            self.set_layout(id, Some(layout))?;
        }
        if !self.defer(bml, id)? {
            self.proceed(bml, id)?;
        }
        Ok(())
    }

    /// The sender's layout has become known, or will never be: then only protocols without it are left.
    pub(crate) fn set_layout(
        &mut self,
        id: RequestId,
        layout: Option<WireLayout>,
    ) -> Result<(), String> {
        let Some((incoming, _)) = self.requests.incoming(id) else { return Ok(()) };
        if incoming.gapless() {
            return Ok(());
        }
        match &layout {
            Some(layout) => incoming.check_layout(layout)?,
            None => {
                tracing::debug!(peer = incoming.from, "a layout that is too large to be decoded");
                for protocol in
                    Protocol::ALL.into_iter().filter(|protocol| protocol.kind().wants_layout)
                {
                    incoming.protocols = incoming.protocols.without(protocol);
                }
            }
        }
        incoming.layout = layout;
        Ok(())
    }

    /// Picks a protocol among those still possible and starts it.
    pub(crate) fn proceed(&mut self, bml: &mut Bml, id: RequestId) -> Result<(), String> {
        loop {
            let Some((protocol, situation)) = self.decision(bml, id) else { return Ok(()) };
            let Some((incoming, _)) = self.requests.incoming(id) else { return Ok(()) };
            incoming.protocol = protocol;
            if protocol.kind().wants_layout && situation.layout_fetch_bytes > 0 {
                self.fetch_layout(bml, id);
                return Ok(());
            }
            match self.open_recv(bml, id, protocol, &situation) {
                RndvStep::Refused(why) => self.rule_out(id, protocol, &why),
                RndvStep::Broken(what) => return Err(what),
                RndvStep::Going | RndvStep::Again | RndvStep::Done(_) => return Ok(()),
            }
        }
    }

    /// Which protocol is tried next for a receive, and what the choice depends on.
    fn decision(&mut self, bml: &mut Bml, id: RequestId) -> Option<(Protocol, Situation)> {
        let (incoming, buffer) = self.requests.incoming(id)?;
        let (from, typed) = (incoming.from, buffer.typed());
        let peer = self.rndv.facts(from);
        let like = OfferFacts::of(incoming, typed, peer);
        if let Some(decided) = like.and_then(|like| peer.decided.again(typed, &like)) {
            return Some(decided);
        }
        let situation = self.situation_of(bml, id)?;
        let (incoming, buffer) = self.requests.incoming(id)?;
        let mut protocols = incoming.protocols;
        let peer = self.rndv.facts(from);
        for protocol in Protocol::ALL.into_iter().filter(|it| peer.closed[it.index()]) {
            if (protocol.kind().stays_closed)(&situation) {
                protocols = protocols.without(protocol);
            }
        }
        let (tuning, force) = (&self.config.tuning, self.config.force);
        let protocol = self.recent.choose(&situation, tuning, force, protocols);
        if let Some(like) = like {
            peer.decided.keep(buffer.typed(), like, (protocol, situation));
        }
        Some((protocol, situation))
    }

    /// A protocol has failed, and is not tried again for this message.
    pub(super) fn rule_out(&mut self, id: RequestId, protocol: Protocol, why: &str) {
        if let Some((incoming, _)) = self.requests.incoming(id) {
            tracing::debug!(peer = incoming.from, %protocol, why, "falling back");
            incoming.protocols = incoming.protocols.without(protocol);
            incoming.stage = IncomingStage::Choosing;
        }
    }

    /// What the choice for a receive depends on.
    fn situation_of(&mut self, bml: &mut Bml, id: RequestId) -> Option<Situation> {
        let me = self.me;
        let (incoming, buffer) = self.requests.incoming(id)?;
        let from = incoming.from;
        let mut situation = Situation {
            bytes: incoming.room,
            sender_blocks: incoming.rts.blocks.max(1),
            sender_span: incoming.rts.span,
            receiver_blocks: buffer.typed().blocks().max(1),
            local: from == me,
            bandwidth_mb_s: 1.0,
            mapped: incoming.rts.mapped.is_some(),
            cached: incoming.cached,
            layout_fetch_bytes: if incoming.gapless() || incoming.layout.is_some() {
                0
            } else {
                incoming.rts.layout_bytes
            },
            ..Situation::default()
        };
        let (theirs, space) = (incoming.rts.staged, buffer.typed().space());
        let (theirs_on_device, readable) = (!incoming.rts.host, incoming.rts.rdma.is_some());
        let name = incoming.rts.layout_id;
        let is_contiguous = buffer.typed().as_contiguous().is_some();
        situation.staged = self.staging(bml, from, &theirs, space);
        situation.devices = self.device_ends(bml, theirs_on_device, theirs.device_id, space);
        if let Some(ends) = &mut situation.devices {
            ends.sender_keeps = from < me;
            ends.copies_only |= theirs.copies_only && !ends.receiver;
        }
        if let (Some(_), Some((incoming, buffer))) = (situation.devices, self.requests.incoming(id))
        {
            situation.touched = Some(incoming.touched(buffer.typed()));
            if !space.cpu_accessible() {
                let weight = weight_of_blocks(buffer.typed().layout());
                situation.receiver_blocks = situation.receiver_blocks.saturating_mul(weight);
            }
        }
        self.consider(bml, id, &mut situation);
        if let Some(ends) = &mut situation.devices {
            ends.locked = match (ends.sender, ends.receiver) {
                (false, true) => theirs.locked,
                // What is granted is written by the sender's device.
                (true, false) if situation.mapped && !situation.grants => {
                    let buffer = self.requests.incoming(id).map(|(_, buffer)| buffer.clone());
                    buffer.is_some_and(|buffer| self.know_reaching(bml, &buffer))
                }
                _ => false,
            };
        }
        if readable || theirs.readable {
            let mut costs = single_copy_costs(bml, from, space);
            if let Some(costs) = costs.as_mut().filter(|costs| costs.devices) {
                costs.devices = space.cpu_accessible() || self.rndv.refusals.asks(space);
            }
            let packed = theirs.readable && (!space.cpu_accessible() || is_contiguous);
            situation.single_copy = costs.filter(|_| readable);
            situation.staged_read = costs.filter(|costs| packed && costs.devices);
        }
        if let Some(limits) = bml.limits(Rank(from)) {
            situation.latency_ns = f64::from(limits.latency_ns);
            situation.bandwidth_mb_s = f64::from(limits.bandwidth_mb_s);
        }
        let bounds = &self.config.bounds;
        situation.layout_fetch_max = bounds.layout_cache_bytes;
        if situation.layout_fetch_bytes > 0 {
            let unknown = &mut self.rndv.facts(from).layouts.unknown;
            situation.layout_uses = unknown.count(name, bounds.layout_cache_entries);
        }
        Some(situation)
    }

    /// Ends a receive that a protocol has carried.
    pub(crate) fn end_incoming(&mut self, id: RequestId, by: Protocol) {
        if let Some((incoming, _)) = self.requests.incoming(id) {
            incoming.protocol = by;
        }
        self.finish_incoming(id);
    }

    /// Ends a receive that is in a rendezvous.
    pub(crate) fn finish_incoming(&mut self, id: RequestId) {
        let Some((incoming, _)) = self.requests.incoming(id) else { return };
        let matched = incoming.matched();
        self.finish_recv(id, matched);
    }

    /// Asks the sender for its layout.
    pub(crate) fn fetch_layout(&mut self, bml: &mut Bml, id: RequestId) {
        let Some((incoming, _)) = self.requests.incoming(id) else { return };
        let from = incoming.from;
        let piece = fragment_max(bml, from).saturating_sub(LAYOUT_BYTES) as u64;
        // The sender can put this much into one slot, by its own fragment wish.
        let piece = piece.min(u64::from(incoming.rts.fragment)).max(1);
        let length = incoming.rts.layout_bytes;
        // `choose` has compared the length with the bound.
        incoming.stage = IncomingStage::Fetching(Fetch::new(length, piece));
        let message = wire::layout_request(incoming.rts.serial, incoming.reply, piece);
        self.send_control(bml, from, &message);
    }

    /// Sends as much of a layout as there is room for.
    pub(crate) fn attempt_layout(
        &mut self,
        bml: &mut Bml,
        peer: u32,
        (reply, mut next, piece): (u64, usize, usize),
        flat: Arc<FlatLayout>,
    ) -> Option<Outgoing> {
        let bytes = flat.bytes();
        while next < bytes.len() {
            let part = &bytes[next..bytes.len().min(next + piece)];
            let Some(slot) = self.reserve(bml, peer, LAYOUT_BYTES + part.len()) else {
                return Some(Outgoing::Layout { reply, next, piece, flat });
            };
            let header = wire::layout_data(reply, next as u64, bytes.len() as u64);
            send_message(bml, slot, &header, part);
            next += part.len();
        }
        None
    }

    /// A piece of the sender's layout has arrived.
    pub(crate) fn layout_fetched(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        (offset, length): (u64, u64),
        fragment: &Fragment,
    ) -> Result<(), String> {
        let Some((incoming, _)) = self.requests.incoming(id) else { return Ok(()) };
        let (from, layout_id) = (incoming.from, incoming.rts.layout_id);
        let IncomingStage::Fetching(fetch) = &mut incoming.stage else { return Ok(()) };
        if let Some(flat) = fetch.take(offset, length, fragment)? {
            incoming.stage = IncomingStage::Choosing;
            let layouts = &mut self.rndv.facts(from).layouts;
            layouts.unknown.paid(layout_id);
            let layout = layouts.insert(layout_id, &flat, &self.config.bounds)?;
            self.set_layout(id, layout)?;
            self.proceed(bml, id)?;
        }
        Ok(())
    }
}
