//! Samples of what takes nanoseconds to seconds: how many operations are one sample, how many samples are taken, and the
//! loop that times one: for `gapless bench`, `gapless pingpong` and the clock of `bench`.

use std::time::{Duration, Instant};

/// A sample lasts at least this long: reading the clock takes about 30 ns.
pub const SAMPLE_SECONDS: f64 = 20e-6;
/// Samples that are taken at least, however long they take.
pub const SAMPLES_MIN: u64 = 5;
/// Samples that are taken at most, however short they are.
pub const SAMPLES_MAX: u64 = 1000;
/// Operations in a sample at most.
const BATCH_MAX: f64 = 1e6;

/// Operations in a sample, if one takes `one` seconds.
#[must_use]
pub fn batch(one: f64) -> u64 {
    whole((SAMPLE_SECONDS / one).ceil().clamp(1.0, BATCH_MAX))
}

/// Samples of `one` second each in `seconds`.
#[must_use]
pub fn samples(seconds: f64, one: f64) -> u64 {
    whole((seconds / one).clamp(0.0, 1e9)).clamp(SAMPLES_MIN, SAMPLES_MAX)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1e9")]
fn whole(number: f64) -> u64 {
    number as u64
}

/// The time of so many operations; more than 0, however coarse the clock is.
///
/// # Errors
/// The first of the operation's.
#[inline]
pub fn time<E>(batch: u64, mut operation: impl FnMut() -> Result<(), E>) -> Result<Duration, E> {
    let begin = Instant::now();
    for _ in 0..batch {
        operation()?;
    }
    Ok(begin.elapsed().max(Duration::from_nanos(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_keep_their_bounds() {
        assert_eq!((batch(1.0), batch(SAMPLE_SECONDS)), (1, 1));
        assert_eq!((batch(3e-6), batch(1e-300)), (7, 1_000_000));
        assert_eq!((samples(0.1, 1e-3), samples(0.1, 10.0)), (100, SAMPLES_MIN));
        assert_eq!((samples(0.1, 1e-12), samples(-1.0, 1e-3)), (SAMPLES_MAX, SAMPLES_MIN));
    }

    #[test]
    fn an_error_ends_a_sample() {
        let mut count = 0;
        let ended = time(5, || {
            count += 1;
            if count < 3 { Ok(()) } else { Err(count) }
        });
        assert_eq!((ended, count), (Err(3), 3));
    }
}
