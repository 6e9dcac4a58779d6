#![cfg_attr(not(doctest), doc = include_str!("../README.md"))]
//!
//! ## What is here
//!
//! - `launch`: the local launcher, `gapless run` (feature `launch`);
//! - [`wireup`]: what launchers tell their processes, by PMI-1 and PMIx: a number, a size, a store of keys and values;
//! - [`process_record`]: what each process publishes about itself, and how others check it;
//! - [`job_map`]: the records of all processes in one text;
//! - [`processors`]: sockets, NUMA nodes and caches of this host;
//! - [`meet`]: how all of them come to know of each other; [`directory`]: the launcher as a process keeps it, and the
//!   addresses of peers; [`places`]: which processes are on which host, socket, NUMA node and cache;
//! - [`network`]: which interfaces and adapters lead to other hosts, and the transports on them;
//! - [`descriptors`]: the limit of open files.
//!
//! Which way data goes: a process asks [`wireup::detect`] who started it. [`meet::meet`] publishes its record, reads
//! those of the others, and opens transports by [`network::open`] if they are on several hosts. `World::init` calls
//! both.
#![deny(unsafe_code)]

pub mod descriptors;
pub mod directory;
mod error;
pub mod job_map;
#[cfg(feature = "launch")]
#[allow(unsafe_code, reason = "prepares a child process between fork and exec")]
pub mod launch;
pub mod meet;
pub mod network;
pub mod places;
mod pmi;
pub mod process_record;
pub mod processors;
pub mod wireup;

pub use error::BootError;
