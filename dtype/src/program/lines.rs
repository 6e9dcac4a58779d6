//! Dense lists by lines: where blocks ascend so closely that every line of memory holds some, a mask of each
//! line's words says all that a list of displacements says, in a tenth of the bytes, and registers take or put a
//! line at a time.
//!
//! Derived from a list when a program is complete; nothing a peer writes. Units: bytes; words of `grain` bytes.

use super::{Facts, Op};
use crate::run::in_memory;

/// Bytes that a mask covers, counted from the first block's displacement.
const WINDOW: u64 = 64;

/// Shorter lists are not worth it.
const MANY: usize = 64;

/// The masks of a list of equal blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    first: i64,
    grain: u64,
    masks: Box<[u16]>,
}

/// Successive blocks of such a list, as masks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows<'a> {
    /// Where the first window begins, relative to the list's place.
    pub(crate) disp: i64,
    /// Bytes of a word: 4 or 8.
    pub(crate) grain: u64,
    /// Bit i of each stands for word i of a window.
    pub(crate) masks: &'a [u16],
    /// Words of the first window that count.
    pub(crate) head: u16,
    /// Words of the last window that count.
    pub(crate) tail: u16,
    /// Packed bytes of all.
    pub(crate) bytes: u64,
}

impl Lines {
    /// Those of `op`, where they pay: its blocks are at most a line long, ascend without overlap, and lie at most a
    /// line and a half apart on average.
    pub(crate) fn of(op: &Op, facts: &Facts) -> Option<Lines> {
        let Op::Blocks { len, disps } = op else { return None };
        let (len, count) = (*len, disps.len());
        let grain = facts.grain.min(8);
        if grain < 4 || len > WINDOW || count < MANY {
            return None;
        }
        let windows = facts.hi.checked_sub(facts.lo)?.cast_unsigned().div_ceil(WINDOW);
        if windows > count as u64 + count as u64 / 2 {
            return None;
        }
        let first = disps[0];
        // The bounds' difference fits, and so does that of any two displacements.
        let ascends = disps.windows(2).fold(true, |so_far, pair| {
            so_far & (pair[1].wrapping_sub(pair[0]) >= len.cast_signed())
        });
        if !ascends {
            return None;
        }
        let words = WINDOW / grain;
        let block = (1u64 << (len / grain)) - 1;
        // A block reaches into one window more at most, and the last one's is no window of its own.
        let mut masks = vec![0u16; in_memory(windows) + 1];
        for disp in disps.iter() {
            let at = disp.wrapping_sub(first).cast_unsigned();
            let bits = block << (at % WINDOW / grain);
            let window = in_memory(at / WINDOW);
            masks[window] |= low(bits) & full(words);
            masks[window + 1] |= low(bits >> words);
        }
        masks.truncate(in_memory(windows));
        Some(Lines { first, grain, masks: masks.into() })
    }

    /// The windows of blocks of `len` bytes at `disps`, a part of the list's own; `None` if they are too few.
    pub(crate) fn windows(&self, disps: &[i64], len: u64) -> Option<Windows<'_>> {
        let (Some(from), Some(to)) = (disps.first(), disps.last()) else { return None };
        if disps.len() < MANY {
            return None;
        }
        let at = |disp: &i64| disp.wrapping_sub(self.first).cast_unsigned();
        let (lo, hi) = (at(from), at(to) + len);
        let (one, last) = (lo / WINDOW, (hi - 1) / WINDOW);
        let words = WINDOW / self.grain;
        let masks = self.masks.get(in_memory(one)..=in_memory(last))?;
        let head = full(words) & !full(lo % WINDOW / self.grain);
        let tail = full((hi - last * WINDOW) / self.grain);
        let disp = self.first.wrapping_add_unsigned(one * WINDOW);
        let bytes = len * disps.len() as u64;
        Some(Windows { disp, grain: self.grain, masks, head, tail, bytes })
    }
}

/// The first `words` bits; at most 16.
pub(crate) fn full(words: u64) -> u16 {
    low((1u64 << words) - 1)
}

#[expect(clippy::cast_possible_truncation, reason = "the low bits are what is asked for")]
fn low(bits: u64) -> u16 {
    bits as u16
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn list(len: u64, disps: Vec<i64>) -> Option<Lines> {
        let op = Op::Blocks { len, disps: Arc::new(disps) };
        let facts = Facts::of(&op, &[]).unwrap();
        Lines::of(&op, &facts)
    }

    /// Bytes that windows stand for, in order.
    fn bytes(windows: &Windows<'_>) -> Vec<i64> {
        let last = windows.masks.len() - 1;
        let mut found = Vec::new();
        for (i, &mask) in windows.masks.iter().enumerate() {
            let mask = if i == 0 { mask & windows.head } else { mask };
            let mask = if i == last { mask & windows.tail } else { mask };
            let start = windows.disp + 64 * i64::try_from(i).unwrap();
            let grain = i64::try_from(windows.grain).unwrap();
            for bit in (0..16).filter(|bit| mask >> bit & 1 == 1) {
                found.extend((0..grain).map(|byte| start + bit * grain + byte));
            }
        }
        found
    }

    #[test]
    fn every_part_of_a_list_is_what_its_blocks_are() {
        for (len, step, origin) in
            [(8, 24, 0), (24, 40, -160), (4, 12, 4), (28, 36, 7), (64, 72, 8)]
        {
            let jitter = |i: i64| if len % 8 == 0 { i % 3 * 8 } else { i % 3 * 4 };
            let disps: Vec<i64> = (0..200).map(|i| origin + i * (step + 16) + jitter(i)).collect();
            let lines = list(len, disps.clone()).unwrap();
            for (from, to) in [(0, 200), (1, 200), (0, 199), (7, 80), (66, 130), (100, 164)] {
                let windows = lines.windows(&disps[from..to], len).unwrap();
                let len = i64::try_from(len).unwrap();
                let expected: Vec<i64> =
                    disps[from..to].iter().flat_map(|&disp| disp..disp + len).collect();
                assert_eq!(bytes(&windows), expected, "{len} {step} {from}..{to}");
            }
            assert!(lines.windows(&disps[3..20], len).is_none(), "too few");
        }
    }

    #[test]
    fn other_lists_have_none() {
        let spread = |step: i64| (0..100).map(|i| i * step + i % 2 * 8).collect::<Vec<_>>();
        assert!(list(8, spread(32)).is_some());
        assert!(list(8, spread(160)).is_none(), "far apart");
        assert!(list(72, spread(88)).is_none(), "long blocks");
        assert!(list(2, spread(32)).is_none(), "short words");
        let mut back = spread(32);
        back.swap(50, 51);
        assert!(list(8, back).is_none(), "not ascending");
        assert!(list(16, (0..100).map(|i| i * 8 + i % 2 * 8).collect()).is_none(), "overlapping");
        assert!(list(8, spread(32)[..40].to_vec()).is_none(), "few");
    }
}
