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
pub enum Kind {
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
    pub work: Work,
}

/// The part that differs between processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
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

    fn check(&self) -> Result<(), PacketError> {
        let (grid, group) = (self.grid, self.group);
        let fits = |at: usize| {
            // Most groups have one dimension: they need no division.
            let group = u32::from(group[at]);
            grid[at] != 0 && (group == 1 || group != 0 && grid[at].is_multiple_of(group))
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
pub(crate) fn check_arguments(bytes: u16) -> Result<(), PacketError> {
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

/// The lower 48 bits, and the 16 above.
fn split(value: u64) -> ([u8; 6], U16) {
    let [b0, b1, b2, b3, b4, b5, b6, b7] = value.to_le_bytes();
    ([b0, b1, b2, b3, b4, b5], U16::new(u16::from_le_bytes([b6, b7])))
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
        (self.kind == Kind::Kernel as u8).then_some(self.index)
    }

    /// The lengths of its arguments and of its payload, as it says them; what has no arguments behind it says 0.
    pub(crate) fn body_lengths(&self) -> [usize; 2] {
        let arguments =
            if self.kind == Kind::Kernel as u8 { self.word_2.get() >> 32 & 0xFFFF } else { 0 };
        [
            usize::try_from(arguments).unwrap_or(0),
            usize::try_from(self.payload_bytes.get()).unwrap_or(0),
        ]
    }

    /// The packet of a command, with the sequence number 1.
    ///
    /// # Errors
    /// An index that no table has; a grid, arguments or local memory that a packet cannot express.
    pub fn new(command: &Command) -> Result<Packet, PacketError> {
        let Command { index, queue, .. } = *command;
        if usize::from(index) >= ENTRIES || usize::from(queue) >= ENTRIES {
            return Err(PacketError::Index { index, queue });
        }
        let (kind, words) = match command.work {
            Work::Function { arguments } => (Kind::Function, arguments),
            Work::Kernel(launch) => {
                launch.check()?;
                (Kind::Kernel, kernel_words(&launch))
            }
        };
        let (object_low, object_high) = split(command.object);
        let (signal_low, signal_high) = split(command.signal);
        let [word_0, word_1, word_2, word_3] = words.map(U64::new);
        let sequence = U16::new(1);
        Ok(Packet {
            sequence_0: sequence,
            kind: kind as u8,
            flags: command.flags.bits(),
            index,
            queue,
            object_high,
            word_0,
            sequence_1: sequence,
            object_low,
            word_1,
            sequence_2: sequence,
            signal_low,
            word_2,
            sequence_3: sequence,
            signal_high,
            payload_bytes: U32::new(command.payload_bytes),
            word_3,
        })
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
            kind if kind == Kind::Function as u8 => Work::Function { arguments: words },
            kind if kind == Kind::Kernel as u8 => Work::Kernel(launch_of(words)?),
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
            Work::Kernel(launch) if launch.arguments != 0 => {
                Err(not_mine("address of arguments", launch.arguments))
            }
            _ => Ok(command),
        }
    }
}

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
mod tests {
    use super::*;

    fn kernel() -> Command {
        Command {
            index: 42,
            queue: 63,
            flags: Flags::ACKNOWLEDGE,
            object: 0,
            signal: 0x0123_4567_89AB_CDEF,
            payload_bytes: 0x8000_0001,
            work: Work::Kernel(Launch {
                arguments: 0,
                argument_bytes: 24,
                grid: [1 << 20, 6, 7],
                group: [256, 3, 1],
                local_bytes: 48 << 10,
            }),
        }
    }

    #[test]
    fn bytes_are_where_the_picture_says() {
        let packet = Packet::new(&kernel()).unwrap().sealed(0x1234);
        let bytes = packet.as_bytes();
        for part in 0..4 {
            assert_eq!(bytes[16 * part..16 * part + 2], [0x34, 0x12]);
        }
        assert_eq!(bytes[2..8], [2, 1, 42, 63, 0, 0]);
        assert_eq!(bytes[24..28], (1u32 << 20).to_le_bytes());
        assert_eq!(bytes[28..32], 6u32.to_le_bytes());
        assert_eq!(bytes[34..40], [0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45]);
        assert_eq!(bytes[40..48], [7, 0, 0, 0, 24, 0, 0, 12]);
        assert_eq!(bytes[50..56], [0x23, 0x01, 1, 0, 0, 0x80]);
        assert_eq!(bytes[56..64], [0, 1, 3, 0, 1, 0, 0, 0]);
        assert_eq!(Packet::read(bytes).unwrap().sent(), Ok(kernel()));
        assert_eq!(Packet::read(&bytes[1..]), Err(PacketError::Length { bytes: 63 }));
    }

    #[test]
    fn a_part_of_another_packet_is_noticed() {
        let whole = Packet::new(&kernel()).unwrap().sealed(7);
        let zeroed = Packet::read(&[0; PACKET_BYTES]).unwrap();
        assert_eq!(zeroed.command(), Err(PacketError::Torn { found: [0; 4] }));
        let before = Packet::new(&kernel()).unwrap().sealed(6);
        for part in 0..4 {
            let mut bytes: [u8; PACKET_BYTES] = whole.as_bytes().try_into().unwrap();
            bytes[16 * part..][..16].copy_from_slice(&before.as_bytes()[16 * part..][..16]);
            let torn = Packet::read(&bytes).unwrap();
            assert_eq!(torn.sequence(), None);
            assert!(matches!(torn.command(), Err(PacketError::Torn { .. })));
        }
    }

    /// Every bit of a packet matters, or is refused when it is set.
    #[test]
    fn no_bit_is_ignored() {
        let function =
            Command { work: Work::Function { arguments: [1, 2, 3, u64::MAX] }, ..kernel() };
        for command in [kernel(), function] {
            let packet = Packet::new(&command).unwrap();
            for bit in 0..8 * PACKET_BYTES {
                let mut bytes: [u8; PACKET_BYTES] = packet.as_bytes().try_into().unwrap();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Packet::read(&bytes).unwrap().sent(), Ok(command), "bit {bit}");
            }
        }
    }

    #[test]
    fn what_only_the_target_may_set_is_refused() {
        let sent = |change: &dyn Fn(&mut Command)| {
            let mut command = kernel();
            change(&mut command);
            let packet = Packet::new(&command).unwrap();
            assert_eq!(packet.command(), Ok(command), "the target may");
            packet.sent().unwrap_err()
        };
        assert_eq!(
            sent(&|command| command.object = 1 << 60),
            PacketError::NotMine { field: "object", value: 1 << 60 }
        );
        let flags = |command: &mut Command| command.flags |= Flags::REGISTERED_SIGNAL;
        assert_eq!(sent(&flags), PacketError::Flags { flags: 0x81 });
        let arguments = |command: &mut Command| {
            if let Work::Kernel(launch) = &mut command.work {
                launch.arguments = 8;
            }
        };
        assert!(matches!(sent(&arguments), PacketError::NotMine { .. }));
    }

    #[test]
    fn launches_that_cannot_be_are_refused() {
        let refused = |change: &dyn Fn(&mut Launch)| {
            let mut launch = Launch::linear(2, 64, 16);
            assert_eq!((launch.groups(), launch.group_items()), ([2, 1, 1], 64));
            change(&mut launch);
            Packet::new(&Command { work: Work::Kernel(launch), ..kernel() }).unwrap_err()
        };
        assert!(matches!(refused(&|l| l.grid[0] = 65), PacketError::Grid { .. }));
        assert!(matches!(refused(&|l| l.grid[2] = 0), PacketError::Grid { .. }));
        assert!(matches!(refused(&|l| l.group[1] = 0), PacketError::Grid { .. }));
        assert_eq!(refused(&|l| l.argument_bytes = 8), PacketError::ArgumentBytes { bytes: 8 });
        assert_eq!(
            refused(&|l| l.argument_bytes = 4104),
            PacketError::ArgumentBytes { bytes: 4104 }
        );
        assert_eq!(refused(&|l| l.argument_bytes = 20), PacketError::ArgumentBytes { bytes: 20 });
        assert_eq!(refused(&|l| l.local_bytes = 8), PacketError::LocalBytes { bytes: 8 });
        assert!(matches!(refused(&|l| l.local_bytes = 1 << 20), PacketError::LocalBytes { .. }));
        let far = Packet::new(&Command { index: 64, ..kernel() });
        assert_eq!(far.unwrap_err(), PacketError::Index { index: 64, queue: 63 });
    }
}
