//! What travels when memory or an event is shared: bytes, of which nothing is believed; and what this process
//! has given away, so that its own is known again.
//!
//! ```text
//!  memory key, 136 bytes, little-endian        event key, 80 bytes
//!  0  "GCM1"                                   0  "GCE1"
//!  4  kind: 1 handle, 2 descriptor; 3 zeros    4  4 zeros
//!  8  exporting process, by a random number    8  exporting process
//! 16  first address in the exporter            16 driver's handle, 64
//! 24  allocation's length
//! 32  allocation's buffer id
//! 40  region's offset in the allocation
//! 48  region's length
//! 56  device's UUID, 16
//! 72  driver's handle, 64; zeros for kind 2
//! ```

use crate::CudaError;
use crate::context::lock;
use crate::driver::HANDLE;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, OnceLock};

const MEMORY_MAGIC: [u8; 4] = *b"GCM1";
const EVENT_MAGIC: [u8; 4] = *b"GCE1";
const MEMORY_KEY: usize = 72 + HANDLE;
const EVENT_KEY: usize = 16 + HANDLE;
const _: () = assert!(MEMORY_KEY == 136 && EVENT_KEY == 80);

/// How an allocation travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyKind {
    Handle = 1,
    Descriptor = 2,
}

/// What a memory key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryKey {
    pub(crate) kind: KeyKind,
    pub(crate) process: u64,
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) buffer_id: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) uuid: [u8; 16],
    pub(crate) handle: [u8; HANDLE],
}

/// A number that no other process has, but by a chance of one in 2⁶⁴.
pub(crate) fn this_process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

/// The `N` bytes at `at`, which the caller has checked to be there.
fn piece<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut piece = [0; N];
    piece.copy_from_slice(&bytes[at..at + N]);
    piece
}

impl MemoryKey {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MEMORY_KEY);
        bytes.extend(MEMORY_MAGIC);
        bytes.extend([self.kind as u8, 0, 0, 0]);
        for number in [self.process, self.start, self.size, self.buffer_id, self.offset, self.len] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.uuid);
        bytes.extend(self.handle);
        bytes
    }

    /// Believes nothing: what passes lies inside its allocation and comes with what its kind needs.
    pub(crate) fn decode(bytes: &[u8], descriptors: usize) -> Result<MemoryKey, CudaError> {
        let malformed = |reason| CudaError::Malformed { object: "memory key", reason };
        if bytes.len() != MEMORY_KEY {
            return Err(malformed("it has not the length of one"));
        }
        if piece(bytes, 0) != MEMORY_MAGIC {
            return Err(malformed("it does not begin as one"));
        }
        let kind = match piece(bytes, 4) {
            [1, 0, 0, 0] => KeyKind::Handle,
            [2, 0, 0, 0] => KeyKind::Descriptor,
            _ => return Err(malformed("of a kind that does not exist")),
        };
        if descriptors != usize::from(kind == KeyKind::Descriptor) {
            return Err(malformed("the number of descriptors is not its kind's"));
        }
        let number = |at| u64::from_le_bytes(piece(bytes, at));
        let key = MemoryKey {
            kind,
            process: number(8),
            start: number(16),
            size: number(24),
            buffer_id: number(32),
            offset: number(40),
            len: number(48),
            uuid: piece(bytes, 56),
            handle: piece(bytes, 72),
        };
        if key.size == 0 || key.start.checked_add(key.size).is_none() {
            return Err(malformed("the allocation's length is impossible"));
        }
        match key.offset.checked_add(key.len) {
            Some(end) if end <= key.size => Ok(key),
            _ => Err(malformed("the region leaves its allocation")),
        }
    }

    pub(crate) fn identity(&self) -> Identity {
        (self.kind, self.process, self.start, self.buffer_id, self.handle)
    }
}

/// Which allocation of which process.
pub(crate) type Identity = (KeyKind, u64, u64, u64, [u8; HANDLE]);

/// The bytes by which another process finds an event.
pub(crate) fn event_key(handle: [u8; HANDLE]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(EVENT_KEY);
    bytes.extend(EVENT_MAGIC);
    bytes.extend([0; 4]);
    bytes.extend(this_process().to_le_bytes());
    bytes.extend(handle);
    bytes
}

/// Exports that this process remembers. Beyond that it forgets them all: their keys are not its own any more
/// when they come back, until they are made again.
const EXPORTS_MAX: usize = 1 << 16;

/// What this process has exported, of all its devices: the newest key to each allocation.
///
/// A key that names this process came from a peer, and a peer may write what it likes. Only what is in here is
/// found again: an allocation whose key was given away.
#[derive(Debug, Default)]
pub(crate) struct Exported(HashMap<(KeyKind, u64), MemoryKey>);

