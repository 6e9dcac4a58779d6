//! Intercommunicators: groups of all sizes to eight, each rank the root.
use super::*;
use crate::{Between, BetweenCall, BuildError};

fn prove_between<'a>(
    first: usize,
    second: usize,
    grain: u64,
    call: impl Fn(Between) -> BetweenCall<'a>,
) {
    let members = |rank| Between { rank, first, second };
    let calls: Vec<_> = (0..first + second).map(|rank| call(members(rank))).collect();
    let one = |(rank, call): (usize, &BetweenCall<'_>)| match members(rank).build(call) {
        Ok(schedule) => schedule,
        Err(error) => panic!("rank {rank}, {call:?}: {error}"),
    };
    let schedules: Vec<_> = calls.iter().enumerate().map(one).collect();
    let mut definition = Definition::between(first, second, &calls, grain);
    verdict(&schedules, &mut definition, &|| format!("{first} and {second}, {:?}", calls[0]));
}

fn sizes() -> impl Iterator<Item = (usize, usize)> {
    (1..=8).flat_map(|first| (1..=8).map(move |second| (first, second))).chain([(1, 33), (17, 16)])
}

#[test]
fn barriers_and_all_to_all() {
    for (first, second) in sizes() {
        prove_between(first, second, 1, |_| BetweenCall::Barrier);
        for (one, other, grain) in [(2, 3, 1), (0, 2, 1), (LONG, 2 * LONG, LONG)] {
            let lens = |at: Between| if at.rank < first { (one, other) } else { (other, one) };
            prove_between(first, second, grain, |at| BetweenCall::Allgather {
                send: lens(at).0,
                recv: lens(at).1,
            });
            prove_between(first, second, grain, |at| BetweenCall::Alltoall {
                send: lens(at).0,
                recv: lens(at).1,
            });
        }
        let own = uneven(first + second, 1);
        prove_between(first, second, 1, |at| BetweenCall::Allgatherv {
            send: own[at.rank],
            recv: &own[at.remote()],
        });
        let len = |from: usize, to: usize| ((from * 5 + to * 3) % 4) as u64;
        let n = first + second;
        let out: Vec<Vec<_>> = (0..n).map(|me| (0..n).map(|to| len(me, to)).collect()).collect();
        let into: Vec<Vec<_>> =
            (0..n).map(|me| (0..n).map(|from| len(from, me)).collect()).collect();
        prove_between(first, second, 1, |at| BetweenCall::Alltoallv {
            send: &out[at.rank][at.remote()],
            recv: &into[at.rank][at.remote()],
        });
    }
}

#[test]
fn a_barrier_hears_of_the_whole_other_group() {
    for (first, second) in sizes() {
        let members = |rank| Between { rank, first, second };
        let build = |rank| members(rank).build(&BetweenCall::Barrier).expect("a barrier");
        let schedules: Vec<_> = (0..first + second).map(build).collect();
        for (rank, heard) in crate::prove::heard_of(&schedules).into_iter().enumerate() {
            assert!(
                members(rank).remote().all(|other| heard.contains(&other)),
                "{first} and {second}"
            );
        }
    }
}

#[test]
fn rooted() {
    for (first, second) in sizes() {
        for root in roots(first + second) {
            // The rest of the root's group gives MPI_PROC_NULL.
            let at_root = Between { rank: root, first, second };
            let named = |at: Between| {
                (at.rank == root || at_root.remote().contains(&at.rank)).then_some(root)
            };
            for (len, grain) in [(0, 1), (3, 1), (LONG, LONG)] {
                prove_between(first, second, grain, |at| BetweenCall::Bcast {
                    root: named(at),
                    len,
                });
                prove_between(first, second, grain, |at| BetweenCall::Gather {
                    root: named(at),
                    len,
                });
                prove_between(first, second, grain, |at| BetweenCall::Scatter {
                    root: named(at),
                    len,
                });
                for commutative in [false, true] {
                    let of = sum(grain, commutative);
                    prove_between(first, second, grain, |at| BetweenCall::Reduce {
                        root: named(at),
                        len,
                        of,
                    });
                }
            }
            let lens = uneven(at_root.remote().len(), 1);
            let own = |at: Between| {
                if at.rank == root || named(at).is_none() {
                    0
                } else {
                    lens[at.rank - at.local().start]
                }
            };
            let at = |at: Between| if at.rank == root { &lens[..] } else { &[] };
            prove_between(first, second, 1, |it| BetweenCall::Gatherv {
                root: named(it),
                len: own(it),
                lens: at(it),
            });
            prove_between(first, second, 1, |it| BetweenCall::Scatterv {
                root: named(it),
                len: own(it),
                lens: at(it),
            });
        }
    }
}

#[test]
fn reductions() {
    for (first, second) in sizes() {
        for commutative in [false, true] {
            let of = sum(2, commutative);
            for len in [0, 2, 10] {
                prove_between(first, second, 1, |_| BetweenCall::Allreduce { len, of });
                // Both groups' results have the same length in all.
                prove_between(first, second, 1, |at| {
                    let len = len * at.remote().len() as u64;
                    BetweenCall::ReduceScatterBlock { len, of }
                });
            }
            let total = 2 * (first * second + 1) as u64;
            let cut = |n: usize| {
                let mut lens: Vec<_> = (0..n as u64).map(|rank| rank % 2 * 2).collect();
                lens[0] += total - lens.iter().sum::<u64>();
                lens
            };
            let (one, other) = (cut(first), cut(second));
            prove_between(first, second, 1, |at| BetweenCall::ReduceScatter {
                lens: if at.rank < first { &one } else { &other },
                of,
            });
        }
    }
}

/// Such lists may hold anything: MPI does not look at them either.
#[test]
fn lists_that_do_not_count_here_are_not_looked_at() {
    let lens = &[u64::MAX, 1];
    let at = Between { rank: 2, first: 2, second: 2 };
    for root in [None, Some(0)] {
        for call in [
            BetweenCall::Gatherv { root, len: 1, lens },
            BetweenCall::Scatterv { root, len: 1, lens },
        ] {
            assert!(at.build(&call).is_ok(), "{call:?}");
        }
    }
    let linear = Algorithm::new(Method::Linear);
    for call in [
        Call::Gatherv { root: 1, len: 1, lens, in_place: false },
        Call::Scatterv { root: 1, len: 1, lens, in_place: false },
        Call::Alltoallv { send: lens, recv: &[1, 1], in_place: true },
    ] {
        assert!(build(0, &Locality::flat(2), &call, &linear).is_ok(), "{call:?}");
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let at = Between { rank: 0, first: 1, second: 2 };
    let wrong = |call| at.build(&call).expect_err("it does not fit").to_string();
    assert!(wrong(BetweenCall::Bcast { root: Some(3), len: 1 }).contains("rank 3 is not one of 3"));
    assert!(wrong(BetweenCall::Allgatherv { send: 1, recv: &[1] }).contains("there are 2"));
    assert!(wrong(BetweenCall::Alltoall { send: u64::MAX, recv: 1 }).contains("2^48"));
    let of = sum(4, true);
    assert!(wrong(BetweenCall::Allreduce { len: 6, of }).contains("whole elements of 4"));
    // The rank behind the root: it would wait for ever.
    let behind = Between { rank: 2, ..at };
    let call = BetweenCall::Bcast { root: Some(1), len: 1 };
    assert_eq!(behind.build(&call), Err(BuildError::OwnGroup { root: 1 }));
    assert!(Between { rank: 1, ..at }.build(&call).is_ok());
    assert!(Between { rank: 3, ..at }.build(&BetweenCall::Barrier).is_err());
}
