//! Long index lists over a dense type, read once: the common case of commit. One pass multiplies the
//! displacements out, sums the lengths, and gathers what is needed to know that nothing merges, nothing is
//! empty and nothing overflows; where that is not so, the list takes the general path.

use std::sync::Arc;

use super::Lengths;
use super::runs::{self, Class, constant_len_step, constant_step};
use crate::program::{Chain, Facts, Op, apart, grain};

/// Shorter lists are not worth a second path.
const LONG: usize = 32;

/// Entries read before what was seen of them is looked at.
const PIECE: usize = 1024;

/// Block i is `lengths[i] × len` bytes at `displacements[i] × unit + base`.
pub(super) struct Bulk<'a> {
    pub(super) displacements: &'a [i64],
    pub(super) lengths: Lengths<'a>,
    pub(super) len: u64,
    pub(super) unit: i64,
    pub(super) base: i64,
}

/// What the list is, with its facts if it is a list.
pub(super) enum Digest {
    Class(Class),
    Derived(Op, Facts),
}

impl Bulk<'_> {
    /// `None` sends the list down the general path.
    pub(super) fn digest(&self) -> Option<Digest> {
        if self.displacements.len() < LONG {
            return None;
        }
        match self.lengths {
            Lengths::Equal(n) => self.equal(n),
            Lengths::Listed(list) if list.iter().all(|n| *n == list[0]) => self.equal(list[0]),
            Lengths::Listed(list) => self.unequal(list),
        }
    }

    fn place(&self, displacement: i64) -> i64 {
        displacement.wrapping_mul(self.unit).wrapping_add(self.base)
    }

    /// Whether displacements up to these, with `reach` bytes behind them, cannot overflow.
    fn fits(&self, (least, greatest): (i64, i64), reach: u64) -> bool {
        let most = i128::from(least.unsigned_abs().max(greatest.unsigned_abs()));
        let far =
            most * i128::from(self.unit.unsigned_abs()) + i128::from(self.base.unsigned_abs());
        far + i128::from(reach) <= i128::from(i64::MAX)
    }

    fn equal(&self, n: u64) -> Option<Digest> {
        let len = self.len.checked_mul(n).filter(|len| *len > 0)?;
        let bytes = i64::try_from(len).ok()?;
        let count = self.displacements.len() as u64;
        let size = len.checked_mul(count).filter(|size| *size <= i64::MAX.cast_unsigned())?;
        let (mut least, mut greatest) = (i64::MAX, i64::MIN);
        // The first has none before it: the difference 0 is no length.
        let first = self.place(self.displacements[0]);
        let (mut before, mut bits) = (first, len);
        let mut seams = 0;
        let mut disps = Vec::with_capacity(self.displacements.len());
        for piece in self.displacements.chunks(PIECE) {
            disps.extend(piece.iter().map(|&displacement| {
                (least, greatest) = (least.min(displacement), greatest.max(displacement));
                let place = self.place(displacement);
                // Steps divide what the ways from the first to each divide.
                let step = apart(place, before);
                bits |= step;
                seams += usize::from(step == len);
                before = place;
                place
            }));
            if !runs::stay_apart(disps.len(), disps.len() - seams) {
                return self.merged(len);
            }
        }
        if !self.fits((least, greatest), len) {
            return None;
        }
        let ends = [self.place(least), self.place(greatest)];
        let (lo, highest) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        let last = disps[disps.len() - 1];
        if let Some(stride) = constant_step(&disps) {
            return Some(Digest::Class(Class::Strided { disp: first, count, stride, len }));
        }
        let chain = match seams {
            0 => Chain::run(len).repeated(count, false),
            _ => Chain::of_runs(len, disps.windows(2).map(|pair| apart(pair[1], pair[0]) == len)),
        };
        let (hi, end) = (highest + bytes, last + bytes);
        let facts = Facts { size, lo, hi, first, end, chain, grain: grain(bits), depth: 2 };
        Some(Digest::Derived(Op::Blocks { len, disps: Arc::new(disps) }, facts))
    }

    /// Blocks of `len` bytes, of which many continue the one before. Their bytes altogether fit 63 bits.
    fn merged(&self, len: u64) -> Option<Digest> {
        let count = self.displacements.len();
        let ends = self.displacements.iter();
        let ends = ends.fold((i64::MAX, i64::MIN), |(a, b), &d| (a.min(d), b.max(d)));
        if !self.fits(ends, len) {
            return None;
        }
        // Every block is written behind the runs so far, and is one of them if it does not continue the last.
        let (mut disps, mut starts) = (vec![0; count], vec![0; count + 1]);
        let (mut runs, mut start) = (0, 0);
        let mut end = None;
        for &displacement in self.displacements {
            let place = self.place(displacement);
            (disps[runs], starts[runs]) = (place, start);
            runs += usize::from(end != Some(place));
            end = Some(place.wrapping_add_unsigned(len));
            start += len;
        }
        starts[runs] = start;
        disps.truncate(runs);
        starts.truncate(runs + 1);
        Some(Digest::Class(runs::of_lists(disps, starts)))
    }

    fn unequal(&self, lengths: &[u64]) -> Option<Digest> {
        let count = self.displacements.len();
        if lengths.len() != count {
            return None;
        }
        let longest = lengths.iter().fold(0, |a, &b| a | b).checked_mul(self.len)?;
        i64::try_from(u128::from(longest) * count as u128).ok()?;
        // No product or sum of lengths overflows below: each is at most `longest`.
        let (mut lo, mut hi) = (i64::MAX, i64::MIN);
        let (mut least, mut greatest) = (i64::MAX, i64::MIN);
        // What divides all numbers of elements, times the bytes of one, divides all lengths.
        let (mut size, mut bits) = (0u64, longest);
        // Where the block before ended; the first has none: so far away that the gap is neither 0 nor
        // keeps `bits` from being divided.
        let first = self.place(self.displacements[0]);
        let mut end = first.wrapping_add(i64::MIN);
        let mut general = false;
        let mut disps = Vec::with_capacity(count);
        let mut starts = Vec::with_capacity(count + 1);
        for (piece, lengths) in self.displacements.chunks(PIECE).zip(lengths.chunks(PIECE)) {
            starts.extend(lengths.iter().map(|&n| {
                general |= n == 0;
                let start = size;
                size += n * self.len;
                start
            }));
            disps.extend(piece.iter().zip(lengths).map(|(&displacement, &n)| {
                (least, greatest) = (least.min(displacement), greatest.max(displacement));
                let place = self.place(displacement);
                let ends = place.wrapping_add_unsigned(n * self.len);
                (lo, hi) = (lo.min(place), hi.max(ends));
                let gap = apart(place, end);
                bits |= gap;
                general |= gap == 0;
                end = ends;
                place
            }));
            if general {
                return None;
            }
        }
        starts.push(size);
        if !self.fits((least, greatest), longest) {
            return None;
        }
        if let (Some(len_step), Some(step)) = (constant_len_step(lengths), constant_step(&disps)) {
            let len_step = len_step.checked_mul(i64::try_from(self.len).ok()?)?;
            let (disp, len) = (disps[0], starts[1]);
            let op = Op::Affine { count: count as u64, step, len, len_step };
            return Some(Digest::Class(Class::Affine { disp, op }));
        }
        let inner = &lengths[1..count - 1];
        let ends = inner.iter().fold((u64::MAX, 0), |(a, b), &n| (a.min(n), b.max(n)));
        let chain = Chain {
            blocks: count as u64,
            head: starts[1],
            tail: size - starts[count - 1],
            inner: Some((ends.0 * self.len, ends.1 * self.len)),
        };
        if let Some(op) = runs::of_equal_blocks(&disps, &starts, chain.min()) {
            return Some(Digest::Class(Class::Listed(op)));
        }
        let facts = Facts { size, lo, hi, first, end, chain, grain: grain(bits), depth: 2 };
        let op = Op::List { disps: disps.into(), starts: starts.into() };
        Some(Digest::Derived(op, facts))
    }
}
