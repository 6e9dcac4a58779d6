//! Nests against lists of every byte.

use super::*;
use gapless_dtype::testkit::Rng;
use gapless_testkit::{fresh, seed};

fn grid(at: i64, len: u64, dims: &[(u64, i64)]) -> Grid {
    let dims = dims.iter().map(|&(count, stride)| GridDim { count, stride }).collect();
    Grid { displacement: at, len, dims }
}

/// Where the bytes of a grid lie, in the stream's order.
fn bytes(grid: &Grid) -> Vec<i64> {
    let mut starts = vec![grid.displacement];
    for dim in &grid.dims {
        let count = dim.count.cast_signed();
        let steps = |at: i64| (0..count).map(move |index| at + index * dim.stride);
        starts = starts.into_iter().flat_map(steps).collect();
    }
    starts.into_iter().flat_map(|at| at..at + grid.len.cast_signed()).collect()
}

/// Where the bytes of a nest lie on both sides, in its order.
pub(crate) fn pairs(nest: &Nest) -> Vec<(i64, i64)> {
    let (src, dst) = nest.grids();
    bytes(&src).into_iter().zip(bytes(&dst)).collect()
}

/// A grid of a few hundred bytes; its strides are what its inside is long, or a little more, or anything.
pub(crate) fn random(rng: &mut Rng, unit: u64) -> Grid {
    let len = unit * (1 + rng.below(4));
    let mut span = len.cast_signed();
    let mut dims: Vec<(u64, i64)> = Vec::new();
    for _ in 0..rng.below(4) {
        let count = 1 + rng.below(4);
        let wild = rng.between(-40, 40) * unit.cast_signed();
        let more = span + rng.between(0, 3) * unit.cast_signed();
        let stride = *rng.pick(&[span, span, more, -span, -more, wild, 0]);
        dims.insert(0, (count, stride));
        span = span.max(stride.abs() * count.cast_signed());
    }
    if rng.chance(30) {
        rng.shuffle(&mut dims);
    }
    grid(rng.between(-9, 9), len, &dims)
}

