//! `p2p`: messages between GPUs, work by work, with the mark of each: contiguous, V, T and X, lists and
//! applications' layouts by size, two processes on one GPU, without a mapping, tiny ones, with few thread
//! blocks, and beside a kernel that keeps the GPU busy.
//!
//! The time is half a round trip between two processes, the reference what `cudaMemcpy` between the two
//! GPUs (or on the one) needs as a whole call, measured in the same processes.

use std::num::NonZeroU32;

use gapless_cli::pingpong::{Budget, Ends, Where};

use crate::p2p::draw::{by_payload, table};
use crate::p2p::item::{MessageItem, Shape, Sites, Size, protocol};
use crate::p2p::job::{self, Options, Pair};
use crate::p2p::marks::MarkKind;

const MIB: u64 = 1 << 20;
/// Payloads with a mark of their own, the most important first.
const PAYLOADS: [u64; 5] = [256 * MIB, 64 * MIB, 16 * MIB, 4 * MIB, MIB];
/// What the link is given the longest time for.
const LONGEST: u64 = 1024 * MIB;
/// Those of a brief run.
const PAYLOADS_BRIEF: [u64; 3] = [256 * MIB, 16 * MIB, MIB];
/// Wu et al.'s larger matrix beside a busy GPU.
const BUSY_EDGE: u64 = 2000;
/// Matrices whose V lies in memory allocated to size.
const EDGES: [u64; 4] = [2000, 2900, 3001, 4001];
/// Payloads whose time is all latency.
const LATENCIES: [u64; 2] = [8, 4096];
/// Thread blocks of the restricted rows.
const FEW: Budget =
    Budget { blocks: NonZeroU32::new(8), kernels_only: false, workers: false };
/// What applications send, at its own size.
const APPLICATIONS: [&str; 6] =
    ["halo26", "face-x", "wrf-y-vec", "milc", "nas-mg-y", "lammps-full"];

messages! {
    P2p "p2p" "messages between GPUs, work by work, with the mark of each":
        job(plan, NOTES), by_payload("one way between two processes"), table;
}

const NOTES: &str = "time: median of half a round trip between two processes, buffers rotating over more \
                     than four times the GPU's cache;\nmemcpy: cudaMemcpy of the payload between the two \
                     GPUs, or on the one; pinned copy: the slower direction to and from\npage-locked \
                     memory; both as whole calls. A row that another protocol carried than its mark means \
                     is void\n";

fn plan(options: &Options, sites: &Sites) -> Vec<Pair> {
    vec![
        link(options, sites),
        Pair::new("to-size", to_size(sites)),
        Pair { budget: FEW, suffix: "8 blocks", ..Pair::new("few", few(sites)) },
        // The copy engine needs no blocks: these rows say what kernels do.
        Pair {
            budget: Budget { kernels_only: true, ..FEW },
            suffix: "8 blocks, kernels only",
            ..Pair::new("few-kernels", few(sites))
        },
        Pair {
            budget: Budget { kernels_only: true, ..Budget::default() },
            suffix: "kernels only",
            ..Pair::new("kernels", busy(sites))
        },
        Pair { suffix: "MPS off", ..Pair::new("one", shared(options, sites.one)) },
        Pair {
            suffix: "MPS on",
            mps: true,
            ..Pair::new("one-mps", shared_at_once(options, sites.one))
        },
    ]
}

/// The pair on two GPUs, or on the only one, where nothing is asked of the link.
fn link(options: &Options, sites: &Sites) -> Pair {
    let ends = sites.two;
    let judged = |item: MessageItem, kind| if sites.are_two() { item.judged(kind) } else { item };
    let sized = |shape, bytes| MessageItem::new(shape, Size::Bytes(bytes), ends);
    let payloads = if options.brief { &PAYLOADS_BRIEF[..] } else { &PAYLOADS[..] };
    let mut items = Vec::new();
    for &bytes in payloads {
        for shape in [Shape::V, Shape::T, Shape::Contiguous] {
            items.push(judged(sized(shape, bytes), MarkKind::Link));
        }
    }
    if !options.brief {
        items.extend(
            [Shape::V, Shape::Contiguous].map(|shape| judged(sized(shape, LONGEST), MarkKind::Link)),
        );
    }
    let large = if options.brief { &PAYLOADS[..1] } else { &PAYLOADS[..2] };
    for &bytes in large {
        for shape in [Shape::FromV, Shape::ToV] {
            items.push(judged(sized(shape, bytes), MarkKind::Half));
        }
        items.push(judged(sized(Shape::X, bytes), MarkKind::X));
    }
    items.extend(LATENCIES.map(|bytes| judged(sized(Shape::Contiguous, bytes), MarkKind::Latency)));
    // Beside what is chosen: one kernel from layout to layout, and eager; rows with gaps, which the copy engine does
    // not move.
    let forced = ["mapped", "eager"].map(protocol);
    for &bytes in LATENCIES.iter().filter(|_| sites.are_two()) {
        for protocol in forced.into_iter().flatten() {
            items.push(sized(Shape::Contiguous, bytes).by(protocol).judged(MarkKind::Free));
        }
        items.push(sized(Shape::V, bytes));
    }
    // Two GPUs that could reach each other, but do not.
    if let Some(through_host) = protocol("copy-in-out") {
        for &bytes in large {
            for shape in [Shape::V, Shape::T] {
                items.push(sized(shape, bytes).by(through_host).judged(MarkKind::NoIpc));
            }
        }
    }
    items.extend(busy(sites));
    items.push(judged(sized(Shape::List, PAYLOADS[1]), MarkKind::Listed));
    items.push(judged(sized(Shape::Fft, PAYLOADS[1]), MarkKind::Listed));
    if !options.brief {
        items.push(judged(sized(Shape::Shuffled, PAYLOADS[1]), MarkKind::Listed));
        let own = |family| MessageItem::new(Shape::Named(family), Size::Own, ends);
        items.extend(APPLICATIONS.map(own));
    }
    items.extend(on_the_host());
    Pair::new("link", items)
}

