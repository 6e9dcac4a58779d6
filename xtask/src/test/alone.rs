//! Packages without the rest of the workspace: what compiles only because another package asks for a feature.
//!
//! Cargo turns on every feature that one of the packages it is given asks for. So packages go together that see the
//! same features of our crates as each sees alone: none of them can profit from another. A package that sees alone what
//! it sees in the whole workspace has been compiled so already.

use std::collections::{BTreeMap, BTreeSet};

use crate::metadata::Checkout;
use crate::{Failure, shell};

/// The features of our crates, by the crate's name.
type Features = BTreeMap<String, BTreeSet<String>>;

/// The packages that must be compiled apart from the workspace, in groups that can be compiled together.
pub(super) fn groups(checkout: &Checkout) -> Result<Vec<Vec<String>>, Failure> {
    let whole = seen(checkout, &["--workspace"])?;
    let mut alone = Vec::new();
    for package in &checkout.packages {
        alone.push((package.name.clone(), seen(checkout, &["-p", &package.name])?));
    }
    Ok(grouped(&whole, alone))
}

/// The features of our crates when these packages are compiled, with their tests.
fn seen(checkout: &Checkout, packages: &[&str]) -> Result<Features, Failure> {
    let mut command = shell::cargo();
    command.current_dir(&checkout.root).args(["tree", "--locked", "--no-dedupe", "--prefix=none"]);
    command.args(["--edges=normal,build,dev", "--format={p}|{f}"]).args(packages);
    let root = checkout.root.display().to_string();
    Ok(features(&shell::output(&mut command)?, &root))
}

/// Out of lines like `gapless-mem v0.1.0 (/here/mem)|testkit`, those of packages below `root`.
fn features(tree: &str, root: &str) -> Features {
    let mut all = Features::new();
    for line in tree.lines() {
        let Some((package, features)) = line.split_once('|') else { continue };
        let Some((name, _)) = package.split_once(' ') else { continue };
        if package.contains(&format!("({root}")) {
            let names = features.split(',').filter(|name| !name.is_empty()).map(str::to_owned);
            all.entry(name.to_owned()).or_default().extend(names);
        }
    }
    all
}

/// Each package joins the first group in which no crate has other features. Those that see most come first: the later
/// ones then find most of what they need compiled.
fn grouped(whole: &Features, mut alone: Vec<(String, Features)>) -> Vec<Vec<String>> {
    alone.sort_by_key(|(_, seen)| std::cmp::Reverse(seen.len()));
    let mut groups: Vec<(Vec<String>, Features)> = Vec::new();
    for (name, seen) in alone {
        if agree(whole, &seen) {
            continue;
        }
        match groups.iter_mut().find(|(_, features)| agree(features, &seen)) {
            Some((names, features)) => {
                names.push(name);
                features.extend(seen);
            }
            None => groups.push((vec![name], seen)),
        }
    }
    groups.into_iter().map(|(names, _)| names).collect()
}

/// Whether the crates that both have are the same.
fn agree(one: &Features, other: &Features) -> bool {
    other.iter().all(|(name, features)| one.get(name).is_none_or(|has| has == features))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(all: &[(&str, &[&str])]) -> Features {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        all.iter().map(|(name, features)| ((*name).to_owned(), owned(features))).collect()
    }

    #[test]
    fn features_are_those_of_ours() {
        let tree = "a v0.1.0 (/here/a)|default,x\nb v0.1.0 (/here/b)|\nsyn v3.0.9|full\n\na v0.1.0 (/here/a)|default\n";
        assert_eq!(features(tree, "/here"), see(&[("a", &["default", "x"]), ("b", &[])]));
    }

    #[test]
    fn nobody_profits_from_another() {
        let whole = see(&[("a", &["x"]), ("b", &[]), ("c", &[]), ("d", &[])]);
        let alone = |name: &str, all: &[(&str, &[&str])]| (name.to_owned(), see(all));
        let groups = grouped(
            &whole,
            vec![
                alone("a", &[("a", &["x"])]),
                alone("b", &[("a", &[]), ("b", &[])]),
                alone("c", &[("a", &["y"]), ("c", &[])]),
                alone("d", &[("a", &[]), ("b", &[]), ("d", &[])]),
            ],
        );
        assert_eq!(groups, [&["d", "b"][..], &["c"][..]]);
    }

    #[test]
    fn every_package_of_this_workspace_is_looked_at() {
        let checkout = Checkout::find().unwrap();
        let whole = seen(&checkout, &["--workspace"]).unwrap();
        assert!(checkout.packages.iter().all(|package| whole.contains_key(&package.name)));
        let alone = seen(&checkout, &["-p", "gapless-bml"]).unwrap();
        assert!(!alone["gapless-mem"].contains("testkit"), "{alone:?}");
        assert!(whole["gapless-mem"].contains("testkit"), "{whole:?}");
    }
}
