//! `wu14`: Figure 14 of Wu et al. 2016: [`wu13`](super::wu13) of a triangle.

use gapless_report::{PlotError, Report};

use super::wu13::{Options, drawings, measure};
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::gpu::subject;

/// The experiment.
pub struct Wu14;

impl Experiment for Wu14 {
    type Options = Options;

    const NAME: &'static str = "wu14";
    const ABOUT: &'static str = "T: GPU memory and bus bandwidth by number of thread blocks";

    fn run(_: &Options, common: &Common) -> Result<Findings, Failure> {
        measure(common, "T", subject::t)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        drawings(report)
    }
}
