//! The flags of a relay, as `cuda/relay.h` has them, in steps that can be put into any order: what a lane
//! of either kernel does between two waits is one step. Kernels of one end follow each other as on a stream.
//! A waiting lane gives up (its patience ends) only where nobody can go on.

use super::*;
use crate::args::RelayArgs;
use std::collections::VecDeque;

/// What a flag says when nothing more comes.
const BROKEN: u64 = u64::MAX;

/// What became of a lane; see `RELAY_DONE` and its like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Done,
    Late,
    Peer,
}

/// A block of a kernel that runs.
#[derive(Clone, Copy)]
struct Lane {
    number: u64,
    turn: u64,
    ended: bool,
}

/// One end: its kernels, the first of which runs.
struct End {
    direction: Direction,
    kernels: VecDeque<RelayArgs>,
    lanes: Vec<Lane>,
    verdicts: Vec<Verdict>,
}

struct Model {
    /// Whether lanes raise their credit over turns that they have no fragment for.
    raises: bool,
    depth: u64,
    /// What lies in each place of each lane: the message's first turn, and the fragment.
    places: Vec<Vec<Option<(u64, u64)>>>,
    ready: Vec<u64>,
    credit: Vec<u64>,
    ends: [End; 2],
}

impl End {
    fn start(&mut self, lanes: usize) {
        let Some(args) = self.kernels.front() else { return };
        let lane = |number| Lane { number: number as u64, turn: args.turn, ended: false };
        self.lanes = (0..lanes).map(lane).collect();
    }
}

impl Model {
    fn new(ring: &RelayRing, lengths: &[u64], raises: bool) -> Model {
        let lanes = ring.lanes.get() as usize;
        let mut turn = 0;
        let mut ends = [Direction::Pack, Direction::Unpack].map(|direction| End {
            direction,
            kernels: VecDeque::new(),
            lanes: Vec::new(),
            verdicts: Vec::new(),
        });
        for &len in lengths {
            let this = RelayTurn { turn, patience: PATIENCE_MAX, rest_ns: REST_NS };
            for end in &mut ends {
                let side = TransferSide::Contiguous(0);
                let here = Place { address: 0, offset: 0 };
                let launch = relay(end.direction, &(0..len), &side, here, ring, this).unwrap();
                end.kernels.push_back(*launch.args);
                turn = launch.next_turn;
            }
        }
        ends.iter_mut().for_each(|end| end.start(lanes));
        let depth = u64::from(ring.depth.get());
        let places = vec![vec![None; ring.depth.get() as usize]; lanes];
        Model { raises, depth, places, ready: vec![0; lanes], credit: vec![0; lanes], ends }
    }

    /// One step of a lane, if it has one; `impatient`: its wait ends without what it waits for.
    fn step(&mut self, end: usize, at: usize, impatient: bool) -> bool {
        let lanes = self.ready.len() as u64;
        let End { direction, kernels, lanes: blocks, verdicts } = &mut self.ends[end];
        let (Some(args), lane) = (kernels.front(), &mut blocks[at]) else { return false };
        if lane.ended {
            return false;
        }
        let packs = *direction == Direction::Pack;
        let fragments = u64::from(args.words).div_ceil(u64::from(args.fragment));
        if lane.number < fragments {
            let (flag, wanted) = match packs {
                true => (self.credit[at], (lane.turn + 1).wrapping_sub(self.depth)),
                false => (self.ready[at], lane.turn + 1),
            };
            let there = flag.wrapping_sub(wanted).cast_signed() >= 0;
            let verdict = match flag {
                BROKEN => Verdict::Peer,
                _ if there => Verdict::Done,
                _ if impatient => Verdict::Late,
                _ => return false,
            };
            let told = if packs { &mut self.ready[at] } else { &mut self.credit[at] };
            if verdict != Verdict::Done {
                *told = BROKEN;
                lane.ended = true;
                verdicts.push(verdict);
            } else {
                let place = &mut self.places[at][usize::try_from(lane.turn % self.depth).unwrap()];
                let fragment = Some((args.turn, lane.number));
                if packs {
                    assert_eq!(std::mem::replace(place, fragment), None, "overwritten");
                } else {
                    assert_eq!(place.take(), fragment, "not what was sent");
                }
                lane.turn += 1;
                lane.number += lanes;
                *told = lane.turn;
            }
        } else {
            let next = args.turn + fragments.div_ceil(lanes);
            if self.raises && !packs && lane.turn != next {
                self.credit[at] = next;
            }
            lane.ended = true;
            verdicts.push(Verdict::Done);
        }
        if blocks.iter().all(|lane| lane.ended) {
            kernels.pop_front();
            self.ends[end].start(self.ready.len());
        }
        true
    }

