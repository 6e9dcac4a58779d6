//! What comes into the build from others: under which licences, from where, and what may not come at all.
//!
//! Cargo says what there is, for every feature and each platform of ours. Nothing has to be built for that.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::metadata::Checkout;
use crate::{Failure, shell};

/// Licences that ask for nothing but attribution.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];
/// Releases that bring the text of a licence in the place of its name; the texts were read.
const READ: &[(&str, &str, &str)] = &[("rdma-sys", "0.3.0", "MIT")];
/// Crates that may not come, not even with another: and why.
const UNWANTED: &[(&str, &str)] = &[
    ("anyhow", "error types name their culprit here"),
    ("mpi", "other implementations of MPI are peers to measure against, never parts"),
    ("mpi-sys", "other implementations of MPI are peers to measure against, never parts"),
];
/// Where crates of others may come from: the registry that cargo uses unless told otherwise.
const SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";
const PLATFORMS: &[&str] = &["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

#[derive(Deserialize)]
struct Graph {
    packages: Vec<Crate>,
}

/// A crate that is built, ours or not.
#[derive(Clone, Debug, Default, Deserialize)]
struct Crate {
    name: String,
    version: String,
    license: Option<String>,
    /// Ours have none.
    source: Option<String>,
    dependencies: Vec<Wanted>,
}

/// What a manifest asks for.
#[derive(Clone, Debug, Default, Deserialize)]
struct Wanted {
    name: String,
    req: String,
    path: Option<String>,
}

/// Checks everything in the workspace's graph; prints what is wrong, and which crates come in two releases.
pub(super) fn run(checkout: &Checkout) -> Result<(), Failure> {
    let mut all = BTreeMap::new();
    for platform in PLATFORMS {
        let mut command = shell::cargo();
        command.current_dir(&checkout.root).args(["metadata", "--format-version=1", "--locked"]);
        command.args(["--all-features", "--filter-platform", platform]);
        let text = shell::output(&mut command)?;
        let graph: Graph = serde_json::from_str(&text)
            .map_err(|source| Failure::Metadata { manifest: (*platform).to_owned(), source })?;
        for one in graph.packages {
            all.insert((one.name.clone(), one.version.clone()), one);
        }
    }
    let all: Vec<Crate> = all.into_values().collect();
    let wrong = wrong(&all);
    wrong.iter().for_each(|line| println!("{line}"));
    // Two releases cost time to build; they are not wrong.
    for (name, versions) in releases(&all).into_iter().filter(|(_, versions)| versions.len() > 1) {
        println!("{name} comes in {} releases: {}", versions.len(), versions.join(", "));
    }
    println!("foreign crates: {} checked", all.iter().filter(|one| one.source.is_some()).count());
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Failure::Found { what: "crates that may not come so", number: wrong.len() as u64 })
}

/// A line for everything that is against the rules.
fn wrong(all: &[Crate]) -> Vec<String> {
    let mut wrong = Vec::new();
    for one in all {
        let Crate { name, version, license, source, dependencies } = one;
        let mut say = |what: String| wrong.push(format!("{name} {version}: {what}"));
        let read = READ.iter().find(|(known, release, _)| known == name && release == version);
        let license = license.as_deref().or(read.map(|(.., licence)| *licence));
        match license.map(|text| (text, allowed(text))) {
            None => say("names no licence".to_owned()),
            Some((text, None)) => say(format!("{text}: no expression of licences")),
            Some((text, Some(false))) => say(format!("{text}: not among the licences allowed")),
            Some((_, Some(true))) => {}
        }
        if let Some(source) = source.as_deref().filter(|source| *source != SOURCE) {
            say(format!("comes from {source}"));
        }
        if let Some((_, why)) = UNWANTED.iter().find(|(unwanted, _)| unwanted == name) {
            say(format!("may not come: {why}"));
        }
        let any = |wanted: &&Wanted| wanted.req == "*" && wanted.path.is_none();
        for wanted in dependencies.iter().filter(any).filter(|_| source.is_none()) {
            say(format!("asks for any release of {}", wanted.name));
        }
    }
    wrong
}

