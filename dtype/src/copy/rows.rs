//! Rows: runs of a line or more that follow each other at one step, equal or growing by a constant, moved by
//! ordinary stores. A call of the C library for each costs as much as it moves when rows are short.
//!
//! Measured on a Zen 5, from memory to memory: short rows 8 lines at a time, longer ones 4, all read before any is
//! written. Rows of 720 bytes take 0.76 of the C library's time by 8 lines at a time, 0.82 by 4, 1.2 by one; rows of
//! 1 and 2.8 KiB 0.89 and 0.69 by 4, 0.93 and 0.74 by 8. Only the first line of a later row is asked for: it finds the
//! page and starts the prefetchers, which brings 3 % where packing and 5 % where unpacking. A line of the packed bytes a
//! page ahead, and what the first rows need before them, bring 10 % more at 64 KiB. Asking for all lines takes a
//! processor's few buffers from them: rows of 1 KiB were unpacked in 1.07 of the C library's time so, where now it is
//! 0.87.
//!
//! What machines make of that differs. From memory, an idle Xeon (Sapphire Rapids) unpacks 64 KiB of rows of 720 bytes
//! and 1 KiB in 0.65 and 0.75 of the time where all lines are asked for 16 ahead, a Zen 4 in 1.05 to 1.28. So both are
//! [tried](super::trial). Packing takes 1.09 to 1.14 of the time so, on both.
//!
//! Equal rows from [`CALLED_MIN`] on are packed by these loops or by the C library, which is tried, too. A Zen 3 packs
//! 256 pages that are 512 KiB apart into 1 MiB that is not in cache in 205 µs by the loops, in 148 where all lines are
//! asked for, and in 105 by the C library: `rep movsb` does not read the lines that it writes. Rows of 1 KiB that are 32
//! KiB apart take 11 and 5.7 µs.
//!
//! Stores around the cache would unpack 64 KiB in 0.75 of the C library's time, and whoever then reads them would
//! wait 4.6 µs for what took 1.3 less.
//!
//! The last line of a row overlaps the one before, so that every byte written belongs to the row: gaps stay
//! untouched. Units: bytes.

use super::method::Level;
use super::pieces::copy_long;
use super::shifted;
use super::trial::Trial;
use crate::program::AffineLengths;
use crate::run::in_memory;

/// Rows of one length up to this are moved by loops for that length.
pub(super) const SHORTEST: u64 = 128;

/// From so many bytes on, it is tried whether all lines are asked for.
const TRIED_MIN: u64 = 16 << 10;

/// Rows are tried together with those of about their length: the longest has so many bytes at most.
const ALIKE: [u64; 3] = [1 << 10, 4 << 10, 16 << 10];

/// Equal rows of so many bytes to [`LONGEST`] are packed by the loops or by the C library, which is tried.
const CALLED_MIN: u64 = 1 << 10;

/// Longer rows are tried apart from shorter ones: the C library may copy them in another way.
const CALLED_LONG: u64 = 4 << 10;

/// Calls that move so much are tried apart from others, which are often parts of messages, with places in cache.
const CALLED_MUCH: u64 = 256 << 10;

/// Longer rows are the C library's.
const LONGEST: u64 = 16 << 10;

thread_local! {
    static TRIALS: [Trial; ALIKE.len()] = const { [const { Trial::new() }; ALIKE.len()] };
    static CALLED: [[Trial; 2]; 2] = const { [const { [const { Trial::new() }; 2] }; 2] };
}

/// Rows on both sides.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Where the first lies.
    pub(super) user: *mut u8,
    /// Where its packed bytes lie.
    pub(super) packed: *mut u8,
    /// From one to the next in user memory.
    pub(super) step: i64,
    pub(super) lens: AffineLengths,
    pub(super) count: u64,
}

