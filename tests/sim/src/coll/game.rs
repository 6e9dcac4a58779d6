//! One collective of one group: what each rank calls, its buffers, and what must come of it.

mod between;

use super::program::{Group, Item};
use gapless_coll::choose::{Table, candidates, choose};
use gapless_coll::schedule::Buffer;
use gapless_coll::testkit::{Arithmetic, Content, Held, Lie, Random, after, after_between};
use gapless_coll::topologies::{Cartesian, Neighborhood};
use gapless_coll::{
    Algorithm, Between, Call, CallBuffers, CollError, Combine, Exchange, Level, Locality, Method,
    Operation, Schedule, build_apart,
};
use gapless_mem::Region;

/// Among more ranks nothing goes from everybody to everybody straight.
const STRAIGHT_MAX: usize = 40;

/// A rank's part.
pub(crate) struct Part {
    pub(crate) schedule: Schedule,
    send: Held,
    recv: Held,
    sent: Vec<u8>,
    expected: Vec<u8>,
    pub(crate) result: Option<Result<(), CollError>>,
}

/// One collective of one group.
pub(crate) struct Game {
    pub(crate) what: String,
    pub(crate) comm: usize,
    pub(crate) operation: Operation,
    /// Processes, by rank.
    pub(crate) members: Vec<u32>,
    /// By rank.
    pub(crate) parts: Vec<Part>,
    pub(crate) combine: Combine,
}

/// A random grouping of some ranks, on one level or more.
fn locality(n: usize, random: &mut Random) -> Locality {
    let mut groups = vec![(0..n).collect()];
    let mut locality = Locality::flat(n);
    if random.below(2) == 0 {
        groups = divided(&groups, random);
        locality = Locality::new(groups.clone()).expect("every rank once");
    }
    for level in [Level::Socket, Level::Numa, Level::L3] {
        if random.below(3) == 0 {
            groups = divided(&groups, random);
            locality = locality.with(level, groups.clone()).expect("parts of the groups before");
        }
    }
    locality
}

/// Each group in up to five parts, of ranks that follow each other or by turns.
fn divided(groups: &[Vec<usize>], random: &mut Random) -> Vec<Vec<usize>> {
    let by_turns = random.below(2) == 0;
    let mut parts = Vec::new();
    for group in groups {
        let n = group.len();
        let count = 1 + random.index(n.min(5));
        let part = |at: usize| match by_turns {
            true => group.iter().copied().skip(at).step_by(count).collect(),
            false => group[n * at / count..n * (at + 1) / count].to_vec(),
        };
        parts.extend((0..count).map(part));
    }
    parts
}

/// An algorithm that does the call.
fn algorithm(call: &Call<'_>, locality: &Locality, random: &mut Random) -> Algorithm {
    if random.below(5) == 0 {
        return choose(&Table::default(), call, locality);
    }
    let mut all = candidates(call, locality);
    let straight = |it: &Algorithm| {
        matches!(
            it.method,
            Method::Linear | Method::Pairwise(_) | Method::Exchange(Exchange::Direct)
        )
    };
    if locality.ranks() > STRAIGHT_MAX && !all.iter().all(straight) {
        all.retain(|it| !straight(it));
    }
    let chosen = all.swap_remove(random.index(all.len()));
    // Some dozens of segments tell as much as thousands, which take long.
    let least = 8 + call.bytes().unwrap_or(0) / 60;
    match random.below(3) {
        0 => chosen.segmented(least + random.below(100)),
        1 => chosen.segmented(least + random.below(5000)),
        _ => chosen,
    }
}

