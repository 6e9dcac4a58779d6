//! Which stores and which instructions a copy uses. What bytes there are afterwards never depends on it.
//!
//! A store to a line that is not in cache first reads it. Where megabytes are written that were not in
//! cache, that read is a third of all traffic, and stores that go around the cache save it: measured on a
//! Zen 5 with 32 MiB of last-level cache, packing 8 MiB of long rows rises from 0.7 to 1.0 of `memcpy` and unpacking
//! them from 0.92 to 1.1, a triangle from 0.65 to 0.9, a transpose from 0.66 to 0.95. Where the lines *are* in
//! cache the same stores cost half of the speed. The size of a copy does not tell which it is, so it is asked:
//! loads from the destination are timed, four to eight, which costs about a microsecond. The answer decides over
//! kinds of stores and nothing else.
//!
//! Units: bytes, and ticks of the processor's time-stamp counter.

/// Copies of fewer bytes never go around the cache: it holds them until they are used, and asking would
/// cost a share of them.
pub(crate) const STREAM_MIN: u64 = 512 << 10;

/// Several long runs at a time, around the cache, pay from here on. Below, ordinary stores are better: 1 MiB of rows is
/// packed in 0.83 of the time, a triangle in 0.72.
const TOGETHER_MIN: u64 = 2 << 20;

/// Parts of copies of so many bytes, such as fragments of messages, are unpacked around the cache where whole copies
/// are.
///
/// Messages of rows and triangles between two processes, over ordinary stores. On an idle Xeon (Sapphire Rapids, 300
/// MiB of last-level cache; buffers of 64 and of 512 MiB in turn): 8 MiB in 0.79 to 0.81 of the time, 64 MiB in 0.89 to
/// 0.91, and with 8 MiB that are read at once 0.89 to 0.96. On a busy Zen 4 (32 MiB), 4 to 64 MiB in 0.95 to 1.03, read
/// at once 1.02 to 1.08. Shorter messages gain, too, if no one reads them: 1 MiB takes 0.77 to 0.81 of the time on the
/// Xeon, 0.88 to 0.96 on the Zen 4. But messages of 0.5 to 2 MiB that are read at once take 1.15 to 1.4 of the time
/// there: ordinary stores leave them in cache.
const PART_OF: u64 = 4 << 20;

/// Shorter parts have too few lines to ask.
const PART_MIN: u64 = 32 << 10;

/// Runs at least this long go around the cache: of shorter ones, the two lines that each shares with its
/// neighbours are too many.
pub(super) const LONG: u64 = 512;

/// What a copy may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    pub(super) level: Level,
    /// Copies of fewer bytes use ordinary stores.
    pub(super) stream_min: u64,
    /// Copies of fewer bytes pack long runs one after the other.
    pub(super) together_min: u64,
    /// Parts of copies of fewer bytes do.
    pub(super) part_of: u64,
    /// Whether the destination is asked; if not, it counts as not being in cache.
    pub(super) asks: bool,
}

/// Instructions beyond those that every processor of the family has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// None.
    Baseline,
    /// 256-bit loads and stores.
    Avx2,
    /// 512-bit loads, stores and shuffles.
    Avx512,
    /// Whatever the processor has.
    Best,
}

impl Method {
    /// What is fastest here.
    pub(crate) const BEST: Method = Method {
        level: Level::Best,
        stream_min: STREAM_MIN,
        together_min: TOGETHER_MIN,
        part_of: PART_OF,
        asks: true,
    };

    /// Everything that this processor can be made to do, however little there is to copy.
    #[cfg(feature = "testkit")]
    pub(crate) const FORCED: [Method; 5] = [
        Method { stream_min: u64::MAX, ..Method::forced(Level::Baseline) },
        Method { stream_min: u64::MAX, ..Method::forced(Level::Best) },
        Method::forced(Level::Baseline),
        Method::forced(Level::Avx2),
        Method::forced(Level::Best),
    ];

    #[cfg(feature = "testkit")]
    const fn forced(level: Level) -> Method {
        Method { level, stream_min: 0, together_min: 0, part_of: u64::MAX, asks: false }
    }

