//! Every byte of the range goes from its displacement in one memory to the same one in the other, once.

use super::*;
use crate::args::{Args, Span};
use crate::launch::tests::{Entries, typed_at};
use crate::plan::Encoder;
use crate::{Family, Width};
use smallvec::smallvec;

const FROM: KernelAddress = KernelAddress { address: 0x9000, offset: -64 };
const TO: KernelAddress = KernelAddress { address: 0x20_0000, offset: 1 << 40 };

/// Displacements of all bytes that the launches move, sorted.
fn moved(
    launches: &[Launch],
    (from, to): (KernelAddress, KernelAddress),
    list: Entries<'_>,
    encoder: &Encoder,
) -> Vec<i64> {
    let mut moved = Vec::new();
    for launch in launches {
        let Kernel { family, direction, width, few } = launch.kernel;
        assert!(direction == Direction::Pack && (family == Family::Copy || family.is_same()));
        let span: &Span = launch.args.span();
        assert!(launch.blocks > 0 && (few || launch.blocks == span.tiles), "{launch:?}");
        let copies = matches!(launch.args, Args::Copy(_));
        let width = i64::from(width.bytes());
        let (head, tail) = (i64::from(span.edges & 255), i64::from(span.edges >> 8 & 255));
        let bytes = head + i64::from(span.words) * width + tail;
        for byte in -head..bytes - head {
            let number = u32::try_from(i64::from(span.first) + byte.div_euclid(width)).unwrap();
            let at = typed_at(launch, number, list, encoder) + byte.rem_euclid(width);
            let source = span.typed + at;
            let target = span.packed + if copies { byte } else { at };
            assert_eq!(source - from.offset, target - to.offset, "{launch:?}");
            moved.push(source - from.offset);
        }
        // Whole words are aligned in both memories.
        if span.words > 0 {
            let at = typed_at(launch, span.first, list, encoder);
            let target = span.packed + if copies { 0 } else { at };
            for (place, at) in [(from, span.typed + at), (to, target)] {
                let address = place.address.wrapping_add(at.cast_unsigned());
                assert_eq!(address % width.cast_unsigned(), 0, "{launch:?}");
            }
        }
    }
    moved.sort_unstable();
    moved
}

fn check(
    range: Range<u64>,
    shape: &TransferSide,
    truth: &[i64],
    places: (KernelAddress, KernelAddress),
) {
    let launches = same(&range, shape, places.0, places.1, None).unwrap();
    let got = moved(&launches, places, &|_| 0, &Encoder::new(Width::W1));
    let part = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
    let mut want = truth[part].to_vec();
    want.sort_unstable();
    assert_eq!(got, want, "{range:?} of {shape:?}");
}

fn truth(grid: &Grid) -> Vec<i64> {
    let mut starts = vec![grid.displacement];
    for dim in &grid.dims {
        let steps = |start| (0..dim.count.cast_signed()).map(move |i| start + i * dim.stride);
        starts = starts.into_iter().flat_map(steps).collect();
    }
    starts.into_iter().flat_map(|start| start..start + grid.len.cast_signed()).collect()
}

fn grid(displacement: i64, len: u64, dims: &[(u64, i64)]) -> Grid {
    let dims = dims.iter().map(|&(count, stride)| GridDim { count, stride }).collect();
    Grid { displacement, len, dims }
}

