//! All operations that stay on GPUs, by each way there is: by heads, by copies of either kind, by the best mix of them, and
//! through the host's memory. On one GPU, or spread over several.

use gapless::coll::choose::Table;
use gapless::tuning::coll::{Entry, Gpu as Known, Mode, Settings, Step};
use gapless::{Communicator, DeviceBuf, Equivalence, Layout, ReduceOp, World};
use gapless_report::{Bytes, Row, Summary};

use super::allreduce::{BEST, HOST, IPC, MAPPED, STAGED, value};
use super::mapped::Mapped;
use super::memory::{Pinned, on_gpu, view, view_mut};
use super::timing::together;
use super::{Gpu, Options, Save, mapped};
use crate::error::Failure;
use crate::experiment::Common;
use crate::p2p::occupier::Occupier;

/// One process on each GPU works on the buffers of all.
pub const LED: &str = "leader-driven";
/// The same, while kernels of all other processes are on the GPU.
pub const BUSY: &str = "leader-driven, others busy";

/// Bytes of a rank's copy.
const SIZES: [u64; 7] = [4, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// The same, of operations other than the first.
const FEW: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// The part of the multiprocessors that a busy process takes.
const BUSY_PERCENT: u32 = 25;
/// Processes of which the others are busy.
const BUSY_PROCESSES: u32 = 4;

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// First: the others are measured less.
    Allreduce,
    /// To rank 0.
    Reduce,
    /// From rank 0.
    Bcast,
    /// To rank 0.
    Gather,
    /// From rank 0.
    Scatter,
    /// See there.
    Allgather,
    /// See there.
    Alltoall,
    /// In equal blocks.
    ReduceScatter,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 8] = [
        Operation::Allreduce,
        Operation::Reduce,
        Operation::Bcast,
        Operation::Gather,
        Operation::Scatter,
        Operation::Allgather,
        Operation::Alltoall,
        Operation::ReduceScatter,
    ];

    /// As rows have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::Allreduce => "allreduce",
            Operation::Reduce => "reduce",
            Operation::Bcast => "bcast",
            Operation::Gather => "gather",
            Operation::Scatter => "scatter",
            Operation::Allgather => "allgather",
            Operation::Alltoall => "alltoall",
            Operation::ReduceScatter => "reduce_scatter",
        }
    }

    /// Whether each rank's data is cut into a block for each.
    fn is_cut(self) -> bool {
        matches!(self, Operation::Alltoall | Operation::ReduceScatter)
    }

    /// Numbers that a rank sends and receives, where it is rank 0, for copies of so many.
    fn counts(self, count: u64, ranks: u64) -> (u64, u64) {
        match self {
            Operation::Gather | Operation::Allgather => (count, count * ranks),
            Operation::Scatter => (count * ranks, count),
            Operation::ReduceScatter => (count, count / ranks),
            _ => (count, count),
        }
    }
}

struct Bench<'w> {
    world: &'w World,
    control: Communicator,
    layout: Layout,
    send: DeviceBuf,
    recv: DeviceBuf,
    host: Pinned,
    seconds: f64,
}

