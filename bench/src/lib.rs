//! Experiments: what the `figures` program measures, and how.
//!
//! One experiment is one file below `experiments/`, named by one line of the list there. It gives rows of the report
//! schema; `figures` prints them as a table and writes them as JSON and SVG.
//!
//! Every experiment
//!
//! - checks the bytes it moves against code that shares nothing with the code that moved them ([`check`]), before it
//!   measures;
//! - takes many samples and keeps medians, quartiles and extremes, never means ([`clock`]);
//! - alternates the samples of what it compares, so that both see the same machine;
//! - *rotates*: each operation works on other memory, in shuffled order, and returns to a place only after more than
//!   four times the last-level cache was touched ([`rotation`]). Beside it is a *resident* figure, on one place again
//!   and again;
//! - between processes whose data is on GPUs, measures in pairs of processes of its own ([`p2p`]);
//! - on a GPU, measures by the device's own clock ([`gpu`]), beside what users do without a datatype engine
//!   ([`baselines`]);
//! - runs on one processor, if the system lets it choose ([`Pinned`](gapless_cli::pingpong::Pinned)).
//!
//! # What is where
//!
//! `figures` reads the command line, runs an [`experiment`], which gives rows, and shows, writes and draws them.
//!
//! - what is measured: `experiments` (one file each, tables of messages together), `subjects` (layouts);
//! - drivers, each with processes or ends of its own: `duo` (two ends in one thread), `processes` (ranks of this
//!   program), `killed` (the same, of which one is killed), `ends` (memories of two ranks, moved by hand), `p2p` (pairs
//!   of processes with GPUs), `one_gpu` (many processes on one GPU), `gpu` (kernels of one process), `sim` (the
//!   simulated machine), `namespaces` (two hosts on one machine);
//! - how it is measured: `clock` (samples), `rotation` (other memory each time), `check` (bytes), `random`;
//! - where messages lie: `memories`;
//! - what it is compared with: `baselines`, `nccl`, `cublas`;
//! - what becomes of reports: `table` (columns), `summary` (tables of a folder), `page` (the figures that matter), `age`;
//! - `error`.
//!
//! Units: bytes, seconds, GB/s of payload. A ratio is in speed: above 1, Gapless is faster.

#![deny(unsafe_code)]

mod age;
#[path = "../baselines/mod.rs"]
pub mod baselines;
pub mod check;
pub mod clock;
#[allow(unsafe_code, reason = "calls cuBLAS's functions")]
pub mod cublas;
#[allow(unsafe_code, reason = "starts messages of memory that it owns")]
pub mod duo;
#[allow(unsafe_code, reason = "copies and sends memory that it owns")]
mod ends;
mod error;
pub mod experiment;
pub mod experiments;
pub mod figures;
pub mod gpu;
mod killed;
mod memories;
mod namespaces;
#[allow(unsafe_code, reason = "calls NCCL's functions")]
pub mod nccl;
pub mod one_gpu;
pub mod p2p;
pub mod page;
pub mod processes;
pub mod random;
pub mod rotation;
pub mod sim;
pub mod subjects;
pub mod summary;
mod table;

pub use error::Failure;
pub use experiment::{Common, Drawing, Experiment, ExperimentEntry, Findings};
