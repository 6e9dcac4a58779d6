//! Counting what cargo and libtest say.

use std::collections::BTreeSet;

use crate::skips::Skip;

/// What a number of `cargo test` runs came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    passed: u64,
    /// Tests that libtest reported as failed.
    failed: u64,
    /// Binaries, builds and documentation tests that ended without reporting.
    broken: u64,
    /// `test result:` lines, and those among them that report a failure.
    results: u64,
    failed_results: u64,
    /// Binaries that cargo started, and targets that it says failed.
    started: u64,
    failed_targets: u64,
    ignored: BTreeSet<Skip>,
    culprits: Vec<String>,
    /// Sums count although they mention tests that were filtered out.
    chosen: bool,
}

impl Tally {
    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    /// Failed tests, and whatever ended without saying how many failed.
    pub(super) fn failed(&self) -> u64 {
        self.failed + self.broken
    }

    /// Tests that are marked as ignored.
    pub(super) fn ignored(&self) -> impl Iterator<Item = Skip> {
        self.ignored.iter().cloned()
    }

    /// The tests and targets that failed, by name.
    pub(super) fn culprits(&self) -> &[String] {
        &self.culprits
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.broken += other.broken;
        self.results += other.results;
        self.failed_results += other.failed_results;
        self.started += other.started;
        self.failed_targets += other.failed_targets;
        self.ignored.extend(other.ignored.iter().cloned());
        self.culprits.extend(other.culprits.iter().cloned());
    }

    /// The tally of one test program that ran without cargo: it must have reported, and failures name it.
    pub(super) fn of(mut self, package: &str, target: &str) -> Self {
        if self.results == 0 && self.failed() == 0 {
            self.broken = 1;
        }
        if self.failed() > 0 {
            self.culprits.push(format!("{package} {target}"));
        }
        self
    }

    /// Of a program to which words were given that choose tests: its sum names those that were left out.
    pub(super) fn of_chosen() -> Self {
        Self { chosen: true, ..Self::default() }
    }

    /// The tally of some tests of one program, by the line of each: libtest's sum names those that were left out, as that
    /// of a test which started its own binary does.
    pub(super) fn of_some(text: &str, success: bool) -> Self {
        let mut tally = Self::default();
        for rest in text.lines().filter_map(|line| line.strip_prefix("test ")) {
            tally.one_test(rest);
            let outcome = rest.split_once(" ... ").map_or("", |(_, outcome)| outcome);
            tally.passed += u64::from(outcome == "ok");
            tally.failed += u64::from(outcome == "FAILED");
            tally.results = 1;
        }
        tally.ended(success);
        tally
    }

    /// The tally of tests that others have counted.
    pub(super) fn of_sums(passed: u64, failed: u64) -> Self {
        Self { passed, failed, results: 1, ..Self::default() }
    }

