//! A collective through shared memory as one rank describes it: checked, planned, and ready to begin.

use super::fast_path::CallPlan;
use super::{buffers, exchange_plan, long_plan, short_plan};
use crate::build::rows;
use crate::execute::call_buffers::{BufferBlocks, CallBuffers, Combine};
use crate::execute::error::CollError;
use crate::schedule::Buffer;
use crate::{Call, Operation};

/// What a rank does in one collective: [`SharedSegment::begin_call`](super::SharedSegment::begin_call) begins it.
/// Nothing of it refers to a segment, so it may be made before there is one, and kept for later.
#[derive(Clone, Debug)]
pub struct SmCall {
    pub(super) way: SmPlan,
    pub(super) buffers: CallBuffers,
    pub(super) combine: Option<Combine>,
    /// The rank, and of how many.
    pub(super) of: (usize, usize),
}

/// How it goes.
#[derive(Clone, Debug)]
pub(super) enum SmPlan {
    Short(short_plan::ShortPlan),
    Long(long_plan::LongPlan),
    /// And whether what is sent is plain memory.
    Exchange(exchange_plan::ExchangePlan, bool),
}

impl SmPlan {
    fn new(
        call: &Call<'_>,
        (rank, ranks): (usize, usize),
        buffers: &CallBuffers,
    ) -> Result<SmPlan, CollError> {
        let refused = || CollError::NotShared { operation: call.operation() };
        Ok(if short_plan::fits(call, ranks) {
            SmPlan::Short(short_plan::ShortPlan::new(call, rank, ranks))
        } else if exchange_plan::fits(call, ranks) {
            let is_plain = buffers::sends_plain(buffers);
            let plan = exchange_plan::ExchangePlan::new(call, rank, ranks, is_plain);
            SmPlan::Exchange(plan.ok_or_else(refused)?, is_plain)
        } else {
            SmPlan::Long(long_plan::LongPlan::new(call, rank, ranks).ok_or_else(refused)?)
        })
    }

    pub(super) fn operation(&self) -> Operation {
        match self {
            SmPlan::Short(plan) => plan.operation,
            SmPlan::Long(plan) => plan.operation(),
            SmPlan::Exchange(plan, _) => plan.operation,
        }
    }
}

impl SmCall {
    /// The part of rank `rank` of `ranks` in a call that a segment [takes](super::SharedSegment::takes). `combine` is
    /// needed if it combines elements. The buffers are described only: nothing touches their memory before the call
    /// begins.
    ///
    /// # Errors
    /// Arguments that do not fit ([`CollError::Call`], [`CollError::Row`], [`CollError::Combine`]);
    /// [`CollError::NotShared`].
    pub fn new(
        call: &Call<'_>,
        (rank, ranks): (usize, usize),
        buffers: CallBuffers,
        combine: Option<Combine>,
    ) -> Result<SmCall, CollError> {
        call.check(rank, ranks).map_err(|error| CollError::Call { error })?;
        let way = SmPlan::new(call, (rank, ranks), &buffers)?;
        let (send, recv) = rows(call, rank, ranks);
        buffers.send.check(Buffer::Send, &send)?;
        buffers.recv.check(Buffer::Recv, &recv)?;
        if let Some(unit) = call.reduction().map(|of| of.unit) {
            let given = combine.as_ref().map(Combine::bytes);
            if given.is_none_or(|bytes| bytes == 0 || !unit.is_multiple_of(bytes)) {
                return Err(CollError::Combine { unit, given });
            }
        }
        Ok(SmCall { way, buffers, combine, of: (rank, ranks) })
    }

    /// The call of a rank that has failed.
    pub(super) fn without_memory(call: &Call<'_>, of: (usize, usize)) -> Result<SmCall, CollError> {
        let buffers = CallBuffers { send: BufferBlocks::None, recv: BufferBlocks::None };
        Ok(SmCall { way: SmPlan::new(call, of, &buffers)?, buffers, combine: None, of })
    }
}

impl CallPlan {
    /// The call, with buffers that are as long as the call says.
    #[must_use]
    pub fn sm_call(self, buffers: CallBuffers) -> SmCall {
        let CallPlan { way, combine, of, .. } = self;
        SmCall { way, buffers, combine, of }
    }
}
