//! What is shown in the end: a table, a JSON file, a plot.

use super::bench::Plain;
use super::sizes::Sizes;
use super::{Memory, Pingpong};
use crate::failure::Failure;
use crate::lines::tell;
use crate::memory::{Ends, Wrong};
use crate::say;
use gapless_pml::{Protocol, Tally};
use gapless_report::{
    Absent, Align, Bytes, Machine, Rate, Report, Row, Summary, Table, Time, terminal_columns,
};
use serde_json::{Map, Value};
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
    pub(super) source: &'static str,
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
    pub(super) tallies: [Tally; 2],
    pub(super) verdict: Result<(), Wrong>,
    /// Bytes that the buffers of one process touch before the first one's turn comes again.
    pub(super) rotation_bytes: u64,
}

/// Everything that was measured, and what was not.
pub(super) struct Outcome {
    pub(super) sizes: Sizes,
    pub(super) shown: Vec<Shown>,
    /// By name, and why.
    pub(super) left_out: Vec<(String, Failure)>,
}

/// What was done with each layout, in the reports.
pub(super) const OP: &str = "oneway";

impl Outcome {
    /// Shows and writes everything. It ends well if all layouts were measured and all bytes were right.
    pub(super) fn finish(&self, options: &Pingpong) -> Result<ExitCode, Failure> {
        let both = options.memory == Memory::Both;
        let report = self.report(options, both);
        tell(&format!(
            "{}\n\n{}{}",
            report.machine.one_line(),
            self.table(both).within(terminal_columns()),
            self.notes(options)
        ))?;
        if let Some(path) = &options.json {
            report.write_json(path)?;
        }
        if let Some(path) = &options.plot {
            let written = report.write_svg(path)?;
            if let [first, .., last] = written.as_slice() {
                let pages = written.len();
                say(&format!(
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

    fn table(&self, both: bool) -> Table {
        let right = |title: &str| (title.to_owned(), Align::Right);
        let left = |title: &str| (title.to_owned(), Align::Left);
        let memory = both.then(|| left("memory"));
        let plain = self.shown.first().and_then(|shown| shown.plain.first());
        let plain = plain.map_or("÷memcpy".to_owned(), |plain| format!("÷{}", plain.name));
        let columns = [left("layout")].into_iter().chain(memory).chain([
            right("payload"),
            right("blocks"),
            right("one-way"),
            right("spread"),
            right("GB/s"),
            right("resident"),
            right("÷contiguous"),
            right(&plain),
            left("protocol"),
            left("bytes"),
        ]);
        let mut table = Table::new(columns).expendable(["resident", "spread", "blocks", "payload"]);
        for shown in &self.shown {
            let payload = shown.payload_bytes;
            let memory = both.then(|| shown.source.to_owned());
            table.push([shown.name.clone()].into_iter().chain(memory).chain([
                Bytes(payload).to_string(),
                shown.blocks.to_string(),
                Time(shown.rotating.median).to_string(),
                spread(&shown.rotating),
                Rate(shown.rotating.gbps(payload)).to_string(),
                shown.resident.map_or("-".to_owned(), |it| Rate(it.gbps(payload)).to_string()),
                shown.over(shown.contiguous),
                shown.over(shown.plain.first().map(|plain| plain.seconds)),
                shown.protocols.to_string(),
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
             last-level cache of {cache}{guess}\nspread: between quartiles\nresident: GB/s with the \
             same buffers every time\n÷: speed relative to a contiguous message and to one plain copy \
             of the same payload, both rotating\ncontents and order: from --seed {}\n",
            options.seed,
        );
        if options.space.involve_device() {
            text += "A plain copy is one that a program calls for and awaits: between the two places' \
                     devices (memcpy), or the slower direction to and from page-locked host memory \
                     (pinned copy).\n";
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

    fn report(&self, options: &Pingpong, both: bool) -> Report {
        let rows = self.shown.iter().map(|shown| shown.row(both)).collect();
        let left_out = self.left_out.iter().map(|(name, why)| {
            let (case, op, why) = (name.clone(), OP.to_owned(), why.to_string());
            Absent { case, op, why, failed: true }
        });
        Report::new("pingpong", Machine::describe(), options.command(), rows)
            .absent(left_out.collect())
    }
}

impl Shown {
    pub(super) fn row(&self, both: bool) -> Row {
        let name = match both {
            true => format!("{} ({})", self.name, self.source),
            false => self.name.clone(),
        };
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
        match self.ends.0.iter().all(|place| place.is_device()) {
            true => row,
            false => row.with("memory", self.source),
        }
    }

    /// What rank 0 did by the protocols while it measured; `depth_max` is the most since it began.
    fn counters(&self) -> Map<String, Value> {
        let [before, after] = self.tallies;
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
