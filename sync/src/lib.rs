//! Synchronisation that several crates of Gapless need; it depends on none of them.
//!
//! - [`Gate`] is a mutex that costs the thread that made it two plain stores until another thread wants it: the lock
//!   of a world.
//! - [`membarrier`] is a memory barrier that one thread executes for all others: the gate and the sleep handshake of
//!   shared memory (`btl-sm`) rely on it.
//!
//! Both are for Linux. loom explores the gate (`cargo xtask test` runs it, and the comment at the end of `gate.rs`
//! has the command).
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "a lock: hands out what it guards")]
mod gate;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "membarrier(2)")]
pub mod membarrier;

pub use gate::{Gate, Pass};