/// What latencies are judged by.
fn on_the_host() -> [MessageItem; 2] {
    LATENCIES.map(|bytes| MessageItem::new(Shape::Contiguous, Size::Bytes(bytes), Ends::HOST))
}

/// Rank 0 has few thread blocks: half of the messages it packs, half it unpacks. On one GPU they would have
/// to feed its memory, of which nothing is asked.
fn few(sites: &Sites) -> Vec<MessageItem> {
    let sized = |shape| {
        let item = MessageItem::new(shape, Size::Bytes(PAYLOADS[0]), sites.two);
        if sites.are_two() { item.judged(MarkKind::Few) } else { item }
    };
    [Shape::V, Shape::T].map(sized).into()
}

/// Beside an idle GPU, and beside a kernel that keeps a part of it busy.
fn busy(sites: &Sites) -> Vec<MessageItem> {
    let v = MessageItem::new(Shape::V, Size::Edge(BUSY_EDGE), sites.two);
    if !matches!(sites.two.0, [Where::Cuda(_), Where::Cuda(_)]) {
        return Vec::new();
    }
    let kind = if sites.are_two() { MarkKind::Occupied } else { MarkKind::Free };
    [v, v.beside(25).judged(kind), v.beside(50).judged(kind)].into()
}

/// Memory that is allocated for one message, by the library and by others. Nothing is asked of one GPU.
fn to_size(sites: &Sites) -> Vec<MessageItem> {
    let ends = sites.two;
    let v = |edge| MessageItem::new(Shape::V, Size::Edge(edge), ends);
    let sized = |edge| [MarkKind::ToSize, MarkKind::Foreign].map(|kind| v(edge).to_size(kind));
    let items = EDGES.into_iter().flat_map(sized);
    items.map(|item| if sites.are_two() { item } else { item.judged(MarkKind::Free) }).collect()
}

/// Two processes on one GPU that use it at the same time: what each is told does not wait for its turn.
fn shared_at_once(options: &Options, ends: Ends) -> Vec<MessageItem> {
    let mut items = shared(options, ends);
    let small = |bytes| MessageItem::new(Shape::Contiguous, Size::Bytes(bytes), ends);
    items.extend(LATENCIES.map(|bytes| small(bytes).judged(MarkKind::Latency)));
    items.extend(on_the_host());
    items
}

/// Two processes on one GPU.
fn shared(options: &Options, ends: Ends) -> Vec<MessageItem> {
    let sized = |shape, bytes| MessageItem::new(shape, Size::Bytes(bytes), ends).judged(MarkKind::Shared);
    let mut items = vec![
        sized(Shape::V, PAYLOADS[0]),
        sized(Shape::T, PAYLOADS[0]),
        MessageItem::new(Shape::Contiguous, Size::Bytes(PAYLOADS[0]), ends),
    ];
    if !options.brief {
        items.extend([16 * MIB, MIB].map(|bytes| sized(Shape::V, bytes)));
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    fn options(words: &[&str]) -> Options {
        let words = ["p2p"].iter().chain(words);
        let matches = <Options as clap::Args>::augment_args(Command::new("p2p"));
        Options::from_arg_matches(&matches.get_matches_from(words)).unwrap()
    }

    #[test]
    fn every_row_of_the_table_is_there_once() {
        let sites = Sites::of("cuda:0,cuda:1".parse().unwrap());
        for words in [&[][..], &["--brief"]] {
            let pairs = plan(&options(words), &sites);
            assert_eq!(pairs.len(), 7);
            for pair in &pairs {
                for (at, item) in pair.items.iter().enumerate() {
                    assert!(!pair.items[..at].contains(item), "{} {item:?}", pair.name);
                }
            }
            let kinds: Vec<MarkKind> =
                pairs.iter().flat_map(|pair| &pair.items).map(|item| item.kind).collect();
            for kind in [
                MarkKind::Link,
                MarkKind::Half,
                MarkKind::X,
                MarkKind::Listed,
                MarkKind::Shared,
                MarkKind::Latency,
                MarkKind::Few,
                MarkKind::Occupied,
                MarkKind::ToSize,
                MarkKind::Foreign,
            ] {
                assert!(kinds.contains(&kind), "{kind:?}");
            }
        }
        // What a row is held against runs with it.
        for words in [&["--only", "few-kernels"][..], &["--only", "few-kernels", "--brief"]] {
            let options = options(words);
            let mut pairs = plan(&options, &sites);
            job::narrow(&mut pairs, &options.only);
            let running: Vec<(&str, usize)> = pairs
                .iter()
                .filter(|pair| !pair.items.is_empty())
                .map(|pair| (pair.name, pair.items.len()))
                .collect();
            assert_eq!(running, [("link", 2), ("few-kernels", 2)]);
            let link = &pairs[0].items;
            for few in pairs.iter().filter(|pair| pair.name == "few-kernels") {
                assert!(few.items.iter().all(|one| link.iter().any(|free| free.is_like(one))));
            }
        }
        // Of one GPU nothing is asked that only two could do.
        let pairs = plan(&options(&[]), &Sites::of("cuda:0".parse().unwrap()));
        assert!(!pairs[0].items.iter().any(|item| item.kind == MarkKind::Link));
    }
}
