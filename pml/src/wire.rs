//! Wire headers: pictures, and what they mean once checked.
//!
//! Every message of this crate starts with one of the headers below; numbers are little-endian.
//! Bytes are copied out of the transport's memory first, checked once ([`Message::parse`]) and
//! turned into values that cannot be wrong in themselves; whether they fit our own state (is there
//! such a request? is that what was granted?) is for the protocols to check.
//!
//! ```text
//!            0      1         2       4         8         12         16              24
//! EAGER      | kind | version | mode  | context | tag     | sequence | kind:3 hash:61 | elements |
//!         32 | serial:8, if the mode is synchronous | packed data …
//!
//! RTS        as EAGER up to 32, then
//!         32 | bytes | serial | count | low | span | blocks | layout id | layout length |
//!         96 | fragment wish:4 | depth wish:4 | layout inline:2 | mapped key:1 | rdma key:1 | space:1 |
//!            | staged:1 | flags:1 | shares:1 | staged fragment wish:4 | staged depth wish:4 | device |
//!        128 | mapped key … | rdma key … | flattened layout …
//!
//! CTS        | kind | version | 0:2 | depth:4 | fragment:4 | 0:4 | serial | reply | offset | end |
//! DATA       | kind | version | 0:6 | reply | offset | 0:8 |
//!         32 | packed data …
//! FIN        | kind | version | verdict:1 | 0:5 | serial |
//! NOTE       | kind | version | what:1 | 0:1 | message:4 | 0:4 | sequence:4 | serial |
//! ABORT      | kind | version | 0:6 | reply |
//! LAYOUT-REQUEST  | kind | version | 0:6 | serial | reply | piece |
//! LAYOUT-DATA     | kind | version | 0:6 | reply | offset | length |
//!              32 | flattened layout …
//!
//! OPEN       | kind | version | protocol:1 | direct:1 | depth:4 | fragment:4 | key:1 | head:1 | tail:1 | 0:1 | serial | reply | end |
//!         40 | key …
//! RING       | kind | version | key:1 | 0:1 | depth:4 | reply |
//!         16 | key …
//! READY      | kind | version | 0:6 | reply | index | 0:8 |
//! FREE       | kind | version | 0:6 | serial | limit | 0:8 |
//! REFUSE     | kind | version | why:1 | 0:5 | reply |
//! GRANT       | kind | version | key:1 | 0:1 | longest piece:4 | serial | reply | end |
//!         32 | count | low | span | layout id | layout length |
//!         72 | key … | flattened layout …
//! PAYLOAD    | kind | version | 0:6 | serial | 0:16 |
//!         32 | packed data …
//! ASK, SAY   | kind | version | call:1 | operation:1 | context:4 | number:8 | whom:4 | milliseconds:4 |
//! ```
//!
//! `serial` names a rendezvous at its sender, `reply` at its receiver: 64-bit counters that are never used again.
//! Messages are matched by `context`, `tag` and the sender's process number (which the transport knows). `sequence`
//! numbers the matched messages of a sender to a receiver. `hash`, `elements` and the data's length are the
//! signature's digest. `low` and `span` are the bytes that the sender's buffer touches, relative to displacement 0;
//! keys stand for exactly these. Bytes shown as 0 must be 0.

mod asking;
mod cts;
pub(crate) mod cut;
mod envelope;
mod grant;
mod note;
mod rts;
mod staged;
mod verdict;

use asking::AskWire;
pub(crate) use asking::asking;
pub use asking::{Doing, WaitingCall};
pub(crate) use cts::Cts;
use envelope::EnvelopeWire;
pub(crate) use envelope::{Envelope, Label};
pub use envelope::{PARTITION_TAGS, SendMode, partition_tag};
use grant::GrantWire;
pub(crate) use grant::{GRANT_BYTES, Grant};
pub(crate) use note::{NOTE_BYTES, Note, NoteKind, note};
use rts::RtsWire;
pub(crate) use rts::{DataState, Rts, StagedOffer};
pub(crate) use staged::{DEPTH_MAX, Open, RingOffer, Why, free, ready, refuse};
use staged::{OpenWire, RingWire};
pub(crate) use verdict::Verdict;

use gapless_bml::RemoteKey;
use gapless_dtype::SignatureDigest;
use std::ops::Range;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of everything in this file. Peers with another version are refused.
pub(crate) const VERSION: u8 = 12;

/// Most bytes of a flattened layout that an RTS carries; longer ones are fetched.
pub const INLINE_LAYOUT_MAX: usize = 1024;

/// Longest control message: an RTS with two keys and a layout.
pub(crate) const CONTROL_MAX: usize = RTS_BYTES + 2 * RemoteKey::MAX_BYTES + INLINE_LAYOUT_MAX;

