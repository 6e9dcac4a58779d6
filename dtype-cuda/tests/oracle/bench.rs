//! The workbench: an engine, the memories it works on, and the moves that are compared byte by byte
//! with what the oracle says.
//!
//! Both sides of every move lie between margins in memory full of noise, at any alignment; all of it
//! is looked at afterwards, what is read from as well as what is written to.

use crate::directed::directed;
use crate::memory::{Buffer, Provider, index, waited, wide};
use crate::sample::Sample;
use gapless_dtype::testkit::{Params, Rng};
use gapless_engine::{Engine, Typed};
use gapless_kernels::{Direction, Family, Kernel, Width};
use gapless_mem::Region;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes before and after what a side may use.
const MARGIN: u64 = 64;

/// What a check says: nothing, or what is wrong.
pub(crate) type Verdict = Result<(), String>;

/// Alignments of displacement 0 on the typed side, and of the stream on the other: what each is past
/// a multiple of 16.
pub(crate) type Alignments = (u64, u64);

/// Random alignments, none on either side in a third of the cases.
pub(crate) fn alignments(rng: &mut Rng) -> Alignments {
    match rng.below(6) {
        0 | 1 => (0, 0),
        // Multiples of wider words on both.
        2 => (4 * rng.below(4), 4 * rng.below(4)),
        3 => (8 * rng.below(2), 8 * rng.below(2)),
        _ => (rng.below(16), rng.below(16)),
    }
}

/// Which kernels an engine launches for a move; engines without kernels have none.
pub(crate) trait Probe: Send + Sync {
    /// For a pack or an unpack.
    fn launches(
        &self,
        direction: Direction,
        typed: &Typed,
        range: Range<u64>,
        packed: Region,
    ) -> Vec<Kernel>;

    /// For a move from layout to layout.
    fn transfer_launches(&self, from: &Typed, to: &Typed, range: Range<u64>) -> Vec<Kernel>;
}

/// Kernels by how often they ran.
#[derive(Default)]
pub(crate) struct KernelCounts(Mutex<BTreeMap<String, u64>>);

impl KernelCounts {
    pub(crate) fn add(&self, kernels: &[Kernel]) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for kernel in kernels {
            *counts.entry(kernel.to_string()).or_default() += 1;
        }
    }

    pub(crate) fn of(&self, kernel: &str) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(kernel).copied().unwrap_or(0)
    }

    /// How often kernels ran whose names satisfy `which`.
    pub(crate) fn sum(&self, which: impl Fn(&str) -> bool) -> u64 {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().filter(|(name, _)| which(name)).map(|(_, count)| count).sum()
    }
}

/// An engine with memory for its three roles.
#[derive(Clone)]
pub(crate) struct Bench {
    pub(crate) engine: Arc<dyn Engine>,
    /// Where typed sides lie.
    pub(crate) typed: Arc<dyn Provider>,
    /// Where the second typed side of a transfer lies.
    pub(crate) other: Arc<dyn Provider>,
    /// Where packed sides lie.
    pub(crate) packed: Arc<dyn Provider>,
    pub(crate) probe: Option<Arc<dyn Probe>>,
    pub(crate) counts: Arc<KernelCounts>,
}

/// A typed side: all of its memory, what it was filled with, and where displacement 0 is in it.
pub(crate) struct Side<'a> {
    pub(crate) buffer: Buffer<'a>,
    pub(crate) noise: Vec<u8>,
    pub(crate) origin: u64,
    pub(crate) typed: Typed,
}

/// A packed side: its memory, what it was filled with, and where the range's bytes are in it.
pub(crate) struct Packed<'a> {
    pub(crate) buffer: Buffer<'a>,
    pub(crate) noise: Vec<u8>,
    pub(crate) at: u64,
    pub(crate) region: Region,
}

/// What tells the bytes that a move reads from those it overwrites: a bit that all of the one have
/// and none of the other. A byte that is not moved, or moved to a wrong place, is then never right by
/// chance.
#[derive(Clone, Copy)]
struct Mark(u8);

impl Mark {
    fn new(rng: &mut Rng) -> Mark {
        Mark(1 << rng.below(8))
    }

    fn read(self, mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.iter_mut().for_each(|byte| *byte |= self.0);
        bytes
    }

    fn overwritten(self, mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.iter_mut().for_each(|byte| *byte &= !self.0);
        bytes
    }
}

