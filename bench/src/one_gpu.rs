//! Many processes on one GPU: a job of real processes for each number of them, without a Multi-Process Service and with
//! one; each measures what it is told and leaves its rows in a file.

pub mod allreduce;
mod bench;
#[allow(unsafe_code, reason = "queues collectives on memory that its caller keeps")]
pub mod mapped;
#[allow(unsafe_code, reason = "copies between memory that it owns")]
pub mod memory;
pub mod operations;
pub mod pairs;
pub mod short;
pub mod timing;

use std::path::PathBuf;

use gapless::tuning::coll::Table;
use gapless::{Tuning, World};
use gapless_mem_cuda::CudaDriver;
use gapless_report::{Absent, PlotError, Report, Row, curves};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Findings, gathered, grouped};
use crate::p2p::mps::{self, Service};
use crate::processes::{Processes, RankOf};

/// Options of experiments with many processes on one GPU.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Processes; repeatable, or separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub processes: Vec<u32>,
    /// Bytes; repeatable, or separated by commas
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    pub sizes: Vec<u64>,
    /// Only without (off) or only with (on) a Multi-Process Service
    #[arg(long, value_name = "off|on", value_parser = ["off", "on"])]
    pub mps: Option<String>,
    /// Start a Multi-Process Service of our own where none runs
    #[arg(long)]
    pub start_mps: bool,
    /// A GPU, by its number, or `fake`: memory of the host that pretends, to show that everything works
    #[arg(long, value_name = "cuda:N|fake", default_value = "cuda:0")]
    pub space: String,
    /// GPUs that the processes are spread over, in blocks: from that of --space on; repeatable, or separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=16))]
    pub gpus: Vec<u32>,
    /// faraji2: only these ways, by their names in rows, or none; repeatable, or separated by semicolons
    #[arg(long, value_name = "NAME", value_delimiter = ';')]
    pub ways: Vec<String>,
    /// faraji2: also the static algorithm with this table: the paper's, if `gapless tune` wrote it on this GPU before;
    /// if on another, to compare an untuned dynamic one with
    #[arg(long, value_name = "FILE")]
    pub table: Option<PathBuf>,
}

/// Where buffers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpu {
    /// A GPU's number.
    Cuda(u32),
    /// None.
    Fake,
}

impl Options {
    /// Where buffers lie.
    ///
    /// # Errors
    /// Neither a number nor `fake`; no such GPU.
    pub fn gpu(&self) -> Result<Gpu, Failure> {
        if self.space == "fake" {
            return Ok(Gpu::Fake);
        }
        let number = self.space.strip_prefix("cuda:").and_then(|text| text.parse().ok());
        let why = || format!("{} is neither cuda:N nor fake", self.space);
        let number = number.ok_or_else(|| Failure::Option { option: "--space", why: why() })?;
        let no_gpu = |error: gapless_mem_cuda::CudaError| Failure::NoGpu { why: error.to_string() };
        CudaDriver::load().map_err(no_gpu)?;
        Ok(Gpu::Cuda(number))
    }

    /// Bytes that are measured: those asked for, if any.
    fn sizes(&self, common: &Common, quick: &[u64], usual: &[u64]) -> Vec<u64> {
        match &self.sizes[..] {
            [] if common.quick => quick.to_vec(),
            [] => usual.to_vec(),
            some => some.to_vec(),
        }
    }
}

/// What a rank does: the rows of rank 0, so far, go to `save`.
pub type Measure = fn(&Options, &Common, &World, Gpu, &mut Save<'_>) -> Result<(), Failure>;

/// Where rank 0 leaves its rows.
pub struct Save<'f> {
    rank: &'f RankOf,
    here: bool,
    rows: Vec<Row>,
}

impl Save<'_> {
    /// Some rows more, which are written down at once; those of other ranks are not.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn rows(&mut self, rows: Vec<Row>) -> Result<(), Failure> {
        self.rows.extend(rows);
        if self.here { self.rank.leave(&self.rows) } else { Ok(()) }
    }
}

