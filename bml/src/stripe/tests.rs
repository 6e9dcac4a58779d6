//! Rails that deliver at rates of the test's choice, on a clock that it moves.

use super::*;
use std::collections::{BTreeSet, VecDeque};

/// A fragment of TCP with its number.
const PIECE: u64 = 131_336;
/// What may be under way on a rail, in pieces.
const BUFFERS: usize = 16;
/// Pieces from the oldest one that has not come.
const WINDOW: u64 = (64 << 20) / PIECE;
/// A step of the clock, in nanoseconds.
const STEP_NS: u64 = 20_000;
const MIB: u64 = 1 << 20;

impl AsRef<Rate> for Rate {
    fn as_ref(&self) -> &Rate {
        self
    }
}

impl AsMut<Rate> for Rate {
    fn as_mut(&mut self) -> &mut Rate {
        self
    }
}

/// One rail, as its two ends see it.
struct Line {
    rate: Rate,
    /// Bytes a microsecond, and what may go at once after a rest.
    speed: u64,
    burst: u64,
    /// Numbers of pieces under way, and how many bytes of the first have come.
    queue: VecDeque<u64>,
    come: u64,
    spare: u64,
    carried: u64,
    /// Pieces that have come to a receiver that does not poll.
    held: u64,
}

impl AsRef<Rate> for Line {
    fn as_ref(&self) -> &Rate {
        &self.rate
    }
}

impl AsMut<Rate> for Line {
    fn as_mut(&mut self) -> &mut Rate {
        &mut self.rate
    }
}

fn outstanding(line: &Line) -> u64 {
    (line.queue.len() as u64 + line.held) * PIECE
}

impl Line {
    fn send(&mut self, number: u64) {
        self.queue.push_back(number);
        self.carried += PIECE;
        self.rate.sent(PIECE);
    }
}

struct Sim {
    lines: Vec<Line>,
    looks: Looks,
    now_ns: u64,
    /// The numbers of the piece that is sent next, and of the one that the receiver waits for.
    next: u64,
    expected: u64,
    /// Those that came early.
    parked: BTreeSet<u64>,
    /// The receiver does not poll.
    away: bool,
}

impl Sim {
    fn new(speeds: &[u64], burst: u64) -> Sim {
        let line = |&speed: &u64| Line {
            rate: Rate::new(12_000, 2_500),
            speed,
            burst,
            queue: VecDeque::new(),
            come: 0,
            spare: burst,
            carried: 0,
            held: 0,
        };
        let lines = speeds.iter().map(line).collect();
        let (looks, parked) = (Looks::default(), BTreeSet::new());
        Sim { lines, looks, now_ns: 1, next: 0, expected: 0, parked, away: false }
    }

    /// Time passes on the wire and at the receiver.
    fn step(&mut self) {
        self.now_ns += STEP_NS;
        for line in &mut self.lines {
            let bytes = line.speed * STEP_NS / 1000;
            line.spare = (line.spare + bytes).min(line.burst + bytes);
            while let Some(&number) = line.queue.front()
                && line.spare > 0
            {
                let part = line.spare.min(PIECE - line.come);
                line.spare -= part;
                line.come += part;
                if line.come < PIECE {
                    break;
                }
                line.queue.pop_front();
                line.come = 0;
                line.held += u64::from(self.away);
                // Doubles are dropped.
                if number >= self.expected {
                    self.parked.insert(number);
                }
            }
        }
        while self.parked.remove(&self.expected) {
            self.expected += 1;
        }
    }

    /// Sends as much as there is room for, up to piece `end`.
    fn send(&mut self, end: u64) {
        while self.next < end && self.next < self.expected + WINDOW {
            self.looks.look(&mut self.lines, self.now_ns, outstanding);
            let Some(at) = best(&self.lines, 0, (PIECE, true), outstanding, |_, ns| ns) else {
                return;
            };
            if self.lines[at].queue.len() >= BUFFERS {
                return;
            }
            self.lines[at].send(self.next);
            if copies(outstanding(&self.lines[at])) {
                for other in (0..self.lines.len()).filter(|other| *other != at) {
                    let line = &mut self.lines[other];
                    if line.rate.wants_copy(outstanding(line), PIECE) {
                        line.send(self.next);
                    }
                }
            }
            self.next += 1;
        }
    }

    /// Sends messages of so many bytes, one after the other. Gives the rate in bytes per millisecond.
    fn messages(&mut self, count: u64, len: u64) -> u64 {
        let begin = self.now_ns;
        let pieces = len.div_ceil(PIECE);
        for _ in 0..count {
            let end = self.next + pieces;
            while self.expected < end {
                self.send(end);
                self.step();
                self.looks.look(&mut self.lines, self.now_ns, outstanding);
                assert!(self.now_ns - begin < 1_000_000_000_000, "nothing comes any more");
            }
        }
        count * pieces * PIECE * 1_000_000 / (self.now_ns - begin)
    }

