//! How often to repeat something in a given time, and what its readings say.

use std::time::{Duration, Instant};

/// Readings that are taken at least, however long they last.
pub(super) const LEAST: usize = 3;

/// Readings that are taken at most.
pub(super) const MOST: usize = 2000;

/// How many readings of `each` seconds fit.
pub(super) fn repeats(time: Duration, each: f64) -> usize {
    let fits = time.as_secs_f64() / each.max(1e-9);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in bounds")]
    let fits = fits.clamp(1.0, MOST as f64) as usize;
    fits.max(LEAST)
}

/// What readings say in seconds: the lower quartile, for whatever else the machine does only adds to
/// them. `None` without readings.
pub(super) fn settled(mut readings: Vec<f64>) -> Option<f64> {
    readings.sort_by(f64::total_cmp);
    readings.get(readings.len() / 4).copied()
}

/// The middle one; `None` of none.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Between which two the middle half of them lies; `None` of none.
pub(super) fn middle_half(mut values: Vec<f64>) -> Option<[f64; 2]> {
    values.sort_by(f64::total_cmp);
    let quarter = values.len() / 4;
    Some([*values.get(quarter)?, *values.get(values.len() - 1 - quarter)?])
}

/// Repeats `work` for so long, and gives the seconds that one takes.
pub(super) fn repeat<E>(time: Duration, mut work: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    work()?; // the first touches everything
    let start = Instant::now();
    let mut readings = Vec::new();
    while readings.len() < LEAST || start.elapsed() < time && readings.len() < MOST {
        let before = Instant::now();
        work()?;
        readings.push(before.elapsed().as_secs_f64());
    }
    Ok(settled(readings).unwrap_or_default())
}

/// The bandwidth in MB/s that two times of two lengths show, without what every operation costs. Where
/// noise has made the longer one no slower, the plain rate of the longer.
pub(super) fn slope_mb_s(short: (u64, f64), long: (u64, f64)) -> f64 {
    let (bytes, seconds) = (real(long.0) - real(short.0), long.1 - short.1);
    let plain = real(long.0) / long.1.max(1e-12);
    let rate = if seconds > 0.05 * long.1 { bytes / seconds } else { plain };
    rate / 1e6
}

/// Seconds that `bytes` take at so many MB/s.
pub(super) fn copy_seconds(bytes: u64, mb_s: f64) -> f64 {
    real(bytes) / (mb_s.max(1.0) * 1e6)
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(super) fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_as_many_as_fit() {
        assert_eq!(repeats(Duration::from_millis(100), 1e-3), 100);
        assert_eq!(repeats(Duration::ZERO, 1.0), LEAST);
        assert_eq!(repeats(Duration::from_secs(100), 0.0), MOST);
    }

    #[test]
    fn disturbed_readings_do_not_count() {
        assert_eq!(settled(vec![9.0, 1.0, 1.0, 8.0, 1.0]), Some(1.0));
        assert_eq!(settled(Vec::new()), None);
    }

    #[test]
    fn rounds_have_a_middle_and_a_middle_half() {
        let rounds = vec![5.0, 1.0, 900.0, 4.0, 3.0, 2.0, 6.0];
        assert_eq!(median(rounds.clone()), Some(4.0));
        assert_eq!(middle_half(rounds), Some([2.0, 6.0]));
        assert_eq!(middle_half(vec![7.0]), Some([7.0, 7.0]));
        assert_eq!((median(Vec::new()), middle_half(Vec::new())), (None, None));
    }

    #[test]
    fn a_slope_leaves_out_what_every_operation_costs() {
        // 1 µs each, and 10 GB/s.
        let time = |bytes: u64| (bytes, 1e-6 + real(bytes) / 10e9);
        assert!((slope_mb_s(time(1 << 18), time(1 << 21)) - 10_000.0).abs() < 1e-6);
        // Noise: the longer took less.
        let rate = slope_mb_s((1000, 2e-6), (10_000, 1e-6));
        assert!((rate - 10_000.0).abs() < 1e-6, "{rate}");
    }
}
