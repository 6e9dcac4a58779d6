#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! Names without a link are files of the source.
//!
//! - [`Sm`] is the transport, [`SmConfig`] what can be chosen about it.
//! - Each pair of processes shares two segments (sealed memfds), one per direction, written by its sender: a ring of
//!   cache lines (`ring`) and slots in size classes. A message of up to 224 bytes, or 1120 if it is sent by value,
//!   lies in the ring itself; a longer one lies in a slot, with a descriptor in the ring. A message costs only loads
//!   and stores of shared memory: no locked instructions on it, no system calls.
//! - Processes meet over abstract Unix sockets (`socket`, `meeting`), which carry descriptors and whose end-of-file
//!   reports a death. Nothing has a name in a file system, so `kill -9` leaves nothing behind.
//! - [`Rdma`](gapless_btl::Rdma) is `process_vm_readv`/`writev`, probed when a link comes up;
//!   [`Mapped`](gapless_btl::Mapped) memory is further sealed memfds, and memory of attached devices.
//! - A process that waits blocks on an epoll descriptor (`arm` has the handshake).
//!
//! ## What `Sent` means here
//!
//! A published message is the receiver's: it can read the message even if this process dies the moment after. So
//! `Sent` follows at the next poll, with success if the link was up at `send`. It does not say that the receiver has
//! read the message. Slots return to the pool independently of `Sent`.
//!
//! ## Limits
//!
//! A process must not `fork` without `exec` while an [`Sm`] lives: the child would hold its sockets open and hide its
//! death. If the system cannot back shared memory when it is first touched (a full memory cgroup), the process that
//! touches it dies of a bus error, as with any memory.

// What is where, for who reads the code.
//
// A message goes from `outbound` (a slot, or lines) through `lane` and `ring` in the sender's `segment` to the
// receiver's `inbound`, which hands it on as a fragment; `credit` and `recycle` bring the room back.
//
// - `sm`, `link`: the transport: peers, the poll loop; one peer, its two lanes and sockets
// - `geometry`, `segment`, `sync`: what lies where in a segment; the only place that maps; the atomics, or loom's
// - `address`, `socket`, `credentials`, `meeting`, `unauthenticated`: addresses and greetings; who is let in, and how
//   an end is noticed
// - `wire`, `packets`, `suspect`: what is said on sockets; descriptors that others have sent
// - `arm`, `waker`: falling asleep, and ringing who sleeps
// - `single_copy`: `process_vm_readv` and `process_vm_writev`
// - `mapped`, `imports`; `device_exports`, `device_imports`; `export_tracking`: memory that peers map, of the host and
//   of devices; what they may still use after a link

#![deny(unsafe_code)]

mod arm;
mod credit;
mod recycle;
mod ring;
mod sync;

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(not(loom))]
mod address;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "getsockopt")]
mod credentials;
#[cfg(not(loom))]
mod device_exports;
#[cfg(not(loom))]
mod device_imports;
#[cfg(not(loom))]
mod export_tracking;
#[cfg(all(fuzzing, not(loom)))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(not(loom))]
mod geometry;
#[cfg(not(loom))]
mod imports;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "makes fragments of shared memory")]
mod inbound;
#[cfg(not(loom))]
mod lane;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
mod mapped;
#[cfg(not(loom))]
mod meeting;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "makes slots of shared memory")]
mod outbound;
#[cfg(not(loom))]
mod packets;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "maps memory and views it as atomics")]
mod segment;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "process_vm_readv and process_vm_writev")]
mod single_copy;
#[cfg(not(loom))]
mod sm;
#[cfg(not(loom))]
mod socket;
#[cfg(not(loom))]
mod suspect;
#[cfg(all(test, not(loom)))]
#[allow(unsafe_code, reason = "a device for tests has unsafe methods")]
mod tests;
#[cfg(not(loom))]
mod unauthenticated;
#[cfg(not(loom))]
mod waker;
mod watched;
#[cfg(not(loom))]
mod wire;

#[cfg(not(loom))]
pub use config::{SlotClass, SmConfig};
#[cfg(not(loom))]
pub use sm::Sm;

/// The operating system's refusal, as an error of the link.
#[cfg(not(loom))]
fn system(operation: &'static str, reason: impl std::fmt::Display) -> gapless_btl::LinkError {
    gapless_btl::LinkError::System { operation, reason: reason.to_string() }
}
