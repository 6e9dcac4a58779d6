//! Many requests in one call.

use crate::bench::{KernelCounts, Verdict, alignments, any, noise, packed, same, side};
use crate::directed::directed;
use crate::gpu::Gpu;
use crate::memory::{Buffer, index, wait};
use crate::sample::{Sample, range};
use crate::seed::{cases, fail, rng};
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Primitive};
use gapless_dtype_cuda::BatchItem;
use gapless_engine::{Engine, EngineError, Typed};
use gapless_kernels::{Direction, Family, Kernel, Width};
use gapless_mem::Region;
use std::num::NonZeroU32;
use std::ops::Range;

/// Batches of one to a few hundred requests of any types, ranges and alignments, both ways; and as many one by one, all
/// under way before one is waited for.
pub(crate) fn batches_are_their_requests(gpu: &Gpu) {
    const TEST: &str = "batches";
    let mut rng = rng(TEST);
    for case in 0..cases(16) {
        let direction = if case % 2 == 0 { Direction::Pack } else { Direction::Unpack };
        let most = [3, 20, 60, 300][usize::try_from(case % 4).unwrap()];
        let budget = NonZeroU32::new(*rng.pick(&[0, 0, 1, 7]));
        let engine = gpu.engine.with_budget(budget);
        let samples: Vec<Sample> = (0..1 + rng.below(most)).map(|_| any(&mut rng)).collect();
        let (mut typed, mut wires, mut requests) = (Vec::new(), Vec::new(), Vec::new());
        for sample in &samples {
            let (align, part) = (alignments(&mut rng), range(&mut rng, sample.size()));
            let one = side(&*gpu.memory, sample, align.0, &mut rng).unwrap();
            let wire = packed(&*gpu.memory, &part, align.1, &mut rng);
            let (region, whole) = (wire.region, one.typed.clone());
            requests.push(BatchItem { typed: whole, range: part, packed: region });
            typed.push(one);
            wires.push(wire);
        }
        let one_by_one = case % 8 >= 4;
        let works: Vec<_> = if one_by_one {
            let start = |BatchItem { typed, range, packed }: &BatchItem| match direction {
                // SAFETY: all of it lives until the wait, and nothing overlaps.
                Direction::Pack => unsafe { engine.pack(typed, range.clone(), *packed, &[]) },
                // SAFETY: likewise.
                Direction::Unpack => unsafe { engine.unpack(*packed, typed, range.clone(), &[]) },
            };
            requests.iter().map(start).collect()
        } else {
            // SAFETY: likewise.
            vec![unsafe { engine.batch(direction, &requests, &[]) }]
        };
        for work in works.into_iter().rev() {
            wait(&work.unwrap_or_else(|error| fail(TEST, &format!("case {case}: {error}"))));
        }
        let sides = samples.iter().zip(&requests).zip(typed.iter().zip(&wires));
        for (number, ((sample, request), (one, wire))) in sides.enumerate() {
            let (mut stream, mut memory) = (wire.noise.clone(), one.noise.clone());
            let len = index(request.range.end - request.range.start);
            let there = &mut stream[index(wire.at)..][..len];
            match direction {
                Direction::Pack => {
                    there.copy_from_slice(&sample.gather(&request.range, &memory, one.origin));
                }
                Direction::Unpack => sample.scatter(&request.range, there, &mut memory, one.origin),
            }
            let verdict = same("the packed side", &wire.buffer.bytes(), &stream, wire.at);
            let verdict = verdict
                .and_then(|()| same("the typed side", &one.buffer.bytes(), &memory, one.origin));
            verdict.unwrap_or_else(|what| {
                let (part, text) = (&request.range, sample.describe());
                let of = samples.len();
                fail(TEST, &format!("{direction:?} {number} of {of}, {part:?} of {text}: {what}"));
            });
        }
    }
}

