use super::*;
use crate::datatype::Datatype;
use crate::layout::Layout;
use crate::primitive::Primitive;
use crate::shape::{Dim, Shape};

fn double() -> Datatype {
    Primitive::Double.into()
}

fn listing(datatype: &Datatype) -> String {
    Layout::build(datatype).unwrap().program().to_string()
}

#[test]
fn contiguous_is_one_run_whatever_its_count() {
    let huge = Datatype::contiguous(1 << 40, &double()).unwrap();
    assert_eq!(listing(&huge), "%0 = run 8796093022208\n%0 at 0");
    let nested = Datatype::contiguous(3, &Datatype::contiguous(5, &double()).unwrap()).unwrap();
    assert_eq!(listing(&nested), "%0 = run 120\n%0 at 0");
}

#[test]
fn counts_cost_nothing() {
    let vector = Datatype::vector(1000, 3, 7, &double()).unwrap();
    let many = Datatype::contiguous(1_000_000_000, &vector).unwrap();
    let layout = Layout::build(&many).unwrap();
    assert_eq!(layout.committed().ops().len(), 3);
    assert_eq!(layout.blocks(), 1_000_000_000 * 999 + 1, "last and first block touch");
}

#[test]
fn loops_that_continue_each_other_are_one() {
    let column = Datatype::resized(0, 64, &Datatype::vector(4, 1, 2, &double()).unwrap()).unwrap();
    let columns = Datatype::contiguous(10, &column).unwrap();
    assert_eq!(listing(&columns), "%0 = run 8\n%1 = loop 40 stride 16 of %0\n%1 at 0");
}

#[test]
fn structs_of_one_dup_and_resized_vanish() {
    let inner = Datatype::resized(-8, 100, &double().dup().unwrap()).unwrap();
    let outer = Datatype::structure(&[1, 0], &[24, 7], &[inner, double()]).unwrap();
    assert_eq!(listing(&outer), "%0 = run 8\n%0 at 24");
}

#[test]
fn regular_lists_become_loops() {
    let displacements: Vec<i64> = (0..80).map(|i| 101 * i).collect();
    let indexed = Datatype::indexed_block(100, &displacements, &double()).unwrap();
    let vector = Datatype::vector(80, 100, 101, &double()).unwrap();
    assert_eq!(listing(&indexed), listing(&vector));
    let bytes: Vec<i64> = (0..80).map(|i| 808 * i).collect();
    let members = vec![double(); 80];
    let structure = Datatype::structure(&[100; 80], &bytes, &members).unwrap();
    assert_eq!(listing(&structure), listing(&vector));
}

#[test]
fn a_triangle_is_affine_and_a_stair_is_not() {
    let n = 64i64;
    let lens: Vec<u64> = (0..64).map(|j| 64 - j).collect();
    let disps: Vec<i64> = (0..n).map(|j| j * (n + 1)).collect();
    let triangle = Layout::build(&Datatype::indexed(&lens, &disps, &double()).unwrap()).unwrap();
    assert_eq!(
        *triangle.shape(),
        Shape::Affine {
            count: 64,
            displacement0: 0,
            displacement_step: 520,
            len0: 512,
            len_step: -8
        }
    );
    assert_eq!((triangle.blocks(), triangle.size()), (64, 4 * 64 * 65));
    let nb = 16;
    let steps: Vec<i64> = (0..n).map(|j| j / nb * nb).collect();
    let lens: Vec<u64> = steps.iter().map(|s| (n - s).cast_unsigned()).collect();
    let disps: Vec<i64> = steps.iter().zip(0..).map(|(s, j)| j * n + s).collect();
    let stair = Layout::build(&Datatype::indexed(&lens, &disps, &double()).unwrap()).unwrap();
    assert_eq!(*stair.shape(), Shape::General);
    assert_eq!((stair.blocks(), stair.size()), (64 - 16 + 1, 4 * 64 * 80));
}

#[test]
fn a_transpose_has_two_dimensions() {
    let column = Datatype::resized(0, 8, &Datatype::vector(6, 1, 4, &double()).unwrap()).unwrap();
    let transpose = Layout::build(&Datatype::contiguous(4, &column).unwrap()).unwrap();
    let dims = [Dim { count: 4, stride: 8 }, Dim { count: 6, stride: 32 }];
    let expected = Shape::Strided { displacement: 0, len: 8, dims: dims.into_iter().collect() };
    assert_eq!(*transpose.shape(), expected);
    assert_eq!((transpose.extent(), transpose.blocks()), (32, 24));
}

#[test]
fn irregular_lists_keep_displacements_alone() {
    let list = Datatype::indexed_block(3, &[30, 3, 90, 60], &double()).unwrap();
    let layout = Layout::build(&list).unwrap();
    let Shape::EqualBlocks { displacement: 0, len: 24, displacements } = layout.shape() else {
        panic!("{layout:?}");
    };
    assert_eq!(displacements[..], [240, 24, 720, 480]);
}

#[test]
fn packed_order_is_kept_where_merging_would_change_it() {
    // 8..16 before 0..8: adjacent in memory, not in packed order.
    let swapped = Datatype::indexed_block(1, &[1, 0], &double()).unwrap();
    assert_eq!(Layout::build(&swapped).unwrap().blocks(), 2);
}

