//! Dense layouts by lines of user memory: dense lists and records with small gaps, of which a register takes or
//! puts all words of a line at a time, chosen by a mask. Lanes that a mask leaves out are neither read nor written:
//! gaps stay untouched.
//!
//! Packing around the cache gathers in a buffer that stays in the first-level cache, and whole lines leave it. No
//! prefetcher follows masked loads, so lines are asked for ahead. Measured on a Zen 5, 8 MiB from memory to memory,
//! in parts of the time of loops over displacements: single doubles packed 0.49, three at a time 0.62, and 0.54 and
//! 0.70 where everything is in reach of the second-level cache; unpacked 0.80 and 0.88. Records of 28 in 32 bytes are
//! packed around the cache in 0.78 of a loop's time, 1.18 of `memcpy`'s speed, and in 0.83 at 1 MiB. By ordinary
//! stores they take as long as in the loop, packed or unpacked, and 1.3 times that where all is in the first-level cache.
//! Reading every line of the single doubles alone, which no library does without, takes 0.4.
//!
//! Units: bytes; words of 4 or 8 bytes.

use super::method::Level;
use super::nontemporal::LINE;
use crate::program::{Axis, Windows, full};
use crate::run::in_memory;

/// Windows whose masks are read in one go.
const GATHERED: usize = 64;

/// Fewer records are not worth it.
const RECORDS_MIN: u64 = 32;

/// A contiguous span of memory by lines.
#[derive(Clone, Copy)]
pub(super) struct Dense<'a> {
    /// Where the first window begins.
    pub(super) user: *mut u8,
    pub(super) packed: *mut u8,
    /// Masks of the windows. They repeat, if there are fewer than windows; then they are [`GATHERED`] at most.
    masks: &'a [u16],
    /// How many windows.
    windows: usize,
    /// What of the first counts, and of the last.
    head: u16,
    tail: u16,
    /// Packed bytes.
    bytes: usize,
    /// Whether words have 8 bytes; 4 otherwise.
    wide: bool,
}

/// Masks of equal records at one step.
pub(super) struct Records {
    masks: [u16; GATHERED],
    /// How many of them: a number of periods.
    tile: usize,
    windows: usize,
    tail: u16,
    bytes: usize,
    wide: bool,
}

impl Records {
    /// `None` of records that do not lie densely, or not at multiples of a word.
    pub(super) fn new(axis: Axis, len: u64) -> Option<Records> {
        let step = u64::try_from(axis.stride).ok()?;
        let line = LINE as u64;
        let grain = 1 << (step | len).trailing_zeros().min(3);
        if grain < 4 || len >= step || step > line || axis.count < RECORDS_MIN {
            return None;
        }
        let period = in_memory(step / (1 << step.trailing_zeros().min(6)));
        let words = line / grain;
        // Steps are multiples of 4, so there are 16 windows in a period at most.
        let tile = GATHERED / period * period;
        let mut masks = [0; GATHERED];
        for (window, mask) in (0..).zip(&mut masks[..period]) {
            for word in (0..words).filter(|word| (window * line + word * grain) % step < len) {
                *mask |= 1 << word;
            }
        }
        // Rows of a grid come one by one: what repeats is not divided anew.
        (period..tile).for_each(|window| masks[window] = masks[window - period]);
        let span = axis.count.checked_sub(1)?.checked_mul(step)?.checked_add(len)?;
        let last = (span - 1) / line;
        Some(Records {
            masks,
            tile,
            windows: in_memory(last + 1),
            tail: full((span - last * line) / grain),
            bytes: in_memory(len * axis.count),
            wide: grain == 8,
        })
    }

    /// The records from `user` on.
    pub(super) fn at(&self, user: *mut u8, packed: *mut u8) -> Dense<'_> {
        let Records { tile, windows, tail, bytes, wide, .. } = *self;
        Dense { user, packed, masks: &self.masks[..tile], windows, head: !0, tail, bytes, wide }
    }
}

