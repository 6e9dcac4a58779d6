//! `acc-host`: messages between a GPU and memory of the host, by which memory that is: ordinary, from `World::alloc`,
//! registered by `World::register`, a persistent request's. Beside the driver's own copies of page-locked and of
//! ordinary memory. Each direction in two processes of its own.

use std::time::{Duration, Instant};

use gapless::{CudaDriver, Layout, Owned, Persistent, Protocol, SendMode, Space, World};
use gapless_cli::pingpong::{Ends, Where};
use gapless_cli::sampling;
use gapless_layouts::{Case, Side};
use gapless_report::{Absent, Mark, PlotError, Report, Row, lines};

use crate::check::{Pieces, same};
use crate::ends::{Opened, Pairing};
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, gathered, rate_at, summary};
use crate::memories::{Memory, Wanted, bus_copies, contents, index};
use crate::p2p::item::{Shape, Size};
use crate::p2p::process::Watchdog;
use crate::processes::{Processes, RankOf};
use crate::table::{CASE, OP, PAYLOAD, PROTOCOL, RATE, SPREAD, TIME, called, ratio, table};

/// The experiment.
pub struct AccHost;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The device: cuda[:N], opencl[:N]; by default the first of CUDA's, or else of OpenCL's
    #[arg(long, value_name = "PLACE")]
    device: Option<Where>,
    /// Payloads, in bytes, about; repeatable, or separated by commas
    #[arg(long = "payload", value_name = "BYTES", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(4096..=1 << 30))]
    payloads: Vec<u64>,
    /// Layouts: contiguous, x, x-face; all by default. Faces are of 2 MiB at most, unless payloads are chosen
    #[arg(long = "layout", value_name = "NAME", value_delimiter = ',')]
    layouts: Vec<String>,
    /// Memory of the host: heap, alloc, registered, persistent; all by default
    #[arg(long = "memory", value_name = "NAME", value_delimiter = ',')]
    memories: Vec<String>,
    /// Threads of each process that help to copy ordinary memory; by default those of processors that are free
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(0..=4))]
    copy_threads: Option<u8>,
    /// Bytes of a fragment at most
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(65536..))]
    fragment: Option<u32>,
    /// Goes by this protocol, where it is possible: zero-copy-in-out, copy-in-out, …
    #[arg(long, value_name = "NAME")]
    protocol: Option<String>,
    /// Seconds that the processes of a direction may take for a message
    #[arg(long, value_name = "SECONDS", default_value_t = 120,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    limit: u64,
}

const SHAPES: [(&str, Shape); 3] =
    [("contiguous", Shape::Contiguous), ("x", Shape::X), ("x-face", Shape::Named("face-x"))];
const PAYLOADS: [u64; 5] = [2 << 20, 8 << 20, 16 << 20, 32 << 20, 64 << 20];
const PAYLOADS_QUICK: [u64; 1] = [1 << 20];
/// A face lies in a cube: one of 2 MiB in one of 200 MB.
const FACE_MAX: u64 = 2 << 20;

/// What rows are held against.
const LOCKED: &str = "page-locked copy";
const PAGEABLE: &str = "ordinary copy";
/// The ratio to [`LOCKED`] asked of registered memory, and of ordinary memory; and the latter's to [`PAGEABLE`].
const ASKED: f64 = 0.85;
const ASKED_OF_ORDINARY: [f64; 2] = [0.5, 2.0];
const MARKED: u64 = 16 << 20;

const DATA: i32 = 1;
const WORD: i32 = 2;

/// Memory of the host, in the order in which it is measured: only from registered memory on has that process opened a
/// device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Of(Wanted),
    /// Ordinary memory that a persistent request owns.
    Persistent,
}

const KINDS: [(&str, Kind); 4] = [
    ("heap", Kind::Of(Wanted::Heap)),
    ("alloc", Kind::Of(Wanted::Alloc)),
    ("registered", Kind::Of(Wanted::Registered)),
    ("persistent", Kind::Persistent),
];

impl Experiment for AccHost {
    type Options = Options;

