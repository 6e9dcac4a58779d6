//! Reshards of small arrays, element by element, against lists of indices that are written out.

use super::*;
use crate::reshard::Placement::{Block, Cyclic, Replicate};
use gapless_dtype::{Distribution, Equivalence, Order, Primitive, Shape, pack, unpack};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A sharding, in plain sight.
#[derive(Clone, Debug)]
struct Spec {
    dims: Vec<u32>,
    ranks: Vec<u32>,
    placements: Vec<Placement>,
    /// From the slowest to the fastest.
    order: Vec<usize>,
}

impl Spec {
    fn sharding(&self) -> Sharding {
        let sharding = Sharding::new(&self.dims, self.ranks.iter().copied(), &self.placements);
        sharding.unwrap().in_order(&self.order)
    }

    /// The global indices that a rank has, of each axis.
    fn indices(&self, shape: &[u64], rank: u32) -> Vec<Vec<u64>> {
        let Some(mut place) = self.ranks.iter().position(|it| *it == rank) else {
            return vec![Vec::new(); shape.len()];
        };
        let mut coordinates = vec![0; self.dims.len()];
        for (dim, size) in self.dims.iter().enumerate().rev() {
            coordinates[dim] = place % *size as usize;
            place /= *size as usize;
        }
        let of_axis = |(axis, len): (usize, &u64)| {
            let mut list: Vec<u64> = (0..*len).collect();
            for ((placement, size), at) in self.placements.iter().zip(&self.dims).zip(&coordinates)
            {
                let (size, all) = (*size as usize, list.len());
                list = match *placement {
                    Block { axis: it } if it == axis => list
                        .into_iter()
                        .skip(at * all.div_ceil(size))
                        .take(all.div_ceil(size))
                        .collect(),
                    Cyclic { axis: it, block } if it == axis => {
                        let block = usize::try_from(block).unwrap();
                        let mine = |(index, _): &(usize, u64)| index / block % size == *at;
                        list.into_iter().enumerate().filter(mine).map(|(_, it)| it).collect()
                    }
                    _ => list,
                };
            }
            list
        };
        shape.iter().enumerate().map(of_axis).collect()
    }

    /// The numbers of the elements in a rank's local array, in the order of its memory; an element's number is its
    /// place in the whole array in row-major order.
    fn array(&self, shape: &[u64], rank: u32) -> Vec<u16> {
        if !self.ranks.contains(&rank) {
            return Vec::new();
        }
        let indices = self.indices(shape, rank);
        let mut numbers = vec![0];
        for &axis in &self.order {
            let step: u64 = shape[axis + 1..].iter().product();
            let longer = |number: &u64| {
                let number = *number;
                indices[axis].iter().map(move |index| number + index * step)
            };
            numbers = numbers.iter().flat_map(longer).collect();
        }
        numbers.into_iter().map(|it| u16::try_from(it).unwrap()).collect()
    }
}

/// Makes the reshard, does what it says, and looks at everything that is promised.
fn check(shape: &[u64], source: &Spec, target: &Spec) {
    let what = || format!("{shape:?} from {source:?} to {target:?}");
    let reshard =
        Reshard::new(shape, &u16::datatype(), &source.sharding(), &target.sharding()).unwrap();
    let moves = reshard.moves();
    let pairs: Vec<_> = moves.iter().map(|it| (it.from, it.to)).collect();
    assert!(pairs.is_sorted_by(|a, b| a < b), "{}", what());
    let mut got: BTreeMap<u32, (Vec<u16>, u64)> = BTreeMap::new();
    for &rank in &target.ranks {
        let elements = reshard.local_elements(ReshardEnd::Target, rank);
        assert_eq!(elements, target.array(shape, rank).len() as u64, "{}", what());
        got.insert(rank, (vec![u16::MAX; usize::try_from(elements).unwrap()], 0));
    }
    for it in &moves {
        let (send, recv) = (it.send_layout().unwrap(), it.recv_layout().unwrap());
        assert_eq!((send.size(), recv.size()), (it.bytes(), it.bytes()), "{}", what());
        let packed = pack(&source.array(shape, it.from), 0, &send, 1).unwrap();
        let (array, elements) = got.get_mut(&it.to).unwrap();
        unpack(&packed, array, 0, &recv, 1).unwrap();
        *elements += it.elements();
    }
    // As many as there are, and all of them: each is written once.
    for (rank, (array, elements)) in &got {
        assert_eq!(*array, target.array(shape, *rank), "rank {rank}: {}", what());
        assert_eq!(*elements, array.len() as u64, "rank {rank}: {}", what());
    }
    for rank in source.ranks.iter().chain(&target.ranks).copied() {
        let own: Vec<_> = reshard.for_rank(rank);
        let due = moves.iter().filter(|it| rank == it.from || rank == it.to);
        let summary = |it: &Move| (it.from, it.to, it.elements, it.send_layout().unwrap());
        assert!(own.iter().map(summary).eq(due.map(summary)), "rank {rank}: {}", what());
    }
    check_balance(shape, source, target, &moves);
}

