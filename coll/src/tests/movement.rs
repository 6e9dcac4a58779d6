//! Operations that only move bytes.
use super::*;
use crate::topologies::{Cartesian, DistGraph, Neighborhood};

#[test]
fn barrier() {
    for n in 1..=RANKS_MAX {
        let calls = vec![Call::Barrier; n];
        check(&Locality::flat(n), &calls, &algorithms(Operation::Barrier, true, 0, n), 1);
        for (locality, all) in on_levels(Operation::Barrier, true, 0, n) {
            check(&locality, &calls, &all, 1);
        }
    }
}

/// A barrier's definition has no bytes. What it must do is that nobody leaves before all have come: every rank's last
/// steps follow from every rank's first.
#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for n in 1..=RANKS_MAX {
        let calls = vec![Call::Barrier; n];
        let flat = algorithms(Operation::Barrier, true, 0, n).into_iter();
        let cases = flat.map(|algorithm| (Locality::flat(n), algorithm));
        let levels = on_levels(Operation::Barrier, true, 0, n);
        let levels = levels.into_iter().flat_map(|(locality, all)| {
            all.into_iter().map(move |algorithm| (locality.clone(), algorithm))
        });
        for (locality, algorithm) in cases.chain(levels) {
            let known = crate::prove::heard_of(&schedules(&locality, &calls, &algorithm));
            for (rank, known) in known.iter().enumerate() {
                assert_eq!(known.len(), n, "{algorithm}: rank {rank} of {n} hears of {known:?}");
            }
        }
    }
}

#[test]
fn bcast() {
    for n in 1..=RANKS_MAX {
        for root in roots(n) {
            for len in [0, 1, n as u64 - 1, n as u64 + 1, 3 * n as u64 + 2] {
                let calls = vec![Call::Bcast { root, len }; n];
                check(&Locality::flat(n), &calls, &algorithms(Operation::Bcast, true, 3, n), 1);
            }
        }
    }
}

#[test]
fn bcast_on_levels() {
    for n in 1..=RANKS_MAX {
        let levels = on_levels(Operation::Bcast, true, 4, n);
        for root in roots(n) {
            for (locality, all) in &levels {
                check(locality, &vec![Call::Bcast { root, len: 11 }; n], all, 1);
            }
        }
    }
}

/// Data crosses the border of a group once, on each level that is used.
#[test]
fn each_group_is_told_once() {
    use crate::schedule::Action;
    for (locality, all) in (2..=RANKS_MAX).flat_map(|n| on_levels(Operation::Bcast, true, 0, n)) {
        for algorithm in all.into_iter().filter(|it| matches!(it.method, Method::Tree(_))) {
            let root = locality.ranks() / 2;
            let calls = vec![Call::Bcast { root, len: 1 }; locality.ranks()];
            for (level, _) in algorithm.within.levels() {
                let groups = locality.groups(level).expect("a level of the ranks");
                let of = |rank: usize| groups.iter().position(|it| it.contains(&rank));
                let schedules = schedules(&locality, &calls, &algorithm);
                let steps =
                    schedules.iter().flat_map(|it| it.steps().map(|step| (it.rank(), step.0)));
                let crosses = steps.filter(
                    |(rank, step)| matches!(step, Action::Send { to, .. } if of(*to) != of(*rank)),
                );
                assert_eq!(crosses.count(), groups.len() - 1, "{algorithm}, {level}: {locality:?}");
            }
        }
    }
}

#[test]
fn gather_and_scatter() {
    for n in 1..=RANKS_MAX {
        let locality = Locality::flat(n);
        for root in roots(n) {
            for in_place in in_place(n) {
                for (len, grain) in [(0, 1), (1, 1), (3, 1), (LONG, LONG)] {
                    let calls = vec![Call::Gather { root, len, in_place }; n];
                    check(&locality, &calls, &algorithms(Operation::Gather, true, 0, n), grain);
                    let calls = vec![Call::Scatter { root, len, in_place }; n];
                    check(&locality, &calls, &algorithms(Operation::Scatter, true, 0, n), grain);
                }
            }
        }
    }
}

#[test]
fn gather_and_scatter_on_levels() {
    for n in 1..=RANKS_MAX {
        let levels = [Operation::Gather, Operation::Scatter].map(|it| on_levels(it, true, 0, n));
        for root in roots(n) {
            let in_place = (n + root).is_multiple_of(2);
            let (len, grain) = if n.is_multiple_of(4) { (LONG, LONG) } else { (3, 1) };
            let gather = Call::Gather { root, len, in_place };
            let scatter = Call::Scatter { root, len, in_place };
            for (call, levels) in [gather, scatter].into_iter().zip(&levels) {
                for (locality, all) in levels {
                    check(locality, &vec![call; n], all, grain);
                }
            }
        }
    }
}

#[test]
fn gatherv_and_scatterv() {
    for n in 1..=RANKS_MAX {
        let lens = uneven(n, 1);
        for root in roots(n) {
            for in_place in in_place(n) {
                // The others know their own lengths only.
                let at = |rank| if rank == root { &lens[..] } else { &[] };
                let gather =
                    |rank: usize| Call::Gatherv { root, len: lens[rank], lens: at(rank), in_place };
                let scatter = |rank: usize| Call::Scatterv {
                    root,
                    len: lens[rank],
                    lens: at(rank),
                    in_place,
                };
                let linear = [Algorithm::new(Method::Linear)];
                check(&Locality::flat(n), &(0..n).map(gather).collect::<Vec<_>>(), &linear, 1);
                check(&Locality::flat(n), &(0..n).map(scatter).collect::<Vec<_>>(), &linear, 1);
            }
        }
    }
}

