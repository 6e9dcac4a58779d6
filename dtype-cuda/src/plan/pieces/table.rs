//! Units and shifts of a part of a table of blocks.
//!
//! Where blocks begin is a row of bits, one for each word of the stream; a unit holds 32 of them, and which
//! block its first word is of, which is how many bits were set before. Shifts come from a loop that is
//! vectorised, bits from one that keeps 64 in a register.

use std::ops::Range;

use gapless_dtype::RunTable;
use gapless_kernels::plan::UNIT_WORDS;

use super::super::{MapSpec, Patch, Patches, UNIT_BYTES};
use super::stream::{Aligned, stream};
use super::{BATCH, Pieces};
use crate::plan::shift::{Scale, Shift};

/// Words of a unit.
const UNIT: u64 = UNIT_WORDS as u64;
/// Words that are looked at together: two units, which have their bits in one register.
const WINDOW: u32 = 64;
/// Blocks that are expected to begin in one window.
const GROUP: usize = 4;
/// Bytes of a line of the caches.
const LINE: usize = 64;

/// A unit as the kernels read it: block of the first word, bits.
type UnitBytes = [u8; 8];

/// Where the plan is cut: before this unit, and before the first block that begins in it or behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    unit: u64,
    block: usize,
}

/// The table, as the plan counts.
#[derive(Clone, Copy)]
struct TableBlocks<'a> {
    table: RunTable<'a>,
    map: MapSpec,
}

impl TableBlocks<'_> {
    fn len(&self) -> usize {
        self.table.displacements.len()
    }

    /// The stream's word that block `block` begins with.
    fn word(&self, block: usize) -> u64 {
        self.table.starts[block] >> self.map.width.log2()
    }

    /// The first block that begins in unit `unit` or behind, if `near` is no more than a unit's words away.
    fn first_of(&self, unit: u64, mut near: usize) -> usize {
        while near > 0 && self.word(near - 1) >= unit * UNIT {
            near -= 1;
        }
        while near < self.len() && self.word(near) < unit * UNIT {
            near += 1;
        }
        near
    }

    /// The cut before which lie about `bytes` bytes of units and of shifts: no more than a unit and its
    /// shifts fewer, no more than a unit and a shift more.
    fn cut(&self, bytes: u64) -> Cut {
        let each = u64::from(self.map.shift_bytes);
        let before = |block: usize| block as u64 * each + self.word(block) / UNIT * UNIT_BYTES;
        // The first block before which lie as many.
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if before(middle) < bytes {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(last) = low.checked_sub(1) else { return Cut { unit: 0, block: 0 } };
        // Units behind the one that the block before begins in, up to the one that this one begins in.
        let first = self.word(last) / UNIT + 1;
        let end = if low < self.len() { self.word(low) / UNIT } else { self.map.units };
        if end < first {
            return Cut { unit: end, block: self.first_of(end, low) };
        }
        let unit = (bytes.saturating_sub(low as u64 * each) / UNIT_BYTES).clamp(first, end);
        Cut { unit, block: low }
    }
}

impl Pieces {
    /// Writes piece `number`; returns the bytes of the stream before its end.
    ///
    /// # Panics
    /// If the staging memory is too short.
    pub(super) fn table(
        &self,
        map: &MapSpec,
        step: u64,
        number: usize,
        staging: &mut [u8],
        patches: &mut Patches,
    ) -> u64 {
        let table = self.layout.run_table().expect("it was there when the pieces were counted");
        let blocks = TableBlocks { table, map: *map };
        let cut = |number: usize| match number {
            0 => Cut { unit: 0, block: 0 },
            n if n >= self.count => Cut { unit: map.units, block: blocks.len() },
            n => blocks.cut(n as u64 * step),
        };
        let (from, to) = (cut(number), cut(number + 1));
        let len = index(to.unit - from.unit) * 8;
        // Shifts begin with a line.
        let split = len.next_multiple_of(LINE);
        let (units, shifts) = staging.split_at_mut(split);
        let units = units[..len].as_chunks_mut::<8>().0;
        let scale = Scale { base: self.base, log2: map.width.log2() };
        let what = TableWork { table, scale, unit: from.unit, blocks: from.block..to.block };
        if map.shift_bytes == 4 {
            fill(&what, units, shifts.as_chunks_mut::<4>().0);
        } else {
            fill(&what, units, shifts.as_chunks_mut::<8>().0);
        }
        let each = u64::from(map.shift_bytes);
        if to.unit > from.unit {
            patches.push(Patch { staged: 0..len, at: map.units_at + from.unit * UNIT_BYTES });
        }
        if to.block > from.block {
            let staged = split..split + (to.block - from.block) * map.shift_bytes as usize;
            patches.push(Patch { staged, at: map.shifts_at + from.block as u64 * each });
        }
        (to.unit * UNIT) << map.width.log2()
    }
}

