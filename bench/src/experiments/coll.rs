//! `coll`: the algorithms of collectives between processes of this host, by operation and length.
//!
//! A job of its own measures: each call from a moment that all ranks wait for to the end of the last rank, on buffers
//! that are written between calls and rotate ([`gapless_cli::collectives`]). The algorithms have their turns one after
//! the other, a few calls each; those with equal schedules are measured once. All are compared with what the built-in
//! table chooses.

use std::path::PathBuf;

use gapless::launch::{self, Job};
use gapless::tuning::coll::Table;
use gapless::{Tuning, World};
use gapless_cli::collectives::{Bench, Effort, Timed, CollectiveWork, different};
use gapless_coll::Operation;
use gapless_report::{Bytes, Curve, PlotError, Report, Row, Samples, curves};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};

/// The experiment.
pub struct Coll;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,
    /// Bytes of the vector, or of one rank's block, in whole elements of 8; repeatable, or separated by commas
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
        default_value = "8,512,4096,32768,262144,2097152")]
    sizes: Vec<u64>,
    /// Only these operations; repeatable, or separated by commas
    #[arg(long, value_name = "OPERATION", value_delimiter = ',')]
    operations: Vec<Operation>,
    /// Be one of the processes; rank 0 writes its rows here
    #[arg(long, hide = true, value_name = "FILE")]
    as_rank: Option<PathBuf>,
}

/// What the built-in table chooses, as a reference.
const BUILT_IN: &str = "built-in choice";

impl Experiment for Coll {
    type Options = Options;

    const NAME: &'static str = "coll";
    const ABOUT: &'static str = "algorithms of collectives between processes, by length";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let works = works(options, common)?;
        if let Some(file) = &options.as_rank {
            let rows = measure(&works, common)?;
            if let Some(rows) = rows {
                let text = serde_json::to_string(&rows)?;
                std::fs::write(file, text).map_err(Failure::io("write", file))?;
            }
            return Ok(Findings::new(Vec::new(), String::new()));
        }
        let folder = tempfile::tempdir().map_err(Failure::io("make", std::env::temp_dir()))?;
        let file = folder.path().join("rows");
        start(options, common, &file)?;
        let text = std::fs::read_to_string(&file).map_err(Failure::io("read", &file))?;
        let rows: Vec<Row> = serde_json::from_str(&text)?;
        let notes = "time: of one call, from a moment that all ranks wait for to the end of the last rank; buffers are \
                     written between calls and rotate; \nthe first row of a length is what the built-in table chooses, \
                     ÷: speed relative to it\n";
        Ok(Findings::new(rows, notes.to_owned()))
    }

    /// By length, a picture an operation.
    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let mut drawings = Vec::new();
        for operation in CollectiveWork::OPERATIONS {
            let mut lines: Vec<Curve> = Vec::new();
            let rows = report.rows.iter().filter(|row| operation_of(row) == operation.name());
            for row in rows.filter(|row| row.payload_bytes > 0) {
                let point = (row.payload_bytes, row.seconds);
                match lines.iter_mut().find(|line| line.name == row.protocol) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Curve { name: row.protocol.clone(), points: vec![point] }),
                }
            }
            if lines.is_empty() {
                continue;
            }
            let title = format!("{operation} ({})", report.machine.cpu);
            let svg = curves(&title, "bytes", &lines)?;
            drawings.push(Drawing { suffix: format!("-{operation}"), svg });
        }
        Ok(drawings)
    }
}

fn operation_of(row: &Row) -> &str {
    row.case.split(' ').next().unwrap_or_default()
}

/// What is measured.
fn works(options: &Options, common: &Common) -> Result<Vec<CollectiveWork>, Failure> {
    let refused = |option, why| Failure::Option { option, why };
    let operations = match &options.operations[..] {
        [] => &CollectiveWork::OPERATIONS[..],
        some => some,
    };
    let sizes: &[u64] = if common.quick { &[8, 4096] } else { &options.sizes };
    let mut works = Vec::new();
    for operation in operations {
        if !CollectiveWork::OPERATIONS.contains(operation) {
            let names = CollectiveWork::OPERATIONS.map(Operation::name).join(", ");
            return Err(refused("--operations", format!("{operation} is not among {names}")));
        }
        // A barrier has no bytes.
        let sizes = if *operation == Operation::Barrier { &[0][..] } else { sizes };
        for bytes in sizes {
            let work = CollectiveWork::new(*operation, *bytes);
            let why = || format!("{bytes} B are no whole elements of 8 B");
            works.push(work.ok_or_else(|| refused("--sizes", why()))?);
        }
    }
    Ok(works)
}

