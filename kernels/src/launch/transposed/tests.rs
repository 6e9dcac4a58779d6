//! Squares of a move between two grids, walked as the kernel walks them: every word once, to the right place.

use super::*;
use crate::launch::GridDim;
use std::collections::BTreeMap;

/// Where the kernel takes a word from and puts it: bytes from the typed pointer, and from the packed one.
fn walked(launch: &Launch) -> Vec<(i64, i64)> {
    let Args::Transposed(TransposedArgs { span, shape }) = &launch.args else {
        panic!("{launch:?}")
    };
    let bytes = i64::from(launch.kernel.width.bytes());
    let mut batches = vec![(0i64, 0u32)];
    for dim in &shape.batch[..shape.dims as usize] {
        let each = |&(at, word): &(i64, u32)| {
            (0..dim.count).map(move |i| (at + i64::from(i) * dim.stride, word + i * dim.packed))
        };
        batches = batches.iter().flat_map(each).collect();
    }
    let mut all = Vec::new();
    for &(base, word0) in &batches {
        for (d, f) in
            (0..shape.dense.count).flat_map(|d| (0..shape.fast.count).map(move |f| (d, f)))
        {
            let number = word0 + d * shape.dense.packed + f;
            assert!((span.first..span.first + span.words).contains(&number), "{launch:?}");
            let at = base + i64::from(d) * shape.dense.stride + i64::from(f) * shape.fast.stride;
            all.push((span.typed + at, span.packed + i64::from(number) * bytes));
        }
    }
    let squares: u64 = [&shape.dense, &shape.fast]
        .into_iter()
        .map(|dim| u64::from(dim.count).div_ceil(SIDE))
        .product();
    assert_eq!(u64::from(span.tiles), squares * batches.len() as u64);
    all
}

fn grid(displacement: i64, len: u64, dims: &[(u64, i64)]) -> Grid {
    let dims = dims.iter().map(|&(count, stride)| GridDim { count, stride }).collect();
    Grid { displacement, len, dims }
}

/// What is to be moved: from where at the source to where at the destination.
fn wanted(from: &Grid, to: &Grid) -> BTreeMap<i64, i64> {
    let mut all = vec![(from.displacement, to.displacement)];
    for (one, other) in from.dims.iter().zip(&to.dims) {
        let each = |&(a, b): &(i64, i64)| {
            (0..one.count.cast_signed()).map(move |i| (a + i * one.stride, b + i * other.stride))
        };
        all = all.iter().flat_map(each).collect();
    }
    all.into_iter().map(|(a, b)| (b, a)).collect()
}

const AT: KernelAddress = KernelAddress { address: 0, offset: 0 };

fn check(from: &Grid, to: &Grid, direction: Direction) {
    let launches = crossed((from, AT), (to, AT), None).expect("squares");
    let [launch] = &launches[..] else { panic!("{launches:?}") };
    assert_eq!((launch.kernel.family, launch.kernel.direction), (Family::Transposed, direction));
    let words = walked(launch).into_iter();
    let moved: Vec<(i64, i64)> = match direction {
        Direction::Pack => words.map(|(typed, packed)| (packed, typed)).collect(),
        Direction::Unpack => words.collect(),
    };
    let wanted = wanted(from, to);
    assert_eq!(moved.len(), wanted.len());
    assert_eq!(moved.into_iter().collect::<BTreeMap<_, _>>(), wanted);
}

#[test]
fn every_word_goes_where_the_grids_say() {
    // Rows of a larger matrix to columns of another one, as a Fourier transform needs it.
    check(
        &grid(640, 16, &[(40, 16), (33, 1600)]),
        &grid(32, 16, &[(40, 2048), (33, 16)]),
        Direction::Pack,
    );
    // Neighbours of the destination lie two words apart: only the source has rows.
    check(
        &grid(0, 8, &[(40, 8), (33, 800)]),
        &grid(8, 8, &[(40, 1024), (33, 16)]),
        Direction::Unpack,
    );
    // Two dimensions besides, one of them backwards at the source.
    check(
        &grid(100_000, 4, &[(3, -30_000), (2, 12_000), (9, 4), (17, 400)]),
        &grid(0, 4, &[(3, 50_000), (2, 20_000), (9, 1200), (17, 4)]),
        Direction::Pack,
    );
}