#[test]
fn allgather() {
    for n in 1..=RANKS_MAX {
        for in_place in in_place(n) {
            for (len, grain) in [(0, 1), (1, 1), (5, 1), (LONG, LONG)] {
                let calls = vec![Call::Allgather { len, in_place }; n];
                check(
                    &Locality::flat(n),
                    &calls,
                    &algorithms(Operation::Allgather, true, 2 * grain, n),
                    grain,
                );
                for (locality, all) in on_levels(Operation::Allgather, true, 2 * grain, n) {
                    check(&locality, &calls, &all, grain);
                }
            }
            for grain in [1, LONG] {
                let lens = uneven(n, grain);
                let calls = vec![Call::Allgatherv { lens: &lens, in_place }; n];
                check(
                    &Locality::flat(n),
                    &calls,
                    &algorithms(Operation::Allgatherv, true, 2 * grain, n),
                    grain,
                );
            }
        }
    }
}

#[test]
fn alltoall() {
    for n in 1..=RANKS_MAX {
        for in_place in in_place(n) {
            for len in [0, 1, 3] {
                let calls = vec![Call::Alltoall { len, in_place }; n];
                check(&Locality::flat(n), &calls, &algorithms(Operation::Alltoall, true, 0, n), 1);
            }
            // From each to each another length, and as long both ways if in place.
            let len = |from: usize, to: usize| {
                let (one, other) = if in_place { (from.min(to), from.max(to)) } else { (from, to) };
                ((one * 5 + other * 3) % 4) as u64
            };
            let send: Vec<Vec<u64>> =
                (0..n).map(|me| (0..n).map(|to| len(me, to)).collect()).collect();
            let recv: Vec<Vec<u64>> =
                (0..n).map(|me| (0..n).map(|from| len(from, me)).collect()).collect();
            let sent = |rank: usize| if in_place { &[][..] } else { &send[rank] };
            let call =
                |rank: usize| Call::Alltoallv { send: sent(rank), recv: &recv[rank], in_place };
            let calls: Vec<_> = (0..n).map(call).collect();
            check(&Locality::flat(n), &calls, &algorithms(Operation::Alltoallv, true, 0, n), 1);
        }
    }
}

#[test]
fn alltoall_on_levels() {
    for n in 1..=RANKS_MAX {
        let in_place = n % 4 > 1;
        let len = n as u64 % 3 + 1;
        for (locality, all) in on_levels(Operation::Alltoall, true, 0, n) {
            check(&locality, &vec![Call::Alltoall { len, in_place }; n], &all, 1);
        }
    }
}

/// What the neighbourhood collectives do along the edges of a topology.
fn prove_neighborhoods(
    neighbors: &[Neighborhood],
    send: &[u64],
    recv: impl Fn(&Neighborhood) -> Vec<u64>,
) {
    let n = neighbors.len();
    let recv: Vec<_> = neighbors.iter().map(recv).collect();
    let threes: Vec<_> = neighbors.iter().map(|it| vec![3; it.sources.len()]).collect();
    let linear = [Algorithm::new(Method::Linear)];
    let alltoall = |rank: usize| Call::NeighborAlltoall {
        sources: &neighbors[rank].sources,
        destinations: &neighbors[rank].destinations,
        send: &send[..neighbors[rank].destinations.len()],
        recv: &recv[rank],
    };
    let allgather = |rank: usize| Call::NeighborAllgather {
        sources: &neighbors[rank].sources,
        destinations: &neighbors[rank].destinations,
        len: 3,
        recv: &threes[rank],
    };
    check(&Locality::flat(n), &(0..n).map(alltoall).collect::<Vec<_>>(), &linear, 1);
    check(&Locality::flat(n), &(0..n).map(allgather).collect::<Vec<_>>(), &linear, 1);
}

/// Two dimensions, periodic or not, with one or two ranks in one of them: both neighbours may be one rank, or oneself.
#[test]
fn cartesian_neighborhoods() {
    for dims in [[1, 1], [1, 2], [2, 1], [2, 2], [1, 5], [3, 2], [4, 4], [5, 6]] {
        for periodic in [[false, false], [true, false], [true, true]] {
            let grid = Cartesian::new(&dims, &periodic).expect("a grid");
            let of = |rank| grid.neighbors(rank).expect("a place of the grid");
            let neighbors: Vec<_> = (0..grid.size()).map(of).collect();
            // What is sent in a direction arrives from the other.
            prove_neighborhoods(&neighbors, &[2, 1, 3, 4], |_| vec![1, 2, 4, 3]);
        }
    }
}

/// Each rank sends to some, twice to one of them, and to itself.
#[test]
fn graph_neighborhoods() {
    for n in 1..=12 {
        let to = |rank: u32| [(rank + 1) % n, rank, (rank + 1) % n, (rank * 3 + 1) % n];
        let from = |rank: u32| {
            (0..n).flat_map(move |peer| {
                to(peer).into_iter().filter(move |it| *it == rank).map(move |_| peer)
            })
        };
        let of = |rank: u32| {
            let sources: Vec<_> = from(rank).collect();
            let graph = DistGraph::adjacent(n, &sources, None, &to(rank), None).expect("a graph");
            graph.neighbors()
        };
        let neighbors: Vec<_> = (0..n).map(of).collect();
        prove_neighborhoods(&neighbors, &[2; 4], |it| vec![2; it.sources.len()]);
    }
}
