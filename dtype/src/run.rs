//! A run: one contiguous span of bytes in the user's memory. Everything the crate says about where bytes lie is
//! said in runs; displacements and lengths are in bytes.

/// A contiguous span of bytes, relative to a buffer's origin (the address that displacement 0 names).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Run {
    /// Bytes from the origin to the first byte; may be negative.
    pub displacement: i64,
    /// Bytes in the run; never 0 in a run that the convertor writes.
    pub len: u64,
}

impl Run {
    /// One past the last byte, relative to the origin. Wraps where a run would end beyond `i64::MAX`,
    /// which no run of a layout does.
    #[must_use]
    pub const fn end(&self) -> i64 {
        self.displacement.wrapping_add_unsigned(self.len)
    }
}

/// A byte or element count as an index into memory that exists.
///
/// Callers pass numbers below the length of a slice, or of memory that is being touched, so the value
/// fits the address space by construction.
#[expect(
    clippy::cast_possible_truncation,
    reason = "callers pass numbers bounded by a slice or by mapped memory, which usize counts"
)]
pub(crate) const fn in_memory(n: u64) -> usize {
    debug_assert!(n <= usize::MAX as u64);
    n as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_one_past_the_last_byte() {
        assert_eq!(Run { displacement: -8, len: 8 }.end(), 0);
        assert_eq!(Run { displacement: 4, len: 12 }.end(), 16);
        assert_eq!(in_memory(77), 77);
    }
}
