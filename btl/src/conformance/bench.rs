//! What every test of the suite has: its name, its seed, its patience, and a way to be skipped.

use super::seed::Seed;
use std::io::Write;
use std::time::{Duration, Instant};

/// Patience where nothing is promised.
const PATIENCE: Duration = Duration::from_secs(60);

/// One test of the suite: its name, as the test harness filters by it, and its seed. Made by
/// [`conformance!`](crate::conformance!).
#[derive(Debug)]
pub struct Suite {
    package: &'static str,
    name: String,
    seed: Seed,
}

impl Suite {
    /// The test that the harness of `package` calls `name`.
    #[must_use]
    pub fn new(package: &'static str, name: String) -> Suite {
        Suite { package, name, seed: Seed::new() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed.number()
    }

    /// Skips this test, aloud.
    pub(super) fn skip(&self, why: &str) {
        skip(&format!("{} {}", self.package, self.name), why);
    }
}

/// Says on the standard error, and in the file that `GAPLESS_SKIP_LOG` names, that a test did not run
/// and why.
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

/// The name by which the test harness knows a test: its path without the crate.
#[doc(hidden)]
#[must_use]
pub fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, inner)) => format!("{inner}::{test}"),
        None => test.to_owned(),
    }
}

/// A watchdog: a bound on a wait that is far beyond anything that is right.
pub(super) struct Watch {
    until: Instant,
    what: &'static str,
}

impl Watch {
    /// Waits for `what`, at most a minute.
    pub(super) fn new(what: &'static str) -> Watch {
        Watch { until: Instant::now() + PATIENCE, what }
    }

    /// Waits for `what`, which is promised within `ms`, at most ten times as long.
    pub(super) fn promised(what: &'static str, ms: u32) -> Watch {
        Watch { until: Instant::now() + Duration::from_millis(u64::from(ms).max(10)) * 10, what }
    }

    /// Not yet: lets others run.
    ///
    /// # Panics
    /// If it takes too long.
    pub(super) fn tick(&self) {
        assert!(!self.is_over(), "waiting for {} takes too long", self.what);
        std::thread::yield_now();
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() > self.until
    }
}

#[cfg(test)]
mod tests {
    use super::test_name;

    #[test]
    fn names_are_those_of_the_harness() {
        assert_eq!(test_name("krate::tests::sm", "order"), "tests::sm::order");
        assert_eq!(test_name("krate", "order"), "order");
    }
}
