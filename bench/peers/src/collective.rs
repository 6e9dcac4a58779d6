//! Collectives, as `collective` in `peers.c`: from the moment at which all ranks begin to the end of the last.
//!
//! All begin at slots of one clock, so that no barrier shows; a slot for which a rank came late does not count. Each
//! rank's buffers rotate, and what it sends was written just before. Units: nanoseconds, bytes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gapless::{Collective, Communicator, ReduceOp, SharedBuf, View, ViewMut, World};
use gapless_dtype::{Datatype, Equivalence, Layout, Primitive};

use crate::Anything;
use crate::layouts::index;

/// A rank may come so much late for a slot.
const LATE: u64 = 1_000;
const SLOTS_MAX: u64 = 2000;
/// Places begin at multiples of this.
const LINE: u64 = 64;
const ELEMENT: u64 = 8;
/// Elements of a page.
const PAGE: usize = 512;

/// What is done.
pub(crate) struct CollectiveWork<'a> {
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

/// Elements, in ordinary memory as doubles, as in `peers.c`.
enum Elements {
    Heap(Vec<f64>),
    Shared(SharedBuf),
}

/// A side's buffers. Units: elements.
struct Places {
    memory: Elements,
    start: usize,
    len: usize,
    places: usize,
    /// Where the buffer of this turn begins.
    at: usize,
}

impl Places {
    fn new(world: &World, work: &CollectiveWork<'_>, gaps: u64) -> Result<Places, Anything> {
        let len = index((work.bytes * gaps + 2 * LINE) / LINE * LINE / ELEMENT);
        let places = index(work.rotation / u64::from(world.size()) / ELEMENT) / len + 2;
        let total = len * places + PAGE;
        let mut memory = match work.allocated {
            true => Elements::Shared(world.alloc(total * index(ELEMENT))?),
            false => Elements::Heap(vec![0.0; total]),
        };
        // As `peers.c` does: no first touch of a page is measured.
        let start = match &mut memory {
            Elements::Heap(elements) => {
                elements.fill(1.0);
                elements.as_ptr().align_offset(8 * PAGE)
            }
            Elements::Shared(bytes) => {
                bytes.fill(0);
                bytes.as_ptr().align_offset(8 * PAGE) / index(ELEMENT)
            }
        };
        // Memory for all ranks is aligned to pages.
        let start = start.min(PAGE);
        Ok(Places { memory, start, len, places, at: start })
    }

    fn turn(&mut self, turn: usize) {
        self.at = self.start + turn % self.places * self.len;
    }

    fn write(&mut self, number: f64) {
        let range = self.at..self.at + self.len;
        match &mut self.memory {
            Elements::Heap(elements) => elements[range].fill(number),
            Elements::Shared(bytes) => {
                let range = range.start * index(ELEMENT)..range.end * index(ELEMENT);
                for element in bytes[range].as_chunks_mut::<8>().0 {
                    *element = number.to_ne_bytes();
                }
            }
        }
    }

    /// So many elements of the buffer of this turn; with a layout if they have gaps.
    fn view(&self, layout: Option<&Layout>, count: u64) -> Result<View<'_>, Anything> {
        let range = self.at..self.at + self.len;
        Ok(match (&self.memory, layout) {
            (Elements::Heap(elements), None) => View::of(&elements[range][..index(count)]),
            (Elements::Heap(elements), Some(layout)) => {
                View::typed(&elements[range], 0, layout, count)?
            }
            (Elements::Shared(bytes), layout) => {
                let bytes = &bytes[range.start * index(ELEMENT)..range.end * index(ELEMENT)];
                View::typed(bytes, 0, layout.unwrap_or(f64::layout()), count)?
            }
        })
    }

    /// The same, to receive into.
    fn view_mut(&mut self, layout: Option<&Layout>, count: u64) -> Result<ViewMut<'_>, Anything> {
        let range = self.at..self.at + self.len;
        Ok(match (&mut self.memory, layout) {
            (Elements::Heap(elements), None) => ViewMut::of(&mut elements[range][..index(count)]),
            (Elements::Heap(elements), Some(layout)) => {
                ViewMut::typed(&mut elements[range], 0, layout, count)?
            }
            (Elements::Shared(bytes), layout) => {
                let bytes = &mut bytes[range.start * index(ELEMENT)..range.end * index(ELEMENT)];
                ViewMut::typed(bytes, 0, layout.unwrap_or(f64::layout()), count)?
            }
        })
    }
}

