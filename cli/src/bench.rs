//! `gapless bench`: latency, bandwidth, message rate and collectives, in the form that people know from the
//! OSU micro-benchmarks, ucx_perftest and IMB: a line for each size, two columns.
//!
//! Called by a user it starts itself as the ranks of a job (`--as-rank`); started by any launcher it is one of them. Rank
//! 0 decides how often something is done, and shows what it took. Bytes are checked before anything is timed.
//!
//! # What is where
//!
//! Options choose a test and sizes; the test runs its loop at all ranks; rank 0 decides the counts; a line is shown for
//! each size.
//!
//! - tests: `pairs` (messages, size by size) with `pair` (what the two ranks do), `onesided` (windows), `coll` (collectives)
//!   with `blocks` (any layout), `reductions` (any elements) and `mixture` (different calls in turn);
//! - what is moved: `messages` (which), `sizes`;
//! - how it is measured: `timing` (how often, what is kept), `verdict` (whether the bytes were right);
//! - what is shown: `show`.
//!
//! Read first: `pair.rs`, `timing.rs`, `messages.rs`.

mod blocks;
mod coll;
mod messages;
mod mixture;
mod onesided;
mod pair;
mod pairs;
mod rank;
mod reductions;
mod show;
mod sizes;
mod timing;
mod verdict;

use super::collectives::Form;
use super::explain::bytes;
use super::failure::Failure;
use super::memory::{Ends, Source};
use super::pingpong::protocol;
use super::run::start_again;
use super::selection::Selection;
use super::spaces;
use super::{Worlds, check_writable};
use gapless::ReduceOp;
use gapless_dtype::Primitive;
use gapless_pml::Protocol;
use sizes::Sizes;
use std::path::PathBuf;
use std::process::ExitCode;
use timing::Plan;

/// Which test.
#[derive(Debug, clap::Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    test: Test,
}

#[derive(Debug, clap::Subcommand)]
enum Test {
    /// Half of the time of a ping-pong between two ranks, in microseconds
    Latency(Latency),
    /// Bandwidth of a window of messages from one rank to another, in 10^6 bytes a second
    Bw(Windowed),
    /// The same of messages in both directions at once
    Bibw(Windowed),
    /// Messages a second from one rank to another, a window of them at a time
    Rate(Windowed),
    /// Part of an exchange of messages between two ranks that is hidden behind computation, in percent: begun, as much
    /// computed as it takes alone, and waited for
    Overlap(Latency),
    /// Messages a second of several pairs of ranks at once
    PairRate(PairRate),
    /// As latency, of several pairs of ranks at once: the slowest pair's
    PairLatency(PairLatency),
    /// Rank 0 writes to rank 1's window (MPI_Put), and flushes
    Put(OneSided),
    /// Rank 0 reads rank 1's window (MPI_Get)
    Get(OneSided),
    /// Rank 0 adds doubles to rank 1's window (MPI_Accumulate), and flushes
    Accumulate(OneSided),
    /// The same, and has what was there before (MPI_Get_accumulate)
    GetAccumulate(OneSided),
    /// Rank 0 adds to a word of rank 1's window, and has what was there (MPI_Fetch_and_op)
    FetchAndOp(OneSided),
    /// Rank 0 replaces a word of rank 1's window (MPI_Compare_and_swap)
    CompareAndSwap(OneSided),
    /// The time of a collective: from a common begin to a rank's end, on average over the ranks, and to the last one's
    Coll(Coll),
}

/// What all tests understand.
#[derive(Clone, Debug, clap::Args)]
struct Common {
    /// Sizes in bytes, from MIN to MAX, each twice the one before (1K, 4M, 1G are powers of 1024), or one size alone;
    /// else what the test can have of 1:4M, of collectives 8:1M
    #[arg(short, long = "message-size", value_name = "MIN:MAX", allow_negative_numbers = true)]
    message_size: Option<Sizes>,
    /// Iterations for each size, instead of as many as the time allows
    #[arg(short, long, value_name = "COUNT", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iterations: Option<u64>,
    /// Iterations before those that count, for each size, instead of a tenth of the time
    #[arg(short = 'x', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    warmup: Option<u64>,
    /// Seconds for each size
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2, allow_negative_numbers = true)]
    time: f64,
    /// Show more: average, least, median, 90th and 99th percentile and most of all iterations, each timed by itself; and
    /// the protocol
    #[arg(short, long)]
    full: bool,
    /// Show comma-separated values
    #[arg(long)]
    csv: bool,
    /// Write the figures here, as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// This is one of the ranks
    #[arg(long, hide = true)]
    as_rank: bool,
}

