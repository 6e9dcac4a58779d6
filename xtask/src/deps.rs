//! `cargo xtask deps`: the map of the layers, checked against every manifest.
//!
//! Manifests are what is checked, for all targets and features at once: a dependency that no build
//! on this machine turns on still counts.

mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::Failure;
use crate::metadata::{self, Checkout, Dependency, Package};
use rules::{BANNED, Banned, EXAMPLES, EXAMPLES_ALL, RESERVED, RULES, Reserved, Rule, TESTKIT};

/// Checks the workspace and the examples; prints every violation.
pub(crate) fn run(checkout: &Checkout) -> Result<(), Failure> {
    let mut violations = check(&checkout.packages, RULES, RESERVED, BANNED);
    let mut examples = 0usize;
    for manifest in checkout.examples() {
        let folder = manifest.parent().and_then(|folder| folder.file_name());
        let folder = folder.unwrap_or_default().to_string_lossy();
        let packages = metadata::packages(&manifest)?;
        examples += packages.len();
        violations.extend(check_example(&folder, &packages));
    }
    for violation in &violations {
        println!("{violation}");
    }
    println!(
        "deps: checked {} crates of the workspace and {examples} of the examples; violations: {}",
        checkout.packages.len(),
        violations.len()
    );
    if violations.is_empty() {
        return Ok(());
    }
    Err(Failure::Found { what: "dependencies that should not be", number: violations.len() as u64 })
}

/// One dependency that should not be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Violation {
    /// A crate of the workspace without a rule.
    NoRule { package: String },
    /// A normal or build dependency on a crate of ours that the rule does not list.
    Above { package: String, on: String, must_not_know: &'static str },
    /// A dependency that the rule allows to a feature only, and that is not optional.
    NotOptional { package: String, on: String },
    /// A test's dependency on a crate that is neither below nor listed.
    TestsBeyond { package: String, on: String },
    /// A test's dependency on a crate that itself depends on the one under test.
    TestCycle { package: String, on: String },
    /// A crate of others that is another crate's to use.
    NotYours { package: String, on: String, why: &'static str },
    /// An example's library that uses more than the example is there to show.
    Example { package: String, on: String, may: &'static [&'static str] },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRule { package } => {
                write!(f, "{package}: has no rule; give it one in xtask/src/deps/rules.rs")
            }
            Self::Above { package, on, must_not_know } => {
                write!(f, "{package}: must not depend on {on} (must not know: {must_not_know})")
            }
            Self::NotOptional { package, on } => {
                write!(f, "{package}: may depend on {on} only as a feature")
            }
            Self::TestsBeyond { package, on } => {
                write!(f, "{package}: its tests must not depend on {on}, which is not below it")
            }
            Self::TestCycle { package, on } => {
                write!(
                    f,
                    "{package}: its tests must not depend on {on}, which depends on {package}"
                )
            }
            Self::NotYours { package, on, why } => {
                write!(f, "{package}: must not depend on {on} ({why})")
            }
            Self::Example { package, on, may } => write!(
                f,
                "{package}: the example's library must not depend on {on}, only on {}",
                may.join(", ")
            ),
        }
    }
}

/// Every violation in a workspace, sorted.
fn check(
    packages: &[Package],
    rules: &[Rule],
    reserved: &[Reserved],
    banned: &[Banned],
) -> Vec<Violation> {
    let ours: BTreeSet<&str> = packages
        .iter()
        .map(|package| package.name.as_str())
        .chain(rules.iter().map(|rule| rule.package))
        .collect();
    let stands_on = reachable(packages, &ours);
    let mut violations = BTreeSet::new();
    for package in packages {
        match rules.iter().find(|rule| rule.package == package.name) {
            Some(rule) => violations.extend(check_layers(package, rule, &ours, &stands_on)),
            None => {
                violations.insert(Violation::NoRule { package: package.name.clone() });
            }
        }
        violations.extend(check_others(package, reserved, banned));
    }
    violations.into_iter().collect()
}

