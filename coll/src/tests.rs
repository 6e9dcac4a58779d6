//! Every algorithm of every operation, proved for all sizes up to 33 ranks; intercommunicators and neighbourhoods for
//! some sizes (see there).
mod between;
mod memory;
mod movement;
mod mutants;
mod reductions;

use crate::algorithm::TABLE;
use crate::prove::{Definition, Refutation, prove};
use crate::{
    Algorithm, Call, Level, Locality, Method, Operation, Reduction, Schedule, Tree, build,
};

/// The largest number of ranks that is proved.
const RANKS_MAX: usize = 33;

/// All methods, with some parameters.
fn methods() -> impl Iterator<Item = Method> {
    TABLE.iter().flat_map(|entry| entry.proved.iter().map(|&number| (entry.make)(number)))
}

/// The algorithms on one level that do an operation among `n`, without segments and with; beyond some ranks by turns, to
/// save time.
fn algorithms(operation: Operation, commutative: bool, segment: u64, n: usize) -> Vec<Algorithm> {
    let cut = match n {
        ..=12 if segment > 0 => vec![0, segment],
        _ => vec![n as u64 / 2 % 2 * segment],
    };
    let all = methods().map(Algorithm::new);
    let all =
        all.flat_map(|algorithm| cut.iter().map(move |segment| algorithm.segmented(*segment)));
    all.filter(|algorithm| algorithm.does(operation, commutative)).collect()
}

/// Levels that an algorithm may use, two to five with its method's.
const LEVELS: [&[Level]; 7] = [
    &[Level::Host, Level::Socket],
    &[Level::Socket, Level::Numa],
    &[Level::Host, Level::Numa],
    &[Level::Host, Level::Socket, Level::Numa],
    &[Level::Socket, Level::Numa, Level::L3],
    &[Level::L3],
    &Level::ALL,
];

/// Groups of some ranks, and the algorithms on levels that do an operation among them: on hosts alone each method for each
/// way of grouping, on several levels one set of them after the other.
fn on_levels(
    operation: Operation,
    commutative: bool,
    segment: u64,
    n: usize,
) -> Vec<(Locality, Vec<Algorithm>)> {
    let trees = [Tree::Binomial, Tree::Chain, Tree::KNomial(3), Tree::Flat];
    let flat = algorithms(operation, commutative, segment, n);
    let with = |levels: &dyn Fn(usize) -> &'static [Level]| -> Vec<Algorithm> {
        let with = |(index, algorithm): (usize, &Algorithm)| {
            let levels = levels(index).iter().enumerate();
            levels.fold(*algorithm, |it, (depth, level)| {
                it.over(*level, trees[(index + n + depth) % trees.len()])
            })
        };
        let all = flat.iter().enumerate().map(with);
        all.filter(|algorithm| algorithm.does(operation, commutative)).collect()
    };
    let shared: Vec<Algorithm> = flat.iter().map(|it| it.over_shared()).collect();
    let shared = shared.into_iter().filter(|it| it.does(operation, commutative));
    let on_hosts: Vec<_> = with(&|_| &[Level::Host]).into_iter().chain(shared).collect();
    let hosts = localities(n).into_iter().map(|it| (it, on_hosts.clone()));
    let deep = nested(n).into_iter().enumerate();
    let deep =
        deep.map(|(turn, it)| (it, with(&|index| LEVELS[(index + n + turn) % LEVELS.len()])));
    let ordered = !commutative || operation.keeps_groups_together();
    let fits = |(locality, mut all): (Locality, Vec<Algorithm>)| {
        all.retain(|it| !ordered || locality.is_consecutive(&it.within));
        (locality, all)
    };
    hosts.chain(deep).map(fits).collect()
}

/// Hosts of some ranks: of equal size, of growing size, and by turns.
fn localities(n: usize) -> Vec<Locality> {
    let by_turns = (0..3).map(|turn| (turn..n).step_by(3).collect()).collect();
    let equal = pieces(&[(0..n).collect()], |_| 4);
    [equal, growing(n), by_turns].map(|it| Locality::new(it).expect("all ranks once")).to_vec()
}

/// Runs of 1, 2, 3 … ranks.
fn growing(n: usize) -> Vec<Vec<usize>> {
    pieces(&[(0..n).collect()], |index| index + 1)
}

