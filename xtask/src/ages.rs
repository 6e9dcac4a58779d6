//! `cargo xtask ages`: how many commits ago the programs were built whose figures are committed.
//!
//! `cargo xtask ci` warns of tables in BENCHMARKS.md that are older than [`COMMITS_MAX`]. Whoever makes a release runs
//! `cargo xtask ages --refuse` before.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::ci::files;
use crate::metadata::Checkout;
use crate::{Failure, shell};

/// From this age on, in commits, figures ought to be taken anew.
const COMMITS_MAX: u64 = 300;

/// How old a figure is.
#[derive(Debug, PartialEq)]
enum Age {
    Commits(u64),
    /// The commit is of a branch that was put on top of others later, or of nobody's.
    NotInHistory,
    /// It names none.
    Unnamed,
}

impl Age {
    fn is_old(&self) -> bool {
        !matches!(self, Age::Commits(0..=COMMITS_MAX))
    }

    fn said(&self) -> String {
        match self {
            Age::Commits(commits) => format!("{commits} commits old"),
            Age::NotInHistory => "not in the history".to_owned(),
            Age::Unnamed => "names no commit".to_owned(),
        }
    }
}

/// Prints the age of all figures.
///
/// # Errors
/// With `refuse`: a table of BENCHMARKS.md is too old.
pub(crate) fn run(checkout: &Checkout, refuse: bool) -> Result<(), Failure> {
    let results = checkout.root.join("bench/results");
    let mut paths = files::files_with(&results, "json")?;
    paths.sort();
    for path in &paths {
        let text = read(path)?;
        let age = age(checkout, commit_of_report(&text).as_deref());
        println!("{}: {}", checkout.relative(path).display(), age.said());
    }
    match tables(checkout)? {
        number if refuse && number > 0 => Err(Failure::Found { what: "old tables", number }),
        _ => Ok(()),
    }
}

/// Warns of the tables of BENCHMARKS.md that are too old.
pub(crate) fn warn(checkout: &Checkout) -> Result<(), Failure> {
    tables(checkout).map(|_| ())
}

fn tables(checkout: &Checkout) -> Result<u64, Failure> {
    // Without a history (a packed source, a shallow clone) there is no age.
    if git(&checkout.root, &["rev-parse", "--is-shallow-repository"]).as_deref() != Some("false") {
        println!("ages: the whole history is not here, so nothing was looked at");
        return Ok(0);
    }
    let text = read(&checkout.root.join("BENCHMARKS.md"))?;
    let mut old = 0;
    for (line, commit) in commits_of_page(&text) {
        let age = age(checkout, Some(commit));
        if age.is_old() {
            old += 1;
            println!("warning: BENCHMARKS.md:{line}: the table of {commit} is {}", age.said());
        }
    }
    Ok(old)
}

fn age(checkout: &Checkout, commit: Option<&str>) -> Age {
    let Some(commit) = commit else { return Age::Unnamed };
    let base = commit.split('-').next().unwrap_or(commit);
    if base.len() < 7 || !base.bytes().all(|it| it.is_ascii_hexdigit()) {
        return Age::Unnamed;
    }
    if git(&checkout.root, &["merge-base", "--is-ancestor", base, "HEAD"]).is_none() {
        return Age::NotInHistory;
    }
    let count = git(&checkout.root, &["rev-list", "--count", &format!("{base}..HEAD")]);
    count.and_then(|count| count.parse().ok()).map_or(Age::NotInHistory, Age::Commits)
}

/// The commit that a report names.
fn commit_of_report(text: &str) -> Option<String> {
    let report: serde_json::Value = serde_json::from_str(text).ok()?;
    Some(report.get("commit")?.as_str()?.to_owned())
}

/// The lines of a page that say of which commit a table is («… at e29b028 …»), and the commits.
fn commits_of_page(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter_map(|(number, line)| {
        let is_commit =
            |word: &&str| word.len() >= 7 && word.bytes().all(|it| it.is_ascii_hexdigit());
        let words = line.split(" at ").skip(1);
        let mut words = words.filter_map(|rest| rest.split([' ', ';', '-', ',', '.']).next());
        Some((number, words.find(is_commit)?))
    })
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|source| Failure::File { path: path.to_owned(), source })
}

/// What git says; `None` if it refuses.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.current_dir(root).args(arguments).stderr(Stdio::null());
    shell::output(&mut command).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_found_on_a_page() {
        let page = "# Page\n\n`figures gpu` at 50b821d (1,176 commits before 76fe4c2f); GPU.\nlook at once\n\
                    taken at 44f7a498, twice\n`x` at 2b8e199-dirty; y\n";
        let found: Vec<_> = commits_of_page(page).collect();
        assert_eq!(found, [(3, "50b821d"), (5, "44f7a498"), (6, "2b8e199")]);
    }

    #[test]
    fn a_report_names_its_commit_or_none() {
        assert_eq!(commit_of_report(r#"{"commit": "abc"}"#).as_deref(), Some("abc"));
        assert_eq!(commit_of_report("[]"), None);
        assert_eq!(commit_of_report("no"), None);
    }

    #[test]
    fn what_is_too_old() {
        assert!(!Age::Commits(COMMITS_MAX).is_old());
        assert!(
            Age::Commits(COMMITS_MAX + 1).is_old()
                && Age::Unnamed.is_old()
                && Age::NotInHistory.is_old()
        );
    }
}
