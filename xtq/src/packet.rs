//! The packet: 64 bytes that say which task is to run where, as HSA's AQL packets do (LeBeane et al. 2016, §III.A).
//!
//! Numbers are little-endian. A sent packet names everything of the target's by index; the target rewrites the fields
//! that are marked `*` ([`rewrite`](crate::rewrite)).
//!
//! ```text
//!          0           2        3        4       5         6                8
//!   0   | sequence:2 | kind:1 | flags:1 | index | queue | *object, high:2 | word 0:8                             |
//!  16   | sequence:2 | *object, low:6                                     | word 1:8                             |
//!  32   | sequence:2 | *signal, low:6                                     | word 2:8                             |
//!  48   | sequence:2 | *signal, high:2 | payload bytes:4                  | word 3:8                             |
//!
//!          word 0                  word 1                word 2                                     word 3
//! FUNCTION | *argument 0           | *argument 1         | argument 2                               | argument 3
//! KERNEL   | *address of arguments | grid x:4 | grid y:4 | grid z:4 | argument bytes:2 | local ÷ 16:2 | group x:2 | y:2 | z:2 | 0:2
//! ```
//!
//! The arguments of a kernel lie behind the packet; the first two are rewritten. The sequence number stands in every
//! 16 bytes, which a GPU reads and writes at once: a reader that finds the expected number in all four has a whole
//! packet. 0 is no sequence number, so zeroed memory holds no packet.

use bitflags::bitflags;
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Length of a packet in bytes.
pub const PACKET_BYTES: usize = 64;
/// Entries of each table: an index is below this.
pub const ENTRIES: usize = 64;
/// The longest arguments of a kernel, in bytes.
pub const ARGUMENTS_MAX: usize = 4096;
/// The shortest: the two that the target replaces.
pub const ARGUMENTS_MIN: usize = 16;
/// Local memory of a group is counted in so many bytes.
pub const LOCAL_UNIT: u32 = 16;

/// What a packet asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TaskKind {
    /// A function on the target's CPU; the Function Table has it.
    Function = 1,
    /// A kernel on an accelerator of the target; the Kernel Table has it.
    Kernel = 2,
}

bitflags! {
    /// How a task is to be run, and what becomes known of its end.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// The initiator is told when the task has ended.
        const ACKNOWLEDGE = 1;
        /// The task begins when all earlier tasks of its queue have ended.
        const BARRIER = 2;
        /// The signal is the one that the target has registered. Only the target sets this.
        const REGISTERED_SIGNAL = 0x80;
    }
}

impl Flags {
    /// Those that an initiator may set.
    pub const SENT: Flags = Flags::ACKNOWLEDGE.union(Flags::BARRIER);
}

/// The packet's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(16))]
pub struct Packet {
    sequence_0: U16,
    kind: u8,
    flags: u8,
    index: u8,
    queue: u8,
    object_high: U16,
    word_0: U64,
    sequence_1: U16,
    object_low: [u8; 6],
    word_1: U64,
    sequence_2: U16,
    signal_low: [u8; 6],
    word_2: U64,
    sequence_3: U16,
    signal_high: U16,
    payload_bytes: U32,
    word_3: U64,
}

const _: () = {
    assert!(size_of::<Packet>() == PACKET_BYTES);
    assert!(std::mem::offset_of!(Packet, word_0) == 8);
    assert!(std::mem::offset_of!(Packet, sequence_1) == 16);
    assert!(std::mem::offset_of!(Packet, sequence_2) == 32);
    assert!(std::mem::offset_of!(Packet, sequence_3) == 48);
    assert!(std::mem::offset_of!(Packet, word_3) == 56);
};

/// What a packet means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Which function or kernel of the target: the coordinated index.
    pub index: u8,
    /// Which queue of the target.
    pub queue: u8,
    /// How to run it.
    pub flags: Flags,
    /// The code, by its name at the target; 0 in a sent packet.
    pub object: u64,
    /// What is counted down when the task has ended; 0: nothing. In a sent packet it is the initiator's name for a
    /// signal of its own.
    pub signal: u64,
    /// Length of the payload, in bytes.
    pub payload_bytes: u32,
    /// What to run it with.
    pub work: TaskWork,
}

impl Command {
    /// What an initiator sends, with neither signal nor payload.
    #[inline]
    pub(crate) fn of(index: u8, queue: u8, work: TaskWork) -> Command {
        let flags = Flags::empty();
        Command { index, queue, flags, object: 0, signal: 0, payload_bytes: 0, work }
    }

