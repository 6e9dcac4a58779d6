//! Synchronisation that more than one crate of Gapless needs, and that knows none of them.
//!
//! - [`Gate`] is a mutex that costs the thread that made it two plain stores until another thread wants it:
//!   the lock of a world.
//! - [`membarrier`] is the memory barrier that one thread makes all others pay: the gate and the sleep
//!   handshake of shared memory (`btl-sm`) stand on it.
//!
//! Both are for Linux. The gate is explored by loom (`cargo xtask test` does it, and the comment at the end
//! of `gate.rs` has the command).
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "a lock: hands out what it guards")]
mod gate;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "membarrier(2)")]
pub mod membarrier;

pub use gate::{Gate, Pass};
