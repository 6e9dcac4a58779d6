//! How long to spin before sleeping: a decision from what earlier waits took and from whether others want the
//! processor. Pure: the time is an argument, in nanoseconds since any fixed moment.
//!
//! A *quiet time* is the time in which looks find nothing. Spinning ends it at once, sleeping costs a wake-up, so
//! spinning pays if that ends within the budget.
//!
//! - Quiet times that outlast every spin, several in a row, halve the budget. The next that a longer spin would have
//!   met raises it again.
//! - Looks come a microsecond apart. If two are much further apart, and the system counts that it gave the processor
//!   to somebody else, then spins are short for a while, longer each time that it happens again soon. A peer that runs
//!   answers within a short spin. One that does not answer has no processor: whoever spins for it uses up the time
//!   slice that it needs when the answer comes, and then waits for the slices of all others.
//! - Interrupts, and the host of a virtual machine, take the processor for up to a millisecond, and nobody gains by a
//!   short spin then. A longer pause is another's time slice, whether the system counts it or not. On an idle virtual
//!   machine of two processors (Zen 3) each tick of the clock, 250 a second, takes 70 to 110 us; one in 30 of these
//!   pauses has a switch. With spins of 50 us after each of them a message of 264 KiB that the receiver moves alone took
//!   93 to 153 us, as the sender slept.

use std::time::Duration;

/// The budget never falls below this: about what falling asleep and waking up costs.
const LEAST: u64 = 10_000;
/// Quiet times in a row that outlast every spin before the budget shrinks.
const IN_VAIN: u32 = 3;
/// Looks this far apart: perhaps the processor was taken away. A time slice is longer.
const TAKEN_AWAY: u64 = 50_000;
/// Looks this far apart: it was, whatever the system counts. A virtual machine does not see its host's time slices.
const SLICE: u64 = 1_000_000;
/// The budget while others want the processor, at most.
const SHORT: u64 = 50_000;
/// How long spins are short after the processor was taken away: the first time, and at most.
const SHY: (u64, u64) = (1_000_000, 256_000_000);
/// "Soon": within so many times the last such pause.
const SOON: u64 = 8;

/// How often the system has given a thread's processor to others while the thread wanted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// The thread: a number that no other running thread of this process has.
    pub thread: usize,
    /// How often, so far.
    pub count: u64,
}

/// Decides how long to spin; one for all waits of a process.
#[derive(Clone, Debug)]
pub struct Spin {
    /// The most that the budget can be.
    most: u64,
    budget: u64,
    /// Quiet times in a row that outlasted every spin.
    in_vain: u32,
    /// When this quiet time was first looked at.
    since: Option<u64>,
    /// The last look.
    last: u64,
    /// The next look may be late: the spinner did something else.
    paused: bool,
    /// How often the processor had been given to others, as last heard, if the system counts that.
    switches: Option<Switches>,
    /// Until when spins are short, and how long that lasts.
    shy_until: u64,
    shy_for: u64,
}

impl Spin {
    /// Spins for `most` at most.
    #[must_use]
    pub fn new(most: Duration) -> Spin {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Spin {
            most,
            budget: most,
            in_vain: 0,
            since: None,
            last: 0,
            paused: false,
            switches: None,
            shy_until: 0,
            shy_for: 0,
        }
    }

    /// A wait starts: what was quiet before it does not count.
    #[inline]
    pub fn start(&mut self) {
        self.since = None;
    }

    /// Nothing was found up to `now`; whether to go on spinning. `switches` tells how often the system has given the
    /// spinner's processor to others so far; it is asked only after a pause. If the system does not count, or another
    /// thread spun last, the pause counts as a switch.
    pub fn look(&mut self, now: u64, switches: impl FnOnce() -> Option<Switches>) -> bool {
        let pause = now.saturating_sub(self.last);
        let late = pause >= TAKEN_AWAY && !self.paused;
        let since = match self.since {
            Some(since) => {
                if late {
                    let (before, seen) = (self.switches, switches());
                    self.switches = seen;
                    if pause >= SLICE || seen.is_none() || seen != before {
                        self.taken_away(now);
                    }
                }
                since
            }
            None => *self.since.insert(now),
        };
        self.last = now;
        self.paused = false;
        let budget = if self.is_shy() { self.budget.min(SHORT) } else { self.budget };
        now.saturating_sub(since) < budget
    }

