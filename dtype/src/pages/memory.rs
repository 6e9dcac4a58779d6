//! Memory of lists that are gone, for the next ones: a long list in memory that is fresh from the system costs a page
//! fault for every 4 KiB, which take ten times as long as the copy.

use std::sync::{Mutex, PoisonError};

/// Lists of so many bytes are kept.
const KEPT_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=4 << 20;

/// How many lists of one width are kept: one for each end of two operations.
const KEPT_MAX: usize = 4;

/// A kind of indices.
pub(super) trait Index: Copy + 'static {
    /// What is kept, that which was given first in front.
    fn kept() -> &'static Mutex<Vec<Vec<Self>>>;
}

impl Index for u32 {
    fn kept() -> &'static Mutex<Vec<Vec<u32>>> {
        static KEPT: Mutex<Vec<Vec<u32>>> = Mutex::new(Vec::new());
        &KEPT
    }
}

impl Index for u64 {
    fn kept() -> &'static Mutex<Vec<Vec<u64>>> {
        static KEPT: Mutex<Vec<Vec<u64>>> = Mutex::new(Vec::new());
        &KEPT
    }
}

/// A list of these indices, in memory that was kept if some is long enough.
pub(super) fn collect<T: Index>(indices: impl ExactSizeIterator<Item = T>) -> Vec<T> {
    let len = indices.len();
    let kept = (len * size_of::<T>() >= *KEPT_BYTES.start()).then(|| {
        let mut kept = T::kept().lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|list| list.capacity() >= len)?;
        Some(kept.remove(at))
    });
    let mut list = kept.flatten().unwrap_or_default();
    list.extend(indices);
    list
}

/// Keeps the memory of a list that nobody needs any more.
pub(super) fn keep<T: Index>(list: &mut Vec<T>) {
    if !KEPT_BYTES.contains(&(list.capacity() * size_of::<T>())) {
        return;
    }
    list.clear();
    let mut kept = T::kept().lock().unwrap_or_else(PoisonError::into_inner);
    kept.push(std::mem::take(list));
    let oldest = (kept.len() > KEPT_MAX).then(|| kept.remove(0));
    drop(kept);
    drop(oldest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Datatype, PageIndices, Pages, Primitive};

    /// The only test with lists as long as those that are kept.
    #[test]
    fn the_memory_of_long_lists_is_used_again() {
        let page = Datatype::from(Primitive::Byte).commit().unwrap();
        let listed = |len: usize| Pages::new(&page, 1, &vec![7u64; len][..]).unwrap();
        let place = |pages: &Pages| match pages.indices() {
            PageIndices::U64(list) => (list.as_ptr().addr(), list.capacity()),
            PageIndices::U32(_) => panic!("they were of 64 bits"),
        };
        let (first, clone) = (listed(9000), listed(9001));
        let (place_of_first, place_of_clone) = (place(&first), place(&clone));
        let indices = clone.indices().clone();
        drop((first, clone));
        let again = listed(9000);
        assert_eq!(place(&again), place_of_first);
        assert_eq!(again.indices(), &PageIndices::from(vec![7u64; 9000]));
        assert_ne!(place(&listed(9001)), place_of_clone, "somebody has it");
        assert_eq!(indices, PageIndices::from(vec![7u64; 9001]));
        // A longer one takes no shorter one's memory; few are kept, none that is very short or long.
        let many: Vec<Pages> = (0..9).map(|more| listed(10_000 + more)).collect();
        drop((many, listed(10), listed(1 << 20)));
        let kept = u64::kept().lock().unwrap();
        let lens: Vec<usize> = kept.iter().map(Vec::capacity).collect();
        assert_eq!(lens, [10_005, 10_006, 10_007, 10_008]);
    }
}
