//! Runs whose displacements and lengths advance by constants: a triangle is one.

use super::{
    Grid, GridDim, KernelAddress, Launch, Launches, Move, NONE_IDLE, Unfit, WORDS_MAX, Words, bits,
    flat_by, strided,
};
use crate::args::{Affine, AffineArgs, Args, Divide, ONCE};
use crate::{Direction, Family, Width};
use smallvec::smallvec;
use std::ops::Range;

/// Words that runs have on average at least, for threads to step from one to the next.
const STEPPING: u64 = 64;

/// Words that a thread has in flight at once where blocks loop, unpacking (`OF_RUNS` in `strips.cl-cu`): few
/// blocks are bound by how long memory takes to answer.
const LONG: u32 = 14;

/// Bytes of a range that gains from leaving the caches first, at most: what both ends of a strip touch is
/// there for the next one, in longer ranges. On an H200.
const ONCE_MAX: u64 = 8 << 20;

/// Instances of runs whose displacements and lengths advance by constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Runs of an instance.
    pub count: u64,
    /// Displacement of run 0.
    pub displacement: i64,
    /// Bytes from a run to the next.
    pub step: i64,
    /// Bytes of run 0.
    pub len: u64,
    /// Bytes that each run is longer than the one before; not 0.
    pub grow: i64,
    /// Instances.
    pub instances: u64,
    /// Bytes from an instance to the next.
    pub extent: i64,
}

impl Runs {
    /// Bytes of an instance's runs before run `j`.
    fn before(&self, j: u64) -> Option<u64> {
        let j = i128::from(j);
        let sum = j * i128::from(self.len) + i128::from(self.grow) * (j * (j - 1) / 2);
        u64::try_from(sum).ok().filter(|&sum| sum <= i64::MAX.cast_unsigned())
    }

    fn len_of(&self, j: u64) -> Option<u64> {
        let len = i128::from(self.len) + i128::from(j) * i128::from(self.grow);
        u64::try_from(len).ok()
    }

    /// Bytes of an instance, if the numbers make sense.
    pub(crate) fn size(&self) -> Option<u64> {
        if self.count < 2 || self.grow == 0 || self.count > 1 << 62 {
            return None;
        }
        self.len_of(self.count - 1)?;
        self.before(self.count).filter(|&size| size > 0)
    }

    /// Bits of everything that a word must divide.
    pub(crate) fn bits(&self) -> u64 {
        let extent = if self.instances > 1 { bits(self.extent) } else { 0 };
        bits(self.displacement) | bits(self.step) | self.len | bits(self.grow) | extent
    }

    /// The instances from byte `from` on, up to `to`, that can be numbered together (one at least); and
    /// the bytes of the stream where they begin and end.
    pub(crate) fn part(&self, from: u64, to: u64, bytes_max: u64) -> (Runs, u64, u64) {
        let size = self.before(self.count).unwrap_or(u64::MAX);
        let instance = from / size;
        let begin = instance * size;
        let end = to.min((instance + (bytes_max / size).max(1)).saturating_mul(size));
        let part = Runs {
            displacement: self
                .displacement
                .wrapping_add(instance.cast_signed().wrapping_mul(self.extent)),
            instances: (end - begin).div_ceil(size),
            ..*self
        };
        (part, begin, end)
    }

    /// These runs as the kernel wants them, if their words can be numbered.
    pub(crate) fn shape(&self, width: Width) -> Option<Affine> {
        let log2 = width.log2();
        let size = u32::try_from(self.size()? >> log2).ok()?;
        (u64::from(size) <= WORDS_MAX).then_some(())?;
        Some(Affine {
            step: self.step,
            extent: self.extent,
            count: u32::try_from(self.count).ok()?,
            len: u32::try_from(self.len >> log2).ok()?,
            grow: i32::try_from(self.grow >> log2).ok()?,
            size,
            by_size: Divide::by(size),
        })
    }
}

