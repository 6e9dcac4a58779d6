//! A type under test: its committed layout, and by the oracle where each byte of its stream lies.

use crate::memory::{index, wide};
use gapless_dtype::naive::Typemap;
use gapless_dtype::testkit::{Params, Rng, describe, random_datatype};
use gapless_dtype::{Convertor, Datatype, Layout, Pages, Run};
use gapless_engine::{EngineError, Typed};
use gapless_mem::Region;
use std::ops::Range;

/// `count` instances of a type, and where their bytes lie.
pub(crate) struct Sample {
    pub(crate) datatype: Datatype,
    pub(crate) layout: Layout,
    pub(crate) count: u64,
    /// In the stream's order.
    runs: Vec<Run>,
    low: i64,
    high: i64,
    disjoint: bool,
    indices: Option<Indices>,
}

/// Where the instances lie, if that is data.
pub(crate) enum Indices {
    /// In memory of the host.
    Host(Pages),
    /// In memory of the device: bytes from an index to the next, the indices, and whether they have 64 bits.
    Device(u64, Region, bool),
}

impl Sample {
    /// By the oracle, which bounds how large a type may be.
    pub(crate) fn of(datatype: &Datatype, count: u64) -> Result<Sample, String> {
        let typemap = Typemap::of(datatype).map_err(|error| error.to_string())?;
        let runs = typemap.runs(count).map_err(|error| error.to_string())?;
        Sample::with(datatype, count, runs)
    }

    /// By the convertor, which is held against the oracle elsewhere: for types too large for that.
    pub(crate) fn large(datatype: &Datatype, count: u64) -> Result<Sample, String> {
        let layout = datatype.commit().map_err(|error| error.to_string())?;
        let mut convertor = Convertor::new(&layout, count).map_err(|error| error.to_string())?;
        let mut runs: Vec<Run> = Vec::new();
        let mut some = [Run { displacement: 0, len: 0 }; 256];
        loop {
            let (found, _) = convertor.iov(&mut some, u64::MAX);
            if found == 0 {
                break;
            }
            runs.extend_from_slice(&some[..found]);
        }
        Sample::with(datatype, count, runs)
    }

    fn with(datatype: &Datatype, count: u64, runs: Vec<Run>) -> Result<Sample, String> {
        let layout = datatype.commit().map_err(|error| error.to_string())?;
        let low = runs.iter().map(|run| run.displacement).min().unwrap_or(0);
        let high = runs.iter().map(Run::end).max().unwrap_or(0);
        let mut sorted = runs.clone();
        sorted.sort_unstable_by_key(|run| run.displacement);
        let disjoint = sorted.windows(2).all(|pair| pair[0].end() <= pair[1].displacement);
        let datatype = datatype.clone();
        Ok(Sample { datatype, layout, count, runs, low, high, disjoint, indices: None })
    }

    /// Pages: `one` at so many strides as each place says, which the indices are to say as well.
    pub(crate) fn paged(one: &Sample, stride: u64, places: &[u64], indices: Indices) -> Sample {
        let at = |place: &u64| (place * stride).cast_signed();
        let shifted = |place| {
            let of = move |run: &Run| Run { displacement: run.displacement + at(place), ..*run };
            one.runs.iter().map(of)
        };
        let runs = places.iter().flat_map(shifted).collect();
        let sample = Sample::with(&one.datatype, wide(places.len()), runs).unwrap();
        Sample { indices: Some(indices), ..sample }
    }

    /// The instances in a region.
    pub(crate) fn typed(&self, region: Region, origin: u64) -> Result<Typed, EngineError> {
        match &self.indices {
            None => Typed::new(region, origin, &self.layout, self.count),
            Some(Indices::Host(pages)) => Typed::pages(region, origin, pages),
            Some(Indices::Device(stride, indices, wide)) => {
                Typed::device_pages(region, origin, &self.layout, *stride, (*indices, *wide))
            }
        }
    }

    /// A random type that `params` describe, and up to four instances of it.
    pub(crate) fn random(rng: &mut Rng, params: &Params) -> Sample {
        let datatype = random_datatype(rng, params);
        let count = if rng.chance(3) { 0 } else { 1 + rng.below(4) };
        Sample::of(&datatype, count).expect("random types suit the oracle")
    }

