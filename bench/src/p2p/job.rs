//! Pairs of processes: started by the launcher, one pair after another, and started again for what is left
//! when a row ends one.

use std::path::Path;
use std::time::{Duration, Instant};

use gapless_cli::pingpong::{Ends, Setting, Where};
use gapless_mem_cuda::CudaDriver;
use gapless_report::{Absent, Row, Summary};

pub use super::item::Pair;
use super::item::{MessageItem, Shape, Sites, Size};
use super::marks::{self, HOST_LINE, HOST_MESSAGE, IDLE, MarkKind, UNRESTRICTED, judge};
use super::mps::{self, Service};
use super::process::{self, PairPart, ProgressLine};
use crate::error::Failure;
use crate::experiment::{Common, Findings};
use crate::namespaces::Namespaces;
use crate::processes::{Processes, RankOf, Variable};

/// Options of experiments with pairs of processes.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Where messages lie: rank 0's, rank 1's; by default the first two GPUs, or the only one
    #[arg(long, value_name = "SPACE[,SPACE]")]
    pub space: Option<Ends>,
    /// Pairs of processes to run, by name; repeatable, or separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The most important sizes only
    #[arg(long)]
    pub brief: bool,
    /// Seconds in all; what is not measured by then is left out, and listed
    #[arg(long, value_name = "SECONDS", default_value_t = 300,
        value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub limit: u64,
    /// Start a Multi-Process Service of our own, where none runs, for the pair that needs one
    #[arg(long)]
    pub start_mps: bool,
}

/// What a pair found.
#[derive(Clone, Debug)]
struct PairRow {
    pair: usize,
    item: MessageItem,
    row: Row,
}

/// A pair is started so often at most: something is badly wrong if several items fail.
const STARTS_MAX: u32 = 6;

/// Why a row is not there that another run with a larger limit would have.
const NO_TIME: &str = "no time was left";

/// Lists the pairs of an experiment.
pub type Plan = fn(&Options, &Sites) -> Vec<Pair>;

/// Runs an experiment on the devices that there are, or that the user names.
///
/// # Errors
/// No GPU, or what makes every figure impossible.
pub fn run(
    name: &'static str,
    options: &Options,
    common: &Common,
    plan: Plan,
    notes: &str,
) -> Result<Findings, Failure> {
    run_between(&Between::Processes, sites(options)?, name, (options, common), plan, notes)
}

/// Measures a pair's items, as one of its processes.
///
/// # Errors
/// Whatever makes it impossible to go on.
pub fn rank(options: &Options, common: &Common, rank: &RankOf, plan: Plan) -> Result<(), Failure> {
    let part: PairPart = rank.part()?;
    let pairs = pairs(options, common, &part.sites()?, plan)?;
    let pair = pairs.iter().find(|pair| pair.name == part.pair);
    let nothing = || Failure::Option { option: "--as-rank", why: format!("no {}", part.pair) };
    process::run(&part, common, pair.ok_or_else(nothing)?, &rank.file)
}

/// What is between the two processes.
pub(crate) enum Between {
    /// One host.
    Processes,
    /// One host, whose loopback interface carries everything.
    Loopback,
    /// A cable between two namespaces.
    Hosts(Namespaces),
}

/// The pairs of a plan that were asked for.
fn pairs(
    options: &Options,
    common: &Common,
    sites: &Sites,
    plan: Plan,
) -> Result<Vec<Pair>, Failure> {
    let mut pairs = plan(options, sites);
    if common.quick {
        pairs.iter_mut().flat_map(|pair| &mut pair.items).for_each(shrink);
    }
    let unknown = options.only.iter().find(|only| !pairs.iter().any(|pair| pair.name == **only));
    if let Some(unknown) = unknown {
        let names: Vec<&str> = pairs.iter().map(|pair| pair.name).collect();
        let why = format!("{unknown} is not among {}", names.join(", "));
        return Err(Failure::Option { option: "--only", why });
    }
    narrow(&mut pairs, &options.only);
    Ok(pairs)
}

