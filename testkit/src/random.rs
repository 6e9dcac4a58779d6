//! Seeded pseudo-random numbers; not for secrets.

/// A generator with 64 bits of state (a Weyl sequence, mixed: "SplitMix64", Steele et al. 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers that depend on `seed` alone.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0 if that is 0. (The bias is below `bound` / 2⁶⁴.)
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = (bound as u64).max(1);
        usize::try_from(self.next() % bound).unwrap_or(0)
    }

    /// So many bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// True `per_mille` times in 1000.
    pub fn chance(&mut self, per_mille: u16) -> bool {
        per_mille > 0 && self.below(1000) < usize::from(per_mille)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn seeds_repeat_and_bounds_hold() {
        let mut a = Random::new(7);
        let mut b = Random::new(7);
        assert!((0..100).all(|_| a.next() == b.next()));
        assert!((0..1000).all(|_| a.below(3) < 3));
        assert_eq!(a.below(0), 0);
        assert!(!(0..100).any(|_| a.chance(0)));
        assert!((0..100).all(|_| a.chance(1000)));
        let hits = (0..10_000).filter(|_| a.chance(100)).count();
        assert!((500..1500).contains(&hits), "{hits}");
    }
}
