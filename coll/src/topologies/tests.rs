//! All small topologies, against their definitions.

use super::*;

/// All lists of `len` numbers from `range`.
fn lists(len: usize, range: std::ops::RangeInclusive<u32>) -> Vec<Vec<u32>> {
    (0..len).fold(vec![Vec::new()], |lists, _| {
        let longer = |list: &Vec<u32>| {
            let list = list.clone();
            range.clone().map(move |next| [&list[..], &[next]].concat())
        };
        lists.iter().flat_map(longer).collect()
    })
}

/// All grids of up to three dimensions with up to four places along each, periodic or not.
fn grids() -> Vec<Cartesian> {
    let mut grids = Vec::new();
    for dimensions in 0..=3 {
        for dims in lists(dimensions, 1..=4) {
            for periods in lists(dimensions, 0..=1) {
                let periods: Vec<bool> = periods.iter().map(|wraps| *wraps == 1).collect();
                grids.push(Cartesian::new(&dims, &periods).unwrap());
            }
        }
    }
    grids
}

/// Every way to write `n` as a product of `k` numbers in non-increasing order.
fn products(n: u32, k: usize, most: u32) -> Vec<Vec<u32>> {
    match k {
        0 if n == 1 => vec![Vec::new()],
        0 => Vec::new(),
        _ => (1..=most.min(n))
            .filter(|side| n.is_multiple_of(*side))
            .flat_map(|side| {
                let rest = products(n / side, k - 1, side);
                rest.into_iter().map(move |rest| [&[side], &rest[..]].concat())
            })
            .collect(),
    }
}

#[test]
fn sides_are_as_close_as_any() {
    for n in 1..=400 {
        for k in 1..=4 {
            let difference = |sides: &Vec<u32>| sides[0] - sides[k - 1];
            let all = products(n, k, n);
            let best =
                all.iter().min_by_key(|sides| (difference(sides), (*sides).clone())).unwrap();
            assert_eq!(&dims_create(n, &vec![0; k]).unwrap(), best, "{n} in {k}");
        }
    }
}

#[test]
fn sides_that_are_given_stay() {
    for n in 1..=60u32 {
        for dims in (0..=3).flat_map(|dimensions| lists(dimensions, 0..=4)) {
            let given: u32 = dims.iter().filter(|side| **side > 0).product();
            let free = dims.iter().filter(|side| **side == 0).count();
            let answer = dims_create(n, &dims);
            if !n.is_multiple_of(given) || (free == 0 && given != n) {
                let given = u64::from(given);
                assert_eq!(answer, Err(TopologyError::NotDivisible { processes: n, given }));
                continue;
            }
            let answer = answer.unwrap();
            let kept = answer.iter().zip(&dims).all(|(side, given)| *given == 0 || side == given);
            let chosen: Vec<u32> = answer
                .iter()
                .zip(&dims)
                .filter(|(_, given)| **given == 0)
                .map(|(s, _)| *s)
                .collect();
            assert!(kept, "{n} in {dims:?}: {answer:?}");
            assert_eq!(chosen, dims_create(n / given, &vec![0; free]).unwrap());
        }
    }
    assert_eq!(dims_create(0, &[0]), Err(TopologyError::NoProcesses));
}

#[test]
fn large_grids_are_found_soon() {
    assert_eq!(dims_create(1 << 31, &[0; 31]).unwrap(), [2; 31]);
    assert_eq!(dims_create(1 << 31, &[0; 2]).unwrap(), [1 << 16, 1 << 15]);
    assert_eq!(dims_create(u32::MAX, &[0; 2]).unwrap(), [65537, 65535]);
    assert_eq!(dims_create(4_294_967_291, &[0; 3]).unwrap(), [4_294_967_291, 1, 1]);
    // More divisors than any other number of 32 bits has.
    for k in 2..=12 {
        let sides = dims_create(3_491_888_400, &vec![0; k]).unwrap();
        assert_eq!(sides.iter().map(|side| u64::from(*side)).product::<u64>(), 3_491_888_400);
        assert!(sides.is_sorted_by(|a, b| a >= b), "{sides:?}");
    }
    let huge = dims_create(6, &[u32::MAX; 3]);
    assert!(matches!(huge, Err(TopologyError::NotDivisible { given: u64::MAX, .. })));
}

