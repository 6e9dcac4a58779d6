//! Polling: completions, and what is due by the clock.

use crate::buffers::ARRIVAL;
use crate::header::{Header, MessageKind};
use crate::ib::Ib;
use crate::link::{GRANTS_MAX, IbLink, LinkState, PostedWork};
use crate::retain::COUNT_LATE;
use crate::verbs::queues::{BATCH, Done};
use gapless_btl::{AmTag, Event, LinkError, POLLS_PER_LOOK, PeerId, Sink, Token};
use std::time::{Duration, Instant};

/// Batches of completions in a poll.
const BATCHES: usize = 4;
/// Between looks at the clock's work.
const TICK: Duration = Duration::from_millis(2);
impl Ib {
    pub(crate) fn poll_for(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        // Completions from here on make the descriptor readable again.
        if self.armed && self.poller.cq.channel.hush() {
            self.poller.arm();
        }
        let all_seen = self.look();
        if only.is_none() {
            // Polls for one peer do not count: they could be every second one, so that the rest never came to its turn.
            self.polls = self.polls.wrapping_add(1);
            self.repay();
            self.go_on();
            let waits = self.calling > 0 || self.pending.are_welcome();
            if waits || self.polls.is_multiple_of(POLLS_PER_LOOK) || self.armed {
                self.hear();
                self.tick(all_seen);
            }
            if !self.retaining.is_empty() {
                self.keep_acks(self.polls.is_multiple_of(POLLS_PER_LOOK) || self.armed);
            }
            if all_seen {
                self.finish_endings();
            }
        }
        let count = self.hand_out(only, sink);
        if count > 0 {
            self.armed = false;
        } else if self.armed {
            self.set_alarm();
        }
        count
    }

    /// Looks at completions; whether there are no more.
    pub(crate) fn look(&mut self) -> bool {
        for _ in 0..BATCHES {
            let mut done = std::mem::take(&mut self.done);
            let count = self.poller.poll(&mut done);
            done.drain(..).for_each(|one| self.digest(one));
            self.done = done;
            if count < BATCH {
                return true;
            }
        }
        false
    }

    fn digest(&mut self, done: Done) {
        let low = u32::try_from(done.name & u64::from(u32::MAX)).unwrap_or(0);
        if done.name & ARRIVAL != 0 {
            if self.arrived(low, &done).is_none()
                && let Err(error) = self.arrivals.again(low)
            {
                tracing::warn!(%error, "a receive buffer less");
            }
            return;
        }
        self.ended(u32::try_from(done.name >> 32).unwrap_or(u32::MAX), low, done.status);
    }

    /// A buffer has come back with a message; `None` if nobody has the buffer now.
    fn arrived(&mut self, index: u32, done: &Done) -> Option<()> {
        if done.status != 0 {
            return None;
        }
        let &id = self.by_number.get(&done.number)?;
        let up = self.links[id as usize].up()?;
        // Whoever broke the rules is not listened to any more.
        if up.ending.as_ref().is_some_and(|it| matches!(it.error, LinkError::Corrupt { .. })) {
            return None;
        }
        up.stands = true;
        up.heard = self.ticked;
        let header = self.arrivals.header(index);
        let understood = Header::read(&header, done.bytes as usize, up.sequence_in);
        let understood = understood.and_then(|header| {
            up.sequence_in = up.sequence_in.wrapping_add(1);
            up.outgoing.granted(header.grant)?;
            up.confirmed(header.had)?;
            if header.kind == MessageKind::Message {
                up.incoming.came()?;
            }
            Ok(header)
        });
        match understood {
            Ok(Header { kind: MessageKind::Message, tag, bytes, .. }) => {
                let fragment = self.arrivals.give(index, bytes, id)?;
                let (from, tag) = (PeerId(id), AmTag(tag));
                self.outbox.push_back(Event::Arrived { from, tag, fragment });
                return Some(());
            }
            Ok(Header { kind: MessageKind::Grant, .. }) => {}
            Ok(Header { kind: MessageKind::Farewell, .. }) => {
                let reason = format!("{} has left", self.whom(id));
                self.end(id, LinkError::PeerGone { reason });
            }
            Err(what) => {
                let what = format!("{}: {what}", self.whom(id));
                self.end(id, LinkError::Corrupt { what });
            }
        }
        None
    }

