#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! - [`Space`]: which memory (host, pinned, a CUDA device, OpenCL, …);
//! - [`Region`]: a contiguous span of bytes in a space; it does not own them;
//! - [`Lease`]: a region and the owner that keeps its memory alive;
//! - [`Lasting`]: memory that lives long, and registrations of it that end before it goes;
//! - [`Words`]: memory that other processes write meanwhile, as atomic words; [`Atomics`]: the same as bytes and elements;
//! - [`Device`]: the operations of a memory's owner: allocate, copy, order, export to and import from other
//!   processes, register host memory;
//! - [`Completion`]: the end of asynchronous work, for every device; [`Outstanding`]: work that is waited for if the
//!   next call panics;
//! - [`Worker`]: what stays on an accelerator and runs what it finds in memory;
//! - [`abort`], [`abort_on_unwind`]: the end of the process where memory cannot be taken back;
//! - [`HostDevice`]: plain memory; [`fake::FakeDevice`]: a pretend accelerator for tests, whose memory faults when
//!   the CPU touches it.
//!
//! Which way data goes: a [`Device`] allocates a [`Region`], a [`Lease`] keeps it alive, layers above pass regions down to
//! engines, and those have devices copy and give back a [`Completion`]. `testkit` (a feature) has devices for tests.
//!
//! This crate knows nothing of datatypes, peers or messages. Addresses and lengths are in bytes.

// Memory is touched in `access.rs`, `words.rs` and `atomics.rs` alone.

#![deny(unsafe_code)]

mod abort;
#[allow(unsafe_code, reason = "the one place that touches memory by address")]
mod access;
#[allow(unsafe_code, reason = "views memory as atomics")]
mod atomics;
#[allow(unsafe_code, reason = "declares the contract of work in flight")]
mod completion;
#[allow(unsafe_code, reason = "declares the unsafe methods that devices implement")]
mod device;
#[allow(unsafe_code, reason = "maps memory that the CPU must not touch")]
pub mod fake;
#[allow(unsafe_code, reason = "implements Device's unsafe methods for host memory")]
mod host;
mod lasting;
#[allow(unsafe_code, reason = "declares constructors that take a promise")]
mod lease;
mod pci;
mod region;
mod space;
#[cfg(feature = "testkit")]
#[allow(unsafe_code, reason = "hands the promises of callers on to a device")]
pub mod testkit;
#[allow(unsafe_code, reason = "touches words by address")]
mod word;
#[allow(unsafe_code, reason = "views memory as atomics")]
mod words;
#[allow(unsafe_code, reason = "declares the contract of workers")]
mod worker;

pub use abort::{abort, abort_on_unwind};
pub use access::{copy, fill, prefetch_to_read, prefetch_to_write, read, write};
pub use atomics::{Atomics, Number, Runs, Sums};
pub use completion::{Completion, Outstanding, Pending};
pub use device::{Abilities, Device, DeviceError, DeviceProperties, DmaBuf, Export};
pub use host::HostDevice;
pub use lasting::Lasting;
pub use lease::Lease;
pub use pci::PciAddress;
pub use region::{OutOfRange, Region};
pub use space::Space;
pub use word::{WORD_BYTES, exchange_word, load_word};
pub use words::Words;
pub use worker::{Worker, WorkerCode, WorkerFunction, WorkerLimits};
