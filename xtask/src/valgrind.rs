//! `cargo xtask valgrind`: memcheck over the unit tests of the crates that contain `unsafe` code.
//!
//! Properties run fewer cases (`PROPTEST_CASES`), since memcheck makes them some thirty times slower. Any error of memcheck's fails, but for those in `xtask/valgrind.supp`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::metadata::Checkout;
use crate::{Failure, shell, tools};

/// The crates, bottom up.
const PACKAGES: &[&str] = &[
    "gapless-dtype",
    "gapless-mem",
    "gapless-engine",
    "gapless-btl",
    "gapless-btl-testkit",
    "gapless-sync",
    "gapless-btl-sm",
    "gapless-bml",
    "gapless-pml",
];

/// What cargo says of what it has built.
#[derive(Deserialize)]
struct Built {
    executable: Option<PathBuf>,
    #[serde(default)]
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Runs the unit tests of the packages named, or of all in the list.
pub(crate) fn run(checkout: &Checkout, names: &[String]) -> Result<(), Failure> {
    tools::need("valgrind")?;
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let mut failed = 0;
    let packages: Vec<&str> = PACKAGES.iter().copied().filter(|name| wanted(name)).collect();
    if packages.is_empty() {
        return Err(Failure::Missing(format!("a package among {}", PACKAGES.join(", "))));
    }
    for package in packages {
        let program = build(checkout, package)?;
        let (done, _) = shell::timed(package, || shell::run(&mut memcheck(checkout, &program)));
        if let Err(failure) = done {
            println!("{package}: {failure}");
            failed += 1;
        }
    }
    if failed == 0 {
        println!("valgrind: no errors");
        return Ok(());
    }
    Err(Failure::Found { what: "packages with errors", number: failed })
}

/// Builds a package's unit tests; where they are.
fn build(checkout: &Checkout, package: &str) -> Result<PathBuf, Failure> {
    let mut command = shell::cargo();
    command
        .current_dir(&checkout.root)
        .args(["test", "--lib", "--no-run", "--message-format=json-render-diagnostics", "-p"])
        .arg(package);
    shell::show(&command);
    let said = shell::output(&mut command)?;
    let tests = said.lines().filter_map(|line| serde_json::from_str::<Built>(line).ok());
    let program = tests
        .filter(|built| built.profile.as_ref().is_some_and(|profile| profile.test))
        .find_map(|built| built.executable);
    program.ok_or_else(|| Failure::Missing(format!("the unit tests of {package}")))
}

fn memcheck(checkout: &Checkout, program: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command
        .current_dir(&checkout.root)
        .env("PROPTEST_CASES", "8")
        .args(["--tool=memcheck", "--quiet", "--error-exitcode=99", "--num-callers=30"])
        // A test that fails on purpose leaks what it held.
        .args(["--leak-check=no", "--fair-sched=yes"])
        .arg(format!("--suppressions={}", checkout.root.join("xtask/valgrind.supp").display()))
        .arg(program)
        .args(["--test-threads=1", "--quiet"]);
    command
}
