//! What is shown in the end: a table, a JSON file, a plot.

use super::bench::Plain;
use super::sizes::Sizes;
use super::{Pingpong, PingpongMemory};
use crate::failure::Failure;
use crate::lines::fit;
use crate::memory::{Ends, Source, Wrong};
use crate::{say_beside, write_json};
use gapless_pml::{Protocol, ProtocolCounts};
use gapless_report::{
    Absent, Align, Bytes, Growing, Machine, Rate, Report, Row, Summary, Table, Time,
    terminal_columns,
};
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::fmt;
use std::process::ExitCode;

/// What carried the messages of a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Protocols {
    pub(super) ping: Protocol,
    pub(super) pong: Protocol,
}

impl Protocols {
    /// Each once, in one order whichever went first.
    pub(super) fn all(self) -> impl Iterator<Item = Protocol> {
        let (first, last) = (self.ping.min(self.pong), self.ping.max(self.pong));
        [Some(first), Some(last).filter(|last| *last != first)].into_iter().flatten()
    }
}

impl fmt::Display for Protocols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.all().map(Protocol::name).collect();
        f.pad(&names.join("+"))
    }
}

/// One line of the table.
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) source: Source,
    pub(super) protocols: Protocols,
    pub(super) payload_bytes: u64,
    pub(super) blocks: u64,
    /// One-way times, over buffers that rotate.
    pub(super) rotating: Summary,
    /// One-way times, with the same buffers again and again.
    pub(super) resident: Option<Summary>,
    /// Plain copies of as many bytes; at least one.
    pub(super) plain: Vec<Plain>,
    pub(super) contiguous: Option<Summary>,
    pub(super) ends: Ends,
    /// What rank 0 had done by the protocols before it measured, and afterwards.
    pub(super) counts: [ProtocolCounts; 2],
    pub(super) verdict: Result<(), Wrong>,
    /// Bytes that the buffers of one process touch before the first one's turn comes again.
    pub(super) rotation_bytes: u64,
}

/// Everything that was measured, and what was not. Each row is shown, and written, as soon as it is there.
pub(super) struct PingpongResults<'a> {
    options: &'a Pingpong,
    machine: Machine,
    sizes: Sizes,
    /// The longest name of a layout.
    widest: String,
    shown: Vec<Shown>,
    /// The rows that are not there yet, by name.
    to_come: VecDeque<String>,
    /// Once there is a row.
    table: Option<Growing>,
    /// By name, and why.
    left_out: Vec<(String, Failure)>,
}

/// What was done with each layout, in the reports.
pub(super) const OP: &str = "oneway";

