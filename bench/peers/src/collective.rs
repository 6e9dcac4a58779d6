//! Collectives, as `collective` in `peers.c`: from the moment at which all ranks begin to the end of the last.
//!
//! All begin at slots of one clock, so that no barrier shows; a slot for which a rank came late does not count. Each
//! rank's buffers rotate, and what it sends was written just before. Units: nanoseconds, bytes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gapless::{Collective, Communicator, ReduceOp, View, ViewMut, World};
use gapless_dtype::{Datatype, Layout, Primitive};

use crate::Anything;
use crate::arena::{Memory, index};

/// A rank may come so much late for a slot.
const LATE: u64 = 1_000;
const SLOTS_MAX: u64 = 2000;
/// Places begin at multiples of this.
const LINE: u64 = 64;
const ELEMENT: u64 = 8;

/// What is done.
pub(crate) struct Work<'a> {
    /// Whether the buffers are memory that peers can map.
    pub(crate) allocated: bool,
    pub(crate) operation: &'a str,
    /// `contiguous`, or `comb`: every other element.
    pub(crate) layout: &'a str,
    /// The longer of a rank's two buffers, packed.
    pub(crate) bytes: u64,
    pub(crate) within: Duration,
    pub(crate) rotation: u64,
}

/// A side's buffers.
struct Places {
    memory: Memory,
    start: usize,
    len: usize,
    places: usize,
}

impl Places {
    fn new(world: &World, work: &Work<'_>, gaps: u64) -> Result<Places, Anything> {
        let len = index((work.bytes * gaps + 2 * LINE) / LINE * LINE);
        let places = index(work.rotation / u64::from(world.size())) / len + 2;
        let total = len * places + 4096;
        let memory = match work.allocated {
            true => Memory::Shared(world.alloc(total)?),
            false => Memory::Heap(vec![0; total]),
        };
        let mut places = Places { memory, start: 0, len, places };
        // As `peers.c` does: no first touch of a page is measured.
        places.memory.bytes_mut().fill(0);
        places.start = places.memory.bytes().as_ptr().align_offset(4096);
        Ok(places)
    }

    fn place(&mut self, turn: usize) -> &mut [u8] {
        let start = self.start + turn % self.places * self.len;
        &mut self.memory.bytes_mut()[start..start + self.len]
    }
}

/// One rank's part in the work.
struct Part<'a> {
    comm: &'a Communicator,
    operation: &'a str,
    layout: Layout,
    /// Elements of a block, and of all.
    each: u64,
    all: u64,
    send: Places,
    recv: Places,
    turn: usize,
}

impl Part<'_> {
    /// Writes what will be sent.
    fn write(&mut self) {
        self.turn += 1;
        #[expect(clippy::cast_precision_loss, reason = "any number will do")]
        let number = (self.turn + index(u64::from(self.comm.rank()))) as f64;
        for element in self.send.place(self.turn).as_chunks_mut::<8>().0 {
            *element = number.to_ne_bytes();
        }
    }

    fn perform(&mut self) -> Result<(), Anything> {
        let (each, all, sum) = (self.each, self.all, ReduceOp::Sum);
        let (send, recv) = (self.send.place(self.turn), self.recv.place(self.turn));
        let rank = self.comm.rank();
        if self.operation == "bcast" {
            let buffer = if rank == 0 { send } else { recv };
            let buffer = ViewMut::typed(buffer, 0, &self.layout, all)?;
            return Ok(self.comm.perform(Collective::bcast(buffer, 0))?);
        }
        let layout = &self.layout;
        let out = |count| View::typed(&*send, 0, layout, count);
        let collective = match self.operation {
            "barrier" => Collective::barrier(),
            "gather" => Collective::gather(out(each)?, into(recv, layout, all)?, 0),
            "scatter" => Collective::scatter(out(all)?, into(recv, layout, each)?, 0),
            "allgather" => Collective::allgather(out(each)?, into(recv, layout, all)?),
            "alltoall" => Collective::alltoall(out(all)?, into(recv, layout, all)?),
            "reduce" => Collective::reduce(out(all)?, into(recv, layout, all)?, sum, 0),
            "allreduce" => Collective::allreduce(out(all)?, into(recv, layout, all)?, sum),
            "reduce_scatter_block" => {
                Collective::reduce_scatter_block(out(all)?, into(recv, layout, each)?, sum)
            }
            "scan" => Collective::scan(out(all)?, into(recv, layout, all)?, sum),
            other => return Err(format!("no such collective: {other}").into()),
        };
        Ok(self.comm.perform(collective)?)
    }

    /// The largest of all ranks' numbers, element by element.
    fn most(&self, numbers: &[u64]) -> Result<Vec<u64>, Anything> {
        let mut most = vec![0; numbers.len()];
        self.comm.perform(Collective::allreduce(numbers, most.as_mut_slice(), ReduceOp::Max))?;
        Ok(most)
    }
}

/// Seconds of the collective in each slot that counts.
pub(crate) fn measure(world: &World, work: &Work<'_>) -> Result<Vec<f64>, Anything> {
    let comm = world.comm();
    let ranks = u64::from(comm.size());
    let gaps = if work.layout == "comb" { 2 } else { 1 };
    let double = Datatype::from(Primitive::Double);
    let spread = (ELEMENT * gaps).cast_signed();
    let each = work.bytes / ELEMENT / ranks;
    let whole = ["bcast", "reduce", "allreduce", "scan"].contains(&work.operation);
    let mut part = Part {
        comm,
        operation: work.operation,
        layout: Datatype::resized(0, spread, &double)?.commit()?,
        each,
        all: if whole { work.bytes / ELEMENT } else { each * ranks },
        send: Places::new(world, work, gaps)?,
        recv: Places::new(world, work, gaps)?,
        turn: 0,
    };
    let (mut samples, mut slot) = (Vec::new(), 0);
    for _ in 0..8 {
        let mut took = 0;
        for i in 0..4 {
            comm.barrier()?;
            let start = now();
            part.write();
            part.perform()?;
            if i > 0 {
                took = took.max(now() - start);
            }
        }
        slot = (2 * slot).max(2 * part.most(&[took])?[0] + 5_000);
        let within = u64::try_from(work.within.as_nanos())?;
        let mut agreed = [slot, (within / slot).clamp(8, SLOTS_MAX), now() + slot + 100_000];
        comm.bcast(&mut agreed, 0)?;
        let first = agreed[2];
        slot = agreed[0];
        let (mut ends, mut late) = (Vec::new(), Vec::new());
        for i in 0..agreed[1] {
            part.write();
            let begin = first + i * slot;
            late.push(now().saturating_sub(begin));
            while now() < begin {}
            part.perform()?;
            ends.push(now() - begin);
        }
        let (ends, late) = (part.most(&ends)?, part.most(&late)?);
        let counts = ends.iter().zip(late).filter(|(_, late)| *late <= LATE);
        samples.extend(counts.map(|(end, _)| Duration::from_nanos(*end).as_secs_f64()));
        if samples.len() >= 4 {
            break;
        }
    }
    Ok(samples)
}

/// So many elements in a place.
fn into<'m>(recv: &'m mut [u8], layout: &Layout, count: u64) -> Result<ViewMut<'m>, Anything> {
    Ok(ViewMut::typed(recv, 0, layout, count)?)
}

/// A clock that all processes share.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
