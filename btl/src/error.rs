//! Errors, one type per operation, each naming the culprit.

use gapless_mem::DeviceError;
use thiserror::Error;

/// Why a link to a peer cannot be made or has ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer's process has ended or closed the link.
    #[error("the peer is gone: {reason}")]
    PeerGone {
        /// How that was noticed.
        reason: String,
    },
    /// The peer's process has left the job without finalizing. It may live on.
    #[error("it left without finalizing")]
    Departed,
    /// The peer broke the protocol; it is treated as dead.
    #[error("the peer broke the protocol: {what}")]
    Corrupt {
        /// The rule that was broken, and the value that broke it.
        what: String,
    },
    /// An address that is not of this transport, or damaged.
    #[error("not an address of this transport: {what}")]
    BadAddress {
        /// What is wrong with it.
        what: String,
    },
    /// The peer cannot be reached over this transport (another host, another user, no permission).
    #[error("the peer cannot be reached: {reason}")]
    Unreachable {
        /// Why.
        reason: String,
    },
    /// The two ends do not fit together (version, endianness, type sizes).
    #[error("the peer is incompatible: {what}")]
    Incompatible {
        /// What differs.
        what: String,
    },
    /// The operating system refused something on our side.
    #[error("{operation} failed: {reason}")]
    System {
        /// The call that failed.
        operation: &'static str,
        /// What the system said.
        reason: String,
    },
}

impl LinkError {
    /// What became of a peer, as the end of a sentence that begins with its name.
    #[must_use]
    pub fn fate(&self) -> String {
        match self {
            LinkError::Departed => "left without finalizing".to_owned(),
            error => format!("is lost: {error}"),
        }
    }
}

/// Why there is no slot.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// No room now, or the link is not up yet: poll, then retry. An outcome, not a failure.
    #[error("no room now: poll, then retry")]
    Full,
    /// Longer than [`max_fragment_bytes`](crate::Limits::max_fragment_bytes).
    #[error("{len} bytes requested, but a fragment holds at most {max}")]
    TooLong {
        /// Bytes asked for.
        len: usize,
        /// Bytes a fragment can hold.
        max: usize,
    },
    /// There is no link to this peer any more, or there never was.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Why an RDMA operation was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// Too much in flight: poll, then retry. An outcome, not a failure.
    #[error("no room now: poll, then retry")]
    Full,
    /// The peer's memory cannot be reached this way; use another protocol.
    #[error("the peer's memory cannot be reached: {reason}")]
    Unavailable {
        /// Why.
        reason: String,
    },
    /// The local and remote sides have different lengths.
    #[error("{local} local bytes, but {remote} remote bytes")]
    LengthMismatch {
        /// Bytes of the local side.
        local: u64,
        /// Bytes of the remote side.
        remote: u64,
    },
    /// More pieces than [`RdmaLimits::max_pieces`](crate::RdmaLimits::max_pieces).
    #[error("{pieces} pieces, but one operation takes at most {max}")]
    TooManyPieces {
        /// Pieces asked for.
        pieces: usize,
        /// Pieces one operation can take.
        max: usize,
    },
    /// A piece that leaves the memory the key stands for.
    #[error("{len} bytes at offset {offset} exceed the key's {key_len} bytes")]
    OutOfRange {
        /// Where the piece starts.
        offset: u64,
        /// Its length.
        len: u64,
        /// Bytes the key stands for.
        key_len: u64,
    },
    /// A put to memory that was registered for reading only.
    #[error("the peer's memory was registered for reading only")]
    ReadOnly,
    /// An atomic operation on memory that was not registered for such, or by a transport that has none.
    #[error(
        "the peer's memory was not registered for atomic operations, or this transport has none"
    )]
    NotAtomic,
    /// An atomic operation on bytes that are no number: they begin at no multiple of eight.
    #[error("a number of 64 bits at {address:#x}, which is no multiple of eight")]
    Misaligned {
        /// Where it lies.
        address: u64,
    },
    /// A key that this transport did not make, or a damaged one.
    #[error("not a key of this transport: {what}")]
    BadKey {
        /// What is wrong with it.
        what: String,
    },
    /// A region in a space this transport cannot reach, or a device's failure.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is no link to this peer any more, or there never was.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Why a peer's memory cannot be mapped, or ours not be allocated for mapping.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MapError {
    /// Not this memory, this peer, or not now; use another protocol.
    #[error("the memory cannot be mapped: {reason}")]
    Unavailable {
        /// Why.
        reason: String,
    },
    /// A key that this transport did not make, or one that leaves its memory.
    #[error("not a key of this transport: {what}")]
    BadKey {
        /// What is wrong with it.
        what: String,
    },
    /// The operating system refused.
    #[error("{operation} failed: {reason}")]
    System {
        /// The call that failed.
        operation: &'static str,
        /// What the system said.
        reason: String,
    },
    /// The device that was to map it refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is no link to this peer any more, or there never was.
    #[error(transparent)]
    Link(#[from] LinkError),
}