    /// As [`BEST`](Self::BEST), with every destination taken for one that is not in cache.
    #[cfg(test)]
    pub(crate) const COLD: Method = Method { asks: false, ..Method::BEST };

    pub(crate) fn level(self) -> Level {
        self.level
    }

    /// Whether copies of `bytes` bytes may go around the cache.
    pub(crate) fn may_stream(self, bytes: u64) -> bool {
        cfg!(target_arch = "x86_64") && bytes >= self.stream_min
    }

    /// Whether long runs among `bytes` bytes of a copy of `whole` bytes may, when they are unpacked.
    pub(crate) fn may_stream_part(self, bytes: u64, whole: u64) -> bool {
        cfg!(target_arch = "x86_64") && bytes >= PART_MIN && whole >= self.part_of
    }

    /// Whether single words should, given eight places of the destination with one accessible word each.
    pub(super) fn streams_words(self, place: impl Fn(u64) -> *const u8) -> bool {
        !self.asks || cold_words(place)
    }

    /// Whether they should, given eight places of the destination with [`LONG`] accessible bytes each.
    pub(crate) fn streams(self, place: impl Fn(u64) -> *const u8) -> bool {
        !self.asks || cold(place)
    }
}

impl Level {
    /// The best that the processor has and this level allows.
    #[inline]
    pub(super) fn known(self) -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            let has_512 = || is_x86_feature_detected!("avx512f");
            if self >= Level::Avx512 && has_512() && !without_avx512() {
                return Level::Avx512;
            }
            if self >= Level::Avx2 && is_x86_feature_detected!("avx2") {
                return Level::Avx2;
            }
        }
        Level::Baseline
    }
}

/// Whether tests want the best instructions left alone; see `testkit`.
#[cfg(all(target_arch = "x86_64", feature = "testkit"))]
use crate::testkit::without_avx512;

#[cfg(all(target_arch = "x86_64", not(feature = "testkit")))]
#[inline]
const fn without_avx512() -> bool {
    false
}

/// Answers to whether a copy goes around the cache, as far as they were asked for.
pub(super) struct Stores {
    method: Method,
    level: Level,
    known: Option<bool>,
    /// The same of words far apart.
    words: Option<bool>,
}

impl Stores {
    pub(super) fn new(method: Method) -> Stores {
        Stores { method, level: method.level.known(), known: None, words: None }
    }

    /// Whether the machine is asked at all.
    pub(super) fn asks(&self) -> bool {
        self.method.asks
    }

    /// The same with an answer that is known beforehand.
    pub(super) fn with(self, known: Option<bool>) -> Stores {
        Stores { known, ..self }
    }

    /// The answer, if it was asked for.
    pub(super) fn known(&self) -> Option<bool> {
        self.known
    }

    /// The best level there is.
    pub(super) fn level(&self) -> Level {
        self.level
    }

    /// Whether `bytes` bytes of words far apart go around the cache; `place` gives eight of the words. Asked again
    /// as for [`stream`](Self::stream).
    pub(super) fn stream_words(&mut self, bytes: u64, place: impl Fn(u64) -> *const u8) -> bool {
        match self.words {
            Some(known) if bytes < STREAM_MIN => known,
            _ => *self.words.insert(self.method.streams_words(place)),
        }
    }

    /// Whether `bytes` bytes go around the cache; `place` gives eight places among them, with [`LONG`] bytes
    /// each. Asked again for every large span; small ones are like the last.
    pub(super) fn stream(&mut self, bytes: u64, place: impl Fn(u64) -> *const u8) -> bool {
        match self.known {
            Some(known) if bytes < STREAM_MIN => known,
            _ => *self.known.insert(self.method.streams(place)),
        }
    }
}

/// How many places are asked.
pub(super) const SAMPLES: u64 = 8;

/// The `i`th of as many places among `n` as are asked: at no constant stride, which prefetchers follow.
pub(crate) fn sample(i: u64, n: u64) -> u64 {
    const PLACES: [u64; 8] = [37, 5, 52, 23, 61, 12, 44, 30];
    const { assert!(PLACES.len() as u64 == SAMPLES) };
    let at = PLACES[crate::run::in_memory(i % SAMPLES)];
    n / 64 * at + n % 64 * at / 64
}

