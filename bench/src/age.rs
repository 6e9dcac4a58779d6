//! How old a figure is: in commits, from the one that its program was built of to the one at which a page is made.

use std::path::Path;
use std::process::{Command, Stdio};

/// `e29b028 (1,038 commits before 76fe4c2f)`, or what is known instead. `folder` is in the repository.
pub(crate) fn dated(commit: &str, folder: &Path) -> String {
    let git = |arguments: &[&str]| git(folder, arguments);
    let Some(head) = git(&["rev-parse", "--short", "HEAD"]) else { return commit.to_owned() };
    let base = base(commit);
    if git(&["merge-base", "--is-ancestor", base, "HEAD"]).is_none() {
        return format!("{commit} (not in the history of {head})");
    }
    let count = git(&["rev-list", "--count", &format!("{base}..HEAD")]).unwrap_or_default();
    format!("{commit} ({} commits before {head})", grouped(&count))
}

/// `text` without what [`dated`] adds: ages change with each commit, figures do not.
#[cfg(test)]
pub(crate) fn undated(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::with_capacity(text.len());
    while let Some(start) = rest.find(" (") {
        let (before, from) = rest.split_at(start);
        kept += before;
        let end = from.find(')').map_or(from.len(), |end| end + 1);
        let said = &from[..end];
        let is_age =
            said.contains(" commits before ") || said.starts_with(" (not in the history of ");
        // One word goes over, so that what follows is looked at, too.
        rest = if is_age {
            &from[end..]
        } else {
            kept += " (";
            &from[2..]
        };
    }
    kept + rest
}

/// A commit without the `-dirty` behind it.
fn base(commit: &str) -> &str {
    commit.split('-').next().unwrap_or(commit)
}

/// `1038` as `1,038`.
fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What git says, trimmed; `None` if it is missing or refuses.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_taken_off_and_nothing_else() {
        let text = "`a (b)` at e29b028 (1,038 commits before 76fe); x (y)\nat unknown (not in the history of 76fe).";
        assert_eq!(undated(text), "`a (b)` at e29b028; x (y)\nat unknown.");
        assert_eq!(undated("no ( end"), "no ( end");
    }

    #[test]
    fn thousands_have_commas() {
        assert_eq!([grouped("7"), grouped("300"), grouped("1038")], ["7", "300", "1,038"]);
        assert_eq!(base("2b8e199-dirty"), "2b8e199");
    }

    #[test]
    fn outside_a_repository_a_commit_stands_alone() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(dated("e29b028", folder.path()), "e29b028");
    }
}