/// Starts the processes, and waits for their end.
fn start(options: &Options, common: &Common, file: &std::path::Path) -> Result<(), Failure> {
    let list = |all: &mut dyn Iterator<Item = String>| all.collect::<Vec<_>>().join(",");
    let mut arguments = vec![
        Coll::NAME.to_owned(),
        format!("--sizes={}", list(&mut options.sizes.iter().map(u64::to_string))),
        format!("--time={}", common.time),
    ];
    if !options.operations.is_empty() {
        let names = list(&mut options.operations.iter().map(ToString::to_string));
        arguments.push(format!("--operations={names}"));
    }
    arguments.extend(common.quick.then(|| "--quick".to_owned()));
    let mut arguments: Vec<std::ffi::OsString> = arguments.into_iter().map(Into::into).collect();
    arguments.extend(["--as-rank".into(), file.into()]);
    let program = std::env::current_exe().map_err(|error| Failure::Job(error.to_string()))?;
    let program = program.into_os_string();
    let job =
        Job { ranks: options.ranks, program, arguments, environment: Vec::new(), prefix: false };
    let outcome = launch::run(&job).map_err(|error| Failure::Job(error.to_string()))?;
    match (outcome.failed, outcome.signalled) {
        (Some((rank, end)), _) => Err(Failure::Job(format!("rank {rank} {end}"))),
        (None, Some(signal)) => Err(Failure::Job(format!("signal {signal}"))),
        (None, None) => Ok(()),
    }
}

/// What a rank of that job does; rank 0 has the rows.
fn measure(works: &[CollectiveWork], common: &Common) -> Result<Option<Vec<Row>>, Failure> {
    let failed = |error: gapless::Error| Failure::Job(error.to_string());
    let builder = World::builder().tuning(Tuning::default()).coll_table(Table::default());
    let world = builder.init().map_err(failed)?;
    let mut bench = Bench::new(&world).map_err(failed)?;
    let (n, is_first) = (bench.size(), bench.rank() == 0);
    let progress = common.progress(works.len());
    let mut rows = Vec::new();
    for work in works {
        let algorithms = different(work.operation(), n, work.bytes())?;
        let least = if common.quick { 4 } else { 16 };
        let seconds = common.seconds() * algorithms.len() as f64;
        let effort = Effort { seconds, least, hopeless: f64::INFINITY };
        let all = bench.compare(work, &algorithms, effort).map_err(failed)?;
        if is_first {
            progress.set_message(format!("{} of {}", work.operation(), Bytes(work.bytes())));
            progress.inc(1);
            rows.extend(compared(work, n, &all)?);
        }
    }
    progress.finish_and_clear();
    drop(bench);
    world.finalize().map_err(failed)?;
    Ok(is_first.then_some(rows))
}

/// A row an algorithm; the first is what the built-in table chooses.
fn compared(work: &CollectiveWork, n: usize, all: &[Timed]) -> Result<Vec<Row>, Failure> {
    let (case, bytes) = (format!("{} n={n}", work.operation()), work.bytes());
    let summary = |timed: &Timed| {
        let samples = Samples::from_seconds(timed.seconds.iter().copied());
        samples.summary().map_err(Failure::samples(format!("{case} by {}", timed.algorithm)))
    };
    let mut rows: Vec<Row> = Vec::new();
    for timed in all {
        let name = timed.algorithm.to_string();
        let row = Row::new(&case, "call", "host", name, bytes, summary(timed)?);
        let row = row.verified(timed.right).with("ranks", n);
        rows.push(match rows.first() {
            Some(built_in) => row.against(BUILT_IN, built_in.seconds),
            None => row,
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_are_compared_with_the_built_in_choice() {
        let timed = |name: &str, micros: f64| Timed {
            algorithm: name.parse().unwrap(),
            seconds: vec![micros * 1e-6; 3],
            right: true,
        };
        let mut rows = Vec::new();
        for bytes in [8, 64] {
            let work = CollectiveWork::new(Operation::Allreduce, bytes).unwrap();
            rows.extend(compared(&work, 4, &[timed("doubling", 2.0), timed("ring", 4.0)]).unwrap());
        }
        assert_eq!(rows[0].ratio, None);
        assert!((rows[1].ratio_to(BUILT_IN).unwrap() - 0.5).abs() < 1e-9);
        let report = Report::new("coll", gapless_report::Machine::default(), "figures", rows);
        report.validate().unwrap();
        let drawn = Coll::draw(&report).unwrap();
        assert_eq!(drawn.len(), 1);
        assert!(drawn[0].svg.contains("ring"));
    }
}
