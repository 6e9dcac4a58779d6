//! Collectives between GPUs: which kernel, what it is given, and how its ranks find each other.
//!
//! Each rank has a [`Window`] of device memory that its peers have mapped, and launches the same kernel with the same
//! shape and the same arguments, but for addresses. The kernels wait for each other; `cuda/peers.cu` says how. So all
//! blocks of a launch must be resident at once on every rank: the caller counts them ([`GridShape::blocks`]).
//!
//! | kernel | for |
//! |---|---|
//! | `flagged` | an all-reduce of few bytes, through words that carry their flag; buffers can be anywhere |
//! | `direct` | an all-reduce of many, in memory that peers have mapped, or through staging memory; a reduce-scatter |
//! | `move` | writes into peers' memory: all-gather, all-to-all, broadcast |
//! | `words` | an all-gather, all-to-all or broadcast of few bytes, through words that carry their flag |
//! | `layouts` | the same from layout to layout, by a table ([`layouts`]); it writes or reads in peers' memory |
//! | `calls` | stays, and does what `flagged` and `words` do, when its host says so ([`calls`]) |
//!
//! A window, in bytes:
//!
//! ```text
//!  Head | words with flags: two parities of a slot a rank | staging memory: for each block, two pieces in, two out
//! ```
//!
//! Everything here is pure. `peers/model.rs` tries every interleaving of the kernels' steps, as a test.

pub mod calls;
pub mod layouts;
#[cfg(test)]
mod model;
mod shape;

pub use shape::{GridShape, direct, flagged, flagged_max, moved, staged, words_max};

use crate::args::{LayoutEntry, structures};
use std::fmt;

/// Every kernel, as a fat binary like [`IMAGE`](crate::IMAGE).
pub const IMAGE: &[u8] = include_bytes!("../images/peers.fatbin");

/// What `ptxas` said of [`IMAGE`]: a heading, then a line a kernel.
pub const REGISTERS: &str = include_str!("../images/ptxas-peers.txt");

/// Ranks, at most.
pub const RANKS_MAX: usize = 16;

/// Blocks of a launch, at most: this many have counters in a window.
pub const BLOCKS_MAX: u32 = 64;

/// Bytes of a window's head.
pub const HEAD_BYTES: u64 = HEAD as u64;

/// Where a window's head has a word that means nothing.
pub const HEAD_UNUSED: u64 = 8;

/// The same: counters, and the words of meetings.
const HEAD: usize = 128 + (16 + 2 * 8 * RANKS_MAX) * BLOCKS_MAX as usize;

structures! {
    /// A block's counters.
    Count: 16 {
        /// Launches so far.
        epoch: u64,
        /// Meetings so far.
        turns: u64,
    }
    /// What a launch is given. Addresses are as this rank's device sees them.
    PeersArgs: 472 {
        /// Each rank's window.
        window: [u64; RANKS_MAX],
        /// Each rank's source; of words, this rank's block for each.
        src: [u64; RANKS_MAX],
        /// Each rank's destination; 0: nothing is written there. Of words, where each one's block goes here.
        dst: [u64; RANKS_MAX],
        /// Elements of the whole, or where parts are not split, of one part; of a move or words, bytes of a block.
        elements: u64,
        /// Bytes from a window's start to its words with flags.
        words: u64,
        /// Bytes of one rank's words with flags, of one parity.
        slot: u64,
        /// Bytes from a window's start to its staging memory; 0: none is used.
        stage: u64,
        /// Elements of a block's piece of staging memory, each way.
        piece: u64,
        /// A word of 4 bytes of the host. Not 0: stop, because of the rank that is this number less 1.
        abort: u64,
        /// A word of 8 bytes of the host: a [`Status`].
        status: u64,
        /// Nanoseconds that a wait may last.
        patience: u64,
        /// This rank.
        rank: u32,
        /// How many there are.
        ranks: u32,
        /// A number that all ranks' launches have in common, and few others: those that differ are found out.
        doing: u32,
        /// Bytes that divide all addresses: 1, 2, 4, 8 or 16.
        width: u32,
        /// Whether each rank combines a part of the elements (1), or all of them (0).
        split: u32,
        /// Of words, the root of a broadcast, or no rank; of an all-reduce of [`calls`], what is combined.
        which: u32,
    }
}

/// The layouts of all structures that hosts and kernels of collectives share, for comparing both sides.
pub fn layout() -> impl Iterator<Item = LayoutEntry> {
    let head = LayoutEntry { structure: "Head", field: "", bytes: HEAD };
    LAYOUT.iter().chain(layouts::LAYOUT).copied().chain([head])
}

/// What is combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE binary16, rounded after every operation.
    F16,
    /// The upper half of a binary32, rounded after every operation.
    Bf16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// 32 bits with a sign.
    I32,
    /// 64 bits with a sign.
    I64,
    /// 32 bits.
    U32,
    /// 64 bits.
    U64,
}

