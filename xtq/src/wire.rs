//! Messages between processes: pictures, and what they mean once checked.
//!
//! Numbers are little-endian. Bytes shown as 0 must be 0.
//!
//! ```text
//!          0      1         2         3     4          8         16
//! PUT      | kind | version | lined:1 | 0:1 | serial:4 | put:8     | number:8   |
//!       24 | packet:64 | arguments and payload, if all of them fit …
//! DATA     | kind | version | 0:1     | 0:1 | serial:4 | transfer:8 | offset:8   |
//!       24 | bytes …
//! VERDICT  | kind | version | verdict | 0:1 | serial:4 | put:8     | number:8   |
//! ENDED    | kind | version | failed:1 | 0:1 | serial:4 | put:8    | 0:8        |
//!       24 | why, as text; or the answer, or its last piece …
//! ANSWER   | kind | version | 0:1     | 0:1 | serial:4 | put:8     | 0:8        |
//!       24 | a piece of the answer …
//! RING     | kind | version | what    | 0:1 | serial:4 | kernels:8 | 0:8        |
//!       24 | OFFER, REACH: the key of the ring's memory …
//! ```
//!
//! `serial` numbers all messages to a peer, so they are handled in order and once each, whatever the transport does.
//! `put` names a put at its initiator, `transfer` a receive buffer at the target; neither is used again. The *body* of a
//! put is the arguments (of a kernel), then the payload. If it does not fit, the PUT has none of it: the target
//! answers with the verdict *granted*, whose number is the transfer, and the body follows in DATA. An *answer* is what
//! a task leaves for whoever put it: its pieces come in order, the last one with ENDED.
//!
//! RING is about rings of a worker, into which an initiator writes packets itself ([`Ring`]). `kernels` has a bit for each
//! kernel that the worker runs.

use crate::error::Refusal;
use crate::packet::{ENTRIES, PACKET_BYTES};
use gapless_bml::RemoteKey;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of everything in this file and of the packet.
const VERSION: u8 = 6;
/// Length of what every message begins with.
pub(crate) const HEAD_BYTES: usize = 24;
/// Where the body of a PUT begins.
pub(crate) const BODY_AT: usize = HEAD_BYTES + PACKET_BYTES;
/// The longest text of an ENDED.
pub(crate) const TEXT_MAX: usize = 200;
const _: () = assert!(2 * (1 + RemoteKey::MAX_BYTES) <= TEXT_MAX);

const PUT: u8 = 1;
const DATA: u8 = 2;
const VERDICT: u8 = 3;
const ENDED: u8 = 4;
const RING: u8 = 5;
const ANSWER: u8 = 6;

const ACCEPTED: u8 = 0;
const GRANTED: u8 = u8::MAX;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Wire {
    kind: u8,
    version: u8,
    code: u8,
    zero: u8,
    serial: U32,
    name: U64,
    value: U64,
}

const _: () = assert!(size_of::<Wire>() == HEAD_BYTES);

/// What is said about a ring.
///
/// ```text
/// initiator   PUT ─────────►                READY ─────►                 (packets) ►  WANTED ─►
/// target      OFFER or REACH, key ────────►  what came by messages ends   GO ─────►              OVER ─►
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ring {
    /// The target: here is one. Its key follows.
    Offer = 0,
    /// The target: these are the worker's kernels now.
    Kernels = 1,
    /// The initiator: it is mapped, and no put of these kernels goes by message any more, but those of sequences.
    Ready = 2,
    /// The initiator: it cannot be mapped.
    Declined = 3,
    /// The target: what came by messages has ended.
    Go = 4,
    /// The initiator: it has put something, and the worker is away.
    Wanted = 5,
    /// The target: there is no worker any more.
    Over = 6,
    /// The target: here is one, to be written and read by one-sided operations. Its key follows.
    Reach = 7,
}

impl Ring {
    const ALL: [Ring; 8] = [
        Ring::Offer,
        Ring::Kernels,
        Ring::Ready,
        Ring::Declined,
        Ring::Go,
        Ring::Wanted,
        Ring::Over,
        Ring::Reach,
    ];

    fn names_kernels(self) -> bool {
        matches!(self, Ring::Offer | Ring::Kernels | Ring::Reach)
    }
}

/// A kernel's bit in `kernels`.
pub(crate) fn kernel_bit(index: u8) -> u64 {
    1 << (usize::from(index) % ENTRIES)
}

const _: () = assert!(ENTRIES == 64);

/// What a target says to a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is in its queue.
    Accepted,
    /// The body is to come, under this name.
    Granted {
        transfer: u64,
    },
    Refused(Refusal),
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// A packet follows. `number`: its place in its sequence, if it has one.
    Put {
        put: u64,
        number: Option<u64>,
    },
    Data {
        transfer: u64,
        offset: u64,
    },
    Verdict {
        put: u64,
        verdict: Verdict,
    },
    /// A task has ended; if it failed, why follows, else the last of its answer.
    Ended {
        put: u64,
        failed: bool,
    },
    /// A piece of a task's answer follows, and more will.
    Answer {
        put: u64,
    },
    /// About a ring; its key may follow.
    Ring {
        what: Ring,
        kernels: u64,
    },
}

