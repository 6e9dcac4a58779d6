//! `faraji2`: Figure 2 of Faraji and Afsahi 2015: all-reduces of processes that share a GPU, by each way there is, without
//! and with the Multi-Process Service; and the marks that they are to meet.

use gapless_report::{Mark, PlotError, Report, Row};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::one_gpu::allreduce::{
    self, BEST, DEFAULT, DYNAMIC, FOREIGN, HOST, IPC, LEARNED, MAPPED, PAPER, REMEMBERING, STAGED, TUNED,
};
use crate::one_gpu::{self, Options, has_mps, number, on_off};
use crate::processes::RankOf;

/// The experiment.
pub struct Faraji2;

const PROCESSES: [u32; 3] = [4, 8, 16];
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

impl Experiment for Faraji2 {
    type Options = Options;

    const NAME: &'static str = "faraji2";
    const ABOUT: &'static str = "all-reduces of many processes on one GPU, static and dynamic";

    fn run(options: &Options, _: &Common) -> Result<Findings, Failure> {
        allreduce::check(options)?;
        let mut findings = one_gpu::run(Self::NAME, options, &PROCESSES)?;
        judge(&mut findings.rows);
        findings.notes = notes(&findings.rows);
        Ok(findings)
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        one_gpu::rank(options, common, rank, allreduce::measure)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        one_gpu::draw(report, "allreduce")
    }
}

/// The times of one case.
struct Times<'r> {
    rows: &'r [Row],
    processes: u64,
    mps: bool,
}

impl Times<'_> {
    fn sizes(&self) -> Vec<u64> {
        let own = self.rows.iter().filter(|row| is(row, self.processes, self.mps));
        let mut sizes: Vec<u64> = own.map(|row| row.payload_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    fn row(&self, way: &str, bytes: u64) -> Option<&Row> {
        let own = self.rows.iter().filter(|row| is(row, self.processes, self.mps));
        let mut like = own.filter(|row| row.protocol == way && row.payload_bytes == bytes);
        like.next()
    }

    fn of(&self, way: &str, bytes: u64) -> Option<f64> {
        self.row(way, bytes).map(|row| row.seconds.median)
    }

    /// The static algorithm by a table that was written before, as the paper's; without `--table` by this run's best.
    fn fixed(&self) -> &'static str {
        let tuned = self.rows.iter().any(|row| is(row, self.processes, self.mps) && row.protocol == TUNED);
        if tuned { TUNED } else { BEST }
    }
}

fn is(row: &Row, processes: u64, mps: bool) -> bool {
    number(row, "processes") == processes && has_mps(row) == mps
}

