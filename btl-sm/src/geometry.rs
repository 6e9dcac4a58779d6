//! What lies where in a segment. Sizes come from the sender's configuration, and for a peer's
//! segment from the peer's greeting, which is checked here before anything is mapped.
//!
//! ```text
//! byte 0      64      128        …      4096          4096 + 64 × lines, rounded up to pages
//! ┌──────────┬───────┬──────────────────┬─────────────┬──────────────────────────────────────┐
//! │ head     │ sleep │ returned[slot]   │ ring lines  │ slots, class by class                │
//! │ receiver │ owner │ receiver         │ owner       │ owner                                │
//! └──────────┴───────┴──────────────────┴─────────────┴──────────────────────────────────────┘
//! ```
//!
//! The second row says who writes. The owner of the segment is the sender; `sleep` is the owner's
//! word on its own sleep (see [`arm`](crate::arm)); `returned` holds, per slot, the generation
//! that the receiver has given back.

use crate::config::SlotClass;

/// Most classes of slots.
pub(crate) const CLASSES: usize = 4;
/// Most slots, all classes together: their `returned` words fit the first page.
pub(crate) const SLOTS: usize = 512;
/// Smallest and largest ring, in lines.
pub(crate) const RING_LINES: std::ops::RangeInclusive<usize> = 16..=65_536;
/// Largest slot in bytes.
pub(crate) const SLOT_BYTES: usize = 16 << 20;

pub(crate) const HEAD_AT: usize = 0;
pub(crate) const SLEEP_AT: usize = 64;
pub(crate) const RETURNED_AT: usize = 128;
pub(crate) const RING_AT: usize = 4096;
const PAGE: usize = 4096;

const _: () = assert!(RETURNED_AT + SLOTS * 4 <= RING_AT);

/// One class of slots, placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    /// Bytes in each slot.
    pub(crate) bytes: usize,
    /// How many slots.
    pub(crate) count: usize,
    /// The number of its first slot.
    pub(crate) first: usize,
    /// Where its first slot starts, in bytes from the start of the segment.
    at: usize,
}

/// A segment's plan: proven to be free of overlaps and overflows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    ring_lines: usize,
    classes: Vec<Class>,
    slots: usize,
    total: usize,
}

impl Geometry {
    /// Checks sizes and places everything.
    ///
    /// # Errors
    /// Says which size is out of bounds.
    pub(crate) fn new(ring_lines: usize, classes: &[SlotClass]) -> Result<Geometry, String> {
        if !RING_LINES.contains(&ring_lines) || !ring_lines.is_power_of_two() {
            return Err(format!("{ring_lines} ring lines: not a power of two in {RING_LINES:?}"));
        }
        if classes.is_empty() || classes.len() > CLASSES {
            return Err(format!("{} classes of slots, not 1 to {CLASSES}", classes.len()));
        }
        let mut at = (RING_AT + ring_lines * 64).next_multiple_of(PAGE);
        let mut first = 0;
        let mut placed: Vec<Class> = Vec::with_capacity(classes.len());
        for &SlotClass { bytes, count } in classes {
            if bytes == 0 || !bytes.is_multiple_of(64) || bytes > SLOT_BYTES {
                return Err(format!(
                    "slots of {bytes} bytes: not a multiple of 64 up to {SLOT_BYTES}"
                ));
            }
            if placed.last().is_some_and(|before| before.bytes >= bytes) {
                return Err(format!(
                    "the class of {bytes} bytes is not larger than the one before"
                ));
            }
            if count == 0 || count > SLOTS - first {
                return Err(format!("{count} slots of {bytes} bytes: not 1 to {SLOTS} in all"));
            }
            placed.push(Class { bytes, count, first, at });
            // At most SLOTS × SLOT_BYTES in all: no overflow.
            at = (at + bytes * count).next_multiple_of(PAGE);
            first += count;
        }
        Ok(Geometry { ring_lines, classes: placed, slots: first, total: at })
    }

    /// Length of the segment in bytes: whole pages.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn ring_lines(&self) -> usize {
        self.ring_lines
    }

    pub(crate) fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// How many slots there are in all.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Where a slot starts and how long it is; `None` for a number that no slot has.
    pub(crate) fn slot(&self, slot: usize) -> Option<(usize, usize)> {
        let class = self.classes.iter().rfind(|class| class.first <= slot)?;
        let within = slot - class.first;
        (within < class.count).then(|| (class.at + within * class.bytes, class.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap_and_stay_inside() {
        let classes = [
            SlotClass { bytes: 64, count: 3 },
            SlotClass { bytes: 4352, count: 5 },
            SlotClass { bytes: 65_792, count: 2 },
        ];
        let geometry = Geometry::new(64, &classes).unwrap();
        let mut end = RING_AT + 64 * 64;
        for slot in 0..10 {
            let (at, bytes) = geometry.slot(slot).unwrap();
            assert!(at >= end && at % 64 == 0);
            end = at + bytes;
        }
        assert!(end <= geometry.total());
        assert_eq!(geometry.slot(10), None);
        assert_eq!(geometry.slot(usize::MAX), None);
        assert_eq!(geometry.slots(), 10);
    }

    #[test]
    fn bad_sizes_are_named() {
        let good = SlotClass { bytes: 64, count: 1 };
        for lines in [0, 8, 24, 1 << 17, usize::MAX] {
            assert!(Geometry::new(lines, &[good]).unwrap_err().contains("ring lines"));
        }
        assert!(Geometry::new(16, &[]).unwrap_err().contains("0 classes"));
        assert!(Geometry::new(16, &[good; 5]).unwrap_err().contains("5 classes"));
        assert!(Geometry::new(16, &[good, good]).unwrap_err().contains("not larger"));
        for bytes in [0, 65, SLOT_BYTES + 64, usize::MAX] {
            let bad = SlotClass { bytes, count: 1 };
            assert!(Geometry::new(16, &[bad]).unwrap_err().contains("multiple of 64"));
        }
        for count in [0, SLOTS + 1, usize::MAX] {
            let bad = SlotClass { bytes: 64, count };
            assert!(Geometry::new(16, &[bad]).unwrap_err().contains("in all"));
        }
    }
}
