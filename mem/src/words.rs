//! Memory that several processes read and write at the same time: as atomic words, so that nothing another process
//! writes there is a race, whatever it is.

use crate::{DeviceError, Lease, Region, WORD_BYTES};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory as 64-bit words in native byte order, kept alive by its lease.
///
/// Another process may write anything at any time. So every word that is read is a value that somebody has written,
/// or zero, and no more is known of it.
#[derive(Clone, Debug)]
pub struct Words {
    /// Keeps the memory.
    _lease: Lease,
    /// The address of the first one.
    start: usize,
    count: usize,
}

impl Words {
    /// The words of `lease`; bytes behind the last whole word are left out.
    ///
    /// # Safety
    /// While a clone of the lease lives, its region describes initialised memory that is valid for reads and writes,
    /// and that this process touches through atomic words only: through this value, its clones, or others like it.
    ///
    /// # Errors
    /// The CPU must not touch the space; the memory does not start at a multiple of a word's length.
    pub unsafe fn new(lease: Lease) -> Result<Words, DeviceError> {
        let region = lease.region();
        let start = pointer(&region)?;
        if !start.is_aligned() {
            return Err(DeviceError::Unsupported { what: "words that are not aligned" });
        }
        let count = usize::try_from(region.len() / WORD_BYTES).unwrap_or(0);
        Ok(Words { _lease: lease, start: start.expose_provenance(), count })
    }

    /// All words.
    #[must_use]
    #[inline]
    pub fn all(&self) -> &[AtomicU64] {
        let start = std::ptr::with_exposed_provenance(self.start);
        // SAFETY: `new` has found `start` aligned; the words lie inside the region. Its caller guarantees memory that is
        // initialised (any bytes are words) and valid for reads and writes while the lease lives, which `self` keeps,
        // and that nothing of this process touches other than by atomics.
        unsafe { std::slice::from_raw_parts(start, self.count) }
    }
}

/// Words of a line, and of a unit, which is what [`store_lines`] stores whole.
const LINE: usize = 8;
const UNIT: usize = 2;

/// Stores lines of 64 bytes into memory that was [mapped](crate::Mapper) for the processor, from the word `at` on, of which
/// the first is at a multiple of a line. A device that looks at 16 aligned bytes, whose first two bytes say that they are
/// whole, finds all of them then, and sees what this thread has stored before the call. Lines may arrive in any order;
/// [`settle_stores`] sees to it that they do.
///
/// Where the processor has an instruction that stores 64 bytes at once (`MOVDIR64B`), that is used; else words, those
/// with the first bytes last.
///
/// # Panics
/// The lines leave the words; they are not aligned.
#[inline]
pub fn store_lines(words: &Words, at: usize, lines: &[[u64; LINE]]) {
    store_lines_by(*WHOLE, words, at, lines);
}

/// That the processor stores 64 bytes at once (`MOVDIR64B`).
#[derive(Clone, Copy, Debug)]
struct Whole(());

/// Made here alone: CPUID, leaf 7, ECX, bit 28.
static WHOLE: LazyLock<Option<Whole>> = LazyLock::new(|| {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid_count;
        // A processor without leaf 7 answers with the numbers of another one.
        let has = __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ecx >> 28 & 1 != 0;
        has.then_some(Whole(()))
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
});

