//! What the copy engine does: moves between two GPUs whose bytes are rows on both sides. What is worth it
//! is decided in `rows`; here tasks are read as nests, and copies go onto a lane.

use crate::accelerator::{CopyRows, Lane};
use crate::form::Form;
use crate::nest::{Nest, Walk};
use crate::rows::{self, Copies, Rows, Terms};
use crate::shared::{Shared, Task};
use gapless_engine::{EngineError, Typed};
use gapless_kernels::Direction;
use gapless_mem::{OutOfRange, Region};

/// Memory, and where in it displacement 0 is.
#[derive(Clone, Copy)]
pub(crate) struct End {
    region: Region,
    origin: u64,
}

impl End {
    fn of(typed: &Typed) -> End {
        End { region: typed.region(), origin: typed.origin() }
    }

    /// `len` bytes from a displacement on.
    fn at(self, displacement: i64, len: u64) -> Result<Region, OutOfRange> {
        self.region.sub(self.origin.wrapping_add_signed(displacement), len)
    }
}

/// The loops of a side, if it has a form that is loops.
fn walk(typed: &Typed) -> Option<Walk> {
    match Form::of(typed.layout(), typed.count()) {
        Form::Contiguous { displacement } => Some(Walk::stretch(displacement)),
        Form::Strided(grid) => Walk::grid(&grid),
        _ => None,
    }
}

impl Task<'_> {
    /// Source and destination, and which bytes of the stream.
    fn ends(&self) -> (End, End, u64, u64) {
        match self {
            Task::Packed { job, packed, .. } => {
                // Displacements of the packed side are counted from its begin.
                let (typed, packed) = (End::of(job.typed), End { region: *packed, origin: 0 });
                match job.direction {
                    Direction::Pack => (typed, packed, job.start, job.end),
                    Direction::Unpack => (packed, typed, job.start, job.end),
                }
            }
            Task::Transfer { from, to, range, .. } => {
                (End::of(from.0), End::of(to.0), range.start, range.end)
            }
        }
    }

    /// Both sides as one nest of loops.
    fn nest(&self) -> Option<Nest> {
        match self {
            Task::Packed { job, .. } => {
                let typed = walk(job.typed)?;
                let packed = Walk::stretch(0i64.wrapping_sub_unsigned(job.start));
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
    /// The copies that do all of a task, if its sides lie on two GPUs and copies are faster than kernels.
    pub(crate) fn copies(&self, task: &Task<'_>) -> Option<Copies> {
        let budget = match task {
            Task::Packed { direct: None, .. } => return None,
            Task::Packed { job, .. } => job.budget,
            Task::Transfer { budget, .. } => *budget,
        };
        let terms = Terms::new(self.config.copy_bytes_min, budget.is_some());
        let (src, dst, start, end) = task.ends();
        if !terms.allow(1, end - start) || !self.accelerator.apart(src.region, dst.region) {
            return None;
        }
        rows::copies(&task.nest()?, start, end, terms)
    }

    /// Enqueues copies of a task's bytes.
    ///
    /// # Safety
    /// The task's memory stays valid, and free of races, until the lane has passed the work; the copies
    /// are of the task's bytes.
    ///
    /// # Errors
    /// The device's failure. Some of the work may be enqueued then.
    pub(crate) unsafe fn enqueue_copies(
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
