#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! Names without a link are files of the source.
//!
//! - [`Tcp`] is the transport, [`TcpConfig`] what can be chosen about it. Each process listens at its addresses
//!   ([`ListenAddress`], IPv4 and IPv6), and its [`address`](gapless_btl::Btl::address) lists them (`address`).
//! - A pair of processes has one connection, made when one of them first needs it (`call`, `attempt`, `meeting`).
//! - Before anybody believes a byte, caller and listener prove to each other that they know the job's [`Secret`]
//!   (`proof`). Whoever does not costs a bounded number of descriptors and bytes for a bounded time, and a line in the
//!   log now and then (`unauthenticated`).
//! - With [`TcpConfig::encrypt`] (feature `encryption`) everything after that is TLS 1.3 (`tls`). Each end has a key
//!   that is derived from the secret, its rank and its id. A `connection` is plain or encrypted.
//! - Messages are frames (`wire`): written out of slots with one call for many (`outbound`), read straight into the
//!   buffers of fragments (`inbound`). Long ones leave from where they lie, and are read to where they go, if the
//!   caller says where that is (`vectored`). Nothing blocks; one epoll descriptor serves all sockets (`watch`).
//! - Long messages that are packed, or retained, leave without a copy where the system can do that (`msg_zerocopy`).
//! - Short messages that are sent in a row may leave together, if the program usually polls soon after them (`burst`).
//! - The buffers of messages of more than 2 KiB are page-locked for the devices that are
//!   [attached](gapless_btl::Btl::attach).
//! - A peer's death is the end of its connection. A host that no longer answers is noticed within
//!   [`TcpConfig::notice`] (`silence`).
//!
//! ## What the secret protects from
//!
//! Whoever does not know it cannot become a peer, by calling or by being called, nor make a process parse a byte. What
//! follows is neither encrypted nor authenticated unless [`TcpConfig::encrypt`] is set: whoever can read or change the
//! packets of the network can read and change messages. If it is set, only somebody who has the secret while a
//! connection is made, and is in the middle of it, still can.
//!
//! ## What `Sent` means here
//!
//! The system has taken all of the message: it arrives even if this process ends the moment after, as long as host and
//! network live. It does not say that the receiver has it.
//!
//! Of short messages that are sent to a peer without a poll between them, all but the first may wait in the system for the
//! next poll, or for sixteen others, if the time that this has saved so far is more than the time that it cost. Without a
//! poll the system sends them when the other host has acknowledged the message before them, or after 200 ms. None waits
//! while the caller may block ([`arm`](gapless_btl::Btl::arm)).
//!
//! ## What a peer costs
//!
//! One that was only introduced: its address. One with a link: a descriptor, the system's buffers, an inbox of 17 KiB,
//! and in each direction, as far as they were ever needed at a time, [`TcpConfig::buffers`] buffers of
//! [`TcpConfig::fragment_bytes`] and eight times as many of 2 KiB (by default 2.3 MiB). An encrypted link also has 65
//! KiB for records that are not opened yet, and as much for records that are not written yet. A second descriptor while
//! it is silent although it was written to, and, if it has called us, for a moment at the beginning.
//!
//! ## Limits
//!
//! - Link-local addresses are not for [`TcpConfig::places`]: they mean nothing on other hosts.
//! - Silence is noticed in time if the peer's connection comes from one of its places, which is so unless addresses
//!   are translated on the way or routes are asymmetric; if this process can call it there, which a firewall may
//!   forbid; and if [`poll`](gapless_btl::Btl::poll) for all peers is called fifty times within the notice. Else a host
//!   that vanishes while it has data to acknowledge is noticed when the system gives up (`net.ipv4.tcp_retries2`, about
//!   15 minutes), or when the process polls.
//! - Whoever accepts a call and says nothing is waited for, as a peer is that does not poll. Its other addresses are
//!   tried meanwhile, which takes a descriptor each, and a call of the peer is taken.
//! - While a process computes, unauthenticated processes can fill the queue of connections that wait for it. Its host
//!   then drops further ones, and looks dead to whoever calls it, or waits for it to read.
//! - A process must not `fork` without `exec` while a [`Tcp`] lives: the child would hold its connections open.
#![deny(unsafe_code)]

mod address;
mod attempt;
mod burst;
mod call;
mod config;
mod connection;
mod counts;
#[cfg(fuzzing)]
pub mod fuzzing;
mod inbound;
mod leave;
mod link;
mod meeting;
mod msg_zerocopy;
mod outbound;
mod poll;
mod proof;
#[allow(unsafe_code, reason = "getsockopt")]
mod sign;
mod silence;
mod socket;
mod tcp;
#[cfg(test)]
mod tests;
#[cfg(feature = "encryption")]
mod tls;
#[cfg(not(feature = "encryption"))]
#[path = "no_tls.rs"]
mod tls;
mod unauthenticated;
#[allow(unsafe_code, reason = "sendmsg and readv on memory that callers lend")]
mod vectored;
mod watch;
mod wire;

pub use config::{ListenAddress, TcpConfig, random_secret};
pub use gapless_btl::Secret;
pub use tcp::Tcp;

/// The operating system's refusal, as an error of the link.
fn system(operation: &'static str, reason: impl std::fmt::Display) -> gapless_btl::LinkError {
    gapless_btl::LinkError::System { operation, reason: reason.to_string() }
}
