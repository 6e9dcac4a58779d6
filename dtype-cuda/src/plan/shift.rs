//! Shifts: from a word of the stream to its place.

/// How places become words.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub(super) base: i64,
    pub(super) log2: u32,
}

impl Scale {
    /// From the stream's word `word`, where a block begins, to its place. Unsigned until words are counted:
    /// data may span more than 63 bits.
    #[inline]
    pub(super) fn shift(self, displacement: i64, word: u64) -> i64 {
        let place = displacement.wrapping_sub(self.base).cast_unsigned() >> self.log2;
        place.wrapping_sub(word).cast_signed()
    }
}

/// A shift as the kernels read it.
pub(super) trait Shift {
    fn of(shift: i64) -> Self;
}

impl Shift for [u8; 4] {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "shifts of 4 bytes are chosen if all fit")]
    fn of(shift: i64) -> [u8; 4] {
        (shift as i32).to_ne_bytes()
    }
}

impl Shift for [u8; 8] {
    #[inline]
    fn of(shift: i64) -> [u8; 8] {
        shift.to_ne_bytes()
    }
}
