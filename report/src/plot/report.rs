//! What of a report is drawn, and how.
//!
//! Rates are lines over log₂ of the payload. A report whose layouts were mostly measured at one size only has no such axis
//! and becomes bars, beside their reference; so does one with more lines than there are colours, unless a picture for
//! each layout has few enough.

use std::path::{Path, PathBuf};

use super::bars::{BarGroup, bars};
use super::curves::{Curve, curves, latency};
use super::lines::{Point, Series, lines};
use super::ratios::{RatioRow, Spread, ratios};
use super::{COLOURS, PlotError};
use crate::file::{self, FileError};
use crate::samples;
use crate::schema::{Report, Row};

/// Payloads of a line, at least, where each layout gets a picture of its own.
const SWEEP_MIN: usize = 4;
/// Pictures of one report's lines, at most.
const PICTURES_MAX: usize = 8;

/// The rows of one line.
pub(super) struct Sweep<'a> {
    /// The layout.
    family: String,
    /// What sets the line apart from the others.
    pub(super) name: String,
    pub(super) rows: Vec<&'a Row>,
}

impl Sweep<'_> {
    /// Whether it has several points, each at a place of its own.
    fn is_line(&self, place: impl Fn(&Row) -> Option<u64>) -> bool {
        let mut places: Vec<Option<u64>> = self.rows.iter().map(|row| place(row)).collect();
        places.sort_unstable();
        let rows = places.len();
        places.dedup();
        rows > 1 && places.len() == rows && !places.contains(&None)
    }
}

impl Report {
    /// The report as SVGs: of lines when most layouts were measured at several payloads and a colour is there for each,
    /// all in one picture or one a layout; else pages of bars.
    ///
    /// # Errors
    /// [`PlotError`] when there is nothing to plot.
    pub fn to_svgs(&self) -> Result<Vec<String>, PlotError> {
        let pictures = self.swept();
        if !pictures.is_empty() {
            let draw = |(title, sweeps): &(String, Vec<Sweep<'_>>)| {
                lines(title, &sweeps.iter().map(series).collect::<Vec<_>>())
            };
            return pictures.iter().map(draw).collect();
        }
        // The references of a bar plot must be one and the same, else the legend would lie.
        let first = self.rows.iter().find_map(|row| row.reference.as_deref());
        let theirs = |row: &Row| row.ratio_to(first?).map(|ratio| row.gbps / ratio);
        let (ops, spaces) = self.distinct();
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
        bars(&self.title(), &names, &groups)
    }

