//! Device time: what the GPU's own clock says, between two marks on a stream.
//!
//! A sample is a batch of operations between two marks. Where a gate can hold the stream, the whole batch
//! is enqueued before the first one starts, so that what the CPU needs to enqueue them does not show.
//! What is compared takes turns, a sample each. Units: seconds of one operation.

use std::time::Instant;

use gapless_report::{Samples, Summary};

use super::lab::Lab;
use crate::error::Failure;

/// A sample lasts about this long.
const SAMPLE_SECONDS: f64 = 400e-6;
/// Operations in a sample at most: the driver queues about a thousand launches before it makes the
/// caller wait, and an operation may be several.
const BATCH_MAX: u32 = 64;
/// Samples that are taken at least, however long they take.
const SAMPLES_MIN: u32 = 5;
/// Samples that are taken at most.
const SAMPLES_MAX: u32 = 200;

/// Something that enqueues its work on the lab's stream.
pub type Operation<'a> = Box<dyn FnMut() -> Result<(), Failure> + 'a>;

/// Measures operations in turn until about `seconds` are spent on each. Gated ones must not wait for the
/// stream.
///
/// # Errors
/// An operation's own, or what the driver refuses.
pub fn race(
    lab: &Lab,
    seconds: f64,
    gated: bool,
    operations: &mut [Operation<'_>],
) -> Result<Vec<Summary>, Failure> {
    let mut batches = Vec::with_capacity(operations.len());
    let mut slowest = f64::MIN_POSITIVE;
    for operation in operations.iter_mut() {
        sample(lab, false, 1, operation)?;
        let one = sample(lab, gated, 2, operation)?;
        let batch = batch(one);
        slowest = slowest.max(one * f64::from(batch));
        batches.push(batch);
    }
    let rounds = rounds(seconds, slowest);
    let mut all = vec![Samples::default(); operations.len()];
    for _ in 0..rounds {
        for ((operation, samples), batch) in operations.iter_mut().zip(&mut all).zip(&batches) {
            samples.push(sample(lab, gated, *batch, operation)?);
        }
    }
    all.iter().map(|samples| samples.summary().map_err(Failure::samples("device time"))).collect()
}

/// [`race`] with one operation.
///
/// # Errors
/// As [`race`].
pub fn alone(
    lab: &Lab,
    seconds: f64,
    gated: bool,
    operation: impl FnMut() -> Result<(), Failure>,
) -> Result<Summary, Failure> {
    let mut operations: [Operation<'_>; 1] = [Box::new(operation)];
    race(lab, seconds, gated, &mut operations).map(|all| all[0])
}

/// The time of one operation of `batch`.
fn sample(
    lab: &Lab,
    gated: bool,
    batch: u32,
    operation: &mut Operation<'_>,
) -> Result<f64, Failure> {
    let shut = gated && lab.shut_gate()?;
    let mut timed = || -> Result<_, Failure> {
        let begin = lab.stream().mark()?;
        for _ in 0..batch {
            operation()?;
        }
        Ok((begin, lab.stream().mark()?))
    };
    let timed = timed();
    if shut {
        // Whatever happened meanwhile, the stream must not stay held.
        lab.open_gate()?;
    }
    let (begin, end) = timed?;
    lab.settle()?;
    let millis = begin.until(&end)?.unwrap_or(0.0);
    // The clock's step is about half a microsecond; less than that is no time at all.
    Ok((millis / 1e3).max(1e-9) / f64::from(batch))
}

fn batch(one: f64) -> u32 {
    whole(SAMPLE_SECONDS / one).clamp(1, BATCH_MAX)
}

fn rounds(seconds: f64, one: f64) -> u32 {
    whole(seconds / one).clamp(SAMPLES_MIN, SAMPLES_MAX)
}

fn whole(number: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0 ..= 1e6"
    )]
    let whole = number.clamp(0.0, 1e6) as u32;
    whole
}

/// Times whole calls by the CPU's clock, until about `seconds` are spent.
///
/// # Errors
/// The call's own.
pub fn calls(
    seconds: f64,
    mut call: impl FnMut() -> Result<(), Failure>,
) -> Result<Summary, Failure> {
    timed_calls(seconds, || {
        let begin = Instant::now();
        call()?;
        Ok(begin.elapsed().as_secs_f64())
    })
}

/// Calls that time themselves, in seconds: what comes before and after is not measured.
///
/// # Errors
/// The call's own.
pub fn timed_calls(
    seconds: f64,
    mut call: impl FnMut() -> Result<f64, Failure>,
) -> Result<Summary, Failure> {
    call()?;
    let one = call()?.max(1e-9);
    let mut samples = Samples::default();
    for _ in 0..rounds(seconds, one) {
        samples.push(call()?.max(1e-9));
    }
    samples.summary().map_err(Failure::samples("whole calls"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_keep_their_bounds() {
        assert_eq!((batch(1.0), batch(SAMPLE_SECONDS), batch(1e-9)), (1, 1, BATCH_MAX));
        assert_eq!(batch(100e-6), 4);
        assert_eq!((rounds(0.1, 1e-3), rounds(0.1, 1.0)), (100, SAMPLES_MIN));
        assert_eq!((rounds(1e9, 1e-9), rounds(0.0, 1e-3)), (SAMPLES_MAX, SAMPLES_MIN));
    }

    #[test]
    fn calls_are_timed_and_their_errors_kept() {
        let summary = calls(0.0, || {
            std::thread::sleep(std::time::Duration::from_micros(200));
            Ok(())
        });
        let summary = summary.unwrap();
        assert_eq!(summary.samples, u64::from(SAMPLES_MIN));
        assert!(summary.min >= 200e-6);
        let failed = calls(0.0, || Err(Failure::Hangs { seconds: 1 }));
        assert!(matches!(failed, Err(Failure::Hangs { .. })));
        let own = timed_calls(0.0, || Ok(2.5)).unwrap();
        assert!((own.median - 2.5).abs() < 1e-12);
    }
}
