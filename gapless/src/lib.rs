//! Gapless: non-contiguous messages between processes, wherever the data lies.
#![deny(unsafe_code)]

#[cfg(feature = "cli")]
#[allow(unsafe_code, reason = "prepares a child process between fork and exec")]
pub mod launch;
mod pmi;
#[allow(unsafe_code, reason = "takes over the descriptor that the launcher left")]
pub mod wireup;
