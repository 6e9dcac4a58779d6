//! The cost model: how long the schedules of all ranks would take.
//!
//! It is LogGP's, played step by step: a message occupies both ends' processors for a fixed time, its bytes leave and
//! arrive through one port each, and it travels for the latency of its wire. Copies and reductions occupy the
//! processor. A task is a message whose arrival costs the target's processor the message and the reduction, as if its
//! rank had nothing else for it to do. What ranks of a host do together begins when the last of them has come, takes
//! the latency within a host, and each rank's processor for its part. So the critical path is found, and who waits for
//! a busy rank waits in the model too.
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use crate::Level;
use crate::locality::Locality;
use crate::schedule::{Action, Place, Schedule};
use crate::together::Together;

/// What a message costs between two ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wire {
    /// From its leaving to its arriving, in seconds, if it had no bytes: LogGP's `L`.
    pub latency: f64,
    /// A byte, in seconds: LogGP's `G`.
    pub byte: f64,
}

/// What steps cost, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Between ranks that no level of the [`Locality`] has in different groups.
    pub near: Wire,
    /// Between ranks in different groups of a [`Level`]: the coarsest such level counts.
    pub apart: [Wire; Level::COUNT],
    /// What a message costs each end's processor: LogGP's `o`.
    pub message: f64,
    /// A byte that is copied.
    pub copy: f64,
    /// A byte of each operand of a reduction but the first.
    pub reduce: f64,
}

impl Cost {
    /// Round numbers for processes of one host, and hosts that are joined by a network of 100 Gbit/s. Within a host,
    /// what crosses sockets, NUMA nodes or caches takes a little longer. Measure, if it matters.
    pub const TYPICAL: Self = Self {
        near: Wire { latency: 0.3e-6, byte: 0.1e-9 },
        apart: [
            Wire { latency: 1.5e-6, byte: 0.085e-9 },
            Wire { latency: 0.5e-6, byte: 0.13e-9 },
            Wire { latency: 0.4e-6, byte: 0.12e-9 },
            Wire { latency: 0.35e-6, byte: 0.11e-9 },
        ],
        message: 0.15e-6,
        copy: 0.05e-9,
        reduce: 0.1e-9,
    };

    fn wire(&self, locality: &Locality, one: usize, other: usize) -> Wire {
        locality.apart(one, other).map_or(self.near, |level| self.apart[level as usize])
    }
}

/// How long the schedules of all ranks take if all begin at once, in seconds: to the end of the last step.
///
/// Infinite, if they do not fit together. The time it takes to predict is that of sorting the steps.
#[must_use]
pub fn predict(schedules: &[Schedule], locality: &Locality, cost: &Cost) -> f64 {
    Play::new(schedules, locality, cost).run()
}

/// A step that may begin, or a message that a receive has been waiting for. The earliest is the greatest.
struct Event {
    time: f64,
    /// Equal times go in the order of ranks and steps, so that predictions are reproducible.
    step: (usize, usize),
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        other.time.total_cmp(&self.time).then(other.step.cmp(&self.step))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

/// When a rank's processor and ports are free.
#[derive(Clone, Copy, Default)]
struct Free {
    processor: f64,
    out: f64,
    into: f64,
}

/// A message between two ranks, or a task, by its number.
type Key = (usize, usize, u32, bool);

/// One end of a message, while the other has not come yet.
enum Half {
    /// When the last byte arrives.
    Sent(f64),
    /// Since when which step waits.
    Awaited(f64, usize),
}

struct Play<'a> {
    schedules: &'a [Schedule],
    locality: &'a Locality,
    cost: &'a Cost,
    free: Vec<Free>,
    /// Of each rank's steps: those that wait for it, how many it waits for, and since when it could begin.
    followers: Vec<Vec<Vec<usize>>>,
    missing: Vec<Vec<usize>>,
    ready: Vec<Vec<f64>>,
    events: BinaryHeap<Event>,
    halves: HashMap<Key, Half>,
    /// Of each subgroup, named by its first rank: since when which steps of its ranks wait for the others.
    met: HashMap<usize, Vec<(f64, usize, usize)>>,
    left: usize,
    last: f64,
}

