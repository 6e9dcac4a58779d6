//! The GPU engine against the oracle: every byte of both sides of every move, gaps and surroundings
//! included, compared with what the typemap says.
//!
//! One suite (`suite`, `refusals`) runs over the host's engine, over the GPU engine on whatever OpenCL
//! device there is (in CI that is PoCL, on the host's processor; without it the tests are skipped aloud,
//! and fail where the variable `CI` is set) and over every CUDA device (skipped aloud where there is
//! none). What only GPU engines have is tested in `kernels`, `pages`, `plans`, `batch`, `reductions` and `huge`; `cuda`
//! adds the memories that only CUDA has, `copies` the copy worker, `worker` that of XTQ.
//!
//! `GAPLESS_SEED` repeats a run; `GAPLESS_ORACLE_PERCENT=400` tries four times as much (per cent).
//!
//! The binary needs nothing beside it, so it can be carried to a machine that has a GPU and no cargo.

#![cfg_attr(
    not(all(feature = "cuda", feature = "opencl")),
    allow(dead_code, reason = "some of the workbench is for one of the two only")
)]

#[cfg(any(feature = "cuda", feature = "opencl"))]
mod batch;
mod bench;
#[cfg(feature = "cuda")]
mod copies;
#[cfg(feature = "cuda")]
mod cuda;
mod directed;
mod faults;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod gpu;
mod host;
#[cfg(feature = "cuda")]
mod huge;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod kernels;
mod memory;
#[cfg(feature = "opencl")]
mod opencl;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod pages;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod plans;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod reductions;
mod refusals;
mod sample;
mod seed;
mod suite;
#[cfg(feature = "cuda")]
mod turn;
#[cfg(feature = "cuda")]
mod worker;
