//! `coll-layouts`: collectives with layouts between GPUs, one kernel a rank, beside what users do without them.
//!
//! A job of its own measures, one process a GPU ([`gpu::layouts`](crate::gpu::layouts)). The link's speed is that of both
//! GPUs' copy engines at once, on as many bytes as a rank sends, in the same run.

use std::path::{Path, PathBuf};

use gapless::launch::{self, Job};
use gapless::{StreamWay, World};
use gapless_mem_cuda::CudaDriver;
use gapless_report::{Absent, Mark, Row, Samples, Summary};

use crate::error::Failure;
use crate::experiment::{Common, Experiment, Findings};
use crate::gpu::layouts::{Cut, Exchange, Rank};

/// The experiment.
pub struct CollLayouts;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Processes, each with a GPU
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(2..=16))]
    ranks: u32,
    /// Sides of the cubes that are transposed; repeatable, or separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "256,512,1024")]
    sides: Vec<u64>,
    /// NCCL's library
    #[arg(long, value_name = "PATH", default_value = "libnccl.so.2")]
    nccl: String,
    /// Measure without NCCL
    #[arg(long)]
    alone: bool,
    /// All ways that blocks can go, not only the one that is chosen
    #[arg(long)]
    ways: bool,
    /// Be one of the processes; rank 0 writes its rows here
    #[arg(long, hide = true, value_name = "FILE")]
    as_rank: Option<PathBuf>,
}

/// Cells along each side of the halo's grid.
const HALO: u64 = 512;
const THEIRS: &str = "pack, NCCL, unpack";
const MESSAGES: &str = "26 messages";
const LINK: &str = "the link";

impl Experiment for CollLayouts {
    type Options = Options;

    const NAME: &'static str = "coll-layouts";
    const ABOUT: &'static str = "FFT transposes and halos between GPUs, each one collective with layouts";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        if let Some(file) = &options.as_rank {
            measure(options, common, file)?;
            return Ok(Findings::new(Vec::new(), String::new()));
        }
        let devices = CudaDriver::load().map_err(|why| Failure::NoGpu { why: why.to_string() })?.devices();
        let ranks = options.ranks;
        if devices < ranks {
            return Err(Failure::NoGpu { why: format!("{devices} devices for {ranks} processes") });
        }
        let folder = tempfile::tempdir().map_err(Failure::io("make", std::env::temp_dir()))?;
        let file = folder.path().join("rows");
        let mut absent = Vec::new();
        if let Err(why) = start(options, common, &file) {
            let (case, op, why) = (Self::NAME.to_owned(), "all".to_owned(), why.to_string());
            absent.push(Absent { case, op, why, failed: true });
        }
        // Written as far as all went well.
        let rows = match std::fs::read_to_string(&file) {
            Ok(text) => serde_json::from_str::<Vec<Row>>(&text)?,
            Err(_) => Vec::new(),
        };
        let notes = "time: of one call, the slowest rank's. graph, queued: back to back, by the device's clock; awaited: one \
                     call and its wait, by the host's.\npayload: what a rank sends to the others over its link, each way at \
                     once. transpose: of n³ complex numbers of two floats (planes, rows, pencils, turned: how it is cut \
                     before and after). halo: of 512³ doubles, all dimensions rings, cut along the first or the last\n";
        Ok(Findings { rows, notes: notes.to_owned(), absent })
    }
}