impl<'a> Play<'a> {
    fn new(schedules: &'a [Schedule], locality: &'a Locality, cost: &'a Cost) -> Self {
        let mut play = Self {
            schedules,
            locality,
            cost,
            free: vec![Free::default(); schedules.len()],
            followers: Vec::new(),
            missing: Vec::new(),
            ready: Vec::new(),
            events: BinaryHeap::new(),
            halves: HashMap::new(),
            met: HashMap::new(),
            left: schedules.iter().map(Schedule::len).sum(),
            last: 0.0,
        };
        for (rank, schedule) in schedules.iter().enumerate() {
            let mut followers = vec![Vec::new(); schedule.len()];
            for (step, (_, after)) in schedule.steps().enumerate() {
                after.iter().for_each(|before| followers[*before as usize].push(step));
                if after.is_empty() {
                    play.events.push(Event { time: 0.0, step: (rank, step) });
                }
            }
            play.followers.push(followers);
            play.missing.push(schedule.steps().map(|(_, after)| after.len()).collect());
            play.ready.push(vec![0.0; schedule.len()]);
        }
        play
    }

    fn run(mut self) -> f64 {
        while let Some(Event { time, step: (rank, step) }) = self.events.pop() {
            match self.schedules[rank].action(step) {
                Action::Send { to, slot, from } => {
                    self.send(time, (rank, step), (rank, *to, *slot, false), from.len);
                }
                Action::Put { to, slot, from } => {
                    self.send(time, (rank, step), (rank, *to, *slot, true), from.len);
                }
                Action::Receive { from, slot, into } => {
                    self.receive(time, (rank, step), (*from, rank, *slot, false), into.len);
                }
                Action::Task { from, slot, into } => {
                    self.receive(time, (rank, step), (*from, rank, *slot, true), into.len);
                }
                Action::Copy { into, .. } => {
                    self.compute(time, (rank, step), into.len, self.cost.copy)
                }
                Action::Reduce { sources, into } => {
                    let bytes = into.len * (sources.len() as u64 - 1);
                    self.compute(time, (rank, step), bytes, self.cost.reduce);
                }
                Action::Share { .. } => self.share(time, (rank, step)),
            }
        }
        if self.left == 0 { self.last } else { f64::INFINITY }
    }

    fn send(&mut self, time: f64, at: (usize, usize), key: Key, len: u64) {
        let to = key.1;
        let wire = self.cost.wire(self.locality, at.0, to);
        let begun = self.occupy(at.0, time, self.cost.message).max(self.free[at.0].out);
        let left = begun + seconds(len, wire.byte);
        self.free[at.0].out = left;
        let arrives = left + wire.latency;
        match self.halves.remove(&key) {
            Some(Half::Awaited(since, step)) => {
                self.halves.insert(key, Half::Sent(arrives));
                self.events.push(Event { time: arrives.max(since), step: (to, step) });
            }
            _ => {
                self.halves.insert(key, Half::Sent(arrives));
            }
        }
        self.end(at, left);
    }

    fn receive(&mut self, time: f64, at: (usize, usize), key: Key, len: u64) {
        let (from, _, _, is_task) = key;
        match self.halves.remove(&key) {
            // It has arrived, and the bytes of others may be in its way.
            Some(Half::Sent(arrives)) if arrives <= time => {
                let wire = self.cost.wire(self.locality, from, at.0);
                let through = arrives.max(self.free[at.0].into + seconds(len, wire.byte));
                self.free[at.0].into = through;
                let work = if is_task { seconds(len, self.cost.reduce) } else { 0.0 };
                let end = self.occupy(at.0, time.max(through), self.cost.message + work);
                self.end(at, end);
            }
            Some(Half::Sent(arrives)) => {
                self.halves.insert(key, Half::Sent(arrives));
                self.events.push(Event { time: arrives, step: at });
            }
            _ => {
                self.halves.insert(key, Half::Awaited(time, at.1));
            }
        }
    }

