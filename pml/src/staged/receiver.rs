//! A staged message at its receiver: fragments are taken out of the ring as they come.

use super::StagedRecv;
use super::course::{Course, Ring};
use crate::core::Core;
use crate::error::PmlError;
use crate::header::{self, Open, Verdict};
use crate::recv::RecvStage;
use crate::rendezvous::{Incoming, Stage};
use crate::request::RequestId;
use gapless_bml::{Bml, Rank, RemoteKey};
use gapless_engine::EngineError;
use gapless_mem::Completion;

impl Core {
    /// Asks the sender to go a way, with the key of a ring where it puts.
    pub(super) fn ask(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        mut course: Course,
        key: Option<RemoteKey>,
    ) {
        let Some((incoming, _)) = self.incoming(id) else {
            return course.release(&mut self.staging, false);
        };
        let open = Open {
            way: course.way,
            serial: incoming.rts.serial,
            reply: incoming.reply,
            cut: course.cut(),
            depth: course.window.depth(),
            direct: course.direct,
            key,
        };
        let staged = StagedRecv { course, going: key.is_some(), leaving: false };
        let from = incoming.from;
        incoming.stage = Stage::Staged(Box::new(staged));
        self.send_long(bml, from, open.wire());
    }

    /// The staged receive of ours that `from` speaks of.
    pub(super) fn staged_recv(
        &mut self,
        from: u32,
        reply: u64,
    ) -> Result<(RequestId, &mut StagedRecv), String> {
        let unknown = || format!("a word on receive {reply}, which is not staged");
        let id = self.receiving(reply)?;
        let recv = self.requests.recv_mut(id).ok_or_else(unknown)?;
        match &mut recv.stage {
            RecvStage::Incoming(incoming) if incoming.from == from => match &mut incoming.stage {
                Stage::Staged(staged) => Ok((id, staged)),
                _ => Err(unknown()),
            },
            _ => Err(unknown()),
        }
    }

    /// A fragment lies in its place.
    pub(crate) fn ready(
        &mut self,
        bml: &mut Bml,
        from: u32,
        reply: u64,
        index: u64,
    ) -> Result<(), String> {
        if let Some(id) = self.lender(from, reply) {
            return self.put_done(id, index);
        }
        let (id, staged) = self.staged_recv(from, reply)?;
        if !staged.going || index >= staged.course.limit {
            return Err(format!("fragment {index} where none below it may be"));
        }
        let course = &mut staged.course;
        course.window.begin(index)?;
        course.working += 1;
        let (way, there) = (course.way, course.window.in_work());
        self.counters.saw_depth(way, u64::from(there));
        let Some(recv) = self.requests.recv_mut(id) else { return Ok(()) };
        let RecvStage::Incoming(incoming) = &mut recv.stage else { return Ok(()) };
        let Stage::Staged(staged) = &mut incoming.stage else { return Ok(()) };
        let dead = !matches!(&incoming.failure, None | Some(PmlError::Truncated { .. }));
        let step = match dead {
            true => Ok(Completion::Ready.into()),
            false => {
                let tally = self.counters.tally(way);
                staged.course.scatter(&self.engines, &recv.buffer, index, tally)
            }
        };
        self.follow(bml, id, index, step, false);
        Ok(())
    }

    /// A fragment is out of its place, or lost there.
    pub(super) fn taken_out(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        index: u64,
        result: Result<(), EngineError>,
    ) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let (from, serial) = (incoming.from, incoming.rts.serial);
        let over = incoming.is_over();
        let Stage::Staged(staged) = &mut incoming.stage else { return };
        let course = &mut staged.course;
        course.ended(index);
        let reach = course.window.reach();
        let more = !course.direct && reach > course.limit;
        if more {
            course.limit = reach;
        }
        let complete = course.window.complete();
        let working = course.working;
        if let Err(error) = result
            && !over
        {
            incoming.failure = Some(error.into());
        }
        if over {
            if working == 0 {
                self.end_recv(bml, id);
            }
        } else if complete {
            self.end_recv(bml, id);
        } else if more {
            self.send_control(bml, from, &header::free(serial, reach));
        }
    }

    /// Ends a staged receive on which no engine works any more: nothing more comes.
    pub(crate) fn end_recv(&mut self, bml: &mut Bml, id: RequestId) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let (from, serial, way) = (incoming.from, incoming.rts.serial, incoming.protocol);
        let verdict = match &incoming.failure {
            Some(PmlError::PeerLost { .. }) => return self.end_lost_recv(id),
            Some(PmlError::SenderFailed { .. }) => Some(Verdict::Refused),
            _ => (!way.puts()).then_some(Verdict::Received(way)),
        };
        self.peers[from as usize].unkeyed[way.index()] = 0;
        self.release_recv(id, false);
        self.finish_incoming(id);
        if let Some(verdict) = verdict {
            self.send_control(bml, from, &header::fin(serial, verdict));
        }
    }

    /// The sender of a staged message is lost, and no engine of ours works on it. What it may still
    /// write to is kept until it cannot.
    pub(crate) fn end_lost_recv(&mut self, id: RequestId) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let Stage::Staged(staged) = &mut incoming.stage else { return };
        if matches!(staged.course.ring, Some(Ring::Buffer(_))) {
            if !std::mem::replace(&mut staged.leaving, true) {
                self.leaving_buffers.push(id);
            }
            return;
        }
        let late = staged.course.way.puts();
        self.release_recv(id, late);
        self.finish_incoming(id);
    }

    pub(super) fn release_recv(&mut self, id: RequestId, late: bool) {
        let Some(recv) = self.requests.recv_mut(id) else { return };
        let RecvStage::Incoming(incoming) = &mut recv.stage else { return };
        if let Stage::Staged(staged) = &mut incoming.stage {
            staged.course.release(&mut self.staging, late);
            incoming.stage = Stage::Choosing;
        }
    }

    /// Ends receives whose lost senders have let go of their buffers; gives how many.
    pub(crate) fn poll_leaving(&mut self, bml: &mut Bml) -> usize {
        let mut done = 0;
        for id in std::mem::take(&mut self.leaving_buffers) {
            let Some((incoming, _)) = self.incoming(id) else { continue };
            let lent = match &mut incoming.stage {
                Stage::Staged(staged) => match staged.course.ring {
                    Some(Ring::Buffer(region)) => Some(region),
                    _ => None,
                },
                Stage::Lent(lent) => Some(lent.region()),
                _ => continue,
            };
            match lent {
                Some(region) if bml.recall(Rank(incoming.from), region) => {
                    self.leaving_buffers.push(id);
                }
                _ => {
                    self.release_recv(id, false);
                    self.finish_incoming(id);
                    done += 1;
                }
            }
        }
        done
    }
}

impl Incoming {
    /// Whether nothing more comes from its sender.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.failure, Some(PmlError::PeerLost { .. } | PmlError::SenderFailed { .. }))
    }
}
