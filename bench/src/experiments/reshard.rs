//! `reshard`: an array that processes share, each on a GPU, changes from one sharding to another; beside the driver's
//! copy of as many bytes as a process sends to others, by all of them at once.
//!
//! Processes of this program measure; they may share GPUs. Every element is compared with what indices say, in a small
//! array of the same kind first.

use gapless::coll::reshard::{Placement, Reshard as Plan, ReshardEnd, Sharding};
use gapless::{CudaDriver, Datatype, DeviceBuf, Primitive, ReduceOp, Space, World};
use gapless_report::{Absent, Mark, PlotError, Report, Row, Summary, curves};

use super::osc::by_way;
use crate::check::same;
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, summary};
use crate::gpu::{GpusOfRanks, copied};
use crate::one_gpu::timing::in_turn;
use crate::processes::{Processes, RankOf};

/// The experiment.
pub struct Reshard;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rows and columns of the whole array, whose elements have 2 bytes
    #[arg(long, value_name = "ELEMENTS", default_value_t = 23_170, value_parser = clap::value_parser!(u64).range(4..=1 << 16))]
    side: u64,
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=16))]
    ranks: u32,
    #[command(flatten)]
    gpus: GpusOfRanks,
}

/// Of the small array.
const SMALL: u64 = 130;

/// Ranks from `first` on, and what they have.
#[derive(Clone, Debug)]
struct Mesh {
    dims: Vec<u32>,
    first: u32,
    placements: Vec<Placement>,
}

impl Mesh {
    fn new(dims: &[u32], placements: &[Placement]) -> Mesh {
        Mesh { dims: dims.to_vec(), first: 0, placements: placements.to_vec() }
    }

    fn sharding(&self) -> Result<Sharding, Failure> {
        let ranks = self.first..self.first + self.dims.iter().product::<u32>();
        Ok(Sharding::new(&self.dims, ranks, &self.placements)?)
    }

    /// Where a rank's part of the small array begins: its row and its column.
    fn start(&self, rank: u32) -> [u64; 2] {
        let (mut index, mut start) = (rank - self.first, [0; 2]);
        for (dim, placement) in self.dims.iter().zip(&self.placements).rev() {
            if let Placement::Block { axis } = placement {
                start[*axis] = u64::from(index % dim) * SMALL.div_ceil(u64::from(*dim));
            }
            index /= dim;
        }
        start
    }
}

/// From which sharding to which.
#[derive(Clone, Debug)]
struct Change {
    name: String,
    from: Mesh,
    to: Mesh,
}

/// What so many ranks do.
fn changes(ranks: u32) -> Vec<Change> {
    let [rows, columns] = [0, 1].map(|axis| Placement::Block { axis });
    let line = |placement| Mesh::new(&[ranks], &[placement]);
    let change = |name: &str, from, to| Change { name: name.to_owned(), from, to };
    let mut changes = vec![
        change("rows to columns", line(rows), line(columns)),
        change("columns to rows", line(columns), line(rows)),
    ];
    if ranks == 2 {
        changes.push(change("rows to all at both", line(rows), line(Placement::Replicate)));
        changes.push(change("all at both to rows", line(Placement::Replicate), line(rows)));
    } else if ranks.is_multiple_of(2) {
        let half = ranks / 2;
        let name = format!("({ranks} × 1) to (2 × {half})");
        changes.push(change(&name, line(rows), Mesh::new(&[2, half], &[rows, columns])));
        let others = Mesh { first: half, ..Mesh::new(&[half], &[columns]) };
        let name = format!("rows of {half} to columns of {half} others");
        changes.push(change(&name, Mesh::new(&[half], &[rows]), others));
    }
    changes
}

impl Change {
    fn of(&self, side: u64) -> Result<Plan, Failure> {
        let (source, target) = (self.from.sharding()?, self.to.sharding()?);
        Ok(Plan::new(&[side, side], &Datatype::from(Primitive::Uint16), &source, &target)?)
    }
}

impl Experiment for Reshard {
    type Options = Options;

    const NAME: &'static str = "reshard";
    const ABOUT: &'static str = "an array changes its sharding over two GPUs, beside the driver's copy of what is sent";

