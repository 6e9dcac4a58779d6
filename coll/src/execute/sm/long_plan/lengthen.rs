//! Longer fragments for what is left of a long collective, once a rank has slept in it for one that had begun.
//!
//! One of the two has no processor then, and each step that is waited for costs a time slice or more of whoever has it:
//! the fewer fragments, the better, and no caches are left to be spared. A rank says with each fragment, behind its
//! bytes in the slot, whether it has slept so. Once the fragment is over all ranks have heard all of them, so that all
//! go on with fragments of the same length.

use super::{LongPlan, SlotShape, grain, slot_bytes};
use crate::execute::sm::slots::LAST_BYTES;
use crate::schedule::Row;

/// Blocks or vectors of fewer bytes are over soon.
const LEN_MIN: u64 = 1 << 20;

impl LongPlan {
    /// How many bytes of the vector, or of a rank's block, go in a long fragment.
    fn long_fragment_bytes(&self, left: u64) -> Option<u64> {
        let grain = grain(&self.call);
        let (slot, ranks) = (slot_bytes(self.ranks).checked_sub(LAST_BYTES)?, self.ranks as u64);
        let each = slot / ranks / grain * grain;
        match self.shape {
            SlotShape::Whole => Some(slot),
            SlotShape::Pieces => Some(left.checked_next_multiple_of(grain)?.min(each)),
            SlotShape::Slices => each.checked_mul(ranks),
            SlotShape::Vectors => None,
        }
    }

    /// Whether fragments can get longer: each rank hears of all others in every one of them.
    pub(in crate::execute::sm) fn may_lengthen(&self) -> bool {
        let hears_all = self.together() && matches!(self.blocks, Row::Equal { .. });
        let is_longer =
            || self.long_fragment_bytes(self.len).is_some_and(|bytes| bytes > self.fragment_bytes);
        hears_all && self.len >= LEN_MIN && is_longer()
    }

    /// From this fragment on, which is not the first, all are long.
    pub(in crate::execute::sm) fn lengthen(&mut self, from: u64) {
        let before = self.begun(from);
        let left = self.len.saturating_sub(before);
        let Some(bytes) =
            self.long_fragment_bytes(left).filter(|bytes| left > 0 && *bytes > self.fragment_bytes)
        else {
            return;
        };
        (self.lengthened, self.fragment_bytes) = ((from, before), bytes);
        self.fragments = from + left.div_ceil(bytes);
        self.slices = self.slices_of(left - (self.fragments - from - 1) * bytes);
    }

    /// How long a slice is, in a fragment and in the last one, which has `last` bytes.
    pub(super) fn slices_of(&self, last: u64) -> (u64, u64) {
        let grain = grain(&self.call);
        let slice = |bytes: u64| bytes.div_ceil(self.ranks as u64).next_multiple_of(grain);
        (slice(self.fragment_bytes), slice(last))
    }
}
