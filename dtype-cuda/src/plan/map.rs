//! Writing units and shifts.
//!
//! Blocks come from the layout's convertor, a few hundred at a time, so that they stay in the first-level
//! cache. (Tables of blocks are written otherwise, `pieces.rs`, and long plans in parts.) Units are written when
//! all of their words are known, shifts when their block begins: the open unit and what is left of the last
//! block wait here for the next piece, so pieces may end anywhere. Staging memory is divided between both as
//! what is left to write is; when either part is full, the piece ends.

use gapless_dtype::{Convertor, Layout, Run};
use gapless_kernels::args::Unit;
use gapless_kernels::plan::UNIT_WORDS;

use super::shift::{Scale, Shift};
use super::{MapSpec, Patch, Patches, PlanSpec};

/// Blocks asked for at once.
const BATCH: usize = 512;
/// Words of a unit.
const UNIT: u64 = UNIT_WORDS as u64;
/// Bytes of a unit.
const UNIT_BYTES: usize = size_of::<Unit>();
/// Units of a piece at least.
const UNITS_MIN: usize = 8;
/// Staging bytes for shifts at least: as many as a unit may have blocks, so that every piece ends one.
const SHIFTS_MIN: usize = UNIT_WORDS as usize * 8 * 2;

/// A unit as the kernels read it.
type UnitBytes = [u8; UNIT_BYTES];

/// Writes the units and shifts of one part of a layout.
pub(crate) struct MapWriter {
    convertor: Convertor,
    /// Bytes of the stream to describe.
    part_size: u64,
    size: u64,
    map: MapSpec,
    base: i64,
    batch: Box<[Run; BATCH]>,
    /// Blocks in `batch` that are not taken yet.
    fetched: std::ops::Range<usize>,
    state: MapState,
    finished: bool,
}

/// Where in the plan the writer is. Copied into registers by the inner loop.
#[derive(Clone, Copy, Default)]
struct MapState {
    /// Words of the stream that are in a unit, or in the open one.
    word: u64,
    /// Words of the last block that are not.
    rest: u64,
    /// Blocks started: shifts written.
    blocks: u64,
    /// Units written.
    units: u64,
    /// The open unit: block of its first word.
    open: u32,
    /// The open unit: where blocks begin. Bit 0 is to be cleared.
    begins: u32,
}

impl MapWriter {
    /// At the begin of the plan of `layout`, which is `spec`: `map`.
    pub(crate) fn new(layout: &Layout, spec: &PlanSpec, map: MapSpec) -> MapWriter {
        let convertor = Convertor::new(layout, 1).expect("one instance was checked at commit");
        MapWriter {
            convertor,
            part_size: spec.part_size,
            size: spec.size,
            map,
            base: spec.base,
            batch: Box::new([Run::default(); BATCH]),
            fetched: 0..0,
            state: MapState::default(),
            // There is no plan with block numbers of more than 32 bits.
            finished: map.units == 0 || spec.bytes == u64::MAX,
        }
    }

    /// Writes the next piece into `staging` and appends to `patches` which bytes of it go where. Returns
    /// how many bytes of an instance's stream can be moved once this and all earlier pieces are in place,
    /// never fewer than before and all with the last piece; `None` when there is no more.
    ///
    /// # Panics
    /// If `staging` has less than [`STAGING_MIN`](super::STAGING_MIN) bytes.
    pub(crate) fn next(&mut self, staging: &mut [u8], patches: &mut Patches) -> Option<u64> {
        assert!(staging.len() >= super::STAGING_MIN, "{} bytes to stage in", staging.len());
        if self.finished {
            return None;
        }
        let split = self.split(staging.len());
        let (units, shifts) = staging.split_at_mut(split);
        let before = self.state;
        if self.map.shift_bytes == 4 {
            self.fill(units.as_chunks_mut().0, shifts.as_chunks_mut::<4>().0);
        } else {
            self.fill(units.as_chunks_mut().0, shifts.as_chunks_mut::<8>().0);
        }
        let MapSpec { units_at, shifts_at, shift_bytes, blocks, units, .. } = self.map;
        let after = self.state;
        // What is written lies inside the plan, whatever the layout's statistics say.
        assert!(after.blocks <= blocks && after.units <= units, "more blocks than were counted");
        let staged = |from: usize, n: u64, each: u64| {
            let bytes = usize::try_from(n * each).expect("less than the staging memory");
            from..from + bytes
        };
        let mut patch = |from, done: u64, n: u64, each: u64, at: u64| {
            if n > 0 {
                patches.push(Patch { staged: staged(from, n, each), at: at + done * each });
            }
        };
        let each = u64::from(shift_bytes);
        patch(0, before.units, after.units - before.units, super::UNIT_BYTES, units_at);
        patch(split, before.blocks, after.blocks - before.blocks, each, shifts_at);
        let ready = (after.units * UNIT) << self.map.width.log2();
        Some(if self.finished { self.size } else { ready })
    }

