//! Stores that go around the cache, a line at a time. Lines that a run shares with its neighbours are stored
//! in the ordinary way, so no line is stored both ways.
//!
//! Such stores are weakly ordered: [`fence`] comes before anyone is told of the bytes.
//!
//! Units: bytes.

use super::{copy, prefetch, shifted};

/// Bytes in a cache line.
pub(super) const LINE: usize = 64;

/// Reads are asked for this far ahead in packed order. Prefetchers stop at the end of a row: asking across
/// it brings rows of 8 KiB from 0.80 to 0.88 of `memcpy`.
const AHEAD: usize = 4096;

/// Rows that are read in turn: as many streams from memory at a time bring another tenth.
pub(super) const ROWS: u64 = 8;

/// How many runs of `len` bytes further on reads are asked for.
pub(super) fn runs_ahead(len: usize) -> i64 {
    (AHEAD / len.max(1)).max(1) as i64
}

/// Bytes from `to` to the next line.
pub(super) fn to_line(to: *const u8) -> usize {
    to.addr().wrapping_neg() % LINE
}

/// Makes the stores of this file visible before any later store.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: orders stores, and every x86-64 processor has it.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
}

/// Moves a run. Its bytes are asked for ahead of their use, and those behind its end at `far`: the run
/// [`runs_ahead`] further on.
///
/// # Safety
///
/// As [`copy`]. `far` is only a hint.
pub(super) unsafe fn run(from: *const u8, to: *mut u8, len: usize, far: *const u8) {
    let head = to_line(to).min(len);
    // SAFETY: the first `head` of `len` bytes; the caller's promise.
    unsafe { copy(from, to, head) };
    let ahead = AHEAD.min(len);
    let mut at = head;
    while at + 4 * LINE <= len {
        let next = at + ahead;
        let near = if next < len { from.wrapping_add(next) } else { far.wrapping_add(next - len) };
        for i in 0..4 {
            prefetch(near.wrapping_add(i * LINE));
        }
        // SAFETY: four of the lines that are left of `len` bytes, and `to + at` begins one.
        unsafe { lines::<4>(from.wrapping_add(at), to.wrapping_add(at)) };
        at += 4 * LINE;
    }
    while at + LINE <= len {
        // SAFETY: a line of those that are left.
        unsafe { lines::<1>(from.wrapping_add(at), to.wrapping_add(at)) };
        at += LINE;
    }
    // SAFETY: what is left of `len` bytes; the caller's promise.
    unsafe { copy(from.wrapping_add(at), to.wrapping_add(at), len - at) };
}

/// Moves `N` lines; all loads come before the first store.
///
/// # Safety
///
/// As [`copy`], for `N` lines, and `to` begins one.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn lines<const N: usize>(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_setzero_si128, _mm_stream_si128};

    // SAFETY: a register is set to nothing; every x86-64 processor has it.
    let mut words = [[unsafe { _mm_setzero_si128() }; 4]; N];
    for (i, word) in words.as_flattened_mut().iter_mut().enumerate() {
        // SAFETY: 16 of `N × 64` readable bytes, of any alignment.
        *word = unsafe { _mm_loadu_si128(from.wrapping_add(16 * i).cast()) };
    }
    for (i, word) in words.as_flattened().iter().enumerate() {
        // SAFETY: 16 of `N × 64` writable bytes, aligned to 16 as a line is.
        unsafe { _mm_stream_si128(to.wrapping_add(16 * i).cast(), *word) };
    }
}

/// Moves `N` lines.
///
/// # Safety
///
/// As [`copy`], for `N` lines.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(super) unsafe fn lines<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { copy(from, to, N * LINE) };
}

/// Moves [`ROWS`] rows of whole lines, `step` apart on the side read and back to back on the other, all of
/// them a little at a time.
///
/// # Safety
///
/// The processor has AVX2; as [`copy`] for each row; `to` begins a line and `len` is a number of lines.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn rows(from: *mut u8, step: i64, to: *mut u8, len: usize) {
    use std::arch::x86_64::{_mm256_loadu_si256, _mm256_setzero_si256, _mm256_stream_si256};
    /// Each row's reads are asked for this far ahead.
    const AHEAD: usize = 512;

    let mut at = 0;
    while at + 2 * LINE <= len {
        let (mut source, mut target) = (from.wrapping_add(at), to.wrapping_add(at));
        for _ in 0..ROWS {
            prefetch(source.wrapping_add(AHEAD));
            prefetch(source.wrapping_add(AHEAD + LINE));
            let mut words = [_mm256_setzero_si256(); 4];
            for (i, word) in words.iter_mut().enumerate() {
                // SAFETY: 32 of the two lines at `at` of this row, which has them; any alignment.
                *word = unsafe { _mm256_loadu_si256(source.wrapping_add(32 * i).cast()) };
            }
            for (i, word) in words.iter().enumerate() {
                // SAFETY: 32 writable bytes of the row's packed lines, aligned to 32 as lines are.
                unsafe { _mm256_stream_si256(target.wrapping_add(32 * i).cast(), *word) };
            }
            source = shifted(source, step);
            target = target.wrapping_add(len);
        }
        at += 2 * LINE;
    }
    if at < len {
        let (mut source, mut target) = (from.wrapping_add(at), to.wrapping_add(at));
        for _ in 0..ROWS {
            // SAFETY: the one line that is left of this row.
            unsafe { lines::<1>(source, target) };
            source = shifted(source, step);
            target = target.wrapping_add(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_every_length_and_alignment() {
        let from: Vec<u8> = (0..6000u32).map(|i| (i * 7 % 251) as u8).collect();
        for len in (0..700).chain([1023, 1024, 4095, 4096, 4097, 5003]) {
            for (shift, place) in [(0, 0), (1, 0), (0, 1), (3, 63), (8, 8), (17, 32)] {
                let mut to = vec![0xee; 5200];
                let start = to_line(to.as_ptr()) + place;
                // SAFETY: `len + 17` bytes fit the source, `start + len` the target; they are distinct.
                unsafe {
                    run(
                        from.as_ptr().wrapping_add(shift),
                        to.as_mut_ptr().wrapping_add(start),
                        len,
                        from.as_ptr(),
                    )
                };
                fence();
                assert_eq!(
                    to[start..start + len],
                    from[shift..shift + len],
                    "{len} {shift} {place}"
                );
                let outside = to[..start].iter().chain(&to[start + len..]);
                assert!(outside.copied().all(|byte| byte == 0xee), "{len} {shift} {place}");
            }
        }
    }
}
