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

use gapless_report::{BarGroup, Machine, PlotError, Report, bars};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, grouped};
use crate::gpu::aims::tally;
use crate::gpu::lab::Lab;
use crate::gpu::session::Session;

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
}

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
