//! Kernels that stay on a GPU, and run what their own host writes into a ring (`cuda/lives.h`; `persistent.h` says what
//! lies where): the ring, and how a command lies in it. [`copy_worker`](crate::copy_worker) and
//! [`peers::calls`](crate::peers::calls) say what such a kernel does.

use std::ops::Range;

/// Threads of its one block.
pub const THREADS: u32 = 512;

/// Commands that the ring holds.
pub const SLOTS: u64 = 64;

/// Units of 16 bytes that a command has.
pub const UNITS: usize = 32;

/// Bytes of the control block, which begins zeroed: it lies in page-locked memory.
pub const CONTROL_BYTES: u64 = RING + SLOTS * (UNITS * UNIT_BYTES) as u64;

/// Where the state is: [`AWAY`], [`STARTING`] or [`RUNNING`].
pub const STATE: u64 = 0;
/// No life takes commands that it has not found yet.
pub const AWAY: u64 = 0;
/// A life was launched.
pub const STARTING: u64 = 1;
/// A life takes commands.
pub const RUNNING: u64 = 2;
/// Where the kernel says how many commands have ended.
pub const ENDED: u64 = 128;
/// Where the ring begins.
pub const RING: u64 = 512;

const UNIT_BYTES: usize = 16;
/// Bytes of a unit behind its sequence.
const UNIT_BODY: usize = 14;
const SEQUENCES: u64 = 65535;
const HEAD_BYTES: usize = 16;
const LEAVE: u8 = 255;

/// What the kernel is to do, and the arguments that change by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command([u8; UNITS * UNIT_BODY]);

impl Command {
    /// To do `what`, with these parts of the arguments, whose bounds are multiples of 8 bytes. `None`: they are more than
    /// a command holds.
    pub(crate) fn new(
        what: u8,
        arguments: &[u8],
        parts: impl IntoIterator<Item = Range<usize>>,
    ) -> Option<Command> {
        let mut bytes = [0u8; UNITS * UNIT_BODY];
        let (head, body) = bytes.split_at_mut(HEAD_BYTES);
        head[0] = what;
        let (mut filled, mut segments) = (0, 0);
        for part in parts {
            let said = head[2..].chunks_exact_mut(2).nth(segments)?;
            said[0] = u8::try_from(part.start / 8).ok()?;
            said[1] = u8::try_from(part.len() / 8).ok()?;
            let to = filled..filled + part.len();
            (filled, segments) = (to.end, segments + 1);
            body.get_mut(to)?.copy_from_slice(arguments.get(part)?);
        }
        head[1] = u8::try_from(segments).ok()?;
        Some(Command(bytes))
    }

    /// The command to leave.
    #[must_use]
    pub fn leave() -> Command {
        let mut bytes = [0; UNITS * UNIT_BODY];
        bytes[0] = LEAVE;
        Command(bytes)
    }

    /// The units of command `number` (from 0): each a low and a high half. Whoever stores them stores the low half
    /// last.
    pub fn units(&self, number: u64) -> impl Iterator<Item = [u64; 2]> {
        let sequence = 1 + number % SEQUENCES;
        self.0.chunks_exact(UNIT_BODY).map(move |body| {
            let half = |bytes: &[u8]| {
                bytes.iter().rev().fold(0u64, |half, byte| half << 8 | u64::from(*byte))
            };
            [half(&body[..6]) << 16 | sequence, half(&body[6..])]
        })
    }
}

/// Where command `number` lies in the control block, in bytes.
#[must_use]
pub fn slot(number: u64) -> u64 {
    RING + number % SLOTS * (UNITS * UNIT_BYTES) as u64
}

/// What the kernel makes of a command: what is to be done, and the arguments, as many bytes.
#[cfg(test)]
pub(crate) fn taken_apart(command: &Command, number: u64, bytes: usize) -> (u8, Vec<u8>) {
    let mut read = Vec::new();
    for [low, high] in command.units(number) {
        assert_eq!(low & 0xffff, 1 + number % SEQUENCES);
        read.extend(&low.to_le_bytes()[2..]);
        read.extend(high.to_le_bytes());
    }
    let (mut args, mut at) = (vec![0; bytes], HEAD_BYTES);
    for segment in read[2..HEAD_BYTES].chunks_exact(2).take(read[1].into()) {
        let (to, len) = (8 * usize::from(segment[0]), 8 * usize::from(segment[1]));
        args[to..to + len].copy_from_slice(&read[at..at + len]);
        at += len;
    }
    (read[0], args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_have_the_same_numbers() {
        let header = include_str!("persistent.h");
        let all = [
            ("SLOTS", SLOTS),
            ("UNITS", UNITS as u64),
            ("UNIT_BYTES", UNIT_BYTES as u64),
            ("UNIT_BODY", UNIT_BODY as u64),
            ("SEQUENCES", SEQUENCES),
            ("HEAD_BYTES", HEAD_BYTES as u64),
            ("SEGMENTS_MAX", (HEAD_BYTES / 2 - 1) as u64),
            ("THREADS", u64::from(THREADS)),
            ("STATE", STATE),
            ("AWAY", AWAY),
            ("STARTING", STARTING),
            ("RUNNING", RUNNING),
            ("ENDED", ENDED),
            ("LEAVE", u64::from(LEAVE)),
            ("RING", RING),
        ];
        for (name, number) in all {
            let line = format!("#define PERSISTENT_{name} {number}\n");
            assert!(header.contains(&line), "{line}");
        }
    }

    #[test]
    fn what_a_command_has_no_room_for_is_none() {
        let arguments = [7u8; 512];
        let most = UNITS * UNIT_BODY - HEAD_BYTES;
        let whole = Command::new(9, &arguments, [0..8, 16..8 + most]).unwrap();
        let (what, args) = taken_apart(&whole, 70_000, 512);
        assert_eq!((what, args.iter().filter(|byte| **byte == 7).count()), (9, most));
        assert_eq!(args[8..16], [0; 8]);
        assert_eq!(Command::new(9, &arguments, [0..8, 16..16 + most]), None);
        assert_eq!(Command::new(9, &arguments, (0..8).map(|k| 16 * k..16 * k + 8)), None);
        assert_eq!(Command::new(9, &arguments, std::iter::once(512..520)), None);
        assert_eq!(taken_apart(&Command::leave(), 1, 0).0, LEAVE);
    }
}