#[test]
fn shared_types_do_not_multiply() {
    // 2^60 elements by doubling: every level uses the one before twice, at places of no pattern.
    let mut datatype = Datatype::indexed_block(1, &[0, 3, 4], &Primitive::Byte.into()).unwrap();
    for _ in 0..30 {
        let apart = datatype.true_extent() + 7;
        let types = [datatype.clone(), datatype.clone(), Primitive::Short.into(), datatype];
        let disps = [0, apart, 2 * apart + 3, 2 * apart + 11];
        datatype = Datatype::structure(&[1, 1, 1, 1], &disps, &types).unwrap();
    }
    let layout = Layout::build(&datatype).unwrap();
    assert!(layout.committed().ops().len() < 200, "{}", layout.committed().ops().len());
}

#[test]
fn unequal_blocks_over_gaps() {
    let gappy = Datatype::resized(0, 16, &double()).unwrap();
    let indexed = Datatype::indexed(&[2, 0, 1, 3], &[0, 50, 9, 4], &gappy).unwrap();
    let layout = Layout::build(&indexed).unwrap();
    assert_eq!((layout.blocks(), layout.size()), (6, 48));
}

#[test]
fn long_lists_are_what_short_steps_make_of_them() {
    // Every kind of list, long enough for the single pass, against the same list built entry by entry.
    let n = 100i64;
    let equal = |_: i64| 3u64;
    type Entry<'a, T> = &'a dyn Fn(i64) -> T;
    let lists: [(Entry<'_, i64>, Entry<'_, u64>); 9] = [
        (&|i| 5 * i, &equal),
        (&|i| 5 * i + i % 2, &equal),
        (&|i| 3 * i, &equal),
        (&|i| if i == 50 { 150 } else { 7 * (100 - i) }, &equal),
        (&|i| -9 * i, &|i| 101 - i.cast_unsigned()),
        (&|i| 200 * i, &|i| 1 + i.cast_unsigned() % 3),
        (&|i| i * (i + 1) / 2, &|i| 1 + i.cast_unsigned()),
        (&|i| 200 * i, &|i| i.cast_unsigned() % 4),
        (&|i| if i == 0 { 0 } else { -3 + 5 * i }, &equal),
    ];
    for (at, len) in lists {
        let disps: Vec<i64> = (0..n).map(at).collect();
        let lens: Vec<u64> = (0..n).map(len).collect();
        let whole = Datatype::indexed(&lens, &disps, &double()).unwrap();
        let mut builder = Builder::default();
        let mut runs = RunList::with_capacity(0);
        for (disp, len) in disps.iter().zip(&lens).filter(|(_, len)| **len > 0) {
            runs.push(8 * disp, 8 * len);
        }
        let root = builder.runs(runs).unwrap();
        let expected = builder.finish(root).unwrap();
        assert_eq!(*Layout::build(&whole).unwrap().committed(), expected, "{expected}");
    }
}

/// A checkerboard whose rows are made anew for each use, or shared.
fn checkerboard(rows: i64, rebuilt: bool) -> Datatype {
    let black: Vec<i64> = (0..16).map(|i| i * i + i).collect();
    let white: Vec<i64> = black.iter().map(|at| at + 1).collect();
    let row = |list: &[i64]| Datatype::indexed_block(1, list, &double()).unwrap();
    let shared = [row(&black), row(&white)];
    let (mut types, mut at) = (Vec::new(), Vec::new());
    for y in 0..rows {
        let odd = usize::from(y % 3 == 1);
        types.push(if rebuilt { row([&black, &white][odd]) } else { shared[odd].clone() });
        at.push(y * 4096);
    }
    Datatype::structure(&vec![1; types.len()], &at, &types).unwrap()
}

#[test]
fn datatypes_of_equal_structure_have_equal_layouts() {
    let [shared, rebuilt] =
        [false, true].map(|anew| Layout::build(&checkerboard(30, anew)).unwrap());
    assert_eq!(shared.program().to_string(), rebuilt.program().to_string());
    assert!(shared == rebuilt);
    assert_eq!(shared.flatten().len(), rebuilt.flatten().len());
    assert_eq!(rebuilt.committed().ops().len(), 3, "two rows and their sequence");
}

#[test]
fn lists_that_differ_in_one_entry_are_told_apart() {
    let mut lists = [(0..400).map(|i| i * i).collect::<Vec<i64>>(), Vec::new()];
    lists[1] = lists[0].clone();
    lists[1][201] += 1;
    let rows = lists.map(|list| Datatype::indexed_block(1, &list, &double()).unwrap());
    let types = [rows[0].clone(), rows[1].clone(), rows[0].clone(), rows[1].clone()];
    let places = [0, 1 << 20, 2 << 20, 3 << 20];
    let whole = Datatype::structure(&[1; 4], &places, &types).unwrap();
    crate::testkit::verify(&whole, 1, 5).unwrap();
    let rebuilt = Layout::build(&whole).unwrap();
    assert!(rebuilt.committed().ops().len() >= 3, "both lists are there");
}

