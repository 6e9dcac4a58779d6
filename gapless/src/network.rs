//! The ways to processes of other hosts that a world would use.

pub use gapless_boot::network::{Listening, VerbsPort, listening, verbs_ports};
