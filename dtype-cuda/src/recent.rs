//! What was worked out for a move a moment ago: which copies it takes, or which launches. Programs repeat
//! their messages, and to read both sides as loops, split them and lay launches out takes a microsecond or two.
//!
//! Both depend on the two layouts, the counts, the range and the budget alone, launches also on how addresses
//! are aligned; nothing depends on where the memory is. A layout is known by its identity, which weak references
//! keep from being given to another one.

use crate::accelerator::Spot;
use gapless_dtype::{Layout, LayoutId, WeakLayout};
use gapless_engine::Typed;
use gapless_kernels::launch::Budget;
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Moves that are remembered: dozens of layouts in both directions, with buffers that are aligned in a few ways.
const KEPT: usize = 256;

/// Kernels do not look at higher bits of an address.
const ALIGNED: u64 = (1 << 12) - 1;

/// A move from layout to layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LayoutPair {
    sides: [(LayoutId, u64); 2],
    range: (u64, u64),
    budget: Option<Budget>,
}

/// The same between memory that is aligned in some way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Placed {
    pair: LayoutPair,
    places: [(u64, i64); 2],
}

impl LayoutPair {
    /// Of `range` of the stream of `from`, which goes to `to`.
    pub(crate) fn new(
        from: &Typed,
        to: &Typed,
        range: &Range<u64>,
        budget: Option<Budget>,
    ) -> LayoutPair {
        let side = |typed: &Typed| (typed.layout().id(), typed.count());
        LayoutPair { sides: [side(from), side(to)], range: (range.start, range.end), budget }
    }

    /// With kernels that find the sides there.
    pub(crate) fn placed(self, from: Spot, to: Spot) -> Placed {
        let place = |spot: Spot| (spot.place.address & ALIGNED, spot.place.offset);
        Placed { pair: self, places: [place(from), place(to)] }
    }
}

/// One answer, and the layouts that it is of.
struct RecentEntry<V> {
    value: V,
    _layouts: [WeakLayout; 2],
}

/// Answers that are remembered. All are forgotten when they would be too many.
pub(crate) struct Recent<K, V>(Mutex<HashMap<K, RecentEntry<V>>>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Recent<K, V> {
        Recent(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Recent<K, V> {
    /// The answer for `key`, which is of these layouts: remembered, or made now.
    pub(crate) fn get_or(&self, key: K, layouts: [&Layout; 2], make: impl FnOnce() -> V) -> V {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return known.value.clone();
        }
        let value = make();
        let entry = RecentEntry { value: value.clone(), _layouts: layouts.map(Layout::downgrade) };
        let mut entries = lock();
        let is_full = entries.len() >= KEPT && !entries.contains_key(&key);
        // They are dropped when the lock is free again.
        let _forgotten = if is_full { std::mem::take(&mut *entries) } else { HashMap::new() };
        entries.insert(key, entry);
        drop(entries);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};
    use gapless_kernels::launch::KernelAddress;
    use gapless_mem::Region;

    fn layout(len: u64) -> Layout {
        let double = Primitive::Double.into();
        Datatype::vector(3, len, 5, &double).unwrap().commit().unwrap()
    }

    #[test]
    fn an_answer_is_made_once_and_is_of_its_move_alone() {
        let memory = [0u8; 1024];
        let region = Region::of(&memory);
        let (one, two) = (layout(1), layout(2));
        let typed = |layout, count| Typed::new(region, 0, layout, count).unwrap();
        let base = Region::new(region.space(), 0, 0, 64);
        let spot = |address, offset| Spot { base, place: KernelAddress { address, offset } };
        let keys = [
            (typed(&one, 1), 0..24, None, spot(0, 0)),
            (typed(&one, 2), 0..24, None, spot(0, 0)),
            (typed(&two, 1), 0..24, None, spot(0, 0)),
            (typed(&one, 1), 8..24, None, spot(0, 0)),
            (typed(&one, 1), 0..24, Budget::new(8), spot(0, 0)),
            (typed(&one, 1), 0..24, None, spot(8, 0)),
            (typed(&one, 1), 0..24, None, spot(0, 8)),
        ];
        let recent = Recent::default();
        for round in 0..3 {
            for (number, (from, range, budget, at)) in keys.iter().enumerate() {
                let key =
                    LayoutPair::new(from, &keys[0].0, range, *budget).placed(*at, spot(16, 0));
                let layouts = [from.layout(), &one];
                let found = recent.get_or(key, layouts, || {
                    assert_eq!(round, 0);
                    number
                });
                assert_eq!(found, number);
                // Whole pages further on.
                let there = Spot {
                    place: KernelAddress { address: at.place.address + (1 << 20), ..at.place },
                    ..*at
                };
                let key =
                    LayoutPair::new(from, &keys[0].0, range, *budget).placed(there, spot(16, 0));
                assert_eq!(recent.get_or(key, layouts, || panic!("it is known")), number);
            }
        }
    }

    #[test]
    fn layouts_that_come_after_others_are_not_taken_for_them_and_few_are_kept() {
        let memory = [0u8; 1024];
        let recent = Recent::default();
        for round in 0..3 * KEPT as u64 {
            let layout = layout(1 + round % 5);
            let typed = Typed::new(Region::of(&memory), 0, &layout, 1).unwrap();
            let key = LayoutPair::new(&typed, &typed, &(0..8), None);
            assert_eq!(recent.get_or(key, [&layout; 2], || round), round);
        }
        assert_eq!(recent.0.lock().unwrap().len(), KEPT);
    }
}