    /// A rank comes to a step that its subgroup does together.
    fn share(&mut self, time: f64, (rank, step): (usize, usize)) {
        let Some(subgroup) = self.schedules[rank].subgroup() else { return };
        let waiting = self.met.entry(subgroup[0]).or_default();
        waiting.push((time, rank, step));
        if waiting.len() < subgroup.len() {
            return;
        }
        let all = std::mem::take(waiting);
        let last = all.iter().map(|(time, ..)| *time).fold(0.0, f64::max);
        for (_, rank, step) in all {
            let Action::Share { what, from, into, .. } = self.schedules[rank].action(step) else {
                continue;
            };
            let work = self.together(*what, (from, into), subgroup.len());
            let end = self.occupy(rank, last + self.cost.near.latency, work);
            self.end((rank, step), end);
        }
    }

    /// What a rank's processor does in such a step: it copies into its slot, combines a part, and copies out of slots.
    fn together(&self, what: Together, (from, into): (&Place, &Place), ranks: usize) -> f64 {
        let copied = seconds(from.len + into.len, self.cost.copy);
        let combined = match what {
            Together::Reduce => seconds(from.len, self.cost.reduce),
            _ => 0.0,
        };
        let others = f64::from(u32::try_from(ranks).unwrap_or(u32::MAX));
        copied + combined * (others - 1.0) / others
    }

    fn compute(&mut self, time: f64, at: (usize, usize), bytes: u64, byte: f64) {
        let end = self.occupy(at.0, time, seconds(bytes, byte));
        self.end(at, end);
    }

    /// The processor of a rank works for some time, when it is free.
    fn occupy(&mut self, rank: usize, time: f64, work: f64) -> f64 {
        let end = time.max(self.free[rank].processor) + work;
        self.free[rank].processor = end;
        end
    }

