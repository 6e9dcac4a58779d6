//! The ways to processes of other hosts that a world would use.

pub use gapless_boot::network::{Listening, VerbsPort, listening, nearness, verbs_ports};
pub use gapless_mem::PciAddress;
