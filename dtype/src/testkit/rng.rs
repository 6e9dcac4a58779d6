//! The generator's randomness: SplitMix64, so that one 64-bit seed names a case on any machine and
//! with any version of the crates around it.

/// A seeded pseudo-random sequence (SplitMix64). Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The sequence that `seed` names.
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..limit`; 0 if `limit` is 0. The bias of at most `limit / 2^64` is of no
    /// account in tests.
    pub fn below(&mut self, limit: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(limit);
        u64::try_from(wide >> 64).expect("the high half of a product of two u64")
    }

    /// A number in `low..=high`. Needs `low <= high`.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        let width = high.wrapping_sub(low).cast_unsigned().wrapping_add(1);
        let step = if width == 0 { self.next_u64() } else { self.below(width) };
        low.wrapping_add(step.cast_signed())
    }

    /// An index into something of `len` items; 0 if there are none.
    pub fn index(&mut self, len: usize) -> usize {
        let limit = u64::try_from(len).expect("a length fits 64 bits");
        usize::try_from(self.below(limit)).expect("below a usize")
    }

    /// True in `per_cent` of a hundred cases.
    pub fn chance(&mut self, per_cent: u64) -> bool {
        self.below(100) < per_cent
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// Puts `items` in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}
