//! Simulated time: whole picoseconds, so that nothing depends on rounding or on the machine that simulates.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};

/// A moment of the simulation, or a length of time, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ps(pub u64);

impl Ps {
    /// None at all; the beginning.
    pub const ZERO: Ps = Ps(0);

    /// Nanoseconds.
    #[must_use]
    pub const fn ns(nanoseconds: u64) -> Ps {
        Ps(nanoseconds * 1000)
    }

    /// Cycles of a clock, rounded up.
    #[must_use]
    pub const fn cycles(cycles: u64, megahertz: u64) -> Ps {
        Ps((cycles * 1_000_000).div_ceil(megahertz))
    }

    /// The time between two moments; none, if `earlier` is the later one.
    #[must_use]
    pub fn since(self, earlier: Ps) -> Ps {
        Ps(self.0.saturating_sub(earlier.0))
    }

    /// In seconds, for people and plots.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 * 1e-12
    }
}

impl Add for Ps {
    type Output = Ps;

    fn add(self, other: Ps) -> Ps {
        Ps(self.0 + other.0)
    }
}

impl Sub for Ps {
    type Output = Ps;

    fn sub(self, other: Ps) -> Ps {
        Ps(self.0 - other.0)
    }
}

impl AddAssign for Ps {
    fn add_assign(&mut self, other: Ps) {
        self.0 += other.0;
    }
}

impl Mul<u64> for Ps {
    type Output = Ps;

    fn mul(self, times: u64) -> Ps {
        Ps(self.0 * times)
    }
}

impl Sum for Ps {
    fn sum<I: Iterator<Item = Ps>>(times: I) -> Ps {
        times.fold(Ps::ZERO, Add::add)
    }
}

impl fmt::Display for Ps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} ns", self.0 / 1000, self.0 % 1000)
    }
}

/// How fast bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Bytes a second.
    pub bytes_per_second: u64,
}

impl Rate {
    /// Bytes a second.
    #[must_use]
    pub const fn new(bytes_per_second: u64) -> Rate {
        Rate { bytes_per_second }
    }

    /// How long so many bytes take, rounded up.
    #[must_use]
    pub fn time(self, bytes: u64) -> Ps {
        let picoseconds = (u128::from(bytes) * 1_000_000_000_000)
            .div_ceil(u128::from(self.bytes_per_second.max(1)));
        Ps(u64::try_from(picoseconds).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_and_rates_round_up() {
        assert_eq!(Ps::cycles(1, 3000), Ps(334));
        assert_eq!(Ps::cycles(3, 3000), Ps::ns(1));
        assert_eq!(Rate::new(12_500_000_000).time(64), Ps(5120));
        assert_eq!(Rate::new(102_400_000_000).time(1), Ps(10));
        assert_eq!(Ps(1_234_567).to_string(), "1234.567 ns");
        assert_eq!(Ps::ns(1).since(Ps::ns(2)), Ps::ZERO);
    }
}