impl<'a> Dense<'a> {
    /// Blocks of a list, whose first window begins at `user`.
    pub(super) fn of(windows: &Windows<'a>, user: *mut u8, packed: *mut u8) -> Dense<'a> {
        let Windows { grain, masks, head, tail, bytes, .. } = *windows;
        let (bytes, windows) = (in_memory(bytes), masks.len());
        Dense { user, packed, masks, windows, head, tail, bytes, wide: grain == 8 }
    }

    /// Moves all words, where `STREAM` around the cache, after which [`fence`](super::nontemporal::fence) is
    /// called for. Returns whether it did: not on a processor without the instructions.
    ///
    /// # Safety
    ///
    /// The words that the masks choose, and as many packed bytes, are accessible, writable where they are copied
    /// to, and the two do not overlap.
    pub(super) unsafe fn run<const PACK: bool, const STREAM: bool>(&self, level: Level) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            if level.known() < Level::Avx512 || !is_x86_feature_detected!("popcnt") {
                return false;
            }
            match (PACK, STREAM, self.wide) {
                // SAFETY: the processor has the features; the caller's promise.
                (true, true, true) => unsafe { wide::gather::<8>(self) },
                // SAFETY: as above.
                (true, true, false) => unsafe { wide::gather::<4>(self) },
                // SAFETY: as above.
                (true, false, true) => unsafe { wide::pack::<8>(self) },
                // SAFETY: as above.
                (true, false, false) => unsafe { wide::pack::<4>(self) },
                // SAFETY: as above.
                (false, _, true) => unsafe { wide::unpack::<8>(self) },
                // SAFETY: as above.
                (false, _, false) => unsafe { wide::unpack::<4>(self) },
            }
            true
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = level;
            false
        }
    }

    /// The masks of all windows, in their order.
    fn parts(&self) -> Parts<'_> {
        Parts { dense: self, at: 0, left: self.windows, edited: [0; GATHERED] }
    }
}

/// Masks of windows, some at a time.
struct Parts<'a> {
    dense: &'a Dense<'a>,
    at: usize,
    left: usize,
    edited: [u16; GATHERED],
}

impl Parts<'_> {
    /// The next ones, [`GATHERED`] at most.
    #[inline(always)]
    fn next(&mut self) -> Option<&[u16]> {
        let Dense { masks, windows, head, tail, .. } = *self.dense;
        let some = &masks[self.at..];
        let some = &some[..some.len().min(self.left).min(GATHERED)];
        let (first, last) = (self.left == windows, self.left == some.len());
        self.left -= some.len();
        self.at = (self.at + some.len()) % masks.len();
        if some.is_empty() {
            return None;
        }
        if !(first || last) {
            return Some(some);
        }
        let edited = &mut self.edited[..some.len()];
        edited.copy_from_slice(some);
        if first {
            edited[0] &= head;
        }
        if last {
            edited[some.len() - 1] &= tail;
        }
        Some(edited)
    }
}

