#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! Without the feature `ib` there is nothing in this crate but its configuration: [`devices`] and [`Ib::new`] say so. With it,
//! `libibverbs` is opened when first needed, so a program starts where rdma-core is not installed.
//!
//! Names without a link are files of the source.
//!
//! - [`Ib`] is the transport, [`IbConfig`] what can be chosen about it. It works on one port of one device; several ports
//!   are several transports. [`devices`] lists what there is.
//! - Objects of verbs are in `verbs`, behind types that free themselves in the right order; queue pairs have a type for
//!   every state.
//! - A process has a connection manager for datagrams, served by a thread (`connection_manager`). Peers call each other
//!   there when one of them first needs the link (`meeting`); what they say is proved by the job's [`Secret`]
//!   (`proof`).
//! - A pair of processes has one reliable connected queue pair at each end (`link`). Arrivals of all links go through
//!   one shared receive queue (`buffers`); credits, which ride on messages, see to it that there is a buffer for each
//!   (`credits`, `header`).
//! - What is sent can be retained until the peer's process has it (`retain`, `acks`), so that layers above use several
//!   ports together, or a port and TCP.
//! - One-sided operations (`rdma`) are RDMA reads and writes, between registered regions or through a ring of staging
//!   buffers.
//! - A peer's death is noticed because its adapter does not answer any more: what is posted fails, and where nothing is
//!   posted an empty write feels the peer's pulse (`poll`). Nothing tells it from a way that has failed, so the loss is
//!   [`Unreachable`](gapless_btl::LinkError::Unreachable); only a farewell says that a peer is gone (`ends`).
//!
//! ## What `Sent` means here
//!
//! The peer's adapter has the message in the memory of its process. It arrives if that process goes on polling, whatever
//! happens to this one.
//!
//! ## What a peer costs
//!
//! One that was only introduced: its address. One with a link: a queue pair, [`IbConfig::buffers`] buffers of
//! [`IbConfig::fragment_bytes`] to send from and five more to receive into (by default 1.1 MiB) and a page, locked in
//! memory.
//!
//! ## Limits
//!
//! - All receive buffers are in one queue of at most 32,768, or as many as the device has: at most 32,768 /
//!   ([`IbConfig::buffers`] + 5) links. The next caller is refused.
//! - A peer that is stopped (`SIGSTOP`, a debugger) answers as long as a link stands. One that is called while it is
//!   stopped does not, and is lost after [`IbConfig::notice`].
//! - Using a key after its region was deregistered breaks the link: that is how adapters refuse.
//! - Memory of devices that are attached is reached by one-sided operations if the system registers it (GPUDirect); peers
//!   may only read it. Nothing of that was tried on hardware.
//! - Atomic operations change numbers of 64 bits, one at a time, and are atomic against each other alone.
//! - No memory windows, no connection by `rdma_cm`.
//! - A process must not `fork` without `exec` while an [`Ib`] lives.
#![deny(unsafe_code)]

#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "what uses it needs verbs"))]
mod address;
mod bytes;
mod config;
#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "what uses it needs verbs"))]
mod credits;
#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "what uses it needs verbs"))]
mod header;
#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "what uses it needs verbs"))]
mod key;
#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "what uses it needs verbs"))]
mod pending;
#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "what uses it needs verbs"))]
mod proof;
#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "what uses it needs verbs"))]
mod qp_address;
#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "what uses it needs verbs"))]
mod retain;
#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "what uses it needs verbs"))]
mod wake_fd;

#[cfg(feature = "ib")]
#[allow(unsafe_code, reason = "reads a word that peers write")]
mod acks;
#[cfg(feature = "ib")]
#[allow(unsafe_code, reason = "the adapter works on its buffers")]
mod buffers;
#[cfg(feature = "ib")]
#[allow(unsafe_code, reason = "the adapter works on its buffers")]
mod connection_manager;
#[cfg(feature = "ib")]
mod device;
#[cfg(feature = "ib")]
mod ends;
#[cfg(feature = "ib")]
mod ib;
#[cfg(feature = "ib")]
mod leave;
#[cfg(feature = "ib")]
#[allow(unsafe_code, reason = "posts work on memory given by address")]
mod link;
#[cfg(feature = "ib")]
mod meeting;
#[cfg(feature = "ib")]
mod poll;
#[cfg(feature = "ib")]
#[allow(unsafe_code, reason = "implements Rdma, on memory that callers lend")]
mod rdma;
#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "what uses it needs verbs"))]
mod routes;
#[cfg(all(test, feature = "ib"))]
#[allow(unsafe_code, reason = "operates on memory that is never freed")]
mod tests;
#[cfg(not(feature = "ib"))]
mod unbuilt;
#[cfg(feature = "ib")]
#[allow(unsafe_code, reason = "calls the library")]
mod verbs;

pub use address::LinkKind;
pub use config::IbConfig;
#[cfg(feature = "ib")]
pub use device::{DeviceInfo, PortInfo, devices};
pub use gapless_btl::Secret;
#[cfg(feature = "ib")]
pub use ib::Ib;
#[cfg(not(feature = "ib"))]
pub use unbuilt::{Ib, devices};
#[cfg(feature = "ib")]
pub use verbs::flags::Capabilities;

/// The operating system's refusal, as an error of the link.
#[cfg(feature = "ib")]
fn system(operation: &'static str, reason: impl std::fmt::Display) -> gapless_btl::LinkError {
    gapless_btl::LinkError::System { operation, reason: reason.to_string() }
}

/// Calls on this descriptor do not wait from now on.
#[cfg(feature = "ib")]
fn dont_block(fd: rustix::fd::BorrowedFd<'_>) -> Result<(), gapless_btl::LinkError> {
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|e| system("fcntl", e))?;
    let flags = flags | rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(fd, flags).map_err(|e| system("fcntl", e))
}
