//! What a back end in a crate of its own shares with those here: receive buffers, what a put asks for, and what the library
//! does with a refusal. For such a back end alone: nothing of it is kept as it is.

#[doc(hidden)]
pub use crate::{
    buffer::{Posted, Received},
    host::{DOUBLINGS, PAUSE_NS, REFUSALS_MAX, cut, failing},
    packet::check_arguments,
    put::Order,
    signal::Wakeup,
};
