//! Quantities as a reader wants them: sizes in powers of two, times and rates to three digits.

use std::fmt;

/// A size in bytes, shown in B, KiB, MiB, GiB or TiB.
///
/// ```
/// # use gapless_report::Bytes;
/// assert_eq!(Bytes(96).to_string(), "96 B");
/// assert_eq!(Bytes(65_536).to_string(), "64 KiB");
/// assert_eq!(Bytes(1_572_864).to_string(), "1.50 MiB");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// A time in seconds, shown in ns, µs, ms or s.
///
/// ```
/// # use gapless_report::Time;
/// assert_eq!(Time(1.234e-6).to_string(), "1.23 µs");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Time(pub f64);

/// A payload rate in GB/s (10⁹ bytes a second), shown without its unit, which stands in the heading.
///
/// ```
/// # use gapless_report::Rate;
/// assert_eq!(Rate(12.345).to_string(), "12.3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] =
            [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let Some(&(unit, name)) = UNITS.iter().find(|(unit, _)| self.0 >= *unit) else {
            return f.pad(&format!("{} B", self.0));
        };
        if self.0.is_multiple_of(unit) {
            f.pad(&format!("{} {name}", self.0 / unit))
        } else {
            f.pad(&format!("{} {name}", ThreeDigits(self.0 as f64 / unit as f64)))
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(f64, &str); 3] = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")];
        // 999.5 of a unit rounds to 1000: the next larger unit reads better.
        let (unit, name) =
            UNITS.into_iter().find(|(unit, _)| self.0 >= unit * 0.9995).unwrap_or((1e-9, "ns"));
        f.pad(&format!("{} {name}", ThreeDigits(self.0 / unit)))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&ThreeDigits(self.0).to_string())
    }
}

/// A number to three significant digits, never in scientific notation.
struct ThreeDigits(f64);

impl fmt::Display for ThreeDigits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = match self.0.abs() {
            n if n >= 99.95 => 0,
            n if n >= 9.995 => 1,
            n if n >= 0.9995 || n == 0.0 => 2,
            _ => 3,
        };
        write!(f, "{:.places$}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (43_428, "42.4 KiB"),
            (134_217_728, "128 MiB"),
            (5 << 30, "5 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn times_change_unit_without_a_four_digit_number() {
        for (seconds, text) in [
            (4.2e-10, "0.420 ns"),
            (9.99e-7, "999 ns"),
            (9.999e-7, "1.00 µs"),
            (1.5e-3, "1.50 ms"),
            (12.34, "12.3 s"),
            (0.0, "0.00 ns"),
        ] {
            assert_eq!(Time(seconds).to_string(), text);
        }
    }

    #[test]
    fn width_and_alignment_are_honoured() {
        assert_eq!(format!("{:>8}|", Rate(1234.4)), "    1234|");
        assert_eq!(format!("{:<8}|", Bytes(1)), "1 B     |");
        assert_eq!(format!("{:>8}|", Time(1e-6)), " 1.00 µs|");
    }
}