/// Requests in one memory and one packed buffer, where OpenCL can fuse them as well.
struct Together<'a> {
    samples: Vec<Sample>,
    /// Which sample, where its displacement 0 is, which bytes of its stream, and where those are packed.
    parts: Vec<(usize, u64, Range<u64>, u64)>,
    memory: Vec<u8>,
    wire: Vec<u8>,
    typed: Buffer<'a>,
    packed: Buffer<'a>,
}

impl<'a> Together<'a> {
    /// `amount` requests for these samples in turn, each at a multiple of 16 bytes.
    fn new(gpu: &'a Gpu, samples: Vec<Sample>, amount: usize, rng: &mut Rng) -> Together<'a> {
        let (mut parts, mut at, mut wire) = (Vec::new(), 64_u64, 64_u64);
        for number in 0..amount {
            let turn = number % samples.len();
            let sample = &samples[turn];
            let origin = (at + sample.low().unsigned_abs()).next_multiple_of(16);
            at = origin.wrapping_add_signed(sample.low()) + sample.span() + rng.below(40);
            let part = if rng.chance(50) { 0..sample.size() } else { range(rng, sample.size()) };
            let begin = wire.next_multiple_of(16) + part.start % 16;
            wire = begin + part.end - part.start + rng.below(20);
            parts.push((turn, origin, part, begin));
        }
        let (memory, wire) = (noise(rng, at + 64), noise(rng, wire + 64));
        let typed = Buffer::holding(&*gpu.memory, &memory);
        let packed = Buffer::holding(&*gpu.memory, &wire);
        Together { samples, parts, memory, wire, typed, packed }
    }

    fn requests(&self) -> Vec<BatchItem> {
        let request = |(turn, origin, part, at): &(usize, u64, Range<u64>, u64)| {
            let sample = &self.samples[*turn];
            let typed = Typed::new(self.typed.region(), *origin, &sample.layout, sample.count);
            let packed = self.packed.part(*at, part.end - part.start);
            BatchItem { typed: typed.unwrap(), range: part.clone(), packed }
        };
        self.parts.iter().map(request).collect()
    }

    /// Compares both buffers with what they hold once all has been moved.
    fn check(mut self, direction: Direction) -> Verdict {
        for (turn, origin, part, at) in &self.parts {
            let sample = &self.samples[*turn];
            let there = &mut self.wire[index(*at)..][..index(part.end - part.start)];
            match direction {
                Direction::Pack => {
                    there.copy_from_slice(&sample.gather(part, &self.memory, *origin))
                }
                Direction::Unpack => sample.scatter(part, there, &mut self.memory, *origin),
            }
        }
        same("the packed side", &self.packed.bytes(), &self.wire, 0)?;
        same("the typed side", &self.typed.bytes(), &self.memory, 0)
    }
}

/// Requests that can be fused, of every family and width: fewer launches than requests, every fused
/// kernel runs, and every byte is right.
pub(crate) fn every_fused_kernel_runs(gpu: &Gpu) {
    const TEST: &str = "fused";
    let mut rng = rng(TEST);
    let counts = KernelCounts::default();
    let closed = [
        Family::Copy,
        Family::Strided1,
        Family::Strided,
        Family::Rows,
        Family::Affine,
        Family::Transposed,
    ];
    for width in Width::ALL {
        for (round, budget) in [0, 0, 1, 3, 1, 2].into_iter().enumerate() {
            for direction in [Direction::Pack, Direction::Unpack] {
                let mut make = |family| {
                    let (datatype, count) = directed(family, width, &mut rng).unwrap();
                    Sample::of(&datatype, count).unwrap()
                };
                let samples = match round {
                    1 | 2 => vec![make(Family::Listed)],
                    4 => vec![make(Family::Mapped)],
                    _ => closed.map(make).into(),
                };
                let amount = [40, 5][round % 2];
                let together = Together::new(gpu, samples, amount, &mut rng);
                let (requests, engine) =
                    (together.requests(), gpu.engine.with_budget(NonZeroU32::new(budget)));
                let launched = engine.batch_launches(direction, &requests).unwrap();
                assert!(launched.len() < amount, "{} launches for {amount}", launched.len());
                let kernels: Vec<Kernel> = launched.iter().map(|launch| launch.kernel).collect();
                assert!(budget == 0 || launched.iter().all(|launch| launch.blocks <= budget));
                counts.add(&kernels);
                // SAFETY: all of it lives until the wait, and nothing overlaps.
                wait(&unsafe { engine.batch(direction, &requests, &[]) }.unwrap());
                together.check(direction).unwrap_or_else(|what| {
                    fail(TEST, &format!("{direction:?} {width:?} round {round}: {what}"));
                });
            }
        }
    }
    for kernel in Kernel::all().filter(|kernel| kernel.family == Family::Fused) {
        let ran = counts.of(&kernel.to_string());
        assert!(ran >= 2, "{kernel} ran {ran} times");
    }
}

/// Small requests of one word width go in few launches: that is what a batch is for.
pub(crate) fn small_requests_are_fused(gpu: &Gpu) {
    let vector = Datatype::vector(16, 1, 3, &Primitive::Double.into()).unwrap().commit().unwrap();
    let memory = Buffer::new(&*gpu.memory, 26 * 512);
    let wire = Buffer::new(&*gpu.memory, 26 * 128);
    let requests: Vec<BatchItem> = (0..26)
        .map(|face| BatchItem {
            typed: Typed::new(memory.region(), face * 512, &vector, 1).unwrap(),
            range: 0..128,
            packed: wire.part(face * 128, 128),
        })
        .collect();
    for direction in [Direction::Pack, Direction::Unpack] {
        let launched = gpu.engine.batch_launches(direction, &requests).unwrap();
        assert_eq!(launched.len(), 1, "{launched:?}");
    }
}

/// One wrong request: nothing of the batch happens.
pub(crate) fn a_batch_with_a_misfit_does_nothing(gpu: &Gpu) {
    const TEST: &str = "wrong batches";
    let mut rng = rng(TEST);
    let vector = Datatype::vector(16, 1, 3, &Primitive::Int.into()).unwrap().commit().unwrap();
    let bytes = noise(&mut rng, 1_024);
    let memory = Buffer::holding(&*gpu.memory, &bytes);
    let wire = Buffer::holding(&*gpu.memory, &bytes);
    let good = |at: u64| BatchItem {
        typed: Typed::new(memory.region(), at * 192, &vector, 1).unwrap(),
        range: 0..64,
        packed: wire.part(at * 64, 64),
    };
    let foreign = gapless_mem::Space::Device { kind: "fake", device: 2 };
    let wrong = [
        BatchItem { packed: wire.part(512, 63), ..good(4) },
        BatchItem { range: 1..65, ..good(4) },
        BatchItem { packed: Region::new(foreign, 4_096, 0, 64), ..good(4) },
    ];
    for wrong in wrong {
        for direction in [Direction::Pack, Direction::Unpack] {
            let requests = [good(0), good(1), wrong.clone(), good(3)];
            // SAFETY: refused; everything lives all the same.
            let error = unsafe { gpu.engine.batch(direction, &requests, &[]) }.unwrap_err();
            let named = matches!(
                error,
                EngineError::LengthMismatch { .. }
                    | EngineError::RangeOutside { .. }
                    | EngineError::WrongSpace { .. }
                    | EngineError::Device(_)
            );
            assert!(named, "{error}");
            same("typed", &memory.bytes(), &bytes, 0).unwrap_or_else(|what| fail(TEST, &what));
            same("packed", &wire.bytes(), &bytes, 0).unwrap_or_else(|what| fail(TEST, &what));
        }
    }
    // SAFETY: there is nothing to do.
    wait(&unsafe { gpu.engine.batch(Direction::Pack, &[], &[]) }.unwrap());
}
