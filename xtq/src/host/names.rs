//! A hash for names of puts. This process gives them, one after the other, and a peer can only ask for one; so nobody can
//! choose names that collide, and a multiplication will do.

use std::hash::{BuildHasherDefault, Hasher};

/// Of maps by the name of a put.
pub(super) type ByName = BuildHasherDefault<Spread>;

/// Spreads numbers in a row over all bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    #[test]
    fn names_in_a_row_are_spread_over_the_bits_that_maps_look_at() {
        let hash = |name: u64| ByName::default().hash_one(name);
        let low: HashSet<u64> = (0..1024).map(|name| hash(name) & 1023).collect();
        let high: HashSet<u64> = (0..1024).map(|name| hash(name) >> 57).collect();
        assert!(low.len() > 500, "{} of 1024", low.len());
        assert_eq!(high.len(), 128);
    }
}
