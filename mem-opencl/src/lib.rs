//! OpenCL as a [`Device`](gapless_mem::Device): buffers, copies, events as completions, programs and launches.
//!
//! The OpenCL library is opened when it is first asked for; a process without one starts normally and is
//! told so by a typed error ([`OpenClError`]). Memory is `cl_mem` buffers: a region's address is the handle,
//! its offset counts from the buffer's begin. A device either makes a context and a queue of its own
//! ([`OpenClDevice::open`]) or works in the user's ([`OpenClDevice::adopt`]); its queue is in order, and so
//! work of ours is ordered without the CPU. OpenCL has no memory that other processes can map and no
//! completion that they can see; those calls keep answering `Unsupported`.
//!
//! Layers: [`sys`] holds handles and raw calls, each turned into a result; [`OpenClDevice`] is the rest.
//! Units are bytes. Read first: OpenCL 1.2 §5.2 (buffers), §5.9 (events), §A.2 (threads).

mod copy;
mod detect;
mod device;
mod error;
mod event;
mod launch;
pub mod sys;

pub use detect::{DeviceInfo, detect};
pub use device::OpenClDevice;
pub use error::OpenClError;
pub use launch::{Argument, Program};
