//! What was skipped and why: how a test says so, and how it is listed.
//!
//! A test that finds something missing must not pass in silence, and libtest throws away what a
//! passing test prints. So:
//!
//! - `cargo xtask test` sets `GAPLESS_SKIP_LOG` to the absolute path of a file;
//! - a test that skips something calls `gapless_testkit::skip`, which appends one line to that file, in one write to a
//!   file opened for appending, and prints the same line to standard error:
//!
//!   ```text
//!   SKIPPED: <what>: <why>
//!   ```
//!
//!   for example `SKIPPED: CUDA IPC between two GPUs: no CUDA driver on this machine`. What is skipped
//!   is named without a colon followed by a space, since that ends it;
//! - without the variable the line only goes to standard error;
//! - `#[ignore = "why"]` counts as skipped too, and needs no line of its own.
//!
//! The same line from several tests, or from the same test in several builds, is one skip.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::Failure;

/// The variable that names the file.
pub(crate) const VARIABLE: &str = "GAPLESS_SKIP_LOG";

/// One thing skipped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skip {
    /// What was not done.
    pub(crate) what: String,
    /// Why not.
    pub(crate) why: String,
}

/// The file that tests write to, and what else was skipped.
#[derive(Debug)]
pub(crate) struct SkipLog {
    path: PathBuf,
}

impl SkipLog {
    /// An empty log in `folder`.
    pub(crate) fn start(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join("skips.log");
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, ""))
            .map_err(|source| Failure::File { path: path.clone(), source })?;
        Ok(Self { path })
    }

    /// The log in `folder`, with what it says already, if anything.
    pub(crate) fn open(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join("skips.log");
        fs::create_dir_all(folder)
            .map_err(|source| Failure::File { path: path.clone(), source })?;
        Ok(Self { path })
    }

    /// The path to set the variable to.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a skip of our own, as a test would.
    pub(crate) fn add(&self, skip: &Skip) -> Result<(), Failure> {
        self.add_lines(&format!("SKIPPED: {}: {}\n", skip.what, skip.why))
    }

    /// Adds what tests have said of theirs elsewhere.
    pub(crate) fn add_lines(&self, lines: &str) -> Result<(), Failure> {
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.path)
            .and_then(|mut file| file.write_all(lines.as_bytes()))
            .map_err(|source| self.failure(source))
    }

    /// Every skip, once, sorted.
    pub(crate) fn read(&self) -> Result<BTreeSet<Skip>, Failure> {
        let bytes = fs::read(&self.path).map_err(|source| self.failure(source))?;
        Ok(String::from_utf8_lossy(&bytes).lines().filter_map(parse).collect())
    }

    fn failure(&self, source: std::io::Error) -> Failure {
        Failure::File { path: self.path.clone(), source }
    }
}

/// A line of the log. One that does not follow the protocol is kept whole: a skip must not get lost.
fn parse(line: &str) -> Option<Skip> {
    let line = line.trim();
    if line.is_empty() {
        return None;
    }
    let rest = line.strip_prefix("SKIPPED:").unwrap_or(line).trim();
    let (what, why) = rest.split_once(": ").unwrap_or((rest, "the test did not say why"));
    Some(Skip { what: what.trim().to_owned(), why: why.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(what: &str, why: &str) -> Skip {
        Skip { what: what.into(), why: why.into() }
    }

    #[test]
    fn lines_of_the_protocol_and_others() {
        assert_eq!(
            parse("SKIPPED: CUDA IPC: no driver: libcuda.so.1 is missing"),
            Some(skip("CUDA IPC", "no driver: libcuda.so.1 is missing"))
        );
        assert_eq!(
            parse("SKIPPED: huge pages"),
            Some(skip("huge pages", "the test did not say why"))
        );
        assert_eq!(parse("cuda: no"), Some(skip("cuda", "no")));
        assert_eq!(parse("  "), None);
    }

    #[test]
    fn the_same_skip_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let log = SkipLog::start(folder.path()).unwrap();
        let (cma, ib) = (skip("CMA", "refused"), skip("verbs", "no device"));
        for one in [&cma, &ib, &cma] {
            log.add(one).unwrap();
        }
        assert_eq!(log.read().unwrap(), BTreeSet::from([cma, ib]));
        // A second run starts anew.
        let log = SkipLog::start(folder.path()).unwrap();
        assert_eq!(log.read().unwrap(), BTreeSet::new());
    }
}
