//! `cargo xtask unsafe`: the table of unsafe code, `docs/unsafe.md`, made from the sources.
//!
//! For every file it counts blocks, functions, traits and implementations that say `unsafe`, and gives the reason that
//! the sources give: the `reason` of the attribute that allows unsafe code, in the file or at its `mod` line, or else
//! the first sentence of the file's documentation. Tests and benches are left out. `cargo xtask ci` compares the table
//! with the sources.
//!
//! [`tokens`] reads just enough of Rust for this: words, texts and marks, without comments.

mod scan;
mod tokens;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::ci::files;
use crate::metadata::Checkout;
use scan::{Counts, Scan};

/// The document, from the root.
const DOCUMENT: &str = "docs/unsafe.md";

const HEAD: &str = "\
# Where `unsafe` is

Made by `cargo xtask unsafe` from the sources; `cargo xtask ci --checks` fails if it is stale. Counted is what says
`unsafe`, tests and benches left out: blocks, functions (declarations and types), traits, implementations. The reason is
that of the attribute that allows unsafe code there, or the beginning of the file's documentation.
[ARCHITECTURE.md](../ARCHITECTURE.md#where-unsafe-lives) has the rules.
";

/// Folders of a crate that hold tests only.
const FOR_TESTS: &[&str] = &["tests", "benches", "tests.rs"];

/// A crate's files with unsafe code, and whether its root forbids it.
#[derive(Default)]
struct Crate {
    files: Vec<(String, Counts, String)>,
    forbids: bool,
}

/// Writes the table, or with `check` compares it.
pub(crate) fn run(checkout: &Checkout, check: bool) -> Result<(), Failure> {
    let path = checkout.root.join(DOCUMENT);
    let table = table(&checkout.root)?;
    if check {
        let there = fs::read_to_string(&path).unwrap_or_default();
        if there == table {
            println!("{DOCUMENT}: up to date");
            return Ok(());
        }
        for line in table.lines().filter(|line| !there.lines().any(|old| old == *line)) {
            println!("not in {DOCUMENT}: {line}");
        }
        println!("run: cargo xtask unsafe");
        return Err(Failure::Found { what: "stale tables", number: 1 });
    }
    fs::write(&path, &table).map_err(|source| Failure::File { path, source })?;
    println!("written to {DOCUMENT}");
    Ok(())
}

/// The document, of the sources below `root`.
fn table(root: &Path) -> Result<String, Failure> {
    let crates = crates(root)?;
    let mut text = HEAD.to_owned();
    let sum = |of: &Crate| of.files.iter().fold(Counts::default(), |sum, file| sum + file.1);
    let all = crates.values().map(sum).fold(Counts::default(), |sum, counts| sum + counts);
    text += "\n| crate | files | blocks | functions | traits | implementations |\n";
    text += "|---|---:|---:|---:|---:|---:|\n";
    let mut row = |name: &str, files: usize, counts: Counts| {
        let _ = writeln!(text, "| {name} | {files} | {counts} |");
    };
    for (name, of) in crates.iter().filter(|(_, of)| !of.files.is_empty()) {
        row(&format!("[{name}](#{})", anchor(name)), of.files.len(), sum(of));
    }
    row("all", crates.values().map(|of| of.files.len()).sum(), all);
    let none: Vec<String> = crates
        .iter()
        .filter(|(_, of)| of.files.is_empty())
        .map(|(name, of)| format!("`{name}`{}", if of.forbids { "" } else { " (not forbidden)" }))
        .collect();
    if !none.is_empty() {
        let _ = write!(text, "\nNo unsafe code, which the crate forbids:\n{}.\n", none.join(",\n"));
    }
    for (name, of) in crates.iter().filter(|(_, of)| !of.files.is_empty()) {
        let _ = write!(
            text,
            "\n## {name}\n\n| file | blocks | functions | traits | implementations | why |\n\
             |---|---:|---:|---:|---:|---|\n"
        );
        for (file, counts, why) in &of.files {
            let _ = writeln!(text, "| `{file}` | {counts} | {why} |");
        }
    }
    Ok(text)
}

/// The anchor of a heading that is a path.
fn anchor(name: &str) -> String {
    name.replace('/', "")
}

/// Every crate below `root`, by its folder.
fn crates(root: &Path) -> Result<BTreeMap<String, Crate>, Failure> {
    let mut scans = BTreeMap::new();
    for path in files::rust_files(root)? {
        let folder = path.ancestors().skip(1).find(|folder| folder.join("Cargo.toml").is_file());
        let Some(folder) = folder.filter(|folder| folder.starts_with(root)) else { continue };
        let inside = path.strip_prefix(folder).unwrap_or(&path);
        let for_tests =
            |part: std::path::Component<'_>| FOR_TESTS.iter().any(|name| part.as_os_str() == *name);
        if !inside.components().any(for_tests) {
            let scan = Scan::of(&files::read(&path)?);
            scans.insert(path.clone(), (folder.to_owned(), scan));
        }
    }
    // What a file's `mod` line says of it; a parent comes before its children in no particular order.
    let mut said: BTreeMap<PathBuf, (Option<String>, bool)> = BTreeMap::new();
    let mut open: Vec<PathBuf> = scans.keys().filter(|path| is_root(path)).cloned().collect();
    while let Some(parent) = open.pop() {
        let Some((_, scan)) = scans.get(&parent) else { continue };
        let (why, for_tests) = said.get(&parent).cloned().unwrap_or_default();
        for module in &scan.modules {
            let Some(child) = module.files(&parent).into_iter().find(|it| scans.contains_key(it))
            else {
                continue;
            };
            let why = module.why.clone().or_else(|| why.clone());
            if said.insert(child.clone(), (why, for_tests || module.for_tests)).is_none() {
                open.push(child);
            }
        }
    }
    let mut crates: BTreeMap<String, Crate> = BTreeMap::new();
    for (path, (folder, scan)) in &scans {
        let name = folder.strip_prefix(root).unwrap_or(folder).display().to_string();
        let of = crates.entry(name).or_default();
        of.forbids |= is_root(path) && scan.forbids;
        let (why, for_tests) = said.get(path).cloned().unwrap_or_default();
        if for_tests || scan.counts == Counts::default() {
            continue;
        }
        let own = (!scan.whys.is_empty()).then(|| scan.whys.join("; "));
        let why = own.or(why).unwrap_or_else(|| scan.about.clone());
        let file = path.strip_prefix(folder).unwrap_or(path).display().to_string();
        of.files.push((file, scan.counts, why));
    }
    Ok(crates)
}

/// Whether cargo compiles the file by itself.
fn is_root(path: &Path) -> bool {
    let parent = path.parent().and_then(Path::file_name).unwrap_or_default();
    let name = path.file_name().unwrap_or_default();
    (name == "lib.rs" || name == "main.rs") || parent == "bin" || parent == "examples"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn files_are_counted_with_their_reasons() {
        let root = tree(&[
            ("a/Cargo.toml", ""),
            (
                "a/src/lib.rs",
                "#![deny(unsafe_code)]\n#[allow(unsafe_code, reason = \"calls C\")]\nmod c;\n\
                 mod d;\nmod e;\n#[cfg(test)]\nmod fake;\n",
            ),
            ("a/src/c.rs", "mod inner;\npub unsafe fn f() { unsafe { g() } } // unsafe\n"),
            ("a/src/c/inner.rs", "unsafe impl Send for X {}\n"),
            ("a/src/d.rs", "#[allow(unsafe_code, reason = \"a lock\")]\nfn f() { unsafe {} }\n"),
            ("a/src/e.rs", "//! Reads words. And more.\nfn f() { unsafe {} }\n"),
            ("a/src/fake.rs", "fn f() { unsafe {} }\n"),
            ("a/tests/t.rs", "fn f() { unsafe {} }\n"),
            ("b/Cargo.toml", ""),
            ("b/src/lib.rs", "#![forbid(unsafe_code)]\n"),
        ]);
        let text = table(root.path()).unwrap();
        for line in [
            "| [a](#a) | 4 | 3 | 1 | - | 1 |",
            "| all | 4 | 3 | 1 | - | 1 |",
            "| `src/c.rs` | 1 | 1 | - | - | calls C |",
            "| `src/c/inner.rs` | - | - | - | 1 | calls C |",
            "| `src/d.rs` | 1 | - | - | - | a lock |",
            "| `src/e.rs` | 1 | - | - | - | Reads words |",
            "`b`.",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing:\n{text}");
        }
        assert!(!text.contains("fake.rs") && !text.contains("t.rs"), "{text}");
    }

    #[test]
    fn a_stale_table_is_found() {
        let source = "fn f() { unsafe {} }\n";
        let root = tree(&[("a/Cargo.toml", ""), ("a/src/lib.rs", source), ("docs/x.md", "")]);
        let checkout = Checkout {
            root: root.path().to_owned(),
            target: root.path().join("target"),
            packages: Vec::new(),
        };
        assert!(run(&checkout, true).is_err());
        run(&checkout, false).unwrap();
        run(&checkout, true).unwrap();
        fs::write(root.path().join("a/src/lib.rs"), source.repeat(2)).unwrap();
        assert!(run(&checkout, true).is_err());
    }
}
