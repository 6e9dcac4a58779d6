//! The one loop that acts: what arrives is dispatched, work in flight is looked at, and what is left of
//! a peer that is lost, or leaves, is brought to its end.

pub(crate) mod core;
pub(crate) mod death;
pub(crate) mod inflight;
pub(crate) mod leave;
pub(crate) mod peer;
mod take_back;

pub use core::AM_TAG;
