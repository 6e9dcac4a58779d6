//! Words of memory that another process changes, too: read and exchanged atomically.
//!
//! Both ends do nothing else to such a word, and trust nothing that they find in it. Exchanges are ordered: what was
//! written before one is seen by whoever reads the word it left.

use crate::{DeviceError, Region};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
pub const WORD_BYTES: u64 = 8;

/// The word at `offset` of `region`.
///
/// # Safety
/// As [`load_word`].
unsafe fn word<'w>(region: &Region, offset: u64) -> Result<&'w AtomicU64, DeviceError> {
    let piece = region.sub(offset, WORD_BYTES)?;
    let wrong = || DeviceError::WrongSpace { device: "the CPU".to_owned(), space: piece.space() };
    let pointer = piece.as_ptr().ok_or_else(wrong)?.cast::<u64>();
    if !pointer.is_aligned() {
        return Err(DeviceError::Unsupported { what: "a word that is not aligned" });
    }
    // SAFETY: the word lies inside `region` (checked by `sub`), which the caller guarantees valid and touched
    // by nothing but this module; it is aligned.
    Ok(unsafe { AtomicU64::from_ptr(pointer) })
}

/// The word at `offset` of `region`, in native byte order.
///
/// # Safety
/// During the call `region` describes memory valid for reads and writes, which this process touches
/// through functions of this module only.
///
/// # Errors
/// It does not lie inside, or not at a multiple of its length, or the CPU must not touch the space.
pub unsafe fn load_word(region: &Region, offset: u64) -> Result<u64, DeviceError> {
    // SAFETY: the caller's guarantee.
    let word = unsafe { word(region, offset) }?;
    Ok(word.load(Ordering::Acquire))
}

/// Puts `new` in the place of the word at `offset` of `region`, if that is `old`; gives what was found.
///
/// # Safety
/// As [`load_word`].
///
/// # Errors
/// As [`load_word`].
pub unsafe fn exchange_word(
    region: &Region,
    offset: u64,
    old: u64,
    new: u64,
) -> Result<u64, DeviceError> {
    // SAFETY: the caller's guarantee.
    let word = unsafe { word(region, offset) }?;
    let exchanged = word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
    Ok(exchanged.unwrap_or_else(|found| found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Space;

    #[test]
    fn a_word_is_exchanged_once() {
        let mut memory = [0u64; 2];
        let region = Region::of_mut(zerobytes(&mut memory));
        // SAFETY: `region` describes `memory`, which nothing else touches meanwhile.
        let exchange = |old, new| unsafe { exchange_word(&region, 8, old, new) }.unwrap();
        assert_eq!([exchange(0, 7), exchange(0, 9), exchange(7, 8)], [0, 7, 7]);
        // SAFETY: as above.
        assert_eq!(unsafe { load_word(&region, 8) }, Ok(8));
        // SAFETY: as above.
        assert_eq!(unsafe { load_word(&region, 0) }, Ok(0));
    }

    #[test]
    fn what_is_no_word_is_refused() {
        let mut memory = [0u64; 2];
        let region = Region::of_mut(zerobytes(&mut memory));
        for offset in [4, 9, 12, u64::MAX] {
            // SAFETY: refused before anything is touched.
            assert!(unsafe { load_word(&region, offset) }.is_err(), "{offset}");
        }
        let device = Region::new(Space::Cuda { device: 0 }, 64, 0, 8);
        // SAFETY: as above.
        assert!(unsafe { exchange_word(&device, 0, 0, 1) }.is_err());
    }

    fn zerobytes(words: &mut [u64; 2]) -> &mut [u8] {
        // SAFETY: as many bytes as the words have; any bytes are words.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 16) }
    }
}