/// Groups that are cut into pieces; the length of each piece follows from its index in the group.
fn pieces(groups: &[Vec<usize>], len: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    for group in groups {
        let (mut rest, mut index) = (&group[..], 0);
        while !rest.is_empty() {
            let (piece, others) = rest.split_at(len(index).min(rest.len()));
            all.push(piece.to_vec());
            (rest, index) = (others, index + 1);
        }
    }
    all
}

/// Four levels of groups of uneven sizes: consecutive ranks, ranks by turns, and hosts whose parts are by turns.
fn nested(n: usize) -> Vec<Locality> {
    let turns = |groups: &[Vec<usize>], count: usize| -> Vec<Vec<usize>> {
        let of = |group: &Vec<usize>| -> Vec<Vec<usize>> {
            (0..count)
                .map(|turn| group.iter().copied().skip(turn).step_by(count).collect())
                .collect()
        };
        groups.iter().flat_map(of).collect()
    };
    let levels = |hosts: Vec<Vec<usize>>, [sockets, nodes, caches]: [Vec<Vec<usize>>; 3]| {
        let all = Locality::new(hosts).and_then(|it| it.with(Level::Socket, sockets));
        let all = all.and_then(|it| it.with(Level::Numa, nodes));
        all.and_then(|it| it.with(Level::L3, caches)).expect("parts of parts")
    };
    let whole: Vec<Vec<usize>> = vec![(0..n).collect()];
    let hosts = pieces(&whole, |index| 11 + 2 * index);
    let sockets = pieces(&hosts, |index| 7 - index % 4);
    let nodes = pieces(&sockets, |index| 3 + index);
    let caches = pieces(&nodes, |index| 2 - index % 2);
    let one_by_one = levels(hosts.clone(), [sockets.clone(), nodes.clone(), caches]);
    let far = turns(&whole, 2);
    let (near, nearer) = (turns(&far, 3), turns(&turns(&far, 3), 2));
    let by_turns = levels(far, [near.clone(), nearer, pieces(&turns(&near, 2), |_| 2)]);
    let parts = turns(&sockets, 2);
    let mixed = levels(hosts, [sockets, parts.clone(), pieces(&parts, |index| 1 + index)]);
    vec![one_by_one, by_turns, mixed]
}

/// The roots to prove: all for few ranks; beyond some by turns, to save time.
fn roots(n: usize) -> Vec<usize> {
    match n {
        ..=9 => (0..n).collect(),
        10..=16 => vec![0, 1, n / 2, n - 1],
        _ if n % 4 < 2 => vec![0, n - 1],
        _ => vec![1, n / 2],
    }
}

