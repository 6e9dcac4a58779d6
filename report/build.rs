//! Says at build time which commit the sources are of, so that a report names its program, wherever that runs.
//!
//! `GAPLESS_COMMIT`, if it is set, is believed (sources without a repository). Otherwise the repository that this
//! folder is tracked in is asked. Documents, results, tests and chores are no sources of a program that measures.

use std::path::Path;
use std::process::{Command, Stdio};

/// What of the repository makes a program differ.
const SOURCES: &[&str] = &[
    "--",
    ".",
    ":(exclude)bench/results",
    ":(exclude)fuzz",
    ":(exclude)tests",
    ":(exclude)xtask",
    ":(exclude).ci",
    ":(exclude,glob)**/tests/**",
    ":(exclude,glob)**/tests.rs",
    ":(exclude,glob)**/*.md",
];

fn main() {
    println!("cargo::rerun-if-env-changed=GAPLESS_COMMIT");
    let stated = std::env::var("GAPLESS_COMMIT").unwrap_or_default().trim().to_owned();
    let commit = if stated.is_empty() { commit_of_repository() } else { stated };
    println!("cargo::rustc-env=GAPLESS_REPORT_COMMIT={commit}");
}

/// Asks the repository, and has cargo do so again when it changes.
fn commit_of_repository() -> String {
    let root = git(Path::new("."), &["rev-parse", "--show-toplevel"]);
    // A folder in somebody else's repository (a cache of packages, say) is not tracked there.
    let root = root.filter(|_| {
        git(Path::new("."), &["ls-files", "Cargo.toml"]).is_some_and(|it| !it.is_empty())
    });
    let ask = |arguments: &[&str]| git(Path::new(root.as_deref()?), arguments);
    for name in ["HEAD", "logs/HEAD"] {
        watch(ask(&["rev-parse", "--path-format=absolute", "--git-path", name]).as_deref());
    }
    let sources = ask(&[&["ls-files"], SOURCES].concat()).unwrap_or_default();
    for source in sources.lines() {
        watch(root.as_ref().map(|root| format!("{root}/{source}")).as_deref());
    }
    commit_from(ask)
}

/// Has cargo run this again when the file changes. One that is not there would have it run each time.
fn watch(path: Option<&str>) {
    if let Some(path) = path.filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
}

/// The abbreviated `HEAD` with `-dirty` after it if sources differ, or `unknown`.
fn commit_from(git: impl Fn(&[&str]) -> Option<String>) -> String {
    let Some(head) = git(&["rev-parse", "--short", "HEAD"]).filter(|head| !head.is_empty()) else {
        return "unknown".to_owned();
    };
    match git(&[&["status", "--porcelain", "--untracked-files=no"], SOURCES].concat()) {
        Some(changes) if changes.is_empty() => head,
        _ => format!("{head}-dirty"),
    }
}

/// Output of one git command, trimmed; `None` if git is missing or refuses.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .current_dir(folder)
        .args(arguments)
        // Looking must not take the index lock from whoever is committing.
        .env("GIT_OPTIONAL_LOCKS", "0")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(
        head: Option<&str>,
        changes: Option<&str>,
    ) -> impl Fn(&[&str]) -> Option<String> + use<> {
        let (head, changes) = (head.map(str::to_owned), changes.map(str::to_owned));
        move |arguments: &[&str]| match arguments[0] {
            "rev-parse" => head.clone(),
            _ => changes.clone(),
        }
    }

    #[test]
    fn clean_dirty_and_no_repository() {
        assert_eq!(commit_from(repository(Some("35bc120"), Some(""))), "35bc120");
        assert_eq!(commit_from(repository(Some("35bc120"), Some(" M a.rs"))), "35bc120-dirty");
        assert_eq!(commit_from(repository(Some("35bc120"), None)), "35bc120-dirty");
        assert_eq!(commit_from(repository(None, None)), "unknown");
    }
}
