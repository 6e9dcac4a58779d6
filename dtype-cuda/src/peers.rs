//! What the copy engine does: moves between two GPUs whose bytes are rows on both sides, and most of a
//! triangle. What is worth it is decided in `rows` and `triangle`; here tasks are read as nests, and copies go
//! onto a lane, with kernels beside them on another one.

use crate::accelerator::{CopyRows, Lane};
use crate::form::{ContiguousSpan, Form, blocks};
use crate::lanes::InFlight;
use crate::nest::{Nest, Walk};
use crate::recent::LayoutPair;
use crate::rows::{self, COPIES_MAX, Copies, Rows, Terms};
use crate::shared::{Shared, Task, launch_all};
use crate::triangle::{Shares, shares};
use gapless_engine::{EngineError, Typed};
use gapless_kernels::Direction;
use gapless_kernels::launch::{Launches, Runs, same};
use gapless_mem::{Completion, OutOfRange, Region};
use smallvec::SmallVec;
use std::sync::Arc;

/// Memory, and where in it displacement 0 is.
#[derive(Clone, Copy)]
pub(crate) struct PeerEnd {
    region: Region,
    origin: u64,
}

impl PeerEnd {
    fn of(typed: &Typed) -> PeerEnd {
        PeerEnd { region: typed.region(), origin: typed.origin() }
    }

    /// `len` bytes from a displacement on.
    fn at(self, displacement: i64, len: u64) -> Result<Region, OutOfRange> {
        self.region.sub(self.origin.wrapping_add_signed(displacement), len)
    }
}

/// The blocks of a side, if they are few.
fn few(typed: &Typed) -> Option<SmallVec<[ContiguousSpan; 4]>> {
    let number = typed.layout().blocks_of(typed.count())?;
    if number > COPIES_MAX as u64 { None } else { blocks(typed.layout(), typed.count()) }
}

/// The loops of a side, if it has a form that is loops.
fn walk(typed: &Typed) -> Option<Walk> {
    match Form::of(typed.layout(), typed.count()) {
        Form::Contiguous { displacement } => Some(Walk::contiguous(displacement)),
        Form::Strided(grid) => Walk::grid(&grid),
        _ => None,
    }
}

impl Task<'_> {
    /// Source and destination, and which bytes of the stream.
    fn ends(&self) -> (PeerEnd, PeerEnd, u64, u64) {
        match self {
            Task::Packed { job, packed, .. } => {
                // Displacements of the packed side are counted from its begin.
                let (typed, packed) =
                    (PeerEnd::of(job.typed), PeerEnd { region: *packed, origin: 0 });
                match job.direction {
                    Direction::Pack => (typed, packed, job.start, job.end),
                    Direction::Unpack => (packed, typed, job.start, job.end),
                }
            }
            Task::Transfer { from, to, range, .. } => {
                (PeerEnd::of(from.0), PeerEnd::of(to.0), range.start, range.end)
            }
        }
    }

    /// The runs that all of both sides are, at the same displacements.
    fn runs(&self) -> Option<Runs> {
        let Task::Transfer { from: (src, _), to: (dst, _), range, .. } = self else { return None };
        let whole =
            range.start == 0 && range.end == src.packed_bytes() && range.end == dst.packed_bytes();
        let form = |typed: &Typed| match Form::of(typed.layout(), typed.count()) {
            Form::Affine(runs) => Some(runs),
            _ => None,
        };
        let runs = form(src).filter(|_| whole)?;
        (form(dst)? == runs).then_some(runs)
    }

    /// The copies of sides that are few blocks.
    fn blocks(&self, terms: Terms) -> Option<Copies> {
        let (.., start, end) = self.ends();
        match self {
            Task::Packed { job, .. } => {
                let typed = few(job.typed)?;
                let displacement = 0i64.wrapping_sub_unsigned(start);
                let packed =
                    [ContiguousSpan { at: 0, len: job.typed.packed_bytes(), displacement }];
                match job.direction {
                    Direction::Pack => rows::blocks(&typed, &packed, start, end, terms),
                    Direction::Unpack => rows::blocks(&packed, &typed, start, end, terms),
                }
            }
            Task::Transfer { from, to, .. } => {
                rows::blocks(&few(from.0)?, &few(to.0)?, start, end, terms)
            }
        }
    }

    /// The copies that do it, and what they leave.
    fn shares(&self, terms: Terms, start: u64, end: u64) -> Option<Shares> {
        if let Some(runs) = self.runs() {
            return shares(&runs, terms);
        }
        let copies = match self.nest() {
            Some(nest) => rows::copies(&nest, start, end, terms)?,
            None => self.blocks(terms)?,
        };
        Some(Shares { copies, rest: SmallVec::new() })
    }

    /// Both sides as one nest of loops.
    fn nest(&self) -> Option<Nest> {
        match self {
            Task::Packed { job, .. } => {
                let typed = walk(job.typed)?;
                let packed = Walk::contiguous(0i64.wrapping_sub_unsigned(job.start));
                match job.direction {
                    Direction::Pack => Nest::between(&typed, &packed),
                    Direction::Unpack => Nest::between(&packed, &typed),
                }
            }
            Task::Transfer { from, to, .. } => Nest::between(&walk(from.0)?, &walk(to.0)?),
        }
    }
}

