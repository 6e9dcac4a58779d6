//! The traffic floor: the bytes that memory must move at least. Memory moves units of 64 bytes; a read
//! costs the units it touches, a write likewise, and sectors of 32 bytes that are written only in part
//! are read first. Plans are read once.

use gapless_kernels::Direction;
use gapless_kernels::launch::Grid;

/// What the typed side touches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    /// Units of 64 bytes touched.
    pub(crate) units: u64,
    /// Those of them with a sector that is covered only in part.
    pub(crate) partial: u64,
}

impl Traffic {
    /// Of blocks in the stream's order: ⟨displacement, length⟩. A unit counts anew when something else
    /// was touched in between: what is far apart in the stream meets in no cache.
    pub(crate) fn of(blocks: impl Iterator<Item = (i64, u64)>) -> Traffic {
        let mut all = Traffic::default();
        // The unit that was touched last, and how many bytes of each of its sectors.
        let (mut unit, mut covered) = (i64::MIN, [0i64; 2]);
        let mut close = |covered: [i64; 2]| {
            all.units += u64::from(covered != [0; 2]);
            all.partial += u64::from(covered.iter().any(|&bytes| bytes != 0 && bytes != 32));
        };
        for (at, len) in blocks {
            let end = at + len.cast_signed();
            let mut from = at;
            while from < end {
                if from.div_euclid(64) != unit {
                    close(covered);
                    (unit, covered) = (from.div_euclid(64), [0; 2]);
                    // Units that are covered entirely need no looking at.
                    let whole = (end - from).div_euclid(64);
                    if from.rem_euclid(64) == 0 && whole > 1 {
                        all_units(&mut close, whole);
                        from += whole * 64;
                        (unit, covered) = (i64::MIN, [0; 2]);
                        continue;
                    }
                }
                let half = usize::from(from.rem_euclid(64) >= 32);
                let to = end.min((from.div_euclid(32) + 1) * 32);
                covered[half] += to - from;
                from = to;
            }
        }
        close(covered);
        all
    }

    /// Of a grid no two of whose blocks meet.
    pub(crate) fn of_grid(grid: &Grid) -> Traffic {
        // In the order of addresses, blocks that continue each other merged.
        let mut dims: Vec<(u64, u64)> =
            grid.dims.iter().map(|dim| (dim.stride.unsigned_abs(), dim.count)).collect();
        dims.sort_unstable();
        let mut len = grid.len;
        while let Some(&(stride, count)) = dims.first()
            && stride == len
        {
            len *= count;
            dims.remove(0);
        }
        let blocks = dims.iter().map(|dim| dim.1).product::<u64>();
        Traffic::of((0..blocks).map(|number| {
            let (mut rest, mut at) = (number, grid.displacement);
            for &(stride, count) in &dims {
                at += (rest % count * stride).cast_signed();
                rest /= count;
            }
            (at, len)
        }))
    }

    /// Together with another's, which touches other units.
    pub(crate) fn and(self, other: Traffic) -> Traffic {
        Traffic { units: self.units + other.units, partial: self.partial + other.partial }
    }

    /// Bytes to be moved, both sides and the plan.
    pub(crate) fn bytes(self, direction: Direction, payload: u64, plan: u64) -> u64 {
        let filled = if direction == Direction::Unpack { self.partial } else { 0 };
        payload + plan + (self.units + filled) * 64
    }
}

fn all_units(close: &mut impl FnMut([i64; 2]), units: i64) {
    for _ in 0..units {
        close([32; 2]);
    }
}