/// No replica sends more than its share, rounded up, and less than a row.
fn check_balance(shape: &[u64], source: &Spec, target: &Spec, moves: &[Move]) {
    let mut replicas: BTreeMap<Vec<Vec<u64>>, Vec<u32>> = BTreeMap::new();
    for &rank in &source.ranks {
        replicas.entry(source.indices(shape, rank)).or_default().push(rank);
    }
    for (indices, holders) in &replicas {
        let count = holders.len() as u64;
        let (mut total, mut row) = (0, 0);
        for &to in &target.ranks {
            let theirs = target.indices(shape, to);
            let common = |axis: &usize| {
                indices[*axis].iter().filter(|it| theirs[*axis].contains(it)).count() as u64
            };
            let lens: Vec<u64> = source.order.iter().map(common).collect();
            let elements: u64 = lens.iter().product();
            if holders.contains(&to) {
                let own: Vec<_> =
                    moves.iter().filter(|it| it.to == to && holders.contains(&it.from)).collect();
                assert!(
                    own.iter().all(|it| it.from == to) && own.len() == usize::from(elements > 0)
                );
            } else if elements > 0 {
                total += elements;
                let rows = lens.iter().find(|len| **len / 16 >= count);
                let rows = rows.or(lens.iter().max()).copied().unwrap_or(1);
                row = row.max(elements / rows);
            }
        }
        for &from in holders {
            let sent = moves.iter().filter(|it| it.from == from && !holders.contains(&it.to));
            let sent: u64 = sent.map(|it| it.elements).sum();
            assert!(
                sent < total.div_ceil(count) + row.max(1),
                "{from} sends {sent} of {total} to {target:?}: {moves:?}"
            );
        }
    }
}

/// All placements on all meshes of up to four ranks for an array of so many axes, in any group of ranks and any order.
fn distributions(axes: usize) -> Vec<(Vec<u32>, Vec<Placement>)> {
    let mut each = vec![Replicate];
    for axis in 0..axes {
        each.extend([Block { axis }, Cyclic { axis, block: 1 }, Cyclic { axis, block: 2 }]);
    }
    let mut all = Vec::new();
    for dims in [vec![], vec![1], vec![2], vec![3], vec![4], vec![2, 2], vec![1, 3]] {
        let lists = dims.iter().fold(vec![Vec::new()], |lists: Vec<Vec<Placement>>, _| {
            let longer = |list: &Vec<Placement>| {
                let list = list.clone();
                each.iter().map(move |it| [&list[..], &[*it]].concat()).collect::<Vec<_>>()
            };
            lists.iter().flat_map(longer).collect()
        });
        all.extend(lists.into_iter().map(|placements| (dims.clone(), placements)));
    }
    all
}

/// Ranks of a group: those from 0 on, others that overlap with these in another order, or none of these.
fn group(which: u64, count: u32) -> Vec<u32> {
    match which % 3 {
        0 => (0..count).collect(),
        1 => (1..=count).rev().collect(),
        _ => (10..10 + count).collect(),
    }
}

