//! Messages between two processes whose data lies in the memory of GPUs, measured in their own processes.
//!
//! - [`item`]: what is sent, where, how, and what it is to reach; pure;
//! - [`marks`]: how rows are judged: a row whose protocol is not one that its mark is for is *void*;
//! - [`job`]: pairs of processes: started, watched, and started again for what is left when one fails;
//! - [`process`]: one of the two; [`occupier`]: the kernel that keeps a part of a GPU busy meanwhile;
//! - [`net`]: the same between two hosts, by TCP alone;
//! - [`draw`]: pictures and tables of their reports;
//! - [`mps`]: whether processes share a GPU at the same time or in turns.
//!
//! Nothing that goes wrong in one row costs another: rows are written down one by one by rank 0, whose
//! own watchdog ends it when one takes too long; then the launcher ends its peer, and the next pair begins
//! with the next row.

pub mod draw;
pub mod item;
pub mod job;
pub mod marks;
pub mod mps;
pub mod net;
#[allow(unsafe_code, reason = "launches a kernel on memory that it owns")]
pub mod occupier;
pub mod process;
