//! Calls of processes whose buffers lie on GPUs: what they send and receive, how long they take, whether the numbers
//! are right.

use gapless::coll::choose::Table;
use gapless::tuning::coll::{Entry, Gpu as Known, HyperQStep, Mode, Settings};
use gapless::{Communicator, DeviceBuf, Equivalence, Layout, ReduceOp, World};
use gapless_report::Summary;

use super::Gpu;
use super::mapped::Mapped;
use super::memory::{Pinned, on_gpu, view, view_mut};
use super::timing::together;
use crate::error::Failure;

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
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
    pub(super) const ALL: [Operation; 8] = [
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
    pub(super) fn name(self) -> &'static str {
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
    pub(super) fn is_cut(self) -> bool {
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

/// A process's buffers, and with whom it calls.
pub(super) struct Bench<'w> {
    pub(super) world: &'w World,
    /// What processes agree by.
    pub(super) control: Communicator,
    pub(super) layout: Layout,
    pub(super) send: DeviceBuf,
    pub(super) recv: DeviceBuf,
    pub(super) host: Pinned,
    /// Of one figure.
    pub(super) seconds: f64,
}

/// Settings for all lengths.
pub(super) fn settings(mode: Mode, gpus: Vec<Known>) -> Settings {
    let mut settings = Settings { mode, bytes_min: 0, ..Settings::default() };
    settings.table.gpus = gpus;
    settings
}

impl<'w> Bench<'w> {
    /// Buffers of `most` bytes; all ranks call this.
    pub(super) fn new(
        world: &'w World,
        gpu: Gpu,
        most: u64,
        seconds: f64,
    ) -> Result<Bench<'w>, Failure> {
        let (send, recv) = (on_gpu(world, gpu, most)?, on_gpu(world, gpu, most)?);
        let host = Pinned::new(send.device(), usize::try_from(most / 4).unwrap_or(0));
        let (control, layout) = (world.comm().dup()?, f32::layout().clone());
        Ok(Bench { world, control, layout, send, recv, host, seconds })
    }

    /// The GPU's model, and whether its processes use it at the same time.
    pub(super) fn device(&self) -> (String, bool) {
        let device = self.send.device();
        (device.properties().name.clone(), !device.takes_turns())
    }

    /// The static algorithm with so many host-staged copies in each step, from so many bytes on.
    pub(super) fn fixed(&self, staged: [usize; 2], bytes: u64) -> Settings {
        let (processes, (model, mps)) = (self.world.size() as usize, self.device());
        let entry = |step, staged| Entry { step, processes, bytes, staged };
        let entries =
            vec![entry(HyperQStep::Gather, staged[0]), entry(HyperQStep::Scatter, staged[1])];
        settings(Mode::Static, vec![Known { model, mps, entries }])
    }

    /// A communicator with these settings; all ranks call this.
    pub(super) fn comm(&self, hyperq: Settings) -> Result<Communicator, Failure> {
        let before = self.world.coll_table();
        self.world.set_coll_table(Table { hyperq, ..(*before).clone() });
        let made = self.world.comm().dup();
        self.world.set_coll_table((*before).clone());
        Ok(made?)
    }

    pub(super) fn call(
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

    /// Times one way after `warm` calls, and checks what came of it; `after`: looks at each call that counts.
    pub(super) fn time(
        &mut self,
        comm: &Communicator,
        (operation, bytes): (Operation, u64),
        warm: usize,
        mut after: impl FnMut(&Communicator),
    ) -> Result<Summary, Failure> {
        self.fill(operation, bytes)?;
        let (control, seconds, mut calls) = (self.control.clone(), self.seconds, 0);
        let summary = together(&control, (seconds, warm), || {
            self.call(comm, operation, bytes)?;
            calls += 1;
            if calls > warm {
                after(comm);
            }
            Ok(())
        })?;
        self.check(operation, bytes)?;
        Ok(summary)
    }

    /// What a rank contributes; what it receives is overwritten.
    pub(super) fn fill(&mut self, operation: Operation, bytes: u64) -> Result<(), Failure> {
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
    pub(super) fn check(&mut self, operation: Operation, bytes: u64) -> Result<(), Failure> {
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
    pub(super) fn all_mapped(
        &mut self,
        mapped: &mut Mapped<'_>,
        bytes: u64,
    ) -> Result<Summary, Failure> {
        self.fill(Operation::Allreduce, bytes)?;
        let work = || mapped.allreduce(bytes / 4);
        let summary = together(&self.control, (self.seconds, 3), work)?;
        self.check(Operation::Allreduce, bytes)?;
        Ok(summary)
    }
}

/// Small and whole, so that sums are exact.
fn value(rank: u32, at: usize) -> f32 {
    f32::from(u16::try_from((at * 7 + rank as usize * 13) % 1021).unwrap_or(0))
}
