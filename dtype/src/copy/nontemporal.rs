//! Stores that go around the cache, a line at a time. Lines that a run shares with its neighbours are stored
//! in the ordinary way, so no line is stored both ways.
//!
//! Such stores are weakly ordered: [`fence`] comes before anyone is told of the bytes.
//!
//! Units: bytes.

use super::copy;
use super::method::Level;
use super::prefetch;

/// Bytes in a cache line.
pub(super) const LINE: usize = 64;

/// Reads are asked for this far ahead in packed order. Prefetchers stop at the end of a row: asking across
/// it brings rows of 8 KiB from 0.80 to 0.88 of `memcpy`.
const AHEAD: usize = 4096;

/// Runs that are read in turn: as many streams from memory at a time bring another tenth.
pub(super) const PIECES: usize = 8;

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

/// One run on its way: read at `from`, written at `to`.
#[derive(Clone, Copy)]
pub(super) struct CopyPiece {
    pub(super) from: *const u8,
    pub(super) to: *mut u8,
    pub(super) len: usize,
}

impl CopyPiece {
    /// What is left behind the first `bytes` bytes.
    fn after(self, bytes: usize) -> CopyPiece {
        let (from, to) = (self.from.wrapping_add(bytes), self.to.wrapping_add(bytes));
        CopyPiece { from, to, len: self.len - bytes }
    }

    /// Moves what comes before the first whole line; gives the rest.
    ///
    /// # Safety
    ///
    /// As [`copy`].
    unsafe fn head(self) -> CopyPiece {
        let head = to_line(self.to).min(self.len);
        // SAFETY: the first `head` of `len` bytes; the caller's promise.
        unsafe { copy(self.from, self.to, head) };
        self.after(head)
    }
}

/// Moves a run that others follow in memory, on the side that is read. Prefetchers see that, and asking for lines
/// ahead of them only disturbs: without, half the rows of a matrix of 64 MiB are unpacked in 0.90 of the time that
/// the C library takes for them, with asking in 0.96 to 1.04; and whole rows of a face are no worse than by the C
/// library, however long.
///
/// # Safety
///
/// The processor is of this level; as [`copy`].
pub(super) unsafe fn straight(level: Level, piece: CopyPiece) {
    // SAFETY: the caller's promise.
    let CopyPiece { from, to, len } = unsafe { piece.head() };
    let (whole, rest) = (len / LINE, len % LINE);
    // SAFETY: the processor is of this level; lines of those that are left, and `to` begins one.
    unsafe { move_lines::<false>(level, from, to, whole, from) };
    let (from, to) = (from.wrapping_add(whole * LINE), to.wrapping_add(whole * LINE));
    // SAFETY: what is left of `len` bytes; the caller's promise.
    unsafe { copy(from, to, rest) };
}

/// Moves a run. Its bytes are asked for ahead of their use, and those behind its end at `far`: the run
/// [`runs_ahead`] further on.
///
/// # Safety
///
/// The processor is of this level; as [`copy`]. `far` is only a hint.
pub(super) unsafe fn run(level: Level, piece: CopyPiece, far: *const u8) {
    // SAFETY: the caller's promise.
    let CopyPiece { from, to, len } = unsafe { piece.head() };
    let whole = len / LINE;
    let ahead = AHEAD.min(len);
    let mut at = 0;
    // A part at a time, between which the place asked for may turn to `far`.
    while at < whole {
        let lines = (whole - at).min(LINES_PER_LOOK);
        let next = at * LINE + ahead;
        let near = if next < len { from.wrapping_add(next) } else { far.wrapping_add(next - len) };
        let (source, target) = (from.wrapping_add(at * LINE), to.wrapping_add(at * LINE));
        // SAFETY: the processor is of this level; lines of those that are left, and `target` begins one.
        unsafe { move_lines::<true>(level, source, target, lines, near) };
        at += lines;
    }
    // SAFETY: what is left of `len` bytes; the caller's promise.
    unsafe { copy(from.wrapping_add(whole * LINE), to.wrapping_add(whole * LINE), len % LINE) };
}

/// Lines that are moved between two looks at where to prefetch.
const LINES_PER_LOOK: usize = 16;

