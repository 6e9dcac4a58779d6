//! `cargo xtask ci`: every check that must pass before a change lands, then all tests.
//!
//! All checks run even when one fails, cheapest first, and the failures are listed at the end.

pub(crate) mod files;
mod foreign;
pub(crate) mod links;
mod purity;

use std::process::Command;

use crate::metadata::Checkout;
use crate::{Failure, ages, counts, deps, fuzz, kernels, package, shell, test, unsafe_code};

/// A check's heading, and the check.
type Check = (&'static str, fn(&Checkout) -> Result<(), Failure>);

const CHECKS: &[Check] = &[
    ("file sizes", files::run),
    ("lines of documents", files::documents),
    ("files of tests", files::tests),
    ("age of figures (only warns)", ages::warn),
    ("links of documents", links::run),
    ("dependency rules", deps::run),
    ("lock files", lock_files),
    ("packages", package::check),
    ("what users build", package::light),
    ("pure modules", purity::run),
    ("table of unsafe code", unsafe_table),
    ("format", format),
    ("clippy", clippy),
    ("documentation", documentation),
    ("licences, sources, duplicates", foreign::run),
    ("kernel images", kernel_images),
    ("instruction counts", instruction_counts),
];

/// Runs the checks, and unless `checks_only` the tests.
pub(crate) fn run(checkout: &Checkout, checks_only: bool) -> Result<(), Failure> {
    let mut failures = Vec::new();
    for (heading, check) in CHECKS {
        if let (Err(failure), _) = shell::timed(heading, || check(checkout)) {
            eprintln!("{heading}: {failure}");
            failures.push(format!("{heading}: {failure}"));
        }
    }
    if !checks_only {
        let steps = [("tests", test::run(checkout)), ("beside the tests", test::rest(checkout))];
        for (heading, step) in steps {
            failures.extend(step.err().map(|failure| format!("{heading}: {failure}")));
        }
    }
    println!();
    for failure in &failures {
        println!("FAILED: {failure}");
    }
    if failures.is_empty() {
        println!("ci: everything passed");
        return Ok(());
    }
    Err(Failure::Found { what: "failed steps", number: failures.len() as u64 })
}

/// Whether the lock files of the other workspaces know all that manifests ask for: otherwise cargo changes them where
/// they are built, which no run of CI does.
fn lock_files(checkout: &Checkout) -> Result<(), Failure> {
    let fuzz = checkout.fuzz().join("Cargo.toml");
    let mut stale = 0;
    for manifest in checkout.examples().into_iter().chain([fuzz]) {
        let mut command = cargo_in(checkout);
        command.args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--offline",
            "--manifest-path",
        ]);
        command.arg(&manifest);
        let told = command.output().map_err(|source| shell::could_not_start(&command, source))?;
        if told.status.success() {
            continue;
        }
        let said = String::from_utf8_lossy(&told.stderr);
        let shown = checkout.relative(&manifest).display();
        if said.contains("--locked") {
            println!(
                "{shown}: cargo metadata --offline --manifest-path {shown} mends its lock file"
            );
        } else if said.contains("offline") {
            println!("{shown}: not checked, since crates of others are not on this machine");
            continue;
        } else {
            print!("{said}");
        }
        stale += 1;
    }
    match stale {
        0 => Ok(()),
        number => Err(Failure::Found { what: "stale lock files", number }),
    }
}

fn instruction_counts(checkout: &Checkout) -> Result<(), Failure> {
    counts::run(checkout, false)
}

fn kernel_images(checkout: &Checkout) -> Result<(), Failure> {
    kernels::check_stamps(checkout)
}

fn unsafe_table(checkout: &Checkout) -> Result<(), Failure> {
    unsafe_code::run(checkout, true)
}

fn format(checkout: &Checkout) -> Result<(), Failure> {
    shell::run(cargo_in(checkout).args(["fmt", "--all", "--check"]))?;
    for manifest in checkout.examples() {
        shell::run(cargo_in(checkout).args(["fmt", "--check", "--manifest-path"]).arg(manifest))?;
    }
    shell::run(fuzz::cargo(checkout).args(["fmt", "--check"]))
}

/// The other workspaces are linted as their tests are built, which compiles what they depend on once: [`mod@test`].
fn clippy(checkout: &Checkout) -> Result<(), Failure> {
    shell::run(cargo_in(checkout).args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}

/// Packages that nobody depends on, and that ask for features which only tests are meant to turn on.
const FOR_TESTS: &[&str] = &["gapless-bench", "gapless-sim", "gapless-tests"];

/// Documentation of what others use, which must build without the features that tests turn on. The libraries are linted
/// so as well, as they are compiled.
fn documentation(checkout: &Checkout) -> Result<(), Failure> {
    let mut command = cargo_in(checkout);
    command.args(["doc", "--workspace", "--no-deps"]);
    for package in FOR_TESTS {
        command.args(["--exclude", package]);
    }
    shell::run(command.env("RUSTDOCFLAGS", "-D warnings").envs(shell::linting()))
}

fn cargo_in(checkout: &Checkout) -> Command {
    let mut command = shell::cargo();
    command.current_dir(&checkout.root);
    command
}
