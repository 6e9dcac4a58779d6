//! Two sides of a move as one nest of loops: what lies where on both, and which of it follows each other.
//!
//! Pure. Both sides are walked in the order of the packed stream; where the loops of one divide those of
//! the other, both are loops over the same numbers, with a stride on each side ([`Nest::between`]). A range
//! of the stream is then a few whole nests ([`Nest::cut`]). Of a whole nest the order of the stream does not
//! matter any more: its bytes may be moved in the order of their addresses, in which loops that continue
//! each other on both sides are one ([`Nest::in_address_order`]). A transposed matrix that goes to a
//! transposed matrix is one contiguous span then. One that goes to a matrix that is not transposed is moved
//! tile after tile ([`Nest::in_tiles`]).
//!
//! Only positions inside a range that is asked for are ever meant: numbers wrap around where they may, and
//! are checked where loops are joined. Units: bytes.

use gapless_kernels::launch::{Grid, GridDim};
use smallvec::{SmallVec, smallvec};

/// Bytes of a tile's rows at most: a packet of a link, four sectors of a GPU's memory.
const TILE_BYTES: u64 = 128;
/// Bytes of a sector: with shorter rows tiles are of no use.
const SECTOR_BYTES: u64 = 32;

/// Loops of a nest at most: those of two grids and their blocks, each of which may be cut by the other.
const DIMS_MAX: usize = 16;

/// The loops of one side, in the stream's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Where the stream's byte 0 lies.
    at: i64,
    /// Innermost first, which is that over the bytes of a block.
    dims: SmallVec<[GridDim; 8]>,
}

impl Walk {
    /// One contiguous span whose stream begins at `at`. It has no end of its own.
    pub(crate) fn contiguous(at: i64) -> Walk {
        Walk { at, dims: smallvec![GridDim { count: i64::MAX.cast_unsigned(), stride: 1 }] }
    }

    /// Blocks on a grid; `None` if there are no bytes.
    pub(crate) fn grid(grid: &Grid) -> Option<Walk> {
        let block = GridDim { count: grid.len, stride: 1 };
        let dims: SmallVec<[GridDim; 8]> =
            std::iter::once(block).chain(grid.dims.iter().rev().copied()).collect();
        let any = dims.iter().all(|dim| dim.count > 0);
        any.then_some(Walk { at: grid.displacement, dims })
    }
}

/// A loop over both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairDim {
    /// How many.
    pub(crate) count: u64,
    /// From one to the next at the source.
    pub(crate) src: i64,
    /// And at the destination.
    pub(crate) dst: i64,
}

impl PairDim {
    /// Whether `other` goes on where this one ends, on both sides.
    fn continued_by(self, other: PairDim) -> bool {
        let end = |stride: i64| {
            i64::try_from(self.count).ok().and_then(|count| stride.checked_mul(count))
        };
        end(self.src) == Some(other.src) && end(self.dst) == Some(other.dst)
    }
}

/// Bytes that are moved: blocks of `len`, at places of both sides that the same loops number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nest {
    /// Where the first byte is at the source.
    pub(crate) src: i64,
    /// And at the destination.
    pub(crate) dst: i64,
    /// Bytes of a block.
    pub(crate) len: u64,
    /// Outermost first.
    pub(crate) dims: SmallVec<[PairDim; 6]>,
}

/// `index` steps of a stride. Where they are meant, their sum fits.
fn steps(index: u64, stride: i64) -> i64 {
    stride.wrapping_mul(index.cast_signed())
}

