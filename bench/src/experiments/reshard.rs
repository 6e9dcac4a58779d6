//! `reshard`: an array that two processes share, each on a GPU, changes from one sharding to another; beside the
//! driver's copy of as many bytes as a process sends to the other.
//!
//! Two processes of this program measure. Every element is compared with what indices say, in a small array of the same
//! kind first.

use std::cell::RefCell;

use gapless::coll::reshard::{Placement, Reshard as Plan, ReshardEnd, Sharding};
use gapless::{CudaDriver, Datatype, DeviceBuf, Primitive, Space, World};
use gapless_report::{Mark, PlotError, Report, Row, Summary, curves};

use super::osc::by_way;
use crate::check::same;
use crate::clock::race;
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::gpu::copied;
use crate::processes::{Processes, RankOf};

/// The experiment.
pub struct Reshard;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rows and columns of the whole array, whose elements have 2 bytes
    #[arg(long, value_name = "ELEMENTS", default_value_t = 23_170, value_parser = clap::value_parser!(u64).range(4..=1 << 16))]
    side: u64,
    /// GPUs of the two processes
    #[arg(long, value_name = "ORDINALS", value_delimiter = ',', num_args = 1.., default_value = "0,0")]
    gpus: Vec<u32>,
}

/// Of the small array.
const SMALL: u64 = 130;

