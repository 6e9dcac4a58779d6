//! The short run: inputs that failed once, seeds, seeds changed in the ways that break decoders, and
//! noise. Deterministic; `GAPLESS_SEED` gives other changes, `GAPLESS_FUZZ_ROUNDS` more of them.

use gapless_dtype::testkit::{Rng, mutate};
use gapless_fuzz::{TARGETS, Target};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Runs the target; what fails is said, with the bytes.
fn attempt(target: &Target, bytes: &[u8], what: &str) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).is_err() {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        panic!("{}: {what}: {hex}", target.name);
    }
}

fn regressions(target: &Target) -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name);
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.map(|file| file.path()).collect()
}

fn all(name: &str, rounds: u64) {
    let target = gapless_fuzz::target(name).expect("a target");
    for path in regressions(target) {
        let bytes = std::fs::read(&path).expect("a regression can be read");
        attempt(target, &bytes, &path.display().to_string());
    }
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty());
    seeds.iter().for_each(|seed| attempt(target, seed, "a seed"));
    let seed = number("GAPLESS_SEED", 31);
    let mut rng = Rng::new(seed);
    for round in 0..number("GAPLESS_FUZZ_ROUNDS", rounds) {
        let mut bytes = rng.pick(&seeds).clone();
        match round % 4 {
            0 => {
                bytes.resize(rng.index(160), 0);
                rng.fill(&mut bytes);
            }
            1 => bytes.extend_from_slice(rng.pick::<Vec<u8>>(&seeds)),
            _ => {}
        }
        mutate(&mut bytes, &mut rng);
        attempt(target, &bytes, &format!("round {round} of seed {seed}"));
    }
}

#[test]
fn layout() {
    all("layout", 40_000);
}

#[test]
fn messages() {
    all("messages", 10_000);
}

#[test]
fn segment() {
    all("segment", 2_000);
}

#[test]
fn network() {
    all("network", 20_000);
}

#[test]
fn wireup() {
    all("wireup", 20_000);
}

#[test]
fn launches() {
    all("launches", 200_000);
}

#[test]
fn tuning() {
    all("tuning", 20_000);
}

#[test]
fn tasks() {
    all("tasks", 8_000);
}

#[test]
fn windows() {
    all("windows", 10_000);
}

#[test]
fn every_target_is_here() {
    let here = [
        "layout", "messages", "segment", "network", "wireup", "launches", "tuning", "tasks",
        "windows",
    ];
    assert!(TARGETS.iter().all(|target| here.contains(&target.name)));
}