    /// Writes units `range` and the shifts of the blocks that begin in them, which there is room for; returns
    /// how many these are. Blocks are numbered from 1 on; 0 is the one that reaches into the first unit.
    ///
    /// # Panics
    /// If there is less room.
    pub(super) fn part(
        layout: &Layout,
        spec: &PlanSpec,
        map: MapSpec,
        range: std::ops::Range<u64>,
        units: &mut [u8],
        shifts: &mut [u8],
    ) -> u64 {
        let mut writer = MapWriter::new(layout, spec, map);
        let bytes = |units: u64| (units * UNIT) << map.width.log2();
        writer.part_size = spec.part_size.min(bytes(range.end));
        writer.state =
            MapState { word: range.start * UNIT, blocks: 1, open: 1, ..MapState::default() };
        if range.start > 0 {
            // From a word earlier, to see whether its block reaches here.
            let width = 1u64 << map.width.log2();
            let before = bytes(range.start) - width;
            writer.convertor.seek(before).expect("it lies before the part's end");
            let reaches = writer.fetch() && writer.batch[0].len > width;
            if reaches {
                writer.state.rest = (writer.batch[0].len - width) >> map.width.log2();
                writer.state.open = 0;
            }
            writer.fetched.start += 1;
        }
        if map.shift_bytes == 4 {
            writer.fill(units.as_chunks_mut().0, shifts.as_chunks_mut::<4>().0);
        } else {
            writer.fill(units.as_chunks_mut().0, shifts.as_chunks_mut::<8>().0);
        }
        let complete = writer.finished && writer.state.units == range.end - range.start;
        assert!(complete, "more blocks than there is room for");
        writer.state.blocks - 1
    }

    /// Bytes of the staging memory for units: the share of units in what is left to write.
    fn split(&self, len: usize) -> usize {
        let units = u128::from(self.map.units - self.state.units) * UNIT_BYTES as u128;
        let shifts =
            u128::from(self.map.blocks - self.state.blocks) * u128::from(self.map.shift_bytes);
        let share = if units + shifts <= len as u128 {
            units
        } else {
            len as u128 * units / (units + shifts)
        };
        let share = usize::try_from(share).unwrap_or(len) / UNIT_BYTES;
        share.clamp(UNITS_MIN, (len - SHIFTS_MIN) / UNIT_BYTES) * UNIT_BYTES
    }

    /// Writes units and shifts until there is no more room for either, or no more to write.
    fn fill<const N: usize>(&mut self, units: &mut [UnitBytes], shifts: &mut [[u8; N]])
    where
        [u8; N]: Shift,
    {
        let scale = Scale { base: self.base, log2: self.map.width.log2() };
        let (mut units, mut shifts) = (units, shifts);
        loop {
            if self.state.rest > 0 {
                let written = self.state.place(units);
                units = &mut units[written..];
                if self.state.rest > 0 {
                    return;
                }
            }
            if self.fetched.is_empty() && !self.fetch() {
                // The last unit may be full, or already started.
                if !self.state.word.is_multiple_of(UNIT) {
                    let Some(last) = units.first_mut() else { return };
                    *last = self.state.close();
                }
                self.finished = true;
                return;
            }
            let runs = &self.batch[self.fetched.clone()];
            let (taken, closed) = self.state.short(scale, runs, units, shifts);
            self.fetched.start += taken;
            units = &mut units[closed..];
            shifts = &mut shifts[taken..];
            // A long block, or no room.
            if let Some(run) = self.batch[self.fetched.clone()].first() {
                let Some(to) = shifts.first_mut() else { return };
                *to = Shift::of(scale.shift(run.displacement, self.state.word));
                shifts = &mut shifts[1..];
                self.state.begin(run.len >> scale.log2);
                self.fetched.start += 1;
            }
        }
    }

