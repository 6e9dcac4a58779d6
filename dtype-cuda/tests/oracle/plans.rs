//! Plans: kept, bounded, evicted under running work, shared by threads, prepared early, forgotten;
//! written in pieces while kernels run or before.

use crate::bench::{Bench, alignments};
use crate::directed::directed;
use crate::gpu::Gpu;
use crate::memory::{Buffer, index, wait, waited};
use crate::sample::{Sample, range};
use crate::seed::{cases, fail, rng};
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Primitive};
use gapless_dtype_cuda::GpuEngine;
use gapless_engine::Typed;
use gapless_kernels::{Family, Width};
use gapless_mem::Completion;

/// A listed or a planned type of about `blocks` blocks of one to three words, in random order.
fn blocks(planned: bool, blocks: u64, bytes: u64, rng: &mut Rng) -> Datatype {
    let element = Datatype::contiguous(bytes, &Primitive::Byte.into()).unwrap();
    let lens: Vec<u64> = (0..blocks).map(|_| if planned { 1 + rng.below(3) } else { 2 }).collect();
    let mut cells: Vec<(i64, u64)> =
        lens.iter().zip(0_i64..).map(|(&len, at)| (at * 4, len)).collect();
    rng.shuffle(&mut cells);
    let (places, lens): (Vec<i64>, Vec<u64>) = cells.into_iter().unzip();
    if planned {
        Datatype::indexed(&lens, &places, &element).unwrap()
    } else {
        Datatype::indexed_block(2, &places, &element).unwrap()
    }
}

/// Packs a sample, without waiting, out of memory that holds `noise`.
struct Flight<'a> {
    sample: &'a Sample,
    noise: Vec<u8>,
    from: Buffer<'a>,
    to: Buffer<'a>,
    done: Completion,
}

impl<'a> Flight<'a> {
    fn start(engine: &GpuEngine, gpu: &'a Gpu, sample: &'a Sample, rng: &mut Rng) -> Flight<'a> {
        let noise = crate::bench::noise(rng, sample.span());
        let from = Buffer::holding(&*gpu.memory, &noise);
        let to = Buffer::new(&*gpu.memory, sample.size());
        let origin = sample.low().unsigned_abs();
        let typed = Typed::new(from.region(), origin, &sample.layout, sample.count).unwrap();
        use gapless_engine::Engine as _;
        // SAFETY: both live in the flight, whose end is waited for.
        let done = unsafe { engine.pack(&typed, 0..sample.size(), to.region(), &[]) };
        Flight { sample, noise, from, to, done: done.unwrap() }
    }

    fn land(self, test: &str) {
        wait(&self.done);
        let want = self.sample.gather(
            &(0..self.sample.size()),
            &self.noise,
            self.sample.low().unsigned_abs(),
        );
        let read_only = self.from.bytes() == self.noise;
        if self.to.bytes() != want || !read_only {
            fail(test, &format!("a wrong stream of {}", self.sample.describe()));
        }
    }
}

impl Drop for Flight<'_> {
    /// A test that fails leaves no work behind that uses its memory.
    fn drop(&mut self) {
        let _ = waited(&self.done);
    }
}

/// More plans than the bound holds, used while others are evicted and nothing is waited for.
pub(crate) fn plans_are_evicted_under_running_work(gpu: &Gpu) {
    const TEST: &str = "eviction";
    const BOUND: u64 = 10_000;
    let mut rng = rng(TEST);
    let engine = gpu.engine_with(|config| {
        config.plan_bytes = BOUND;
    });
    let samples: Vec<Sample> = (0..14)
        .map(|at| {
            let datatype = blocks(at % 2 == 0, 300 + 40 * at, 4, &mut rng);
            Sample::of(&datatype, 1 + at % 3).unwrap()
        })
        .collect();
    let (mut flights, mut most) = (Vec::new(), 0);
    for _ in 0..cases(150) {
        flights.push(Flight::start(&engine, gpu, rng.pick(&samples), &mut rng));
        let plans = engine.plans();
        assert!(plans.bytes <= BOUND, "{plans:?}");
        most = most.max(plans.entries);
        if flights.len() > 20 {
            for flight in flights.drain(..index(1 + rng.below(20))) {
                flight.land(TEST);
            }
        }
    }
    flights.into_iter().for_each(|flight| flight.land(TEST));
    let plans = engine.plans();
    println!("{plans:?}, at most {most} at once");
    assert!(plans.evictions > 50 && plans.hits > 5 && plans.misses > 50, "{plans:?}");
    assert!(most >= 2, "the bound holds several of these");
}

