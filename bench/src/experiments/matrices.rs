//! Figures 9 to 12 of Wu et al. 2016: messages of matrices by their edge, and the halves of three of them between two hosts
//! over a network, by size.

use gapless_cli::pingpong::Ends;

use crate::experiment::Findings;
use crate::gpu::quoted;
use crate::p2p::draw::{by_edge, by_payload, table};
use crate::p2p::item::{MessageItem, Of, Shape, Sites, Size};
use crate::p2p::job::{self, Options, Pair};
use crate::p2p::marks::MarkKind;
use crate::p2p::net;

messages! {
    Wu9 "wu9" "bus bandwidth of V, T and contiguous data (C), by matrix size":
        job(over_the_bus, BUS), by_edge("between a GPU and host memory"), table;
    Wu10 "wu10" "ping-pong of V and T on one GPU, two GPUs and the host, by matrix size":
        job(|_, sites| by_configuration(sites, &[Shape::V, Shape::T], u64::MAX), NOTES) with_quoted,
        by_edge("ping-pong of V and T"), table;
    Wu10Net "wu10-net" "ping-pong of V and T over a network, by size":
        net(v_and_t_by_net, ""), by_payload("V and T over a network"), table;
    // V at one end and contiguous data at the other, in both directions.
    Wu11 "wu11" "ping-pong of V with contiguous data, by matrix size":
        job(|_, sites| by_configuration(sites, &[Shape::FromV, Shape::ToV], u64::MAX), NOTES),
        by_edge("V and contiguous"), table;
    Wu11Net "wu11-net" "ping-pong of V with contiguous data over a network, by size":
        net(|options, sites| net::shapes(options, sites, &[Shape::FromV, Shape::ToV], &[Of::V]), ""),
        by_payload("V and contiguous over a network"), table;
    // A processor transposes a larger matrix in seconds.
    Wu12 "wu12" "ping-pong of a matrix transpose, by matrix size":
        job(|_, sites| by_configuration(sites, &[Shape::X], 2048), NOTES) with_quoted,
        by_edge("transpose"), table;
    Wu12Net "wu12-net" "ping-pong of a matrix transpose over a network, by size":
        net(|options, sites| net::shapes(options, sites, &[Shape::X], &[Of::V]), ""),
        by_payload("transpose over a network"), table;
}

/// Matrix edges.
const EDGES: [u64; 4] = [512, 1024, 2048, 4096];

const BUS: &str = "rank 0's messages lie on the GPU, rank 1's in host memory; pinned copy: the slower direction between \
                   the GPU and\npage-locked memory. Wu et al. on a K40: 90 % of the bus for V, 78 % for T\n";

fn over_the_bus(_: &Options, sites: &Sites) -> Vec<Pair> {
    let sized = |edge| {
        [Shape::Contiguous, Shape::V, Shape::T]
            .map(|shape| MessageItem::new(shape, Size::Edge(edge), sites.bus()))
    };
    vec![Pair::new("bus", EDGES.into_iter().flat_map(sized).collect())]
}

fn v_and_t_by_net(options: &Options, sites: &Sites) -> Vec<Pair> {
    let mut pairs = net::shapes(options, sites, &[Shape::V, Shape::T], &[Of::V, Of::T]);
    let sizes = net::sizes(options).iter().filter(|&&size| size <= NET_HOST_BYTES);
    let host = sizes.flat_map(|&size| {
        [Shape::V, Shape::T].map(|shape| MessageItem::new(shape, Size::Bytes(size), Ends::HOST))
    });
    if sites.two != Ends::HOST {
        let host = host.map(|item| item.judged(MarkKind::NetworkFree));
        pairs.iter_mut().for_each(|pair| pair.items.extend(host.clone()));
    }
    pairs
}

/// The longest message between the hosts' own memory.
const NET_HOST_BYTES: u64 = 16 << 20;

/// What all of Figures 10 to 12 say below their tables.
const NOTES: &str = "time: half a round trip; memcpy: a plain copy of the payload between the \
                                same places. Quoted: Open MPI 5.0.7 between the same\nGPUs, which was \
                                not measured here\n";

/// Every configuration in one pair of processes; matrices in host memory have `host` columns at most.
fn by_configuration(sites: &Sites, shapes: &[Shape], host: u64) -> Vec<Pair> {
    let mut items = Vec::new();
    for (_, ends) in sites.configurations() {
        let most = if ends.involve_device() { u64::MAX } else { host };
        for &edge in EDGES.iter().filter(|edge| **edge <= most) {
            items.extend(shapes.iter().map(|&shape| MessageItem::new(shape, Size::Edge(edge), ends)));
        }
    }
    vec![Pair::new("ping-pong", items)]
}

/// Rows between two GPUs with what Open MPI reaches there.
fn with_quoted(mut findings: Findings) -> Findings {
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