/// Measures all ways, operation by operation, size by size.
///
/// # Errors
/// A wrong number; a device's or a peer's failure.
pub fn measure(
    options: &Options,
    common: &Common,
    world: &World,
    gpu: Gpu,
    save: &mut Save<'_>,
) -> Result<(), Failure> {
    let (n, gpus) = (world.size(), options.gpus.first().copied().unwrap_or(1));
    let gpus = gpus.clamp(1, n);
    let all = |operation: Operation| match (&options.sizes[..], common.quick, operation) {
        ([], true, _) => vec![4, 4096],
        ([], false, Operation::Allreduce) => SIZES.to_vec(),
        ([], false, _) => FEW.to_vec(),
        (some, _, _) => some.to_vec(),
    };
    let most = all(Operation::Allreduce).into_iter().max().unwrap_or(4);
    let few = all(Operation::Bcast).into_iter().max().unwrap_or(4);
    let most = most.max(few * u64::from(n));
    let (send, recv) = (on_gpu(world, gpu, most)?, on_gpu(world, gpu, most)?);
    let host = Pinned::new(send.device(), usize::try_from(most / 4).unwrap_or(0));
    let control = world.comm().dup()?;
    let layout = f32::layout().clone();
    let mut bench = Bench { world, control, layout, send, recv, host, seconds: common.seconds() };
    let device = bench.send.device();
    let (model, mps) = (device.properties().name.clone(), !device.takes_turns());
    let others = n as usize - 1;
    let fixed = |staged: usize| {
        let processes = n as usize;
        let entry = |step| Entry { step, processes, bytes: 1, staged };
        let entries = vec![entry(Step::Gather), entry(Step::Scatter)];
        vec![Known { model: model.clone(), mps, entries }]
    };
    let mut modes = vec![(LED, Mode::Led, Vec::new()), (HOST, Mode::Off, Vec::new())];
    if gpus == 1 {
        modes.extend([(STAGED, Mode::Static, fixed(others)), (IPC, Mode::Static, fixed(0))]);
    }
    let comms: Vec<(&str, Communicator)> = modes
        .into_iter()
        .map(|(name, mode, gpus)| Ok((name, bench.comm(mode, gpus)?)))
        .collect::<Result<_, Failure>>()?;
    // Mixes between the two kinds.
    let mut tries = Vec::new();
    if gpus == 1 {
        let mut counts: Vec<usize> = (0..=4).map(|part| others * part / 4).collect();
        counts.dedup();
        for staged in counts {
            tries.push((staged, bench.comm(Mode::Static, fixed(staged))?));
        }
    }
    // Processes that have a GPU each need no service.
    let stream = mapped::stream(gpu, mps || gpus == n)?;
    let buffers = [&bench.send, &bench.recv];
    let all_mapped = stream.as_ref().map(|it| Mapped::new(world, it, buffers, n / gpus));
    let mut all_mapped = all_mapped.transpose()?;
    for operation in Operation::ALL {
        for bytes in all(operation) {
            if !bytes.is_multiple_of(4 * u64::from(n)) && operation.is_cut() {
                continue;
            }
            let mut rows = Vec::new();
            for (name, comm) in &comms {
                rows.push((*name, bench.time(comm, operation, bytes)?, None));
            }
            let mut best: Option<(usize, Summary)> = None;
            for (staged, comm) in &tries {
                let took = bench.time(comm, operation, bytes)?;
                if best.is_none_or(|(_, least)| took.median < least.median) {
                    best = Some((*staged, took));
                }
            }
            // All ranks have the same times. What was best is measured again.
            if let Some((staged, _)) = best {
                let comm = tries.iter().find(|(known, _)| *known == staged);
                let took = comm.map(|(_, comm)| bench.time(comm, operation, bytes)).transpose()?;
                rows.extend(took.map(|took| (BEST, took, Some(staged))));
            }
            if let Some(mapped) = &mut all_mapped
                && operation == Operation::Allreduce
            {
                rows.push((MAPPED, bench.all_mapped(mapped, bytes)?, None));
            }
            if world.rank() == 0 {
                save.rows(made(operation, bytes, (n, gpus), &options.space, &rows))?;
            }
        }
    }
    drop(all_mapped);
    let led = &comms[0].1;
    if let Gpu::Cuda(number) = gpu
        && (gpus, mps, n, common.quick) == (1, false, BUSY_PROCESSES, false)
    {
        for bytes in FEW {
            let took = bench.beside_busy_ones(led, number, bytes)?;
            if world.rank() == 0 {
                let rows = [(BUSY, took, None)];
                save.rows(made(Operation::Allreduce, bytes, (n, gpus), &options.space, &rows))?;
            }
        }
    }
    for comm in comms.into_iter().map(|it| it.1).chain(tries.into_iter().map(|it| it.1)) {
        comm.free()?;
    }
    Ok(())
}

fn made(
    operation: Operation,
    bytes: u64,
    (processes, gpus): (u32, u32),
    space: &str,
    rows: &[(&str, Summary, Option<usize>)],
) -> Vec<Row> {
    let case = match gpus {
        1 => format!("{} n={processes}", Bytes(bytes)),
        _ => format!("{} n={processes} on {gpus} GPUs", Bytes(bytes)),
    };
    let row = |(name, summary, staged): &(&str, Summary, Option<usize>)| {
        // A wrong number is an error.
        let row = Row::new(&case, operation.name(), space, *name, bytes, *summary).verified(true);
        match staged {
            Some(staged) => row.with("staged", *staged),
            None => row,
        }
    };
    rows.iter().map(row).collect()
}

