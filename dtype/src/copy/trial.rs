//! Two ways to do the same, of which machines and the state of caches decide which one is quicker: calls go either
//! way for a while, and then do what took less time. That is tried again from time to time.
//!
//! Units: bytes, and ticks of the processor's time-stamp counter.

use std::cell::Cell;

use super::method::ticks;

/// Calls by either way in a trial.
const TRIES: usize = 8;

/// What a trial has shown holds for so many bytes. A trial is a hundredth of them.
const HOLDS: u64 = 64 << 20;

/// Which way calls go.
#[derive(Debug)]
pub(super) struct Trial {
    /// What was shown, and for how many bytes it holds; nothing is known if for none.
    other: Cell<bool>,
    left: Cell<u64>,
    /// Ticks for 64 KiB by the usual way and by the other, as far as they were tried.
    ticks: Cell<[[u64; TRIES]; 2]>,
    calls: Cell<usize>,
}

impl Trial {
    pub(super) const fn new() -> Trial {
        let (other, left) = (Cell::new(false), Cell::new(0));
        Trial { other, left, ticks: Cell::new([[0; TRIES]; 2]), calls: Cell::new(0) }
    }

    /// Makes a call that moves `bytes` bytes, the other way if it is told so.
    #[inline]
    pub(super) fn call<R>(&self, bytes: u64, call: impl FnOnce(bool) -> R) -> R {
        let left = self.left.get();
        if left > 0 {
            self.left.set(left.saturating_sub(bytes));
            return call(self.other.get());
        }
        let before = ticks();
        let result = call(turn(self.calls.get()));
        self.took(bytes, ticks().wrapping_sub(before));
        result
    }

    /// A call of a trial took so long.
    fn took(&self, bytes: u64, taken: u64) {
        let (mut ticks, calls) = (self.ticks.get(), self.calls.get());
        ticks[usize::from(turn(calls))][calls / 2] = taken.saturating_mul(1 << 16) / bytes.max(1);
        self.ticks.set(ticks);
        self.calls.set(calls + 1);
        if calls + 1 == 2 * TRIES {
            self.other.set(pays(ticks));
            self.left.set(HOLDS);
            self.calls.set(0);
        }
    }
}

/// Whether the `i`th call of a trial goes the other way: one of each two does, at no period, since the parts of one
/// message are unlike each other.
fn turn(i: usize) -> bool {
    i.count_ones() % 2 == 1
}

/// Whether the other way is quicker by an eighth at least, by the medians: some calls find their bytes in cache, or
/// are disturbed.
fn pays(mut ticks: [[u64; TRIES]; 2]) -> bool {
    let [usual, other] = ticks.each_mut().map(|ticks| *ticks.select_nth_unstable(TRIES / 2).1);
    other < usual - usual / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a trial of calls that take so long shows.
    fn tried(trial: &Trial, ticks: impl Fn(usize, bool) -> u64) -> bool {
        assert_eq!(trial.left.get(), 0);
        (0..2 * TRIES).for_each(|call| trial.took(32 << 10, ticks(call, turn(call))));
        assert_eq!(trial.left.get(), HOLDS);
        trial.call(0, |other| other)
    }

    #[test]
    fn the_quicker_way_is_taken_if_it_is_worth_it() {
        assert!(tried(&Trial::new(), |_, other| if other { 860 } else { 1000 }));
        assert!(!tried(&Trial::new(), |_, other| if other { 880 } else { 1000 }));
        assert!(!tried(&Trial::new(), |_, _| 0), "no counter");
        // Calls that are disturbed do not decide, nor do those that are quick because of caches.
        let disturbed =
            |call: usize, other| if other { 800 } else { 1000 } + call as u64 / 12 * 9000;
        assert!(tried(&Trial::new(), disturbed));
        let cached = |call: usize, other| match (call, other) {
            (0..6, false) => 100,
            (_, false) => 1000,
            _ => 800,
        };
        assert!(tried(&Trial::new(), cached));
    }

    #[test]
    fn calls_take_turns_until_something_is_known() {
        let trial = Trial::new();
        for call in 0..2 * TRIES {
            assert_eq!(trial.call(64, |other| other), turn(call));
        }
        assert_eq!((trial.left.get(), trial.calls.get()), (HOLDS, 0));
    }

    #[test]
    fn parts_of_one_message_go_either_way() {
        for parts in [1, 2, 4] {
            let others = |part| (part..2 * TRIES).step_by(parts).filter(|&i| turn(i)).count();
            (0..parts).for_each(|part| assert_eq!(others(part), TRIES / parts));
        }
        (0..TRIES).for_each(|pair| assert_ne!(turn(2 * pair), turn(2 * pair + 1)));
    }

    #[test]
    fn what_was_shown_is_tried_again() {
        let trial = Trial::new();
        assert!(tried(&trial, |_, other| if other { 500 } else { 1000 }));
        for _ in 0..HOLDS >> 20 {
            assert!(trial.call(1 << 20, |other| other));
        }
        assert!(!tried(&trial, |_, other| if other { 1000 } else { 500 }));
    }
}
