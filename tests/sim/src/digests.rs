//! The digests of many seeds, as text, and what has changed since such a text was written.
//!
//! ```text
//! seed 7 digest 0123456789abcdef events 3 trail 1a2b3c4dcdef
//! kind 0123456789abcdef count 2 bytes 96 message EAGER
//! version 5 messages 2
//! all 0..500 digest 0123456789abcdef
//! ```
//!
//! Each event has four digits in the trail of its seed.

use crate::hunt::listen;
use crate::tap::{Sum, Tap};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::ops::Range;

/// Seeds that are named at most where many differ.
const NAMED_MAX: usize = 40;
/// Events that are shown before the first that differs.
const BEFORE: usize = 4;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seed {
    digest: u64,
    trail: Vec<u16>,
}

/// The digests of a range of seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    range: Range<u64>,
    seeds: BTreeMap<u64, Seed>,
    kinds: BTreeMap<String, Sum>,
    versions: BTreeMap<u8, u64>,
}

impl Digests {
    /// Plays all worlds of a range of seeds.
    ///
    /// # Errors
    /// The first that fails: its seed, and why.
    pub fn play(range: Range<u64>) -> Result<Digests, (u64, String)> {
        let mut all = Digests { range: range.clone(), ..Digests::default() };
        for seed in range {
            let (outcome, tap) = listen(seed, Tap::default());
            outcome.map_err(|failure| (seed, failure.what))?;
            all.add(seed, &tap);
        }
        Ok(all)
    }

    fn add(&mut self, seed: u64, tap: &Tap) {
        let trail = tap.trail().to_vec();
        self.seeds.insert(seed, Seed { digest: tap.digest(), trail });
        for (kind, sum) in &tap.kinds {
            *self.kinds.entry(kind.clone()).or_default() += *sum;
        }
        for (version, count) in &tap.versions {
            *self.versions.entry(*version).or_default() += count;
        }
    }

    /// One digest over all of it.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let seeds = self.seeds.iter().flat_map(|(seed, told)| [*seed, told.digest]);
        let versions = self.versions.iter().flat_map(|(version, n)| [u64::from(*version), *n]);
        let bytes: Vec<u8> = seeds.chain(versions).flat_map(u64::to_le_bytes).collect();
        crate::journal::digest(&bytes)
    }

    /// Reads what [`Display`](fmt::Display) has written; `None` if it is anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Digests> {
        let mut read = Digests::default();
        let hex = |word: &str| u64::from_str_radix(word, 16).ok();
        let mut whole = None;
        for line in text.lines() {
            match *line.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["seed", seed, "digest", digest, "events", events, "trail", ref trail @ ..] => {
                    let trail = steps(trail.first().copied().unwrap_or_default())?;
                    if trail.len() != events.parse::<usize>().ok()? {
                        return None;
                    }
                    read.seeds.insert(seed.parse().ok()?, Seed { digest: hex(digest)?, trail });
                }
                ["kind", digest, "count", count, "bytes", bytes, ref name @ ..] => {
                    let (count, bytes) = (count.parse().ok()?, bytes.parse().ok()?);
                    let sum = Sum { count, bytes, digest: hex(digest)? };
                    read.kinds.insert(name.join(" "), sum);
                }
                ["version", version, "messages", count] => {
                    read.versions.insert(version.parse().ok()?, count.parse().ok()?);
                }
                ["all", range, "digest", digest] => {
                    let (from, to) = range.split_once("..")?;
                    read.range = from.parse().ok()?..to.parse().ok()?;
                    whole = hex(digest);
                }
                _ => return None,
            }
        }
        // Nothing is missing and nothing was altered.
        (whole == Some(read.digest())).then_some(read)
    }

    /// What is different from `before`, for people; empty if nothing is.
    #[must_use]
    pub fn changes_since(&self, before: &Digests) -> String {
        let mut text = String::new();
        let missing = self.seeds.keys().filter(|seed| !before.seeds.contains_key(seed)).count();
        if missing > 0 {
            let _ = writeln!(text, "{missing} seeds are not in the file");
        }
        let differ: Vec<u64> = self
            .seeds
            .iter()
            .filter(|(seed, told)| before.seeds.get(seed).is_some_and(|was| was != *told))
            .map(|(seed, _)| *seed)
            .collect();
        if let Some(first) = differ.first() {
            let named = differ.iter().take(NAMED_MAX).map(u64::to_string).collect::<Vec<_>>();
            let more = if differ.len() > NAMED_MAX { " …" } else { "" };
            let (count, of) = (differ.len(), self.seeds.len());
            let _ = writeln!(text, "{count} of {of} seeds differ: {}{more}", named.join(" "));
            let (was, is) = (&before.seeds[first].trail, &self.seeds[first].trail);
            let same = was.iter().zip(is).take_while(|(was, is)| was == is).count();
            let _ = writeln!(
                text,
                "seed {first} differs from event {same} on; it had {} events and has {}",
                was.len(),
                is.len()
            );
        }
        if before.range == self.range {
            self.kinds_since(before, &mut text);
        }
        text
    }

    fn kinds_since(&self, before: &Digests, text: &mut String) {
        if self.versions != before.versions {
            let _ =
                writeln!(text, "messages by version: {:?} → {:?}", before.versions, self.versions);
        }
        let mut names: Vec<&String> = before.kinds.keys().chain(self.kinds.keys()).collect();
        names.sort();
        names.dedup();
        let mut same = Vec::new();
        for name in names {
            let was = before.kinds.get(name).copied().unwrap_or_default();
            let is = self.kinds.get(name).copied().unwrap_or_default();
            if was == is {
                same.push(name.as_str());
                continue;
            }
            let what = if (was.count, was.bytes) == (is.count, is.bytes) {
                format!("as many ({}) and as long, with other contents", is.count)
            } else {
                format!("{} of {} bytes → {} of {} bytes", was.count, was.bytes, is.count, is.bytes)
            };
            let _ = writeln!(text, "  differs: {name}: {what}");
        }
        if !text.is_empty() {
            let _ = writeln!(text, "  the same, in whatever order: {}", same.join(", "));
        }
    }

    /// The first seed whose digest is not that of `before`, and its first event that differs, with
    /// some before it.
    #[must_use]
    pub fn first_change(&self, before: &Digests) -> Option<(u64, Range<usize>)> {
        let (seed, was, is) = self.seeds.iter().find_map(|(seed, is)| {
            before.seeds.get(seed).filter(|was| *was != is).map(|was| (*seed, was, is))
        })?;
        let same = was.trail.iter().zip(&is.trail).take_while(|(was, is)| was == is).count();
        Some((seed, same.saturating_sub(BEFORE)..same + 1))
    }
}

/// The numbers of a trail.
fn steps(text: &str) -> Option<Vec<u16>> {
    let digits = text.as_bytes().chunks(4);
    digits.map(|four| u16::from_str_radix(std::str::from_utf8(four).ok()?, 16).ok()).collect()
}

impl fmt::Display for Digests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (seed, Seed { digest, trail }) in &self.seeds {
            write!(f, "seed {seed} digest {digest:016x} events {} trail ", trail.len())?;
            trail.iter().try_for_each(|step| write!(f, "{step:04x}"))?;
            writeln!(f)?;
        }
        for (name, Sum { count, bytes, digest }) in &self.kinds {
            writeln!(f, "kind {digest:016x} count {count} bytes {bytes} {name}")?;
        }
        for (version, count) in &self.versions {
            writeln!(f, "version {version} messages {count}")?;
        }
        let Range { start, end } = self.range;
        writeln!(f, "all {start}..{end} digest {:016x}", self.digest())
    }
}
