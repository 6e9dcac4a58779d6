//! Several rails that are used together, each of which may be cut at any step: what was sent arrives once each, in order,
//! as long as one is left. The rails are moved by hand: nothing flies, arrives or is confirmed by itself.

mod ends;
mod near;
mod trials;
mod window;

use super::named;
use crate::{Bml, Handler, Rank, RankEvent};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::pool::HeapPool;
use gapless_btl::{
    Address, AmTag, Btl, Event, Fragment, Limits, LinkError, PeerId, ReserveError, Short, Sink,
    Slot, Token, Unacknowledged, hand_out,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// Slots of an end, and buffers for what arrives there: few, so that both run out.
const SLOTS: usize = 4;
const BUFFERS: usize = 2;
const TAG: AmTag = AmTag(7);

/// One way of a line.
#[derive(Default)]
struct Way {
    /// Sent, and neither arrived nor lost.
    flying: VecDeque<(AmTag, Vec<u8>, Token)>,
    arrived: VecDeque<(AmTag, Vec<u8>)>,
    retained: VecDeque<Unacknowledged>,
    /// How many were handed to the receiver and not confirmed.
    had: usize,
    /// Tokens of those that have left.
    left: Vec<Token>,
}

/// A rail between two ends, as both see it.
#[derive(Default)]
struct State {
    /// By the end that it leads to.
    ways: [Way; 2],
    cut: bool,
    /// Which ends know, and why.
    ends: [Option<LinkError>; 2],
    /// The end of another link that this end is to be told of.
    other: Option<LinkError>,
}

#[derive(Clone, Default)]
struct Line(Arc<Mutex<State>>);

impl Line {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The next message to an end arrives; whether there was one.
    fn deliver(&self, to: usize) -> bool {
        let way = &mut self.state().ways[to];
        let Some((tag, message, token)) = way.flying.pop_front() else { return false };
        way.arrived.push_back((tag, message));
        if token != Token::NONE {
            way.left.push(token);
            let kept = way.retained.iter_mut().find(|kept| kept.done == token);
            kept.expect("it is retained").done = Token::NONE;
        }
        true
    }

    fn deliver_all(&self, to: usize) {
        while self.deliver(to) {}
    }

    /// Whether something is on its way to an end.
    fn flies(&self, to: usize) -> bool {
        !self.state().ways[to].flying.is_empty()
    }

    /// The sender learns what this end has had.
    fn confirm(&self, to: usize) {
        let way = &mut self.state().ways[to];
        // Of a rail that has ended, the sender has taken what was retained.
        let had = std::mem::take(&mut way.had).min(way.retained.len());
        way.retained.drain(..had);
    }

    /// What flies is lost, and nothing flies any more.
    fn cut(&self) {
        let mut state = self.state();
        state.cut = true;
        state.ways.iter_mut().for_each(|way| way.flying.clear());
    }

    /// An end learns that the rail has ended.
    fn notice(&self, end: usize, error: LinkError) {
        self.state().ends[end].get_or_insert(error);
    }
}

/// An end of a line.
struct End {
    line: Line,
    me: usize,
    limits: Limits,
    slots: HeapPool,
    buffers: HeapPool,
    ready: VecDeque<Event>,
    lost: bool,
}

impl End {
    fn new(line: &Line, me: usize, name: &'static str) -> End {
        End::of(line, me, name, 256)
    }

    /// With messages of so many bytes.
    fn of(line: &Line, me: usize, name: &'static str, bytes: usize) -> End {
        let limits = Limits {
            name,
            eager_bytes: bytes,
            max_fragment_bytes: bytes,
            ordered: true,
            latency_ns: 1000,
            bandwidth_mb_s: 1,
            // No test takes so long.
            death_notice_ms: 60_000,
        };
        let (slots, buffers) = (HeapPool::new(SLOTS, bytes), HeapPool::new(BUFFERS, bytes));
        let ready = VecDeque::new();
        End { line: line.clone(), me, limits, slots, buffers, ready, lost: false }
    }
}

impl Btl for End {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> Address {
        Address::new(self.limits.name.as_bytes()).unwrap()
    }

    /// By another address there is another link.
    fn connect(&mut self, address: &Address) -> Result<PeerId, LinkError> {
        Ok(PeerId(u32::from(*address != self.address())))
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        let state = self.line.state();
        if let Some(error) = &state.ends[self.me] {
            return Err(error.clone().into());
        }
        // What is retained needs its slot.
        if state.ways[1 - self.me].retained.len() >= SLOTS {
            return Err(ReserveError::Full);
        }
        self.slots.slot(to, len)
    }

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        let message = slot.to_vec().unwrap();
        let mut state = self.line.state();
        let cut = state.cut;
        let way = &mut state.ways[1 - self.me];
        if !cut {
            way.flying.push_back((tag, message.clone(), done));
        }
        way.retained.push_back(Unacknowledged { tag, message, done });
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        let mut state = self.line.state();
        let ended = state.ends[self.me].clone();
        let way = &mut state.ways[self.me];
        while let Some((tag, message)) = way.arrived.front() {
            let spare =
                || ended.is_some().then(|| HeapPool::new(1, message.len()).buffer(message.len()));
            let buffer = self.buffers.buffer(message.len()).or_else(|| spare().flatten());
            let Some(mut buffer) = buffer else { break };
            buffer.copy_from_slice(message);
            let (from, tag, fragment) = (PeerId(0), *tag, buffer.into_fragment());
            self.ready.push_back(Event::Arrived { from, tag, fragment });
            way.arrived.pop_front();
            way.had += 1;
        }
        for token in std::mem::take(&mut state.ways[1 - self.me].left) {
            self.ready.push_back(Event::Sent { token, result: Ok(()) });
        }
        if let Some(error) = state.other.take() {
            self.ready.push_back(Event::Lost { peer: PeerId(1), error });
        }
        drop(state);
        if let Some(error) = ended
            && !std::mem::replace(&mut self.lost, true)
        {
            self.ready.push_back(Event::Lost { peer: PeerId(0), error });
        }
        hand_out(&mut self.ready, only, sink)
    }

    fn retains(&self) -> bool {
        true
    }

    fn unacknowledged(&mut self, peer: PeerId) -> Vec<Unacknowledged> {
        if peer != PeerId(0) {
            return Vec::new();
        }
        self.line.state().ways[1 - self.me].retained.drain(..).collect()
    }

    fn outstanding(&self, _: PeerId) -> u64 {
        let state = self.line.state();
        state.ways[1 - self.me].retained.iter().map(|kept| kept.message.len() as u64).sum()
    }
}

