//! Numbers at their limits: huge counts, extents and displacements of both signs, ranges at the ends. Whatever
//! they are, a call lays out launches or says why not; nothing overflows.

use crate::BatchItem;
use crate::engine::*;
use crate::plan::PlanSpec;
use crate::shared::CALL_BYTES_MAX;
use crate::tests::mock::Mock;
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Primitive};
use gapless_testkit::{fresh, seed};

/// Plans of more bytes are laid out, and not made.
const MADE_MAX: u64 = 1 << 20;

/// A number near a power of two, of either sign.
fn far(rng: &mut Rng) -> i64 {
    let near = *rng.pick(&[-16i64, -8, -4, -1, 0, 0, 0, 1, 4, 8, 12]);
    let power = *rng.pick(&[0, 3, 4, 7, 16, 29, 30, 31, 32, 33, 34, 40, 47, 61, 62]);
    let far = (1i64 << power).wrapping_add(near);
    if rng.chance(40) { far.wrapping_neg() } else { far }
}

fn many(rng: &mut Rng) -> u64 {
    if rng.chance(60) {
        return rng.below(6);
    }
    far(rng).unsigned_abs()
}

/// A type, or none if these numbers make none.
fn datatype(rng: &mut Rng, depth: u32) -> Option<Datatype> {
    if depth == 0 {
        let leaf =
            *rng.pick(&[Primitive::Byte, Primitive::Short, Primitive::Int, Primitive::Double]);
        return Some(leaf.into());
    }
    let old = datatype(rng, depth - 1)?;
    match rng.below(7) {
        0 => Datatype::contiguous(many(rng), &old),
        1 => Datatype::hvector(many(rng), many(rng), far(rng), &old),
        2 => Datatype::vector(many(rng), many(rng), far(rng), &old),
        3 => Datatype::resized(far(rng), far(rng), &old),
        4 => {
            let places: Vec<i64> = (0..2 + rng.below(8)).map(|_| far(rng)).collect();
            Datatype::hindexed_block(many(rng), &places, &old)
        }
        5 => {
            let places: Vec<i64> = (0..2 + rng.below(100))
                .map(|at| far(rng).wrapping_add(at.cast_signed() << 20))
                .collect();
            let lengths: Vec<u64> = places.iter().map(|_| many(rng)).collect();
            Datatype::hindexed(&lengths, &places, &old)
        }
        _ => {
            let step = far(rng);
            let lengths: Vec<u64> = (0..20).map(|at| 20 - at).collect();
            let places: Vec<i64> = (0..20).map(|at: i64| at.wrapping_mul(step)).collect();
            Datatype::hindexed(&lengths, &places, &old)
        }
    }
    .ok()
}

/// All memory there could be, with displacement 0 where the type's lowest byte is inside.
fn typed(rng: &mut Rng, space: Space) -> Option<Typed> {
    let depth = 1 + u32::try_from(rng.below(4)).unwrap_or(0);
    let layout = datatype(rng, depth)?.commit().ok()?;
    let count = many(rng);
    let all = Region::new(space, *rng.pick(&[0u64, 1, 8, 12, 16]), 0, u64::MAX);
    let places = [1u64 << 63, 0, (1 << 63) - 1, (1 << 62) + 4, u64::MAX >> 1];
    let origin = *rng.pick(&places);
    Typed::new(all, origin, &layout, count).or_else(|_| Typed::new(all, 1 << 63, &layout, 1)).ok()
}

fn range(rng: &mut Rng, size: u64) -> Range<u64> {
    let short = 1 + rng.below(100_000);
    match rng.below(6) {
        0 => 0..size,
        1 => 0..short.min(size),
        2 => size - short.min(size)..size,
        3 => {
            let start = rng.below(size.max(1));
            start..start + short.min(size - start)
        }
        4 => {
            let start = (1u64 << rng.below(63)).min(size);
            start..start + short.min(size - start)
        }
        _ => size / 3..size - size / 5,
    }
}

/// What the calls say of one case, told for reports and enqueued if its plan is short enough to be made.
fn ask(
    engine: &GpuEngine,
    direction: Direction,
    one: &BatchItem,
    other: Option<&BatchItem>,
) -> Vec<(u64, Result<(), EngineError>)> {
    let len = one.packed.len();
    let mut answers = vec![(
        len,
        engine.launches(direction, &one.typed, one.range.clone(), one.packed).map(|_| ()),
    )];
    if let Some(other) = other {
        let size = other.typed.packed_bytes();
        let both = one.range.start.min(size)..one.range.end.min(size);
        let told = engine.transfer_launches(&one.typed, &other.typed, both.clone());
        answers.push((both.end - both.start, told.map(|_| ())));
        let told = engine.batch_launches(direction, &[one.clone(), other.clone(), one.clone()]);
        answers.push((len.max(other.packed.len()), told.map(|_| ())));
    }
    if PlanSpec::of(one.typed.layout()).bytes <= MADE_MAX {
        // SAFETY: the pretend vendor touches nothing.
        let done = unsafe { engine.pack(&one.typed, one.range.clone(), one.packed, &[]) };
        answers.push((len, done.map(|_| ())));
    }
    answers
}

