//! Puts that are held back: until a signal has ended, or a pause is over. Only a turn after the end of a signal that some
//! of them wait for looks at them, and pauses lie in the order of their ends.

use super::{Initiator, SequenceKey};
use crate::signal::{Signal, SignalEnd};
use std::collections::BTreeMap;

/// What begins anew when a pause is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resumed {
    Put(u64),
    Sequence(SequenceKey),
}

/// Pauses before puts that were refused are sent again.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// How long, of those that begin when the clock is next read.
    fresh: Vec<(Resumed, u64)>,
    /// By the end, and how many came before.
    due: BTreeMap<(u64, u64), Resumed>,
    count: u64,
}

impl Pauses {
    pub(super) fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.due.is_empty()
    }

    pub(super) fn begin(&mut self, what: Resumed, wait_ns: u64) {
        self.fresh.push((what, wait_ns));
    }

    /// One that is over, the first of them first.
    fn over(&mut self, now_ns: u64) -> Option<Resumed> {
        for (what, wait_ns) in self.fresh.drain(..) {
            self.due.insert((now_ns.saturating_add(wait_ns), self.count), what);
            self.count += 1;
        }
        let first = self.due.first_entry().filter(|entry| entry.key().0 <= now_ns);
        first.map(|entry| entry.remove())
    }

    /// Takes out those of which this is false.
    pub(super) fn retain(&mut self, keep: impl Fn(Resumed) -> bool) {
        self.fresh.retain(|(what, _)| keep(*what));
        self.due.retain(|_, what| keep(*what));
    }

    /// Takes all out.
    pub(super) fn take(&mut self) -> Vec<Resumed> {
        let due = std::mem::take(&mut self.due).into_values();
        due.chain(self.fresh.drain(..).map(|(what, _)| what)).collect()
    }
}

impl Initiator {
    /// Holds a put back until the signal has ended; if it has, sends it, after earlier ones that may go, too.
    pub(super) fn hold_back(&mut self, id: u64, signal: &Signal) {
        let end = signal.next_end();
        if end.get().is_some() {
            self.release_ended();
            self.release(id, &end);
        } else {
            self.held.push((end, id));
        }
    }

    /// In the order in which they were put.
    fn release_ended(&mut self) {
        let ended: Vec<_> = self.held.extract_if(.., |(end, _)| end.get().is_some()).collect();
        ended.into_iter().for_each(|(end, id)| self.release(id, &end));
    }

    /// The signal has ended that held the put back.
    fn release(&mut self, id: u64, end: &SignalEnd) {
        match end.get() {
            Some(Err(error)) => self.end(id, Err(error.clone())),
            _ => self.queue(id),
        }
    }

    /// Lets time pass: held puts whose signals have ended, and pauses that are over. `rang`: a signal may have ended since
    /// the last call.
    pub(in crate::host) fn advance(&mut self, now_ns: u64, rang: bool) {
        if rang {
            self.release_ended();
        }
        // Nothing here starts a pause.
        while let Some(what) = self.pauses.over(now_ns) {
            match what {
                Resumed::Put(id) => self.queue(id),
                Resumed::Sequence(key) => {
                    if let Some(sequence) = self.sequences.get_mut(&key) {
                        sequence.go_on();
                    }
                    self.pump(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::initiator::QueuedMessage;
    use crate::put::{Put, Retry};
    use gapless_bml::Rank;
    use std::sync::Arc;

    #[test]
    fn pauses_end_in_their_order_and_once_each() {
        let mut pauses = Pauses::default();
        let [first, second, third] = [1, 2, 3].map(Resumed::Put);
        pauses.begin(first, 30);
        pauses.begin(second, 10);
        pauses.begin(third, 10);
        // They begin with the first look.
        assert_eq!(pauses.over(100), None);
        pauses.begin(Resumed::Sequence((0, 7)), 0);
        assert_eq!(pauses.over(109), Some(Resumed::Sequence((0, 7))));
        assert_eq!((pauses.over(109), pauses.over(110)), (None, Some(second)));
        assert_eq!((pauses.over(200), pauses.over(200)), (Some(third), Some(first)));
        assert!(pauses.over(u64::MAX).is_none() && pauses.is_empty());
        pauses.begin(first, u64::MAX);
        assert_eq!(pauses.over(5), None);
        pauses.begin(second, 1);
        pauses.retain(|what| what != first);
        assert_eq!((pauses.take(), pauses.is_empty()), (vec![second], true));
    }

    #[test]
    fn held_puts_are_looked_at_when_a_signal_has_ended() {
        let mut initiator = Initiator::default();
        let signal = |count| Signal::new(count, Vec::new(), Arc::new(|_| ()));
        let (open, over) = (signal(1), signal(0));
        for signal in [&open, &over, &open] {
            let put = Put::function(Rank(1), 0, 0, [0, 0]).after(signal);
            let packet = put.order.packet().unwrap();
            let _ = initiator.put(put, packet);
        }
        // That of the signal that had ended is not held back.
        let listed =
            |initiator: &Initiator| initiator.outbox.get(&1).map_or(0, |to| to.items.len());
        assert_eq!((initiator.held.len(), listed(&initiator)), (2, 1));
        open.count_down();
        initiator.advance(0, false);
        assert_eq!((initiator.held.len(), listed(&initiator)), (2, 1));
        initiator.advance(0, true);
        assert_eq!((initiator.held.len(), listed(&initiator)), (0, 3));
    }

    #[test]
    fn puts_that_a_signal_held_back_go_before_later_ones() {
        let mut initiator = Initiator::default();
        let signal = Signal::new(1, Vec::new(), Arc::new(|_| ()));
        let mut put = || {
            let put = Put::function(Rank(1), 0, 0, [0, 0]).after(&signal);
            let packet = put.order.packet().unwrap();
            let _ = initiator.put(put.retry(Retry::InOrder), packet);
            signal.count_down();
        };
        // The signal ends before the second, and nothing advances in between.
        put();
        put();
        let order: Vec<_> = initiator.outbox[&1].items.iter().map(QueuedMessage::put).collect();
        assert_eq!(order, [Some(0), Some(1)]);
        assert!(initiator.held.is_empty());
    }
}