    /// Both ends compute for so long: what is under way comes, and is confirmed a little later than they poll again.
    fn pause(&mut self, ns: u64) {
        self.away = true;
        (0..ns / STEP_NS).for_each(|_| self.step());
        self.away = false;
        for _ in 0..2 {
            self.looks.look(&mut self.lines, self.now_ns, outstanding);
            self.now_ns += 1000;
        }
        self.lines.iter_mut().for_each(|line| line.held = 0);
        self.looks.look(&mut self.lines, self.now_ns, outstanding);
    }

    /// What each rail carried, copies too, in thousandths.
    fn shares(&self) -> Vec<u64> {
        let all: u64 = self.lines.iter().map(|it| it.carried).sum();
        self.lines.iter().map(|it| it.carried * 1000 / all).collect()
    }
}

/// Rates, and which rail is the first one, by a seed (xorshift).
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |bound| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) % bound
    }
}

/// For several rates: those of two rails, of which the second is so many times slower, and whether they are the other way
/// round.
fn pairs(ratio: u64) -> impl Iterator<Item = (String, u64, [u64; 2], u64)> {
    (1..9).map(move |seed| {
        let mut below = random(seed + 1000 * ratio);
        let fast = ratio.max(50) + below(1000);
        let (mut speeds, burst) = ([fast, fast / ratio], below(3) * (128 << 10));
        if below(2) == 0 {
            speeds.reverse();
        }
        (format!("seed {seed}: {speeds:?}, burst {burst}"), fast, speeds, burst)
    })
}

#[test]
fn rails_of_equal_speed_are_used_alike() {
    for (what, fast, speeds, burst) in pairs(1) {
        for len in [8, 64] {
            let mut sim = Sim::new(&speeds, burst);
            let rate = sim.messages(12, len * MIB);
            assert!(rate >= fast * 10 * 180, "{what}: {rate} with {len} MiB");
            assert!(sim.shares().iter().all(|&share| share >= 430), "{what}: {:?}", sim.shares());
        }
    }
}

#[test]
fn rails_are_used_by_their_speed() {
    for (ratio, percent) in [(2, 135), (3, 120), (10, 97)] {
        for (what, fast, speeds, burst) in pairs(ratio) {
            let mut sim = Sim::new(&speeds, burst);
            let rate = sim.messages(12, 64 * MIB);
            assert!(rate >= fast * 10 * percent, "{what}: {rate}, {:?}", sim.shares());
        }
    }
}

#[test]
fn slow_rails_are_left_out() {
    for ratio in [50, 100, 1000] {
        for (what, fast, speeds, burst) in pairs(ratio) {
            let mut sim = Sim::new(&speeds, burst);
            let rate = sim.messages(8, 64 * MIB);
            let shares = sim.shares();
            assert!(shares.iter().any(|&share| share <= 30), "{what}: {shares:?}");
            assert!(rate >= fast * 10 * 97, "{what}: {rate}");
        }
    }
}

/// Many rounds that are waited for: each ends as soon as over the quick rail alone.
#[test]
fn slow_rails_hold_up_no_round() {
    for (what, fast, speeds, burst) in pairs(100) {
        let mut sim = Sim::new(&speeds, burst);
        let rate = sim.messages(400, 2 * MIB);
        assert!(rate >= fast * 10 * 95, "{what}: {rate}, {:?}", sim.shares());
    }
}

/// Programs that compute between messages: what comes meanwhile says nothing of how quick a rail is. One that lets some bytes
/// pass at once after a rest deceives in a few rounds.
#[test]
fn pauses_do_not_make_a_rail_look_quick() {
    for (what, fast, speeds, burst) in pairs(100) {
        for (len, ms) in [(2 * MIB, 300), (2 * MIB, 500), (4 * PIECE, 300), (2 * MIB, 20)] {
            let mut sim = Sim::new(&speeds, burst);
            let mut slow = 0;
            for _ in 0..60 {
                slow += u32::from(sim.messages(1, len) < fast * 10 * 50);
                sim.pause(ms * 1_000_000);
            }
            let most = if burst == 0 { 0 } else { 8 };
            assert!(slow <= most, "{what}: {slow} rounds of {len} bytes, {ms} ms");
        }
    }
}

