//! What this process writes to sockets and into keys, and how it reads what others wrote: every byte of both but
//! the greeting (`address.rs`). Uses nothing of this crate.
//!
//! ```text
//!  WAKE      0 kind                               somebody should wake up
//!  HELLO     0 kind | …                           the greeting
//!  SHARE     0 kind | 1 allocation:8 | 9 length:8 | 17                             and its memfd
//!  FREED     0 kind | 1 allocation or buffer:8 | 9
//!  DEVICE    0 kind | 1 device's kind | 2 descriptors | 3 buffer:8 | 11 length:8 | 19 device's bytes …
//!  RELEASED  0 kind | 1 allocation or buffer:8 | 9
//!  REVOKE    0 kind | 1 allocation:8 | 9
//!  BYE       0 kind | 1                           nothing of the receiver's is used any more
//!
//!  key of an allocation or buffer:   0 owner's nonce:16 | 16 number:8 | 24 offset:8 | 32 length:8 | 40
//!  key for single copy:              0 owner's nonce:16 | 16 address:8 | 24 length:8 | 32 writable | 33
//! ```
//!
//! Numbers are in the byte order of the host, which both ends share.

use gapless_btl::{LinkError, MapError, RdmaError, RemoteKey};

/// First byte of a packet: somebody should wake up.
pub(crate) const WAKE: u8 = 0;
/// First byte of a packet: a greeting.
pub(crate) const HELLO: u8 = 1;
/// First byte of a packet: a descriptor of shared memory comes along.
pub(crate) const SHARE: u8 = 2;
/// First byte of a packet: shared memory was freed, or is to be.
pub(crate) const FREED: u8 = 3;
/// First byte of a packet: a device's memory is shared.
pub(crate) const DEVICE: u8 = 4;
/// First byte of a packet: nothing uses memory any more that was to be freed, or is revoked.
pub(crate) const RELEASED: u8 = 5;
/// First byte of a packet: an allocation is not to be used here any more.
pub(crate) const REVOKE: u8 = 6;
/// First byte of a packet, and the last of all: nothing here uses memory of the peer's any more.
pub(crate) const BYE: u8 = 7;

/// Longest packet in bytes.
pub(crate) const PACKET_BYTES: usize = 256;

/// Allocations that one process may share with one peer at a time: their descriptors count against
/// the receiver's limit on open files, which is often 1,024.
pub(crate) const SHARED: usize = 256;

/// Bytes of a DEVICE packet before what the device exported.
const DEVICE_HEAD_BYTES: usize = 19;
/// Bytes of a key to an allocation or a buffer.
const KEY_BYTES: usize = 40;
/// Bytes of a key for single copy.
const COPY_KEY_BYTES: usize = 33;

/// A packet, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packet<'p> {
    Wake,
    Share { allocation: u64, len: u64 },
    Freed(u64),
    Device(DeviceShare<'p>),
    Released(u64),
    Revoke(u64),
    Bye,
}

/// Memory of a device that a peer shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceShare<'p> {
    /// What devices [share](gapless_mem::Abilities::shares) with.
    pub(crate) kind: u8,
    /// Whether a descriptor belongs to it.
    pub(crate) has_file: bool,
    pub(crate) buffer: u64,
    pub(crate) len: u64,
    /// What the device exported.
    pub(crate) bytes: &'p [u8],
}

fn corrupt(what: String) -> LinkError {
    LinkError::Corrupt { what }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

impl Packet<'_> {
    /// Reads a packet.
    ///
    /// # Errors
    /// It is none that comes after the greeting.
    pub(crate) fn read(bytes: &[u8]) -> Result<Packet<'_>, LinkError> {
        let damaged = || corrupt(format!("a packet that makes no sense: {bytes:02x?}"));
        let number = || word(bytes, 1).filter(|_| bytes.len() == 9).ok_or_else(damaged);
        match bytes.first() {
            Some(&WAKE) => Ok(Packet::Wake),
            Some(&SHARE) => word(bytes, 1)
                .zip(word(bytes, 9))
                .filter(|_| bytes.len() == 17)
                .map(|(allocation, len)| Packet::Share { allocation, len })
                .ok_or_else(damaged),
            Some(&FREED) => number().map(Packet::Freed),
            Some(&DEVICE) => DeviceShare::read(bytes).map(Packet::Device),
            Some(&RELEASED) => number().map(Packet::Released),
            Some(&REVOKE) => number().map(Packet::Revoke),
            Some(&BYE) => Ok(Packet::Bye),
            kind => Err(corrupt(format!("a packet of kind {kind:?} on its socket"))),
        }
    }
}