#[test]
fn ranks_run_through_a_grid_in_row_major_order() {
    for grid in grids() {
        let mut places = vec![Vec::new()];
        for side in grid.dims() {
            places = places
                .iter()
                .flat_map(|place: &Vec<u32>| (0..*side).map(|at| [&place[..], &[at]].concat()))
                .collect();
        }
        assert_eq!(places.len(), grid.size() as usize);
        for (rank, place) in (0..).zip(&places) {
            assert_eq!(&grid.coords(rank).unwrap(), place);
            let place: Vec<i64> = place.iter().map(|at| i64::from(*at)).collect();
            assert_eq!(grid.rank(&place), Ok(rank));
            for (dimension, (side, wraps)) in grid.dims().iter().zip(grid.periodic()).enumerate() {
                for turns in [-3, -1, 1, 2] {
                    let mut far = place.clone();
                    far[dimension] += turns * i64::from(*side);
                    let coordinate = far[dimension];
                    let outside = TopologyError::Coordinate { dimension, coordinate, size: *side };
                    let wanted = if *wraps { Ok(rank) } else { Err(outside) };
                    assert_eq!(grid.rank(&far), wanted);
                }
            }
        }
        let (rank, size) = (grid.size(), grid.size());
        assert_eq!(grid.coords(rank), Err(TopologyError::Rank { rank, size }));
    }
}

#[test]
fn shifts_end_at_edges_or_wrap() {
    for grid in grids() {
        for rank in 0..grid.size() {
            let place: Vec<i64> =
                grid.coords(rank).unwrap().iter().map(|at| i64::from(*at)).collect();
            for dimension in 0..place.len() {
                for displacement in (-9..=9).chain([i64::MIN, i64::MAX]) {
                    let shift = grid.shift(rank, dimension, displacement).unwrap();
                    let at = |way: i128| {
                        let far = i128::from(place[dimension]) + way * i128::from(displacement);
                        let side = i128::from(grid.dims()[dimension]);
                        let inside =
                            if grid.periodic()[dimension] { far.rem_euclid(side) } else { far };
                        let mut there = place.clone();
                        there[dimension] = i64::try_from(inside).ok()?;
                        grid.rank(&there).ok()
                    };
                    let wanted = Shift { source: at(-1), destination: at(1) };
                    assert_eq!(shift, wanted, "{grid:?} {rank} {dimension} {displacement}");
                }
            }
            let dimension = place.len();
            let none = TopologyError::Dimension { dimension, dimensions: dimension };
            assert_eq!(grid.shift(rank, dimension, 1), Err(none));
        }
    }
}

#[test]
fn parts_of_a_grid_keep_order_and_periods() {
    for grid in grids() {
        for keep in lists(grid.dims().len(), 0..=1) {
            let keep: Vec<bool> = keep.iter().map(|kept| *kept == 1).collect();
            let kept = |coords: &[u32], wanted: bool| -> Vec<u32> {
                coords.iter().zip(&keep).filter(|(_, k)| **k == wanted).map(|(c, _)| *c).collect()
            };
            let subs: Vec<Sub> =
                (0..grid.size()).map(|rank| grid.sub(rank, &keep).unwrap()).collect();
            for (rank, sub) in (0..).zip(&subs) {
                let coords = grid.coords(rank).unwrap();
                assert_eq!(sub.grid.dims(), kept(grid.dims(), true));
                assert_eq!(sub.grid.coords(sub.rank).unwrap(), kept(&coords, true));
                // Ranks of one part, and only they, have the same coordinates in what was dropped.
                for (other, peer) in (0..).zip(&subs) {
                    let theirs = grid.coords(other).unwrap();
                    let together = kept(&coords, false) == kept(&theirs, false);
                    assert_eq!(sub.color == peer.color, together);
                    assert!(!together || (rank < other) == (sub.rank < peer.rank));
                }
            }
            let colors = subs.iter().map(|sub| sub.color).max().unwrap_or(0) + 1;
            assert_eq!(colors * subs[0].grid.size(), grid.size());
        }
    }
}

