//! A digest of one world: every message that a rank hands to a rail, every one-sided operation and
//! key, and every completion that a rank sees, in the order in which they happen.
//!
//! A refactoring that changes nothing on the wire leaves the digest of every seed as it was. So the
//! digest holds nothing that may differ between two runs: no address, no time (not even virtual
//! time), no order of a hash table. Memory is named by its owner and its length; keys are numbers
//! that the world gives out in order. Texts that explain an error are left out, its kind is not.
//!
//! Three things come of it. The *digest* depends on all events and their order. The *trail* is 16 bits
//! of the digest after each event, so that two runs can be compared event by event. The *kinds* are sums
//! over the events of one kind, whatever their order, so that the kind that changed can be named.
//!
//! Byte 1 of a message of `pml` is the version of its wire. Versions are counted apart and otherwise
//! taken as 0: else a new version would change every message.

use crate::journal::End;
use gapless_btl::AmTag;
use gapless_mem::Region;
use gapless_pml::PmlError;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::ops::AddAssign;

/// The tag of `pml`'s messages and the one of `bml`'s, as `PROTOCOL.md` says.
const PML_TAG: AmTag = AmTag(0);
const BML_TAG: AmTag = AmTag(u8::MAX);

/// The first byte of a message of `pml`, as `PROTOCOL.md` numbers the kinds.
pub(crate) const KINDS: [&str; 16] = [
    "?",
    "EAGER",
    "RTS",
    "CTS",
    "DATA",
    "FIN",
    "LAYOUT-REQUEST",
    "LAYOUT-DATA",
    "ABORT",
    "NOTE",
    "OPEN",
    "RING",
    "READY",
    "FREE",
    "REFUSE",
    "GRANT",
];

/// Bytes of a message that an event's line shows.
const SHOWN_MAX: usize = 160;

/// A hash whose every step can be undone: two streams that differ in one word do not meet again
/// in that step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hash(u64);

impl Hash {
    fn word(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 29);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }
}

/// Events of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// The sum of their hashes: their order does not matter.
    pub(crate) digest: u64,
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.digest = self.digest.wrapping_add(other.digest);
    }
}

/// Listens to a world.
#[derive(Clone, Debug, Default)]
pub struct Tap {
    state: Hash,
    trail: Vec<u16>,
    pub(crate) kinds: BTreeMap<String, Sum>,
    /// Messages of `pml`, by the version that they say.
    pub(crate) versions: BTreeMap<u8, u64>,
    /// A line for each event, if somebody reads them.
    lines: Option<Vec<String>>,
    /// The event and the byte of its message that is taken for another.
    #[cfg(test)]
    flip: Option<(usize, usize)>,
}

impl Tap {
    /// One that keeps a line for each event.
    #[must_use]
    pub fn with_lines() -> Tap {
        Tap { lines: Some(Vec::new()), ..Tap::default() }
    }