    fn end(&mut self, (rank, step): (usize, usize), time: f64) {
        self.left -= 1;
        self.last = self.last.max(time);
        for follower in std::mem::take(&mut self.followers[rank][step]) {
            let ready = &mut self.ready[rank][follower];
            *ready = ready.max(time);
            self.missing[rank][follower] -= 1;
            if self.missing[rank][follower] == 0 {
                self.events.push(Event { time: *ready, step: (rank, follower) });
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
fn seconds(bytes: u64, byte: f64) -> f64 {
    bytes as f64 * byte
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Exchange;
    use crate::algorithm::{Algorithm, Method};
    use crate::build::build;
    use crate::call::{Call, Reduction};
    use crate::tree::Tree;

    const COST: Cost = Cost {
        near: Wire { latency: 1.0, byte: 0.5 },
        apart: [
            Wire { latency: 100.0, byte: 5.0 },
            Wire { latency: 10.0, byte: 2.0 },
            Wire { latency: 5.0, byte: 1.0 },
            Wire { latency: 2.0, byte: 0.75 },
        ],
        message: 0.25,
        copy: 0.125,
        reduce: 2.0,
    };

    fn time(locality: &Locality, call: &Call<'_>, algorithm: Algorithm) -> f64 {
        let one = |rank| build(rank, locality, call, &algorithm).expect("a schedule");
        let schedules: Vec<_> = (0..locality.ranks()).map(one).collect();
        predict(&schedules, locality, &COST)
    }

    #[track_caller]
    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9 * expected, "{found} instead of {expected}");
    }

    /// A message of `len` bytes takes `o + L + G len + o`.
    #[test]
    fn known_times() {
        let flat = Locality::flat;
        let hop = |len: f64| 0.25 + 1.0 + 0.5 * len + 0.25;
        let tree = |tree| Algorithm::new(Method::Tree(tree));
        let bcast = |len| Call::Bcast { root: 0, len };
        close(time(&flat(2), &bcast(10), tree(Tree::Chain)), hop(10.0));
        close(time(&flat(8), &bcast(10), tree(Tree::Chain)), 7.0 * hop(10.0));
        // The root's last message leaves after two others, one after the other, and is the last to arrive.
        close(time(&flat(4), &bcast(10), tree(Tree::Flat)), hop(10.0) + 2.0 * 5.0);
        let groups = Locality::new(vec![vec![0], vec![1]]).expect("two groups");
        close(time(&groups, &bcast(10), tree(Tree::Chain)), 0.25 + 100.0 + 50.0 + 0.25);
        let nodes = flat(2).with(Level::Numa, vec![vec![0], vec![1]]).expect("two nodes");
        close(time(&nodes, &bcast(10), tree(Tree::Chain)), 0.25 + 5.0 + 10.0 + 0.25);
        let ring = Algorithm::new(Method::Exchange(Exchange::Ring));
        let allgather = Call::Allgather { len: 10, in_place: true };
        close(time(&flat(5), &allgather, ring), 4.0 * hop(10.0));
        let of = Reduction { unit: 1, commutative: true };
        let allreduce = Call::Allreduce { len: 10, of, in_place: true };
        let doubling = Algorithm::new(Method::Doubling);
        close(time(&flat(8), &allreduce, doubling), 3.0 * (hop(10.0) + 20.0));
        // Three messages arrive at a root through one port.
        let gather = Call::Gather { root: 0, len: 10, in_place: true };
        close(time(&flat(4), &gather, tree(Tree::Flat)), hop(10.0) + 2.0 * 5.0);
    }

    #[test]
    fn pipelines_pay_for_long_messages_and_levels_where_wires_differ() {
        let chain = Algorithm::new(Method::Tree(Tree::Chain)).segmented(8);
        let binomial = Algorithm::new(Method::Tree(Tree::Binomial));
        let bcast = |len| Call::Bcast { root: 0, len };
        let flat = Locality::flat(16);
        assert!(time(&flat, &bcast(4096), chain) < time(&flat, &bcast(4096), binomial));
        assert!(time(&flat, &bcast(8), chain) > time(&flat, &bcast(8), binomial));
        let by_turns = (0..3).map(|turn| (turn..16).step_by(3).collect()).collect();
        let by_turns = Locality::new(by_turns).expect("three groups");
        let levels = binomial.over(Level::Host, Tree::Binomial);
        assert!(time(&by_turns, &bcast(64), levels) < time(&by_turns, &bcast(64), binomial));
        // Within the hosts every other rank is on another socket.
        let sockets = (0..6).map(|turn| (turn..16).step_by(6).collect()).collect();
        let sockets = by_turns.with(Level::Socket, sockets).expect("parts of hosts");
        let more = levels.over(Level::Socket, Tree::Binomial);
        assert!(time(&sockets, &bcast(64), more) < time(&sockets, &bcast(64), levels));
    }

    /// What ranks of a host do together begins when the last has come.
    #[test]
    fn shared_memory_costs_a_latency_and_copies() {
        let hosts = Locality::new(vec![vec![0, 1], vec![2, 3]]).expect("two hosts");
        let shared = Algorithm::new(Method::Tree(Tree::Binomial)).over_shared();
        let bcast = Call::Bcast { root: 0, len: 8 };
        let hop = 0.25 + 100.0 + 40.0 + 0.25;
        close(time(&hosts, &bcast, shared), hop + 1.0 + 1.0);
        let of = Reduction { unit: 1, commutative: true };
        let allreduce = Call::Allreduce { len: 8, of, in_place: false };
        // Two ranks combine half of it each; the leader copies what it gives and what it gets.
        let up = 1.0 + 2.0 + 8.0;
        let doubling = Algorithm::new(Method::Doubling).over_shared();
        close(time(&hosts, &allreduce, doubling), up + hop + 16.0 + 1.0 + 1.0);
    }

    #[test]
    fn a_task_costs_two_messages_and_its_reduction() {
        let of = Reduction { unit: 1, commutative: true };
        let call = Call::Reduce { root: 0, len: 8, of, in_place: true };
        let copy = 1.0;
        let ready = 0.25 + 1.0 + 0.25;
        let put = 0.25 + 4.0 + 1.0 + 0.25 + 16.0;
        close(
            time(&Locality::flat(2), &call, Algorithm::new(Method::Xtq)),
            copy + ready + put + copy,
        );
    }

    #[test]
    fn what_does_not_fit_never_ends() {
        let call = Call::Bcast { root: 0, len: 1 };
        let algorithm = Algorithm::new(Method::Tree(Tree::Chain));
        let one = |rank| build(rank, &Locality::flat(3), &call, &algorithm).expect("a schedule");
        assert!(predict(&[one(0), one(2), one(1)], &Locality::flat(3), &COST).is_infinite());
        assert_eq!(predict(&[], &Locality::flat(0), &COST), 0.0);
    }
}
