//! Grids walked in tiles: for layouts whose packed order runs across the grain of memory, a transpose
//! foremost. Every byte lands where the packed order says; only the order of the copies differs, which is
//! free as long as no two runs overlap where they are written.
//!
//! A tile covers a cache line of user memory per row and a cache line of packed bytes per column, so each
//! line is touched once while it is near.

use super::method::Level;
use super::transpose::Transpose;
use super::{move_fixed, prefetch, shifted};
use crate::program::Axis;
use crate::run::in_memory;

/// Bytes in a cache line.
const LINE: u64 = 64;

/// Whether a grid is worth tiling: small elements, neighbours on the outer axis, and enough of both.
/// When unpacking, the runs must not overlap besides, because the last one written counts.
pub(super) fn pays(packing: bool, outer: Axis, inner: Axis, len: u64) -> bool {
    let (near, far) = (outer.stride.unsigned_abs(), inner.stride.unsigned_abs());
    let side = LINE / len.max(1);
    matches!(len, 4 | 8 | 16)
        && near < LINE
        && far >= 2 * LINE
        && outer.count >= 2
        && inner.count >= side
        && (packing || apart(outer, inner, len))
}

/// Whether no two runs of the grid overlap.
fn apart(outer: Axis, inner: Axis, len: u64) -> bool {
    let (near, far) =
        (u128::from(outer.stride.unsigned_abs()), u128::from(inner.stride.unsigned_abs()));
    let len = u128::from(len);
    let rows_fit = near >= len && far >= near * u128::from(outer.count - 1) + len;
    let columns_fit = far >= len && near >= far * u128::from(inner.count - 1) + len;
    rows_fit || columns_fit
}

/// Moves the whole grid, in tiles; where `STREAM`, around the cache as far as whole lines are written.
///
/// # Safety
///
/// [`pays`] holds, the processor is of this level, and as [`move_fixed`], for every run of the grid and its
/// packed bytes.
pub(super) unsafe fn move_grid<const PACK: bool, const STREAM: bool>(
    level: Level,
    user: *mut u8,
    packed: *mut u8,
    outer: Axis,
    inner: Axis,
    len: u64,
) {
    if len == 8 && outer.stride == 8 {
        let (across, along) = (in_memory(outer.count), in_memory(inner.count));
        let packed_row = (inner.count * len).cast_signed();
        let matrix = if PACK {
            let (from, to) = (user, packed);
            let (from_step, to_step) = (inner.stride, packed_row);
            Transpose { from, from_step, to, to_step, rows: along, columns: across }
        } else {
            let (from, to) = (packed, user);
            let (from_step, to_step) = (packed_row, inner.stride);
            Transpose { from, from_step, to, to_step, rows: across, columns: along }
        };
        // SAFETY: the grid's runs are the matrix' elements; the caller's promise.
        if unsafe { matrix.run::<STREAM>(level) } {
            return;
        }
    }
    match len {
        // SAFETY: the caller's promise.
        4 => unsafe { tiled::<PACK, 4, 16>(user, packed, outer, inner) },
        // SAFETY: the caller's promise.
        8 => unsafe { tiled::<PACK, 8, 8>(user, packed, outer, inner) },
        // SAFETY: the caller's promise.
        16 => unsafe { tiled::<PACK, 16, 4>(user, packed, outer, inner) },
        _ => unreachable!("`pays` admits no other length"),
    }
}

/// A place in the grid: pointers to an element on both sides, and the steps to its neighbours.
#[derive(Clone, Copy)]
struct Corner {
    user: *mut u8,
    packed: *mut u8,
    outer_stride: i64,
    inner_stride: i64,
    /// Packed bytes from one outer index to the next.
    packed_row: i64,
}

impl Corner {
    /// The element `i` further on the outer axis and `j` on the inner.
    #[inline(always)]
    fn at<const LEN: usize>(self, i: u64, j: u64) -> Corner {
        let (i, j) = (i.cast_signed(), j.cast_signed());
        let user =
            i.wrapping_mul(self.outer_stride).wrapping_add(j.wrapping_mul(self.inner_stride));
        let packed = i.wrapping_mul(self.packed_row).wrapping_add(j.wrapping_mul(LEN as i64));
        Corner { user: shifted(self.user, user), packed: shifted(self.packed, packed), ..self }
    }
}