impl Nest {
    /// The loops that both sides share, over at least as many bytes as the shorter one has; `None` where
    /// those of neither divide the other's.
    pub(crate) fn between(src: &Walk, dst: &Walk) -> Option<Nest> {
        let mut sides = [src.dims.iter().copied(), dst.dims.iter().copied()];
        let mut now = [sides[0].next()?, sides[1].next()?];
        let mut dims: SmallVec<[PairDim; 6]> = SmallVec::new();
        loop {
            let count = now[0].count.min(now[1].count);
            if dims.len() == DIMS_MAX || count == 0 {
                return None;
            }
            dims.insert(0, PairDim { count, src: now[0].stride, dst: now[1].stride });
            let mut ended = false;
            for (side, dim) in sides.iter_mut().zip(&mut now) {
                if dim.count == count {
                    match side.next() {
                        Some(next) => *dim = next,
                        None => ended = true,
                    }
                } else if side.len() == 0 || dim.count.is_multiple_of(count) {
                    // The outermost loop may say more than it has: nobody asks for that.
                    let stride = steps(count, dim.stride);
                    *dim = GridDim { count: dim.count.div_ceil(count), stride };
                } else {
                    return None;
                }
            }
            if ended {
                break;
            }
        }
        // Blocks are without gaps on both sides.
        let len = dims.pop()?.count;
        Some(Nest { src: src.at, dst: dst.at, len, dims })
    }

    /// Bytes; `None` if they overflow 63 bits.
    pub(crate) fn size(&self) -> Option<u64> {
        let size = self.dims.iter().try_fold(self.len, |size, dim| size.checked_mul(dim.count))?;
        (size <= i64::MAX.cast_unsigned()).then_some(size)
    }

    /// The inner nest at `index` of the outermost loop.
    fn inner(&self, index: u64) -> Option<Nest> {
        let (outer, inner) = self.dims.split_first()?;
        Some(Nest {
            src: self.src.wrapping_add(steps(index, outer.src)),
            dst: self.dst.wrapping_add(steps(index, outer.dst)),
            len: self.len,
            dims: inner.into(),
        })
    }

    /// Bytes `start..end` of the stream as whole nests, in the stream's order: at most two for each loop,
    /// and one. `None` if they are outside, or numbers overflow.
    pub(crate) fn cut(&self, start: u64, end: u64) -> Option<Vec<Nest>> {
        let mut pieces = Vec::new();
        let inside = start <= end && self.size().is_some_and(|size| end <= size);
        (inside && self.cut_into(start, end, &mut pieces).is_some()).then_some(pieces)
    }

    fn cut_into(&self, start: u64, end: u64, pieces: &mut Vec<Nest>) -> Option<()> {
        if start == end {
            return Some(());
        }
        let Some(outer) = self.dims.first().copied() else {
            let (src, dst) = (steps(start, 1), steps(start, 1));
            pieces.push(Nest {
                src: self.src.wrapping_add(src),
                dst: self.dst.wrapping_add(dst),
                len: end - start,
                dims: SmallVec::new(),
            });
            return Some(());
        };
        let unit = self.inner(0)?.size()?;
        let (first, last) = (start.div_ceil(unit), end / unit);
        if first > last {
            let begin = last * unit;
            return self.inner(last)?.cut_into(start - begin, end - begin, pieces);
        }
        if start < first * unit {
            let begin = (first - 1) * unit;
            self.inner(first - 1)?.cut_into(start - begin, unit, pieces)?;
        }
        if first < last {
            let mut whole = self.inner(first)?;
            whole.dims.insert(0, PairDim { count: last - first, ..outer });
            pieces.push(whole);
        }
        self.inner(last)
            .filter(|_| end > last * unit)
            .map_or(Some(()), |rest| rest.cut_into(0, end - last * unit, pieces))
    }

    /// The same bytes in the order of their addresses at the destination, with loops that continue each
    /// other joined. `None` if some byte of the destination may be written twice: the stream's order would
    /// matter then.
    pub(crate) fn in_address_order(mut self) -> Option<Nest> {
        self.dims.retain(|dim| dim.count > 1);
        for at in 0..self.dims.len() {
            let PairDim { count, src, dst } = self.dims[at];
            if src < 0 && dst < 0 {
                // From its other end.
                self.src = self.src.wrapping_add(steps(count - 1, src));
                self.dst = self.dst.wrapping_add(steps(count - 1, dst));
                let (src, dst) = (src.checked_neg()?, dst.checked_neg()?);
                self.dims[at] = PairDim { count, src, dst };
            }
        }
        self.dims.sort_by_key(|dim| std::cmp::Reverse(dim.dst.unsigned_abs()));
        if !self.writes_once() {
            return None;
        }
        self.join();
        Some(self)
    }