/// Takes messages, at once or as events.
#[derive(Default)]
struct Taker {
    at_once: bool,
    got: Vec<u8>,
    sent: Vec<(u64, bool)>,
    lost: Vec<LinkError>,
}

impl Handler for Taker {
    fn handle(&mut self, _: &mut Bml, event: RankEvent) {
        assert!(self.lost.is_empty(), "{event:?} after the loss");
        match event {
            RankEvent::Arrived { tag: TAG, fragment, .. } => {
                self.got.push(fragment.to_vec().unwrap()[0]);
            }
            RankEvent::Sent { token, result } => self.sent.push((token.0, result.is_ok())),
            RankEvent::Lost { error, .. } => self.lost.push(error),
            other => panic!("{other:?}"),
        }
    }

    fn short(&mut self, _: Rank, _: AmTag, _: Short<'_>) -> bool {
        panic!("these rails have none")
    }

    fn fragment(&mut self, _: Rank, _: AmTag, fragment: &Fragment) -> bool {
        if self.at_once {
            self.got.push(fragment.to_vec().unwrap()[0]);
        }
        self.at_once
    }
}

/// Two ranks and the rails between them.
struct Job {
    ranks: [Bml; 2],
    takers: [Taker; 2],
    lines: Vec<Line>,
    said: [u8; 2],
    /// The least length of messages.
    len: usize,
}

