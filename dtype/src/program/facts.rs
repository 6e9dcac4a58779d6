//! What is known of an op without running it: packed size, bounds, and its maximal merged runs.
//!
//! Everything here is arithmetic on the children's facts, checked, and constant time per op except for
//! lists, which are read once. How runs merge is in `chain.rs`.

use super::chain::Chain;
use super::{Op, OpId, ProgramError};

/// Derived properties of an op. Displacements are relative to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Packed bytes; at most `i64::MAX`.
    pub(crate) size: u64,
    /// Lowest byte touched.
    pub(crate) lo: i64,
    /// One past the highest byte touched.
    pub(crate) hi: i64,
    /// Where the first byte in packed order lies.
    pub(crate) first: i64,
    /// One past where the last byte in packed order lies.
    pub(crate) end: i64,
    /// Merged runs.
    pub(crate) chain: Chain,
    /// Largest power of two that divides every run's length, and the way to it from the first one.
    pub(crate) grain: u64,
    /// Ops on the longest way down, this one included.
    pub(crate) depth: u32,
}

/// Lengths that advance by a constant: those of [`Op::Affine`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct AffineLengths {
    pub(crate) len: u64,
    pub(crate) len_step: i64,
}

impl AffineLengths {
    /// Length of block `j`, which exists.
    pub(crate) fn at(self, j: u64) -> u64 {
        self.len.wrapping_add(j.wrapping_mul(self.len_step.cast_unsigned()))
    }

    /// Packed bytes before block `j`. `None` on overflow, which a checked program has not.
    pub(crate) fn before(self, j: u64) -> Option<u64> {
        let (len, step, n) = (i128::from(self.len), i128::from(self.len_step), i128::from(j));
        let pairs = n.checked_mul(n - 1)? / 2;
        let sum = n.checked_mul(len)?.checked_add(pairs.checked_mul(step)?)?;
        u64::try_from(sum).ok()
    }
}

impl Facts {
    /// Derives the facts of `op`, whose children are in `known`.
    pub(crate) fn of(op: &Op, known: &[Facts]) -> Result<Facts, ProgramError> {
        match op {
            Op::Run { len } => Facts::run(*len),
            Op::Loop { count, stride, body } => {
                Facts::repeated(child(known, *body)?, *count, *stride)
            }
            Op::Blocks { len, disps } => Facts::each(&Facts::run(*len)?, disps),
            Op::List { disps, starts } => Facts::list(disps, starts),
            Op::Affine { count, step, len, len_step } => {
                Facts::affine(*count, *step, AffineLengths { len: *len, len_step: *len_step })
            }
            Op::Each { disps, body } => Facts::each(child(known, *body)?, disps),
            Op::Seq { parts, starts } => {
                at_least_two(parts.len(), starts.len())?;
                let mut sum = Sum::default();
                for (part, start) in parts.iter().zip(starts) {
                    if *start != sum.size {
                        return Err(ProgramError::Malformed("prefix sums of a sequence"));
                    }
                    sum.add(part.disp, child(known, part.op)?)?;
                }
                sum.finish(starts)
            }
        }
    }

    fn run(len: u64) -> Result<Facts, ProgramError> {
        if len == 0 {
            return Err(ProgramError::Malformed("empty run"));
        }
        let end = i64::try_from(len).map_err(|_| ProgramError::Overflow)?;
        Ok(Facts {
            size: len,
            lo: 0,
            hi: end,
            first: 0,
            end,
            chain: Chain::run(len),
            grain: grain(len),
            depth: 1,
        })
    }

    fn repeated(body: &Facts, count: u64, stride: i64) -> Result<Facts, ProgramError> {
        if count < 2 {
            return Err(ProgramError::Malformed("a loop of fewer than two iterations"));
        }
        let size = checked_size(u128::from(body.size) * u128::from(count))?;
        // |stride| < 2^63 and count ≤ size < 2^63: the product fits 127 bits.
        let far = i128::from(count - 1) * i128::from(stride);
        let (least, most) = (far.min(0), far.max(0));
        let adjacent = i128::from(body.end) == i128::from(body.first) + i128::from(stride);
        Ok(Facts {
            size,
            lo: narrow(i128::from(body.lo) + least)?,
            hi: narrow(i128::from(body.hi) + most)?,
            first: body.first,
            end: narrow(i128::from(body.end) + far)?,
            chain: body.chain.repeated(count, adjacent),
            grain: grain(body.grain | stride.cast_unsigned()),
            depth: body.depth + 1,
        })
    }

