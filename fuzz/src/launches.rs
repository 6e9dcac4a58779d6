//! Shapes, ranges and places for the arithmetic of kernel launches, and blocks for plans. Numbers are
//! arbitrary as far as a checked layout's can be: all that is touched lies within 62 bits. What comes back
//! must tile the range and be a launch that a driver takes.

use crate::input::Input;
use gapless_kernels::launch::{
    Blocks, Budget, Grid, GridDim, KernelAddress, Launch, Move, MovePart, Planned, Runs,
    TransferSide, affine, contiguous, fused, listed, mapped, same, strided, transfer,
};
use gapless_kernels::plan::Encoder;
use gapless_kernels::{Direction, Width};
use std::ops::Range;

/// Furthest byte from displacement 0 that is touched.
const REACH: i128 = 1 << 62;
/// Longest range: 2,048 launches at most.
const RANGE_MAX: u64 = 1 << 42;
/// Blocks of a plan.
const BLOCKS: usize = 200;

/// Whether `count` steps of `step` bytes, `len` bytes each, stay within reach of `displacement`.
fn within(displacement: i64, steps: &[(u64, i64)], len: u64) -> bool {
    let far = steps.iter().try_fold(i128::from(displacement).abs(), |far, &(count, step)| {
        far.checked_add(i128::from(count).checked_mul(i128::from(step).abs())?)
    });
    far.and_then(|far| far.checked_add(i128::from(len))).is_some_and(|far| far < REACH)
}

fn place(input: &mut Input<'_>) -> KernelAddress {
    let offset = input.signed() >> 15;
    KernelAddress { address: u64::from(input.byte()), offset }
}

fn range(input: &mut Input<'_>) -> Range<u64> {
    let start = input.number() >> 1;
    let len = input.number() % RANGE_MAX;
    start..start.saturating_add(len).min(i64::MAX.cast_unsigned())
}

fn budget(input: &mut Input<'_>) -> Option<Budget> {
    Budget::new(u32::from(input.short()))
}

fn direction(input: &mut Input<'_>) -> Direction {
    if input.byte() & 1 == 0 { Direction::Pack } else { Direction::Unpack }
}

fn grid(input: &mut Input<'_>) -> Option<Grid> {
    let (displacement, len) = (input.signed(), input.number());
    let dims = (0..input.byte() % 8)
        .map(|_| GridDim { count: input.number(), stride: input.signed() })
        .collect::<Vec<_>>();
    let steps: Vec<_> = dims.iter().map(|dim| (dim.count, dim.stride)).collect();
    within(displacement, &steps, len).then(|| Grid { displacement, len, dims: dims.into() })
}

fn runs(input: &mut Input<'_>) -> Option<Runs> {
    let runs = Runs {
        count: input.number(),
        displacement: input.signed(),
        step: input.signed(),
        len: input.number(),
        grow: input.signed(),
        instances: input.number(),
        extent: input.signed(),
    };
    let steps = [(runs.count, runs.step), (runs.instances, runs.extent), (runs.count, runs.grow)];
    within(runs.displacement, &steps, runs.len).then_some(runs)
}

fn blocks(input: &mut Input<'_>) -> Option<Blocks> {
    let scale = input.signed() >> 33;
    let blocks = Blocks {
        displacement: input.signed(),
        len: input.number(),
        count: input.number() >> 8,
        list: input.number() >> 24,
        entry_bytes: 4 + 4 * u32::from(input.byte() & 1),
        scale,
        // Whatever is listed is a multiple of the scale.
        bits: scale.cast_unsigned() | u64::from(input.byte()),
        instances: input.number(),
        extent: input.signed(),
    };
    let steps = [(blocks.instances, blocks.extent)];
    within(blocks.displacement, &steps, blocks.len).then_some(blocks)
}

fn planned(input: &mut Input<'_>) -> Option<Planned> {
    let width = Width::ALL[usize::from(input.byte()) % Width::ALL.len()];
    let align = |number: i64| number >> width.log2() << width.log2();
    let planned = Planned {
        displacement: align(input.signed()),
        size: align(input.number().cast_signed() >> 1).unsigned_abs(),
        width,
        units: input.number() >> 24 << 3,
        shifts: input.number() >> 24 << 3,
        shift_bytes: 4 + 4 * u32::from(input.byte() & 1),
        instances: input.number(),
        extent: align(input.signed()),
    };
    let steps = [(planned.instances, planned.extent)];
    within(planned.displacement, &steps, planned.size).then_some(planned)
}

fn side(input: &mut Input<'_>) -> Option<TransferSide> {
    Some(match input.byte() % 5 {
        0 => TransferSide::Contiguous(input.signed() >> 1),
        1 => TransferSide::Strided(grid(input)?),
        2 => TransferSide::Affine(runs(input)?),
        3 => TransferSide::Listed(blocks(input)?),
        _ => TransferSide::Mapped(planned(input)?),
    })
}

