//! Handles, constants and the status of the ABI that the library has: the standard's, or MPICH's.
#![allow(dead_code, reason = "all constants of MPI, whether they are used or not")]

use std::ffi::c_int;

#[cfg(not(feature = "mpich"))]
mod abi;
#[cfg(feature = "mpich")]
mod mpich;

#[cfg(not(feature = "mpich"))]
pub(crate) use abi::{REQUEST_OVER, RawHandle, Status, handle, number, type_index};
#[cfg(feature = "mpich")]
pub(crate) use mpich::{REQUEST_OVER, RawHandle, Status, handle, number, type_index};

include!(concat!(env!("OUT_DIR"), "/constants.rs"));

/// The first handle of an object that a program made; predefined ones are elsewhere, in both ABIs.
pub(crate) const MADE: u32 = 0x7000_0000;