/// Shortest fragments that may be wished: transports take at least 256 bytes.
pub(crate) const FRAGMENT_MIN: u32 = 128;

/// Length of an eager message's header, in bytes: what it takes of its slot.
pub const EAGER_BYTES: usize = 32;
/// What a synchronous eager message has between header and data: its serial.
pub(crate) const SERIAL_BYTES: usize = 8;
pub(crate) const RTS_BYTES: usize = 128;
pub(crate) const CTS_BYTES: usize = 48;
pub(crate) const DATA_BYTES: usize = 32;
pub(crate) const FIN_BYTES: usize = 16;
pub(crate) const LAYOUT_BYTES: usize = 32;
/// As long as an eager message's header, whose place it takes.
pub(crate) const PAYLOAD_BYTES: usize = EAGER_BYTES;

/// Lengths that fit a slot fit the address space.
pub(crate) fn to_usize(len: u64) -> usize {
    usize::try_from(len).expect("checked against a link's limit")
}

/// What a message is.
mod kind {
    pub(super) const EAGER: u8 = 1;
    pub(super) const RTS: u8 = 2;
    pub(super) const CTS: u8 = 3;
    pub(super) const DATA: u8 = 4;
    pub(super) const FIN: u8 = 5;
    pub(super) const LAYOUT_REQUEST: u8 = 6;
    pub(super) const LAYOUT_DATA: u8 = 7;
    pub(super) const ABORT: u8 = 8;
    pub(super) const NOTE: u8 = 9;
    pub(super) const OPEN: u8 = 10;
    pub(super) const RING: u8 = 11;
    pub(super) const READY: u8 = 12;
    pub(super) const FREE: u8 = 13;
    pub(super) const REFUSE: u8 = 14;
    pub(super) const GRANT: u8 = 15;
    pub(super) const PAYLOAD: u8 = 16;
    pub(super) const ASK: u8 = 17;
    pub(super) const SAY: u8 = 18;
}

/// DATA, LAYOUT-REQUEST and LAYOUT-DATA: three words after the kind.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WordsWire {
    kind: u8,
    version: u8,
    zero: [u8; 6],
    words: [U64; 3],
}
const _: () = assert!(size_of::<WordsWire>() == DATA_BYTES);
const _: () = assert!(size_of::<WordsWire>() == LAYOUT_BYTES);
const _: () = assert!(size_of::<WordsWire>() == PAYLOAD_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FinWire {
    kind: u8,
    version: u8,
    /// FIN: what became of the message, as [`Verdict::code`] says.
    verdict: u8,
    zero: [u8; 5],
    serial: U64,
}
const _: () = assert!(size_of::<FinWire>() == FIN_BYTES);

/// The word of a header that has a digest's hash.
pub(crate) fn hash_word(digest: &SignatureDigest) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = digest.to_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Words of the header of an eager message, as they lie in memory.
pub(crate) const EAGER_WORDS: usize = EAGER_BYTES / 8;

/// How the header of an eager message in standard mode begins: kind, version, mode.
pub(crate) const EAGER_STANDARD: u32 = u32::from_le_bytes([kind::EAGER, VERSION, 0, 0]);

/// What [`Envelope::eager`] writes for standard mode, in words.
#[inline]
pub(crate) fn eager_words(
    (context, tag, sequence): (u32, i32, u32),
    (hash, elements): (u64, u64),
) -> [u64; EAGER_WORDS] {
    let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let words = [two(EAGER_STANDARD, context), two(tag.cast_unsigned(), sequence), hash, elements];
    words.map(u64::to_le)
}

/// Numbers a matched message that has been written already.
pub(crate) fn set_sequence(message: &mut [u8; CONTROL_MAX], sequence: u32) {
    message[12..16].copy_from_slice(&sequence.to_le_bytes());
}

fn words(kind: u8, words: [u64; 3]) -> [u8; 32] {
    let words = words.map(U64::new);
    zerocopy::transmute!(WordsWire { kind, version: VERSION, zero: [0; 6], words })
}

/// The header of a fragment of the pipeline.
pub(crate) fn data(reply: u64, offset: u64) -> [u8; DATA_BYTES] {
    words(kind::DATA, [reply, offset, 0])
}

fn short(kind: u8, verdict: u8, serial: u64) -> [u8; FIN_BYTES] {
    let serial = serial.into();
    zerocopy::transmute!(FinWire { kind, version: VERSION, verdict, zero: [0; 5], serial })
}

/// The sender's buffer is no longer needed.
pub(crate) fn fin(serial: u64, verdict: Verdict) -> [u8; FIN_BYTES] {
    short(kind::FIN, verdict.code(), serial)
}

/// The sender's engine has failed.
pub(crate) fn abort(reply: u64) -> [u8; FIN_BYTES] {
    short(kind::ABORT, 0, reply)
}

/// Asks for the layout of a rendezvous, in pieces of `piece` bytes.
pub(crate) fn layout_request(serial: u64, reply: u64, piece: u64) -> [u8; LAYOUT_BYTES] {
    words(kind::LAYOUT_REQUEST, [serial, reply, piece])
}

/// The header of a piece of a flattened layout of `length` bytes.
pub(crate) fn layout_data(reply: u64, offset: u64, length: u64) -> [u8; LAYOUT_BYTES] {
    words(kind::LAYOUT_DATA, [reply, offset, length])
}

/// The header of the data of an offer that nobody has answered.
pub(crate) fn payload(serial: u64) -> [u8; PAYLOAD_BYTES] {
    words(kind::PAYLOAD, [serial, 0, 0])
}

/// Whether a control message that is to be sent is an answer to ASK.
pub(crate) fn is_say(message: &[u8]) -> bool {
    message[0] == kind::SAY
}

/// A message, checked as far as it can be by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Rts(Box<Rts>),
    Cts(Cts),
    Fin {
        serial: u64,
        verdict: Verdict,
    },
    Abort {
        reply: u64,
    },
    /// A fragment of the pipeline.
    Data {
        reply: u64,
        offset: u64,
    },
    Note(Note),
    LayoutRequest {
        serial: u64,
        reply: u64,
        piece: u64,
    },
    LayoutData {
        reply: u64,
        offset: u64,
        length: u64,
    },
    Open(Open),
    Ring(RingOffer),
    Ready {
        reply: u64,
        index: u64,
    },
    Free {
        serial: u64,
        limit: u64,
    },
    Refuse {
        reply: u64,
        why: Why,
    },
    /// And where in the message the flattened layout is, if it is there.
    Grant(Box<Grant>, Range<usize>),
    /// The data of an offer: `serial` is its name at the sender.
    Payload {
        serial: u64,
    },
    /// What the sender is in, and whether it asks the same.
    Asking {
        is_question: bool,
        doing: Doing,
    },
}