/// Hands a block along every edge, and gives for each rank which block of which rank each of its blocks came from.
fn exchanged(neighborhoods: &[Neighborhood]) -> Vec<Vec<Option<(u32, usize)>>> {
    let mut unread = 0;
    let mut sent = std::collections::HashMap::new();
    for (rank, neighborhood) in (0u32..).zip(neighborhoods) {
        for (block, edge) in neighborhood.destinations.iter().enumerate() {
            let Some(edge) = edge else { continue };
            let twice = sent.insert((rank, edge.rank, edge.lane), block);
            assert_eq!(
                twice, None,
                "two edges from {rank} to {} have lane {}",
                edge.rank, edge.lane
            );
            unread += 1;
        }
    }
    let received = (0u32..).zip(neighborhoods).map(|(rank, neighborhood)| {
        let block = |edge: &Option<Edge>| {
            let edge = edge.as_ref()?;
            unread -= 1;
            Some((
                edge.rank,
                sent.remove(&(edge.rank, rank, edge.lane)).expect("somebody sends it"),
            ))
        };
        neighborhood.sources.iter().map(block).collect()
    });
    let received = received.collect();
    assert_eq!(unread, 0, "every block is received");
    received
}

#[test]
fn what_goes_one_way_in_a_grid_comes_from_the_other() {
    for grid in grids() {
        let all: Vec<Neighborhood> =
            (0..grid.size()).map(|rank| grid.neighbors(rank).unwrap()).collect();
        for (rank, blocks) in (0..).zip(exchanged(&all)) {
            assert_eq!(blocks.len(), 2 * grid.dims().len());
            for (block, from) in blocks.into_iter().enumerate() {
                let shift = grid.shift(rank, block / 2, 1).unwrap();
                let neighbor = if block % 2 == 0 { shift.source } else { shift.destination };
                assert_eq!(from, neighbor.map(|neighbor| (neighbor, block ^ 1)), "{grid:?} {rank}");
            }
        }
    }
}

#[test]
fn graphs_pair_edges_in_turn() {
    // How many edges each pair of three nodes has, loops too, in both directions.
    let mut graphs = 0;
    for edges in lists(9, 0..=2) {
        let count = |from: usize, to: usize| edges[3 * from + to];
        let (mut index, mut list) = (Vec::new(), Vec::new());
        for from in 0..3 {
            for to in [2, 0, 1, 1] {
                // The edges to node 1 stand in two places.
                let copies = match to {
                    1 if list.iter().skip(index.last().copied().unwrap_or(0)).any(|n| *n == 1) => 0,
                    _ => count(from, to as usize),
                };
                list.extend(std::iter::repeat_n(to, copies as usize));
            }
            index.push(list.len());
        }
        let graph = Graph::new(&index, &list).unwrap();
        let symmetric = (0..9).all(|pair| count(pair / 3, pair % 3) == count(pair % 3, pair / 3));
        let all: Result<Vec<Neighborhood>, _> = (0..3).map(|rank| graph.neighbors(rank)).collect();
        match all {
            Ok(all) => {
                assert!(symmetric);
                graphs += 1;
                for (rank, blocks) in (0u32..).zip(exchanged(&all)) {
                    let neighbors = graph.neighbors_of(rank).unwrap();
                    for (block, from) in blocks.into_iter().enumerate() {
                        let (source, sent) = from.unwrap();
                        assert_eq!(source, neighbors[block]);
                        let nth = |list: &[u32], who: u32, end: usize| {
                            list[..end].iter().filter(|other| **other == who).count()
                        };
                        let theirs = graph.neighbors_of(source).unwrap();
                        assert_eq!(nth(theirs, rank, sent), nth(neighbors, source, block));
                    }
                }
            }
            Err(error) => {
                assert!(!symmetric);
                assert!(matches!(error, TopologyError::NotSymmetric { .. }), "{error}");
            }
        }
    }
    assert_eq!(graphs, 3u32.pow(6));
}

#[test]
fn graphs_that_are_none_name_the_culprit() {
    assert_eq!(Graph::new(&[2, 1], &[0, 1]), Err(TopologyError::Index { node: 1 }));
    assert_eq!(Graph::new(&[1, 2], &[0, 2]), Err(TopologyError::Rank { rank: 2, size: 2 }));
    let error = Graph::new(&[1, 2], &[0]).unwrap_err();
    assert_eq!(error.to_string(), "the list of edges has 1 entries instead of 2");
    let none = Graph::new(&[], &[]).unwrap();
    assert_eq!(none.neighbors_of(0), Err(TopologyError::Rank { rank: 0, size: 0 }));
}