/// Starts the processes, and waits for their end.
fn start(options: &Options, common: &Common, file: &Path) -> Result<(), Failure> {
    let sides: Vec<String> = options.sides.iter().map(u64::to_string).collect();
    let mut arguments = vec![
        CollLayouts::NAME.to_owned(),
        format!("--ranks={}", options.ranks),
        format!("--sides={}", sides.join(",")),
        format!("--time={}", common.time),
        format!("--nccl={}", options.nccl),
    ];
    arguments.extend(options.alone.then(|| "--alone".to_owned()));
    arguments.extend(options.ways.then(|| "--ways".to_owned()));
    arguments.extend(common.quick.then(|| "--quick".to_owned()));
    let mut arguments: Vec<std::ffi::OsString> = arguments.into_iter().map(Into::into).collect();
    arguments.extend(["--as-rank".into(), file.into()]);
    let program = std::env::current_exe().map_err(|error| Failure::Job(error.to_string()))?;
    let program = program.into_os_string();
    let environment = vec![("NCCL_NVLS_ENABLE".into(), "0".into())];
    let ranks = options.ranks;
    let job = Job { ranks, program, arguments, environment, prefix: false };
    let outcome = launch::run(&job).map_err(|error| Failure::Job(error.to_string()))?;
    match (outcome.failed, outcome.signalled) {
        (Some((rank, end)), _) => Err(Failure::Job(format!("rank {rank} {end}"))),
        (None, Some(signal)) => Err(Failure::Job(format!("signal {signal}"))),
        (None, None) => Ok(()),
    }
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

/// What a rank of that job does; rank 0 writes the rows, after every exchange.
fn measure(options: &Options, common: &Common, file: &Path) -> Result<(), Failure> {
    let world = World::init()?;
    let stream = CudaDriver::load()?.device(world.rank())?.stream()?;
    let nccl = (!options.alone).then_some(options.nccl.as_str());
    let rank = Rank::new(&world, &stream, nccl)?;
    let mut rows = Vec::new();
    let sides: &[u64] = if common.quick { &[16] } else { &options.sides };
    let samples = if common.quick { 2 } else { 9 };
    let mut keep = |more: Vec<Row>| -> Result<(), Failure> {
        rows.extend(more);
        if world.rank() == 0 {
            let text = serde_json::to_string(&rows)?;
            std::fs::write(file, text).map_err(Failure::io("write", file))?;
        }
        Ok(())
    };
    for &n in sides {
        // Each of `ranks` has a part of the cube, and keeps as much of that.
        let ranks = u64::from(options.ranks);
        let bytes = n * n * n * 8 / (ranks * ranks) * (ranks - 1);
        let link = summary("the link", &rank.link(bytes, samples)?)?;
        for cut in Cut::ALL.into_iter().filter(|cut| *cut != Cut::Turned || n <= 512) {
            let exchange = Exchange::transpose(n, cut, options.ranks)?;
            keep(transposes(options, &rank, &exchange, (n, cut), (bytes, link, samples))?)?;
        }
    }
    let side = if common.quick { 8 } else { HALO };
    for (along, name) in [(0, "planes"), (2, "columns")] {
        for (way, protocol) in ways(options) {
            keep(halos(&rank, side, (along, name), (way, protocol), samples)?)?;
        }
    }
    drop(rank);
    world.finalize()?;
    Ok(())
}

fn transposes(
    options: &Options,
    rank: &Rank<'_>,
    exchange: &Exchange,
    (n, cut): (u64, Cut),
    (bytes, link, samples): (u64, Summary, usize),
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let case = format!("transpose {n}³, {}", cut.name());
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
            let took = summary(&case, &took)?;
            let mut row = Row::new(case.clone(), op, space(rank.ranks()), protocol, bytes, took).verified(right);
            if let Some((theirs, _)) = theirs {
                row = row.against(THEIRS, theirs);
            }
            row = row.against(LINK, link);
            if way.is_none() && op != "awaited" && cut != Cut::Turned {
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
    let case = format!("halo {side}³, cut into {name}");
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
        let took = summary(&case, &took)?;
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

fn space(ranks: u32) -> String {
    (0..ranks).map(|rank| format!("cuda:{rank}")).collect::<Vec<_>>().join(",")
}

fn summary(what: &str, seconds: &[f64]) -> Result<Summary, Failure> {
    Samples::from_seconds(seconds.iter().copied()).summary().map_err(Failure::samples(what.to_owned()))
}
