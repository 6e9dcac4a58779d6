//! Who a process is, and where it can be called: the bytes of an [`Address`].
//!
//! Numbers are big-endian. It is parsed once, into a [`TcpAddress`].

use crate::config::TcpConfig;
use crate::proof::{self, Digest, Id};
use gapless_btl::{Address, LinkError};
use std::net::{IpAddr, SocketAddr};

const MAGIC: [u8; 4] = *b"GLtc";
/// Changes with anything that two ends must agree on.
pub(crate) const VERSION: u16 = 2;
/// Bytes before the places.
const HEAD_BYTES: usize = 44;
/// Most places of an address.
pub(crate) const PLACES_MAX: usize = 8;

const _: () = assert!(HEAD_BYTES + PLACES_MAX * 19 <= Address::MAX_BYTES);

/// ```text
///  0     4         6        7       8      12   28            44
/// +------+---------+--------+-------+------+----+-------------+--------------------------------------+
/// | GLtc | version | places | flags | rank | id | job, hashed | places: 4 or 6, port (2), address …   |
/// +------+---------+--------+-------+------+----+-------------+--------------------------------------+
/// ```
///
/// Flag 1: it encrypts. Other flags are 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TcpAddress {
    pub(crate) rank: u32,
    /// Names one [`Tcp`](crate::Tcp), anywhere, ever.
    pub(crate) id: Id,
    /// The first half of the hash of the job's name.
    pub(crate) job: [u8; 16],
    /// Its connections are encrypted.
    pub(crate) encrypts: bool,
    pub(crate) places: Vec<SocketAddr>,
}

fn bad(what: impl Into<String>) -> LinkError {
    LinkError::BadAddress { what: what.into() }
}

impl TcpAddress {
    /// This process's address, listening there.
    ///
    /// # Errors
    /// No randomness to be had.
    pub(crate) fn own(
        config: &TcpConfig,
        places: Vec<SocketAddr>,
    ) -> Result<TcpAddress, LinkError> {
        let job = proof::job_digest(&config.job);
        let encrypts = config.encrypt;
        Ok(TcpAddress { rank: config.rank, id: proof::random()?, job, encrypts, places })
    }

    /// The bytes to publish.
    pub(crate) fn to_bytes(&self) -> Address {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.places.len() * 19);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&[
            u8::try_from(self.places.len()).unwrap_or(0),
            u8::from(self.encrypts),
        ]);
        bytes.extend_from_slice(&self.rank.to_be_bytes());
        bytes.extend_from_slice(&self.id);
        bytes.extend_from_slice(&self.job);
        for place in &self.places {
            bytes.push(if place.is_ipv4() { 4 } else { 6 });
            bytes.extend_from_slice(&place.port().to_be_bytes());
            match place.ip() {
                IpAddr::V4(v4) => bytes.extend_from_slice(&v4.octets()),
                IpAddr::V6(v6) => bytes.extend_from_slice(&v6.octets()),
            }
        }
        Address::new(&bytes).expect("as many places as it has fit an address")
    }

    /// The hash of the whole address, places included: proofs are bound to it.
    pub(crate) fn digest(&self) -> Digest {
        proof::digest(self.to_bytes().as_bytes())
    }

    /// Reads an address.
    ///
    /// # Errors
    /// Not an address of this transport, damaged, or of another version.
    pub(crate) fn read(address: &Address) -> Result<TcpAddress, LinkError> {
        let bytes = address.as_bytes();
        let (head, mut rest) = bytes
            .split_first_chunk::<HEAD_BYTES>()
            .ok_or_else(|| bad(format!("{} bytes, at least {HEAD_BYTES} expected", bytes.len())))?;
        if head[..4] != MAGIC {
            return Err(bad(format!("it starts with {:02x?}", &head[..4])));
        }
        let version = u16::from_be_bytes([head[4], head[5]]);
        if version != VERSION {
            let what = format!("it speaks version {version}, we speak {VERSION}");
            return Err(LinkError::Incompatible { what });
        }
        let count = usize::from(head[6]);
        if !(1..=PLACES_MAX).contains(&count) || head[7] > 1 {
            return Err(bad(format!("{count} places, and flags of {}", head[7])));
        }
        let mut places = Vec::with_capacity(count);
        for _ in 0..count {
            places.push(place(&mut rest)?);
        }
        if !rest.is_empty() {
            return Err(bad(format!("{} bytes behind the last place", rest.len())));
        }
        let fixed = |at: usize| <[u8; 16]>::try_from(&head[at..at + 16]).expect("sixteen bytes");
        let rank = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
        Ok(TcpAddress { rank, id: fixed(12), job: fixed(28), encrypts: head[7] == 1, places })
    }
}

/// Takes a place off the front.
fn place(rest: &mut &[u8]) -> Result<SocketAddr, LinkError> {
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at_checked(count).ok_or_else(|| bad("a place cut short"))?;
        *rest = left;
        Ok(taken)
    };
    let head = take(3)?;
    let (family, port) = (head[0], u16::from_be_bytes([head[1], head[2]]));
    let address: IpAddr = match family {
        4 => <[u8; 4]>::try_from(take(4)?).expect("four bytes").into(),
        6 => <[u8; 16]>::try_from(take(16)?).expect("sixteen bytes").into(),
        _ => return Err(bad(format!("a place of family {family}"))),
    };
    if port == 0 || address.is_unspecified() || address.is_multicast() {
        return Err(bad(format!("nobody listens at {}", SocketAddr::new(address, port))));
    }
    Ok(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> TcpAddress {
        let places = ["10.0.0.1:77", "[fd00::1]:65535"].map(|place| place.parse().unwrap());
        TcpAddress { rank: 7, id: [3; 16], job: [4; 16], encrypts: true, places: places.to_vec() }
    }

    #[test]
    fn addresses_survive_the_wire() {
        assert_eq!(TcpAddress::read(&address().to_bytes()), Ok(address()));
        for other in
            [TcpAddress { rank: 8, ..address() }, TcpAddress { encrypts: false, ..address() }]
        {
            assert_eq!(TcpAddress::read(&other.to_bytes()), Ok(other.clone()));
            assert_ne!(address().digest(), other.digest());
        }
    }

    #[test]
    fn damaged_addresses_are_refused() {
        let right = address().to_bytes();
        let right = right.as_bytes();
        for len in 0..right.len() {
            assert!(
                TcpAddress::read(&Address::new(&right[..len]).unwrap()).is_err(),
                "{len} bytes"
            );
        }
        let mut wrong = vec![[right, &[0]].concat()];
        // Magic, version, number of places, flags, family, port, address.
        for (at, value) in [(0, 0), (5, 9), (6, 0), (6, 9), (7, 2), (44, 5)] {
            let mut bytes = right.to_vec();
            bytes[at] = value;
            wrong.push(bytes);
        }
        for nowhere in [44..51, 45..47, 47..51] {
            let mut bytes = right.to_vec();
            bytes[nowhere].fill(0);
            wrong.push(bytes);
        }
        for bytes in wrong {
            let error = TcpAddress::read(&Address::new(&bytes).unwrap()).unwrap_err();
            let named =
                matches!(error, LinkError::BadAddress { .. } | LinkError::Incompatible { .. });
            assert!(named, "{error:?}");
        }
    }
}
