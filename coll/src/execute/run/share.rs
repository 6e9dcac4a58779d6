//! What ranks of a host do together: by their shared segment, which whoever advances the collective brings along.
//!
//! ```text
//! what is read   plain, or whole instances ──────────────────┐
//!                elsewhere ─── pack ───▶ packed memory ──────┤
//!                                                            ▼
//!                                                          segment
//! what is written                                            │
//!                plain, or whole instances ◀─────────────────┤
//!                elsewhere ◀── unpack ── packed memory ◀─────┘
//! ```
//!
//! A rank that has failed takes part all the same: the others find out why in the place of its data, and it counts as
//! many rounds of the segment as they do.

use gapless_engine::Typed;
use gapless_mem::Region;

use super::{Flight, Phase, Run};
use crate::call::{Call, Reduction};
use crate::execute::ExecutorPlan;
use crate::execute::act::Tools;
use crate::execute::call_buffers::{BufferBlocks, CallBuffers, Spot};
use crate::execute::error::CollError;
use crate::execute::sm::{SmCall, StepHandle};
use crate::schedule::{Action, Place};
use crate::together::Together;

/// Such a step of a schedule.
#[derive(Clone, Copy, Debug)]
struct Share<'s> {
    what: Together,
    /// The leader's local rank, and this rank's.
    lead: usize,
    local_rank: usize,
    ranks: usize,
    from: &'s Place,
    into: &'s Place,
}

impl<'s> Share<'s> {
    fn new(plan: &'s ExecutorPlan, step: u32) -> Option<Share<'s>> {
        let Action::Share { what, lead, from, into } = plan.schedule.action(step as usize) else {
            return None;
        };
        let subgroup = plan.schedule.subgroup()?;
        let local_rank_of = |rank: usize| subgroup.iter().position(|other| *other == rank);
        let (lead, local_rank) = (local_rank_of(*lead)?, local_rank_of(plan.schedule.rank())?);
        Some(Share { what: *what, lead, local_rank, ranks: subgroup.len(), from, into })
    }

    fn leads(&self) -> bool {
        self.lead == self.local_rank
    }

    /// The same as a collective of the ranks of the host; `in_place`: of a leader that reads what it writes.
    fn call(&self, plan: &ExecutorPlan, in_place: bool) -> Call<'static> {
        let root = self.lead;
        let ranks = self.ranks as u64;
        let len = match self.what {
            Together::Bcast => self.from.len.max(self.into.len),
            Together::Scatter => self.into.len.max(self.from.len / ranks),
            _ => self.from.len,
        };
        let of =
            Reduction { unit: plan.schedule.unit(), commutative: plan.schedule.terms.commutative };
        match self.what {
            Together::Meet => Call::Barrier,
            Together::Bcast => Call::Bcast { root, len },
            Together::Reduce => Call::Reduce { root, len, of, in_place },
            Together::Gather => Call::Gather { root, len, in_place },
            Together::Scatter => Call::Scatter { root, len, in_place },
        }
    }
}

/// Where this rank's part of such a step lies.
#[derive(Debug, Default)]
pub(super) struct Lies {
    /// Packed memory of what is read, and of what is written, where these lie elsewhere.
    read: Option<Region>,
    written: Option<Region>,
    /// What a shared segment has begun.
    begun: Option<StepHandle>,
}

impl Run {
    /// Begins to do something together with others.
    pub(super) fn begin_share(&mut self, plan: &ExecutorPlan, tools: &mut Tools<'_>, step: u32) {
        self.flights.push(Flight::new(step, Phase::Packed));
        let index = self.flights.len() - 1;
        if self.failure.is_none()
            && let Some(share) = Share::new(plan, step)
            && let Err(error) = self.pack_share(plan, tools, index, &share)
        {
            self.fail(error);
        }
    }

