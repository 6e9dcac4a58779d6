//! Numbers that look random and are the same in every run.

/// Steele, Lea and Flood's splitmix64 (OOPSLA 2014): one word of state, any seed will do.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// A stream of numbers that depends on `seed` alone.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `bound`, which is at least 1; the bias is far below what is measured.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound.max(1)
    }

    /// Bytes that differ from place to place.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let (words, tail) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = self.next_u64().to_le_bytes();
        }
        let last = self.next_u64().to_le_bytes();
        tail.iter_mut().zip(last).for_each(|(byte, value)| *byte = value);
    }

    /// Puts a list into an order that depends on the seed alone.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let at = self.below(last as u64 + 1);
            list.swap(last, usize::try_from(at).unwrap_or(last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_again() {
        let draw = |seed| {
            let mut list: Vec<u32> = (0..100).collect();
            Random::new(seed).shuffle(&mut list);
            list
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mut sorted = draw(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn every_byte_is_filled() {
        for len in [0, 1, 7, 8, 9, 4099] {
            let mut bytes = vec![0; len];
            Random::new(5).fill(&mut bytes);
            let zeroes = bytes.iter().filter(|byte| **byte == 0).count();
            assert!(zeroes <= 1 + len / 64, "{zeroes} of {len}");
        }
    }
}
