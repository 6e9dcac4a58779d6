//! Every kernel is reached, by types made for it, and moves what it should under every budget.

use crate::bench::KernelCounts;
use crate::directed::directed;
use crate::gpu::Gpu;
use crate::memory::Buffer;
use crate::sample::{Sample, range};
use crate::seed::{fail, rng};
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::Typed;
use gapless_kernels::{Direction, Family, Kernel, Width};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

/// Budgets that rounds take in turn; 0 is none.
const BUDGETS: [u32; 4] = [0, 1, 2, 7];
/// Rounds of each family and width.
const ROUNDS: u64 = 12;

/// The budget of a round. Each makes blocks of another size, for which OpenCL compiles kernels anew, a
/// fifth of a second each: so most widths take turns over two budgets only.
fn budget(width: Width, round: u64) -> Option<NonZeroU32> {
    let turns = if matches!(width, Width::W4 | Width::W16) { 4 } else { 2 };
    NonZeroU32::new(BUDGETS[usize::try_from(round % turns).unwrap()])
}

/// Most of the stream: the whole of it in every round for which the budgets have not changed yet.
fn most(rng: &mut Rng, size: u64, round: u64) -> Range<u64> {
    if round < 4 {
        return 0..size;
    }
    rng.below(size / 8 + 1)..size - rng.below(size / 8 + 1)
}

/// Every kernel that packs or unpacks, in each of its forms, at least so often.
const FLOOR: u64 = 2;

/// Each family at each width, both ways, with and without budgets; every kernel is reached.
pub(crate) fn every_kernel_runs(gpu: &Gpu) {
    const TEST: &str = "every kernel";
    let mut rng = rng(TEST);
    let counts = Arc::new(KernelCounts::default());
    for width in Width::ALL {
        for family in Family::ALL {
            for round in 0..ROUNDS {
                let Some((datatype, count)) = directed(family, width, &mut rng) else { break };
                let sample = Sample::of(&datatype, count).unwrap();
                let budget = budget(width, round);
                let mut bench = gpu.bench_of(&gpu.engine.with_budget(budget));
                bench.counts = Arc::clone(&counts);
                let part = most(&mut rng, sample.size(), round);
                let verdict = bench.pack(&sample, &part, (0, 0), &mut rng);
                let part = most(&mut rng, sample.size(), round);
                let verdict = verdict.and_then(|()| bench.unpack(&sample, &part, (0, 0), &mut rng));
                verdict.unwrap_or_else(|what| fail(TEST, &format!("{family:?} {width:?}: {what}")));
            }
        }
    }
    let reachable =
        |kernel: &Kernel| directed(kernel.family, kernel.width, &mut rng.clone()).is_some();
    let mut short = Vec::new();
    for kernel in Kernel::all().filter(reachable) {
        let ran = counts.of(&kernel.to_string());
        if ran < FLOOR {
            short.push(format!("{kernel}: {ran}"));
        }
    }
    assert!(short.is_empty(), "kernels that ran less than {FLOOR} times: {short:?}");
}

