//! Plots as SVG text: GB/s by payload as lines, or by case as bars.
//!
//! Lines put log₂ of the payload on the x axis, with ticks at powers of two; a report whose layouts
//! were mostly measured at one size only has no such axis and becomes bars, beside their reference; so
//! does one with more layouts than there are colours. Axes show what is drawn, all of it and little else
//! (`scale`); no picture is higher than a page.

mod bars;
mod chart;
mod curves;
mod growth;
mod lines;
mod scale;
mod text;

use std::path::{Path, PathBuf};

use crate::file::{self, FileError};
use crate::schema::{Report, Row};

pub use bars::{BarGroup, bars};
pub use curves::{Curve, curves};
pub use growth::{Growth, growth};
pub use lines::{Axis, Point, Series, lines, lines_by};

/// Pixels of every picture.
const WIDTH: f64 = 820.0;
/// Pixels of a page.
const HEIGHT_MAX: f64 = 1100.0;

/// Colours of successive series: Paul Tol's "muted" and "bright" picks that stay apart in grey and for
/// colour-blind readers. They repeat, dashed, after the last.
const COLOURS: [&str; 8] =
    ["#4477AA", "#EE6677", "#228833", "#AA7700", "#66CCEE", "#AA3377", "#332288", "#777777"];

/// Nothing a plot could show.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlotError {
    /// There is no series, or none with a point.
    #[error("there is nothing to plot")]
    Empty,
    /// A value has no place on the axes.
    #[error("{name}: {value} has no place on the axis")]
    OffAxis {
        /// The series or group.
        name: String,
        /// The value: a rate in GB/s, or a payload in bytes.
        value: f64,
    },
    /// A group of bars does not hold one bar for each name in the legend.
    #[error("{group} has {bars} bars for {names} names")]
    UnevenGroup {
        /// The group's label.
        group: String,
        /// Bars it holds.
        bars: usize,
        /// Names in the legend.
        names: usize,
    },
}

impl Report {
    /// The report as SVGs: one of lines when most layouts were measured at several payloads and a colour
    /// is there for each, else pages of bars.
    ///
    /// # Errors
    /// [`PlotError`] when there is nothing to plot.
    pub fn to_svgs(&self) -> Result<Vec<String>, PlotError> {
        let title = format!("{} ({})", self.experiment, self.machine.cpu);
        let series = self.series();
        let swept = series.iter().filter(|one| one.points.len() > 1).count();
        if swept * 2 > series.len() && series.len() <= COLOURS.len() {
            return Ok(vec![lines(&title, &series)?]);
        }
        // The references of a bar plot must be one and the same, else the legend would lie.
        let first = self.rows.iter().find_map(|row| row.reference.as_deref());
        let theirs = |row: &Row| row.ratio_to(first?).map(|ratio| row.gbps / ratio);
        let distinct =
            |key: fn(&Row) -> &str| self.rows.iter().any(|r| key(r) != key(&self.rows[0]));
        let (ops, spaces) = (distinct(|r| &r.op), distinct(|r| &r.space));
        let groups: Vec<BarGroup> = self
            .rows
            .iter()
            .map(|row| BarGroup {
                label: label(row, &row.case, ops, spaces),
                gbps: match first {
                    Some(_) => vec![row.gbps, theirs(row).unwrap_or(0.0)],
                    None => vec![row.gbps],
                },
            })
            .collect();
        let names: Vec<&str> = std::iter::once("gapless").chain(first).collect();
        bars(&title, &names, &groups)
    }

    /// Writes [`Self::to_svgs`], replacing `path` in one step. Where there are several, `NAME.svg` becomes
    /// `NAME-1.svg`, `NAME-2.svg` and so on. Answers what was written. Pages under these names that an earlier report
    /// left are removed: `NAME.svg` beside numbered ones, and those with the next numbers.
    ///
    /// # Errors
    /// [`FileError`], naming the path.
    pub fn write_svg(&self, path: impl AsRef<Path>) -> Result<Vec<PathBuf>, FileError> {
        let path = path.as_ref();
        let svgs = self.to_svgs().map_err(|source| FileError::plot(path, source))?;
        let paths: Vec<PathBuf> = match svgs.len() {
            1 => vec![path.to_owned()],
            pages => (1..=pages).map(|page| numbered(path, page)).collect(),
        };
        for (path, svg) in paths.iter().zip(&svgs) {
            file::write_atomically(path, svg.as_bytes())?;
        }
        if paths.len() > 1 {
            file::remove(path)?;
        }
        let next = if paths.len() > 1 { paths.len() + 1 } else { 1 };
        for page in next.. {
            if !file::remove(&numbered(path, page))? {
                break;
            }
        }
        Ok(paths)
    }

    /// One series for each layout, operation and space; rows without payload have no rate and are
    /// left out.
    fn series(&self) -> Vec<Series> {
        let rows = || self.rows.iter().filter(|row| row.payload_bytes > 0);
        let distinct = |key: fn(&Row) -> &str| rows().any(|r| key(r) != key(&self.rows[0]));
        let (ops, spaces) = (distinct(|r| &r.op), distinct(|r| &r.space));
        let mut series: Vec<Series> = Vec::new();
        for row in rows() {
            let name = label(row, family(&row.case), ops, spaces);
            let rate = |seconds| crate::samples::gbps(row.payload_bytes, seconds);
            let point = Point {
                payload_bytes: row.payload_bytes,
                gbps: row.gbps,
                spread: Some((rate(row.seconds.max), rate(row.seconds.min))),
            };
            match series.iter_mut().find(|one| one.name == name) {
                Some(one) => one.points.push(point),
                None => series.push(Series { name, points: vec![point] }),
            }
        }
        series
    }
}

/// `NAME-2.svg` of `NAME.svg`.
fn numbered(path: &Path, page: usize) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{page}"));
    if let Some(kind) = path.extension() {
        name.push(".");
        name.push(kind);
    }
    path.with_file_name(name)
}

/// The layout's name: what stands before the parameters, `V` of `V n=4096`, `NAS LU y` of
/// `NAS LU y n=12`. A word with a digit or an equals sign begins the parameters.
fn family(case: &str) -> &str {
    let mut end = case.len();
    for word in case.split(' ').skip(1) {
        if word.contains('=') || word.starts_with(|c: char| c.is_ascii_digit()) {
            // The word is a slice of `case`: its place is the distance of their starts.
            end = word.as_ptr() as usize - case.as_ptr() as usize;
            break;
        }
    }
    case[..end].trim_end()
}

/// What sets a row apart from the others of its report.
fn label(row: &Row, case: &str, with_op: bool, with_space: bool) -> String {
    let mut label = case.to_owned();
    for (wanted, text) in [(with_op, &row.op), (with_space, &row.space)] {
        if wanted {
            label.push_str(", ");
            label.push_str(text);
        }
    }
    label
}

/// The tick label of log₂ `exponent`.
fn power_of_two(exponent: f64, shown: impl Fn(u64) -> String) -> String {
    let rounded = exponent.round();
    if (exponent - rounded).abs() > 1e-6 || !(0.0..64.0).contains(&rounded) {
        return String::new();
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number from 0 to 63, checked above"
    )]
    let shift = rounded as u32;
    shown(1 << shift)
}

#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
