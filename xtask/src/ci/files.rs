//! No source file grows beyond what can be read in one sitting, and lines of documents end where a diff can be read.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::metadata::Checkout;

/// Lines a source file may have.
const LINES_MAX: usize = 600;

/// Characters that a line of a document may have.
const COLUMNS_MAX: usize = 120;

/// Checks the documents; prints lines that are too long.
pub(super) fn documents(checkout: &Checkout) -> Result<(), Failure> {
    let mut number = 0;
    for path in files_with(&checkout.root, "md")? {
        for (line, columns) in long_lines(&read(&path)?) {
            number += 1;
            let shown = checkout.relative(&path).display();
            println!("{shown}:{line}: {columns} characters, more than {COLUMNS_MAX}");
        }
    }
    match number {
        0 => Ok(()),
        number => Err(Failure::Found { what: "lines that are too long", number }),
    }
}

/// The lines that are too long, from 1, and their lengths. Rows of tables and examples may be, and what programs write
/// between marks.
fn long_lines(text: &str) -> Vec<(usize, usize)> {
    let (mut example, mut written, mut long) = (false, false, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let begin = line.trim_start();
        example ^= begin.starts_with("```");
        if begin.starts_with("<!--") {
            written = line.contains(": begin -->");
        }
        let columns = line.chars().count();
        let may = example || written || begin.starts_with('|');
        if columns > COLUMNS_MAX && !may {
            long.push((number, columns));
        }
    }
    long
}

/// Checks every Rust file of the checkout; prints those that are too long.
pub(super) fn run(checkout: &Checkout) -> Result<(), Failure> {
    let files = rust_files(&checkout.root)?;
    let mut too_long = 0u64;
    for path in &files {
        let lines = read(path)?.lines().count();
        if lines > LINES_MAX {
            too_long += 1;
            println!(
                "{}: {lines} lines, more than {LINES_MAX}: which two things does it hold?",
                checkout.relative(path).display()
            );
        }
    }
    println!("files: {} checked", files.len());
    if too_long == 0 {
        return Ok(());
    }
    Err(Failure::Found { what: "files that are too long", number: too_long })
}

/// Checks that every file of integration tests is compiled: where `tests/all.rs` is, cargo looks for no others.
pub(super) fn tests(checkout: &Checkout) -> Result<(), Failure> {
    let mut number = 0;
    for package in &checkout.packages {
        let folder = package.manifest_path.with_file_name("tests");
        if !folder.join("all.rs").is_file() {
            continue;
        }
        for path in forgotten(&folder, &read(&package.manifest_path)?)? {
            number += 1;
            let shown = checkout.relative(&path).display();
            println!("{shown}: no module of tests/all.rs, and no target of its package");
        }
    }
    match number {
        0 => Ok(()),
        number => Err(Failure::Found { what: "files of tests that nothing compiles", number }),
    }
}

/// The files in a folder of tests that are neither targets of the manifest nor modules of those.
fn forgotten(folder: &Path, manifest: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = rust_files(folder)?;
    paths.retain(|path| path.parent() == Some(folder));
    let roots = paths.iter().map(|path| read(path)).collect::<Result<String, _>>()?;
    paths.retain(|path| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let has = |text: &str, line: String| text.lines().any(|it| it == line);
        !has(&roots, format!("mod {name};")) && !has(manifest, format!("name = \"{name}\""))
    });
    Ok(paths)
}

/// Every `.rs` file below a folder, or the one file, sorted; build outputs and hidden folders left out.
pub(crate) fn rust_files(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    files_with(root, "rs")
}

/// The same, of files with another extension.
pub(crate) fn files_with(root: &Path, extension: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        if path.is_file() {
            if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
            continue;
        }
        let entries = fs::read_dir(&path).map_err(|source| failure(&path, source))?;
        for entry in entries {
            let entry = entry.map_err(|source| failure(&path, source))?;
            let name = entry.file_name();
            let hidden = name.to_string_lossy().starts_with('.');
            // A link could lead out of the checkout, or round in it.
            let link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if !hidden && !link && name != "target" {
                open.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|source| failure(path, source))
}

fn failure(path: &Path, source: std::io::Error) -> Failure {
    Failure::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_of_prose_are_found() {
        let long = "é".repeat(COLUMNS_MAX + 1);
        let fits = "é".repeat(COLUMNS_MAX);
        let text = format!(
            "{fits}\n{long}\n| {long} |\n```\n{long}\n```\n<!-- x: begin -->\n{long}\n<!-- x: end -->\n{long}\n"
        );
        assert_eq!(long_lines(&text), [(2, 121), (10, 121)]);
    }

    #[test]
    fn build_outputs_and_hidden_folders_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        for path in ["a/src/lib.rs", "a/target/b.rs", ".git/c.rs", "d.rs", "e.txt"] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let files = rust_files(root.path()).unwrap();
        let names: Vec<_> = files
            .iter()
            .map(|path| path.strip_prefix(root.path()).unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, ["a/src/lib.rs", "d.rs"]);
    }

    #[test]
    fn tests_that_nothing_compiles_are_found() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in
            [("all.rs", "mod a;\n"), ("a.rs", ""), ("a/b.rs", ""), ("c.rs", ""), ("d.rs", "")]
        {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let manifest = "[[test]]\nname = \"all\"\n[[test]]\nname = \"c\"\n";
        assert_eq!(forgotten(root.path(), manifest).unwrap(), [root.path().join("d.rs")]);
    }

    fn checkout(root: &Path) -> Checkout {
        Checkout { root: root.to_owned(), target: root.join("target"), packages: Vec::new() }
    }

    #[test]
    fn one_line_too_many_is_found() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("lib.rs");
        fs::write(&path, "//\n".repeat(LINES_MAX)).unwrap();
        run(&checkout(root.path())).unwrap();
        fs::write(&path, "//\n".repeat(LINES_MAX + 1)).unwrap();
        assert!(run(&checkout(root.path())).is_err());
    }
}
