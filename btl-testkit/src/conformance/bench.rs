//! What every test of the suite has: its name, its seed, its patience, and a way to be skipped.

use super::seed::Seed;
use super::skipped;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Patience where nothing is promised.
const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    /// How often a wait may look in vain, in place of how long: see [`looking_at_most`].
    static LOOKS_MAX: Cell<Option<u32>> = const { Cell::new(None) };
}

/// One test of the suite: its name, as the test harness filters by it, and its seed. Made by
/// [`conformance!`](crate::conformance!).
#[derive(Debug)]
pub struct Suite {
    package: &'static str,
    name: String,
    seed: Seed,
    /// Whether a skip is told to nobody but whoever asks [`Suite::was_skipped`].
    quiet: bool,
    skipped: Cell<bool>,
}

impl Suite {
    /// The test that the harness of `package` calls `name`.
    #[must_use]
    pub fn new(package: &'static str, name: String) -> Suite {
        let (seed, skipped) = (Seed::new(), Cell::new(false));
        Suite { package, name, seed, quiet: false, skipped }
    }

    /// For tests of the suite itself: with a given seed, and skipped in silence.
    #[doc(hidden)]
    #[must_use]
    pub fn quiet(name: &str, seed: u64) -> Suite {
        let (seed, skipped) = (Seed::of(seed), Cell::new(false));
        Suite { package: "", name: name.to_owned(), seed, quiet: true, skipped }
    }

    /// Whether the test that ran has skipped itself.
    #[doc(hidden)]
    pub fn was_skipped(&self) -> bool {
        self.skipped.get()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed.number()
    }

    /// Skips this test, aloud.
    pub(super) fn skip(&self, why: &str) {
        self.skipped.set(true);
        if !self.quiet {
            gapless_testkit::skip(&format!("{} {}", self.package, self.name), why);
            skipped::note(self.package, &self.name, why);
        }
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

/// For tests of the suite itself, whose transports never do what is waited for: while `run` runs, waits
/// of this thread end after so many looks, if a number is given, and no clock is asked. So a busy machine changes nothing.
#[doc(hidden)]
pub fn looking_at_most<R>(looks: Option<u32>, run: impl FnOnce() -> R) -> R {
    let before = LOOKS_MAX.replace(looks);
    let made = run();
    LOOKS_MAX.set(before);
    made
}

/// What [`looking_at_most`] says in this thread.
pub(super) fn looks_max() -> Option<u32> {
    LOOKS_MAX.get()
}

/// A watchdog: a bound on a wait that is far beyond anything that is right.
pub(super) struct Watch {
    until: Instant,
    looks: Cell<Option<u32>>,
    ticks: Cell<u32>,
    what: &'static str,
}

/// How often a [`Watch`] looks before it yields. A test drives both ends from one thread, so usually its own next look
/// makes progress; on a busy machine a thread that yields waits for the time slices of all others.
const LOOKS_BEFORE_YIELDING: u32 = 64;

impl Watch {
    /// Waits for `what`, at most a minute.
    pub(super) fn new(what: &'static str) -> Watch {
        Watch::lasting(PATIENCE, what)
    }

    /// Waits for `what`, which is promised within `ms`, at most ten times as long, or ten seconds if that is longer.
    pub(super) fn promised(what: &'static str, ms: u32) -> Watch {
        let least = Duration::from_secs(10);
        Watch::lasting((Duration::from_millis(ms.into()) * 10).max(least), what)
    }

    /// Waits for `what`, which another thread does, however impatient the test is.
    pub(super) fn by_the_clock(what: &'static str) -> Watch {
        Watch { looks: Cell::new(None), ..Watch::new(what) }
    }

    fn lasting(patience: Duration, what: &'static str) -> Watch {
        let (until, looks) = (Instant::now() + patience, Cell::new(LOOKS_MAX.get()));
        Watch { until, looks, ticks: Cell::new(0), what }
    }

    /// Not yet: lets others run, if it is not soon.
    ///
    /// # Panics
    /// If it takes too long.
    pub(super) fn tick(&self) {
        let over = match self.looks.get() {
            Some(left) => {
                self.looks.set(Some(left.saturating_sub(1)));
                left == 0
            }
            None => Instant::now() > self.until,
        };
        assert!(!over, "waiting for {} takes too long", self.what);
        self.ticks.set(self.ticks.get().saturating_add(1));
        if self.ticks.get() > LOOKS_BEFORE_YIELDING {
            std::thread::yield_now();
        }
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
