//! `cargo xtask ci`: every check that must pass before a change lands, then all tests.
//!
//! All checks run even when one fails, cheapest first, and the failures are listed at the end.

pub(crate) mod files;
pub(crate) mod links;
mod purity;

use std::process::Command;

use crate::metadata::Checkout;
use crate::{Failure, counts, deps, fuzz, kernels, shell, test, tools, unsafe_code};

/// The release of cargo-deny that `deny.toml` is written for.
const CARGO_DENY: &str = "0.20.2";

/// A check's heading, and the check.
type Check = (&'static str, fn(&Checkout) -> Result<(), Failure>);

const CHECKS: &[Check] = &[
    ("file sizes", files::run),
    ("links of documents", links::run),
    ("dependency rules", deps::run),
    ("pure modules", purity::run),
    ("table of unsafe code", unsafe_table),
    ("format", format),
    ("clippy", clippy),
    ("dtype without features", dtype_alone),
    ("documentation", documentation),
    ("licences, sources, duplicates", deny),
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
    if !checks_only && let Err(failure) = test::run(checkout, false) {
        failures.push(format!("tests: {failure}"));
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

fn instruction_counts(checkout: &Checkout) -> Result<(), Failure> {
    counts::run(checkout, false)
}

fn kernel_images(checkout: &Checkout) -> Result<(), Failure> {
    kernels::run(checkout, true)
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

fn clippy(checkout: &Checkout) -> Result<(), Failure> {
    shell::run(cargo_in(checkout).args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    for manifest in checkout.examples() {
        shell::run(
            cargo_in(checkout)
                .env("CARGO_TARGET_DIR", checkout.target.join("examples"))
                .args(["clippy", "--all-targets", "--manifest-path"])
                .arg(manifest)
                .args(["--", "-D", "warnings"]),
        )?;
    }
    // Without its engine, which is C++.
    shell::run(fuzz::cargo(checkout).args(["clippy", "--all-targets", "--", "-D", "warnings"]))
}

/// The one crate that others may use alone must build without the features its tests turn on.
fn dtype_alone(checkout: &Checkout) -> Result<(), Failure> {
    shell::run(cargo_in(checkout).args([
        "clippy",
        "-p",
        "gapless-dtype",
        "--no-default-features",
        "--",
        "-D",
        "warnings",
    ]))
}

fn documentation(checkout: &Checkout) -> Result<(), Failure> {
    shell::run(cargo_in(checkout).env("RUSTDOCFLAGS", "-D warnings").args([
        "doc",
        "--workspace",
        "--no-deps",
    ]))
}

fn deny(checkout: &Checkout) -> Result<(), Failure> {
    let program = tools::pinned(checkout, "cargo-deny", CARGO_DENY)?;
    shell::run(Command::new(program).current_dir(&checkout.root).args([
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ]))
}

fn cargo_in(checkout: &Checkout) -> Command {
    let mut command = shell::cargo();
    command.current_dir(&checkout.root);
    command
}
