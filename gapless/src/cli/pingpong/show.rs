//! What is shown in the end: a table, a JSON file, a plot.

use super::content::Wrong;
use super::rank::Sizes;
use super::{Memory, Pingpong, Source};
use crate::cli::failure::Failure;
use crate::cli::say;
use gapless_pml::Protocol;
use gapless_report::{Align, Bytes, Machine, Rate, Report, Row, Summary, Table, Time};
use std::process::ExitCode;

/// One line of the table.
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) source: &'static str,
    pub(super) protocol: Protocol,
    pub(super) payload_bytes: u64,
    pub(super) blocks: u64,
    /// One-way times, over buffers that rotate.
    pub(super) rotating: Summary,
    /// One-way times, with the same buffers again and again.
    pub(super) resident: Summary,
    pub(super) memcpy: Summary,
    pub(super) contiguous: Summary,
    pub(super) verdict: Result<(), Wrong>,
    /// Bytes that the buffers of one process touch before the first one's turn comes again.
    pub(super) rotation_bytes: u64,
}

/// Everything that was measured.
pub(super) struct Outcome {
    pub(super) sizes: Sizes,
    pub(super) shown: Vec<Shown>,
}

pub(super) fn source_name(source: Source) -> &'static str {
    match source {
        Source::Alloc => "alloc",
        Source::Heap => "heap",
    }
}

impl Outcome {
    /// Shows and writes everything; whether all bytes were right decides how it ends.
    pub(super) fn finish(&self, options: &Pingpong) -> Result<ExitCode, Failure> {
        let both = options.memory == Memory::Both;
        let report = self.report(options, both);
        say(&format!(
            "{}\n\n{}{}",
            report.machine.one_line(),
            self.table(both),
            self.notes(options)
        ))?;
        if let Some(path) = &options.json {
            report.write_json(path)?;
        }
        if let Some(path) = &options.plot {
            report.write_svg(path)?;
        }
        let wrong = self.shown.iter().filter_map(|shown| {
            shown.verdict.err().map(|wrong| format!("{}: {wrong}", shown.name))
        });
        let wrong: Vec<String> = wrong.collect();
        match wrong.first() {
            None => Ok(ExitCode::SUCCESS),
            Some(first) => Err(Failure::WrongBytes {
                cases: wrong.len(),
                all: self.shown.len(),
                first: first.clone(),
            }),
        }
    }

    fn table(&self, both: bool) -> Table {
        let right = |title| (title, Align::Right);
        let left = |title| (title, Align::Left);
        let memory = both.then(|| left("memory"));
        let columns = [left("layout")].into_iter().chain(memory).chain([
            right("payload"),
            right("blocks"),
            right("one-way"),
            right("spread"),
            right("GB/s"),
            right("resident"),
            right("÷contiguous"),
            right("÷memcpy"),
            left("protocol"),
            left("bytes"),
        ]);
        let mut table = Table::new(columns);
        for shown in &self.shown {
            let payload = shown.payload_bytes;
            let memory = both.then(|| shown.source.to_owned());
            table.push([shown.name.clone()].into_iter().chain(memory).chain([
                Bytes(payload).to_string(),
                shown.blocks.to_string(),
                Time(shown.rotating.median).to_string(),
                spread(&shown.rotating),
                Rate(shown.rotating.gbps(payload)).to_string(),
                Rate(shown.resident.gbps(payload)).to_string(),
                format!("{:.2}", shown.contiguous.median / shown.rotating.median),
                format!("{:.2}", shown.memcpy.median / shown.rotating.median),
                shown.protocol.to_string(),
                if shown.verdict.is_ok() { "right" } else { "WRONG" }.to_owned(),
            ]));
        }
        table
    }

    fn notes(&self, options: &Pingpong) -> String {
        let Sizes { cache_bytes, assumed, .. } = self.sizes;
        let cache = Bytes(cache_bytes);
        let guess = if assumed { " (assumed: the kernel does not tell)" } else { "" };
        let mut text = format!(
            "\none-way: median of half a round trip, buffers rotating over more than 4 × the \
             last-level cache of {cache}{guess};\nspread: between quartiles; resident: GB/s with the \
             same buffers every time; ÷: speed relative to a contiguous message\nand to one memcpy \
             of the same payload, both rotating; contents and order from --seed {}.\n",
            options.seed,
        );
        let short: Vec<&str> = self
            .shown
            .iter()
            .filter(|shown| shown.rotation_bytes <= 4 * cache_bytes)
            .map(|shown| shown.name.as_str())
            .collect();
        if !short.is_empty() {
            let arena = Bytes(self.sizes.arena_bytes);
            text += &format!(
                "Rotating over less than that, because buffers are bounded to {arena} a side: {}.\n",
                short.join("; ")
            );
        }
        text
    }

    fn report(&self, options: &Pingpong, both: bool) -> Report {
        let rows = self.shown.iter().map(|shown| shown.row(both)).collect();
        Report::new("pingpong", Machine::describe(), options.command(), rows)
    }
}

impl Shown {
    pub(super) fn row(&self, both: bool) -> Row {
        let name = match both {
            true => format!("{} ({})", self.name, self.source),
            false => self.name.clone(),
        };
        let protocol = self.protocol.name();
        Row::new(name, "oneway", "host", protocol, self.payload_bytes, self.rotating)
            .against("memcpy", self.memcpy)
            .against("contiguous", self.contiguous)
            .blocks(self.blocks)
            .resident_gbps(self.resident.gbps(self.payload_bytes))
            .verified(self.verdict.is_ok())
            .with("memory", self.source)
            .with("rotation_bytes", self.rotation_bytes)
    }
}

/// Half the distance between the quartiles, relative to the median.
fn spread(summary: &Summary) -> String {
    let (q1, q3) = (summary.q1.unwrap_or(summary.min), summary.q3.unwrap_or(summary.max));
    format!("±{:.0}%", 50.0 * (q3 - q1) / summary.median)
}
