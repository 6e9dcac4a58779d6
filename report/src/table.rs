//! Tables on a terminal: aligned columns, one heading, no box. [`Table::within`] fits them into a width.

mod fit;
mod growing;

pub use fit::folded;
pub use growing::Growing;

use std::fmt;

use crate::human::{Bytes, Rate, Time};
use crate::schema::{Report, Row};

/// Which edge of its column a cell touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells under headings. Widths count characters, so `µs` aligns.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    /// Headings of columns that are left out where there is no room, the first one first.
    expendable: Vec<String>,
}

impl Table {
    /// A table with these headings and no rows.
    #[must_use]
    pub fn new<H: Into<String>>(columns: impl IntoIterator<Item = (H, Align)>) -> Self {
        Self {
            columns: columns.into_iter().map(|(heading, align)| (heading.into(), align)).collect(),
            rows: Vec::new(),
            expendable: Vec::new(),
        }
    }

    /// Names the columns that [`Table::within`] leaves out where there is no room, the least important first.
    #[must_use]
    pub fn expendable<H: Into<String>>(mut self, headings: impl IntoIterator<Item = H>) -> Self {
        self.expendable = headings.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a row. Missing cells stay empty; cells beyond the last column are dropped.
    pub fn push<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().take(self.columns.len()).map(Into::into).collect());
    }

    /// The headings and how their columns are aligned.
    pub(crate) fn columns(&self) -> &[(String, Align)] {
        &self.columns
    }

    /// The cells, row by row.
    pub(crate) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> =
            self.columns.iter().map(|(heading, _)| heading.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }

    fn line<'a>(
        &self,
        f: &mut fmt::Formatter<'_>,
        widths: &[usize],
        cells: impl Iterator<Item = &'a str>,
    ) -> fmt::Result {
        f.write_str(&line(widths, self.columns.iter().map(|(_, align)| *align), cells))
    }
}

/// A line of a table.
fn line<'a>(
    widths: &[usize],
    aligns: impl Iterator<Item = Align>,
    cells: impl Iterator<Item = &'a str>,
) -> String {
    let mut line = String::new();
    for ((cell, &width), align) in cells.zip(widths).zip(aligns) {
        if !line.is_empty() {
            line.push_str("  ");
        }
        match align {
            Align::Left => line.push_str(&format!("{cell:<width$}")),
            Align::Right => line.push_str(&format!("{cell:>width$}")),
        }
    }
    format!("{}\n", line.trim_end())
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        self.line(f, &widths, self.columns.iter().map(|(heading, _)| &**heading))?;
        let rules: Vec<String> = widths.iter().map(|&width| "─".repeat(width)).collect();
        self.line(f, &widths, rules.iter().map(String::as_str))?;
        for row in &self.rows {
            self.line(f, &widths, row.iter().map(String::as_str))?;
        }
        Ok(())
    }
}

impl Report {
    /// The report as a table: one line a row, and a column for every reference and every optional
    /// figure that some row has.
    #[must_use]
    pub fn table(&self) -> Table {
        let references = self.references();
        let blocks = self.rows.iter().any(|row| row.blocks.is_some());
        let resident = self.rows.iter().any(|row| row.resident_gbps.is_some());

        let mut columns = vec![
            ("case".to_owned(), Align::Left),
            ("op".to_owned(), Align::Left),
            ("space".to_owned(), Align::Left),
            ("protocol".to_owned(), Align::Left),
            ("payload".to_owned(), Align::Right),
        ];
        let mut number = |heading: String| columns.push((heading, Align::Right));
        if blocks {
            number("blocks".to_owned());
        }
        number("time".to_owned());
        number("GB/s".to_owned());
        if resident {
            number("resident".to_owned());
        }
        for reference in &references {
            number(format!("÷ {reference}"));
        }
        let marks = self.rows.iter().any(|row| !row.marks.is_empty());
        if marks {
            columns.push(("mark".to_owned(), Align::Left));
        }
        columns.push(("bytes".to_owned(), Align::Left));

        let mut table = Table::new(columns).expendable(["blocks", "resident", "protocol"]);
        for row in &self.rows {
            table.push(cells(row, blocks, resident, &references, marks));
        }
        table
    }

    /// Every reference some row compares with, in order of appearance.
    pub(crate) fn references(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            let others = row.others.iter().map(|other| other.reference.as_str());
            for name in row.reference.as_deref().into_iter().chain(others) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names
    }
}

fn cells(row: &Row, blocks: bool, resident: bool, references: &[&str], marks: bool) -> Vec<String> {
    let optional = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut cells = vec![
        row.case.clone(),
        row.op.clone(),
        row.space.clone(),
        row.protocol.clone(),
        Bytes(row.payload_bytes).to_string(),
    ];
    if blocks {
        cells.push(optional(row.blocks.map(|n| n.to_string())));
    }
    cells.push(Time(row.seconds.median).to_string());
    cells.push(Rate(row.gbps).to_string());
    if resident {
        cells.push(optional(row.resident_gbps.map(|r| Rate(r).to_string())));
    }
    for reference in references {
        cells.push(optional(row.ratio_to(reference).map(|ratio| format!("{ratio:.2}"))));
    }
    if marks {
        let met = row.met().map(|met| if met { "met" } else { "MISSED" });
        cells.push(optional(met.map(str::to_owned)));
    }
    let verdict = if row.verified { "right" } else { "UNCHECKED" };
    cells.push(verdict.to_owned());
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, Samples};

    #[test]
    fn columns_align_by_characters() {
        let mut table = Table::new([("name", Align::Left), ("time", Align::Right)]);
        table.push(["a", "1.00 µs"]);
        table.push(["longer", "12 s"]);
        table.push(["short"]);
        table.push(["too", "many", "cells"]);
        assert_eq!(
            table.to_string(),
            "name       time\n\
             ──────  ───────\n\
             a       1.00 µs\n\
             longer     12 s\n\
             short\n\
             too        many\n"
        );
    }

    #[test]
    fn a_report_shows_every_reference() {
        let time = |seconds| Samples::from_seconds([seconds]).summary().unwrap();
        let report = Report::new(
            "pingpong",
            Machine::default(),
            "gapless pingpong",
            vec![
                Row::new("V n=64", "oneway", "host", "eager", 32_768, time(2e-6))
                    .against("memcpy", time(1e-6))
                    .against("contiguous", time(3e-6))
                    .blocks(64)
                    .verified(true),
                Row::new("memcpy", "copy", "host", "none", 32_768, time(1e-6)),
            ],
        );
        assert_eq!(
            report.table().to_string(),
            "case    op      space  protocol  payload  blocks     time  GB/s  ÷ memcpy  ÷ contiguous  bytes\n\
             ──────  ──────  ─────  ────────  ───────  ──────  ───────  ────  ────────  ────────────  ─────────\n\
             V n=64  oneway  host   eager      32 KiB      64  2.00 µs  16.4      0.50          1.50  right\n\
             memcpy  copy    host   none       32 KiB       -  1.00 µs  32.8         -             -  UNCHECKED\n"
        );
    }
}
