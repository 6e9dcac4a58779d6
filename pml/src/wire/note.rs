//! NOTE: what a sender says about its earlier messages, in their order.

use super::{VERSION, kind, reserved};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the message, in bytes.
pub(crate) const NOTE_BYTES: usize = 24;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct NoteWire {
    kind: u8,
    version: u8,
    what: u8,
    zero: u8,
    /// CancelEager: the number of the message; Revoke: the communicator.
    message: U32,
    zero2: U32,
    sequence: U32,
    serial: U64,
}
const _: () = assert!(size_of::<NoteWire>() == NOTE_BYTES);

/// What a note says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoteKind {
    /// The sender cancels the message with this serial.
    Cancel { serial: u64 },
    /// The sender cancels its eager message of this number, and wants an answer to this serial.
    CancelEager { sequence: u32, serial: u64 },
    /// The data of the offer with this serial is there.
    Go { serial: u64 },
    /// It will never be.
    Fail { serial: u64 },
    /// No more messages that are matched will follow: the sender leaves the job.
    Farewell,
    /// The communicator that the receiver calls so is revoked.
    Revoke { id: u32 },
}

/// A note. It is numbered like the messages that are matched, so that it is read after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) sequence: u32,
    pub(crate) what: NoteKind,
}

/// The bytes of a note.
pub(crate) fn note(note: Note) -> [u8; NOTE_BYTES] {
    let (what, message, serial) = match note.what {
        NoteKind::Cancel { serial } => (1, 0, serial),
        NoteKind::Farewell => (2, 0, 0),
        NoteKind::CancelEager { sequence, serial } => (3, sequence, serial),
        NoteKind::Go { serial } => (4, 0, serial),
        NoteKind::Fail { serial } => (5, 0, serial),
        NoteKind::Revoke { id } => (6, id, 0),
    };
    zerocopy::transmute!(NoteWire {
        kind: kind::NOTE,
        version: VERSION,
        what,
        zero: 0,
        message: message.into(),
        zero2: U32::ZERO,
        sequence: note.sequence.into(),
        serial: serial.into(),
    })
}

impl Note {
    pub(super) fn check(wire: &NoteWire) -> Result<Note, String> {
        reserved(&[wire.zero])?;
        reserved(wire.zero2.as_bytes())?;
        let (message, serial) = (wire.message.get(), wire.serial.get());
        let what = match (wire.what, message, serial) {
            (1, 0, serial) => NoteKind::Cancel { serial },
            (2, 0, 0) => NoteKind::Farewell,
            (3, sequence, serial) => NoteKind::CancelEager { sequence, serial },
            (4, 0, serial) => NoteKind::Go { serial },
            (5, 0, serial) => NoteKind::Fail { serial },
            (6, id, 0) => NoteKind::Revoke { id },
            (what, message, serial) => {
                return Err(format!(
                    "no note has number {what}, message {message} and serial {serial}"
                ));
            }
        };
        Ok(Note { sequence: wire.sequence.get(), what })
    }
}
