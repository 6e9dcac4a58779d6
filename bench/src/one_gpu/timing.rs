//! How long something takes that all ranks do together: from when all are ready to when the last has ended.

use std::time::Instant;

use gapless::{Communicator, ReduceOp};
use gapless_report::Summary;

use crate::error::Failure;
use crate::experiment::summary;

/// Runs at least, and at most.
const LEAST: usize = 5;
const MOST: usize = 400;

/// Times `work`, which all ranks call alike, after `warm` runs that do not count. All ranks get the same.
///
/// # Errors
/// Those of `work`; a peer is lost.
pub fn together(
    control: &Communicator,
    (seconds, warm): (f64, usize),
    mut work: impl FnMut() -> Result<(), Failure>,
) -> Result<Summary, Failure> {
    for _ in 0..warm {
        work()?;
    }
    let mut all = runs(control, LEAST, &mut work)?;
    let once = all.iter().copied().fold(0.0, f64::max).max(1e-7);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "cut to 400")]
    let more = ((seconds / once).min(MOST as f64) as usize).saturating_sub(LEAST);
    all.extend(runs(control, more, &mut work)?);
    summary("runs of all ranks", &all)
}

/// As [`together`], of so many runs; and their mean, in seconds. The first counts in neither: it makes memory and mappings.
///
/// # Errors
/// As there.
pub fn from_the_first(
    control: &Communicator,
    count: usize,
    mut work: impl FnMut() -> Result<(), Failure>,
) -> Result<(Summary, f64), Failure> {
    let all = runs(control, count + 1, &mut work)?.split_off(1);
    #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
    let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
    Ok((summary("runs of all ranks", &all)?, mean))
}

/// Two kinds of work in turn, until about `seconds` are spent on each: times of each run, the slowest rank's. All ranks
/// get the same.
///
/// # Errors
/// As [`together`].
pub fn in_turn(
    comm: &Communicator,
    seconds: f64,
    mut work: [&mut dyn FnMut() -> Result<(), Failure>; 2],
) -> Result<[Vec<f64>; 2], Failure> {
    let control = comm.dup()?;
    let mut times = [Vec::new(), Vec::new()];
    let mut once = 0.0;
    for work in &mut work {
        // The first makes memory and mappings.
        once += runs(&control, 2, work)?[1];
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "cut to 400")]
    let count = ((2.0 * seconds / once.max(1e-7)).min(MOST as f64) as usize).max(LEAST);
    for _ in 0..count {
        for (work, times) in work.iter_mut().zip(&mut times) {
            times.extend(runs(&control, 1, work)?);
        }
    }
    control.free()?;
    Ok(times)
}

/// So many runs, from when all ranks are ready; each took as long as the slowest rank's.
pub(crate) fn runs(
    control: &Communicator,
    count: usize,
    work: &mut (impl FnMut() -> Result<(), Failure> + ?Sized),
) -> Result<Vec<f64>, Failure> {
    let mut mine = Vec::with_capacity(count);
    for _ in 0..count {
        control.barrier()?;
        let begin = Instant::now();
        work()?;
        mine.push(begin.elapsed().as_secs_f64());
    }
    let mut last = mine.clone();
    if count > 0 {
        control.allreduce(&mine[..], &mut last[..], ReduceOp::Max)?;
    }
    Ok(last)
}
