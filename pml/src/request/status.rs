//! What a caller holds of an operation: its name while it is in flight, and then how it ended.

use crate::choose::Protocol;

/// Names an operation until its result is collected; then the name is void.
///
/// One word, which stays in a register: two halves that are assembled in memory would stall the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

impl RequestId {
    #[inline]
    pub(super) fn new(index: u32, generation: u32) -> RequestId {
        RequestId(u64::from(generation) << 32 | u64::from(index))
    }

    /// Its place in the table.
    #[inline]
    pub(crate) fn index(self) -> u32 {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// How often the place had been used before.
    #[inline]
    pub(super) fn generation(self) -> u32 {
        let [.., a, b, c, d] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

/// How an operation ended, or what a probe saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The other end's rank in the communicator.
    pub source: u32,
    /// The message's tag.
    pub tag: i32,
    /// Packed bytes received (sent). [`Failure`](crate::Failure) says what they are beside an error.
    pub bytes: u64,
    /// How the message was carried. A probe, and a receive that failed early, sees `Eager` or, for a rendezvous whose
    /// protocol is not chosen yet, `Pipeline`.
    pub protocol: Protocol,
}
