//! What happened, as lines that read like a story: when, who, what, to whom. Nothing is written
//! unless somebody will read it: a run that fails is run again for its story.

use crate::tap::KINDS;
use gapless_mem::Region;
use std::fmt::Write as _;

/// One line.
#[derive(Clone, Debug)]
struct Line {
    at_ns: u64,
    rank: u32,
    other: Option<u32>,
    text: String,
}

/// All lines so far, if anybody listens.
#[derive(Clone, Debug, Default)]
pub struct Story {
    lines: Option<Vec<Line>>,
}

impl Story {
    /// A story that is written down.
    #[must_use]
    pub fn told() -> Story {
        Story { lines: Some(Vec::new()) }
    }

    /// Adds a line; `text` is asked for only if somebody listens.
    pub(crate) fn tell(
        &mut self,
        at_ns: u64,
        rank: u32,
        other: Option<u32>,
        text: impl FnOnce() -> String,
    ) {
        if let Some(lines) = &mut self.lines {
            lines.push(Line { at_ns, rank, other, text: text() });
        }
    }

    /// Adds a line about a message that leaves.
    pub(crate) fn parcel(&mut self, at_ns: u64, (from, to): (u32, u32), region: &Region, due: u64) {
        if self.lines.is_none() {
            return;
        }
        let mut kind = [0; 1];
        if !region.is_empty() {
            // SAFETY: the region is that of a slot that was just taken apart; nobody writes it.
            let _ = unsafe { gapless_mem::read(region, 0, &mut kind) };
        }
        let kind = KINDS.get(usize::from(kind[0])).unwrap_or(&"?");
        let text = format!("  {kind} of {} bytes leaves, due {}", region.len(), clock(due));
        self.tell(at_ns, from, Some(to), || text);
    }

    /// The last `most` lines that concern one of `ranks`; all lines if none are given.
    #[must_use]
    pub fn about(&self, ranks: &[u32], most: usize) -> String {
        let Some(lines) = &self.lines else { return String::new() };
        let concerns = |rank: u32| ranks.is_empty() || ranks.contains(&rank);
        let told: Vec<&Line> = lines
            .iter()
            .filter(|line| concerns(line.rank) || line.other.is_some_and(concerns))
            .collect();
        let mut text = String::new();
        if told.len() > most {
            let _ = writeln!(text, "  ({} lines before)", told.len() - most);
        }
        for line in &told[told.len().saturating_sub(most)..] {
            let Line { at_ns, rank, other, text: what } = line;
            let _ = write!(text, "{:>14}  rank {rank:<3} {what}", clock(*at_ns));
            let _ = match other {
                Some(other) => writeln!(text, " → rank {other}"),
                None => writeln!(text),
            };
        }
        text
    }
}

/// A virtual time, for people.
fn clock(at_ns: u64) -> String {
    format!("{}.{:03} µs", at_ns / 1000, at_ns % 1000)
}
