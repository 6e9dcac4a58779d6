#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! An [`Engine`] packs, unpacks and moves data described by a committed layout, in any memory; a [`Reducer`] combines
//! elements of any number of buffers by an [`Op`]: one of MPI's, or a user's. [`HostEngine`] implements both for memory
//! that the CPU may touch ([`ThreadedHostEngine`]: with threads), on the convertor of `gapless-dtype`. `GpuEngine` of
//! `gapless-dtype-cuda` implements both for memory of CUDA and OpenCL devices.
//!
//! [`Typed`] is a user's buffer as engines see it: a region, a layout and a count, checked once to fit together.
//! Every call works on any byte range of the packed stream, so a pipeline can pass its fragments directly. Every call
//! returns a [`Completion`](gapless_mem::Completion).
//!
//! This crate knows no vendor and no peer. Lengths and offsets are in bytes.
//!
//! A column is added to a contiguous buffer, in place:
//!
//! ```
//! # use gapless_dtype::{Datatype, Primitive};
//! # use gapless_engine::{HostEngine, ReduceOp, Reducer, Typed};
//! # use gapless_mem::Region;
//! let double = Datatype::from(Primitive::Double);
//! let column = Datatype::vector(3, 1, 2, &double)?.commit()?;
//! let matrix: Vec<u8> = (0..6).flat_map(|x| f64::from(x).to_ne_bytes()).collect();
//! let mut total: Vec<u8> = [10.0f64; 3].into_iter().flat_map(f64::to_ne_bytes).collect();
//! let target = Typed::new(Region::of_mut(&mut total), 0, &double.commit()?, 3)?;
//! let sources = [target.clone(), Typed::new(Region::of(&matrix), 0, &column, 1)?];
//! // SAFETY: both buffers live through the call, and only the target is written, which is the first source.
//! unsafe { HostEngine.reduce_into(&ReduceOp::Sum.into(), &sources, &target, 0..24, &[]) }?;
//! let sums = total.chunks(8).map(|x| f64::from_ne_bytes(x.try_into().unwrap()));
//! assert!(sums.eq([10.0, 12.0, 14.0]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// What is where: `engine` and `reducer` are the traits; `host` and `reduce_host` implement them for host memory,
// `combine` has the loops over elements and `packed` the short way to them, `op` and `user_op` the operations.
// `threaded_host` is the host's engine with threads, which `thread_pool` has. `method` has the checks that all reducers
// share, `between` work on memories of two engines.

#![deny(unsafe_code)]

mod between;
mod combine;
#[allow(unsafe_code, reason = "declares the unsafe methods that engines implement")]
mod engine;
mod error;
#[allow(unsafe_code, reason = "hands checked regions to the convertor's raw loops")]
mod host;
mod method;
mod op;
#[allow(unsafe_code, reason = "gives loops the addresses of slices")]
mod packed;
#[allow(unsafe_code, reason = "combines elements that are given by address")]
mod reduce_host;
#[allow(unsafe_code, reason = "declares the unsafe method that reducers implement")]
mod reducer;
#[cfg(feature = "testkit")]
#[allow(unsafe_code, reason = "hands the promises of callers on to an engine")]
pub mod testkit;
mod thread_pool;
#[allow(unsafe_code, reason = "hands the promises of callers on to the host's engine, in parts")]
mod threaded_host;
mod typed;
mod user_op;

pub use between::first_willing;
pub use engine::{Engine, REACHED_BYTES_MIN};
pub use error::{EngineError, Operand};
pub use host::HostEngine;
pub use method::Method;
pub use op::{Op, ReduceOp};
pub use packed::PackedFold;
pub use reducer::Reducer;
pub use threaded_host::ThreadedHostEngine;
pub use typed::{DevicePages, PagesOf, Typed, index_bytes};
pub use user_op::{UserOp, Vectors};
