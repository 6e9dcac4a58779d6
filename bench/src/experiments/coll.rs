//! `coll`: the algorithms of collectives between processes of this host, by operation and length.
//!
//! Processes of their own measure: each call from a moment that all ranks wait for to the end of the last rank, on buffers
//! that are written between calls and rotate ([`gapless_cli::collectives`]). The algorithms have their turns one after
//! the other, a few calls each; those with equal schedules are measured once. All are compared with what the built-in
//! table chooses.

use gapless::tuning::coll::Table;
use gapless::{Tuning, World};
use gapless_cli::collectives::{Bench, Effort, Timed, CollectiveWork, different};
use gapless_coll::Operation;
use gapless_report::{Bytes, PlotError, Report, Row, curves};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, gathered, grouped};
use crate::processes::{Processes, RankOf};

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
}

/// What the built-in table chooses, as a reference.
const BUILT_IN: &str = "built-in choice";

impl Experiment for Coll {
    type Options = Options;

    const NAME: &'static str = "coll";
    const ABOUT: &'static str = "algorithms of collectives between processes, by length";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        works(options, common)?;
        let rows = Processes::new(Self::NAME, options.ranks).found(Self::NAME, ())?;
        let notes = "time: of one call, from a moment that all ranks wait for to the end of the last rank; buffers are \
                     written between calls and rotate; \nthe first row of a length is what the built-in table chooses, \
                     ÷: speed relative to it\n";
        Ok(Findings::new(rows, notes.to_owned()))
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let works = works(options, common)?;
        let world = World::builder().tuning(Tuning::default()).coll_table(Table::default()).init()?;
        let mut bench = Bench::new(&world)?;
        let (n, is_first) = (bench.size(), bench.rank() == 0);
        let progress = common.progress(works.len());
        let mut rows = Vec::new();
        for work in &works {
            let algorithms = different(work.operation(), n, work.bytes())?;
            let least = if common.quick { 4 } else { 16 };
            let seconds = common.seconds() * algorithms.len() as f64;
            let effort = Effort { seconds, least, hopeless: f64::INFINITY };
            let all = bench.compare(work, &algorithms, effort)?;
            if is_first {
                progress.set_message(format!("{} of {}", work.operation(), Bytes(work.bytes())));
                progress.inc(1);
                rows.extend(compared(work, n, &all)?);
            }
        }
        progress.finish_and_clear();
        drop(bench);
        rank.finalize(world, &rows)
    }

    /// By length, a picture an operation.
    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let rows = report.rows.iter().filter(|row| row.payload_bytes > 0);
        let all = grouped(rows.map(|row| (operation_of(row), row)));
        let pictures = all.into_iter().map(|(operation, rows)| {
            let lines = rows.into_iter().map(|row| (row.protocol.clone(), (row.payload_bytes, row.seconds)));
            (format!("-{operation}"), format!("{operation} ({})", report.machine.cpu), gathered(lines))
        });
        Drawing::each(pictures, |title, lines| curves(title, "bytes", lines))
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

/// A row an algorithm; the first is what the built-in table chooses.
fn compared(work: &CollectiveWork, n: usize, all: &[Timed]) -> Result<Vec<Row>, Failure> {
    let (case, bytes) = (format!("{} n={n}", work.operation()), work.bytes());
    let summary = |timed: &Timed| {
        crate::experiment::summary(format!("{case} by {}", timed.algorithm), &timed.seconds)
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
