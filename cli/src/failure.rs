//! Why a verb ended without doing all it was asked for.

use crate::load::Load;
use gapless::launch::{End, LaunchError};
use gapless::wireup::WireupError;
use gapless::{BootError, Error};
use gapless_coll::{BuildError, NameError};
use gapless_dtype::{ConvertorError, TypeError};
use gapless_engine::EngineError;
use gapless_layouts::LayoutError;
use gapless_layouts::text::TextError;
use gapless_mem::DeviceError;
use gapless_report::{Bytes, FileError, NoSamples};
use std::io;
use thiserror::Error as ThisError;

/// Of a job that took too long, as timeout(1) does.
const TIMED_OUT: u8 = 124;

#[derive(Debug, ThisError)]
pub(super) enum Failure {
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("space {space} is not available: {why}")]
    NoSpace { space: String, why: String },
    #[error("{option}{}{value}: {why}", if value.is_empty() { "" } else { " " })]
    BadOption { option: &'static str, value: String, why: String },
    #[error("{case} needs {needed} of memory in all processes together, and {available} are free")]
    TooBig { case: String, needed: String, available: String },
    #[error("it takes two processes; this job has {ranks}")]
    NotTwo { ranks: u32 },
    #[error("{}; this job has {ranks} ranks", match pairs {
        Some(pairs) => format!("--pairs {pairs}: that takes {} ranks", 2 * pairs),
        None => "pairs take an even number of ranks".to_owned(),
    })]
    NotPairs { ranks: u32, pairs: Option<u32> },
    #[error("no world can be made: {0}")]
    Builder(String),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Collective(#[from] BuildError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("cannot find out where this program lies: {0}")]
    NoProgram(io::Error),
    #[error(transparent)]
    World(#[from] Error),
    #[error(transparent)]
    Type(#[from] TypeError),
    #[error(transparent)]
    Convertor(#[from] ConvertorError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("a device has worked for {seconds} seconds without an end")]
    Hangs { seconds: u64 },
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{what}: {error}")]
    NoSamples { what: String, error: NoSamples },
    #[error(
        "{load}: what is measured beside it is worth nothing; wait until it has ended, or --force"
    )]
    Busy { load: Load },
    #[error("nothing was written: {}; measure again when the machine is idle, or --force", why.join("; "))]
    Implausible { why: Vec<String> },
    #[error("{cases} of {all} layouts arrived with wrong bytes; the first: {first}")]
    WrongBytes { cases: usize, all: usize, first: String },
    #[error("{}; the job was ended", failed(*rank, *end, *because))]
    Job { rank: u32, end: End, because: Option<u32>, code: u8 },
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

/// Which process failed, and how, in words.
fn failed(rank: u32, end: End, because: Option<u32>) -> String {
    match because {
        Some(cause) if cause == rank => format!("rank {rank} left without finalizing, and {end}"),
        Some(cause) => format!("rank {rank} {end}, because rank {cause} left without finalizing"),
        None => format!("rank {rank} {end}"),
    }
}

impl Failure {
    /// More bytes than there are.
    pub(super) fn too_big(case: &str, needed: u64, available: u64) -> Failure {
        let [needed, available] = [needed, available].map(|bytes| Bytes(bytes).to_string());
        Failure::TooBig { case: case.to_owned(), needed, available }
    }

    /// 2 for what the user can put right by calling differently.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Failure::Launch(LaunchError::TimedOut { .. } | LaunchError::Late { .. }) => TIMED_OUT,
            Failure::Layout(_)
            | Failure::Text(_)
            | Failure::NoSpace { .. }
            | Failure::BadOption { .. }
            | Failure::TooBig { .. }
            | Failure::NotTwo { .. }
            | Failure::NotPairs { .. }
            | Failure::Name(_)
            | Failure::Collective(_)
            | Failure::Launch(_)
            // What the environment asks for, and files that it names.
            | Failure::World(
                Error::Tuning(_)
                | Error::NoSuchTransport { .. }
                | Error::Boot(BootError::Wireup(WireupError::Setting { .. })),
            )
            // A file that was named, and is none, or no report.
            | Failure::File(
                FileError::Io { action: "read", .. }
                | FileError::Json { .. }
                | FileError::Invalid { .. },
            ) => 2,
            Failure::Job { code, .. } => *code,
            _ => 1,
        }
    }
}
