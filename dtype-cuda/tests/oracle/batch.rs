//! Many requests in one call.

use crate::bench::{alignments, noise, packed, same, side};
use crate::directed::directed;
use crate::gpu::Gpu;
use crate::memory::{Buffer, index, wait};
use crate::sample::{Sample, range};
use crate::seed::{cases, fail, rng};
use gapless_dtype::testkit::{Params, Rng};
use gapless_dtype::{Datatype, Primitive};
use gapless_dtype_cuda::Request;
use gapless_engine::{EngineError, Typed};
use gapless_kernels::{Direction, Family, Width};
use gapless_mem::Region;
use std::num::NonZeroU32;

/// Random types, now and then one made for a family of kernels.
fn sample(rng: &mut Rng) -> Sample {
    if rng.chance(25) {
        let (family, width) = (*rng.pick(&Family::ALL), *rng.pick(&Width::ALL));
        if let Some((datatype, count)) = directed(family, width, rng) {
            return Sample::of(&datatype, count).unwrap();
        }
    }
    Sample::random(rng, &Params { overlaps: false, ..Params::default() })
}

/// Batches of one to a few hundred requests of any types, ranges and alignments, both ways.
pub(crate) fn batches_are_their_requests(gpu: &Gpu) {
    const TEST: &str = "batches";
    let mut rng = rng(TEST);
    for case in 0..cases(16) {
        let direction = if case % 2 == 0 { Direction::Pack } else { Direction::Unpack };
        let most = [3, 20, 60, 300][usize::try_from(case % 4).unwrap()];
        let budget = NonZeroU32::new(*rng.pick(&[0, 0, 1, 7]));
        let engine = gpu.engine.with_budget(budget);
        let samples: Vec<Sample> = (0..1 + rng.below(most)).map(|_| sample(&mut rng)).collect();
        let (mut typed, mut wires, mut requests) = (Vec::new(), Vec::new(), Vec::new());
        for sample in &samples {
            let (align, part) = (alignments(&mut rng), range(&mut rng, sample.size()));
            let one = side(&*gpu.memory, sample, align.0, &mut rng).unwrap();
            let wire = packed(&*gpu.memory, &part, align.1, &mut rng);
            let (region, whole) = (wire.region, one.typed.clone());
            requests.push(Request { typed: whole, range: part, packed: region });
            typed.push(one);
            wires.push(wire);
        }
        // SAFETY: all of it lives until the wait, and nothing overlaps.
        let done = unsafe { engine.batch(direction, &requests, &[]) };
        wait(&done.unwrap_or_else(|error| fail(TEST, &format!("case {case}: {error}"))));
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

/// Small requests of one word width go in few launches: that is what a batch is for.
pub(crate) fn small_requests_are_fused(gpu: &Gpu) {
    let vector = Datatype::vector(16, 1, 3, &Primitive::Double.into()).unwrap().commit().unwrap();
    let memory = Buffer::new(&*gpu.memory, 26 * 512);
    let wire = Buffer::new(&*gpu.memory, 26 * 128);
    let requests: Vec<Request> = (0..26)
        .map(|face| Request {
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
    let good = |at: u64| Request {
        typed: Typed::new(memory.region(), at * 192, &vector, 1).unwrap(),
        range: 0..64,
        packed: wire.part(at * 64, 64),
    };
    let foreign = gapless_mem::Space::Fake { device: 2 };
    let wrong = [
        Request { packed: wire.part(512, 63), ..good(4) },
        Request { range: 1..65, ..good(4) },
        Request { packed: Region::new(foreign, 4_096, 0, 64), ..good(4) },
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
