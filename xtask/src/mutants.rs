//! `cargo xtask mutants`: changes the code of the modules that decide, one place at a time, and runs the tests of the
//! package. A mutant that no test notices is a test that is missing. cargo-mutants does the work;
//! `.cargo/mutants.toml` says which mutants need not be noticed, and why.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::metadata::Checkout;
use crate::{Failure, shell, tools};

/// The release of cargo-mutants that `.cargo/mutants.toml` is written for.
const RELEASE: &str = "27.1.0";
/// The modules that decide.
const DECIDING: &[&str] = &[
    "pml/src/wire/*.rs",
    "pml/src/matching.rs",
    "pml/src/matching/**/*.rs",
    "pml/src/links/reorder.rs",
    "pml/src/requests.rs",
    "pml/src/choose.rs",
    "pml/src/cost.rs",
    "pml/src/cost/*.rs",
    "pml/src/choose/lately.rs",
    "pml/src/choose/recent.rs",
    "pml/src/rndv/decided.rs",
    "pml/src/rndv/layouts.rs",
    "pml/src/rndv/pieces.rs",
    "pml/src/rndv/staged/window.rs",
    "pml/src/rndv/turns.rs",
    "pml/src/agree/table.rs",
    "bml/src/bundle.rs",
    "bml/src/failure_gossip.rs",
    "bml/src/near.rs",
    "bml/src/select.rs",
    "bml/src/spin.rs",
    "bml/src/stripe.rs",
    "btl-sm/src/credit.rs",
    "btl-sm/src/geometry.rs",
    "btl-sm/src/recycle.rs",
    "btl-sm/src/ring.rs",
    "btl/src/callers.rs",
    "btl-sm/src/unauthenticated.rs",
    "btl-tcp/src/address.rs",
    "btl-tcp/src/silence.rs",
    "btl-tcp/src/wire.rs",
    "btl-tcp/src/msg_zerocopy/ledger.rs",
    "engine/src/typed.rs",
    "dtype/src/transfer.rs",
    "osc/src/header.rs",
    "osc/src/runs.rs",
    "osc/src/span.rs",
    "osc/src/wire.rs",
    "sync/src/*.rs",
    "coll/src/choose.rs",
    "coll/src/builder.rs",
    "coll/src/execute/sm/long_plan.rs",
    "coll/src/execute/sm/short_plan.rs",
    "coll/src/suits.rs",
    "xtq/src/host/sequence.rs",
    "xtq/src/packet.rs",
    "xtq/src/rewrite.rs",
    "xtq/src/wire.rs",
];
/// How many of a hundred mutants tests must notice.
const CAUGHT_OF_100: usize = 95;

/// Tries the mutants of the files that match `paths`, or of all modules that decide; of several parts of the list, only
/// this one (`1/8`: every eighth mutant, so that a part is a sample of all). Unit tests come first, as they are built
/// in a fraction of the time; what they miss, all tests of the package get to see.
pub(crate) fn run(
    checkout: &Checkout,
    paths: &[String],
    part: Option<&str>,
) -> Result<(), Failure> {
    let program = tools::pinned(checkout, "cargo-mutants", RELEASE)?;
    let folder = checkout.target.join("mutants");
    let usual = DECIDING.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let mut first = vec!["--sharding=round-robin".to_owned()];
    first.extend(part.map(|part| format!("--shard={part}")));
    first.extend(files(if paths.is_empty() { &usual } else { paths }));
    first.push("--cargo-arg=--lib".to_owned());
    let mut tally = stage(checkout, &program, &folder.join("unit"), &first)?;
    if !tally.missed.is_empty() {
        println!("\n{} mutants that unit tests did not notice, with all tests", tally.missed.len());
        let second = stage(checkout, &program, &folder.join("all"), &again(&tally.missed))?;
        tally.add(&second);
    }
    tally.judge()
}

fn files(paths: &[String]) -> impl Iterator<Item = String> {
    paths.iter().map(|path| format!("--file={path}"))
}

/// Arguments that choose these mutants, by the names they are listed under (`FILE:LINE:COLUMN: …`). Mutants of fields
/// are tried whatever the pattern: so other files are left out.
fn again(mutants: &[String]) -> Vec<String> {
    let of = |mutant: &String| mutant.split(':').next().unwrap_or_default().to_owned();
    let places: BTreeSet<String> = mutants.iter().map(of).collect();
    let mut all: Vec<String> = files(&places.into_iter().collect::<Vec<_>>()).collect();
    all.extend(mutants.iter().map(|mutant| format!("--re=^{}$", escaped(mutant))));
    all.push("--cargo-arg=--tests".to_owned());
    all
}