/// The releases of every crate.
fn releases(all: &[Crate]) -> BTreeMap<&str, Vec<&str>> {
    let mut releases = BTreeMap::<&str, BTreeSet<&str>>::new();
    for one in all {
        releases.entry(&one.name).or_default().insert(&one.version);
    }
    releases.into_iter().map(|(name, versions)| (name, versions.into_iter().collect())).collect()
}

/// Whether an SPDX expression can be met by licences that are allowed; nothing if it is none.
fn allowed(text: &str) -> Option<bool> {
    // Old manifests have a slash for OR.
    let spaced = text.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let answer = any_of(&mut rest, 0)?;
    rest.is_empty().then_some(answer)
}

/// How deep parentheses may go.
const DEPTH_MAX: usize = 8;

fn any_of(rest: &mut &[&str], depth: usize) -> Option<bool> {
    let mut answer = all_of(rest, depth)?;
    while let ["OR", more @ ..] = *rest {
        *rest = more;
        answer |= all_of(rest, depth)?;
    }
    Some(answer)
}

fn all_of(rest: &mut &[&str], depth: usize) -> Option<bool> {
    let mut answer = one_of(rest, depth)?;
    while let ["AND", more @ ..] = *rest {
        *rest = more;
        answer &= one_of(rest, depth)?;
    }
    Some(answer)
}

fn one_of(rest: &mut &[&str], depth: usize) -> Option<bool> {
    match *rest {
        ["(", inner @ ..] if depth < DEPTH_MAX => {
            *rest = inner;
            let answer = any_of(rest, depth + 1)?;
            let [")", after @ ..] = *rest else { return None };
            *rest = after;
            Some(answer)
        }
        ["(" | ")" | "AND" | "OR" | "WITH", ..] | [] => None,
        [name, "WITH", exception, after @ ..] => {
            *rest = after;
            Some(LICENCES.contains(&format!("{name} WITH {exception}").as_str()))
        }
        [name, after @ ..] => {
            *rest = after;
            Some(LICENCES.contains(name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        for (text, expected) in [
            ("MIT", Some(true)),
            ("GPL-3.0-only", Some(false)),
            ("GPL-3.0-only OR MIT", Some(true)),
            ("MIT/Apache-2.0", Some(true)),
            ("MIT AND GPL-3.0-only", Some(false)),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", Some(true)),
            ("MIT OR GPL-2.0-only AND GPL-3.0-only", Some(true)),
            ("(MIT OR GPL-2.0-only) AND GPL-3.0-only", Some(false)),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0-only", Some(true)),
            ("MIT WITH Classpath-exception-2.0", Some(false)),
            ("", None),
            ("MIT OR", None),
            ("(MIT", None),
            ("MIT)", None),
            ("MIT Apache-2.0", None),
            ("((((((((((((MIT))))))))))))", None),
        ] {
            assert_eq!(allowed(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = Crate {
            name: "good".to_owned(),
            version: "1.0.0".to_owned(),
            license: Some("MIT".to_owned()),
            source: Some(SOURCE.to_owned()),
            dependencies: vec![Wanted { name: "x".to_owned(), req: "*".to_owned(), path: None }],
        };
        assert!(wrong(std::slice::from_ref(&good)).is_empty());
        let said = |one: Crate| wrong(&[one]).join("\n");
        let here = || Some("/here".to_owned());
        let any = |path| vec![Wanted { name: "x".to_owned(), req: "*".to_owned(), path }];
        let ours = |path| Crate { source: None, dependencies: any(path), ..good.clone() };
        assert_eq!(said(ours(None)), "good 1.0.0: asks for any release of x");
        assert_eq!(said(ours(here())), "");
        let git = Crate { source: Some("git+https://x".to_owned()), ..good.clone() };
        assert_eq!(said(git), "good 1.0.0: comes from git+https://x");
        assert!(said(Crate { license: None, ..good.clone() }).contains("no licence"));
        assert!(said(Crate { name: "mpi".to_owned(), ..good.clone() }).contains("may not come"));
        let two = [good.clone(), Crate { version: "2.0.0".to_owned(), ..good }];
        assert_eq!(releases(&two)["good"], ["1.0.0", "2.0.0"]);
    }
}
