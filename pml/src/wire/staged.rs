//! The messages of the staged protocols: OPEN, RING, READY, FREE, REFUSE. Their pictures are in
//! `wire.rs`, who says what when in `rndv/staged.rs`.

use super::{FRAGMENT_MIN, VERSION, Verdict, kind, reserved, short, words};
use crate::protocol::Protocol;
use crate::wire::cut::{Cut, FragmentShape};
use gapless_bml::RemoteKey;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of OPEN without its key, in bytes.
pub(crate) const OPEN_BYTES: usize = 40;
/// Length of RING without its key, in bytes.
pub(crate) const RING_BYTES: usize = 16;
/// Most fragments in flight at once.
pub(crate) const DEPTH_MAX: u32 = 64;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct OpenWire {
    kind: u8,
    version: u8,
    protocol: u8,
    direct: u8,
    depth: U32,
    fragment: U32,
    key: u8,
    head: u8,
    tail: u8,
    zero: u8,
    serial: U64,
    reply: U64,
    end: U64,
}
const _: () = assert!(size_of::<OpenWire>() == OPEN_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RingWire {
    kind: u8,
    version: u8,
    key: u8,
    zero: u8,
    depth: U32,
    reply: U64,
}
const _: () = assert!(size_of::<RingWire>() == RING_BYTES);

/// The receiver's decision for a staged protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    /// A staged one.
    pub(crate) protocol: Protocol,
    pub(crate) serial: u64,
    pub(crate) reply: u64,
    /// The packed bytes that are wanted, from 0 on, and their fragments, of which the longest has
    /// [`FRAGMENT_MIN`] bytes at least.
    pub(crate) cut: Cut,
    /// Fragments in flight at once at most; 1 to [`DEPTH_MAX`].
    pub(crate) depth: u32,
    /// The key stands for the receiver's buffer: fragments go to their final place, not around a ring.
    pub(crate) direct: bool,
    /// Where the sender puts fragments, if it does.
    pub(crate) key: Option<RemoteKey>,
}

/// Where the receiver gets fragments from: the sender's answer to an OPEN without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingOffer {
    pub(crate) reply: u64,
    /// As in OPEN, or less.
    pub(crate) depth: u32,
    pub(crate) key: RemoteKey,
}

/// Why a sender refuses a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its staging memory is all in use.
    Exhausted,
    /// Its transport gives no key for it.
    NoKey,
    /// The memory cannot be mapped there, now or later.
    Unmappable,
}

impl Why {
    fn code(self) -> u8 {
        match self {
            Why::Exhausted => 1,
            Why::Unmappable => 2,
            Why::NoKey => 3,
        }
    }

    pub(super) fn decode(code: u8) -> Result<Why, String> {
        let all = [Why::Exhausted, Why::NoKey, Why::Unmappable];
        let known = all.into_iter().find(|why| why.code() == code);
        known.ok_or_else(|| format!("no refusal has number {code}"))
    }
}

pub(super) fn key_of(bytes: &[u8], len: u8) -> Result<Option<RemoteKey>, String> {
    if bytes.len() != usize::from(len) {
        return Err(format!("{} bytes where a key of {len} should be", bytes.len()));
    }
    if len == 0 {
        return Ok(None);
    }
    RemoteKey::new(bytes).map(Some).ok_or_else(|| format!("a key of {len} bytes"))
}

pub(super) fn key_len(key: &[u8]) -> u8 {
    u8::try_from(key.len()).expect("a key is at most 80 bytes")
}

fn depth_of(depth: U32) -> Result<u32, String> {
    match depth.get() {
        depth @ 1..=DEPTH_MAX => Ok(depth),
        depth => Err(format!("{depth} fragments at once")),
    }
}

/// Whether a protocol begins with OPEN.
fn is_opened(protocol: Protocol) -> bool {
    protocol.is_staged() || protocol == Protocol::StagedRead
}

impl Open {
    pub(crate) fn wire(&self) -> Vec<u8> {
        let key = self.key.as_ref().map_or(&[][..], RemoteKey::as_bytes);
        let shape = self.cut.shape();
        let wire = OpenWire {
            kind: kind::OPEN,
            version: VERSION,
            protocol: Verdict::Received(self.protocol).code(),
            direct: u8::from(self.direct),
            depth: self.depth.into(),
            fragment: shape.fragment.into(),
            key: key_len(key),
            head: shape.head,
            tail: shape.tail,
            zero: 0,
            serial: self.serial.into(),
            reply: self.reply.into(),
            end: self.cut.end().into(),
        };
        [wire.as_bytes(), key].concat()
    }

    pub(super) fn check(wire: &OpenWire, key: &[u8]) -> Result<Open, String> {
        reserved(&[wire.zero])?;
        let protocol = match Verdict::decode(wire.protocol)? {
            Verdict::Received(protocol) if is_opened(protocol) => protocol,
            other => return Err(format!("an OPEN for {other:?}")),
        };
        let key = key_of(key, wire.key)?;
        let puts = matches!(protocol, Protocol::StagedPut | Protocol::StagedPutCopy);
        if puts != key.is_some() || wire.direct > u8::from(puts) {
            return Err(format!("an OPEN for {protocol} with {key:?}, direct {}", wire.direct));
        }
        let (end, fragment) = (wire.end.get(), wire.fragment.get());
        let shape = FragmentShape { fragment, head: wire.head, tail: wire.tail };
        let cut = Cut::new(end, shape).filter(|_| fragment >= FRAGMENT_MIN);
        let cut = cut.ok_or_else(|| format!("an OPEN for {end} bytes in {shape:?}"))?;
        Ok(Open {
            protocol,
            serial: wire.serial.get(),
            reply: wire.reply.get(),
            cut,
            depth: depth_of(wire.depth)?,
            direct: wire.direct == 1,
            key,
        })
    }
}