impl Element {
    /// All of them.
    pub const ALL: [Element; 8] = [
        Element::F16,
        Element::Bf16,
        Element::F32,
        Element::F64,
        Element::I32,
        Element::I64,
        Element::U32,
        Element::U64,
    ];

    /// Bytes of one.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Element::F16 | Element::Bf16 => 2,
            Element::F32 | Element::I32 | Element::U32 => 4,
            Element::F64 | Element::I64 | Element::U64 => 8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
            Element::F32 => "f32",
            Element::F64 => "f64",
            Element::I32 => "i32",
            Element::I64 => "i64",
            Element::U32 => "u32",
            Element::U64 => "u64",
        }
    }
}

/// How elements are combined: from left to right in the order of the ranks, rounded after every operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeersOperation {
    /// `MPI_SUM`; integers wrap.
    Sum,
    /// `MPI_PROD`; integers wrap.
    Prod,
    /// `MPI_MAX`: NaN, if either is.
    Max,
    /// `MPI_MIN`: NaN, if either is.
    Min,
}

impl PeersOperation {
    /// All of them.
    pub const ALL: [PeersOperation; 4] =
        [PeersOperation::Sum, PeersOperation::Prod, PeersOperation::Max, PeersOperation::Min];
}

/// One kernel of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// An all-reduce of few bytes.
    Flagged(PeersOperation, Element),
    /// An all-reduce of many.
    Direct(PeersOperation, Element),
    /// Writes into peers' memory.
    Move,
    /// Blocks of few bytes, from every rank to every rank.
    Words,
    /// From layout to layout.
    Layouts,
}

impl Kernel {
    /// Every kernel there is. Sums and products of integers do not depend on the sign, so one kernel serves both.
    pub fn all() -> impl Iterator<Item = Kernel> {
        let pairs = PeersOperation::ALL
            .into_iter()
            .flat_map(|op| Element::ALL.map(|element| (op, element)));
        let both = pairs
            .flat_map(|(op, element)| [Kernel::Flagged(op, element), Kernel::Direct(op, element)]);
        both.chain([Kernel::Move, Kernel::Words, Kernel::Layouts])
    }

    /// How many [`all`](Kernel::all) gives.
    pub const COUNT: usize = 2 * PeersOperation::ALL.len() * Element::ALL.len() + 3;

    /// Its place in [`all`](Kernel::all), without looking there.
    #[must_use]
    pub fn index(self) -> usize {
        let pair = |op: PeersOperation, element: Element| {
            2 * (op as usize * Element::ALL.len() + element as usize)
        };
        match self {
            Kernel::Flagged(op, element) => pair(op, element),
            Kernel::Direct(op, element) => pair(op, element) + 1,
            Kernel::Move => Kernel::COUNT - 3,
            Kernel::Words => Kernel::COUNT - 2,
            Kernel::Layouts => Kernel::COUNT - 1,
        }
    }
}

/// Its name in the image.
impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, op, element) = match *self {
            Kernel::Flagged(op, element) => ("flagged", op, element),
            Kernel::Direct(op, element) => ("direct", op, element),
            Kernel::Move => return f.write_str("peers_move"),
            Kernel::Words => return f.write_str("peers_words"),
            Kernel::Layouts => return f.write_str("peers_layouts"),
        };
        let (op, adds) = match op {
            PeersOperation::Sum => ("sum", true),
            PeersOperation::Prod => ("prod", true),
            PeersOperation::Max => ("max", false),
            PeersOperation::Min => ("min", false),
        };
        let element = match element {
            Element::U32 if adds => Element::I32,
            Element::U64 if adds => Element::I64,
            other => other,
        };
        write!(f, "peers_{kind}_{op}_{}", element.name())
    }
}

/// Bytes of all words with flags of a window.
const WORDS_BYTES: u64 = 8 << 20;

/// Bytes of a block's piece of staging memory, each way.
const PIECE_BYTES: u64 = 256 << 10;

/// Where things lie in the window of one of so many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Ranks.
    pub ranks: u32,
}

impl Window {
    /// Where words with flags begin.
    #[must_use]
    pub fn words(self) -> u64 {
        HEAD_BYTES.next_multiple_of(4096)
    }

    /// Bytes of one rank's words with flags, of one parity: a multiple of 16.
    #[must_use]
    pub fn slot(self) -> u64 {
        2 * flagged_max(self.ranks)
    }

    /// Where staging memory begins.
    #[must_use]
    pub fn stage(self) -> u64 {
        self.words() + WORDS_BYTES
    }

    /// Elements of so many bytes that a block's piece of staging memory holds, at most.
    #[must_use]
    pub fn piece_max(self, element_bytes: u64) -> u64 {
        PIECE_BYTES / element_bytes
    }

    /// Bytes of all.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.stage() + 4 * u64::from(BLOCKS_MAX) * PIECE_BYTES
    }

    /// Bytes at its start that must be zero before the first launch of any rank.
    #[must_use]
    pub fn zeroed(self) -> u64 {
        self.stage()
    }
}