/// From every family's types to every other's, and every kernel that moves from layout to layout.
pub(crate) fn every_pair_of_families_transfers(gpu: &Gpu) {
    const TEST: &str = "pairs of families";
    let mut rng = rng(TEST);
    let counts = Arc::new(KernelCounts::default());
    let mut round = 0_u64;
    for from in Family::ALL {
        for to in Family::ALL {
            let width = Width::ALL[rng.index(5)];
            let (Some(source), Some(target)) =
                (directed(from, width, &mut rng), directed(to, width, &mut rng))
            else {
                continue;
            };
            let source = Sample::of(&source.0, source.1).unwrap();
            let target = Sample::of(&target.0, target.1).unwrap();
            let size = source.size().min(target.size());
            let budget = budget(width, round);
            round += 1;
            let mut bench = gpu.bench_of(&gpu.engine.with_budget(budget));
            bench.counts = Arc::clone(&counts);
            let align =
                if round.is_multiple_of(3) { (rng.below(16), rng.below(16)) } else { (0, 0) };
            for part in [0..size, range(&mut rng, size)] {
                bench
                    .transfer(&source, &target, &part, align, &mut rng)
                    .unwrap_or_else(|what| fail(TEST, &format!("{from:?} to {to:?}: {what}")));
            }
        }
    }
    assert!(round > 70, "{round} pairs");
    // The rest: every width, looping and not.
    for width in Width::ALL {
        for round in 0..ROUNDS {
            let mut bench = gpu.bench_of(&gpu.engine.with_budget(budget(width, round)));
            bench.counts = Arc::clone(&counts);
            let mut sample = |family| {
                let (datatype, count) = directed(family, width, &mut rng).unwrap();
                Sample::of(&datatype, count).unwrap()
            };
            let (source, target) = (sample(Family::Strided1), sample(Family::Mapped));
            let part = 0..source.size().min(target.size());
            bench
                .transfer(&source, &target, &part, (0, 0), &mut rng)
                .unwrap_or_else(|what| fail(TEST, &what));
        }
    }
    for kernel in Kernel::all().filter(|kernel| kernel.family == Family::Transfer) {
        let ran = counts.of(&kernel.to_string());
        assert!(ran >= FLOOR, "{kernel} ran {ran} times");
    }
}

/// Between memories of one layout, made twice as a receiver makes a sender's again, one lookup finds both sides, and one
/// plan serves both.
pub(crate) fn equal_layouts_share_a_lookup(gpu: &Gpu) {
    const TEST: &str = "equal layouts";
    let mut rng = rng(TEST);
    let engine = gpu.engine_with(|_| ());
    let (bench, mut seen) = (gpu.bench_of(&engine), BTreeSet::new());
    for family in Family::ALL {
        let mut again = rng.clone();
        let made = [&mut rng, &mut again].map(|rng| directed(family, Width::W8, rng));
        let [Some((one, count)), Some((two, _))] = made else { continue };
        let [one, two] = [one, two].map(|datatype| Sample::of(&datatype, count).unwrap());
        assert_ne!(one.layout.id(), two.layout.id());
        let (from, to) =
            (Buffer::new(&*gpu.memory, one.span()), Buffer::new(&*gpu.memory, one.span()));
        let [from, to] = [(from.region(), &one), (to.region(), &two)].map(|(region, side)| {
            Typed::new(region, side.low().unsigned_abs(), &side.layout, count).unwrap()
        });
        let plans = engine.plans().entries;
        for part in [0..one.size(), 8..one.size() - 8] {
            for launched in engine.transfer_launches(&from, &to, part.clone()).unwrap() {
                let by = launched.kernel.family;
                assert!(by.is_same() || by == Family::Copy, "{family:?}: {by:?}");
                seen.insert(format!("{by:?}"));
            }
            let moved = bench.transfer(&one, &two, &part, (0, 8), &mut rng);
            moved.unwrap_or_else(|what| fail(TEST, &what));
        }
        assert!(engine.plans().entries <= plans + 1, "{family:?}: a plan for both");
    }
    assert!(seen.len() >= 5, "{seen:?}");
}

/// A transposed matrix goes to one of another pitch, or of its own, row by row.
pub(crate) fn transposed_matrices_change_their_pitch(gpu: &Gpu) {
    const TEST: &str = "pitches";
    let (mut rng, bench) = (rng(TEST), gpu.bench());
    let transposed = |pitch: i64| {
        let column = Datatype::vector(100, 1, pitch, &Primitive::Double.into()).unwrap();
        let column = Datatype::resized(0, 8, &column).unwrap();
        Sample::of(&Datatype::contiguous(100, &column).unwrap(), 1).unwrap()
    };
    for pitches in [[101, 130], [100, 100], [110, 100]] {
        let [one, other] = pitches.map(transposed);
        for part in [0..one.size(), 0..one.size() - 8] {
            let moved = bench.transfer(&one, &other, &part, (8, 8), &mut rng);
            moved.unwrap_or_else(|what| fail(TEST, &what));
        }
    }
}

