//! Launches over shapes far larger than memory: the kernels' lookups, written here once more, must lead
//! every byte of the range to the right place exactly once.

use super::*;
use crate::args::{Affine, Mapped, Side, Strided};
use crate::divide;
use crate::plan::Encoder;
use smallvec::smallvec;

fn grid_at(shape: &Strided, mut row: u32) -> i64 {
    let mut at = 0;
    for dim in shape.dim[1..shape.dims as usize].iter().rev() {
        let rest = divide(row, dim.by);
        at += i64::from(row - rest * dim.count) * dim.stride;
        row = rest;
    }
    at + i64::from(row) * shape.dim[0].stride
}

fn strided_at(shape: &Strided, word: u32, width: i64) -> i64 {
    let row = divide(word, shape.by_len);
    grid_at(shape, row) + i64::from(word - row * shape.len) * width
}

fn affine_at(shape: &Affine, word: u32, width: i64) -> i64 {
    let instance = divide(word, shape.by_size);
    let mut rest = i64::from(word - instance * shape.size);
    let mut j = 0;
    loop {
        let len = i64::from(shape.len) + j * i64::from(shape.grow);
        if rest < len {
            return i64::from(instance) * shape.extent + j * shape.step + rest * width;
        }
        rest -= len;
        j += 1;
    }
}

/// Entries of a list or plan, by index.
pub(super) type Entries<'a> = &'a dyn Fn(u64) -> i64;

fn mapped_at(shape: &Mapped, word: u32, width: i64, encoder: &Encoder) -> i64 {
    let instance = divide(word, shape.by_size);
    let rest = word - instance * shape.size;
    let planned = (rest >> shape.finer) as usize + usize::try_from(shape.units / 8 * 32).unwrap();
    let unit = encoder.units()[planned / 32];
    let started = unit.begins & (u32::MAX >> (31 - planned % 32));
    let shift = encoder.shifts()[(unit.block + started.count_ones()) as usize];
    i64::from(instance) * shape.extent + shift * shape.scale + i64::from(rest) * width
}

fn transposed_at(shape: &crate::args::Transposed, word: u32) -> i64 {
    let mut dims = vec![shape.dense, shape.fast];
    dims.extend(&shape.batch[..shape.dims as usize]);
    dims.sort_by_key(|dim| std::cmp::Reverse(dim.packed));
    let mut rest = word;
    let at = dims.iter().map(|dim| {
        let index = rest / dim.packed;
        assert!(index < dim.count, "word {word} outside {shape:?}");
        rest %= dim.packed;
        i64::from(index) * dim.stride
    });
    at.sum()
}

pub(super) fn typed_at(launch: &Launch, word: u32, list: Entries<'_>, encoder: &Encoder) -> i64 {
    let width = i64::from(launch.kernel.width.bytes());
    match &launch.args {
        Args::Copy(_) => i64::from(word) * width,
        Args::Strided(args) => strided_at(&args.shape, word, width),
        Args::Rows(args) => strided_at(&args.shape, word, width),
        Args::Affine(args) => affine_at(&args.shape, word, width),
        Args::Listed(args) => {
            let shape = &args.shape;
            let row = divide(word, shape.by_len);
            let instance = divide(row, shape.by_blocks);
            let entry = list(shape.list / 8 + u64::from(row - instance * shape.blocks));
            i64::from(instance) * shape.extent
                + entry * shape.scale
                + i64::from(word - row * shape.len) * width
        }
        Args::Mapped(args) => mapped_at(&args.shape, word, width, encoder),
        Args::Transposed(args) => transposed_at(&args.shape, word),
        Args::Transfer(_) | Args::Pages(_) | Args::Fused(_) => {
            unreachable!("have tests of their own")
        }
    }
}

fn pseudo(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 20) % below
}

/// Checks that the launches tile the range and lead its bytes to where `truth` says.
fn check(what: &Move, launches: &[Launch], truth: &dyn Fn(u64) -> i64) {
    check_with(what, launches, truth, &|_| 0, &Encoder::new(Width::W1));
}

