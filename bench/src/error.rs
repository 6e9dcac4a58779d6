//! Why an experiment gave no figures.

use std::fmt;
use std::io;
use std::path::PathBuf;

use gapless::launch::{End, LaunchError};
use gapless_btl::LinkError;
use gapless_cli::pingpong::MeasureError;
use gapless_dtype::{ConvertorError, TypeError};
use gapless_engine::EngineError;
use gapless_layouts::LayoutError;
use gapless_mem::DeviceError;
use gapless_mem_cuda::CudaError;
use gapless_pml::{self as pml, PmlError};
use gapless_report::{FileError, NoSamples, PlotError};

/// A byte that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Its index in the packed stream or in the buffer.
    pub offset: usize,
    /// What is there.
    pub found: u8,
    /// What should be.
    pub expected: u8,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { offset, found, expected } = self;
        write!(f, "byte {offset} is {found:#04x}, not {expected:#04x}")
    }
}

/// Why an experiment gave no figures, or none that can be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A layout that does not exist, or not at that size.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A datatype that cannot be made or committed.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// A layout that does not fit its buffer.
    #[error(transparent)]
    Convertor(#[from] ConvertorError),
    /// A sharding that cannot be.
    #[error(transparent)]
    Reshard(#[from] gapless_coll::reshard::ReshardError),
    /// A buffer that an engine refuses.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Memory that cannot be had.
    #[error(transparent)]
    Memory(#[from] DeviceError),
    /// A CUDA call that failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// This machine has no CUDA device: nothing is wrong, and nothing can be measured.
    #[error("no CUDA device to measure on: {why}")]
    NoGpu {
        /// What is missing.
        why: String,
    },
    /// The kernels that measuring needs could not be loaded.
    #[error("the kernels that measuring needs could not be loaded: {why}")]
    NoTools {
        /// Why not.
        why: String,
    },
    /// Work on a GPU that does not end.
    #[error("work on the GPU has not ended after {seconds} s")]
    Hangs {
        /// How long it was waited for.
        seconds: u64,
    },
    /// A message that failed.
    #[error(transparent)]
    Message(#[from] pml::Failure),
    /// Two ends that cannot be joined.
    #[error("the two ends cannot be joined: {0}")]
    Link(String),
    /// A world that could not be joined or left.
    #[error(transparent)]
    World(#[from] gapless::Error),
    /// Two processes that did not get to measuring.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// Processes that could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A process that ended otherwise than well.
    #[error("rank {rank} {end} while measuring {what}")]
    Rank {
        /// Which one.
        rank: u32,
        /// How.
        end: End,
        /// What it was to measure.
        what: String,
    },
    /// The launcher was told to stop.
    #[error("stopped by signal {0}")]
    Signal(i32),
    /// Programs that make no sense to the simulated machine.
    #[error(transparent)]
    Program(#[from] gapless_xtq_sim::ProgramError),
    /// A step that the simulated machine does not have.
    #[error("the simulated machine cannot do {step}")]
    Unsimulated {
        /// The step.
        step: String,
    },
    /// An algorithm that does not exist.
    #[error(transparent)]
    Name(#[from] gapless_coll::NameError),
    /// A clock that showed nothing.
    #[error("{what}: {error}")]
    Samples {
        /// What was measured.
        what: String,
        /// Why there is no median.
        error: NoSamples,
    },
    /// Bytes that are not what they should be: the figures would be worthless.
    #[error("{case}, {op}: {wrong}")]
    Wrong {
        /// The case.
        case: String,
        /// The operation.
        op: &'static str,
        /// The first byte that is wrong.
        wrong: Wrong,
    },
    /// A figure of bytes that arrived wrong, as its experiment found while it measured.
    #[error("{case}, {op}: bytes are wrong; its figures are worthless")]
    Unverified {
        /// The case.
        case: String,
        /// The operation.
        op: String,
    },
    /// Figures that are not there; the others are.
    #[error("{failed} figures could not be measured; see above")]
    Absent {
        /// How many for which something went wrong.
        failed: usize,
    },
    /// A message that did not arrive.
    #[error("a message did not arrive after {polls} polls of both ends")]
    Stuck {
        /// How often both ends were polled.
        polls: u32,
    },
    /// The processes that measure ended badly.
    #[error("the processes that measure ended badly: {0}")]
    Job(String),
    /// A collective that has no schedule.
    #[error(transparent)]
    Collective(#[from] gapless_coll::BuildError),
    /// An option that makes no sense.
    #[error("{option}: {why}")]
    Option {
        /// Which one.
        option: &'static str,
        /// Why not.
        why: String,
    },
    /// A case larger than the memory that experiments use.
    #[error("{case} needs a buffer of {needed}; experiments use at most {most} for each side")]
    TooBig {
        /// The case.
        case: String,
        /// Bytes of its buffer.
        needed: gapless_report::Bytes,
        /// Bytes there are.
        most: gapless_report::Bytes,
    },
    /// A report that cannot be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A report that cannot be drawn.
    #[error("{experiment} cannot be drawn: {error}")]
    Plot {
        /// Which experiment.
        experiment: &'static str,
        /// Why not.
        error: PlotError,
    },
    /// What the processes of an experiment told each other makes no sense.
    #[error("figures of rank 0 cannot be read: {0}")]
    Figures(#[from] serde_json::Error),
    /// A document without the two marks between which a summary goes.
    #[error("{} has no lines {begin} and {end}", path.display())]
    NoMarks {
        /// The document.
        path: PathBuf,
        /// The first mark.
        begin: String,
        /// The second.
        end: String,
    },
    /// A row that a page quotes and its report does not have.
    #[error("{} has no row {row:?}", path.display())]
    NoRow {
        /// The report.
        path: PathBuf,
        /// What was looked for.
        row: String,
    },
    /// The operating system refused something.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

impl From<PmlError> for Failure {
    fn from(error: PmlError) -> Failure {
        Failure::Message(error.into())
    }
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        Failure::Link(error.to_string())
    }
}

impl Failure {
    /// An input or output error with what it was about.
    pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Failure {
        let path = path.into();
        move |error| Failure::Io { action, path, error }
    }

    /// Samples that give no median.
    pub fn samples(what: impl Into<String>) -> impl FnOnce(NoSamples) -> Failure {
        let what = what.into();
        move |error| Failure::Samples { what, error }
    }
}
