//! `worker`: short messages out of and into memory of GPUs, with a worker on each that copies without a launch, and
//! without: between two GPUs, on one under MPS, and between a GPU and a host.

use gapless_cli::pingpong::{Budget, Ends, Where};
use gapless_report::{Mark, Row};

use crate::experiment::Findings;
use crate::p2p::draw::{by_payload, table};
use crate::p2p::item::{MessageItem, Shape, Sites, Size};
use crate::p2p::job::{self, Options, Pair};

messages! {
    Worker "worker" "short messages of GPUs, with a worker that copies without a launch, and without":
        job(plan, NOTES) compared, by_payload("one way, short messages"), table;
}

const NOTES: &str = "time: median of half a round trip between two processes; a worker stays for 100 µs after a copy.\n\
                     launched: the same message in the same run without workers\n";

/// Bytes, and what the time is to be at most: µs, and a part of that without workers.
const MARKS: [(u64, f64, f64); 4] =
    [(8, 5.5, 0.45), (1 << 10, 5.5, 0.45), (16 << 10, 8.0, 0.55), (64 << 10, 12.0, 0.85)];
/// Of V: rows of half a matrix, 24 of 192 bytes. The mark is that of 4 KiB in blocks of 256.
const BLOCKS: (u64, f64, f64) = (4 << 10, 6.5, 0.45);
/// Between a GPU and a host, µs.
const BUS: f64 = 4.0;
/// What is said of messages that come seldom; how much later than without workers they may be there, in µs.
const SELDOM: &str = ", every ";
const LATER: f64 = 1.0;
const WORKERS: &str = "workers";

fn plan(_: &Options, sites: &Sites) -> Vec<Pair> {
    let flat = |bytes, ends| MessageItem::new(Shape::Contiguous, Size::Bytes(bytes), ends);
    let all = |ends: Ends| {
        let flat = MARKS.map(|(bytes, ..)| flat(bytes, ends)).into_iter();
        let seldom = [1, 10].map(|apart| MessageItem::new(Shape::Contiguous, Size::Bytes(8), ends).every(apart));
        let blocks = MessageItem::new(Shape::V, Size::Bytes(BLOCKS.0), ends);
        flat.chain([blocks]).chain(seldom).collect()
    };
    let bus = [8, 1 << 10].map(|bytes| flat(bytes, sites.bus()));
    let budget = Budget { workers: true, ..Budget::default() };
    let mut pairs = Vec::new();
    for (suffix, budget, names) in [
        ("", Budget::default(), ["two", "one-mps", "bus"]),
        (WORKERS, budget, ["two-workers", "one-mps-workers", "bus-workers"]),
    ] {
        let [two, one, bus_name] = names.map(|name| Pair {
            suffix,
            budget,
            ..Pair::new(name, Vec::new())
        });
        if sites.are_two() {
            pairs.push(Pair { items: all(sites.two), ..two });
        }
        if matches!(sites.one.0, [Where::Cuda(_), _]) {
            pairs.push(Pair { items: all(sites.one), mps: true, ..one });
        }
        pairs.push(Pair { items: bus.to_vec(), ..bus_name });
    }
    pairs
}

/// Each row with workers beside that without.
fn compared(mut findings: Findings) -> Findings {
    let with = |row: &Row| row.op.ends_with(WORKERS);
    let plain: Vec<Row> = findings.rows.iter().filter(|row| !with(row)).cloned().collect();
    for row in findings.rows.iter_mut().filter(|row| with(row)) {
        let same = |other: &&Row| (&other.case, &other.space) == (&row.case, &row.space);
        let Some(launched) = plain.iter().find(same) else { continue };
        let part = row.seconds.median / launched.seconds.median;
        let on_gpus = !row.space.contains("host");
        let micros = row.seconds.median * 1e6;
        row.reference = Some("launched".to_owned());
        row.ratio = Some(1.0 / part);
        row.reference_seconds = Some(launched.seconds);
        if row.case.contains(SELDOM) {
            row.marks = vec![Mark::at_most("µs more", LATER, (row.seconds.median - launched.seconds.median) * 1e6)];
            continue;
        }
        let known = MARKS.iter().find(|(bytes, ..)| *bytes == row.payload_bytes);
        row.marks = match (on_gpus, known) {
            (false, _) => vec![Mark::at_most("µs", BUS, micros)],
            (true, known) => {
                let (_, most, of) = known.unwrap_or(&BLOCKS);
                vec![Mark::at_most("µs", *most, micros), Mark::at_most("launched", *of, part)]
            }
        };
    }
    findings
}