fn check_with(
    what: &Move,
    launches: &[Launch],
    truth: &dyn Fn(u64) -> i64,
    list: Entries<'_>,
    encoder: &Encoder,
) {
    let mut at = what.packed.offset;
    let mut state = 77;
    for launch in launches {
        let span = launch.args.span();
        let width = i64::from(launch.kernel.width.bytes());
        let (head, tail) = (i64::from(span.edges & 255), i64::from(span.edges >> 8 & 255));
        let bytes = head + i64::from(span.words) * width + tail;
        assert_eq!(span.packed - head, at, "launches follow each other");
        assert!(launch.blocks > 0 && launch.blocks <= span.tiles);
        assert!(launch.kernel.few || launch.blocks == span.tiles);
        assert!(what.budget.is_none_or(|budget| launch.blocks <= budget.blocks.get()));
        assert!(launch.threads <= launch.kernel.family.threads_max(launch.kernel.few));
        assert!(u64::from(span.first) + u64::from(span.words) <= WORDS_MAX);
        let some = (0..200).map(|_| pseudo(&mut state, bytes.cast_unsigned()).cast_signed());
        for byte in [0, bytes - 1].into_iter().chain(some) {
            let word = (byte - head).div_euclid(width);
            let number = u32::try_from(i64::from(span.first) + word).unwrap();
            let typed = span.typed
                + typed_at(launch, number, list, encoder)
                + (byte - head).rem_euclid(width);
            let stream = what.range.start + (at + byte - what.packed.offset).cast_unsigned();
            let want = what.typed.offset + truth(stream);
            assert_eq!(typed, want, "byte {stream} of {what:?} by {launch:?}");
        }
        at += bytes;
    }
    let len = (what.range.end - what.range.start).cast_signed();
    assert_eq!(at, what.packed.offset + len, "all of {what:?}");
}

fn whole(range: Range<u64>) -> Move {
    Move {
        direction: Direction::Pack,
        packed: KernelAddress { address: 0x7000 + range.start % 16, offset: 32 },
        typed: KernelAddress { address: 0x9000, offset: -64 },
        budget: Budget::new(u32::try_from(range.start % 50).unwrap()),
        range,
    }
}

fn grid_truth(grid: &Grid) -> impl Fn(u64) -> i64 + '_ {
    move |byte| {
        let (mut row, column) = (byte / grid.len, byte % grid.len);
        let mut at = grid.displacement + column.cast_signed();
        for dim in grid.dims.iter().rev() {
            at += (row % dim.count).cast_signed() * dim.stride;
            row /= dim.count;
        }
        at
    }
}

#[test]
fn grids_of_any_size() {
    let dim = |count, stride| GridDim { count, stride };
    let grids = [
        Grid { displacement: 16, len: 24, dims: smallvec![dim(1000, 48)] },
        Grid { displacement: -8, len: 8, dims: smallvec![dim(3, -800), dim(50, 4096), dim(50, 8)] },
        // One block of 70 GB.
        Grid { displacement: 0, len: 70 << 30, dims: smallvec![] },
        // Three blocks of 20 GB each, then a million of them far apart.
        Grid { displacement: 64, len: 20 << 30, dims: smallvec![dim(3, 1 << 36)] },
        Grid { displacement: 0, len: 3, dims: smallvec![dim(1 << 20, 1 << 40), dim(1 << 12, 7)] },
        // A transposed matrix of 64 GB, and one with a batch.
        Grid { displacement: 0, len: 8, dims: smallvec![dim(90_000, 8), dim(90_000, 720_000)] },
        Grid {
            displacement: 0,
            len: 4,
            dims: smallvec![dim(7, 1 << 20), dim(99, 4), dim(70, 396)],
        },
        Grid {
            displacement: 8,
            len: 1 << 20,
            dims: smallvec![dim(5000, 3 << 20), dim(2, 3 << 34)],
        },
    ];
    let mut state = 5;
    for grid in &grids {
        let size = grid.size().unwrap();
        let truth = grid_truth(grid);
        for round in 0..30 {
            let a = if round == 0 { 0 } else { pseudo(&mut state, size) };
            let b = match round % 3 {
                0 => size,
                1 => (a + 1 + pseudo(&mut state, 100)).min(size),
                _ => a + 1 + pseudo(&mut state, size - a),
            };
            let what = whole(a..b);
            check(&what, &strided(&what, grid).unwrap(), &truth);
        }
        let outside = whole(0..size + 1);
        assert!(matches!(strided(&outside, grid), Err(Unfit::Range { .. })));
        assert!(strided(&whole(5..5), grid).unwrap().is_empty());
    }
    let what = whole(5..(9 << 40));
    check(&what, &contiguous(&what, -128).unwrap(), &|byte| byte.cast_signed() - 128);
}