    /// Work of a link has ended, and all before it.
    fn ended(&mut self, id: u32, position: u32, status: u32) {
        let Some(up) = self.links.get_mut(id as usize).and_then(IbLink::up) else { return };
        if status == 0 {
            up.heard = self.ticked;
        } else if up.ending.is_none() {
            // If the device says whose fault it is, that goes before.
            self.device_events();
            let error = self.cause(id, status);
            self.end(id, error);
        }
        loop {
            let Some(up) = self.links[id as usize].up() else { return };
            let Some((work, last)) = up.ended(position) else { return };
            let failed = if last && status != 0 { up.ending.as_ref() } else { None };
            let result = failed.map_or(Ok(()), |ending| Err(ending.error.clone()));
            // One that has failed is given back when the link is lost.
            if matches!(work, PostedWork::Retained) && result.is_ok() {
                let token = up.finished();
                if token != Token::NONE {
                    self.outbox.push_back(Event::Sent { token, result: Ok(()) });
                }
            }
            self.settle(work, result);
            if last {
                return;
            }
        }
    }

    /// Tells whoever asked for it how work has ended.
    pub(crate) fn settle(&mut self, work: PostedWork, result: Result<(), LinkError>) {
        match work {
            PostedWork::Message { token, .. } if token != Token::NONE => {
                self.outbox.push_back(Event::Sent { token, result });
            }
            PostedWork::OperationPart(part) => self.part_ended(part, result),
            PostedWork::Message { .. }
            | PostedWork::Retained
            | PostedWork::Grant
            | PostedWork::Farewell
            | PostedWork::Pulse
            | PostedWork::Ack => {}
        }
    }

    /// A peer, for messages to people.
    pub(crate) fn whom(&self, id: u32) -> String {
        let address = &self.links[id as usize].address;
        format!("{}: rank {} at {}", self.port_name(), address.rank, address.cm)
    }

    /// Posts buffers that came back, and tells peers of room that they do not know of.
    fn repay(&mut self) {
        let Ib { arrivals, links, owing, debts, .. } = self;
        let mut spare = 0;
        let posted = arrivals.repost(|id| {
            if let Some(up) = links.get_mut(id as usize).and_then(IbLink::up) {
                up.incoming.freed();
                if up.incoming.is_due() && !owing.contains(&id) {
                    owing.push(id);
                }
            } else if let Some(debt) = debts.get_mut(&id) {
                *debt -= 1;
                if *debt == 0 {
                    debts.remove(&id);
                    spare += 1;
                }
            }
        });
        (0..spare).for_each(|_| arrivals.shrink());
        if let Err(error) = posted {
            tracing::warn!(%error, "receive buffers less");
        }
        if self.owing.is_empty() {
            return;
        }
        let mut owing = std::mem::take(&mut self.owing);
        owing.retain(|&id| {
            let Some(up) = self.links[id as usize].up() else { return false };
            if !up.is_open() || !up.incoming.is_due() {
                return up.ending.is_none() && up.incoming.is_due();
            }
            if up.grants_out >= GRANTS_MAX {
                return true;
            }
            if let Err(error) = up.say(id, MessageKind::Grant) {
                self.end(id, error);
            }
            false
        });
        self.owing.append(&mut owing);
    }

    /// What is due by the clock.
    fn tick(&mut self, all_seen: bool) {
        let now = Instant::now();
        if now.duration_since(self.ticked) < TICK {
            return;
        }
        self.ticked = now;
        self.device_events();
        if self.calling > 0 {
            self.call_again(now);
        }
        let patience = self.patience();
        for id in 0..u32::try_from(self.links.len()).unwrap_or(u32::MAX) {
            let Some(up) = self.links[id as usize].up() else { continue };
            let silent = now.duration_since(up.heard) >= patience;
            // Adapters give up before; one that does not is broken.
            if up.is_open()
                && up.pulse_out
                && all_seen
                && now.duration_since(up.heard) >= self.config.notice * 2
            {
                let reason = format!(
                    "{}: the adapter does not say how a write of nothing has ended",
                    self.whom(id)
                );
                self.end(id, LinkError::Unreachable { reason });
                continue;
            }
            if up.is_open()
                && silent
                && !up.pulse_out
                && let Err(error) = up.pulse(id)
            {
                self.end(id, error);
            }
        }
    }

    /// Has the descriptor become readable in time for what nothing else tells.
    pub(crate) fn set_alarm(&mut self) {
        let after = if !self.outbox.is_empty() {
            Some(Duration::ZERO)
        } else if self.calling > 0 || !self.endings.is_empty() {
            Some(TICK)
        } else if !self.draining.is_empty() {
            Some(self.flush())
        } else {
            let live = self.links.iter().any(|link| matches!(link.state, LinkState::Up(_)));
            live.then(|| self.patience() / 4)
        };
        let counts = (!self.untold.is_empty()).then_some(COUNT_LATE);
        self.watch.set_alarm(after.into_iter().chain(counts).min());
    }
}
