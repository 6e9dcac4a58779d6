//! Laying blocks beside each other without overlap.

use super::super::rng::Rng;
use crate::Datatype;

/// Where a block lies when its displacement is 0, in bytes or in elements: `low..high`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    low: i64,
    high: i64,
}

impl Span {
    pub(super) fn len(self) -> i64 {
        self.high - self.low
    }

    /// The bytes that `length` copies of `old` touch.
    pub(super) fn bytes(old: &Datatype, length: u64) -> Span {
        if length == 0 {
            return Span { low: 0, high: 0 };
        }
        let last = old.extent().saturating_mul(i64::try_from(length - 1).unwrap_or(i64::MAX));
        Span {
            low: old.true_lb().saturating_add(last.min(0)),
            high: old.true_ub().saturating_add(last.max(0)),
        }
    }

    /// The same in extents of `old`, rounded outwards.
    pub(super) fn elements(old: &Datatype, length: u64) -> Span {
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let unit = old.extent().unsigned_abs().max(1);
        let one = i64::try_from(old.true_extent().unsigned_abs().div_ceil(unit)).unwrap_or(1);
        Span { low: 0, high: if length == 0 { 0 } else { length - 1 + one.max(1) } }
    }
}

/// How blocks follow each other.
pub(super) struct RandomBlocks {
    pub(super) gap_max: i64,
    /// Whether displacements advance by a constant, wide enough for every block.
    pub(super) step_constant: bool,
}

impl RandomBlocks {
    /// Displacements that keep `spans` apart: ascending, descending or shuffled, from a random
    /// start on either side of the origin.
    pub(super) fn place(&self, rng: &mut Rng, spans: &[Span]) -> Vec<i64> {
        let step = spans.iter().map(|span| span.len()).max().unwrap_or(0) + self.gap(rng);
        let mut order: Vec<usize> = (0..spans.len()).collect();
        match rng.below(10) {
            0 | 1 => order.reverse(),
            2 | 3 => rng.shuffle(&mut order),
            _ => {}
        }
        let mut cursor = if rng.chance(70) { 0 } else { rng.between(-64, 64) };
        let mut displacements = vec![0; spans.len()];
        for at in order {
            let span = spans[at];
            if self.step_constant {
                displacements[at] = cursor;
                cursor += step;
            } else {
                cursor += self.gap(rng);
                displacements[at] = cursor - span.low;
                cursor += span.len();
            }
        }
        displacements
    }

    fn gap(&self, rng: &mut Rng) -> i64 {
        if rng.chance(30) { 0 } else { rng.between(1, self.gap_max) }
    }
}
