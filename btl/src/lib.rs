#![doc = include_str!("../README.md")]
//!
//! ## Write a transport
//!
//! Implement [`Btl`]; if the wire can do more, also [`Rdma`] (bytes move between a local region and a peer's, without
//! the peer's help; perhaps numbers are changed atomically) and [`Mapped`] (a peer's memory becomes a region of ours). A
//! transport has an ability if it implements its trait: there are no flags to contradict it.
//!
//! `Btl` is a safe trait, because memory safety relies on nothing that a transport says. [`Slot`]s and [`Fragment`]s
//! are made by unsafe constructors, or by [`pool`]. The end of a one-sided operation comes as an [`Ended`], which
//! only its ability can make. An ability is asked only about memory that it was granted ([`Abilities`]). `Rdma`,
//! `Mapped` and [`Reclaim`] are unsafe traits, each with its contract as a list. What must hold for all:
//!
//! 1. **Messages** arrive whole and once each, in the order of [`Btl::send`] if [`Limits::ordered`] promises it.
//! 2. **Slots** come from a pool that the sender owns. [`Btl::reserve`] gives room to write a message into;
//!    [`Btl::send`] consumes the slot and fixes the order; dropping an unsent slot frees it. A full pool is an
//!    outcome ([`ReserveError::Full`]), not an error: poll, then retry.
//! 3. **Arrivals** are owned [`Fragment`]s. The receiver may park them, across threads, in any order; dropping one
//!    returns its credit to the sender.
//! 4. **Only one caller polls.** [`Btl::poll`] never blocks and does bounded work. A transport reports everything to
//!    the caller's [`Sink`], once. It may offer a message ([`Sink::short`], [`Sink::fragment`]) before it reports the
//!    message as an [`Event`]; a message that is taken is done. Once a poll has reported an event of a message, it
//!    offers no later message of the same peer, which would overtake. It reports no more events than the sink has
//!    room for ([`Sink::room`]); events without room wait for the next poll; so does a message that is refused while
//!    there is no room. A poll for one peer gives the next message of this peer or nothing.
//! 5. **Meeting.** [`Btl::connect`] never blocks on the peer: until the link is up, `reserve` says `Full`. Both
//!    sides call `connect`, and both poll: a link may need that to come up. Nothing from a peer is delivered before
//!    this side's `connect` to it has returned, and nothing that came earlier is lost. A transport may offer to put
//!    a link off until it is needed: [`Btl::introduce`] and [`Btl::has_met`]; and to tell who calls that was not
//!    introduced: [`Btl::callers`].
//! 6. **Dying.** When a peer is gone, every pending operation towards it completes with a
//!    [`LinkError`], and then [`Event::Lost`] comes exactly once, within
//!    [`Limits::death_notice_ms`], with the reason: [`LinkError::PeerGone`] if it is known to have ended. Whatever had
//!    arrived in full is delivered before it. A link without room does not delay the loss, nor do fragments that the
//!    receiver holds; they keep their bytes until they are dropped, also after the transport has ended.
//! 7. **Leaving.** Dropping a transport ends its links. Messages sent by then arrive at every peer that goes on
//!    polling, before the loss. So `Drop` passes on the messages that the transport still holds. It may wait until
//!    peers have taken them: for at least 100 ms if they are slow, and for at most [`Limits::death_notice_ms`].
//!    Messages left then are lost, as with a process that is killed.
//! 8. **Trust.** Every length, offset and index a peer sends is checked before use; headers are copied out of shared
//!    memory before they are read. A peer that breaks the rules is reported as [`LinkError::Corrupt`], never as gone,
//!    and treated as dead.
//! 9. **Devices.** [`Btl::attach`] makes a device known. The segments of slots, arrivals and mappings are registered
//!    with it, later segments too, and unregistered before they are unmapped. A parked fragment stays valid for the
//!    device after the transport has ended. What a device cannot do is not an error of the link. Its memory is shared
//!    through [`Mapped`]. [`Btl::detach`] undoes all that.
//! 10. **Per message**, `reserve`, `send` and `poll` do not allocate in the steady state and, while both ends are
//!     busy, make no system call if the wire allows that.
//!
//! Then prove it, with the crate `gapless-btl-testkit`: a `conformance::Fixture` that makes a connected pair
//! and one line of `conformance!` test all of the above.
//!
//! Retention is optional ([`Btl::retain`]): a transport that keeps what it has sent until its receipt is known can be
//! one of several rails to a peer, and die in use without a loss.
//!
//! Short cuts are optional: [`Btl::send_short`], [`Btl::send_zero_copy`] and [`Btl::is_quiet`] have defaults. A
//! transport need not offer messages before it reports them as events, nor ask for targets ([`Sink::receive_target`]),
//! and may do nothing in a poll for one peer. A transport that keeps its reports in a queue gets all of [`Btl::poll`]
//! from [`hand_out`]. The suite tests short cuts, too.
//!
//! ## What is here to help
//!
//! - [`loopback`]: the smallest complete transport, within one process; read it first.
//! - [`pool`]: heap buffers that become slots and fragments, so that a transport over sockets
//!   needs no `unsafe`; `tests/streams.rs` of `gapless-btl-testkit` is one.
//! - [`Callers`]: who has called and was not introduced, for transports that are called by anybody.
//! - [`delegate!`]: for a transport that changes a little of another one.
//! - The crate `gapless-btl-testkit`: the suite, a wrapper that misbehaves as far as the rules allow, from a seed, and one
//!   that records each call and event.
//! - `watch` (feature `watch`): one descriptor to block on, for transports over descriptors. With it, pools of buffers that
//!   the system may still read when they are given up.
//! - `examples/btl-udp` in the repository: a transport in a workspace of its own.
//!
//! Nothing here knows datatypes, matching or MPI. Lengths and offsets are in bytes.
#![deny(unsafe_code)]

mod ability;
mod address;
mod callers;
mod delegate;
mod error;
mod event;
mod limits;
pub mod loopback;
#[allow(unsafe_code, reason = "declares constructors that take a promise")]
mod mapped;
#[allow(unsafe_code, reason = "heap memory given out by address")]
mod memory;
#[allow(unsafe_code, reason = "turns its buffers into slots, fragments and slices")]
pub mod pool;
#[allow(unsafe_code, reason = "declares the unsafe methods that transports implement")]
mod rdma;
mod secret;
mod sink;
#[allow(unsafe_code, reason = "slots and fragments are the safe face of memory given by address")]
mod slot;
mod transport;
#[cfg(feature = "watch")]
pub mod watch;
#[allow(unsafe_code, reason = "reads and writes memory that callers lend")]
mod zero_copy;

pub use ability::{Abilities, AbilityId};
pub use address::{Address, AmTag, PeerId, Token};
pub use callers::Callers;
pub use error::{LinkError, MapError, RdmaError, ReserveError};
pub use event::Event;
#[doc(hidden)]
pub use gapless_mem;
pub use limits::Limits;
pub use mapped::{Allocation, Mapped, Mapping};
pub use rdma::{
    Access, Change, Ended, Extent, Rdma, RdmaLimits, RemoteKey, check_atomic, total_of,
};
pub use secret::Secret;
pub use sink::{Queue, Sink, hand_out};
pub use slot::{Fragment, PoolHandle, Reclaim, Slot, Trimmed, Unacknowledged};
pub use transport::{Btl, LAG_BYTES, POLLS_PER_LOOK, SHORT_BYTES, Short, ZeroCopyResult};
pub use zero_copy::{ReceiveTarget, TargetAnswer, ZeroCopyMessage, parts};
