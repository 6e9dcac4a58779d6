//! A collective through shared memory as one rank describes it: checked, planned, and ready to begin.

use super::fast_path::Known;
use super::{buffers, exchange_plan, long_plan, short_plan};
use crate::build::rows as rows_of;
use crate::execute::error::CollError;
use crate::execute::rows::{BufferBlocks, Combine, Rows};
use crate::schedule::Buffer;
use crate::{Call, Operation};

/// What a rank does in one collective: [`SharedSegment::begin_task`](super::SharedSegment::begin_task) begins it.
/// Nothing of it refers to a segment, so it may be made before there is one, and kept for later.
#[derive(Clone, Debug)]
pub struct Task {
    pub(super) way: TaskPlan,
    pub(super) rows: Rows,
    pub(super) combine: Option<Combine>,
    /// The rank, and of how many.
    pub(super) of: (usize, usize),
}

/// How it goes.
#[derive(Clone, Debug)]
pub(super) enum TaskPlan {
    Short(short_plan::ShortPlan),
    Long(long_plan::LongPlan),
    /// And whether what is sent is plain memory.
    Exchange(exchange_plan::ExchangePlan, bool),
}

impl TaskPlan {
    fn new(
        call: &Call<'_>,
        (rank, ranks): (usize, usize),
        rows: &Rows,
    ) -> Result<TaskPlan, CollError> {
        let refused = || CollError::NotShared { operation: call.operation() };
        Ok(if short_plan::fits(call, ranks) {
            TaskPlan::Short(short_plan::ShortPlan::new(call, rank, ranks))
        } else if exchange_plan::fits(call, ranks) {
            let is_plain = buffers::sends_plain(rows);
            let plan = exchange_plan::ExchangePlan::new(call, rank, ranks, is_plain);
            TaskPlan::Exchange(plan.ok_or_else(refused)?, is_plain)
        } else {
            TaskPlan::Long(long_plan::LongPlan::new(call, rank, ranks).ok_or_else(refused)?)
        })
    }

    pub(super) fn operation(&self) -> Operation {
        match self {
            TaskPlan::Short(plan) => plan.operation,
            TaskPlan::Long(plan) => plan.operation(),
            TaskPlan::Exchange(plan, _) => plan.operation,
        }
    }
}

impl Task {
    /// The part of rank `rank` of `ranks` in a call that a segment [takes](super::SharedSegment::takes). `combine` is
    /// needed if it combines elements. The rows are described only: nothing touches their memory before the task
    /// begins.
    ///
    /// # Errors
    /// Arguments that do not fit ([`CollError::Call`], [`CollError::Row`], [`CollError::Combine`]);
    /// [`CollError::NotShared`].
    pub fn new(
        call: &Call<'_>,
        (rank, ranks): (usize, usize),
        rows: Rows,
        combine: Option<Combine>,
    ) -> Result<Task, CollError> {
        call.check(rank, ranks).map_err(|error| CollError::Call { error })?;
        let way = TaskPlan::new(call, (rank, ranks), &rows)?;
        let (send, recv) = rows_of(call, rank, ranks);
        rows.send.check(Buffer::Send, &send)?;
        rows.recv.check(Buffer::Recv, &recv)?;
        if let Some(unit) = call.reduction().map(|of| of.unit) {
            let given = combine.as_ref().map(Combine::bytes);
            if given.is_none_or(|bytes| bytes == 0 || !unit.is_multiple_of(bytes)) {
                return Err(CollError::Combine { unit, given });
            }
        }
        Ok(Task { way, rows, combine, of: (rank, ranks) })
    }

    /// That of a rank that has failed.
    pub(super) fn without_memory(call: &Call<'_>, of: (usize, usize)) -> Result<Task, CollError> {
        let rows = Rows { send: BufferBlocks::None, recv: BufferBlocks::None };
        Ok(Task { way: TaskPlan::new(call, of, &rows)?, rows, combine: None, of })
    }
}

impl Known {
    /// The task, with buffers that are as long as the call says.
    #[must_use]
    pub fn task(self, rows: Rows) -> Task {
        let Known { way, combine, of, .. } = self;
        Task { way, rows, combine, of }
    }
}
