//! An epidemic, simulated as GPU-EpiSimdemics does it: persons visit locations, and infect each other there. After Aji
//! et al., *MPI-ACC: An Integrated and Extensible Approach to Data Movement in Accelerator-Based Systems*, HPCC 2012,
//! §IV.
//!
//! - Persons and locations are dealt to ranks in turn. Each rank makes its own of a seed ([`population`]).
//! - *computeVisits*: each rank computes the visits of its persons, and sends each visit to the rank of its location.
//! - *computeInteractions*: each rank computes, for its locations, who gets which dose, on the CPU or on a device.
//! - Doses go back to the ranks of the persons, who are infected or not ([`health`]).
//!
//! How many visits a rank gets is not known beforehand, so each rank has a buffer of a fixed length for the visits of
//! every other one, a *fragment*. They are packed into one contiguous buffer in memory of the device. There are three
//! ways to do it ([`Scheme`]); all else is the same.
//!
//! Everything is in integers, and sums do not depend on their order. So any number of ranks, each scheme, and each
//! device come to what one process computes plainly ([`serial()`]), bit for bit.
#![deny(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "`Synthetic::check` bounds the numbers, and memory what is counted in it"
)]

mod agreement;
#[allow(unsafe_code, reason = "memory that kernels and messages use by its address")]
mod compute;
#[allow(unsafe_code, reason = "launches kernels on memory that its caller vouches for")]
mod cuda;
#[allow(unsafe_code, reason = "receives into, packs and copies memory that it owns")]
mod exchange;
pub mod health;
#[allow(unsafe_code, reason = "kernels on memory that their caller vouches for")]
mod host;
#[allow(unsafe_code, reason = "launches kernels on memory that its caller vouches for")]
mod opencl;
mod options;
pub mod population;
mod serial;
#[allow(unsafe_code, reason = "launches kernels on memory that it owns")]
mod simulation;

pub use agreement::Refused;
pub use compute::DeviceKind;
pub use options::{Options, Scheme};
pub use serial::serial;
pub use simulation::{Phase, Summary, run};

/// Why it could not be simulated.
pub type Failure = Box<dyn std::error::Error>;
