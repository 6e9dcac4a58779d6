//! `wu11`: Figure 11 of Wu et al. 2016: ping-pong with V at one end and contiguous data at the other, in both
//! directions, by the matrix's edge.

use gapless_report::{PlotError, Report};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::p2p::item::{Shape, Sites};
use crate::p2p::job::{self, Options, Pair};

use super::wu9::by_edge;
use super::wu10::{NOTES, by_configuration};

/// The experiment.
pub struct Wu11;

impl Experiment for Wu11 {
    type Options = Options;

    const NAME: &'static str = "wu11";
    const ABOUT: &'static str = "ping-pong of V with contiguous data, by matrix size";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        job::run(Self::NAME, options, common, plan, NOTES)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        by_edge("V and contiguous", report)
    }
}

fn plan(_: &Options, sites: &Sites) -> Vec<Pair> {
    by_configuration(sites, &[Shape::FromV, Shape::ToV], u64::MAX)
}
