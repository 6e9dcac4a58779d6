//! The traffic floor: the least time that a GPU's memory needs to move a message.
//!
//! Memory moves units of [`UNIT`] bytes, at the rate at which `cudaMemcpy` moves as many: a short copy has
//! no time to reach the rate of a long one, and nothing else has. A read costs the units that it touches, a
//! write likewise, and a [`SECTOR`] that is written only in part is read first, with its unit. Packing
//! 8-byte blocks at stride 16 so moves 2 + 1 bytes for each payload byte, and unpacking them 1 + 2 + 2.
//! Plans are read once, and count. What stays in the GPU's cache is not bound by this.
//!
//! Blocks that follow each other in memory share units. Of a list in any other order each block costs its
//! own: when a neighbour's turn comes, the cache has long passed on.
//!
//! Pure: runs in, bytes and seconds out. Displacement 0 is taken to begin a unit.

use gapless_dtype::{Convertor, Layout, Run, Shape};

use crate::error::Failure;

/// Bytes that memory moves at a time.
pub const UNIT: u64 = 64;
/// Bytes that can be written without being read first.
pub const SECTOR: u64 = 32;
/// Runs that are sorted at most, where no closed form gives them in order.
const RUNS_MAX: u64 = 1 << 26;

/// What a layout's bytes cost at the side where they have gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Units that hold a byte of the layout.
    pub units: u64,
    /// Those of them that hold a sector of which the layout has some bytes and not all.
    pub partial: u64,
}

impl Traffic {
    /// The traffic of runs in ascending order; they may touch or overlap each other.
    #[must_use]
    pub fn of(runs: impl IntoIterator<Item = Run>) -> Traffic {
        let mut tally = Tally::default();
        let mut open: Option<(i64, i64)> = None;
        for run in runs {
            let (begin, end) = (run.displacement, run.end());
            open = match open {
                Some((first, last)) if begin <= last => Some((first, last.max(end))),
                Some(piece) => {
                    tally.add(piece);
                    Some((begin, end))
                }
                None => Some((begin, end)),
            };
        }
        if let Some(piece) = open {
            tally.add(piece);
        }
        tally.traffic
    }

    /// The traffic of runs in any order: only one that begins in the unit where the run before it ended
    /// shares that.
    #[must_use]
    pub fn in_order(runs: impl IntoIterator<Item = Run>) -> Traffic {
        let mut tally = Tally::default();
        let mut open: Option<(i64, i64)> = None;
        for run in runs {
            let (begin, end) = (run.displacement, run.end());
            match &mut open {
                Some((_, last)) if *last == begin => *last = end,
                piece => {
                    if let Some(piece) = piece.replace((begin, end)) {
                        tally.add(piece);
                    }
                }
            }
        }
        if let Some(piece) = open {
            tally.add(piece);
        }
        tally.traffic
    }

    /// The traffic of `count` instances of a layout.
    ///
    /// # Errors
    /// A layout that overflows, or one of more than 2²⁶ runs that has no closed form.
    pub fn of_layout(layout: &Layout, count: u64) -> Result<Traffic, Failure> {
        if let Some(grid) = Grid::of(layout, count) {
            return Ok(Traffic::of(grid.ascending()));
        }
        let mut convertor = Convertor::new(layout, count)?;
        let blocks = layout.blocks_of(count).unwrap_or(u64::MAX);
        if blocks > RUNS_MAX {
            let why = format!("{blocks} blocks of no regular shape are too many to sort");
            return Err(Failure::Option { option: "the traffic floor", why });
        }
        let mut all = Vec::with_capacity(usize::try_from(blocks).unwrap_or(0));
        let mut runs = [Run::default(); 256];
        loop {
            let (used, _) = convertor.iov(&mut runs, u64::MAX);
            if used == 0 {
                break;
            }
            all.extend_from_slice(&runs[..used]);
        }
        if all.is_sorted_by_key(|run| run.displacement) {
            return Ok(Traffic::of(all));
        }
        Ok(Traffic::in_order(all))
    }