impl Rows {
    /// Moves all of them, in order. Returns whether it did: not on a processor without the instructions.
    ///
    /// # Safety
    ///
    /// The bytes of each row, and its packed bytes, which follow each other, are accessible, writable where they
    /// are copied to, and the two do not overlap.
    pub(super) unsafe fn run<const PACK: bool>(self, level: Level) -> bool {
        let level = level.known();
        if PACK && level != Level::Baseline && self.may_be_called() {
            // SAFETY: the caller's promise, for packing.
            return unsafe { self.called(level) };
        }
        if !PACK
            && level != Level::Baseline
            && let Some(alike) = self.tried_with()
        {
            // SAFETY: the caller's promise, for unpacking.
            return unsafe { self.tried(level, alike) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.by::<PACK>(level, false) }
    }

    /// Whether it is tried if the C library packs them.
    #[inline]
    fn may_be_called(&self) -> bool {
        let AffineLengths { len: len @ CALLED_MIN..=LONGEST, len_step: 0 } = self.lens else {
            return false;
        };
        len * self.count >= TRIED_MIN
    }

    /// Packs equal rows by the loops or by the C library, whichever is quicker by now.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run), on a processor of the level.
    #[inline(never)]
    unsafe fn called(self, level: Level) -> bool {
        let (len, bytes) = (self.lens.len, self.lens.len * self.count);
        let (long, much) = (usize::from(len >= CALLED_LONG), usize::from(bytes >= CALLED_MUCH));
        let by = |library| match library {
            true => {
                // SAFETY: the caller's promise.
                unsafe { self.by_the_library() };
                true
            }
            // SAFETY: the caller's promise.
            false => unsafe { self.by::<true>(level, false) },
        };
        CALLED.with(|trials| trials[long][much].call(bytes, by))
    }

    /// Packs equal rows, each by a call of the C library.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run), for packing.
    unsafe fn by_the_library(self) {
        let Rows { mut user, mut packed, step, lens, count } = self;
        let len = in_memory(lens.len);
        for _ in 0..count {
            // SAFETY: a row; the caller's promise.
            unsafe { copy_long(user, packed, len) };
            user = shifted(user, step);
            packed = packed.wrapping_add(len);
        }
    }

    /// Unpacks rows, with all lines asked for or without, whichever is quicker by now.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run), on a processor of the level.
    #[inline(never)]
    unsafe fn tried(self, level: Level, alike: usize) -> bool {
        let bytes = match self.lens {
            AffineLengths { len, len_step: 0 } => len * self.count,
            lens => lens.before(self.count).unwrap_or(0),
        };
        // SAFETY: the caller's promise.
        let by = |asking| unsafe { self.by::<false>(level, asking) };
        TRIALS.with(|trials| trials[alike].call(bytes, by))
    }

    /// Which trial they are part of, if there are enough of them, as far as that is quickly seen.
    #[inline]
    fn tried_with(&self) -> Option<usize> {
        let longest = self.lens.len.max(self.lens.at(self.count.saturating_sub(1)));
        if longest.saturating_mul(self.count) < TRIED_MIN {
            return None;
        }
        ALIKE.iter().position(|most| longest <= *most)
    }

    /// As [`run`](Self::run), when unpacking with all lines asked for or without.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run), on a processor of the level.
    #[inline(always)]
    unsafe fn by<const PACK: bool>(self, level: Level, asking: bool) -> bool {
        #[cfg(target_arch = "x86_64")]
        match (level, asking && !PACK) {
            // SAFETY: the processor has AVX-512; the caller's promise.
            (Level::Avx512, false) => unsafe { wide::rows_512::<PACK>(self) },
            // SAFETY: as above.
            (Level::Avx512, true) => unsafe { wide::asking_512(self) },
            // SAFETY: the processor has AVX2; the caller's promise.
            (Level::Avx2, false) => unsafe { wide::rows_256::<PACK>(self) },
            // SAFETY: as above.
            (Level::Avx2, true) => unsafe { wide::asking_256(self) },
            _ => return false,
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (level, asking);
        cfg!(target_arch = "x86_64")
    }
}

/// The loops, by width of registers.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_loadu_si256, _mm256_setzero_si256, _mm256_storeu_si256,
        _mm512_loadu_si512, _mm512_setzero_si512, _mm512_storeu_si512,
    };
    use std::sync::atomic::{Ordering, compiler_fence};

