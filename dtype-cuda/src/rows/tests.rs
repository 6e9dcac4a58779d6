//! Copies against lists of every byte, and the layouts of the papers.

use super::*;
use crate::nest::Walk;
use crate::nest::tests::{pairs, random};
use gapless_dtype::testkit::Rng;
use gapless_kernels::launch::{Grid, GridDim};
use smallvec::smallvec;

const ANY: Terms = Terms { least: 1, another: 0, budgeted: false };

fn grid(len: u64, dims: &[(u64, i64)]) -> Grid {
    let dims = dims.iter().map(|&(count, stride)| GridDim { count, stride }).collect();
    Grid { displacement: 0, len, dims }
}

fn between(src: &Grid, dst: &Grid) -> Nest {
    Nest::between(&Walk::grid(src).unwrap(), &Walk::grid(dst).unwrap()).unwrap()
}

fn packed(src: &Grid) -> Nest {
    Nest::between(&Walk::grid(src).unwrap(), &Walk::contiguous(0)).unwrap()
}

/// Where the bytes of copies lie on both sides.
fn moved(copies: &[Rows]) -> Vec<(i64, i64)> {
    let mut all = Vec::new();
    for copy in copies {
        for row in 0..copy.rows {
            let src = copy.src + (row * copy.src_pitch).cast_signed();
            let dst = copy.dst + (row * copy.dst_pitch).cast_signed();
            all.extend((0..copy.width.cast_signed()).map(|at| (src + at, dst + at)));
        }
    }
    all.sort_unstable();
    all
}

#[test]
fn copies_move_what_was_asked_and_nothing_else() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut made = [0usize; COPIES_MAX + 1];
    for _ in 0..3000 {
        let unit = *rng.pick(&[64, 256]);
        let (src, dst) = (random(&mut rng, unit), random(&mut rng, unit));
        let nest = match rng.below(3) {
            0 => packed(&src),
            1 => between(&src, &src),
            _ => match Nest::between(&Walk::grid(&src).unwrap(), &Walk::grid(&dst).unwrap()) {
                Some(nest) => nest,
                None => continue,
            },
        };
        let all = pairs(&nest);
        let (mut start, mut end) = (0, all.len() as u64);
        if rng.chance(60) {
            end = rng.below(end + 1);
            start = rng.below(end + 1);
        }
        let Some(copies) = copies(&nest, start, end, ANY) else { continue };
        made[copies.len()] += 1;
        for copy in &copies {
            assert!(copy.rows == 1 || copy.width >= WIDTH_MIN, "{copies:?}");
            assert!(copy.src_pitch >= copy.width && copy.dst_pitch >= copy.width, "{copies:?}");
        }
        let range = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
        let mut expected = all[range.clone()].to_vec();
        expected.sort_unstable();
        assert_eq!(moved(&copies), expected, "{nest:?} {range:?}: {copies:?}");
    }
    assert!(made[1] > 100 && made[2..].iter().sum::<usize>() > 100, "{made:?}");
}

#[test]
fn a_sub_matrix_is_one_copy_in_all_directions() {
    let v = grid(4096, &[(1000, 8192)]);
    let size = 4096 * 1000;
    let copy = Rows { src: 0, dst: 0, width: 4096, rows: 1000, src_pitch: 8192, dst_pitch: 8192 };
    assert_eq!(copies(&between(&v, &v), 0, size, ANY).unwrap()[..], [copy]);
    let to = copies(&packed(&v), 0, size, ANY).unwrap();
    assert_eq!(to[..], [Rows { dst_pitch: 4096, ..copy }]);
    // To one of another nesting: rows half as long, of which two are a row of the other.
    let halves = grid(2048, &[(2000, 3000)]);
    assert_eq!(copies(&between(&v, &halves), 0, size, ANY).unwrap().len(), 2);
    // A ragged range has ends of their own.
    let ragged = copies(&packed(&v), 4000, size - 9000, ANY).unwrap();
    let shape: Vec<_> = ragged.iter().map(|copy| (copy.width, copy.rows)).collect();
    assert_eq!(shape, [(96, 1), (4096, 996), (3288, 1)]);
}