impl Shared {
    /// The copies that do a task, all of it or most, if its sides lie on two GPUs and copies are faster than
    /// kernels.
    pub(crate) fn copies(&self, task: &Task<'_>) -> Option<Arc<Shares>> {
        let budget = match task {
            Task::Packed { direct: None, .. } => return None,
            Task::Packed { job, .. } => job.budget,
            Task::Transfer { budget, .. } => *budget,
        };
        if task.is_paged() {
            return None;
        }
        let terms = Terms::new(self.config.copy_bytes_min, budget.is_some());
        let (src, dst, start, end) = task.ends();
        if !terms.allow(1, end - start) || !self.accelerator.apart(src.region, dst.region) {
            return None;
        }
        let work_out = || task.shares(terms, start, end).map(Arc::new);
        let shares = match task {
            Task::Packed { .. } => work_out(),
            Task::Transfer { from: (from, _), to: (to, _), range, budget } => {
                let (pair, layouts) =
                    (LayoutPair::new(from, to, range, *budget), [from.layout(), to.layout()]);
                self.shared_out.get_or(pair, layouts, work_out)
            }
        }?;
        let rows = shares.copies.iter().any(|copy| copy.rows > 1);
        let slow = rows && self.accelerator.copies_rows_slowly(src.region, dst.region);
        (!slow).then_some(shares)
    }

    /// The launches of what copies leave of a task.
    ///
    /// # Errors
    /// A shape that no kernel takes.
    pub(crate) fn beside(
        &self,
        task: &Task<'_>,
        shares: &Shares,
    ) -> Result<Arc<Launches>, EngineError> {
        let Task::Transfer { from, to, range, budget } = task else { return Ok(Arc::default()) };
        if shares.rest.is_empty() {
            return Ok(Arc::default());
        }
        let lay_out = || {
            let mut launches = Launches::new();
            for (side, bytes) in &shares.rest {
                launches.extend(same(&(0..*bytes), side, from.1.place, to.1.place, *budget)?);
            }
            Ok(Arc::new(launches))
        };
        let key = LayoutPair::new(from.0, to.0, range, *budget).placed(from.1, to.1);
        let launches = self.left_over.get_or(key, [from.0.layout(), to.0.layout()], lay_out);
        launches.map_err(|reason| self.unfit(reason))
    }

    /// Enqueues copies, and what they leave beside them, on another lane if one is free and the lane is ours. That begins after
    /// `after`, which the first lane waits for already; without these, after what comes before on the first lane.
    ///
    /// # Safety
    /// The task's memory stays valid, and free of races, until the lane has passed the work; the shares
    /// are the task's.
    ///
    /// # Errors
    /// The device's failure. Some of the work may be enqueued then.
    pub(crate) unsafe fn enqueue_shares(
        &self,
        lane: &dyn Lane,
        task: &Task<'_>,
        shares: &Shares,
        after: Option<&[Completion]>,
    ) -> Result<(), EngineError> {
        let Task::Transfer { from, to, .. } = task else {
            // SAFETY: the caller's own promise; copies are all of it.
            return unsafe { self.enqueue_copies(lane, task, &shares.copies) };
        };
        let launches = self.beside(task, shares)?;
        let pointers = [from.1.base, to.1.base, from.1.base, from.1.base];
        let another = if launches.is_empty() { None } else { self.another(lane) };
        let Some((other, mut track)) = another else {
            // SAFETY: the launches move bytes of both sides, for which the caller vouches.
            unsafe { launch_all(lane, &launches, &pointers) }?;
            // SAFETY: the caller's own promise.
            return unsafe { self.enqueue_copies(lane, task, &shares.copies) };
        };
        let flight = InFlight::new(other);
        let begin = match after {
            Some(_) => None,
            None => Some(lane.record()?),
        };
        // Copies take longer, so they go first.
        // SAFETY: the caller's own promise; what the kernels touch is no part of it.
        unsafe { self.enqueue_copies(lane, task, &shares.copies) }?;
        other.wait_for(after.unwrap_or(begin.as_slice()))?;
        // SAFETY: as above; the first lane waits for the second one's end. (A completion of both would do
        // without that, but the processor would have to ask for either end, which takes it longer.)
        unsafe { launch_all(other, &launches, &pointers) }?;
        let completion = other.record()?;
        lane.wait_for(std::slice::from_ref(&completion))?;
        track.last = completion.clone();
        flight.land(&mut track.retired, &completion);
        Ok(())
    }

    /// Enqueues copies of a task's bytes.
    ///
    /// # Safety
    /// The task's memory stays valid, and free of races, until the lane has passed the work; the copies
    /// are of the task's bytes.
    ///
    /// # Errors
    /// The device's failure. Some of the work may be enqueued then.
    unsafe fn enqueue_copies(
        &self,
        lane: &dyn Lane,
        task: &Task<'_>,
        copies: &[Rows],
    ) -> Result<(), EngineError> {
        let (src, dst, ..) = task.ends();
        for copy in copies {
            let rows = CopyRows {
                dst: dst.at(copy.dst, copy.span(copy.dst_pitch))?,
                dst_pitch: copy.dst_pitch,
                src: src.at(copy.src, copy.span(copy.src_pitch))?,
                src_pitch: copy.src_pitch,
                width: copy.width,
                rows: copy.rows,
            };
            // SAFETY: the rows lie inside the task's regions (`sub`) and are bytes of its two sides, for
            // which the caller vouches.
            unsafe { lane.copy_rows(&rows) }?;
        }
        Ok(())
    }
}
