#![doc = include_str!("../README.md")]
//!
//! This crate lies below every other one and uses none. Libraries have it as a dev-dependency; `btl-testkit` as a
//! dependency.

mod counting;
mod random;

pub use counting::{Counting, allocations};
pub use random::Random;

use std::io::Write as _;
use std::time::SystemTime;

/// The seed of a test: that of `GAPLESS_SEED`, or else `otherwise`. It is printed, so that a failure can be repeated.
///
/// # Panics
/// If the variable holds something else than a number.
#[must_use]
pub fn seed(otherwise: u64) -> u64 {
    let given = std::env::var("GAPLESS_SEED").ok();
    let given = given.map(|text| {
        text.parse().unwrap_or_else(|_| panic!("GAPLESS_SEED is {text:?}, not a number"))
    });
    let seed = given.unwrap_or(otherwise);
    println!("GAPLESS_SEED={seed}");
    seed
}

/// A number that is another one each time, for [`seed`]: the clock's nanoseconds.
#[must_use]
pub fn fresh() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| u64::from(now.subsec_nanos()) ^ now.as_secs() << 20)
}

/// Says on the standard error, and in the file that `GAPLESS_SKIP_LOG` names, that a test did not run and why.
///
/// # Panics
/// If that file cannot be written: a skip must not go unnoticed.
pub fn skip(test: &str, why: &str) {
    let line = format!("SKIPPED: {test}: {why}\n");
    eprint!("{line}");
    if let Some(path) = std::env::var_os("GAPLESS_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        let written = log.and_then(|mut log| log.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("GAPLESS_SKIP_LOG={}: {error}", path.display()));
    }
}
