//! Encryption: TLS 1.3 by rustls, with raw public keys (RFC 7250), AES-128-GCM and X25519.
//!
//! TLS begins when both ends have proved that they know the job's secret, so nobody else ever reaches this code. The
//! caller is the client. Each end has an Ed25519 key that is derived from the secret, its rank and its id ([`keys`]).
//! So each end knows which key the other must have, and accepts no other. Everything after the handshake is encrypted,
//! the welcome included.
//!
//! rustls does the handshake ([`handshake`]) and then hands the keys of the connection over, as it does for TLS in
//! kernels. Its record protection seals records straight from slots, and opens them where they were read ([`records`]).
//! So each byte is copied once at either end, and buffers are bounded.

mod handshake;
mod keys;
mod records;

pub(crate) use handshake::{Handshake, Progress, Refused};
pub(crate) use records::Records;

/// Whether connections can be encrypted.
pub(crate) const IS_BUILT: bool = true;