/// `len` random bytes.
pub(crate) fn noise(rng: &mut Rng, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; index(len)];
    rng.fill(&mut bytes);
    bytes
}

/// Memory for a typed side, with its displacement 0 `align` bytes past a multiple of 16.
pub(crate) fn side<'a>(
    provider: &'a dyn Provider,
    sample: &Sample,
    align: u64,
    rng: &mut Rng,
) -> Result<Side<'a>, String> {
    side_with(provider, sample, align, rng, |noise| noise)
}

/// The same, holding what `marked` makes of the noise.
fn side_with<'a>(
    provider: &'a dyn Provider,
    sample: &Sample,
    align: u64,
    rng: &mut Rng,
    marked: impl FnOnce(Vec<u8>) -> Vec<u8>,
) -> Result<Side<'a>, String> {
    let before = sample.low().unsigned_abs();
    let origin = (MARGIN + before).next_multiple_of(16) + align;
    let start = origin - before;
    let noise = marked(noise(rng, start + sample.span() + MARGIN));
    let buffer = Buffer::holding(provider, &noise);
    // The region ends where the data does, or has room around it.
    let (region, inside) = if rng.chance(50) {
        (buffer.part(start, sample.span()), before)
    } else {
        (buffer.region(), origin)
    };
    let typed = sample.typed(region, inside);
    let typed = typed.map_err(|error| format!("Typed::new: {error}"))?;
    Ok(Side { buffer, noise, origin, typed })
}

/// Memory for bytes `range` of a stream that begins `align` bytes past a multiple of 16.
pub(crate) fn packed<'a>(
    provider: &'a dyn Provider,
    range: &Range<u64>,
    align: u64,
    rng: &mut Rng,
) -> Packed<'a> {
    packed_with(provider, range, align, rng, |noise| noise)
}

/// The same, holding what `marked` makes of the noise.
fn packed_with<'a>(
    provider: &'a dyn Provider,
    range: &Range<u64>,
    align: u64,
    rng: &mut Rng,
    marked: impl FnOnce(Vec<u8>) -> Vec<u8>,
) -> Packed<'a> {
    let at = MARGIN + (range.start + align) % 16;
    let len = range.end - range.start;
    let noise = marked(noise(rng, at + len + MARGIN));
    let buffer = Buffer::holding(provider, &noise);
    let region = buffer.part(at, len);
    Packed { buffer, noise, at, region }
}

/// Whether a memory holds what it should; says where it first does not.
pub(crate) fn same(what: &str, got: &[u8], want: &[u8], from: u64) -> Verdict {
    if got.len() != want.len() {
        return Err(format!("{what}: {} bytes instead of {}", got.len(), want.len()));
    }
    if got == want {
        return Ok(());
    }
    let wrong: Vec<usize> = (0..got.len()).filter(|&at| got[at] != want[at]).collect();
    let (first, last) = (wrong[0], wrong[wrong.len() - 1]);
    Err(format!(
        "{what}: {} of {} bytes differ, from {} to {} (counted from {from}); the first is {:#04x}, not {:#04x}",
        wrong.len(),
        got.len(),
        i128::from(wide(first)) - i128::from(from),
        i128::from(wide(last)) - i128::from(from),
        got[first],
        want[first],
    ))
}

impl Bench {
    /// One memory for everything.
    pub(crate) fn new(engine: Arc<dyn Engine>, memory: Arc<dyn Provider>) -> Bench {
        Bench {
            engine,
            typed: Arc::clone(&memory),
            other: Arc::clone(&memory),
            packed: memory,
            probe: None,
            counts: Arc::default(),
        }
    }

    fn say(&self, verb: &str, sample: &Sample, range: &Range<u64>, align: Alignments) -> String {
        format!(
            "{} {verb} bytes {range:?} of {}, alignments {align:?}, typed in {}, packed in {}",
            self.engine.name(),
            sample.describe(),
            self.typed.name(),
            self.packed.name(),
        )
    }

    /// Counts the kernels of a pack or an unpack.
    pub(crate) fn count(
        &self,
        direction: Direction,
        typed: &Typed,
        range: &Range<u64>,
        at: Region,
    ) {
        if let Some(probe) = &self.probe {
            self.counts.add(&probe.launches(direction, typed, range.clone(), at));
        }
    }

