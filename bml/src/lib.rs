#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! - **Peers**: the layers above name processes by [`Rank`]; [`Bml::connect`] finds every transport that both ends
//!   have, and orders them.
//! - **Sending**: [`Bml::reserve`] gives room in the best rail to a peer, [`Bml::send`] sends it. Messages to one
//!   peer travel over one rail at a time, but for those that are used together: one that keeps them in order, if any
//!   does. [`Bml::limits`] says whether it does. If it does not, a caller that needs order numbers its messages.
//! - **Arriving**: [`Bml::poll`] offers each message at once to the [`Handler`] that registered its active-message
//!   tag ([`Handler::short`], [`Handler::fragment`]). If the handler refuses it, the message comes as a [`RankEvent`]
//!   when the transport is free to send. Endings ([`RankEvent::Sent`], [`RankEvent::Completed`]) go to the handler whose
//!   [`TokenSpace`] the token came from; [`RankEvent::Lost`] goes to all.
//! - **Waiting**: [`Bml::wait`] with a [`Waiter`] spins as long as that is likely to pay ([`Spin`]), then blocks.
//! - **Several network rails** to one peer are used together, if all of them retain what they send: messages are numbered
//!   and go by the rail that would have them there first. They arrive in order, each once.
//! - **Dying**: a rail that is used with others may die: they deliver what it did not. Of other rails, if one dies that
//!   was never used, and another reaches the peer, the other takes over silently. Otherwise the peer is lost, and
//!   reported exactly once.
//! - **Links when needed**: a peer that was [introduced](Bml::introduce) costs a row until the first message; one that is
//!   in a [`Directory`] is introduced when it is needed, so its address is not known until then. A
//!   process that [watches](Bml::watch) also keeps links to ranks r ± 2^k, over which it hears of deaths.
//!
//! A `Bml` reaches its own process through a built-in loopback, so that a single process needs no
//! transport at all. Nothing here knows datatypes or matching. Lengths are in bytes.

// What is where: `bml` has the rails (`rail`), the peers (`endpoint`) and the handlers. `select`, `near` and `stripe`
// choose a rail and are pure; `bundle` and `window` number and bound what goes over several. `failure_gossip` and
// `roll_call` spread deaths and leaving. `spin` and `waiter` decide how to wait, `token` whose an ending is. `level`,
// `digest`, `ranks` and `registered` are for the layers above.

#![deny(unsafe_code)]

mod bml;
mod bundle;
mod digest;
mod endpoint;
mod error;
mod event;
mod failure_gossip;
mod level;
mod near;
mod rail;
mod ranks;
mod registered;
mod roll_call;
mod select;
mod spin;
mod stripe;
#[cfg(test)]
mod tests;
mod token;
mod waiter;
mod window;

pub use bml::{Bml, Directory, FoundPeer};
pub use digest::{digest, digest_bytes};
pub use endpoint::PeerState;
pub use error::BmlError;
pub use event::{Handler, Next, Rank, RankEvent};
pub use level::Level;
pub use near::{Judge, Nearness};
pub use rail::{RailSlot, RdmaRail};
pub use ranks::Ranks;
pub use registered::Registered;
pub use select::predicted_ns;
pub use spin::{Spin, Switches};
pub use token::TokenSpace;
pub use waiter::{Patience, WaitStep, Waiter, now_ns, switches};

/// The types of the transport contract that this crate's interface uses, so that the layers above need not depend on
/// the contract itself.
pub use gapless_btl::pool::HeapPool;
pub use gapless_btl::{
    Access, Address, Allocation, AmTag, Btl, Change, Extent, Fragment, Limits, LinkError, MapError,
    Mapped, Mapping, PeerId, Rdma, RdmaError, RdmaLimits, ReceiveTarget, RemoteKey, ReserveError,
    SHORT_BYTES, Short, Slot, TargetAnswer, Token, ZeroCopyMessage, ZeroCopyResult,
};