/// # Safety
///
/// As [`move_grid`].
unsafe fn tiled<const PACK: bool, const LEN: usize, const SIDE: usize>(
    user: *mut u8,
    packed: *mut u8,
    outer: Axis,
    inner: Axis,
) {
    let side = SIDE as u64;
    let corner = Corner {
        user,
        packed,
        outer_stride: outer.stride,
        inner_stride: inner.stride,
        packed_row: (inner.count * LEN as u64).cast_signed(),
    };
    let mut i = 0;
    while i < outer.count {
        let rows = side.min(outer.count - i);
        let mut j = 0;
        while j < inner.count {
            let columns = side.min(inner.count - j);
            let here = corner.at::<LEN>(i, j);
            if rows == side && columns == side {
                // SAFETY: a whole tile inside the grid; the caller's promise.
                unsafe { tile::<PACK, LEN>(here, side, side) };
            } else {
                // SAFETY: `rows × columns` elements inside the grid; the caller's promise.
                unsafe { tile::<PACK, LEN>(here, rows, columns) };
            }
            j += columns;
        }
        i += rows;
    }
}

/// One tile; inlined, so that the sides of a whole one are constants.
///
/// # Safety
///
/// As [`move_fixed`], for every element of the tile.
#[inline(always)]
unsafe fn tile<const PACK: bool, const LEN: usize>(corner: Corner, rows: u64, columns: u64) {
    for j in 0..columns {
        if PACK {
            // The next tile's line: no prefetcher follows so many rows, each on a page of its own.
            prefetch(corner.at::<LEN>(rows, j).user);
        }
        for i in 0..rows {
            let element = corner.at::<LEN>(i, j);
            // SAFETY: an element of the tile; the caller's promise.
            unsafe { move_fixed::<PACK, LEN>(element.user, element.packed) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_a_transpose_there_and_back() {
        for (rows, columns) in [(8u64, 8u64), (16, 24), (13, 37), (2, 9), (65, 64)] {
            let n = usize::try_from(rows * columns).unwrap();
            let source: Vec<u64> = (0..n as u64).collect();
            let mut packed = vec![0u64; n];
            let outer = Axis { count: rows, stride: 8 };
            let inner = Axis { count: columns, stride: (rows * 8).cast_signed() };
            let user = source.as_ptr().cast_mut().cast();
            // SAFETY: the grid is exactly the source matrix, and packed is as large; only it is written.
            unsafe {
                move_grid::<true, false>(
                    Level::Baseline,
                    user,
                    packed.as_mut_ptr().cast(),
                    outer,
                    inner,
                    8,
                )
            };
            for i in 0..rows {
                for j in 0..columns {
                    assert_eq!(packed[usize::try_from(i * columns + j).unwrap()], j * rows + i);
                }
            }
            let mut back = vec![u64::MAX; n];
            let user = back.as_mut_ptr().cast();
            // SAFETY: as above, the other way round.
            unsafe {
                move_grid::<false, false>(
                    Level::Baseline,
                    user,
                    packed.as_mut_ptr().cast(),
                    outer,
                    inner,
                    8,
                )
            };
            assert_eq!(back, source);
        }
    }

    #[test]
    fn overlapping_runs_are_left_in_order_when_unpacking() {
        let outer = Axis { count: 10, stride: 8 };
        assert!(pays(true, outer, Axis { count: 64, stride: 512 }, 8));
        assert!(pays(false, outer, Axis { count: 64, stride: 512 }, 8));
        let wide = Axis { count: 100, stride: 8 };
        assert!(!pays(false, wide, Axis { count: 64, stride: 512 }, 8));
        assert!(!pays(false, Axis { count: 10, stride: 4 }, Axis { count: 64, stride: 512 }, 8));
    }
}
