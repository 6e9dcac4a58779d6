//! Who a process is, and where it can be called: the bytes of an [`Address`]. The card is parsed once, into a [`Card`].

use crate::bytes::{Reader, Writer};
use crate::place::Place;
use gapless_btl::{Address, LinkError};

const MAGIC: [u8; 4] = *b"GLib";
/// Changes with anything that two ends must agree on.
pub(crate) const VERSION: u16 = 4;
const BYTES: usize = 4 + 2 + 2 + 4 + 16 + 16 + Place::BYTES;

/// Names one end of links, anywhere, ever.
pub(crate) type Id = [u8; 16];

/// ```text
///  0     4         6           8      12   28            44                            66
/// +------+---------+-----------+------+----+-------------+------+-----+----------------+
/// | GLib | version | link kind | rank | id | job, hashed | GID  | LID | queue pair (4) |
/// +------+---------+-----------+------+----+-------------+------+-----+----------------+
/// ```
/// The queue pair is that of the door, to which datagrams go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) kind: LinkKind,
    pub(crate) rank: u32,
    pub(crate) id: Id,
    /// The first half of the hash of the job's name.
    pub(crate) job: [u8; 16],
    pub(crate) door: Place,
}

/// What a port is connected to. Only ports of one kind reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RDMA goes over RoCE.
    Ethernet,
}

fn bad(what: impl Into<String>) -> LinkError {
    LinkError::BadAddress { what: what.into() }
}

/// By which cards of other jobs are told.
pub(crate) fn job_digest(job: &str) -> [u8; 16] {
    let whole = blake3::hash(job.as_bytes());
    <[u8; 16]>::try_from(&whole.as_bytes()[..16]).expect("half of it")
}

impl Card {
    /// The bytes to publish.
    pub(crate) fn address(&self) -> Address {
        let mut bytes = [0; BYTES];
        let mut into = Writer::new(&mut bytes);
        let kind: u16 = match self.kind {
            LinkKind::InfiniBand => 1,
            LinkKind::Ethernet => 2,
        };
        into.put(&MAGIC).put(&VERSION.to_le_bytes()).put(&kind.to_le_bytes());
        into.put(&self.rank.to_le_bytes()).put(&self.id).put(&self.job);
        self.door.write(&mut into);
        Address::new(&bytes).expect("a card fits an address")
    }

    /// Reads an address.
    ///
    /// # Errors
    /// Not an address of this transport, damaged, or of another version.
    pub(crate) fn read(address: &Address) -> Result<Card, LinkError> {
        let bytes = address.as_bytes();
        if bytes.len() != BYTES {
            return Err(bad(format!("{} bytes, {BYTES} expected", bytes.len())));
        }
        let mut from = Reader(bytes);
        let magic: [u8; 4] = from.take();
        if magic != MAGIC {
            return Err(bad(format!("it starts with {magic:02x?}")));
        }
        let version = from.u16();
        if version != VERSION {
            let what = format!("it speaks version {version}, we speak {VERSION}");
            return Err(LinkError::Incompatible { what });
        }
        let kind = match from.u16() {
            1 => LinkKind::InfiniBand,
            2 => LinkKind::Ethernet,
            other => return Err(bad(format!("a link of kind {other}"))),
        };
        let (rank, id, job) = (from.u32(), from.take(), from.take());
        let door = Place::read(&mut from).map_err(bad)?;
        Ok(Card { kind, rank, id, job, door })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Card {
        let door = Place { gid: [5; 16], lid: 0, number: 0x12_3456 };
        Card { kind: LinkKind::Ethernet, rank: 7, id: [3; 16], job: [4; 16], door }
    }

    #[test]
    fn cards_survive_the_wire() {
        assert_eq!(Card::read(&card().address()), Ok(card()));
        let other = Card { kind: LinkKind::InfiniBand, ..card() };
        assert_eq!(Card::read(&other.address()), Ok(other));
    }

    #[test]
    fn damaged_cards_are_refused() {
        let right = card().address();
        let right = right.as_bytes();
        let mut wrong: Vec<Vec<u8>> = (0..right.len()).map(|len| right[..len].to_vec()).collect();
        wrong.push([right, &[0]].concat());
        // Magic, version, kind, the queue pair's top byte.
        for at in [0, 4, 6, BYTES - 1] {
            let mut bytes = right.to_vec();
            bytes[at] ^= 0xf0;
            wrong.push(bytes);
        }
        for nowhere in [BYTES - 4..BYTES, BYTES - 22..BYTES - 4] {
            let mut bytes = right.to_vec();
            bytes[nowhere].fill(0);
            wrong.push(bytes);
        }
        for bytes in wrong {
            let error = Card::read(&Address::new(&bytes).unwrap()).unwrap_err();
            let named =
                matches!(error, LinkError::BadAddress { .. } | LinkError::Incompatible { .. });
            assert!(named, "{error:?}");
        }
    }
}
