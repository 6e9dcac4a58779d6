//! The back end *sim*: a deterministic model, event by event, of the machine on which the paper was evaluated (LeBeane
//! et al. 2016, §V.A and Table I).
//!
//! It runs the packet, the tables and the rewrite of all back ends. Nodes are an APU each: CPU, GPU and NIC share
//! memory, and a star joins them. What the ranks do is given as [programs](program) with dependencies; the
//! [configuration](Configuration) says whether the CPU computes (CPU), the CPU launches kernels (HSA), or the NIC gives
//! tasks to the GPU (XTQ). Payloads are really moved and added, so that a result can be compared with what it must be.
//!
//! - [`machine`]: every number, with its source;
//! - [`program`]: programs, and how two-sided reductions become tasks;
//! - [`experiments`]: the programs of Figures 7, 9a and 9b;
//! - [`run`]: the simulation;
//! - [`Cluster`]: the same machine as a back end of the contract: processes that register, post and put.
//!
//! Inside, an event goes from `event` (what comes next) to `run`, which hands it to the part of its node: `cpu`, `gpu`, `nic`
//! or `network`; each part plans later events. `time` has units, `trace` what is kept of events, `contract` the tests of all
//! back ends.
//!
//! Time is in whole picoseconds. The same programs, options and seed give the same events at the same times everywhere.
//! What is not modelled: contention for memory and for the chip's paths between devices, translation of addresses,
//! lost packets, and time for posting receives.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "runs kernels that were registered by an unsafe function")]
mod cluster;
mod cpu;
mod event;
pub mod experiments;
mod gpu;
pub mod machine;
mod network;
mod nic;
pub mod program;
mod run;
mod time;
mod trace;

pub use cluster::{Cluster, ClusterError};
pub use machine::Machine;
pub use network::Traffic;
pub use program::{MemoryRange, Program, ProgramError, READY, Ready, SimStep, SimWork, with_tasks};
pub use run::{Configuration, Options, SimOutcome, initial, run};
pub use time::{Ps, Rate};
pub use trace::Phase;

#[cfg(test)]
mod contract;
#[cfg(test)]
mod tests;
