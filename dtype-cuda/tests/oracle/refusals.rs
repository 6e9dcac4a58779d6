//! What does not fit is refused by a typed error, and nothing is touched.

use crate::bench::{Bench, noise, same};
use crate::memory::{Buffer, waited, wide};
use crate::seed::{fail, rng};
use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_engine::{EngineError, Typed};
use gapless_mem::{Completion, Device, DeviceError, Pending, Region, Space, fake::FakeDevice};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Work that has failed.
struct Failed;

// SAFETY: it never began, so it touches nothing; it has failed for good.
unsafe impl Pending for Failed {
    fn poll(&self) -> Result<bool, DeviceError> {
        Err(DeviceError::Unsupported { what: "this work" })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A listed, a planned and a strided layout of 96 bytes in 192.
fn layouts() -> [Layout; 3] {
    let int = Datatype::from(Primitive::Int);
    let places: Vec<i64> = (0..24).map(|at| (at * 7 % 24) * 2).collect();
    let lengths: Vec<u64> = (0..24).map(|at| if at % 8 == 3 { 2 } else { 1 }).collect();
    let planned = Datatype::indexed(&lengths[..21], &places[..21], &int).unwrap();
    assert!(planned.size() == 96 && planned.true_ub() <= 192, "{planned:?}");
    [
        Datatype::vector(24, 1, 2, &int).unwrap(),
        Datatype::indexed_block(1, &places, &int).unwrap(),
        planned,
    ]
    .map(|datatype| datatype.commit().unwrap())
}

/// Whether an error is what a test wants.
type Wanted = fn(&EngineError) -> bool;

/// One thing that is wrong: the range, and lengths of packed regions for it.
fn misfits() -> Vec<(Range<u64>, u64, Wanted)> {
    let length: Wanted = |error| matches!(error, EngineError::LengthMismatch { .. });
    let outside: Wanted =
        |error| matches!(error, EngineError::RangeOutside { packed_bytes: 96, .. });
    let either: Wanted = |error| {
        matches!(error, EngineError::LengthMismatch { .. } | EngineError::RangeOutside { .. })
    };
    #[expect(clippy::reversed_empty_ranges, reason = "a range the wrong way round is refused")]
    let backwards = 40..8;
    vec![
        (0..96, 95, length),
        (0..96, 97, length),
        (8..8, 1, length),
        (5..6, 0, length),
        (90..97, 7, outside),
        (97..98, 1, outside),
        (97..97, 0, outside),
        (u64::MAX - 7..u64::MAX, 7, outside),
        (0..u64::MAX, 96, either),
        (backwards.clone(), 0, either),
        (backwards, 32, either),
    ]
}

/// Lengths and ranges that do not fit.
pub(crate) fn misfits_are_refused(bench: &Bench) {
    const TEST: &str = "misfits";
    let mut rng = rng(TEST);
    for layout in layouts() {
        let memory = noise(&mut rng, 256);
        let (typed, wire, other) = (
            Buffer::holding(&*bench.typed, &memory),
            Buffer::holding(&*bench.packed, &memory),
            Buffer::holding(&*bench.other, &memory),
        );
        let side = Typed::new(typed.region(), 32, &layout, 1).unwrap();
        let target = Typed::new(other.region(), 16, &layout, 1).unwrap();
        let longer = Typed::contiguous(other.region());
        for (range, len, wanted) in misfits() {
            let region = wire.part(24, len);
            let say = format!("{range:?} and {len} bytes");
            // SAFETY: refused; what these describe lives all the same.
            let packed = unsafe { bench.engine.pack(&side, range.clone(), region, &[]) };
            // SAFETY: as above.
            let unpacked = unsafe { bench.engine.unpack(region, &side, range.clone(), &[]) };
            for outcome in [packed, unpacked] {
                let error = outcome.err().unwrap_or_else(|| fail(TEST, &format!("{say}: taken")));
                assert!(wanted(&error), "{say}: {error}");
            }
            if range.end <= 96 && range.start <= range.end {
                continue;
            }
            // SAFETY: as above.
            let there = unsafe { bench.engine.transfer(&side, &longer, range.clone(), &[]) };
            // SAFETY: as above.
            let back = unsafe { bench.engine.transfer(&longer, &target, range.clone(), &[]) };
            for outcome in [there, back] {
                let error = outcome.err().unwrap_or_else(|| fail(TEST, &format!("{say}: moved")));
                assert!(matches!(error, EngineError::RangeOutside { .. }), "{say}: {error}");
            }
        }
        for buffer in [&typed, &wire, &other] {
            same("memory", &buffer.bytes(), &memory, 0).unwrap_or_else(|what| fail(TEST, &what));
        }
    }
}

/// Memory that the engine does not work on, on every side.
pub(crate) fn foreign_memory_is_refused(bench: &Bench) {
    const TEST: &str = "foreign memory";
    let mut rng = rng(TEST);
    let fake = FakeDevice::new(3);
    let foreign = fake.allocate(256).unwrap();
    assert!(!bench.engine.serves(foreign.space()));
    for layout in layouts() {
        let memory = noise(&mut rng, 256);
        let typed = Buffer::holding(&*bench.typed, &memory);
        let wire = Buffer::holding(&*bench.packed, &memory);
        assert!(bench.engine.serves(typed.region().space()));
        let (near, far) = (
            Typed::new(typed.region(), 32, &layout, 1).unwrap(),
            Typed::new(foreign, 32, &layout, 1).unwrap(),
        );
        let (here, there) = (wire.part(24, 96), foreign.sub(24, 96).unwrap());
        let engine = &bench.engine;
        // SAFETY: refused; what these describe lives all the same.
        let outcomes = [
            unsafe { engine.pack(&near, 0..96, there, &[]) },
            // SAFETY: as above.
            unsafe { engine.pack(&far, 0..96, here, &[]) },
            // SAFETY: as above.
            unsafe { engine.unpack(there, &near, 0..96, &[]) },
            // SAFETY: as above.
            unsafe { engine.unpack(here, &far, 0..96, &[]) },
            // SAFETY: as above.
            unsafe { engine.transfer(&far, &near, 0..96, &[]) },
            // SAFETY: as above.
            unsafe { engine.transfer(&near, &far, 0..96, &[]) },
        ];
        for outcome in outcomes {
            let error = outcome.err().unwrap_or_else(|| fail(TEST, "taken"));
            let space = foreign.space();
            let wanted = matches!(error, EngineError::WrongSpace { space: s, .. } if s == space)
                || matches!(&error, EngineError::Device(DeviceError::WrongSpace { space: s, .. }) if *s == space);
            assert!(wanted, "{error}");
        }
        same("typed", &typed.bytes(), &memory, 0).unwrap_or_else(|what| fail(TEST, &what));
        same("packed", &wire.bytes(), &memory, 0).unwrap_or_else(|what| fail(TEST, &what));
    }
    // SAFETY: nothing uses it.
    unsafe { fake.free(foreign) }.unwrap();
}

/// Work that comes after failed work fails, at once or in its completion, and touches nothing.
pub(crate) fn failures_are_passed_on(bench: &Bench) {
    const TEST: &str = "failed work";
    let mut rng = rng(TEST);
    for layout in layouts() {
        let memory = noise(&mut rng, 256);
        let typed = Buffer::holding(&*bench.typed, &memory);
        let other = Buffer::holding(&*bench.other, &memory);
        let wire = Buffer::holding(&*bench.packed, &memory);
        let side = Typed::new(typed.region(), 32, &layout, 1).unwrap();
        let target = Typed::new(other.region(), 16, &layout, 1).unwrap();
        let failed = [Completion::Ready, Completion::Pending(Arc::new(Failed))];
        let (engine, here) = (&bench.engine, wire.part(24, 96));
        let outcomes = [
            // SAFETY: the memory lives until all of this has ended, which it has when it failed.
            unsafe { engine.pack(&side, 0..96, here, &failed) },
            // SAFETY: as above.
            unsafe { engine.unpack(here, &side, 0..96, &failed) },
            // SAFETY: as above.
            unsafe { engine.transfer(&side, &target, 0..96, &failed) },
        ];
        for done in outcomes.iter().flatten() {
            assert!(waited(done).is_err(), "nothing tells that it failed");
        }
        for buffer in [&typed, &wire, &other] {
            same("memory", &buffer.bytes(), &memory, 0).unwrap_or_else(|what| fail(TEST, &what));
        }
    }
}

/// Layouts that leave their memory never become typed buffers.
pub(crate) fn layouts_stay_in_their_memory(bench: &Bench) {
    let memory = Buffer::new(&*bench.typed, 256);
    for layout in layouts() {
        let bytes = wide(192);
        for (origin, count) in [(69, 1), (256, 1), (0, 3), (u64::MAX, 1), (0, u64::MAX)] {
            let error = Typed::new(memory.region(), origin, &layout, count).unwrap_err();
            let named =
                matches!(error, EngineError::OutsideBuffer { .. } | EngineError::Convertor(_));
            assert!(named, "{origin}, {count}: {error}");
        }
        assert!(layout.true_ub().cast_unsigned() <= bytes);
        assert!(Typed::new(memory.region(), 64, &layout, 1).is_ok());
        let short = Region::new(memory.region().space(), memory.region().address(), 0, 100);
        assert!(Typed::new(short, 0, &layout, 1).is_err());
    }
    assert!(!bench.engine.serves(Space::Device { kind: "fake", device: 9 }));
}
