//! What a datagram says. Everything is big-endian.
//!
//! ```text
//!      0        1        2        3        4        5        6        7
//!   +--------+--------+--------+--------+--------+--------+--------+--------+
//!  0| 'G'    | 'U'    | version| kind   | tag    | zero                     |
//!  8| session of the receiver                                               |
//! 16| session of the sender                                                 |
//! 24| seq                               | ack                               |
//! 32| edge                              | payload bytes                     |
//! 40| sack                                                                  |
//! 48| payload                                                               |
//! ```
//!
//! | kind | travels | seq | payload |
//! |---|---|---|---|
//! | Hello | to the listener | the first number that the sender will use | [`Hello`] |
//! | Refuse | to the calling socket | 0 | none: the listener belongs to another session now |
//! | Data | between the pair | the message's number | the message |
//! | Ack, Probe | between the pair | 0 | none; a probe asks for an ack |
//!
//! Between the pair every datagram acknowledges: all before `ack` have arrived; bit *i* of `sack`
//! says that `ack` + 1 + *i* has, too; the peer may send what comes before `edge`.

use crate::seq::Seq;

/// Bytes before the payload.
pub(crate) const HEADER_BYTES: usize = 48;
const MAGIC: [u8; 2] = *b"GU";
const VERSION: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketKind {
    Hello,
    Refuse,
    Data,
    Ack,
    Probe,
}

impl PacketKind {
    const ALL: [PacketKind; 5] = [
        PacketKind::Hello,
        PacketKind::Refuse,
        PacketKind::Data,
        PacketKind::Ack,
        PacketKind::Probe,
    ];

    fn code(self) -> u8 {
        match self {
            PacketKind::Hello => 1,
            PacketKind::Refuse => 2,
            PacketKind::Data => 3,
            PacketKind::Ack => 4,
            PacketKind::Probe => 5,
        }
    }
}

/// Between which two lives of processes a datagram travels. A session is a random number that a
/// transport draws once; a port may be taken by another process, a session is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sessions {
    pub(crate) to: u64,
    pub(crate) from: u64,
}

/// Everything before the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: PacketKind,
    pub(crate) tag: u8,
    pub(crate) sessions: Sessions,
    pub(crate) seq: Seq,
    pub(crate) acks: Acks,
    pub(crate) payload_bytes: u32,
}

/// What the receiving side of one direction tells the sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acks {
    /// The first message that has not arrived.
    pub(crate) ack: Seq,
    /// Which of those after `ack` have.
    pub(crate) sack: u64,
    /// The first message that there is no room for yet.
    pub(crate) edge: Seq,
}

impl Acks {
    pub(crate) const NONE: Acks = Acks { ack: Seq(0), sack: 0, edge: Seq(0) };
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("inside the header")
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[2] = VERSION;
        bytes[3] = self.kind.code();
        bytes[4] = self.tag;
        bytes[8..16].copy_from_slice(&self.sessions.to.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.sessions.from.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.seq.0.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.acks.ack.0.to_be_bytes());
        bytes[32..36].copy_from_slice(&self.acks.edge.0.to_be_bytes());
        bytes[36..40].copy_from_slice(&self.payload_bytes.to_be_bytes());
        bytes[40..].copy_from_slice(&self.acks.sack.to_be_bytes());
        bytes
    }

    /// Whom the datagram claims to be from and for; `None` if it is not one of this protocol.
    pub(crate) fn sessions(bytes: &[u8]) -> Option<Sessions> {
        if bytes.len() < 24 || bytes[..2] != MAGIC {
            return None;
        }
        Some(Sessions {
            to: u64::from_be_bytes(field(bytes, 8)),
            from: u64::from_be_bytes(field(bytes, 16)),
        })
    }

    /// Reads the header of a datagram that was `datagram_bytes` long in all.
    ///
    /// # Errors
    /// Which rule it breaks.
    pub(crate) fn decode(bytes: &[u8], datagram_bytes: usize) -> Result<Header, String> {
        let Some(sessions) = Header::sessions(bytes) else {
            return Err("a datagram of another protocol".to_owned());
        };
        if bytes.len() < HEADER_BYTES || datagram_bytes < HEADER_BYTES {
            return Err(format!("a datagram of {datagram_bytes} bytes has no room for a header"));
        }
        if bytes[2] != VERSION {
            return Err(format!("a datagram of version {}", bytes[2]));
        }
        let Some(kind) = PacketKind::ALL.into_iter().find(|kind| kind.code() == bytes[3]) else {
            return Err(format!("a datagram of unknown kind {}", bytes[3]));
        };
        if bytes[5..8] != [0; 3] {
            return Err(format!("reserved bytes {:02x?}", &bytes[5..8]));
        }
        let payload_bytes = u32::from_be_bytes(field(bytes, 36));
        if usize::try_from(payload_bytes).ok() != datagram_bytes.checked_sub(HEADER_BYTES) {
            return Err(format!(
                "{payload_bytes} bytes of payload announced in a datagram of {datagram_bytes}"
            ));
        }
        if payload_bytes != 0
            && matches!(kind, PacketKind::Refuse | PacketKind::Ack | PacketKind::Probe)
        {
            return Err(format!("{payload_bytes} bytes of payload in a {kind:?}"));
        }
        Ok(Header {
            kind,
            tag: bytes[4],
            sessions,
            seq: Seq(u32::from_be_bytes(field(bytes, 24))),
            acks: Acks {
                ack: Seq(u32::from_be_bytes(field(bytes, 28))),
                edge: Seq(u32::from_be_bytes(field(bytes, 32))),
                sack: u64::from_be_bytes(field(bytes, 40)),
            },
            payload_bytes,
        })
    }
}