    /// Has packed memory for what lies elsewhere, and starts to pack what is read.
    fn pack_share(
        &mut self,
        plan: &ExecutorPlan,
        tools: &Tools<'_>,
        index: usize,
        share: &Share<'_>,
    ) -> Result<(), CollError> {
        let mut lies = Lies::default();
        if let Spot::Pieces(pieces) = plan.spot(share.from) {
            let packed = self.memory(plan, index, share.from.len)?;
            lies.read = Some(packed);
            let work = &mut self.flights[index].work;
            let started = tools.pack(&pieces, packed, work);
            work.started(started);
        }
        if let Spot::Pieces(_) = plan.spot(share.into) {
            lies.written = Some(self.memory(plan, index, share.into.len)?);
        }
        self.flights[index].lies = lies;
        Ok(())
    }

    /// What is read is packed: the segment begins. Whether the step has ended.
    pub(super) fn look_packed(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        index: usize,
    ) -> bool {
        match self.flights[index].work.result() {
            None => return false,
            Some(Ok(())) => {}
            Some(Err(error)) => self.fail_engine(plan, error),
        }
        let number = self.shares;
        self.shares += 1;
        let step = self.flights[index].step;
        let Some(share) = step.and_then(|step| Share::new(plan, step)) else { return true };
        let begun = match &self.failure {
            Some(failure) => Err(failure.clone()),
            None => self
                .sm_call(plan, index, &share)
                .and_then(|call| tools.begin_share(plan.schedule.terms.operation, number, call)),
        };
        // Those that need something of this rank are told.
        let begun = begun.or_else(|failure| {
            let (call, of) = (share.call(plan, false), (share.local_rank, share.ranks));
            self.fail(failure.clone());
            tools.fail_share(number, (&call, of), failure)
        });
        match begun {
            Ok(begun) => {
                let flight = &mut self.flights[index];
                (flight.phase, flight.lies.begun) = (Phase::Sharing, Some(begun));
                false
            }
            Err(_) => true,
        }
    }

    /// This rank's part.
    fn sm_call(
        &self,
        plan: &ExecutorPlan,
        index: usize,
        share: &Share<'_>,
    ) -> Result<SmCall, CollError> {
        let Lies { read, written, .. } = self.flights[index].lies;
        let typed = |place: &Place, packed: Option<Region>| match (packed, plan.spot(place)) {
            (Some(packed), _) => BufferBlocks::Whole(Typed::contiguous(packed)),
            (None, _) if place.len == 0 => BufferBlocks::None,
            (None, Spot::Direct(typed)) => BufferBlocks::Whole(typed),
            (None, Spot::Pieces(_)) => BufferBlocks::None,
        };
        let (from, into) = (typed(share.from, read), typed(share.into, written));
        // What a leader gathers lies in place already, unless the whole of it is packed elsewhere.
        let in_place = share.leads()
            && match share.what {
                Together::Meet | Together::Bcast => false,
                Together::Reduce => share.from == share.into,
                Together::Gather => written.is_none(),
                Together::Scatter => true,
            };
        let buffers = match share.what {
            // The leader of a bcast only reads.
            Together::Bcast if share.leads() => {
                CallBuffers { send: BufferBlocks::None, recv: from }
            }
            Together::Scatter => CallBuffers { send: from, recv: into },
            _ if in_place => CallBuffers { send: BufferBlocks::None, recv: into },
            _ => CallBuffers { send: from, recv: into },
        };
        let combine = plan.combine.clone().filter(|_| share.what == Together::Reduce);
        SmCall::new(&share.call(plan, in_place), (share.local_rank, share.ranks), buffers, combine)
    }

    /// Goes on with the segment; whether the step has ended.
    pub(super) fn look_sharing(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        index: usize,
    ) -> bool {
        let begun = self.flights[index].lies.begun.as_ref();
        let Some(result) = begun.map_or(Some(Ok(())), |begun| tools.advance_share(begun)) else {
            return false;
        };
        if let Err(error) = result {
            self.fail(error);
            return true;
        }
        let flight = &mut self.flights[index];
        let Some(packed) = flight.lies.written else { return true };
        let share = flight.step.and_then(|step| Share::new(plan, step));
        let Some(Spot::Pieces(pieces)) = share.map(|share| plan.spot(share.into)) else {
            return true;
        };
        let started = tools.unpack(packed, &pieces, &mut flight.work);
        flight.work.started(started);
        flight.phase = Phase::Working;
        false
    }
}
