//! `cargo xtask release VERSION`: prepares a release; `cargo xtask publish`: hands its crates to the registry.
//!
//! A release is a commit with a tag, `vVERSION`, on which CI and the soak have passed. `release` compares the public
//! interfaces with the last tag, writes the version and the changelog's heading, and says what is to be done then.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::metadata::{Checkout, Package};
use crate::{Failure, ages, package, shell};

/// Checks what a release must have, and writes its version.
pub(crate) fn run(checkout: &Checkout, version: &str) -> Result<(), Failure> {
    let refuse = |why: String| Err(Failure::Argument(why));
    let old = checkout.packages.first().map_or("", |package| package.version.as_str());
    let (before, after) = match (numbers(old), numbers(version)) {
        (Some(before), Some(after)) if after > before => (before, after),
        _ => return refuse(format!("{version} is no version after {old}")),
    };
    clean(checkout)?;
    ages::run(checkout, true)?;
    package::check(checkout)?;
    semver(checkout, before, after)?;
    let edit = |file: &str, change: &dyn Fn(&str) -> Option<String>| {
        let path = checkout.root.join(file);
        let text = fs::read_to_string(&path);
        let text = text.map_err(|source| Failure::File { path: path.clone(), source })?;
        let Some(text) = change(&text) else { return refuse(format!("{file}: nothing to change")) };
        fs::write(&path, text).map_err(|source| Failure::File { path, source })
    };
    let date = shell::output(Command::new("date").args(["-u", "+%F"]))?;
    edit("Cargo.toml", &|text| with_version(text, old, version))?;
    edit("CHANGELOG.md", &|text| with_heading(text, version, date.trim()))?;
    // Lock files have the versions of our crates.
    let fuzz = checkout.fuzz().join("Cargo.toml");
    let root = checkout.root.join("Cargo.toml");
    for manifest in checkout.examples().into_iter().chain([fuzz, root]) {
        let mut command = shell::cargo();
        command.args(["update", "--workspace", "--offline", "--manifest-path"]).arg(manifest);
        shell::run(&mut command)?;
    }
    println!(
        "\nwritten; next:\n  .ci/run && cargo xtask soak --minutes 60\n  \
         git commit -am 'Release {version}' && git tag v{version}\n  cargo xtask publish"
    );
    Ok(())
}

/// Compares public interfaces with those of the last release, as far as the new version promises to keep them; says so
/// if there is none.
fn semver(checkout: &Checkout, old: [u64; 3], new: [u64; 3]) -> Result<(), Failure> {
    let mut tag = git(checkout, &["describe", "--tags", "--abbrev=0", "--match", "v*"]);
    let tag = tag.output().map_err(|source| shell::could_not_start(&tag, source))?;
    if !tag.status.success() {
        println!("semver: NOT CHECKED: there is no tag v* to compare with");
        return Ok(());
    }
    let installed = shell::cargo().args(["semver-checks", "--version"]).output();
    if !installed.is_ok_and(|said| said.status.success()) {
        let why = "cargo-semver-checks is not installed: cargo install cargo-semver-checks";
        return Err(Failure::Argument(why.to_owned()));
    }
    let tag = String::from_utf8_lossy(&tag.stdout).trim().to_owned();
    // Below 1.0.0 the second number is for changes that break users, and the third for all others.
    let kept = if old[..2] == new[..2] { "minor" } else { "major" };
    let Ok(order) = package::order(&checkout.packages) else {
        return Err(Failure::Argument("public crates need each other in a circle".to_owned()));
    };
    for package in order {
        let mut command = shell::cargo();
        command.args(["semver-checks", "--package", &package.name, "--baseline-rev", &tag]);
        command.args(["--release-type", kept, "--only-explicit-features"]);
        // InfiniBand needs libraries, and what is for tests alone promises nothing.
        if package.name == "gapless" {
            command.args(["--features", "full"]);
        }
        shell::run(command.current_dir(&checkout.root))?;
    }
    Ok(())
}

