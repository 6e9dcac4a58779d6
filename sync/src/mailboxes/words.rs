//! Private bytes into the words of an entry, and out of them.
//!
//! Word by word, an entry of 1 KiB is 128 stores. They leave the store buffer in their order, each line when the caches
//! of its readers have given it up, and so many stores keep the processor from asking for more than a few lines at a
//! time. So what is longer than a line is moved 32 bytes at a time where the processor can. Entries that several ranks
//! read are stored word by word: among 16 ranks of a Xeon, collectives in which each reads another line of 1 KiB took
//! 1.1 to 1.3 times as long with wide stores.

use super::primitive::{AtomicU64, Ordering};

/// Puts bytes into the first words; those behind the last byte of a word become 0. `many`: many at a time.
#[inline]
pub(super) fn store(words: &[AtomicU64], bytes: &[u8], many: bool) {
    let moved = if many { wide::store(words, bytes) } else { 0 };
    let (whole, rest) = bytes.get(moved..).unwrap_or_default().as_chunks::<8>();
    let mut places = words.get(moved / 8..).unwrap_or_default().iter();
    for (bytes, place) in whole.iter().zip(places.by_ref()) {
        place.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if let Some(place) = places.next().filter(|_| !rest.is_empty()) {
        let mut bytes = [0; 8];
        bytes[..rest.len()].copy_from_slice(rest);
        place.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
}

/// Gets bytes out of the first words; what lies behind the last one is left as it is.
#[inline]
pub(super) fn load(words: &[AtomicU64], into: &mut [u8]) {
    let moved = wide::load(words, into);
    let (whole, rest) = into.get_mut(moved..).unwrap_or_default().as_chunks_mut::<8>();
    let mut places = words.get(moved / 8..).unwrap_or_default().iter();
    for (bytes, place) in whole.iter_mut().zip(places.by_ref()) {
        *bytes = place.load(Ordering::Relaxed).to_ne_bytes();
    }
    if let Some(place) = places.next().filter(|_| !rest.is_empty()) {
        rest.copy_from_slice(&place.load(Ordering::Relaxed).to_ne_bytes()[..rest.len()]);
    }
}

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod wide {
    use super::AtomicU64;

    /// Bytes that are moved at a time: two registers.
    const STRIDE: usize = 64;

    /// How many strides there are in so many bytes and as many words.
    fn strides(words: usize, bytes: usize) -> usize {
        bytes.min(8 * words) / STRIDE
    }

    /// Stores whole strides; how many bytes these are.
    #[inline]
    pub(super) fn store(words: &[AtomicU64], bytes: &[u8]) -> usize {
        let count = strides(words.len(), bytes.len());
        if count < 2 || !std::arch::is_x86_feature_detected!("avx") {
            return 0;
        }
        // SAFETY: both are so long. The words are atomics, behind a shared reference, so they may be written. Who reads
        // them has acquired a flag that is stored later, or throws away what it has read (`Mailbox::was_excused`).
        unsafe { move_strides(bytes.as_ptr(), words.as_ptr().cast_mut().cast(), count) };
        count * STRIDE
    }

    /// Loads whole strides; how many bytes these are.
    #[inline]
    pub(super) fn load(words: &[AtomicU64], into: &mut [u8]) -> usize {
        let count = strides(words.len(), into.len());
        if count < 2 || !std::arch::is_x86_feature_detected!("avx") {
            return 0;
        }
        // SAFETY: both are so long, and `into` is borrowed exclusively. The words were stored before a flag that was
        // acquired, or what is read is thrown away.
        unsafe { move_strides(words.as_ptr().cast(), into.as_mut_ptr(), count) };
        count * STRIDE
    }

    /// Moves so many strides, one at least.
    ///
    /// # Safety
    /// `from` is valid for reads and `to` for writes of so many bytes, which do not overlap; those of one are private,
    /// those of the other are words that others touch as atomics at most. The processor has AVX.
    unsafe fn move_strides(from: *const u8, to: *mut u8, count: usize) {
        // SAFETY: loads and stores of `count` times 64 bytes, which the caller vouches for. It is assembly because no
        // language has such accesses to memory that others may touch.
        unsafe {
            std::arch::asm!(
                "2:",
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu [{to}], ymm0",
                "vmovdqu [{to} + 32], ymm1",
                "add {from}, 64",
                "add {to}, 64",
                "sub {count}, 1",
                "jnz 2b",
                "vzeroupper",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                count = inout(reg) count => _,
                // `vzeroupper` changes the upper halves of all.
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack),
            );
        }
    }
}

/// All goes word by word.
#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
mod wide {
    use super::AtomicU64;

    #[inline]
    pub(super) fn store(_: &[AtomicU64], _: &[u8]) -> usize {
        0
    }

    #[inline]
    pub(super) fn load(_: &[AtomicU64], _: &mut [u8]) -> usize {
        0
    }
}
