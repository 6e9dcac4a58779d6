//! `osc`: one-sided operations of one process on memory of another, which waits in a barrier: by memory that the origin
//! maps, and by messages that the target's progress engine carries out.
//!
//! Each operation has ended at the target before the next begins: a flush follows it, or it has an epoch of its own. Two
//! processes of this program measure. `cargo xtask peers --only window` has the same work beside that of MPI libraries.

use gapless::{Communicator, Lock, ReduceOp, Window, World};
use gapless_cli::pingpong::Pinned;
use gapless_report::{Curve, PlotError, Report, Row, Summary, curves};

use crate::check::same;
use crate::clock::alone;
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, gathered};
use crate::processes::{Processes, RankOf};

/// The experiment.
pub struct Osc;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Payloads, in bytes; repeatable, or separated by commas
    #[arg(long = "payload", value_name = "BYTES", value_delimiter = ',', default_value = "8,512,8192,131072",
        value_parser = clap::value_parser!(u64).range(8..=64 << 20))]
    payloads: Vec<u64>,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowCallKind {
    Put,
    Get,
    Accumulate,
    Fetch,
    Lock,
}

impl WindowCallKind {
    const ALL: [WindowCallKind; 5] = [
        WindowCallKind::Put,
        WindowCallKind::Get,
        WindowCallKind::Accumulate,
        WindowCallKind::Fetch,
        WindowCallKind::Lock,
    ];

    fn name(self) -> &'static str {
        match self {
            WindowCallKind::Put => "put, flush",
            WindowCallKind::Get => "get, flush",
            WindowCallKind::Accumulate => "accumulate, flush",
            WindowCallKind::Fetch => "fetch and op, flush",
            WindowCallKind::Lock => "lock, put, unlock",
        }
    }

    /// Whether it is of one element alone.
    fn is_single(self) -> bool {
        self == WindowCallKind::Fetch
    }
}

impl Experiment for Osc {
    type Options = Options;

    const NAME: &'static str = "osc";
    const ABOUT: &'static str = "one-sided operations on a passive target, by mapped memory and by messages";

    fn run(_: &Options, _: &Common) -> Result<Findings, Failure> {
        let rows = Processes::new(Self::NAME, 2).found(Self::NAME, ())?;
        let notes = "time: an operation of 64-bit numbers that has ended at the target, which waits in a barrier; \
                     both processes have a processor\nof their own if there are two; ÷: speed relative to the other \
                     way.\n";
        Ok(Findings::new(rows, notes.to_owned()))
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let world = World::init()?;
        let pinned = Pinned::to(usize::try_from(world.rank()).unwrap_or(0));
        let comm = world.comm();
        let mut rows = Vec::new();
        for &bytes in &options.payloads {
            for kind in WindowCallKind::ALL.into_iter().filter(|kind| bytes == 8 || !kind.is_single()) {
                let mapped = measure(comm, common, (kind, bytes), false)?;
                let messages = measure(comm, common, (kind, bytes), true)?;
                let Some((mapped, messages)) = mapped.zip(messages) else { continue };
                let row = |way, time| {
                    let case = format!("{} {bytes} B ({way})", kind.name());
                    Row::new(case, kind.name(), "host", way, bytes, time)
                        .verified(true)
                        .with("processor", pinned.processor())
                };
                rows.push(row("mapped", mapped).against("messages", messages));
                rows.push(row("messages", messages).against("mapped", mapped));
            }
        }
        rank.finalize(world, &rows)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let lines = by_way(report.rows.iter().filter(|row| row.op != WindowCallKind::Fetch.name()));
        let title = format!("one-sided operations between two processes ({})", report.machine.cpu);
        Drawing::alone(curves(&title, "bytes", &lines))
    }
}

/// Times by length, a line for each operation and way.
pub(super) fn by_way<'r>(rows: impl Iterator<Item = &'r Row>) -> Vec<Curve> {
    let name = |row: &Row| format!("{}, {}", row.op, row.protocol);
    gathered(rows.map(|row| (name(row), (row.payload_bytes, row.seconds))))
}

/// One operation, again and again; a time at rank 0 alone.
fn measure(
    comm: &Communicator,
    common: &Common,
    (kind, bytes): (WindowCallKind, u64),
    by_messages: bool,
) -> Result<Option<Summary>, Failure> {
    let builder = comm.window();
    let builder = if by_messages { builder.by_messages() } else { builder };
    let elements = usize::try_from(bytes / 8).unwrap_or(1);
    let mut window: Window<u64> = builder.allocate(elements)?;
    let mut time = None;
    if comm.rank() == 0 {
        if kind != WindowCallKind::Lock {
            window.lock(1, Lock::Shared)?;
        }
        let (mut local, mut count, mut failed) = (vec![0u64; elements], 0u64, None);
        let measured = alone(common.seconds(), || {
            count += 1;
            if failed.is_none() {
                failed = once(&mut window, kind, &mut local, count).err();
            }
        });
        if let Some(failure) = failed {
            return Err(failure.into());
        }
        time = Some(measured.map_err(Failure::samples(kind.name()))?);
        if kind != WindowCallKind::Lock {
            window.unlock(1)?;
        }
        // What the target has now: the last number that was put, or how many were added.
        let expected = if kind == WindowCallKind::Get { 0 } else { count };
        let mut found = vec![0u64; elements];
        window.lock(1, Lock::Shared)?;
        window.get(&mut found, 1, 0)?;
        window.unlock(1)?;
        let bytes = |numbers: &[u64]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
        };
        let mut right = vec![expected; elements];
        if matches!(kind, WindowCallKind::Put | WindowCallKind::Lock) {
            right[1..].fill(0);
        }
        let case = format!("{} {}", kind.name(), bytes(&found).len());
        same(&bytes(&found), &bytes(&right))
            .map_err(|wrong| Failure::Wrong { case, op: "one-sided", wrong })?;
    }
    comm.barrier()?;
    window.free()?;
    Ok(time)
}

fn once(
    window: &mut Window<u64>,
    kind: WindowCallKind,
    local: &mut [u64],
    count: u64,
) -> Result<(), gapless::Error> {
    match kind {
        WindowCallKind::Put => {
            local[0] = count;
            window.put(&*local, 1, 0)?;
        }
        WindowCallKind::Get => window.get(local, 1, 0)?,
        WindowCallKind::Accumulate => {
            if count == 1 {
                local.fill(1);
            }
            window.accumulate(&*local, 1, 0, ReduceOp::Sum)?;
        }
        WindowCallKind::Fetch => {
            window.fetch_and_op(1u64, 1, 0, ReduceOp::Sum)?;
        }
        WindowCallKind::Lock => {
            local[0] = count;
            window.lock(1, Lock::Exclusive)?;
            window.put(&*local, 1, 0)?;
            return window.unlock(1);
        }
    }
    window.flush(1)
}
