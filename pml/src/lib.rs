#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! A [`Pml`] is one process's end of all its messages. [`Pml::isend`] and [`Pml::irecv`] start operations on a
//! [`Typed`](gapless_engine::Typed) buffer and return a [`RequestId`]. Calls of [`Pml::progress`], and calls that
//! wait, drive all operations.
//!
//! A [`Comm`] is a communicator, a [`Group`] its processes. [`Config`] and [`Tuning`] say how an endpoint behaves and
//! what operations cost; [`Counters`] what it has done. [`Pml::wait`] gives a [`Status`] or a [`Failure`].
//!
//! Messages up to a bound are sent at once (eager). For others the receiver chooses a [`Protocol`] ([`choose`] says
//! how):
//!
//! | | copies | who moves the data |
//! |---|---|---|
//! | [`Eager`](Protocol::Eager) | 2 | the sender packs into a slot at once, the receiver unpacks it; short messages of devices may go by a protocol below, and as eager if nobody answers soon |
//! | [`Pipeline`](Protocol::Pipeline) | 2 | both, fragment by fragment; always possible |
//! | [`Mapped`](Protocol::Mapped) | 1 | the receiver, out of the sender's mapped memory |
//! | [`Local`](Protocol::Local) | 1 | from a process to itself: one engine |
//! | [`MappedPut`](Protocol::MappedPut) | 1 | the sender, into the receiver's mapped memory |
//! | [`SingleCopy`](Protocol::SingleCopy) | 1 | the receiver's transport, out of the sender's memory |
//! | [`StagedPut`](Protocol::StagedPut), [`StagedPutCopy`](Protocol::StagedPutCopy) | 2 or 3 | both, fragment by fragment: the sender into a ring in the receiver's device memory, or into its buffer |
//! | [`StagedRead`](Protocol::StagedRead) | 2 or 3 | both, between hosts: the receiver's transport out of a ring in the sender's device memory |
//! | [`StagedGet`](Protocol::StagedGet), [`StagedGetCopy`](Protocol::StagedGetCopy), [`CopyInOut`](Protocol::CopyInOut), [`ZeroCopyInOut`](Protocol::ZeroCopyInOut) | 2 to 4 | both: the receiver out of a ring in the sender's device memory, or in host memory that both map |
//!
//! ## What holds
//!
//! - Messages match in MPI's order (MPI 4.1 §3.5); the cost of a message does not grow with the number of waiting
//!   messages.
//! - Every request ends: with the message, or when the peer is lost. A receive from any source fails only once every
//!   other member of its communicator is lost.
//! - No request ends, not even in error, while a peer, an engine or a transport may still touch its buffer.
//! - Peers are not trusted: every number they send is checked, and a peer that breaks the protocol is treated as
//!   dead.
//! - Only calls that say `wait` block; a full transport makes messages queue.
//! - Memory for eager messages that come before their receive grows with them, as in every MPI.
//!
//! The safe API is in the crate `gapless`. Lengths and offsets are in bytes; rates in MB/s, times in
//! nanoseconds.

// How it is made. Four states own what they need, and do not know each other: `Matching` (which receive takes which
// message), `Links` (peers, the order of messages, deaths), `Rendezvous` (what is in flight, and what protocols share)
// and `Requests`. The driver (`drive.rs`) has them all, and is what acts. Decisions are pure: matching, the order of
// messages, the choice of protocol (`choose.rs`), the meaning of headers (`wire.rs`, where they are drawn). One
// protocol is one file and one line in a table; `rndv.rs` is its contract. `drive/eager.rs` and `drive/unanswered.rs`
// have short messages, `rndv/` the others; `rndv/staged.rs` has all that go through rings.
//
// Which module may use which: docs/internals.md, "The folders of `pml`".

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "starts messages with buffers of its own")]
mod agree;
mod arrival;
mod asks;
#[allow(unsafe_code, reason = "the only place that has bytes of users' buffers moved")]
mod buffer;
pub mod choose;
mod comm;
mod cost;
mod counters;
mod digests;
mod drive;
mod error;
mod hash;
mod links;
mod matching;
#[allow(unsafe_code, reason = "hands the caller's promise on")]
mod pml;
mod protocol;
mod requests;
mod rndv;
mod status;
mod tuning;
mod wire;

pub use agree::{CommRequest, Survivors, SurvivorsRequest};
pub use asks::{Answer, WaiterId};
pub use choose::{Candidate, Excluded, Situation, Staging};
pub use comm::{COMMS_MAX, Comm, Comparison, Group};
pub use counters::{Counters, ProtocolCounts};
pub use drive::{Awaited, BUFFERED_OVERHEAD};
pub use error::{Failure, PmlError};
pub use gapless_bml::Next;
pub use links::AM_TAG;
pub use matching::{MessageId, Source, TagSel};
pub use pml::{Persistent, Pml};
pub use protocol::Protocol;
pub use requests::RequestOutcome;
pub use status::{RequestId, Settled, Status};
pub use tuning::{Bounds, Config, Tuning};
pub use wire::{
    Doing, EAGER_BYTES, INLINE_LAYOUT_MAX, PARTITION_TAGS, SendMode, WaitingCall, partition_tag,
};