    use super::Rows;
    use crate::copy::nontemporal::LINE;
    use crate::copy::pieces::copy_long;
    use crate::copy::{copy, prefetch, prefetch_to_write, shifted};
    use crate::run::in_memory;

    /// [`LONGEST`](super::LONGEST), as lengths are here.
    const LONGEST: usize = in_memory(super::LONGEST);

    /// Rows shorter than this are moved by more lines at a time.
    const SHORT: usize = 1024;

    /// The row so many further on has its first line asked for; 2 and 8 are alike.
    const ROWS_AHEAD: u64 = 4;

    /// So far ahead a line of the packed bytes is asked for with each row, and never one behind their end, which may be
    /// another processor's: prefetchers stop at the end of a page, and begin anew behind it.
    const PACKED_AHEAD: usize = 4096;

    /// From so many bytes on, what the first rows need is asked for before them.
    const MANY: usize = 16 << 10;

    /// Asks for a line of user memory.
    #[inline(always)]
    fn near<const PACK: bool>(user: *const u8) {
        if PACK { prefetch(user) } else { prefetch_to_write(user) }
    }

    /// Asks for a line of packed bytes.
    #[inline(always)]
    fn near_packed<const PACK: bool>(packed: *const u8) {
        if PACK { prefetch_to_write(packed) } else { prefetch(packed) }
    }

    /// So many lines ahead, where all are asked for; 8 and 32 are alike.
    const LINES_AHEAD: usize = 16;

    /// Asks for all lines of rows, in order.
    struct Asked {
        rows: Rows,
        at: usize,
        len: usize,
    }

    impl Asked {
        fn of(rows: Rows) -> Asked {
            Asked { rows, at: 0, len: in_memory(rows.lens.at(0)) }
        }

        /// The next four lines, as far as there are any.
        #[inline(always)]
        fn four(&mut self) {
            for _ in 0..4 {
                if self.rows.count == 0 {
                    return;
                }
                prefetch_to_write(self.rows.user.wrapping_add(self.at));
                self.at += LINE;
                if self.at >= self.len {
                    let Rows { user, step, lens, count, .. } = &mut self.rows;
                    *count -= 1;
                    *user = shifted(*user, *step);
                    lens.len = lens.at(1);
                    (self.at, self.len) = (0, in_memory(lens.len));
                }
            }
        }
    }

