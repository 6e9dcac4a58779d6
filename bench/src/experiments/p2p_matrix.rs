//! `p2p-matrix`: every protocol at every size, and the staged ones by fragment and depth: what the cost
//! model's numbers are chosen by. Nothing is asked of its rows.

use gapless::Protocol;
use gapless_report::{Rate, Report, Row};

use crate::p2p::draw::by_payload;
use crate::p2p::item::{MessageItem, Shape, Sites, Size};
use crate::p2p::job::{self, Options, Pair};
use crate::table::crossed;

const MIB: u64 = 1 << 20;
/// The part of `--time` for each message: there are hundreds.
const SHARE: f64 = 0.05;
const PAYLOADS: [u64; 5] = [MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB];
const PAYLOADS_BRIEF: [u64; 3] = [MIB, 16 * MIB, 256 * MIB];
const SHAPES: [Shape; 3] = [Shape::Contiguous, Shape::V, Shape::T];
/// Protocols that messages of host memory alone take, or none between processes.
const ELSEWHERE: [Protocol; 5] = [
    Protocol::Eager,
    Protocol::SingleCopy,
    Protocol::StagedRead,
    Protocol::Local,
    Protocol::Pipeline,
];
/// Fragments of the middle depth …
const FRAGMENTS: [u32; 5] = [1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20];
/// … and that depth, and others of the middle fragment.
const DEPTHS: [u32; 3] = [4, 2, 8];

messages! {
    P2pMatrix "p2p-matrix" "messages between GPUs by protocol, size, fragment and depth":
        job(plan, NOTES), by_payload("one way, by protocol"), by_protocol;
}

const NOTES: &str = "op: what was asked for, if anything; protocol: what carried the message. Reference: cudaMemcpy of the \
                     payload\n";

/// The protocols that move device memory between processes in large messages.
fn protocols() -> impl Iterator<Item = Protocol> {
    Protocol::ALL.into_iter().filter(|protocol| !ELSEWHERE.contains(protocol))
}

fn plan(options: &Options, sites: &Sites) -> Vec<Pair> {
    let payloads = if options.brief { &PAYLOADS_BRIEF[..] } else { &PAYLOADS[..] };
    let mut grid = Vec::new();
    for &bytes in payloads {
        for shape in SHAPES {
            let item = MessageItem::new(shape, Size::Bytes(bytes), sites.two);
            grid.push(item);
            grid.extend(protocols().map(|protocol| item.by(protocol)));
        }
    }
    let mut fragments = Vec::new();
    let [middle, others @ ..] = DEPTHS;
    let all = FRAGMENTS.map(|bytes| (bytes, middle)).into_iter();
    let all: Vec<_> = all.chain(others.map(|depth| (FRAGMENTS[2], depth))).collect();
    for bytes in [64 * MIB, 16 * MIB] {
        let item = MessageItem::new(Shape::V, Size::Bytes(bytes), sites.two);
        for protocol in protocols().filter(|protocol| protocol.is_staged()) {
            for &(fragment, depth) in &all {
                fragments.push(item.by(protocol).in_fragments(fragment, depth));
            }
        }
    }
    // What is looked up word by word, and what is transposed.
    let mut looked_up = Vec::new();
    for shape in [Shape::List, Shape::Shuffled, Shape::Fft, Shape::X] {
        let item = MessageItem::new(shape, Size::Bytes(64 * MIB), sites.two);
        looked_up.push(item);
        for protocol in protocols() {
            looked_up.push(item.by(protocol));
            let staged = protocol.is_staged() && shape == Shape::List;
            for fragment in [8 << 20, 16 << 20, 32 << 20].into_iter().filter(|_| staged) {
                looked_up.push(item.by(protocol).in_fragments(fragment, middle));
            }
        }
    }
    // Rank 1's in host memory.
    let mut bus = Vec::new();
    for bytes in [64 * MIB, MIB] {
        for shape in [Shape::Contiguous, Shape::V] {
            let item = MessageItem::new(shape, Size::Bytes(bytes), sites.bus());
            bus.push(item);
            bus.extend(protocols().chain([Protocol::Pipeline]).map(|protocol| item.by(protocol)));
        }
    }
    [("grid", grid), ("lists", looked_up), ("bus", bus), ("fragments", fragments)]
        .into_iter()
        .map(|(name, items)| Pair { share: SHARE, ..Pair::new(name, items) })
        .filter(|pair| !pair.items.is_empty())
        .collect()
}

/// GB/s of each message, by the protocol that it was to take; what took another is in brackets.
fn by_protocol(report: &Report) -> String {
    let split = |row: &Row| {
        let mut parts = row.op.split(", ").skip(1);
        let asked = parts.next().unwrap_or("chosen").to_owned();
        let rest: Vec<&str> = parts.collect();
        ([&[row.case.as_str(), row.space.as_str()], &rest[..]].concat().join(", "), asked)
    };
    crossed(report, "message", split, |row, way| {
        let rate = Rate(row.gbps);
        if row.protocol == way { rate.to_string() } else { format!("{rate} ({})", row.protocol) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_has_a_column_for_each_way() {
        let time = gapless_report::Samples::from_seconds([1e-3]).summary().unwrap();
        let row = |op: &str, ran: &str| Row::new("V n=9", op, "cuda:0->cuda:1", ran, 1 << 20, time);
        let rows = vec![
            row("oneway", "mapped"),
            row("oneway, staged-put", "staged-put"),
            row("oneway, staged-put, 1 MiB × 4", "pipeline"),
        ];
        let report = Report::new("p2p-matrix", gapless_report::Machine::default(), "figures", rows);
        let text = by_protocol(&report);
        assert!(text.starts_with("| message | chosen | staged-put |\n"), "{text}");
        assert!(text.contains("| V n=9, cuda:0->cuda:1 | 1.05 (mapped) | 1.05 |"), "{text}");
        assert!(text.contains("1 MiB × 4 | - | 1.05 (pipeline) |"), "{text}");
    }
}
