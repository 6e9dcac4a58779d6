//! What proves that a process belongs to a job.

use std::fmt;

/// What the processes of a job share and nobody else knows: 256 random bits. Whoever has it is a process of the job.
/// Transports that unauthenticated processes can reach ask callers to prove that they know it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; Secret::BYTES]);

impl Secret {
    /// Its length in bytes.
    pub const BYTES: usize = 32;

    /// A secret of bytes that were made elsewhere.
    #[must_use]
    pub const fn new(bytes: [u8; Secret::BYTES]) -> Secret {
        Secret(bytes)
    }

    /// Its bytes, to hand them to the other processes of the job.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; Secret::BYTES] {
        &self.0
    }
}

/// Says nothing about the secret, so that no log does.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