#[test]
fn what_is_not_crossed_is_left_to_others() {
    let none = |from: &Grid, to: &Grid| {
        assert_eq!(crossed((from, AT), (to, AT), None), None, "{from:?} to {to:?}");
    };
    let rows = grid(0, 8, &[(40, 800), (40, 8)]);
    let columns = grid(0, 8, &[(40, 8), (40, 800)]);
    none(&rows, &rows);
    none(&rows, &grid(0, 8, &[(40, 8), (41, 800)]));
    // Words of 8 bytes that lie at odd places, blocks of several words, short dimensions, and columns that
    // nothing of the other side runs along.
    none(&grid(4, 8, &[(40, 800), (40, 8)]), &columns);
    none(&grid(0, 24, &[(40, 2400), (40, 24)]), &grid(0, 24, &[(40, 24), (40, 2400)]));
    none(&grid(0, 8, &[(40, 800), (5, 8)]), &grid(0, 8, &[(40, 8), (5, 800)]));
    none(&grid(0, 8, &[(40, 8000), (40, 160)]), &grid(0, 8, &[(40, 160), (40, 8000)]));
    // More words than a kernel numbers.
    none(&grid(0, 8, &[(40, 1 << 33), (40, 8)]), &grid(0, 8, &[(40, 8), (40, 1 << 33)]));
    let odd = KernelAddress { address: 0, offset: 4 };
    assert_eq!(crossed((&rows, odd), (&columns, AT), None), None);
    assert!(crossed((&rows, AT), (&columns, AT), None).is_some());
    let few = crossed((&rows, AT), (&columns, AT), Budget::new(2)).unwrap();
    assert!(few[0].kernel.few && few[0].blocks == 2);
}

#[test]
fn squares_that_read_across_a_link_begin_with_lines() {
    use crate::launch::from_afar;
    let rows = grid(0, 8, &[(40, 800), (40, 8)]);
    let columns = grid(0, 8, &[(40, 8), (40, 800)]);
    let near = crossed((&rows, AT), (&columns, AT), None).unwrap();
    let mut far = near.clone();
    from_afar(&mut far, None);
    let shape = |launches: &Launches| match &launches[0].args {
        Args::Transposed(args) => args.shape,
        other => panic!("{other:?}"),
    };
    assert_eq!((shape(&near).far, shape(&near).dense_tiles), (0, 2));
    // Up to 15 words earlier: 55 words are two squares still, and 50 that may be 65 are three.
    assert_eq!((shape(&far).far, shape(&far).dense_tiles, shape(&far).fast_tiles), (16, 2, 2));
    assert_eq!(far[0].blocks, far[0].args.span().tiles);
    let longer =
        |count: u64| (grid(0, 8, &[(40, 800), (count, 8)]), grid(0, 8, &[(40, 8), (count, 800)]));
    let (rows, columns) = longer(50);
    let mut far = crossed((&rows, AT), (&columns, AT), Budget::new(5)).unwrap();
    from_afar(&mut far, Budget::new(5));
    assert_eq!((shape(&far).dense_tiles, far[0].args.span().tiles), (3, 6));
    assert_eq!((far[0].blocks, far[0].kernel.few), (5, true));
    // One square across has each of its lines alone.
    let (rows, columns) = longer(32);
    let mut far = crossed((&rows, AT), (&columns, AT), None).unwrap();
    from_afar(&mut far, None);
    assert_eq!((shape(&far).far, shape(&far).dense_tiles, far[0].args.span().tiles), (1, 1, 2));
    // Single bytes: a line is longer than a square.
    let (rows, columns) = (grid(0, 1, &[(40, 100), (40, 1)]), grid(0, 1, &[(40, 1), (40, 100)]));
    let mut far = crossed((&rows, AT), (&columns, AT), None).unwrap();
    from_afar(&mut far, None);
    assert_eq!((shape(&far).far, shape(&far).dense_tiles), (1, 2));
}
