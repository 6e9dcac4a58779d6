//! Taking samples: how many operations are one sample, how many samples are taken, and that what is
//! compared is measured in turn.
//!
//! An operation may take nanoseconds; reading the clock takes about 30. So a sample is a batch of
//! operations that lasts at least [`SAMPLE_SECONDS`]. Units: seconds.

use std::convert::Infallible;

use gapless_cli::sampling::{self, batch, samples};
pub use gapless_cli::sampling::{SAMPLE_SECONDS, SAMPLES_MAX, SAMPLES_MIN};
use gapless_report::{NoSamples, Samples, Summary};

/// Operations before the clock starts, from which one's time is estimated.
const WARM: u32 = 3;

/// Measures operations in turn, a sample each, until about `seconds` are spent on each; gives the
/// time of *one* operation. At least [`SAMPLES_MIN`] and at most [`SAMPLES_MAX`] samples are taken.
///
/// # Errors
/// [`NoSamples`] if there is no operation.
pub fn race<const N: usize>(
    seconds: f64,
    mut operations: [&mut dyn FnMut(); N],
) -> Result<[Summary; N], NoSamples> {
    let estimates = operations
        .each_mut()
        .map(|operation| (0..WARM).map(|_| time(operation, 1)).fold(f64::MAX, f64::min).max(1e-9));
    let batches = estimates.map(batch);
    let slowest = estimates.iter().zip(batches).map(|(one, batch)| one * batch as f64);
    let rounds = samples(seconds, slowest.fold(f64::MIN_POSITIVE, f64::max));
    let capacity = usize::try_from(rounds).unwrap_or(0);
    let mut samples = [(); N].map(|()| Samples::with_capacity(capacity));
    for _ in 0..rounds {
        for at in 0..N {
            let batched = time(&mut *operations[at], batches[at]);
            samples[at].push(batched / batches[at] as f64);
        }
    }
    let mut summaries = [None; N];
    for (summary, samples) in summaries.iter_mut().zip(&samples) {
        *summary = Some(samples.summary()?);
    }
    Ok(summaries.map(|summary| summary.expect("each was set above")))
}

/// [`race`] with one operation.
///
/// # Errors
/// None that can happen with a clock that runs.
pub fn alone(seconds: f64, mut operation: impl FnMut()) -> Result<Summary, NoSamples> {
    race(seconds, [&mut operation]).map(|[summary]| summary)
}

/// Seconds that `batch` operations take.
fn time(operation: &mut dyn FnMut(), batch: u64) -> f64 {
    let Ok(took) = sampling::time::<Infallible>(batch, || {
        operation();
        Ok(())
    });
    took.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn all_run_equally_often_and_in_turn() {
        let order = std::cell::RefCell::new(Vec::new());
        let slow = |who: u8| {
            order.borrow_mut().push(who);
            std::thread::sleep(Duration::from_micros(100));
        };
        let again = |who: u8| {
            order.borrow_mut().push(who);
            std::thread::sleep(Duration::from_micros(100));
        };
        let [a, b] = race(0.0, [&mut || slow(1), &mut || again(2)]).unwrap();
        assert_eq!((a.samples, b.samples), (SAMPLES_MIN, SAMPLES_MIN));
        assert!(a.min >= 100e-6 && b.min >= 100e-6);
        let order = order.into_inner();
        assert_eq!(order[..6], [1, 1, 1, 2, 2, 2]);
        assert!(order[6..].chunks(2).all(|pair| pair == [1, 2]), "{order:?}");
    }
}
