//! The tables of a folder of reports, taken from the reports and from nowhere else.
//!
//! `figures summary --out bench/results/cpu` replaces what stands between two marks of `README.md` in that folder; a
//! folder without one gets one. Reports that are not there are left out. [`crate::page`] fills the marks of
//! `BENCHMARKS.md` in the same way.

use std::fs;
use std::path::Path;

use gapless_report::{Bytes, Report, write_atomically};

use crate::age::dated;
use crate::error::Failure;
use crate::experiments::ALL;

/// The document in a folder of reports.
const DOCUMENT: &str = "README.md";

/// The line before what is generated; a document with several parts names them.
#[must_use]
pub fn begin(section: &str) -> String {
    format!("<!-- figures{}: begin -->", named(section))
}

/// The line after it.
#[must_use]
pub fn end(section: &str) -> String {
    format!("<!-- figures{}: end -->", named(section))
}

fn named(section: &str) -> String {
    if section.is_empty() { String::new() } else { format!(" {section}") }
}

/// Puts the tables of the reports in `folder` into the document there.
///
/// # Errors
/// A report that does not hold together, a document that has no marks or cannot be written.
pub fn update(folder: &Path) -> Result<(), Failure> {
    let document = folder.join(DOCUMENT);
    if !document.exists() {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let text = format!("# Results: {name}\n\n{}\n{}\n", begin(""), end(""));
        write_atomically(&document, text.as_bytes())?;
    }
    let text = fs::read_to_string(&document).map_err(Failure::io("read", &document))?;
    let text = replaced(&text, &document, "", &of(folder)?)?;
    Ok(write_atomically(&document, text.as_bytes())?)
}

/// `text`, which `document` has, with `part` between the marks of `section`.
///
/// # Errors
/// There are no such marks.
pub(crate) fn replaced(
    text: &str,
    document: &Path,
    section: &str,
    part: &str,
) -> Result<String, Failure> {
    let (first, last) = (begin(section), end(section));
    let no_marks =
        || Failure::NoMarks { path: document.to_owned(), begin: first.clone(), end: last.clone() };
    let begin = text.find(&first).ok_or_else(no_marks)? + first.len();
    let end = begin + text[begin..].find(&last).ok_or_else(no_marks)?;
    Ok(format!("{}\n\n{part}{}", &text[..begin], &text[end..]))
}

/// The summary of the reports in `folder`, as Markdown.
///
/// # Errors
/// A report that does not hold together.
pub fn of(folder: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    for entry in ALL {
        let path = folder.join(entry.name).with_extension("json");
        if !path.is_file() {
            continue;
        }
        let report = Report::read_json(&path)?;
        text += &format!("### {}: {}\n\n{}.\n\n", entry.name, entry.about, origin(&report, folder));
        for drawing in drawings(folder, entry.name)? {
            text += &format!("![{drawing}]({drawing}.svg)\n\n");
        }
        text += &(entry.summary)(&report);
        text.push('\n');
    }
    Ok(text)
}

/// The command, the commit with its age, and the machine of a report in `folder`.
pub(crate) fn origin(report: &Report, folder: &Path) -> String {
    format!("`{}` at {}; {}", report.command, dated(&report.commit, folder), machine(report))
}

/// The names of an experiment's plots in `folder`, sorted.
pub(crate) fn drawings(folder: &Path, name: &str) -> Result<Vec<String>, Failure> {
    let is_of = |stem: &str, name: &str| {
        stem.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let longer = |stem: &str| {
        ALL.iter().any(|other| other.name.len() > name.len() && is_of(stem, other.name))
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(Failure::io("read", folder))? {
        let path = entry.map_err(Failure::io("read", folder))?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if path.extension().is_some_and(|kind| kind == "svg")
            && is_of(&stem, name)
            && !longer(&stem)
        {
            found.push(stem.into_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// The machine without what identifies it.
fn machine(report: &Report) -> String {
    if let Some(gpu) = report.machine.gpus.first() {
        // One GPU is known to several drivers.
        let kind = |space: &str| space.split(':').next().map(str::to_owned);
        let many =
            report.machine.gpus.iter().filter(|one| kind(&one.space) == kind(&gpu.space)).count();
        let several = if many > 1 { format!("{many} × ") } else { String::new() };
        return format!("{several}{}, {}", gpu.name, gpu.driver);
    }
    let machine = &report.machine;
    let cpus = machine.cpus_online.map_or("some".to_owned(), |n| n.to_string());
    let kind = if machine.virtual_machine { "virtual machine" } else { "machine" };
    let cache = machine.last_level_cache_bytes();
    let cache = cache.map_or("?".to_owned(), |bytes| Bytes(bytes).to_string());
    format!("{cpus}-core {} {kind}, last-level cache {cache}", machine.cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_marks_changes() {
        let document = Path::new("document.md");
        for section in ["", "gpu"] {
            let (first, last, other) = (begin(section), end(section), begin("other"));
            let before = format!("before\n{other}\n{first}\nold\n{last}\nafter\n");
            let once = replaced(&before, document, section, "new\n").unwrap();
            assert_eq!(once, format!("before\n{other}\n{first}\n\nnew\n{last}\nafter\n"));
            assert_eq!(replaced(&once, document, section, "new\n").unwrap(), once);
        }
        let wrong = replaced("no marks", document, "", "");
        assert!(matches!(wrong, Err(Failure::NoMarks { .. })));
    }

    #[test]
    fn a_folder_without_a_document_gets_one() {
        let folder = tempfile::tempdir().unwrap();
        update(folder.path()).unwrap();
        let document = folder.path().join(DOCUMENT);
        let text = fs::read_to_string(&document).unwrap();
        assert!(text.starts_with("# Results: "), "{text}");
        fs::write(&document, text + "mine\n").unwrap();
        update(folder.path()).unwrap();
        assert!(fs::read_to_string(&document).unwrap().ends_with("-->\nmine\n"));
    }

    #[test]
    fn plots_belong_to_the_experiment_with_the_longest_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["p2p-v.svg", "p2p.svg", "p2p-matrix-v.svg", "p2p.json", "p2pq.svg"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(drawings(folder.path(), "p2p").unwrap(), ["p2p", "p2p-v"]);
        assert_eq!(drawings(folder.path(), "p2p-matrix").unwrap(), ["p2p-matrix-v"]);
    }
}
