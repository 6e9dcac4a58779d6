//! Partitioned messages (MPI 4.1 §4) between GPUs, whose partitions kernels of users mark ready, test and wait for.
//!
//! [`HEADER`] has the device code, and says how it is used. A kernel is given addresses of handles
//! ([`PartitionHandle`]). They lie in device memory that peers have mapped, with what they have in common, and with
//! the words by which both ends tell each other epochs ([`PartitionMemory`]):
//!
//! ```text
//!  PartitionRanks | handles of sends | handles of receives | of each message, in that order: start:8, each partition:8
//! ```
//!
//! Everything here is pure. `partitioned/model.rs` tries every interleaving of the kernels' steps, as a test.

#[cfg(test)]
mod model;

use crate::args::structures;
use zerocopy::IntoBytes;

/// The header for kernels of users, in CUDA C++.
pub const HEADER: &str = include_str!("gapless_partitioned.h");

/// Kernels for tests and examples: `example_start`, `example_ready`, `example_wait`, `example_halo`
/// (`cuda/example_partitioned.cu`), as PTX.
pub const EXAMPLE_PARTITIONED: &str = include_str!("../images/example_partitioned.ptx");

/// [`PartitionHandle::kind`] of a send.
pub const SEND: u32 = 1;

/// [`PartitionHandle::kind`] of a receive.
pub const RECV: u32 = 2;

structures! {
    /// What the ranks of a communicator have in common (`gapless_partition_ranks`). Addresses are as this rank's device
    /// sees them.
    PartitionRanks: 160 {
        /// Where each rank's [`Status`](crate::peers::Status) is: its window begins with it.
        dead: [u64; crate::peers::RANKS_MAX],
        /// As [`PeersArgs::abort`](crate::peers::PeersArgs::abort).
        abort: u64,
        /// A word of 8 bytes of the host: a [`Status`](crate::peers::Status).
        status: u64,
        /// Nanoseconds that a wait may last.
        patience: u64,
        /// This rank.
        rank: u32,
        /// How many there are.
        ranks: u32,
    }
    /// A message, at its sender or at its receiver (`gapless_partitioned`).
    PartitionHandle: 64 {
        /// The address of [`PartitionRanks`].
        ranks: u64,
        /// Partition 0 at the sender.
        source: u64,
        /// Partition 0 at the receiver.
        target: u64,
        /// Bytes of a partition.
        bytes: u64,
        /// Words here.
        ours: u64,
        /// Words at the peer.
        theirs: u64,
        /// How many.
        partitions: u32,
        /// The rank at the other end.
        peer: u32,
        /// [`SEND`] or [`RECV`].
        kind: u32,
        /// Nothing.
        unused: u32,
    }
}

/// What lies where in a rank's memory, in bytes from its begin: sends are numbered before receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMemory {
    words: Vec<u64>,
    bytes: u64,
}

impl PartitionMemory {
    /// For messages of so many partitions each.
    #[must_use]
    pub fn new(partitions: impl IntoIterator<Item = u32>) -> PartitionMemory {
        let lens: Vec<u64> = partitions.into_iter().map(|count| 8 + 8 * u64::from(count)).collect();
        let mut bytes = Self::handle(lens.len());
        let words = lens.into_iter().map(|len| {
            bytes += len;
            bytes - len
        });
        let words = words.collect();
        PartitionMemory { words, bytes }
    }

    /// Where a message's handle is.
    #[must_use]
    pub fn handle(message: usize) -> u64 {
        (size_of::<PartitionRanks>() + message * size_of::<PartitionHandle>()) as u64
    }

    /// Where a message's words are, if there is such a message.
    #[must_use]
    pub fn words(&self, message: usize) -> Option<u64> {
        self.words.get(message).copied()
    }

    /// Bytes of all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it holds before anything has happened: the handles, and words of 0.
    #[must_use]
    pub fn content(&self, ranks: &PartitionRanks, handles: &[PartitionHandle]) -> Vec<u8> {
        let mut bytes = [ranks.as_bytes(), handles.as_bytes()].concat();
        bytes.resize(usize::try_from(self.bytes).unwrap_or(usize::MAX), 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields of a structure of the header, with their offsets; and its bytes.
    fn fields(structure: &str) -> (Vec<(String, usize)>, usize) {
        let end = format!("}} {structure};");
        let before = &HEADER[..HEADER.find(&end).unwrap()];
        let body = &before[before.rfind("typedef struct {").unwrap() + 16..];
        let mut rest = body.to_owned();
        while let Some(begin) = rest.find("/*") {
            let end = rest[begin..].find("*/").unwrap();
            rest.replace_range(begin..begin + end + 2, "");
        }
        let mut at = 0;
        let mut found = Vec::new();
        for field in rest.split(';').map(str::trim).filter(|field| !field.is_empty()) {
            let (kind, name) = field.rsplit_once(' ').unwrap();
            let bytes = match kind {
                "unsigned long long" => 8,
                "unsigned" => 4,
                other => panic!("{other}"),
            };
            let (name, count) = match name.split_once('[') {
                Some((name, count)) => (name, count.trim_end_matches(']').parse().unwrap()),
                None => (name, 1),
            };
            assert_eq!(at % bytes, 0, "C would leave a gap before {name}");
            found.push((name.to_owned(), at));
            at += count * bytes;
        }
        (found, at)
    }

    #[test]
    fn both_sides_agree_on_the_structures() {
        let named = [
            ("PartitionRanks", "gapless_partition_ranks"),
            ("PartitionHandle", "gapless_partitioned"),
        ];
        for (ours, theirs) in named {
            let (fields, bytes) = fields(theirs);
            let entries = || LAYOUT.iter().filter(|entry| entry.structure == ours);
            let size = entries().find(|entry| entry.field.is_empty()).unwrap().bytes;
            let ours: Vec<(String, usize)> = entries()
                .filter(|entry| !entry.field.is_empty())
                .map(|entry| (entry.field.to_owned(), entry.bytes))
                .collect();
            assert_eq!((fields, bytes), (ours, size));
            assert!(HEADER.contains(&format!("static_assert(sizeof({theirs}) == {size},")));
        }
        for line in [
            format!("#define GAPLESS_PARTITIONED_SEND {SEND}u\n"),
            format!("#define GAPLESS_PARTITIONED_RECV {RECV}u\n"),
        ] {
            assert!(HEADER.contains(&line));
        }
    }

    #[test]
    fn handles_and_words_lie_apart() {
        let counts = [3, 0, 1 << 20, 1];
        let memory = PartitionMemory::new(counts);
        let mut end = 160;
        for message in 0..counts.len() {
            assert_eq!(PartitionMemory::handle(message), end);
            end += 64;
        }
        for (message, count) in counts.into_iter().enumerate() {
            assert_eq!(memory.words(message), Some(end));
            end += 8 + 8 * u64::from(count);
        }
        assert_eq!((memory.words(4), memory.bytes()), (None, end));
        let ranks = PartitionRanks { ranks: 2, ..Default::default() };
        let handles = [1u32, 2, 3, 4].map(|peer| PartitionHandle { peer, ..Default::default() });
        let content = memory.content(&ranks, &handles);
        assert_eq!(content.len() as u64, end);
        assert_eq!(content[160 + 64 * 3 + 52], 4);
        assert!(content[160 + 64 * 4..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_example_has_its_kernels() {
        for name in ["example_start", "example_ready", "example_wait", "example_halo"] {
            assert!(EXAMPLE_PARTITIONED.contains(&format!(".visible .entry {name}(")), "{name}");
        }
    }
}
