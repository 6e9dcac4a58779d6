//! `acc-matrix`: messages between memory of the host, of CUDA and of OpenCL at either end, each pairing in two
//! processes of its own, one way; beside the slower of the two ends' own copies over the bus.
//!
//! The pairings are those of Aji et al. 2012 (MPI-ACC), §II. A pairing whose processes fail costs its own rows.

use std::time::{Duration, Instant};

use gapless::{Layout, World};
use gapless_cli::pingpong::{Ends, Where};
use gapless_cli::sampling;
use gapless_layouts::{Case, Side};
use gapless_report::{Absent, Mark, PlotError, Report, Row, lines};

use crate::check::{Pieces, same};
use crate::clock::alone;
use crate::ends::{self, Opened, Pairing};
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, gathered, rate_at, summary};
use crate::memories::{BUS_COPY, Memory, Wanted, bus_copies, contents, index};
use crate::p2p::item::{Shape, Size};
use crate::p2p::process::Watchdog;
use crate::processes::{Processes, RankOf};
use crate::table::{CASE, PAYLOAD, PROTOCOL, RATE, SPREAD, TIME, called, ratio, table};

/// The experiment.
pub struct AccMatrix;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Memory of rank 0: host, cuda[:N], opencl[:N]; by default the host's and that of the first device of each kind
    #[arg(long, value_name = "PLACE", value_delimiter = ',')]
    from: Vec<Where>,
    /// Memory of rank 1; by default as rank 0's
    #[arg(long, value_name = "PLACE", value_delimiter = ',')]
    to: Vec<Where>,
    /// Payloads, in bytes, about; repeatable, or separated by commas
    #[arg(long = "payload", value_name = "BYTES", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(64..=1 << 30))]
    payloads: Vec<u64>,
    /// Layouts: contiguous, v, t, x; all by default
    #[arg(long = "layout", value_name = "NAME", value_delimiter = ',')]
    layouts: Vec<String>,
    /// Ordinary memory of the host, not from `World::alloc`
    #[arg(long)]
    heap: bool,
    /// By TCP over the loopback interface alone
    #[arg(long)]
    tcp: bool,
    /// Seconds that a pairing's processes may take
    #[arg(long, value_name = "SECONDS", default_value_t = 120,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    limit: u64,
}

const SHAPES: [(&str, Shape); 4] =
    [("contiguous", Shape::Contiguous), ("v", Shape::V), ("t", Shape::T), ("x", Shape::X)];
const PAYLOADS: [u64; 6] = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
const PAYLOADS_QUICK: [u64; 2] = [4 << 10, 64 << 10];

/// What rows are held against: the slower of the two ends' copies.
const BUS: &str = BUS_COPY;
/// The ratio asked of contiguous messages from [`MARKED`] on, if a device is at either end.
const ASKED: f64 = 0.85;
const MARKED: u64 = 16 << 20;

const DATA: i32 = 1;
const WORD: i32 = 2;

impl Experiment for AccMatrix {
    type Options = Options;