#[test]
fn blocks_of_long_lists_merge_with_those_they_continue() {
    let layout = |places: &[i64]| {
        let list = Datatype::indexed_block(1, places, &double()).unwrap();
        crate::testkit::verify(&list, 1, 3).unwrap();
        list.commit().unwrap()
    };
    let shown = |places: &[i64]| layout(places).program().to_string();
    let n = 40i64;
    // All of them, in either order of the list's two halves.
    assert_eq!(shown(&(0..n).collect::<Vec<_>>()), "%0 = run 320\n%0 at 0");
    let halves: Vec<i64> = (n..2 * n).chain(0..n).collect();
    assert_eq!(layout(&halves).blocks(), 2);
    // Each with the next: at one stride, at two, and in runs that grow by one block each.
    let pairs =
        |step: fn(i64) -> i64| (0..n).flat_map(move |i| [step(i), step(i) + 1]).collect::<Vec<_>>();
    assert!(shown(&pairs(|i| 5 * i)).contains("loop 40 stride 40"));
    assert!(shown(&pairs(|i| 5 * i + i % 2)).starts_with("%0 = blocks 40 of 16"));
    let growing: Vec<i64> = (0..9).flat_map(|i| (0..=i).map(move |j| 100 * i + j)).collect();
    assert!(shown(&growing).starts_with("%0 = affine 9: 8 step 8"));
    // Most, in runs of no one length.
    let runs = (0..n).flat_map(|i| (0..2 + i % 3).map(move |j| 9 * i + j));
    let text = shown(&runs.collect::<Vec<_>>());
    assert!(text.starts_with("%0 = list 40: 16 at 0, 24 at 72"), "{text}");
}

/// Few of a list's blocks continue the one before. Whichever constructor says so, the list is of equal blocks.
#[test]
fn lists_whose_blocks_are_partly_adjacent_are_of_equal_blocks() {
    let byte = || Datatype::from(Primitive::Byte);
    for (len, n) in [(8u64, 4000), (24, 4000), (4096, 4000), (8, 33), (4096, 7), (1, 40)] {
        let step = len.cast_signed();
        // Every second run from the fourth on is of two blocks, in no order.
        let runs: Vec<(i64, u64)> =
            (0..n).map(|i| (i * 7919 % n * 3 * step, 1 + u64::from(i > 3 && i % 2 == 0))).collect();
        let blocks =
            |&(at, blocks): &(i64, u64)| (0..blocks.cast_signed()).map(move |i| at + i * step);
        let places: Vec<i64> = runs.iter().flat_map(blocks).collect();
        let (at, lens): (Vec<i64>, Vec<u64>) = runs.iter().map(|run| (run.0, run.1 * len)).unzip();
        let equal = Datatype::hindexed_block(len, &places, &byte()).unwrap();
        let layout = Layout::build(&equal).unwrap();
        let Shape::EqualBlocks { displacement: 0, len: each, displacements } = layout.shape()
        else {
            panic!("{n} runs of {len}: {layout:?}");
        };
        assert!(*each == len && displacements[..] == places[..], "{n} runs of {len}");
        assert_eq!((layout.blocks(), layout.block_lengths().max), (n.cast_unsigned(), 2 * len));
        assert_eq!(layout.flattened_bytes(), layout.flatten().len() as u64);
        assert!(Layout::unflatten(&layout.flatten()).unwrap() == layout);
        let block = Datatype::contiguous(len, &byte()).unwrap();
        let ones = vec![1; places.len()];
        for same in [
            Datatype::hindexed(&lens, &at, &byte()),
            Datatype::hindexed(&ones, &places, &block),
            Datatype::structure(&ones, &places, &vec![block; places.len()]),
            Datatype::structure(&lens, &at, &vec![byte(); at.len()]),
        ] {
            assert_eq!(Layout::build(&same.unwrap()).unwrap().committed(), layout.committed());
        }
        if len * n.cast_unsigned() < 1 << 18 {
            crate::testkit::verify(&equal, 2, 9).unwrap();
        }
    }
}

#[test]
fn blocks_stay_merged_where_they_would_be_twice_as_many_or_have_no_one_length() {
    let at: Vec<i64> = (0..50).map(|i| i * i * 100).collect();
    let listed = |len: fn(u64) -> u64| {
        let lens: Vec<u64> = (0..50).map(len).collect();
        listing(&Datatype::hindexed(&lens, &at, &Primitive::Byte.into()).unwrap())
    };
    // 99 blocks in 50 runs, 100, and runs whose lengths the shortest does not divide.
    assert!(listed(|i| 8 * (1 + i % 3)).starts_with("%0 = blocks 99 of 8"));
    assert!(listed(|i| 8 * (1 + i % 3 + u64::from(i == 0))).starts_with("%0 = list 50"));
    assert!(listed(|i| 8 + i % 2).starts_with("%0 = list 50"));
    // Two runs are affine.
    let two = Datatype::indexed(&[1, 2], &[0, 7], &double()).unwrap();
    assert!(matches!(Layout::build(&two).unwrap().shape(), Shape::Affine { count: 2, .. }));
}
