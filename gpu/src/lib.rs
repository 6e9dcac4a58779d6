#![cfg_attr(any(feature = "cuda", feature = "opencl"), doc = include_str!("../README.md"))]
//!
//! ## What is here
//!
//! - [`Accelerators`], [`OnDemand`]: devices and their engines, opened when a message first needs them; [`space_at`]: in
//!   whose memory an address lies;
//! - [`StreamComm`] (feature `cuda`): collectives that a CUDA stream carries out. Kernels of all ranks wait for each other,
//!   and no host has a part in it. Its methods are the calls;
//! - [`CudaLauncher`], [`OpenClLauncher`]: kernels of users as tasks of `gapless-xtq`; [`GpuLane`]: a ring that kernels put
//!   tasks into.
//!
//! This crate knows no matching and no launcher. Whoever has a communicator gives its collective calls
//! ([`StreamRanks`]). The safe API for programs is in the crate `gapless`.
#![deny(unsafe_code)]
#![cfg_attr(
    not(all(feature = "cuda", feature = "opencl")),
    allow(rustdoc::broken_intra_doc_links, reason = "what a feature has is named")
)]

#[cfg(any(feature = "cuda", feature = "opencl"))]
#[allow(unsafe_code, reason = "passes on the promises that engines take")]
mod on_demand;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "launches kernels on memory that the caller vouches for")]
mod stream;
#[allow(unsafe_code, reason = "launches kernels on memory that those vouch for who register them")]
mod tasks {
    #[cfg(feature = "cuda")]
    pub(crate) mod cuda;
    #[cfg(feature = "cuda")]
    pub(crate) mod lane;
    #[cfg(feature = "opencl")]
    pub(crate) mod opencl;
}

#[cfg(any(feature = "cuda", feature = "opencl"))]
pub use on_demand::{Accelerators, DeviceChanges, OnDemand, space_at};
#[cfg(feature = "cuda")]
pub use stream::{
    Blocking, Registered, StreamBlock, StreamBuffer, StreamComm, StreamError, StreamMemory,
    StreamOptions, StreamPartitioned, StreamPartitions, StreamPlan, StreamRanks, StreamWay,
};
#[cfg(feature = "opencl")]
pub use tasks::opencl::OpenClLauncher;
#[cfg(feature = "cuda")]
pub use tasks::{cuda::CudaLauncher, lane::GpuLane};