#[test]
fn kernels_that_the_papers_work_takes() {
    let dim = |count, stride| GridDim { count, stride };
    let family = |grid: &Grid| {
        let what = whole(0..grid.size().unwrap());
        let launches = strided(&what, grid).unwrap();
        assert_eq!(launches.len(), 1);
        (launches[0].kernel.family, launches[0].kernel.width)
    };
    let n = 4096u64;
    let stride = i64::try_from(n * 8).unwrap();
    let sub = Grid { displacement: 0, len: n * 8, dims: smallvec![dim(n, 2 * stride)] };
    assert_eq!(family(&sub), (Family::Rows, Width::W16));
    let transposed = Grid { displacement: 0, len: 8, dims: smallvec![dim(n, 8), dim(n, stride)] };
    assert_eq!(family(&transposed), (Family::Transposed, Width::W8));
    let blocks = Grid { displacement: 0, len: 8, dims: smallvec![dim(n * n, 16)] };
    assert_eq!(family(&blocks), (Family::Strided1, Width::W8));
    let face =
        Grid { displacement: 0, len: 24, dims: smallvec![dim(512, 1 << 21), dim(512, 4096)] };
    assert_eq!(family(&face), (Family::Strided, Width::W8));
    // Many instances of a small layout are one more dimension.
    let seven = Grid { displacement: 0, len: 8, dims: (1..8).map(|i| dim(2, 16 << i)).collect() };
    let what = whole(0..seven.size().unwrap());
    assert!(matches!(strided(&what, &seven), Err(Unfit::Dims { dims: 7, max: 6 })));
}

#[test]
fn triangles_of_any_size() {
    let mut state = 9;
    let shapes = [
        (5000, 8, 8),
        (5000, 40_000, -8),
        (300_000, 8, 8),
        (300_000, 2_400_000, -8),
        (3, 1 << 36, 8),
        (40, 1, 1),
    ];
    for (count, len, grow) in shapes {
        for instances in [1, 3] {
            let runs = Runs {
                count,
                displacement: 24,
                step: 1 << 38,
                len,
                grow,
                instances,
                extent: -(1 << 55),
            };
            let size = runs.size().unwrap();
            let before = |j: u64| {
                let j = i128::from(j);
                j * i128::from(len) + i128::from(grow) * (j * (j - 1) / 2)
            };
            let truth = |byte: u64| {
                let (instance, rest) = (byte / size, i128::from(byte % size));
                let (mut low, mut high) = (0, count);
                while high - low > 1 {
                    let middle = u64::midpoint(low, high);
                    if before(middle) <= rest { low = middle } else { high = middle }
                }
                let column = i64::try_from(rest - before(low)).unwrap();
                24 + instance.cast_signed() * runs.extent + low.cast_signed() * runs.step + column
            };
            for _ in 0..3 {
                let a = pseudo(&mut state, size * instances);
                let b = a + 1 + pseudo(&mut state, size * instances - a);
                let what = whole(a..b);
                check(&what, &affine(&what, &runs).unwrap(), &truth);
            }
        }
    }
}

#[test]
fn lists_and_plans_of_any_size() {
    let mut state = 13;
    let list = |index: u64| (index.wrapping_mul(0x9e37_79b9) % (1 << 30)).cast_signed() - (1 << 29);
    for (len, count, instances) in [(24u64, 1000u64, 5u64), (8, 1 << 33, 2), (1 << 33, 100, 1)] {
        let blocks = Blocks {
            displacement: 8,
            len,
            count,
            list: 0,
            entry_bytes: 8,
            scale: 8,
            bits: 8,
            instances,
            extent: 1 << 50,
        };
        let truth = |byte: u64| {
            let (block, column) = (byte / len, byte % len);
            let (instance, index) = (block / count, block % count);
            8 + instance.cast_signed() * blocks.extent + list(index) * 8 + column.cast_signed()
        };
        for _ in 0..10 {
            let all = len * count * instances;
            let a = pseudo(&mut state, all);
            let what = whole(a..a + 1 + pseudo(&mut state, all - a));
            let launches = listed(&what, &blocks).unwrap();
            check_with(&what, &launches, &truth, &list, &Encoder::new(Width::W1));
        }
    }
    let mut encoder = Encoder::new(Width::W8);
    let mut truth = Vec::new();
    for _ in 0..400 {
        let (at, len) =
            (pseudo(&mut state, 1 << 20).cast_signed() * 8, 8 + pseudo(&mut state, 9) * 8);
        encoder.push(at, len).unwrap();
        truth.extend((0..len.cast_signed()).map(|byte| at + byte));
    }
    let plan = Planned {
        displacement: 16,
        size: encoder.size(),
        width: Width::W8,
        units: 0,
        shifts: 0,
        shift_bytes: 8,
        instances: 4,
        extent: 1 << 40,
    };
    let at = |byte: u64| {
        let rest = usize::try_from(byte % plan.size).unwrap();
        16 + (byte / plan.size).cast_signed() * plan.extent + truth[rest]
    };
    for round in 0..20 {
        let all = plan.size * 4;
        let a = pseudo(&mut state, all);
        let mut what = whole(a..a + 1 + pseudo(&mut state, all - a));
        what.packed.address += round % 4;
        let launches = mapped(&what, &plan).unwrap();
        check_with(&what, &launches, &at, &|_| 0, &encoder);
    }
}

