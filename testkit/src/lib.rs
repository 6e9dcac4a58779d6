#![doc = include_str!("../README.md")]
//!
//! This crate lies below every other one and uses none. Libraries have it as a dev-dependency; `btl-testkit` as a
//! dependency.

mod counting;
mod random;

pub use counting::{Counting, allocations};
pub use random::Random;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
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

/// How many rounds a test has that repeats what random numbers choose: all of `many` where `GAPLESS_ALL_ROUNDS` is set, as
/// in the soak; elsewhere a quarter of them, and one at least.
#[must_use]
pub fn rounds(many: u64) -> u64 {
    match std::env::var_os("GAPLESS_ALL_ROUNDS") {
        Some(_) => many,
        None => many.div_ceil(4).min(many),
    }
}

/// Of the rounds `0..many` as many as [`rounds`] says, from the first to the last.
pub fn sample(many: u32) -> impl Iterator<Item = u32> {
    let every = u64::from(many).div_ceil(rounds(many.into()).max(1));
    (0..many).step_by(usize::try_from(every).unwrap_or(usize::MAX).max(1))
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

/// Writes a script that can be run at once. Linux does not run a file that some process has open for writing, and a child
/// that another test has just started holds all that this process has open. So a shell writes it.
///
/// # Panics
/// If it cannot be written.
pub fn write_script(path: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"cat >"$0" && chmod 755 "$0""#]).arg(path).stdin(Stdio::piped());
    let mut shell = shell.spawn().expect("there is a shell");
    let mut script = shell.stdin.take().expect("it is piped");
    script.write_all(text.as_bytes()).expect("the shell reads it");
    drop(script);
    assert!(shell.wait().is_ok_and(|end| end.success()), "{} is not written", path.display());
}
