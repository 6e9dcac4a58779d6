//! `heads`: all operations of processes whose buffers lie on one GPU, or on several, by GPU leaders, by copies, and
//! through the host's memory; and the marks that they are to meet.

use gapless_report::{Mark, PlotError, Report, Row};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::one_gpu::allreduce::{BEST, HOST, IPC, MAPPED, STAGED};
use crate::one_gpu::operations::{self, BUSY, LED};
use crate::one_gpu::{self, Options, has_mps, number};
use crate::processes::RankOf;

/// The experiment.
pub struct Heads;

const PROCESSES: [u32; 2] = [4, 16];
const KIB: u64 = 1 << 10;

impl Experiment for Heads {
    type Options = Options;

    const NAME: &'static str = "heads";
    const ABOUT: &'static str = "all operations of processes on one GPU or several: by GPU leaders, by copies";

    fn run(options: &Options, _: &Common) -> Result<Findings, Failure> {
        let mut findings = one_gpu::run(Self::NAME, options, &PROCESSES)?;
        judge(&mut findings.rows);
        findings.notes = notes(&findings.rows);
        Ok(findings)
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        one_gpu::rank(options, common, rank, operations::measure)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        one_gpu::draw(report, "allreduce")
    }
}

/// The time of another way of the same operation, with these processes on these GPUs.
fn of(all: &[Row], row: &Row, way: &str, mps: bool) -> Option<f64> {
    let mut like = all.iter().filter(|other| {
        other.protocol == way
            && other.op == row.op
            && other.payload_bytes == row.payload_bytes
            && ["processes", "gpus"].map(|key| number(other, key)) == ["processes", "gpus"].map(|key| number(row, key))
            && has_mps(other) == mps
    });
    like.next().map(|other| other.seconds.median)
}

fn least(times: [Option<f64>; 2]) -> Option<f64> {
    times.into_iter().flatten().min_by(f64::total_cmp)
}

/// Puts marks where rows have some.
fn judge(rows: &mut [Row]) {
    let all = rows.to_vec();
    for row in rows {
        let (own, mps, several) = (row.seconds.median, has_mps(row), number(row, "gpus") > 1);
        let kinds = |mps| least([of(&all, row, STAGED, mps), of(&all, row, IPC, mps)]);
        let mark = match (&*row.protocol, several) {
            // All but the best are flat.
            (LED, true) if row.payload_bytes >= 64 * KIB => {
                least([of(&all, row, HOST, mps), of(&all, row, MAPPED, mps)])
                    .map(|flat| Mark::at_least("speed against the flat form", 1.3, flat / own))
            }
            (LED | BUSY, false) if !mps => {
                let with = least([kinds(true), of(&all, row, BEST, true)]);
                let mark = |with: f64| Mark::at_most("(c) × the time of copies with MPS", 1.3, own / with);
                with.map(mark).filter(|_| row.protocol == LED)
            }
            (BEST, false) if row.op != "allreduce" => {
                kinds(mps).map(|better| Mark::at_most("(e) × the better kind alone", 1.05, own / better))
            }
            _ => None,
        };
        if let Some(mark) = mark {
            *row = row.clone().mark(mark);
        }
    }
}

fn notes(rows: &[Row]) -> String {
    let mut notes = String::from(
        "time: of one call, from when all ranks are ready to the end of the last. «static, best of this run»: the best of five mixes, \
         measured again. flat: the better of through the host's page and all-mapped\n",
    );
    notes += &one_gpu::told_marks(rows, "");
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_report::Samples;

    fn row(op: &str, way: &str, (gpus, mps): (u32, bool), micros: f64) -> Row {
        let time = Samples::from_seconds([micros * 1e-6]).summary().unwrap();
        let row = Row::new("case", op, "cuda:0", way, 64 * KIB, time);
        row.with("processes", 4).with("gpus", gpus).with("mps", mps)
    }

    #[test]
    fn rows_are_judged_by_their_like() {
        let mut rows = vec![
            row("allreduce", LED, (1, false), 60.0),
            row("allreduce", IPC, (1, true), 50.0),
            row("allreduce", STAGED, (1, true), 90.0),
            row("allreduce", LED, (2, false), 60.0),
            row("allreduce", HOST, (2, false), 70.0),
            row("bcast", BEST, (1, false), 30.0),
            row("bcast", STAGED, (1, false), 40.0),
            row("bcast", IPC, (1, false), 29.0),
        ];
        judge(&mut rows);
        let met: Vec<Option<bool>> = rows.iter().map(Row::met).collect();
        assert_eq!([met[0], met[3], met[5]], [Some(true), Some(false), Some(true)]);
        assert!(notes(&rows).contains("2 of 3 marks met"), "{}", notes(&rows));
    }
}