impl Head {
    pub(crate) fn write(self, serial: u32) -> [u8; HEAD_BYTES] {
        let (kind, code, name, value) = match self {
            Head::Put { put, number } => {
                (PUT, u8::from(number.is_some()), put, number.unwrap_or_default())
            }
            Head::Data { transfer, offset } => (DATA, 0, transfer, offset),
            Head::Verdict { put, verdict } => match verdict {
                Verdict::Accepted => (VERDICT, ACCEPTED, put, 0),
                Verdict::Granted { transfer } => (VERDICT, GRANTED, put, transfer),
                Verdict::Refused(refusal) => {
                    let (code, value) = refusal.encode();
                    (VERDICT, code, put, value.into())
                }
            },
            Head::Ended { put, failed } => (ENDED, failed.into(), put, 0),
            Head::Answer { put } => (ANSWER, 0, put, 0),
            Head::Ring { what, kernels } => (RING, what as u8, kernels, 0),
        };
        let (serial, name, value) = (U32::new(serial), U64::new(name), U64::new(value));
        let wire = Wire { kind, version: VERSION, code, zero: 0, serial, name, value };
        let mut bytes = [0; HEAD_BYTES];
        bytes.copy_from_slice(wire.as_bytes());
        bytes
    }

    /// The serial number and the message; what is wrong with it otherwise.
    pub(crate) fn read(bytes: &[u8; HEAD_BYTES]) -> Result<(u32, Head), String> {
        let wire: Wire = zerocopy::transmute!(*bytes);
        let Wire { kind, version, code, zero, .. } = wire;
        if version != VERSION || zero != 0 {
            return Err(format!("a message of version {version}, whose fourth byte is {zero}"));
        }
        let (name, value) = (wire.name.get(), wire.value.get());
        let nonsense = || format!("a message of kind {kind} and code {code} with value {value:#x}");
        let head = match (kind, code) {
            (PUT, 0) if value == 0 => Head::Put { put: name, number: None },
            (PUT, 1) => Head::Put { put: name, number: Some(value) },
            (DATA, 0) => Head::Data { transfer: name, offset: value },
            (VERDICT, ACCEPTED) if value == 0 => {
                Head::Verdict { put: name, verdict: Verdict::Accepted }
            }
            (VERDICT, GRANTED) => {
                Head::Verdict { put: name, verdict: Verdict::Granted { transfer: value } }
            }
            (VERDICT, code) => {
                let refusal = u32::try_from(value).ok().and_then(|v| Refusal::decode(code, v));
                let refusal = refusal.ok_or_else(nonsense)?;
                Head::Verdict { put: name, verdict: Verdict::Refused(refusal) }
            }
            (ENDED, 0 | 1) if value == 0 => Head::Ended { put: name, failed: code == 1 },
            (ANSWER, 0) if value == 0 => Head::Answer { put: name },
            (RING, code) if value == 0 => {
                let what = Ring::ALL.get(usize::from(code)).copied();
                let fits = |what: &Ring| name == 0 || what.names_kernels();
                let what = what.filter(fits).ok_or_else(nonsense)?;
                Head::Ring { what, kernels: name }
            }
            _ => return Err(nonsense()),
        };
        Ok((wire.serial.get(), head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_the_way_and_nonsense_is_refused() {
        let refused = Verdict::Refused(Refusal::ReceiveBufferTooSmall { largest: 9 });
        let heads = [
            Head::Put { put: u64::MAX, number: None },
            Head::Put { put: 1, number: Some(0) },
            Head::Data { transfer: 2, offset: 1 << 33 },
            Head::Verdict { put: 3, verdict: Verdict::Accepted },
            Head::Verdict { put: 3, verdict: Verdict::Granted { transfer: 8 } },
            Head::Verdict { put: 3, verdict: refused },
            Head::Ended { put: 4, failed: true },
            Head::Answer { put: 5 },
            Head::Ring { what: Ring::Offer, kernels: u64::MAX },
            Head::Ring { what: Ring::Reach, kernels: 1 },
            Head::Ring { what: Ring::Over, kernels: 0 },
        ];
        for head in heads {
            let bytes = head.write(0xABCD_EF01);
            assert_eq!(Head::read(&bytes), Ok((0xABCD_EF01, head)));
            for at in [1, 3] {
                let mut other = bytes;
                other[at] ^= 0x40;
                assert!(Head::read(&other).is_err(), "{head:?}");
            }
        }
        let wrong = |at: usize, value: u8| {
            let mut bytes = Head::Ended { put: 4, failed: true }.write(0);
            bytes[at] = value;
            Head::read(&bytes).unwrap_err()
        };
        for (at, value) in [(0, 0), (0, 6), (0, 7), (2, 2), (16, 1)] {
            wrong(at, value);
        }
        let mut far = heads[5].write(0);
        far[20] = 1;
        assert!(Head::read(&far).is_err(), "no refusal has a number so large");
        for (at, value) in [(2, 8), (2, 2), (16, 1)] {
            let mut bytes = Head::Ring { what: Ring::Kernels, kernels: 1 }.write(0);
            bytes[at] = value;
            assert!(Head::read(&bytes).is_err(), "{at}");
        }
    }
}
