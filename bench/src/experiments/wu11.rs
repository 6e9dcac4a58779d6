//! `wu11`: Figure 11 of Wu et al. 2016: ping-pong with V at one end and contiguous data at the other, in both
//! directions, by the matrix's edge. `wu11-net`: its other half, between two hosts over a network.

use gapless_report::{PlotError, Report};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::p2p::item::{Of, Shape, Sites};
use crate::p2p::job::{self, Options, Pair};
use crate::p2p::net;

use super::wu9::{by_edge, by_payload};
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

/// The half over a network.
pub struct Wu11Net;

impl Experiment for Wu11Net {
    type Options = net::Options;

    const NAME: &'static str = "wu11-net";
    const ABOUT: &'static str = "ping-pong of V with contiguous data over a network, by size";

    fn run(options: &net::Options, common: &Common) -> Result<Findings, Failure> {
        net::run(Self::NAME, options, common, plan_net, "")
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        by_payload("V and contiguous over a network", report)
    }
}

fn plan_net(options: &Options, sites: &Sites) -> Vec<Pair> {
    net::shapes(options, sites, &[Shape::FromV, Shape::ToV], &[Of::V])
}
