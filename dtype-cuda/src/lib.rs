#![cfg_attr(feature = "opencl", doc = include_str!("../README.md"))]
//!
//! ## What is here
//!
//! A [`GpuEngine`] is a [`gapless_engine::Engine`] for one device. Like the host's engine it takes a
//! [`Typed`](gapless_engine::Typed) buffer and a byte range of its packed stream; it moves the bytes with kernels of
//! the device. It is a [`gapless_engine::Reducer`], too. Kernels reach packed data in the device's memory, in that of a
//! peer or of another process, and in pinned host memory. Packed data anywhere else in host memory goes through a chunk
//! on the device.
//!
//! `examples/gpu_pack.rs` is a whole program, on CUDA and OpenCL: a stream of its own, a budget, every byte
//! compared (`cargo run --release -p gapless-dtype-cuda --example gpu_pack`).
//!
//! ## How a call finds its kernel
//!
//! ```text
//!  indices ────────────────────────────────────────────────────────────► a kernel reads them
//!  Layout, count ──► Form ─┬─ closed: a grid, a triangle, one contiguous span ───────────────► launch arithmetic
//!                          └─ a list, or anything ──► plan on the device? ── yes ────►   (gapless-kernels)
//!                                                          │ no                               │
//!                                                          ▼                                  ▼
//!                                      written in pieces, each uploaded, and the       a lane: a stream of
//!                                      kernel for its part launched behind it          ours, the caller's,
//!                                                                                      an OpenCL queue
//! ```
//!
//! - *Closed forms* need no preparation and no memory: their numbers are arguments of the kernel.
//! - *Plans* are made at a layout's first use, or by [`GpuEngine::prepare`], and kept in device memory up to
//!   [`Config::plan_bytes`]; the least recently used leave first. They hold displacements relative to the layout, so
//!   every buffer and count uses the same plan.
//! - *Any range* of the stream is one launch (sizes beyond 2³¹ words, and few long blocks, take more): fragments of a
//!   message need nothing else.
//! - *A budget* ([`GpuEngine::with_budget`]) bounds the blocks of every launch, because the application may be using
//!   the GPU (Wu et al. 2016, §5.3).
//! - *The caller's stream*: `GpuEngine::on` (CUDA) enqueues there and records nothing. In OpenCL it is the queue of
//!   the space that the device adopted.
//! - *Many requests*: [`GpuEngine::batch`] fuses small ones into few launches.
//!
//! Completions are the device's events; the device itself waits for `after` if that is its own work. Memory that work
//! uses is not freed before the work has ended.
//!
//! Read first: Wu et al. 2016, §3 (DEVs, work units) and §5; `gapless-kernels` (families, plans). This crate
//! knows no peer and no message. Units: bytes.

// What is where, for who reads the code.
//
// - `form`, `plan`, `cache`: pure. How the bytes of a layout are found; what a plan holds and how it is written;
//   which plans are kept.
// - `described`: forms and plans for kernels that others launch.
// - `engine`, `batch`, `cuda::stream`: the calls. `shared`: how one task gets onto a lane; `between`: the same from
//   layout to layout. `report`: what that would launch. `peers`: what the copy engine does between two GPUs, by
//   `nest`, `rows` and `triangle`, which are pure. `recent`: recent results for the same layouts.
// - `pages`: instances at indices that are data, which kernels read; `index_report`: what kernels say of bad ones.
// - `gathered`: short work that waits for company, and goes in one launch.
// - `lanes`, `memory`, `staging`, `plans`: which lane comes next, and who keeps memory alive.
// - `prepare`, `staged`: pipelines, of a plan's pieces and of chunks to and from the host. `writers`: the threads
//   that write plans.
// - `reduce`: reductions, where the buffers lie or in chunks.
// - `cuda::worker`: the worker of XTQ, a kernel that stays; `ledger`: blocks of kernels that stay or wait, of all
//   processes.
// - `accelerator`: what a vendor's device has to do; `cuda` and `opencl` do it.

#![deny(unsafe_code)]
#![cfg_attr(
    not(any(feature = "cuda", feature = "opencl")),
    allow(dead_code, reason = "an engine without a vendor is of no use, and must compile")
)]

#[allow(unsafe_code, reason = "declares what launches and copies need")]
mod accelerator;

#[allow(unsafe_code, reason = "launches kernels by address")]
mod batch;
#[allow(unsafe_code, reason = "launches kernels by address")]
mod between;
#[allow(unsafe_code, reason = "hands work over by address")]
mod by_worker;
mod cache;
mod config;
#[cfg(feature = "cuda")]
mod cuda;
mod described;
#[allow(unsafe_code, reason = "implements Engine's unsafe methods")]
mod engine;
mod form;
#[allow(unsafe_code, reason = "launches kernels by address, and answers for their end")]
mod gathered;
#[allow(unsafe_code, reason = "reads what kernels wrote, and answers for work")]
mod index_report;
mod lanes;
mod ledger;
#[allow(unsafe_code, reason = "frees device memory")]
mod memory;
mod nest;
#[cfg(feature = "opencl")]
mod opencl;
#[allow(unsafe_code, reason = "launches kernels and copies by address")]
mod pages;
#[allow(unsafe_code, reason = "copies by address")]
mod peers;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "answers for the end of commands")]
mod persistent;
mod plan;
mod plans;
#[allow(unsafe_code, reason = "copies plans to the device")]
mod prepare;
mod recent;
#[allow(
    unsafe_code,
    reason = "implements Reducer's unsafe method, and launches kernels by address"
)]
mod reduce;
mod report;
mod rows;
#[allow(unsafe_code, reason = "launches kernels by address")]
mod shared;
#[allow(unsafe_code, reason = "launches kernels and copies by address")]
mod staged;
mod staging;
#[cfg(test)]
#[allow(unsafe_code, reason = "implements lanes, which take work by address")]
mod tests;
mod triangle;
mod writers;

pub use batch::BatchItem;
pub use by_worker::WORKER_COPY_MAX;
pub use cache::PlanStatistics;
pub use config::{Config, Copied, Launched, Workers};
#[cfg(feature = "cuda")]
pub use cuda::{CudaPersistent, CudaWorker, LayoutError, OnStream, WorkerError, WorkerLayout};
pub use described::{Described, OrderedSides, in_one_order, in_tiles};
pub use engine::GpuEngine;
pub use ledger::{
    Ask, Claim, Holder, Holding, LedgerError, Reservation, ledger_folder, reserved, reserved_here,
};
