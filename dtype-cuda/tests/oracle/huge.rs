//! Layouts and streams beyond 4 GiB: where 32 bits, signed or not, of bytes or of words, would end.
//!
//! Some sparse layouts are looked at whole, gaps included; the others where a displacement would lead
//! that had lost its upper bits or its sign; dense ones in windows, at every place where some counter
//! could wrap and at random ones between.

use crate::bench::{Bench, Verdict, noise};
use crate::memory::{Buffer, index, waited, wide};
use crate::sample::Sample;
use crate::seed::{cases, fail, rng};
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Convertor, Datatype, Layout, Primitive, Run};
use gapless_engine::Typed;
use std::ops::Range;

const GIB: i64 = 1 << 30;
/// Bytes looked at at once.
const CHUNK: u64 = 64 << 20;

/// Fills all of a buffer with zeros.
fn clear(buffer: &Buffer<'_>) {
    buffer.repeat(&vec![0; 16 << 20]);
}

fn bytes(count: u64) -> Datatype {
    Datatype::contiguous(count, &Primitive::Byte.into()).unwrap()
}

/// Few blocks far apart: what a test calls each, the type, and how many.
fn sparse(rng: &mut Rng) -> Vec<(&'static str, Datatype, u64)> {
    let stride = (7 << 20) + 4;
    let mut places: Vec<i64> = (-40..40).map(|at| at * ((130 << 20) + 16)).collect();
    rng.shuffle(&mut places);
    let near: Vec<i64> = places.iter().map(|place| place / 40 / 16 * 16).collect();
    let lens: Vec<u64> = (0..80).map(|at| 16 + 16 * (at % 5)).collect();
    let odd: Vec<i64> = places.iter().map(|place| place + 1).collect();
    let triangle: Vec<i64> = (0..80).map(|at| at * (60 << 20)).collect();
    let wide = Datatype::resized(
        0,
        2 * GIB + 4_096,
        &Datatype::hindexed(&lens, &near, &bytes(1)).unwrap(),
    );
    let back = Datatype::resized(
        0,
        -(2 * GIB) - 48,
        &Datatype::hindexed(&lens, &near, &bytes(1)).unwrap(),
    );
    let planes =
        Datatype::hvector(3, 1, -2 * GIB, &Datatype::hvector(5, 8, 96 << 20, &bytes(8)).unwrap());
    vec![
        ("a vector", Datatype::hvector(700, 4_096, stride, &bytes(1)).unwrap(), 1),
        ("a vector of columns", Datatype::hvector(700, 1, stride, &bytes(4)).unwrap(), 1),
        ("a vector backwards", Datatype::hvector(700, 100, -stride, &bytes(1)).unwrap(), 1),
        ("planes backwards", planes.unwrap(), 1),
        (
            "a far triangle",
            Datatype::hindexed(&(1..81).map(|n| n * 8).collect::<Vec<_>>(), &triangle, &bytes(1))
                .unwrap(),
            1,
        ),
        ("listed, both signs", Datatype::hindexed_block(64, &places, &bytes(1)).unwrap(), 1),
        ("listed, odd places", Datatype::hindexed_block(33, &odd, &bytes(1)).unwrap(), 1),
        ("planned, both signs", Datatype::hindexed(&lens, &places, &bytes(1)).unwrap(), 1),
        ("planned, odd places", Datatype::hindexed(&lens, &odd, &bytes(1)).unwrap(), 1),
        ("far instances of a plan", wide.unwrap(), 3),
        ("far instances backwards", back.unwrap(), 3),
    ]
}

/// The most memory that [`beyond_four_gib_of_memory`] takes at once.
pub(crate) const SPARSE_BYTES: u64 = 11 << 30;
/// The most memory that [`beyond_four_gib_of_stream`] takes at once.
pub(crate) const DENSE_BYTES: u64 = 14 << 30;

/// Types that reach more than 4 GiB, forwards, backwards and both.
pub(crate) fn beyond_four_gib_of_memory(bench: &Bench) {
    const TEST: &str = "more than 4 GiB of memory";
    let mut rng = rng(TEST);
    for (number, (name, datatype, count)) in sparse(&mut rng).into_iter().enumerate() {
        let sample = Sample::of(&datatype, count).unwrap();
        assert!(sample.span() > 4 << 30 && sample.span() + (16 << 20) < SPARSE_BYTES, "{name}");
        assert!(sample.is_disjoint(), "{name}");
        there_and_back(bench, &sample, number % 3 == 1, &mut rng)
            .unwrap_or_else(|what| fail(TEST, &format!("{name}: {what}")));
    }
}

