//! Fuzz targets: each takes any bytes at all and must come back, without a panic, within bounds of time
//! and memory. What comes back is checked too, where there is something to check.
//!
//! | target | bytes are |
//! |---|---|
//! | `layout` | a flattened layout, as peers send it |
//! | `messages` | what a peer says to a message layer that sends, receives and cancels meanwhile |
//! | `segment` | what a process does to the memory, sockets and keys that it shares with another |
//! | `network` | what unauthenticated callers and peers send over TCP: addresses, greetings, frames in any pieces |
//! | `wireup` | what a launcher answers, what processes publish, what processes ask a launcher |
//! | `tuning` | a tuning file |
//! | `tasks` | packets of tasks; what a peer says to a process that runs tasks, of its own threads and of a worker |
//! | `windows` | what a peer says to a process that has one-sided windows, and that works at the peer's |
//! | `launches` | shapes, ranges and places for the arithmetic of kernel launches and plans |
//!
//! Two ways to run them: `cargo test` here (changed seeds and noise, in seconds, part of the soak), and
//! `cargo xtask fuzz --seconds 3600` (libFuzzer with coverage guidance). Both run on stable Rust: the
//! instrumentation is a flag of LLVM's, and no sanitizer is used. Inputs that once failed stay in
//! `regressions/TARGET/` and are run first.

mod ends;
pub mod input;
mod launches;
mod layout;
mod messages;
mod network;
mod segment;
mod tasks;
mod tuning;
mod windows;
mod wireup;

/// One target.
#[derive(Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// What is done with the bytes.
    pub run: fn(&[u8]),
    /// Bytes that get far.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "layout", run: layout::run, seeds: layout::seeds },
    Target { name: "messages", run: messages::run, seeds: messages::seeds },
    Target { name: "segment", run: segment::run, seeds: segment::seeds },
    Target { name: "network", run: network::run, seeds: network::seeds },
    Target { name: "wireup", run: wireup::run, seeds: wireup::seeds },
    Target { name: "launches", run: launches::run, seeds: launches::seeds },
    Target { name: "tuning", run: tuning::run, seeds: tuning::seeds },
    Target { name: "tasks", run: tasks::run, seeds: tasks::seeds },
    Target { name: "windows", run: windows::run, seeds: windows::seeds },
];

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
