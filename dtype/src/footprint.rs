//! How much memory a layout touches, as hardware counts it that moves whole sectors: whether bytes that lie
//! side by side in memory, though not in the packed stream, are seldom or usual.

use crate::{Dim, Layout, Shape};
use smallvec::SmallVec;

/// What instances of a layout touch, in the order of addresses. Both are upper bounds, found by arithmetic
/// on the layout's form alone: close for grids, twice too much at most for lists of short runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Sectors of [`SECTOR`](Footprint::SECTOR) bytes of which some byte is touched, wherever displacement 0 is.
    pub sectors: u64,
    /// Contiguous spans of memory.
    pub runs: u64,
}

impl Footprint {
    /// Bytes of a sector: what a GPU reads from memory at least.
    pub const SECTOR: u64 = 32;

    /// `runs` contiguous spans of `len` bytes each.
    fn of(runs: u64, len: u64) -> Footprint {
        Footprint { sectors: runs.saturating_mul(sectors(len)), runs }
    }
}

/// Sectors that `len` bytes in a row touch at most.
fn sectors(len: u64) -> u64 {
    if len == 0 { 0 } else { (len - 1).div_ceil(Footprint::SECTOR) + 1 }
}

/// Groups of a grid whose gaps are `gap` bytes at most, and the bytes that each spans. Dimensions are taken in
/// the order of their strides, as addresses go.
fn groups(len: u64, dims: &[Dim], gap: u64) -> (u64, u64) {
    let (mut groups, mut span) = (1u64, len);
    for dim in dims {
        let stride = dim.stride.unsigned_abs();
        if groups == 1 && stride <= span.saturating_add(gap) {
            span = span.saturating_add(stride.saturating_mul(dim.count.saturating_sub(1)));
        } else {
            groups = groups.saturating_mul(dim.count);
        }
    }
    (groups, span)
}

impl Layout {
    /// What `count` instances touch; see [`Footprint`].
    #[must_use]
    pub fn footprint(&self, count: u64) -> Footprint {
        if self.size() == 0 || count == 0 {
            return Footprint { sectors: 0, runs: 0 };
        }
        let (len, dims): (u64, &[Dim]) = match self.shape() {
            Shape::Contiguous { len, .. } => (*len, &[]),
            Shape::Strided { len, dims, .. } => (*len, dims),
            _ => return self.scattered(count),
        };
        let instances = Dim { count, stride: self.extent() };
        let mut dims: SmallVec<[Dim; 5]> = dims.iter().copied().chain([instances]).collect();
        dims.retain(|dim| dim.count > 1);
        dims.sort_by_key(|dim| dim.stride.unsigned_abs());
        let (runs, _) = groups(len, &dims, 0);
        // A gap of less than a sector leaves none out.
        let (parts, span) = groups(len, &dims, Footprint::SECTOR - 1);
        Footprint { runs, ..Footprint::of(parts, span) }
    }

    /// Of runs that are in no order.
    fn scattered(&self, count: u64) -> Footprint {
        let runs = self.blocks_of(count).unwrap_or(u64::MAX);
        let bytes = self.size().saturating_mul(count);
        // Each has less than a sector too much at either end.
        let apart = (bytes / Footprint::SECTOR).saturating_add(runs.saturating_mul(2));
        let step = self.extent().unsigned_abs().saturating_mul(count - 1);
        let span = u64::try_from(self.true_extent()).unwrap_or(u64::MAX).saturating_add(step);
        Footprint { sectors: apart.min(sectors(span)), runs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Convertor, Datatype, Primitive};

    /// Sectors and runs that are touched where displacement 0 is at `shift`.
    fn counted(layout: &Layout, count: u64, shift: u64) -> (u64, u64) {
        let mut convertor = Convertor::new(layout, count).unwrap();
        let (low, high) = convertor.bounds().unwrap_or((0, 0));
        let below = low.min(0).unsigned_abs().next_multiple_of(32);
        let origin = usize::try_from(below + shift).unwrap();
        let mut memory = vec![0u8; origin + usize::try_from(high.max(0)).unwrap() + 64];
        let packed = vec![1u8; usize::try_from(convertor.packed_size()).unwrap()];
        convertor.unpack(&packed, &mut memory, origin).unwrap();
        let sectors = memory.chunks(32).filter(|sector| sector.contains(&1)).count();
        let runs = memory.windows(2).filter(|pair| pair == &[0, 1]).count();
        (sectors as u64, runs as u64 + u64::from(memory[0]))
    }

    fn check(layout: &Layout, count: u64, what: &str) -> Footprint {
        let told = layout.footprint(count);
        for shift in [0, 1, 8, 16, 31] {
            let (sectors, runs) = counted(layout, count, shift);
            assert!(
                sectors <= told.sectors && runs <= told.runs,
                "{what}: {told:?}, at {shift} {sectors} and {runs}"
            );
        }
        told
    }

    fn bytes() -> Datatype {
        Primitive::UnsignedChar.into()
    }

    #[test]
    fn grids_never_touch_more_than_is_told() {
        for len in [1, 8, 24, 40] {
            for outer in [-200i64, -64, -8, 1, 8, 40, 97, 300] {
                for inner in [-96i64, -24, 8, 24, 33, 56, 120] {
                    for (a, b) in [(1, 3), (3, 1), (4, 5)] {
                        let row = Datatype::hvector(b, len, inner, &bytes()).unwrap();
                        let grid = Datatype::hvector(a, 1, outer, &row).unwrap().commit().unwrap();
                        for count in [1, 3] {
                            check(&grid, count, &format!("{a} x {b} of {len} at {outer}, {inner}"));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn lists_and_triangles_never_touch_more_than_is_told() {
        let places: Vec<i64> = (0..50).map(|i| (i * 37) % 51 * 29).collect();
        let list = Datatype::indexed_block(24, &places, &bytes()).unwrap().commit().unwrap();
        let told = check(&list, 2, "a list");
        assert!(told.sectors <= 300, "{told:?}");
        let (lengths, places): (Vec<u64>, Vec<i64>) =
            (1..60).map(|i: i64| (i.unsigned_abs(), i * 64)).unzip();
        let triangle = Datatype::indexed(&lengths, &places, &bytes()).unwrap().commit().unwrap();
        check(&triangle, 1, "a triangle");
        check(&Datatype::contiguous(0, &bytes()).unwrap().commit().unwrap(), 3, "nothing");
    }

    #[test]
    fn what_is_dense_in_memory_is_so_whatever_its_order() {
        let n = 100;
        let column = Datatype::vector(n, 1, n.cast_signed(), &Primitive::Double.into()).unwrap();
        let column = Datatype::resized(0, 8, &column).unwrap();
        let transposed = Datatype::contiguous(n, &column).unwrap().commit().unwrap();
        let told = check(&transposed, 1, "a transpose");
        assert_eq!(told, Footprint { sectors: n * n * 8 / 32 + 1, runs: 1 });
        // Half of each row: rows they are.
        let half = Datatype::vector(n, 1, 2 * n.cast_signed(), &Primitive::Double.into()).unwrap();
        let half = Datatype::resized(0, 8, &half).unwrap();
        let half = Datatype::contiguous(n, &half).unwrap().commit().unwrap();
        assert_eq!(check(&half, 1, "half a transpose").runs, n);
        // Gaps of less than a sector save nothing.
        let sparse =
            Datatype::vector(n, 1, 3, &Primitive::Double.into()).unwrap().commit().unwrap();
        let told = check(&sparse, 1, "every third");
        assert_eq!((told.sectors, told.runs), ((99 * 24 + 7_u64).div_ceil(32) + 1, n));
    }
}