    /// Bytes that cross between memory and the GPU when a message of `payload` bytes is packed with a
    /// plan of `plan` bytes.
    #[must_use]
    pub fn pack_bytes(&self, payload: u64, plan: u64) -> u64 {
        UNIT * self.units + whole(payload) + whole(plan)
    }

    /// The same for unpacking.
    #[must_use]
    pub fn unpack_bytes(&self, payload: u64, plan: u64) -> u64 {
        UNIT * (self.units + self.partial) + whole(payload) + whole(plan)
    }

    /// Bytes of the units that hold a byte of the layout.
    #[must_use]
    pub fn touched_bytes(&self) -> u64 {
        UNIT * self.units
    }
}

fn whole(bytes: u64) -> u64 {
    bytes.next_multiple_of(UNIT)
}

/// How fast memory moves bytes, from copies of several lengths.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyRate {
    /// Bytes moved and seconds, by length.
    points: Vec<(f64, f64)>,
}

impl CopyRate {
    /// Copies of these payloads took so many seconds each; they read and wrote every byte.
    ///
    /// # Panics
    /// Without a copy.
    #[must_use]
    pub fn of(copies: impl IntoIterator<Item = (u64, f64)>) -> CopyRate {
        let moved = copies.into_iter().map(|(payload, seconds)| (2.0 * payload as f64, seconds));
        let mut points: Vec<(f64, f64)> = moved.collect();
        assert!(!points.is_empty(), "a rate comes from copies");
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        CopyRate { points }
    }

    /// Seconds for so many bytes: between two copies in proportion, beyond the shortest and the longest at
    /// their rate.
    #[must_use]
    pub fn seconds(&self, bytes: u64) -> f64 {
        let bytes = bytes as f64;
        let above = self.points.partition_point(|point| point.0 < bytes);
        match (above.checked_sub(1).and_then(|at| self.points.get(at)), self.points.get(above)) {
            (Some(low), Some(high)) => {
                low.1 + (bytes - low.0) / (high.0 - low.0) * (high.1 - low.1)
            }
            (Some(end), None) | (None, Some(end)) => end.1 * bytes / end.0,
            (None, None) => 0.0,
        }
    }

    /// Bytes a second of the longest copy.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.0 / point.1)
    }
}

/// Counts pieces that do not touch the one before.
#[derive(Default)]
struct Tally {
    traffic: Traffic,
    /// The last unit counted, and the last one counted as partial.
    last: Option<i64>,
    last_partial: Option<i64>,
}

impl Tally {
    fn add(&mut self, (begin, end): (i64, i64)) {
        if begin >= end {
            return;
        }
        let (unit, sector) = (UNIT.cast_signed(), SECTOR.cast_signed());
        let (first, last) = (begin.div_euclid(unit), (end - 1).div_euclid(unit));
        let new = if self.last == Some(first) { last - first } else { last - first + 1 };
        self.traffic.units += new.cast_unsigned();
        self.last = Some(last);
        for (edge, within) in [(begin, first), (end, last)] {
            if edge.rem_euclid(sector) != 0 && self.last_partial != Some(within) {
                self.traffic.partial += 1;
                self.last_partial = Some(within);
            }
        }
    }
}

/// Equal runs on a grid whose dimensions nest, so that they can be listed in ascending order.
struct Grid {
    displacement: i64,
    len: u64,
    /// Count and stride, the largest stride first.
    dims: Vec<(u64, u64)>,
}