/// What every launch is, and that together they move `bytes`.
fn check(launches: &[Launch], bytes: u64, budget: Option<Budget>) {
    let mut moved = 0u64;
    for launch in launches {
        let span = launch.args.span();
        assert!(launch.blocks > 0 && launch.blocks <= span.tiles, "blocks of {launch:?}");
        assert!(
            budget.is_none_or(|most| launch.blocks <= most.blocks.get()),
            "budget of {launch:?}"
        );
        assert!(launch.threads > 0 && launch.threads % 32 == 0, "threads of {launch:?}");
        let most = launch.kernel.family.threads_max(launch.kernel.few);
        assert!(launch.threads <= most, "threads of {launch:?}");
        let edges = u64::from(span.edges & 255) + u64::from(span.edges >> 8 & 255);
        moved += (u64::from(span.words) << launch.kernel.width.log2()) + edges;
        let end = u64::from(span.first) + u64::from(span.words);
        assert!(end < 1 << 31, "words of {launch:?}");
    }
    assert_eq!(moved, bytes, "bytes moved");
}

fn plan(input: &mut Input<'_>) {
    let width = Width::ALL[usize::from(input.byte()) % Width::ALL.len()];
    let mut encoder = Encoder::new(width);
    let mut pushed: Vec<(u64, i64)> = Vec::new();
    for _ in 0..BLOCKS {
        if input.is_over() {
            break;
        }
        // Lengths are of memory: a plan takes 8 bytes for each 32 words.
        let (displacement, len) = (input.signed(), input.number() & 0xFFFF);
        let before = encoder.size();
        match encoder.push(displacement, len) {
            Ok(()) if len > 0 => pushed.push((before, displacement)),
            Ok(()) => {}
            Err(_) => assert_eq!(encoder.size(), before, "a refused block left a trace"),
        }
    }
    for (start, displacement) in pushed {
        let at = encoder.at(start >> width.log2()).expect("a word of the plan");
        assert_eq!(at, displacement >> width.log2(), "a block is found elsewhere");
    }
    let (bytes, shifts) = encoder.to_bytes().expect("its own width of shifts");
    assert!(shifts <= bytes.len() as u64);
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let input = &mut input;
    let which = input.byte() % 8;
    if which == 0 {
        return plan(input);
    }
    let budget = budget(input);
    if which == 1 {
        let (range, from, to) = (range(input), place(input), place(input));
        let (Some(a), Some(b)) = (side(input), side(input)) else { return };
        let len = range.end - range.start;
        if let Ok(launches) = transfer(&range, (&a, from), (&b, to), budget) {
            check(&launches, len, budget);
        }
        if let Ok(launches) = same(&range, &a, from, to, budget) {
            check(&launches, len, budget);
        }
        return;
    }
    if which == 2 {
        let direction = direction(input);
        let parts = (0..1 + input.byte() % 40).map_while(|_| {
            let (range, typed, packed) = (range(input), place(input), place(input));
            Some(MovePart { range, side: side(input)?, typed, packed })
        });
        let parts: Vec<MovePart> = parts.collect();
        // Whether sums are those of the parts is for the crate's own tests.
        let _ = fused(direction, &parts, budget);
        return;
    }
    let what = Move {
        direction: direction(input),
        range: range(input),
        typed: place(input),
        packed: place(input),
        budget,
    };
    let launches = match which {
        3 => contiguous(&what, input.signed() >> 1).ok(),
        4 => runs(input).and_then(|runs| affine(&what, &runs).ok()),
        5 => blocks(input).and_then(|blocks| listed(&what, &blocks).ok()),
        6 => planned(input).and_then(|planned| mapped(&what, &planned).ok()),
        _ => grid(input).and_then(|grid| strided(&what, &grid).ok()),
    };
    if let Some(launches) = launches {
        check(&launches, what.range.end - what.range.start, budget);
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    // Budget, direction, range 0..4096, places, then the shape.
    let head = [0, 0, 0, 0, 64, 0, 16, 0, 0, 0, 0];
    let shape: &[(u8, &[u8])] = &[
        (3, &[8]),
        (4, &[32, 0, 62, 40, 0, 1, 24]),
        (5, &[8, 0, 16, 60, 0, 1, 0, 62, 0]),
        (6, &[3, 0, 64, 0, 64, 0, 0, 0, 2, 62]),
        (7, &[0, 32, 2, 8, 64, 0, 4, 16, 64]),
    ];
    let mut seeds: Vec<Vec<u8>> =
        shape.iter().map(|(which, shape)| [&[*which], &head[..], shape].concat()).collect();
    seeds.push([&[0, 3][..], &[0, 8, 32, 8, 64, 16, 62, 24].repeat(20)].concat());
    seeds.push(vec![1, 0, 0, 0, 64, 0, 16, 0, 0, 0, 0, 1, 0, 32, 1, 62, 62, 0, 8]);
    seeds.push(
        [&[2, 0, 0, 0, 3][..], &[0, 64, 0, 16, 0, 0, 0, 0, 1, 0, 32, 1, 62, 62].repeat(4)].concat(),
    );
    seeds
}
