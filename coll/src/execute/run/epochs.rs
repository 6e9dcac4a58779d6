//! Markers between epochs, and their answers; `tickets.rs` says what for.
use gapless_pml::{Failure, Status};

use super::{Flight, Phase, Run, nothing};
use crate::execute::ExecutorPlan;
use crate::execute::act::Tools;
use crate::execute::tickets::{Direction, Gate, is_stale};

impl Run {
    /// Whether a step may send to a rank, or receive from it. If not, the step begins again when it may.
    pub(super) fn passes(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        step: u32,
        (way, rank): (Direction, u32),
    ) -> bool {
        let phase = match (plan.ticket.gate(way, rank), way) {
            (Gate::Open, _) => return true,
            // Whoever would answer the marker may be in another collective.
            (gate, Direction::Out) if self.astray.is_some() => {
                if gate == Gate::Shut {
                    let (marker, _) = plan.ticket.marker_tags();
                    self.tell(plan, tools, rank, &[], marker);
                    plan.ticket.open(way, rank);
                }
                return true;
            }
            (Gate::Opening, _) => Phase::Held { way, rank },
            (Gate::Shut, way) => {
                let (marker, answer) = plan.ticket.marker_tags();
                let tag = if way == Direction::Out { answer } else { marker };
                let heard = tools.receive(plan.reach(rank), &nothing(), tag);
                if way == Direction::Out {
                    self.tell(plan, tools, rank, &[], marker);
                }
                match (heard, way) {
                    (Ok(id), Direction::Out) => Phase::Asking { to: rank, id },
                    (Ok(id), Direction::In) => Phase::Listening { from: rank, id },
                    (Err(error), _) => {
                        // The step itself fails, too, and ends.
                        self.fail_message(plan, rank, error);
                        plan.ticket.open(way, rank);
                        return true;
                    }
                }
            }
        };
        self.flights.push(Flight::new(step, phase));
        false
    }

    /// Has a step begin again.
    pub(super) fn again(&mut self, index: usize) -> bool {
        self.ready.extend(self.flights[index].step.take());
        true
    }

    /// The answer to this rank's marker has come, or will not.
    pub(super) fn answered(
        &mut self,
        plan: &ExecutorPlan,
        to: u32,
        outcome: Result<Status, Failure>,
    ) {
        if let Err(failure) = outcome {
            self.fail_message(plan, to, failure.error);
        }
        plan.ticket.open(Direction::Out, to);
    }

    /// The other's marker has come, or will not.
    pub(super) fn answer(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        from: u32,
        outcome: Result<Status, Failure>,
    ) {
        let swept = outcome.map_err(|failure| failure.error).and_then(|_| {
            let (comm, rank) = plan.reach(from);
            tools.pml.sweep(comm, rank, is_stale)
        });
        match swept {
            Ok(strays) => plan.ticket.note_strays(strays),
            Err(error) => self.fail_message(plan, from, error),
        }
        let (_, answer) = plan.ticket.marker_tags();
        self.tell(plan, tools, from, &[], answer);
        plan.ticket.open(Direction::In, from);
    }

    /// Sends a copy of a few bytes, whose fate does not matter.
    pub(super) fn tell(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        to: u32,
        bytes: &[u8],
        tag: i32,
    ) {
        if let Ok(id) = tools.send_copy(plan.reach(to), bytes, tag) {
            self.flights.push(Flight { step: None, ..Flight::new(0, Phase::Telling { id }) });
        }
    }
}
