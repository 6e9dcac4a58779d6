//! `cargo xtask package`: whether the crates for others could be published now.
//!
//! What the checks of CI look at, in seconds: what registries show of each crate, which files its package has, and
//! whether all that it depends on is public, too, and comes before it. `cargo xtask package` then has cargo pack all of
//! them and compile what it packed (`cargo publish --workspace --dry-run`), which takes minutes and asks the registry's
//! index.

use std::collections::BTreeSet;

use crate::metadata::{Checkout, Dependency, Package};
use crate::{Failure, shell};

/// Files that every package has.
const FILES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Keywords that registries allow.
const KEYWORDS_MAX: usize = 5;

/// How many crates a program builds at most that uses one of these, itself included.
const LIGHT: [(&str, usize); 2] = [("gapless", 45), ("gapless-dtype", 2)];

/// Checks, packs and compiles all public crates.
pub(crate) fn run(checkout: &Checkout) -> Result<(), Failure> {
    check(checkout)?;
    let mut command = shell::cargo();
    // Cargo refuses changes that are not committed, which matter for a release alone.
    command.args(["publish", "--workspace", "--dry-run", "--allow-dirty"]);
    shell::run(command.current_dir(&checkout.root))?;
    // Its links, too, without the features that the whole workspace turns on.
    let mut command = shell::cargo();
    command.args(["doc", "--package", "gapless", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    shell::run(command.current_dir(&checkout.root))
}

/// Checks manifests and lists of files; prints what is wrong.
pub(crate) fn check(checkout: &Checkout) -> Result<(), Failure> {
    let all = &checkout.packages;
    let mut wrong = Vec::new();
    for package in all.iter().filter(|package| package.is_public()) {
        wrong.extend(misses(package, all));
        let mut command = shell::cargo();
        command.args(["package", "--list", "--allow-dirty", "--offline", "--package"]);
        let list = shell::output(command.arg(&package.name).current_dir(&checkout.root))?;
        let missing = FILES.iter().filter(|file| !list.lines().any(|line| line == **file));
        wrong.extend(missing.map(|file| format!("{}: its package lacks {file}", package.name)));
    }
    let order = order(all);
    if let Err(names) = &order {
        wrong.push(format!("in a circle, with versions: {}", names.join(", ")));
    }
    for line in &wrong {
        println!("{line}");
    }
    println!("packages: {} public crates checked", order.map_or(0, |order| order.len()));
    match wrong.len() {
        0 => Ok(()),
        number => Err(Failure::Found { what: "flaws of packages", number: number as u64 }),
    }
}

/// Whether what users depend on is light.
pub(crate) fn light(checkout: &Checkout) -> Result<(), Failure> {
    let mut heavy = 0;
    for (name, most) in LIGHT {
        let mut command = shell::cargo();
        command.args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--package"]);
        let tree = shell::output(command.arg(name).current_dir(&checkout.root))?;
        let crates = crates(&tree);
        println!("{name}: {crates} crates; {most} at most");
        heavy += u64::from(crates > most);
    }
    match heavy {
        0 => Ok(()),
        number => Err(Failure::Found { what: "crates that are not light", number }),
    }
}

/// How many crates `cargo tree` lists.
fn crates(tree: &str) -> usize {
    // A name and a version; then what was said of it before.
    let crates = tree.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>());
    crates.filter(|words| !words.is_empty()).collect::<BTreeSet<_>>().len()
}

/// What is wrong with the manifest of a public crate.
fn misses(package: &Package, all: &[Package]) -> Vec<String> {
    let shown = &package.shown;
    let mut wrong = Vec::new();
    let mut check = |right: bool, what: &str| {
        if !right {
            wrong.push(format!("{}: {what}", package.name));
        }
    };
    check(shown.description.is_some(), "has no description");
    check(shown.license.is_some(), "has no licence");
    check(shown.repository.is_some(), "has no repository");
    check(shown.rust_version.is_some(), "has no rust-version");
    check(shown.readme.as_deref() == Some("README.md".as_ref()), "has no README.md of its own");
    check((1..=KEYWORDS_MAX).contains(&shown.keywords.len()), "has no keyword, or more than 5");
    check(!shown.categories.is_empty(), "has no category");
    check(shown.metadata.pointer("/docs/rs").is_some(), "does not say what docs.rs builds");
    for on in &package.dependencies {
        let pinned = on.req.starts_with('=');
        check(!pinned, &format!("pins {} ({}): fixes of it would not arrive", on.name, on.req));
        let ours = all.iter().find(|other| other.name == on.name);
        let tests_alone = on.kind.as_deref() == Some("dev") && on.req == "*";
        let there = ours.is_none_or(|ours| tests_alone || (ours.is_public() && on.req != "*"));
        check(there, &format!("depends on {}, which is private or has no version", on.name));
    }
    wrong
}

/// The public crates, each after those that it needs to be published; else the names of those in a circle.
pub(crate) fn order(all: &[Package]) -> Result<Vec<&Package>, Vec<&str>> {
    let mut open: Vec<&Package> = all.iter().filter(|package| package.is_public()).collect();
    let mut order: Vec<&Package> = Vec::new();
    while !open.is_empty() {
        // A path without a version is left out of what is published.
        let waits = |on: &Dependency| on.req != "*" && open.iter().any(|p| p.name == on.name);
        let ready = |package: &Package| !package.dependencies.iter().any(waits);
        let (now, later): (Vec<_>, Vec<_>) = open.iter().partition(|package| ready(package));
        if now.is_empty() {
            return Err(open.iter().map(|package| package.name.as_str()).collect());
        }
        order.extend::<Vec<&Package>>(now);
        open = later;
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Shown;

    fn on(name: &str, req: &str, kind: Option<&str>) -> Dependency {
        Dependency {
            name: name.to_owned(),
            req: req.to_owned(),
            kind: kind.map(str::to_owned),
            ..Dependency::default()
        }
    }

    fn public(name: &str, dependencies: Vec<Dependency>) -> Package {
        let some = || Some("x".to_owned());
        let shown = Shown {
            description: some(),
            license: some(),
            repository: some(),
            rust_version: some(),
            readme: Some("README.md".into()),
            keywords: vec!["x".to_owned()],
            categories: vec!["x".to_owned()],
            metadata: serde_json::json!({ "docs": { "rs": {} } }),
        };
        Package { name: name.to_owned(), dependencies, shown, ..Package::default() }
    }

    #[test]
    fn what_a_manifest_lacks_is_named() {
        let good = public("good", vec![on("libc", "^0.2", None)]);
        assert!(misses(&good, &[]).is_empty());
        let bare = Package { name: "bare".to_owned(), ..Package::default() };
        assert_eq!(misses(&bare, &[]).len(), 8);
        let mut many = good.clone();
        many.shown.keywords = vec![String::new(); 6];
        assert_eq!(misses(&many, &[]), ["good: has no keyword, or more than 5"]);
        let pinned = public("pinned", vec![on("libc", "=0.2.1", None)]);
        assert!(misses(&pinned, &[])[0].contains("pins libc (=0.2.1)"));
    }

    #[test]
    fn what_is_published_needs_nothing_private() {
        let private = Package { publish: Some(Vec::new()), ..public("private", Vec::new()) };
        let all = [private, public("low", Vec::new())];
        for (dependency, right) in [
            (on("low", "^0.1", None), true),
            (on("low", "*", None), false),
            (on("private", "^0.1", None), false),
            (on("private", "*", Some("dev")), true),
            (on("private", "^0.1", Some("dev")), false),
        ] {
            let said = misses(&public("high", vec![dependency.clone()]), &all);
            assert_eq!(said.is_empty(), right, "{dependency:?}: {said:?}");
        }
    }

    #[test]
    fn a_crate_that_is_needed_twice_counts_once() {
        let tree = "a v0.1.0 (/w/a)\nb v1.0.0\nb v2.0.0\nc v1.0.0 (proc-macro)\nb v1.0.0 (*)\n\n";
        assert_eq!(crates(tree), 4);
    }

    #[test]
    fn crates_come_after_what_they_need() {
        let back = |kind| on("high", if kind == Some("dev") { "*" } else { "^0.1" }, kind);
        let two =
            |kind| [public("high", vec![on("low", "^0.1", None)]), public("low", vec![back(kind)])];
        let circle = two(None);
        assert_eq!(order(&circle).unwrap_err(), ["high", "low"]);
        let straight = two(Some("dev"));
        let names: Vec<_> = order(&straight).unwrap().iter().map(|p| p.name.clone()).collect();
        assert_eq!(names, ["low", "high"]);
    }
}
