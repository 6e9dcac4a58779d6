//! Puts that have to end in time. One that is still here is taken back: it never runs. One that the target has, or may
//! have, stays known until the target answers, so that nothing is counted wrongly; nobody hears of that answer.

use super::{Initiator, PutStage, QueuedMessage, Resumed};
use crate::buffer::{Bytes, Payload};
use crate::error::{Refusal, Waited, XtqError};
use std::collections::BTreeMap;
use std::time::Duration;

/// The time of one put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    None,
    /// It has not begun: something holds the put back.
    Whole(Duration),
    /// It begins when the clock is next read.
    Begun,
    Until(u64),
    /// It is over. Whoever put it knows.
    Over,
}

impl Limit {
    pub(super) fn new(limit: Option<Duration>) -> Limit {
        limit.map_or(Limit::None, Limit::Whole)
    }

    pub(super) fn is_over(self) -> bool {
        self == Limit::Over
    }
}

/// The times of all puts.
#[derive(Debug, Default)]
pub(super) struct Limits {
    fresh: Vec<(u64, Duration)>,
    /// By the end, and the put.
    due: BTreeMap<(u64, u64), Duration>,
}

impl Limits {
    /// Nothing holds the put back any more.
    pub(super) fn begin(&mut self, id: u64, limit: &mut Limit) {
        if let Limit::Whole(time) = *limit {
            *limit = Limit::Begun;
            self.fresh.push((id, time));
        }
    }

    /// The put is over.
    pub(super) fn forget(&mut self, id: u64, limit: &Limit) {
        match *limit {
            Limit::Until(due_ns) => _ = self.due.remove(&(due_ns, id)),
            Limit::Begun => self.fresh.retain(|(fresh, _)| *fresh != id),
            Limit::None | Limit::Whole(_) | Limit::Over => {}
        }
    }
}

impl Initiator {
    /// When the next time is over.
    pub(in crate::host) fn due_ns(&self) -> u64 {
        if !self.limits.fresh.is_empty() {
            return 0;
        }
        self.limits.due.first_key_value().map_or(u64::MAX, |((due_ns, _), _)| *due_ns)
    }

    /// Ends the puts whose time is over.
    pub(in crate::host) fn expire(&mut self, now_ns: u64) {
        for (id, time) in std::mem::take(&mut self.limits.fresh) {
            let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let due_ns = now_ns.saturating_add(time_ns);
            if let Some(put) = self.puts.get_mut(&id) {
                put.limit = Limit::Until(due_ns);
                self.limits.due.insert((due_ns, id), time);
            }
        }
        while let Some(entry) =
            self.limits.due.first_entry().filter(|entry| entry.key().0 <= now_ns)
        {
            let ((_, id), time) = entry.remove_entry();
            self.time_out(id, time);
        }
    }

    fn time_out(&mut self, id: u64, limit: Duration) {
        let Some((waited, may_run)) = self.waits(id) else { return };
        let Some(put) = self.puts.get_mut(&id) else { return };
        put.limit = Limit::Over;
        let error = XtqError::TimedOut { target: put.target, limit, waited, may_run };
        if !may_run {
            self.cancel(id);
            return self.end(id, Err(error));
        }
        // What the target says from now on is kept in order here, and told to nobody. Its body has left, unless the target
        // may still ask for it.
        if put.stage == PutStage::InRing || put.stage == PutStage::Asked && put.whole {
            self.room.give_back_body(put);
            (put.payload, put.arguments) = (Payload::none(), Bytes::none());
        }
        let asked = put.ask.take();
        self.answers.extend(asked.map(|(name, _)| (name, Err(error.clone()))));
        let (handle, signal) = (std::mem::take(&mut put.handle), put.signal.take());
        handle.end(Err(error.clone()));
        self.effects.extend(signal.map(|signal| (signal, Err(error))));
    }

    /// What a put waits for, and whether its target may have it.
    fn waits(&self, id: u64) -> Option<(Waited, bool)> {
        let put = self.puts.get(&id)?;
        let rings = self.rings.lock();
        let ring = |is_in| rings.of.get(&put.target.0).and_then(|ring| ring.waits(id, is_in));
        Some(match put.stage {
            PutStage::Waiting => {
                let refused = put.refusal.filter(|refusal| *refusal != Refusal::OutOfTurn);
                let waited = ring(false).or(refused.map(Waited::Refused));
                (waited.unwrap_or(Waited::Earlier), false)
            }
            PutStage::Listed => (Waited::Room, false),
            PutStage::Asked | PutStage::Streaming { .. } => (Waited::Progress, true),
            PutStage::InRing => (ring(true).unwrap_or(Waited::Task), true),
            PutStage::Running => (Waited::Task, true),
        })
    }

    /// Takes a put back that was not given away.
    fn cancel(&mut self, id: u64) {
        let Some(put) = self.puts.get(&id) else { return };
        let (to, sequence, is_listed) = (put.target.0, put.sequence, put.stage == PutStage::Listed);
        let may_pause = put.refusal.is_some();
        if is_listed && let Some(outbox) = self.outbox.get_mut(&to) {
            outbox
                .items
                .retain(|item| !matches!(item, QueuedMessage::Put(listed, _) if *listed == id));
            if outbox.items.is_empty() {
                self.outbox.remove(&to);
            }
        }
        match sequence {
            // Those behind it that were sent have numbers that are not their turn now: they come again.
            Some(key) => {
                if let Some(sequence) = self.sequences.get_mut(&key) {
                    sequence.leave(id);
                }
                // Only answers can be wrong.
                let _ = self.settle(key);
            }
            None => {
                if may_pause {
                    self.pauses.retain(|what| what != Resumed::Put(id));
                }
                if let Some(ring) = self.rings.lock().of.get_mut(&to) {
                    ring.cancel(id);
                }
                if let Some(open) = self.open.get_mut(&to) {
                    open.waiting.retain(|waiting| *waiting != id);
                    open.count = open.count.saturating_sub(usize::from(is_listed));
                }
                self.fill(to);
            }
        }
    }
}