/// Launches for runs that advance by constants.
///
/// # Errors
/// [`Unfit::Numbers`] for less than two runs or a growth of 0, and [`Unfit::Range`].
pub fn affine(what: &Move, runs: &Runs) -> Result<Launches, Unfit> {
    let mut launches = Launches::new();
    if what.range.is_empty() {
        return Ok(launches);
    }
    let size = runs.size().ok_or(Unfit::Numbers)?;
    let all = size.checked_mul(runs.instances).ok_or(Unfit::Numbers)?;
    if what.range.end > all {
        return Err(Unfit::Range { end: what.range.end, size: all });
    }
    let width = what.width(runs.bits());
    let bytes_max = WORDS_MAX << width.log2();
    let mut from = what.range.start;
    while from < what.range.end {
        let (part, begin, end) = runs.part(from, what.range.end, bytes_max);
        let to = end.min(what.range.end);
        let range = from - begin..to - begin;
        let packed = what.packed.offset + (from - what.range.start).cast_signed();
        if size <= bytes_max {
            launches.push(launch(what, &part, &range, packed, width)?);
        } else {
            cut(what, &part, &range, packed, width, &mut launches)?;
        }
        from = to;
    }
    Ok(launches)
}

/// Cuts one instance between its runs.
fn cut(
    what: &Move,
    runs: &Runs,
    range: &Range<u64>,
    packed: i64,
    width: Width,
    launches: &mut Launches,
) -> Result<(), Unfit> {
    let bytes_max = WORDS_MAX << width.log2();
    let before = |j| runs.before(j).unwrap_or(u64::MAX);
    let mut from = range.start;
    while from < range.end {
        // The last run that begins at or before `from`, and as many after it as can be numbered.
        let j = last_before(runs.count, |j| before(j) <= from);
        let begin = before(j);
        let end = last_before(runs.count + 1, |k| k <= j + 1 || before(k) - begin <= bytes_max);
        let to = before(end).min(range.end);
        let offset = packed + (from - range.start).cast_signed();
        let displacement = runs.displacement.wrapping_add(j.cast_signed().wrapping_mul(runs.step));
        let len = runs.len_of(j).ok_or(Unfit::Numbers)?;
        let inside = from - begin..to - begin;
        if end - j >= 2 {
            let part = Runs { count: end - j, displacement, len, instances: 1, ..*runs };
            launches.push(launch(what, &part, &inside, offset, width)?);
        } else {
            let one = Move {
                range: inside,
                packed: KernelAddress { offset, ..what.packed },
                ..what.clone()
            };
            let dims = smallvec![GridDim { count: 1, stride: 0 }];
            launches.extend(strided(&one, &Grid { displacement, len, dims })?);
        }
        from = to;
    }
    Ok(())
}

/// The last of 0 .. `count` for which `holds`, which holds for 0 and up to some number.
fn last_before(count: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, count);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) { low = middle } else { high = middle }
    }
    low
}

fn launch(
    what: &Move,
    runs: &Runs,
    range: &Range<u64>,
    packed: i64,
    width: Width,
) -> Result<Launch, Unfit> {
    let mut words = Words::of(range, width);
    if range.end - range.start > ONCE_MAX {
        words.edges &= !ONCE;
    }
    let shape = runs.shape(width).ok_or(Unfit::Numbers)?;
    let long = u64::from(shape.size) >= STEPPING * u64::from(shape.count);
    let family = if long { Family::Affine } else { Family::AffineShort };
    let looping = match (family, what.direction, width) {
        (Family::Affine, Direction::Unpack, Width::W2 | Width::W4 | Width::W8) => LONG,
        _ => family.items(width, true),
    };
    let geometry = flat_by(family, width, words, NONE_IDLE, what.budget, looping);
    let typed = what.typed.offset.wrapping_add(runs.displacement);
    let mut span = words.span(typed, packed);
    geometry.tell(&mut span);
    Ok(Launch::new(
        family,
        what.direction,
        width,
        geometry,
        Args::Affine(AffineArgs { span, skipping: NONE_IDLE, shape }),
    ))
}