const NAMES: [&str; 3] = ["one", "two", "three"];

impl Job {
    fn new(rails: usize) -> Job {
        Job::of(rails, 1)
    }

    /// Whose messages are a little longer than `len`.
    fn of(rails: usize, len: usize) -> Job {
        let lines: Vec<Line> = (0..rails).map(|_| Line::default()).collect();
        let mut ranks = [0, 1].map(|me: usize| {
            let mut bml = Bml::new(Rank(u32::try_from(me).unwrap()), 2);
            for (line, name) in lines.iter().zip(NAMES) {
                bml.add(Box::new(End::of(line, me, name, len + 255)));
            }
            bml
        });
        let addresses = ranks[0].addresses();
        ranks[0].connect(Rank(1), &addresses).unwrap();
        ranks[1].connect(Rank(0), &addresses).unwrap();
        let takers = [false, true].map(|at_once| Taker { at_once, ..Taker::default() });
        Job { ranks, takers, lines, said: [0; 2], len }
    }

    /// Sends the next number, if there is room; lengths differ.
    fn say(&mut self, from: usize) -> bool {
        let to = Rank(u32::try_from(1 - from).unwrap());
        let number = self.said[from];
        let Ok(mut slot) = self.ranks[from].reserve(to, self.len + usize::from(number % 9)) else {
            return false;
        };
        slot.write(0, &[number]).unwrap();
        let token = if number.is_multiple_of(2) { Token(u64::from(number)) } else { Token::NONE };
        self.ranks[from].send(slot, TAG, token);
        self.said[from] += 1;
        true
    }

    /// The first rail on which something is on its way to rank 1.
    fn carrier(&self) -> usize {
        self.lines.iter().position(|line| line.flies(1)).expect("something was said")
    }

    /// Rank 0 says something over each of two rails; which one has the first.
    fn say_over_both(&mut self) -> usize {
        assert!(self.say(0));
        let carrier = self.carrier();
        while !self.lines[1 - carrier].flies(1) {
            assert!(self.say(0));
        }
        carrier
    }

    fn poll(&mut self, rank: usize) {
        self.ranks[rank].poll(&mut self.takers[rank]);
    }

    /// Whether an end has all that it will have.
    fn is_done(&self, rank: usize) -> bool {
        let Taker { got, sent, lost, .. } = &self.takers[rank];
        let all = got.len() == usize::from(self.said[1 - rank]);
        !lost.is_empty() || all && sent.len() == usize::from(self.said[rank].div_ceil(2))
    }

    /// Lets everything come to rest.
    fn rest(&mut self, until: u8) {
        for round in 0..200 {
            let said = self.said.iter().all(|said| *said >= until);
            if round > 2 && said && self.is_done(0) && self.is_done(1) {
                return;
            }
            self.turn(until);
        }
    }

    /// Both ends say what is left and there is room for, poll, and have what flies.
    fn turn(&mut self, until: u8) {
        for rank in 0..2 {
            while self.said[rank] < until && self.say(rank) {}
            self.poll(rank);
            for line in &self.lines {
                line.deliver_all(rank);
                line.confirm(rank);
            }
        }
    }

    /// Each number once and in order; each token once.
    fn check(&self, whole: bool, what: &dyn Fn() -> String) {
        for rank in 0..2 {
            let Taker { got, sent, lost, .. } = &self.takers[rank];
            let expected: Vec<u8> = (0..self.said[1 - rank]).collect();
            let right = if whole { *got == expected } else { expected.starts_with(got) };
            assert!(right, "rank {rank} got {got:?} of {}: {}", expected.len(), what());
            let mut tokens: Vec<u64> = sent.iter().map(|(token, _)| *token).collect();
            tokens.sort_unstable();
            let all: Vec<u64> = (0..u64::from(self.said[rank])).step_by(2).collect();
            assert_eq!(tokens, all, "rank {rank}: {}", what());
            assert_eq!(lost.len(), usize::from(!whole), "rank {rank}: {}", what());
            assert!(!whole || sent.iter().all(|(_, right)| *right), "{}", what());
        }
    }
}

