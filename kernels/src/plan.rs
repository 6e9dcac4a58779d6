//! Plans for any blocks: DEVs, ⟨displacement, length⟩ in the stream's order, encoded as work units of equal
//! packed size (Wu et al. 2016, §3.2), with the packed offset implied.
//!
//! A unit is 32 words of the stream. It says which block its first word lies in, and has a bit for each
//! word at which another block begins: a thread finds its word's block by counting bits. A block has one
//! number, its shift: how far its bytes lie in memory from where they lie in the stream, so that a word's
//! place is its position plus a shift, wherever in the block it is. Units are 8 bytes, shifts 4 (counted in
//! words) where they all fit, else 8.
//!
//! Encoding is incremental: blocks are pushed in order, and what is complete can be used while more is
//! pushed. Nothing in a plan depends on the buffer.

use crate::Width;
use crate::args::Unit;
use thiserror::Error;

/// Words of a unit.
pub const UNIT_WORDS: u32 = 32;

/// A block that cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A displacement or length that the plan's words do not divide.
    #[error("a block of {len} bytes at {displacement}, which are no multiples of {word_bytes}")]
    Unaligned {
        /// The block's displacement in bytes.
        displacement: i64,
        /// Its length in bytes.
        len: u64,
        /// Bytes of a word.
        word_bytes: u32,
    },
    /// More blocks than 32 bits count, or displacements whose difference does not fit 63 bits.
    #[error("too many blocks, or too far apart")]
    TooLarge,
}

/// Encodes blocks into units and shifts.
#[derive(Clone, Debug)]
pub struct Encoder {
    width: Width,
    words: u64,
    units: Vec<Unit>,
    shifts: Vec<i64>,
    low: i64,
    high: i64,
}

impl Encoder {
    /// An empty plan in words of `width`.
    #[must_use]
    pub fn new(width: Width) -> Encoder {
        Encoder { width, words: 0, units: Vec::new(), shifts: Vec::new(), low: 0, high: 0 }
    }

    /// The plan's words.
    #[must_use]
    pub fn width(&self) -> Width {
        self.width
    }

