#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! - [`topologies`]: grids and graphs of MPI 4.1 chapter 8.
//! - [`schedule`]: a [`Schedule`] is one rank's list of steps (send, receive, copy, reduce, put a task) with
//!   dependencies. Read its text first: it says what an executor must keep.
//! - [`Call`] is a collective as one rank calls it, [`Algorithm`] says how it is done, [`build()`] makes the schedule.
//!   [`Between`] does so for intercommunicators.
//! - [`Draft`] writes a schedule by an algorithm of one's own.
//! - [`choose`] has the table by which algorithms are chosen; [`predict()`] plays schedules on a cost model.
//! - [`execute`] does what a schedule says, with messages of `pml`; it is the only part that acts.
//! - [`hyperq`] decides how processes that share a GPU copy; [`HyperQ`] does it.
//! - [`sm`] does collectives on one host without messages: by mailboxes, and through slots, in shared memory.
//! - [`runtime`] has the contract of all these ways, a queue for each communicator, and all collectives in flight.
//! - [`reshard`] plans how an array gets from one sharding over ranks to another.
//! - [`Goal`] writes the schedules of all ranks for LogGOPSim and its kin; `Display` of a schedule is for people.
//! - `testkit` (a feature) has what tests of executors need.
//! - `prove` (feature `testkit`) executes the schedules of all ranks symbolically and compares with the operation's
//!   definition: it finds wrong results, races, messages that do not fit, and deadlocks.
//!
//! Lengths are in packed bytes: both ends of a message may use different datatypes of one signature. Nothing but
//! [`execute`] touches memory; nothing looks at a clock or a file.

// How it is made: `team.rs` (who takes part), `tree.rs` (shapes), `algorithms/` (a family each) and `builder.rs`, which
// derives dependencies from the bytes that steps touch.

#![deny(unsafe_code)]

mod algorithm;
mod algorithms;
mod area;
mod between;
mod build;
mod builder;
mod call;
mod check;
pub mod choose;
mod cost;
mod draft;
mod error;
pub mod execute;
mod explain;
mod goal;
pub mod hyperq;
mod level;
mod locality;
mod name;
mod operation;
#[cfg(any(test, feature = "testkit"))]
pub mod prove;
pub mod reshard;
pub mod runtime;
mod sample;
pub mod schedule;
mod suits;
mod team;
mod terms;
#[cfg(feature = "testkit")]
pub mod testkit;
#[cfg(test)]
mod tests;
mod together;
pub mod topologies;
mod tree;

pub use algorithm::{Algorithm, Exchange, Method};
pub use area::Area;
pub use between::{Between, BetweenCall};
pub use build::{build, build_apart};
pub use call::{Call, Reduction};
pub use cost::{Cost, Wire, predict};
pub use draft::{Draft, DraftError};
pub use error::{BuildError, Misfit};
pub use execute::hyperq::{HyperQ, Outcome};
pub use execute::sm;
pub use execute::{
    Awaited, BufferBlocks, CallBuffers, CollError, Combine, Executor, Leaving, Lender, Sequencer,
    TaskFault, TaskName, TaskWork, Tasks, Ticket,
};
pub use gapless_bml::Level;
pub use goal::{Goal, GoalRank};
pub use level::Within;
pub use locality::Locality;
pub use name::{METHODS, NameError};
pub use operation::Operation;
pub use sample::{Sample, SampleCall};
pub use schedule::{Action, Buffer, Place, Row, Schedule};
pub use together::{SharePart, Together, Whom};
pub use tree::Tree;
