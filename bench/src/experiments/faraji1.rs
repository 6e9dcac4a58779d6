//! `faraji1`: Figure 1 of Faraji and Afsahi 2015: four pairs of processes on one GPU, by the kind of their copies, without
//! and with the Multi-Process Service. It says which of the paper's observations hold. Beside it: which short copies wait
//! for a time slice.

use gapless_report::{PlotError, Report, Row};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::one_gpu::pairs::{self, PROCESSES, mix};
use crate::one_gpu::{self, Gpu, Options, Save, has_mps, short};
use crate::processes::RankOf;
use gapless::World;

/// The experiment.
pub struct Faraji1;

impl Experiment for Faraji1 {
    type Options = Options;

    const NAME: &'static str = "faraji1";
    const ABOUT: &'static str = "four pairs of processes on one GPU, by IPC and through the host";

    fn run(options: &Options, _: &Common) -> Result<Findings, Failure> {
        let mut findings = one_gpu::run(Self::NAME, options, &[PROCESSES])?;
        findings.notes = observations(&findings.rows);
        Ok(findings)
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        one_gpu::rank(options, common, rank, both)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        one_gpu::draw(report, "4 pairs")
    }
}

fn both(
    options: &Options,
    common: &Common,
    world: &World,
    gpu: Gpu,
    save: &mut Save<'_>,
) -> Result<(), Failure> {
    pairs::measure(options, common, world, gpu, save)?;
    short::measure(options, common, world, gpu, save)
}

/// The median of a mix, in seconds.
fn time(rows: &[Row], mps: bool, bytes: u64, ipc: u32) -> Option<f64> {
    let like = |row: &&Row| {
        row.op == "4 pairs"
            && row.payload_bytes == bytes
            && row.protocol == mix(ipc)
            && has_mps(row) == mps
    };
    rows.iter().find(like).map(|row| row.seconds.median)
}

/// Which of the paper's observations hold here.
fn observations(rows: &[Row]) -> String {
    let mut sizes: Vec<u64> =
        rows.iter().filter(|row| row.op == "4 pairs").map(|row| row.payload_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let (first, last) = (sizes.first().copied().unwrap_or(0), sizes.last().copied().unwrap_or(0));
    let mut notes = String::from(
        "time: from when all are ready to the end of the last pair; medians\n\
         Faraji and Afsahi 2015, §3, here:\n",
    );
    let mut say = |what: &str, holds: Option<bool>| {
        let word = match holds {
            Some(true) => "holds",
            Some(false) => "does not hold",
            None => "was not measured",
        };
        notes += &format!("- {what}: {word}\n");
    };
    for mps in [false, true] {
        let state = one_gpu::on_off(mps);
        let quicker = |bytes, one, other| Some(time(rows, mps, bytes, one)? < time(rows, mps, bytes, other)?);
        say(&format!("host-staged is ahead for short ones, MPS {state}"), quicker(first, 0, 4));
        say(&format!("IPC is ahead for long ones, MPS {state}"), quicker(last, 4, 0));
        let mixed = sizes.iter().filter(|bytes| {
            let all = [0, 1, 2, 3, 4].map(|ipc| time(rows, mps, **bytes, ipc).unwrap_or(f64::INFINITY));
            all[1..4].iter().copied().fold(f64::INFINITY, f64::min) < all[0].min(all[4])
        });
        let mixed: Vec<String> = mixed.map(|bytes| gapless_report::Bytes(*bytes).to_string()).collect();
        let known = sizes.iter().any(|bytes| time(rows, mps, *bytes, 0).is_some());
        let list = if mixed.is_empty() { "none".to_owned() } else { mixed.join(", ") };
        say(
            &format!("a mix is best at some lengths (the paper: 8 to 256 KiB), MPS {state}: {list}"),
            known.then_some(!mixed.is_empty()),
        );
    }
    for (ipc, kind) in [(0, "host-staged"), (4, "IPC")] {
        let gain = |bytes| Some(time(rows, false, bytes, ipc)? / time(rows, true, bytes, ipc)?);
        say(
            &format!("MPS helps short {kind} messages"),
            gain(first).map(|gain| gain > 1.0),
        );
        let long = sizes.iter().copied().filter(|bytes| *bytes >= 128 << 10);
        let gains: Vec<f64> = long.filter_map(gain).collect();
        let worst = gains.iter().copied().fold(f64::INFINITY, f64::min);
        say(
            &format!("MPS costs something from 128 KiB on, {kind} (speed relative to without: {worst:.2} at worst)"),
            (!gains.is_empty()).then_some(worst < 0.98),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_report::Samples;

    #[test]
    fn observations_are_said_to_hold_or_not() {
        let row = |mps: bool, bytes: u64, ipc: u32, micros: f64| {
            let time = Samples::from_seconds([micros * 1e-6]).summary().unwrap();
            Row::new("", "4 pairs", "cuda:0", mix(ipc), bytes, time).with("mps", mps)
        };
        let mut rows = Vec::new();
        for ipc in 0..=4 {
            rows.push(row(false, 8192, ipc, 10.0 + f64::from(ipc)));
            rows.push(row(false, 1 << 20, ipc, 100.0 - f64::from(ipc)));
        }
        let notes = observations(&rows);
        assert!(notes.contains("ahead for short ones, MPS off: holds"), "{notes}");
        assert!(notes.contains("IPC is ahead for long ones, MPS off: holds"), "{notes}");
        assert!(notes.contains("MPS off: none: does not hold"), "{notes}");
        assert!(notes.contains("MPS on: was not measured"), "{notes}");
    }
}
