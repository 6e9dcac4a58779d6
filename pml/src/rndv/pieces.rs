//! Which pieces of a transfer have arrived: any order, each exactly once, none that was not asked for.

use smallvec::SmallVec;

/// A range of bytes that comes in pieces of one size, the last one shorter.
#[derive(Debug)]
pub(crate) struct Pieces {
    start: u64,
    end: u64,
    piece: u64,
    left: u64,
    /// A bit for each piece that has arrived.
    seen: SmallVec<[u64; 4]>,
}

impl Pieces {
    /// Bytes `start..end` in pieces of `piece` bytes (at least 1).
    pub(crate) fn new(start: u64, end: u64, piece: u64) -> Pieces {
        let left = end.saturating_sub(start).div_ceil(piece.max(1));
        let words = usize::try_from(left.div_ceil(64)).unwrap_or(usize::MAX);
        Pieces { start, end, piece: piece.max(1), left, seen: SmallVec::from_elem(0, words) }
    }

    /// Notes a piece of `len` bytes at `offset`.
    pub(crate) fn take(&mut self, offset: u64, len: u64) -> Result<(), String> {
        let (word, bit) = self.lacks(offset, len)?;
        self.seen[word] |= bit;
        self.left -= 1;
        Ok(())
    }

    /// Where a piece of `len` bytes at `offset` is noted, if it is due.
    pub(crate) fn lacks(&self, offset: u64, len: u64) -> Result<(usize, u64), String> {
        let wrong = |what| Err(format!("a fragment of {len} bytes at {offset} {what}"));
        if offset < self.start || offset >= self.end {
            return wrong("that was not requested");
        }
        let from_start = offset - self.start;
        if !from_start.is_multiple_of(self.piece) || len != self.piece.min(self.end - offset) {
            return wrong("that is not one of those agreed on");
        }
        let number = from_start / self.piece;
        let word = usize::try_from(number / 64).unwrap_or(usize::MAX);
        let bit = 1 << (number % 64);
        match self.seen.get(word) {
            Some(seen) if seen & bit == 0 => Ok((word, bit)),
            _ => wrong("that came before"),
        }
    }

    /// Whether all have arrived.
    pub(crate) fn complete(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_once_in_any_order() {
        let mut pieces = Pieces::new(10, 10 + 1000 * 7 + 3, 7);
        for number in (0..1000).rev() {
            assert!(!pieces.complete());
            pieces.take(10 + number * 7, 7).unwrap();
            assert!(pieces.take(10 + number * 7, 7).is_err());
        }
        assert!(pieces.take(7010, 7).is_err());
        pieces.take(7010, 3).unwrap();
        assert!(pieces.complete());
    }

    #[test]
    fn strays_are_refused() {
        let mut pieces = Pieces::new(10, 30, 8);
        for (offset, len) in [(0, 8), (9, 8), (11, 8), (10, 7), (10, 0), (30, 0), (u64::MAX, 8)] {
            assert!(pieces.take(offset, len).is_err(), "{len} bytes at {offset}");
        }
    }
}
