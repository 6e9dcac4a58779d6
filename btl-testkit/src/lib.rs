#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! - [`conformance!`]: the suite that every transport passes;
//! - [`fault`]: a wrapper that misbehaves as far as the contract allows, from a seed;
//! - [`trace`]: a wrapper that records each call and event;
//! - [`Random`]: numbers from a seed.
//!
//! The contract itself is [`gapless_btl`]. Its loopback, the smallest complete transport, stays there.
#![deny(unsafe_code)]

pub mod conformance;
pub mod fault;
pub mod trace;
mod wrapped;

pub use gapless_testkit::Random;