    /// # Errors
    /// As [`Packet::new`].
    #[inline]
    pub(crate) fn check(&self) -> Result<(), PacketError> {
        let Command { index, queue, .. } = *self;
        if usize::from(index) >= ENTRIES || usize::from(queue) >= ENTRIES {
            return Err(PacketError::Index { index, queue });
        }
        match &self.work {
            TaskWork::Function { .. } => Ok(()),
            TaskWork::Kernel(launch) => launch.check(),
        }
    }

    /// The words of its packet, with another payload's length. It was [checked](Command::check).
    #[inline]
    pub(crate) fn words(&self, payload_bytes: u32) -> PacketWords {
        let Command { index, queue, flags, object, signal, payload_bytes: _, ref work } = *self;
        let (kind, [w0, w1, w2, w3]) = match work {
            TaskWork::Function { arguments } => (TaskKind::Function, *arguments),
            TaskWork::Kernel(launch) => (TaskKind::Kernel, kernel_words(launch)),
        };
        let [kind, flags, index, queue] = [kind as u8, flags.bits(), index, queue].map(u64::from);
        let head = kind << 16 | flags << 24 | index << 32 | queue << 40 | object >> 48 << 48;
        let last = signal >> 48 << 16 | u64::from(payload_bytes) << 32;
        [head, w0, object << 16, w1, signal << 16, w2, last, w3]
    }
}

/// The words of a packet, in the processor's order. Every other one has room for a sequence number in its lowest 16 bits,
/// which are 0.
pub(crate) type PacketWords = [u64; PACKET_BYTES / 8];

/// The lengths of arguments and payload, as a packet says them; what has no arguments behind it says 0.
#[inline]
pub(crate) fn body_lengths(words: &PacketWords) -> [usize; 2] {
    let is_kernel = words[0] >> 16 & 0xFF == TaskKind::Kernel as u64;
    let arguments = if is_kernel { words[5] >> 32 & 0xFFFF } else { 0 };
    [arguments, words[6] >> 32].map(|len| usize::try_from(len).unwrap_or(0))
}

/// What a task runs: a function with four arguments, or a kernel with its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskWork {
    /// A function gets these four; the first two are the target's.
    Function {
        /// The arguments.
        arguments: [u64; 4],
    },
    /// A kernel.
    Kernel(Launch),
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Where the target has put the arguments; 0 in a sent packet.
    pub arguments: u64,
    /// Their length in bytes, a multiple of 8.
    pub argument_bytes: u16,
    /// Work-items in each dimension: a multiple of the group's.
    pub grid: [u32; 3],
    /// Work-items of a group, in each dimension.
    pub group: [u16; 3],
    /// Local (shared) memory of a group in bytes, a multiple of [`LOCAL_UNIT`].
    pub local_bytes: u32,
}

impl Launch {
    /// A launch of `groups` groups of `items` work-items in one dimension, with `argument_bytes` of arguments.
    #[must_use]
    pub fn linear(groups: u32, items: u16, argument_bytes: u16) -> Launch {
        Launch {
            arguments: 0,
            argument_bytes,
            grid: [groups.saturating_mul(items.into()), 1, 1],
            group: [items, 1, 1],
            local_bytes: 0,
        }
    }

    /// Groups in each dimension.
    #[must_use]
    pub fn groups(&self) -> [u32; 3] {
        std::array::from_fn(|at| self.grid[at] / u32::from(self.group[at].max(1)))
    }

    /// Work-items of a group.
    #[must_use]
    pub fn group_items(&self) -> u64 {
        self.group.iter().map(|&items| u64::from(items)).product()
    }

    #[inline]
    fn check(&self) -> Result<(), PacketError> {
        let (grid, group) = (self.grid, self.group);
        let fits = |at: usize| {
            let (grid, group) = (grid[at], u32::from(group[at]));
            // Most are powers of two: they need no division. Of 0, only 0 is a multiple.
            let rest = group.wrapping_sub(1);
            let is_multiple =
                if group & rest == 0 { grid & rest == 0 } else { grid.is_multiple_of(group) };
            grid != 0 && is_multiple
        };
        if !(0..3).all(fits) {
            return Err(PacketError::Grid { grid, group });
        }
        check_arguments(self.argument_bytes)?;
        let units = self.local_bytes / LOCAL_UNIT;
        if !self.local_bytes.is_multiple_of(LOCAL_UNIT) || units > u32::from(u16::MAX) {
            return Err(PacketError::LocalBytes { bytes: self.local_bytes });
        }
        Ok(())
    }
}