    /// Defines a function that moves rows by registers of one width, short ones by `$lines` lines at a time.
    macro_rules! rows {
        ($name:ident, $asking:ident, $row:ident, $some:ident, $lines:literal, $feature:literal, $register:ty, $zero:ident, $load:ident, $store:ident) => {
            /// # Safety
            ///
            /// The processor has the feature; as [`Rows::run`].
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name<const PACK: bool>(rows: Rows) {
                let Rows { mut user, mut packed, step, lens, count } = rows;
                let ahead = step.wrapping_mul(ROWS_AHEAD.cast_signed());
                let mut left = in_memory(lens.before(count).unwrap_or(0));
                // What comes before anything was asked for ahead.
                if left >= MANY {
                    for j in 1..ROWS_AHEAD.min(count) {
                        near::<PACK>(shifted(user, step.wrapping_mul(j.cast_signed())));
                    }
                    for at in (0..PACKED_AHEAD).step_by(PACKED_AHEAD / 4) {
                        near_packed::<PACK>(packed.wrapping_add(at));
                    }
                }
                for j in 0..count {
                    if j + ROWS_AHEAD < count {
                        near::<PACK>(shifted(user, ahead));
                    }
                    if left > PACKED_AHEAD {
                        near_packed::<PACK>(packed.wrapping_add(PACKED_AHEAD));
                    }
                    let len = in_memory(lens.at(j));
                    let (from, to) = if PACK { (user, packed) } else { (packed, user) };
                    match len {
                        // SAFETY: a row; the caller's promise.
                        0..LINE => unsafe { copy(from, to, len) },
                        // SAFETY: a row of a line or more; the caller's promise.
                        LINE..SHORT => unsafe { $row::<$lines>(from, to, len) },
                        // SAFETY: as above.
                        SHORT..=LONGEST => unsafe { $row::<4>(from, to, len) },
                        // SAFETY: as above.
                        _ => unsafe { copy_long(from, to, len) },
                    }
                    user = shifted(user, step);
                    packed = packed.wrapping_add(len);
                    left = left.saturating_sub(len);
                }
            }

            /// Unpacks rows, of which all lines are asked for, some time before they are written.
            ///
            /// # Safety
            ///
            /// The processor has the feature; as [`Rows::run`], for unpacking.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $asking(rows: Rows) {
                let Rows { user: mut to, packed: mut from, step, lens, count } = rows;
                let mut left = in_memory(lens.before(count).unwrap_or(0));
                let mut asked = Asked::of(rows);
                for _ in 0..LINES_AHEAD / 4 {
                    asked.four();
                }
                for j in 0..count {
                    if left > PACKED_AHEAD {
                        prefetch(from.wrapping_add(PACKED_AHEAD));
                    }
                    let len = in_memory(lens.at(j));
                    let whole = len - len % (4 * LINE);
                    for at in (0..whole).step_by(4 * LINE) {
                        asked.four();
                        // SAFETY: as many lines, all in the row; the caller's promise.
                        unsafe { $some::<4>(from.wrapping_add(at), to.wrapping_add(at)) };
                    }
                    if whole < len {
                        asked.four();
                        // SAFETY: the rest of the row; the caller's promise.
                        unsafe {
                            copy(from.wrapping_add(whole), to.wrapping_add(whole), len - whole)
                        };
                    }
                    to = shifted(to, step);
                    from = from.wrapping_add(len);
                    left = left.saturating_sub(len);
                }
            }

            /// Moves a row, `LINES` lines at a time, of the rest as many as there are.
            ///
            /// # Safety
            ///
            /// The processor has the feature; as [`copy`], for a line or more.
            #[inline]
            #[target_feature(enable = $feature)]
            unsafe fn $row<const LINES: usize>(from: *const u8, to: *mut u8, len: usize) {
                let mut at = 0;
                while len - at >= LINES * LINE {
                    // SAFETY: as many lines, all in the row; the caller's promise.
                    unsafe { $some::<LINES>(from.wrapping_add(at), to.wrapping_add(at)) };
                    at += LINES * LINE;
                }
                if LINES > 4 && len - at >= 4 * LINE {
                    // SAFETY: as above.
                    unsafe { $some::<4>(from.wrapping_add(at), to.wrapping_add(at)) };
                    at += 4 * LINE;
                }
                if len - at >= 2 * LINE {
                    // SAFETY: as above.
                    unsafe { $some::<2>(from.wrapping_add(at), to.wrapping_add(at)) };
                    at += 2 * LINE;
                }
                if len - at >= LINE {
                    // SAFETY: as above.
                    unsafe { $some::<1>(from.wrapping_add(at), to.wrapping_add(at)) };
                    at += LINE;
                }
                if at < len {
                    // The last line begins earlier, to end with the row.
                    let last = len - LINE;
                    // SAFETY: a line in the row; the caller's promise.
                    unsafe { $some::<1>(from.wrapping_add(last), to.wrapping_add(last)) };
                }
            }

            /// Moves `LINES` lines, all of which are read before any is written, upwards: compilers write the last
            /// ones first unless told not to, and processors gather lines best in their order.
            ///
            /// # Safety
            ///
            /// The processor has the feature; as [`copy`].
            #[inline]
            #[target_feature(enable = $feature)]
            unsafe fn $some<const LINES: usize>(from: *const u8, to: *mut u8) {
                const STEP: usize = size_of::<$register>();
                const EACH: usize = LINE / STEP;
                let mut words = [[$zero(); EACH]; LINES];
                for (i, word) in words.as_flattened_mut().iter_mut().enumerate() {
                    // SAFETY: bytes that may be read, of any alignment.
                    *word = unsafe { $load(from.wrapping_add(i * STEP).cast()) };
                }
                for (i, word) in words.as_flattened().iter().enumerate() {
                    compiler_fence(Ordering::Release);
                    // SAFETY: bytes that may be written, of any alignment.
                    unsafe { $store(to.wrapping_add(i * STEP).cast(), *word) };
                }
            }
        };
    }

    rows!(
        rows_256,
        asking_256,
        row_256,
        lines_256,
        4,
        "avx2",
        __m256i,
        _mm256_setzero_si256,
        _mm256_loadu_si256,
        _mm256_storeu_si256
    );
    rows!(
        rows_512,
        asking_512,
        row_512,
        lines_512,
        8,
        "avx512f",
        __m512i,
        _mm512_setzero_si512,
        _mm512_loadu_si512,
        _mm512_storeu_si512
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_every_length_there_and_back() {
        for level in
            [Level::Avx2, Level::Avx512].into_iter().filter(|&level| level.known() != level)
        {
            println!("skipped: this processor has no {level:?}");
        }
        let source: Vec<u8> = (0..=250).cycle().take(80_000).collect();
        let few = [
            (17, 30, 20),
            (900, -31, 20),
            (2600, 64, 9),
            (17_000, -700, 4),
            (1024, 0, 20),
            (4096, 0, 9),
            (5001, 0, 9),
        ];
        let all = (1..400).map(|len| (len, 0, 6)).chain(few);
        let mut called = 0;
        for (level, (len, len_step, count)) in
            all.flat_map(|rows| [Level::Avx2, Level::Avx512].map(|level| (level, rows)))
        {
            let lens = AffineLengths { len, len_step };
            let longest = len.max(lens.at(count - 1));
            let step = longest.cast_signed() + 5;
            let total = in_memory(lens.before(count).unwrap());
            let row = |j: u64| in_memory(j) * in_memory(longest + 5) + 3;
            let mut expected = Vec::new();
            for j in 0..count {
                expected.extend_from_slice(&source[row(j)..row(j) + in_memory(lens.at(j))]);
            }
            let mut packed = vec![0xee; total + 2];
            let rows = Rows {
                user: source.as_ptr().cast_mut().wrapping_add(3),
                packed: packed.as_mut_ptr().wrapping_add(1),
                step,
                lens,
                count,
            };
            // SAFETY: the rows lie in `source`, which is only read, their bytes in `packed`.
            if !unsafe { rows.run::<true>(level) } {
                assert_eq!(level.known(), Level::Baseline, "it has the instructions");
                continue;
            }
            assert_eq!(packed[1..=total], expected, "{len} {len_step} {level:?}");
            assert_eq!((packed[0], packed[total + 1]), (0xee, 0xee), "{len} {len_step} {level:?}");
            if rows.may_be_called() {
                packed.fill(0xee);
                let rows = Rows { packed: packed.as_mut_ptr().wrapping_add(1), ..rows };
                // SAFETY: as above.
                unsafe { rows.by_the_library() };
                assert_eq!(packed[1..=total], expected, "{len} by the library");
                assert_eq!((packed[0], packed[total + 1]), (0xee, 0xee), "{len} by the library");
                called += 1;
            }

            let mut whole = vec![0xaa; source.len()];
            for j in 0..count {
                let place = row(j)..row(j) + in_memory(lens.at(j));
                whole[place.clone()].copy_from_slice(&source[place]);
            }
            for asking in [false, true] {
                let mut back = vec![0xaa; source.len()];
                let rows = Rows {
                    user: back.as_mut_ptr().wrapping_add(3),
                    packed: packed.as_mut_ptr().wrapping_add(1),
                    ..rows
                };
                // SAFETY: as above, the other way round.
                assert!(unsafe { rows.by::<false>(level.known(), asking) });
                assert!(back == whole, "{len} {len_step} {level:?} {asking}");
            }
        }
        assert!(called > 0 || Level::Best.known() == Level::Baseline, "some rows are for it");
    }
}
