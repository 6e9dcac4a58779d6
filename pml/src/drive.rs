//! The one loop that acts: it dispatches arrivals, checks work in flight, and ends what is left of a peer that is
//! lost or leaves.

pub(crate) mod core;
pub(crate) mod death;
pub(crate) mod inflight;
pub(crate) mod leave;
pub(crate) mod peer;
pub(crate) mod place;
mod take_back;

pub use core::AM_TAG;
