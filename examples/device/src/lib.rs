//! A device outside of Gapless, as the crate of another vendor's GPU would be: it uses the contracts `gapless-mem`
//! ([`Device`](gapless_mem::Device)) and `gapless-engine` ([`Engine`](gapless_engine::Engine)), and no crate of
//! Gapless knows it. Programs hand it over by one line, [`Toy::open`] and [`ToyEngine`] below.
//!
//! The accelerator is a thread: `queue` is its one queue of work. Others name its memory by addresses that no processor
//! maps. `device` and `engine` implement the contracts.
//!
//! ```
//! use gapless::{Datatype, Primitive, View, ViewMut, World};
//! use gapless_example_device::{Toy, ToyEngine};
//! use gapless_mem::Device;
//! use std::sync::Arc;
//!
//! let toy = Toy::open(0)?;
//! let engine = Arc::new(ToyEngine::new(&toy));
//! let world = World::builder().engine(engine).device(toy.clone()).init()?;
//!
//! let bytes = Datatype::from(Primitive::Byte).commit()?;
//! let mut there = world.alloc_device(toy.space(), 3)?;
//! let mut here = [0u8; 3];
//! world.self_comm().scope(|s| {
//!     let _ = s.irecv(there.view_mut(0, &bytes, 3)?, 0, 0)?;
//!     let _ = s.isend(&[1u8, 2, 3], 0, 0)?;
//!     Ok(())
//! })?;
//! world.self_comm().scope(|s| {
//!     let _ = s.irecv(&mut here, 0, 0)?;
//!     let _ = s.isend(there.view(0, &bytes, 3)?, 0, 0)?;
//!     Ok(())
//! })?;
//! assert_eq!(here, [1, 2, 3]);
//! # drop(there);
//! world.finalize()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "promises what it does with memory")]
mod device;
#[allow(unsafe_code, reason = "hands the promises of callers on to the host's engine")]
mod engine;
#[allow(unsafe_code, reason = "promises that work is over when it says so")]
mod queue;

pub use device::Toy;
pub use engine::ToyEngine;
