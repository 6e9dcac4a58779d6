//! Division by a number known beforehand, as a multiplication and a shift.
//!
//! For n < 2³¹ and 1 ≤ d ≤ 2³¹ let s be the smallest with 2^s ≥ d and m = ⌊2^(31+s) / d⌋ + 1. Then
//! m·d = 2^(31+s) + e with 0 < e ≤ d ≤ 2^s, so n·m / 2^(31+s) exceeds n/d by n·e / (d·2^(31+s)) < 1/d: not
//! enough to reach the next integer. Kernels compute it as `mulhi(2n, m) >> s`.

use crate::args::Divide;

impl Divide {
    /// Division by `divisor`; by 1 if it is 0.
    ///
    /// # Panics
    /// Never for divisors up to 2³¹, which is all that word numbers allow.
    #[must_use]
    pub fn by(divisor: u32) -> Divide {
        let divisor = u64::from(divisor.max(1));
        let shift = divisor.next_power_of_two().trailing_zeros();
        let magic = (1u64 << (31 + shift)) / divisor + 1;
        Divide { magic: u32::try_from(magic).expect("2^s < 2d, so m ≤ 2^32 - 1"), shift }
    }
}

/// What the kernels compute: `n / divisor` for `n < 2³¹`.
#[must_use]
pub fn divide(n: u32, by: Divide) -> u32 {
    let high = (u64::from(n << 1) * u64::from(by.magic)) >> 32;
    u32::try_from(high).unwrap_or(u32::MAX) >> by.shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_is_exact_at_every_edge() {
        let top = (1u32 << 31) - 1;
        let divisors = (1..2000).chain((0..31).flat_map(|bit| {
            let power = 1u32 << bit;
            [power.saturating_sub(1).max(1), power, power + 1]
        }));
        for divisor in divisors.chain([top - 1, top, 3 << 29, 1_000_000_007, 1 << 31]) {
            let by = Divide::by(divisor);
            let last = top / divisor * divisor;
            let near = [0, 1, divisor - 1, divisor, divisor.saturating_add(1)].into_iter().chain([
                last.saturating_sub(1),
                last,
                top - 1,
                top,
                top / 2,
                top / 3 * 2,
            ]);
            for n in near.filter(|&n| n <= top) {
                assert_eq!(divide(n, by), n / divisor, "{n} / {divisor}");
            }
        }
    }

    #[test]
    fn division_is_exact_at_random() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            u32::try_from(state >> 33).unwrap()
        };
        for _ in 0..200_000 {
            let (n, divisor) = (next(), (next() >> (next() % 31)).max(1));
            assert_eq!(divide(n, Divide::by(divisor)), n / divisor, "{n} / {divisor}");
        }
    }
}