/// Every order, sign and gap of up to three short dimensions, and every range of each.
#[test]
fn every_small_grid_is_moved_whatever_its_order() {
    let mut grids = 0;
    for counts in [[1, 2, 3], [3, 2, 2], [2, 3, 1]] {
        for gaps in [[0, 0, 0], [0, 1, 0], [2, 0, 1]] {
            for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                for signs in 0..8 {
                    let len = 4;
                    let mut strides = [0; 3];
                    let mut extent = 4;
                    for (at, gap) in order.into_iter().zip(gaps) {
                        strides[at] =
                            if signs >> at & 1 == 1 { -1 } else { 1 } * (extent + 4 * gap);
                        extent = (extent + 4 * gap) * i64::try_from(counts[at]).unwrap();
                    }
                    let dims = [0, 1, 2].map(|at| (counts[at], strides[at]));
                    let grid = grid(8, len, &dims);
                    let truth = truth(&grid);
                    let side = TransferSide::Strided(grid);
                    grids += 1;
                    for start in (0..48).filter(|start| grids % 5 == 0 || start % 4 == 0) {
                        for end in [start + 1, start + 7, start + 16, start + 21, 48] {
                            let range = start..end.min(truth.len() as u64);
                            check(range.start.min(range.end)..range.end, &side, &truth, (FROM, TO));
                        }
                    }
                }
            }
        }
    }
    assert_eq!(grids, 3 * 3 * 6 * 8);
}

#[test]
fn what_covers_a_stretch_is_one_copy_of_wide_words() {
    // The columns of a matrix of 5 by 7 doubles, and its begin somewhere inside a wider word.
    let columns = grid(8, 8, &[(7, 8), (5, 56)]);
    let odd = |place: KernelAddress| KernelAddress { offset: place.offset + 8, ..place };
    let launches =
        same(&(0..280), &TransferSide::Strided(columns), odd(FROM), odd(TO), None).unwrap();
    assert_eq!(launches.len(), 1);
    let kernel = launches[0].kernel;
    assert_eq!((kernel.family, kernel.width), (Family::Copy, Width::W16), "{launches:?}");
}

#[test]
fn columns_of_a_part_are_walked_along_rows() {
    // Columns 3 to 9 of a matrix with 64 columns and rows, and of some a part.
    let columns = TransferSide::Strided(grid(0, 8, &[(64, 8), (64, 512)]));
    let launches = same(&(3 * 512 + 80..9 * 512 + 88), &columns, FROM, TO, None).unwrap();
    let families = launches.iter().map(|launch| launch.kernel.family);
    assert!(families.eq([Family::SameStrided1; 3]), "{launches:?}");
    let Args::Strided(middle) = &launches[1].args else { panic!("{launches:?}") };
    assert_eq!((middle.shape.len, middle.shape.dims), (5, 1), "five columns together");
    // Long blocks need no other order.
    let rows = grid(0, 2048, &[(4, 4096), (4, 1 << 20)]);
    let one = same(&(1..30_000), &TransferSide::Strided(rows), FROM, TO, None).unwrap();
    assert_eq!(one.len(), 1);
    assert_eq!(one[0].kernel.family, Family::SameRows);
}

#[test]
fn words_are_as_wide_as_both_places_allow() {
    let rows = TransferSide::Strided(grid(0, 4096, &[(8, 8192)]));
    for (from, to, width) in
        [(0, 0, 16), (8, 0, 8), (0, 8, 8), (4, 8, 4), (16, 48, 16), (2, 2, 2), (1, 0, 1)]
    {
        let at =
            |place: KernelAddress, by: i64| KernelAddress { offset: place.offset + by, ..place };
        let launches = same(&(0..8 * 4096), &rows, at(FROM, from), at(TO, to), None).unwrap();
        assert_eq!(launches[0].kernel.width.bytes(), width, "{from} and {to}");
        assert_eq!(launches[0].kernel.to_string(), format!("same_rows_w{width}"));
    }
}

