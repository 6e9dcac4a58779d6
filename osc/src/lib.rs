#![cfg_attr(not(doctest), doc = include_str!("../README.md"))]
//!
//! ## What is here
//!
//! A [`Window`] is one rank's end of a window. Operations ([`Window::put`], [`Window::get`], [`Window::accumulate`] and
//! their like) need an epoch, which synchronisation opens and closes ([`Window::lock`], [`Window::flush`],
//! [`Window::start`], fences). Each rank's memory is reached in one of these ways:
//!
//! | | who does the work | progress of the target |
//! |---|---|---|
//! | memory that the origin maps | the origin, by loads, stores and atomic instructions; puts and gets of a device's memory by that device, if the target's is page-locked for it (`near_device.rs`); the lock is a word beside the memory | none needed |
//! | memory of a device that the origin maps | the origin, by its device's engine (`device.rs`); the lock is a word in memory of the host | none needed, unless a message's accumulation of the same elements is under way |
//! | messages | the target's progress engine ([`Osc`]), as they arrive; on memory of a device step by step (`device_job.rs`) | whenever it is in a call, or its progress thread runs |
//! | changes in a [window of numbers](Flavor::Numbers) | the target's adapter, if all have one (`adapter.rs`) | none needed |
//!
//! Loads and messages do the same to the memory (`memory.rs`), and take the same lock, so ranks of one host and of others
//! can be mixed in a window.
//!
//! ## What holds
//!
//! - All accesses to a window's memory of the host are atomic accesses ([`gapless_mem::Atomics`]), or those of devices:
//!   whatever programs do at the same time, no access is a data race. A number that lies at a multiple of its length is
//!   read and written as a whole, but by devices.
//! - Accumulations are atomic for each element of a basic type: whoever changes elements has the mutexes of the stripes of
//!   the window that they lie in (`header.rs`). Those of one origin to one target happen in the order of their calls (MPI
//!   4.1 §12.7.2).
//! - When an operation returns it has ended at the origin, but for reads that are to end
//!   [later](ReadEnds::Later), and for what a device does meanwhile ([`Window::begin_transfer`]). [`Window::flush`],
//!   [`Window::unlock`] and fences end all, here and at the target.
//! - Threads share a window, and none is in the way of another while it waits (`epoch.rs`).
//! - Messages of peers are not trusted: places, lengths, elements and layouts are checked.
//! - Every wait ends when the process that it is for is lost, with an error that names it: the target, or whoever has the
//!   lock.
//!
//! This crate starts no threads. Whoever makes a window ([`Making`]) gives the collective calls by which its ranks learn what
//! they have to know of each other ([`Member`], [`Ranks`](gapless_bml::Ranks)), and drives the transports ([`Driver`]). The
//! safe API for programs is in the crate `gapless`.
//! Lengths and offsets are in bytes.

// What is where, each line using those below it alone:
//
// - a call of a rank: `operate.rs` with `runs.rs`, `span.rs`, `packed.rs` (what origins have), `adapter.rs`,
//   `near_device.rs`, `put_tasks.rs` (ways to the target), `send.rs` (messages); `flush.rs`, `groups.rs`, `notices.rs`;
//   `make.rs`, `parts.rs`, `numbers.rs`, `attached.rs`
// - the rank's end: `window.rs`: members, locks, fences; `epoch.rs`: which calls go together; `reading.rs`: answers
//   that are awaited, `reads.rs`: those that end at a flush, `landing.rs`: where they go
// - messages: `target.rs`: what they do; `core.rs`: in, out, and who waits; `tasks.rs`: accumulations as tasks of XTQ
// - what they change: `hosted.rs`: this process's part of a window; `peer.rs`, `layouts.rs`, `questions.rs`,
//   `changes.rs`: what is between two processes; `departed.rs`; `doubt.rs`: locks that are in doubt
// - work on bytes: `perform.rs`, on devices `device_job.rs`; `exposure.rs`, `device.rs`, `memory.rs`, `arithmetic.rs`,
//   `header.rs`: the lock; `wire.rs` draws the messages

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "has transports write into words that are never freed")]
mod adapter;
mod arithmetic;
mod attached;
mod changes;
mod core;
mod departed;
#[allow(unsafe_code, reason = "has engines work on memory of devices")]
mod device;
mod device_job;
mod doubt;
mod elements;
mod epoch;
mod error;
mod exposure;
mod flush;
mod groups;
mod header;
mod hosted;
#[allow(unsafe_code, reason = "writes answers to where whoever asked vouches for")]
mod landing;
mod layouts;
#[allow(unsafe_code, reason = "vouches for the memory of windows")]
mod make;
mod memory;
#[allow(unsafe_code, reason = "passes promises of callers on to memory of devices")]
mod near_device;
mod notices;
#[allow(unsafe_code, reason = "has adapters register the memory of windows")]
mod numbers;
mod operate;
mod own;
#[allow(
    unsafe_code,
    reason = "has engines pack the memory of origins, for which the caller vouches"
)]
mod packed;
mod parts;
mod peer;
mod perform;
#[allow(unsafe_code, reason = "a place may name memory of a device, which its maker vouches for")]
mod place;
mod profile;
mod put_tasks;
mod questions;
mod reading;
#[allow(
    unsafe_code,
    reason = "fills the memory of origins, for which the caller vouches until a read has ended"
)]
mod reads;
#[allow(
    unsafe_code,
    reason = "reads and writes the memory of origins, for which the caller vouches"
)]
mod runs;
mod send;
mod span;
mod target;
mod tasks;
#[cfg(test)]
#[allow(unsafe_code, reason = "vouches for memory of tests")]
mod tests;
#[allow(unsafe_code, reason = "passes promises of callers on to memory of devices")]
mod transfers;
mod unconfirmed;
mod users;
mod window;
mod wire;

pub use crate::core::{AM_TAG, Osc, WindowHandle};
pub use device::{DeviceExposure, DeviceMemory};
pub use elements::{check_apart, check_elements, operand, takes};
pub use error::{Fault, WindowError};
pub use exposure::{Exposure, WindowPart};
pub use header::{Header, Lock};
pub use make::Making;
pub use packed::{contiguous_span, contiguous_span_mut, room, unpack};
pub use parts::contiguous_parts;
pub use place::{Access, AccessKind, Place};
pub use profile::{Profile, WindowCall, WindowCalls, WindowProfile};
pub use reading::Reading;
pub use reads::{PendingRead, ReadEnds};
pub use tasks::{Accumulations, KernelHandle, TASKS_TAG, Tasks};
pub use transfers::PendingTransfer;
pub use window::{CallError, Driver, Flavor, Member, Window};
