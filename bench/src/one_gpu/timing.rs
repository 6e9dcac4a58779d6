//! How long something takes that all ranks do together: from when all are ready to when the last has ended.

use std::time::Instant;

use gapless::{Communicator, ReduceOp};
use gapless_report::{Samples, Summary};

use crate::error::Failure;

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
    let samples = Samples::from_seconds(all);
    samples.summary().map_err(Failure::samples("runs of all ranks".to_owned()))
}

fn runs(
    control: &Communicator,
    count: usize,
    work: &mut impl FnMut() -> Result<(), Failure>,
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
