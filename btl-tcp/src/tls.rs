//! Encryption: TLS 1.3 by rustls, with raw public keys (RFC 7250), AES-128-GCM and X25519.
//!
//! It begins when both ends have proved that they know the job's secret: whoever does not never reaches this code. The
//! caller is the client. Each end has an Ed25519 key that follows from the secret, its rank and its id ([`keys`]), so
//! each knows which key the other must have, and takes no other. From the first byte behind the proofs on there is
//! nothing that is not sealed, the welcome included.
//!
//! rustls makes the keys of the connection ([`handshake`]); it then hands them over, as it does to kernels that seal by
//! themselves, and records are sealed and opened by rustls' own record protection, straight out of slots and from where
//! they were read ([`records`]). So each byte is copied once at either end, and buffers are bounded.

mod handshake;
mod keys;
mod records;

pub(crate) use handshake::{Handshake, Progress, Refused};
pub(crate) use records::Records;

/// Whether connections can be encrypted.
pub(crate) const IS_BUILT: bool = true;
