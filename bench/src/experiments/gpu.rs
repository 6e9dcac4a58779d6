//! `gpu`: the datatype engine on one GPU, work by work, against `cudaMemcpy`, our own contiguous kernel and
//! the traffic floor; each with the mark that it is to reach.
//!
//! Groups of rows are files below; a row that fails costs only itself, and what is there is written after
//! each group.

mod calls;
mod elsewhere;
mod faces;
mod lists;
mod peers;
mod shapes;
mod transfers;

use gapless_report::{BarGroup, Machine, PlotError, Report, Row, bars};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, grouped};
use crate::gpu::aims::tally;
use crate::gpu::lab::Lab;
use crate::gpu::session::Session;
use crate::table::{CASE, Column, OP, PROTOCOL, RATE, TIME, called, missed, ratio, table};

/// The experiment.
pub struct Gpu;

/// Its options.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Only these groups of rows (contiguous, v, t, x, blocks, lists, first-use, faces, transfer, pinned,
    /// peer, enqueue, occupied, layouts, baselines); repeatable, or separated by commas
    #[arg(short, long = "group", value_name = "NAME", value_delimiter = ',')]
    pub groups: Vec<String>,
}

type Group = (&'static str, fn(&mut Session<'_>) -> Result<(), Failure>);

/// In the order in which they run: what matters most comes first.
const GROUPS: &[Group] = &[
    ("contiguous", shapes::contiguous),
    ("v", shapes::v),
    ("t", shapes::t),
    ("x", shapes::x),
    ("blocks", shapes::blocks),
    ("lists", lists::warm),
    ("first-use", lists::first_use),
    ("faces", faces::run),
    ("transfer", transfers::run),
    ("pinned", elsewhere::pinned),
    ("peer", elsewhere::peer),
    ("enqueue", calls::enqueue),
    ("occupied", calls::occupied),
    ("layouts", shapes::layouts),
    ("baselines", peers::run),
];

impl Experiment for Gpu {
    type Options = Options;

    const NAME: &'static str = "gpu";
    const ABOUT: &'static str = "the GPU datatype engine, work by work, with the mark of each";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let chosen = chosen(&options.groups)?;
        let lab = Lab::open(common.quick)?;
        let mut session = Session::new(&lab, common)?;
        let progress = common.progress(chosen.len());
        let partial = common.out.join("gpu.partial.json");
        for (name, group) in chosen {
            progress.set_message(name);
            session.attempt(name, "all", |session| group(session).map(|()| Vec::new()));
            progress.inc(1);
            // Whatever hangs later, this much is known.
            if !session.rows.is_empty() && std::fs::create_dir_all(&common.out).is_ok() {
                let mut machine = Machine::describe();
                machine.gpus = crate::gpu::describe();
                let report = Report::new("gpu", machine, "figures gpu", session.rows.clone());
                if let Err(why) = report.absent(session.absent.clone()).write_json(&partial) {
                    eprintln!("{why}");
                }
            }
        }
        progress.finish_and_clear();
        // It is superseded by what is written now; if it stays, nothing is lost.
        let _ = std::fs::remove_file(&partial);
        let notes = notes(&session);
        Ok(session.findings(notes))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let rate = |case: &str, op: &str| {
            let ours = |row: &&gapless_report::Row| !row.extra.contains_key("baseline");
            let mut rows = report.rows.iter().filter(ours);
            let row = rows.find(|row| row.case == case && row.op == op);
            row.map_or(0.0, |row| row.gbps)
        };
        let gpu = crate::experiment::gpu(report);
        // Baselines have rows of the same names, beside their own bound.
        let rows = report.rows.iter().filter(|row| !row.extra.contains_key("baseline"));
        let packs = rows.filter(|row| row.op == "pack" || row.op == "copy").map(|row| {
            let theirs = |name| row.ratio_to(name).map_or(0.0, |ratio| row.gbps / ratio);
            let gbps = vec![row.gbps, rate(&row.case, "unpack"), theirs("memcpy"), theirs("floor")];
            let bar = BarGroup { label: row.case.clone(), gbps };
            (format!("-{}", row.case.split(' ').next().unwrap_or("other").to_lowercase()), bar)
        });
        let draw = |(suffix, groups): (String, Vec<BarGroup>)| {
            let title = format!("pack and unpack ({gpu})");
            let pages = bars(&title, &["pack", "unpack", "cudaMemcpy", "floor"], &groups)?;
            Ok(Drawing::pages(&suffix, pages))
        };
        let drawn: Vec<Vec<Drawing>> = grouped(packs).into_iter().map(draw).collect::<Result<_, _>>()?;
        Ok(drawn.concat())
    }

    /// The marks first, then the engine's rows, then what users do without it.
    fn summary(report: &Report) -> String {
        let (met, all, lines) = tally(&report.rows);
        let failed = report.absent.iter().filter(|absent| absent.failed).count();
        let mut text = format!("**{met} of {all} marks met**, {failed} rows failed.\n\n");
        text += &missed(&lines);
        let baseline = |row: &&Row| row.extra.contains_key("baseline");
        let small = |row: &&Row| row.case.starts_with("app ") && row.payload_bytes < SHOWN_BYTES_MIN;
        text += &crate::gpu::rows_table(report.rows.iter().filter(|row| !baseline(row) && !small(row)));
        if report.rows.iter().any(|row| small(&row)) {
            text += "\nApplication layouts below 1 MiB are in the report.\n";
        }
        let baselines: Vec<&Row> = report.rows.iter().filter(baseline).collect();
        if baselines.is_empty() {
            return text;
        }
        let bound: Column = ("÷ own bound", |row| ratio(row, "own bound"));
        let flag: Column =
            ("", |row| if row.extra.contains_key("crippled") { "crippled".to_owned() } else { String::new() });
        text += "\nWithout a datatype engine:\n\n";
        text + &table(&[CASE, OP, called("by", PROTOCOL), TIME, RATE, bound, flag], baselines)
    }
}

