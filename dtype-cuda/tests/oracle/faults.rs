//! The workbench notices what it is there for: an engine that is right but for one fault is found out
//! by every check that looks for such a fault.

use crate::bench::{Bench, Verdict};
use crate::memory::Own;
use crate::sample::Sample;
use crate::seed::rng;
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::testkit::{Work, Wrapper};
use gapless_engine::{Engine, EngineError, HostEngine, Typed};
use gapless_mem::{Completion, HostDevice, Region, Space};
use std::ops::Range;
use std::sync::Arc;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing.
    None,
    /// The range's last byte is not moved.
    LastByte,
    /// Every move begins one byte late in the stream, as far as the stream goes.
    Shifted,
    /// Words are written whole: the byte before what is written changes.
    ByteBefore,
    /// The byte after it does.
    ByteAfter,
    /// A gap of the layout is filled.
    Gap,
    /// What should only be read is written.
    Source,
    /// Nothing is moved.
    Idle,
}

/// The host's engine with a fault.
struct Faulty(Fault);

/// Changes the byte at `at` bytes from a region's start.
fn spoil(region: Region, at: i64) {
    let byte = region.as_ptr().unwrap().wrapping_offset(isize::try_from(at).unwrap());
    // SAFETY: the workbench has margins around every region, which live through the call.
    let old = unsafe { byte.read() };
    // SAFETY: as above.
    unsafe { byte.write(!old) };
}

impl Faulty {
    /// The range as this engine moves it, and how many bytes less there are at its end.
    fn range(&self, range: &Range<u64>, size: u64) -> (Range<u64>, u64) {
        match self.0 {
            Fault::LastByte if !range.is_empty() => (range.start..range.end - 1, 1),
            Fault::Shifted if range.end < size => (range.start + 1..range.end + 1, 0),
            Fault::Shifted if !range.is_empty() => (range.start + 1..range.end, 1),
            _ => (range.clone(), 0),
        }
    }

    fn after(&self, written: Region, first: i64, last: i64, gap: Option<i64>, read: Region) {
        match self.0 {
            Fault::ByteBefore => spoil(written, first - 1),
            Fault::ByteAfter => spoil(written, last),
            Fault::Gap => gap.into_iter().for_each(|gap| spoil(written, gap)),
            Fault::Source => spoil(read, 0),
            _ => {}
        }
    }
}

/// Where a typed side's data begins and ends, and a gap in it: bytes from its region's start.
fn places(typed: &Typed) -> (i64, i64, Option<i64>) {
    let origin = typed.origin().cast_signed();
    let (low, high) = (typed.layout().true_lb(), typed.layout().true_ub());
    (origin + low, origin + high, Some(origin + low + 4))
}

// SAFETY: it breaks the first rule on purpose, within the margins that the workbench has around every region; for
// the rest it hands on to the host's engine, at once.
unsafe impl Wrapper for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn serves(&self, space: Space) -> bool {
        HostEngine.serves(space)
    }

    unsafe fn work(&self, work: Work, after: &[Completion]) -> Result<Completion, EngineError> {
        let size = match &work {
            Work::Pack(typed, ..) | Work::Unpack(_, typed, _) | Work::Transfer(_, typed, _) => {
                typed.packed_bytes()
            }
        };
        let range = match &work {
            Work::Pack(_, range, _) | Work::Unpack(_, _, range) | Work::Transfer(_, _, range) => {
                range.clone()
            }
        };
        let (part, less) = self.range(&range, size);
        let moves = self.0 != Fault::Idle;
        let (written, (first, last, gap), read) = match work {
            Work::Pack(src, _, dst) => {
                let to = dst.sub(0, dst.len() - less)?;
                if moves {
                    // SAFETY: the caller's own promise, for less.
                    unsafe { HostEngine.pack(&src, part, to, after) }?;
                }
                (dst, (0, dst.len().cast_signed(), None), src.region())
            }
            Work::Unpack(src, dst, _) => {
                let from = src.sub(0, src.len() - less)?;
                if moves {
                    // SAFETY: the caller's own promise, for less.
                    unsafe { HostEngine.unpack(from, &dst, part, after) }?;
                }
                (dst.region(), places(&dst), src)
            }
            Work::Transfer(src, dst, _) => {
                if moves {
                    let mut stream = vec![0; crate::memory::index(part.end - part.start)];
                    let wire = Region::of_mut(&mut stream);
                    // SAFETY: the caller's own promise, and a buffer of this function.
                    unsafe { HostEngine.pack(&src, part.clone(), wire, after) }?;
                    let there = range.start..range.end - less;
                    // SAFETY: as above.
                    unsafe { HostEngine.unpack(wire, &dst, there, &[]) }?;
                }
                (dst.region(), places(&dst), src.region())
            }
        };
        self.after(written, first, last, gap, read);
        Ok(Completion::Ready)
    }
}

/// The verdicts on pack, unpack and transfer under a fault.
fn verdicts(fault: Fault, rng: &mut Rng) -> [Verdict; 3] {
    let bench = Bench::new(Arc::new(Faulty(fault)), Arc::new(Own(Arc::new(HostDevice::new()))));
    // Runs of four bytes, each with a gap of four behind it.
    let vector = Datatype::vector(20, 1, 2, &Primitive::Int.into()).unwrap();
    let sample = Sample::of(&vector, 1).unwrap();
    [
        bench.pack(&sample, &(0..80), (3, 5), rng),
        bench.unpack(&sample, &(0..80), (1, 7), rng),
        bench.transfer(&sample, &sample, &(0..80), (2, 9), rng),
    ]
}

#[test]
fn faults_are_found() {
    let mut rng = rng("faults");
    // Often enough that a fault which is missed once in 256 times is not missed here.
    for _ in 0..100 {
        assert_eq!(verdicts(Fault::None, &mut rng), [Ok(()), Ok(()), Ok(())]);
        for fault in [
            Fault::LastByte,
            Fault::Shifted,
            Fault::ByteBefore,
            Fault::ByteAfter,
            Fault::Source,
            Fault::Idle,
        ] {
            for verdict in verdicts(fault, &mut rng) {
                assert!(verdict.is_err(), "{fault:?} is not noticed");
            }
        }
        // A packed side has no gaps.
        let [packed, unpacked, moved] = verdicts(Fault::Gap, &mut rng);
        assert!(packed.is_ok() && unpacked.is_err() && moved.is_err());
    }
}
