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
    zero: [u8; 9],
    sequence: U32,
    serial: U64,
}
const _: () = assert!(size_of::<NoteWire>() == NOTE_BYTES);

/// What a note says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The sender wants the message with this serial back.
    Withdraw { serial: u64 },
    /// No message that is matched will follow: the sender leaves the job.
    Farewell,
}

/// A note. It is numbered like the messages that are matched, so that it is read after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) sequence: u32,
    pub(crate) what: What,
}

/// The bytes of a note.
pub(crate) fn note(note: Note) -> [u8; NOTE_BYTES] {
    let (what, serial) = match note.what {
        What::Withdraw { serial } => (1, serial),
        What::Farewell => (2, 0),
    };
    zerocopy::transmute!(NoteWire {
        kind: kind::NOTE,
        version: VERSION,
        what,
        zero: [0; 9],
        sequence: note.sequence.into(),
        serial: serial.into(),
    })
}

impl Note {
    pub(super) fn check(wire: &NoteWire) -> Result<Note, String> {
        reserved(&wire.zero)?;
        let serial = wire.serial.get();
        let what = match (wire.what, serial) {
            (1, serial) => What::Withdraw { serial },
            (2, 0) => What::Farewell,
            (what, _) => return Err(format!("no note has number {what} and serial {serial}")),
        };
        Ok(Note { sequence: wire.sequence.get(), what })
    }
}
