//! Bytes of a buffer as algorithms see them: by where they lie in the packed stream of the whole buffer.
use std::ops::Range;

use crate::schedule::Buffer;

/// A range of the packed stream of a buffer, in bytes. The builder turns it into a
/// [`Place`](crate::schedule::Place). Users get areas of a [`Draft`](crate::Draft).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    pub(crate) buffer: Buffer,
    pub(crate) at: u64,
    pub(crate) len: u64,
}

impl Area {
    pub(crate) fn new(buffer: Buffer, at: u64, len: u64) -> Self {
        Self { buffer, at, len }
    }

    /// A range of it.
    pub(crate) fn cut(self, range: Range<u64>) -> Self {
        debug_assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {self:?}");
        Self { at: self.at + range.start, len: range.end - range.start, ..self }
    }

    /// Whether `next` begins where it ends.
    pub(crate) fn meets(self, next: Self) -> bool {
        self.buffer == next.buffer && self.at + self.len == next.at
    }

    /// The two are one, if `next` begins where it ends.
    pub(crate) fn join(self, next: Self) -> Option<Self> {
        self.meets(next).then(|| Self { len: self.len + next.len, ..self })
    }
}

/// Where a vector of bytes is cut into blocks.
#[derive(Clone, Debug)]
pub(crate) enum Cuts {
    /// `blocks` blocks of `least` units each, the first `more` of them with one unit more.
    Even { blocks: usize, unit: u64, least: u64, more: u64 },
    /// Where each block ends.
    Each { ends: Vec<u64> },
}

impl Cuts {
    /// Blocks of one length.
    pub(crate) fn equal(blocks: usize, len: u64) -> Self {
        Self::Even { blocks, unit: len, least: 1, more: 0 }
    }

    /// As many bytes, in whole units, cut as evenly as can be.
    pub(crate) fn even(blocks: usize, len: u64, unit: u64) -> Self {
        let units = len / unit;
        let count = blocks as u64;
        Self::Even { blocks, unit, least: units / count, more: units % count }
    }

    /// Blocks of these lengths.
    pub(crate) fn each(lens: &[u64]) -> Self {
        let ends = lens.iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        Self::Each { ends: ends.collect() }
    }

    pub(crate) fn blocks(&self) -> usize {
        match self {
            Self::Even { blocks, .. } => *blocks,
            Self::Each { ends } => ends.len(),
        }
    }

    /// Where block `index` begins; one past the last: where the vector ends.
    pub(crate) fn start(&self, index: usize) -> u64 {
        match self {
            Self::Even { unit, least, more, .. } => {
                let index = index as u64;
                unit * (index * least + index.min(*more))
            }
            Self::Each { ends } => index.checked_sub(1).map_or(0, |before| ends[before]),
        }
    }

    /// The bytes of some consecutive blocks.
    pub(crate) fn range(&self, blocks: Range<usize>) -> Range<u64> {
        self.start(blocks.start)..self.start(blocks.end)
    }

    /// Length of one block.
    pub(crate) fn len(&self, index: usize) -> u64 {
        self.start(index + 1) - self.start(index)
    }

    /// Length of the vector.
    pub(crate) fn total(&self) -> u64 {
        self.start(self.blocks())
    }
}

/// The most segments of a message. If it is longer, so are its segments.
const SEGMENTS_MAX: u64 = 1 << 16;

/// Cuts a length into segments of about `segment` bytes, in whole units; 0: one segment. No segment is empty.
pub(crate) fn segments(len: u64, unit: u64, segment: u64) -> impl Iterator<Item = Range<u64>> {
    let least = len.div_ceil(SEGMENTS_MAX).div_ceil(unit).max(1) * unit;
    let step = if segment == 0 { len.max(1) } else { (segment / unit * unit).max(least) };
    (0..len.div_ceil(step)).map(move |index| index * step..((index + 1) * step).min(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_whole_and_cover_everything() {
        for (len, unit, segment) in
            [(0, 1, 4), (12, 3, 4), (13, 1, 4), (12, 4, 1), (9, 3, 0), (8, 8, 100)]
        {
            let all: Vec<_> = segments(len, unit, segment).collect();
            let ends: Vec<_> = all.iter().map(|range| range.end).collect();
            let starts: Vec<_> = all.iter().map(|range| range.start).collect();
            assert_eq!(starts.first().copied().unwrap_or(0), 0);
            assert_eq!(ends.last().copied().unwrap_or(0), len);
            assert_eq!(starts.get(1..).unwrap_or(&[]), &ends[..ends.len().saturating_sub(1)]);
            assert!(
                all.iter()
                    .all(|range| range.end - range.start <= segment.max(unit) || segment == 0)
            );
            assert!(ends.iter().all(|end| end.is_multiple_of(unit)));
        }
        assert_eq!(segments(12, 3, 7).count(), 2);
        let long = segments((1 << 40) * 3, 3, 3).count() as u64;
        assert!((SEGMENTS_MAX / 2..=SEGMENTS_MAX).contains(&long), "{long} segments");
    }
}