    fn run(options: &Options, _: &Common) -> Result<Findings, Failure> {
        let (environment, _service) = options.gpus.check(options.ranks)?;
        let processes = Processes { environment, ..Processes::new(Self::NAME, options.ranks) };
        let (rows, ended) = processes.found_so_far(Self::NAME, ())?;
        let notes = "time: all elements are at all processes; ÷: speed relative to the driver's copy of the bytes that a \
                     process sends\nto others, to the GPU of one of them, by all processes at once. What stays at a process \
                     is moved in the same time.\n";
        let failed = ended.err().map(|why| {
            let (case, op, why) = (Self::NAME.to_owned(), "all".to_owned(), why.to_string());
            Absent { case, op, why, failed: true }
        });
        Ok(Findings { rows, notes: notes.to_owned(), absent: failed.into_iter().collect() })
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let world = World::init()?;
        let devices = CudaDriver::load()?.devices();
        let (me, n) = (world.rank(), world.size());
        let [device, other] = [me, (me + n / 2) % n].map(|rank| options.gpus.of(rank, devices));
        let mut rows = Vec::new();
        for change in changes(n) {
            prove(&world, &change, device)?;
            let side = if common.quick { SMALL } else { options.side };
            let (bytes, [time, copy]) = measure(&world, common, (&change, side), (device, other))?;
            let case = format!("{} of {side} × {side} elements of 2 B", change.name);
            let row = Row::new(case, "reshard", options.gpus.space(n, devices), change.name, bytes, time);
            let row = row.verified(true).against("cudaMemcpyPeer", copy).with("processes", n);
            rows.push(row.mark(Mark::at_least("cudaMemcpyPeer", 0.9, copy.median / time.median)));
            if me == 0 {
                rank.leave(&rows)?;
            }
        }
        Ok(world.finalize()?)
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
fn expected(plan: &Plan, mesh: &Mesh, end: ReshardEnd, rank: u32) -> Vec<u8> {
    let Some(shape) = plan.local_shape(end, rank) else { return Vec::new() };
    let [top, left] = mesh.start(rank);
    let number = |row: u64, column: u64| ((top + row) * SMALL + left + column).to_le_bytes();
    let all = (0..shape[0]).flat_map(|row| (0..shape[1]).map(move |column| number(row, column)));
    all.flat_map(|number| [number[0], number[1]]).collect()
}

fn prove(world: &World, change: &Change, device: u32) -> Result<(), Failure> {
    let (plan, me) = (change.of(SMALL)?, world.rank());
    let [mut source, mut target] = arrays(world, &plan, device)?;
    copied::down(&mut source, &expected(&plan, &change.from, ReshardEnd::Source, me))?;
    let mut exchange = world.comm().reshard_plan(&plan, &source, &target, 0)?;
    exchange.exchange(&source, &mut target)?;
    let right = expected(&plan, &change.to, ReshardEnd::Target, me);
    let mut found = vec![0; right.len()];
    copied::up(&mut found, &target)?;
    same(&found, &right).map_err(|wrong| Failure::Wrong { case: change.name.clone(), op: "reshard", wrong })
}

/// Bytes that a rank sends to others, at most, and the times of the slowest rank.
fn measure(
    world: &World,
    common: &Common,
    (change, side): (&Change, u64),
    (device, other): (u32, u32),
) -> Result<(u64, [Summary; 2]), Failure> {
    let (plan, comm) = (change.of(side)?, world.comm());
    let [source, mut target] = arrays(world, &plan, device)?;
    let mut exchange = comm.reshard_plan(&plan, &source, &target, 0)?;
    let me = comm.rank();
    let moves = plan.for_rank(me);
    let sent: u64 = moves.iter().filter(|it| it.from() == me && it.to() != me).map(|it| it.bytes()).sum();
    let mut most = 0u64;
    comm.allreduce(&sent, &mut most, ReduceOp::Max)?;
    // Where nobody sends anything, as much as between rows and columns.
    let ranks = u64::from(comm.size());
    let sent = if most == 0 { 2 * side * side / (ranks * ranks) } else { sent };
    let (most, len) = (most.max(sent), sent.max(2));
    let from = world.alloc_device(Space::Cuda { device }, len)?;
    let mut far = world.alloc_device(Space::Cuda { device: other }, len)?;
    let mut once = || Ok(exchange.exchange(&source, &mut target).map(drop)?);
    let mut copy = || match sent {
        0 => Ok(()),
        _ => Ok(copied::between(&mut far, &from, sent)?),
    };
    let [time, copy] = in_turn(comm, common.seconds(), [&mut once, &mut copy])?;
    Ok((most, [summary(&*change.name, &time)?, summary("cudaMemcpyPeer", &copy)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_small_array_lie_where_their_meshes_say() {
        for ranks in [2, 3, 4, 8, 16] {
            for change in changes(ranks) {
                let plan = change.of(SMALL).unwrap();
                for (mesh, end) in [(&change.from, ReshardEnd::Source), (&change.to, ReshardEnd::Target)] {
                    let mut all: Vec<[u8; 2]> = (0..ranks)
                        .flat_map(|rank| expected(&plan, mesh, end, rank).as_chunks().0.to_vec())
                        .collect();
                    all.sort_unstable();
                    all.dedup();
                    assert_eq!(all.len() as u64, SMALL * SMALL, "{ranks} ranks, {change:?}");
                }
            }
        }
    }
}