/// A text as a regular expression that matches it alone.
fn escaped(text: &str) -> String {
    let mut all = String::new();
    for c in text.chars() {
        if r"\.+*?()|[]{}^$&".contains(c) {
            all.push('\\');
        }
        all.push(c);
    }
    all
}

/// Tries mutants with some of the tests; one folder keeps what is built, another what came out.
fn stage(
    checkout: &Checkout,
    program: &Path,
    folder: &Path,
    arguments: &[String],
) -> Result<Tally, Failure> {
    fs::create_dir_all(folder)
        .map_err(|source| Failure::File { path: folder.to_owned(), source })?;
    let mut command = Command::new(program);
    command.current_dir(&checkout.root).args(["mutants", "--workspace", "--no-times", "--output"]);
    command
        .arg(folder)
        .args(arguments)
        .env("CARGO_TARGET_DIR", checkout.target.join("mutants").join("build"))
        // One place changes at a time.
        .env("CARGO_INCREMENTAL", "1")
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .env("CARGO_PROFILE_TEST_DEBUG", "false");
    shell::show(&command);
    let status = command.status().map_err(|source| shell::could_not_start(&command, source))?;
    // 0: all are caught; 2: some are missed; 3: some took too long, which is caught.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        return Err(Failure::Command { command: shell::line(&command), status });
    }
    Tally::read(&folder.join("mutants.out"))
}

/// What became of the mutants.
#[derive(Debug, PartialEq, Eq)]
struct Tally {
    caught: usize,
    missed: Vec<String>,
}

impl Tally {
    fn read(folder: &Path) -> Result<Tally, Failure> {
        let lines = |name: &str| -> Result<Vec<String>, Failure> {
            let path: PathBuf = folder.join(name);
            let text =
                fs::read_to_string(&path).map_err(|source| Failure::File { path, source })?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        let caught = lines("caught.txt")?.len() + lines("timeout.txt")?.len();
        Ok(Tally { caught, missed: lines("missed.txt")? })
    }

    /// More tests have looked at what was missed.
    fn add(&mut self, later: &Tally) {
        let before = self.missed.len();
        self.missed.retain(|mutant| later.missed.contains(mutant));
        self.caught += before - self.missed.len();
    }

    /// Prints what was missed; an error if that is too much.
    fn judge(&self) -> Result<(), Failure> {
        let all = self.caught + self.missed.len();
        println!("\n{} of {all} mutants were noticed by a test; not:", self.caught);
        self.missed.iter().for_each(|mutant| println!("- {mutant}"));
        if self.caught * 100 >= all * CAUGHT_OF_100 {
            return Ok(());
        }
        let number = u64::try_from(self.missed.len()).unwrap_or(u64::MAX);
        Err(Failure::Found { what: "mutants that no test notices", number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_twenty_may_be_missed() {
        let tally = |caught, missed: usize| Tally { caught, missed: vec![String::new(); missed] };
        assert!(tally(0, 0).judge().is_ok());
        assert!(tally(19, 1).judge().is_ok());
        assert!(tally(18, 1).judge().is_err());
    }

    #[test]
    fn later_tests_see_only_what_was_missed() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut tally = Tally { caught: 3, missed: names(&["a", "b", "c"]) };
        tally.add(&Tally { caught: 7, missed: names(&["b", "d"]) });
        assert_eq!(tally, Tally { caught: 5, missed: names(&["b"]) });
        assert_eq!(
            again(&names(&[
                "x/y.rs:1:2: replace a -> (u8, B) with ()",
                "x/y.rs:3:4: replace + with *"
            ])),
            [
                "--file=x/y.rs",
                r"--re=^x/y\.rs:1:2: replace a -> \(u8, B\) with \(\)$",
                r"--re=^x/y\.rs:3:4: replace \+ with \*$",
                "--cargo-arg=--tests"
            ]
        );
    }

    #[test]
    fn what_takes_too_long_is_caught() {
        let folder = std::env::temp_dir().join(format!("gapless-mutants-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in
            [("caught.txt", "a\nb\n"), ("timeout.txt", "c\n"), ("missed.txt", "d\n")]
        {
            fs::write(folder.join(name), text).unwrap();
        }
        let tally = Tally::read(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(tally, Tally { caught: 3, missed: vec!["d".to_owned()] });
    }
}