impl DeviceShare<'_> {
    fn read(bytes: &[u8]) -> Result<DeviceShare<'_>, LinkError> {
        let Some((buffer, len)) = word(bytes, 3).zip(word(bytes, 11)) else {
            return Err(corrupt(format!("a device's memory in {} bytes", bytes.len())));
        };
        let has_file = match bytes[2] {
            0 => false,
            1 => true,
            many => return Err(corrupt(format!("a device's memory with {many} descriptors"))),
        };
        let (kind, bytes) = (bytes[1], &bytes[DEVICE_HEAD_BYTES..]);
        Ok(DeviceShare { kind, has_file, buffer, len, bytes })
    }
}

/// The packet that goes with an allocation's descriptor.
pub(crate) fn share_packet(allocation: u64, len: u64) -> [u8; 17] {
    let mut packet = [SHARE; 17];
    packet[1..9].copy_from_slice(&allocation.to_ne_bytes());
    packet[9..].copy_from_slice(&len.to_ne_bytes());
    packet
}

/// The packet that makes a device's buffer known; `None` if what the device exported does not fit it.
pub(crate) fn device_packet(
    kind: u8,
    descriptors: u8,
    buffer: u64,
    len: u64,
    bytes: &[u8],
) -> Option<Vec<u8>> {
    if DEVICE_HEAD_BYTES + bytes.len() > PACKET_BYTES {
        return None;
    }
    let mut packet = vec![DEVICE, kind, descriptors];
    packet.extend(buffer.to_ne_bytes());
    packet.extend(len.to_ne_bytes());
    packet.extend(bytes);
    Some(packet)
}

/// The packet that tells of an allocation's end.
pub(crate) fn freed_packet(allocation: u64) -> [u8; 9] {
    number_packet(FREED, allocation)
}

/// The packet that asks a peer to let go of an allocation.
pub(crate) fn revoke_packet(allocation: u64) -> [u8; 9] {
    number_packet(REVOKE, allocation)
}

/// The packet that tells the owner of memory that nothing uses it here.
pub(crate) fn released_packet(buffer: u64) -> [u8; 9] {
    number_packet(RELEASED, buffer)
}

fn number_packet(kind: u8, number: u64) -> [u8; 9] {
    let mut packet = [kind; 9];
    packet[1..].copy_from_slice(&number.to_ne_bytes());
    packet
}

/// Makes the key to a piece of an allocation or a buffer.
pub(crate) fn make_key(owner: [u8; 16], number: u64, offset: u64, len: u64) -> RemoteKey {
    let mut bytes = [0; KEY_BYTES];
    bytes[..16].copy_from_slice(&owner);
    for (at, number) in [number, offset, len].into_iter().enumerate() {
        bytes[16 + 8 * at..24 + 8 * at].copy_from_slice(&number.to_ne_bytes());
    }
    RemoteKey::new(&bytes).expect("40 bytes fit a key")
}

/// What a key of the process `owner` says: the number of an allocation or a buffer, offset, length.
///
/// # Errors
/// It is no key of that process.
pub(crate) fn read_key(owner: [u8; 16], key: &RemoteKey) -> Result<[u64; 3], MapError> {
    let bytes = key.as_bytes();
    if bytes.len() != KEY_BYTES || bytes[..16] != owner {
        return Err(MapError::BadKey { what: "it is none of this peer's".to_owned() });
    }
    Ok([16, 24, 32].map(|at| word(bytes, at).unwrap_or(u64::MAX)))
}

