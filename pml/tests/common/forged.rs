//! Messages put together byte by byte, as `pml/src/wire.rs` draws them: what a peer says that is no endpoint. Those of
//! staged messages are in `rogue.rs`.

use super::rogue::{VERSION, word, words};
use gapless_btl::RemoteKey;
use gapless_dtype::Layout;

/// Kinds.
pub(crate) const EAGER: u8 = 1;
pub(crate) const RTS: u8 = 2;
pub(crate) const CTS: u8 = 3;
pub(crate) const DATA: u8 = 4;
pub(crate) const FIN: u8 = 5;
pub(crate) const LAYOUT_REQUEST: u8 = 6;
pub(crate) const LAYOUT_DATA: u8 = 7;
pub(crate) const ABORT: u8 = 8;
pub(crate) const NOTE: u8 = 9;
pub(crate) const OPEN: u8 = 10;
pub(crate) const RING: u8 = 11;
pub(crate) const READY: u8 = 12;
pub(crate) const FREE: u8 = 13;
pub(crate) const REFUSE: u8 = 14;
pub(crate) const GRANT: u8 = 15;

/// What FIN says became of a message.
pub(crate) const UNUSED: u8 = 0;
pub(crate) const BY_EAGER: u8 = 1;
pub(crate) const BY_PIPELINE: u8 = 2;
pub(crate) const BY_MAPPED: u8 = 3;
pub(crate) const CANCELLED: u8 = 17;

/// What a note says.
pub(crate) const CANCEL: u8 = 1;
pub(crate) const CANCEL_EAGER: u8 = 3;
pub(crate) const GO: u8 = 4;
pub(crate) const NEVER: u8 = 5;

/// The number that the forger gives what it receives.
pub(crate) const REPLY: u64 = 55;
/// The number that it gives what it offers.
pub(crate) const SERIAL: u64 = 77;
/// The name that it gives a layout.
pub(crate) const LAYOUT: u64 = 9;

pub(crate) fn word_at(message: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(message[at..at + 8].try_into().unwrap())
}

/// An eager message of untyped bytes, to context `context`.
pub(crate) fn eager(sequence: u32, context: u32, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 32];
    message[..2].copy_from_slice(&[EAGER, VERSION]);
    message[4..8].copy_from_slice(&context.to_le_bytes());
    message[12..16].copy_from_slice(&sequence.to_le_bytes());
    word(&mut message, 16, 1 << 61);
    word(&mut message, 24, payload.len() as u64);
    message.extend_from_slice(payload);
    message
}

/// Asks for all of a message of `end` bytes.
pub(crate) fn cts(serial: u64, fragment: u32, end: u64) -> Vec<u8> {
    let mut message = vec![0; 48];
    message[..2].copy_from_slice(&[CTS, VERSION]);
    message[4..8].copy_from_slice(&2u32.to_le_bytes());
    message[8..12].copy_from_slice(&fragment.to_le_bytes());
    word(&mut message, 16, serial);
    word(&mut message, 24, REPLY);
    word(&mut message, 40, end);
    message
}

/// The fragment from `offset` on.
pub(crate) fn data(reply: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut message = words(DATA, reply, offset);
    message.extend_from_slice(bytes);
    message
}

/// Asks for the layout of a message, in pieces.
pub(crate) fn layout_request(serial: u64, reply: u64, piece: u64) -> Vec<u8> {
    let mut message = words(LAYOUT_REQUEST, serial, reply);
    word(&mut message, 24, piece);
    message
}

/// A whole flattened layout.
pub(crate) fn layout_data(reply: u64, flat: &[u8]) -> Vec<u8> {
    let mut message = words(LAYOUT_DATA, reply, 0);
    word(&mut message, 24, flat.len() as u64);
    message.extend_from_slice(flat);
    message
}

pub(crate) fn note(sequence: u32, what: u8, message: u32, serial: u64) -> Vec<u8> {
    let mut note = vec![0; 24];
    note[..3].copy_from_slice(&[NOTE, VERSION, what]);
    note[4..8].copy_from_slice(&message.to_le_bytes());
    note[12..16].copy_from_slice(&sequence.to_le_bytes());
    word(&mut note, 16, serial);
    note
}

/// A buffer as it is told of in RTS and GRANT: one instance of a layout.
pub(crate) struct Told<'a> {
    /// Packed bytes.
    pub(crate) bytes: u64,
    /// What it touches.
    pub(crate) low: i64,
    pub(crate) span: u64,
    /// Its layout; `None` if it has no gaps.
    pub(crate) layout: Option<&'a Layout>,
    /// Whether the layout comes with the message.
    pub(crate) inline: bool,
}

impl<'a> Told<'a> {
    /// The truth about `layout`.
    pub(crate) fn of(layout: &'a Layout) -> Told<'a> {
        let convertor = gapless_dtype::Convertor::new(layout, 1).unwrap();
        let (low, high) = convertor.bounds().unwrap();
        let (bytes, span) = (convertor.packed_size(), high.abs_diff(low));
        Told { bytes, low, span, layout: Some(layout).filter(|_| span != bytes), inline: true }
    }

    fn flat(&self) -> Vec<u8> {
        self.layout.map_or_else(Vec::new, Layout::flatten)
    }

    /// Offers it, untyped and in memory of the host, with this key.
    pub(crate) fn rts(&self, sequence: u32, key: Option<&RemoteKey>) -> Vec<u8> {
        let mut message = eager(sequence, 0, &[]);
        message[0] = RTS;
        message.resize(128, 0);
        let (flat, key) = (self.flat(), key.map_or(&[][..], RemoteKey::as_bytes));
        let inline = if self.inline { &flat[..] } else { &[] };
        let (blocks, id) = if flat.is_empty() { (1, 0) } else { (self.bytes.max(2), LAYOUT) };
        for (at, value) in [(24, self.bytes), (32, self.bytes), (40, SERIAL), (48, 1)] {
            word(&mut message, at, value);
        }
        word(&mut message, 56, self.low.cast_unsigned());
        for (at, value) in [(64, self.span), (72, blocks), (80, id), (88, flat.len() as u64)] {
            word(&mut message, at, value);
        }
        message[96..100].copy_from_slice(&4096u32.to_le_bytes());
        message[100] = 4;
        message[104..106].copy_from_slice(&u16::try_from(inline.len()).unwrap().to_le_bytes());
        message[106] = u8::try_from(key.len()).unwrap();
        [&message[..], key, inline].concat()
    }

    /// Grants it for bytes 0 to `end` of a message.
    pub(crate) fn grant(&self, serial: u64, end: u64, key: &RemoteKey) -> Vec<u8> {
        let mut message = vec![0; 72];
        let (flat, key) = (self.flat(), key.as_bytes());
        let inline = if self.inline { &flat[..] } else { &[] };
        message[..3].copy_from_slice(&[GRANT, VERSION, u8::try_from(key.len()).unwrap()]);
        message[4..8].copy_from_slice(&4096u32.to_le_bytes());
        for (at, value) in [(8, serial), (16, REPLY), (24, end), (32, 1)] {
            word(&mut message, at, value);
        }
        word(&mut message, 40, self.low.cast_unsigned());
        let id = if flat.is_empty() { 0 } else { LAYOUT };
        for (at, value) in [(48, self.span), (56, id), (64, flat.len() as u64)] {
            word(&mut message, at, value);
        }
        [&message[..], key, inline].concat()
    }
}
