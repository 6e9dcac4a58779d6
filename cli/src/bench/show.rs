//! What is shown: a line for each size as soon as it is measured, and a JSON file in the end.
//!
//! Lines that begin with `#` say what stands below them; so plotting programs read the rest.

use super::Common;
use crate::failure::Failure;
use crate::{complain, say_beside, write_json};
use gapless_pml::Protocol;
use gapless_report::{Machine, Report, Row, Samples};
use std::path::PathBuf;

/// Characters of a column, but the first.
const WIDTH: usize = 10;

/// A quantity that is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// As in the comment above the column.
    title: &'static str,
    /// As the first line of comma-separated values has it.
    name: &'static str,
    quantity: Quantity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    /// Time of a message.
    Microseconds,
    /// Time to the last rank's end.
    Last,
    /// 10⁶ bytes a second.
    Bandwidth,
    /// Messages a second.
    Rate,
    /// Part of a call that other work hides, in percent.
    Overlap,
    /// Time of the calls of a mixture, each repeated.
    Repeated,
}

impl Column {
    pub(super) const MICROSECONDS: Column =
        Column { title: "µs", name: "us", quantity: Quantity::Microseconds };
    pub(super) const LAST: Column =
        Column { title: "last µs", name: "last_us", quantity: Quantity::Last };
    pub(super) const BANDWIDTH: Column =
        Column { title: "MB/s", name: "mb_per_s", quantity: Quantity::Bandwidth };
    pub(super) const RATE: Column =
        Column { title: "messages/s", name: "messages_per_s", quantity: Quantity::Rate };

    pub(super) const OVERLAP: Column =
        Column { title: "overlap %", name: "overlap_percent", quantity: Quantity::Overlap };
    pub(super) const REPEATED: Column =
        Column { title: "repeated", name: "repeated_us", quantity: Quantity::Repeated };

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn value(self, figure: &Figure) -> f64 {
        let seconds = figure.seconds();
        match self.quantity {
            Quantity::Microseconds => seconds * 1e6,
            Quantity::Last => figure.last.unwrap_or(seconds) * 1e6,
            Quantity::Bandwidth => figure.payload_bytes as f64 / seconds / 1e6,
            Quantity::Rate => 1.0 / seconds,
            Quantity::Overlap => figure.overlap.unwrap_or(0.0) * 100.0,
            Quantity::Repeated => figure.repeated.unwrap_or(seconds) * 1e6,
        }
    }
}

/// What one size took.
#[derive(Clone, Debug, Default)]
pub(super) struct Figure {
    pub(super) case: String,
    pub(super) payload_bytes: u64,
    /// Seconds of a message, or of a call: of all together.
    pub(super) average: f64,
    /// Whether that is what is shown; else the median of the samples.
    pub(super) shows_average: bool,
    /// Of a call, to the last rank's end.
    pub(super) last: Option<f64>,
    /// What part of a call other work hides.
    pub(super) overlap: Option<f64>,
    /// Of the calls of a mixture, each repeated, all together.
    pub(super) repeated: Option<f64>,
    /// Seconds of a message, of each sample.
    pub(super) samples: Vec<f64>,
    pub(super) space: String,
    pub(super) protocol: String,
    pub(super) blocks: u64,
    pub(super) extra: Vec<(&'static str, u64)>,
}

impl Figure {
    /// What is shown, in seconds.
    fn seconds(&self) -> f64 {
        if self.shows_average { self.average } else { median(self.samples.iter().copied()) }
    }
}

/// Where figures go; ranks but the first show nothing.
pub(super) struct BenchOutput {
    shows: bool,
    full: bool,
    csv: bool,
    json: Option<PathBuf>,
    /// What `--protocol` asks for.
    protocol: Option<Protocol>,
    test: String,
    columns: Vec<Column>,
    rows: Vec<Row>,
}

/// The average, before the percentiles.
const AVERAGE: (&str, &str) = ("average", "average_us");

/// The least, the greatest, and what is between: title, name, and the share of readings that are not above it.
const PERCENTILES: [(&str, &str, f64); 5] = [
    ("min", "min_us", 0.0),
    ("median", "median_us", 0.5),
    ("p90", "p90_us", 0.9),
    ("p99", "p99_us", 0.99),
    ("max", "max_us", 1.0),
];

impl BenchOutput {
    /// The output of a test, with a column and perhaps another: of rates only in full, of collectives always.
    pub(super) fn new(
        common: &Common,
        shows: bool,
        test: &str,
        (first, second): (Column, Option<Column>),
    ) -> BenchOutput {
        let always = [Quantity::Last, Quantity::Overlap, Quantity::Repeated];
        let second = second.filter(|column| common.full || always.contains(&column.quantity));
        BenchOutput {
            shows,
            full: common.full,
            csv: common.csv,
            json: common.json.clone(),
            protocol: None,
            test: test.to_owned(),
            columns: [first].into_iter().chain(second).collect(),
            rows: Vec::new(),
        }
    }

