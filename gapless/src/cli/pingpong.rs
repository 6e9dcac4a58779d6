//! `gapless pingpong`: real layouts back and forth between two processes, every byte checked, with
//! the time of a contiguous message and of `memcpy` beside it.
//!
//! Called by a user it starts itself twice (`--as-rank`, under the launcher); started with two
//! ranks by any launcher it is one of them. Rank 0 measures, checks and shows; rank 1 echoes.
//!
//! Read first: `place.rs` (where messages lie), `content.rs` (how bytes are checked), `bench.rs`
//! (what is timed).

#[allow(unsafe_code, reason = "places of one arena that interleave without sharing a byte")]
mod arena;
mod bench;
mod content;
mod library;
mod pin;
mod place;
mod rank;
mod show;

pub use library::{MeasureError, Measuring, figures};
pub use pin::Pinned;
pub use place::{LINE, Places};

use super::explain::bytes;
use super::failure::Failure;
use super::run::start;
use super::selection::Selection;
use super::spaces;
use crate::launch::Job;
use gapless_pml::Protocol;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What to send, how often, and where to put the figures.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Pingpong {
    #[command(flatten)]
    selection: Selection,
    /// The memory that is sent from and received into: host, cuda or opencl
    #[arg(long, default_value = "host")]
    space: String,
    /// Memory from World::alloc, which peers can map, or ordinary memory, or one after the other
    #[arg(long, value_enum, default_value = "alloc")]
    memory: Memory,
    /// Use this protocol wherever it is possible: eager, pipeline, mapped or single-copy
    #[arg(long, value_parser = protocol)]
    protocol: Option<Protocol>,
    /// Round trips for each layout, instead of as many as the time allows
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iterations: Option<u32>,
    /// Seconds for each layout
    #[arg(long, value_name = "SECONDS", default_value_t = 0.4)]
    time: f64,
    /// Memory for the buffers of each side of each process, at most, unless a message needs more
    #[arg(long, value_name = "BYTES", default_value = "512M", value_parser = bytes)]
    buffers: u64,
    /// What the messages' contents and the buffers' order derive from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the figures here, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the figures here, as SVG
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// This is one of the two processes
    #[arg(long, hide = true)]
    as_rank: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Memory {
    /// From World::alloc
    Alloc,
    /// Ordinary memory
    Heap,
    /// Both, one after the other
    Both,
}

/// Where one pass's arenas come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Alloc,
    Heap,
}

impl Memory {
    fn sources(self) -> &'static [Source] {
        match self {
            Memory::Alloc => &[Source::Alloc],
            Memory::Heap => &[Source::Heap],
            Memory::Both => &[Source::Alloc, Source::Heap],
        }
    }
}

impl Pingpong {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        spaces::check(&self.space)?;
        if !(self.time.is_finite() && self.time > 0.0 && self.time <= 3600.0) {
            let why = "more than 0 and at most 3600 seconds".to_owned();
            return Err(Failure::BadOption { option: "--time", value: self.time.to_string(), why });
        }
        for (option, path) in [("json", &self.json), ("plot", &self.plot)] {
            path.as_deref().map_or(Ok(()), |path| check_folder(option, path))?;
        }
        let cases = self.selection.cases()?;
        if self.as_rank || crate::wireup::is_launched() {
            return rank::run(&self, &cases);
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if cores < 2 {
            super::complain(
                "only one processor: both processes take turns on it, times mean little",
            );
        }
        let job = Job {
            ranks: 2,
            program: std::env::current_exe().map_err(Failure::NoProgram)?.into(),
            arguments: std::env::args_os().skip(1).chain(["--as-rank".into()]).collect(),
            environment: Vec::new(),
            prefix: false,
        };
        match start(&job) {
            // It has said what was wrong.
            Err(Failure::Job { end: crate::launch::End::Code(_), code, .. }) => {
                Ok(ExitCode::from(code))
            }
            other => other,
        }
    }

    /// The command as a user would type it.
    fn command(&self) -> String {
        let words = std::env::args().skip(1).filter(|word| word != "--as-rank");
        ["gapless".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
    }
}

fn check_folder(option: &'static str, path: &Path) -> Result<(), Failure> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if folder.is_dir() {
        return Ok(());
    }
    Err(Failure::NoFolder { option, path: path.to_owned() })
}

fn protocol(name: &str) -> Result<Protocol, String> {
    let found = Protocol::ALL.into_iter().find(|protocol| protocol.name() == name);
    found.filter(|protocol| *protocol != Protocol::Local).ok_or_else(|| {
        "the protocols between processes are eager, pipeline, mapped and single-copy".to_owned()
    })
}