/// A few blocks so long that each has a launch of its own, and ranges that begin and end in any of them.
pub(crate) fn long_contiguous_spans_move(gpu: &Gpu) {
    const TEST: &str = "long contiguous spans";
    let mut rng = rng(TEST);
    let bench = gpu.bench();
    let lens: Vec<u64> = (0..3).map(|_| 9_500_000 + rng.below(100_000)).collect();
    let places = [4_800_003, -14_999_999, -4_999_999];
    let datatype = Datatype::hindexed(&lens, &places, &Primitive::Byte.into()).unwrap();
    let one = Sample::large(&datatype, 1).unwrap();
    for part in
        [0..one.size(), 1..lens[0] - 1, lens[0] - 1..lens[0] + 1, lens[0] + 5..one.size() - 3]
    {
        let verdict = bench.pack(&one, &part, (1, 6), &mut rng);
        let verdict = verdict.and_then(|()| bench.unpack(&one, &part, (0, 0), &mut rng));
        let verdict = verdict.and_then(|()| bench.transfer(&one, &one, &part, (0, 3), &mut rng));
        verdict.unwrap_or_else(|what| fail(TEST, &what));
    }
    assert!(bench.counts.sum(|name| name.starts_with("pack_copy")) >= 8, "one launch each");
    let two = Sample::large(&datatype, 2).unwrap();
    let part = one.size() - 77..one.size() + lens[0] + 77;
    let verdict = bench.pack(&two, &part, (0, 0), &mut rng);
    let verdict = verdict.and_then(|()| bench.unpack(&two, &part, (2, 0), &mut rng));
    verdict.unwrap_or_else(|what| fail(TEST, &what));
}

/// No launch has more blocks than the budget, whatever the work; without one there are more.
pub(crate) fn budgets_are_kept(gpu: &Gpu) {
    const TEST: &str = "budgets";
    let mut rng = rng(TEST);
    let mut unlimited = 0;
    for family in Family::ALL {
        for width in [Width::W1, Width::W8, Width::W16] {
            let Some((datatype, count)) = directed(family, width, &mut rng) else { continue };
            let sample = Sample::of(&datatype, count).unwrap();
            let memory = Buffer::new(&*gpu.memory, sample.span() + 16);
            let wire = Buffer::new(&*gpu.memory, sample.size());
            let origin = sample.low().unsigned_abs();
            let typed = Typed::new(memory.region(), origin, &sample.layout, count).unwrap();
            for budget in BUDGETS {
                let engine = gpu.engine.with_budget(NonZeroU32::new(budget));
                for direction in [Direction::Pack, Direction::Unpack] {
                    let launched =
                        engine.launches(direction, &typed, 0..sample.size(), wire.region());
                    for launch in launched.unwrap() {
                        assert!(launch.blocks > 0 && launch.threads > 0, "{launch:?}");
                        assert!(budget == 0 || launch.blocks <= budget, "{budget}: {launch:?}");
                        assert_eq!(launch.kernel.direction, direction);
                        unlimited += u32::from(budget == 0 && launch.blocks > 7);
                    }
                }
            }
        }
    }
    assert!(unlimited > 10, "only {unlimited} launches would have exceeded a budget");
    // Nothing to do, nothing to launch.
    let vector = Datatype::vector(8, 1, 2, &Primitive::Int.into()).unwrap().commit().unwrap();
    let memory = Buffer::new(&*gpu.memory, 64);
    let typed = Typed::new(memory.region(), 0, &vector, 1).unwrap();
    let nothing = gpu.engine.launches(Direction::Pack, &typed, 4..4, memory.part(0, 0));
    assert!(nothing.unwrap().is_empty());
}
