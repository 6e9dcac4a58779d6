//! Collectives on blocks of any elements in any layout and memory: a block is one message of the layout. Those that combine
//! elements work on memory of the host (`reductions.rs`).
//!
//! Each call is timed from the end of a barrier to a rank's own end. Buffers are the same every time.

use super::reductions::{self, Elements};
use super::timing::Plan;
use super::verdict::agreed;
use crate::collectives::CallTimes;
use crate::failure::Failure;
use crate::memory::{Boxes, Devices, Places, Sent, Sided, Source, Where, Wrong};
use gapless::{Collective, Communicator, Error, ReduceOp, World};
use gapless_coll::Operation;
use gapless_layouts::{Case, Side};
use std::time::Instant;

/// What moves blocks, from and to rank 0 where there is a root.
const MOVES: [Operation; 5] = [
    Operation::Bcast,
    Operation::Gather,
    Operation::Scatter,
    Operation::Allgather,
    Operation::Alltoall,
];

/// What works on blocks.
pub(super) fn operations() -> impl Iterator<Item = Operation> {
    MOVES.into_iter().chain(reductions::OPERATIONS)
}

/// Blocks that a rank sends and receives.
fn blocks(operation: Operation, rank: u32, ranks: u32) -> (u64, u64) {
    let (root, all) = (u64::from(rank == 0), u64::from(ranks));
    match operation {
        Operation::Bcast => (root, 1 - root),
        Operation::Gather => (1, root * all),
        Operation::Scatter => (root * all, 1),
        Operation::Allgather => (1, all),
        Operation::Reduce => (1, root),
        Operation::ReduceScatterBlock => (all, 1),
        Operation::Allreduce | Operation::Scan | Operation::Exscan => (1, 1),
        _ => (all, all),
    }
}

/// Whose blocks a rank receives where blocks are moved, and which of theirs, in order.
fn sources(operation: Operation, rank: u32, ranks: u32) -> Vec<(u32, u64)> {
    match operation {
        Operation::Bcast | Operation::Gather if (operation == Operation::Bcast) == (rank == 0) => {
            Vec::new()
        }
        Operation::Bcast => vec![(0, 0)],
        Operation::Scatter => vec![(0, u64::from(rank))],
        Operation::Alltoall => (0..ranks).map(|from| (from, u64::from(rank))).collect(),
        _ => (0..ranks).map(|from| (from, 0)).collect(),
    }
}

/// So many blocks of a side, in one place; and the length of an arena for them.
fn sided(side: &Side, blocks: u64) -> Result<(Sided, u64), Failure> {
    let too_long = || Failure::BadOption {
        option: "--message-size",
        value: side.payload_bytes().to_string(),
        why: "no memory is so large".to_owned(),
    };
    let count = side.count.checked_mul(blocks).ok_or_else(too_long)?;
    let many = Side { count, ..side.clone() };
    let (places, len) = Places::in_a_row(&many, 1).ok_or_else(too_long)?;
    Ok((Sided { layout: side.datatype.commit()?, count, places }, len))
}

/// The longest arena that a rank needs for this.
pub(super) fn arena_bytes(case: &Case, operation: Operation, ranks: u32) -> Result<u64, Failure> {
    // The root and another rank; of one that is neither there is none.
    let needed = |rank: u32| {
        let (out, into) = blocks(operation, rank, ranks);
        Ok::<_, Failure>(sided(&case.send, out)?.1.max(sided(&case.recv, into)?.1))
    };
    Ok(needed(0)?.max(needed(1)?))
}

/// One rank's part.
pub(super) struct Blocks<'w> {
    control: Communicator,
    /// By which the collective goes.
    comm: Communicator,
    operation: Operation,
    op: ReduceOp,
    boxes: Boxes,
    world: &'w World,
}

/// What is done.
pub(super) struct Task {
    pub(super) operation: Operation,
    /// By which.
    pub(super) comm: Communicator,
    /// What combines elements.
    pub(super) op: ReduceOp,
}