#[test]
fn other_shapes_keep_to_their_ways() {
    let runs = Runs {
        count: 40,
        displacement: 8,
        step: 720,
        len: 8,
        grow: 16,
        instances: 2,
        extent: 40 * 720,
    };
    let one = (0..2i64).flat_map(|instance| {
        (0..40i64).flat_map(move |j| {
            let begin = 8 + instance * 28800 + j * 720;
            begin..begin + 8 + 16 * j
        })
    });
    let all: Vec<i64> = one.collect();
    let side = TransferSide::Affine(runs);
    for range in [0..all.len() as u64, 3..5, 1000..12_345, 12_795..25_600] {
        check(range, &side, &all, (FROM, TO));
    }
    let span = TransferSide::Contiguous(24);
    let all: Vec<i64> = (24..1024).collect();
    for range in [0..1000, 1..999, 17..18, 5..300] {
        check(range, &span, &all, (FROM, TO));
    }
    let list = [5i64, 0, 9, 2];
    let blocks = Blocks {
        displacement: 8,
        len: 8,
        count: 4,
        list: 0,
        entry_bytes: 8,
        scale: 8,
        bits: 8,
        instances: 3,
        extent: 88,
    };
    let launches = same(&(3..90), &TransferSide::Listed(blocks), FROM, TO, None).unwrap();
    assert_eq!((launches[0].kernel.family, launches.len()), (Family::SameListed, 1));
    let at = |index: u64| list[usize::try_from(index).unwrap()];
    let got = moved(&launches, (FROM, TO), &at, &Encoder::new(Width::W1));
    let of = |byte: i64| {
        let (instance, rest) = (byte / 32, byte % 32);
        8 + instance * 88 + at((rest / 8).cast_unsigned()) * 8 + rest % 8
    };
    let mut want: Vec<i64> = (3..90).map(of).collect();
    want.sort_unstable();
    assert_eq!(got, want);
    let mut encoder = Encoder::new(Width::W8);
    for (displacement, len) in [(40, 16), (0, 8), (64, 24)] {
        encoder.push(displacement, len).unwrap();
    }
    let side = TransferSide::Mapped(Planned {
        displacement: 0,
        size: encoder.size(),
        width: Width::W8,
        units: 0,
        shifts: 16,
        shift_bytes: 4,
        instances: 1,
        extent: 0,
    });
    let launches = same(&(0..48), &side, FROM, TO, None).unwrap();
    assert_eq!(launches[0].kernel.family, Family::SameMapped);
    let mut want: Vec<i64> = (40..56).chain(0..8).chain(64..88).collect();
    want.sort_unstable();
    assert_eq!(moved(&launches, (FROM, TO), &|_| 0, &encoder), want);
}

#[test]
fn a_budget_is_kept_and_what_does_not_fit_refused() {
    let rows = TransferSide::Strided(grid(0, 1 << 20, &[(64, 1 << 21)]));
    let budget = Budget::new(8);
    let launches = same(&(0..64 << 20), &rows, FROM, TO, budget).unwrap();
    assert_eq!(launches.len(), 1);
    assert_eq!(launches[0].kernel.to_string(), "same_rows_w16_few");
    assert_eq!(launches[0].blocks, 8);
    let beyond = same(&(0..(64 << 20) + 1), &rows, FROM, TO, None);
    assert_eq!(beyond, Err(Unfit::Range { end: (64 << 20) + 1, size: 64 << 20 }));
    // Seven dimensions of gaps.
    let deep = grid(0, 1, &[7, 6, 5, 4, 3, 2, 1].map(|at| (2, 3i64.pow(at))));
    let deep = same(&(0..128), &TransferSide::Strided(deep), FROM, TO, None);
    assert_eq!(deep, Err(Unfit::Dims { dims: 7, max: 6 }));
    assert!(same(&(5..5), &rows, FROM, TO, None).unwrap().is_empty());
    // More than one launch can number.
    let large = TransferSide::Strided(Grid {
        displacement: 0,
        len: 1 << 20,
        dims: smallvec![GridDim { count: 1 << 16, stride: 1 << 21 }],
    });
    let launches = same(&(0..1 << 36), &large, FROM, TO, None).unwrap();
    let words: u64 = launches.iter().map(|one| u64::from(one.args.span().words)).sum();
    assert_eq!((launches.len() > 1, words), (true, 1 << 32));
    for launch in &launches {
        let span = launch.args.span();
        assert_eq!(span.typed - FROM.offset, span.packed - TO.offset);
    }
}
