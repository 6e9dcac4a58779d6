//! A Gapless transport over UDP on the loopback interface, as another project would write it. It depends only on the
//! contract (`gapless-btl`) and the memory types (`gapless-mem`); no crate of Gapless depends on it.
//!
//! UDP loses, repeats and reorders datagrams; the contract requires every message once and in order. A sliding window
//! with cumulative and selective acknowledgements, retransmission, and credits that the receiver grants message by
//! message close the gap. One message is one datagram.
//!
//! Where things are, from the wire up: `wire` (datagrams), `address` (addresses), `seq` (numbers that
//! wrap), `rto` (how long to wait), `sender` and `receiver` (the two sides of one direction, without
//! clock or sockets), `socket`, `channel` and `faults` (the wire, and a bad one for tests), `link`
//! (one peer: meeting, talking, dying), `udp` (the implementation of [`gapless_btl::Btl`]).
//!
//! ```
//! use btl_udp::Udp;
//! use gapless_btl::{AmTag, Btl, Event, Queue, Token};
//! let (mut a, mut b) = (Udp::new()?, Udp::new()?);
//! let to_b = a.connect(&b.address())?;
//! b.connect(&a.address())?;
//! let mut events = Queue::with_capacity(8);
//! let mut slot = loop {
//!     match a.reserve(to_b, 2) {
//!         Ok(slot) => break slot,
//!         Err(_) => _ = (a.poll(None, &mut events), b.poll(None, &mut events)),
//!     }
//! };
//! slot.write(0, b"hi")?;
//! a.send(slot, AmTag(7), Token::NONE);
//! while b.poll(None, &mut events) == 0 {}
//! let Some(Event::Arrived { tag: AmTag(7), fragment, .. }) = events.drain().next() else { panic!() };
//! assert_eq!(fragment.to_vec()?, b"hi");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//!
//! Any process on this host can send to our ports. A datagram counts only if the kernel says that it came from the
//! peer's port and if it carries both sessions, 64 random bits each. That prevents mistakes, but does not stop a
//! program that can read the datagrams. A death is noticed because no process has the peer's ports any more. If
//! another program takes one of these ports between a death and the next probe (a fifth of a second), and accepts
//! strange datagrams, the death goes unnoticed.
#![forbid(unsafe_code)]

mod address;
mod channel;
mod config;
mod faults;
mod link;
mod receiver;
mod rto;
mod sender;
mod seq;
mod socket;
#[cfg(test)]
mod tests;
mod udp;
mod wire;

pub use config::Config;
pub use faults::Faults;
pub use udp::Udp;