    /// The digest of all events so far, and of their order.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.state.0
    }

    /// 16 bits of the digest after each event.
    #[must_use]
    pub fn trail(&self) -> &[u16] {
        &self.trail
    }

    /// A line for each event, if this tap keeps them.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }

    /// A message that a rank hands to a rail, whether or not it will arrive.
    pub(crate) fn message(
        &mut self,
        (rail, from, to): (usize, u32, u32),
        tag: AmTag,
        region: &Region,
    ) {
        let mut bytes = vec![0; usize::try_from(region.len()).unwrap_or(0)];
        // SAFETY: the region is that of a slot that was just taken apart; nobody writes it.
        let read = unsafe { gapless_mem::read(region, 0, &mut bytes) };
        read.expect("host memory");
        #[cfg(test)]
        if let Some((_, byte)) = self.flip.filter(|(event, _)| *event == self.trail.len()) {
            bytes[byte] ^= 0x10;
        }
        let first = bytes.first().copied().unwrap_or(0);
        let kind = match (tag, KINDS.get(usize::from(first))) {
            (PML_TAG, Some(name)) => format!("message {name}"),
            (PML_TAG, None) => format!("message kind {first}"),
            (BML_TAG, _) => "message of bml".to_owned(),
            (AmTag(tag), _) => format!("message with tag {tag}"),
        };
        if let (PML_TAG, Some(version)) = (tag, bytes.get_mut(1)) {
            *self.versions.entry(std::mem::take(version)).or_default() += 1;
        }
        let ends = [rail as u64, from.into(), to.into(), tag.0.into()];
        self.event(&kind, &ends, &bytes, || {
            format!("rank {from} → rank {to}, rail {rail}, tag {}", tag.0)
        });
    }

    /// Something that `rank` asks a rail for that is no message: the numbers tell all of it.
    pub(crate) fn operation(&mut self, kind: &'static str, rank: u32, numbers: &[u64]) {
        let rank = u64::from(rank);
        let all: Vec<u64> = std::iter::once(rank).chain(numbers.iter().copied()).collect();
        self.event(kind, &all, &[], || format!("rank {rank} {numbers:?}"));
    }

    /// Bytes that a one-sided operation moves to `rank`.
    pub(crate) fn moved(&mut self, rank: u32, from: u32, bytes: &[u8]) {
        let ends = [rank.into(), from.into()];
        self.event("bytes of a get", &ends, bytes, || format!("rank {from} → rank {rank}"));
    }

    /// What a rank was told of operation `number`: how it ended, or that it was refused.
    pub(crate) fn outcome(
        &mut self,
        what: &'static str,
        (rank, number): (u32, u64),
        outcome: Result<&dyn Debug, &PmlError>,
    ) {
        let (said, well) = match outcome {
            Ok(status) => (format!("{status:?}"), "well"),
            Err(error) => (without_texts(&format!("{error:?}")), "in error"),
        };
        let kind = format!("{what} ended {well}");
        self.event(&kind, &[rank.into(), number], said.as_bytes(), || {
            format!("rank {rank}, number {number}: {said}")
        });
    }

    /// As [`outcome`](Tap::outcome) of a request, and what its buffer is now.
    pub(crate) fn ended(
        &mut self,
        what: &'static str,
        (rank, number): (u32, u32),
        end: &End,
        buffer: u64,
    ) {
        let status = end.outcome.as_ref().map(|status| (status, buffer));
        let status =
            status.as_ref().map(|told| told as &dyn Debug).map_err(|failure| &failure.error);
        self.outcome(what, (rank, number.into()), status);
    }

    fn event(&mut self, kind: &str, numbers: &[u64], bytes: &[u8], line: impl FnOnce() -> String) {
        let mut own = Hash::default();
        own.bytes(kind.as_bytes());
        numbers.iter().for_each(|number| own.word(*number));
        own.bytes(bytes);
        self.state.word(own.0);
        self.trail.push(u16::try_from(self.state.0 & 0xFFFF).unwrap_or_default());
        let sum = Sum { count: 1, bytes: bytes.len() as u64, digest: own.0 };
        match self.kinds.get_mut(kind) {
            Some(before) => *before += sum,
            None => _ = self.kinds.insert(kind.to_owned(), sum),
        }
        if let Some(lines) = &mut self.lines {
            let mut text = format!("{:>6} {kind}: {}", lines.len(), line());
            if kind.starts_with("message") || kind.starts_with("bytes") {
                let _ = write!(text, ", {} bytes ", bytes.len());
                for byte in &bytes[..bytes.len().min(SHOWN_MAX)] {
                    let _ = write!(text, "{byte:02x}");
                }
                if bytes.len() > SHOWN_MAX {
                    let _ = write!(text, "… {:016x}", own.0);
                }
            }
            lines.push(text);
        }
    }
}

