//! `coll-layouts`: collectives with layouts between GPUs, one kernel a rank, beside what users do without them.
//!
//! Processes of their own measure, one process a GPU or several ([`gpu::layouts`](crate::gpu::layouts)). The link's
//! speed is that of both GPUs' copy engines at once, on as many bytes as a rank sends, in the same run. Where ranks share
//! GPUs, cases say so, and two copies at once within a GPU stand in the link's place, without a mark.

use gapless::{StreamWay, World};
use gapless_mem_cuda::CudaDriver;
use gapless_report::{Absent, Mark, Row, Summary};

use crate::error::Failure;
use crate::experiment::{Common, Experiment, Findings, summary};
use crate::gpu::layouts::{Cut, Exchange, Rank};
use crate::gpu::{sharing, space};
use crate::nccl::NO_SHARP;
use crate::p2p::mps::Service;
use crate::processes::{Processes, RankOf};

/// The experiment.
pub struct CollLayouts;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Processes, each with a GPU, or in turn on those that there are under the Multi-Process Service
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(2..=16))]
    ranks: u32,
    /// Sides of the cubes that are transposed; repeatable, or separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "256,512,1024")]
    sides: Vec<u64>,
    /// NCCL's library
    #[arg(long, value_name = "PATH", default_value = "libnccl.so.2")]
    nccl: String,
    /// Measure without NCCL, as where processes share a GPU
    #[arg(long)]
    alone: bool,
    /// Start a Multi-Process Service of our own where processes must share GPUs and none runs
    #[arg(long)]
    start_mps: bool,
    /// All ways that blocks can go, not only the one that is chosen
    #[arg(long)]
    ways: bool,
}

/// Cells along each side of the halo's grid.
const HALO: u64 = 512;
const THEIRS: &str = "pack, NCCL, unpack";
const MESSAGES: &str = "26 messages";
const LINK: &str = "the link";
/// In its place if ranks share GPUs.
const COPIES: &str = "two copies at once";

impl Experiment for CollLayouts {
    type Options = Options;

    const NAME: &'static str = "coll-layouts";
    const ABOUT: &'static str = "FFT transposes and halos between GPUs, each one collective with layouts";

    fn run(options: &Options, _: &Common) -> Result<Findings, Failure> {
        let service = Service::for_ranks(options.ranks, options.start_mps)?;
        let environment = service.as_ref().map(Service::environment).unwrap_or_default();
        let processes = Processes { environment, ..Processes::new(Self::NAME, options.ranks) }.with(NO_SHARP);
        let (rows, ended) = processes.found_so_far(Self::NAME, ())?;
        let mut absent = Vec::new();
        if let Err(why) = ended {
            let (case, op, why) = (Self::NAME.to_owned(), "all".to_owned(), why.to_string());
            absent.push(Absent { case, op, why, failed: true });
        }
        let notes = "time: of one call, the slowest rank's. graph, queued: back to back, by the device's clock; awaited: one \
                     call and its wait, by the host's.\npayload: what a rank sends to the others over its link, each way at \
                     once. transpose: of n³ complex numbers of two floats (planes, rows, pencils, turned: how it is cut \
                     before and after; if it does not come out even, the first \
                     ranks have a plane more). halo: of 512³ doubles, all dimensions rings, cut along the first or the last\n";
        Ok(Findings { rows, notes: notes.to_owned(), absent })
    }

    /// Leaves the rows after every exchange.
    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let world = World::init()?;
        let driver = CudaDriver::load()?;
        let stream = driver.device(world.rank() % driver.devices().max(1))?.stream()?;
        // It does not run several ranks on a GPU.
        let alone = options.alone || driver.devices() < options.ranks;
        let nccl = (!alone).then_some(options.nccl.as_str());
        let ours = Rank::new(&world, &stream, nccl)?;
        let mut rows = Vec::new();
        let sides: &[u64] = if common.quick { &[16] } else { &options.sides };
        let samples = if common.quick { 2 } else { 9 };
        let mut keep = |more: Vec<Row>| -> Result<(), Failure> {
            rows.extend(more);
            if world.rank() == 0 { rank.leave(&rows) } else { Ok(()) }
        };
        for &n in sides {
            // Each of `ranks` has a part of the cube, and keeps as much of that.
            let ranks = u64::from(options.ranks);
            let bytes = n * n * n * 8 / (ranks * ranks) * (ranks - 1);
            let link = summary(link_name(options.ranks), &ours.link(bytes, samples)?)?;
            // The host takes its time to check elements that lie alone.
            let is_short = n * n * n / ranks <= 2 << 27;
            for cut in Cut::ALL.into_iter().filter(|cut| *cut != Cut::Turned || is_short) {
                let exchange = Exchange::transpose(n, cut, options.ranks, world.rank())?;
                keep(transposes(options, &ours, &exchange, (n, cut), (bytes, link, samples))?)?;
            }
        }
        let side = if common.quick { 8 } else { HALO };
        for (along, name) in [(0, "planes"), (2, "columns")] {
            for (way, protocol) in ways(options) {
                keep(halos(&ours, side, (along, name), (way, protocol), samples)?)?;
            }
        }
        drop(ours);
        Ok(world.finalize()?)
    }
}