/// Memory that single copy may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyKey {
    /// In the owner's memory.
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// It may be written, not only read.
    pub(crate) writable: bool,
}

impl CopyKey {
    /// The key of the process `owner`.
    pub(crate) fn write(&self, owner: [u8; 16]) -> RemoteKey {
        let mut bytes = [0; COPY_KEY_BYTES];
        bytes[..16].copy_from_slice(&owner);
        bytes[16..24].copy_from_slice(&self.address.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.len.to_ne_bytes());
        bytes[32] = u8::from(self.writable);
        RemoteKey::new(&bytes).expect("33 bytes fit a key")
    }

    /// Reads a key of the process `owner`.
    ///
    /// # Errors
    /// It is none, or its memory wraps around.
    pub(crate) fn read(owner: [u8; 16], key: &RemoteKey) -> Result<CopyKey, RdmaError> {
        let bad = |what: &str| RdmaError::BadKey { what: what.to_owned() };
        let bytes: &[u8; COPY_KEY_BYTES] =
            key.as_bytes().try_into().map_err(|_| bad("not 33 bytes"))?;
        if bytes[..16] != owner {
            return Err(bad("another process made it"));
        }
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (address, len) = (word(16), word(24));
        if address.checked_add(len).is_none() {
            return Err(bad("its memory wraps around"));
        }
        let writable = match bytes[32] {
            0 => false,
            1 => true,
            _ => return Err(bad("neither readable nor writable")),
        };
        Ok(CopyKey { address, len, writable })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_survive_the_way() {
        let long = device_packet(3, 1, 7, 64, b"exported").unwrap();
        let device =
            DeviceShare { kind: 3, has_file: true, buffer: 7, len: 64, bytes: b"exported" };
        for (bytes, packet) in [
            (&[WAKE][..], Packet::Wake),
            (&share_packet(5, 4096), Packet::Share { allocation: 5, len: 4096 }),
            (&freed_packet(6), Packet::Freed(6)),
            (&long, Packet::Device(device)),
            (&released_packet(8), Packet::Released(8)),
            (&revoke_packet(9), Packet::Revoke(9)),
            (&[BYE], Packet::Bye),
        ] {
            assert_eq!(Packet::read(bytes).unwrap(), packet);
        }
        assert!(device_packet(3, 0, 9, 1, &[0; 256]).is_none(), "longer than a packet");
    }

    #[test]
    fn what_is_no_packet_is_refused() {
        let device = device_packet(3, 2, 7, 64, b"").unwrap();
        let mut long = freed_packet(1).to_vec();
        long.push(0);
        for bytes in [
            &[][..],
            &[99, 1, 2],
            &[HELLO; 96],
            &[SHARE; 5],
            &[FREED],
            &[RELEASED; 4],
            &[REVOKE; 8],
            &[DEVICE, 3, 0, 1, 2],
            &device,
            &long,
        ] {
            let error = Packet::read(bytes).unwrap_err();
            assert!(matches!(error, LinkError::Corrupt { .. }), "{bytes:?}: {error}");
        }
    }

    #[test]
    fn keys_are_their_owners() {
        let key = make_key([5; 16], 3, 64, 8);
        assert_eq!(read_key([5; 16], &key).unwrap(), [3, 64, 8]);
        assert!(read_key([6; 16], &key).is_err());
        assert!(read_key([5; 16], &RemoteKey::new(&[5; 39]).unwrap()).is_err());
        let copy = CopyKey { address: 4096, len: 100, writable: true };
        let key = copy.write([7; 16]);
        assert_eq!(CopyKey::read([7; 16], &key).unwrap(), copy);
        assert!(CopyKey::read([8; 16], &key).is_err());
        let mut odd = key.as_bytes().to_vec();
        odd[32] = 2;
        assert!(CopyKey::read([7; 16], &RemoteKey::new(&odd).unwrap()).is_err());
    }
}
