//! Synchronisation that several crates of Gapless need; it depends on none of them.
//!
//! - [`Gate`] is a mutex that costs the thread that made it two plain stores until another thread wants it: the lock
//!   of a world.
//! - [`membarrier`] is a memory barrier that one thread executes for all others: the gate and the sleep handshake of
//!   shared memory (`btl-sm`) rely on it.
//! - [`Followers`] decides which of several waiting threads polls; the others sleep, each on its [`Parker`].
//!
//! The first two are for Linux. loom explores the gate and the followers (`cargo xtask test` runs it, and the comments
//! at the end of `gate.rs` and `followers.rs` have the command).
#![deny(unsafe_code)]

mod followers;
#[allow(unsafe_code, reason = "a lock: hands out what it guards")]
mod gate;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "membarrier(2)")]
pub mod membarrier;
mod parker;

pub use followers::{Followers, Ticket};
pub use gate::{Gate, Pass};
pub use parker::Parker;