/// What is not between quotation marks.
fn without_texts(debug: &str) -> String {
    debug.replace("\\\"", "").split('"').step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digests::Digests;
    use crate::hunt::listen;

    const SEEDS: std::ops::Range<u64> = 0..25;

    fn heard(seed: u64, flip: Option<(usize, usize)>) -> Tap {
        let (outcome, tap) = listen(seed, Tap { flip, ..Tap::with_lines() });
        assert!(outcome.is_ok(), "seed {seed}: {outcome:?}");
        tap
    }

    #[test]
    fn the_digest_of_a_seed_is_always_the_same() {
        let once = Digests::play(SEEDS).unwrap();
        // Other memory in between: nothing may follow from addresses.
        let elsewhere: Vec<Vec<u8>> = (1..500).map(|len| vec![0; len * 7]).collect();
        let again = Digests::play(SEEDS).unwrap();
        drop(elsewhere);
        assert_eq!(once, again);
        assert_eq!(again.changes_since(&once), "");
        assert_eq!(Digests::parse(&once.to_string()).as_ref(), Some(&once));
        assert_ne!(heard(0, None).digest(), heard(1, None).digest());
    }

    /// Kinds whose sums are not the same.
    fn changed(one: &Tap, other: &Tap) -> Vec<String> {
        let names = one.kinds.keys().filter(|name| one.kinds.get(*name) != other.kinds.get(*name));
        names.cloned().collect()
    }

    #[test]
    fn a_byte_of_a_message_changes_its_kind_and_the_trail_from_there_on() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in SEEDS {
            let whole = heard(seed, None);
            let kind_of = |line: &String| {
                line.trim_start()
                    .split_once(' ')
                    .and_then(|(_, rest)| rest.split_once(": "))
                    .map(|(kind, _)| kind.to_owned())
            };
            let kinds: Vec<Option<String>> = whole.lines().iter().map(kind_of).collect();
            let messages = kinds.iter().enumerate().filter_map(|(event, kind)| {
                let kind = kind.as_ref().filter(|kind| kind.starts_with("message"))?;
                let (_, rest) = whole.lines()[event].rsplit_once(", ")?;
                let len: usize = rest.split_once(' ')?.0.parse().ok()?;
                Some((event, kind.clone(), len))
            });
            // The first of each kind that has not been seen yet, and its last byte; a kind is in byte 0.
            let mut news: Vec<(usize, String, usize)> = Vec::new();
            for (event, kind, len) in messages.filter(|(_, _, len)| *len > 2) {
                if seen.insert(kind.clone()) {
                    news.push((event, kind, len));
                }
            }
            for (event, kind, len) in news {
                for byte in [2, len - 1] {
                    let other = heard(seed, Some((event, byte)));
                    assert_ne!(whole.digest(), other.digest(), "seed {seed}: {kind}, byte {byte}");
                    assert_eq!(
                        changed(&whole, &other),
                        std::slice::from_ref(&kind),
                        "seed {seed}, byte {byte}"
                    );
                    assert_eq!(whole.versions, other.versions);
                    assert_eq!(whole.trail()[..event], other.trail()[..event]);
                    assert_ne!(whole.trail()[event..], other.trail()[event..]);
                }
                let other = heard(seed, Some((event, 1)));
                if kind != "message of bml" {
                    assert_ne!(whole.versions, other.versions, "{kind}");
                    assert_eq!(whole.digest(), other.digest(), "versions are counted apart");
                }
            }
        }
        assert!(seen.len() >= 8, "only {seen:?}");
    }

    #[test]
    fn what_changed_is_named() {
        let before = Digests::play(SEEDS).unwrap().to_string();
        let now = Digests::parse(&before).unwrap();
        // Another digest of one event of seed 3, as of an older world.
        let older: Vec<String> = before
            .lines()
            .filter(|line| !line.starts_with("all"))
            .map(|line| {
                if line.starts_with("seed 3 ") {
                    let (head, trail) = line.rsplit_once(' ').unwrap();
                    let flipped = if &trail[20..21] == "0" { "1" } else { "0" };
                    format!("{head} {}{flipped}{}", &trail[..20], &trail[21..])
                } else if line.ends_with("message CTS") {
                    line.replacen("count ", "count 1", 1)
                } else {
                    line.to_owned()
                }
            })
            .collect();
        let all = before.lines().last().unwrap();
        let older = Digests::parse(&(older.join("\n") + "\n" + all)).unwrap();
        assert_eq!(now.first_change(&older), Some((3, 1..6)));
        let text = now.changes_since(&older);
        assert!(text.contains("1 of 25 seeds differ: 3\nseed 3 differs from event 5 on"), "{text}");
        assert!(text.contains("  differs: message CTS: "), "{text}");
        assert_eq!(text.matches("differs: ").count(), 1, "{text}");
        let (_, without_the_first) = before.split_once('\n').unwrap();
        assert_eq!(Digests::parse(without_the_first), None);
    }

    #[test]
    fn texts_of_errors_do_not_count() {
        let error = r#"PeerLost { rank: 3, error: PeerGone { reason: "it \"left\"" } }"#;
        let told = "PeerLost { rank: 3, error: PeerGone { reason:  } }";
        assert_eq!(without_texts(error), told);
    }
}
