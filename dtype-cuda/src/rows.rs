//! Which moves a copy engine does: the decision, in rows.
//!
//! Pure. Between two GPUs a copy engine moves rows at the speed at which it moves one contiguous span, 5 % faster
//! than kernels can load from the other GPU, or store to it, and needs no block of either; within a GPU it
//! is half as fast as kernels. Measured between two H200s, 16 MiB with the call: one contiguous span goes at 307 GB/s,
//! rows of 256 bytes at 311 and rows of 64 at 169; another copy costs 2.4 µs.
//!
//! Units: bytes.

use crate::form::ContiguousSpan;
use crate::nest::{Nest, PairDim};
use smallvec::SmallVec;

/// Copies of a call at most.
pub(crate) const COPIES_MAX: usize = 8;

/// Bytes of a row at least, where there are several.
const WIDTH_MIN: u64 = 256;

/// Bytes for which another copy pays: a kernel loses as much time on them as the copy takes to begin.
const ANOTHER: u64 = 8 << 20;

/// The same where a budget keeps kernels from being as fast.
const ANOTHER_THAN_FEW: u64 = 1 << 20;

/// One copy: rows of one width, each side at a pitch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Where the first row is at the source.
    pub(crate) src: i64,
    /// And at the destination.
    pub(crate) dst: i64,
    /// Bytes of a row.
    pub(crate) width: u64,
    /// How many.
    pub(crate) rows: u64,
    /// From one row to the next at the source; at least a row.
    pub(crate) src_pitch: u64,
    /// And at the destination.
    pub(crate) dst_pitch: u64,
}

/// A call's copies.
pub(crate) type Copies = SmallVec<[Rows; 2]>;

impl Rows {
    /// Bytes from one row to the next at most: what CUDA's devices take.
    pub(crate) const PITCH_MAX: u64 = i32::MAX as u64;

    /// Bytes from the first row's begin to the last one's end, at this pitch.
    pub(crate) fn span(&self, pitch: u64) -> u64 {
        pitch.saturating_mul(self.rows.saturating_sub(1)).saturating_add(self.width)
    }
}

/// From how many bytes on copies are worth their while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// One copy.
    least: u64,
    /// Each further one.
    another: u64,
    /// Whether kernels have a budget.
    budgeted: bool,
}

impl Terms {
    /// As configured; a copy engine needs no blocks, so with a budget for kernels less is enough.
    pub(crate) fn new(bytes_min: u64, budgeted: bool) -> Terms {
        let (least, another) =
            if budgeted { (bytes_min / 8, ANOTHER_THAN_FEW) } else { (bytes_min, ANOTHER) };
        Terms { least, another: another.min(least), budgeted }
    }

    /// Into how many blocks, as a power of two, a triangle of `bytes` is split: copies move a half of it by
    /// one level, three quarters by two, and a kernel moves the rest meanwhile. `None` leaves all to kernels.
    pub(crate) fn levels(self, bytes: u64) -> Option<u32> {
        if self.budgeted {
            return (bytes >= self.least.saturating_mul(8)).then_some(2);
        }
        match bytes {
            _ if bytes >= self.least.saturating_mul(16) => Some(2),
            _ if bytes >= self.least.saturating_mul(4) => Some(1),
            _ => None,
        }
    }

    /// Whether `copies` copies may move `bytes`.
    pub(crate) fn allow(self, copies: usize, bytes: u64) -> bool {
        let more = (copies as u64).saturating_sub(1);
        copies <= COPIES_MAX
            && bytes >= self.least.saturating_add(self.another.saturating_mul(more))
    }
}

/// The copies that move bytes `start..end` of a nest's stream, if they are few and their rows long enough.
pub(crate) fn copies(nest: &Nest, start: u64, end: u64, terms: Terms) -> Option<Copies> {
    let bytes = end.checked_sub(start).filter(|&bytes| terms.allow(1, bytes))?;
    let mut copies = Copies::new();
    for piece in nest.cut(start, end)? {
        rows(&piece.in_address_order()?, &mut copies)?;
    }
    terms.allow(copies.len(), bytes).then_some(copies)
}

/// The copies that move bytes `start..end` of a stream that is these blocks on either side, in order and
/// without gaps between them, if they are few.
pub(crate) fn blocks(
    src: &[ContiguousSpan],
    dst: &[ContiguousSpan],
    start: u64,
    end: u64,
    terms: Terms,
) -> Option<Copies> {
    let bytes = end.checked_sub(start).filter(|&bytes| terms.allow(1, bytes))?;
    let mut copies = Copies::new();
    let mut at = start;
    while at < end {
        let covers = |block: &&ContiguousSpan| {
            at.checked_sub(block.at).is_some_and(|in_it| in_it < block.len)
        };
        let (from, to) = (src.iter().find(covers)?, dst.iter().find(covers)?);
        let place =
            |block: &ContiguousSpan| block.displacement.wrapping_add_unsigned(at - block.at);
        let left = |block: &ContiguousSpan| block.len - (at - block.at);
        let width = left(from).min(left(to)).min(end - at);
        if copies.len() == COPIES_MAX {
            return None;
        }
        let (src, dst) = (place(from), place(to));
        copies.push(Rows { src, dst, width, rows: 1, src_pitch: width, dst_pitch: width });
        at += width;
    }
    terms.allow(copies.len(), bytes).then_some(copies)
}

/// Appends the copies of a whole nest, in the order of addresses.
fn rows(nest: &Nest, copies: &mut Copies) -> Option<()> {
    let pitch = |stride: i64| {
        u64::try_from(stride).ok().filter(|pitch| (nest.len..=Rows::PITCH_MAX).contains(pitch))
    };
    let fits = |dim: &PairDim| Some((pitch(dim.src)?, pitch(dim.dst)?));
    let rows = nest.dims.iter().enumerate().filter(|(_, dim)| fits(dim).is_some());
    let rows = rows.max_by_key(|(_, dim)| dim.count).map(|(at, _)| at);
    if !nest.dims.is_empty() && nest.len < WIDTH_MIN {
        return None;
    }
    let mut outer = nest.dims.clone();
    let (count, pitches) = match rows {
        Some(at) => {
            let dim = outer.remove(at);
            (dim.count, fits(&dim)?)
        }
        None => (1, (nest.len, nest.len)),
    };
    let blocks = outer.iter().try_fold(1u64, |blocks, dim| blocks.checked_mul(dim.count))?;
    let room = COPIES_MAX - copies.len();
    if blocks > room as u64 {
        return None;
    }
    for number in 0..blocks {
        let (mut src, mut dst, mut left) = (nest.src, nest.dst, number);
        for dim in outer.iter().rev() {
            let index = (left % dim.count).cast_signed();
            left /= dim.count;
            src = src.wrapping_add(dim.src.wrapping_mul(index));
            dst = dst.wrapping_add(dim.dst.wrapping_mul(index));
        }
        let (src_pitch, dst_pitch) = pitches;
        copies.push(Rows { src, dst, width: nest.len, rows: count, src_pitch, dst_pitch });
    }
    Some(())
}

#[cfg(test)]
mod tests;