#[test]
fn both_sides_of_a_transfer_number_the_same_words() {
    let mut state = 21;
    let dim = |count, stride| GridDim { count, stride };
    let a = Grid { displacement: 8, len: 24, dims: smallvec![dim(1 << 31, 40)] };
    let b = Grid { displacement: 0, len: 8, dims: smallvec![dim(3, 1 << 40), dim(1 << 31, -16)] };
    let at = |side: &Side, word: u32| strided_at(&side.strided, word, 8);
    let place = KernelAddress { address: 0, offset: 128 };
    let (from, to) = (TransferSide::Strided(a.clone()), TransferSide::Strided(b.clone()));
    for _ in 0..20 {
        let start = pseudo(&mut state, 24 << 31);
        let range = start..start + 1 + pseudo(&mut state, (24 << 31) - start);
        let launches = transfer(&range, (&from, place), (&to, place), None).unwrap();
        let mut stream = range.start;
        for launch in &launches {
            let Args::Transfer(args) = &launch.args else { panic!("{launch:?}") };
            if launch.kernel.width == Width::W1 {
                stream = range.end;
                continue;
            }
            let (head, tail) =
                (u64::from(args.span.edges & 255), u64::from(args.span.edges >> 8 & 255));
            for _ in 0..50 {
                let k =
                    u32::try_from(pseudo(&mut state, u64::from(args.span.words.max(1)))).unwrap();
                if args.span.words == 0 {
                    break;
                }
                let byte = stream + head + u64::from(k) * 8;
                let source = args.span.typed + at(&args.from, args.from.first + k);
                let target = args.span.packed + at(&args.to, args.to.first + k);
                assert_eq!(source, 128 + grid_truth(&a)(byte), "byte {byte}");
                assert_eq!(target, 128 + grid_truth(&b)(byte), "byte {byte}");
            }
            stream += head + u64::from(args.span.words) * 8 + tail;
        }
        assert_eq!(stream, range.end);
    }
}

#[test]
fn little_work_is_spread_and_budgets_are_kept() {
    let words = |n| Words { first: 0, words: n, edges: 0, skip: 0 };
    let small = flat(Family::Copy, Width::W8, words(512), NONE_IDLE, None);
    assert_eq!(small, Geometry { blocks: 1, threads: 64, tiles: 1, half: false, few: false });
    let some = flat(Family::Copy, Width::W8, words(1 << 17), NONE_IDLE, None);
    assert_eq!((some.threads, some.blocks), (64, 256));
    let large = flat(Family::Copy, Width::W8, words(1 << 27), NONE_IDLE, None);
    assert_eq!((large.threads, large.blocks), (64, 1 << 18));
    let budget = Budget::new(4);
    let held = flat(Family::Copy, Width::W8, words(1 << 27), NONE_IDLE, budget);
    assert_eq!(held, Geometry { blocks: 4, threads: 1024, tiles: 1 << 13, half: false, few: true });
    // As many tiles as blocks, and the kernel is the looping one all the same: its tiles are longer.
    let little = flat(Family::Copy, Width::W8, words(5 << 10), NONE_IDLE, budget);
    assert_eq!(little, Geometry { blocks: 4, threads: 64, tiles: 5, half: false, few: true });
}
