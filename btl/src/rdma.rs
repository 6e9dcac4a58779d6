//! The optional ability to move bytes without the peer's help.

use crate::{LinkError, PeerId, RdmaError, Token};
use gapless_mem::Region;

/// A piece of the memory that a key stands for, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it starts.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
}

/// What lets a peer reach a region: bytes that travel in messages and that only the transport that
/// made them reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey {
    bytes: [u8; RemoteKey::MAX_BYTES],
    len: u8,
}

impl RemoteKey {
    /// The longest key in bytes.
    pub const MAX_BYTES: usize = 80;

    /// Wraps a transport's bytes; `None` above [`RemoteKey::MAX_BYTES`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<RemoteKey> {
        let mut key = RemoteKey { bytes: [0; RemoteKey::MAX_BYTES], len: 0 };
        key.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        key.len = u8::try_from(bytes.len()).ok()?;
        Some(key)
    }

    /// The transport's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteKey({:02x?})", self.as_bytes())
    }
}

/// What one-sided operations cost and can take.
#[derive(Clone, Debug, PartialEq)]
pub struct RdmaLimits {
    /// Pieces (local or remote) that one operation can take; at least 1.
    pub max_pieces: usize,
    /// Estimated fixed cost of an operation, in nanoseconds.
    pub operation_ns: u32,
    /// Estimated cost of each piece, in nanoseconds.
    pub piece_ns: u32,
    /// Estimated bandwidth, in bytes per microsecond (= MB/s).
    pub bandwidth_mb_s: u32,
}

/// What peers may do with a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// [`get`](Rdma::get) from it.
    Read,
    /// [`get`](Rdma::get) from it and [`put`](Rdma::put) to it.
    Write,
}

/// Moves bytes between local regions and a peer's, without the peer's help.
pub trait Rdma {
    /// What operations cost and can take.
    fn rdma_limits(&self) -> &RdmaLimits;

    /// Whether this peer's memory can be reached: probed when the link came up. `None` while that
    /// is not known yet.
    fn reaches(&self, peer: PeerId) -> Option<bool>;

    /// Lets peers reach `local`, until [`deregister`](Rdma::deregister).
    ///
    /// # Safety
    /// Until then `local` describes memory that stays valid for reads and that nothing writes while
    /// a peer reads it; with [`Access::Write`] also valid for writes, and no reference of this
    /// process covers it while a peer works on it.
    ///
    /// # Errors
    /// The space cannot be reached, or the transport has no more registrations.
    unsafe fn register(&mut self, local: Region, access: Access) -> Result<RemoteKey, RdmaError>;

    /// Undoes [`register`](Rdma::register). Transports whose peers can reach any memory do nothing.
    fn deregister(&mut self, key: &RemoteKey);

    /// Reads the pieces `remote` of what `key` stands for at `peer`, in order, into `local`, in
    /// order. One [`Event::Completed`](crate::Event::Completed) with `done` follows, from `poll`.
    ///
    /// # Safety
    /// `local` describes memory valid for writes until the event, that nothing else touches.
    ///
    /// # Errors
    /// Refused before any byte moved; `Full` is an outcome.
    unsafe fn get(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError>;

    /// Writes `local`, in order, to the pieces `remote` of what `key` stands for at `peer`, in
    /// order. One [`Event::Completed`](crate::Event::Completed) with `done` follows, from `poll`.
    ///
    /// # Safety
    /// `local` describes memory valid for reads until the event, that nothing else writes.
    ///
    /// # Errors
    /// Refused before any byte moved; `Full` is an outcome.
    unsafe fn put(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError>;
}

/// Adds up pieces, checking each against the key's length: for implementations.
///
/// # Errors
/// [`RdmaError::OutOfRange`] naming the first piece that leaves `key_len`;
/// [`LinkError::Corrupt`] if the sum overflows.
pub fn total_of(remote: &[Extent], key_len: u64) -> Result<u64, RdmaError> {
    let mut total = 0u64;
    for piece in remote {
        match piece.offset.checked_add(piece.len) {
            Some(end) if end <= key_len => {}
            _ => {
                return Err(RdmaError::OutOfRange {
                    offset: piece.offset,
                    len: piece.len,
                    key_len,
                });
            }
        }
        total = total.checked_add(piece.len).ok_or_else(|| LinkError::Corrupt {
            what: "the pieces of an RDMA operation overflow 64 bits".to_owned(),
        })?;
    }
    Ok(total)
}