#[test]
fn a_rail_that_becomes_slow_is_left_out_and_comes_back_when_it_recovers() {
    for (what, fast, speeds, burst) in pairs(1) {
        let mut sim = Sim::new(&speeds, burst);
        sim.messages(4, 16 * MIB);
        sim.lines[1].speed = (fast / 100).max(1);
        // What was under way on it is waited for.
        sim.messages(1, 64 * MIB);
        let before = sim.lines[1].carried;
        let rate = sim.messages(8, 64 * MIB);
        let carried = (sim.lines[1].carried - before) * 100 / (8 * 64 * MIB);
        assert!(rate >= fast * 10 * 95 && carried <= 3, "{what}: {rate}, {carried} %");
        sim.lines[1].speed = fast;
        let begin = sim.now_ns;
        while sim.now_ns - begin < 3 * RETRY_NS {
            sim.messages(1, 64 * MIB);
        }
        let rate = sim.messages(4, 64 * MIB);
        assert!(rate >= fast * 10 * 180, "{what}: {rate} again");
    }
}

#[test]
fn what_cannot_be_seen_does_not_count() {
    let mut rates = [Rate::new(0, 100), Rate::new(0, 100)];
    let (mut looks, mut now) = (Looks::default(), 1);
    let mut look = |rates: &mut [Rate; 2], ns: u64, outstanding: u64| {
        now += ns;
        looks.look(rates, now, |_| outstanding)
    };
    rates.iter_mut().for_each(|it| it.sent(MIB));
    assert!(look(&mut rates, 1, MIB));
    // Nobody polls for long, or the peer confirms nothing at all.
    look(&mut rates, 10 * GAP_NS, MIB);
    assert_eq!(rates[0].ns, 0);
    for _ in 0..10_000 {
        look(&mut rates, 1_000_000, MIB);
    }
    assert!(rates[0].ns <= QUIET_NS, "{rates:?}");
    // All was confirmed at some time.
    let before = rates[0].clone();
    assert!(!look(&mut rates, GAP_NS, 0));
    assert_eq!((rates[0].ns, rates[0].bytes), (before.ns, before.bytes));
    assert_eq!(rates[0].tried, before.tried);
}

#[test]
fn a_rail_that_is_never_behind_is_as_quick_as_the_best() {
    let mut rates = [Rate::new(0, 100), Rate::new(0, 100)];
    (rates[0].known, rates[0].measured) = (true, 77_000);
    let mut looks = Looks::default();
    for round in 0..20 {
        rates.iter_mut().for_each(|it| it.sent(128 << 10));
        // The first has always something to do.
        looks.look(&mut rates, 1 + round * 10_000, |it| if it.known { 128 << 10 } else { 0 });
    }
    assert!(rates[1].known && rates[1].measured() == 77, "{rates:?}");
}

#[test]
fn short_messages_take_the_quick_rail() {
    let (quick, slow) = (Rate::new(1_500, 2_500), Rate::new(12_000, 2_500));
    assert!(quick.there_in_ns(0, 64) < slow.there_in_ns(0, 64));
    assert!(quick.there_in_ns(1 << 20, 64) > slow.there_in_ns(0, 64));
    let silly = Rate::new(u32::MAX, 0);
    assert!(silly.there_in_ns(u64::MAX, u64::MAX) >= u64::MAX / 1000);
}

#[test]
fn only_known_rails_carry_if_there_is_one() {
    let mut rates = [Rate::new(0, 100), Rate::new(9_000, 1)];
    let choose = |rates: &[Rate], tried, outstanding| {
        best(rates, tried, (PIECE, true), |_| outstanding, |_, ns| ns)
    };
    assert_eq!(choose(&rates, 0, 0), Some(0));
    assert_eq!(choose(&rates, 0, TRIAL_ROOM), None, "they were not measured");
    rates[1].know();
    assert_eq!(choose(&rates, 0, TRIAL_ROOM), Some(1));
    assert_eq!(choose(&rates, 2, 0), Some(0), "the other one did not take it");
    assert_eq!(choose(&rates, 3, 0), None);
}

/// While no rail is known, one carries messages: half as much as the others have room for in copies, so that they have copies
/// of all.
#[test]
fn one_rail_on_trial_carries_half_of_what_copies_have_room_for() {
    let rails = [Rate::new(10, 1000), Rate::new(10, 1000)];
    let find = |under_way: u64, len: u64, measured: bool| {
        best(&rails, 0, (len, measured), |_| under_way, |_, ns| ns)
    };
    let rest = |room: u64| room - LAG_BYTES;
    let half = rest(TRIAL_ROOM / 2);
    assert_eq!([half, half + 1].map(|len| find(LAG_BYTES, len, true)), [Some(0), None]);
    assert_eq!(find(LAG_BYTES, half + 1, false), Some(0), "nobody measures");
    assert_eq!(find(LAG_BYTES - 1, TRIAL_ROOM, true), Some(0), "all of it may have come");
    let all = rest(TRIAL_ROOM);
    assert_eq!([all, all + 1].map(|len| rails[1].wants_copy(LAG_BYTES, len)), [true, false]);
}