    /// Packs a range and compares every byte of both sides.
    pub(crate) fn pack(
        &self,
        sample: &Sample,
        range: &Range<u64>,
        align: Alignments,
        rng: &mut Rng,
    ) -> Verdict {
        let told = |what: String| format!("{}: {what}", self.say("packs", sample, range, align));
        let mark = Mark::new(rng);
        let read = |noise| mark.read(noise);
        let from = side_with(&*self.typed, sample, align.0, rng, read).map_err(told)?;
        let to = packed_with(&*self.packed, range, align.1, rng, |noise| mark.overwritten(noise));
        self.count(Direction::Pack, &from.typed, range, to.region);
        // SAFETY: both buffers live until the work has been waited for, and do not overlap.
        let done = unsafe { self.engine.pack(&from.typed, range.clone(), to.region, &[]) };
        done.map_err(|error| error.to_string()).and_then(|done| waited(&done)).map_err(told)?;
        let mut want = to.noise.clone();
        let stream = sample.gather(range, &from.noise, from.origin);
        want[index(to.at)..][..stream.len()].copy_from_slice(&stream);
        same("the packed side", &to.buffer.bytes(), &want, to.at).map_err(told)?;
        same("the typed side, only read", &from.buffer.bytes(), &from.noise, from.origin)
            .map_err(told)
    }

    /// Unpacks a range and compares every byte of both sides.
    pub(crate) fn unpack(
        &self,
        sample: &Sample,
        range: &Range<u64>,
        align: Alignments,
        rng: &mut Rng,
    ) -> Verdict {
        let told = |what: String| format!("{}: {what}", self.say("unpacks", sample, range, align));
        let mark = Mark::new(rng);
        let overwritten = |noise| mark.overwritten(noise);
        let to = side_with(&*self.typed, sample, align.0, rng, overwritten).map_err(told)?;
        let from = packed_with(&*self.packed, range, align.1, rng, |noise| mark.read(noise));
        self.count(Direction::Unpack, &to.typed, range, from.region);
        // SAFETY: both buffers live until the work has been waited for, and do not overlap.
        let done = unsafe { self.engine.unpack(from.region, &to.typed, range.clone(), &[]) };
        done.map_err(|error| error.to_string()).and_then(|done| waited(&done)).map_err(told)?;
        let mut want = to.noise.clone();
        let stream = &from.noise[index(from.at)..][..index(range.end - range.start)];
        sample.scatter(range, stream, &mut want, to.origin);
        same("the typed side", &to.buffer.bytes(), &want, to.origin).map_err(told)?;
        same("the packed side, only read", &from.buffer.bytes(), &from.noise, from.at).map_err(told)
    }

    /// Moves a range from layout to layout and compares every byte of both sides.
    pub(crate) fn transfer(
        &self,
        source: &Sample,
        target: &Sample,
        range: &Range<u64>,
        align: Alignments,
        rng: &mut Rng,
    ) -> Verdict {
        let told = |what: String| {
            let verb = format!("moves to {}, there in {},", target.describe(), self.other.name());
            format!("{}: {what}", self.say(&verb, source, range, align))
        };
        let mark = Mark::new(rng);
        let read = |noise| mark.read(noise);
        let overwritten = |noise| mark.overwritten(noise);
        let from = side_with(&*self.typed, source, align.0, rng, read).map_err(told)?;
        let to = side_with(&*self.other, target, align.1, rng, overwritten).map_err(told)?;
        if let Some(probe) = &self.probe {
            self.counts.add(&probe.transfer_launches(&from.typed, &to.typed, range.clone()));
        }
        // SAFETY: both buffers live until the work has been waited for, and do not overlap.
        let done = unsafe { self.engine.transfer(&from.typed, &to.typed, range.clone(), &[]) };
        done.map_err(|error| error.to_string()).and_then(|done| waited(&done)).map_err(told)?;
        let stream = source.gather(range, &from.noise, from.origin);
        let mut want = to.noise.clone();
        target.scatter(range, &stream, &mut want, to.origin);
        same("the target", &to.buffer.bytes(), &want, to.origin).map_err(told)?;
        same("the source", &from.buffer.bytes(), &from.noise, from.origin).map_err(told)
    }
}

/// A type of any family, or a random one.
pub(crate) fn any(rng: &mut Rng) -> Sample {
    let (family, width) = (*rng.pick(&Family::ALL), *rng.pick(&Width::ALL));
    match directed(family, width, rng) {
        Some((datatype, count)) if rng.chance(70) => Sample::of(&datatype, count).unwrap(),
        _ => Sample::random(rng, &Params::disjoint()),
    }
}
