//! `staged-get`, `staged-get-copy`: the sender lends a ring in memory of its device, the receiver maps
//! it and takes fragments out, by its unpack kernel or by a copy engine first (Wu et al. 2016
//! §5.2.1). `copy-in-out`, `zero-copy-in-out` (§4.2): the same, where the ring is host memory of the
//! sender's transport that devices of both ends reach; a side whose buffer is host memory packs or
//! unpacks there by the CPU.

use super::course::{Course, Ring};
use super::{Obstacle, StagedSend, map_peer};
use crate::core::Core;
use crate::header::{self, Open, Ring as RingMessage, Why};
use crate::protocol::Protocol;
use crate::request::RequestId;
use crate::send::SendStage;
use crate::staging::device_of;
use gapless_bml::{Bml, Rank};
use gapless_mem::Space;

/// Whether a copy engine stands between the ring and a buffer in `space`.
fn copies(way: Protocol, space: Space, sender: bool) -> bool {
    match way {
        Protocol::StagedGetCopy => !sender,
        Protocol::CopyInOut => !space.cpu_accessible(),
        _ => false,
    }
}

impl Core {
    /// Asks the sender for a ring.
    pub(super) fn open_get(&mut self, bml: &mut Bml, id: RequestId, mut course: Course) {
        let Some((_, buffer)) = self.incoming(id) else { return };
        let space = buffer.typed().space();
        if copies(course.way, space, false) && !self.second_stop(bml, &mut course, id, space) {
            return self.refuse_staged(bml, id, "staging memory is exhausted", Obstacle::Passing);
        }
        self.ask(bml, id, course, None);
    }

    /// Lends the receiver a ring; it may still decide otherwise.
    pub(super) fn offer_ring(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        open: &Open,
        mut course: Course,
    ) -> Result<(), String> {
        let bound = self.config.bounds.staging_bytes;
        let Some(send) = self.requests.send_mut(id) else { return Ok(()) };
        let (peer, space) = (send.to.peer, send.buffer.typed().space());
        let owner = if open.way.through_host() { None } else { device_of(bml, space) };
        if owner.is_none() && !open.way.through_host() {
            self.send_control(bml, peer, &header::refuse(open.reply, Why::Exhausted));
            return Ok(());
        }
        let ring = self.staging.take(bml, owner.as_ref(), course.ring_bytes(), bound);
        let key = ring.as_ref().and_then(|ring| {
            let (peer, mapped) = bml.mapped(Rank(peer))?;
            mapped.key(peer, ring.region())
        });
        course.ring = ring.map(Ring::Own);
        let stops = !copies(open.way, space, true) || self.second_stop(bml, &mut course, id, space);
        let unkeyed = key.is_none() && course.ring.is_some();
        let Some(key) = key.filter(|_| stops) else {
            course.release(&mut self.staging, false);
            let why = if unkeyed { Why::NoKey } else { Why::Exhausted };
            self.send_control(bml, peer, &header::refuse(open.reply, why));
            return Ok(());
        };
        let depth = course.window.depth();
        let (serial, reply) = (open.serial, open.reply);
        let Some(send) = self.requests.send_mut(id) else { return Ok(()) };
        if let SendStage::Offered(offered) = &mut send.stage {
            let staged = StagedSend { serial, reply, course, failed: None };
            offered.ring = Some(Box::new(staged));
        }
        self.send_long(bml, peer, RingMessage { reply, depth, key }.wire());
        Ok(())
    }

    /// The sender lends a ring.
    pub(crate) fn ring(
        &mut self,
        bml: &mut Bml,
        from: u32,
        ring: &RingMessage,
    ) -> Result<(), String> {
        let (id, staged) = self.staged_recv(from, ring.reply)?;
        let course = &mut staged.course;
        if staged.going || course.way.puts() || ring.depth > course.window.depth() {
            return Err(format!("a ring of {} places that was not asked for", ring.depth));
        }
        course.narrow(ring.depth);
        let (needed, host) = (course.ring_bytes(), course.way.through_host());
        // With ramps, fewer places may take more than a place for every fragment.
        if course.local.as_ref().is_some_and(|local| local.region().len() < needed) {
            self.refuse_staged(bml, id, "a ring of too few places", Obstacle::Passing);
            return Ok(());
        }
        let Some((_, buffer)) = self.incoming(id) else { return Ok(()) };
        let user = if host { Space::Host } else { buffer.typed().space() };
        let mapping = match map_peer(bml, from, &ring.key, user) {
            Ok(mapping) => mapping,
            // The sender takes its ring back when it hears of the next decision.
            Err(error) => {
                let lasts = Core::lasts(&error);
                let obstacle = if lasts { Obstacle::Lasting } else { Obstacle::Passing };
                self.refuse_staged(bml, id, &error.to_string(), obstacle);
                return Ok(());
            }
        };
        let there = mapping.region().len();
        if there < needed {
            return Err(format!("a ring of {there} bytes instead of {needed}"));
        }
        let (_, staged) = self.staged_recv(from, ring.reply)?;
        staged.course.ring = Some(Ring::Theirs(mapping));
        staged.course.limit = staged.course.window.reach();
        staged.going = true;
        let limit = staged.course.limit;
        let Some((incoming, _)) = self.incoming(id) else { return Ok(()) };
        let message = header::free(incoming.rts.serial, limit);
        self.send_control(bml, from, &message);
        Ok(())
    }

    /// The receiver has mapped the ring that it was lent.
    pub(super) fn start_get(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        limit: u64,
    ) -> Result<(), String> {
        let none = || "a place freed of a ring that was not lent".to_owned();
        let send = self.requests.send_mut(id).ok_or_else(none)?;
        let SendStage::Offered(offered) = &mut send.stage else { return Err(none()) };
        let staged = offered.ring.take().ok_or_else(none)?;
        let StagedSend { serial, reply, mut course, .. } = *staged;
        let reach = course.window.reach();
        if limit == 0 || limit > reach {
            course.release(&mut self.staging, false);
            return Err(format!("fragments below {limit} freed, of {reach}"));
        }
        course.limit = limit;
        self.start_staged(bml, id, serial, reply, course);
        Ok(())
    }
}
