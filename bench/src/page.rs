//! The page of figures that matter: a few rows of the committed reports, in parts.
//!
//! `figures page BENCHMARKS.md --out bench/results` replaces what stands between the marks of each part. So no figure
//! on the page is typed by hand, and each part names the command and the commit of its report.
//!
//! Units: bytes, seconds, GB/s of payload; ratios are in speed, above 1 if Gapless is faster.

mod peers;
mod picks;

use std::fs;
use std::path::Path;

use gapless_report::{Report, Row, write_atomically};

use crate::error::Failure;
use crate::summary::{origin, replaced};
use crate::table::{Column, head, line};
use picks::PARTS;

/// A row of a report, and what the page calls it.
struct Pick {
    said: &'static str,
    case: &'static str,
    op: &'static str,
    space: &'static str,
}

/// A part of the page: rows of one report.
struct PageRows {
    /// Of its marks.
    section: &'static str,
    /// Below the folder of all results.
    report: &'static str,
    columns: &'static [Column],
    picks: &'static [Pick],
}

/// Puts all parts, of the reports below `results`, into `document`.
///
/// # Errors
/// A report that cannot be read or lacks a row, a document without marks or that cannot be written.
pub fn update(results: &Path, document: &Path) -> Result<(), Failure> {
    let text = fs::read_to_string(document).map_err(Failure::io("read", document))?;
    let text = filled(&text, results, document)?;
    Ok(write_atomically(document, text.as_bytes())?)
}

fn filled(text: &str, results: &Path, document: &Path) -> Result<String, Failure> {
    let mut text = text.to_owned();
    for part in peers::PARTS {
        text = replaced(&text, document, part.section, &part.markdown(results)?)?;
    }
    for part in PARTS {
        text = replaced(&text, document, part.section, &part.markdown(results)?)?;
    }
    Ok(text)
}

impl PageRows {
    fn markdown(&self, results: &Path) -> Result<String, Failure> {
        let path = results.join(self.report);
        let report = Report::read_json(&path)?;
        let mut text = format!("{}.\n", origin(&report, results));
        let (met, marks, _) = crate::gpu::aims::tally(&report.rows);
        if marks > 0 {
            text += &format!("{met} of the run's {marks} targets are met.\n");
        }
        text.push('\n');
        let headings = ["what"].into_iter().chain(self.columns.iter().map(|column| column.0));
        text += &head(&headings.collect::<Vec<_>>());
        for pick in self.picks {
            let row =
                report.rows.iter().find(|row| pick.is(row)).ok_or_else(|| Failure::NoRow {
                    path: path.clone(),
                    row: format!("{}, {}, {}", pick.case, pick.op, pick.space),
                })?;
            let cells = self.columns.iter().map(|column| (column.1)(row));
            text += &line(&[pick.said.to_owned()].into_iter().chain(cells).collect::<Vec<_>>());
        }
        text.push('\n');
        Ok(text)
    }
}

impl Pick {
    fn is(&self, row: &Row) -> bool {
        row.case == self.case && row.op == self.op && row.space == self.space
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::age::undated;
    use crate::table::{OVER_FLOOR, OVER_MEMCPY, PAYLOAD};

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    /// In a bundle that was carried elsewhere there are no documents.
    fn documents_are_here() -> bool {
        let here = root().join("BENCHMARKS.md").exists();
        if !here {
            eprintln!("SKIPPED: documents against reports: no repository here");
        }
        here
    }

    #[test]
    fn the_page_quotes_the_committed_reports() {
        if !documents_are_here() {
            return;
        }
        let document = root().join("BENCHMARKS.md");
        let text = fs::read_to_string(&document).unwrap();
        let now = filled(&text, &root().join("bench/results"), &document).unwrap();
        assert!(
            undated(&text) == undated(&now),
            "run: cargo run -p gapless-bench -- page --out bench/results"
        );
    }

    #[test]
    fn the_tables_are_those_of_the_committed_reports() {
        if !documents_are_here() {
            return;
        }
        for name in ["cpu", "h100x2", "h200", "h200x2", "h200x2/guard", "sim"] {
            let folder = root().join("bench/results").join(name);
            let document = folder.join("README.md");
            let text = fs::read_to_string(&document).unwrap();
            let tables = crate::summary::of(&folder).unwrap();
            let now = replaced(&text, &document, "", &tables).unwrap();
            assert!(
                undated(&text) == undated(&now),
                "run: cargo run -p gapless-bench -- summary --out bench/results/{name}"
            );
        }
    }

    #[test]
    fn a_row_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let time = gapless_report::Samples::from_seconds([1e-3]).summary().unwrap();
        let row = Row::new("V n=9", "pack", "host", "none", 1 << 20, time).against("memcpy", time);
        let machine = gapless_report::Machine::default();
        let report = Report::new("pack", machine, "figures pack", vec![row]);
        report.write_json(folder.path().join("pack.json")).unwrap();
        let columns = &[PAYLOAD, OVER_MEMCPY, OVER_FLOOR];
        let pick = |case| Pick { said: "columns", case, op: "pack", space: "host" };
        let part = |picks| PageRows { section: "", report: "pack.json", columns, picks };
        let picks = Box::leak(Box::new([pick("V n=9")]));
        let text = part(picks).markdown(folder.path()).unwrap();
        assert!(text.contains("`figures pack` at "), "{text}");
        assert!(text.contains("| columns | 1 MiB | 1.00 | - |"), "{text}");
        let picks = Box::leak(Box::new([pick("T n=9")]));
        let missing = part(picks).markdown(folder.path()).unwrap_err().to_string();
        assert!(missing.contains("pack.json has no row \"T n=9, pack, host\""), "{missing}");
    }
}