impl<'a> PingpongResults<'a> {
    /// Nothing yet; `names` are those of the layouts to come, with memory from each of the `sources` in turn.
    pub(super) fn new<'n>(
        options: &'a Pingpong,
        sizes: Sizes,
        names: impl Iterator<Item = &'n str> + Clone,
        sources: &[Source],
        left_out: Vec<(String, Failure)>,
    ) -> PingpongResults<'a> {
        let longest = names.clone().max_by_key(|name| name.chars().count());
        let widest = longest.unwrap_or_default().to_owned();
        let both = options.memory == PingpongMemory::Both;
        let of = |source: &Source| {
            let source = *source;
            names.clone().map(move |name| row_name(name, both.then_some(source)))
        };
        let to_come = sources.iter().flat_map(of).collect();
        let (machine, shown, table) = (Machine::describe(), Vec::new(), None);
        PingpongResults { options, machine, sizes, widest, shown, to_come, table, left_out }
    }

    /// Shows a row, and writes it with those before it: whoever stops the rest has these.
    pub(super) fn add(&mut self, shown: Shown) -> Result<(), Failure> {
        let both = self.both();
        let mut text = String::new();
        if self.table.is_none() {
            let table = headings(both, &shown, &self.widest).growing(terminal_columns());
            text = format!(
                "{}\n{}",
                self.told(&format!("{}\n", self.machine.one_line())),
                table.head()
            );
            self.table = Some(table);
        }
        if let Some(table) = &self.table {
            text += &table.row(shown.cells(both));
        }
        self.shown.push(shown);
        self.to_come.pop_front();
        self.say(&text)?;
        match &self.options.json {
            Some(path) if path.as_os_str() != crate::STANDARD_OUTPUT => {
                write_json(&self.report(), path)
            }
            _ => Ok(()),
        }
    }

    fn both(&self) -> bool {
        self.options.memory == PingpongMemory::Both
    }

    fn say(&self, text: &str) -> Result<(), Failure> {
        say_beside(self.options.json.as_deref(), text)
    }

    /// In lines that fit the terminal.
    fn told(&self, text: &str) -> String {
        fit(text, terminal_columns())
    }

    /// Shows and writes what is left. It ends well if all layouts were measured and all bytes were right.
    pub(super) fn finish(&self) -> Result<ExitCode, Failure> {
        let options = self.options;
        let report = self.report();
        self.say(&self.told(&self.notes()))?;
        if let Some(path) = &options.json {
            write_json(&report, path)?;
        }
        if let Some(path) = &options.plot {
            let written = report.write_svg(path)?;
            if let [first, .., last] = written.as_slice() {
                let pages = written.len();
                self.say(&format!(
                    "drawn on {pages} pages: {} to {}\n",
                    first.display(),
                    last.display()
                ))?;
            }
        }
        let wrong = self.shown.iter().filter_map(|shown| {
            shown.verdict.err().map(|wrong| format!("{}: {wrong}", shown.name))
        });
        let wrong: Vec<String> = wrong.collect();
        match wrong.first() {
            // What was left out was said when it was.
            None if self.left_out.is_empty() => Ok(ExitCode::SUCCESS),
            None => Ok(ExitCode::FAILURE),
            Some(first) => Err(Failure::WrongBytes {
                cases: wrong.len(),
                all: self.shown.len(),
                first: first.clone(),
            }),
        }
    }

    fn notes(&self) -> String {
        let options = self.options;
        let Sizes { cache_bytes, assumed, .. } = self.sizes;
        let cache = Bytes(cache_bytes);
        let guess = if assumed { " (assumed: the kernel does not tell)" } else { "" };
        let to_size = options.memory.sources()[0].is_to_size();
        let (buffers, resident, rotating) = match to_size {
            true => ("each message in memory of its own length".to_owned(), "", ""),
            false => (
                format!(
                    "buffers rotating over more than 4 × the last-level cache of {cache}{guess}"
                ),
                "resident: GB/s with the same buffers every time\n",
                ", both rotating",
            ),
        };
        let mut text = format!(
            "\none-way: median of half a round trip, {buffers}\nspread: between quartiles\n\
             {resident}÷: speed relative to a contiguous message and to one plain copy of the same \
             payload{rotating}\ncontents and order: from --seed {}\n",
            options.seed,
        );
        if options.space.involve_device() {
            text += "A plain copy is one that a program calls for and awaits: between the two places' \
                     devices (memcpy), or the slower direction to and from page-locked host memory \
                     (pinned copy).\n";
        }
        if to_size {
            return text;
        }
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

    fn report(&self) -> Report {
        let rows = self.shown.iter().map(|shown| shown.row(self.both())).collect();
        let left_out = self.left_out.iter().map(|(name, why)| {
            let (case, op, why) = (name.clone(), OP.to_owned(), why.to_string());
            Absent { case, op, why, failed: true }
        });
        let to_come = self.to_come.iter().map(|name| {
            let (op, why) = (OP.to_owned(), "not measured yet".to_owned());
            Absent { case: name.clone(), op, why, failed: false }
        });
        Report::new("pingpong", self.machine.clone(), self.options.command(), rows)
            .absent(left_out.chain(to_come).collect())
    }
}

/// A layout's name in reports; with the memory, if there are rows of several.
fn row_name(layout: &str, source: Option<Source>) -> String {
    match source {
        Some(source) => format!("{layout} ({})", source.name()),
        None => layout.to_owned(),
    }
}