    /// Times by payload, with two logarithmic axes, in as many pictures as [`Self::to_svgs`] has of lines; none where
    /// that draws bars.
    ///
    /// # Errors
    /// [`PlotError`] when a value has no place on the axes.
    pub fn latency_svgs(&self) -> Result<Vec<String>, PlotError> {
        let curve = |sweep: &Sweep<'_>| Curve {
            name: sweep.name.clone(),
            points: sweep.rows.iter().map(|row| (row.payload_bytes, row.seconds)).collect(),
        };
        let draw = |(title, sweeps): &(String, Vec<Sweep<'_>>)| {
            latency(title, &sweeps.iter().map(curve).collect::<Vec<_>>())
        };
        self.swept().iter().map(draw).collect()
    }

    /// Times by the number that cases end with (`posted outstanding=1000`), if that is what the rows differ in; `None` if
    /// it is not.
    ///
    /// # Errors
    /// [`PlotError`] when a value has no place on the axes.
    pub fn growth_svg(&self) -> Result<Option<String>, PlotError> {
        let Some((_, key, _)) = self.rows.first().and_then(|row| counted(&row.case)) else {
            return Ok(None);
        };
        let same = |row: &Row| {
            let known =
                counted(&row.case).is_some_and(|(_, other, number)| other == key && number > 0);
            known && row.payload_bytes == self.rows[0].payload_bytes
        };
        let sweeps = self.sweeps(self.rows.iter());
        let place = |row: &Row| counted(&row.case).map(|(_, _, number)| number);
        let drawn = self.rows.iter().all(same)
            && sweeps.len() <= COLOURS.len()
            && sweeps.iter().all(|sweep| sweep.is_line(place));
        if !drawn {
            return Ok(None);
        }
        let curve = |sweep: &Sweep<'_>| Curve {
            name: sweep.name.clone(),
            points: sweep.rows.iter().filter_map(|row| Some((place(row)?, row.seconds))).collect(),
        };
        curves(&self.title(), key, &sweeps.iter().map(curve).collect::<Vec<_>>()).map(Some)
    }

    /// The ratios to every reference, a line a row, on as many pages as it takes; none if nothing was compared.
    ///
    /// # Errors
    /// [`PlotError`] when a ratio is negative or not a number.
    pub fn ratio_svgs(&self) -> Result<Vec<String>, PlotError> {
        let names = self.references();
        let compared = |row: &&Row| names.iter().any(|name| row.ratio_to(name).is_some());
        let (ops, spaces) = self.distinct();
        let rows: Vec<RatioRow> = self
            .rows
            .iter()
            .filter(compared)
            .map(|row| RatioRow {
                label: label(row, &row.case, ops, spaces),
                met: row.met(),
                ratios: names.iter().map(|name| row.ratio_to(name).map(Spread::exact)).collect(),
            })
            .collect();
        if rows.is_empty() { Ok(Vec::new()) } else { ratios(&self.title(), &names, &rows) }
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

    fn title(&self) -> String {
        format!("{} ({})", self.experiment, self.machine.cpu)
    }

    /// The pictures of lines, with their titles; none if the report is not one of lines.
    fn swept(&self) -> Vec<(String, Vec<Sweep<'_>>)> {
        let sweeps = self.sweeps(self.rows.iter().filter(|row| row.payload_bytes > 0));
        let is_line = |sweep: &&Sweep<'_>| sweep.is_line(|row| Some(row.payload_bytes));
        if sweeps.iter().filter(is_line).count() * 2 <= sweeps.len() {
            return Vec::new();
        }
        if sweeps.len() <= COLOURS.len() {
            return vec![(self.title(), sweeps)];
        }
        let long = |sweep: &Sweep<'_>| is_line(&sweep) && sweep.rows.len() >= SWEEP_MIN;
        let most_are_long = 2 * sweeps.iter().filter(|sweep| long(sweep)).count() > sweeps.len();
        let mut pictures: Vec<(String, Vec<Sweep<'_>>)> = Vec::new();
        for sweep in sweeps {
            let title = format!("{}: {}", self.title(), sweep.family);
            match pictures.iter_mut().find(|(known, _)| *known == title) {
                Some((_, sweeps)) => sweeps.push(sweep),
                None => pictures.push((title, vec![sweep])),
            }
        }
        let few = pictures.iter().all(|(_, sweeps)| sweeps.len() <= COLOURS.len());
        if most_are_long && few && pictures.len() <= PICTURES_MAX { pictures } else { Vec::new() }
    }

    /// One line for each layout and variant, operation and space.
    pub(super) fn sweeps<'a>(&self, rows: impl Iterator<Item = &'a Row>) -> Vec<Sweep<'a>> {
        let (ops, spaces) = self.distinct();
        let mut sweeps: Vec<Sweep<'a>> = Vec::new();
        for row in rows {
            let family = family(&row.case);
            let name = match variant(&row.case) {
                Some(variant) => format!("{family} {variant}"),
                None => family.to_owned(),
            };
            let name = label(row, &name, ops, spaces);
            match sweeps.iter_mut().find(|one| one.name == name) {
                Some(one) => one.rows.push(row),
                None => sweeps.push(Sweep { family: family.to_owned(), name, rows: vec![row] }),
            }
        }
        sweeps
    }

    /// Whether rows differ in their operation, and in their space.
    fn distinct(&self) -> (bool, bool) {
        let distinct =
            |key: fn(&Row) -> &str| self.rows.iter().any(|row| key(row) != key(&self.rows[0]));
        (distinct(|row| &row.op), distinct(|row| &row.space))
    }
}