/// Payloads of applications below this are in the reports only.
const SHOWN_BYTES_MIN: u64 = 1 << 20;

fn chosen(names: &[String]) -> Result<Vec<Group>, Failure> {
    if names.is_empty() {
        return Ok(GROUPS.to_vec());
    }
    let find = |name: &String| {
        GROUPS.iter().find(|(known, _)| known == name).copied().ok_or_else(|| Failure::Option {
            option: "--group",
            why: format!("{name} is none of its groups: see figures gpu --help"),
        })
    };
    names.iter().map(find).collect()
}

/// The marks, counted, and every one that is missed.
fn notes(session: &Session<'_>) -> String {
    let (met, all, missed) = tally(&session.rows);
    let failed = session.absent.iter().filter(|absent| absent.failed).count();
    let crippled = session.rows.iter().filter(|row| row.extra.contains_key("crippled"));
    let crippled: Vec<String> = crippled
        .map(|row| format!("  {} of {}: compare nothing with it\n", row.protocol, row.case))
        .collect();
    let mut notes = format!("marks: {met} of {all} met; {failed} rows failed\n");
    for line in missed {
        notes += &format!("  missed: {line}\n");
    }
    if !crippled.is_empty() {
        notes += "baselines that do not reach 0.9 of their own bound:\n";
        notes += &crippled.concat();
    }
    notes + "small application layouts whose traffic fits the GPU's cache are held against our contiguous \
             kernel: memory\nsets no floor there\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;

    #[test]
    fn a_gpu_report_says_what_was_missed_and_which_baseline_limps() {
        let time = |seconds| gapless_report::Samples::from_seconds([seconds]).summary().unwrap();
        let row = |case: &str, kernel: &str| {
            Row::new(case, "pack", "cuda:0", kernel, 1 << 20, time(1e-3)).verified(true)
        };
        let ours = row("V n=1024", "pack_rows_w16")
            .against("memcpy", time(0.9e-3))
            .against("bare launch", time(2e-3))
            .with("call_seconds", 2e-3)
            .mark(gapless_report::Mark::at_least("memcpy", 0.95, 0.9));
        let theirs = row("V n=1024", "cudaMemcpy2D").against_gbps("own bound", 10.0);
        let theirs = theirs.with("baseline", true).with("crippled", true);
        let machine = gapless_report::Machine::default();
        let text = Gpu::summary(&Report::new("gpu", machine, "figures gpu", vec![ours, theirs]));
        for part in [
            "**0 of 1 marks met**",
            "- V n=1024, pack: memcpy 0.900, asked ≥ 0.95",
            "| pack_rows_w16 |",
            "| bare launch 2.00 |",
            "| missed |",
            "| cudaMemcpy2D |",
            "| crippled |",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
    }

    #[test]
    fn groups_are_found_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), GROUPS.len());
        let two = chosen(&["t".to_owned(), "v".to_owned()]).unwrap();
        assert_eq!(two.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["t", "v"]);
        assert!(chosen(&["w".to_owned()]).is_err());
    }

    #[test]
    fn the_help_names_every_group() {
        let help = Options::augment_args(clap::Command::new("gpu")).render_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let names: Vec<&str> = GROUPS.iter().map(|(name, _)| *name).collect();
        assert!(help.contains(&format!("({})", names.join(", "))), "{help}");
    }
}