/// The loops.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m512i, _mm512_loadu_si512, _mm512_mask_storeu_epi32, _mm512_mask_storeu_epi64,
        _mm512_maskz_compress_epi32, _mm512_maskz_compress_epi64, _mm512_maskz_expand_epi32,
        _mm512_maskz_expand_epi64, _mm512_maskz_loadu_epi32, _mm512_maskz_loadu_epi64,
        _mm512_permutexvar_epi32, _mm512_permutexvar_epi64, _mm512_set_epi32, _mm512_set_epi64,
        _mm512_storeu_si512, _mm512_stream_si512,
    };
    use std::mem::MaybeUninit;

    use super::{Dense, GATHERED, LINE, full};
    use crate::copy::nontemporal::to_line;
    use crate::copy::{copy, prefetch, prefetch_to_write};

    /// Lines of user memory are asked for this far ahead when packing,
    const READ_AHEAD: usize = 4096;
    /// and this far when unpacking, none behind the last window, which may be another processor's. Packed bytes are not: prefetchers follow them, and asking takes 8 % more time.
    const WRITE_AHEAD: usize = 2048;

    /// What is gathered: room for all words of so many windows behind part of a line, and for the rest of a
    /// register.
    #[repr(align(64))]
    struct StagedLines(MaybeUninit<[u8; (GATHERED + 2) * LINE]>);

    /// Packs around the cache, words of `WORD` bytes.
    ///
    /// # Safety
    ///
    /// The processor has the features; as [`Dense::run`] for packing.
    #[target_feature(enable = "avx512f,popcnt")]
    pub(super) unsafe fn gather<const WORD: usize>(dense: &Dense<'_>) {
        let mut stage = StagedLines(MaybeUninit::uninit());
        let stage = stage.0.as_mut_ptr().cast::<u8>();
        let (mut from, mut to, mut filled) = (dense.user.cast_const(), dense.packed, 0);
        let mut parts = dense.parts();
        while let Some(masks) = parts.next() {
            let mask = masks[0];
            if masks.iter().all(|other| *other == mask) {
                // The same words of each: their order is known, and so is where they go.
                let order = order::<WORD>(mask);
                let bytes = WORD * mask.count_ones() as usize;
                for _ in masks {
                    prefetch(from.wrapping_add(READ_AHEAD));
                    // SAFETY: words that a mask chooses; the caller's promise.
                    let line = unsafe { taken_as_they_lie::<WORD>(mask, from) };
                    let words = match WORD {
                        8 => _mm512_permutexvar_epi64(order, line),
                        _ => _mm512_permutexvar_epi32(order, line),
                    };
                    // SAFETY: as below.
                    unsafe { _mm512_storeu_si512(stage.wrapping_add(filled).cast(), words) };
                    filled += bytes;
                    from = from.wrapping_add(LINE);
                }
            } else {
                for &mask in masks {
                    prefetch(from.wrapping_add(READ_AHEAD));
                    // SAFETY: words that a mask chooses; the caller's promise.
                    let words = unsafe { taken::<WORD>(mask, from) };
                    // SAFETY: less than a line waits, and `GATHERED` lines at most came behind it, this one among them;
                    // a whole register fits there, too.
                    unsafe { _mm512_storeu_si512(stage.wrapping_add(filled).cast(), words) };
                    filled += WORD * mask.count_ones() as usize;
                    from = from.wrapping_add(LINE);
                }
            }
            // The first time, what comes before the first whole line.
            let mut at = to_line(to).min(filled);
            // SAFETY: the first bytes that were gathered, which are the next packed ones; the caller's promise.
            unsafe { copy(stage, to, at) };
            to = to.wrapping_add(at);
            while filled - at >= LINE {
                // SAFETY: a line of what was gathered.
                let line = unsafe { _mm512_loadu_si512(stage.wrapping_add(at).cast()) };
                // SAFETY: the next line of packed bytes, which begins one; the caller's promise.
                unsafe { _mm512_stream_si512(to.cast(), line) };
                (to, at) = (to.wrapping_add(LINE), at + LINE);
            }
            filled -= at;
            // SAFETY: less than a line of what was gathered, to the stage's first line; they may overlap.
            unsafe { std::ptr::copy(stage.wrapping_add(at), stage, filled) };
        }
        // SAFETY: the last packed bytes; the caller's promise.
        unsafe { copy(stage, to, filled) };
    }

    /// Packs by ordinary stores, words of `WORD` bytes.
    ///
    /// # Safety
    ///
    /// The processor has the features; as [`Dense::run`] for packing.
    #[target_feature(enable = "avx512f,popcnt")]
    pub(super) unsafe fn pack<const WORD: usize>(dense: &Dense<'_>) {
        let mut from = dense.user.cast_const();
        let mut done = 0;
        let mut parts = dense.parts();
        while let Some(masks) = parts.next() {
            for &mask in masks {
                prefetch(from.wrapping_add(READ_AHEAD));
                // SAFETY: words that a mask chooses; the caller's promise.
                let words = unsafe { taken::<WORD>(mask, from) };
                let to = dense.packed.wrapping_add(done);
                if dense.bytes - done >= LINE {
                    // SAFETY: as many packed bytes follow, and those behind the words are written later; the
                    // caller's promise.
                    unsafe { _mm512_storeu_si512(to.cast(), words) };
                } else {
                    // SAFETY: the words themselves; the caller's promise.
                    unsafe { put::<WORD>(full(u64::from(mask.count_ones())), to, words) };
                }
                done += WORD * mask.count_ones() as usize;
                from = from.wrapping_add(LINE);
            }
        }
    }

    /// Unpacks words of `WORD` bytes.
    ///
    /// # Safety
    ///
    /// The processor has the features; as [`Dense::run`] for unpacking.
    #[target_feature(enable = "avx512f,popcnt")]
    pub(super) unsafe fn unpack<const WORD: usize>(dense: &Dense<'_>) {
        let mut to = dense.user;
        let mut done = 0;
        let mut left = dense.windows;
        let mut parts = dense.parts();
        while let Some(masks) = parts.next() {
            for &mask in masks {
                if left > WRITE_AHEAD / LINE {
                    prefetch_to_write(to.wrapping_add(WRITE_AHEAD));
                }
                left -= 1;
                let from = dense.packed.cast_const().wrapping_add(done);
                let words = if dense.bytes - done >= LINE {
                    // SAFETY: as many packed bytes follow; the caller's promise.
                    unsafe { _mm512_loadu_si512(from.cast()) }
                } else {
                    // SAFETY: the words themselves; the caller's promise.
                    unsafe { taken_as_they_lie::<WORD>(full(u64::from(mask.count_ones())), from) }
                };
                let words = match WORD {
                    8 => _mm512_maskz_expand_epi64(eight(mask), words),
                    _ => _mm512_maskz_expand_epi32(mask, words),
                };
                // SAFETY: words that a mask chooses; the caller's promise.
                unsafe { put::<WORD>(mask, to, words) };
                done += WORD * mask.count_ones() as usize;
                to = to.wrapping_add(LINE);
            }
        }
    }

    /// Which words a mask chooses.
    #[inline]
    #[target_feature(enable = "avx512f,popcnt")]
    fn order<const WORD: usize>(mask: u16) -> __m512i {
        match WORD {
            8 => {
                let all = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
                _mm512_maskz_compress_epi64(eight(mask), all)
            }
            _ => {
                let all = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
                _mm512_maskz_compress_epi32(mask, all)
            }
        }
    }

    /// The words that a mask chooses, one after the other.
    ///
    /// # Safety
    ///
    /// The processor has the features; those words may be read.
    #[inline]
    #[target_feature(enable = "avx512f,popcnt")]
    unsafe fn taken<const WORD: usize>(mask: u16, from: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        let line = unsafe { taken_as_they_lie::<WORD>(mask, from) };
        match WORD {
            8 => _mm512_maskz_compress_epi64(eight(mask), line),
            _ => _mm512_maskz_compress_epi32(mask, line),
        }
    }

    /// The words that a mask chooses, where they are.
    ///
    /// # Safety
    ///
    /// As [`taken`].
    #[inline]
    #[target_feature(enable = "avx512f,popcnt")]
    unsafe fn taken_as_they_lie<const WORD: usize>(mask: u16, from: *const u8) -> __m512i {
        match WORD {
            // SAFETY: the caller's promise: lanes that a mask leaves out are not accessed.
            8 => unsafe { _mm512_maskz_loadu_epi64(eight(mask), from.cast()) },
            // SAFETY: as above.
            _ => unsafe { _mm512_maskz_loadu_epi32(mask, from.cast()) },
        }
    }

    /// Writes the words that a mask chooses, where they are.
    ///
    /// # Safety
    ///
    /// The processor has the features; those words may be written.
    #[inline]
    #[target_feature(enable = "avx512f,popcnt")]
    unsafe fn put<const WORD: usize>(mask: u16, to: *mut u8, words: __m512i) {
        match WORD {
            // SAFETY: the caller's promise: lanes that a mask leaves out are not accessed.
            8 => unsafe { _mm512_mask_storeu_epi64(to.cast(), eight(mask), words) },
            // SAFETY: as above.
            _ => unsafe { _mm512_mask_storeu_epi32(to.cast(), mask, words) },
        }
    }

    /// A mask of eight words.
    #[inline(always)]
    fn eight(mask: u16) -> u8 {
        mask.to_le_bytes()[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::nontemporal::fence;

    #[test]
    fn records_of_every_small_step_there_and_back() {
        let source: Vec<u8> = (0..=250).cycle().take(64 * 400).collect();
        for (step, len) in (1..=68).flat_map(|step| (1..step).map(move |len| (step, len))) {
            for (count, place) in [(31, 0), (32, 1), (61, 8), (300, 60)] {
                let axis = Axis { count, stride: step };
                let bytes = len.cast_unsigned();
                let Some(records) = Records::new(axis, bytes) else {
                    assert!(step % 4 > 0 || len % 4 > 0 || count < 32 || step > 64, "{step} {len}");
                    continue;
                };
                let at = |i: i64| usize::try_from(i * step).unwrap() + 5;
                let runs = (0..count.cast_signed()).map(at).map(|at| at..at + in_memory(bytes));
                let expected: Vec<u8> =
                    runs.clone().flat_map(|run| source[run].iter().copied()).collect();
                let user = source.as_ptr().cast_mut().wrapping_add(5);
                let mut target = vec![0xee; expected.len() + place + 1];
                let packed = target.as_mut_ptr().wrapping_add(place);
                let dense = records.at(user, packed);
                // SAFETY: the records lie in `source`, which is only read, their bytes in `target`.
                if !unsafe { dense.run::<true, false>(Level::Best) } {
                    assert!(Level::Best.known() < Level::Avx512, "it has the instructions");
                    println!("skipped: this processor has no AVX-512");
                    return;
                }
                let end = place + expected.len();
                assert_eq!(target[place..end], expected, "{step} {len} {count}");
                assert!(target[..place].iter().chain(&target[end..]).all(|&byte| byte == 0xee));
                target.fill(0xee);
                let dense = records.at(user, target.as_mut_ptr().wrapping_add(place));
                // SAFETY: as above.
                assert!(unsafe { dense.run::<true, true>(Level::Best) });
                fence();
                assert_eq!(target[place..end], expected, "{step} {len} {count}");
                assert!(target[..place].iter().chain(&target[end..]).all(|&byte| byte == 0xee));

                let mut back = vec![0xaa; source.len()];
                let mut whole = back.clone();
                runs.for_each(|run| whole[run.clone()].copy_from_slice(&source[run]));
                let user = back.as_mut_ptr().wrapping_add(5);
                let dense = records.at(user, target.as_mut_ptr().wrapping_add(place));
                // SAFETY: as above, the other way round.
                assert!(unsafe { dense.run::<false, false>(Level::Best) });
                assert!(back == whole, "{step} {len} {count}");
            }
        }
    }
}
