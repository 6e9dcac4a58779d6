//! Operations that only move bytes.
use super::*;

#[test]
fn barrier() {
    for n in 1..=RANKS_MAX {
        let calls = vec![Call::Barrier; n];
        check(&Topology::flat(n), &calls, &algorithms(Operation::Barrier, true, 0, n), 1);
        for topology in topologies(n) {
            check(&topology, &calls, &two_level(Operation::Barrier, true, 0, n), 1);
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
        let cases = flat.map(|algorithm| (Topology::flat(n), algorithm));
        let levels = two_level(Operation::Barrier, true, 0, n);
        let levels = topologies(n).into_iter().flat_map(|topology| {
            levels.iter().map(|algorithm| (topology.clone(), *algorithm)).collect::<Vec<_>>()
        });
        for (topology, algorithm) in cases.chain(levels) {
            let known = crate::prove::heard_of(&schedules(&topology, &calls, &algorithm));
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
                check(&Topology::flat(n), &calls, &algorithms(Operation::Bcast, true, 3, n), 1);
            }
        }
    }
}

#[test]
fn bcast_on_two_levels() {
    for n in 1..=RANKS_MAX {
        for (root, topology) in roots(n)
            .into_iter()
            .flat_map(|root| topologies(n).into_iter().map(move |it| (root, it)))
        {
            let calls = vec![Call::Bcast { root, len: 11 }; n];
            check(&topology, &calls, &two_level(Operation::Bcast, true, 4, n), 1);
        }
    }
}

#[test]
fn gather_and_scatter() {
    for n in 1..=RANKS_MAX {
        let topology = Topology::flat(n);
        for root in roots(n) {
            for in_place in in_place(n) {
                for (len, grain) in [(0, 1), (1, 1), (3, 1), (LONG, LONG)] {
                    let calls = vec![Call::Gather { root, len, in_place }; n];
                    check(&topology, &calls, &algorithms(Operation::Gather, true, 0, n), grain);
                    let calls = vec![Call::Scatter { root, len, in_place }; n];
                    check(&topology, &calls, &algorithms(Operation::Scatter, true, 0, n), grain);
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
                check(&Topology::flat(n), &(0..n).map(gather).collect::<Vec<_>>(), &linear, 1);
                check(&Topology::flat(n), &(0..n).map(scatter).collect::<Vec<_>>(), &linear, 1);
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
                    &Topology::flat(n),
                    &calls,
                    &algorithms(Operation::Allgather, true, 2 * grain, n),
                    grain,
                );
                for topology in topologies(n).into_iter().filter(Topology::is_consecutive) {
                    check(
                        &topology,
                        &calls,
                        &two_level(Operation::Allgather, true, 2 * grain, n),
                        grain,
                    );
                }
            }
            for grain in [1, LONG] {
                let lens = uneven(n, grain);
                let calls = vec![Call::Allgatherv { lens: &lens, in_place }; n];
                check(
                    &Topology::flat(n),
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
                check(&Topology::flat(n), &calls, &algorithms(Operation::Alltoall, true, 0, n), 1);
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
            check(&Topology::flat(n), &calls, &algorithms(Operation::Alltoallv, true, 0, n), 1);
        }
    }
}

/// Two dimensions, periodic or not, with one or two ranks in one of them: both neighbours may be one rank, or oneself.
#[test]
fn cartesian_neighborhoods() {
    for (rows, columns) in [(1, 1), (1, 2), (2, 1), (2, 2), (1, 5), (3, 2), (4, 4), (5, 6)] {
        for periodic in [false, true] {
            let n = rows * columns;
            let shift = |at: usize, by: usize, of: usize| match at + by {
                to if to >= 1 && to <= of => Some(to - 1),
                _ if !periodic => None,
                to => Some((to + of - 1) % of),
            };
            let edges: Vec<_> = (0..n)
                .map(|rank| {
                    let (row, column) = (rank / columns, rank % columns);
                    let up_down =
                        [0, 2].map(|by| shift(row, by, rows).map(|row| row * columns + column));
                    let sides =
                        [0, 2].map(|by| shift(column, by, columns).map(|it| row * columns + it));
                    Edge::cartesian(&[up_down, sides].concat())
                })
                .collect();
            let lens = [2, 1, 3, 4];
            // What is sent in a direction arrives from the other.
            let recv = [1, 2, 4, 3];
            let alltoall = |rank: usize| Call::NeighborAlltoall {
                sources: &edges[rank].0,
                destinations: &edges[rank].1,
                send: &lens,
                recv: &recv,
            };
            let allgather = |rank: usize| Call::NeighborAllgather {
                sources: &edges[rank].0,
                destinations: &edges[rank].1,
                len: 3,
                recv: &[3; 4],
            };
            let linear = [Algorithm::new(Method::Linear)];
            check(&Topology::flat(n), &(0..n).map(alltoall).collect::<Vec<_>>(), &linear, 1);
            check(&Topology::flat(n), &(0..n).map(allgather).collect::<Vec<_>>(), &linear, 1);
        }
    }
}

/// Each rank sends to some, twice to some of them, and to itself.
#[test]
fn graph_neighborhoods() {
    for n in 1..=12 {
        let to: Vec<Vec<usize>> = (0..n)
            .map(|rank| vec![(rank + 1) % n, rank, (rank + 1) % n, (rank * 3 + 1) % n])
            .collect();
        let edges = |peers: &[usize]| Edge::graph(peers).into_iter().map(Some).collect::<Vec<_>>();
        let out: Vec<_> = to.iter().map(|peers| edges(peers)).collect();
        let from: Vec<Vec<usize>> = (0..n)
            .map(|rank| {
                (0..n)
                    .flat_map(|peer| vec![peer; to[peer].iter().filter(|it| **it == rank).count()])
                    .collect()
            })
            .collect();
        let sources: Vec<_> = from.iter().map(|peers| edges(peers)).collect();
        let ones: Vec<_> = sources.iter().map(|sources| vec![2; sources.len()]).collect();
        let alltoall = |rank: usize| Call::NeighborAlltoall {
            sources: &sources[rank],
            destinations: &out[rank],
            send: &[2; 4],
            recv: &ones[rank],
        };
        let linear = [Algorithm::new(Method::Linear)];
        check(&Topology::flat(n), &(0..n).map(alltoall).collect::<Vec<_>>(), &linear, 1);
    }
}