/// What the first 32 bytes say; enough for the two kinds that are frequent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Eager(Envelope),
    Data {
        reply: u64,
        offset: u64,
    },
    /// Something else: give the whole of it to [`Message::parse`].
    Other,
}

impl Head {
    /// Reads the first 32 bytes of a message of `len` bytes (zeros beyond its end).
    pub(crate) fn parse(first: &[u8; EAGER_BYTES], len: usize) -> Result<Head, String> {
        if first[1] != VERSION {
            return Err(format!("version {} where {VERSION} is spoken", first[1]));
        }
        let payload = || {
            let payload = len.checked_sub(EAGER_BYTES);
            payload.ok_or_else(|| format!("a message of {len} bytes is shorter than its header"))
        };
        match first[0] {
            kind::EAGER => {
                let wire: EnvelopeWire = zerocopy::transmute!(*first);
                let mut data = payload()?;
                if wire.mode.get() == envelope::SYNCHRONOUS {
                    data = data.checked_sub(SERIAL_BYTES).ok_or("a message without its serial")?;
                }
                Ok(Head::Eager(Envelope::check(&wire, data as u64)?))
            }
            kind::DATA => {
                payload()?;
                let wire: WordsWire = zerocopy::transmute!(*first);
                let [reply, offset, zero] = wire.words.map(U64::get);
                if zero != 0 || wire.zero != [0; 6] {
                    return Err("a fragment whose reserved bytes are not zero".to_owned());
                }
                Ok(Head::Data { reply, offset })
            }
            kind::RTS..=kind::CTS | kind::FIN..=kind::SAY => Ok(Head::Other),
            other => Err(format!("no message is of kind {other}")),
        }
    }
}

fn exactly<W: FromBytes + KnownLayout + Immutable>(message: &[u8]) -> Result<W, String> {
    W::read_from_bytes(message).map_err(|_| {
        format!("a control message of {} bytes that should be {}", message.len(), size_of::<W>())
    })
}

/// Reserved fields must be 0, so that they can get a meaning one day.
fn reserved(bytes: &[u8]) -> Result<(), String> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    Err(format!("reserved bytes that are {bytes:?}"))
}