impl Grid {
    fn of(layout: &Layout, count: u64) -> Option<Grid> {
        let (mut displacement, len, mut dims) = match layout.shape() {
            Shape::Empty => (0, 0, Vec::new()),
            Shape::Contiguous { displacement, len } => (*displacement, *len, Vec::new()),
            Shape::Strided { displacement, len, dims } => {
                (*displacement, *len, dims.iter().map(|dim| (dim.count, dim.stride)).collect())
            }
            _ => return None,
        };
        dims.push((count, layout.extent()));
        dims.retain(|(count, _)| *count != 1);
        if count == 0 || len == 0 {
            return Some(Grid { displacement: 0, len: 0, dims: Vec::new() });
        }
        for (count, stride) in &mut dims {
            if *stride < 0 {
                // From the other end.
                let back = i64::try_from(*count - 1).ok()?.checked_mul(*stride)?;
                displacement = displacement.checked_add(back)?;
                *stride = stride.checked_neg()?;
            }
        }
        let mut dims: Vec<(u64, u64)> =
            dims.into_iter().map(|(count, stride)| (count, stride.cast_unsigned())).collect();
        dims.sort_by_key(|(_, stride)| *stride);
        let (mut len, mut reach) = (len, len);
        let mut kept: Vec<(u64, u64)> = Vec::new();
        for (count, stride) in dims {
            if kept.is_empty() && stride == len {
                len = len.checked_mul(count)?;
                reach = len;
            } else {
                if stride < reach {
                    return None;
                }
                reach = reach.checked_add((count - 1).checked_mul(stride)?)?;
                kept.push((count, stride));
            }
        }
        kept.reverse();
        Some(Grid { displacement, len, dims: kept })
    }

