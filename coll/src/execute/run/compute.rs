//! The work of engines: copies and reductions, and packed memory for what they cannot reach in place.
use gapless_engine::Typed;
use gapless_mem::Region;

use super::{Flight, Phase, Run};
use crate::execute::ExecutorPlan;
use crate::execute::act::Tools;
use crate::execute::call_buffers::Spot;
use crate::execute::error::CollError;
use crate::schedule::Place;

impl Run {
    /// A flight for the work of engines.
    pub(super) fn work_on(&mut self, step: u32) -> usize {
        self.flights.push(Flight::new(step, Phase::Working));
        self.flights.len() - 1
    }

    /// Packed memory of a flight's.
    pub(super) fn memory(
        &mut self,
        plan: &ExecutorPlan,
        index: usize,
        bytes: u64,
    ) -> Result<Region, CollError> {
        let memory = plan.room(bytes)?;
        let region = memory.region();
        self.flights[index].memory.push(memory);
        Ok(region)
    }

    /// Starts a copy; an error is only of memory, others are kept with the work.
    pub(super) fn copy(
        &mut self,
        plan: &ExecutorPlan,
        tools: &Tools<'_>,
        index: usize,
        from: &Place,
        into: &Place,
    ) -> Result<(), CollError> {
        let spots = (plan.spot(from), plan.spot(into));
        let packed = match &spots {
            (Spot::Pieces(_), Spot::Pieces(_)) => Some(self.memory(plan, index, from.len)?),
            (Spot::Pieces(_), Spot::Direct(typed)) | (Spot::Direct(typed), Spot::Pieces(_)) => {
                match typed.as_contiguous() {
                    Some(region) => Some(region),
                    None => Some(self.memory(plan, index, from.len)?),
                }
            }
            (Spot::Direct(_), Spot::Direct(_)) => None,
        };
        let work = &mut self.flights[index].work;
        let done = match (&spots, packed) {
            ((Spot::Direct(from), Spot::Direct(into)), _) => tools.copy(from, into, work),
            (_, None) => Ok(()),
            ((from, into), Some(packed)) => {
                let out = match from {
                    Spot::Direct(typed) if typed.as_contiguous().is_some() => Ok(()),
                    Spot::Direct(typed) => tools.pack(&whole(typed), packed, work),
                    Spot::Pieces(pieces) => tools.pack(pieces, packed, work),
                };
                out.and_then(|()| match into {
                    Spot::Direct(typed) if typed.as_contiguous().is_some() => Ok(()),
                    Spot::Direct(typed) => tools.unpack(packed, &whole(typed), work),
                    Spot::Pieces(pieces) => tools.unpack(packed, pieces, work),
                })
            }
        };
        if let Err(error) = done {
            work.fail(error);
        }
        Ok(())
    }

    /// Starts to combine; an error is only of memory, others are kept with the work.
    pub(super) fn reduce(
        &mut self,
        plan: &ExecutorPlan,
        tools: &Tools<'_>,
        index: usize,
        sources: &[Place],
        into: &Place,
    ) -> Result<(), CollError> {
        let mut buffers = Vec::with_capacity(sources.len() + 1);
        for place in sources.iter().chain([into]) {
            let (region, pieces) = match plan.spot(place) {
                Spot::Direct(typed) if typed.own_layout().is_some() => {
                    buffers.push((typed, Vec::new()));
                    continue;
                }
                Spot::Direct(typed) => (typed.region(), Vec::new()),
                Spot::Pieces(pieces) => (self.memory(plan, index, place.len)?, pieces),
            };
            match plan.combine.as_ref().map(|combine| combine.elements(region)) {
                Some(Ok(typed)) => buffers.push((typed, pieces)),
                Some(Err(error)) => return Err(CollError::Engine { rank: plan.rank(), error }),
                None => {}
            }
        }
        let (Some((target, pieces)), Some(combine)) = (buffers.pop(), &plan.combine) else {
            return Ok(());
        };
        let work = &mut self.flights[index].work;
        let mut all = || {
            for (packed, pieces) in &buffers {
                tools.pack(pieces, packed.region(), work)?;
            }
            let sources: Vec<Typed> = buffers.iter().map(|(typed, _)| typed.clone()).collect();
            tools.reduce(combine, &sources, &target, work)?;
            tools.unpack(target.region(), &pieces, work)
        };
        if let Err(error) = all() {
            work.fail(error);
        }
        Ok(())
    }
}

/// A whole packed stream as the only piece.
fn whole(typed: &Typed) -> [(Typed, std::ops::Range<u64>); 1] {
    [(typed.clone(), 0..typed.packed_bytes())]
}
