//! Every algorithm of every operation, proved for all sizes up to 33 ranks; intercommunicators and neighbourhoods for
//! some sizes (see there).
mod between;
mod memory;
mod movement;
mod mutants;
mod reductions;

use crate::prove::{Definition, Refutation, prove};
use crate::{
    Algorithm, Butterfly, Call, Exchange, Locality, Method, Operation, Reduction, Schedule, Tree,
    build,
};

/// The largest number of ranks that is proved.
const RANKS_MAX: usize = 33;

const TREES: [Tree; 8] = [
    Tree::Flat,
    Tree::Chain,
    Tree::Binomial,
    Tree::KNomial(3),
    Tree::KNomial(4),
    Tree::KAry(2),
    Tree::KAry(3),
    Tree::Bine,
];

const EXCHANGES: [Exchange; 9] = [
    Exchange::Direct,
    Exchange::Ring,
    Exchange::Bruck,
    Exchange::Doubling,
    Exchange::Bine,
    Exchange::Pat { blocks: 1 },
    Exchange::Pat { blocks: 2 },
    Exchange::Pat { blocks: 4 },
    Exchange::Pat { blocks: 1000 },
];

/// All methods, with some parameters.
fn methods() -> Vec<Method> {
    let others = [
        Method::Linear,
        Method::Pairwise(1),
        Method::Pairwise(3),
        Method::Doubling(Butterfly::Binary),
        Method::Doubling(Butterfly::Bine),
        Method::Halving(Butterfly::Binary),
        Method::Halving(Butterfly::Bine),
    ];
    let trees = TREES.into_iter().map(Method::Tree);
    others.into_iter().chain(trees).chain(EXCHANGES.into_iter().map(Method::Exchange)).collect()
}

/// The algorithms on one level that do an operation among `n`, without segments and with; beyond some ranks by turns, to
/// save time.
fn algorithms(operation: Operation, commutative: bool, segment: u64, n: usize) -> Vec<Algorithm> {
    let cut = match n {
        ..=12 if segment > 0 => vec![0, segment],
        _ => vec![n as u64 / 2 % 2 * segment],
    };
    let all = methods().into_iter().map(Algorithm::new);
    let all =
        all.flat_map(|algorithm| cut.iter().map(move |segment| algorithm.segmented(*segment)));
    all.filter(|algorithm| algorithm.does(operation, commutative)).collect()
}

/// The algorithms on two levels that do an operation.
fn two_level(operation: Operation, commutative: bool, segment: u64, n: usize) -> Vec<Algorithm> {
    let within = [Tree::Binomial, Tree::KAry(2), Tree::Bine];
    let all = algorithms(operation, commutative, segment, n).into_iter().enumerate();
    let all = all.map(|(index, algorithm)| algorithm.two_level(within[(index + n) % 3]));
    all.filter(|algorithm| algorithm.does(operation, commutative)).collect()
}

/// Groups of some ranks: of equal size, of growing size, and by turns.
fn localities(n: usize) -> Vec<Locality> {
    let equal = (0..n).step_by(4).map(|start| (start..n.min(start + 4)).collect()).collect();
    let (mut growing, mut start) = (Vec::new(), 0);
    while start < n {
        let end = n.min(start + growing.len() + 1);
        growing.push((start..end).collect());
        start = end;
    }
    let by_turns = (0..3).map(|turn| (turn..n).step_by(3).collect()).collect();
    [equal, growing, by_turns].map(|groups| Locality::new(groups).expect("all ranks once")).to_vec()
}

/// The roots to prove: all for few ranks.
fn roots(n: usize) -> Vec<usize> {
    if n <= 9 {
        return (0..n).collect();
    }
    vec![0, 1, n / 2, n - 1]
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
            format!("{algorithm}\n{:?}\n{:?}", calls[0], locality.groups())
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
        for locality in [Locality::flat(n), Locality::new(hosts).expect("all ranks once")] {
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