/// A line of rates, with quartiles, or extremes where those are unknown.
fn series(sweep: &Sweep<'_>) -> Series {
    let point = |row: &&Row| {
        let rate = |seconds| samples::gbps(row.payload_bytes, seconds);
        let time = &row.seconds;
        let (slow, fast) = (time.q3.unwrap_or(time.max), time.q1.unwrap_or(time.min));
        Point {
            payload_bytes: row.payload_bytes,
            gbps: row.gbps,
            spread: Some((rate(slow), rate(fast))),
        }
    };
    Series { name: sweep.name.clone(), points: sweep.rows.iter().map(point).collect() }
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
pub(super) fn family(case: &str) -> &str {
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

/// `(pipeline)` of `V n=4096 (pipeline)`.
fn variant(case: &str) -> Option<&str> {
    let (before, _) = case.strip_suffix(')')?.rsplit_once(" (")?;
    // Unless it is part of the name.
    (family(case).len() <= before.len()).then(|| case[before.len()..].trim_start())
}

/// `posted`, `outstanding` and 10 of `posted outstanding=10`.
fn counted(case: &str) -> Option<(&str, &str, u64)> {
    let (rest, number) = case.rsplit_once('=')?;
    let (name, key) = rest.rsplit_once(' ')?;
    (!name.contains('=')).then_some((name, key, number.parse().ok()?))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, Samples};

    fn report(rows: &[(String, u64)]) -> Report {
        let time = Samples::from_seconds([2e-6]).summary().unwrap();
        let row = |(case, bytes): &(String, u64)| {
            Row::new(case.as_str(), "oneway", "host", "eager", *bytes, time)
        };
        Report::new("t", Machine::default(), "c", rows.iter().map(row).collect())
    }

    #[test]
    fn variants_are_lines_of_their_own() {
        let rows = |variants: &[&str], families: &[&str]| -> Vec<(String, u64)> {
            let cases =
                variants.iter().flat_map(|variant| families.iter().map(move |f| (f, variant)));
            let sized = |(family, variant): (&&str, &&str)| {
                [8u64, 64, 512, 4096].map(|n| (format!("{family} n={n} ({variant})"), n * 8))
            };
            cases.flat_map(sized).collect()
        };
        let few = report(&rows(&["eager", "mapped"], &["V", "T"]));
        let pictures = few.swept();
        let names: Vec<&str> = pictures[0].1.iter().map(|sweep| sweep.name.as_str()).collect();
        assert_eq!(names, ["V (eager)", "T (eager)", "V (mapped)", "T (mapped)"]);
        // A picture a layout where one has too few colours.
        let many = report(&rows(&["eager", "mapped", "pipeline", "auto", "x"], &["V", "T"]));
        let titles: Vec<String> = many.swept().into_iter().map(|(title, _)| title).collect();
        assert_eq!(titles, ["t (): V", "t (): T"]);
        assert_eq!(many.to_svgs().unwrap().len(), 2);
        assert_eq!(many.latency_svgs().unwrap().len(), 2);
        // Bars where a layout alone has too many.
        let names: Vec<String> = (0..9).map(|n| format!("way{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(report(&rows(&names, &["V"])).swept().is_empty());
    }

    #[test]
    fn two_figures_at_one_payload_are_no_line() {
        let rows =
            [("V n=1", 8), ("V n=2", 64), ("V n=3", 64)].map(|(case, n)| (case.to_owned(), n));
        assert!(report(&rows).swept().is_empty());
        assert_eq!(report(&rows[..2]).swept().len(), 1);
    }

    #[test]
    fn numbers_of_cases_are_an_axis() {
        let cases = |names: &[&str]| -> Vec<(String, u64)> {
            let each = names
                .iter()
                .flat_map(|name| [1, 10, 100].map(|n| (format!("{name} ranks={n}"), 0)));
            each.collect()
        };
        let svg = report(&cases(&["barrier", "bcast"])).growth_svg().unwrap().unwrap();
        for text in [">ranks<", ">barrier<", ">bcast<", "time ("] {
            assert!(svg.contains(text), "{text}");
        }
        let mut other = cases(&["barrier"]);
        other.push(("V n=3".to_owned(), 0));
        assert_eq!(report(&other).growth_svg(), Ok(None));
        let twice = [cases(&["barrier"]), cases(&["barrier"])].concat();
        assert_eq!(report(&twice).growth_svg(), Ok(None));
        assert_eq!(report(&[]).growth_svg(), Ok(None));
    }

    #[test]
    fn variants_stand_at_the_end() {
        assert_eq!(variant("V n=1 (eager)"), Some("(eager)"));
        assert_eq!(variant("V n=1"), None);
        assert_eq!(variant("halo (26) n=1"), None);
        assert_eq!(variant("V (x)"), None, "it is the name's");
        assert_eq!(counted("a b n=3"), Some(("a b", "n", 3)));
        assert_eq!(counted("a n=3 h=1"), None);
    }
}