/// From which sharding to which.
#[derive(Clone, Copy, Debug)]
struct Change(&'static str, Placement, Placement);

const CHANGES: [Change; 4] = [
    Change("rows to columns", Placement::Block { axis: 0 }, Placement::Block { axis: 1 }),
    Change("columns to rows", Placement::Block { axis: 1 }, Placement::Block { axis: 0 }),
    Change("rows to all at both", Placement::Block { axis: 0 }, Placement::Replicate),
    Change("all at both to rows", Placement::Replicate, Placement::Block { axis: 0 }),
];

impl Change {
    fn of(self, side: u64) -> Result<Plan, Failure> {
        let sharding = |placement| Sharding::new(&[2], 0..2, &[placement]);
        let (source, target) = (sharding(self.1)?, sharding(self.2)?);
        Ok(Plan::new(&[side, side], &Datatype::from(Primitive::Uint16), &source, &target)?)
    }
}

impl Experiment for Reshard {
    type Options = Options;

    const NAME: &'static str = "reshard";
    const ABOUT: &'static str = "an array changes its sharding over two GPUs, beside the driver's copy of what is sent";

    fn run(options: &Options, _: &Common) -> Result<Findings, Failure> {
        let devices = CudaDriver::load().map_err(|why| Failure::NoGpu { why: why.to_string() })?.devices();
        if options.gpus.len() != 2 || options.gpus.iter().any(|gpu| *gpu >= devices) {
            let why = format!("{devices} devices; two ordinals are asked for: {:?}", options.gpus);
            return Err(Failure::NoGpu { why });
        }
        let rows = Processes::new(Self::NAME, 2).found(Self::NAME, ())?;
        let notes = "time: all elements are at both processes; ÷: speed relative to the driver's copy, from one GPU to the \
                     other, of the bytes\nthat a process sends. What stays at a process is moved in the same time.\n";
        Ok(Findings::new(rows, notes.to_owned()))
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let world = World::init()?;
        let me = usize::try_from(world.rank()).unwrap_or(0);
        let [device, other] = [me, 1 - me].map(|at| options.gpus.get(at).copied().unwrap_or(0));
        let mut rows = Vec::new();
        for change in CHANGES {
            prove(&world, change, device)?;
            let side = if common.quick { SMALL } else { options.side };
            if let Some((bytes, [time, copy])) = measure(&world, common, (change, side), (device, other))? {
                let case = format!("{} of {side} × {side} elements of 2 B", change.0);
                let row = Row::new(case, "reshard", format!("cuda {device}, {other}"), change.0, bytes, time);
                let row = row.verified(true).against("cudaMemcpyPeer", copy);
                rows.push(row.mark(Mark::at_least("cudaMemcpyPeer", 0.9, copy.median / time.median)));
            }
        }
        rank.finalize(world, &rows)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        Drawing::alone(curves("an array changes its sharding", "bytes", &by_way(report.rows.iter())))
    }
}

/// A rank's local arrays at both ends.
fn arrays(world: &World, plan: &Plan, device: u32) -> Result<[DeviceBuf; 2], Failure> {
    let array = |end| {
        let bytes = 2 * plan.local_elements(end, world.rank());
        Ok::<_, Failure>(world.alloc_device(Space::Cuda { device }, bytes.max(2))?)
    };
    Ok([array(ReshardEnd::Source)?, array(ReshardEnd::Target)?])
}

/// The small array's elements at one end: each is its number in the whole one.
fn expected(plan: &Plan, placement: Placement, end: ReshardEnd, rank: u32) -> Vec<u8> {
    let shape = plan.local_shape(end, rank).unwrap_or_default();
    let [rows, columns] = [0, 1].map(|axis| shape.get(axis).copied().unwrap_or(0));
    let first = |axis, len: u64| match placement {
        Placement::Block { axis: cut } if cut == axis => u64::from(rank) * (SMALL - len).max(SMALL.div_ceil(2)),
        _ => 0,
    };
    let (top, left) = (first(0, rows), first(1, columns));
    let number = |row: u64, column: u64| ((top + row) * SMALL + left + column).to_le_bytes();
    let all = (0..rows).flat_map(|row| (0..columns).map(move |column| number(row, column)));
    all.flat_map(|number| [number[0], number[1]]).collect()
}

fn prove(world: &World, change: Change, device: u32) -> Result<(), Failure> {
    let (plan, me) = (change.of(SMALL)?, world.rank());
    let [mut source, mut target] = arrays(world, &plan, device)?;
    copied::down(&mut source, &expected(&plan, change.1, ReshardEnd::Source, me))?;
    let mut exchange = world.comm().reshard_plan(&plan, &source, &target, 0)?;
    exchange.exchange(&source, &mut target)?;
    let right = expected(&plan, change.2, ReshardEnd::Target, me);
    let mut found = vec![0; right.len()];
    copied::up(&mut found, &target)?;
    same(&found, &right).map_err(|wrong| Failure::Wrong { case: change.0.to_owned(), op: "reshard", wrong })
}

/// Bytes that are sent, and times at rank 0.
fn measure(
    world: &World,
    common: &Common,
    (change, side): (Change, u64),
    (device, other): (u32, u32),
) -> Result<Option<(u64, [Summary; 2])>, Failure> {
    let (plan, comm) = (change.of(side)?, world.comm());
    let [source, mut target] = arrays(world, &plan, device)?;
    let mut exchange = comm.reshard_plan(&plan, &source, &target, 0)?;
    let away = plan.for_rank(comm.rank()).iter().filter(|it| it.from() == comm.rank() && it.to() != comm.rank()).count();
    if comm.rank() == 1 {
        let mut more = [0u8];
        loop {
            comm.recv(&mut more, 0, 1)?;
            if more == [0] {
                return Ok(None);
            }
            exchange.exchange(&source, &mut target)?;
        }
    }
    // Of two processes, each sends half of what it has, or all of it, or nothing.
    let whole = 2 * side * side;
    let sent = match change.2 {
        _ if away == 0 => whole / 4,
        Placement::Replicate => whole / 2,
        _ => whole / 4,
    };
    let from = world.alloc_device(Space::Cuda { device }, sent)?;
    let mut far = world.alloc_device(Space::Cuda { device: other }, sent)?;
    let failed = RefCell::new(None);
    let mut once = || {
        let begun = comm.send(&[1u8], 1, 1).map(drop);
        if let Err(why) = begun.and_then(|()| exchange.exchange(&source, &mut target)) {
            failed.borrow_mut().get_or_insert(Failure::from(why));
        }
    };
    let mut copy = || {
        if let Err(why) = copied::between(&mut far, &from, sent) {
            failed.borrow_mut().get_or_insert(why.into());
        }
    };
    let times = race(common.seconds(), [&mut once, &mut copy]);
    comm.send(&[0u8], 1, 1)?;
    if let Some(why) = failed.take() {
        return Err(why);
    }
    Ok(Some((sent, times.map_err(Failure::samples("reshard"))?)))
}
