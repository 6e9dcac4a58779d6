//! Messages of GPUs over a network: two processes that reach each other by TCP alone.
//!
//! They are in two network namespaces, joined by a pair of virtual interfaces, where that can be made (root and `ip`);
//! else the loopback interface carries everything. Both are a host's memory and its processors: what is measured is how
//! well packing, wire and unpacking overlap, not a network. So every row is held against a message without gaps, of as
//! many bytes, between page-locked memory of the hosts: over the same wire, in the same run.

use gapless_cli::pingpong::Ends;

use super::item::{MessageItem, Of, Shape, Sites, Size};
use super::job::{self, Between, Pair, Plan};
use super::marks::MarkKind;
use crate::error::Failure;
use crate::experiment::{Common, Findings};
use crate::namespaces::Namespaces;
use crate::processes::RankOf;

/// Options of experiments over a network.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Options {
    #[command(flatten)]
    pub(crate) job: job::Options,
    /// Over the loopback interface, also where namespaces can be made
    #[arg(long)]
    loopback: bool,
}

/// Bytes of messages, at least.
const BYTES: [u64; 4] = [1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// The most important ones.
const BRIEF: [u64; 3] = [1 << 20, 16 << 20, 64 << 20];

/// Payloads of messages, at least.
#[must_use]
pub fn sizes(options: &job::Options) -> &'static [u64] {
    if options.brief { &BRIEF } else { &BYTES }
}

/// How a message between these ends is judged.
#[must_use]
pub fn kind(ends: Ends, kind: MarkKind) -> MarkKind {
    use gapless_cli::pingpong::Where::Cuda;
    if matches!(ends.0, [Cuda(_), Cuda(_)]) { kind } else { MarkKind::NetworkFree }
}

/// The hosts' own messages of these sizes, which others are held against.
#[must_use]
pub fn lines(sizes: &[u64], of: &[Of]) -> Vec<MessageItem> {
    let line = |size: u64| {
        let of = of.iter();
        of.map(move |&of| {
            MessageItem::new(Shape::Flat(of), Size::Bytes(size), Ends::HOST).page_locked()
        })
    };
    sizes.iter().flat_map(|&size| line(size)).collect()
}

/// One pair of processes, whose messages `items` are between two measurements of the hosts' own.
#[must_use]
pub fn pair(lines: Vec<MessageItem>, items: Vec<MessageItem>) -> Vec<Pair> {
    let items = [lines.clone(), items, lines].concat();
    vec![Pair { tcp: true, ..Pair::new("tcp", items) }]
}

/// Messages of these shapes, of all sizes, out of device memory into device memory, or whatever `--space` says.
#[must_use]
pub fn shapes(options: &job::Options, sites: &Sites, shapes: &[Shape], of: &[Of]) -> Vec<Pair> {
    let sizes = sizes(options);
    let judged = kind(sites.two, MarkKind::Network);
    let item = |shape, size| MessageItem::new(shape, Size::Bytes(size), sites.two).judged(judged);
    let sized = |&size: &u64| shapes.iter().map(move |&shape| item(shape, size));
    pair(lines(sizes, of), sizes.iter().flat_map(sized).collect())
}

/// Runs an experiment, as [`job::run`] does; its pairs are hosts.
///
/// # Errors
/// No GPU, or what makes every figure impossible.
pub fn run(
    name: &'static str,
    options: &Options,
    common: &Common,
    plan: Plan,
    notes: &str,
) -> Result<Findings, Failure> {
    let Options { job: options, loopback } = options;
    let sites = match options.space {
        Some(ends) => Sites::of(ends),
        None => job::sites(options)?,
    };
    let (between, told) = match (!loopback).then(Namespaces::new) {
        None => (Between::Loopback, "the loopback interface".to_owned()),
        Some(Ok(hosts)) => (Between::Hosts(hosts), "two network namespaces".to_owned()),
        Some(Err(why)) => (Between::Loopback, format!("the loopback interface ({why})")),
    };
    let notes = format!(
        "time: half a round trip, by TCP over {told}; contiguous in the host: a message of as many bytes without gaps\n\
         between page-locked memory of the hosts, over the same wire: the better of two measurements, one before and one\n\
         after all others. memcpy: a plain copy of the payload between the same places\n{notes}"
    );
    job::run_between(&between, sites, name, (options, common), plan, &notes)
}

/// Measures a pair's items, as one of its hosts.
///
/// # Errors
/// As of [`job::rank`].
pub fn rank(options: &Options, common: &Common, rank: &RankOf, plan: Plan) -> Result<(), Failure> {
    job::rank(&options.job, common, rank, plan)
}