/// What a kernel of a collective reports to its host: success, or which rank is late, has given up or does something
/// else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing amiss.
    Well,
    /// This rank did not come in time.
    Late(u32),
    /// The host gave up, because of this rank.
    Aborted(u32),
    /// This rank does something else.
    Differs(u32),
    /// This rank has failed, and said so.
    Told(u32),
    /// A kernel of this rank named a partition that the message with that rank does not have
    /// ([`partitioned`](crate::partitioned)).
    NoPartition(u32),
    /// A kernel of this rank started a receive from that rank again before all partitions had come.
    Early(u32),
    /// No kernel writes that.
    Unknown(u64),
}

impl Status {
    /// What the word says.
    #[must_use]
    pub fn of(word: u64) -> Status {
        let [what, _, _, _, rank @ ..] = word.to_le_bytes();
        let rank = u32::from_le_bytes(rank);
        match what {
            0 if word == 0 => Status::Well,
            1 => Status::Late(rank),
            2 => Status::Aborted(rank),
            3 => Status::Differs(rank),
            4 => Status::Told(rank),
            5 => Status::NoPartition(rank),
            6 => Status::Early(rank),
            _ => Status::Unknown(word),
        }
    }
}

/// A hash of what all ranks of a launch must have in common, by which kernels notice ranks that do something else.
#[must_use]
pub fn doing(parts: &[u64]) -> u32 {
    // FNV-1a, by bytes.
    let bytes = parts.iter().flat_map(|part| part.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The largest power of two up to 16 that divides all of these: how many bytes a word may have.
#[must_use]
pub fn width(numbers: impl IntoIterator<Item = u64>) -> u32 {
    let bits = numbers.into_iter().fold(16, |bits, number| bits | number);
    1 << bits.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kernel_was_compiled_for_every_architecture_without_spilling() {
        let mut names: BTreeSet<String> = Kernel::all().map(|kernel| kernel.to_string()).collect();
        names.insert(calls::KERNEL.to_str().unwrap().to_owned());
        let mut seen = BTreeSet::new();
        for line in REGISTERS.lines().skip(1) {
            let words: Vec<&str> = line.split(' ').collect();
            let [sm, name, registers, spilled, stack, ..] = words[..] else { panic!("{line}") };
            // A block of 512 threads on a multiprocessor of 65,536 registers.
            assert!(registers.parse::<u32>().unwrap() <= 128, "{line}");
            assert_eq!((spilled, stack), ("0", "0"), "{line}");
            assert!(names.contains(name), "{name} is nobody's");
            seen.insert((sm, name.to_owned()));
        }
        assert_eq!(seen.len(), 3 * names.len());
    }

    #[test]
    fn kernels_are_numbered_in_their_order() {
        let numbers: Vec<usize> = Kernel::all().map(Kernel::index).collect();
        assert_eq!(numbers, (0..Kernel::COUNT).collect::<Vec<_>>());
    }

    #[test]
    fn parts_of_a_window_do_not_overlap() {
        for ranks in 2..=16u32 {
            let window = Window { ranks };
            assert!(window.words() >= HEAD_BYTES && window.slot().is_multiple_of(16));
            assert!(window.words() + 2 * u64::from(ranks) * window.slot() <= window.stage());
            assert!(words_max(ranks) >= 32 << 10, "what is asked of short ones");
            assert!(words_max(ranks) <= flagged_max(ranks));
            for element in Element::ALL {
                let piece = window.piece_max(element.bytes());
                assert_eq!(piece * element.bytes() % 16, 0);
                let end = 4 * u64::from(BLOCKS_MAX) * piece * element.bytes();
                assert!(window.stage() + end <= window.bytes());
            }
        }
    }

    #[test]
    fn a_status_is_read_as_the_kernel_writes_it() {
        assert_eq!(Status::of(0), Status::Well);
        assert_eq!(Status::of(7 << 32 | 1), Status::Late(7));
        assert_eq!(Status::of(1 << 32 | 2), Status::Aborted(1));
        assert_eq!(Status::of(3), Status::Differs(0));
        assert_eq!(Status::of(15 << 32 | 4), Status::Told(15));
        assert_eq!(Status::of(2 << 32 | 5), Status::NoPartition(2));
        assert_eq!(Status::of(6), Status::Early(0));
        assert_eq!(Status::of(7), Status::Unknown(7));
        assert_eq!(Status::of(1 << 32), Status::Unknown(1 << 32));
    }

    #[test]
    fn widths_and_numbers_depend_on_everything() {
        assert_eq!(width([0, 32, 4096]), 16);
        assert_eq!(width([0, 32, 8]), 8);
        assert_eq!(width([3]), 1);
        assert_eq!(width([]), 16);
        let numbers: BTreeSet<u32> = (0..1000).map(|n| doing(&[1, n, 0])).collect();
        assert_eq!(numbers.len(), 1000);
        assert_ne!(doing(&[1, 2]), doing(&[2, 1]));
    }
}