    /// Bytes of the stream so far.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.words << self.width.log2()
    }

    /// Appends a block: `len` bytes at `displacement`. Empty ones are left out, and one that continues
    /// the last one lengthens it.
    ///
    /// # Errors
    /// [`PlanError`]; the plan is as before.
    pub fn push(&mut self, displacement: i64, len: u64) -> Result<(), PlanError> {
        let mask = u64::from(self.width.bytes()) - 1;
        if (displacement.cast_unsigned() | len) & mask != 0 {
            let word_bytes = self.width.bytes();
            return Err(PlanError::Unaligned { displacement, len, word_bytes });
        }
        if len == 0 {
            return Ok(());
        }
        let log2 = self.width.log2();
        let begin = i64::try_from(self.words).map_err(|_| PlanError::TooLarge)?;
        let end = self.words.checked_add(len >> log2).ok_or(PlanError::TooLarge)?;
        let shift = (displacement >> log2).checked_sub(begin).ok_or(PlanError::TooLarge)?;
        if self.shifts.last() != Some(&shift) {
            if self.shifts.len() >= u32::MAX as usize {
                return Err(PlanError::TooLarge);
            }
            let word = self.words % u64::from(UNIT_WORDS);
            if word != 0
                && let Some(unit) = self.units.last_mut()
            {
                unit.begins |= 1 << word;
            }
            self.shifts.push(shift);
            self.low = self.low.min(shift);
            self.high = self.high.max(shift);
        }
        let block = u32::try_from(self.shifts.len() - 1).map_err(|_| PlanError::TooLarge)?;
        let units = end.div_ceil(u64::from(UNIT_WORDS));
        let units = usize::try_from(units).map_err(|_| PlanError::TooLarge)?;
        self.units.resize(units, Unit { block, begins: 0 });
        self.words = end;
        Ok(())
    }

    /// The units so far. The last one may still change.
    #[must_use]
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// Shifts so far, in words.
    #[must_use]
    pub fn shifts(&self) -> &[i64] {
        &self.shifts
    }

    /// Bytes that every shift so far fits: 4 or 8.
    #[must_use]
    pub fn shift_bytes(&self) -> u32 {
        let fits = i32::try_from(self.low).is_ok() && i32::try_from(self.high).is_ok();
        if fits { 4 } else { 8 }
    }

    /// The shifts from `from` on as the kernel reads them, `shift_bytes` each, appended to `bytes`.
    ///
    /// # Errors
    /// [`PlanError::TooLarge`] if one does not fit.
    pub fn write_shifts(
        &self,
        from: usize,
        shift_bytes: u32,
        bytes: &mut Vec<u8>,
    ) -> Result<(), PlanError> {
        for &shift in self.shifts.get(from..).unwrap_or_default() {
            if shift_bytes == 8 {
                bytes.extend_from_slice(&shift.to_ne_bytes());
            } else {
                let short = i32::try_from(shift).map_err(|_| PlanError::TooLarge)?;
                bytes.extend_from_slice(&short.to_ne_bytes());
            }
        }
        Ok(())
    }

    /// The whole plan as bytes: units, then shifts; and where the shifts begin.
    ///
    /// # Errors
    /// None of today's: [`shift_bytes`](Self::shift_bytes) fit.
    pub fn to_bytes(&self) -> Result<(Vec<u8>, u64), PlanError> {
        let mut bytes = Vec::with_capacity((self.units.len() + self.shifts.len()) * 8);
        for unit in &self.units {
            bytes.extend_from_slice(&unit.block.to_ne_bytes());
            bytes.extend_from_slice(&unit.begins.to_ne_bytes());
        }
        let shifts = bytes.len() as u64;
        self.write_shifts(0, self.shift_bytes(), &mut bytes)?;
        Ok((bytes, shifts))
    }

    /// Where word `word` of the stream lies, in words from displacement 0: what the kernels compute.
    #[must_use]
    pub fn at(&self, word: u64) -> Option<i64> {
        let unit = self.units.get(usize::try_from(word / u64::from(UNIT_WORDS)).ok()?)?;
        let started = unit.begins & (u32::MAX >> (31 - (word % u64::from(UNIT_WORDS))));
        let shift = self.shifts.get((unit.block + started.count_ones()) as usize)?;
        (word < self.words).then(|| shift + word.cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_found() {
        let mut state = 11u64;
        let mut next = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for lengths in [1, 2, 3, 40, 200] {
            let mut plan = Encoder::new(Width::W4);
            let mut truth = Vec::new();
            for _ in 0..500 {
                let (at, len) = (next(100_000).cast_signed() - 50_000, next(lengths) + next(2));
                plan.push(at * 4, len * 4).unwrap();
                truth.extend((0..len.cast_signed()).map(|word| at + word));
            }
            assert_eq!(plan.size(), truth.len() as u64 * 4);
            for (word, &at) in truth.iter().enumerate() {
                assert_eq!(plan.at(word as u64), Some(at), "lengths up to {lengths}, word {word}");
            }
            assert_eq!(plan.at(truth.len() as u64), None);
        }
    }

    #[test]
    fn neighbours_merge_and_misfits_are_refused() {
        let mut plan = Encoder::new(Width::W8);
        plan.push(0, 8).unwrap();
        plan.push(8, 16).unwrap();
        plan.push(64, 0).unwrap();
        assert_eq!((plan.shifts(), plan.shift_bytes()), (&[0][..], 4));
        assert!(matches!(plan.push(4, 8), Err(PlanError::Unaligned { displacement: 4, .. })));
        plan.push(i64::MAX & !7, 8).unwrap();
        assert_eq!(plan.shift_bytes(), 8);
        let (bytes, shifts) = plan.to_bytes().unwrap();
        assert_eq!((bytes.len(), shifts), (8 + 16, 8));
    }
}
