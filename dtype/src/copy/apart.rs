//! Words far apart, unpacked around the cache: a face of a cube across its fastest axis, whose elements lie whole
//! pages from each other. An ordinary store reads the line that the word is in, to write it back later; a store
//! around the cache hands memory the word alone.
//!
//! Measured on a Zen 5, runs of 32 bytes on 262144 pages: 0.75 of the time; of 8 bytes, 0.62. On a Xeon in a virtual
//! machine, 4 times and more: there memory must read what a word alone is to change. So the first copy of enough runs
//! tries both in turn, and what was faster is what the process does from then on.
//!
//! Such stores are weakly ordered: [`fence`](super::nontemporal::fence) comes before anyone is told of the bytes.
//!
//! Units: bytes; words of 8 bytes.

use std::sync::atomic::{AtomicU8, Ordering};

use super::{SPARSE, SPARSE_AHEAD, SPARSE_LEN};

/// Bytes of a word.
const WORD: u64 = 8;

/// Runs that a trial moves at a time.
pub(super) const TRIED: u64 = 256;
/// How often a trial does so with either kind of stores.
pub(super) const TRIES: usize = 4;

/// What a trial has shown of this machine: an answer of [`Verdict`].
static VERDICT: AtomicU8 = AtomicU8::new(Verdict::Open as u8);

/// Whether such stores pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verdict {
    Open,
    Pays,
    Costs,
}

impl Verdict {
    /// What is known by now.
    pub(super) fn now() -> Verdict {
        match VERDICT.load(Ordering::Relaxed) {
            1 => Verdict::Pays,
            2 => Verdict::Costs,
            _ => Verdict::Open,
        }
    }

    /// Of the ticks that runs took around the cache and through it: of the quickest try of each, since whatever
    /// disturbs a try makes it slower.
    pub(super) fn of(around: [u64; TRIES], through: [u64; TRIES]) -> Verdict {
        match around.iter().min() < through.iter().min() {
            true => Verdict::Pays,
            false => Verdict::Costs,
        }
    }

    /// Settles it for this process.
    pub(super) fn settle(self) {
        VERDICT.store(self as u8, Ordering::Relaxed);
    }
}

/// Equal runs of whole words, far apart.
#[derive(Clone, Copy)]
pub(super) struct Apart {
    stride: i64,
    words: u64,
    count: u64,
}

impl Apart {
    /// Runs of `len` bytes from `to` on; `None` of others.
    pub(super) fn new(to: *const u8, stride: i64, len: u64, count: u64) -> Option<Apart> {
        let far = stride.unsigned_abs() >= SPARSE && len <= SPARSE_LEN && count >= SPARSE_AHEAD;
        let aligned = (to.addr() as u64 | stride.unsigned_abs() | len).is_multiple_of(WORD);
        let here = cfg!(target_arch = "x86_64");
        (here && far && aligned).then_some(Apart { stride, words: len / WORD, count })
    }

    /// The first so many of them, at most as many as there are.
    pub(super) fn first(self, count: u64) -> Apart {
        Apart { count: count.min(self.count), ..self }
    }

    /// Unpacks them.
    ///
    /// # Safety
    ///
    /// This was made for `to`; the runs may be written, their packed bytes be read, and the two do not overlap.
    pub(super) unsafe fn run(&self, to: *mut u8, from: *const u8) {
        macro_rules! by_words {
            ($($words:literal)*) => {
                match self.words {
                    // SAFETY: the caller's promise.
                    $($words => unsafe { self.scatter::<$words>(to, from) },)*
                    _ => unreachable!("runs are a line at most"),
                }
            };
        }
        by_words!(1 2 3 4 5 6 7 8);
    }

    /// # Safety
    ///
    /// As [`run`](Self::run), of runs of `WORDS` words.
    unsafe fn scatter<const WORDS: usize>(&self, to: *mut u8, from: *const u8) {
        let (mut to, mut from) = (to, from);
        for _ in 0..self.count {
            for at in (0..WORDS * 8).step_by(8) {
                // SAFETY: a word of the packed bytes; the caller's promise.
                let word = unsafe { from.wrapping_add(at).cast::<i64>().read_unaligned() };
                // SAFETY: a word of a run, which are aligned; the caller's promise.
                unsafe { put(to.wrapping_add(at).cast(), word) };
            }
            from = from.wrapping_add(WORDS * 8);
            to = super::shifted(to, self.stride);
        }
    }
}

/// # Safety
///
/// The word may be written, and is aligned.
#[inline(always)]
unsafe fn put(to: *mut i64, word: i64) {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller's promise, and every x86-64 processor has it.
        unsafe { std::arch::x86_64::_mm_stream_si64(to, word) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: the caller's promise.
        unsafe { to.write(word) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::nontemporal::fence;
    use super::*;

    #[test]
    fn words_land_in_their_runs_and_nowhere_else() {
        let packed: Vec<u8> = (0..=250).cycle().take(64 * 70 + 1).collect();
        for len in (8..=64).step_by(8) {
            for stride in [1024usize, 1032] {
                let mut user = vec![u64::MAX / 3; 70 * stride / 8 + 16];
                let mut bytes: Vec<u8> = user.iter().flat_map(|word| word.to_ne_bytes()).collect();
                for i in 0..70 {
                    let from = &packed[1 + i * len..][..len];
                    bytes[8 + i * stride..][..len].copy_from_slice(from);
                }
                let to = user.as_mut_ptr().cast::<u8>().wrapping_add(8);
                let apart =
                    Apart::new(to, stride.cast_signed() as i64, len as u64, 70).expect("far apart");
                // SAFETY: all runs lie in `user`, their bytes in `packed`.
                unsafe { apart.run(to, packed.as_ptr().wrapping_add(1)) };
                fence();
                let got: Vec<u8> = user.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert!(got == bytes, "{len} {stride}");
            }
        }
    }

    #[test]
    fn others_are_not_taken() {
        let to = std::ptr::without_provenance::<u8>(4096);
        assert!(Apart::new(to, -2048, 8, 64).is_some());
        assert!(Apart::new(to, 512, 8, 64).is_none(), "near");
        assert!(Apart::new(to, 2048, 12, 64).is_none(), "no whole words");
        assert!(Apart::new(to.wrapping_add(4), 2048, 8, 64).is_none(), "not aligned");
        assert!(Apart::new(to, 2048, 72, 64).is_none(), "long");
        assert!(Apart::new(to, 2048, 8, 63).is_none(), "few");
    }
}