#[test]
fn edges_of_a_distributed_graph_reach_both_ends_whoever_gives_them() {
    // Up to three edges among three ranks, each given by any rank.
    for number in 0..=3usize {
        for choice in lists(number, 0..=26) {
            let edges: Vec<(u32, u32, u32)> =
                choice.iter().map(|edge| (edge / 9, edge / 3 % 3, edge % 3)).collect();
            let mut contributions = vec![Contribution::default(); 3];
            for (weight, (giver, source, destination)) in (0..).zip(&edges) {
                let one = &mut contributions[*giver as usize];
                one.sources.push(*source);
                one.degrees.push(1);
                one.destinations.push(*destination);
                one.weights.get_or_insert_default().push(weight);
            }
            let told: Vec<Vec<Vec<Note>>> =
                contributions.iter().map(|one| one.notes_for(3).unwrap()).collect();
            let graphs: Vec<DistGraph> = (0..3)
                .map(|rank| {
                    let notes = told.iter().map(|notes| &notes[rank as usize][..]);
                    DistGraph::assemble(rank, false, notes).unwrap()
                })
                .collect();
            let all: Vec<Neighborhood> = graphs.iter().map(DistGraph::neighbors).collect();
            for (rank, blocks) in exchanged(&all).into_iter().enumerate() {
                let graph = &graphs[rank];
                let wanted = edges.iter().filter(|(_, _, to)| *to as usize == rank).count();
                assert_eq!(blocks.len(), wanted);
                // Weights are all different, so an edge that was taken for another would show.
                for (block, from) in blocks.into_iter().enumerate() {
                    let (source, sent) = from.unwrap();
                    let (ours, theirs) =
                        (graph.sources()[block], graphs[source as usize].destinations()[sent]);
                    assert_eq!(
                        (ours.weight, theirs.rank),
                        (theirs.weight, u32::try_from(rank).unwrap())
                    );
                    let (_, from, to) = edges[ours.weight.unwrap() as usize];
                    assert_eq!((from, to as usize), (source, rank));
                }
            }
        }
    }
}

#[test]
fn distributed_graphs_refuse_what_does_not_fit() {
    let adjacent = |sources: &[u32], weights| DistGraph::adjacent(2, sources, weights, &[], None);
    assert_eq!(adjacent(&[2], None), Err(TopologyError::Rank { rank: 2, size: 2 }));
    let short = adjacent(&[0, 1], Some(&[5])).unwrap_err();
    assert_eq!(short.to_string(), "the list of sources' weights has 1 entries instead of 2");
    let one = Contribution {
        sources: vec![0],
        degrees: vec![2],
        destinations: vec![1, 1],
        weights: Some(vec![1, 2]),
    };
    let other = Contribution { weights: None, ..one.clone() };
    let notes = [&one, &other].map(|one| one.edges(2).unwrap());
    let mixed = DistGraph::assemble(1, false, notes.iter().map(|notes| &notes[..]));
    assert_eq!(mixed, Err(TopologyError::Weights { rank: 1 }));
    let long = Contribution { degrees: vec![u32::MAX], ..one.clone() };
    assert!(matches!(long.edges(2), Err(TopologyError::Length { expected: 4_294_967_295, .. })));
    assert_eq!(one.edges(1), Err(TopologyError::Rank { rank: 1, size: 1 }));
}

#[test]
fn a_distributed_graph_remembers_that_it_has_weights() {
    let adjacent = |weights: Option<&[u32]>| DistGraph::adjacent(2, &[], weights, &[], None);
    assert!(adjacent(Some(&[])).unwrap().is_weighted());
    assert!(!adjacent(None).unwrap().is_weighted());
    let assembled = |gave_weights, weight: Option<u32>| {
        let note = weight.map(|weight| Note { source: 0, destination: 1, weight: Some(weight) });
        DistGraph::assemble(1, gave_weights, [note.as_slice()]).unwrap().is_weighted()
    };
    assert!(assembled(true, None) && assembled(false, Some(3)) && !assembled(false, None));
    let bare = [Note { source: 0, destination: 1, weight: None }];
    let mixed = DistGraph::assemble(1, true, [&bare[..]]);
    assert_eq!(mixed, Err(TopologyError::Weights { rank: 1 }));
}

/// How often a step along a dimension leads to another host.
fn between_hosts(grid: &Cartesian, order: &[u32], hosts: &[u32]) -> usize {
    let host = |rank: u32| hosts[order[rank as usize] as usize];
    let steps = (0..grid.size()).flat_map(|rank| (0..grid.dims().len()).map(move |d| (rank, d)));
    let ends =
        steps.filter_map(|(rank, d)| Some((rank, grid.shift(rank, d, 1).unwrap().destination?)));
    ends.filter(|(from, to)| host(*from) != host(*to)).count()
}

