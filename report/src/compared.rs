//! Files that hold ratios of speed to several others, with their spread, and one time of ours: what programs write that
//! run others beside Gapless in turn.
//!
//! ```json
//! {"what": "ratios of speed", "command": "cargo xtask peers", "commit": "8b69932", "cpu": "…", "rows": [
//!   {"work": "pack V 1048576", "seconds": 4.8e-5, "over_memcpy": {"median": 0.98, "spread": 0.01}, "met": true}]}
//! ```
//!
//! `over_NAME` is the ratio to NAME, above 1 when ours is faster; its spread is half the distance of the quartiles, as a
//! share of the median. Other keys are not looked at.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::file::{self, FileError};
use crate::human::Time;
use crate::plot::{PlotError, RatioRow, Spread, ratios};
use crate::table::{Align, Table};

/// A file that compares libraries side by side: what was measured, where, and the figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// What the ratios are, in a line.
    #[serde(default)]
    pub what: String,
    /// The command that reproduces it.
    pub command: String,
    /// The sources it was built from.
    pub commit: String,
    /// The processor.
    pub cpu: String,
    /// The figures.
    pub rows: Vec<ComparedWork>,
}

/// A row of a [`Compared`] file: one piece of work, our time for it and the ratios.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedWork {
    /// Its name.
    pub work: String,
    /// Our median time, in seconds.
    pub seconds: f64,
    /// Whether what was asked of it is met; null where nothing was.
    #[serde(default)]
    pub met: Option<bool>,
    /// Everything else, the ratios among it.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Ratio {
    median: Option<f64>,
    #[serde(default)]
    spread: Option<f64>,
}

/// How ratios' keys begin.
const OVER: &str = "over_";

impl ComparedWork {
    /// The ratio to `name`, if there is one.
    fn over(&self, name: &str) -> Option<Spread> {
        let value = self.other.get(&format!("{OVER}{name}"))?;
        let Ratio { median, spread } = Ratio::deserialize(value).ok()?;
        let (median, spread) = (median?, spread.unwrap_or(0.0).max(0.0));
        Some(Spread {
            median,
            low: (median * (1.0 - spread)).max(0.0),
            high: median * (1.0 + spread),
        })
    }
}

impl Compared {
    /// Reads such a file.
    ///
    /// # Errors
    /// [`FileError`], naming the path: it cannot be read, or is something else.
    pub fn read_json(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        let text = file::read(path)?;
        serde_json::from_str(&text).map_err(|source| FileError::json(path, source))
    }

    /// What is compared with, in order of their names.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .rows
            .iter()
            .flat_map(|row| row.other.keys())
            .filter_map(|key| key.strip_prefix(OVER))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The ratios as pictures, a page each.
    ///
    /// # Errors
    /// [`PlotError`] when there is none, or one that is negative.
    pub fn to_svgs(&self) -> Result<Vec<String>, PlotError> {
        let names = self.names();
        let row = |row: &ComparedWork| RatioRow {
            label: row.work.clone(),
            met: row.met,
            ratios: names.iter().map(|name| row.over(name)).collect(),
        };
        let rows: Vec<RatioRow> = self.rows.iter().map(row).collect();
        ratios(&format!("{} ({})", self.title(), self.cpu), &names, &rows)
    }

    /// What the ratios are, or that they are ratios.
    #[must_use]
    pub fn title(&self) -> &str {
        if self.what.is_empty() { "ratios of speed" } else { &self.what }
    }

    /// The figures as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        let names = self.names();
        let columns = [("work".to_owned(), Align::Left), ("time".to_owned(), Align::Right)];
        let ratios = names.iter().map(|name| (format!("÷ {name}"), Align::Right));
        let mark = [("mark".to_owned(), Align::Left)];
        let mut table = Table::new(columns.into_iter().chain(ratios).chain(mark));
        for row in &self.rows {
            let ratio = |name: &&str| {
                row.over(name).map_or("-".to_owned(), |it| format!("{:.2}", it.median))
            };
            let mark = row.met.map_or("-", |met| if met { "met" } else { "MISSED" });
            let cells = [row.work.clone(), Time(row.seconds).to_string()];
            table.push(cells.into_iter().chain(names.iter().map(ratio)).chain([mark.to_owned()]));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"what": "ratios", "command": "c", "commit": "0", "cpu": "CPU", "processors": 2, "rows": [
        {"work": "pack V", "seconds": 1e-6, "over_memcpy": {"median": 0.5, "spread": 0.1},
         "over_mpich": {"median": 4.0}, "lines": 3, "met": false},
        {"work": "barrier", "seconds": 2e-6, "over_mpich": {"median": 300.0, "spread": null}, "met": null}]}"#;

    fn compared() -> Compared {
        serde_json::from_str(TEXT).unwrap()
    }

    #[test]
    fn ratios_are_known_by_their_keys() {
        let compared = compared();
        assert_eq!(compared.names(), ["memcpy", "mpich"]);
        let over = compared.rows[0].over("memcpy").unwrap();
        assert_eq!([over.low, over.median, over.high], [0.45, 0.5, 0.55]);
        assert_eq!(compared.rows[1].over("memcpy"), None);
        assert_eq!(
            compared.table().to_string(),
            "work        time  ÷ memcpy  ÷ mpich  mark\n\
             ───────  ───────  ────────  ───────  ──────\n\
             pack V   1.00 µs      0.50     4.00  MISSED\n\
             barrier  2.00 µs         -   300.00  -\n"
        );
        let picture = compared.to_svgs().unwrap().concat();
        assert!(picture.contains("300 →") && picture.contains("ratios (CPU)"), "{picture}");
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other.json");
        for text in ["{}", "[]", "{\"rows\": 3}", "nonsense"] {
            std::fs::write(&path, text).unwrap();
            let error = Compared::read_json(&path).unwrap_err().to_string();
            assert!(error.contains("other.json is no report"), "{error}");
        }
        let none = Compared::default();
        assert_eq!(none.to_svgs(), Err(PlotError::Empty));
    }
}
