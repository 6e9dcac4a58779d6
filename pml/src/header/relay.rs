//! The messages of relays: WISH, LOAN, GO, STOP, QUIT, and what an offer says of one that was begun. Their pictures are in `header.rs`, who says what when in
//! `relay.rs`.

use super::{FIN_BYTES, VERSION, kind, reserved, short};
use gapless_bml::RemoteKey;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of LOAN without its key, in bytes.
pub(crate) const LOAN_BYTES: usize = 56;
/// Length of GO without its key, in bytes.
pub(crate) const GO_BYTES: usize = 16;
/// Length of what an offer says of a relay that was begun, in bytes.
pub(crate) const BEGUN_BYTES: usize = 16;
/// Places of a lane at most.
const PLACES_MAX: u8 = 64;
/// Turns of a ring at most.
const TURNS_MAX: u64 = 1 << 62;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct LoanWire {
    kind: u8,
    version: u8,
    key: u8,
    depth: u8,
    lanes: U16,
    zero: U16,
    place: U32,
    fragment: U32,
    ring: U64,
    turn: U64,
    serial: U64,
    reply: U64,
    end: U64,
}
const _: () = assert!(size_of::<LoanWire>() == LOAN_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct GoWire {
    kind: u8,
    version: u8,
    key: u8,
    zero: [u8; 5],
    reply: U64,
}
const _: () = assert!(size_of::<GoWire>() == GO_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BegunWire {
    ring: U64,
    turn: U64,
}
const _: () = assert!(size_of::<BegunWire>() == BEGUN_BYTES);

/// The ring that a message was begun over before its receiver was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    /// Its number at its owner, the receiver.
    pub(crate) ring: u64,
    /// Turns that its lanes have had.
    pub(crate) turn: u64,
}

impl Begun {
    pub(super) fn wire(self) -> [u8; BEGUN_BYTES] {
        zerocopy::transmute!(BegunWire { ring: self.ring.into(), turn: self.turn.into() })
    }

    pub(super) fn check(bytes: &[u8]) -> Result<Begun, String> {
        let wire = BegunWire::read_from_bytes(bytes);
        let wire = wire.map_err(|_| format!("a ring and a turn in {} bytes", bytes.len()))?;
        let begun = Begun { ring: wire.ring.get(), turn: wire.turn.get() };
        let sound = begun.ring > 0 && begun.turn < TURNS_MAX;
        if sound { Ok(begun) } else { Err(format!("an impossible ring and turn: {begun:?}")) }
    }
}

/// The receiver's decision for a relay, and the ring for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loan {
    /// 0, where the ring is lent for messages to come, as a WISH asked.
    pub(crate) serial: u64,
    pub(crate) reply: u64,
    /// Packed bytes from 0 to here are wanted; never none. Without a message: the mark of the device that
    /// the sender has wished a ring for.
    pub(crate) end: u64,
    /// The ring's number at its owner, never used again.
    pub(crate) ring: u64,
    /// Turns that its lanes have had.
    pub(crate) turn: u64,
    /// At least 1.
    pub(crate) lanes: u16,
    /// Places of each lane; 2 to 64.
    pub(crate) depth: u8,
    /// Bytes that the ring has for each place; a multiple of 16, at least as many as a fragment.
    pub(crate) place: u32,
    /// Bytes of a fragment of this message; a multiple of 16.
    pub(crate) fragment: u32,
    /// Where the ring is; none for one that the sender has mapped.
    pub(crate) key: Option<RemoteKey>,
}

/// The sender has begun; where it takes credit, if the receiver has not mapped that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Go {
    pub(crate) reply: u64,
    pub(crate) key: Option<RemoteKey>,
}

/// Why a sender does nothing (more) for a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quit {
    /// It cannot now.
    Passing,
    /// It never can.
    Lasting,
    /// Its end has ended without all of the message.
    GaveUp,
}

impl Quit {
    const ALL: [Quit; 3] = [Quit::Passing, Quit::Lasting, Quit::GaveUp];

    fn code(self) -> u8 {
        match self {
            Quit::Passing => 1,
            Quit::Lasting => 2,
            Quit::GaveUp => 3,
        }
    }

    pub(super) fn decode(code: u8) -> Result<Quit, String> {
        let known = Quit::ALL.into_iter().find(|why| why.code() == code);
        known.ok_or_else(|| format!("nobody quits for reason {code}"))
    }
}

fn key_of(bytes: &[u8], len: u8) -> Result<Option<RemoteKey>, String> {
    if bytes.len() != usize::from(len) {
        return Err(format!("{} bytes where a key of {len} should be", bytes.len()));
    }
    if len == 0 {
        return Ok(None);
    }
    RemoteKey::new(bytes).map(Some).ok_or_else(|| format!("a key of {len} bytes"))
}

fn len_of(key: &[u8]) -> u8 {
    u8::try_from(key.len()).expect("a key is at most 80 bytes")
}

impl Loan {
    pub(crate) fn wire(&self) -> Vec<u8> {
        let key = self.key.as_ref().map_or(&[][..], RemoteKey::as_bytes);
        let wire = LoanWire {
            kind: kind::LOAN,
            version: VERSION,
            key: len_of(key),
            depth: self.depth,
            lanes: self.lanes.into(),
            zero: U16::ZERO,
            place: self.place.into(),
            fragment: self.fragment.into(),
            ring: self.ring.into(),
            turn: self.turn.into(),
            serial: self.serial.into(),
            reply: self.reply.into(),
            end: self.end.into(),
        };
        [wire.as_bytes(), key].concat()
    }