impl RingOffer {
    pub(crate) fn wire(&self) -> Vec<u8> {
        let key = self.key.as_bytes();
        let wire = RingWire {
            kind: kind::RING,
            version: VERSION,
            key: key_len(key),
            zero: 0,
            depth: self.depth.into(),
            reply: self.reply.into(),
        };
        [wire.as_bytes(), key].concat()
    }

    pub(super) fn check(wire: &RingWire, key: &[u8]) -> Result<RingOffer, String> {
        reserved(&[wire.zero])?;
        let key = key_of(key, wire.key)?.ok_or("a RING without a key")?;
        Ok(RingOffer { reply: wire.reply.get(), depth: depth_of(wire.depth)?, key })
    }
}

/// Fragment `index` is in its place.
pub(crate) fn ready(reply: u64, index: u64) -> [u8; 32] {
    words(kind::READY, [reply, index, 0])
}

/// Fragments below `limit` may be put into their places.
pub(crate) fn free(serial: u64, limit: u64) -> [u8; 32] {
    words(kind::FREE, [serial, limit, 0])
}

/// The sender cannot use this protocol; its offer stays valid.
pub(crate) fn refuse(reply: u64, why: Why) -> [u8; 16] {
    short(kind::REFUSE, why.code(), reply)
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

    fn open(protocol: Protocol) -> Open {
        let puts = matches!(protocol, Protocol::StagedPut | Protocol::StagedPutCopy);
        let key = puts.then(|| RemoteKey::new(&[7; 40]).unwrap());
        let cut = Cut::new(9999, FragmentShape { fragment: 1000, head: 1, tail: 3 }).unwrap();
        Open { protocol, serial: 3, reply: 4, cut, depth: 4, direct: puts, key }
    }

    #[test]
    fn messages_are_read_as_they_are_written() {
        for protocol in Protocol::STAGED.into_iter().chain([Protocol::StagedRead]) {
            assert_eq!(Message::parse(&open(protocol).wire()), Ok(Message::Open(open(protocol))));
        }
        let ring = RingOffer { reply: 8, depth: 64, key: RemoteKey::new(&[1; 80]).unwrap() };
        assert_eq!(Message::parse(&ring.wire()), Ok(Message::Ring(ring)));
        let found = Message::parse(&ready(5, 6));
        assert_eq!(found, Ok(Message::Ready { reply: 5, index: 6 }));
        let found = Message::parse(&free(5, 6));
        assert_eq!(found, Ok(Message::Free { serial: 5, limit: 6 }));
        for why in [Why::Exhausted, Why::NoKey, Why::Unmappable] {
            assert_eq!(Message::parse(&refuse(9, why)), Ok(Message::Refuse { reply: 9, why }));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = open(Protocol::StagedPut).wire();
        let word = |at: usize, value: u32| {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
            bad
        };
        let mut cases = vec![
            word(4, 0),
            word(4, DEPTH_MAX + 1),
            word(8, 0),
            word(8, FRAGMENT_MIN - 1),
            word(12, 39 | 1 << 8 | 3 << 16),
            // Ramps that are too steep, or longer than the message.
            word(12, 40 | 5 << 8 | 3 << 16),
            word(12, 40 | 1 << 8 | 5 << 16),
            word(12, 40 | 1 << 8 | 3 << 16 | 1 << 24),
            word(32, 0),
            word(32, 500 + 500 + 250 + 125 - 1),
            good[..39].to_vec(),
            good[..79].to_vec(),
            [&good[..], &[0]].concat(),
        ];
        for (at, value) in [(2, 0), (2, 1), (2, 12), (2, 16), (3, 2)] {
            let mut bad = good.clone();
            bad[at] = value;
            cases.push(bad);
        }
        cases.push(Open { key: None, ..open(Protocol::StagedPut) }.wire());
        cases.push(Open { direct: true, ..open(Protocol::StagedGet) }.wire());
        let key = open(Protocol::StagedPut).key;
        cases.push(Open { key, ..open(Protocol::CopyInOut) }.wire());
        let ring = RingOffer { reply: 8, depth: 1, key: RemoteKey::new(&[1; 9]).unwrap() }.wire();
        cases.extend([ring[..16].to_vec(), ring[..15].to_vec()]);
        let mut bad = ready(1, 2);
        bad[24] = 1;
        cases.push(bad.to_vec());
        cases.push(free(1, 2)[..31].to_vec());
        let mut bad = refuse(1, Why::Exhausted);
        bad[2] = 0;
        cases.push(bad.to_vec());
        for case in cases {
            assert!(Message::parse(&case).is_err(), "{case:?}");
        }
    }
}