/// One rank's part in the work.
struct CollectiveRank<'a> {
    comm: &'a Communicator,
    operation: &'a str,
    /// If there are gaps.
    layout: Option<Layout>,
    /// Elements of a block, and of all.
    each: u64,
    all: u64,
    send: Places,
    recv: Places,
    turn: usize,
}

impl CollectiveRank<'_> {
    /// Writes what will be sent.
    fn write(&mut self) {
        self.turn += 1;
        self.send.turn(self.turn);
        self.recv.turn(self.turn);
        #[expect(clippy::cast_precision_loss, reason = "any number will do")]
        self.send.write((self.turn + index(u64::from(self.comm.rank()))) as f64);
    }

    fn perform(&mut self) -> Result<(), Anything> {
        let (each, all, sum) = (self.each, self.all, ReduceOp::Sum);
        let (send, recv, rank) = (&mut self.send, &mut self.recv, self.comm.rank());
        let layout = self.layout.as_ref();
        if self.operation == "bcast" {
            let buffer = if rank == 0 { send } else { recv };
            return Ok(self.comm.perform(Collective::bcast(buffer.view_mut(layout, all)?, 0))?);
        }
        let out = |count| send.view(layout, count);
        let collective = match self.operation {
            "barrier" => Collective::barrier(),
            "gather" => Collective::gather(out(each)?, recv.view_mut(layout, all)?, 0),
            "scatter" => Collective::scatter(out(all)?, recv.view_mut(layout, each)?, 0),
            "allgather" => Collective::allgather(out(each)?, recv.view_mut(layout, all)?),
            "alltoall" => Collective::alltoall(out(all)?, recv.view_mut(layout, all)?),
            "reduce" => Collective::reduce(out(all)?, recv.view_mut(layout, all)?, sum, 0),
            "allreduce" => Collective::allreduce(out(all)?, recv.view_mut(layout, all)?, sum),
            "reduce_scatter_block" => {
                Collective::reduce_scatter_block(out(all)?, recv.view_mut(layout, each)?, sum)
            }
            "scan" => Collective::scan(out(all)?, recv.view_mut(layout, all)?, sum),
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
pub(crate) fn measure(world: &World, work: &CollectiveWork<'_>) -> Result<Vec<f64>, Anything> {
    let comm = world.comm();
    let ranks = u64::from(comm.size());
    let gaps = if work.layout == "comb" { 2 } else { 1 };
    let double = Datatype::from(Primitive::Double);
    let spread = (ELEMENT * gaps).cast_signed();
    let each = work.bytes / ELEMENT / ranks;
    let whole = ["bcast", "reduce", "allreduce", "scan"].contains(&work.operation);
    let mut part = CollectiveRank {
        comm,
        operation: work.operation,
        layout: if gaps > 1 {
            Some(Datatype::resized(0, spread, &double)?.commit()?)
        } else {
            None
        },
        each,
        all: if whole { work.bytes / ELEMENT } else { each * ranks },
        send: Places::new(world, work, gaps)?,
        recv: Places::new(world, work, gaps)?,
        turn: 0,
    };
    let (mut samples, mut slot) = (Vec::new(), 0);
    // Peers map what was allocated for them when they first touch it, which takes much longer than what is measured.
    let untouched = if work.allocated { part.recv.places } else { 0 };
    for _ in 0..untouched {
        comm.barrier()?;
        part.write();
        part.perform()?;
    }
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

/// A clock that all processes share.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