/// Where to look: everywhere, or around every run and what is 2 or 4 GiB from it.
fn places(sample: &Sample, origin: u64, len: u64, everywhere: bool) -> Vec<Range<u64>> {
    if everywhere {
        return (0..len).step_by(index(CHUNK)).map(|at| at..len.min(at + CHUNK)).collect();
    }
    let mut places = Vec::new();
    sample.within(&(0..sample.size()), |_, displacement, bytes| {
        let run = origin.checked_add_signed(displacement).expect("inside the memory");
        for away in [0, 2 * GIB, -2 * GIB, 4 * GIB, -4 * GIB] {
            let Some(at) = run.checked_add_signed(away).filter(|&at| at < len) else { continue };
            places.push(at.saturating_sub(256)..len.min(at + bytes + 256));
        }
    });
    places
}

/// Unpacks noise into cleared memory, looks at it, and packs it again, in parts as well.
fn there_and_back(bench: &Bench, sample: &Sample, everywhere: bool, rng: &mut Rng) -> Verdict {
    let size = sample.size();
    let stream = noise(rng, size);
    let memory = Buffer::new(&*bench.typed, sample.span() + 256);
    clear(&memory);
    let origin = sample.low().unsigned_abs().next_multiple_of(16) + 16;
    let typed = Typed::new(memory.region(), origin, &sample.layout, sample.count);
    let typed = typed.map_err(|error| error.to_string())?;
    let wire = Buffer::holding(&*bench.packed, &stream);
    let middle = size / 2 + 3;
    for part in [0..middle, middle..size] {
        let from = wire.part(part.start, part.end - part.start);
        // SAFETY: both buffers live until the wait and do not overlap.
        let done = unsafe { bench.engine.unpack(from, &typed, part, &[]) };
        waited(&done.map_err(|error| error.to_string())?)?;
    }
    let places = places(sample, origin, memory.region().len(), everywhere);
    sample.compare(&stream, origin, &places, |at, len| memory.read(at, len))?;
    let at = rng.below(size);
    for part in [0..size, at..size, at / 2..at] {
        let len = part.end - part.start;
        let out = Buffer::holding(&*bench.packed, &vec![0; index(len)]);
        let want = &stream[index(part.start)..index(part.end)];
        // SAFETY: as above.
        let done = unsafe { bench.engine.pack(&typed, part.clone(), out.region(), &[]) };
        waited(&done.map_err(|error| error.to_string())?)?;
        crate::bench::same(&format!("bytes {part:?} of the stream"), &out.bytes(), want, 0)?;
    }
    Ok(())
}

/// What memory holds that repeats a noise whose length no power of two divides.
struct Repeating(Vec<u8>);

impl Repeating {
    fn new(rng: &mut Rng) -> Repeating {
        Repeating(noise(rng, (48 << 20) + 48_611))
    }

    fn read(&self, at: u64, into: &mut Vec<u8>, len: u64) {
        let (mut at, mut left) = (index(at % wide(self.0.len())), index(len));
        while left > 0 {
            let piece = left.min(self.0.len() - at);
            into.extend_from_slice(&self.0[at..at + piece]);
            (at, left) = (0, left - piece);
        }
    }
}

/// Types whose bytes ascend, whose streams are longer than 4 GiB.
fn dense() -> Vec<(&'static str, Datatype, u64)> {
    let listed: Vec<i64> = (0..1_000).map(|at| at * 24 + at % 2 * 4).collect();
    let lens: Vec<u64> = (0..1_000).map(|at| 1 + at % 3).collect();
    let planned: Vec<i64> = (0..1_000).map(|at| at * 4).collect();
    let (float, count) = (Datatype::from(Primitive::Float), 300_000);
    let list = Datatype::hindexed_block(4, &listed, &float).unwrap();
    let plan = Datatype::indexed(&lens, &planned, &float).unwrap();
    let list = Datatype::resized(0, 24_032, &list).unwrap();
    let plan = Datatype::resized(0, 16_004, &plan).unwrap();
    vec![
        ("a contiguous span", bytes(4_600_000_000), 1),
        (
            "an odd contiguous span",
            Datatype::hindexed_block(1, &[5], &bytes(4_600_000_001)).unwrap(),
            1,
        ),
        ("a vector of floats", Datatype::vector(390_000_000, 3, 4, &float).unwrap(), 1),
        ("a vector of bytes", Datatype::vector(1_500_000_000, 3, 4, &bytes(1)).unwrap(), 1),
        ("long rows", Datatype::vector(9_000, 500_008, 500_024, &bytes(1)).unwrap(), 1),
        ("instances of a list", list, count),
        ("instances of a plan", plan, 600_000),
    ]
}

