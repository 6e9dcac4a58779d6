//! `xtq7`: Figure 7 of LeBeane et al. 2016 on the simulated machine: where the time of a task on a remote GPU goes, HSA
//! and XTQ, with a payload of 64 B and of 4 KiB.
//!
//! The two times of 64 B are what the machine was calibrated by. Everything else that is judged here, and in `xtq9` and
//! `xtq10`, came out afterwards.

use gapless_report::{Bytes, Mark, PlotError, Report, Row};
use gapless_xtq_sim::experiments::{is_sum, reduce};
use gapless_xtq_sim::{Configuration, Options, Phase, Ps, Ready};
use serde_json::{Map, Value};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::sim::{Bar, within, gain, judged, row, simulate, stacked, summary};

/// The experiment.
pub struct Xtq7;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options7 {}

const SMALL: u64 = 64;
const LARGE: u64 = 4096;
const PHASES: &str = "phases_ns";

/// A remote task: its time, and that of each phase.
struct Task {
    time: Ps,
    phases: Vec<Ps>,
    right: bool,
}

impl Task {
    fn of(configuration: Configuration, bytes: u64, seed: u64) -> Result<Task, Failure> {
        let options = Options { mpi: false, seed, ..Options::new(configuration) };
        let outcome = simulate(&reduce(configuration, bytes, 0, Ready::Ahead), &options)?;
        let mut before = Ps::ZERO;
        let phases = Phase::ALL.map(|phase| {
            let ends = outcome.phases.iter().find(|(it, _)| *it == phase).map_or(before, |(_, at)| *at);
            ends.since(std::mem::replace(&mut before, ends))
        });
        let right = outcome.is_whole() && is_sum(&outcome.memory, seed, bytes);
        Ok(Task { time: outcome.time(), phases: phases.to_vec(), right })
    }

    fn phase(&self, phase: Phase) -> f64 {
        let at = Phase::ALL.iter().position(|it| *it == phase);
        at.map_or(0.0, |at| self.phases[at].seconds() * 1e9)
    }

    /// The way of the data: from the initiator's NIC into the target's memory.
    fn transfer(&self) -> f64 {
        [Phase::InitiatorNic, Phase::Network, Phase::TargetNic].map(|phase| self.phase(phase)).iter().sum()
    }

    fn row(&self, of: Configuration, bytes: u64) -> Result<Row, Failure> {
        let value = |(phase, time): (&Phase, &Ps)| (phase.name().to_owned(), Value::from(time.seconds() * 1e9));
        let phases: Map<String, Value> = Phase::ALL.iter().zip(&self.phases).map(value).collect();
        let case = format!("{} {}", of.name(), Bytes(bytes));
        let row = row(&case, "remote task", of, bytes, self.time)?;
        Ok(row.with(PHASES, phases).verified(self.right))
    }
}

impl Experiment for Xtq7 {
    type Options = Options7;

    const NAME: &'static str = "xtq7";
    const ABOUT: &'static str = "the phases of a task on a remote GPU, HSA and XTQ, simulated";

    fn run(_: &Options7, common: &Common) -> Result<Findings, Failure> {
        let of = |configuration, bytes| Task::of(configuration, bytes, common.seed);
        let (hsa, xtq) = (of(Configuration::Hsa, SMALL)?, of(Configuration::Xtq, SMALL)?);
        let (hsa_large, xtq_large) = (of(Configuration::Hsa, LARGE)?, of(Configuration::Xtq, LARGE)?);
        let off = |time: Ps, microseconds: f64| (time.seconds() * 1e6 / microseconds - 1.0).abs() * 100.0;
        let saved = |ours: &Task, theirs: &Task| (theirs.time.seconds() - ours.time.seconds()) * 1e9;
        let calibrated = |paper, time| Mark::at_most(format!("calibration: off {paper} µs, %"), 2.0, off(time, paper));

        let hsa_row = hsa.row(Configuration::Hsa, SMALL)?.mark(calibrated(1.5, hsa.time));
        let mut xtq_row = xtq.row(Configuration::Xtq, SMALL)?.mark(calibrated(1.2, xtq.time));
        let longer = xtq.transfer() - hsa.transfer();
        let launch = hsa.phase(Phase::Launch) - xtq.phase(Phase::Launch);
        xtq_row.marks.push(Mark::at_least("transfer phases longer than HSA's, ns", 1.0, longer));
        xtq_row.marks.push(within("saved in the launch phase, ns", 250.0, 350.0, launch));
        let large_row = hsa_large.row(Configuration::Hsa, LARGE)?;
        let mut xtq_large_row = xtq_large.row(Configuration::Xtq, LARGE)?;
        let saved_large = saved(&xtq_large, &hsa_large);
        xtq_large_row.marks.push(within("saved, ns", 250.0, 350.0, saved_large));
        let (share, share_large) = (gain(xtq.time, hsa.time), gain(xtq_large.time, hsa_large.time));
        xtq_large_row.marks.push(Mark::at_most("share saved, relative to that of 64 B", 1.0, share_large / share));

        let rows = vec![
            hsa_row,
            xtq_row.against("HSA", summary(hsa.time)?),
            large_row,
            xtq_large_row.against("HSA", summary(hsa_large.time)?),
        ];
        let notes = format!(
            "simulated, on the machine of Table I; 64 B are what it was calibrated by\n{}",
            judged(&rows)
        );
        Ok(Findings::new(rows, notes))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let names = Phase::ALL.map(Phase::name);
        let bar = |row: &Row| {
            let phases = row.extra.get(PHASES);
            let part = |name: &&str| phases.and_then(|it| it.get(*name)).and_then(Value::as_f64).unwrap_or(0.0);
            Bar { label: row.case.clone(), parts: names.iter().map(part).collect() }
        };
        let bars: Vec<Bar> = report.rows.iter().map(bar).collect();
        Drawing::alone(Ok(stacked("A task on a remote GPU, simulated", &names, "ns", &bars)))
    }

    /// The phases, for people.
    fn summary(report: &Report) -> String {
        let names = Phase::ALL.map(Phase::name);
        let mut text = crate::table::head(&[&["ns"], &names[..], &["all"]].concat());
        for row in &report.rows {
            let phases = row.extra.get(PHASES);
            let part = |name: &&str| {
                let time = phases.and_then(|it| it.get(*name)).and_then(Value::as_f64);
                time.map_or("-".to_owned(), |time| format!("{time:.0}"))
            };
            let mut cells = vec![row.case.clone()];
            cells.extend(names.iter().map(part));
            cells.push(format!("{:.0}", row.seconds.median * 1e9));
            text += &crate::table::line(&cells);
        }
        text + "\n" + &judged(&report.rows)
    }
}