#[test]
fn reordering_never_costs_and_gives_each_rank_one_place() {
    let mut better = 0;
    for grid in grids() {
        for share in 1..=grid.size() {
            for deal in [|rank: u32, share: u32| rank / share, |rank: u32, share: u32| rank % share]
            {
                let hosts: Vec<u32> = (0..grid.size() + 2).map(|rank| deal(rank, share)).collect();
                let order = reordered(&grid, &hosts).unwrap();
                let mut ranks = order.clone();
                ranks.sort_unstable();
                assert!(ranks.iter().copied().eq(0..grid.size()), "{order:?}");
                let same: Vec<u32> = (0..grid.size()).collect();
                let (before, after) =
                    (between_hosts(&grid, &same, &hosts), between_hosts(&grid, &order, &hosts));
                assert!(after <= before, "{grid:?} {hosts:?}: {before} to {after}");
                better += usize::from(after < before);
            }
        }
    }
    assert!(better > 1000, "only {better} grids gained");
    let grid = Cartesian::new(&[4], &[false]).unwrap();
    let error = reordered(&grid, &[0; 3]);
    assert_eq!(error, Err(TopologyError::TooFewProcesses { places: 4, processes: 3 }));
}

#[test]
fn nodes_that_are_joined_share_hosts() {
    // Three sets of four nodes that know each other; nodes of a set are three apart.
    let of_set = |node: u32| (0..12).filter(move |other| other % 3 == node % 3 && *other != node);
    let edges: Vec<u32> = (0..12).flat_map(of_set).collect();
    let index: Vec<usize> = (1..=12).map(|node| 3 * node).collect();
    let sets = Graph::new(&index, &edges).unwrap();
    let hosts: Vec<u32> = (0..14).map(|rank| rank / 4).collect();
    let order = reordered_graph(&sets, &hosts).unwrap();
    let host = |node: u32| hosts[order[node as usize] as usize];
    assert!((0..12).all(|node| of_set(node).all(|other| host(other) == host(node))), "{order:?}");

    let mut state = 1u32;
    let mut random = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let mut gained = 0;
    for turn in 0..500 {
        let n = 1 + random(12);
        let mut index = Vec::new();
        let mut edges = Vec::new();
        for _ in 0..n {
            (0..random(4)).for_each(|_| edges.push(random(n)));
            index.push(edges.len());
        }
        let graph = Graph::new(&index, &edges).unwrap();
        let many = 1 + random(4);
        let hosts: Vec<u32> = (0..n + 1).map(|_| random(many)).collect();
        let order = reordered_graph(&graph, &hosts).unwrap();
        let mut ranks = order.clone();
        ranks.sort_unstable();
        let same: Vec<u32> = (0..n).collect();
        assert_eq!(ranks, same, "turn {turn}");
        let apart = |order: &[u32]| {
            let host = |node: u32| hosts[order[node as usize] as usize];
            let ends = |node: u32| graph.neighbors_of(node).unwrap().iter();
            let far = |node: u32| ends(node).filter(|other| host(**other) != host(node)).count();
            (0..n).map(far).sum::<usize>()
        };
        assert!(apart(&order) <= apart(&same), "turn {turn}");
        gained += usize::from(apart(&order) < apart(&same));
    }
    assert!(gained > 100, "only {gained} graphs gained");
    let error = reordered_graph(&sets, &[0; 11]);
    assert_eq!(error, Err(TopologyError::TooFewProcesses { places: 12, processes: 11 }));
}

#[test]
fn grids_that_are_none_name_the_culprit() {
    let error = Cartesian::new(&[2, 0], &[false; 2]);
    assert_eq!(error, Err(TopologyError::EmptyDimension { dimension: 1 }));
    assert_eq!(Cartesian::new(&[1 << 16; 2], &[true; 2]), Err(TopologyError::TooLarge));
    let error = Cartesian::new(&[2], &[]).unwrap_err();
    assert_eq!(error.to_string(), "the list of periods has 0 entries instead of 1");
    let one = Cartesian::new(&[], &[]).unwrap();
    assert_eq!((one.size(), one.neighbors(0).unwrap()), (1, Neighborhood::default()));
    assert!(one.check_fits(0).is_err() && one.check_fits(1).is_ok());
}