/// Whether at least half of eight places are not in cache.
#[cfg(target_arch = "x86_64")]
fn cold(place: impl Fn(u64) -> *const u8) -> bool {
    // First loads, whose times do not count, bring the pages' addresses, all at once.
    (0..SAMPLES).for_each(|i| touch(place(i)));
    // Prefetchers bring the next few lines, and the one that followed the last time.
    let further = |i: u64| if i.is_multiple_of(2) { 448 } else { 384 };
    half(|i| timed(place(i).wrapping_add(further(i))) > COLD_TICKS)
}

/// Whether `slow` holds for at least half of the places; asks no more of them than it takes.
#[cfg(target_arch = "x86_64")]
fn half(slow: impl Fn(u64) -> bool) -> bool {
    (0..SAMPLES).filter(|&i| slow(i)).nth(crate::run::in_memory(SAMPLES) / 2 - 1).is_some()
}

#[cfg(not(target_arch = "x86_64"))]
fn cold(_: impl Fn(u64) -> *const u8) -> bool {
    false
}

/// As [`cold`], of places that share no line or page with what may be touched besides: the time of a load has that
/// of finding its page in it.
#[cfg(target_arch = "x86_64")]
fn cold_words(place: impl Fn(u64) -> *const u8) -> bool {
    half(|i| timed(place(i)) > COLD_TICKS + PAGE_TICKS)
}

#[cfg(not(target_arch = "x86_64"))]
fn cold_words(_: impl Fn(u64) -> *const u8) -> bool {
    false
}

/// What finding a page takes where its tables are in cache.
#[cfg(target_arch = "x86_64")]
const PAGE_TICKS: u64 = 80;

/// A load that takes longer comes from memory. Last-level caches answer within 30 to 90 ticks of counters at
/// 2 to 4 GHz, memory takes 200 and more.
#[cfg(target_arch = "x86_64")]
const COLD_TICKS: u64 = 140;

/// Ticks that a load takes.
#[cfg(target_arch = "x86_64")]
fn timed(place: *const u8) -> u64 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};

    // SAFETY: waits for earlier loads, and every x86-64 processor has it.
    unsafe { _mm_lfence() };
    // SAFETY: reads a counter, which every x86-64 processor has.
    let before = unsafe { _rdtsc() };
    touch(place);
    // SAFETY: as above, for this load.
    unsafe { _mm_lfence() };
    // SAFETY: as above.
    let after = unsafe { _rdtsc() };
    after.wrapping_sub(before)
}

/// The processor's time-stamp counter; nothing where there is none.
pub(super) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: reads a counter, which every x86-64 processor has.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        0
    }
}

/// Loads a byte.
#[cfg(target_arch = "x86_64")]
fn touch(place: *const u8) {
    use std::mem::MaybeUninit;

    // SAFETY: a byte of a copy's destination, which may be accessed; what is there may be anything, even
    // uninitialised, and is not looked at.
    let _: MaybeUninit<u8> = unsafe { place.cast::<MaybeUninit<u8>>().read_volatile() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_go_down_to_what_there_is() {
        assert_eq!(Level::Baseline.known(), Level::Baseline);
        assert!(Level::Avx2.known() <= Level::Avx2);
        assert!(Level::Best.known() <= Level::Avx512);
    }

    #[test]
    fn answers_hold_until_a_large_span_comes() {
        let memory = vec![0u8; 8 * 4096];
        let place = |i: u64| memory.as_ptr().wrapping_add(crate::run::in_memory(i) * 4096);
        let mut never_asks = Stores::new(Method::FORCED[2]);
        assert!(never_asks.stream(10, place));
        let mut stores = Stores { known: Some(true), ..Stores::new(Method::BEST) };
        assert!(stores.stream(STREAM_MIN - 1, place), "like the last");
        // Whatever the answer, it is the same until the next large span.
        let answer = stores.stream(STREAM_MIN, place);
        assert_eq!(stores.stream(1, place), answer);
    }
}
