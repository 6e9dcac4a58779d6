//! Keys of registered regions: the bytes of a [`RemoteKey`].

use crate::address::Id;
use crate::bytes::{Reader, Writer};
use crate::proof::{Keys, TAG_BYTES};
use gapless_btl::{Access, RdmaError, RemoteKey};

const SAID_BYTES: usize = 16 + 8 + 8 + 4 + 4;
const BYTES: usize = SAID_BYTES + TAG_BYTES;

/// ```text
///  0                 16        24      32     36         40    48
/// +-----------------+---------+-------+------+----------+-----+
/// | owner           | address | bytes | rkey | rights   | tag |
/// +-----------------+---------+-------+------+----------+-----+
/// ```
/// Rights: 0 to read, 1 to write as well, 2 to change numbers, too.
/// The tag is a keyed hash of the rest: an adapter that is given a wrong key breaks the link, so damage is noticed
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) owner: Id,
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// The adapter's name for the region.
    pub(crate) rkey: u32,
    pub(crate) access: Access,
}

impl Key {
    pub(crate) fn is_writable(&self) -> bool {
        self.access != Access::Read
    }

    pub(crate) fn seal(&self, keys: &Keys) -> RemoteKey {
        let mut bytes = [0; BYTES];
        let mut into = Writer::new(&mut bytes);
        let rights: u32 = match self.access {
            Access::Read => 0,
            Access::Write => 1,
            Access::Atomic => 2,
        };
        into.put(&self.owner).put(&self.address.to_le_bytes()).put(&self.len.to_le_bytes());
        into.put(&self.rkey.to_le_bytes()).put(&rights.to_le_bytes());
        let tag = keys.tag(&bytes[..SAID_BYTES]);
        bytes[SAID_BYTES..].copy_from_slice(&tag);
        RemoteKey::new(&bytes).expect("shorter than the longest key")
    }

    /// # Errors
    /// [`RdmaError::BadKey`].
    pub(crate) fn open(key: &RemoteKey, keys: &Keys) -> Result<Key, RdmaError> {
        let bad = |what: String| RdmaError::BadKey { what };
        let bytes = key.as_bytes();
        if bytes.len() != BYTES {
            return Err(bad(format!("{} bytes, {BYTES} expected", bytes.len())));
        }
        let (said, tag) = bytes.split_at(SAID_BYTES);
        if keys.tag(said) != tag {
            return Err(bad("it is damaged, or of another job".to_owned()));
        }
        let mut from = Reader(said);
        let (owner, address, len) = (from.take(), from.u64(), from.u64());
        let rkey = from.u32();
        let access = match from.u32() {
            0 => Access::Read,
            1 => Access::Write,
            2 => Access::Atomic,
            other => return Err(bad(format!("rights {other}"))),
        };
        if address.checked_add(len).is_none() {
            return Err(bad(format!("{len} bytes at {address:#x}")));
        }
        Ok(Key { owner, address, len, rkey, access })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;

    #[test]
    fn keys_survive_the_wire_and_damage_is_noticed() {
        let keys = Keys::new(&Secret::new([1; 32]), "job");
        let key = Key { owner: [7; 16], address: 4096, len: 100, rkey: 9, access: Access::Write };
        for access in [Access::Read, Access::Atomic, Access::Write] {
            let key = Key { access, ..key };
            assert_eq!(Key::open(&key.seal(&keys), &keys), Ok(key));
        }
        let sealed = key.seal(&keys);
        let bytes = sealed.as_bytes();
        for at in 0..bytes.len() {
            let mut wrong = bytes.to_vec();
            wrong[at] ^= 4;
            assert!(Key::open(&RemoteKey::new(&wrong).unwrap(), &keys).is_err(), "byte {at}");
            assert!(Key::open(&RemoteKey::new(&bytes[..at]).unwrap(), &keys).is_err());
        }
        let other = Keys::new(&Secret::new([2; 32]), "job");
        assert!(Key::open(&sealed, &other).is_err());
        let beyond = Key { address: u64::MAX - 5, ..key };
        assert!(Key::open(&beyond.seal(&keys), &keys).is_err());
    }
}