/// The calls of an operation by all ranks; `then` is given them.
fn with_calls<T>(
    operation: Operation,
    (n, how): (usize, Arithmetic),
    random: &mut Random,
    then: impl FnOnce(&[Call<'_>], &mut Random) -> T,
) -> T {
    let of = how.reduction();
    // All lengths are of whole elements, also those of other operations.
    let longest = match n {
        1..=8 if random.below(12) == 0 => 3_000,
        1..=8 => 300,
        9..=48 => 40,
        _ => 12,
    };
    let count = |random: &mut Random| match random.below(8) {
        0 => 0,
        1 => 1,
        _ => random.below(longest),
    };
    let len = of.unit * count(random);
    let lens: Vec<u64> = (0..n).map(|_| of.unit * count(random)).collect();
    let (root, in_place) = (random.index(n), random.below(3) == 0);
    let lens_at = |rank: usize| if rank == root { &lens[..] } else { &[] };
    let lens = &lens[..];
    let calls = match operation {
        Operation::Barrier => vec![Call::Barrier; n],
        Operation::Bcast => vec![Call::Bcast { root, len }; n],
        Operation::Gather => vec![Call::Gather { root, len, in_place }; n],
        Operation::Scatter => vec![Call::Scatter { root, len, in_place }; n],
        Operation::Gatherv => (0..n)
            .map(|rank| Call::Gatherv { root, len: lens[rank], lens: lens_at(rank), in_place })
            .collect(),
        Operation::Scatterv => (0..n)
            .map(|rank| Call::Scatterv { root, len: lens[rank], lens: lens_at(rank), in_place })
            .collect(),
        Operation::Allgather => vec![Call::Allgather { len, in_place }; n],
        Operation::Allgatherv => vec![Call::Allgatherv { lens, in_place }; n],
        Operation::Alltoall => vec![Call::Alltoall { len, in_place }; n],
        Operation::Alltoallv => {
            let mut table: Vec<Vec<u64>> =
                (0..n).map(|_| (0..n).map(|_| 4 * count(random)).collect()).collect();
            for (from, to) in (0..n).flat_map(|from| (0..from).map(move |to| (from, to))) {
                if in_place {
                    table[from][to] = table[to][from];
                }
            }
            let across: Vec<Vec<u64>> =
                (0..n).map(|to| (0..n).map(|from| table[from][to]).collect()).collect();
            let each = table.iter().zip(&across);
            let calls: Vec<_> =
                each.map(|(send, recv)| Call::Alltoallv { send, recv, in_place }).collect();
            return then(&calls, random);
        }
        Operation::Reduce => vec![Call::Reduce { root, len, of, in_place }; n],
        Operation::Allreduce => vec![Call::Allreduce { len, of, in_place }; n],
        Operation::ReduceScatter => vec![Call::ReduceScatter { lens, of, in_place }; n],
        Operation::ReduceScatterBlock => vec![Call::ReduceScatterBlock { len, of, in_place }; n],
        Operation::Scan => vec![Call::Scan { len, of, in_place }; n],
        Operation::Exscan => vec![Call::Exscan { len, of, in_place }; n],
        Operation::NeighborAllgather | Operation::NeighborAlltoall => {
            let size = u32::try_from(n).expect("a group has 32-bit ranks");
            let ring = Cartesian::new(&[size], &[random.below(2) == 0]).expect("a ring");
            let at = |rank| ring.neighbors(rank).expect("its rank");
            let around: Vec<Neighborhood> = (0..size).map(at).collect();
            let recv = [len; 2];
            let calls: Vec<_> = around
                .iter()
                .map(|Neighborhood { sources, destinations }| match operation {
                    Operation::NeighborAllgather => {
                        Call::NeighborAllgather { sources, destinations, len, recv: &recv }
                    }
                    _ => Call::NeighborAlltoall { sources, destinations, send: &recv, recv: &recv },
                })
                .collect();
            return then(&calls, random);
        }
    };
    then(&calls, random)
}

impl Game {
    pub(crate) fn new(item: &Item, group: Group) -> Game {
        let mut random = Random(item.seed);
        let Group { members, first } = group;
        let n = members.len();
        let how = if random.below(2) == 0 { Arithmetic::Sum } else { Arithmetic::Affine };
        let one = |calls: &[Call<'_>], random: &mut Random| {
            let locality = locality(n, random);
            let algorithm = algorithm(&calls[0], &locality, random);
            let what = format!("{:?} by {algorithm} among {n}", calls[0]);
            // Ranks here share no memory.
            let one =
                |(rank, call): (usize, &Call<'_>)| build_apart(rank, &locality, call, &algorithm);
            let schedules = calls.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>();
            let schedules = schedules.unwrap_or_else(|error| panic!("{what}: {error}"));
            let expected =
                |schedules: &[Schedule], before: &[Content]| after(calls, schedules, before, how);
            (what, parts(schedules, expected, random))
        };
        let two = |first: usize, random: &mut Random| {
            let sizes = (first, n - first);
            let how_many = (first, n - first, how);
            between::with_calls(item.operation, how_many, random, |calls, random| {
                let what = format!("{:?} between {sizes:?}", calls[0]);
                let each = calls.iter().enumerate();
                let one = |(rank, call)| Between { rank, first, second: n - first }.build(call);
                let schedules = each.map(one).collect::<Result<Vec<_>, _>>();
                let schedules = schedules.unwrap_or_else(|error| panic!("{what}: {error}"));
                let expected = |schedules: &[Schedule], before: &[Content]| {
                    after_between(calls, sizes, schedules, before, how)
                };
                (what, parts(schedules, expected, random))
            })
        };
        let (what, parts) = match first {
            Some(first) => two(first, &mut random),
            None => with_calls(item.operation, (n, how), &mut random, one),
        };
        let what = format!("collective {}, {what}", item.number);
        let Item { comm, operation, .. } = *item;
        Game { what, comm, operation, members, parts, combine: how.how() }
    }

    /// A rank's buffers. They are used while this lives.
    pub(crate) fn buffers(&mut self, rank: usize) -> CallBuffers {
        let part = &mut self.parts[rank];
        CallBuffers { send: part.send.blocks(), recv: part.recv.blocks() }
    }

    /// The memory of a rank's buffers.
    pub(crate) fn regions(&mut self, rank: usize) -> [Region; 2] {
        let part = &mut self.parts[rank];
        [part.send.region(), part.recv.region()]
    }

    /// The process that a rank names as a culprit.
    pub(crate) fn culprit(&self, rank: u32) -> Option<u32> {
        self.members.get(rank as usize).copied()
    }

    /// Whether a rank's buffers are as they must be: after success all of them; otherwise what was sent, and the gaps.
    pub(crate) fn check(&self, rank: usize) -> Result<(), String> {
        let part = &self.parts[rank];
        part.send.holds(&part.sent).map_err(|what| format!("the send buffer: {what}"))?;
        let whole = matches!(part.result, Some(Ok(())));
        let right = if whole { part.recv.holds(&part.expected) } else { part.recv.holds_gaps() };
        right.map_err(|what| format!("the receive buffer: {what}"))
    }
}

/// The parts of all ranks, with random contents.
fn parts(
    schedules: Vec<Schedule>,
    expected: impl Fn(&[Schedule], &[Content]) -> Vec<Vec<u8>>,
    random: &mut Random,
) -> Vec<Part> {
    let content = |schedule: &Schedule| Content {
        send: random.bytes(schedule.row(Buffer::Send).len()),
        recv: random.bytes(schedule.row(Buffer::Recv).len()),
    };
    let before: Vec<Content> = schedules.iter().map(content).collect();
    let expected = expected(&schedules, &before);
    let each = schedules.into_iter().zip(before).zip(expected);
    let one = |((schedule, before), expected): ((Schedule, Content), Vec<u8>)| {
        let mut held = |buffer, content: &[u8]| {
            let lie = [Lie::Plain, Lie::Plain, Lie::Gaps, Lie::Apart][random.index(4)];
            Held::new(&schedule.row(buffer), lie, content, random)
        };
        let send = held(Buffer::Send, &before.send);
        let recv = held(Buffer::Recv, &before.recv);
        Part { schedule, send, recv, sent: before.send, expected, result: None }
    };
    each.map(one).collect()
}
