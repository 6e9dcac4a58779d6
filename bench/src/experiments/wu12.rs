//! `wu12`: Figure 12 of Wu et al. 2016: ping-pong of a matrix transpose, by the matrix's edge. `wu12-net`: its other
//! half, between two hosts over a network.

use gapless_report::{PlotError, Report};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::p2p::item::{Of, Shape, Sites};
use crate::p2p::job::{self, Options, Pair};
use crate::p2p::net;

use super::wu9::{by_edge, by_payload};
use super::wu10::{NOTES, by_configuration, with_quoted};

/// The experiment.
pub struct Wu12;

/// A processor transposes a larger matrix in seconds.
const HOST_EDGE_MAX: u64 = 2048;

impl Experiment for Wu12 {
    type Options = Options;

    const NAME: &'static str = "wu12";
    const ABOUT: &'static str = "ping-pong of a matrix transpose, by matrix size";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        Ok(with_quoted(job::run(Self::NAME, options, common, plan, NOTES)?))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        by_edge("transpose", report)
    }
}

fn plan(_: &Options, sites: &Sites) -> Vec<Pair> {
    by_configuration(sites, &[Shape::X], HOST_EDGE_MAX)
}

/// The half over a network.
pub struct Wu12Net;

impl Experiment for Wu12Net {
    type Options = net::Options;

    const NAME: &'static str = "wu12-net";
    const ABOUT: &'static str = "ping-pong of a matrix transpose over a network, by size";

    fn run(options: &net::Options, common: &Common) -> Result<Findings, Failure> {
        net::run(Self::NAME, options, common, plan_net, "")
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        by_payload("transpose over a network", report)
    }
}

fn plan_net(options: &Options, sites: &Sites) -> Vec<Pair> {
    net::shapes(options, sites, &[Shape::X], &[Of::V])
}
