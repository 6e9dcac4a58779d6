//! A small, fast hash for keys of a few machine words.
//!
//! Not keyed: a peer can choose tags that collide and slow down the lookup of its own messages. It
//! cannot make anything wrong.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from words to values.
pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<WordHasher>>;

/// Multiplies and folds word by word.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WordHasher(u64);

/// Odd, with bits spread evenly: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        // The table takes its bucket from the low bits and its tag from the high ones.
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(29) ^ word).wrapping_mul(SPREAD);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn dense_keys_spread_over_the_low_and_the_high_bits() {
        let mut low = HashSet::new();
        let mut high = HashSet::new();
        for word in 0..4096u64 {
            let mut hasher = WordHasher::default();
            hasher.write_u64(word);
            low.insert(hasher.finish() & 4095);
            high.insert(hasher.finish() >> 57);
        }
        // A perfectly random function fills about 63 % of the buckets.
        assert!(low.len() > 2200, "{} of 4096 buckets", low.len());
        assert_eq!(high.len(), 128);
    }
}