fn order(which: u64, axes: usize) -> Vec<usize> {
    match which % 3 {
        0 => (0..axes).collect(),
        1 => (0..axes).rev().collect(),
        _ => (1..axes).chain((axes > 0).then_some(0)).collect(),
    }
}

fn spec(
    (dims, placements): &(Vec<u32>, Vec<Placement>),
    ranks: u64,
    order_of: u64,
    axes: usize,
) -> Spec {
    let (dims, placements) = (dims.clone(), placements.clone());
    Spec {
        ranks: group(ranks, dims.iter().product()),
        dims,
        placements,
        order: order(order_of, axes),
    }
}

/// Numbers that look random, always the same.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn every_pair_of_distributions_of_a_line() {
    let all = distributions(1);
    for source in &all {
        for target in &all {
            for len in 0..=5 {
                for ranks in 0..3 {
                    check(&[len], &spec(source, 0, 0, 1), &spec(target, ranks, 0, 1));
                }
            }
        }
    }
}

#[test]
fn every_pair_of_distributions_of_a_plane() {
    let (all, mut state) = (distributions(2), 43);
    for source in &all {
        for target in &all {
            let mut random = || random(&mut state);
            let shape = [1 + random() % 5, 1 + random() % 5];
            check(&shape, &spec(source, 0, random(), 2), &spec(target, random(), random(), 2));
        }
    }
}

#[test]
fn sampled_pairs_of_distributions_of_a_cube() {
    let (all, mut state) = (distributions(3), 3);
    let mut random = |below: usize| usize::try_from(random(&mut state)).unwrap() % below;
    for _ in 0..4000 {
        let shape = [1 + random(5) as u64, 1 + random(5) as u64, random(6) as u64];
        let source = spec(&all[random(all.len())], 0, random(3) as u64, 3);
        check(
            &shape,
            &source,
            &spec(&all[random(all.len())], random(3) as u64, random(3) as u64, 3),
        );
    }
}

#[test]
fn an_array_without_axes_is_one_element() {
    for source in distributions(0) {
        for target in distributions(0) {
            (0..3)
                .for_each(|ranks| check(&[], &spec(&source, 0, 0, 0), &spec(&target, ranks, 0, 0)));
        }
    }
}