    fn ascending(&self) -> impl Iterator<Item = Run> + '_ {
        let total: u64 = self.dims.iter().map(|(count, _)| count).product();
        let total = if self.len == 0 { 0 } else { total };
        let mut at = vec![0; self.dims.len()];
        let mut displacement = self.displacement;
        (0..total).map(move |_| {
            let run = Run { displacement, len: self.len };
            for (digit, (count, stride)) in at.iter_mut().zip(&self.dims).rev() {
                *digit += 1;
                if *digit < *count {
                    displacement = displacement.wrapping_add_unsigned(*stride);
                    break;
                }
                *digit = 0;
                displacement = displacement.wrapping_sub_unsigned((count - 1) * stride);
            }
            run
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};
    use gapless_layouts::cases;

    fn blocks(len: i64, stride: i64, count: i64) -> Traffic {
        let run = |at| Run { displacement: at * stride, len: len.cast_unsigned() };
        Traffic::of((0..count).map(run))
    }

    /// Bytes moved for each payload byte.
    fn factors(len: i64, stride: i64) -> (f64, f64) {
        let count = 1 << 12;
        let payload = (len * count).cast_unsigned();
        let traffic = blocks(len, stride, count);
        let each = |bytes: u64| bytes as f64 / payload as f64;
        (each(traffic.pack_bytes(payload, 0)), each(traffic.unpack_bytes(payload, 0)))
    }

    #[test]
    fn the_ceilings_own_examples() {
        assert_eq!(factors(8, 16), (3.0, 5.0));
        assert_eq!(factors(16, 32), (3.0, 5.0));
        assert_eq!(factors(32, 64), (3.0, 3.0));
        assert_eq!(factors(64, 128), (2.0, 2.0));
        assert_eq!(factors(8, 4096), (9.0, 17.0));
        assert_eq!(factors(8, 8), (2.0, 2.0));
        // 12 of every 24 bytes: every unit is touched, and every sector in part.
        assert_eq!(factors(12, 24), (3.0, 5.0));
    }

    #[test]
    fn the_rate_turns_bytes_into_time() {
        // 4.25 TB/s of traffic: 8-byte blocks at stride 16 pack at 1417 GB/s and unpack at 850.
        let rate = CopyRate::of([(2_125_000_000, 1e-3)]);
        let payload = 8 << 20;
        let traffic = blocks(8, 16, 1 << 20);
        let gbps = |bytes| payload as f64 / rate.seconds(bytes) / 1e9;
        assert!((gbps(traffic.pack_bytes(payload, 0)) - 1416.7).abs() < 0.1);
        assert!((gbps(traffic.unpack_bytes(payload, 0)) - 850.0).abs() < 0.1);
        assert!((rate.bytes_per_second() - 4.25e12).abs() < 1.0);
    }

    #[test]
    fn short_copies_are_slower() {
        let rate = CopyRate::of([(1000, 3.0), (100, 1.0)]);
        let near = |bytes, seconds: f64| (rate.seconds(bytes) - seconds).abs() < 1e-9;
        assert!(near(100, 0.5) && near(200, 1.0), "at the shortest one's rate");
        assert!(near(1100, 2.0) && near(2000, 3.0), "in proportion");
        assert!(near(4000, 6.0) && (rate.bytes_per_second() - 2000.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn lists_out_of_order_share_nothing_but_with_the_block_before() {
        let of = |places: &[i64]| {
            let runs = places.iter().map(|&displacement| Run { displacement, len: 24 });
            let traffic = Traffic::in_order(runs);
            (traffic.units, traffic.partial)
        };
        assert_eq!(of(&[0, 24, 128]), (2, 2), "one stretch of 48, and one of 24");
        assert_eq!(of(&[0, 32, 128]), (2, 2), "neighbours in a unit");
        assert_eq!(of(&[0, 128, 32]), (3, 3), "too late");
        assert_eq!(of(&[56, 0]), (3, 3), "across two units");
    }

    #[test]
    fn edges_neighbours_and_overlaps() {
        let run = |displacement, len| Run { displacement, len };
        let of = |runs: &[Run]| {
            let traffic = Traffic::of(runs.iter().copied());
            (traffic.units, traffic.partial)
        };
        assert_eq!(of(&[]), (0, 0));
        assert_eq!(of(&[run(0, 64)]), (1, 0));
        assert_eq!(of(&[run(0, 32)]), (1, 0));
        assert_eq!(of(&[run(-1, 2)]), (2, 2));
        assert_eq!(of(&[run(60, 8)]), (2, 2));
        assert_eq!(of(&[run(0, 16), run(16, 16)]), (1, 0), "two halves of a sector");
        assert_eq!(of(&[run(0, 20), run(10, 22)]), (1, 0), "overlapping");
        assert_eq!(of(&[run(0, 15), run(16, 16)]), (1, 1), "a hole of one byte");
        assert_eq!(of(&[run(0, 8), run(40, 8)]), (1, 1), "two sectors of one unit");
        assert_eq!(of(&[run(32, 1000)]), (17, 1));
        let plan = Traffic { units: 1, partial: 0 };
        assert_eq!((plan.pack_bytes(64, 65), plan.unpack_bytes(1, 0)), (256, 128));
    }

    /// The closed form and the sorted list must say the same.
    #[test]
    fn grids_agree_with_lists() {
        let double = Datatype::from(Primitive::Double);
        let mut sides: Vec<(Datatype, u64)> = Vec::new();
        for name in ["v", "x", "face-x", "face-y", "face-z", "nas-mg-x", "wrf-y-vec", "milc"] {
            let n = ["v", "x"].contains(&name).then_some(24);
            for case in cases(name, n).unwrap().into_iter().take(2) {
                if case.send.buffer_bytes < 1 << 28 {
                    sides.push((case.send.datatype, case.send.count));
                }
            }
        }
        sides.push((Datatype::vector(7, 2, -5, &double).unwrap(), 3));
        sides.push((Datatype::vector(7, 2, 5, &double).unwrap(), 0));
        sides.push((Datatype::resized(0, -64, &double).unwrap(), 9));
        let mut closed = 0;
        for (datatype, count) in sides {
            let layout = datatype.commit().unwrap();
            let mut convertor = Convertor::new(&layout, count).unwrap();
            let mut all = Vec::new();
            let mut runs = [Run::default(); 64];
            loop {
                let (used, _) = convertor.iov(&mut runs, u64::MAX);
                if used == 0 {
                    break;
                }
                all.extend_from_slice(&runs[..used]);
            }
            all.sort_unstable_by_key(|run| run.displacement);
            let listed = Traffic::of(all);
            assert_eq!(Traffic::of_layout(&layout, count).unwrap(), listed, "{:?}", layout.shape());
            closed += usize::from(Grid::of(&layout, count).is_some());
        }
        assert!(closed >= 8, "{closed}");
    }

    #[test]
    fn a_transpose_touches_what_its_matrix_does() {
        let case = &cases("x", Some(64)).unwrap()[0];
        let traffic = Traffic::of_layout(&case.send.datatype.commit().unwrap(), 1).unwrap();
        assert_eq!(traffic, Traffic { units: 64 * 64 * 8 / 64, partial: 0 });
    }
}
