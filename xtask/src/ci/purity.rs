//! Modules that decide must not look at the world: clock, randomness, environment and files come to
//! them as arguments, so that the simulator can run hundreds of ranks in one thread and get the same
//! answers.
//!
//! Clippy can ban functions, but only for a whole crate, and half of `pml` acts. So this reads the
//! sources: comments are left out, and so is everything from the first `#[cfg(test)]` of a file on,
//! because tests come last. A name in a string would be found too; none has needed that so far.

use std::path::Path;

use super::files;
use crate::Failure;
use crate::metadata::Checkout;

/// What must be pure: a crate's folder, and its modules; a module is a file, or a folder, or both.
const PURE: &[(&str, &[&str])] = &[
    ("bml", &["src/spin"]),
    ("coll", &["src"]),
    ("dtype", &["src"]),
    ("layouts", &["src"]),
    ("pml", &["src/choose", "src/cost", "src/matching", "src/requests", "src/rndv", "src/wire"]),
];

/// What names none of the crates that act, but for these modules: schedules are built and proved without messages.
const PASSIVE: (&str, &[&str]) =
    ("coll", &["src/execute.rs", "src/execute", "src/runtime.rs", "src/runtime"]);

/// What passive modules name none of.
const DEEDS: &[(&str, &str)] = &[
    ("gapless_engine", "only the executor touches memory"),
    ("gapless_mem", "only the executor touches memory"),
    ("gapless_pml", "only the executor sends messages"),
];

/// Below the pure folders, what is only for tests.
const FOR_TESTS: &[&str] = &["testkit.rs", "testkit", "tests.rs", "tests"];

/// Words that let a module look out.
const OUTWARD: &[(&str, &str)] = &[
    ("Instant", "the clock is an argument"),
    ("SystemTime", "the clock is an argument"),
    ("thread::", "progress belongs to the caller"),
    ("std::env", "configuration is an argument"),
    ("std::fs", "files belong to programs"),
    ("std::net", "the network belongs to transports"),
    ("std::process", "processes belong to the launcher"),
    ("std::os", "descriptors belong to transports"),
    ("RandomState", "the seed is an argument"),
];

/// Reads the pure modules; prints every outward look.
pub(super) fn run(checkout: &Checkout) -> Result<(), Failure> {
    let (mut read, mut found) = (0u64, 0u64);
    for (name, modules) in PURE {
        let folder = checkout.root.join(name);
        if !folder.is_dir() {
            continue;
        }
        for module in *modules {
            let base = folder.join(module);
            let mut files = Vec::new();
            for place in [base.with_extension("rs"), base.clone()] {
                if place.exists() {
                    files.extend(files::rust_files(&place)?);
                }
            }
            if files.is_empty() {
                found += 1;
                println!(
                    "{}: named as pure in xtask/src/ci/purity.rs, but it is not there",
                    checkout.relative(&base).display()
                );
            }
            for file in files.iter().filter(|file| !for_tests(&folder, file)) {
                read += 1;
                let inside = file.strip_prefix(&folder).unwrap_or(file);
                let is_passive =
                    PASSIVE.0 == *name && !PASSIVE.1.iter().any(|acts| inside.starts_with(acts));
                let deeds = if is_passive { DEEDS } else { &[] };
                for (line, word, why) in outward(&files::read(file)?, deeds) {
                    found += 1;
                    println!(
                        "{}:{line}: {word} in a pure module: {why}",
                        checkout.relative(file).display()
                    );
                }
            }
        }
    }
    println!("purity: {read} files checked");
    if found == 0 {
        return Ok(());
    }
    Err(Failure::Found { what: "outward looks of pure modules", number: found })
}

fn for_tests(folder: &Path, file: &Path) -> bool {
    let inside = file.strip_prefix(folder).unwrap_or(file);
    inside.components().any(|part| FOR_TESTS.iter().any(|name| part.as_os_str() == *name))
}

/// Line number, word and reason of every outward look, and of these words.
fn outward(
    source: &str,
    more: &'static [(&str, &str)],
) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (index, line) in source.lines().enumerate() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            break;
        }
        let code = line.split("//").next().unwrap_or_default();
        for &(word, why) in OUTWARD.iter().chain(more) {
            if contains_word(code, word) {
                found.push((index + 1, word, why));
            }
        }
    }
    found
}

/// Whether `word` occurs in `code` and is not the end or the beginning of a longer name.
fn contains_word(code: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        let open_end = word.ends_with(':');
        !before.is_some_and(part_of_name) && (open_end || !after.is_some_and(part_of_name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_read_comments_and_tests_are_not() {
        let source = "//! Instant answers.\n\
                      use std::time::Instant; // why\n\
                      fn instant() { std::thread::yield_now() }\n\
                      struct Instantly; // no std::env here\n\
                      #[cfg(test)]\n\
                      mod tests { use std::env; }\n";
        let found: Vec<_> =
            outward(source, &[]).into_iter().map(|(line, word, _)| (line, word)).collect();
        assert_eq!(found, [(2, "Instant"), (3, "thread::")]);
    }

    fn run_on(files: &[(&str, &str)]) -> Result<(), Failure> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        run(&Checkout {
            root: root.path().to_owned(),
            target: root.path().join("target"),
            packages: Vec::new(),
        })
    }

    #[test]
    fn only_the_executor_of_collectives_sends() {
        let message = "use gapless_pml::Pml;";
        run_on(&[("coll/src/execute.rs", message), ("coll/src/execute/act.rs", message)]).unwrap();
        assert!(run_on(&[("coll/src/prove/execute.rs", message)]).is_err());
    }

    #[test]
    fn modules_are_files_or_folders_and_must_exist() {
        let clock = "fn f() { std::time::Instant::now(); }";
        run_on(&[("dtype/src/lib.rs", ""), ("dtype/src/testkit/a.rs", clock)]).unwrap();
        assert!(run_on(&[("dtype/src/a/b.rs", clock)]).is_err());
        let pml = [
            ("pml/src/choose.rs", ""),
            ("pml/src/cost.rs", ""),
            ("pml/src/requests.rs", ""),
            ("pml/src/wire/view.rs", ""),
            ("pml/src/matching.rs", ""),
            ("pml/src/rndv.rs", ""),
            ("pml/src/progress.rs", clock),
        ];
        run_on(&pml).unwrap();
        assert!(run_on(&pml[1..]).is_err());
    }
}