impl Message {
    /// The name that the rendezvous of this message has at its receiver; `None` if the message starts one, or is
    /// about none.
    pub(crate) fn name(&self) -> Option<u64> {
        Some(match self {
            Message::Rts(_)
            | Message::Note(_)
            | Message::Payload { .. }
            | Message::Asking { .. } => return None,
            Message::Cts(cts) => cts.serial,
            Message::Fin { serial, .. }
            | Message::LayoutRequest { serial, .. }
            | Message::Free { serial, .. } => *serial,
            Message::Abort { reply }
            | Message::Data { reply, .. }
            | Message::LayoutData { reply, .. }
            | Message::Ready { reply, .. }
            | Message::Refuse { reply, .. } => *reply,
            Message::Open(open) => open.serial,
            Message::Ring(ring) => ring.reply,
            Message::Grant(grant, _) => grant.serial,
        })
    }

    /// Reads a control message: the whole of it, except for LAYOUT-DATA and PAYLOAD, whose header is enough.
    pub(crate) fn parse(message: &[u8]) -> Result<Message, String> {
        match message.first().copied().unwrap_or(0) {
            kind::RTS => {
                let (wire, _) = RtsWire::read_from_prefix(message)
                    .map_err(|_| format!("an RTS of {} bytes", message.len()))?;
                Rts::check(&wire, message).map(|rts| Message::Rts(Box::new(rts)))
            }
            kind::CTS => Cts::check(&exactly(message)?).map(Message::Cts),
            kind::FIN => {
                let wire: FinWire = exactly(message)?;
                reserved(&wire.zero)?;
                let verdict = Verdict::decode(wire.verdict)?;
                Ok(Message::Fin { serial: wire.serial.get(), verdict })
            }
            kind::ABORT => {
                let wire: FinWire = exactly(message)?;
                reserved(&[wire.verdict])?;
                reserved(&wire.zero)?;
                Ok(Message::Abort { reply: wire.serial.get() })
            }
            kind::NOTE => Ok(Message::Note(Note::check(&exactly(message)?)?)),
            kind::LAYOUT_REQUEST => {
                let wire: WordsWire = exactly(message)?;
                reserved(&wire.zero)?;
                let [serial, reply, piece] = wire.words.map(U64::get);
                if piece == 0 {
                    return Err("a request for a layout in pieces of no bytes".to_owned());
                }
                Ok(Message::LayoutRequest { serial, reply, piece })
            }
            kind::LAYOUT_DATA => {
                let (wire, _) = WordsWire::read_from_prefix(message)
                    .map_err(|_| format!("a piece of layout of {} bytes", message.len()))?;
                reserved(&wire.zero)?;
                let [reply, offset, length] = wire.words.map(U64::get);
                Ok(Message::LayoutData { reply, offset, length })
            }
            kind::OPEN => {
                let (wire, key) = OpenWire::read_from_prefix(message)
                    .map_err(|_| format!("an OPEN of {} bytes", message.len()))?;
                Open::check(&wire, key).map(Message::Open)
            }
            kind::RING => {
                let (wire, key) = RingWire::read_from_prefix(message)
                    .map_err(|_| format!("a RING of {} bytes", message.len()))?;
                RingOffer::check(&wire, key).map(Message::Ring)
            }
            kind::READY | kind::FREE => {
                let wire: WordsWire = exactly(message)?;
                reserved(&wire.zero)?;
                let [name, number, zero] = wire.words.map(U64::get);
                reserved(&zero.to_le_bytes())?;
                Ok(match wire.kind {
                    kind::READY => Message::Ready { reply: name, index: number },
                    _ => Message::Free { serial: name, limit: number },
                })
            }
            kind::REFUSE => {
                let wire: FinWire = exactly(message)?;
                reserved(&wire.zero)?;
                let why = Why::decode(wire.verdict)?;
                Ok(Message::Refuse { reply: wire.serial.get(), why })
            }
            kind::GRANT => {
                let (wire, rest) = GrantWire::read_from_prefix(message)
                    .map_err(|_| format!("a GRANT of {} bytes", message.len()))?;
                let (grant, key) = Grant::check(&wire, rest)?;
                Ok(Message::Grant(Box::new(grant), GRANT_BYTES + key..message.len()))
            }
            kind::PAYLOAD => {
                let (wire, _) = WordsWire::read_from_prefix(message)
                    .map_err(|_| format!("an offer's data of {} bytes", message.len()))?;
                reserved(&wire.zero)?;
                let [serial, zeros @ ..] = wire.words.map(U64::get);
                if zeros != [0; 2] {
                    return Err("an offer's data whose reserved bytes are not zero".to_owned());
                }
                Ok(Message::Payload { serial })
            }
            kind @ (kind::ASK | kind::SAY) => {
                let doing = Doing::check(&exactly::<AskWire>(message)?)?;
                Ok(Message::Asking { is_question: kind == kind::ASK, doing })
            }
            other => Err(format!("no control message is of kind {other}")),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