/// Puts the marks of single rows there.
fn judge(rows: &mut [Row]) {
    let all = rows.to_vec();
    for row in rows {
        let (processes, mps) = (number(row, "processes"), has_mps(row));
        let (times, bytes, own) = (Times { rows: &all, processes, mps }, row.payload_bytes, row.seconds.median);
        if let (DYNAMIC | REMEMBERING, Some(foreign)) = (&*row.protocol, times.of(FOREIGN, bytes)) {
            let mark = Mark::at_most("(f) × static with another GPU's table", 1.0, own / foreign);
            *row = row.clone().mark(mark);
        }
        let (Some(best), staged, ipc) = (times.of(BEST, bytes), times.of(STAGED, bytes), times.of(IPC, bytes)) else {
            continue;
        };
        let better = staged.zip(ipc).map(|(staged, ipc)| staged.min(ipc));
        let mean = |key: &str| row.extra.get(key).and_then(serde_json::Value::as_f64);
        let mark = match (&*row.protocol, mps, bytes) {
            (DYNAMIC, true, _) if bytes >= 8 * MIB => Some(("(a) × the best static", 1.1, own / best)),
            (DYNAMIC, true, _) if bytes >= MIB => Some(("(a) × the best static", 1.3, own / best)),
            (DYNAMIC, true, _) if bytes >= 64 * KIB => Some(("(a) × the best static", 1.5, own / best)),
            (DYNAMIC, false, _) if bytes >= 8 * MIB => Some(("(a) × the best static", 1.15, own / best)),
            (REMEMBERING, true, _) if bytes >= 64 * KIB => Some(("(a) × the best static", 1.05, own / best)),
            (REMEMBERING, false, _) if bytes >= 64 * KIB => Some(("(a) × the best static", 1.15, own / best)),
            (LEARNED, _, _) => mean("mean_seconds").zip(mean("static_mean_seconds")).map(|(mean, best)| {
                ("(a) mean of 1,000 calls × that of the best static", if mps { 1.05 } else { 1.15 }, mean / best)
            }),
            (MAPPED, true, _) if bytes <= 64 * KIB => {
                better.map(|better| ("(d) × the better kind alone", 0.7, own / better))
            }
            (BEST, false, _) => better.map(|better| ("(c) × the better kind alone", 1.05, own / better)),
            _ => None,
        };
        let mut judged = row.clone();
        if let Some((what, bound, value)) = mark {
            judged = judged.mark(Mark::at_most(what, bound, value));
        }
        if let (BEST, false, true, Some(better)) = (&*row.protocol, mps, bytes == 8 * MIB, better) {
            let bound = match processes {
                4 => 1.15,
                8 => 1.3,
                _ => 1.4,
            };
            judged = judged.mark(Mark::at_least("(c) speed against either kind alone", bound, better / own));
        }
        *row = judged;
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn geometric(values: &[f64]) -> f64 {
    mean(&values.iter().map(|value| value.ln()).collect::<Vec<_>>()).exp()
}

fn notes(rows: &[Row]) -> String {
    let mut notes = String::from(
        "time: of one call, from when all ranks are ready to the end of the last; ÷: speed relative to the static \
         algorithm with the mix that was best in this run, which no table knows before (marks (a), (c))\n",
    );
    let mut numbers: Vec<u64> = rows.iter().map(|row| number(row, "processes")).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for &processes in &numbers {
        let [off, on] = [false, true].map(|mps| Times { rows, processes, mps });
        for (way, aims) in [(on.fixed(), [3.23, 4.34]), (DYNAMIC, [2.77, 3.24])] {
            let gain = |bytes: &u64| Some(off.of(way, *bytes)? / on.of(way, *bytes)?);
            let gains: Vec<f64> = on.sizes().iter().filter_map(gain).collect();
            if gains.is_empty() {
                continue;
            }
            let most = gains.iter().copied().fold(0.0, f64::max);
            notes += &format!(
                "(b) {processes} processes, {way}: MPS's gain {:.2} on average, {most:.2} at most (with 16, at least \
                 {:.2} and {:.2})\n",
                mean(&gains), aims[0], aims[1],
            );
        }
        for times in [&off, &on] {
            let state = on_off(times.mps);
            for way in [times.fixed(), DYNAMIC, REMEMBERING, HOST] {
                let from = |bytes: &u64| *bytes >= 16 * KIB;
                let gain = |bytes: u64| Some(times.of(PAPER, bytes)? / times.of(way, bytes)?);
                let gains: Vec<f64> = times.sizes().into_iter().filter(from).filter_map(gain).collect();
                if gains.is_empty() {
                    continue;
                }
                let most = gains.iter().copied().fold(0.0, f64::max);
                notes += &format!(
                    "(c) {processes} processes, MPS {state}, {way} against \"{PAPER}\" from 16 KiB: mean {:.2} ×, \
                     geometric {:.2} ×, at most {most:.2} ×\n",
                    mean(&gains), geometric(&gains),
                );
            }
            let crossing = times.sizes().into_iter().find(|bytes| {
                times.of(times.fixed(), *bytes).zip(times.of(PAPER, *bytes)).is_some_and(|(best, paper)| best < paper)
            });
            if let Some(bytes) = crossing {
                notes += &format!(
                    "{processes} processes, MPS {state}: {} is ahead of \"{PAPER}\" from {} (the paper, against \
                     MVAPICH2: 16, 8, 8 KiB)\n",
                    times.fixed(), gapless_report::Bytes(bytes),
                );
            }
            for bytes in times.sizes().into_iter().filter(|bytes| *bytes <= 64 * KIB && times.mps) {
                if let (Some(ipc), Some(staged), Some(best)) =
                    (times.of(IPC, bytes), times.of(STAGED, bytes), times.of(times.fixed(), bytes))
                {
                    let [untuned, mapped] = [DEFAULT, MAPPED].map(|way| times.of(way, bytes).unwrap_or(f64::NAN));
                    notes += &format!(
                        "(d) {processes} processes, {}: IPC only {:.1} µs, host-staged only {:.1}, static {:.1}, \
                         untuned {:.1}, all-mapped {:.1}\n",
                        gapless_report::Bytes(bytes), ipc * 1e6, staged * 1e6, best * 1e6, untuned * 1e6, mapped * 1e6,
                    );
                }
            }
        }
    }
    notes += "the paper's means over MVAPICH2-GDR: 2.66 (up to 14.28) static, 2.79 (up to 15.23) dynamic; that library was \
              not run\n";
    notes += &one_gpu::told_marks(rows, " of single rows");
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_report::Samples;

    fn row(way: &str, mps: bool, bytes: u64, micros: f64) -> Row {
        let time = Samples::from_seconds([micros * 1e-6]).summary().unwrap();
        Row::new("case", "allreduce", "cuda:0", way, bytes, time).with("processes", 16).with("mps", mps)
    }

    #[test]
    fn rows_are_judged_by_their_like() {
        let mut rows = vec![
            row(BEST, true, 8 * MIB, 100.0),
            row(DYNAMIC, true, 8 * MIB, 112.0),
            row(REMEMBERING, true, 8 * MIB, 104.0),
            row(PAPER, true, 8 * MIB, 3000.0),
            row(BEST, true, 4 * KIB, 60.0),
            row(STAGED, true, 4 * KIB, 70.0),
            row(IPC, true, 4 * KIB, 61.0),
            row(MAPPED, true, 4 * KIB, 40.0),
            row(BEST, false, 8 * MIB, 1000.0),
            row(STAGED, false, 8 * MIB, 2000.0),
            row(IPC, false, 8 * MIB, 1500.0),
            row(DYNAMIC, false, 8 * MIB, 1100.0),
            row(FOREIGN, false, 8 * MIB, 1200.0),
            row(TUNED, true, 8 * MIB, 125.0),
        ];
        judge(&mut rows);
        let met: Vec<Option<bool>> = rows.iter().map(Row::met).collect();
        assert_eq!(met[1..3], [Some(false), Some(true)]);
        assert_eq!((met[7], met[8], met[11]), (Some(true), Some(true), Some(true)));
        assert_eq!(rows[11].marks.len(), 2, "against the best, and against another GPU's");
        let notes = notes(&rows);
        assert!(notes.contains("MPS on, static, tuned against \"staged, summed on the host\" from 16 KiB: mean 24.00 ×"), "{notes}");
        assert!(notes.contains("MPS on: static, tuned is ahead of"), "{notes}");
        assert!(notes.contains("dynamic, MPS on: (a) × the best static 1.12 (asked: 1.10)"), "{notes}");
    }
}