    const NAME: &'static str = "acc-host";
    const ABOUT: &'static str = "messages between a GPU and memory of the host, by which memory that is";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let device = options.device.unwrap_or_else(usual_device);
        cases(options, common)?;
        kinds(options)?;
        if let Some(name) = options.protocol.as_deref().filter(|name| Protocol::of_name(name).is_none()) {
            return Err(Failure::Option { option: "--protocol", why: format!("{name} is none") });
        }
        let directions = [Ends([Where::Host, device]), Ends([device, Where::Host])];
        let progress = common.progress(directions.len());
        let (mut rows, mut absent) = (Vec::new(), Vec::new());
        for ends in directions {
            let name = ends.to_string();
            progress.set_message(name.clone());
            let processes = Processes::new(Self::NAME, 2);
            let (found, ended) = processes.found_so_far::<Vec<Row>>(&name, Pairing::of(ends))?;
            rows.extend(found);
            if let Err(why) = ended {
                eprintln!("FAILED: {name}: {why}");
                absent.push(Absent { case: name, op: "oneway".to_owned(), why: why.to_string(), failed: true });
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        let notes = "time: a message, and a word from its receiver that it has arrived; each on the same buffers every \
                     time; page-locked copy, ordinary\ncopy: of the payload by the driver, in the process of the device, \
                     in the direction of the message, waited for. Registered: World::register.\nPersistent: a request \
                     that owns ordinary memory. Every byte is compared with the oracle.\n";
        Ok(Findings { rows, notes: notes.to_owned(), absent })
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let limit = Duration::from_secs(options.limit);
        let watchdog = Watchdog::start(limit, Instant::now() + limit);
        let builder = World::builder();
        let world = match options.copy_threads {
            Some(count) => builder.copy_threads(count.into()),
            None => builder,
        }
        .init()?;
        let mut config = world.config()?;
        config.force = options.protocol.as_deref().and_then(Protocol::of_name);
        config.tuning.staged_fragment_bytes = options.fragment.unwrap_or(config.tuning.staged_fragment_bytes);
        world.set_config(config)?;
        let ends = rank.part::<Pairing>()?.ends()?;
        let device = Opened::of(ends.of(world.rank()))?;
        let mut rows = Vec::new();
        for (name, kind) in kinds(options)? {
            if kind == Kind::Of(Wanted::Registered) {
                open(&world, ends)?;
            }
            for case in cases(options, common)? {
                watchdog.allow(&format!("{ends}, {name}, {}", case.name), limit);
                if let Some(row) = measure(&world, common, &device, (&case, (name, kind), ends))? {
                    rows.push(row);
                    rank.leave(&rows)?;
                }
            }
        }
        rank.finalize(world, &rows)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let contiguous = report.rows.iter().filter(|row| row.blocks == Some(1));
        let named = |row: &Row| (format!("{}, {}", row.space, row.op), rate_at(row, row.payload_bytes));
        let picture = (String::new(), "contiguous, one way".to_owned(), gathered(contiguous.map(named)));
        Drawing::some([picture], lines)
    }

    fn summary(report: &Report) -> String {
        let columns = [
            called("message", CASE),
            ("from, to", |row| row.space.clone()),
            called("memory of the host", OP),
            PAYLOAD,
            PROTOCOL,
            TIME,
            SPREAD,
            RATE,
            ("÷ page-locked copy", |row| ratio(row, LOCKED)),
            ("÷ ordinary copy", |row| ratio(row, PAGEABLE)),
        ];
        table(&columns, &report.rows)
    }
}

/// The first CUDA device, or else the first of OpenCL's.
fn usual_device() -> Where {
    let cuda = CudaDriver::load().is_ok_and(|driver| driver.devices() > 0);
    if cuda { Where::Cuda(0) } else { Where::OpenCl(0) }
}

/// The process of the host's memory opens the other one's device, if that is CUDA's: it is what registers memory.
fn open(world: &World, ends: Ends) -> Result<(), Failure> {
    if let (Where::Host, Where::Cuda(device)) = (ends.of(world.rank()), ends.of(1 - world.rank())) {
        world.open_device(Space::Cuda { device })?;
    }
    Ok(())
}

/// What `wanted` names of a list, all of it by default.
fn chosen<T: Copy>(
    all: &[(&'static str, T)],
    wanted: &[String],
    option: &'static str,
) -> Result<Vec<(&'static str, T)>, Failure> {
    if let Some(unknown) = wanted.iter().find(|name| !all.iter().any(|(known, _)| known == name)) {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        return Err(Failure::Option { option, why: format!("{unknown} is not among {}", names.join(", ")) });
    }
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|it| it == name);
    Ok(all.iter().copied().filter(|(name, _)| is_wanted(name)).collect())
}

fn kinds(options: &Options) -> Result<Vec<(&'static str, Kind)>, Failure> {
    chosen(&KINDS, &options.memories, "--memory")
}

/// The messages, in order.
fn cases(options: &Options, common: &Common) -> Result<Vec<Case>, Failure> {
    let usual: &[u64] = if common.quick { &PAYLOADS_QUICK } else { &PAYLOADS };
    let given = !options.payloads.is_empty();
    let payloads = if given { &options.payloads } else { usual };
    let mut all = Vec::new();
    for (_, shape) in chosen(&SHAPES, &options.layouts, "--layout")? {
        let face = matches!(shape, Shape::Named(_));
        for &bytes in payloads.iter().filter(|&&bytes| given || !face || bytes <= FACE_MAX) {
            // Three doubles deep.
            let size = if face { Size::Edge((bytes / 24).isqrt().max(8)) } else { Size::Bytes(bytes) };
            all.push(shape.case(size)?);
        }
    }
    Ok(all)
}

/// Where a process's end of the messages lies, and how they are started.
enum MessageEnd {
    Each(Memory),
    Persistent(Persistent<Vec<u8>>),
}

impl MessageEnd {
    fn new(
        world: &World,
        device: &Opened,
        kind: Kind,
        (side, layout): (&Side, &Layout),
    ) -> Result<MessageEnd, Failure> {
        let len = index(side.buffer_bytes);
        let wanted = match kind {
            Kind::Of(wanted) => wanted,
            Kind::Persistent if device.space.is_none() => {
                let (comm, memory) = (world.comm(), Owned::typed(vec![0; len], side.origin, layout, side.count));
                let made = match world.rank() {
                    0 => comm.send_init(memory, 1, DATA, SendMode::Standard),
                    _ => comm.recv_init(memory, 0, DATA),
                };
                return Ok(MessageEnd::Persistent(made.map_err(gapless::Error::from)?));
            }
            // The device's end.
            Kind::Persistent => Wanted::Heap,
        };
        Ok(MessageEnd::Each(Memory::new(world, device.space, wanted, len)?))
    }

    fn fill(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            MessageEnd::Each(memory) => memory.fill(bytes)?,
            MessageEnd::Persistent(request) => request.buffer_mut()?.copy_from_slice(bytes),
        }
        Ok(())
    }

    fn fetch(&self, len: usize) -> Result<Vec<u8>, Failure> {
        Ok(match self {
            MessageEnd::Each(memory) => memory.fetch(len)?,
            MessageEnd::Persistent(request) => request.buffer()?[..len].to_vec(),
        })
    }

    /// A message; gives the protocol.
    fn pass(&mut self, world: &World, (side, layout): (&Side, &Layout)) -> Result<String, Failure> {
        let comm = world.comm();
        let status = match self {
            MessageEnd::Each(memory) if world.rank() == 0 => comm.send(memory.view(side, layout)?, 1, DATA)?,
            MessageEnd::Each(memory) => comm.recv(memory.view_mut(side, layout)?, 0, DATA)?,
            MessageEnd::Persistent(request) => {
                request.start()?;
                request.wait()?
            }
        };
        Ok(status.protocol.to_string())
    }
}

/// One message, again and again from rank 0 to rank 1; rank 0 alone has a row.
fn measure(
    world: &World,
    common: &Common,
    device: &Opened,
    (case, (name, kind), ends): (&Case, (&'static str, Kind), Ends),
) -> Result<Option<Row>, Failure> {
    let (comm, sends) = (world.comm(), world.rank() == 0);
    let side = if sends { &case.send } else { &case.recv };
    let layout = side.datatype.commit()?;
    let (seed, len) = (common.seed ^ case.payload_bytes << 8, index(side.buffer_bytes));
    let begin = Instant::now();
    let mut end = MessageEnd::new(world, device, kind, (side, &layout))?;
    let made = begin.elapsed().as_secs_f64();
    let before = contents(side, seed ^ u64::from(world.rank()));
    end.fill(&before)?;
    comm.barrier()?;
    // The first ones find out by which protocol later ones go.
    const SETTLING: u64 = 20;
    let (first, _) = rounds(world, &mut end, (side, &layout), SETTLING)?;
    let mut right = before.clone();
    if !sends {
        let sent = Pieces::of(&case.send)?.gather(&contents(&case.send, seed), index(case.send.origin));
        Pieces::of(side)?.scatter(&sent, &mut right, index(side.origin));
    }
    let wrong = |wrong| Failure::Wrong { case: case.name.clone(), op: name, wrong };
    same(&end.fetch(len)?, &right).map_err(wrong)?;
    // The timed messages are to bring the bytes again.
    end.fill(&before)?;
    comm.barrier()?;
    let one = first.iter().copied().fold(f64::MAX, f64::min).clamp(1e-7, 10.0);
    let mut count = [sampling::samples(common.seconds(), one)];
    comm.bcast(&mut count, 0)?;
    let (times, protocol) = rounds(world, &mut end, (side, &layout), count[0])?;
    same(&end.fetch(len)?, &right).map_err(wrong)?;
    // The device's end copies; the host's says how long its memory took to make.
    let mut found = match &mut end {
        MessageEnd::Each(memory) if device.space.is_some() => {
            let [locked, pageable] = bus_copies(world, common, memory, (sends, case.payload_bytes))?;
            [locked, pageable, 0.0]
        }
        _ => [0.0, 0.0, made],
    };
    if !sends {
        comm.send(&found, 0, WORD)?;
        return Ok(None);
    }
    let mut there = [0.0; 3];
    comm.recv(&mut there, 1, WORD)?;
    for (here, there) in found.iter_mut().zip(there) {
        *here += there;
    }
    let [locked, pageable, made] = found;
    let time = summary(case.name.clone(), &times)?;
    let row = Row::new(case.name.clone(), name, ends.to_string(), protocol, case.payload_bytes, time)
        .verified(true)
        .against(LOCKED, summary(LOCKED, &[locked])?)
        .against(PAGEABLE, summary(PAGEABLE, &[pageable])?)
        .with("making_the_memory_seconds", made)
        .with("copy_threads", world.copy_threads());
    let runs = [&case.send, &case.recv].map(|side| {
        let layout = side.datatype.commit();
        layout.ok().and_then(|layout| layout.blocks_of(side.count)).unwrap_or(u64::MAX)
    });
    let row = row.blocks(runs[0].max(runs[1]));
    Ok(Some(if runs == [1, 1] && case.payload_bytes >= MARKED { marked(row, kind) } else { row }))
}

/// With what is asked of a contiguous message.
fn marked(row: Row, kind: Kind) -> Row {
    let reached = |name| row.ratio_to(name).unwrap_or(0.0);
    let (locked, pageable) = (reached(LOCKED), reached(PAGEABLE));
    match kind {
        Kind::Of(Wanted::Heap) => {
            let [of_locked, of_pageable] = ASKED_OF_ORDINARY;
            row.mark(Mark::at_least(LOCKED, of_locked, locked)).mark(Mark::at_least(PAGEABLE, of_pageable, pageable))
        }
        _ => row.mark(Mark::at_least(LOCKED, ASKED, locked)),
    }
}

/// So many messages, each answered by a word: seconds of each, at rank 0, and the last one's protocol.
fn rounds(
    world: &World,
    end: &mut MessageEnd,
    what: (&Side, &Layout),
    count: u64,
) -> Result<(Vec<f64>, String), Failure> {
    let comm = world.comm();
    let (mut times, mut protocol) = (Vec::with_capacity(index(count)), String::new());
    let mut word = [0u8; 1];
    for _ in 0..count {
        let begin = Instant::now();
        protocol = end.pass(world, what)?;
        if world.rank() == 0 {
            comm.recv(&mut word, 1, WORD)?;
            times.push(begin.elapsed().as_secs_f64());
        } else {
            comm.send(&word, 0, WORD)?;
        }
    }
    Ok((times, protocol))
}