#[test]
fn loops_of_both_sides_name_the_bytes_of_the_stream() {
    let seed = seed(fresh());
    println!("GAPLESS_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut shared = 0;
    for _ in 0..20_000 {
        let (src, dst) = (random(&mut rng, 1), random(&mut rng, 1));
        let (from, to) = (bytes(&src), bytes(&dst));
        let Some(nest) = Nest::between(&Walk::grid(&src).unwrap(), &Walk::grid(&dst).unwrap())
        else {
            continue;
        };
        shared += 1;
        let both: Vec<(i64, i64)> = from.into_iter().zip(to).collect();
        let said = pairs(&nest);
        assert!(said.len() >= both.len(), "{src:?} to {dst:?}: {nest:?}");
        assert_eq!(said[..both.len()], both, "{src:?} to {dst:?}: {nest:?}");
        let end = rng.below(both.len() as u64 + 1);
        let start = rng.below(end + 1);
        let cut: Vec<_> = nest.cut(start, end).unwrap().iter().flat_map(pairs).collect();
        let range = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
        assert_eq!(cut, both[range.clone()], "{src:?} to {dst:?}, {range:?}: {nest:?}");
    }
    assert!(shared > 2000, "{shared}");
}

#[test]
fn every_grid_meets_a_contiguous_span_and_itself() {
    let mut rng = Rng::new(7);
    for _ in 0..2000 {
        let one = random(&mut rng, 1);
        let walk = Walk::grid(&one).unwrap();
        let all = bytes(&one);
        let packed = Nest::between(&walk, &Walk::contiguous(-5)).unwrap();
        let expected: Vec<_> = all.iter().copied().zip(-5..).collect();
        assert_eq!(pairs(&packed), expected);
        let both = Nest::between(&walk, &walk).unwrap();
        assert_eq!(pairs(&both), all.iter().map(|&at| (at, at)).collect::<Vec<_>>());
    }
}

#[test]
fn the_order_of_addresses_moves_the_same_bytes() {
    let seed = seed(fresh());
    println!("GAPLESS_SEED={seed}");
    let mut rng = Rng::new(seed);
    let (mut sorted, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let (src, dst) = (random(&mut rng, 1), random(&mut rng, 1));
        let same = rng.chance(50);
        let src = if same { &dst } else { &src };
        let Some(nest) = Nest::between(&Walk::grid(src).unwrap(), &Walk::grid(&dst).unwrap())
        else {
            continue;
        };
        let mut before = pairs(&nest);
        before.sort_unstable();
        let mut written: Vec<i64> = before.iter().map(|pair| pair.1).collect();
        written.sort_unstable();
        written.dedup();
        let Some(ordered) = nest.clone().in_address_order() else {
            refused += 1;
            continue;
        };
        assert_eq!(written.len(), before.len(), "bytes written twice: {nest:?}");
        let mut after = pairs(&ordered);
        after.sort_unstable();
        assert_eq!(after, before, "{nest:?} as {ordered:?}");
        assert!(ordered.dims.len() <= nest.dims.len());
        sorted += 1;
    }
    assert!(sorted > 2000 && refused > 100, "{sorted} {refused}");
}

fn ordered(src: &Grid, dst: &Grid) -> Option<Nest> {
    let nest = Nest::between(&Walk::grid(src).unwrap(), &Walk::grid(dst).unwrap())?;
    nest.in_address_order()
}

#[test]
fn a_transposed_matrix_to_itself_is_one_contiguous_span() {
    let n = 50;
    let matrix = grid(16, 8, &[(n, 8), (n, 8 * n.cast_signed())]);
    let nest = ordered(&matrix, &matrix).unwrap();
    assert_eq!((nest.src, nest.dst, nest.len), (16, 16, 8 * n * n));
    assert!(nest.dims.is_empty());
    // With a gap behind each row, rows.
    let part = grid(16, 8, &[(n, 8), (n, 500)]);
    let nest = ordered(&part, &part).unwrap();
    assert_eq!(
        (nest.len, &nest.dims[..]),
        (8 * n, &[PairDim { count: n, src: 500, dst: 500 }][..])
    );
    // Another pitch at the other side changes nothing; another order does.
    let wide = grid(0, 8, &[(n, 8), (n, 900)]);
    assert_eq!(ordered(&part, &wide).unwrap().len, 8 * n);
    let rows = grid(0, 8, &[(n, 900), (n, 8)]);
    assert_eq!(ordered(&part, &rows).unwrap().len, 8);
}

#[test]
fn what_runs_backwards_is_turned_round() {
    let down = grid(300, 100, &[(4, -100)]);
    assert_eq!(
        ordered(&down, &down).unwrap(),
        Nest { src: 0, dst: 0, len: 400, dims: SmallVec::new() }
    );
    // Backwards on one side only, it stays.
    let up = grid(0, 100, &[(4, 100)]);
    let nest = ordered(&up, &down).unwrap();
    assert_eq!(nest.dims[..], [PairDim { count: 4, src: 100, dst: -100 }]);
}

#[test]
fn numbers_at_their_limits_are_not_joined() {
    let far = grid(0, 8, &[(1 << 60, 8), (1 << 2, i64::MAX)]);
    let walk = Walk::grid(&far).unwrap();
    let nest = Nest::between(&walk, &walk).unwrap();
    assert_eq!(nest.size(), None);
    assert_eq!(nest.cut(0, 5), None);
    let back = grid(0, 8, &[(2, i64::MIN)]);
    assert_eq!(ordered(&back, &back), None);
    assert_eq!(Walk::grid(&grid(0, 0, &[(3, 5)])), None);
    assert_eq!(Walk::grid(&grid(0, 3, &[(0, 5)])), None);
    let long = grid(0, u64::MAX >> 1, &[(3, i64::MAX)]);
    let nest = Nest::between(&Walk::grid(&long).unwrap(), &Walk::contiguous(0)).unwrap();
    assert_eq!(nest.cut(5, 9).unwrap()[0].len, 4);
}