/// Streams of more than 4 GiB, and ranges that begin beyond.
pub(crate) fn beyond_four_gib_of_stream(bench: &Bench) {
    const TEST: &str = "more than 4 GiB of stream";
    let mut rng = rng(TEST);
    let pattern = Repeating::new(&mut rng);
    for (name, datatype, count) in dense() {
        let layout = datatype.commit().unwrap();
        let size = layout.size() * count;
        assert!(size > 4 << 30, "{name}");
        dense_both_ways(bench, &layout, count, &pattern, &mut rng)
            .unwrap_or_else(|what| fail(TEST, &format!("{name}: {what}")));
    }
}

/// Windows of a stream: its ends, around every multiple of 2 GiB, and some between.
fn windows(range: &Range<u64>, rng: &mut Rng) -> Vec<Range<u64>> {
    let around = (range.start..=range.end).step_by(1 << 31).map(|at| at >> 31 << 31);
    let mut middles: Vec<u64> = around.chain([range.start, range.end]).collect();
    for _ in 0..cases(12) {
        middles.push(range.start + rng.below(range.end - range.start));
    }
    let clamp = |at: u64| at.clamp(range.start, range.end);
    middles
        .into_iter()
        .map(|at| clamp(at.saturating_sub(1 << 20))..clamp(at + (1 << 20)))
        .filter(|window| !window.is_empty())
        .collect()
}

/// The runs of a window of the stream.
fn runs(layout: &Layout, count: u64, window: &Range<u64>) -> Vec<Run> {
    let mut convertor = Convertor::new(layout, count).unwrap();
    convertor.seek(window.start).unwrap();
    let (mut all, mut left) = (Vec::new(), window.end - window.start);
    let mut some = [Run::default(); 256];
    while left > 0 {
        let (found, moved) = convertor.iov(&mut some, left);
        assert!(found > 0, "the stream is as long as the window says");
        all.extend_from_slice(&some[..found]);
        left -= moved;
    }
    all
}

fn dense_both_ways(
    bench: &Bench,
    layout: &Layout,
    count: u64,
    pattern: &Repeating,
    rng: &mut Rng,
) -> Verdict {
    let size = layout.size() * count;
    let span = (layout.extent().unsigned_abs() * (count - 1)) + layout.true_ub().unsigned_abs();
    let text = |error: gapless_engine::EngineError| error.to_string();
    let memory = Buffer::new(&*bench.typed, span + 64);
    let wire = Buffer::new(&*bench.packed, size);
    assert!(span + size < DENSE_BYTES);
    let typed = Typed::new(memory.region(), 0, layout, count).map_err(text)?;
    let late = (4 << 30) + 12_345;
    memory.repeat(&pattern.0);
    for part in [late..size, 0..size] {
        clear(&wire);
        let at = wire.part(part.start, part.end - part.start);
        // SAFETY: both buffers live until the wait and do not overlap.
        let done = unsafe { bench.engine.pack(&typed, part.clone(), at, &[]) };
        waited(&done.map_err(text)?)?;
        for window in windows(&part, rng) {
            let mut want = Vec::new();
            for run in runs(layout, count, &window) {
                pattern.read(run.displacement.unsigned_abs(), &mut want, run.len);
            }
            let got = wire.read(window.start, window.end - window.start);
            crate::bench::same(&format!("{window:?} of the stream {part:?}"), &got, &want, 0)?;
        }
    }
    wire.repeat(&pattern.0);
    for part in [late..size, 0..size] {
        clear(&memory);
        let at = wire.part(part.start, part.end - part.start);
        // SAFETY: as above.
        let done = unsafe { bench.engine.unpack(at, &typed, part.clone(), &[]) };
        waited(&done.map_err(text)?)?;
        for window in windows(&part, rng) {
            let runs = runs(layout, count, &window);
            let (first, last) = (runs[0], runs[runs.len() - 1]);
            let (low, high) = (first.displacement.unsigned_abs(), last.end().unsigned_abs());
            let mut want = vec![0; index(high - low)];
            let mut from = window.start;
            for run in runs {
                let mut piece = Vec::new();
                pattern.read(from, &mut piece, run.len);
                let there = index(run.displacement.unsigned_abs() - low);
                want[there..there + piece.len()].copy_from_slice(&piece);
                from += run.len;
            }
            let got = memory.read(low, high - low);
            crate::bench::same(&format!("{window:?} of {part:?} unpacked"), &got, &want, 0)?;
        }
    }
    Ok(())
}
