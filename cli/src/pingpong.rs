//! `gapless pingpong`: real layouts back and forth between two processes, every byte checked, with
//! the time of a contiguous message and of `memcpy` beside it.
//!
//! Called by a user it starts itself twice (`--as-rank`, under the launcher); started with two
//! ranks by any launcher it is one of them. Rank 0 measures, checks and shows; rank 1 echoes.
//!
//! Read first: `memory/place.rs` (where messages lie), `memory/content.rs` (how bytes are checked), `pingpong/bench.rs`
//! (what is timed).

#[allow(unsafe_code, reason = "copies between arenas that live as long as the process")]
mod bench;
mod library;
mod pass;
mod rank;
mod setting;
mod show;
mod sizes;

pub use super::memory::{Budget, Ends, LINE, Pinned, Places, Source, Where};
pub use library::{MeasureError, Party, Trial, TrialStep};
pub use pass::Effort;
pub use setting::Setting;

use super::explain::bytes;
use super::failure::Failure;
use super::run::start_again;
use super::selection::Selection;
use super::spaces;
use super::{Worlds, check_writable};
use gapless_pml::Protocol;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;

/// What to send, how often, and where to put the figures.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Pingpong {
    #[command(flatten)]
    selection: Selection,
    /// The memory that is sent from and received into: host, cuda[:N] or opencl[:N]; one for both
    /// processes, or one for each (cuda:0,cuda:1 or cuda,host)
    #[arg(long, value_name = "SPACE[,SPACE]", default_value = "host")]
    space: Ends,
    /// Host memory from World::alloc, which peers can map, or ordinary memory, perhaps page-locked, or the first two one
    /// after the other; or memory of host or device that is allocated to each message's size
    #[arg(long, value_enum, default_value = "alloc")]
    memory: PingpongMemory,
    /// Use this protocol wherever it is possible, by the name that explain shows
    #[arg(long, value_parser = protocol)]
    protocol: Option<Protocol>,
    /// Fragments of this length, where messages go in fragments
    #[arg(long, value_name = "BYTES", value_parser = fragment)]
    fragment: Option<u32>,
    /// Fragments of one message that are in work at a time
    #[arg(long = "depth", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_work: Option<u32>,
    /// Thread blocks that rank 0's kernels may have on its device, at most
    #[arg(long, value_name = "COUNT")]
    blocks: Option<NonZeroU32>,
    /// Leave the GPUs' copy engines out: kernels move all
    #[arg(long)]
    kernels_only: bool,
    /// A worker stays on each GPU, and runs short copies without a launch
    #[arg(long)]
    workers: bool,
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
    /// Write the figures here, as JSON; - is standard output
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
enum PingpongMemory {
    /// From World::alloc
    Alloc,
    /// Ordinary memory
    Heap,
    /// Ordinary memory, page-locked for the process's device, or else for one like the other process's
    Locked,
    /// The first two, one after the other
    Both,
    /// To each message's size, from World::alloc_device or World::alloc
    ToSize,
    /// The same, but as a program does that knows nothing of Gapless (cudaMalloc, malloc)
    ForeignToSize,
}

impl PingpongMemory {
    fn sources(self) -> &'static [Source] {
        match self {
            PingpongMemory::Alloc => &[Source::Alloc],
            PingpongMemory::Heap => &[Source::Heap],
            PingpongMemory::Locked => &[Source::Locked],
            PingpongMemory::Both => &[Source::Alloc, Source::Heap],
            PingpongMemory::ToSize => &[Source::ToSize],
            PingpongMemory::ForeignToSize => &[Source::ForeignToSize],
        }
    }
}

impl Pingpong {
    fn budget(&self) -> Budget {
        Budget { blocks: self.blocks, kernels_only: self.kernels_only, workers: self.workers }
    }

    pub(super) fn run(self, worlds: Worlds<'_>) -> Result<ExitCode, Failure> {
        self.space.0.into_iter().try_for_each(spaces::present)?;
        if !(self.time.is_finite() && self.time > 0.0 && self.time <= 3600.0) {
            let why = "must be more than 0 and at most 3600 seconds".to_owned();
            return Err(Failure::BadOption { option: "--time", value: self.time.to_string(), why });
        }
        for (option, path) in [("--json", &self.json), ("--plot", &self.plot)] {
            path.as_deref().map_or(Ok(()), |path| check_writable(option, path))?;
        }
        // A layout that is impossible does not keep the others from being measured: rank 0 says so.
        let chosen = self.selection.possible()?;
        if self.as_rank || gapless::wireup::is_launched() {
            return rank::run(worlds, &self, chosen);
        }
        start_again(2)
    }

    /// The command as a user would type it.
    fn command(&self) -> String {
        let words = std::env::args().skip(1).filter(|word| word != "--as-rank");
        ["gapless".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
    }
}

pub(super) fn protocol(name: &str) -> Result<Protocol, String> {
    let between = || Protocol::ALL.into_iter().filter(|protocol| *protocol != Protocol::Local);
    between().find(|protocol| protocol.name() == name).ok_or_else(|| {
        let names: Vec<&str> = between().map(Protocol::name).collect();
        format!("the protocols between processes are {}", names.join(", "))
    })
}

fn fragment(text: &str) -> Result<u32, String> {
    let fits = |bytes| u32::try_from(bytes).ok().filter(|bytes| *bytes > 0);
    fits(bytes(text)?)
        .ok_or_else(|| "a fragment has at least 1 byte and less than 4 GiB".to_owned())
}
