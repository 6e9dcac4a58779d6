//! Halo exchanges as a program would have them: heat that spreads in an array which is cut into blocks, one for each
//! process. After every step the blocks exchange their rims.
//!
//! - [`plate`]: two dimensions, four neighbours.
//! - [`cuboid`]: three dimensions, 26 neighbours.
//!
//! Both describe their exchange once, by a plan of messages, and compare all cells with the whole array computed by one process, bit
//! by bit. The cuboid can also exchange by one collective, a `neighbor_alltoallw`, which on CUDA devices is one kernel a
//! process. The blocks can lie in the memory of a device ([`BlockMemory::Device`]): then the same plan exchanges them
//! there. There is no kernel for the step: it is computed by the host, so a step copies the block to the host and back.
//! What this shows is the exchange, not how fast a device computes.

#![deny(unsafe_code)]

pub mod cuboid;
mod memory;
pub mod plate;
#[allow(unsafe_code, reason = "queues collectives on memory that is kept until they have ended")]
mod rim;

pub use memory::BlockMemory;

/// Steps from one look at what still changes to the next.
pub const STEPS_PER_RESIDUAL: usize = 10;

/// What the ghost cells outside the array hold.
const OUTSIDE: f64 = 0.0;