/// Writes units and the shifts of blocks `blocks`, which are those that begin in them.
fn fill<const N: usize>(what: &TableWork<'_>, units: &mut [UnitBytes], shifts: &mut [[u8; N]])
where
    [u8; N]: Shift,
{
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("popcnt") {
        // SAFETY: the processor has both.
        return unsafe { fill_512(what, units, shifts) };
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
        // SAFETY: the processor has both.
        return unsafe { fill_256(what, units, shifts) };
    }
    fill_by_any(what, units, shifts);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,popcnt")]
fn fill_512<const N: usize>(what: &TableWork<'_>, units: &mut [UnitBytes], shifts: &mut [[u8; N]])
where
    [u8; N]: Shift,
{
    fill_by_any(what, units, shifts);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt")]
fn fill_256<const N: usize>(what: &TableWork<'_>, units: &mut [UnitBytes], shifts: &mut [[u8; N]])
where
    [u8; N]: Shift,
{
    fill_by_any(what, units, shifts);
}

/// What is written into a piece.
struct TableWork<'a> {
    table: RunTable<'a>,
    scale: Scale,
    /// The first unit.
    unit: u64,
    /// The blocks that begin in the piece's units.
    blocks: Range<usize>,
}

#[inline(always)]
fn fill_by_any<const N: usize>(
    what: &TableWork<'_>,
    units: &mut [UnitBytes],
    shifts: &mut [[u8; N]],
) where
    [u8; N]: Shift,
{
    let TableWork { table, scale, unit, blocks } = what;
    let displacements = &table.displacements[blocks.clone()];
    let starts = &table.starts[blocks.clone()];
    let shifts = &mut shifts[..displacements.len()];
    let first = unit * UNIT;
    let mut row = Row { units, window: 0, begins: 0, before: low(blocks.start as u64) };
    let mut words = [0u32; BATCH];
    let mut batch = Aligned([[0; N]; BATCH]);
    let places = displacements.chunks(BATCH).zip(starts.chunks(BATCH));
    for ((displacements, starts), to) in places.zip(shifts.chunks_mut(BATCH)) {
        let words = &mut words[..starts.len()];
        let shifts = &mut batch.0[..starts.len()];
        for (((shift, word), &at), &start) in
            shifts.iter_mut().zip(words.iter_mut()).zip(displacements).zip(starts)
        {
            let in_stream = start >> scale.log2;
            *shift = Shift::of(scale.shift(at, in_stream));
            *word = low(in_stream.wrapping_sub(first));
        }
        stream(to.as_flattened_mut(), shifts.as_flattened());
        row.set(words);
    }
    row.turn(usize::MAX, low(blocks.end as u64));
}

/// A row of bits, two units at a time.
struct Row<'a> {
    units: &'a mut [UnitBytes],
    /// Units `2 × window` and the next are open.
    window: usize,
    /// Their words where blocks begin.
    begins: u64,
    /// Blocks that begin before them.
    before: u32,
}

impl Row<'_> {
    /// Sets the bits of words where blocks begin; they ascend.
    #[inline(always)]
    fn set(&mut self, words: &[u32]) {
        // Mostly a few are in the same window: the last one tells.
        let (groups, rest) = words.as_chunks::<GROUP>();
        for group in groups {
            if (group[GROUP - 1] / WINDOW) as usize == self.window {
                let bits = group.iter().fold(0, |bits, word| bits | 1u64 << (word % WINDOW));
                self.begins |= bits;
            } else {
                group.iter().for_each(|&word| self.set_one(word));
            }
        }
        rest.iter().for_each(|&word| self.set_one(word));
    }

    #[inline(always)]
    fn set_one(&mut self, word: u32) {
        let at = (word / WINDOW) as usize;
        if at != self.window {
            self.turn(at, self.before.wrapping_add(self.begins.count_ones()));
        }
        self.begins |= 1 << (word % WINDOW);
    }

    /// Writes the open units and those behind that block `next - 1` fills; opens window `to`, where block
    /// `next` begins.
    #[inline(always)]
    fn turn(&mut self, to: usize, next: u32) {
        let units = self.units.get_mut(self.window * 2..).unwrap_or_default();
        let (mut begins, mut before) = (self.begins, self.before);
        for unit in units.iter_mut().take(2) {
            let bits = low(begins & u64::from(u32::MAX));
            let block = before.wrapping_add(bits & 1).wrapping_sub(1);
            unit[..4].copy_from_slice(&block.to_ne_bytes());
            unit[4..].copy_from_slice(&(bits & !1).to_ne_bytes());
            before = before.wrapping_add(bits.count_ones());
            begins >>= UNIT_WORDS;
        }
        if to > self.window + 1
            && let Some(inside) = units.get_mut(2..)
        {
            let len = inside.len().min((to - self.window - 1).saturating_mul(2));
            let mut unit = [0; 8];
            unit[..4].copy_from_slice(&next.wrapping_sub(1).to_ne_bytes());
            inside[..len].fill(unit);
        }
        (self.window, self.begins, self.before) = (to, 0, next);
    }
}

/// The lower half; of numbers of blocks, and of words in a piece, that is all.
#[expect(
    clippy::cast_possible_truncation,
    reason = "pieces have less than 2³² bytes, plans at most 2³² blocks"
)]
#[inline]
fn low(n: u64) -> u32 {
    n as u32
}

/// A number below the length of what is in memory.
fn index(n: u64) -> usize {
    usize::try_from(n).expect("no longer than staging memory")
}