/// Runs an experiment. All rows have the number of processes as `processes`, that of GPUs as `gpus`, and whether there was
/// a service as `mps`.
///
/// # Errors
/// No GPU, or what makes every figure impossible.
pub fn run(name: &'static str, options: &Options, processes: &[u32]) -> Result<Findings, Failure> {
    options.gpu()?;
    let processes = match &options.processes[..] {
        [] => processes,
        some => some,
    };
    let gpus = match &options.gpus[..] {
        [] => &[1][..],
        some => some,
    };
    let folder = tempfile::tempdir().map_err(Failure::io("make", std::env::temp_dir()))?;
    let mut findings = Findings::default();
    for mps in [false, true] {
        if options.mps.as_ref().is_some_and(|only| (only == "on") != mps) {
            continue;
        }
        let service = mps.then(|| Service::find(options.start_mps)).transpose();
        let (environment, why) = match &service {
            Ok(Some(service)) => (service.environment(), None),
            Ok(None) => (mps::without(folder.path())?, None),
            Err(why) => (Vec::new(), Some(why.clone())),
        };
        for (&n, &gpus) in processes.iter().flat_map(|n| gpus.iter().map(move |gpus| (n, gpus))) {
            if !n.is_multiple_of(gpus) {
                continue;
            }
            let mut case = format!("{n} processes");
            if gpus > 1 {
                case += &format!(" on {gpus} GPUs");
            }
            let op = format!("MPS {}", on_off(mps));
            let failed = why.is_none();
            let (rows, ended) = match &why {
                Some(why) => (Vec::<Row>::new(), Err(why.clone())),
                None => {
                    let environment = environment.clone();
                    let processes = Processes { environment, ..Processes::new(name, n) };
                    let (rows, ended) = processes.found_so_far(&case, gpus)?;
                    (rows, ended.map_err(|failure| failure.to_string()))
                }
            };
            let rows = rows.into_iter();
            findings.rows.extend(
                rows.map(|row| row.with("processes", n).with("gpus", gpus).with("mps", mps)),
            );
            if let Err(why) = ended {
                eprintln!("{name}: {case}, {op}: {why}");
                findings.absent.push(Absent { case, op, why, failed });
            }
        }
    }
    Ok(findings)
}

/// A picture for each number of processes, without a service and with one: times by length, a line for each protocol of
/// rows of this operation.
///
/// # Errors
/// Figures that have no place on a plot.
pub fn draw(report: &Report, op: &str) -> Result<Vec<Drawing>, PlotError> {
    let rows = report.rows.iter().filter(|row| row.op == op);
    let all = grouped(rows.map(|row| {
        let key = (number(row, "processes"), has_mps(row));
        (key, (row.protocol.clone(), (row.payload_bytes, row.seconds)))
    }));
    let drawing = |((processes, mps), points)| {
        let state = on_off(mps);
        let title = format!("{op}, {processes} processes, MPS {state}");
        let svg = curves(&title, "bytes", &gathered(points))?;
        Ok(Drawing { suffix: format!("-{processes}-{state}"), svg })
    };
    all.into_iter().map(drawing).collect()
}

/// A number that a row has, 0 if it has none.
#[must_use]
pub fn number(row: &Row, key: &str) -> u64 {
    row.extra.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0)
}

/// Whether there was a service.
#[must_use]
pub fn has_mps(row: &Row) -> bool {
    row.extra.get("mps").and_then(serde_json::Value::as_bool).unwrap_or(false)
}

/// How many marks are met, and which are not.
#[must_use]
pub fn told_marks(rows: &[Row], of: &str) -> String {
    let marks = rows.iter().flat_map(|row| row.marks.iter().map(move |mark| (row, mark)));
    let (met, missed): (Vec<_>, Vec<_>) = marks.partition(|(_, mark)| mark.met);
    let mut told = format!("{} of {} marks{of} met\n", met.len(), met.len() + missed.len());
    for (row, mark) in missed {
        let known = row.extra.contains_key("mps");
        let mps = if known { format!(", MPS {}", on_off(has_mps(row))) } else { String::new() };
        told += &format!(
            "- {}, {}, {}{mps}: {} {:.2} (asked: {:.2})\n",
            row.op, row.case, row.protocol, mark.what, mark.value, mark.bound,
        );
    }
    told
}

/// How a service is told of.
#[must_use]
pub fn on_off(mps: bool) -> &'static str {
    if mps { "on" } else { "off" }
}

/// What one of the processes does.
///
/// # Errors
/// Those of `measure`; no GPU.
pub fn rank(
    options: &Options,
    common: &Common,
    rank: &RankOf,
    measure: Measure,
) -> Result<(), Failure> {
    let gpu = options.gpu()?;
    let options = &Options { gpus: vec![rank.part()?], ..options.clone() };
    let builder = World::builder().tuning(Tuning::default()).coll_table(Table::default());
    let builder = match gpu {
        Gpu::Fake => {
            let (device, engine) = memory::fake();
            builder.engine(engine).device(device)
        }
        Gpu::Cuda(_) => builder,
    };
    let world = builder.init()?;
    // Or the ranks do not begin at the same time.
    world.never_sleep()?;
    let gpu = match gpu {
        Gpu::Cuda(first) => {
            let gpus = options.gpus.first().copied().unwrap_or(1).clamp(1, world.size());
            Gpu::Cuda(first + world.rank() / (world.size() / gpus))
        }
        Gpu::Fake => Gpu::Fake,
    };
    let mut save = Save { rank, here: world.rank() == 0, rows: Vec::new() };
    measure(options, common, &world, gpu, &mut save)?;
    Ok(world.finalize()?)
}