/// The table's columns, as wide as rows like the first may need, of layouts with names up to this.
fn headings(both: bool, first: &Shown, widest: &str) -> Table {
    let right = |title: &str| (title.to_owned(), Align::Right);
    let left = |title: &str| (title.to_owned(), Align::Left);
    let memory = both.then(|| left("memory"));
    let plain = first.plain.first();
    let plain = plain.map_or("÷memcpy".to_owned(), |plain| format!("÷{}", plain.name));
    let resident = first.resident.map(|_| right("resident"));
    let columns = [left("layout")].into_iter().chain(memory).chain([
        right("payload"),
        right("blocks"),
        right("one-way"),
        right("spread"),
        right("GB/s"),
    ]);
    let columns = columns.chain(resident).chain([
        right("÷contiguous"),
        right(&plain),
        left("protocol"),
        left("bytes"),
    ]);
    let mut table = Table::new(columns).expendable(["resident", "spread", "blocks", "payload"]);
    let memory = both.then_some("alloc");
    let usual = ["99.9 KiB", "9999999", "99.9 µs", "±100%", "0.999"];
    let resident = first.resident.map(|_| "0.999");
    let usual = usual.into_iter().chain(resident).chain(["", "", "single-copy"]);
    table.push([widest].into_iter().chain(memory).chain(usual));
    table.push(first.cells(both));
    table
}

impl Shown {
    fn cells(&self, both: bool) -> Vec<String> {
        let payload = self.payload_bytes;
        let memory = both.then(|| self.source.name().to_owned());
        let cells = [self.name.clone()].into_iter().chain(memory).chain([
            Bytes(payload).to_string(),
            self.blocks.to_string(),
            Time(self.rotating.median).to_string(),
            spread(&self.rotating),
            Rate(self.rotating.gbps(payload)).to_string(),
        ]);
        let resident = self.resident.map(|it| Rate(it.gbps(payload)).to_string());
        let cells = cells.chain(resident).chain([
            self.over(self.contiguous),
            self.over(self.plain.first().map(|plain| plain.seconds)),
            self.protocols.to_string(),
            if self.verdict.is_ok() { "right" } else { "WRONG" }.to_owned(),
        ]);
        cells.collect()
    }

    pub(super) fn row(&self, both: bool) -> Row {
        let name = row_name(&self.name, both.then_some(self.source));
        let (protocol, space) = (self.protocols.to_string(), self.ends.to_string());
        let mut row = Row::new(name, OP, space, protocol, self.payload_bytes, self.rotating)
            .blocks(self.blocks)
            .verified(self.verdict.is_ok())
            .with("rotation_bytes", self.rotation_bytes)
            .with("counters", self.counters());
        for plain in &self.plain {
            row = row.against(plain.name, plain.seconds);
        }
        if let Some(contiguous) = self.contiguous {
            row = row.against("contiguous", contiguous);
        }
        if let Some(resident) = self.resident {
            row = row.resident_gbps(resident.gbps(self.payload_bytes));
        }
        match self.ends.0.iter().all(|place| place.is_device()) && !self.source.is_to_size() {
            true => row,
            false => row.with("memory", self.source.name()),
        }
    }

    /// What rank 0 did by the protocols while it measured; `depth_max` is the most since it began.
    fn counters(&self) -> Map<String, Value> {
        let [before, after] = self.counts;
        let all = [
            ("messages", after.messages - before.messages),
            ("fragments", after.fragments - before.fragments),
            ("packs", after.packs - before.packs),
            ("unpacks", after.unpacks - before.unpacks),
            ("copies", after.copies - before.copies),
            ("staged_bytes", after.staged_bytes - before.staged_bytes),
            ("depth_max", after.depth_max.into()),
        ];
        all.into_iter().map(|(name, number)| (name.to_owned(), Value::from(number))).collect()
    }

    /// The speed relative to something else's.
    fn over(&self, other: Option<Summary>) -> String {
        other.map_or("-".to_owned(), |other| format!("{:.2}", other.median / self.rotating.median))
    }
}

/// Half the distance between the quartiles, relative to the median.
fn spread(summary: &Summary) -> String {
    let (q1, q3) = (summary.q1.unwrap_or(summary.min), summary.q3.unwrap_or(summary.max));
    format!("±{:.0}%", 50.0 * (q3 - q1) / summary.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_protocols_of_a_round_trip_are_named() {
        let (a, b) = (Protocol::Mapped, Protocol::MappedPut);
        let named = |ping, pong| Protocols { ping, pong }.to_string();
        assert_eq!(named(a, a), "mapped");
        assert_eq!(named(a, b), "mapped+mapped-put");
        assert_eq!(named(b, a), "mapped+mapped-put");
    }
}
