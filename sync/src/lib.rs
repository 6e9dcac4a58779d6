#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! - [`Gate`] is a mutex that costs the thread that made it two plain stores until another thread wants it: the lock
//!   of a world.
//! - [`membarrier`] is a memory barrier that one thread executes for all others: the gate and the sleep handshake of
//!   shared memory (`btl-sm`) rely on it.
//! - [`Fences`] are the two sides of falling asleep without missing what was published.
//! - [`Asleep`] counts the threads that sleep, for those that publish something without a lock.
//! - [`mailboxes`] are shared memory in which the ranks of a host publish short entries for each other.
//! - [`Followers`] decides which of several waiting threads polls; the others sleep, each on its [`Parker`].
//!
//! The first two are for Linux. loom explores the gate, the mailboxes, the followers and the count of sleepers (`cargo
//! xtask test` runs it, and the comments at the end of `gate.rs` and `followers.rs` have the command).
#![deny(unsafe_code)]

mod asleep;
mod fences;
mod followers;
#[allow(unsafe_code, reason = "a lock: hands out what it guards")]
mod gate;
pub mod mailboxes;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "membarrier(2)")]
pub mod membarrier;
mod parker;

pub use asleep::{Asleep, Sleeper};
pub use fences::Fences;
pub use followers::{Followers, LeaderId};
pub use gate::{Gate, Pass, this_thread};
pub use parker::Parker;