    fn each(body: &Facts, disps: &[i64]) -> Result<Facts, ProgramError> {
        let (Some(&first), Some(&last), true) = (disps.first(), disps.last(), disps.len() > 1)
        else {
            return Err(ProgramError::Malformed("a list of fewer than two entries"));
        };
        let size = checked_size(u128::from(body.size) * disps.len() as u128)?;
        // The span from first to end of a body; where two entries are that far apart, a seam closes.
        let reach = body.end.checked_sub(body.first);
        let (mut least, mut most, mut before) = (first, first, first);
        let (mut bits, mut may_close) = (0, false);
        for &disp in disps {
            (least, most) = (least.min(disp), most.max(disp));
            // Steps divide what the ways from the first to each divide.
            let step = disp.wrapping_sub(before);
            bits |= step.cast_unsigned();
            may_close |= Some(step) == reach;
            before = disp;
        }
        let facts = Facts {
            size,
            lo: shifted(body.lo, least)?,
            hi: shifted(body.hi, most)?,
            first: shifted(body.first, first)?,
            end: shifted(body.end, last)?,
            chain: body.chain.repeated(disps.len() as u64, false),
            grain: grain(body.grain | bits),
            depth: body.depth + 1,
        };
        if !may_close {
            return Ok(facts);
        }
        let chain = match body.chain {
            // Bounds fit, so that no difference is this by wrapping.
            Chain { blocks: 1, head, .. } => {
                Chain::of_runs(head, disps.windows(2).map(|pair| apart(pair[1], pair[0]) == head))
            }
            part => disps.windows(2).fold(part, |chain, pair| {
                let closes = pair[1].checked_sub(pair[0]) == reach && reach.is_some();
                chain.then(part, closes)
            }),
        };
        Ok(Facts { chain, ..facts })
    }

    fn list(disps: &[i64], starts: &[u64]) -> Result<Facts, ProgramError> {
        at_least_two(disps.len(), starts.len())?;
        let last = disps.len() - 1;
        let size = checked_size(u128::from(starts[last + 1]))?;
        // Lengths fit `i64` as their sum does: starts ascend from 0.
        let mut sums = starts[0] == 0;
        let (mut lo, mut hi) = (i64::MAX, i64::MIN);
        let (mut overflow, mut adjacent) = (false, false);
        let mut bits = 0;
        let mut end = None;
        for (&disp, ends) in disps.iter().zip(starts.windows(2)) {
            sums &= ends[0] < ends[1] && ends[1] <= size;
            let len = ends[1].wrapping_sub(ends[0]);
            let (ends, wraps) = disp.overflowing_add_unsigned(len);
            overflow |= wraps;
            (lo, hi) = (lo.min(disp), hi.max(ends));
            bits |= apart(disp, disps[0]) | len;
            adjacent |= end == Some(disp);
            end = Some(ends);
        }
        if !sums {
            return Err(ProgramError::Malformed("an empty run, or prefix sums that do not ascend"));
        }
        let (Some(end), false) = (end, overflow) else { return Err(ProgramError::Overflow) };
        let run = |i: usize| Chain::run(starts[i + 1] - starts[i]);
        let chain = if adjacent {
            let next = |chain: Chain, i: usize| {
                let end = disps[i - 1].wrapping_add_unsigned(starts[i] - starts[i - 1]);
                chain.then(run(i), end == disps[i])
            };
            (1..disps.len()).fold(run(0), next)
        } else {
            let (head, tail) = (run(0).head, run(last).tail);
            let lens = starts[1..=last].windows(2).map(|ends| ends[1] - ends[0]);
            let (least, most) = lens.fold((u64::MAX, 0), |(a, b), len| (a.min(len), b.max(len)));
            let inner = (last > 1).then_some((least, most));
            Chain { blocks: disps.len() as u64, head, tail, inner }
        };
        let first = disps[0];
        Ok(Facts { size, lo, hi, first, end, chain, grain: grain(bits), depth: 2 })
    }

