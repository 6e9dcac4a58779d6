//! What of a signature travels with a message: 24 bytes.
//!
//! ```text
//!  byte  0        8        16                24
//!        | elements | bytes | kind:3 hash:61 |      little-endian words
//! ```

use std::fmt;

use super::measure::{MODULUS, Measure};
use super::wire::SignatureDecodeError;
use crate::primitive::Primitive;

const HASH_BITS: u32 = 61;

/// Whether a signature's elements are typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SignatureKind {
    /// No element is `MPI_BYTE` or `MPI_PACKED`.
    Typed = 0,
    /// All elements are.
    Bytes = 1,
    /// Some are.
    Mixed = 2,
}

/// A signature's fixed-size summary, for some number of instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SignatureDigest {
    /// Number of basic elements.
    pub elements: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Hash of the sequence of basic types, below 2^61.
    pub hash: u64,
    /// Whether the elements are typed.
    pub kind: SignatureKind,
}

impl SignatureDigest {
    /// Length on the wire in bytes.
    pub const LEN: usize = 24;

    /// The digest as it goes on the wire.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let last = (self.hash & MODULUS) | ((self.kind as u64) << HASH_BITS);
        let mut bytes = [0; Self::LEN];
        let words = [self.elements, self.bytes, last];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    ///
    /// [`SignatureDecodeError::Digest`] if no signature has such a digest.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<SignatureDigest, SignatureDecodeError> {
        let word = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * i..8 * (i + 1)]);
            u64::from_le_bytes(word)
        };
        let (elements, bytes, last) = (word(0), word(1), word(2));
        let kind = match last >> HASH_BITS {
            0 => SignatureKind::Typed,
            1 => SignatureKind::Bytes,
            2 => SignatureKind::Mixed,
            _ => return Err(SignatureDecodeError::Digest),
        };
        let hash = last & MODULUS;
        if hash == MODULUS || elements > bytes || (elements == 0) != (bytes == 0) {
            return Err(SignatureDecodeError::Digest);
        }
        Ok(SignatureDigest { elements, bytes, hash, kind })
    }
}

impl SignatureDigest {
    /// The one type that the elements are of, as [`Signature::uniform`](super::Signature::uniform) gives it: by hash.
    pub fn uniform(&self) -> Option<Primitive> {
        // A pair such as `MPI_2INT` is two of one type.
        let (pairs, basics): (Vec<_>, Vec<_>) =
            Primitive::ALL.into_iter().partition(|p| p.is_pair());
        basics.into_iter().chain(pairs).find(|primitive| {
            let parts = primitive.parts().map(|(part, _)| Measure::of(part));
            let one = parts.fold(Measure::EMPTY, Measure::then);
            let copies = self.elements / one.elements;
            let all = SignatureDigest { kind: self.kind, ..one.times(copies).into() };
            copies > 0 && all == *self
        })
    }
}

/// For people, as `3 × MPI_DOUBLE`.
impl fmt::Display for SignatureDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SignatureDigest { elements, bytes, .. } = self;
        match self.uniform() {
            _ if *elements == 0 => f.write_str("nothing"),
            Some(primitive) => write!(f, "{} × {primitive}", bytes / primitive.size_bytes()),
            None => write!(f, "{elements} elements of several types in {bytes} bytes"),
        }
    }
}

impl From<Measure> for SignatureDigest {
    fn from(measure: Measure) -> SignatureDigest {
        SignatureDigest {
            elements: measure.elements,
            bytes: measure.bytes,
            hash: measure.hash(),
            kind: measure.kind(),
        }
    }
}

/// Why a message may not be received with a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureError {
    /// More bytes were sent than the receive has room for: truncation.
    TooLong {
        /// Bytes of the message.
        sent_bytes: u64,
        /// Bytes that the receive has room for.
        posted_bytes: u64,
    },
    /// The message fits, but its basic types are not a prefix of the receive's.
    Mismatch {
        /// Digest of what was sent.
        sent: SignatureDigest,
        /// Digest of all that the receive takes.
        posted: SignatureDigest,
    },
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { sent_bytes, posted_bytes } => {
                write!(f, "{sent_bytes} bytes were sent, but the receive takes {posted_bytes}")
            }
            Self::Mismatch { sent, posted } => write!(
                f,
                "{sent} was sent, and the receive takes {}{posted}",
                if sent.to_string() == posted.to_string() { "another sequence of " } else { "" }
            ),
        }
    }
}

impl std::error::Error for SignatureError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let digest = SignatureDigest {
            elements: 3,
            bytes: 24,
            hash: MODULUS - 1,
            kind: SignatureKind::Mixed,
        };
        assert_eq!(SignatureDigest::from_bytes(&digest.to_bytes()), Ok(digest));
    }

    #[test]
    fn a_mismatch_names_both_types() {
        let of =
            |primitive: Primitive, count| crate::Signature::of(&primitive.into()).digest(count);
        for primitive in Primitive::ALL {
            let mut parts = primitive.parts().map(|(part, _)| part);
            let first = parts.next().unwrap();
            let expected = if parts.all(|part| part == first) { first } else { primitive };
            assert_eq!(of(primitive, 3).uniform(), Some(expected));
        }
        assert_eq!(of(Primitive::DoubleInt, 2).to_string(), "2 × MPI_DOUBLE_INT");
        let (sent, posted) = (of(Primitive::Double, 3), of(Primitive::Int64, 3));
        let said = SignatureError::Mismatch { sent, posted }.to_string();
        assert_eq!(said, "3 × MPI_DOUBLE was sent, and the receive takes 3 × MPI_INT64_T");
        let mixed = SignatureDigest { hash: sent.hash ^ 1, ..sent };
        assert_eq!(mixed.to_string(), "3 elements of several types in 24 bytes");
        assert_eq!(of(Primitive::Double, 0).to_string(), "nothing");
    }

    #[test]
    fn impossible_digests_are_refused() {
        let digest =
            SignatureDigest { elements: 3, bytes: 24, hash: 7, kind: SignatureKind::Typed };
        let refused = |bytes: [u8; SignatureDigest::LEN]| {
            SignatureDigest::from_bytes(&bytes) == Err(SignatureDecodeError::Digest)
        };
        let mut kind = digest.to_bytes();
        kind[23] |= 0x60;
        assert!(refused(kind));
        assert!(refused(SignatureDigest { bytes: 2, ..digest }.to_bytes()));
        assert!(refused(SignatureDigest { elements: 0, ..digest }.to_bytes()));
        assert!(refused(SignatureDigest { hash: MODULUS, ..digest }.to_bytes()));
    }
}
