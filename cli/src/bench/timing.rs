//! How often something is done, and what is kept of how long it took.

use crate::sampling::{self, SAMPLE_SECONDS};
use gapless::{Communicator, Error};
use std::time::Duration;

/// Iterations at least and at most, where the time decides.
const ITERATIONS: (u64, u64) = (10, 1_000_000);

/// How often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// So often; or as often as `seconds` allow.
    pub(super) iterations: Option<u64>,
    /// So often before; or for a tenth of `seconds`.
    pub(super) warmup: Option<u64>,
    pub(super) seconds: f64,
    /// Whether each iteration is timed by itself.
    pub(super) each: bool,
}

/// How long it took.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Timing {
    pub(super) iterations: u64,
    /// Seconds of all of them together.
    pub(super) seconds: f64,
    /// Seconds of an iteration, of each sample.
    pub(super) samples: Vec<f64>,
}

impl Timing {
    fn add(&mut self, other: &Timing) {
        self.iterations += other.iterations;
        self.seconds += other.seconds;
        self.samples.extend_from_slice(&other.samples);
    }

    /// Seconds of an iteration, on average.
    #[expect(clippy::cast_precision_loss, reason = "at most millions")]
    pub(super) fn average(&self) -> f64 {
        self.seconds / self.iterations.max(1) as f64
    }
}

/// What rank 0 tells the others to do: so many iterations, so many of them a sample, and whether they count. None of them
/// at the end.
type Word = [u64; 3];

impl Plan {
    /// Does `turn` at all ranks, as often as rank 0 finds right.
    pub(super) fn carry_out(
        &self,
        control: &Communicator,
        mut turn: impl FnMut() -> Result<(), Error>,
    ) -> Result<Timing, Error> {
        let mut counted = Timing::default();
        let mut round = |word: Word| -> Result<Timing, Error> {
            let mut word = word;
            control.bcast(&mut word, 0)?;
            // All begin together.
            control.barrier()?;
            let timing = sampled(word, &mut turn)?;
            if word[2] != 0 {
                counted.add(&timing);
            }
            Ok(timing)
        };
        if control.rank() != 0 {
            while round([0; 3])?.iterations > 0 {}
            return Ok(counted);
        }
        let mut one = self.warm_up(&mut round)?;
        let (mut done, mut spent) = (0, 0.0);
        while let Some(count) = self.next(done, spent, one) {
            let timing = round([count, self.batch(one, count), 1])?;
            done += count;
            spent += timing.seconds;
            one = timing.average();
        }
        round([0; 3])?;
        Ok(counted)
    }

    /// What does not count; gives about how long an iteration takes.
    fn warm_up(&self, round: &mut dyn FnMut(Word) -> Result<Timing, Error>) -> Result<f64, Error> {
        match self.warmup {
            Some(0) => Ok(SAMPLE_SECONDS),
            Some(count) => Ok(round([count, count, 0])?.average()),
            None => {
                let (mut one, mut count, mut spent) = (SAMPLE_SECONDS, 1u64, 0.0);
                while spent < self.seconds / 10.0 && count <= self.iterations.unwrap_or(u64::MAX) {
                    let timing = round([count, count, 0])?;
                    spent += timing.seconds;
                    one = timing.average();
                    count *= 2;
                }
                Ok(one)
            }
        }
    }

    /// How many iterations come next: all at once if their number is given, else about a tenth of the time, since a
    /// machine may be slower in a moment than it was.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in bounds")]
    fn next(&self, done: u64, spent: f64, one: f64) -> Option<u64> {
        if let Some(iterations) = self.iterations {
            return (done == 0).then_some(iterations);
        }
        let enough = spent >= self.seconds && done >= ITERATIONS.0;
        let tenth = self.seconds / 10.0 / one.max(1e-9);
        (!enough && done < ITERATIONS.1).then(|| (tenth as u64).clamp(1, ITERATIONS.1 - done))
    }

    /// How many iterations make a sample.
    fn batch(&self, one: f64, iterations: u64) -> u64 {
        if self.each { 1 } else { sampling::batch(one.max(1e-9)).min(iterations) }
    }
}

/// Times so many iterations, each sample so many of them.
#[expect(clippy::cast_precision_loss, reason = "at most millions")]
fn sampled(
    [iterations, batch, _]: Word,
    turn: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<Timing, Error> {
    let samples = usize::try_from(iterations.div_ceil(batch.max(1))).unwrap_or(0);
    let mut timing =
        Timing { iterations, samples: Vec::with_capacity(samples), ..Timing::default() };
    let mut left = iterations;
    let mut total = Duration::ZERO;
    while left > 0 {
        let count = left.min(batch.max(1));
        let took = sampling::time(count, &mut *turn)?;
        total += took;
        timing.samples.push(took.as_secs_f64() / count as f64);
        left -= count;
    }
    timing.seconds = total.as_secs_f64();
    Ok(timing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(iterations: Option<u64>, warmup: Option<u64>, each: bool) -> Plan {
        Plan { iterations, warmup, seconds: 0.01, each }
    }

    #[test]
    fn iterations_are_as_many_as_asked_for_or_fit() {
        let given = plan(Some(100), None, false);
        assert_eq!((given.next(0, 0.0, 1.0), given.next(100, 0.0, 1.0)), (Some(100), None));
        let timed = plan(None, None, false);
        assert_eq!(timed.next(0, 0.0, 1e-4), Some(10));
        assert_eq!(timed.next(0, 0.0, 1.0), Some(1));
        assert_eq!(timed.next(9, 9.0, 1.0), Some(1));
        assert_eq!(timed.next(10, 9.0, 1.0), None);
        assert_eq!(timed.next(1_000_000, 0.0, 1e-9), None);
        assert_eq!(timed.next(999_999, 0.0, 1e-9), Some(1));
    }

    #[test]
    fn a_sample_is_longer_than_reading_the_clock() {
        let of = |each: bool| plan(None, None, each).batch(3e-6, 100);
        assert_eq!((of(false), of(true)), (7, 1));
        assert_eq!(plan(None, None, false).batch(1e-9, 3), 3);
    }

    /// A rank alone goes through all of it.
    #[test]
    fn everything_is_done_as_often_as_planned() {
        let world = gapless::World::init().unwrap();
        for (iterations, warmup, each, samples) in
            [(7, 3, true, 7), (7, 0, false, 7), (1, 1, true, 1)]
        {
            let mut count = 0;
            let timing = plan(Some(iterations), Some(warmup), each).carry_out(world.comm(), || {
                count += 1;
                Ok(())
            });
            let timing = timing.unwrap();
            assert_eq!((timing.iterations, timing.samples.len()), (iterations, samples));
            assert_eq!(count, iterations + warmup);
            assert!(timing.seconds > 0.0 && timing.average() > 0.0);
        }
        world.finalize().unwrap();
    }
}