    /// All steps, in an order that follows from `seed`; what became of the lanes.
    fn run(mut self, mut seed: u64) -> Vec<Verdict> {
        let lanes = self.ready.len();
        let mut random = move |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            usize::try_from(seed >> 33).unwrap() % below
        };
        while self.ends.iter().any(|end| !end.kernels.is_empty()) {
            let (first, side) = (random(2 * lanes), random(8));
            let all = (0..2 * lanes).map(|k| (first + k) % (2 * lanes));
            // One end is quicker than the other, now and then.
            let order: Vec<(usize, usize)> = match side {
                0 | 1 => (0..2).flat_map(|end| (0..lanes).map(move |b| (end ^ side, b))).collect(),
                _ => all.map(|k| (k % 2, k / 2)).collect(),
            };
            let mut go = |impatient| order.iter().any(|&(end, b)| self.step(end, b, impatient));
            assert!(go(false) || go(true), "who gives up goes on");
        }
        self.ends.into_iter().flat_map(|end| end.verdicts).collect()
    }
}

fn ring(lanes: u32, depth: u32) -> RelayRing {
    let number = |n| NonZeroU32::new(n).unwrap();
    RelayRing { lanes: number(lanes), depth: number(depth), fragment: number(64) }
}

/// Lengths of 40 messages: short ones in a row, long ones in between.
fn lengths(seed: u64) -> Vec<u64> {
    let most = [100, 500, 3000];
    let len = |k: u64| {
        let word = (seed * 1000 + k).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        1 + word % most[usize::try_from(word >> 20).unwrap() % most.len()]
    };
    (0..40).map(len).collect()
}

#[test]
fn messages_of_any_length_follow_each_other() {
    for seed in 1..=300 {
        let (lanes, depth) =
            (1 + u32::try_from(seed % 7).unwrap(), 2 + u32::try_from(seed % 3).unwrap());
        let model = Model::new(&ring(lanes, depth), &lengths(seed), true);
        let verdicts = model.run(seed);
        assert_eq!(verdicts.len(), 80 * lanes as usize);
        assert!(verdicts.iter().all(|&verdict| verdict == Verdict::Done), "seed {seed}");
    }
}

#[test]
fn without_raised_credit_short_messages_wait_for_ever() {
    // Three messages of one fragment, and one that has a fragment for each of four lanes.
    let lengths = [64, 64, 64, 256];
    let verdicts = |raises| Model::new(&ring(4, 2), &lengths, raises).run(1);
    assert!(verdicts(true).iter().all(|&verdict| verdict == Verdict::Done));
    let stuck = verdicts(false);
    assert!(stuck.contains(&Verdict::Late), "{stuck:?}");
    assert!((1..=300).any(|seed| {
        let verdicts = Model::new(&ring(5, 2), &super::model::lengths(seed), false).run(seed);
        verdicts.contains(&Verdict::Late)
    }));
}

#[test]
fn who_finds_the_other_end_gone_leaves() {
    for (end, gone) in [(0, 1), (1, 0)] {
        let mut model = Model::new(&ring(3, 2), &[64 * 40], true);
        model.ends[gone].kernels.clear();
        let verdicts = model.run(7);
        assert_eq!(verdicts, vec![Verdict::Late; 3], "{end}");
    }
}
