//! `oneway`: messages of 1 B to 64 MiB between two processes through the whole stack, by layout and
//! by protocol.
//!
//! The loop is `gapless pingpong`'s ([`gapless_cli::pingpong`]). For each protocol two processes
//! of this program measure, which agree on nothing but their command line.

use clap::ValueEnum;
use gapless_cli::pingpong::{Budget, Effort, Ends, Party, Pinned, Setting, Source, Trial, TrialStep};
use gapless::{Config, Protocol, World};
use gapless_layouts::Case;
use gapless_report::{PlotError, Report, Row, Series, lines};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, gathered, rate_at};
use crate::processes::{Processes, RankOf};
use crate::subjects::{contiguous_case, list, named};
use crate::table::{
    CASE, OVER_CONTIGUOUS, OVER_MEMCPY, PAYLOAD, PROTOCOL, RATE, RESIDENT, SPREAD, TIME, called, table,
};

/// The experiment.
pub struct OneWay;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Layouts; repeatable, or separated by commas
    #[arg(long = "layout", value_enum, value_delimiter = ',')]
    layouts: Vec<OnewayKind>,
    /// Protocols; repeatable, or separated by commas
    #[arg(long = "protocol", value_enum, value_delimiter = ',')]
    protocols: Vec<OnewayMode>,
    /// Payloads, in bytes, about; repeatable, or separated by commas
    #[arg(long = "payload", value_name = "BYTES", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=256 << 20))]
    payloads: Vec<u64>,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnewayKind {
    /// Bytes without gaps
    Contiguous,
    /// Half the rows of a matrix
    V,
    /// The lower triangle of a matrix
    T,
    /// A transpose
    X,
    /// Blocks of 3 doubles at irregular distances
    List3,
}

/// How it is carried, and between which memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnewayMode {
    /// Whatever is chosen, memory from World::alloc
    Auto,
    /// Whatever is chosen, ordinary memory
    AutoHeap,
    /// Eager, as far as messages are short enough
    Eager,
    /// Two copies through shared memory, ordinary memory
    Pipeline,
    /// One copy out of mapped memory, from World::alloc
    Mapped,
    /// One copy by the kernel, ordinary memory
    SingleCopy,
}

/// No transport here takes longer messages eagerly.
const EAGER_BYTES_MAX: u64 = 64 << 10;
/// The kernel takes about 350 ns for each block: a message of a million lasts a third of a second, and
/// its figure would take minutes to say what that of 65,536 says.
const SINGLE_COPY_BLOCKS_MAX: u64 = 1 << 16;

impl OnewayMode {
    fn name(self) -> &'static str {
        match self {
            OnewayMode::Auto => "auto",
            OnewayMode::AutoHeap => "auto-heap",
            OnewayMode::Eager => "eager",
            OnewayMode::Pipeline => "pipeline",
            OnewayMode::Mapped => "mapped",
            OnewayMode::SingleCopy => "single-copy",
        }
    }

    fn forced(self) -> Option<Protocol> {
        match self {
            OnewayMode::Auto | OnewayMode::AutoHeap => None,
            OnewayMode::Eager => Some(Protocol::Eager),
            OnewayMode::Pipeline => Some(Protocol::Pipeline),
            OnewayMode::Mapped => Some(Protocol::Mapped),
            OnewayMode::SingleCopy => Some(Protocol::SingleCopy),
        }
    }

    fn allocated(self) -> bool {
        matches!(self, OnewayMode::Auto | OnewayMode::Eager | OnewayMode::Mapped)
    }

    fn carries(self, case: &Case) -> bool {
        match self {
            OnewayMode::Eager => case.payload_bytes <= EAGER_BYTES_MAX,
            OnewayMode::SingleCopy => {
                case.expected_send_blocks.is_none_or(|blocks| blocks <= SINGLE_COPY_BLOCKS_MAX)
            }
            _ => true,
        }
    }
}

impl OnewayKind {
    fn name(self) -> &'static str {
        match self {
            OnewayKind::Contiguous => "contiguous",
            OnewayKind::V => "V",
            OnewayKind::T => "T",
            OnewayKind::X => "X",
            OnewayKind::List3 => "list3",
        }
    }

    /// The case whose payload is nearest to `bytes`; none where the layout has none so small.
    fn case(self, bytes: u64) -> Result<Option<Case>, Failure> {
        let doubles = bytes / 8;
        let case = match self {
            OnewayKind::Contiguous => contiguous_case(bytes),
            // A single block would be contiguous.
            _ if doubles < 4 => return Ok(None),
            OnewayKind::V => named("v", Some(doubles.isqrt()))?.remove(0),
            OnewayKind::T => named("t", Some((2 * doubles).isqrt()))?.remove(0),
            OnewayKind::X => named("x", Some(doubles.isqrt()))?.remove(0),
            OnewayKind::List3 => list((doubles / 3).max(2), 3, false)?,
        };
        Ok(Some(case))
    }
}

impl Experiment for OneWay {
    type Options = Options;