/// Meshes of up to three dimensions on any ranks, for an array of so many axes.
fn any_spec(axes: usize) -> impl Strategy<Value = Spec> {
    let placement = prop_oneof![
        Just(Replicate),
        (0..axes).prop_map(|axis| Block { axis }),
        (0..axes, 1..7u64).prop_map(|(axis, block)| Cyclic { axis, block }),
    ];
    let dims = prop::collection::vec((1..=4u32, placement), 0..=3);
    let order = Just((0..axes).collect::<Vec<_>>()).prop_shuffle();
    (dims, order, 0..20u32, any::<u64>()).prop_map(|(dims, order, first, mut seed)| {
        let (dims, placements): (Vec<u32>, Vec<Placement>) = dims.into_iter().unzip();
        let mut ranks: Vec<u32> = (first..first + dims.iter().product::<u32>()).collect();
        ranks.sort_by_cached_key(|_| random(&mut seed));
        Spec { dims, ranks, placements, order }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn larger_arrays(
        (shape, source, target) in prop::collection::vec(0..40u64, 1..=3).prop_flat_map(|shape| {
            let axes = shape.len();
            (Just(shape), any_spec(axes), any_spec(axes))
        })
    ) {
        check(&shape, &source, &target);
    }
}

fn line(ranks: std::ops::Range<u32>, placement: Placement) -> Sharding {
    Sharding::new(&[ranks.end - ranks.start], ranks, &[placement]).unwrap()
}

#[test]
fn blocks_and_cycles_are_those_of_darray() {
    let values: Vec<f64> = (0..7 * 9).map(f64::from).collect();
    for (placements, distributions, arguments) in [
        ([Block { axis: 0 }, Block { axis: 1 }], [Distribution::Block; 2], [None; 2]),
        (
            [Cyclic { axis: 0, block: 2 }, Block { axis: 1 }],
            [Distribution::Cyclic, Distribution::Block],
            [Some(2), None],
        ),
        (
            [Cyclic { axis: 0, block: 1 }, Cyclic { axis: 1, block: 3 }],
            [Distribution::Cyclic; 2],
            [Some(1), Some(3)],
        ),
    ] {
        let whole = Sharding::new(&[], [0], &[]).unwrap();
        let target = Sharding::new(&[2, 3], 0..6, &placements).unwrap();
        let reshard = Reshard::new(&[7, 9], &f64::datatype(), &whole, &target).unwrap();
        for it in reshard.moves() {
            let darray = gapless_dtype::Darray::of(&f64::datatype())
                .rank(u64::from(it.to))
                .gsizes([7, 9])
                .distribs(distributions)
                .dargs(arguments)
                .psizes([2, 3])
                .order(Order::C)
                .build()
                .unwrap();
            let due = pack(&values, 0, &darray.commit().unwrap(), 1).unwrap();
            assert_eq!(pack(&values, 0, &it.send_layout().unwrap(), 1).unwrap(), due);
        }
    }
}

#[test]
fn large_regular_arrays_have_closed_layouts() {
    let element = Datatype::from(Primitive::Uint16);
    let rows = || line(0..8, Block { axis: 0 });
    let n = 1 << 24;
    for (target, blocks) in [
        (line(0..8, Block { axis: 1 }), n / 8),
        (line(0..8, Block { axis: 1 }).in_order(&[1, 0]), n / 8),
        (line(8..16, Block { axis: 0 }), 1),
        (line(0..8, Cyclic { axis: 0, block: 16 }), n / 8 / 16 / 8),
    ] {
        let reshard = Reshard::new(&[n, n], &element, &rows(), &target).unwrap();
        for it in reshard.for_rank(3) {
            let send = it.send_layout().unwrap();
            assert!(!matches!(send.shape(), Shape::General), "{send:?}");
            assert!(!matches!(it.recv_layout().unwrap().shape(), Shape::General));
            assert_eq!(send.blocks(), blocks);
        }
    }
}

#[test]
fn replicas_share_the_work() {
    let element = f32::datatype();
    let sent = |moves: &[Move], ranks: std::ops::Range<u32>| -> Vec<u64> {
        let of = |rank| moves.iter().filter(|it| it.from == rank).map(|it| it.elements).sum();
        ranks.map(of).collect()
    };
    // To shards, to other replicas, to fewer of them, to one.
    for (target, each) in [
        (line(4..10, Block { axis: 1 }), 600),
        (line(4..8, Replicate), 2400),
        (line(4..6, Replicate), 1200),
        (line(4..5, Replicate), 600),
    ] {
        let ranks = target.ranks().len();
        let moves =
            Reshard::new(&[40, 60], &element, &line(0..4, Replicate), &target).unwrap().moves();
        assert_eq!(sent(&moves, 0..4), [each; 4], "{moves:?}");
        assert!(moves.len() < 4 + ranks, "{moves:?}");
    }
}

#[test]
fn the_nearest_replica_sends() {
    // Two hosts: ranks of one parity each.
    let host = |a: u32, b: u32| u64::from(a % 2 != b % 2);
    let (source, target) = (line(0..6, Replicate), line(6..16, Block { axis: 0 }));
    let reshard = Reshard::new(&[1000], &f32::datatype(), &source, &target).unwrap();
    assert!(reshard.moves().iter().any(|it| host(it.from, it.to) > 0));
    let moves = reshard.with_cost(host).moves();
    assert!(moves.iter().all(|it| host(it.from, it.to) == 0), "{moves:?}");
    for rank in 0..6 {
        let sent: u64 = moves.iter().filter(|it| it.from == rank).map(|it| it.elements).sum();
        assert!((166..=168).contains(&sent), "{moves:?}");
    }
    // Rank 0 is nearest to some, both are to others, which make up for it.
    let cost = |from: u32, to: u32| u64::from(to < 10 && from != 0);
    let reshard = Reshard::new(&[1000], &f32::datatype(), &line(0..2, Replicate), &target).unwrap();
    let moves = reshard.with_cost(cost).moves();
    let first: u64 = moves.iter().filter(|it| it.from == 0).map(|it| it.elements).sum();
    assert_eq!(first, 500, "{moves:?}");
}

#[test]
fn bad_input_is_refused() {
    let mesh = |dims: &[u32], ranks: &[u32], placements: &[Placement]| {
        Sharding::new(dims, ranks.iter().copied(), placements)
    };
    let wrong = |dims: &[u32], ranks| Err(ReshardError::Mesh { dims: dims.to_vec(), ranks });
    assert_eq!(mesh(&[2], &[0, 1, 2], &[Replicate]), wrong(&[2], 3));
    assert_eq!(mesh(&[0], &[], &[Replicate]), wrong(&[0], 0));
    assert_eq!(mesh(&[u32::MAX; 3], &[1], &[Replicate; 3]), wrong(&[u32::MAX; 3], 1));
    assert_eq!(mesh(&[2], &[5, 5], &[Replicate]), Err(ReshardError::RankTwice { rank: 5 }));
    let placements = Err(ReshardError::Placements { placements: 0, dims: 1 });
    assert_eq!(mesh(&[2], &[0, 1], &[]), placements);
    let empty = [Replicate, Cyclic { axis: 0, block: 0 }];
    assert_eq!(mesh(&[1, 1], &[0], &empty), Err(ReshardError::EmptyBlock { dim: 1 }));

    let byte = u8::datatype();
    let refused = |shape: &[u64], element: &Datatype, source: &Sharding, target: &Sharding| {
        Reshard::new(shape, element, source, target).unwrap_err()
    };
    let (whole, third) = (line(0..1, Replicate), line(0..1, Block { axis: 2 }));
    let axis = ReshardError::Axis { end: ReshardEnd::Target, axis: 2, axes: 2 };
    assert_eq!(refused(&[3, 3], &byte, &whole, &third), axis);
    for order in [&[0, 0][..], &[0], &[0, 2], &[0, 1, 2]] {
        let source = whole.clone().in_order(order);
        let order = ReshardError::Order { end: ReshardEnd::Source, order: order.to_vec(), axes: 2 };
        assert_eq!(refused(&[3, 3], &byte, &source, &whole), order);
    }
    let overflow = ReshardError::Overflow;
    assert_eq!(refused(&[1 << 32, 1 << 31], &byte, &whole, &whole), overflow);
    assert_eq!(refused(&[u64::MAX, u64::MAX, 0], &byte, &whole, &whole), overflow);
    let twice = Datatype::hindexed(&[1, 1], &[0, 0], &byte).unwrap();
    for (extent, element) in [(-1, &byte), (0, &byte), (3, &f32::datatype()), (8, &twice)] {
        let element = Datatype::resized(0, extent, element).unwrap();
        assert_eq!(refused(&[3], &element, &whole, &whole), ReshardError::Element { extent });
    }
    let dust = line(0..2, Cyclic { axis: 0, block: 1 });
    let many = ReshardError::TooManyIntervals { end: ReshardEnd::Target, axis: 0 };
    assert_eq!(refused(&[1 << 40], &byte, &whole, &dust), many);
    // Blocks beyond any array are legal.
    let blocks = line(0..3, Cyclic { axis: 0, block: u64::MAX });
    let reshard = Reshard::new(&[1 << 62], &byte, &blocks, &whole).unwrap();
    assert_eq!(reshard.local_shape(ReshardEnd::Source, 0), Some(vec![1 << 62]));
    assert_eq!(
        (reshard.local_elements(ReshardEnd::Source, 1), reshard.local_shape(ReshardEnd::Target, 1)),
        (0, None)
    );
    assert_eq!(reshard.for_rank(7).len(), 0);
}