    const NAME: &'static str = "acc-matrix";
    const ABOUT: &'static str = "messages between host, CUDA and OpenCL memory at either end, beside copies by the bus";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let from = if options.from.is_empty() { ends::places() } else { options.from.clone() };
        let to = if options.to.is_empty() { from.clone() } else { options.to.clone() };
        cases(options, common)?;
        let pairings: Vec<Ends> =
            from.iter().flat_map(|&from| to.iter().map(move |&to| Ends([from, to]))).collect();
        let progress = common.progress(pairings.len());
        let (mut rows, mut absent) = (Vec::new(), Vec::new());
        for ends in pairings {
            let name = format!("{},{}", ends.0[0], ends.0[1]);
            progress.set_message(name.clone());
            let part = Pairing::of(ends);
            let (found, ended) =
                Processes::new(Self::NAME, 2).found_so_far::<Vec<Row>>(&name, part)?;
            rows.extend(found);
            if let Err(why) = ended {
                eprintln!("FAILED: {name}: {why}");
                let (op, why) = ("oneway".to_owned(), why.to_string());
                absent.push(Absent { case: name, op, why, failed: true });
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        let notes = "time: a message, and a word from its receiver that it has arrived; each on the same buffers every \
                     time; bus copy: the\nslower of the two ends' own copies of the payload between its device and \
                     page-locked memory of the host that peers can map,\nor of one memcpy between two memories of the \
                     host. Every byte is compared with the oracle.\n";
        Ok(Findings { rows, notes: notes.to_owned(), absent })
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let limit = Duration::from_secs(options.limit);
        let watchdog = Watchdog::start(limit, Instant::now() + limit);
        let builder = if options.tcp {
            World::builder().only(["tcp"]).tcp_interfaces("lo")
        } else {
            World::builder()
        };
        let world = builder.init()?;
        let ends = rank.part::<Pairing>()?.ends()?;
        let device = Opened::of(ends.of(world.rank()))?;
        let mut rows = Vec::new();
        for case in cases(options, common)? {
            watchdog.allow(&format!("{ends}, {}", case.name), limit);
            let row = measure(&world, (options, common), &device, (&case, ends))?;
            if let Some(row) = row {
                rows.push(row);
                rank.leave(&rows)?;
            }
        }
        rank.finalize(world, &rows)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let kind = |row: &Row| row.case.split([' ', ',']).next().unwrap_or_default().to_owned();
        let mut kinds: Vec<String> = report.rows.iter().map(kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let pictures = kinds.into_iter().map(|one| {
            let own = report.rows.iter().filter(|row| kind(row) == one);
            let series = gathered(own.map(|row| (row.space.clone(), rate_at(row, row.payload_bytes))));
            (format!("-{}", one.to_ascii_lowercase()), format!("{one}, one way, by memory"), series)
        });
        Drawing::some(pictures, lines)
    }

    fn summary(report: &Report) -> String {
        let columns = [
            called("message", CASE),
            ("from, to", |row| row.space.clone()),
            PAYLOAD,
            PROTOCOL,
            TIME,
            SPREAD,
            RATE,
            ("÷ bus copy", |row| ratio(row, BUS)),
        ];
        table(&columns, &report.rows)
    }
}

/// The messages, in order.
fn cases(options: &Options, common: &Common) -> Result<Vec<Case>, Failure> {
    let names = SHAPES.map(|(name, _)| name);
    if let Some(unknown) = options.layouts.iter().find(|name| !names.contains(&name.as_str())) {
        let why = format!("{unknown} is not among {}", names.join(", "));
        return Err(Failure::Option { option: "--layout", why });
    }
    let usual: &[u64] = if common.quick { &PAYLOADS_QUICK } else { &PAYLOADS };
    let payloads = if options.payloads.is_empty() { usual } else { &options.payloads };
    let wanted = |name: &str| options.layouts.is_empty() || options.layouts.iter().any(|it| it == name);
    let shapes = SHAPES.into_iter().filter(|(name, _)| wanted(name));
    shapes.flat_map(|(_, shape)| payloads.iter().map(move |&bytes| shape.case(Size::Bytes(bytes)))).collect()
}

/// One message, again and again from rank 0 to rank 1; rank 0 alone has a row.
fn measure(
    world: &World,
    (options, common): (&Options, &Common),
    device: &Opened,
    (case, ends): (&Case, Ends),
) -> Result<Option<Row>, Failure> {
    let (comm, me) = (world.comm(), world.rank());
    let sends = me == 0;
    let side = if sends { &case.send } else { &case.recv };
    let layout = side.datatype.commit()?;
    let seed = common.seed ^ case.payload_bytes << 8;
    let len = index(side.buffer_bytes);
    let wanted = if options.heap { Wanted::Heap } else { Wanted::Alloc };
    let mut memory = Memory::new(world, device.space, wanted, len)?;
    let before = contents(side, seed ^ u64::from(me));
    memory.fill(&before)?;
    comm.barrier()?;
    // The first ones find out by which protocol later ones go.
    const SETTLING: u64 = 20;
    let first = rounds(world, &mut memory, (side, &layout), SETTLING)?;
    let mut right = before.clone();
    if !sends {
        let sent = Pieces::of(&case.send)?.gather(&contents(&case.send, seed), index(case.send.origin));
        Pieces::of(side)?.scatter(&sent, &mut right, index(side.origin));
    }
    let verify = |memory: &Memory| {
        let wrong = |wrong| Failure::Wrong { case: case.name.clone(), op: "oneway", wrong };
        same(&memory.fetch(len)?, &right).map_err(wrong)
    };
    verify(&memory)?;
    // The timed messages are to bring the bytes again.
    memory.fill(&before)?;
    comm.barrier()?;
    let mut count = [sampling::samples(common.seconds(), first.one())];
    comm.bcast(&mut count, 0)?;
    let times = rounds(world, &mut memory, (side, &layout), count[0])?;
    verify(&memory)?;
    let here = bus_copies(world, common, &mut memory, (sends, case.payload_bytes))?;
    let mut there = [0.0; 2];
    if !sends {
        comm.send(&here, 0, WORD)?;
        return Ok(None);
    }
    comm.recv(&mut there, 1, WORD)?;
    let Times { seconds, protocol } = times;
    let time = summary(case.name.clone(), &seconds)?;
    let slower = match ends.involve_device() {
        true => here[0].max(there[0]),
        false => memcpy(common, case.payload_bytes)?,
    };
    let slower = summary(BUS, &[slower])?;
    let mut row = Row::new(case.name.clone(), "oneway", ends.to_string(), protocol, case.payload_bytes, time)
        .verified(true)
        .against(BUS, slower)
        .with("bus_copy_seconds", vec![here[0], there[0]])
        .with("bus_copy_of_ordinary_memory_seconds", vec![here[1], there[1]])
        .with("tcp", options.tcp)
        .with("heap", options.heap);
    let blocks = layout.blocks_of(side.count).unwrap_or(u64::MAX);
    if ends.involve_device() && blocks == 1 && case.payload_bytes >= MARKED {
        let reached = row.ratio_to(BUS).unwrap_or(0.0);
        row = row.mark(Mark::at_least(BUS, ASKED, reached));
    }
    Ok(Some(row.blocks(blocks)))
}

/// Seconds of each message, and by what the last one went; at rank 1 there are no times.
struct Times {
    seconds: Vec<f64>,
    protocol: String,
}

impl Times {
    /// The shortest.
    fn one(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::MAX, f64::min).clamp(1e-7, 10.0)
    }
}

/// So many messages, each answered by a word.
fn rounds(
    world: &World,
    memory: &mut Memory,
    (side, layout): (&Side, &Layout),
    count: u64,
) -> Result<Times, Failure> {
    let comm = world.comm();
    let mut times = Times { seconds: Vec::with_capacity(index(count)), protocol: String::new() };
    let mut word = [0u8; 1];
    for _ in 0..count {
        if world.rank() == 0 {
            let begin = Instant::now();
            let sent = comm.send(memory.view(side, layout)?, 1, DATA)?;
            comm.recv(&mut word, 1, WORD)?;
            times.seconds.push(begin.elapsed().as_secs_f64());
            times.protocol = sent.protocol.to_string();
        } else {
            comm.recv(memory.view_mut(side, layout)?, 0, DATA)?;
            comm.send(&word, 0, WORD)?;
        }
    }
    Ok(times)
}

/// Median seconds of one memcpy of so many bytes.
fn memcpy(common: &Common, bytes: u64) -> Result<f64, Failure> {
    let (from, mut into) = (vec![1u8; index(bytes)], vec![0u8; index(bytes)]);
    let copy = || std::hint::black_box(&mut into[..]).copy_from_slice(std::hint::black_box(&from));
    Ok(alone(common.seconds(), copy).map_err(Failure::samples(BUS))?.median)
}