    const NAME: &'static str = "oneway";
    const ABOUT: &'static str = "messages of 1 B to 64 MiB between two processes, by protocol";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let ways = chosen(&options.protocols, OnewayMode::value_variants());
        let processes = Processes::new(Self::NAME, 2);
        let progress = common.progress(ways.len());
        let mut rows = Vec::new();
        for way in ways {
            progress.set_message(way.name());
            rows.extend(processes.found::<Vec<Row>>(way.name(), way.name())?);
            progress.inc(1);
        }
        progress.finish_and_clear();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let turns = if cores < 2 { "; both took turns on one processor" } else { "" };
        let notes = format!(
            "time: median of half a round trip between two processes, each on a processor of its \
             own{turns};\nbuffers rotate over more than four times the last-level cache, as far as memory \
             goes; resident: GB/s on the same\nbuffers every time; ÷ memcpy, ÷ contiguous: speed \
             relative to one memcpy of the payload and to a contiguous message,\nrotating alike; \
             in brackets: what was asked for, auto with memory from World::alloc, auto-heap \
             with ordinary\nmemory; protocol: what carried it; single-copy without messages of more than \
             {SINGLE_COPY_BLOCKS_MAX} blocks, since the kernel\ntakes about 350 ns for each.\n",
        );
        Ok(Findings::new(rows, notes))
    }

    /// On one protocol.
    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let way: String = rank.part()?;
        let way = OnewayMode::from_str(&way, false).map_err(Failure::Job)?;
        let effort = Effort::full(common.seconds(), common.quick.then_some(3));
        let (ends, setting) = (Ends::HOST, Setting::default());
        let source = if way.allocated() { Source::Alloc } else { Source::Heap };
        let trial = |case| Trial { case, ends, source, setting, effort };
        let trials: Vec<Trial> = cases(options, common, way)?.into_iter().map(trial).collect();
        // The world's threads, if it starts any, go where the system likes; this one does the work.
        let config = || Config { force: way.forced(), ..Config::default() };
        let party = Party::join(&|| World::builder().config(config()), &[ends], Budget::default())?;
        let mut party = common.with_quick_buffers(party);
        let pinned = Pinned::to(usize::try_from(party.rank()).unwrap_or(0));
        let mut rows = Vec::new();
        party.measure(&trials, common.seed, &mut |step| {
            if let TrialStep::Row(_, row) = step {
                rows.push(*row);
            }
        })?;
        let leads = party.rank() == 0;
        party.leave()?;
        let carried = |row: &Row| way.forced().is_none_or(|protocol| protocol.name() == row.protocol);
        let rows: Vec<Row> = rows
            .into_iter()
            .filter(carried)
            .map(|row| Row { case: format!("{} ({})", row.case, way.name()), ..row })
            .map(|row| row.with("asked", way.name()).with("processor", pinned.processor()))
            .collect();
        if leads { rank.leave(&rows) } else { Ok(()) }
    }

    /// One picture of what is chosen by itself, and one for each layout of all protocols.
    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let asked = |row: &Row| row.extra.get("asked").and_then(|way| way.as_str()).map(str::to_owned);
        let family = |row: &Row| row.case.split(' ').next().unwrap_or_default().to_owned();
        let cpu = &report.machine.cpu;
        let auto = report.rows.iter().filter(|row| asked(row).as_deref() == Some("auto"));
        let auto = series(auto.map(|row| (family(row), row)));
        let auto = (String::new(), format!("one way between two processes ({cpu})"), auto);
        let kinds = OnewayKind::value_variants().iter().map(|kind| {
            let rows = report.rows.iter().filter(|row| family(row) == kind.name());
            let ways = series(rows.map(|row| (asked(row).unwrap_or_default(), row)));
            let title = format!("{}, one way, by protocol ({cpu})", kind.name());
            (format!("-{}", kind.name().to_ascii_lowercase()), title, ways)
        });
        Drawing::each([auto].into_iter().chain(kinds), lines)
    }

    /// What is chosen by itself: times of each layout by payload.
    fn summary(report: &Report) -> String {
        let asked = |row: &&Row| row.extra.get("asked").and_then(|way| way.as_str()) == Some("auto");
        let columns = [
            called("message", CASE), PAYLOAD, PROTOCOL, TIME, SPREAD, RATE, RESIDENT, OVER_MEMCPY, OVER_CONTIGUOUS,
        ];
        table(&columns, report.rows.iter().filter(asked))
            + "\nOrdinary memory and each protocol by force are in the report and the plots.\n"
    }
}

/// Points by the name of their line.
fn series<'a>(named: impl Iterator<Item = (String, &'a Row)>) -> Vec<Series> {
    gathered(named.map(|(name, row)| (name, rate_at(row, row.payload_bytes))))
}

/// What was named, or all there is.
fn chosen<T: Copy>(named: &[T], all: &[T]) -> Vec<T> {
    if named.is_empty() { all.to_vec() } else { named.to_vec() }
}

/// Payloads of the sweep, in bytes: 8 · 4ⁿ, at which V and X are square.
fn payloads(options: &Options, common: &Common) -> Vec<u64> {
    if !options.payloads.is_empty() {
        return options.payloads.clone();
    }
    if common.quick {
        return vec![1, 128, 8 << 10];
    }
    let powers = (0..12).map(|exponent| 8 << (2 * exponent));
    [1].into_iter().chain(powers).chain([64 << 20]).collect()
}

fn cases(options: &Options, common: &Common, way: OnewayMode) -> Result<Vec<Case>, Failure> {
    let mut all = Vec::new();
    for kind in chosen(&options.layouts, OnewayKind::value_variants()) {
        for bytes in payloads(options, common) {
            all.extend(kind.case(bytes)?.filter(|case| way.carries(case)));
        }
    }
    Ok(all)
}