    /// Whether each loop steps over all that those inside it touch at the destination.
    fn writes_once(&self) -> bool {
        let mut span = u128::from(self.len);
        self.dims.iter().rev().all(|dim| {
            let stride = u128::from(dim.dst.unsigned_abs());
            let clear = stride >= span;
            span = span.saturating_add(stride.saturating_mul(u128::from(dim.count - 1)));
            clear
        })
    }

    /// Joins what continues each other.
    fn join(&mut self) {
        // Sorted, a loop can only be continued by one further out.
        let mut at = self.dims.len();
        while at > 0 {
            at -= 1;
            let block = PairDim { count: self.len, src: 1, dst: 1 };
            if block.continued_by(self.dims[at])
                && let Some(len) = self.len.checked_mul(self.dims[at].count)
            {
                self.len = len;
                self.dims.remove(at);
                at = self.dims.len();
                continue;
            }
            let inner = self.dims[at];
            let outer = (0..at).rev().find(|&outer| inner.continued_by(self.dims[outer]));
            if let Some(outer) = outer
                && let Some(count) = inner.count.checked_mul(self.dims[outer].count)
            {
                self.dims[at].count = count;
                self.dims.remove(outer);
                at = self.dims.len();
            }
        }
    }

    /// The same bytes in tiles, of a nest in the order of addresses. It has tiles if it transposes: the destination's
    /// innermost loop is another one than the loop whose blocks follow each other at the source. Both loops are cut into
    /// equal parts of a sector or more. Innermost comes a part of the destination's loop, then a part of the source's. So
    /// what is moved at about the same time lies in few sectors at both sides. The numbers are the bytes that follow each
    /// other in a tile, at the source and at the destination.
    pub(crate) fn in_tiles(mut self) -> Option<(Nest, [u64; 2])> {
        let inner = self.dims.pop().filter(|dim| dim.dst.unsigned_abs() == self.len)?;
        let at = self.dims.iter().position(|dim| dim.src.unsigned_abs() == self.len)?;
        let outer = self.dims.remove(at);
        let part = |dim: PairDim| {
            let most = (TILE_BYTES / self.len).min(dim.count);
            let part = (2..=most).rev().find(|part| dim.count.is_multiple_of(*part))?;
            (part * self.len >= SECTOR_BYTES).then_some(part)
        };
        let parts = [part(outer)?, part(inner)?];
        let wide = |dim: PairDim, part: u64| PairDim {
            count: dim.count / part,
            src: steps(part, dim.src),
            dst: steps(part, dim.dst),
        };
        self.dims.extend([wide(outer, parts[0]), wide(inner, parts[1])]);
        self.dims.retain(|dim| dim.count > 1);
        self.dims
            .extend([PairDim { count: parts[0], ..outer }, PairDim { count: parts[1], ..inner }]);
        let runs = parts.map(|part| part * self.len);
        Some((self, runs))
    }

    /// Both sides as grids, in the nest's order.
    pub(crate) fn grids(&self) -> (Grid, Grid) {
        let grid = |displacement, stride: fn(&PairDim) -> i64| {
            let dim = |dim: &PairDim| GridDim { count: dim.count, stride: stride(dim) };
            Grid { displacement, len: self.len, dims: self.dims.iter().map(dim).collect() }
        };
        (grid(self.src, |dim| dim.src), grid(self.dst, |dim| dim.dst))
    }
}

#[cfg(test)]
pub(crate) mod tests;