    /// Bytes of the stream.
    pub(crate) fn size(&self) -> u64 {
        self.layout.size() * self.count
    }

    /// The lowest displacement touched, or 0 if that is lower.
    pub(crate) fn low(&self) -> i64 {
        self.low.min(0)
    }

    /// Bytes from there to past the highest one touched.
    pub(crate) fn span(&self) -> u64 {
        (self.high.max(0) - self.low()).cast_unsigned()
    }

    /// Whether it may be unpacked: no byte occurs twice.
    pub(crate) fn is_disjoint(&self) -> bool {
        self.disjoint
    }

    /// The calls that make it.
    pub(crate) fn describe(&self) -> String {
        let short: String = describe(&self.datatype).chars().take(2_000).collect();
        format!("{} × {short}", self.count)
    }

    /// Calls `each` with the place in the stream, the displacement and the length of every run inside
    /// `range`.
    pub(crate) fn within(&self, range: &Range<u64>, mut each: impl FnMut(u64, i64, u64)) {
        let mut at = 0;
        for run in &self.runs {
            let (from, to) = (range.start.max(at), range.end.min(at + run.len));
            if from < to {
                each(from, run.displacement + (from - at).cast_signed(), to - from);
            }
            at += run.len;
        }
    }

    /// Bytes `range` of the stream, out of a memory whose index `origin` is displacement 0.
    pub(crate) fn gather(&self, range: &Range<u64>, memory: &[u8], origin: u64) -> Vec<u8> {
        let mut stream = Vec::with_capacity(index(range.end - range.start));
        self.within(range, |_, displacement, len| {
            let at = index(origin.checked_add_signed(displacement).expect("inside the memory"));
            stream.extend_from_slice(&memory[at..at + index(len)]);
        });
        assert_eq!(wide(stream.len()), range.end - range.start, "the oracle knows every byte");
        stream
    }

    /// Puts bytes `range` of the stream to their places in such a memory.
    pub(crate) fn scatter(
        &self,
        range: &Range<u64>,
        stream: &[u8],
        memory: &mut [u8],
        origin: u64,
    ) {
        self.within(range, |from, displacement, len| {
            let at = index(origin.checked_add_signed(displacement).expect("inside the memory"));
            let from = index(from - range.start);
            memory[at..at + index(len)].copy_from_slice(&stream[from..from + index(len)]);
        });
    }
}

impl Sample {
    /// Compares places of a memory, read one by one, with what it holds once `stream` was unpacked into
    /// zeros: for memories too large to be held at once.
    pub(crate) fn compare(
        &self,
        stream: &[u8],
        origin: u64,
        places: &[Range<u64>],
        read: impl Fn(u64, u64) -> Vec<u8>,
    ) -> Result<(), String> {
        let mut pieces = Vec::new();
        self.within(&(0..self.size()), |from, displacement, len| {
            pieces.push((origin.checked_add_signed(displacement).expect("inside"), from, len));
        });
        for place in places {
            let mut want = vec![0; index(place.end - place.start)];
            for &(at, from, len) in &pieces {
                let (low, high) = (at.max(place.start), (at + len).min(place.end));
                if low < high {
                    let there = &mut want[index(low - place.start)..index(high - place.start)];
                    there.copy_from_slice(&stream[index(from + low - at)..][..there.len()]);
                }
            }
            let got = read(place.start, place.end - place.start);
            crate::bench::same(&format!("{place:?} of the memory"), &got, &want, 0)?;
        }
        Ok(())
    }
}

/// A range of a stream: all of it, none, one byte, inside an element, one end, or anything.
pub(crate) fn range(rng: &mut Rng, size: u64) -> Range<u64> {
    if size == 0 {
        return 0..0;
    }
    let at = rng.below(size);
    match rng.below(10) {
        0..=2 => 0..size,
        3 => at..at,
        4 => at..at + 1,
        5 => at..size.min(at + 1 + rng.below(16)),
        6 => 0..at + 1,
        7 => at..size,
        _ => {
            let other = rng.below(size);
            at.min(other)..at.max(other) + 1
        }
    }
}
