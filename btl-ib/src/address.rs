//! Who a process is, and where it can be called: the bytes of an [`Address`]. It is parsed once, into an [`IbAddress`].

use crate::bytes::{Reader, Writer};
use crate::qp_address::QpAddress;
use gapless_btl::{Address, LinkError};

const MAGIC: [u8; 4] = *b"GLib";
/// Changes with anything that two ends must agree on.
pub(crate) const VERSION: u16 = 4;
const BYTES: usize = 4 + 2 + 2 + 4 + 16 + 16 + QpAddress::BYTES;

/// Names one end of links, anywhere, ever.
pub(crate) type Id = [u8; 16];

/// ```text
///  0     4         6           8      12   28            44                            66
/// +------+---------+-----------+------+----+-------------+------+-----+----------------+
/// | GLib | version | link kind | rank | id | job, hashed | GID  | LID | queue pair (4) |
/// +------+---------+-----------+------+----+-------------+------+-----+----------------+
/// ```
/// The queue pair is that of the connection manager, to which datagrams go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IbAddress {
    pub(crate) kind: LinkKind,
    pub(crate) rank: u32,
    pub(crate) id: Id,
    /// The first half of the hash of the job's name.
    pub(crate) job: [u8; 16],
    pub(crate) cm: QpAddress,
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

/// By this, addresses of other jobs are told apart.
pub(crate) fn job_digest(job: &str) -> [u8; 16] {
    let whole = blake3::hash(job.as_bytes());
    <[u8; 16]>::try_from(&whole.as_bytes()[..16]).expect("half of it")
}

impl IbAddress {
    /// The bytes to publish.
    pub(crate) fn to_bytes(&self) -> Address {
        let mut bytes = [0; BYTES];
        let mut into = Writer::new(&mut bytes);
        let kind: u16 = match self.kind {
            LinkKind::InfiniBand => 1,
            LinkKind::Ethernet => 2,
        };
        into.put(&MAGIC).put(&VERSION.to_le_bytes()).put(&kind.to_le_bytes());
        into.put(&self.rank.to_le_bytes()).put(&self.id).put(&self.job);
        self.cm.write(&mut into);
        Address::new(&bytes).expect("the parts fit an address")
    }

    /// Reads an address.
    ///
    /// # Errors
    /// Not an address of this transport, damaged, or of another version.
    pub(crate) fn read(address: &Address) -> Result<IbAddress, LinkError> {
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
        let cm = QpAddress::read(&mut from).map_err(bad)?;
        Ok(IbAddress { kind, rank, id, job, cm })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> IbAddress {
        let cm = QpAddress { gid: [5; 16], lid: 0, number: 0x12_3456 };
        IbAddress { kind: LinkKind::Ethernet, rank: 7, id: [3; 16], job: [4; 16], cm }
    }

    #[test]
    fn addresses_survive_the_wire() {
        assert_eq!(IbAddress::read(&address().to_bytes()), Ok(address()));
        let other = IbAddress { kind: LinkKind::InfiniBand, ..address() };
        assert_eq!(IbAddress::read(&other.to_bytes()), Ok(other));
    }

    #[test]
    fn damaged_addresses_are_refused() {
        let right = address().to_bytes();
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
            let error = IbAddress::read(&Address::new(&bytes).unwrap()).unwrap_err();
            let named =
                matches!(error, LinkError::BadAddress { .. } | LinkError::Incompatible { .. });
            assert!(named, "{error:?}");
        }
    }
}