/// Moves lines, and where `ASK` asks for as many at `near`. Wide registers matter while others use the memory too: unpacking
/// long rows reaches 0.92 of `memcpy` by 128 bits at a time then, 1.07 by 256, 1.09 by 512.
///
/// # Safety
///
/// The processor is of this level; as [`copy`], for that many lines, and `to` begins one.
unsafe fn move_lines<const ASK: bool>(
    level: Level,
    from: *const u8,
    to: *mut u8,
    lines: usize,
    near: *const u8,
) {
    #[cfg(target_arch = "x86_64")]
    match level {
        // SAFETY: the caller's promise.
        Level::Avx512 => unsafe { wide::lines_512::<ASK>(from, to, lines, near) },
        // SAFETY: the caller's promise.
        Level::Avx2 => unsafe { wide::lines_256::<ASK>(from, to, lines, near) },
        // SAFETY: the caller's promise, and every x86-64 processor has the instructions.
        _ => unsafe { wide::lines_128::<ASK>(from, to, lines, near) },
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (level, near);
        // SAFETY: the caller's promise.
        unsafe { copy(from, to, lines * LINE) };
    }
}

/// Each of several runs' reads are asked for this far ahead, but not beyond its end: there lies what nobody reads. Its
/// first ones are asked for when it begins to wait for others ([`ask`]).
const AHEAD_TOGETHER: usize = 512;

/// Of runs that are moved together each is so many pairs of lines behind the one before it. Where they are whole pages
/// long and moved in step, all lines that are written have the same place within a page: a Zen 3 packs rows of 4, 8 and
/// 16 KiB at 3 GB/s then, at 10 where each is one pair behind, at 11 to 14 where it is two, and the C library at 7.
const LAG: usize = 2;

/// Shorter runs, in pairs of lines, are moved in step: too little of them would be moved together.
const LAGGING_MIN: usize = 16;

/// Asks for the first lines of a run that will be moved together with others.
#[inline]
pub(super) fn ask(piece: &CopyPiece) {
    for at in (0..piece.len.min(AHEAD_TOGETHER)).step_by(LINE) {
        prefetch(piece.from.wrapping_add(at));
    }
}

/// Moves some runs, all of them a little at a time: memory gives more to several streams than to one.
///
/// # Safety
///
/// The processor is of this level; as [`copy`] for each.
pub(super) unsafe fn together(level: Level, pieces: &[CopyPiece; PIECES]) {
    let mut pieces = *pieces;
    for piece in &mut pieces {
        // SAFETY: the caller's promise.
        *piece = unsafe { piece.head() };
    }
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx2 {
        let shared = pieces.iter().map(|piece| piece.len / LINE / 2).min().unwrap_or(0);
        let lag = if shared >= LAGGING_MIN { LAG } else { 0 };
        // SAFETY: the processor has AVX2, each piece as many pairs of lines, and begins one.
        unsafe { wide::pairs_256(&pieces, shared, lag) };
        for piece in &mut pieces {
            *piece = piece.after(2 * LINE * shared);
        }
    }
    for piece in pieces {
        // SAFETY: what is left of each piece; the caller's promise.
        unsafe { run(level, piece, piece.from.wrapping_add(piece.len)) };
    }
}