/// # Errors
/// Arguments of a length that no packet has.
#[inline]
#[doc(hidden)]
pub fn check_arguments(bytes: u16) -> Result<(), PacketError> {
    let bytes = usize::from(bytes);
    if !(ARGUMENTS_MIN..=ARGUMENTS_MAX).contains(&bytes) || !bytes.is_multiple_of(8) {
        return Err(PacketError::ArgumentBytes { bytes });
    }
    Ok(())
}

/// Why bytes are no packet, or a command cannot become one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PacketError {
    /// Not as many bytes as a packet has.
    #[error("{bytes} bytes are no packet of {PACKET_BYTES}")]
    Length {
        /// How many there were.
        bytes: usize,
    },
    /// The parts do not belong to one packet, or there is none.
    #[error("the four parts of a packet have the sequence numbers {found:?}")]
    Torn {
        /// The number of each part.
        found: [u16; 4],
    },
    /// Neither a function nor a kernel.
    #[error("a packet of kind {kind}")]
    Kind {
        /// The number of its kind.
        kind: u8,
    },
    /// Flags that do not exist, or that an initiator must not set.
    #[error("a packet with the flags {flags:#04x}")]
    Flags {
        /// All its flags.
        flags: u8,
    },
    /// No table has such an entry.
    #[error("index {index} and queue {queue}, of tables of {ENTRIES} entries")]
    Index {
        /// The index.
        index: u8,
        /// The queue.
        queue: u8,
    },
    /// A field that only the target may set is not 0.
    #[error("the sent packet has {value:#x} for the target's {field}")]
    NotMine {
        /// Which field.
        field: &'static str,
        /// What is in it.
        value: u64,
    },
    /// A grid without work-items, or one that is no multiple of its groups.
    #[error("a grid of {grid:?} work-items in groups of {group:?}")]
    Grid {
        /// The grid's sizes.
        grid: [u32; 3],
        /// The group's sizes.
        group: [u16; 3],
    },
    /// Arguments that are too short, too long or no whole words.
    #[error(
        "{bytes} bytes of kernel arguments: a multiple of 8 from {ARGUMENTS_MIN} to {ARGUMENTS_MAX}"
    )]
    ArgumentBytes {
        /// Their length.
        bytes: usize,
    },
    /// Local memory that the packet cannot express.
    #[error("{bytes} bytes of local memory: a multiple of {LOCAL_UNIT} below 1 MiB")]
    LocalBytes {
        /// Its length.
        bytes: u32,
    },
    /// Bytes that must be 0 are not.
    #[error("reserved bytes of a packet are {value:#x}")]
    Reserved {
        /// What is in them.
        value: u64,
    },
}

fn join(low: [u8; 6], high: U16) -> u64 {
    let ([b0, b1, b2, b3, b4, b5], [b6, b7]) = (low, high.get().to_le_bytes());
    u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7])
}

impl Packet {
    /// No packet: zeros.
    pub(crate) fn none() -> Packet {
        Packet::new_zeroed()
    }

    /// The kernel that it names, if it is one's.
    pub(crate) fn kernel(&self) -> Option<u8> {
        (self.kind == TaskKind::Kernel as u8).then_some(self.index)
    }

    /// Its words, without sequence numbers.
    #[inline]
    pub(crate) fn words(&self) -> PacketWords {
        let words: [U64; 8] = zerocopy::transmute!(*self);
        let mut words = words.map(U64::get);
        words.iter_mut().step_by(2).for_each(|word| *word &= !0xFFFF);
        words
    }

    /// The packet of these words, with the sequence number 1.
    #[inline]
    pub(crate) fn of_words(mut words: PacketWords) -> Packet {
        words.iter_mut().step_by(2).for_each(|word| *word |= 1);
        zerocopy::transmute!(words.map(U64::new))
    }

    /// The packet of a command, with the sequence number 1.
    ///
    /// # Errors
    /// An index that no table has; a grid, arguments or local memory that a packet cannot express.
    pub fn new(command: &Command) -> Result<Packet, PacketError> {
        command.check()?;
        Ok(Packet::of_words(command.words(command.payload_bytes)))
    }

    /// The packet in these bytes, unchecked.
    ///
    /// # Errors
    /// There are not [`PACKET_BYTES`] of them.
    pub fn read(bytes: &[u8]) -> Result<Packet, PacketError> {
        Packet::read_from_bytes(bytes).map_err(|_| PacketError::Length { bytes: bytes.len() })
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PACKET_BYTES] {
        zerocopy::transmute!(*self)
    }

