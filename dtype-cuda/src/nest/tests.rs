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
        if let Some((tiles, _)) = ordered.clone().in_tiles() {
            let mut after = pairs(&tiles);
            after.sort_unstable();
            assert_eq!(after, before, "{ordered:?} as {tiles:?}");
        }
        sorted += 1;
    }
    assert!(sorted > 2000 && refused > 100, "{sorted} {refused}");
}

#[test]
fn tiles_move_the_same_bytes_and_have_the_rows_that_they_say() {
    let seed = seed(fresh());
    println!("GAPLESS_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut tiled = 0;
    for _ in 0..300 {
        // Matrices of matrices, with the loops of one side in another order.
        let len: u64 = 1 << rng.below(4);
        let counts = [(); 3].map(|()| 1 + rng.below(20));
        let loops = |order: [usize; 3]| {
            let mut dims = [(0, 0); 3];
            let mut stride = len;
            for at in order {
                dims[at] = (counts[at], stride.cast_signed());
                stride *= counts[at];
            }
            grid(7, len, &dims)
        };
        let orders = [[2, 1, 0], [0, 1, 2], [1, 2, 0], [0, 2, 1]];
        let (src, dst) = (loops(*rng.pick(&orders)), loops(*rng.pick(&orders)));
        let nest = ordered(&src, &dst).unwrap();
        let Some((tiles, [read, written])) = nest.clone().in_tiles() else { continue };
        let (mut before, mut after) = (pairs(&nest), pairs(&tiles));
        let tile = usize::try_from(read * written / tiles.len).unwrap();
        for tile in after.chunks(tile) {
            let row = tile[..usize::try_from(written).unwrap()].iter();
            assert!(row.map(|pair| pair.1).is_sorted_by(|one, next| one + 1 == *next), "{tiles:?}");
            let mut from: Vec<i64> = tile.iter().map(|pair| pair.0).collect();
            from.sort_unstable();
            let rows = from.chunk_by(|one, next| one + 1 == *next);
            assert!(
                rows.into_iter().all(|row| (row.len() as u64).is_multiple_of(read)),
                "{tiles:?}"
            );
        }
        before.sort_unstable();
        after.sort_unstable();
        assert_eq!(before, after, "{nest:?} as {tiles:?}");
        assert!(read.min(written) >= 32 && read.max(written) <= 128);
        tiled += 1;
    }
    assert!(tiled > 15, "{tiled}");
}

#[test]
fn there_are_tiles_of_transposed_matrices_alone() {
    let of = |rows: u64, columns: u64| {
        let stride = 8 * columns.cast_signed();
        let (matrix, turned) = (
            grid(0, 8, &[(columns, 8), (rows, stride)]),
            grid(0, 8, &[(columns, 8 * rows.cast_signed()), (rows, 8)]),
        );
        ordered(&matrix, &turned).unwrap().in_tiles().map(|(_, runs)| runs)
    };
    assert_eq!(of(64, 768), Some([128, 128]));
    assert_eq!(of(250, 36), Some([96, 80]));
    // A prime number, and parts of less than a sector.
    assert_eq!(of(64, 769), None);
    assert_eq!(of(64, 3 * 101), None);
    // Backwards at one end.
    for (from, to) in [(-1, 1), (1, -1)] {
        let matrix = grid(0, 8, &[(16, from * 8), (16, from * 128)]);
        let turned = grid(0, 8, &[(16, to * 128), (16, to * 8)]);
        let nest = ordered(&matrix, &turned).unwrap();
        let (tiles, runs) = nest.clone().in_tiles().unwrap();
        let [mut before, mut after] = [&nest, &tiles].map(pairs);
        before.sort_unstable();
        after.sort_unstable();
        assert_eq!((before, runs), (after, [128, 128]), "{nest:?} as {tiles:?}");
    }
    let rows = grid(0, 8, &[(64, 640), (64, 8)]);
    assert_eq!(ordered(&rows, &rows).unwrap().in_tiles(), None);
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
