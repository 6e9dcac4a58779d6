//! A staged message at its sender: fragments are laid into the ring as places are free.

use crate::core::Core;
use crate::error::PmlError;
use crate::header::{self, Verdict};
use crate::request::RequestId;
use crate::send::{Send, SendStage};
use gapless_bml::Bml;
use gapless_engine::EngineError;

impl Core {
    /// The staged send of ours that `from` speaks of.
    pub(super) fn staged_send(
        &mut self,
        from: u32,
        serial: u64,
    ) -> Result<(RequestId, &mut Send), String> {
        let unknown = || format!("a word on rendezvous {serial}, which is not under way");
        let id = *self.serials.get(&serial).ok_or_else(unknown)?;
        let send = self.requests.send_mut(id).ok_or_else(unknown)?;
        if send.to.peer != from { Err(unknown()) } else { Ok((id, send)) }
    }

    /// Begins fragments of a send while there is room, until an engine has one to work on.
    ///
    /// No more than that one: a launch takes microseconds, in which the first fragment may have ended, and
    /// its receiver waits to hear of it. The next is launched when the work under way has been looked at.
    pub(crate) fn advance_send(&mut self, bml: &mut Bml, id: RequestId) {
        loop {
            let Some(send) = self.requests.send_mut(id) else { return };
            let SendStage::Staged(staged) = &mut send.stage else { return };
            let course = &mut staged.course;
            // The receiver cannot begin before it has the first, which is short: nothing delays the word.
            if course.way.gets() && course.window.next() == 1 && course.window.in_work() == 1 {
                return;
            }
            let next = course.next().filter(|_| staged.failed.is_none());
            let Some(index) = next.filter(|next| course.window.begin(*next).is_ok()) else {
                return;
            };
            course.working += 1;
            let way = course.way;
            let ahead = match course.direct {
                true => u64::from(course.window.in_work()),
                false => {
                    (index + 1 + u64::from(course.window.depth())).saturating_sub(course.limit)
                }
            };
            self.counters.saw_depth(way, ahead.min(u64::from(course.window.depth())));
            let tally = self.counters.tally(way);
            let step = course.gather(&self.engines, &send.buffer, index, tally);
            if self.follow(bml, id, index, step, true) {
                return;
            }
        }
    }

    /// A fragment lies in its place, or will not.
    pub(super) fn gathered(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        index: u64,
        result: Result<(), EngineError>,
    ) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let peer = send.to.peer;
        let SendStage::Staged(staged) = &mut send.stage else { return };
        match result {
            Ok(()) => staged.course.ended(index),
            Err(error) => {
                staged.course.failed();
                staged.failed.get_or_insert(error.into());
            }
        }
        if staged.failed.is_some() {
            if staged.course.working == 0 {
                self.fail_send(bml, id);
            }
            return;
        }
        let ready = header::ready(staged.reply, index);
        // Who got fragments out of our ring says so at the end.
        if staged.course.window.complete() && staged.course.way.puts() {
            self.end_send(id, None);
        }
        self.send_control(bml, peer, &ready);
    }

    /// A send that has failed, and whose engines have ended.
    pub(super) fn fail_send(&mut self, bml: &mut Bml, id: RequestId) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let peer = send.to.peer;
        let SendStage::Staged(staged) = &mut send.stage else { return };
        let (reply, failed) = (staged.reply, staged.failed.clone());
        if self.peers[peer as usize].lost.is_some() {
            self.end_send(id, failed);
        } else {
            // FIN ends it.
            self.send_control(bml, peer, &header::abort(reply));
        }
    }

    /// Ends a staged send on which no engine works any more.
    pub(super) fn end_send(&mut self, id: RequestId, failed: Option<PmlError>) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let SendStage::Staged(staged) = &mut send.stage else { return };
        let (way, serial) = (staged.course.way, staged.serial);
        staged.course.release(&mut self.staging, false);
        self.serials.remove(&serial);
        let status = send.status(way);
        self.requests.finish(id, failed.map_or(Ok(status), Err));
    }

    /// The receiver's last word on a staged send.
    pub(crate) fn staged_fin(&mut self, id: RequestId, verdict: Verdict) -> Result<(), String> {
        let early = || format!("{verdict:?} of a staged message that is under way");
        let send = self.requests.send_mut(id).ok_or_else(early)?;
        let SendStage::Staged(staged) = &mut send.stage else { return Err(early()) };
        if staged.course.working > 0 {
            return Err(early());
        }
        let received =
            verdict == Verdict::Received(staged.course.way) && staged.course.window.complete();
        match staged.failed.clone() {
            None if !received => return Err(early()),
            failed => self.end_send(id, failed),
        }
        Ok(())
    }

    /// The receiver of a staged send is lost.
    pub(crate) fn lose_staged_send(&mut self, id: RequestId, fault: &PmlError) {
        let Some(send) = self.requests.send_mut(id) else { return };
        let SendStage::Staged(staged) = &mut send.stage else { return };
        let failed = staged.failed.get_or_insert_with(|| fault.clone()).clone();
        if staged.course.working == 0 {
            self.end_send(id, Some(failed));
        }
    }

    /// More fragments may be laid.
    pub(crate) fn freed(
        &mut self,
        bml: &mut Bml,
        from: u32,
        serial: u64,
        limit: u64,
    ) -> Result<(), String> {
        let (id, send) = self.staged_send(from, serial)?;
        match &mut send.stage {
            SendStage::Offered(_) => self.start_get(bml, id, limit)?,
            SendStage::Staged(staged) => {
                let course = &mut staged.course;
                let (now, most) = (course.limit, course.window.reach());
                if limit <= now || limit > most {
                    return Err(format!("fragments below {limit} freed, of {now} to {most}"));
                }
                course.limit = limit;
            }
            _ => return Err(format!("a place of rendezvous {serial} freed, which has none")),
        }
        self.advance_send(bml, id);
        Ok(())
    }
}