#[test]
fn short_rows_many_copies_and_far_rows_are_left_to_kernels() {
    let narrow = grid(128, &[(1000, 256)]);
    assert_eq!(copies(&packed(&narrow), 0, 128_000, ANY), None);
    // A block of a cube: a copy for each plane.
    let cube = |planes| grid(1024, &[(planes, 1 << 20), (64, 4096)]);
    assert_eq!(copies(&packed(&cube(8)), 0, 8 << 16, ANY).unwrap().len(), 8);
    assert_eq!(copies(&packed(&cube(9)), 0, 9 << 16, ANY), None);
    // To itself as well, unless planes follow each other.
    assert_eq!(copies(&between(&cube(9), &cube(9)), 0, 9 << 16, ANY), None);
    let whole = grid(1024, &[(9, 64 * 4096), (64, 4096)]);
    assert_eq!(copies(&between(&whole, &whole), 0, 9 << 16, ANY).unwrap().len(), 1);
    let far = grid(1024, &[(9, 1 << 31)]);
    assert_eq!(copies(&packed(&far), 0, 9 << 10, ANY), None);
    // Rows that overlap are no rows.
    let same = grid(1024, &[(9, 0)]);
    assert_eq!(copies(&packed(&same), 0, 9 << 10, ANY), None);
}

#[test]
fn terms_ask_for_more_bytes_the_more_copies_there_are() {
    let terms = Terms::new(4 << 20, false);
    assert!(!terms.allow(1, (4 << 20) - 1) && terms.allow(1, 4 << 20));
    assert!(!terms.allow(2, (8 << 20) - 1) && terms.allow(2, 8 << 20));
    assert!(terms.allow(8, 1 << 30) && !terms.allow(9, 1 << 30));
    let few = Terms::new(4 << 20, true);
    assert!(few.allow(1, 512 << 10) && few.allow(3, 3 << 20));
    let never = Terms::new(u64::MAX, false);
    assert!(!never.allow(1, 1 << 60));
    assert!(!never.allow(2, u64::MAX - 1));
    let v = grid(4096, &[(1024, 8192)]);
    assert!(copies(&packed(&v), 0, 4 << 20, terms).is_some());
    assert!(copies(&packed(&v), 0, (4 << 20) - 4096, terms).is_none());
    assert!(copies(&packed(&v), 1, 4 << 20, few).is_some(), "three copies");
}

#[test]
fn few_long_blocks_are_a_copy_each_and_meet_where_either_side_has_an_end() {
    let cut = |lens: &[u64], first: i64| -> Vec<ContiguousSpan> {
        let mut at = 0;
        let block = |(number, &len): (usize, &u64)| {
            let begin = at;
            at += len;
            let displacement = first + begin.cast_signed() * 3 - i64::try_from(number).unwrap();
            ContiguousSpan { at: begin, len, displacement }
        };
        lens.iter().enumerate().map(block).collect()
    };
    let all = |blocks: &[ContiguousSpan]| -> Vec<i64> {
        let bytes = |block: &ContiguousSpan| {
            block.displacement..block.displacement + block.len.cast_signed()
        };
        blocks.iter().flat_map(bytes).collect()
    };
    let (one, other) = (cut(&[10, 300, 7, 1000], 5), cut(&[100, 210, 1007], -9000));
    let pairs: Vec<_> = all(&one).into_iter().zip(all(&other)).collect();
    for (start, end) in [(0, 1317), (0, 10), (5, 320), (310, 317), (99, 101), (1316, 1317)] {
        let copies = blocks(&one, &other, start, end, ANY).unwrap();
        let range = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
        let mut expected = pairs[range].to_vec();
        expected.sort_unstable();
        assert_eq!(moved(&copies), expected, "{start}..{end}");
    }
    assert_eq!(blocks(&one, &other, 0, 1317, ANY).unwrap().len(), 5);
    assert_eq!(blocks(&one, &other, 0, 1318, ANY), None, "beyond the end");
    let many = cut(&[9; 9], 0);
    assert_eq!(blocks(&many, &many, 0, 81, ANY), None);
    assert_eq!(blocks(&many, &many, 0, 72, ANY).unwrap().len(), 8);
    assert_eq!(blocks(&one, &other, 0, 1317, Terms::new(1200, false)), None, "too short for five");
}

#[test]
fn a_contiguous_span_is_one_copy_of_one_row() {
    let nest = Nest::between(&Walk::contiguous(100), &Walk::contiguous(-7)).unwrap();
    let copies = copies(&nest, 7, 5007, ANY).unwrap();
    let copy = Rows { src: 107, dst: 0, width: 5000, rows: 1, src_pitch: 5000, dst_pitch: 5000 };
    assert_eq!(copies, Copies::from(smallvec![copy]));
    assert_eq!(copy.span(8000), 5000);
}