/// How a case tells how many ranks there are, if they share GPUs.
fn shared(ranks: u32) -> String {
    if is_shared(ranks) { format!(", {}", sharing(ranks)) } else { String::new() }
}

fn is_shared(ranks: u32) -> bool {
    CudaDriver::load().is_ok_and(|driver| driver.devices() < ranks)
}

/// What a transpose is compared with.
fn link_name(ranks: u32) -> &'static str {
    if is_shared(ranks) { COPIES } else { LINK }
}

/// The ways that are measured, and their names.
fn ways(options: &Options) -> Vec<(Option<StreamWay>, &'static str)> {
    let forced = [
        (Some(StreamWay::Push), "push"),
        (Some(StreamWay::Pull), "pull"),
        (Some(StreamWay::Staged), "staged"),
    ];
    let mut ways = vec![(None, "one kernel")];
    ways.extend(forced.into_iter().filter(|_| options.ways));
    ways
}

fn transposes(
    options: &Options,
    rank: &Rank<'_>,
    exchange: &Exchange,
    (n, cut): (u64, Cut),
    (bytes, link, samples): (u64, Summary, usize),
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let (reference, case) = (link_name(rank.ranks()), format!("transpose {n}³, {}{}", cut.name(), shared(rank.ranks())));
    let calls = if bytes > 1 << 30 { 3 } else { 10 };
    let mut theirs = None;
    for (way, protocol) in ways(options) {
        let mut ready = rank.ready(exchange, way)?;
        let right = rank.is_right(exchange, &mut ready, |ready| rank.start(ready))?;
        if way.is_none()
            && let Some(staged) = rank.staged(exchange)?
        {
            let fine = rank.is_right(exchange, &mut ready, |ready| staged.queue(exchange, ready))?;
            let took = rank.back_to_back(calls, samples, &mut ready, |ready| staged.queue(exchange, ready))?;
            theirs = Some((summary(THEIRS, &took)?, fine));
        }
        let queued = rank.back_to_back(calls, samples, &mut ready, |ready| rank.start(ready))?;
        let graph = rank.captured(calls, samples, &mut ready)?;
        let awaited = rank.awaited(samples, &mut ready, |ready| rank.start(ready))?;
        for (op, took) in [("queued", queued), ("graph", graph), ("awaited", awaited)] {
            let took = summary(&*case, &took)?;
            let mut row = Row::new(case.clone(), op, space(rank.ranks()), protocol, bytes, took).verified(right);
            if let Some((theirs, _)) = theirs {
                row = row.against(THEIRS, theirs);
            }
            row = row.against(reference, link);
            if way.is_none() && op != "awaited" && cut != Cut::Turned && reference == LINK {
                row = row.mark(Mark::at_least("speed ÷ the link's", 0.85, link.median / took.median));
                if let Some((theirs, _)) = theirs {
                    let faster = theirs.median / took.median;
                    row = row.mark(Mark::at_least("speed ÷ pack, NCCL, unpack", 1.5, faster));
                }
            }
            rows.push(row);
        }
    }
    if let Some((took, right)) = theirs {
        rows.push(Row::new(case, "queued", space(rank.ranks()), THEIRS, bytes, took).verified(right));
    }
    Ok(rows)
}

fn halos(
    rank: &Rank<'_>,
    side: u64,
    (along, name): (usize, &str),
    (way, protocol): (Option<StreamWay>, &str),
    samples: usize,
) -> Result<Vec<Row>, Failure> {
    let case = format!("halo {side}³, cut into {name}{}", shared(rank.ranks()));
    let (mut ready, mut messages, bytes) = rank.halo(side, along, way)?;
    let right = rank.agree(&mut ready, &mut messages)?;
    let samples = samples * 5;
    let theirs = rank.awaited(samples, &mut ready, |ready| Ok(messages.exchange(ready.memory()).map(drop)?))?;
    let theirs = summary(MESSAGES, &theirs)?;
    let awaited = rank.awaited(samples, &mut ready, |ready| rank.start(ready))?;
    let queued = rank.back_to_back(20, samples, &mut ready, |ready| rank.start(ready))?;
    let graph = rank.captured(20, samples, &mut ready)?;
    let mut rows = Vec::new();
    for (op, took) in [("queued", queued), ("graph", graph), ("awaited", awaited)] {
        let took = summary(&*case, &took)?;
        let mut row = Row::new(case.clone(), op, space(rank.ranks()), protocol, bytes, took).verified(right);
        row = row.against(MESSAGES, theirs);
        if way.is_none() && op == "awaited" {
            row = row.mark(Mark::at_least("speed ÷ 26 messages", 1.5, theirs.median / took.median));
        }
        rows.push(row);
    }
    if way.is_none() {
        rows.push(Row::new(case, "awaited", space(rank.ranks()), MESSAGES, bytes, theirs).verified(right));
    }
    Ok(rows)
}