/// The loops, by width of registers.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    use super::{AHEAD_TOGETHER, CopyPiece, LINE, PIECES};
    use crate::copy::prefetch;

    /// Defines a function that moves lines by registers of one width.
    macro_rules! lines {
        ($name:ident, $feature:literal, $register:ty, $load:ident, $store:ident) => {
            /// # Safety
            ///
            /// The processor has the feature; as [`move_lines`](super::move_lines).
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name<const ASK: bool>(
                from: *const u8,
                to: *mut u8,
                lines: usize,
                near: *const u8,
            ) {
                const STEP: usize = size_of::<$register>();
                for at in (0..lines * LINE).step_by(LINE) {
                    if ASK {
                        prefetch(near.wrapping_add(at));
                    }
                    for at in (at..at + LINE).step_by(STEP) {
                        // SAFETY: a part of a line that may be read, of any alignment.
                        let word = unsafe { $load(from.wrapping_add(at).cast()) };
                        // SAFETY: a part of a line that may be written, aligned as lines are.
                        unsafe { $store(to.wrapping_add(at).cast::<$register>(), word) };
                    }
                }
            }
        };
    }

    lines!(lines_128, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128);
    lines!(lines_256, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256);
    lines!(lines_512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512);

    /// Moves the first pairs of lines of all pieces, each piece `lag` pairs behind the one before it.
    ///
    /// # Safety
    ///
    /// The processor has AVX2; as [`copy`](super::copy) for so many pairs of lines of each piece, all of which
    /// begin one.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn pairs_256(pieces: &[CopyPiece; PIECES], pairs: usize, lag: usize) {
        for turn in 0..pairs + lag * (PIECES - 1) {
            for (i, piece) in pieces.iter().enumerate() {
                // Of those whose turn is not yet, a number beyond all pairs.
                let pair = turn.wrapping_sub(lag * i);
                if pair >= pairs {
                    continue;
                }
                let at = pair * 2 * LINE;
                let (source, target) = (piece.from.wrapping_add(at), piece.to.wrapping_add(at));
                if at + AHEAD_TOGETHER < piece.len {
                    prefetch(source.wrapping_add(AHEAD_TOGETHER));
                    prefetch(source.wrapping_add(AHEAD_TOGETHER + LINE));
                }
                for at in (0..2 * LINE).step_by(32) {
                    // SAFETY: 32 bytes of a pair of lines of this piece, of any alignment.
                    let word = unsafe { _mm256_loadu_si256(source.wrapping_add(at).cast()) };
                    // SAFETY: likewise, aligned to 32 as lines are.
                    unsafe { _mm256_stream_si256(target.wrapping_add(at).cast(), word) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_every_length_and_alignment() {
        let from: Vec<u8> = (0..=250).cycle().take(6000).collect();
        for len in (0..700).chain([1023, 1024, 4095, 4096, 4097, 5003]) {
            for (shift, place) in [(0, 0), (1, 0), (0, 1), (3, 63), (8, 8), (17, 32)] {
                let mut to = vec![0xee; 5200];
                let start = to_line(to.as_ptr()) + place;
                let piece = CopyPiece {
                    from: from.as_ptr().wrapping_add(shift),
                    to: to.as_mut_ptr().wrapping_add(start),
                    len,
                };
                for level in [Level::Baseline, Level::Avx2, Level::Avx512] {
                    to.fill(0xee);
                    // SAFETY: `len + 17` bytes fit the source, `start + len` the target; they are distinct.
                    unsafe { run(level.known(), piece, from.as_ptr()) };
                    fence();
                    let check = |to: &[u8]| {
                        let (got, expected) = (&to[start..start + len], &from[shift..shift + len]);
                        assert_eq!(got, expected, "{len} {shift} {place} {level:?}");
                        let mut outside = to[..start].iter().chain(&to[start + len..]).copied();
                        assert!(outside.all(|byte| byte == 0xee), "{len} {shift} {place}");
                    };
                    check(&to);
                    to.fill(0xee);
                    // SAFETY: as above.
                    unsafe { straight(level.known(), piece) };
                    fence();
                    check(&to);
                }
            }
        }
    }

    #[test]
    fn several_runs_of_several_lengths() {
        let from: Vec<u8> = (0..=250).cycle().take(30_000).collect();
        for level in [Level::Baseline, Level::Avx2, Level::Avx512] {
            for (shortest, step, shift) in
                [(64, 0, 0), (1000, 8, 8), (1500, 100, 3), (0, 300, 1), (2048, 1, 5)]
            {
                let mut to = vec![0xee; 30_000];
                let mut expected = to.clone();
                let mut pieces =
                    [CopyPiece { from: from.as_ptr(), to: to.as_mut_ptr(), len: 0 }; PIECES];
                let (mut read, mut written) = (17, shift);
                for (i, piece) in pieces.iter_mut().enumerate() {
                    let len = shortest + i * step;
                    piece.from = piece.from.wrapping_add(read);
                    piece.to = piece.to.wrapping_add(written);
                    piece.len = len;
                    expected[written..written + len].copy_from_slice(&from[read..read + len]);
                    (read, written) = (read + len + 40, written + len);
                }
                // SAFETY: runs of both vectors, which are distinct.
                unsafe { together(level.known(), &pieces) };
                fence();
                assert!(to == expected, "{level:?} {shortest} {step} {shift}");
            }
        }
    }
}
