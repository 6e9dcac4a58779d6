//! The rewrite: a sent packet, which names things by index, becomes one that names them by the target's addresses
//! (LeBeane et al. 2016, §III.C.2, Figure 5).
//!
//! | field | becomes |
//! |---|---|
//! | object | the code of the Kernel or Function Table's entry |
//! | address of arguments (kernels) | where the target has put them |
//! | argument 0 | the registered buffer or table of pointers; 0 if there is none |
//! | argument 1 | where the payload lies; 0 if there is none |
//! | signal | the entry's, if it has one; otherwise the packet's own passes through |
//! | queue | the Queue Table's entry, beside the packet |
//!
//! The rest passes through. The first two arguments never come from an initiator, so no initiator names an address.
//! The first two arguments of a kernel lie behind the packet: they are in [`Rewritten::first`].
//!
//! This is a pure function, the same for every back end.

use crate::packet::{Command, Flags, Packet, PacketError, TaskWork};
use crate::tables::{QueueEntry, Tables, TaskEntry};
use thiserror::Error;

/// Where the target has put what came with a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// A kernel's arguments.
    pub arguments: u64,
    /// The payload, if it has any bytes.
    pub payload: u64,
}

/// A task that can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// The packet, for the queue.
    pub packet: Packet,
    /// The first two arguments; of a kernel they go where its arguments are.
    pub first: [u64; 2],
    /// The queue.
    pub queue: QueueEntry,
}

/// Why a packet is no task here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RewriteError {
    /// It is no packet that an initiator may send.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// No function or kernel is registered by this index.
    #[error("no {kind} is registered by index {index}", kind = if *kernel { "kernel" } else { "function" })]
    NotRegistered {
        /// The index.
        index: u8,
        /// Whether a kernel was asked for.
        kernel: bool,
    },
    /// No queue is registered by this index.
    #[error("no queue is registered by index {index}")]
    NoQueue {
        /// The index.
        index: u8,
    },
    /// More payload than was registered.
    #[error("{bytes} bytes of payload, of at most {max}")]
    PayloadTooLong {
        /// The payload's length.
        bytes: u32,
        /// What was registered.
        max: u32,
    },
    /// Not the arguments that were registered.
    #[error("{bytes} bytes of arguments, but {registered} are registered")]
    Arguments {
        /// The length of the packet's.
        bytes: u16,
        /// The registered length.
        registered: u16,
    },
}

/// Looks up what a command names, and checks it against what was registered.
///
/// # Errors
/// An index or a length that was not registered.
pub fn look_up(
    command: &Command,
    tables: &Tables,
) -> Result<(TaskEntry, QueueEntry), RewriteError> {
    let index = command.index;
    let (entry, kernel, bytes) = match command.work {
        TaskWork::Function { .. } => (tables.function(index), false, 0),
        TaskWork::Kernel(launch) => (tables.kernel(index), true, launch.argument_bytes),
    };
    let entry = entry.ok_or(RewriteError::NotRegistered { index, kernel })?;
    let queue =
        tables.queue(command.queue).ok_or(RewriteError::NoQueue { index: command.queue })?;
    let (payload, max) = (command.payload_bytes, entry.payload_max);
    if payload > max {
        return Err(RewriteError::PayloadTooLong { bytes: payload, max });
    }
    if kernel && bytes != entry.argument_bytes {
        return Err(RewriteError::Arguments { bytes, registered: entry.argument_bytes });
    }
    Ok((entry, queue))
}

/// The rewrite itself, of a command that was [looked up](look_up).
///
/// # Errors
/// The command has values that no packet has, which [`Packet::sent`] refuses.
pub fn apply(
    command: &Command,
    (entry, queue): (TaskEntry, QueueEntry),
    places: Places,
) -> Result<Rewritten, RewriteError> {
    let payload = if command.payload_bytes == 0 { 0 } else { places.payload };
    let first = [entry.buffer, payload];
    let mut command = *command;
    command.object = entry.object;
    if entry.signal != 0 {
        command.signal = entry.signal;
        command.flags |= Flags::REGISTERED_SIGNAL;
    }
    match &mut command.work {
        TaskWork::Function { arguments } => arguments[..2].copy_from_slice(&first),
        TaskWork::Kernel(launch) => launch.arguments = places.arguments,
    }
    Ok(Rewritten { packet: Packet::new(&command)?, first, queue })
}

