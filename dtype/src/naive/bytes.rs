//! A typemap as bytes: where each packed byte lies, the runs they form, packing and unpacking one
//! byte at a time.

use super::{BYTES_MAX, NaiveError, Typemap};
use crate::Run;

impl Typemap {
    /// The displacement of every byte of `count` instances, in packed order: byte `k` of the
    /// packed stream lies at element `k`.
    ///
    /// # Errors
    /// [`NaiveError::TooLarge`] past [`BYTES_MAX`], [`NaiveError::Overflow`] where a displacement
    /// does not fit 64 bits.
    pub fn displacements(&self, count: u64) -> Result<Vec<i64>, NaiveError> {
        let too_large = NaiveError::TooLarge { limit: BYTES_MAX, what: "bytes" };
        let bytes = self.size.checked_mul(count).filter(|bytes| *bytes <= BYTES_MAX);
        let bytes = bytes.ok_or_else(|| too_large.clone())?;
        let mut list = Vec::with_capacity(usize::try_from(bytes).map_err(|_| too_large)?);
        if self.entries.is_empty() {
            return Ok(list);
        }
        for instance in 0..count {
            let base = i128::from(instance) * i128::from(self.extent());
            for entry in &self.entries {
                let first = base + i128::from(entry.displacement);
                let first = i64::try_from(first).map_err(|_| NaiveError::Overflow)?;
                let end = first.checked_add(entry.len()).ok_or(NaiveError::Overflow)?;
                list.extend(first..end);
            }
        }
        Ok(list)
    }

    /// The maximal runs of `count` instances in packed order: neighbours in the packed stream that
    /// are neighbours in memory are one run, whichever instance or entry they come from.
    ///
    /// # Errors
    /// As [`Typemap::displacements`].
    pub fn runs(&self, count: u64) -> Result<Vec<Run>, NaiveError> {
        Ok(merge(&self.displacements(count)?))
    }

    /// Packs `count` instances from `src`, whose index `origin` is displacement 0.
    ///
    /// # Errors
    /// [`NaiveError::OutOfBuffer`] for a byte outside `src`; else as [`Typemap::displacements`].
    pub fn pack(&self, count: u64, src: &[u8], origin: usize) -> Result<Vec<u8>, NaiveError> {
        gather(&self.displacements(count)?, src, origin)
    }

    /// Unpacks `count` instances into `dst`, whose index `origin` is displacement 0, in packed
    /// order: where instances overlap, the last byte stays.
    ///
    /// # Errors
    /// [`NaiveError::OutOfBuffer`] for a byte outside `dst`, [`NaiveError::PackedLength`] for
    /// another number of packed bytes; else as [`Typemap::displacements`].
    pub fn unpack(
        &self,
        count: u64,
        packed: &[u8],
        dst: &mut [u8],
        origin: usize,
    ) -> Result<(), NaiveError> {
        scatter(&self.displacements(count)?, packed, dst, origin)
    }
}

/// Merges a list of byte displacements into maximal runs.
pub fn merge(displacements: &[i64]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut next = None;
    for &displacement in displacements {
        match runs.last_mut() {
            Some(run) if next == Some(displacement) => run.len += 1,
            _ => runs.push(Run { displacement, len: 1 }),
        }
        next = displacement.checked_add(1);
    }
    runs
}

/// Reads the bytes of `src` at `displacements` from index `origin`, in that order.
///
/// # Errors
/// [`NaiveError::OutOfBuffer`] for a byte outside `src`.
pub fn gather(displacements: &[i64], src: &[u8], origin: usize) -> Result<Vec<u8>, NaiveError> {
    let byte = |&d: &i64| index(d, origin, src.len()).map(|at| src[at]);
    displacements.iter().map(byte).collect()
}

/// Writes `packed` to the bytes of `dst` at `displacements` from index `origin`, in that order.
///
/// # Errors
/// [`NaiveError::OutOfBuffer`] for a byte outside `dst`, [`NaiveError::PackedLength`] where the
/// lengths differ.
pub fn scatter(
    displacements: &[i64],
    packed: &[u8],
    dst: &mut [u8],
    origin: usize,
) -> Result<(), NaiveError> {
    if displacements.len() != packed.len() {
        let (expected, got) = (displacements.len(), packed.len());
        return Err(NaiveError::PackedLength { expected, got });
    }
    for (&displacement, &byte) in displacements.iter().zip(packed) {
        let at = index(displacement, origin, dst.len())?;
        dst[at] = byte;
    }
    Ok(())
}

fn index(displacement: i64, origin: usize, len: usize) -> Result<usize, NaiveError> {
    let at = isize::try_from(displacement).ok().and_then(|d| origin.checked_add_signed(d));
    at.filter(|at| *at < len).ok_or(NaiveError::OutOfBuffer { displacement, origin, len })
}
