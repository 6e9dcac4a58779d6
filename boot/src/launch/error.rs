//! Why a job could not be run.

use super::RANKS_MAX;
use std::time::Duration;
use thiserror::Error;

/// Why a job could not be run. A job that ran and failed is an [`Outcome`](super::Outcome).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No processes, or too many.
    #[error("cannot start {ranks} processes: a job has 1 to {RANKS_MAX}")]
    BadRanks {
        /// How many were asked for.
        ranks: u32,
    },
    /// The launcher may open too few files.
    #[error(
        "to start {ranks} processes the launcher opens {needed} files, and its limit is {limit} (ulimit -n)"
    )]
    TooFewDescriptors {
        /// How many were asked for.
        ranks: u32,
        /// What it needs.
        needed: u64,
        /// What the system allows.
        limit: u64,
    },
    /// The program could not be started.
    #[error("cannot start {program}: {error}")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// A process's output was to go to a file ([`Launch::files`](super::Launch::files)).
    #[error("cannot write {path}: {error}")]
    OutputFile {
        /// The file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// A process could not be kept on its processors ([`Launch::processors`](super::Launch::processors)).
    #[error(
        "rank {rank} cannot be kept on processors {}: {error}",
        processors.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    )]
    Bind {
        /// The process.
        rank: u32,
        /// By the system's numbers.
        processors: Vec<usize>,
        /// What the system said: it forbids that, or has no such processors.
        error: std::io::Error,
    },
    /// The job took longer than [`Launch::time_limit`](super::Launch::time_limit). Its processes were ended.
    #[error("the job did not end within {} s; {running} of {ranks} processes were ended", limit.as_secs_f64())]
    TimedOut {
        /// How long it was given.
        limit: Duration,
        /// How many processes had not ended by then.
        running: usize,
        /// How many processes it had.
        ranks: u32,
        /// What each of them waited for, as far as they said so: a line or more of each.
        waits: Vec<String>,
    },
    /// Another launcher ([`watch`](super::watch)) took longer. It was ended, with what it had started on this host.
    #[error(
        "{launcher} did not end the job within {} s, and was ended; if no process has started, it may wait for a host \
         that cannot be reached, or for a password",
        limit.as_secs_f64()
    )]
    Late {
        /// The program.
        launcher: String,
        /// How long it was given.
        limit: Duration,
    },
    /// The operating system refused the launcher something.
    #[error("{operation} failed: {error}")]
    System {
        /// The call.
        operation: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
}