    pub(super) fn check(wire: &LoanWire, key: &[u8]) -> Result<Loan, String> {
        reserved(wire.zero.as_bytes())?;
        let loan = Loan {
            serial: wire.serial.get(),
            reply: wire.reply.get(),
            end: wire.end.get(),
            ring: wire.ring.get(),
            turn: wire.turn.get(),
            lanes: wire.lanes.get(),
            depth: wire.depth,
            place: wire.place.get(),
            fragment: wire.fragment.get(),
            key: key_of(key, wire.key)?,
        };
        // For messages to come: a new ring, whose places are fragments.
        let standing = loan.turn == 0 && loan.key.is_some() && loan.fragment == loan.place;
        let fits = if loan.serial == 0 { standing } else { loan.end > 0 };
        let sound = fits
            && loan.lanes > 0
            && (2..=PLACES_MAX).contains(&loan.depth)
            && loan.fragment > 0
            && loan.fragment <= loan.place
            && loan.fragment.is_multiple_of(16)
            && loan.place.is_multiple_of(16)
            && loan.turn < TURNS_MAX;
        if sound { Ok(loan) } else { Err(format!("an impossible LOAN: {loan:?}")) }
    }
}

impl Go {
    pub(crate) fn wire(&self) -> Vec<u8> {
        let key = self.key.as_ref().map_or(&[][..], RemoteKey::as_bytes);
        let wire = GoWire {
            kind: kind::GO,
            version: VERSION,
            key: len_of(key),
            zero: [0; 5],
            reply: self.reply.into(),
        };
        [wire.as_bytes(), key].concat()
    }

    pub(super) fn check(wire: &GoWire, key: &[u8]) -> Result<Go, String> {
        reserved(&wire.zero)?;
        Ok(Go { reply: wire.reply.get(), key: key_of(key, wire.key)? })
    }
}

/// The sender wishes that a ring be lent for short messages out of the device that has this mark, with so many
/// lanes at most.
pub(crate) fn wish(lanes: u8, mark: u64) -> [u8; FIN_BYTES] {
    short(kind::WISH, lanes, mark)
}

/// The receiver's end has failed: the sender's is to give up.
pub(crate) fn stop(serial: u64) -> [u8; FIN_BYTES] {
    short(kind::STOP, 0, serial)
}

/// Nothing of the sender's touches the ring, now or later; its offer stands.
pub(crate) fn quit(reply: u64, why: Quit) -> [u8; FIN_BYTES] {
    short(kind::QUIT, why.code(), reply)
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

    fn loan() -> Loan {
        Loan {
            serial: 3,
            reply: 4,
            end: 99,
            ring: 5,
            turn: 6,
            lanes: 64,
            depth: 4,
            place: 4096,
            fragment: 1024,
            key: RemoteKey::new(&[7; 40]),
        }
    }

    #[test]
    fn messages_are_read_as_they_are_written() {
        for key in [loan().key, None] {
            let loan = Loan { key, ..loan() };
            assert_eq!(Message::parse(&loan.wire()), Ok(Message::Loan(loan)));
            let go = Go { reply: 8, key };
            assert_eq!(Message::parse(&go.wire()), Ok(Message::Go(go)));
        }
        let standing = Loan { serial: 0, end: 0, turn: 0, fragment: 4096, ..loan() };
        assert_eq!(Message::parse(&standing.wire()), Ok(Message::Loan(standing)));
        assert_eq!(Message::parse(&wish(8, 9)), Ok(Message::Wish { lanes: 8, mark: 9 }));
        assert_eq!(Message::parse(&stop(5)), Ok(Message::Stop { serial: 5 }));
        for why in Quit::ALL {
            assert_eq!(Message::parse(&quit(9, why)), Ok(Message::Quit { reply: 9, why }));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = loan();
        let mut cases: Vec<Vec<u8>> = [
            Loan { lanes: 0, ..good },
            Loan { depth: 1, ..good },
            Loan { depth: 65, ..good },
            Loan { fragment: 0, ..good },
            Loan { fragment: 24, ..good },
            Loan { fragment: 4112, ..good },
            Loan { place: 4100, ..good },
            Loan { end: 0, ..good },
            Loan { turn: 1 << 62, ..good },
            Loan { serial: 0, turn: 0, ..good },
            Loan { serial: 0, turn: 0, fragment: 4096, key: None, ..good },
            Loan { serial: 0, fragment: 4096, ..good },
        ]
        .map(|loan| loan.wire())
        .to_vec();
        let wire = good.wire();
        cases.extend([wire[..55].to_vec(), wire[..95].to_vec(), [&wire[..], &[0]].concat()]);
        for at in [2, 6] {
            let mut bad = wire.clone();
            bad[at] += 1;
            cases.push(bad);
        }
        let go = Go { reply: 8, key: good.key }.wire();
        cases.extend([go[..15].to_vec(), go[..55].to_vec()]);
        let mut bad = go;
        bad[7] = 1;
        cases.push(bad);
        for (mut bad, at, value) in [
            (stop(1), 2, 1),
            (stop(1), 7, 1),
            (wish(1, 1), 2, 0),
            (wish(1, 1), 3, 1),
            (quit(1, Quit::GaveUp), 2, 4),
            (quit(1, Quit::GaveUp), 3, 1),
        ] {
            bad[at] = value;
            cases.push(bad.to_vec());
        }
        for case in cases {
            assert!(Message::parse(&case).is_err(), "{case:?}");
        }
    }
}