/// The length of a Hello's payload, as a header gives it.
pub(crate) const HELLO_BYTES: u32 = 8;

/// The payload of a Hello.
///
/// ```text
///   0 port of the sender's socket of this pair | 2 heard: 1, else 0 | 3 window, 1..=64
///   4 the longest message the sender can take, in bytes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) port: u16,
    /// Whether the sender has heard a Hello from the receiver.
    pub(crate) heard: bool,
    /// How many messages the sender has room for at first.
    pub(crate) window: u8,
    pub(crate) max_fragment_bytes: u32,
}

impl Hello {
    /// [`HELLO_BYTES`] as a length in memory.
    pub(crate) const BYTES: usize = HELLO_BYTES as usize;

    pub(crate) fn encode(&self) -> [u8; Hello::BYTES] {
        let mut bytes = [0; Hello::BYTES];
        bytes[..2].copy_from_slice(&self.port.to_be_bytes());
        bytes[2] = u8::from(self.heard);
        bytes[3] = self.window;
        bytes[4..].copy_from_slice(&self.max_fragment_bytes.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Hello, String> {
        let bytes: &[u8; Hello::BYTES] =
            bytes.try_into().map_err(|_| format!("a hello of {} bytes", bytes.len()))?;
        let hello = Hello {
            port: u16::from_be_bytes(field(bytes, 0)),
            heard: bytes[2] == 1,
            window: bytes[3],
            max_fragment_bytes: u32::from_be_bytes(field(bytes, 4)),
        };
        if hello.port == 0
            || bytes[2] > 1
            || !(1..=crate::seq::WINDOW_MAX).contains(&u32::from(hello.window))
        {
            return Err(format!("a hello of {bytes:02x?}"));
        }
        Ok(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kind: PacketKind::Data,
            tag: 7,
            sessions: Sessions { to: 0x0102_0304_0506_0708, from: u64::MAX },
            seq: Seq(u32::MAX),
            acks: Acks { ack: Seq(5), sack: 1 << 63 | 1, edge: Seq(9) },
            payload_bytes: 3,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = header().encode();
        assert_eq!(Header::decode(&bytes, HEADER_BYTES + 3), Ok(header()));
        assert_eq!(Header::sessions(&bytes), Some(header().sessions));
        let hello = Hello { port: 4711, heard: true, window: 64, max_fragment_bytes: 1 << 15 };
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }

    #[test]
    fn every_damaged_byte_of_the_frame_is_noticed() {
        let good = header().encode();
        // Magic, version, kind (to one that is not), reserved, length.
        for at in (0..4).chain(5..8).chain(36..40) {
            let mut bad = good;
            bad[at] ^= 0x80;
            assert!(Header::decode(&bad, HEADER_BYTES + 3).is_err(), "byte {at}");
        }
        for cut in 0..HEADER_BYTES {
            assert!(Header::decode(&good[..cut], cut).is_err());
        }
        assert!(Header::decode(&good, HEADER_BYTES + 2).is_err());
        assert!(Header::decode(&good, usize::MAX).is_err());
        let mut ack = Header { kind: PacketKind::Ack, ..header() };
        assert!(Header::decode(&ack.encode(), HEADER_BYTES + 3).is_err());
        ack.payload_bytes = 0;
        assert!(Header::decode(&ack.encode(), HEADER_BYTES).is_ok());
    }

    #[test]
    fn hellos_are_checked() {
        let good = Hello { port: 1, heard: false, window: 1, max_fragment_bytes: 256 };
        assert!(Hello::decode(&good.encode()[..7]).is_err());
        for bad in
            [Hello { port: 0, ..good }, Hello { window: 0, ..good }, Hello { window: 65, ..good }]
        {
            assert!(Hello::decode(&bad.encode()).is_err());
        }
        let mut bytes = good.encode();
        bytes[2] = 2;
        assert!(Hello::decode(&bytes).is_err());
    }
}
