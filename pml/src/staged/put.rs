//! `staged-put`, `staged-put-copy`: the receiver lends a ring in memory of its device, the sender maps
//! it and lays fragments there, by its pack kernel or by a copy engine.

use super::course::{Course, Ring};
use super::{Obstacle, StagedSend, map_peer};
use crate::core::Core;
use crate::header::{self, Open, Why};
use crate::peer::Outgoing;
use crate::protocol::Protocol;
use crate::rendezvous::map_key;
use crate::request::RequestId;
use crate::send::SendStage;
use crate::staging::device_of;
use gapless_bml::{Bml, Rank};
use gapless_mem::Space;

impl Core {
    /// Lends the sender a ring, or the buffer itself where it has no gaps and a key.
    pub(super) fn open_put(&mut self, bml: &mut Bml, id: RequestId, mut course: Course) {
        let (bound, share) = (self.config.bounds.staging_bytes, self.config.share_device_buffers);
        let Some((incoming, buffer)) = self.incoming(id) else { return };
        let (from, room) = (incoming.from, incoming.room);
        let device = device_of(bml, buffer.typed().space());
        let whole = buffer.typed().as_contiguous().and_then(|whole| whole.sub(0, room).ok());
        let direct = whole.and_then(|whole| map_key(bml, from, whole, share).zip(Some(whole)));
        let (key, ring) = match direct {
            Some((key, whole)) => {
                course.direct = true;
                course.limit = course.total();
                (key, Ring::Buffer(whole))
            }
            None => {
                let Some(device) = device else {
                    return self.refuse_staged(
                        bml,
                        id,
                        "its device is not attached",
                        Obstacle::Passing,
                    );
                };
                let len = course.ring_bytes();
                let Some(block) = self.staging.take(bml, Some(&device), len, bound) else {
                    return self.refuse_staged(
                        bml,
                        id,
                        "staging memory is exhausted",
                        Obstacle::Passing,
                    );
                };
                course.limit = course.window.reach();
                let region = block.region();
                let key =
                    bml.mapped(Rank(from)).and_then(|(peer, mapped)| mapped.key(peer, region));
                let Some(key) = key else {
                    self.staging.give(block);
                    return self.refuse_staged(
                        bml,
                        id,
                        "staging memory has no key",
                        Obstacle::NoKey,
                    );
                };
                (key, Ring::Own(block))
            }
        };
        course.ring = Some(ring);
        self.ask(bml, id, course, Some(key));
    }

    /// The receiver has decided for a staged way.
    pub(crate) fn opened(&mut self, bml: &mut Bml, from: u32, open: &Open) -> Result<(), String> {
        let (id, send) = self.offered(from, open.serial)?;
        let bytes = send.buffer.bytes();
        let space = send.buffer.typed().space();
        let SendStage::Offered(offered) = &mut send.stage else { return Ok(()) };
        let told = offered.rts.staged;
        if open.cut.end() > bytes {
            return Err(format!("an OPEN for {} bytes of {bytes}", open.cut.end()));
        }
        if !told.through_host || !(told.device || open.way.through_host()) {
            return Err(format!("an OPEN for {}, which was not offered", open.way));
        }
        // A ring that was offered before, and is not wanted.
        if let Some(mut earlier) = offered.ring.take() {
            earlier.course.release(&mut self.staging, false);
        }
        let mut course = Course::new(open.way, open.cut, open.depth);
        course.direct = open.direct;
        let Some(key) = &open.key else { return self.offer_ring(bml, id, open, course) };
        course.limit = if open.direct { course.total() } else { course.window.reach() };
        let mapping = match map_peer(bml, from, key, space) {
            Ok(mapping) => mapping,
            Err(error) => {
                tracing::debug!(peer = from, way = %open.way, %error, "what cannot be mapped");
                let why = if Core::lasts(&error) { Why::Unmappable } else { Why::Exhausted };
                self.send_control(bml, from, &header::refuse(open.reply, why));
                return Ok(());
            }
        };
        let (there, needed) = (mapping.region().len(), course.reach_bytes());
        if there < needed {
            return Err(format!("an OPEN with a key for {there} bytes instead of {needed}"));
        }
        course.ring = Some(Ring::Theirs(mapping));
        if open.way == Protocol::StagedPutCopy && !self.second_stop(bml, &mut course, id, space) {
            self.send_control(bml, from, &header::refuse(open.reply, Why::Exhausted));
            return Ok(());
        }
        self.start_staged(bml, id, open.serial, open.reply, course);
        self.advance_send(bml, id);
        Ok(())
    }

    /// Gives a course a copier, and memory to pack into where the buffer has gaps; whether there is
    /// any.
    pub(super) fn second_stop(
        &mut self,
        bml: &mut Bml,
        course: &mut Course,
        id: RequestId,
        space: Space,
    ) -> bool {
        let Some(device) = device_of(bml, space) else { return false };
        let buffer = match self.requests.send_mut(id) {
            Some(send) => Some(&send.buffer),
            None => self.requests.recv_mut(id).map(|recv| &recv.buffer),
        };
        let gaps = buffer.is_none_or(|buffer| buffer.typed().as_contiguous().is_none());
        if gaps {
            let bound = self.config.bounds.staging_bytes;
            course.local = self.staging.take(bml, Some(&device), course.ring_bytes(), bound);
            if course.local.is_none() {
                return false;
            }
        }
        course.copier = Some(device);
        true
    }

    /// An offer is taken: its keys are no longer needed, its name is.
    pub(super) fn start_staged(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        serial: u64,
        reply: u64,
        course: Course,
    ) {
        self.withdraw_offer(bml, id);
        self.serials.insert(serial, id);
        if let Some(send) = self.requests.send_mut(id) {
            let staged = StagedSend { serial, reply, course, failed: None };
            send.stage = SendStage::Staged(Box::new(staged));
        }
    }

    /// The sender cannot go the way that was decided for.
    pub(crate) fn way_refused(
        &mut self,
        bml: &mut Bml,
        from: u32,
        reply: u64,
        why: Why,
    ) -> Result<(), String> {
        if let Some(id) = self.lender(from, reply) {
            self.put_refused(bml, id, why);
            return Ok(());
        }
        let (id, staged) = self.staged_recv(from, reply)?;
        if !staged.course.window.is_fresh() || (staged.going && !staged.course.way.puts()) {
            return Err("a way that was refused after it was begun".to_owned());
        }
        let text = match why {
            Why::Exhausted => "the sender has no memory for it now",
            Why::NoKey => "the sender's memory has no key",
            Why::Unmappable => "the sender cannot map the memory",
        };
        self.refuse_staged(bml, id, text, why.into());
        Ok(())
    }

    /// Sends a control message with a key, now or as soon as there is room.
    pub(crate) fn send_long(&mut self, bml: &mut Bml, peer: u32, message: Vec<u8>) {
        let state = &mut self.peers[peer as usize];
        if state.lost.is_none() {
            state.outbox.push_back(Outgoing::Long(message.into_boxed_slice()));
            self.flush_peer(bml, peer);
        }
    }
}