/// Messages between two ranks.
#[derive(Clone, Debug, clap::Args)]
struct Latency {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    selection: Selection,
    /// The memory that is sent from and received into: host, cuda[:N] or opencl[:N]; one for both ranks, or one for each
    /// (cuda:0,cuda:1 or cuda,host)
    #[arg(long, value_name = "SPACE[,SPACE]", default_value = "host")]
    space: Ends,
    /// Memory from World::alloc, which peers can map, or ordinary memory
    #[arg(long, value_enum, default_value = "alloc")]
    memory: BenchMemory,
    /// Use this protocol wherever it is possible, by the name that explain shows
    #[arg(long, value_parser = protocol)]
    protocol: Option<Protocol>,
    /// What the messages' contents derive from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Windows of messages between two ranks.
#[derive(Clone, Debug, clap::Args)]
struct Windowed {
    #[command(flatten)]
    message: Latency,
    /// Messages that are under way at a time
    #[arg(short = 'W', long, value_name = "COUNT", default_value_t = 64,
        value_parser = clap::value_parser!(u64).range(1..=65_536))]
    window: u64,
    /// Memory to receive a window into, at most: of longer messages fewer are under way
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = bytes)]
    buffers: u64,
}

/// Messages between several pairs.
#[derive(Clone, Debug, clap::Args)]
struct PairLatency {
    #[command(flatten)]
    message: Latency,
    /// Pairs of ranks; else one for every two processors. Under a launcher, every two of its ranks
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=512))]
    pairs: Option<u32>,
}

/// Operations on windows.
#[derive(Clone, Debug, clap::Args)]
struct OneSided {
    #[command(flatten)]
    common: Common,
    /// Operations before each flush, as osu_put_bw's window; the column is then their bandwidth in 10^6 bytes a second
    #[arg(short = 'W', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    window: Option<u64>,
}

/// Windows of messages between several pairs.
#[derive(Clone, Debug, clap::Args)]
struct PairRate {
    #[command(flatten)]
    windowed: Windowed,
    /// Pairs of ranks; else one for every two processors. Under a launcher, every two of its ranks
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=512))]
    pairs: Option<u32>,
}

