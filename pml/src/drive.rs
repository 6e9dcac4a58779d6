//! The driver: the one loop that acts. It takes an event, asks [`Matching`](crate::matching::Matching), and calls what
//! that says.
//!
//! | file | what it does |
//! |---|---|
//! | `core.rs` | the states; dispatches what arrives |
//! | `send.rs`, `recv.rs`, `buffered.rs`, `deferred.rs`, `cancel.rs` | start and end operations, whose states are in `operation.rs` |
//! | `eager.rs`, `short.rs`, `receive_target.rs`, `unmet.rs`, `unanswered.rs` | messages without a rendezvous |
//! | `offer.rs`, `decide.rs`, `devices.rs` | both sides of an offer, and the choice of a protocol |
//! | `rendezvous.rs` | calls the protocols: the only code that does |
//! | `flush.rs`, `in_flight.rs` | what waits for room in a transport, and for engines |
//! | `death.rs`, `leave.rs`, `revoke.rs`, `drain.rs`, `asks.rs` | peers that are lost, leave, revoke or ask |

pub(crate) mod asks;
pub(crate) mod buffered;
mod cancel;
pub(crate) mod core;
mod death;
mod decide;
#[allow(unsafe_code, reason = "declares and hands on the obligations of sends")]
mod deferred;
mod devices;
pub(crate) mod drain;
mod eager;
pub(crate) mod flush;
mod in_flight;
mod leave;
mod offer;
pub(crate) mod operation;
pub(crate) mod receive_target;
#[allow(unsafe_code, reason = "takes the caller's promise")]
mod recv;
mod rendezvous;
mod revoke;
#[allow(unsafe_code, reason = "takes the caller's promise")]
pub(crate) mod send;
#[allow(unsafe_code, reason = "takes the caller's promise")]
pub(crate) mod short;
mod unanswered;
#[allow(unsafe_code, reason = "reads buffers of requests that have not ended")]
mod unmet;

pub use buffered::BUFFERED_OVERHEAD;
pub use short::Awaited;