/// Threads use common and own layouts of one engine whose plans do not all fit.
pub(crate) fn threads_evict_each_others_plans(gpu: &Gpu) {
    const TEST: &str = "eviction by threads";
    let mut rng = rng(TEST);
    let engine = gpu.engine_with(|config| {
        config.plan_bytes = 12_000;
    });
    let common: Vec<Sample> =
        (0..6).map(|at| Sample::of(&blocks(at % 2 == 0, 400, 8, &mut rng), 1).unwrap()).collect();
    let seeds: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
    std::thread::scope(|scope| {
        for seed in seeds {
            let (engine, common) = (&engine, &common);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let bench = gpu.bench_of(engine);
                for case in 0..cases(25) {
                    let own;
                    let sample = if case % 5 < 3 {
                        rng.pick(common)
                    } else {
                        own = Sample::of(&blocks(case % 2 == 0, 200, 2, &mut rng), 2).unwrap();
                        &own
                    };
                    both(&bench, sample, TEST, &mut rng);
                    if rng.chance(10) {
                        engine.forget(&sample.layout);
                    }
                }
            });
        }
    });
    let plans = engine.plans();
    // Ten own layouts each, of which some were forgotten and some are there.
    assert!(plans.misses >= 40 && plans.evictions > 5, "{plans:?}");
    assert!(plans.bytes <= 12_000, "{plans:?}");
}

/// Several threads want one plan that nobody has made yet: it is made once, or at least right.
pub(crate) fn threads_meet_at_a_new_plan(gpu: &Gpu) {
    const TEST: &str = "one new plan";
    let mut rng = rng(TEST);
    for case in 0..cases(6) {
        let engine = gpu.engine_with(|config| {
            config.piece_bytes = 4_096;
        });
        let sample = Sample::of(&blocks(case % 2 == 0, 6_000, 4, &mut rng), 1).unwrap();
        let seeds: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
        std::thread::scope(|scope| {
            for seed in seeds {
                let (sample, bench) = (&sample, gpu.bench_of(&engine));
                scope.spawn(move || both(&bench, sample, TEST, &mut Rng::new(seed)));
            }
        });
        let plans = engine.plans();
        assert_eq!((plans.entries, plans.misses), (1, 1), "{plans:?}");
    }
}

fn both(bench: &Bench, sample: &Sample, test: &str, rng: &mut Rng) {
    let (part, align) = (range(rng, sample.size()), alignments(rng));
    let verdict = bench.pack(sample, &part, align, rng);
    let verdict = verdict.and_then(|()| bench.unpack(sample, &part, align, rng));
    verdict.unwrap_or_else(|what| fail(test, &what));
}

/// A plan larger than the bound serves its call and is not kept; others stay.
pub(crate) fn oversized_plans_are_not_kept(gpu: &Gpu) {
    const TEST: &str = "oversized plans";
    let mut rng = rng(TEST);
    let engine = gpu.engine_with(|config| {
        config.plan_bytes = 6_000;
        config.piece_bytes = 4_096;
    });
    let bench = gpu.bench_of(&engine);
    let small = Sample::of(&blocks(false, 100, 4, &mut rng), 2).unwrap();
    both(&bench, &small, TEST, &mut rng);
    bench.pack(&small, &(0..small.size()), (0, 0), &mut rng).unwrap();
    let before = engine.plans();
    assert_eq!(before.entries, 1);
    for case in 0..8 {
        let large = Sample::of(&blocks(case % 2 == 0, 5_000, 4, &mut rng), 1 + case % 3).unwrap();
        bench
            .pack(&large, &(0..large.size()), (0, 0), &mut rng)
            .unwrap_or_else(|what| fail(TEST, &what));
        both(&bench, &large, TEST, &mut rng);
        bench
            .transfer(&large, &large, &(0..large.size()), (0, 0), &mut rng)
            .unwrap_or_else(|what| fail(TEST, &what));
    }
    let after = engine.plans();
    assert_eq!((after.entries, after.bytes), (before.entries, before.bytes), "{after:?}");
    // No room at all.
    let engine = gpu.engine_with(|config| {
        config.plan_bytes = 0;
    });
    both(&gpu.bench_of(&engine), &small, TEST, &mut rng);
    assert_eq!(engine.plans().entries, 0);
}