#[test]
fn numbers_at_their_limits_overflow_nothing() {
    let seed = seed(fresh());
    println!("GAPLESS_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mock = Arc::new(Mock::new(2));
    // A ring has room for a whole plan: the pretend vendor's uploads do not end by themselves.
    let config = Config { piece_bytes: 1 << 20, plan_bytes: MADE_MAX, ..Config::default() };
    let engine = GpuEngine::over(Arc::clone(&mock) as Arc<dyn Accelerator>, config.bounded());
    let space = engine.device().space();
    let (mut laid_out, mut before) = (0, None);
    for number in 0..3000 {
        let Some(typed) = typed(&mut rng, space) else { continue };
        let budget =
            *rng.pick(&[None, NonZeroU32::new(1), NonZeroU32::new(7), NonZeroU32::new(u32::MAX)]);
        let range = range(&mut rng, typed.packed_bytes());
        let address = *rng.pick(&[0u64, 1, 2, 4, 8, 16, 1 << 47, (1 << 62) + 4]);
        let packed = Region::new(space, address, 0, range.end - range.start);
        let direction = *rng.pick(&[Direction::Pack, Direction::Unpack]);
        let one = BatchItem { typed, range, packed };
        let engine = engine.with_budget(budget);
        let answers = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ask(&engine, direction, &one, before.as_ref())
        }));
        let case =
            || format!("GAPLESS_SEED={seed}, case {number}: {one:?}, {budget:?}, after {before:?}");
        for (len, answer) in answers.unwrap_or_else(|_| panic!("{}", case())) {
            laid_out += u32::from(answer.is_ok());
            if let Err(error) = answer {
                assert!(len > CALL_BYTES_MAX, "{error}: {}", case());
            }
        }
        mock.log().end_all();
        mock.log().ops.clear();
        before = Some(one);
    }
    assert!(laid_out > 2000, "GAPLESS_SEED={seed}: {laid_out} laid out");
}

#[test]
fn lengths_that_no_memory_has_are_refused_and_not_listed() {
    let engine = GpuEngine::over(Arc::new(Mock::new(1)), Config::default().bounded());
    let space = engine.device().space();
    let all = Region::new(space, 0, 0, 1 << 62);
    let side = Typed::contiguous(all);
    let refused = |outcome: Result<_, EngineError>| {
        let error = outcome.map(|_: Vec<Launched>| ()).unwrap_err();
        assert!(matches!(error, EngineError::Device(_)), "{error}");
    };
    refused(engine.launches(Direction::Pack, &side, 0..1 << 62, all));
    refused(engine.transfer_launches(&side, &side, 1..1 << 62));
    let request = BatchItem { typed: side, range: 0..1 << 62, packed: all };
    refused(engine.batch_launches(Direction::Unpack, &[request]));
}

#[test]
fn copies_between_devices_are_laid_out_of_any_numbers() {
    let seed = seed(fresh());
    println!("GAPLESS_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mock = Arc::new(Mock::new(2));
    let far = 1u64 << 50;
    mock.log().elsewhere = vec![far, 8, 16];
    let config = Config { copy_bytes_min: 1, ..Config::default() };
    let engine = GpuEngine::over(Arc::clone(&mock) as Arc<dyn Accelerator>, config.bounded());
    let space = engine.device().space();
    let (mut copied, mut before) = (0, None::<Typed>);
    for number in 0..3000 {
        let Some(typed) = typed(&mut rng, space) else { continue };
        let range = range(&mut rng, typed.packed_bytes());
        let packed = Region::new(space, far, 0, range.end - range.start);
        let direction = *rng.pick(&[Direction::Pack, Direction::Unpack]);
        let both = before.as_ref().map(|before| {
            let size = before.packed_bytes();
            (before, range.start.min(size)..range.end.min(size))
        });
        let ask = || {
            let told = engine.copies(direction, &typed, range.clone(), packed);
            let mut all = vec![(told, range.end - range.start)];
            if let Some((before, both)) = &both {
                let told = engine.transfer_copies(before, &typed, both.clone());
                all.push((told, both.end - both.start));
            }
            all
        };
        let answers = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask));
        let case =
            || format!("GAPLESS_SEED={seed}, case {number}: {typed:?} {range:?} after {before:?}");
        for (told, len) in answers.unwrap_or_else(|_| panic!("{}", case())) {
            let Ok(told) = told else {
                assert!(len > CALL_BYTES_MAX, "{}", case());
                continue;
            };
            let bytes: u64 = told.iter().map(|copy| copy.rows * copy.width).sum();
            assert!(bytes <= len, "{}: {told:?}", case());
            copied += u32::from(bytes == len && len > 0);
        }
        before = Some(typed);
    }
    assert!(copied > 100, "GAPLESS_SEED={seed}: {copied} copied");
}