    fn affine(count: u64, step: i64, lens: AffineLengths) -> Result<Facts, ProgramError> {
        if count < 2 || lens.len == 0 || lens.len_step == 0 {
            return Err(ProgramError::Malformed("an affine list that is none"));
        }
        let at = |j: u64| i128::from(lens.len) + i128::from(j) * i128::from(lens.len_step);
        if count > i64::MAX.cast_unsigned() {
            return Err(ProgramError::Overflow);
        }
        let last = at(count - 1);
        if last <= 0 {
            return Err(ProgramError::Malformed("a block of an affine list is empty"));
        }
        let size = checked_size(u128::from(lens.before(count).ok_or(ProgramError::Overflow)?))?;
        // A seam closes at block j when step = len + j·len_step: such lists are written otherwise.
        let ahead = i128::from(step) - i128::from(lens.len);
        let by = i128::from(lens.len_step);
        if ahead % by == 0 && (0..i128::from(count - 1)).contains(&(ahead / by)) {
            return Err(ProgramError::Malformed("adjacent blocks in an affine list"));
        }
        // Bounds: both the displacement and the end of a block are monotone or convex in j; the end
        // j·step + len + j·len_step is linear too, so the extremes are at the ends of the list.
        let far = i128::from(count - 1) * i128::from(step);
        let (first_end, last_end) = (i128::from(lens.len), far + last);
        let len_at = |j: u64| u64::try_from(at(j)).map_err(|_| ProgramError::Overflow);
        let inner = if count > 2 {
            let (a, b) = (len_at(1)?, len_at(count - 2)?);
            Some((a.min(b), a.max(b)))
        } else {
            None
        };
        let bits = lens.len | lens.len_step.cast_unsigned() | step.cast_unsigned();
        Ok(Facts {
            size,
            lo: narrow(far.min(0))?,
            hi: narrow(first_end.max(last_end))?,
            first: 0,
            end: narrow(last_end)?,
            chain: Chain { blocks: count, head: lens.len, tail: len_at(count - 1)?, inner },
            grain: grain(bits),
            depth: 1,
        })
    }
}

/// Facts of pieces put one after the other.
#[derive(Default)]
struct Sum {
    size: u64,
    so_far: Option<Facts>,
}

impl Sum {
    fn add(&mut self, disp: i64, piece: &Facts) -> Result<(), ProgramError> {
        let piece = Facts {
            lo: shifted(piece.lo, disp)?,
            hi: shifted(piece.hi, disp)?,
            first: shifted(piece.first, disp)?,
            end: shifted(piece.end, disp)?,
            ..*piece
        };
        self.size = checked_size(u128::from(self.size) + u128::from(piece.size))?;
        self.so_far = Some(match self.so_far {
            None => Facts { depth: piece.depth + 1, ..piece },
            Some(before) => Facts {
                size: self.size,
                lo: before.lo.min(piece.lo),
                hi: before.hi.max(piece.hi),
                first: before.first,
                end: piece.end,
                chain: before.chain.then(piece.chain, before.end == piece.first),
                grain: grain(before.grain | piece.grain | apart(piece.first, before.first)),
                depth: before.depth.max(piece.depth + 1),
            },
        });
        Ok(())
    }

    fn finish(self, starts: &[u64]) -> Result<Facts, ProgramError> {
        if starts.last() != Some(&self.size) {
            return Err(ProgramError::Malformed("prefix sums do not end at the size"));
        }
        self.so_far.ok_or(ProgramError::Malformed("nothing to put together"))
    }
}

/// The largest power of two that divides every number whose bits are or-ed in `bits`; 0 of 0.
pub(crate) const fn grain(bits: u64) -> u64 {
    bits & bits.wrapping_neg()
}

/// Bits of how far one place is from another.
pub(crate) const fn apart(place: i64, from: i64) -> u64 {
    place.wrapping_sub(from).cast_unsigned()
}

fn child(known: &[Facts], id: OpId) -> Result<&Facts, ProgramError> {
    known
        .get(id.index())
        .ok_or(ProgramError::Malformed("an op names one that does not come before it"))
}

fn at_least_two(entries: usize, starts: usize) -> Result<(), ProgramError> {
    if entries < 2 || entries.checked_add(1) != Some(starts) {
        return Err(ProgramError::Malformed("a list of fewer than two entries"));
    }
    Ok(())
}

fn checked_size(size: u128) -> Result<u64, ProgramError> {
    i64::try_from(size).map(i64::cast_unsigned).map_err(|_| ProgramError::Overflow)
}

fn narrow(value: i128) -> Result<i64, ProgramError> {
    i64::try_from(value).map_err(|_| ProgramError::Overflow)
}

fn shifted(value: i64, by: i64) -> Result<i64, ProgramError> {
    value.checked_add(by).ok_or(ProgramError::Overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affine_lengths_sum() {
        let lens = AffineLengths { len: 80, len_step: -8 };
        let mut sum = 0;
        for j in 0..10 {
            assert_eq!(lens.before(j), Some(sum));
            sum += lens.at(j);
        }
        assert_eq!(lens.before(10), Some(sum));
    }

    #[test]
    fn prefix_sums_of_a_list_ascend_from_zero() {
        let disps = [0, 100, 200];
        assert_eq!(Facts::list(&disps, &[0, 8, 12, 20]).unwrap().size, 20);
        for starts in [
            [0, 8, 8, 20],
            [0, 0, 8, 20],
            [0, 8, 20, 20],
            [0, 12, 8, 20],
            [0, 8, 21, 20],
            [1, 8, 12, 20],
        ] {
            let refused = Facts::list(&disps, &starts);
            assert!(matches!(refused, Err(ProgramError::Malformed(_))), "{starts:?}: {refused:?}");
        }
    }
}
