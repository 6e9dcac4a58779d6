#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! The OpenCL library is opened at the first use. A process without one starts normally and gets a typed error
//! ([`OpenClError`]). Memory is `cl_mem` buffers: a region's address is the handle, its offset counts from the
//! buffer's start. A device either makes a context and a queue of its own ([`OpenClDevice::open`]) or works in the
//! user's ([`OpenClDevice::adopt`]). Its queue is in order, so our work is ordered without the CPU. OpenCL has no
//! memory that other processes can map and no completion that they can see; those calls answer `Unsupported`.
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