fn schedules(locality: &Locality, calls: &[Call<'_>], algorithm: &Algorithm) -> Vec<Schedule> {
    let one = |(rank, call)| match build(rank, locality, call, algorithm) {
        Ok(schedule) => schedule,
        Err(error) => panic!("rank {rank}, {call:?}: {error}"),
    };
    calls.iter().enumerate().map(one).collect()
}

/// Proves what all ranks call, by each algorithm, or says what is wrong.
#[track_caller]
fn check(locality: &Locality, calls: &[Call<'_>], algorithms: &[Algorithm], grain: u64) {
    let mut definition = Definition::new(calls, grain);
    for algorithm in algorithms {
        let schedules = schedules(locality, calls, algorithm);
        verdict(&schedules, &mut definition, &|| {
            format!("{algorithm}\n{:?}\n{locality:?}", calls[0])
        });
    }
}

#[track_caller]
fn verdict(schedules: &[Schedule], definition: &mut Definition, what: &dyn Fn() -> String) {
    if let Err(wrong) = prove(schedules, definition) {
        let text: String =
            schedules.iter().filter(|_| schedules.len() < 10).map(ToString::to_string).collect();
        panic!("{} ranks, {}: {wrong}\n{text}", schedules.len(), what());
    }
}

/// In place or not; beyond some ranks by turns, to save time.
fn in_place(n: usize) -> Vec<bool> {
    if n <= 12 { vec![false, true] } else { vec![n.is_multiple_of(2)] }
}

fn sum(unit: u64, commutative: bool) -> Reduction {
    Reduction { unit, commutative }
}

/// Lengths of blocks that differ, some of them empty.
fn uneven(n: usize, grain: u64) -> Vec<u64> {
    (0..n).map(|rank| (rank * 7 + 3) as u64 % 4 * grain).collect()
}

/// Of hosts whose ranks share memory, and hosts whose ranks do not: hosts do not see which.
#[test]
fn a_host_whose_ranks_share_no_memory_fits_with_the_others() {
    use crate::{Action, build_apart};
    let (len, in_place, of) = (12, false, sum(3, false));
    let algorithm = |name: &str| name.parse::<Algorithm>().expect("an algorithm");
    for n in [5, 8, 13, 32] {
        let locality = Locality::new(growing(n)).expect("all ranks once");
        for (call, name) in [
            (Call::Barrier, "bruck over shared"),
            (Call::Bcast { root: n - 2, len }, "binomial over shared"),
            (Call::Allgather { len, in_place }, "ring over shared"),
            (Call::Gather { root: n - 2, len, in_place }, "binomial over shared"),
            (Call::Scatter { root: n - 2, len, in_place }, "binomial over shared"),
            (Call::Alltoall { len, in_place }, "linear over shared"),
            (Call::ReduceScatterBlock { len, of, in_place }, "halving over shared"),
            (Call::Reduce { root: n - 2, len, of, in_place }, "binomial over shared"),
            (Call::Allreduce { len, of, in_place }, "halving over shared"),
        ] {
            let (algorithm, calls) = (algorithm(name), vec![call; n]);
            for apart in 0..locality.hosts().len() {
                let one = |rank: usize| match locality.hosts()[apart].contains(&rank) {
                    true => build_apart(rank, &locality, &call, &algorithm),
                    false => build(rank, &locality, &call, &algorithm),
                };
                let all: Vec<_> = (0..n).map(|rank| one(rank).expect("a schedule")).collect();
                let shares = |it: &Schedule| {
                    it.steps().any(|(action, _)| matches!(action, Action::Share { .. }))
                };
                for schedule in &all {
                    let host = locality.hosts().iter().position(|it| it.contains(&schedule.rank));
                    let alone = host.is_some_and(|host| locality.hosts()[host].len() == 1);
                    assert_eq!(shares(schedule), !alone && host != Some(apart), "{schedule}");
                }
                let what = || format!("{algorithm}, host {apart} apart: {call:?}");
                verdict(&all, &mut Definition::new(&calls, 1), &what);
            }
        }
    }
}

/// What is proved with blocks so long that pieces of messages are not packed.
const LONG: u64 = 64 * 65;

#[test]
fn long_blocks_are_longer_than_what_is_packed() {
    const { assert!(LONG > crate::builder::PACK_MAX) }
    assert!(Refutation::Stuck { rank: 1, step: 2 }.to_string().contains("rank 1: step 2"));
}

/// What the table chooses among many ranks; and what one rank does among very many can be built at once.
#[test]
fn many_ranks() {
    use crate::choose::{Table, candidates, choose};
    let calls = |len, of, in_place| {
        [
            Call::Barrier,
            Call::Bcast { root: 5, len },
            Call::Gather { root: 0, len, in_place },
            Call::Scatter { root: 7, len, in_place },
            Call::Allgather { len, in_place },
            Call::Reduce { root: 3, len, of, in_place },
            Call::Allreduce { len, of, in_place },
            Call::Scan { len, of, in_place },
            Call::Exscan { len, of, in_place },
        ]
    };
    for n in [63, 64, 100, 257] {
        let hosts = (0..n).step_by(12).map(|start| (start..n.min(start + 12)).collect()).collect();
        let hosts = Locality::new(hosts).expect("all ranks once");
        for locality in [Locality::flat(n), hosts, nested(n).swap_remove(0)] {
            for call in calls(6, sum(3, false), n == 64) {
                let chosen = choose(&Table::default(), &call, &locality);
                check(&locality, &vec![call; n], &[chosen], 1);
            }
        }
    }
    let many = Locality::flat(10_000);
    for call in calls(1 << 20, sum(8, true), false) {
        for algorithm in candidates(&call, &many) {
            // Of roots and a common rank.
            for rank in [0, 3, 5, 7, 9_876] {
                let schedule = build(rank, &many, &call, &algorithm).expect("a schedule");
                let (steps, waits) = (schedule.len(), schedule.after.len());
                let what = || format!("{call:?} by {algorithm}, rank {rank}");
                assert!(steps <= 700_000, "{}: {steps} steps", what());
                assert!(waits <= 2_000_000, "{}: {waits} dependencies", what());
            }
        }
    }
}