    /// A line of a test binary's standard output.
    pub(super) fn harness_says(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.result(rest);
        } else if let Some(rest) = line.strip_prefix("test ") {
            self.one_test(rest);
        }
    }

    /// A line of cargo's standard error.
    pub(super) fn cargo_says(&mut self, line: &str) {
        let words = line.trim_start();
        if words.starts_with("Running ") && words.ends_with(')') || words.starts_with("Doc-tests ")
        {
            self.started += 1;
        } else if let Some(target) = words.strip_prefix("error: test failed, to rerun pass ") {
            self.failed_targets += 1;
            self.culprits.push(target.to_owned());
        } else if let Some(target) = words.strip_prefix("error: doctest failed, to rerun pass ") {
            self.failed_targets += 1;
            self.culprits.push(target.to_owned());
        }
    }

    /// The command's end: whatever began and did not report is broken.
    pub(super) fn ended(&mut self, success: bool) {
        let silent_targets = self.failed_targets.saturating_sub(self.failed_results);
        let silent_binaries = self.started.saturating_sub(self.results);
        self.broken = silent_targets.max(silent_binaries);
        if !success && self.failed() == 0 {
            self.broken = 1;
        }
        if self.broken > 0 {
            self.culprits.push(format!("{} did not report (crash or build)", self.broken));
        }
    }

    /// `ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.03s`
    fn result(&mut self, text: &str) {
        let counts = text.split_once(". ").map_or("", |(_, counts)| counts);
        let number = |unit: &str| {
            counts
                .split(';')
                .find_map(|part| part.trim().strip_suffix(unit)?.trim().parse::<u64>().ok())
        };
        let (Some(passed), Some(failed)) = (number("passed"), number("failed")) else {
            return;
        };
        if !self.chosen && number("filtered out").unwrap_or(0) > 0 {
            return;
        }
        self.passed += passed;
        self.failed += failed;
        self.results += 1;
        self.failed_results += u64::from(failed > 0);
    }

    /// `NAME ... ok`, `NAME ... FAILED`, `NAME ... ignored` or `NAME ... ignored, WHY`
    fn one_test(&mut self, text: &str) {
        let Some((name, outcome)) = text.split_once(" ... ") else {
            return;
        };
        if outcome == "FAILED" {
            self.culprits.push(name.to_owned());
        } else if let Some(why) = outcome.strip_prefix("ignored") {
            let why = why.trim_start_matches(',').trim();
            self.ignored.insert(Skip {
                what: name.to_owned(),
                why: if why.is_empty() { "marked as ignored".to_owned() } else { why.to_owned() },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(cargo: &[&str], harness: &[&str], success: bool) -> Tally {
        let mut tally = Tally::default();
        cargo.iter().for_each(|line| tally.cargo_says(line));
        harness.iter().for_each(|line| tally.harness_says(line));
        tally.ended(success);
        tally
    }

    const OK: &str = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.03s";
    const BAD: &str = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s";
    const RUN: &str = "     Running unittests src/lib.rs (target/debug/deps/a-1)";

    #[test]
    fn passes_and_ignored_tests() {
        let t = tally(
            &[RUN, "   Doc-tests gapless"],
            &[
                "test a::b ... ok",
                "test a::c ... ignored, needs two GPUs",
                "test src/lib.rs - f (line 4) ... ignored",
                OK,
                OK,
            ],
            true,
        );
        assert_eq!((t.passed(), t.failed()), (10, 0));
        let ignored: Vec<String> =
            t.ignored().map(|skip| format!("{}: {}", skip.what, skip.why)).collect();
        assert_eq!(ignored, ["a::c: needs two GPUs", "src/lib.rs - f (line 4): marked as ignored"]);
    }

    #[test]
    fn failures_are_counted_and_named() {
        let t = tally(
            &[RUN, "error: test failed, to rerun pass `-p a --lib`"],
            &["test x ... FAILED", BAD],
            false,
        );
        assert_eq!((t.passed(), t.failed()), (3, 2));
        assert_eq!(t.culprits(), ["`-p a --lib`", "x"]);
    }

    #[test]
    fn a_crashed_binary_counts_as_one_failure_beside_the_others() {
        let t = tally(
            &[
                RUN,
                "error: test failed, to rerun pass `-p a --lib`",
                RUN,
                "error: test failed, to rerun pass `-p a --test crash`",
                RUN,
            ],
            &[BAD, "running 1 test", OK],
            false,
        );
        assert_eq!((t.passed(), t.failed()), (8, 3));
    }

    #[test]
    fn a_binary_that_leaves_early_with_success_counts_as_failed() {
        let t = tally(&[RUN, RUN], &["running 3 tests", OK], true);
        assert_eq!((t.passed(), t.failed()), (5, 1));
    }

    #[test]
    fn a_program_without_cargo_is_named_and_must_report() {
        let t = tally(&[], &[OK], true).of("gapless-x", "death");
        assert_eq!((t.passed(), t.failed(), t.culprits()), (5, 0, &[][..]));
        let t = tally(&[], &["test a ... FAILED", BAD], false).of("gapless-x", "death");
        assert_eq!((t.failed(), t.culprits()), (2, &["a".into(), "gapless-x death".into()][..]));
        let t = tally(&[], &["running 3 tests"], true).of("gapless-x", "death");
        assert_eq!((t.failed(), t.culprits()), (1, &["gapless-x death".into()][..]));
    }

    #[test]
    fn tests_that_were_chosen_are_counted_though_others_were_left_out() {
        let line = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1s";
        let mut t = Tally::of_chosen();
        t.harness_says(line);
        t.ended(true);
        assert_eq!((t.passed(), t.failed()), (2, 0));
        assert_eq!(tally(&[], &[line], true).passed(), 0);
    }

    #[test]
    fn some_tests_of_a_program_are_counted_one_by_one() {
        let text = "running 2 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... ignored, no port\n\
            test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 9 filtered out; finished in 1s";
        let t = Tally::of_some(text, false);
        assert_eq!((t.passed(), t.failed()), (1, 1));
        let t = Tally::of_some("running 0 tests", true).of("gapless-x", "verbs");
        assert_eq!((t.failed(), t.culprits()), (1, &["gapless-x verbs".into()][..]));
        assert_eq!(Tally::of_some("test a ... ok", false).failed(), 1);
    }

    #[test]
    fn a_build_that_fails_is_one_failure() {
        let t = tally(&["error: could not compile `a`"], &[], false);
        assert_eq!((t.passed(), t.failed()), (0, 1));
    }

    #[test]
    fn a_process_that_a_test_started_from_its_own_binary_is_not_counted() {
        let child = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0s";
        let t = tally(&[RUN], &[child, OK, child], true);
        assert_eq!((t.passed(), t.failed()), (5, 0));
    }

    #[test]
    fn sums() {
        let mut sum = tally(&[RUN], &[OK], true);
        sum.add(&tally(&[], &[], false));
        sum.add(&tally(&[RUN], &[OK], true));
        assert_eq!((sum.passed(), sum.failed()), (10, 1));
    }

    #[test]
    fn other_lines_say_nothing() {
        let t = tally(
            &["warning: unused", "   Compiling a v0.1.0 (/a)"],
            &["test result: weird", "tests are nice", "test without outcome"],
            true,
        );
        assert_eq!(t, Tally::default());
    }
}
