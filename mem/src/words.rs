//! Memory that several processes read and write at the same time: as atomic words, so that nothing another process
//! writes there is a race, whatever it is.

use crate::{DeviceError, Lease, Region, WORD_BYTES};
use std::sync::atomic::AtomicU64;

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
    use std::sync::atomic::Ordering;

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
}