/// Hands the public crates to the registry, one after the other; without `go` it only says so.
pub(crate) fn publish(
    checkout: &Checkout,
    go: bool,
    minutes: u64,
    from: Option<&str>,
) -> Result<(), Failure> {
    package::check(checkout)?;
    let refuse = |why: &str| Err(Failure::Argument(why.to_owned()));
    let Ok(order) = package::order(&checkout.packages) else { return refuse("see above") };
    let first = from.map_or(Some(0), |name| order.iter().position(|one| one.name == name));
    let Some(first) = first else { return refuse("--from names no public crate") };
    let order: &[&Package] = &order[first..];
    if go {
        let version = order.first().map_or("", |one| one.version.as_str());
        let tag = shell::output(&mut git(checkout, &["tag", "--points-at", "HEAD"]))?;
        if !tag.lines().any(|tag| tag.strip_prefix('v') == Some(version)) {
            return refuse("this commit has no tag of its version: cargo xtask release");
        }
        let nobody = |one: &&Package| one.shown.repository.iter().any(|at| at.contains(".example"));
        if order.iter().any(nobody) {
            return refuse("`repository` in Cargo.toml is nobody's address yet");
        }
        clean(checkout)?;
    }
    for (at, one) in order.iter().enumerate() {
        let mut command = shell::cargo();
        command.args(["publish", "--package", &one.name]).current_dir(&checkout.root);
        if !go {
            shell::show(&command);
            continue;
        }
        shell::run(&mut command)?;
        if at + 1 < order.len() {
            println!(
                "{minutes} min until the next; after a failure: --from {}",
                order[at + 1].name
            );
            std::thread::sleep(Duration::from_secs(60 * minutes));
        }
    }
    if !go {
        println!("{} crates, one in {minutes} min; --go does it", order.len());
    }
    Ok(())
}

fn git(checkout: &Checkout, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(&checkout.root);
    command
}

/// Refuses a checkout with changes that are not committed.
fn clean(checkout: &Checkout) -> Result<(), Failure> {
    match shell::output(&mut git(checkout, &["status", "--porcelain"]))?.as_str() {
        "" => Ok(()),
        _ => Err(Failure::Argument("there are changes that are not committed".to_owned())),
    }
}

/// The three numbers of a version.
fn numbers(version: &str) -> Option<[u64; 3]> {
    let digits = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = version.split('.').map(|part| Some(part).filter(digits)?.parse().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

/// The root manifest with another version of the workspace, and of its crates where they are depended on.
fn with_version(text: &str, old: &str, new: &str) -> Option<String> {
    let old = format!("version = \"{old}\"");
    let ours = |line: &str| line.starts_with(&old) || line.contains("{ path = ");
    let change = |line: &str| match ours(line) {
        true => line.replace(&old, &format!("version = \"{new}\"")),
        false => line.to_owned(),
    };
    let changed: String = text.lines().map(|line| change(line) + "\n").collect();
    (changed != text).then_some(changed)
}

/// The changelog with a heading for what is unreleased, and an empty list of that.
fn with_heading(text: &str, version: &str, date: &str) -> Option<String> {
    let heading = "## Unreleased\n";
    let released = format!("{heading}\n## {version} ({date})\n");
    text.contains(heading).then(|| text.replacen(heading, &released, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_three_numbers_and_grow() {
        assert_eq!(numbers("0.10.2"), Some([0, 10, 2]));
        assert!(numbers("0.10.0") > numbers("0.9.9"));
        for text in ["", "1", "1.2", "1.2.3.4", "1.2.x", "v1.2.3", "1.2.3-rc"] {
            assert_eq!(numbers(text), None, "{text}");
        }
    }

    #[test]
    fn only_our_crates_change_their_version() {
        let text = "version = \"0.1.0\"\na = { path = \"a\", version = \"0.1.0\" }\n\
                    b = { path = \"b\" }\nslab = { version = \"0.1.0\" }\n";
        let changed = with_version(text, "0.1.0", "0.2.0").unwrap();
        assert_eq!(changed.matches("0.2.0").count(), 2);
        assert!(changed.contains("slab = { version = \"0.1.0\" }"));
        assert_eq!(with_version(text, "3.0.0", "4.0.0"), None);
    }

    #[test]
    fn the_changelog_begins_a_new_list() {
        let text = "# Changelog\n\n## Unreleased\n\n- x\n";
        let changed = with_heading(text, "0.2.0", "2027-01-02").unwrap();
        assert_eq!(changed, "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2027-01-02)\n\n- x\n");
        assert_eq!(with_heading("# Changelog\n", "0.2.0", "2027-01-02"), None);
    }
}
