//! What the experiments on the simulated machine share: schedules of collectives as its programs, rows of simulated
//! times, and pictures of phases.
//!
//! Nothing here is measured: a simulated time is one number, the same on every machine. Each run is compared with what it
//! must give: all steps end, each packet arrives once, and memory holds the sums.

mod schedules;
mod stacked;

pub use schedules::{allreduce, programs};
pub use stacked::{Bar, stacked};

use gapless_report::{Mark, Row, Samples, Summary};
use gapless_xtq_sim::{Configuration, Options, Program, Ps, SimOutcome, run};

use crate::error::Failure;

/// The space of every row.
pub const SPACE: &str = "simulated";

/// Runs programs on the paper's machine, once.
///
/// # Errors
/// Programs that make no sense.
pub fn simulate(programs: &[Program], options: &Options) -> Result<SimOutcome, Failure> {
    Ok(run(programs, options)?)
}

/// A simulated time as a summary: one sample.
///
/// # Errors
/// Nothing was simulated.
pub fn summary(time: Ps) -> Result<Summary, Failure> {
    Samples::from_seconds([time.seconds()]).summary().map_err(Failure::samples("a simulated time"))
}

/// A row of a simulated time.
///
/// # Errors
/// Nothing was simulated.
pub fn row(case: &str, op: &str, of: Configuration, bytes: u64, time: Ps) -> Result<Row, Failure> {
    Ok(Row::new(case, op, SPACE, of.name(), bytes, summary(time)?))
}

/// By how much less time `ours` takes than `theirs`, as a share of theirs.
#[must_use]
pub fn gain(ours: Ps, theirs: Ps) -> f64 {
    1.0 - ours.seconds() / theirs.seconds()
}

/// A mark of a value that is to lie in a range: by how much it does not.
#[must_use]
pub fn within(what: &str, low: f64, high: f64, value: f64) -> Mark {
    let off = (low - value).max(value - high).max(0.0);
    // A value that is not there must not be met.
    let off = if value.is_finite() { off } else { 1e9 };
    Mark::at_most(format!("{what} is {value:.3}; outside {low} to {high} by"), 0.0, off)
}

/// The marks of all rows, met or not, a line each.
#[must_use]
pub fn judged(rows: &[Row]) -> String {
    let line = |(row, mark): (&Row, &Mark)| {
        let Mark { what, bound, at_least, value, met } = mark;
        let (sign, word) = (if *at_least { "≥" } else { "≤" }, if *met { "pass" } else { "FAIL" });
        let bound = (bound * 1e4).round() / 1e4;
        format!("- {word}: {}: {what}: {value:.4}, asked {sign} {bound}\n", row.case)
    };
    rows.iter().flat_map(|row| row.marks.iter().map(move |mark| (row, mark))).map(line).collect()
}

/// The middle one of some values; of an even number, the mean of the middle two.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_and_medians() {
        assert!((gain(Ps(90), Ps(100)) - 0.1).abs() < 1e-12);
        assert_eq!((median([3.0, 1.0, 2.0]), median([4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
        assert!(within("gain", 0.1, 0.15, 0.12).met);
        assert!(!within("gain", 0.1, 0.15, 0.2).met && !within("gain", 0.1, 0.15, f64::NAN).met);
    }
}