    /// Says so of messages that did not go by this protocol.
    pub(super) fn asks_for(self, protocol: Option<Protocol>) -> BenchOutput {
        BenchOutput { protocol, ..self }
    }

    /// Says what is measured, and where.
    pub(super) fn begin(&self, about: &str) -> Result<(), Failure> {
        if self.csv {
            let names = self.columns.iter().map(|column| column.name);
            let percentiles = PERCENTILES.iter().map(|(_, name, _)| *name);
            let more = [AVERAGE.1].into_iter().chain(percentiles).chain(["blocks", "protocol"]);
            let names: Vec<&str> = ["message", "bytes"]
                .into_iter()
                .chain(names)
                .chain(more.filter(|_| self.full))
                .collect();
            return self.line(&names.join(","));
        }
        self.line(&format!("# gapless bench {}: {about}", self.test))?;
        self.line(&format!("# {}", Machine::describe().one_line()))?;
        if self.full {
            self.line("# average to max: µs of a message, or of a call")?;
        }
        Ok(())
    }

    /// The head of the lines of one layout.
    pub(super) fn series(&self, layout: Option<&str>) -> Result<(), Failure> {
        if self.csv {
            return Ok(());
        }
        if let Some(layout) = layout {
            self.line(&format!("# layout {layout}"))?;
        }
        let mut text = format!("{:<WIDTH$}", "# bytes");
        let percentiles = PERCENTILES.iter().map(|(title, ..)| *title);
        let more = [AVERAGE.0].into_iter().chain(percentiles);
        for title in
            self.columns.iter().map(|column| column.title).chain(more.filter(|_| self.full))
        {
            text += &format!(" {title:>WIDTH$}");
        }
        if self.full {
            text += " protocol";
        }
        self.line(&text)
    }

    /// One size.
    pub(super) fn figure(&mut self, figure: &Figure) -> Result<(), Failure> {
        if !self.shows {
            return Ok(());
        }
        let mut values: Vec<f64> = self.columns.iter().map(|column| column.value(figure)).collect();
        if self.full {
            let mut sorted = figure.samples.clone();
            sorted.sort_by(f64::total_cmp);
            values.push(figure.average * 1e6);
            values.extend(PERCENTILES.iter().map(|(.., share)| percentile(&sorted, *share) * 1e6));
        }
        let values = values.into_iter().map(number);
        let text = if self.csv {
            let name = figure.case.replace(['"', ','], " ");
            let bytes = figure.payload_bytes.to_string();
            let mut cells: Vec<String> = [name, bytes].into_iter().chain(values).collect();
            if self.full {
                cells.extend([figure.blocks.to_string(), figure.protocol.clone()]);
            }
            cells.join(",")
        } else {
            let mut text = format!("{:<WIDTH$}", figure.payload_bytes);
            values.for_each(|value| text += &format!(" {value:>WIDTH$}"));
            if self.full {
                text += &format!(" {}", figure.protocol);
            }
            text
        };
        self.line(&text)?;
        // Of the ways there and back, one may have been possible.
        if let Some(asked) = self.protocol
            && !figure.protocol.split([' ', '/', ',']).any(|used| used == asked.name())
        {
            complain(&format!(
                "--protocol {} is impossible for {} B: {} was used",
                asked.name(),
                figure.payload_bytes,
                figure.protocol
            ));
        }
        if self.json.is_some() {
            self.rows.push(self.row(figure)?);
        }
        Ok(())
    }

