//! `wu10`: Figure 10 of Wu et al. 2016: ping-pong of V and T by the matrix's edge: both processes on one GPU,
//! each on its own, and both in host memory. `wu10-net`: its other half, between two hosts over a network.

use gapless_cli::pingpong::Ends;
use gapless_report::{PlotError, Report};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::gpu::quoted;
use crate::p2p::item::{Item, Of, Shape, Sites, Size};
use crate::p2p::job::{self, Options, Pair};
use crate::p2p::marks::Kind;
use crate::p2p::net;

use super::wu9::{EDGES, by_edge, by_payload};

/// The experiment.
pub struct Wu10;

impl Experiment for Wu10 {
    type Options = Options;

    const NAME: &'static str = "wu10";
    const ABOUT: &'static str =
        "ping-pong of V and T on one GPU, two GPUs and the host, by matrix size";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let findings = job::run(Self::NAME, options, common, plan, NOTES)?;
        Ok(with_quoted(findings))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        by_edge("ping-pong of V and T", report)
    }
}

fn plan(_: &Options, sites: &Sites) -> Vec<Pair> {
    by_configuration(sites, &[Shape::V, Shape::T], u64::MAX)
}

/// The half over a network.
pub struct Wu10Net;

impl Experiment for Wu10Net {
    type Options = net::Options;

    const NAME: &'static str = "wu10-net";
    const ABOUT: &'static str = "ping-pong of V and T over a network, by size";

    fn run(options: &net::Options, common: &Common) -> Result<Findings, Failure> {
        net::run(Self::NAME, options, common, plan_net, "")
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        by_payload("V and T over a network", report)
    }
}

fn plan_net(options: &Options, sites: &Sites) -> Vec<Pair> {
    let mut pairs = net::shapes(options, sites, &[Shape::V, Shape::T], &[Of::V, Of::T]);
    let sizes = net::sizes(options).iter().filter(|&&size| size <= NET_HOST_BYTES);
    let host = sizes.flat_map(|&size| {
        [Shape::V, Shape::T].map(|shape| Item::new(shape, Size::Bytes(size), Ends::HOST))
    });
    if sites.two != Ends::HOST {
        let host = host.map(|item| item.judged(Kind::NetworkFree));
        pairs.iter_mut().for_each(|pair| pair.items.extend(host.clone()));
    }
    pairs
}

/// The longest message between the hosts' own memory.
const NET_HOST_BYTES: u64 = 16 << 20;

/// What all of Figures 10 to 12 say below their tables.
pub(super) const NOTES: &str = "time: half a round trip; memcpy: a plain copy of the payload between the \
                                same places. Quoted: Open MPI 5.0.7 between the same\nGPUs, which was \
                                not measured here\n";

/// Every configuration in one pair of processes; matrices in host memory have `host` columns at most.
pub(super) fn by_configuration(sites: &Sites, shapes: &[Shape], host: u64) -> Vec<Pair> {
    let mut items = Vec::new();
    for (_, ends) in sites.configurations() {
        let most = if ends.involve_device() { u64::MAX } else { host };
        for &edge in EDGES.iter().filter(|edge| **edge <= most) {
            items.extend(shapes.iter().map(|&shape| Item::new(shape, Size::Edge(edge), ends)));
        }
    }
    vec![Pair::new("ping-pong", items)]
}

/// Rows between two GPUs with what Open MPI reaches there.
pub(super) fn with_quoted(mut findings: Findings) -> Findings {
    let two_gpus = |space: &str| space.matches("cuda:").count() == 2;
    for row in findings.rows.iter_mut().filter(|row| two_gpus(&row.space)) {
        let Some((layout, n)) = row.case.split_once(" n=") else { continue };
        let Some(reading) = n.parse().ok().and_then(|n| quoted::of(layout, n, "oneway").next())
        else {
            continue;
        };
        let peers = serde_json::json!({ reading.peer: reading.gbps });
        *row = row.clone().with("quoted_gbps", peers).with("quoted_from", quoted::SOURCE_TWO);
    }
    findings
}