/// Runs an experiment at these places, which need not be devices, with this between the processes.
///
/// # Errors
/// What makes every figure impossible.
pub(crate) fn run_between(
    between: &Between,
    sites: Sites,
    name: &'static str,
    (options, common): (&Options, &Common),
    plan: Plan,
    notes: &str,
) -> Result<Findings, Failure> {
    let pairs = pairs(options, common, &sites, plan)?;
    let folder = tempfile::tempdir().map_err(Failure::io("make", std::env::temp_dir()))?;
    let mut runner = Runner {
        name,
        start_mps: options.start_mps,
        between,
        sites,
        until: Instant::now() + Duration::from_secs(options.limit),
        folder: folder.path(),
        found: Vec::new(),
        absent: Vec::new(),
    };
    let progress = common.progress(pairs.len());
    for (at, pair) in pairs.iter().enumerate() {
        if !pair.items.is_empty() {
            progress.set_message(pair.name);
            runner.pair(at, pair)?;
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    let absent = std::mem::take(&mut runner.absent);
    let rows = judged(runner.found, &pairs);
    let (met, all, void, lines) = marks::tally(&rows);
    let depth = |row: &Row| row.extra.get("counters")?.get("depth_max")?.as_u64();
    let deepest = rows.iter().filter_map(depth).max().unwrap_or(0);
    let mut notes = notes.to_owned();
    if deepest > 0 {
        notes += &format!("fragments of one staged message in work at a time: up to {deepest}\n");
    }
    for told in rows.iter().filter_map(marks::breakdown) {
        notes += &format!("{told}\n");
    }
    if all > 0 {
        notes += &format!("{met} of {all} marks met, {void} of the others void\n");
        notes.extend(lines.iter().map(|line| format!("- {line}\n")));
    }
    Ok(Findings { rows, notes, absent })
}

/// Leaves the pairs that were asked for, and of the others what rows of those are held against.
pub(crate) fn narrow(pairs: &mut [Pair], only: &[String]) {
    let is_asked = |pair: &Pair| only.is_empty() || only.iter().any(|name| name == pair.name);
    let asked = pairs.iter().filter(|pair| is_asked(pair)).flat_map(|pair| &pair.items);
    let few: Vec<MessageItem> = asked.filter(|item| item.kind == MarkKind::Few).copied().collect();
    for pair in pairs.iter_mut().filter(|pair| !is_asked(pair)) {
        let free = pair.is_free();
        pair.items.retain(|item| free && few.iter().any(|one| item.is_like(one)));
    }
}

/// The GPUs that there are, unless the user names others.
///
/// # Errors
/// No GPU; places that are no devices.
pub fn sites(options: &Options) -> Result<Sites, Failure> {
    if let Some(ends) = options.space {
        if !ends.0.iter().all(|place| place.is_device()) {
            let why = "these experiments are about devices: cuda:N or opencl:N".to_owned();
            return Err(Failure::Option { option: "--space", why });
        }
        return Ok(Sites::of(ends));
    }
    let no_gpu = |error: gapless_mem_cuda::CudaError| Failure::NoGpu { why: error.to_string() };
    let devices = CudaDriver::load().map_err(no_gpu)?.devices();
    let second = u32::from(devices > 1);
    Ok(Sites::of(Ends([Where::Cuda(0), Where::Cuda(second)])))
}

/// Tiny, for showing that everything works; what differed still differs.
fn shrink(item: &mut MessageItem) {
    item.size = match item.size {
        Size::Bytes(bytes) => Size::Bytes((bytes >> 10).max(bytes.min(1 << 10))),
        // A whole number of steps.
        Size::Edge(edge) if item.shape == Shape::Named("stair") => {
            Size::Edge((edge / 32).next_multiple_of(256))
        }
        Size::Edge(edge) => Size::Edge((edge / 32).max(8)),
        Size::Own => Size::Own,
    };
    item.setting.fragment_bytes = item.setting.fragment_bytes.map(|bytes| (bytes >> 10).max(1));
}

/// What runs the pairs.
struct Runner<'a> {
    name: &'static str,
    start_mps: bool,
    between: &'a Between,
    sites: Sites,
    until: Instant,
    folder: &'a Path,
    found: Vec<PairRow>,
    absent: Vec<Absent>,
}

impl Runner<'_> {
    /// One pair, again and again until every item was tried.
    fn pair(&mut self, at: usize, pair: &Pair) -> Result<(), Failure> {
        let service = match pair.mps.then(|| Service::find(self.start_mps)).transpose() {
            Ok(service) => service,
            Err(why) => {
                self.miss(pair, &pair.items, &why, false);
                return Ok(());
            }
        };
        let environment = match &service {
            Some(service) => service.environment(),
            None => mps::without(self.folder)?,
        };
        let mut next = 0;
        for start in 0..STARTS_MAX {
            let Some(rest) = pair.items.get(next..).filter(|rest| !rest.is_empty()) else {
                return Ok(());
            };
            if Instant::now() >= self.until {
                self.miss(pair, rest, NO_TIME, false);
                return Ok(());
            }
            let file = self.folder.join(format!("{at}-{start}"));
            let ended = self.start(pair, next, environment.clone(), &file);
            let lines = read(&file)?;
            let finished = matches!(lines.last(), Some(ProgressLine::Ended));
            let started = lines.iter().filter_map(|line| match line {
                ProgressLine::Started(item) => Some(*item),
                _ => None,
            });
            let last = started.max();
            let mut measured = vec![false; pair.items.len()];
            for line in lines {
                if let ProgressLine::Measured(item, row) = line {
                    measured[item] = true;
                    self.found.push(PairRow { pair: at, item: pair.items[item], row: *row });
                }
            }
            if finished {
                if let Err(why) = ended {
                    eprintln!("figures: {}: all rows are there, but {why}", pair.name);
                }
                return Ok(());
            }
            if Instant::now() >= self.until {
                let left = measured.iter().rposition(|&done| done).map_or(next, |at| at + 1);
                let rest = pair.items.get(left..).unwrap_or_default();
                self.miss(pair, rest, NO_TIME, false);
                return Ok(());
            }
            let why = ended.err().unwrap_or_else(|| "its processes ended too early".to_owned());
            match last {
                // It did not get as far as the first.
                None => {
                    self.miss(pair, rest, &why, true);
                    return Ok(());
                }
                Some(item) => {
                    if !measured[item] {
                        self.miss(pair, &pair.items[item..=item], &why, true);
                    }
                    next = item + 1;
                }
            }
        }
        let rest = pair.items.get(next..).unwrap_or_default();
        self.miss(pair, rest, "too many before it failed", true);
        Ok(())
    }

    /// Starts a pair and waits for its end; why, if that was a bad one.
    fn start(
        &self,
        pair: &Pair,
        from: usize,
        environment: Vec<Variable>,
        file: &Path,
    ) -> Result<(), String> {
        let processes = Processes { environment, ..Processes::new(self.name, 2) };
        let processes = match self.between {
            Between::Processes => processes,
            Between::Loopback => processes.with([("GAPLESS_TCP_INTERFACES", "lo")]),
            Between::Hosts(hosts) => Processes { hosts: Some(hosts), ..processes },
        };
        // Rounded up: who is killed for it was killed in time.
        let limit = self.until.saturating_duration_since(Instant::now()).as_secs() + 1;
        let [first, second] = self.sites.two.0;
        let space = format!("{first},{second}");
        let part = PairPart { pair: pair.name.to_owned(), from, limit, space };
        processes.run(pair.name, part, file).map_err(|failure| failure.to_string())
    }

    /// Items that are not there, and why.
    fn miss(&mut self, pair: &Pair, items: &[MessageItem], why: &str, failed: bool) {
        for item in items {
            let (case, op) = (item.label(), operation(pair, item));
            eprintln!("{}: {case}, {op}: {why}", if failed { "FAILED" } else { "SKIPPED" });
            self.absent.push(Absent { case, op, why: why.to_owned(), failed });
        }
    }
}