impl<'w> Blocks<'w> {
    pub(super) fn new(
        world: &'w World,
        devices: &mut Devices,
        Task { operation, comm, op }: Task,
        place: (Where, Source),
        (len, seed): (u64, u64),
    ) -> Result<Blocks<'w>, Failure> {
        let boxes = Boxes::open(world, devices, place, len, seed)?;
        Ok(Blocks { control: world.comm().dup()?, comm, operation, op, boxes, world })
    }

    /// Compares every byte that all ranks receive.
    pub(super) fn verify(&mut self, case: &Case) -> Result<Option<(u32, Wrong)>, Failure> {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        let (_, into) = blocks(self.operation, rank, ranks);
        let (recv, _) = sided(&case.recv, into)?;
        self.boxes.refill(&recv, 0)?;
        if reductions::OPERATIONS.contains(&self.operation) {
            let mine = self.combine(case, &recv)?;
            return agreed(&self.control, mine);
        }
        self.control.barrier()?;
        self.each(case, |call| call())?;
        let mut sides = Vec::new();
        for (from, first) in sources(self.operation, rank, ranks) {
            let (out, _) = blocks(self.operation, from, ranks);
            sides.push((from, first, sided(&case.send, out)?.0));
        }
        let sent = sides.iter().map(|(from, first, side)| Sent {
            side,
            from: *from,
            first: first * case.send.count,
            count: case.send.count,
        });
        let sent: Vec<Sent<'_>> = sent.collect();
        let mine = match sent.is_empty() {
            true => Ok(()),
            false => self.boxes.check(&sent, &recv, 0)?,
        };
        agreed(&self.control, mine)
    }

    /// Combines elements that are known, and compares what this rank receives.
    fn combine(&mut self, case: &Case, recv: &Sided) -> Result<Result<(), Wrong>, Failure> {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        let elements = Elements::of(self.op, case)?;
        let (out, into) = blocks(self.operation, rank, ranks);
        let stream = elements.stream(rank, 0, out * case.payload_bytes);
        self.boxes.put(&sided(&case.send, out)?.0, &stream)?;
        drop(stream);
        self.each(case, |call| call())?;
        let of = (rank, ranks);
        let expected = match into {
            0 => Vec::new(),
            _ => elements.expected(self.operation, of, case.payload_bytes),
        };
        self.boxes.holds(recv, &expected)
    }

    /// What the calls took; all ranks get the same.
    pub(super) fn time(&mut self, case: &Case, plan: Plan) -> Result<Vec<CallTimes>, Failure> {
        let control = self.control.clone();
        let plan = Plan { each: true, ..plan };
        let took = self.each(case, |call| {
            let mut took = Vec::new();
            let timing = plan.carry_out(&control, || {
                control.barrier()?;
                let begin = Instant::now();
                call()?;
                took.push(begin.elapsed().as_secs_f64().max(1e-9));
                Ok(())
            })?;
            // Those before were to warm up.
            let counted = usize::try_from(timing.iterations).unwrap_or(usize::MAX);
            Ok(took.split_off(took.len().saturating_sub(counted)))
        })?;
        let (mut sums, mut longest) = (vec![0.0; took.len()], vec![0.0; took.len()]);
        self.control.allreduce(&took, &mut sums, ReduceOp::Sum)?;
        self.control.allreduce(&took, &mut longest, ReduceOp::Max)?;
        let ranks = f64::from(self.world.size());
        let calls = sums.into_iter().zip(longest);
        Ok(calls.map(|(sum, longest)| CallTimes { average: sum / ranks, longest }).collect())
    }

    /// Gives `work` a function that makes one call.
    fn each<T>(
        &mut self,
        case: &Case,
        work: impl FnOnce(&mut dyn FnMut() -> Result<(), Error>) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        let (out, into) = blocks(self.operation, rank, ranks);
        let ((send, _), (recv, _)) = (sided(&case.send, out)?, sided(&case.recv, into)?);
        let (comm, operation, op) = (&self.comm, self.operation, self.op);
        let Boxes { outbox, inbox, .. } = &mut self.boxes;
        if operation == Operation::Bcast {
            let (arena, side) = if rank == 0 { (outbox, &send) } else { (inbox, &recv) };
            let mut views = arena.views_mut(&side.places, &side.layout, side.count, 1)?;
            return Ok(work(&mut || comm.perform(Collective::bcast(&mut views[0], 0)).map(drop))?);
        }
        let sends = outbox.views(&send.places, &send.layout, send.count, 1)?;
        let mut recvs = inbox.views_mut(&recv.places, &recv.layout, recv.count, 1)?;
        Ok(work(&mut || {
            let (send, recv) = (&sends[0], &mut recvs[0]);
            comm.perform(match operation {
                Operation::Gather => Collective::gather(send, recv, 0),
                Operation::Scatter => Collective::scatter(send, recv, 0),
                Operation::Allgather => Collective::allgather(send, recv),
                Operation::Alltoall => Collective::alltoall(send, recv),
                _ => reductions::call(operation, send, recv, op),
            })
            .map(drop)
        })?)
    }
}
