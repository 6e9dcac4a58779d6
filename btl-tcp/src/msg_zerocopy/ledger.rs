//! Which sends the system has not done with: pure.
//!
//! It numbers the sends of a socket from 0 on, modulo 2³², and tells of them in ranges, in any order.

use std::collections::VecDeque;

/// Sends from the first that the system has not told of.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The number of that send.
    first: u64,
    /// Whether the system has told of it, and of each behind it.
    told: VecDeque<bool>,
}

impl Ledger {
    /// Another send; its number.
    pub(crate) fn sent(&mut self) -> u64 {
        let number = self.first + self.told.len() as u64;
        self.told.push_back(false);
        number
    }

    /// The number of the next send.
    #[cfg(test)]
    pub(crate) fn next(&self) -> u64 {
        self.first + self.told.len() as u64
    }

    /// The system has told of a range, both ends included; of how many sends it had not told before. Numbers that were
    /// not sent are ignored: at worst a buffer is not used again.
    pub(crate) fn told(&mut self, from: u32, to: u32) -> u64 {
        // Numbers are compared modulo 2³²; far fewer sends than that are outstanding.
        let base = u32::try_from(self.first & u64::from(u32::MAX)).expect("32 bits");
        let (start, more) = (from.wrapping_sub(base) as usize, to.wrapping_sub(from) as usize);
        let mut new = 0;
        for place in self.told.iter_mut().skip(start).take(more.saturating_add(1)) {
            new += u64::from(!std::mem::replace(place, true));
        }
        while self.told.front() == Some(&true) {
            self.told.pop_front();
            self.first += 1;
        }
        new
    }

    /// Whether the system has done with this send and all before it.
    pub(crate) fn is_over(&self, number: u64) -> bool {
        number < self.first
    }

    /// Sends from the first one that the system has not told of.
    pub(crate) fn outstanding(&self) -> usize {
        self.told.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Random, seed};
    use std::collections::BTreeSet;

    /// Notices in any order and in any ranges, also where numbers begin again: a send is over when it and all before it
    /// were told of, and not earlier.
    #[test]
    fn a_send_is_over_when_it_and_all_before_it_were_told_of() {
        let mut random = Random::new(seed());
        for begin in [0, u64::from(u32::MAX) - 20, 3 * (1 << 32) - 7] {
            let mut ledger = Ledger { first: begin, ..Ledger::default() };
            let mut open = BTreeSet::new();
            let mut next = begin;
            for _ in 0..2_000 {
                if random.below(2) == 0 {
                    assert_eq!(ledger.sent(), next);
                    open.insert(next);
                    next += 1;
                } else if let Some(&from) = open.iter().nth(random.below(open.len())) {
                    // As many as there are in a row.
                    let row = (from..).take_while(|number| open.contains(number)).count();
                    let to = from + random.below(row) as u64;
                    let word = |number: u64| u32::try_from(number % (1 << 32)).unwrap();
                    assert_eq!(ledger.told(word(from), word(to)), to - from + 1);
                    (from..=to).for_each(|number| assert!(open.remove(&number)));
                }
                let first = open.first().copied().unwrap_or(next);
                assert_eq!(ledger.outstanding() as u64, next - first);
                assert!((begin..first).all(|number| ledger.is_over(number)));
                assert!(!ledger.is_over(first));
            }
        }
    }

    #[test]
    fn what_was_not_sent_is_ignored() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.told(0, 5), 0);
        let all = [(); 3].map(|()| ledger.sent());
        assert_eq!((all, ledger.told(3, 9), ledger.told(u32::MAX, 2)), ([0, 1, 2], 0, 0));
        assert_eq!(ledger.outstanding(), 3);
        assert_eq!((ledger.told(1, 900), ledger.told(1, 1), ledger.told(0, 0)), (2, 0, 1));
        assert!(ledger.is_over(2) && !ledger.is_over(3));
    }
}
