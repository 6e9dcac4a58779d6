//! What tests came to: each rank writes a line for each test that begins and ends, and a test failed if it did on any rank.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::Failure;

/// How a test ended, better ones first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Passed,
    Skipped,
    /// Why.
    Failed(String),
}

/// Tests by name, with how they ended on the rank where they ended worst.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcomes(pub(super) BTreeMap<String, Outcome>);

impl Outcomes {
    /// What the ranks of a job have written into the files `module.RANK` of a folder.
    pub(super) fn read(folder: &Path, module: &str) -> Result<Outcomes, Failure> {
        let failure = |source| Failure::File { path: folder.to_owned(), source };
        let mut all = Outcomes::default();
        for entry in fs::read_dir(folder).map_err(failure)? {
            let path = entry.map_err(failure)?.path();
            let is_rank =
                |end: &std::ffi::OsStr| end.to_str().is_some_and(|end| end.parse::<u32>().is_ok());
            if path.file_stem().is_some_and(|name| name == module)
                && path.extension().is_some_and(is_rank)
            {
                let bytes = fs::read(&path).map_err(failure)?;
                all.add(Outcomes::of_rank(&String::from_utf8_lossy(&bytes)));
            }
        }
        Ok(all)
    }

    /// What one rank wrote.
    fn of_rank(text: &str) -> Outcomes {
        let mut tests: BTreeMap<String, Option<Outcome>> = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.splitn(3, ' ');
            let (Some(outcome), Some(test)) = (words.next(), words.next()) else { continue };
            let why = words.next().unwrap_or_default().trim().to_owned();
            let outcome = match outcome {
                "passed" => Some(Outcome::Passed),
                "skipped" => Some(Outcome::Skipped),
                "failed" => Some(Outcome::Failed(why)),
                _ => None,
            };
            let known = tests.entry(test.to_owned()).or_default();
            *known = known.take().max(outcome);
        }
        let unended = || Outcome::Failed("it did not end".to_owned());
        Outcomes(tests.into_iter().map(|(test, end)| (test, end.unwrap_or_else(unended))).collect())
    }

    /// Adds others; what was worse stays.
    pub(super) fn add(&mut self, others: Outcomes) {
        for (test, outcome) in others.0 {
            let known = self.0.entry(test).or_insert(Outcome::Passed);
            if outcome > *known {
                *known = outcome;
            }
        }
    }

    /// Notes that a test passed, or failed, and why.
    pub(super) fn note(&mut self, test: &str, passed: bool, why: &str) {
        let outcome = if passed { Outcome::Passed } else { Outcome::Failed(why.to_owned()) };
        self.add(Outcomes(BTreeMap::from([(test.replace(' ', "_"), outcome)])));
    }

    /// What [`Outcomes::keep`] has written; nothing if there is no file.
    pub(super) fn kept(path: &Path) -> Outcomes {
        Outcomes::of_rank(&fs::read_to_string(path).unwrap_or_default())
    }

    /// Writes them as a rank would.
    pub(super) fn keep(&self, path: &Path) -> Result<(), Failure> {
        let line = |(test, outcome): (&String, &Outcome)| match outcome {
            Outcome::Passed => format!("passed {test}\n"),
            Outcome::Skipped => format!("skipped {test}\n"),
            Outcome::Failed(why) => format!("failed {test} {why}\n"),
        };
        let text: String = self.0.iter().map(line).collect();
        fs::write(path, text).map_err(|source| Failure::File { path: path.to_owned(), source })
    }

    /// How many passed, failed and were skipped.
    pub(super) fn sums(&self) -> [usize; 3] {
        let of = |wanted: fn(&Outcome) -> bool| self.0.values().filter(|end| wanted(end)).count();
        [
            of(|end| *end == Outcome::Passed),
            of(|end| matches!(end, Outcome::Failed(_))),
            of(|end| *end == Outcome::Skipped),
        ]
    }

    /// Those that failed, and why.
    pub(super) fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(test, end)| match end {
            Outcome::Failed(why) => Some((test.as_str(), why.as_str())),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_the_ranks_counts() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(
            "test_a.0",
            "begun a \npassed a \nbegun b \npassed b \nbegun c \nskipped c no files\nbegun d \n",
        );
        write(
            "test_a.1",
            "begun a \npassed a \nbegun b \nfailed b 1 != 2\npassed b \nbegun c \npassed c \n",
        );
        // Of another module, and no rank's.
        write("test_a_b.0", "failed a \n");
        write("test_a.log", "failed a \n");
        let all = Outcomes::read(folder.path(), "test_a").unwrap();
        assert_eq!(all.sums(), [1, 2, 1]);
        assert_eq!(all.failed().collect::<Vec<_>>(), [("b", "1 != 2"), ("d", "it did not end")]);
        assert_eq!(all.0["c"], Outcome::Skipped);
        let path = folder.path().join("kept");
        all.keep(&path).unwrap();
        assert_eq!(Outcomes::kept(&path).0, all.0);
    }
}