    /// The spinner did something else than looking, or is about to: the time until the next look says nothing.
    #[inline]
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// The spinner has slept until `now`.
    pub fn slept(&mut self, now: u64) {
        self.last = now;
        self.paused = true;
    }

    /// Something was found, or the wait is over: the quiet time has ended.
    #[inline]
    pub fn found(&mut self) {
        if let Some(since) = self.since.take() {
            self.learn(self.last.saturating_sub(since));
        }
    }

    /// Whether others want the processor, as far as is known.
    #[inline]
    #[must_use]
    pub fn is_shy(&self) -> bool {
        self.last < self.shy_until
    }

    fn learn(&mut self, took: u64) {
        if took > self.most {
            self.in_vain = self.in_vain.saturating_add(1);
            if self.in_vain >= IN_VAIN {
                self.budget = (self.budget / 2).max(LEAST.min(self.most));
            }
        } else {
            self.in_vain = 0;
            if took >= self.budget {
                self.budget = took.saturating_mul(2).min(self.most);
            }
        }
    }

    fn taken_away(&mut self, now: u64) {
        let (first, most) = SHY;
        let soon = now.saturating_sub(self.shy_until) <= self.shy_for.saturating_mul(SOON);
        self.shy_for = if soon { self.shy_for.saturating_mul(2).clamp(first, most) } else { first };
        self.shy_until = now.saturating_add(self.shy_for);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const MOST: u64 = 1_000 * US;

    fn spin() -> Spin {
        Spin::new(Duration::from_nanos(MOST))
    }

    /// Looks that come often ask nobody.
    fn count(count: u64) -> Option<Switches> {
        Some(Switches { thread: 1, count })
    }

    fn never() -> Option<Switches> {
        unreachable!("looks come often")
    }

    /// Looks every microsecond from `from` on, until told to stop or `until`; the time then.
    fn spins(spin: &mut Spin, from: u64, until: u64) -> u64 {
        let mut now = from;
        while spin.look(now, never) && now < until {
            now += US;
        }
        now
    }

    /// A wait for something that comes after `length`: how long it was spun for. The rest is slept.
    fn wait(spin: &mut Spin, now: &mut u64, length: u64) -> u64 {
        let from = *now;
        spin.start();
        let stopped = spins(spin, from, from + length);
        *now = from + length;
        if stopped < *now {
            spin.slept(*now);
        }
        spin.found();
        stopped - from
    }

    #[test]
    fn a_spin_lasts_for_its_budget_of_time() {
        let mut spin = spin();
        assert_eq!(spins(&mut spin, 7, u64::MAX), 7 + MOST);
        // What was quiet before does not count.
        spin.start();
        assert_eq!(spins(&mut spin, 5 * MOST, u64::MAX), 6 * MOST);
    }

    #[test]
    fn what_is_found_starts_afresh() {
        let mut spin = spin();
        spins(&mut spin, 0, MOST - US);
        spin.found();
        assert_eq!(spins(&mut spin, MOST, u64::MAX), 2 * MOST);
    }

    #[test]
    fn waits_in_vain_shrink_the_budget_and_short_ones_raise_it() {
        let mut spin = spin();
        let mut now = 0;
        let spun: Vec<u64> = (0..20).map(|_| wait(&mut spin, &mut now, 10 * MOST)).collect();
        assert_eq!(&spun[..3], &[MOST; 3], "a few in a row are no rule");
        assert!(spun.is_sorted_by(|a, b| a >= b) && spun[4] < MOST);
        assert_eq!(spun[19], LEAST);
        // Short waits are still met, and change nothing.
        assert_eq!(wait(&mut spin, &mut now, LEAST / 2), LEAST / 2);
        assert_eq!(wait(&mut spin, &mut now, 10 * MOST), LEAST);
        // One that a longer spin would have met is slept through, and the next is met.
        assert_eq!(wait(&mut spin, &mut now, 300 * US), LEAST);
        assert_eq!(wait(&mut spin, &mut now, 300 * US), 300 * US);
        assert_eq!(wait(&mut spin, &mut now, 900 * US), 600 * US);
        assert_eq!(wait(&mut spin, &mut now, 10 * MOST), MOST);
    }

    #[test]
    fn spins_are_short_after_the_processor_was_taken_away() {
        let mut spin = spin();
        assert!(spin.look(0, never) && spin.look(US, never));
        let back = US + 4_000 * US;
        assert!(!spin.look(back, || count(1)) && spin.is_shy());
        spin.found();
        spin.start();
        assert_eq!(spins(&mut spin, back, u64::MAX), back + SHORT);
        spin.start();
        let over = back + SHY.0;
        assert_eq!(spins(&mut spin, over, u64::MAX), over + MOST, "and then they are not");
    }

    #[test]
    fn that_lasts_longer_if_it_happens_again_soon() {
        let mut spin = spin();
        let mut now = 0;
        let mut pauses = Vec::new();
        for switches in 0..12 {
            spin.start();
            assert!(spin.look(now, never));
            now += 4_000 * US;
            assert!(!spin.look(now, || count(switches)));
            pauses.push(spin.shy_until - now);
            now = spin.shy_until;
        }
        assert_eq!(pauses[..3], [SHY.0, 2 * SHY.0, 4 * SHY.0]);
        assert_eq!(pauses[11], SHY.1);
        now += SHY.1 * (SOON + 1);
        spin.start();
        assert!(spin.look(now, never) && !spin.look(now + 4_000 * US, || count(12)));
        assert_eq!(spin.shy_for, SHY.0);
    }

    #[test]
    fn a_long_pause_and_one_that_is_not_counted_are_signs_of_others() {
        let looks = |pause, seen: Option<Switches>| {
            let mut spin = spin();
            assert!(spin.look(0, never));
            spin.look(TAKEN_AWAY, || count(7));
            let quiet = spin.shy_until;
            spin.start();
            assert!(spin.look(quiet, never));
            spin.look(quiet + pause, || seen);
            spin.is_shy()
        };
        assert!(!looks(SLICE - 1, count(7)));
        assert!(looks(SLICE, count(7)), "whatever is counted");
        assert!(looks(TAKEN_AWAY, count(8)) && looks(TAKEN_AWAY, None));
        let other = Some(Switches { thread: 2, count: 7 });
        assert!(looks(TAKEN_AWAY, other), "another thread's count says nothing of this one's");
    }

    #[test]
    fn an_interrupt_a_sleep_and_other_work_are_no_sign_of_others() {
        let mut spin = spin();
        assert!(spin.look(0, never) && spin.look(TAKEN_AWAY - 1, never));
        spin.slept(TAKEN_AWAY * 3);
        assert!(spin.look(TAKEN_AWAY * 4, never));
        spin.start();
        assert!(spin.look(MOST * 2, never));
        spin.pause();
        assert!(spin.look(MOST * 2 + TAKEN_AWAY, never));
        assert!(!spin.is_shy());
    }

    #[test]
    fn a_long_interrupt_gives_the_processor_to_nobody() {
        let mut spin = spin();
        // Nothing was heard before: it may have been somebody.
        assert!(spin.look(0, never));
        spin.look(TAKEN_AWAY, || count(7));
        assert!(spin.is_shy());
        let quiet = TAKEN_AWAY + SHY.0;
        spin.start();
        for at in 0..5 {
            assert!(spin.look(quiet + at * TAKEN_AWAY, || count(7)));
            assert!(!spin.is_shy());
        }
        spin.look(quiet + 5 * TAKEN_AWAY, || count(8));
        assert!(spin.is_shy());
        assert_eq!(spin.shy_for, 2 * SHY.0, "soon after the first");
    }

    #[test]
    fn without_a_budget_it_never_spins() {
        let mut spin = Spin::new(Duration::ZERO);
        let mut now = 0;
        assert!((0..10).all(|_| wait(&mut spin, &mut now, 100 * US) == 0));
    }
}