fn check_layers(
    package: &Package,
    rule: &Rule,
    ours: &BTreeSet<&str>,
    stands_on: &BTreeMap<&str, BTreeSet<&str>>,
) -> Vec<Violation> {
    let name = package.name.as_str();
    let on_ours = |dependency: &&Dependency| ours.contains(dependency.name.as_str());
    let below = |of: &str, other: &str| stands_on.get(of).is_some_and(|set| set.contains(other));
    let mut violations = Vec::new();
    for dependency in package.dependencies.iter().filter(on_ours) {
        let on = dependency.name.as_str();
        let (package, on_owned) = (name.to_owned(), on.to_owned());
        if dependency.kind.as_deref() != Some("dev") {
            if rule.may.contains(&on) {
                continue;
            }
            if !rule.features.contains(&on) {
                violations.push(Violation::Above {
                    package,
                    on: on_owned,
                    must_not_know: rule.must_not_know,
                });
            } else if !dependency.optional {
                violations.push(Violation::NotOptional { package, on: on_owned });
            }
            continue;
        }
        // A crate's tests may turn on its own features through itself.
        if on == name || on == TESTKIT {
            continue;
        }
        if below(on, name) {
            violations.push(Violation::TestCycle { package, on: on_owned });
        } else if !(rule.may.contains(&on)
            || rule.features.contains(&on)
            || rule.tests_may.contains(&on)
            || rule.may.iter().any(|layer| below(layer, on)))
        {
            violations.push(Violation::TestsBeyond { package, on: on_owned });
        }
    }
    violations
}

fn check_others(package: &Package, reserved: &[Reserved], banned: &[Banned]) -> Vec<Violation> {
    let name = package.name.as_str();
    let mut violations = Vec::new();
    for dependency in &package.dependencies {
        let on = dependency.name.as_str();
        let elsewhere = reserved
            .iter()
            .find(|rule| rule.name == on && !rule.only.contains(&name))
            .map(|rule| rule.why);
        let never = banned
            .iter()
            .find(|rule| rule.package == name && rule.names.contains(&on))
            .map(|rule| rule.why);
        if let Some(why) = elsewhere.or(never) {
            violations.push(Violation::NotYours {
                package: name.to_owned(),
                on: on.to_owned(),
                why,
            });
        }
    }
    violations
}

/// The crates of ours that each depends on, through normal and build dependencies, itself left out.
fn reachable<'a>(
    packages: &'a [Package],
    ours: &BTreeSet<&str>,
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let direct: BTreeMap<&str, Vec<&str>> = packages
        .iter()
        .map(|package| {
            let on = package.dependencies.iter();
            let on = on.filter(|d| d.kind.as_deref() != Some("dev"));
            let on = on.map(|d| d.name.as_str()).filter(|d| ours.contains(d));
            (package.name.as_str(), on.collect())
        })
        .collect();
    direct
        .keys()
        .map(|&from| {
            let mut seen = BTreeSet::new();
            let mut open = direct[from].clone();
            while let Some(next) = open.pop() {
                if seen.insert(next) {
                    open.extend(direct.get(next).into_iter().flatten());
                }
            }
            (from, seen)
        })
        .collect()
}

/// Violations in one workspace below `examples/`.
fn check_example(folder: &str, packages: &[Package]) -> Vec<Violation> {
    let listed = EXAMPLES.iter().find(|(name, _)| *name == folder);
    let local: BTreeSet<&str> = packages.iter().map(|p| p.name.as_str()).collect();
    let mut violations = Vec::new();
    for package in packages {
        let may = match listed {
            Some((_, may)) if package.has_library() => may,
            _ => EXAMPLES_ALL,
        };
        for dependency in &package.dependencies {
            let on = dependency.name.as_str();
            let ours = RULES.iter().any(|rule| rule.package == on) && !local.contains(on);
            let tests = dependency.kind.as_deref() == Some("dev");
            if ours && !may.contains(&on) && !(tests && EXAMPLES_ALL.contains(&on)) {
                violations.push(Violation::Example {
                    package: package.name.clone(),
                    on: on.to_owned(),
                    may,
                });
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests;
