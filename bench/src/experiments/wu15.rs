//! `wu15`: Figure 15 of Wu et al. 2016: ping-pong of V while a kernel of the application's keeps a part of each
//! GPU busy, by the length of fragments. `wu15-net`: its other half, between two hosts over a network.

use gapless_cli::pingpong::Where;
use gapless_report::{Axis, PlotError, Point, Report, lines_by};

use crate::experiment::{Drawing, gathered, gpu};
use crate::p2p::draw;
use crate::p2p::item::{MessageItem, Of, Shape, Sites, Size, protocol};
use crate::p2p::job::{self, Options, Pair};
use crate::p2p::marks::MarkKind;
use crate::p2p::net;
use crate::table::brief;

messages! {
    Wu15 "wu15" "ping-pong of V beside a kernel that keeps a part of the GPU busy":
        job(plan, NOTES), by_part("V"), brief;
    Wu15Net "wu15-net" "ping-pong of V over a network beside a kernel that keeps a part of the GPU busy":
        net(plan_net, NET_NOTES), by_part("V over a network"), draw::table;
}

const NOTES: &str = "the kernel has as many blocks as it is to keep multiprocessors busy, and runs in the processes whose \
                     messages these are,\non both GPUs; without a fragment's length the cost model chooses. Wu et al.: \
                     less than 10 % lost\nwhile a part is busy. At 100 % a message's kernels start when one of 2.5 ms \
                     of the application's ends: nothing is asked\n";
const NET_NOTES: &str = "the kernel has as many blocks as it is to keep multiprocessors busy, and runs in the processes \
                         whose messages these are.\nWithout a fragment's length the cost model chooses. At 100 % a \
                         message's kernels start when one of 2.5 ms of the\napplication's ends: nothing is asked\n";

/// Wu et al.'s matrices.
const EDGES: [u64; 2] = [1000, 2000];
/// Hundredths of the GPU that are busy.
const OCCUPIED: [u32; 5] = [0, 25, 50, 75, 100];
/// Lengths of fragments.
const FRAGMENTS: [u32; 4] = [256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// The depth at which they are compared.
const DEPTH: u32 = 4;

/// Bytes of its messages, at least.
const NET_BYTES: [u64; 2] = [16 << 20, 64 << 20];
/// Hundredths of the GPU that are busy.
const NET_OCCUPIED: [u32; 4] = [0, 25, 50, 100];
/// Lengths of fragments; the transport takes no longer ones than the last. 32 KiB are about what Wu et al. used.
const NET_FRAGMENTS: [u32; 3] = [32 << 10, 64 << 10, 128 << 10];
/// The depth at which they are compared.
const NET_DEPTH: u32 = 8;

fn plan_net(options: &Options, sites: &Sites) -> Vec<Pair> {
    let cuda = matches!(sites.two.0, [Where::Cuda(_), Where::Cuda(_)]);
    let sizes = if options.brief { &NET_BYTES[..1] } else { &NET_BYTES[..] };
    let mut items = Vec::new();
    for &size in sizes {
        let chosen = MessageItem::new(Shape::V, Size::Bytes(size), sites.two);
        let fragments = NET_FRAGMENTS.map(|bytes| chosen.in_fragments(bytes, NET_DEPTH));
        for item in [chosen].into_iter().chain(fragments) {
            // What is not CUDA's cannot be kept busy.
            let can_be = |part: u32| part == 0 || cuda && (part < 100 || item == chosen);
            for occupied in NET_OCCUPIED.into_iter().filter(|&part| can_be(part)) {
                let kind = match occupied {
                    25 | 50 => MarkKind::NetworkOccupied,
                    0 if item == chosen => MarkKind::Network,
                    _ => MarkKind::NetworkFree,
                };
                items.push(item.beside(occupied).judged(net::kind(sites.two, kind)));
            }
        }
    }
    net::pair(net::lines(sizes, &[Of::V]), items)
}

/// By the part that is busy.
fn by_part(what: &str, report: &Report) -> Result<Vec<Drawing>, PlotError> {
    let placed = report.rows.iter().map(|row| {
        let busy = row.op.rsplit_once(", ").and_then(|(rest, last)| {
            Some((rest, last.strip_suffix(" % occupied")?.parse().unwrap_or(0)))
        });
        let (rest, busy) = busy.unwrap_or((row.op.as_str(), 0));
        let way = rest.strip_prefix("oneway").unwrap_or(rest);
        // The axis begins above nothing.
        let point = Point { payload_bytes: busy + 1, gbps: row.gbps, spread: None };
        (format!("{}{way}", row.case), point)
    });
    let all = gathered(placed);
    let title = format!("{what} beside a busy kernel ({})", gpu(report));
    Drawing::alone(lines_by(&title, Axis::Number("% of the GPU busy, and 1"), &all))
}

fn plan(_: &Options, sites: &Sites) -> Vec<Pair> {
    let cuda = matches!(sites.two.0, [Where::Cuda(_), Where::Cuda(_)]);
    let mut items = Vec::new();
    for edge in EDGES {
        let chosen = MessageItem::new(Shape::V, Size::Edge(edge), sites.two);
        let staged = protocol("staged-put");
        let in_fragments = |way| FRAGMENTS.map(|bytes| chosen.by(way).in_fragments(bytes, DEPTH));
        let ways = [chosen].into_iter().chain(staged.into_iter().flat_map(in_fragments));
        for item in ways {
            for occupied in OCCUPIED {
                // What is not CUDA's cannot be kept busy.
                if occupied == 0 || cuda {
                    let in_part = occupied > 0 && occupied < 100;
                    let kind = if in_part { MarkKind::Occupied } else { MarkKind::Free };
                    let item = item.beside(occupied);
                    items.push(if sites.are_two() { item.judged(kind) } else { item });
                }
            }
        }
    }
    vec![Pair::new("busy", items)]
}