/// Prepared plans are found by the first use; forgotten ones are made anew.
pub(crate) fn plans_are_prepared_and_forgotten(gpu: &Gpu) {
    const TEST: &str = "preparing";
    let mut rng = rng(TEST);
    let engine = gpu.engine_with(|_| {});
    let bench = gpu.bench_of(&engine);
    for planned in [false, true] {
        let sample = Sample::of(&blocks(planned, 3_000, 4, &mut rng), 2).unwrap();
        let before = engine.plans();
        wait(&engine.prepare(&sample.layout).unwrap());
        let prepared = engine.plans();
        assert_eq!(prepared.entries, before.entries + 1, "{prepared:?}");
        assert!(prepared.bytes > before.bytes);
        bench
            .pack(&sample, &(0..sample.size()), (0, 0), &mut rng)
            .unwrap_or_else(|what| fail(TEST, &what));
        let used = engine.plans();
        assert!(used.hits > prepared.hits && used.misses == prepared.misses, "{used:?}");
        // Forgotten while it is in use.
        let flight = Flight::start(&engine, gpu, &sample, &mut rng);
        engine.forget(&sample.layout);
        assert_eq!(engine.plans().entries, before.entries);
        assert_eq!(engine.plans().bytes, before.bytes);
        flight.land(TEST);
        both(&bench, &sample, TEST, &mut rng);
        engine.forget(&sample.layout);
        engine.forget(&sample.layout);
    }
    // Closed forms need none.
    for family in [Family::Copy, Family::Strided, Family::Affine] {
        let (datatype, _) = directed(family, Width::W4, &mut rng).unwrap();
        let before = engine.plans();
        wait(&engine.prepare(&datatype.commit().unwrap()).unwrap());
        assert_eq!(engine.plans().entries, before.entries, "{family:?}");
    }
    let empty = Datatype::contiguous(0, &Primitive::Int.into()).unwrap().commit().unwrap();
    wait(&engine.prepare(&empty).unwrap());
}

/// Layouts that are gone leave no plans that crowd out others.
pub(crate) fn plans_of_dropped_layouts_make_room(gpu: &Gpu) {
    const TEST: &str = "dropped layouts";
    let mut rng = rng(TEST);
    let engine = gpu.engine_with(|config| {
        config.plan_bytes = 16_000;
    });
    let bench = gpu.bench_of(&engine);
    let kept = Sample::of(&blocks(true, 300, 4, &mut rng), 1).unwrap();
    both(&bench, &kept, TEST, &mut rng);
    bench.pack(&kept, &(0..kept.size()), (0, 0), &mut rng).unwrap();
    for _ in 0..30 {
        let passing = Sample::of(&blocks(true, 300, 4, &mut rng), 1).unwrap();
        both(&bench, &passing, TEST, &mut rng);
    }
    let before = engine.plans();
    bench.pack(&kept, &(0..kept.size()), (0, 0), &mut rng).unwrap();
    let after = engine.plans();
    assert!(after.misses == before.misses && after.hits > before.hits, "{before:?}, {after:?}");
}

/// Pieces prepared behind running kernels, or all before, by one thread or by several: the same bytes, for any
/// range, at first use.
pub(crate) fn first_uses_are_right_however_prepared(gpu: &Gpu) {
    const TEST: &str = "first use";
    let mut rng = rng(TEST);
    for case in 0..cases(24) {
        let pipelined = case % 2 == 0;
        let piece_bytes = *rng.pick(&[4_096, 10_000, 1 << 20]);
        let writers = *rng.pick(&[1, 2, 5]);
        let engine = gpu.engine_with(|config| {
            config.pipelined = pipelined;
            config.piece_bytes = piece_bytes;
            config.writers = writers;
        });
        let bench = gpu.bench_of(&engine);
        let (planned, bytes) = (case % 4 < 2, *rng.pick(&[1, 2, 4, 8, 12, 16]));
        // From one piece to dozens.
        let amount = *rng.pick(&[40, 2_000, 9_000, 30_000]);
        let datatype = blocks(planned, amount, bytes, &mut rng);
        let sample = Sample::of(&datatype, 1 + rng.below(3)).unwrap();
        let (part, align) = (range(&mut rng, sample.size()), alignments(&mut rng));
        // The plan is new in every one of these.
        let verdict = bench.pack(&sample, &part, align, &mut rng);
        engine.forget(&sample.layout);
        let (part, align) = (range(&mut rng, sample.size()), alignments(&mut rng));
        let verdict = verdict.and_then(|()| bench.unpack(&sample, &part, align, &mut rng));
        engine.forget(&sample.layout);
        let part = range(&mut rng, sample.size());
        let verdict =
            verdict.and_then(|()| bench.transfer(&sample, &sample, &part, (0, 0), &mut rng));
        // And old in these.
        let whole = 0..sample.size();
        let verdict = verdict.and_then(|()| bench.pack(&sample, &whole, (0, 0), &mut rng));
        let verdict = verdict.and_then(|()| bench.unpack(&sample, &whole, (0, 0), &mut rng));
        verdict.unwrap_or_else(|what| {
            fail(
                TEST,
                &format!(
                    "case {case}, pipelined {pipelined}, pieces of {piece_bytes}, {writers} writers: {what}"
                ),
            );
        });
    }
}