    /// Gets more blocks; false if there are none.
    fn fetch(&mut self) -> bool {
        let left = self.part_size - self.convertor.position();
        let (used, _) = self.convertor.iov(&mut self.batch[..], left);
        self.fetched = 0..used;
        used > 0
    }
}

impl MapState {
    /// Takes the blocks that have at most a unit's words, while there is room; returns how many, and how
    /// many units they ended. Nothing is left of the last block before.
    #[inline]
    fn short<const N: usize>(
        &mut self,
        scale: Scale,
        runs: &[Run],
        units: &mut [UnitBytes],
        shifts: &mut [[u8; N]],
    ) -> (usize, usize)
    where
        [u8; N]: Shift,
    {
        // Each of these ends one unit at most, so there is always room for the open one.
        let most = runs.len().min(units.len()).min(shifts.len());
        let mut state = *self;
        let (mut taken, mut closed) = (0, 0);
        for (run, to) in runs[..most].iter().zip(shifts) {
            let words = run.len >> scale.log2;
            if words > UNIT {
                break;
            }
            *to = Shift::of(scale.shift(run.displacement, state.word));
            state.begins |= 1 << (state.word % UNIT);
            // Written whether complete or not, so that there is nothing to predict.
            if let Some(unit) = units.get_mut(closed) {
                *unit = unit_bytes(state.open, state.begins);
            }
            let after = state.word + words;
            let crosses = after / UNIT != state.word / UNIT;
            let next = state.open_next(after);
            state.open = if crosses { next } else { state.open };
            state.begins = if crosses { 0 } else { state.begins };
            closed += usize::from(crosses);
            state.word = after;
            state.blocks += 1;
            taken += 1;
        }
        state.units += closed as u64;
        *self = state;
        (taken, closed)
    }

    /// The block of the first word of a unit that begins behind the block being taken, or inside it.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "plans have at most 2³² blocks")]
    fn open_next(&self, after: u64) -> u32 {
        // `blocks` does not count the block being taken.
        self.blocks as u32 + u32::from(after.is_multiple_of(UNIT))
    }

    /// A block of `words` begins here.
    fn begin(&mut self, words: u64) {
        self.begins |= 1 << (self.word % UNIT);
        self.rest = words;
        self.blocks += 1;
    }

    /// Places what is left of the last block; returns how many units that ended.
    fn place(&mut self, units: &mut [UnitBytes]) -> usize {
        let fill = UNIT - self.word % UNIT;
        if self.rest < fill {
            self.word += self.rest;
            self.rest = 0;
            return 0;
        }
        let Some((first, more)) = units.split_first_mut() else { return 0 };
        self.word += fill;
        self.rest -= fill;
        *first = self.close();
        let last = u32::try_from(self.blocks - 1).expect("plans have at most 2³² blocks");
        let inside = usize::try_from(self.rest / UNIT).map_or(more.len(), |n| n.min(more.len()));
        more[..inside].fill(unit_bytes(last, 0));
        self.word += inside as u64 * UNIT;
        self.rest -= inside as u64 * UNIT;
        self.units += inside as u64;
        self.open = if self.rest > 0 { last } else { last.wrapping_add(1) };
        // What is less than a unit is in the open one.
        if self.rest < UNIT {
            self.word += self.rest;
            self.rest = 0;
        }
        1 + inside
    }

    /// The open unit, written; the next one is open.
    fn close(&mut self) -> UnitBytes {
        let unit = unit_bytes(self.open, self.begins);
        self.begins = 0;
        self.units += 1;
        unit
    }
}

/// A unit's bytes: the block of its first word, and where others begin.
#[inline]
fn unit_bytes(block: u32, begins: u32) -> UnitBytes {
    let mut bytes = [0; UNIT_BYTES];
    bytes[..4].copy_from_slice(&block.to_ne_bytes());
    bytes[4..].copy_from_slice(&(begins & !1).to_ne_bytes());
    bytes
}