impl Bench<'_> {
    /// A communicator with these settings; all ranks call this.
    fn comm(&self, mode: Mode, gpus: Vec<Known>) -> Result<Communicator, Failure> {
        let before = self.world.coll_table();
        let mut settings = Settings { mode, bytes_min: 0, ..Settings::default() };
        settings.table.gpus = gpus;
        self.world.set_coll_table(Table { hyperq: settings, ..(*before).clone() });
        let made = self.world.comm().dup();
        self.world.set_coll_table((*before).clone());
        Ok(made?)
    }

    fn call(
        &mut self,
        comm: &Communicator,
        operation: Operation,
        bytes: u64,
    ) -> Result<(), Failure> {
        let (sends, receives) = operation.counts(bytes / 4, u64::from(comm.size()));
        let Bench { layout, send, recv, .. } = self;
        let (is_root, sum) = (comm.rank() == 0, ReduceOp::Sum);
        let from = view(send, layout, sends)?;
        let into = view_mut(recv, layout, receives)?;
        match operation {
            Operation::Allreduce => comm.allreduce(from, into, sum)?,
            Operation::Reduce => comm.reduce(from, into, sum, 0)?,
            Operation::Bcast => comm.bcast(into, 0)?,
            Operation::Gather => comm.gather(from, into, 0)?,
            Operation::Scatter if is_root => comm.scatter(from, into, 0)?,
            Operation::Scatter => comm.scatter((), into, 0)?,
            Operation::Allgather => comm.allgather(from, into)?,
            Operation::Alltoall => comm.alltoall(from, into)?,
            Operation::ReduceScatter => comm.reduce_scatter_block(from, into, sum)?,
        }
        Ok(())
    }

    /// Times one way, and checks what came of it.
    fn time(
        &mut self,
        comm: &Communicator,
        operation: Operation,
        bytes: u64,
    ) -> Result<Summary, Failure> {
        self.fill(operation, bytes)?;
        let (control, seconds) = (self.control.clone(), self.seconds);
        let summary = together(&control, (seconds, 3), || self.call(comm, operation, bytes))?;
        self.check(operation, bytes)?;
        Ok(summary)
    }

    /// What a rank contributes; what it receives is overwritten.
    fn fill(&mut self, operation: Operation, bytes: u64) -> Result<(), Failure> {
        let ranks = u64::from(self.world.size());
        let (sends, receives) = operation.counts(bytes / 4, ranks);
        let rank = self.world.rank();
        let Bench { host, send, recv, .. } = self;
        let numbers = host.first(usize::try_from(receives).unwrap_or(0));
        numbers.fill(-1.0);
        if operation == Operation::Bcast && rank == 0 {
            numbers.iter_mut().enumerate().for_each(|(at, number)| *number = value(0, at));
        }
        host.store(recv, 4 * receives)?;
        let numbers = host.first(usize::try_from(sends).unwrap_or(0));
        numbers.iter_mut().enumerate().for_each(|(at, number)| *number = value(rank, at));
        host.store(send, 4 * sends)
    }

    /// Whether what was received is right, at all ranks that receive.
    fn check(&mut self, operation: Operation, bytes: u64) -> Result<(), Failure> {
        let (n, rank) = (self.world.size(), self.world.rank());
        let (count, (_, receives)) = (bytes / 4, operation.counts(bytes / 4, u64::from(n)));
        let count = usize::try_from(count).unwrap_or(0).max(1);
        let gets = !matches!(operation, Operation::Reduce | Operation::Gather) || rank == 0;
        if !gets {
            return Ok(());
        }
        let from = |rank: usize| u32::try_from(rank).unwrap_or(u32::MAX);
        let block = count / n as usize;
        let right = |at: usize| match operation {
            Operation::Allreduce | Operation::Reduce => (0..n).map(|rank| value(rank, at)).sum(),
            Operation::ReduceScatter => {
                (0..n).map(|giver| value(giver, rank as usize * block + at)).sum()
            }
            Operation::Bcast => value(0, at),
            Operation::Gather | Operation::Allgather => value(from(at / count), at % count),
            Operation::Scatter => value(0, rank as usize * count + at),
            Operation::Alltoall => {
                value(from(at / block.max(1)), rank as usize * block + at % block.max(1))
            }
        };
        let Bench { host, recv, .. } = self;
        host.fetch(recv, 4 * receives)?;
        let numbers = host.first(usize::try_from(receives).unwrap_or(0));
        let wrong = numbers.iter().enumerate().find(|(at, found)| **found != right(*at));
        match wrong {
            None => Ok(()),
            Some((at, found)) => {
                let name = operation.name();
                let what = format!("{name}, {bytes} B: {at} is {found} and not {}", right(at));
                Err(Failure::Job(what))
            }
        }
    }

    /// By a kernel of each process, which is waited for.
    fn all_mapped(&mut self, mapped: &mut Mapped<'_>, bytes: u64) -> Result<Summary, Failure> {
        self.fill(Operation::Allreduce, bytes)?;
        let work = || mapped.allreduce(bytes / 4);
        let summary = together(&self.control, (self.seconds, 3), work)?;
        self.check(Operation::Allreduce, bytes)?;
        Ok(summary)
    }

    /// While a kernel of each other process is on the GPU.
    fn beside_busy_ones(
        &mut self,
        comm: &Communicator,
        gpu: u32,
        bytes: u64,
    ) -> Result<Summary, Failure> {
        let mut occupier = Occupier::new(gpu)?;
        if self.world.rank() > 0 {
            occupier.set(BUSY_PERCENT)?;
        }
        // Copies of those that are busy would wait for their kernels, so nothing is checked.
        self.control.barrier()?;
        let (control, seconds) = (self.control.clone(), self.seconds);
        let work = || self.call(comm, Operation::Allreduce, bytes);
        let summary = together(&control, (seconds, 1), work);
        occupier.set(0)?;
        self.control.barrier()?;
        summary
    }
}
