//! Lists of particles and mesh points: which `k` of `len` elements are sent, in which order.
//!
//! The applications' lists come from their meshes; DDTBench draws them. It seeds with the clock,
//! so its block counts differ from run to run; Open MPI's port steps by 37 instead, which never
//! makes neighbours adjacent and gives exact counts. Both are here, the drawn one with a seed.

use crate::error::LayoutError;

/// The longest list that is drawn from, in entries (1 GiB of them).
pub const MAX_LIST_ENTRIES: u64 = 1 << 27;

const STEP: u64 = 37;

/// How index lists are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexList {
    /// Entry `i` is `37 i mod len`: Open MPI's stand-in.
    #[default]
    Step37,
    /// DDTBench's: take 0 … len−1, swap every entry with a random one, keep the first `k`.
    /// By chance, about `k / len` neighbours per list are adjacent and merge.
    Shuffled {
        /// Determines the list completely, on every machine.
        seed: u64,
    },
}

impl IndexList {
    /// The first `k` of `len` elements, each at most once. `stream` tells apart the lists of one
    /// datatype: with the same seed, different streams are different lists.
    ///
    /// # Errors
    /// [`LayoutError::Parameters`] if `k` is 0 or above `len`, or if stepping by 37 would repeat
    /// an element; [`LayoutError::TooLarge`] if `len` exceeds [`MAX_LIST_ENTRIES`].
    pub fn take(
        self,
        layout: &'static str,
        len: u64,
        k: u64,
        stream: u64,
    ) -> Result<Vec<i64>, LayoutError> {
        if len > MAX_LIST_ENTRIES {
            return Err(LayoutError::TooLarge { layout });
        }
        if k == 0 || k > len {
            let rule = "a list takes at least one element and no more than there are";
            return Err(LayoutError::Parameters { layout, rule });
        }
        let signed = |value: u64| crate::case::signed(layout, value);
        match self {
            IndexList::Step37 => {
                if len.is_multiple_of(STEP) && k > len / STEP {
                    let rule = "37 divides the array's length, so the list would repeat elements";
                    return Err(LayoutError::Parameters { layout, rule });
                }
                (0..k).map(|i| signed(STEP * i % len)).collect()
            }
            IndexList::Shuffled { seed } => {
                let mut random = SplitMix64(seed ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93));
                let mut all = (0..len).map(signed).collect::<Result<Vec<i64>, _>>()?;
                let entries = all.len();
                for i in 0..entries {
                    all.swap(i, random.below(entries));
                }
                all.truncate(usize::try_from(k).unwrap_or(entries));
                Ok(all)
            }
        }
    }

    /// The list for layouts whose lists are never regular: drawn, with a seed of our own where none is given.
    pub(crate) fn drawn(self) -> IndexList {
        match self {
            IndexList::Step37 => IndexList::Shuffled { seed: 43 },
            IndexList::Shuffled { .. } => self,
        }
    }

    /// What a case's name says about its lists: nothing for the exact ones.
    pub(crate) fn suffix(self) -> String {
        match self {
            IndexList::Step37 => String::new(),
            IndexList::Shuffled { seed } => format!(" shuffled seed={seed}"),
        }
    }
}

/// Runs of consecutive elements in `list`: the blocks it gives after merging.
pub(crate) fn runs(list: &[i64]) -> u64 {
    list.chunk_by(|a, b| a + 1 == *b).map(|_| 1).sum()
}

/// The list in elements of an array of `per` elements per index.
pub(crate) fn scaled(list: &[i64], per: i64) -> Vec<i64> {
    list.iter().map(|&index| per * index).collect()
}

/// Steele, Lea and Flood's generator (OOPSLA 2014): one word of state, good enough to shuffle.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// `rand() mod bound`, as DDTBench does it; the bias below 2⁻³⁶ is beside the point.
    fn below(&mut self, bound: usize) -> usize {
        let bound_u64 = u64::try_from(bound).unwrap_or(u64::MAX);
        usize::try_from(self.next() % bound_u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn unique(list: &[i64]) -> bool {
        list.iter().collect::<HashSet<_>>().len() == list.len()
    }

    #[test]
    fn step_37_never_repeats_and_never_touches() {
        for (len, k) in [(1907, 1662), (2597, 2243), (88881, 3225), (834_917, 11797), (1225, 245)] {
            let list = IndexList::Step37.take("t", len, k, 0).unwrap();
            assert!(unique(&list), "{len}");
            assert_eq!(runs(&list), k, "{len}");
        }
        assert!(IndexList::Step37.take("t", 74, 3, 0).is_err());
        assert!(IndexList::Step37.take("t", 74, 2, 0).is_ok());
    }

    #[test]
    fn shuffles_are_unique_and_their_own() {
        let draw =
            |seed, stream| IndexList::Shuffled { seed }.take("t", 5000, 4000, stream).unwrap();
        let list = draw(7, 0);
        assert!(unique(&list) && list.iter().all(|&i| (0..5000).contains(&i)));
        assert_eq!(list, draw(7, 0));
        assert_ne!(list, draw(8, 0));
        assert_ne!(list, draw(7, 1));
        assert!(!list.is_sorted());
    }

    #[test]
    fn shuffles_merge_by_chance() {
        // k / len = 0.87 neighbours per list are adjacent on average: 348 in all.
        let list = |seed| IndexList::Shuffled { seed }.take("t", 1907, 1662, 0).unwrap();
        let merged: u64 = (0..400).map(|seed| 1662 - runs(&list(seed))).sum();
        assert!((250..450).contains(&merged), "{merged}");
    }

    #[test]
    fn impossible_lists_are_refused() {
        for lists in [IndexList::Step37, IndexList::Shuffled { seed: 1 }] {
            assert!(matches!(lists.take("t", 3, 4, 0), Err(LayoutError::Parameters { .. })));
            assert!(matches!(lists.take("t", 3, 0, 0), Err(LayoutError::Parameters { .. })));
            assert!(matches!(lists.take("t", 1 << 40, 1, 0), Err(LayoutError::TooLarge { .. })));
        }
    }

    #[test]
    fn runs_are_counted() {
        assert_eq!(runs(&[]), 0);
        assert_eq!(runs(&[4]), 1);
        assert_eq!(runs(&[1, 2, 3, 7, 6, 7]), 3);
    }
}
