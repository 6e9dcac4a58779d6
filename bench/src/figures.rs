//! The `figures` command: an experiment is measured, shown, written and drawn.
//!
//! Exit codes: 0 all is well, 1 something could not be measured or written or a byte was wrong, 2 it
//! was called wrongly, or this machine lacks what the experiment is about (`all` skips those).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use gapless_report::{Absent, Machine, Report, terminal_columns, write_atomically};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, ExperimentEntry};
use crate::experiments::ALL;
use crate::{gpu, summary};

/// Runs the command that this process's arguments name.
#[must_use]
pub fn main() -> ExitCode {
    gapless::launch::remember_environment();
    let matches = command().get_matches();
    match dispatch(&matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("figures: {failure}");
            let usage = matches!(
                failure,
                Failure::Layout(_) | Failure::Option { .. } | Failure::NoGpu { .. }
            );
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

/// The command line.
#[must_use]
pub fn command() -> Command {
    let figures = Command::new("figures")
        .about("Measures, and writes a table, JSON and SVG for each experiment")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("list").about("Names the experiments"))
        .subcommand(Command::new("all").about("Runs every experiment with its defaults"))
        .subcommand(
            Command::new("draw").about("Draws the reports in --out again; measures nothing"),
        )
        .subcommand(
            Command::new("summary")
                .about("Puts tables of the reports in --out into README.md there, between its marks"),
        )
        .subcommand(
            Command::new("page")
                .about("Puts the figures that matter, of the reports below --out, between a document's marks")
                .arg(
                    Arg::new("document")
                        .default_value("BENCHMARKS.md")
                        .value_parser(value_parser!(PathBuf)),
                ),
        )
        .subcommands(ALL.iter().map(ExperimentEntry::command));
    Common::augment_args(figures)
}

fn dispatch(matches: &ArgMatches) -> Result<(), Failure> {
    let (name, own) = matches.subcommand().expect("clap asks for one");
    // Global options are known at every level, wherever they were given.
    let common = Common::from_arg_matches(own).map_err(|error| Failure::Option {
        option: "the common options",
        why: error.to_string(),
    })?;
    match name {
        "list" => {
            for entry in ALL {
                println!("{:<10} {}", entry.name, entry.about);
            }
            Ok(())
        }
        "all" => ALL.iter().filter(|entry| is_asked(&common, entry)).try_for_each(|entry| {
            let none = entry.command().no_binary_name(true).get_matches_from([""; 0]);
            match measure(entry, &none, &common) {
                Err(Failure::NoGpu { why }) => {
                    eprintln!("SKIPPED: {}: {why}", entry.name);
                    Ok(())
                }
                other => other,
            }
        }),
        "draw" => redraw(&common.out),
        "summary" => summary::update(&common.out),
        "page" => {
            let document: &PathBuf = own.get_one("document").expect("it has a default");
            crate::page::update(&common.out, document)
        }
        name => {
            let entry = ALL.iter().find(|entry| entry.name == name);
            measure(entry.expect("clap knows no others"), own, &common)
        }
    }
}

/// Whether a process is one of this experiment's, if it is one of any.
fn is_asked(common: &Common, entry: &ExperimentEntry) -> bool {
    common.as_rank.as_ref().is_none_or(|rank| rank.experiment == entry.name)
}

fn measure(entry: &ExperimentEntry, matches: &ArgMatches, common: &Common) -> Result<(), Failure> {
    let findings = (entry.run)(matches, common)?;
    if findings.rows.is_empty() && findings.absent.is_empty() {
        // One of an experiment's own processes: whoever started it shows what it found.
        return Ok(());
    }
    let mut machine = Machine::describe();
    machine.gpus = gpu::describe();
    if findings.rows.iter().any(|row| row.space.contains("opencl")) {
        machine.gpus.extend(gpu::describe_opencl());
    }
    let report = Report::new(entry.name, machine, typed(std::env::args().skip(1)), findings.rows)
        .absent(findings.absent);
    println!("{}: {}\n{}\n", entry.name, entry.about, report.machine.one_line());
    println!("{}\n{}", report.table().within(terminal_columns()), findings.notes);
    for Absent { case, op, why, failed } in &report.absent {
        println!("{}: {case}, {op}: {why}", if *failed { "FAILED" } else { "skipped" });
    }
    let failed = report.absent.iter().filter(|absent| absent.failed).count();
    if report.rows.is_empty() {
        return Err(Failure::Absent { failed });
    }
    fs::create_dir_all(&common.out).map_err(Failure::io("make", &common.out))?;
    let path = common.out.join(format!("{}.json", entry.name));
    report.write_json(&path)?;
    draw(entry, &report, &common.out)?;
    println!("written to {}\n", path.display());
    if let Some(row) = report.unverified().next() {
        let (case, op) = (row.case.clone(), row.op.clone());
        return Err(Failure::Unverified { case, op });
    }
    if failed > 0 {
        return Err(Failure::Absent { failed });
    }
    Ok(())
}

/// Draws a report anew, in the place of what was drawn of an earlier one.
fn draw(entry: &ExperimentEntry, report: &Report, folder: &Path) -> Result<(), Failure> {
    let drawings =
        (entry.draw)(report).map_err(|error| Failure::Plot { experiment: entry.name, error })?;
    for stale in summary::drawings(folder, entry.name)? {
        let path = folder.join(format!("{stale}.svg"));
        fs::remove_file(&path).map_err(Failure::io("remove", &path))?;
    }
    for Drawing { suffix, svg } in drawings {
        let path = folder.join(format!("{}{suffix}.svg", entry.name));
        write_atomically(&path, svg.as_bytes())?;
    }
    Ok(())
}

/// The pictures of all reports in a folder.
fn redraw(folder: &Path) -> Result<(), Failure> {
    for entry in ALL {
        let path = folder.join(entry.name).with_extension("json");
        if path.is_file() {
            draw(entry, &Report::read_json(&path)?, folder)?;
        }
    }
    Ok(())
}

/// The command as a user would type it elsewhere: of paths only what comes last is told.
fn typed(words: impl Iterator<Item = String>) -> String {
    let last = |word: String| match word.split_once('=') {
        Some((option, path)) if path.starts_with('/') => format!("{option}={}", end_of(path)),
        _ if word.starts_with('/') => end_of(&word).to_owned(),
        _ => word,
    };
    ["figures".to_owned()].into_iter().chain(words.map(last)).collect::<Vec<_>>().join(" ")
}

/// The last component of a path.
fn end_of(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().filter(|end| !end.is_empty()).unwrap_or("/")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_sound() {
        super::command().debug_assert();
    }

    #[test]
    fn nobody_is_told_where_this_machine_keeps_its_folders() {
        for (words, told) in [
            ("wu6 --out /home/me/h200 --time 0.08", "figures wu6 --out h200 --time 0.08"),
            ("wu6 --out=/tmp/a/b/", "figures wu6 --out=b"),
            (
                "p2p --out results --ends cuda:0,cuda:1",
                "figures p2p --out results --ends cuda:0,cuda:1",
            ),
            ("all --out /", "figures all --out /"),
        ] {
            assert_eq!(super::typed(words.split(' ').map(str::to_owned)), told);
        }
    }
}