    /// The same packet with another sequence number; 0 would make it none.
    #[must_use]
    pub fn sealed(mut self, sequence: u16) -> Packet {
        let sequence = U16::new(sequence);
        self.sequence_0 = sequence;
        self.sequence_1 = sequence;
        self.sequence_2 = sequence;
        self.sequence_3 = sequence;
        self
    }

    fn sequences(&self) -> [u16; 4] {
        [self.sequence_0, self.sequence_1, self.sequence_2, self.sequence_3].map(U16::get)
    }

    /// The sequence number, if all parts have the same and there is a packet.
    #[must_use]
    pub fn sequence(&self) -> Option<u16> {
        let [first, rest @ ..] = self.sequences();
        (first != 0 && rest == [first; 3]).then_some(first)
    }

    /// What it means, whoever wrote it: the target's fields may be set.
    ///
    /// # Errors
    /// It is torn, or has values that no packet has.
    pub fn command(&self) -> Result<Command, PacketError> {
        if self.sequence().is_none() {
            return Err(PacketError::Torn { found: self.sequences() });
        }
        let flags = Flags::from_bits(self.flags).ok_or(PacketError::Flags { flags: self.flags })?;
        let (index, queue) = (self.index, self.queue);
        if usize::from(index) >= ENTRIES || usize::from(queue) >= ENTRIES {
            return Err(PacketError::Index { index, queue });
        }
        let words = [self.word_0, self.word_1, self.word_2, self.word_3].map(U64::get);
        let work = match self.kind {
            kind if kind == TaskKind::Function as u8 => TaskWork::Function { arguments: words },
            kind if kind == TaskKind::Kernel as u8 => TaskWork::Kernel(launch_of(words)?),
            kind => return Err(PacketError::Kind { kind }),
        };
        Ok(Command {
            index,
            queue,
            flags,
            object: join(self.object_low, self.object_high),
            signal: join(self.signal_low, self.signal_high),
            payload_bytes: self.payload_bytes.get(),
            work,
        })
    }

    /// What it means, if an initiator may have sent it: nothing of the target's is set.
    ///
    /// # Errors
    /// As [`command`](Packet::command); fields or flags are set that are the target's.
    pub fn sent(&self) -> Result<Command, PacketError> {
        let command = self.command()?;
        if !Flags::SENT.contains(command.flags) {
            return Err(PacketError::Flags { flags: self.flags });
        }
        let not_mine = |field, value| PacketError::NotMine { field, value };
        if command.object != 0 {
            return Err(not_mine("object", command.object));
        }
        match command.work {
            TaskWork::Kernel(launch) if launch.arguments != 0 => {
                Err(not_mine("address of arguments", launch.arguments))
            }
            _ => Ok(command),
        }
    }
}

#[inline]
fn kernel_words(launch: &Launch) -> [u64; 4] {
    let [x, y, z] = launch.grid.map(u64::from);
    let [gx, gy, gz] = launch.group.map(u64::from);
    let local = u64::from(launch.local_bytes / LOCAL_UNIT);
    [
        launch.arguments,
        x | y << 32,
        z | u64::from(launch.argument_bytes) << 32 | local << 48,
        gx | gy << 16 | gz << 32,
    ]
}

fn launch_of(words: [u64; 4]) -> Result<Launch, PacketError> {
    let [b0, b1, b2, b3, b4, b5, b6, b7] = words[1].to_le_bytes();
    let [c0, c1, c2, c3, c4, c5, c6, c7] = words[2].to_le_bytes();
    let [d0, d1, d2, d3, d4, d5, rest @ ..] = words[3].to_le_bytes();
    if rest != [0; 2] {
        return Err(PacketError::Reserved { value: u16::from_le_bytes(rest).into() });
    }
    let launch = Launch {
        arguments: words[0],
        argument_bytes: u16::from_le_bytes([c4, c5]),
        grid: [[b0, b1, b2, b3], [b4, b5, b6, b7], [c0, c1, c2, c3]].map(u32::from_le_bytes),
        group: [[d0, d1], [d2, d3], [d4, d5]].map(u16::from_le_bytes),
        local_bytes: u32::from(u16::from_le_bytes([c6, c7])) * LOCAL_UNIT,
    };
    launch.check()?;
    Ok(launch)
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.command() {
            Ok(command) => write!(f, "Packet {:?} {command:?}", self.sequences()),
            Err(error) => write!(f, "Packet {:02x?}: {error}", self.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests;
