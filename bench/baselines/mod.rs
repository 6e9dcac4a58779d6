//! What users do without a datatype engine, as fast as possible: what every figure is compared with.
//!
//! - [`memcpy`]: `cudaMemcpy` of contiguous bytes: what memory can do;
//! - [`memcpy_2d`]: `cudaMemcpy2D`, for rows at one distance;
//! - [`per_block`]: one `cudaMemcpyAsync` a block (Wu et al. 2016, Figure 1 b to the host, c on the device);
//! - [`whole_span`]: everything to the host, gaps included, and a pack there (Figure 1 a);
//! - [`batch`]: all blocks by one `cuMemcpyBatchAsync`.
//!
//! Each says what bounds it, measured in the same run, and its rows say whether it reached
//! [`REACHED`] of that. One that does not is flagged `crippled`: whatever is compared with it is not
//! compared with what it can do.

pub mod batch;
pub mod memcpy;
pub mod memcpy_2d;
pub mod per_block;
pub mod whole_span;

use gapless_kernels::Direction;
use gapless_report::{Row, Summary};

use crate::error::Failure;
use crate::gpu::lab::{Lab, Laid, Spot};
use crate::gpu::subject::Subject;

/// The share of its bound that a baseline reaches if nothing is wrong with it.
pub const REACHED: f64 = 0.9;

/// What bounds a baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// In words.
    pub what: String,
    /// The least time it allows.
    pub seconds: f64,
}

/// A baseline's figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Which baseline.
    pub baseline: &'static str,
    /// The case.
    pub case: String,
    /// `pack` or `unpack`.
    pub op: &'static str,
    /// Where the bytes were.
    pub space: String,
    /// Bytes moved.
    pub payload: u64,
    /// Time of one.
    pub seconds: Summary,
    /// What bounds it.
    pub bound: Bound,
}

impl Reading {
    /// The row: flagged if the baseline did not do what it can. Its bytes were compared before.
    #[must_use]
    pub fn row(&self) -> Row {
        let Bound { what, seconds } = &self.bound;
        let reached = seconds / self.seconds.median;
        let bound_gbps = self.payload as f64 / seconds / 1e9;
        let (case, space) = (&*self.case, &*self.space);
        let row = Row::new(case, self.op, space, self.baseline, self.payload, self.seconds)
            .against_gbps("own bound", bound_gbps)
            .verified(true)
            .with("baseline", true)
            .with("bound", &**what)
            .with("reaches_its_bound", reached >= REACHED);
        if reached >= REACHED { row } else { row.with("crippled", true) }
    }
}

/// The copies that move a subject block by block: to and from.
///
/// # Errors
/// None for a subject that lies there.
pub fn pairs(
    subject: &Subject,
    direction: Direction,
    laid: &Laid,
    packed: &Spot,
) -> Result<Vec<(Spot, Spot)>, Failure> {
    let place = laid.place();
    let mut at = 0;
    let runs = subject.runs()?;
    let pair = runs.iter().map(|run| {
        let typed = place.sub(subject.origin.wrapping_add_signed(run.displacement), run.len)?;
        let packed = packed.sub(at, run.len)?;
        at += run.len;
        Ok(match direction {
            Direction::Pack => (packed, typed),
            Direction::Unpack => (typed, packed),
        })
    });
    pair.collect()
}

/// The least time for copies that cost `each` seconds by themselves and move `payload` bytes at `gbps`.
#[must_use]
pub fn each_or_all(copies: usize, each: f64, payload: u64, gbps: f64) -> Bound {
    let (one_by_one, together) = (copies as f64 * each, payload as f64 / gbps / 1e9);
    if one_by_one > together {
        let what =
            format!("{copies} copies of {:.2} µs each, as the shortest ones take", each * 1e6);
        Bound { what, seconds: one_by_one }
    } else {
        Bound { what: format!("a plain copy of the payload, {gbps:.0} GB/s"), seconds: together }
    }
}

/// The time of one of the shortest copies, when `go` makes `copies` of them.
pub(crate) fn shortest(
    lab: &Lab,
    seconds: f64,
    from: &Spot,
    to: &Spot,
    copies: usize,
    go: impl Fn(&[(Spot, Spot)]) -> Result<(), Failure>,
) -> Result<f64, Failure> {
    /// Bytes of a copy, and how far apart copies are.
    const SHORT: (u64, u64) = (64, 4096);
    let slots = (from.len().min(to.len()) / SHORT.1).max(1);
    let pairs: Result<Vec<_>, Failure> = (0..copies as u64)
        .map(|at| {
            let at = at % slots * SHORT.1;
            Ok((to.sub(at, SHORT.0)?, from.sub(at, SHORT.0)?))
        })
        .collect();
    let pairs = pairs?;
    let time = crate::gpu::timing::alone(lab, seconds, false, || go(&pairs))?;
    Ok(time.median / copies.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_report::Samples;

    #[test]
    fn a_baseline_that_falls_short_is_flagged() {
        let reading = |bound| Reading {
            baseline: "cudaMemcpy",
            case: "V".to_owned(),
            op: "pack",
            space: "cuda:0".to_owned(),
            payload: 1 << 20,
            seconds: Samples::from_seconds([1e-3]).summary().unwrap(),
            bound: Bound { what: "a copy".to_owned(), seconds: bound },
        };
        let good = reading(0.95e-3).row();
        assert!(!good.extra.contains_key("crippled") && good.extra["reaches_its_bound"] == true);
        let bad = reading(0.8e-3).row();
        assert_eq!(bad.extra["crippled"], true);
        assert!((bad.ratio.unwrap() - 0.8).abs() < 1e-9);
    }

    #[test]
    fn many_copies_or_many_bytes() {
        let many = each_or_all(1000, 2e-6, 1 << 20, 1000.0);
        assert!((many.seconds - 2e-3).abs() < 1e-12 && many.what.contains("1000 copies"));
        let long = each_or_all(1, 2e-6, 1 << 30, 1000.0);
        assert!(long.seconds > 1e-3 && long.what.contains("plain copy"));
    }
}
