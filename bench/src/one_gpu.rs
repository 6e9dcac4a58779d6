//! Many processes on one GPU: a job of real processes for each number of them, without a Multi-Process Service and with
//! one; each measures what it is told and leaves its rows in a file.

pub mod allreduce;
#[allow(unsafe_code, reason = "queues collectives on memory that its caller keeps")]
pub mod mapped;
#[allow(unsafe_code, reason = "copies between memory that it owns")]
pub mod memory;
pub mod operations;
pub mod pairs;
pub mod short;
pub mod timing;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gapless::launch::{self, Job};
use gapless::tuning::coll::Table;
use gapless::{Tuning, World};
use gapless_mem_cuda::CudaDriver;
use gapless_report::{Absent, Curve, PlotError, Report, Row, curves};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Findings};
use crate::p2p::mps::{self, Service};

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
    /// Be one of the processes; rank 0 writes its rows here
    #[arg(long, hide = true, value_name = "FILE")]
    pub as_rank: Option<PathBuf>,
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
}

/// What a rank does: the rows of rank 0, so far, go to `save`.
pub type Measure = fn(&Options, &Common, &World, Gpu, &mut Save<'_>) -> Result<(), Failure>;

/// Where rank 0 leaves its rows.
pub struct Save<'f> {
    file: &'f Path,
    rows: Vec<Row>,
}

impl Save<'_> {
    /// Some rows more, which are written down at once.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn rows(&mut self, rows: Vec<Row>) -> Result<(), Failure> {
        self.rows.extend(rows);
        let text = serde_json::to_string(&self.rows)?;
        std::fs::write(self.file, text).map_err(Failure::io("write", self.file))
    }
}

/// Runs an experiment: as the program that the user has started, or as one of the processes. All rows have the number of
/// processes as `processes`, that of GPUs as `gpus`, and whether there was a service as `mps`.
///
/// # Errors
/// No GPU, or what makes every figure impossible.
pub fn run(
    name: &'static str,
    (options, common): (&Options, &Common),
    processes: &[u32],
    measure: Measure,
) -> Result<Findings, Failure> {
    let gpu = options.gpu()?;
    if let Some(file) = &options.as_rank {
        be_rank(options, common, gpu, measure, file)?;
        return Ok(Findings::new(Vec::new(), String::new()));
    }
    let processes = match &options.processes[..] {
        [] => processes,
        some => some,
    };
    let gpus = match &options.gpus[..] {
        [] => &[1][..],
        some => some,
    };
    let folder = tempfile::tempdir().map_err(Failure::io("make", std::env::temp_dir()))?;
    let mut findings = Findings::new(Vec::new(), String::new());
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
            let file = folder.path().join(format!("{n}-{gpus}-{mps}"));
            let ended = match &why {
                Some(why) => Err(why.clone()),
                None => start(name, (options, common), (n, gpus), &environment, &file),
            };
            if let Err(why) = ended {
                eprintln!("{name}: {case}, {op}: {why}");
                findings.absent.push(Absent { case, op, why, failed });
            }
            if file.exists() {
                let text = std::fs::read_to_string(&file).map_err(Failure::io("read", &file))?;
                let rows: Vec<Row> = serde_json::from_str(&text)?;
                let rows = rows
                    .into_iter()
                    .map(|row| row.with("processes", n).with("gpus", gpus).with("mps", mps));
                findings.rows.extend(rows);
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
    let mut all: Vec<((u64, bool), Vec<Curve>)> = Vec::new();
    for row in report.rows.iter().filter(|row| row.op == op) {
        let processes = row.extra.get("processes").and_then(serde_json::Value::as_u64);
        let mps = row.extra.get("mps").and_then(serde_json::Value::as_bool).unwrap_or(false);
        let key = (processes.unwrap_or(0), mps);
        let at = all.iter().position(|known| known.0 == key).unwrap_or_else(|| {
            all.push((key, Vec::new()));
            all.len() - 1
        });
        let (lines, point) = (&mut all[at].1, (row.payload_bytes, row.seconds));
        match lines.iter_mut().find(|line| line.name == row.protocol) {
            Some(line) => line.points.push(point),
            None => lines.push(Curve { name: row.protocol.clone(), points: vec![point] }),
        }
    }
    let drawing = |((processes, mps), lines): ((u64, bool), Vec<Curve>)| {
        let state = on_off(mps);
        let title = format!("{op}, {processes} processes, MPS {state}");
        let svg = curves(&title, "bytes", &lines)?;
        Ok(Drawing { suffix: format!("-{processes}-{state}"), svg })
    };
    all.into_iter().map(drawing).collect()
}

/// How a service is told of.
#[must_use]
pub fn on_off(mps: bool) -> &'static str {
    if mps { "on" } else { "off" }
}

fn start(
    name: &str,
    (options, common): (&Options, &Common),
    (ranks, gpus): (u32, u32),
    environment: &[mps::Variable],
    file: &Path,
) -> Result<(), String> {
    let mut arguments = vec![
        name.to_owned(),
        format!("--space={}", options.space),
        format!("--time={}", common.time),
        format!("--seed={}", common.seed),
        format!("--gpus={gpus}"),
    ];
    if !options.sizes.is_empty() {
        let sizes: Vec<String> = options.sizes.iter().map(u64::to_string).collect();
        arguments.push(format!("--sizes={}", sizes.join(",")));
    }
    arguments.extend(options.ways.iter().map(|way| format!("--ways={way}")));
    arguments.extend(common.quick.then(|| "--quick".to_owned()));
    let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    arguments.extend(["--as-rank".into(), file.into()]);
    if let Some(table) = &options.table {
        arguments.extend(["--table".into(), table.into()]);
    }
    let program = std::env::current_exe().map_err(|error| error.to_string())?.into_os_string();
    let job = Job { ranks, program, arguments, environment: environment.to_vec(), prefix: false };
    let outcome = launch::run(&job).map_err(|error| error.to_string())?;
    match (outcome.failed, outcome.signalled) {
        (Some((rank, end)), _) => Err(format!("rank {rank} {end}")),
        (None, Some(signal)) => Err(format!("signal {signal} ended it")),
        (None, None) => Ok(()),
    }
}

fn be_rank(
    options: &Options,
    common: &Common,
    gpu: Gpu,
    measure: Measure,
    file: &Path,
) -> Result<(), Failure> {
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
    let mut save = Save { file, rows: Vec::new() };
    measure(options, common, &world, gpu, &mut save)?;
    world.finalize()?;
    Ok(())
}