impl Exported {
    pub(crate) fn of_this_process() -> MutexGuard<'static, Exported> {
        static EXPORTED: OnceLock<Mutex<Exported>> = OnceLock::new();
        lock(EXPORTED.get_or_init(Mutex::default))
    }

    pub(crate) fn remember(&mut self, key: &MemoryKey) {
        if self.0.len() >= EXPORTS_MAX && !self.0.contains_key(&(key.kind, key.start)) {
            self.0.clear();
        }
        self.0.insert((key.kind, key.start), *key);
    }

    /// Whether the allocation that `key` names was exported, as the very one that it names.
    pub(crate) fn has(&self, key: &MemoryKey) -> bool {
        let facts = |key: &MemoryKey| (key.process, key.size, key.buffer_id, key.uuid);
        self.0.get(&(key.kind, key.start)).is_some_and(|made| facts(made) == facts(key))
    }
}

pub(crate) fn decode_event(bytes: &[u8]) -> Result<[u8; HANDLE], CudaError> {
    let malformed = |reason| CudaError::Malformed { object: "event key", reason };
    if bytes.len() != EVENT_KEY {
        return Err(malformed("it has not the length of one"));
    }
    if piece(bytes, 0) != EVENT_MAGIC || piece(bytes, 4) != [0u8; 4] {
        return Err(malformed("it does not begin as one"));
    }
    if u64::from_le_bytes(piece(bytes, 8)) == this_process() {
        return Err(malformed("this process made it, and has the completion itself"));
    }
    Ok(piece(bytes, 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> MemoryKey {
        MemoryKey {
            kind: KeyKind::Handle,
            process: 5,
            start: 0x7000_0000,
            size: 4096,
            buffer_id: 12,
            offset: 256,
            len: 1024,
            uuid: [3; 16],
            handle: [4; HANDLE],
        }
    }

    #[test]
    fn the_number_of_exports_is_bounded() {
        let mut exported = Exported::default();
        for start in 0..=EXPORTS_MAX as u64 {
            exported.remember(&MemoryKey { start, ..key() });
            exported.remember(&MemoryKey { start, ..key() });
        }
        assert_eq!(exported.0.len(), 1);
        assert!(exported.has(&MemoryKey { start: EXPORTS_MAX as u64, ..key() }));
        assert!(!exported.has(&MemoryKey { start: 1, ..key() }));
    }

    #[test]
    fn keys_survive_the_wire() {
        for kind in [KeyKind::Handle, KeyKind::Descriptor] {
            let key = MemoryKey { kind, ..key() };
            let bytes = key.encode();
            assert_eq!(bytes.len(), MEMORY_KEY);
            let descriptors = usize::from(kind == KeyKind::Descriptor);
            assert_eq!(MemoryKey::decode(&bytes, descriptors).unwrap(), key);
            assert!(MemoryKey::decode(&bytes, 1 - descriptors).is_err());
        }
    }

    #[test]
    fn keys_that_lie_are_refused() {
        let good = key().encode();
        for len in 0..good.len() {
            assert!(MemoryKey::decode(&good[..len], 0).is_err(), "{len} bytes");
        }
        let with = |at: usize, new: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + new.len()].copy_from_slice(new);
            MemoryKey::decode(&bytes, 0)
        };
        assert!(with(0, b"GCM2").is_err());
        assert!(with(4, &[3]).is_err());
        assert!(with(7, &[1]).is_err());
        assert!(with(24, &0u64.to_le_bytes()).is_err(), "no size");
        assert!(with(24, &u64::MAX.to_le_bytes()).is_err(), "a size beyond the address space");
        assert!(with(40, &3073u64.to_le_bytes()).is_err(), "a region that leaves by a byte");
        assert!(with(40, &u64::MAX.to_le_bytes()).is_err(), "an offset that wraps");
        assert!(with(40, &3072u64.to_le_bytes()).is_ok(), "the last bytes");
    }

    #[test]
    fn events_of_others_only() {
        let mut bytes = event_key([6; HANDLE]);
        assert!(matches!(
            decode_event(&bytes),
            Err(CudaError::Malformed { reason, .. }) if reason.contains("this process")
        ));
        bytes[8] ^= 1;
        assert_eq!(decode_event(&bytes).unwrap(), [6; HANDLE]);
        assert!(decode_event(&bytes[1..]).is_err());
        bytes[0] = b'X';
        assert!(decode_event(&bytes).is_err());
    }
}
