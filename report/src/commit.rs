//! Which sources a figure comes from.

use std::process::{Command, Stdio};

/// The commit of the sources measured: `GAPLESS_COMMIT` where it is set (a bundle carried to another
/// machine has no repository), else the abbreviated `HEAD` of the repository around the current
/// directory with `-dirty` after it when tracked files differ, else `unknown`.
#[must_use]
pub fn commit() -> String {
    commit_from(std::env::var("GAPLESS_COMMIT").ok(), git)
}

fn commit_from(stated: Option<String>, git: impl Fn(&[&str]) -> Option<String>) -> String {
    if let Some(stated) = stated.map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()) {
        return stated;
    }
    let Some(head) = git(&["rev-parse", "--short", "HEAD"]).filter(|head| !head.is_empty()) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => head,
        _ => format!("{head}-dirty"),
    }
}

/// Output of one git command, trimmed; `None` when git is missing or refuses.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        // Looking must not take the index lock from whoever is committing.
        .env("GIT_OPTIONAL_LOCKS", "0")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
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
        assert_eq!(commit_from(None, repository(Some("35bc120"), Some(""))), "35bc120");
        assert_eq!(
            commit_from(None, repository(Some("35bc120"), Some(" M a.rs"))),
            "35bc120-dirty"
        );
        assert_eq!(commit_from(None, repository(Some("35bc120"), None)), "35bc120-dirty");
        assert_eq!(commit_from(None, repository(None, None)), "unknown");
    }

    #[test]
    fn the_environment_wins_unless_blank() {
        let here = || repository(Some("35bc120"), Some(""));
        assert_eq!(commit_from(Some(" v1\n".into()), here()), "v1");
        assert_eq!(commit_from(Some("  ".into()), here()), "35bc120");
    }
}
