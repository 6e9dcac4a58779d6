//! OpenCL as a [`Device`](gapless_mem::Device): buffers, copies, events as completions, programs and launches.
//!
//! The OpenCL library is opened at the first use. A process without one starts normally and gets a typed error
//! ([`OpenClError`]). Memory is `cl_mem` buffers: a region's address is the handle, its offset counts from the
//! buffer's start. A device either makes a context and a queue of its own ([`OpenClDevice::open`]) or works in the
//! user's ([`OpenClDevice::adopt`]). Its queue is in order, so our work is ordered without the CPU. OpenCL has no
//! memory that other processes can map and no completion that they can see; those calls answer `Unsupported`.
//!
//! ```
//! use gapless_mem::{Device, Region};
//! use gapless_mem_opencl::OpenClDevice;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = match OpenClDevice::open(0) {
//!     Ok(device) => device,
//!     Err(why) => return Ok(println!("{why}")),
//! };
//! let (out, mut back) = ([7u8; 64], [0u8; 64]);
//! let there = device.allocate(64)?;
//! // SAFETY: `out` and `there` live until the copies have ended, and nothing else touches them.
//! let copied = unsafe { device.copy(there, Region::of(&out), &[]) }?;
//! // SAFETY: as above, and for `back`; this copy comes after that one.
//! unsafe { device.copy(Region::of_mut(&mut back), there, &[copied]) }?.wait()?;
//! assert_eq!(back, out);
//! // SAFETY: all work on it has ended.
//! unsafe { device.free(there) }?;
//! # Ok(())
//! # }
//! ```
//!
//! Layers: [`sys`] holds handles and raw calls, each turned into a result; [`OpenClDevice`] is the rest. Units are
//! bytes. Read first: OpenCL 1.2 §5.2 (buffers), §5.9 (events), §A.2 (threads).

mod apart;
mod asked;
mod copy;
mod counts;
mod detect;
mod device;
mod error;
mod event;
mod finish;
mod foreign;
mod known;
mod launch;
mod programs;
pub mod sys;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use counts::{Count, Counts, counts};
pub use detect::{DeviceInfo, detect};
pub use device::OpenClDevice;
pub use error::OpenClError;
pub use launch::{Argument, Grid, Program};
pub use sys::in_background;
