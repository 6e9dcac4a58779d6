#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! After LeBeane et al., *Extended Task Queuing: Active Messages for Heterogeneous Systems*, SC 2016. A process
//! registers functions, kernels and queues under indices that all processes agree on. Another one [puts](Xtq::put) a
//! packet of 64 bytes, which names such an index, with arguments and a payload. The target rewrites the indices to its
//! own addresses, and the task runs, without a receive. `docs/xtq.md` in the repository has the whole contract.
//!
//! - [`packet`]: the packet, drawn once; [`tables`]: what an index stands for at the target; [`rewrite`]: the packet as a
//!   task, a pure function that is the same for every back end;
//! - [`Xtq`]: registrations, puts, receive buffers, progress; [`Put`], [`PutHandle`], [`Signal`];
//! - [`Payload`]: in one piece, or gathered from several; [`Gather`]: from what a layer above knows;
//! - [`Function`] and [`Task`]: tasks on the CPU; [`Kernel`] and [`Launcher`]: tasks on an accelerator;
//! - `host`: the back end that works over any transport of [`gapless_bml`];
//! - [`device`]: the back end in which a worker on the target's accelerator takes packets out of memory itself; by
//!   itself, or behind [`Xtq`] ([`Xtq::attach_worker`], [`Kernel::of_worker`]).
//!
//! The crate `gapless-xtq-sim` has one more back end: a model of the machine that the paper was evaluated on.
//!
//! Nothing here knows matching, datatypes or vendors. Lengths are in bytes.
#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod backend;
#[cfg(not(loom))]
mod buffer;
#[cfg(not(loom))]
pub mod device;
/// The part of it that loom explores.
#[cfg(loom)]
#[path = "device/state.rs"]
mod device_state;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod gather;
#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "declares what launches kernels")]
mod launcher;
pub mod packet;
#[cfg(not(loom))]
mod put;
#[cfg(not(loom))]
pub mod rewrite;
#[cfg(all(not(loom), any(test, feature = "testkit")))]
pub mod sample;
#[cfg(not(loom))]
mod signal;
pub mod tables;
#[cfg(not(loom))]
mod task;
#[cfg(not(loom))]
mod wire;
#[cfg(not(loom))]
mod within;

#[cfg(not(loom))]
pub use {
    buffer::{Payload, TargetBuffer},
    error::{Refusal, TaskError, Waited, XtqError},
    gather::{Gather, GatherInto},
    host::{
        ANSWER_MAX, Config, DirectPut, FarRing, Granted, PutAnswer, QueueOptions, RefusedTask,
        Tried, Xtq,
    },
    launcher::{GroupLimits, Kernel, KernelTask, Launcher},
    put::{Put, PutHandle, Retry},
    signal::Signal,
    task::{Function, Task},
};
