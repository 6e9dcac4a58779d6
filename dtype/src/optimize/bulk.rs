//! Long index lists over a dense type, read once: the common case of commit. One pass multiplies the
//! displacements out, sums the lengths, and gathers what is needed to know that nothing merges, nothing is
//! empty and nothing overflows; where that is not so, the list goes the general way.

use std::sync::Arc;

use super::Lengths;
use super::runs::{Class, constant_len_step, constant_step};
use crate::program::{Chain, Facts, Op};

/// Shorter lists are not worth a second way.
const LONG: usize = 32;

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
    /// `None` sends the list the general way.
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

    /// Where the lowest and the highest displacement lead, if neither overflows.
    fn reach(&self, least: i64, most: i64) -> Option<(i64, i64)> {
        let place = |d: i64| d.checked_mul(self.unit)?.checked_add(self.base);
        let (a, b) = (place(least)?, place(most)?);
        Some((a.min(b), a.max(b)))
    }

    fn equal(&self, n: u64) -> Option<Digest> {
        let len = self.len.checked_mul(n).filter(|len| *len > 0)?;
        let bytes = i64::try_from(len).ok()?;
        let count = self.displacements.len() as u64;
        let size = len.checked_mul(count).filter(|size| *size <= i64::MAX.cast_unsigned())?;
        let (mut least, mut most) = (i64::MAX, i64::MIN);
        // The first has none before it: the difference 0 is no length.
        let mut before = self.place(self.displacements[0]);
        let mut disps = Vec::with_capacity(self.displacements.len());
        for &displacement in self.displacements {
            least = least.min(displacement);
            most = most.max(displacement);
            let place = self.place(displacement);
            if place.wrapping_sub(before) == bytes {
                return None;
            }
            before = place;
            disps.push(place);
        }
        let (lo, highest) = self.reach(least, most)?;
        let hi = highest.checked_add(bytes)?;
        let (first, last) = (disps[0], disps[disps.len() - 1]);
        if let Some(stride) = constant_step(&disps) {
            return Some(Digest::Class(Class::Strided { disp: first, count, stride, len }));
        }
        let chain = Chain::run(len).repeated(count, false);
        let facts = Facts { size, lo, hi, first, end: last.checked_add(bytes)?, chain, depth: 2 };
        Some(Digest::Derived(Op::Blocks { len, disps: Arc::new(disps) }, facts))
    }

    fn unequal(&self, lengths: &[u64]) -> Option<Digest> {
        let count = self.displacements.len();
        let longest = lengths.iter().fold(0, |a, &b| a.max(b)).checked_mul(self.len)?;
        i64::try_from(u128::from(longest) * count as u128).ok()?;
        let shortest = lengths.iter().fold(u64::MAX, |a, &b| a.min(b));
        if shortest == 0 || lengths.len() != count {
            return None;
        }
        // No product overflows below: every length is at most `longest`.
        let mut disps = Vec::with_capacity(count);
        let mut starts = Vec::with_capacity(count + 1);
        let (mut least, mut most, mut lo, mut hi) = (i64::MAX, i64::MIN, i64::MAX, i64::MIN);
        let (mut end, mut size) = (None, 0u64);
        starts.push(0);
        for (&displacement, &n) in self.displacements.iter().zip(lengths) {
            least = least.min(displacement);
            most = most.max(displacement);
            let (place, len) = (self.place(displacement), n * self.len);
            if end == Some(place) {
                return None;
            }
            let ends = place.wrapping_add_unsigned(len);
            (lo, hi) = (lo.min(place), hi.max(ends));
            end = Some(ends);
            size += len;
            disps.push(place);
            starts.push(size);
        }
        let (_, highest) = self.reach(least, most)?;
        highest.checked_add_unsigned(longest)?;
        if let (Some(step), Some(len_step)) = (constant_step(&disps), constant_len_step(lengths)) {
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
        let facts = Facts { size, lo, hi, first: disps[0], end: end?, chain, depth: 2 };
        let op = Op::List { disps: disps.into(), starts: starts.into() };
        Some(Digest::Derived(op, facts))
    }
}