    fn row(&self, figure: &Figure) -> Result<Row, Failure> {
        let Figure { case, payload_bytes, space, protocol, .. } = figure.clone();
        let samples = Samples::from_seconds(figure.samples.iter().copied());
        let no_samples = |error| Failure::NoSamples { what: case.clone(), error };
        let summary = samples.summary().map_err(no_samples)?;
        let row = Row::new(case, &self.test, space, protocol, payload_bytes, summary)
            .blocks(figure.blocks)
            .verified(true)
            .with("average_seconds", figure.average);
        let more = [
            ("last_rank_seconds", figure.last),
            ("overlap", figure.overlap),
            ("repeated_seconds", figure.repeated),
        ];
        let row = more.into_iter().fold(row, |row, (name, value)| match value {
            Some(value) => row.with(name, value),
            None => row,
        });
        Ok(figure.extra.iter().fold(row, |row, (name, value)| row.with(*name, *value)))
    }

    /// Writes the file.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let Some(path) = self.json.filter(|_| self.shows) else { return Ok(()) };
        let words = std::env::args().skip(1).filter(|word| word != "--as-rank");
        let command: Vec<String> = ["gapless".to_owned()].into_iter().chain(words).collect();
        let report = Report::new("bench", Machine::describe(), command.join(" "), self.rows);
        write_json(&report, &path)
    }

    fn line(&self, text: &str) -> Result<(), Failure> {
        if !self.shows {
            return Ok(());
        }
        say_beside(self.json.as_deref(), &format!("{text}\n"))
    }
}

/// The middle reading.
pub(super) fn median(readings: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = readings.collect();
    sorted.sort_by(f64::total_cmp);
    percentile(&sorted, 0.5)
}

/// The least reading that so large a share of all is not above; `sorted` is ascending, and not empty.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "at most 10^9 readings")]
    let rank = (share * sorted.len() as f64).ceil();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most as many")]
    let at = (rank as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// Three digits at least.
fn number(value: f64) -> String {
    match value {
        value if value >= 1000.0 => format!("{value:.0}"),
        value if value >= 100.0 => format!("{value:.1}"),
        value if value >= 10.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_readings() {
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        let all = PERCENTILES.map(|(.., share)| percentile(&sorted, share));
        assert_eq!(all, [1.0, 100.0, 180.0, 198.0, 200.0]);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
    }

    #[test]
    fn numbers_have_three_digits_at_least() {
        let all = [0.0421, 1.2345, 12.345, 123.45, 1234.5, 21_345_678.9].map(number);
        assert_eq!(all, ["0.042", "1.234", "12.35", "123.5", "1234", "21345679"]);
    }

    #[test]
    fn quantities_are_of_one_message() {
        let figure = Figure {
            payload_bytes: 1000,
            average: 4e-6,
            last: Some(3e-6),
            samples: vec![1e-6, 2e-6, 9e-6],
            ..Figure::default()
        };
        let of = |column: Column| column.value(&figure).round();
        assert_eq!(of(Column::MICROSECONDS), 2.0);
        assert_eq!(of(Column::LAST), 3.0);
        assert_eq!(of(Column::BANDWIDTH), 500.0);
        assert_eq!(of(Column::RATE), 500_000.0);
        let figure = Figure { shows_average: true, ..figure };
        assert_eq!(Column::RATE.value(&figure).round(), 250_000.0);
    }
}
