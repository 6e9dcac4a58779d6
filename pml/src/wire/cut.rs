//! How a staged message is cut into fragments, which both ends derive from four numbers.
//!
//! ```text
//! head = 2                      tail = 2
//! |f/4| f/2 |   f   |   f   | … | rest | f/2 |f/4|
//! ```
//!
//! The first fragment over the link is short if the link waits for it to be packed, the last one if the message waits
//! for it to be unpacked. Fragments in between are long, because each costs launches and a gap.

use std::ops::Range;

/// Most steps of a ramp, up or down.
pub(crate) const RAMP_MAX: u8 = 4;

/// Lengths of fragments, before the message's own is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentShape {
    /// The longest, in bytes; at least 1.
    pub(crate) fragment: u32,
    /// Shorter ones in front: each half as long as the next.
    pub(crate) head: u8,
    /// Shorter ones behind: each half as long as the one before.
    pub(crate) tail: u8,
}

/// A message in fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Packed bytes in all.
    end: u64,
    shape: FragmentShape,
    total: u64,
}

impl FragmentShape {
    /// Fragments of one length.
    pub(crate) fn even(fragment: u32) -> FragmentShape {
        FragmentShape { fragment: fragment.max(1), head: 0, tail: 0 }
    }

    /// Bytes of a ramp of so many steps.
    pub(crate) fn ramp(self, steps: u8) -> u64 {
        (1..=steps).map(|step| u64::from(self.fragment >> step)).sum()
    }

    /// Bytes of both ramps.
    pub(crate) fn ramps(self) -> u64 {
        self.ramp(self.head) + self.ramp(self.tail)
    }

    /// Whether ramps have few steps, none of them empty, and fit into `end` bytes.
    pub(crate) fn fits(self, end: u64) -> bool {
        let steps = self.head.max(self.tail);
        steps <= RAMP_MAX && self.fragment >> steps > 0 && self.ramps() <= end
    }
}

impl Cut {
    /// `end` bytes (at least 1); `None` if the shape does not [fit](FragmentShape::fits).
    pub(crate) fn new(end: u64, shape: FragmentShape) -> Option<Cut> {
        if end == 0 || !shape.fits(end) {
            return None;
        }
        let middle = (end - shape.ramps()).div_ceil(u64::from(shape.fragment));
        let total = u64::from(shape.head) + middle + u64::from(shape.tail);
        Some(Cut { end, shape, total })
    }

    pub(crate) fn shape(&self) -> FragmentShape {
        self.shape
    }

    /// Packed bytes in all.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Fragments in all.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// No fragment is longer, in bytes.
    pub(crate) fn longest(&self) -> u64 {
        u64::from(self.shape.fragment)
    }

    /// Which bytes a fragment has. None of them if there is no such fragment.
    pub(crate) fn range(&self, index: u64) -> Range<u64> {
        let FragmentShape { fragment, head, tail } = self.shape;
        let behind = u64::from(head);
        let before = self.total - u64::from(tail);
        let (start, len) = if index < behind {
            // Below `head`, which fits 8 bits.
            let above = head - u8::try_from(index).unwrap_or(head);
            let start = self.shape.ramp(head) - self.shape.ramp(above);
            (start, u64::from(fragment >> above))
        } else if index < before {
            let start = self.shape.ramp(head) + (index - behind) * self.longest();
            (start, self.longest().min(self.end - self.shape.ramp(tail) - start))
        } else {
            let step = u8::try_from(index - before).unwrap_or(tail).min(tail);
            let start = self.end - self.shape.ramp(tail) + self.shape.ramp(step);
            (start, if step == tail { 0 } else { u64::from(fragment >> (step + 1)) })
        };
        start..start + len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_cover_the_stream_once_and_in_order() {
        for fragment in 1..=40 {
            for (head, tail) in (0..25).map(|both| (both / 5, both % 5)) {
                let shape = FragmentShape { fragment, head, tail };
                for end in 0..=300 {
                    let Some(cut) = Cut::new(end, shape) else {
                        assert!(end == 0 || !shape.fits(end), "{shape:?} of {end}");
                        continue;
                    };
                    let what = format!("{end} bytes in {shape:?}");
                    let mut at = 0;
                    for index in 0..cut.total() {
                        let range = cut.range(index);
                        assert_eq!(range.start, at, "{what}, fragment {index}");
                        assert!(!range.is_empty(), "{what}, fragment {index}");
                        assert!(range.end - range.start <= cut.longest(), "{what}");
                        at = range.end;
                    }
                    assert_eq!(at, end, "{what}");
                    for beyond in [cut.total(), cut.total() + 1, u64::MAX] {
                        assert!(cut.range(beyond).is_empty(), "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn ramps_go_up_and_down() {
        let cut = Cut::new(100, FragmentShape { fragment: 16, head: 2, tail: 3 }).unwrap();
        let lengths: Vec<_> =
            (0..cut.total()).map(|i| cut.range(i)).map(|range| range.end - range.start).collect();
        assert_eq!(lengths, [4, 8, 16, 16, 16, 16, 10, 8, 4, 2]);
    }

    #[test]
    fn ramps_that_do_not_fit_are_refused() {
        let shape = |fragment, head, tail| FragmentShape { fragment, head, tail };
        assert_eq!(Cut::new(23, shape(16, 2, 2)), None);
        assert!(Cut::new(24, shape(16, 2, 2)).is_some_and(|cut| cut.total() == 4));
        assert_eq!(Cut::new(1000, shape(16, RAMP_MAX + 1, 0)), None);
        assert_eq!(Cut::new(1000, shape(16, 0, u8::MAX)), None);
        assert_eq!(Cut::new(1000, shape(7, 3, 0)), None);
        assert_eq!(Cut::new(10, shape(0, 0, 0)), None);
        let most = Cut::new(u64::MAX, shape(1, 0, 0)).unwrap();
        assert_eq!((most.total(), most.range(u64::MAX - 1)), (u64::MAX, u64::MAX - 1..u64::MAX));
        assert!(Cut::new(u64::MAX, shape(u32::MAX, 4, 4)).is_some());
    }
}