/// What happens in a step.
#[derive(Clone, Copy, Debug)]
enum RailStep {
    Say(usize),
    Poll(usize),
    Deliver(usize, usize),
    Confirm(usize, usize),
}

/// Steps from a seed (xorshift).
fn script(seed: u64, rails: usize, count: usize) -> Vec<RailStep> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap() % bound
    };
    let mut step = || match below(8) {
        0..3 => RailStep::Say(below(2)),
        3 => RailStep::Poll(below(2)),
        4..7 => RailStep::Deliver(below(rails), below(2)),
        _ => RailStep::Confirm(below(rails), below(2)),
    };
    (0..count).map(|_| step()).collect()
}

fn gone() -> LinkError {
    LinkError::PeerGone { reason: "the connection was closed".to_owned() }
}

/// Runs a script during which rails are cut: at which step, which, and how many steps later each end notices. Rank 0
/// leaves at a step, if one is given, and says nothing more.
fn run(
    script: &[RailStep],
    rails: usize,
    cuts: &[(usize, usize, [usize; 2])],
    leaves: Option<usize>,
) -> Job {
    run_job(Job::new(rails), script, cuts, leaves)
}

/// The same with a job of the caller's.
fn run_job(
    mut job: Job,
    script: &[RailStep],
    cuts: &[(usize, usize, [usize; 2])],
    leaves: Option<usize>,
) -> Job {
    for (at, step) in script.iter().enumerate() {
        if leaves == Some(at) {
            job.ranks[0].leave_well();
        }
        for (when, line, delays) in cuts {
            if at == *when {
                job.lines[*line].cut();
            }
            for end in (0..2).filter(|&end| at == when + delays[end]) {
                job.lines[*line].notice(end, gone());
            }
        }
        match *step {
            RailStep::Say(0) if leaves.is_some_and(|step| step <= at) => {}
            RailStep::Say(from) => {
                job.say(from);
            }
            RailStep::Poll(rank) => job.poll(rank),
            RailStep::Deliver(line, to) => {
                job.lines[line].deliver(to);
            }
            RailStep::Confirm(line, to) => job.lines[line].confirm(to),
        }
    }
    for (_, line, _) in cuts {
        job.lines[*line].cut();
        (0..2).for_each(|end| job.lines[*line].notice(end, gone()));
    }
    job
}

const STEPS: usize = 48;
const DELAYS: [[usize; 2]; 4] = [[0, 0], [0, 9], [9, 0], [3, 60]];

#[test]
fn a_rail_may_be_cut_at_any_step() {
    for seed in 0..4 {
        let script = script(seed, 2, STEPS);
        for at in 0..STEPS {
            for (line, delays) in (0..2).flat_map(|line| DELAYS.map(|delays| (line, delays))) {
                let mut job = run(&script, 2, &[(at, line, delays)], None);
                job.rest(30);
                job.check(true, &|| format!("seed {seed}, line {line} cut at {at}, {delays:?}"));
            }
        }
    }
}

#[test]
fn two_of_three_rails_may_be_cut() {
    for seed in 0..2 {
        let script = script(100 + seed, 3, STEPS);
        for first in (0..STEPS).step_by(2) {
            for second in (first..STEPS).step_by(3) {
                let cuts = [(first, 0, [0, 5]), (second, 1 + second % 2, [7, 1])];
                let mut job = run(&script, 3, &cuts, None);
                job.rest(30);
                job.check(true, &|| format!("seed {seed}, cuts {cuts:?}"));
            }
        }
    }
}

#[test]
fn without_a_rail_the_peer_is_lost_once_and_nothing_is_doubled() {
    for seed in 0..2 {
        let script = script(200 + seed, 2, STEPS);
        for first in (0..STEPS).step_by(3) {
            for second in (first..STEPS).step_by(5) {
                let cuts = [(first, 0, [0, 4]), (second, 1, [6, 2])];
                let mut job = run(&script, 2, &cuts, None);
                job.rest(0);
                job.check(false, &|| format!("seed {seed}, cuts {cuts:?}"));
                assert!(!job.say(0));
            }
        }
    }
}