/// What rank 0 wrote down before it ended; a line that it was killed over is none.
fn read(file: &Path) -> Result<Vec<ProgressLine>, Failure> {
    if !file.exists() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(file).map_err(Failure::io("read", file))?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// The operation of a row.
fn operation(pair: &Pair, item: &MessageItem) -> String {
    let mut op = "oneway".to_owned();
    for part in [item.asked(), pair.suffix.to_owned()] {
        if !part.is_empty() {
            op += &format!(", {part}");
        }
    }
    op
}

/// The quickest message of the host's over the network of a pair, without gaps and of so many bytes.
fn host_line(all: &[PairRow], pair: usize, payload: u64) -> Option<Summary> {
    let is_one = |found: &&PairRow| {
        let MessageItem { shape, ends, .. } = found.item;
        let like = (found.pair, found.row.payload_bytes) == (pair, payload);
        like && ends == Ends::HOST && matches!(shape, Shape::Flat(_))
    };
    let all = all.iter().filter(is_one).map(|found| found.row.seconds);
    all.min_by(|one, other| one.median.total_cmp(&other.median))
}

/// Rows with the others that they are held against, judged.
fn judged(found: Vec<PairRow>, pairs: &[Pair]) -> Vec<Row> {
    let all = found.clone();
    let plain = |wanted: MessageItem, other: &dyn Fn(&PairRow) -> bool| {
        let mut others = all.iter().filter(|found| other(found));
        others.find(|found| found.item.is_like(&wanted)).map(|found| found.row.seconds)
    };
    found
        .into_iter()
        .map(|PairRow { pair, item, mut row }| {
            row.op = operation(&pairs[pair], &item);
            row = row.with("pair", pairs[pair].name);
            if pairs[pair].tcp {
                row = row.with("transport", "tcp");
            }
            if item.kind.is_of_network()
                && let Some(seconds) = host_line(&all, pair, row.payload_bytes)
            {
                row = row.against(HOST_LINE, seconds);
            }
            match item.kind {
                MarkKind::Few => {
                    let free = |other: &PairRow| pairs[other.pair].is_free();
                    if let Some(seconds) = plain(item, &free) {
                        row = row.against(UNRESTRICTED, seconds);
                    }
                }
                MarkKind::Occupied | MarkKind::NetworkOccupied => {
                    let here = |other: &PairRow| other.pair == pair;
                    if let Some(seconds) = plain(MessageItem { occupied: 0, ..item }, &here) {
                        row = row.against(IDLE, seconds);
                    }
                }
                MarkKind::Latency => {
                    let here = |other: &PairRow| other.pair == pair;
                    let setting = Setting::default();
                    let host = MessageItem { ends: Ends::HOST, setting, ..item };
                    if let Some(seconds) = plain(host, &here) {
                        row = row.with(HOST_MESSAGE, seconds.median);
                    }
                }
                _ => {}
            }
            judge(row, item.kind)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::p2p::item::Of;
    use gapless_cli::pingpong::Budget;
    use gapless_report::Samples;
    use std::num::NonZeroU32;

    fn found(pair: usize, item: MessageItem, seconds: f64) -> PairRow {
        let time = Samples::from_seconds([seconds]).summary().unwrap();
        let plain = Samples::from_seconds([1.0]).summary().unwrap();
        let ends = item.ends.to_string();
        let row = Row::new(item.label(), "oneway", ends, "mapped", 64 << 20, time);
        PairRow { pair, item, row: row.against("memcpy", plain) }
    }

    #[test]
    fn rows_are_held_against_their_like() {
        let ends: Ends = "cuda:0,cuda:1".parse().unwrap();
        let v = MessageItem::new(Shape::V, Size::Edge(2048), ends);
        let pairs = [
            Pair::new("link", Vec::new()),
            Pair {
                budget: Budget { blocks: NonZeroU32::new(8), kernels_only: true, workers: false },
                suffix: "8 blocks",
                ..Pair::new("few", Vec::new())
            },
        ];
        let rows = judged(
            vec![
                found(0, v, 1.0),
                found(0, v.beside(25).judged(MarkKind::Occupied), 1.25),
                found(1, v.judged(MarkKind::Few), 1.1),
                found(1, MessageItem::new(Shape::T, Size::Own, ends).judged(MarkKind::Few), 1.1),
            ],
            &pairs,
        );
        assert_eq!(rows[1].ratio_to(IDLE), Some(0.8));
        assert_eq!(
            (rows[1].met(), rows[2].met(), rows[3].met()),
            (Some(false), Some(true), Some(false))
        );
        assert_eq!(rows[1].op, "oneway, 25 % occupied");
        assert_eq!(rows[2].op, "oneway, 8 blocks");
        assert!(rows[2].ratio_to(UNRESTRICTED).unwrap() > 0.9);
    }

    #[test]
    fn rows_of_a_network_are_held_against_the_quickest_host_message() {
        let ends: Ends = "cuda:0,cuda:1".parse().unwrap();
        let size = Size::Bytes(64 << 20);
        let host = MessageItem::new(Shape::Flat(Of::V), size, Ends::HOST).page_locked();
        let v = MessageItem::new(Shape::V, size, ends).judged(MarkKind::Network);
        let mut rows = vec![found(0, host, 1.2), found(0, v, 1.0), found(0, host, 0.9)];
        rows.push(found(1, v, 1.0));
        rows.iter_mut().for_each(|found| found.row.protocol = "pipeline".to_owned());
        let pairs =
            ["there", "alone"].map(|name| Pair { tcp: true, ..Pair::new(name, Vec::new()) });
        let rows = judged(rows, &pairs);
        assert_eq!(rows[1].ratio_to(HOST_LINE), Some(0.9));
        assert_eq!((rows[0].met(), rows[1].met()), (None, Some(false)));
        assert_eq!((rows[3].ratio_to(HOST_LINE), rows[3].met()), (None, Some(false)));
        assert_eq!(rows[1].extra["transport"], "tcp");
    }

    #[test]
    fn a_line_that_was_cut_off_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows");
        assert!(read(&file).unwrap().is_empty());
        let whole = serde_json::to_string(&ProgressLine::Started(3)).unwrap();
        std::fs::write(&file, format!("{whole}\n{{\"Measured\":[3,{{\"ca")).unwrap();
        let lines = read(&file).unwrap();
        assert!(matches!(lines[..], [ProgressLine::Started(3)]), "{lines:?}");
    }

    #[test]
    fn what_is_shrunk_keeps_its_order() {
        let sizes = [1 << 3, 1 << 12, 1 << 20, 4 << 20, 256 << 20].map(|bytes| {
            let mut item = MessageItem::new(Shape::V, Size::Bytes(bytes), Ends::HOST);
            shrink(&mut item);
            match item.size {
                Size::Bytes(bytes) => bytes,
                _ => 0,
            }
        });
        assert_eq!(sizes, [8, 1024, 1024, 4096, 256 << 10]);
    }
}