/// A collective.
#[derive(Clone, Debug, clap::Args)]
struct Coll {
    /// Which one: allreduce, barrier, bcast, …; mixture is 16 different short ones on 3 communicators in turn, beside
    /// the sum of each repeated
    #[arg(value_name = "OPERATION")]
    operation: String,
    #[command(flatten)]
    common: Common,
    /// Ranks, 2 or more; else one for each processor
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=1024))]
    ranks: Option<u32>,
    /// How it is called
    #[arg(long, value_enum, default_value_t)]
    form: Form,
    /// Use this algorithm, whatever the table chooses: "ring", "chain in 64K"
    #[arg(long, value_name = "NAME")]
    algorithm: Option<String>,
    /// The elements, by MPI's name or Rust's: int, MPI_FLOAT, f64, double_int, …; else double
    #[arg(long = "type", value_name = "TYPE", value_parser = primitive)]
    element: Option<Primitive>,
    /// What combines them, by MPI's name: sum, max, minloc, …; else sum
    #[arg(long, value_name = "OP", value_parser = reductions::op)]
    op: Option<ReduceOp>,
    /// Blocks of layouts
    #[command(flatten)]
    selection: Selection,
    /// The memory of the buffers: host, cuda[:N] or opencl[:N]; after a comma that of the second half of the ranks
    #[arg(long, value_name = "SPACE[,SPACE]")]
    space: Option<Ends>,
    /// Memory from World::alloc, which peers can map, or ordinary memory
    #[arg(long, value_enum)]
    memory: Option<BenchMemory>,
    /// Carry its messages by this protocol wherever it is possible, by the name that explain shows
    #[arg(long, value_parser = protocol)]
    protocol: Option<Protocol>,
    /// What contents of blocks derive from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn primitive(name: &str) -> Result<Primitive, String> {
    let known = || {
        let short = |it: Primitive| it.name().to_ascii_lowercase().replace("mpi_", "");
        Primitive::ALL.map(short).join(", ")
    };
    gapless_layouts::text::primitive(name).ok_or_else(|| format!("it is one of {}", known()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BenchMemory {
    /// From World::alloc
    Alloc,
    /// Ordinary memory
    Heap,
}

impl BenchMemory {
    fn source(self) -> Source {
        match self {
            BenchMemory::Alloc => Source::Alloc,
            BenchMemory::Heap => Source::Heap,
        }
    }
}

impl Bench {
    pub(super) fn run(self, worlds: Worlds<'_>) -> Result<ExitCode, Failure> {
        use onesided::OnesidedCall;
        use pairs::PairTest;
        let (kind, windowed, pairs) = match self.test {
            Test::Latency(message) => (PairTest::Latency, message.alone(), Some(1)),
            Test::Overlap(message) => (PairTest::Overlap, message.alone(), Some(1)),
            Test::Bw(windowed) => (PairTest::Bandwidth, windowed, Some(1)),
            Test::Bibw(windowed) => (PairTest::BothWays, windowed, Some(1)),
            Test::Rate(windowed) => (PairTest::Rate, windowed, Some(1)),
            Test::PairLatency(PairLatency { message, pairs }) => {
                (PairTest::PairLatency, message.alone(), pairs)
            }
            Test::Put(options) => return options.run(OnesidedCall::Put, worlds),
            Test::Get(options) => return options.run(OnesidedCall::Get, worlds),
            Test::Accumulate(options) => return options.run(OnesidedCall::Accumulate, worlds),
            Test::GetAccumulate(options) => {
                return options.run(OnesidedCall::GetAccumulate, worlds);
            }
            Test::FetchAndOp(options) => return options.run(OnesidedCall::FetchAndOp, worlds),
            Test::CompareAndSwap(options) => {
                return options.run(OnesidedCall::CompareAndSwap, worlds);
            }
            Test::PairRate(PairRate { windowed, pairs }) => (PairTest::PairRate, windowed, pairs),
            Test::Coll(coll) => {
                coll.common.check()?;
                return coll::run(&coll, worlds);
            }
        };
        let message = &windowed.message;
        message.common.check()?;
        message.space.0.into_iter().try_for_each(spaces::present)?;
        // Complains before any process is started.
        let sizes = Sizes::list(message.common.message_size, (1, 4 << 20));
        let series = messages::series(&message.selection, &sizes)?;
        if message.common.is_rank() {
            return pairs::run(&windowed, (kind, pairs), &series, worlds);
        }
        start_again(2 * pairs.unwrap_or(processors() / 2).max(1))
    }
}

impl OneSided {
    fn run(&self, call: onesided::OnesidedCall, worlds: Worlds<'_>) -> Result<ExitCode, Failure> {
        self.common.check()?;
        let sizes = call.list(self.common.message_size)?;
        match self.common.is_rank() {
            true => onesided::run(self, call, &sizes, worlds),
            false => start_again(2),
        }
    }
}

/// How many processes can run at a time.
fn processors() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(processors).unwrap_or(u32::MAX).min(1024)
}

impl Common {
    /// Whether what was asked for makes sense.
    fn check(&self) -> Result<(), Failure> {
        if !(self.time.is_finite() && self.time > 0.0 && self.time <= 3600.0) {
            let why = "must be more than 0 and at most 3600 seconds".to_owned();
            return Err(Failure::BadOption { option: "--time", value: self.time.to_string(), why });
        }
        self.json.as_deref().map_or(Ok(()), |path| check_writable("--json", path))
    }

    /// Whether this process is one of those that measure.
    fn is_rank(&self) -> bool {
        self.as_rank || gapless::wireup::is_launched()
    }

    fn plan(&self) -> Plan {
        let Common { iterations, warmup, time, full, .. } = *self;
        Plan { iterations, warmup, seconds: time, each: full }
    }
}

impl Latency {
    /// A window of one.
    fn alone(self) -> Windowed {
        Windowed { message: self, window: 1, buffers: 0 }
    }
}
