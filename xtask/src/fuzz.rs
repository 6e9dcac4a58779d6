//! `cargo xtask fuzz`: libFuzzer around the targets in `fuzz/`, with coverage guidance, on stable Rust.
//!
//! The instrumentation is a pass of LLVM's that stable `-C` flags turn on; only sanitizers would need
//! another toolchain. The crates keep debug assertions and overflow checks. Corpus and findings are kept in
//! the target folder: `fuzz/corpus/TARGET` and `fuzz/found/TARGET`. What was found, once it is mended,
//! belongs into `fuzz/regressions/TARGET`, which the short run (`cargo xtask soak`) starts with.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::metadata::Checkout;
use crate::{Failure, shell, tools};

/// What opens the entry points for fuzzing in our crates.
pub(crate) const FLAGS: &str = "--cfg fuzzing";

/// LLVM's coverage, as libFuzzer reads it.
const COVERAGE: &[&str] = &[
    FLAGS,
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// The targets, and the share of the time that each gets: by how much a run of it does.
const TARGETS: &[(&str, u64)] = &[
    ("layout", 3),
    ("messages", 8),
    ("segment", 6),
    ("network", 4),
    ("wireup", 3),
    ("launches", 4),
    ("tuning", 2),
    ("tasks", 3),
    ("windows", 4),
];

/// Runs the targets named, or all, for so long altogether.
pub(crate) fn run(checkout: &Checkout, seconds: u64, names: &[String]) -> Result<(), Failure> {
    tools::need("c++")?;
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let targets: Vec<_> = TARGETS.iter().filter(|(name, _)| wanted(name)).collect();
    if let Some(unknown) = names.iter().find(|name| TARGETS.iter().all(|(known, _)| known != name))
    {
        let known: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
        return Err(Failure::Missing(format!("target {unknown} (there are {})", known.join(", "))));
    }
    let program = build(checkout)?;
    let shares: u64 = targets.iter().map(|(_, share)| share).sum();
    let mut failed = 0;
    for (name, share) in targets {
        let time = (seconds * share / shares.max(1)).max(1);
        let done =
            shell::timed(&format!("{name}, {time} s"), || one(checkout, &program, name, time)).0;
        if let Err(failure) = done {
            println!("{name}: {failure}");
            failed += 1;
        }
    }
    if failed == 0 {
        return Ok(());
    }
    println!("inputs that failed are in {}", checkout.target.join("fuzz/found").display());
    Err(Failure::Found { what: "targets that failed", number: failed })
}

/// Cargo in the fuzzer's workspace, where its configuration is found.
pub(crate) fn cargo(checkout: &Checkout) -> Command {
    let mut command = shell::cargo();
    command.current_dir(checkout.fuzz()).env("CARGO_TARGET_DIR", checkout.target.join("fuzz"));
    command
}

/// Builds the engine. With a target given, build scripts and macros are not instrumented.
fn build(checkout: &Checkout) -> Result<std::path::PathBuf, Failure> {
    let version = shell::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| Failure::Missing("the host's name in `rustc -vV`".to_owned()))?;
    shell::run(
        cargo(checkout)
            .env("RUSTFLAGS", COVERAGE.join(" "))
            .args(["build", "--release", "--features", "engine", "--bin", "engine", "--target"])
            .arg(host),
    )?;
    Ok(checkout.target.join("fuzz").join(host).join("release/engine"))
}

fn one(checkout: &Checkout, program: &Path, name: &str, seconds: u64) -> Result<(), Failure> {
    let folder = |kind: &str| {
        let folder = checkout.target.join("fuzz").join(kind).join(name);
        match fs::create_dir_all(&folder) {
            Ok(()) => Ok(folder),
            Err(source) => Err(Failure::File { path: folder, source }),
        }
    };
    let (corpus, found) = (folder("corpus")?, folder("found")?);
    shell::run(
        Command::new(program)
            .env("GAPLESS_FUZZ", name)
            .env("GAPLESS_FUZZ_SEEDS", &corpus)
            .arg(&corpus)
            .arg(format!("-artifact_prefix={}/", found.display()))
            .arg(format!("-max_total_time={seconds}"))
            // A run takes microseconds: this is a hang.
            .args(["-timeout=30", "-rss_limit_mb=2048", "-max_len=4096"])
            .args(["-print_final_stats=1", "-verbosity=1"]),
    )
}

#[cfg(test)]
mod tests {
    use super::TARGETS;

    #[test]
    fn every_target_has_a_share() {
        let list = include_str!("../../fuzz/src/lib.rs");
        let names = list.split("Target { name: \"").skip(1).map(|rest| rest.split('"').next());
        let names: Vec<_> = names.flatten().collect();
        let shares: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
        assert!(names.iter().all(|name| shares.contains(name)), "{names:?}, {shares:?}");
        assert_eq!(names.len(), shares.len());
    }
}