/// Checks a sent packet and rewrites it; it keeps its sequence number.
///
/// # Errors
/// As [`Packet::sent`] and [`look_up`].
pub fn rewrite(
    packet: &Packet,
    tables: &Tables,
    places: Places,
) -> Result<Rewritten, RewriteError> {
    let command = packet.sent()?;
    let found = look_up(&command, tables)?;
    let mut rewritten = apply(&command, found, places)?;
    // A sent packet has one.
    rewritten.packet = rewritten.packet.sealed(packet.sequence().unwrap_or(1));
    Ok(rewritten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Launch;
    use crate::sample;

    #[test]
    fn fields_of_the_target_are_replaced_and_the_rest_passes_through() {
        let tables = Tables::new();
        let entry = TaskEntry {
            object: 0xF00D,
            buffer: 0xB0FF,
            buffer_bytes: 64,
            signal: 0,
            payload_max: 8,
            argument_bytes: 32,
        };
        tables.set_function(1, Some(entry)).unwrap();
        tables.set_kernel(1, Some(TaskEntry { signal: 0x5160, ..entry })).unwrap();
        tables.set_queue(2, Some(QueueEntry { base: 0x0E0E, capacity: 4 })).unwrap();
        let command = Command {
            index: 1,
            queue: 2,
            flags: Flags::BARRIER,
            object: 0,
            signal: 77,
            payload_bytes: 8,
            work: TaskWork::Function { arguments: [1, 2, 3, 4] },
        };
        let places = Places { arguments: 0xA000, payload: 0xDA7A };
        let run =
            |command: &Command| rewrite(&Packet::new(command).unwrap().sealed(9), &tables, places);
        let task = run(&command).unwrap();
        assert_eq!(task.packet.sequence(), Some(9));
        assert_eq!((task.first, task.queue.base), ([0xB0FF, 0xDA7A], 0x0E0E));
        let arguments = [0xB0FF, 0xDA7A, 3, 4];
        let expected =
            Command { object: 0xF00D, work: TaskWork::Function { arguments }, ..command };
        assert_eq!(task.packet.command(), Ok(expected));
        let empty = run(&Command { payload_bytes: 0, ..command }).unwrap();
        assert_eq!(empty.first, [0xB0FF, 0]);

        let launch = Launch::linear(3, 32, 32);
        let kernel = Command { work: TaskWork::Kernel(launch), ..command };
        let task = run(&kernel).unwrap();
        let expected = Command {
            object: 0xF00D,
            signal: 0x5160,
            flags: Flags::BARRIER | Flags::REGISTERED_SIGNAL,
            work: TaskWork::Kernel(Launch { arguments: 0xA000, ..launch }),
            ..kernel
        };
        assert_eq!(task.packet.command(), Ok(expected));

        let refused = |change: &dyn Fn(&mut Command), of: &Command| {
            let mut command = *of;
            change(&mut command);
            run(&command).unwrap_err()
        };
        assert_eq!(
            refused(&|c| c.index = 2, &command),
            RewriteError::NotRegistered { index: 2, kernel: false }
        );
        assert_eq!(refused(&|c| c.queue = 0, &command), RewriteError::NoQueue { index: 0 });
        assert_eq!(
            refused(&|c| c.payload_bytes = 9, &kernel),
            RewriteError::PayloadTooLong { bytes: 9, max: 8 }
        );
        assert_eq!(
            refused(&|c| c.work = TaskWork::Kernel(Launch::linear(1, 1, 16)), &kernel),
            RewriteError::Arguments { bytes: 16, registered: 32 }
        );
    }

    /// Every back end gives this digest for the same packets.
    #[test]
    fn the_sample_gives_the_known_digest() {
        let tables = sample::tables();
        let (mut digest, mut tasks) = (sample::Digest::new(), 0);
        for (packet, places) in sample::packets(sample::PACKETS) {
            let rewritten = rewrite(&packet, &tables, places);
            tasks += usize::from(rewritten.is_ok());
            digest.add(&rewritten);
            // What the oracle says, which knows the picture and nothing else.
            assert_eq!(rewritten.ok(), sample::expected(&packet, &tables, places), "{packet:?}");
        }
        assert_eq!((tasks, digest.value()), sample::KNOWN);
    }
}