/// As [`store_lines`], by whole lines if the processor has an instruction for that, else by words.
#[inline]
fn store_lines_by(whole: Option<Whole>, words: &Words, at: usize, lines: &[[u64; LINE]]) {
    let all = &words.all()[at..at + LINE * lines.len()];
    assert!(
        at.is_multiple_of(LINE) && (words.start + 8 * at).is_multiple_of(8 * LINE),
        "lines that are not aligned"
    );
    #[cfg(target_arch = "x86_64")]
    if whole.is_some() {
        // The instruction is ordered with no stores before it, such as those of a body elsewhere.
        settle_stores();
        for (place, line) in all.chunks_exact(LINE).zip(lines).rev() {
            // SAFETY: the processor has the instruction, as `whole` says. It reads the 64 bytes of `line` and writes
            // those of `place`, which lie in `all`, are aligned, and which this process touches by atomic words alone,
            // so that it may store there.
            unsafe {
                std::arch::asm!(
                    "movdir64b {to}, [{from}]",
                    to = in(reg) place.as_ptr(),
                    from = in(reg) line.as_ptr(),
                    options(nostack, preserves_flags),
                );
            }
        }
        return;
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = whole;
    let store = |first: usize| {
        for (word, value) in all.iter().zip(lines.as_flattened()).skip(first).step_by(UNIT) {
            word.store(*value, Ordering::Relaxed);
        }
    };
    store(1);
    // Stores of one unit may arrive in any order, but for this.
    settle_stores();
    store(0);
}

/// Stores of this thread that came before are seen before those that come after, also by a device that looks at its own
/// memory, which was [mapped](crate::Mapper) for the processor: such stores are combined, and a release alone does not
/// order them.
#[inline]
pub fn settle_stores() {
    std::sync::atomic::fence(Ordering::Release);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, which touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Where the words start.
#[inline]
fn pointer(region: &Region) -> Result<*const AtomicU64, DeviceError> {
    let wrong = || DeviceError::WrongSpace { device: "the CPU".to_owned(), space: region.space() };
    Ok(region.as_ptr().ok_or_else(wrong)?.cast::<AtomicU64>().cast_const())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Space;
    use std::sync::Arc;

    fn words(at: u64, len: u64) -> Result<Words, DeviceError> {
        let memory: Arc<[AtomicU64; 4]> = Arc::default();
        let start = memory.as_ptr().expose_provenance() as u64;
        // SAFETY: the array is kept by the Arc.
        let lease = unsafe { Lease::new(Region::new(Space::Host, start, at, len), memory) };
        // SAFETY: it is zeroed, and touched by these words alone.
        unsafe { Words::new(lease) }
    }

    #[test]
    fn clones_share_the_words_and_keep_the_memory() {
        let one = words(8, 23).unwrap();
        let other = one.clone();
        assert_eq!(one.all().len(), 2, "whole words only");
        one.all()[1].store(7, Ordering::Release);
        drop(one);
        assert_eq!(other.all()[1].load(Ordering::Acquire), 7);
    }

    #[test]
    fn what_is_no_word_is_refused() {
        assert!(matches!(words(4, 16), Err(DeviceError::Unsupported { .. })));
        let region = Region::new(Space::Cuda { device: 0 }, 64, 0, 8);
        // SAFETY: nobody uses the memory.
        let lease = unsafe { Lease::kept_by_caller(region) };
        // SAFETY: refused before anything is touched.
        assert!(matches!(unsafe { Words::new(lease) }, Err(DeviceError::WrongSpace { .. })));
        assert_eq!(words(0, 0).unwrap().all().len(), 0);
    }

    #[repr(align(64))]
    #[derive(Default)]
    struct Lines([AtomicU64; 32]);

    /// Four lines, zeroed.
    fn lines() -> Words {
        let memory: Arc<Lines> = Arc::default();
        let start = memory.0.as_ptr().expose_provenance() as u64;
        let region = Region::new(Space::Host, start, 0, 256);
        // SAFETY: the Arc keeps it.
        let lease = unsafe { Lease::new(region, memory) };
        // SAFETY: it is zeroed, and touched by these words alone.
        unsafe { Words::new(lease) }.unwrap()
    }

    /// Both ways of storing, as far as this processor has them.
    fn ways() -> impl Iterator<Item = Option<Whole>> {
        println!("whole lines, beside words: {:?}", *WHOLE);
        std::iter::once(None).chain(WHOLE.map(Some))
    }

    #[test]
    fn lines_are_stored_where_they_belong_and_nowhere_else() {
        for whole in ways() {
            let words = lines();
            let two = [[0; LINE]; 2].map(|line| std::array::from_fn(|at| line[at] + at as u64 + 1));
            store_lines_by(whole, &words, 8, &two);
            settle_stores();
            let load = |word: &AtomicU64| word.load(Ordering::Acquire);
            let found: Vec<u64> = words.all().iter().map(load).collect();
            let line: Vec<u64> = (1..=8).collect();
            assert_eq!(found, [vec![0; 8], line.clone(), line, vec![0; 8]].concat(), "{whole:?}");
            for (at, count) in [(4, 1), (24, 2)] {
                let store = || store_lines_by(whole, &words, at, &vec![[9; LINE]; count]);
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(store));
                assert!(done.is_err(), "{whole:?}, {at}");
            }
        }
    }

    /// Whoever finds the first word of a unit finds the rest of it, and what was stored before the call: so a line that is
    /// torn says so. Lines that are stored by one instruction are not torn.
    #[test]
    fn who_finds_the_first_word_of_a_unit_finds_all_of_it() {
        const ROUNDS: u64 = 20_000;
        for whole in ways() {
            let (words, before) = (lines(), AtomicU64::new(0));
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    for round in 1..=ROUNDS {
                        before.store(round, Ordering::Relaxed);
                        store_lines_by(whole, &words, 8, &[[round; LINE]; 2]);
                        settle_stores();
                        if round % 256 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
                let load = |at: usize| words.all()[at].load(Ordering::Acquire);
                let mut ended = false;
                while !ended {
                    // Then it looks once more.
                    ended = writer.is_finished();
                    for first in (8..24).step_by(UNIT) {
                        let found = load(first);
                        let rest = load(first + 1);
                        assert!(rest >= found, "{whole:?}, {first}: {rest} < {found}");
                        assert!(before.load(Ordering::Relaxed) >= found, "{whole:?}");
                    }
                    if whole.is_some() {
                        // From its last word to its first.
                        let found: Vec<u64> = (8..16).rev().map(load).collect();
                        assert!(found.is_sorted(), "a line that was torn: {found:?}");
                    }
                }
            });
        }
    }
}