#[test]
fn rails_that_live_are_all_used() {
    let mut job = Job::new(3);
    assert_eq!(job.ranks[0].rails_to(Rank(1)).len(), 3);
    assert_eq!(job.ranks[0].limits(Rank(1)).unwrap().max_fragment_bytes, 248);
    while job.say(0) {}
    let carried = job.lines.iter().map(|line| line.state().ways[1].flying.len());
    assert_eq!(carried.collect::<Vec<_>>(), [SLOTS; 3]);
    job.rest(30);
    job.check(true, &String::new);
    assert!(job.ranks[0].rails_to(Rank(0)).is_empty());
}

#[test]
fn a_peer_that_breaks_the_rules_is_lost_whatever_rails_are_left() {
    let mut job = Job::new(2);
    job.rest(4);
    job.lines[1].notice(0, LinkError::Corrupt { what: "a silly header".to_owned() });
    job.poll(0);
    assert!(matches!(&job.takers[0].lost[..], [LinkError::Corrupt { .. }]));
    // It is told, over the other.
    job.ranks[0].poll(&mut Taker::default());
    assert!(job.lines[0].deliver(1));
    job.poll(1);
    assert!(matches!(&job.takers[1].lost[..], [LinkError::PeerGone { .. }]));
}

#[test]
fn a_message_without_a_number_is_refused() {
    for message in [&b"short"[..], b""] {
        let mut job = Job::new(2);
        job.lines[0].state().ways[1].arrived.push_back((TAG, message.to_vec()));
        job.poll(1);
        job.poll(1);
        assert!(matches!(&job.takers[1].lost[..], [LinkError::Corrupt { .. }]), "{message:?}");
    }
}

#[test]
fn rails_that_do_not_retain_are_not_used_together() {
    let hub = Hub::new();
    let line = Line::default();
    let mut ranks = [0, 1].map(|me| {
        let mut bml = Bml::new(Rank(u32::try_from(me).unwrap()), 2);
        bml.add(Box::new(Loopback::with(&hub, named("near", 100))));
        bml.add(Box::new(End::new(&line, me, "far")));
        bml
    });
    let addresses = ranks[1].addresses();
    ranks[0].connect(Rank(1), &addresses).unwrap();
    assert!(ranks[0].rails_to(Rank(1)).is_empty());
    assert_eq!(ranks[0].limits(Rank(1)).unwrap().name, "near");
}

/// Rails that could be used together are not if the caller says so: one path, and no numbers.
#[test]
fn rails_that_are_introduced_apart_are_not_used_together() {
    let line = Line::default();
    let mut bml = Bml::new(Rank(0), 2);
    for name in &NAMES[..2] {
        bml.add(Box::new(End::new(&line, 0, name)));
    }
    let addresses = bml.addresses();
    bml.introduce_apart(Rank(1), &addresses).unwrap();
    assert!(bml.rails_to(Rank(1)).is_empty());
    assert_eq!(bml.limits(Rank(1)).unwrap().max_fragment_bytes, 256, "without room for a number");
}

/// What cannot be sent any more is told, whatever else is settled before.
#[test]
fn a_message_to_a_lost_peer_ends_even_if_others_are_told_first() {
    let mut job = Job::new(2);
    job.rest(3);
    let mut slot = job.ranks[0].reserve(Rank(1), 1).unwrap();
    slot.write(0, &[3]).unwrap();
    job.ranks[0].give_up(Rank(1), gone());
    job.poll(0);
    job.ranks[0].send(slot, TAG, Token(77));
    job.ranks[0].leave_well();
    let mut taker = Taker::default();
    job.ranks[0].poll(&mut taker);
    assert_eq!(taker.sent, [(77, false)]);
}
