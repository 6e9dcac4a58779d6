//! Where messages lie while they are measured: places in the memory of the host or of a device, contents by which every
//! byte is checked, and the processor of a rank. `pingpong` and `bench` share it.

#[allow(unsafe_code, reason = "places of one arena that interleave without sharing a byte")]
mod arena;
mod boxes;
mod content;
#[allow(unsafe_code, reason = "works on memory of devices that it owns")]
mod devices;
mod ends;
mod pin;
mod place;
mod room;

pub use arena::Source;
pub(crate) use boxes::{Boxes, Sent, Sided};
pub(crate) use content::{Wrong, mix};
pub use devices::Budget;
#[cfg(feature = "cuda")]
pub(crate) use devices::IDLE;
pub(crate) use devices::{Devices, Locked, Opened};
pub use ends::{Ends, Where};
pub use pin::Pinned;
pub use place::{LINE, Places};
pub(crate) use room::available;
