//! Small names: who, what kind of message, which operation.

use std::fmt;

/// How to reach a process over one transport: bytes that only that transport reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address(Box<[u8]>);

impl Address {
    /// The longest address in bytes: what every launcher can carry (PMI-1 takes 1024 characters,
    /// two a byte).
    pub const MAX_BYTES: usize = 480;

    /// Wraps a transport's bytes; `None` above [`Address::MAX_BYTES`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Address> {
        (bytes.len() <= Address::MAX_BYTES).then(|| Address(bytes.into()))
    }

    /// The transport's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A peer, as one transport of this process numbers it: dense, from 0, in the order of
/// [`connect`](crate::Btl::connect).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {}", self.0)
    }
}

/// What an active message is for; `bml` hands ranges of tags to the layers above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AmTag(pub u8);

/// The caller's name for an operation, given back when it ends. Transports do not interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl Token {
    /// The caller is not told of the end.
    pub const NONE: Token = Token(u64::MAX);
}
