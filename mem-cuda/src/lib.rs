#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! The driver library is opened at run time by [`CudaDriver::load`]. A machine without one starts
//! normally: the error says so in one line, and nothing else of this crate can be reached.
//!
//! - [`CudaDevice`]: allocate, copy (one- and two-dimensional, in all directions), register host
//!   memory, export and import memory and completions, find out where an address lies;
//! - [`Stream`], [`Mark`]: order work and measure it; completions are pooled events;
//! - [`Graph`]: work that was captured of a stream, to be launched again;
//! - [`StreamGate`]: a stream waits for the host, without a thread that waits;
//! - [`Module`], [`Function`], [`Grid`], [`Argument`]: launch kernels; [`compile()`]: from their source, by NVRTC;
//! - [`PinnedBuffer`]: page-locked host memory from a pool;
//! - [`Mps`]: whether processes share the device or take turns.
//!
//! What the calls cost: `cargo run --release -p gapless-mem-cuda --example costs`.
//!
//! Calls leave the calling thread's current context as it was, so users of the CUDA runtime need not know of this
//! crate. After a sticky error (an illegal address in any kernel of the process, say) the process has lost the
//! device: every later call gives the first such error.
//!
//! This crate knows nothing of datatypes, peers or messages. Addresses and lengths are in bytes.

// What is where: `driver` (raw calls → `Result`) · `context` · `event`, `stream`, `gate` (order) · `copies` · `device`
// · `ipc`, `key`, `vmm` (other processes) · `pinned`, `register` (host memory) · `attributes` (where an address lies) ·
// `peer`, `reach` (who may use it) · `mps` · `module`, `compile` (kernels) · `graph` · `error`.

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "calls the driver's C functions")]
mod driver;

mod attributes;
#[allow(unsafe_code, reason = "calls the compiler's C functions")]
mod compile;
#[allow(unsafe_code, reason = "gives back to a thread the context it had")]
mod context;
#[allow(unsafe_code, reason = "declares and keeps the obligations of copies by address")]
mod copies;
#[allow(unsafe_code, reason = "implements Device's unsafe methods")]
mod device;
mod direct;
mod error;
#[allow(unsafe_code, reason = "vouches for what events say of work")]
mod event;
#[allow(unsafe_code, reason = "writes words that streams wait for")]
mod gate;
#[allow(unsafe_code, reason = "declares what launching a graph needs")]
mod graph;
#[allow(unsafe_code, reason = "unmaps what other processes exported")]
mod ipc;
mod key;
#[allow(unsafe_code, reason = "declares what a launch needs")]
mod module;
mod mps;
mod peer;
#[allow(unsafe_code, reason = "frees page-locked memory")]
mod pinned;
mod reach;
#[allow(unsafe_code, reason = "registers memory by address")]
mod register;
#[allow(unsafe_code, reason = "adopts streams of the user")]
mod stream;
#[allow(unsafe_code, reason = "maps and unmaps device memory")]
mod vmm;

pub use attributes::{PointerFacts, page_locked_for, space_at};
pub use compile::compile;
pub use device::{CudaDevice, CudaDriver};
pub use error::CudaError;
pub use event::CudaPending;
pub use gate::StreamGate;
pub use graph::Graph;
pub use module::{Argument, Function, FunctionProperties, Grid, Module, PARAMETERS_MAX};
pub use mps::Mps;
pub use pinned::PinnedBuffer;
pub use stream::{Mark, Stream};
