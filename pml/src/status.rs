//! What a caller holds of an operation: its name while it is in flight, and then how it ended.

use crate::protocol::Protocol;
use gapless_dtype::Equivalence;

/// Names an operation until its result is collected; then the name is void.
///
/// One word, which stays in a register: two halves that are assembled in memory would stall the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

impl RequestId {
    /// Names no operation, so it counts as one that is over.
    pub const OVER: RequestId = RequestId(u32::MAX as u64);

    #[inline]
    pub(crate) fn new(index: u32, generation: u32) -> RequestId {
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
    pub(crate) fn generation(self) -> u32 {
        let [.., a, b, c, d] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

/// What is known of a message that was sent, received or probed (`MPI_Status`).
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

impl Status {
    /// Of what is no message, such as a collective or an operation on a window: of rank 0 and tag 0, which say nothing.
    #[must_use]
    pub const fn of_nothing(bytes: u64) -> Status {
        Status { source: 0, tag: 0, bytes, protocol: Protocol::Eager }
    }

    /// How many values of a type the bytes are (`MPI_Get_count`, MPI 4.1 §3.2.5); `None` if they are no whole number of
    /// them, or a value has no bytes.
    ///
    /// ```
    /// # fn see(status: gapless_pml::Status) {
    /// if let Some(count) = status.count::<[f64; 3]>() {
    ///     println!("{count} positions came");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn count<T: Equivalence>(&self) -> Option<u64> {
        let size = T::layout().size();
        (size > 0 && self.bytes.is_multiple_of(size)).then(|| self.bytes / size)
    }
}

/// What became of a request that was [collected quietly](crate::Pml::collect_quietly).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It has ended well, and is gone.
    Well,
    /// It is in flight.
    NotYet,
    /// Unchanged: collecting it says why.
    Asks,
}
