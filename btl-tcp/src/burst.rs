//! Whether short messages may wait for each other: a decision from what waiting has cost so far. Pure: the time is an
//! argument.
//!
//! A message that leaves alone takes a microsecond or two, however short it is: the way through the system is as long for
//! one as for twenty. A **burst** is what a process sends to one peer without a poll in between. Its first message leaves
//! at once. The others can wait in the system until there are many, or until the next poll, and leave together. A program
//! that computes before it calls again holds them up by that, or until the other host has acknowledged the first, and
//! nobody knows beforehand what a program does.
//!
//! So each burst is judged when it is over, whether its messages have waited or not. Each of its messages but the first
//! has earned what waiting saves, and the burst has cost the time in which the program did something else while messages
//! waited. They wait only while bursts have earned more than they cost. So whatever a program does, waiting costs at most
//! a microsecond for each message, but for one burst: what was earned by many bursts with a poll right behind can be lost
//! once when the program changes its ways.

use std::time::{Duration, Instant};

/// What is saved by a message that does not leave alone.
const SAVED_NS: i64 = 1_000;
/// A message that begins so soon after the last one has been given to the system is sent in one go with it.
const STEP: Duration = Duration::from_micros(2);
/// The system lets nothing wait for longer (`tcp(7)`: MSG_MORE is as TCP_CORK for one call).
const LONGEST: Duration = Duration::from_millis(200);
/// So many messages are worth the call that has them leave. If the last burst had fewer, none waits: the next is likely to
/// be as short.
const FEW: u32 = 3;
/// So much has to be earned before anything waits.
const FIRST_NS: i64 = 100 * SAVED_NS;
/// More than this is not put by: it is soon clear that a program has changed its ways.
const MOST_NS: i64 = 1_000 * SAVED_NS;

/// What a new message of a burst does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It may wait for others.
    Waits,
    /// It leaves, and all that wait leave with it.
    Leaves,
}

/// The bursts to one peer.
#[derive(Clone, Debug)]
pub(crate) struct Burst {
    /// When the system had taken the last message of the burst, if that is not the first.
    last: Option<Instant>,
    /// Its messages but the first; and those of the burst before.
    count: u32,
    before: u32,
    /// What bursts have earned, less what they cost, in nanoseconds.
    balance: i64,
}

impl Burst {
    pub(crate) fn new() -> Burst {
        Burst { last: None, count: 0, before: 0, balance: -FIRST_NS }
    }

    /// As if bursts had earned as much as they can.
    #[cfg(test)]
    pub(crate) fn trusted() -> Burst {
        Burst { last: None, count: 0, before: FEW, balance: MOST_NS }
    }

    /// Whether the burst has more than one message.
    pub(crate) fn goes_on(&self) -> bool {
        self.last.is_some()
    }

    /// Another message of the burst, which is not the first.
    pub(crate) fn next(&mut self, now: Instant) -> Next {
        if let Some(last) = self.last.replace(now) {
            self.pay(now.saturating_duration_since(last));
        }
        self.balance = self.balance.saturating_add(SAVED_NS).min(MOST_NS);
        self.count = self.count.saturating_add(1);
        if self.balance > 0 && self.before >= FEW { Next::Waits } else { Next::Leaves }
    }

    /// The system has taken the message: how long that took is no fault of the program.
    pub(crate) fn sent(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// A poll: what waits leaves.
    pub(crate) fn end(&mut self, now: Instant) {
        if let Some(last) = self.last.take() {
            self.pay(now.saturating_duration_since(last));
            self.before = std::mem::take(&mut self.count);
        }
    }

    /// Time has passed while messages waited, or would have.
    fn pay(&mut self, pause: Duration) {
        let idle = pause.saturating_sub(STEP).min(LONGEST);
        let idle = i64::try_from(idle.as_nanos()).unwrap_or(i64::MAX);
        self.balance = self.balance.saturating_sub(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// A burst of so many messages behind the first, each a step after the other, and a poll after a pause; how many
    /// of them waited.
    fn burst(
        burst: &mut Burst,
        now: &mut Instant,
        count: u32,
        step: Duration,
        pause: Duration,
    ) -> u32 {
        let mut waited = 0;
        for _ in 0..count {
            *now += step;
            waited += u32::from(burst.next(*now) == Next::Waits);
            // However long the system takes.
            *now += 7 * US;
            burst.sent(*now);
        }
        assert!(burst.goes_on());
        *now += pause;
        burst.end(*now);
        assert!(!burst.goes_on());
        waited
    }

    #[test]
    fn windows_soon_leave_together() {
        let (mut it, mut now) = (Burst::new(), Instant::now());
        assert_eq!(burst(&mut it, &mut now, 63, US, US), 0, "nothing is known of the program");
        assert_eq!(burst(&mut it, &mut now, 63, US, US), 26);
        for _ in 0..100 {
            assert_eq!(burst(&mut it, &mut now, 63, US, 2 * US), 63);
        }
    }

    #[test]
    fn whoever_computes_before_the_next_call_is_not_held_up() {
        let (mut it, mut now) = (Burst::new(), Instant::now());
        for _ in 0..1000 {
            assert_eq!(burst(&mut it, &mut now, 3, 2 * US, 100 * US), 0);
        }
        // Messages that come one by one are no burst, either.
        for _ in 0..1000 {
            assert_eq!(burst(&mut it, &mut now, 100, 4 * US, US), 0);
        }
    }

    #[test]
    fn a_few_messages_do_not_wait() {
        let (mut it, mut now) = (Burst::trusted(), Instant::now());
        assert_eq!(burst(&mut it, &mut now, 2, US, US), 2);
        assert_eq!(burst(&mut it, &mut now, 3, US, US), 0, "the last one was short");
        assert_eq!(burst(&mut it, &mut now, 2, US, US), 2);
        assert_eq!(burst(&mut it, &mut now, 2, US, US), 0);
    }

    /// Whatever a program does.
    #[test]
    fn waiting_costs_a_microsecond_for_each_message_at_most() {
        let mut random = crate::tests::Random::new(crate::tests::seed());
        // Long pauses of the second kind cost about what all messages earn.
        for long in [300, 3_000] {
            let (mut it, mut now) = (Burst::new(), Instant::now());
            let (mut sent, mut waited) = (0, 0);
            let (mut lost, mut worst) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..20_000 {
                let pause = US * [1, 3, 30, long][random.below(100).saturating_sub(96)];
                let count = if random.below(2) == 0 { 1 } else { 64 };
                let waits = burst(&mut it, &mut now, count, US, pause);
                (sent, waited) = (sent + count, waited + waits);
                if waits > 0 {
                    lost += pause.saturating_sub(STEP);
                    worst = worst.max(pause);
                }
            }
            assert!(waited > 1000 || long > 300, "{waited}");
            assert!(lost <= US * sent + worst, "{lost:?} lost with {sent} messages");
        }
    }

    #[test]
    fn a_change_of_ways_costs_one_burst_and_is_remembered() {
        let (mut it, mut now) = (Burst::trusted(), Instant::now());
        assert_eq!(burst(&mut it, &mut now, 3, US, 100_000 * US), 3);
        for _ in 0..100 {
            assert_eq!(burst(&mut it, &mut now, 900, US, US), 0, "what it cost is not earned yet");
        }
        for _ in 0..20 {
            burst(&mut it, &mut now, 900, US, US);
        }
        assert_eq!(burst(&mut it, &mut now, 900, US, US), 900);
    }
}
