//! `cargo xtask counts`: the instructions of the eager path, matching and steps of the convertor, against
//! `bench/counts/counts.txt`.
//!
//! valgrind's callgrind counts what `gapless-counts` does in its function `gapless_counted`, one run for
//! each piece of work; the toolchain is pinned, nothing counted is random, and so a count is the same on
//! every run, idle machine or not. More than 5 % above the committed count fails; more than 5 % below asks
//! for `--bless`, so that what was won is kept.
//!
//! gungraun would do this too; its runner takes longer to install than everything here takes to build and
//! count, in every cold run of CI, and what it adds are reports.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::metadata::Checkout;
use crate::{Failure, shell, tools};

/// How much a count may differ, in per cent of the committed one.
const PER_CENT: u64 = 5;

/// The function whose instructions count, callees included.
const COUNTED: &str = "gapless_counted";

/// A piece of work and its instructions.
type Count = (String, u64);

/// Counts and compares, or with `bless` writes the file.
pub(crate) fn run(checkout: &Checkout, bless: bool) -> Result<(), Failure> {
    tools::need("valgrind")?;
    shell::run(
        shell::cargo()
            .current_dir(&checkout.root)
            .args(["build", "--release", "-p", "gapless-counts"])
            // What a developer has set would change the code that is counted.
            .env("RUSTFLAGS", ""),
    )?;
    let program = checkout.target.join("release/gapless-counts");
    let names = shell::output(&mut Command::new(&program))?;
    let mut counts = Vec::new();
    for line in names.lines() {
        let (name, times) = line.split_once(' ').unwrap_or((line, "1"));
        let times: u64 = times.parse().unwrap_or(1);
        counts.push((name.to_owned(), count(&program, name)? / times.max(1)));
    }
    let path = checkout.root.join("bench/counts/counts.txt");
    if bless {
        let written = fs::write(&path, to_text(&counts));
        written.map_err(|source| Failure::File { path, source })?;
        print!("{}", to_text(&counts));
        return Ok(());
    }
    let committed = fs::read_to_string(&path);
    let committed = from_text(&committed.map_err(|source| Failure::File { path, source })?);
    let (table, wrong) = compare(&counts, &committed);
    print!("{table}");
    if wrong == 0 {
        return Ok(());
    }
    println!("if this is meant: cargo xtask counts --bless, and say why in the commit");
    Err(Failure::Found { what: "instruction counts that changed", number: wrong })
}

/// Instructions in the counted function while the program does `name`.
fn count(program: &PathBuf, name: &str) -> Result<u64, Failure> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(program)
        .arg(name);
    let output = command.output().map_err(|source| shell::could_not_start(&command, source))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        eprint!("{said}");
        return Err(Failure::Command { command: shell::line(&command), status: output.status });
    }
    let collected = collected(&said).filter(|&collected| collected > 0);
    collected.ok_or_else(|| Failure::Missing(format!("callgrind's count of {name}")))
}

/// What callgrind says it has collected.
fn collected(said: &str) -> Option<u64> {
    let line = said.lines().find_map(|line| line.split_once("Collected :"))?;
    line.1.trim().replace(',', "").parse().ok()
}

fn to_text(counts: &[Count]) -> String {
    let mut text =
        "# Instructions for one piece of work, optimised; see xtask/src/counts.rs.\n".to_owned();
    for (name, count) in counts {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name} {count}");
    }
    text
}

fn from_text(text: &str) -> Vec<Count> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let counts = lines.filter_map(|line| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.trim().parse().ok()?))
    });
    counts.collect()
}

/// The table to show, and how many counts are not as committed.
fn compare(counts: &[Count], committed: &[Count]) -> (String, u64) {
    let (mut table, mut wrong) = (String::new(), 0);
    let mut row = |name: &str, now: Option<u64>, then: Option<u64>| {
        let verdict = match (now, then) {
            (Some(now), Some(then)) if now * 100 > then * (100 + PER_CENT) => "ROSE",
            (Some(now), Some(then)) if now * 100 < then * (100 - PER_CENT) => "FELL: bless it",
            (Some(_), Some(_)) => "",
            (Some(_), None) => "NOT COMMITTED",
            (None, _) => "NOT COUNTED",
        };
        wrong += u64::from(!verdict.is_empty());
        let shown = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
        let _ = writeln!(table, "{name:<28} {:>9} {:>9}  {verdict}", shown(then), shown(now));
    };
    let find = |list: &[Count], name: &str| {
        list.iter().find(|(known, _)| known == name).map(|(_, count)| *count)
    };
    for (name, now) in counts {
        row(name, Some(*now), find(committed, name));
    }
    for (name, then) in committed {
        if find(counts, name).is_none() {
            row(name, None, Some(*then));
        }
    }
    (table, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(count: u64) -> Vec<Count> {
        vec![("work".to_owned(), count)]
    }

    #[test]
    fn five_per_cent_may_be() {
        for (now, wrong) in [(1000, 0), (1050, 0), (1051, 1), (950, 0), (949, 1)] {
            assert_eq!(compare(&one(now), &one(1000)).1, wrong, "{now}");
        }
        assert_eq!(compare(&one(1), &[]).1, 1);
        assert_eq!(compare(&[], &one(1)).1, 1);
    }

    #[test]
    fn counts_are_read_back() {
        assert_eq!(from_text(&to_text(&one(7))), one(7));
        assert_eq!(collected("==1== \n==1== Collected : 12,345\n==1==\n"), Some(12_345));
        assert_eq!(collected("==1== Collected : 99\n"), Some(99));
        assert_eq!(collected("nothing"), None);
    }
}
