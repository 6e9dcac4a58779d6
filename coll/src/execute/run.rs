//! One run of a schedule: which steps wait, which are under way, and how they end.
mod astray;
mod compute;
mod epochs;
mod messages;
mod share;
mod tasks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Poll;

use gapless_engine::{EngineError, Typed};
use gapless_mem::{Region, Space};
use gapless_pml::{PmlError, RequestId};

use super::ExecutorPlan;
use super::act::{EngineWork, Tools};
use super::error::CollError;
use super::memory::Room;
use super::tasks::{Expected, Leaving};
use super::tickets::{Direction, Gate};
use crate::schedule::{Action, Schedule};

/// The state of a run.
#[derive(Debug)]
pub(super) struct Run {
    stage: RunStage,
    /// How many steps each step still waits for.
    missing: Vec<u32>,
    /// Steps that may begin.
    ready: VecDeque<u32>,
    /// Steps that have not ended.
    left: usize,
    /// How many steps of several ranks have begun.
    shares: u64,
    flights: Vec<Flight>,
    /// Tasks that may come, by the step that waits for each.
    expected: BTreeMap<u32, Expected>,
    /// Why this rank goes on without data.
    failure: Option<CollError>,
    /// A rank that is in another collective: nothing is received any more.
    astray: Option<u32>,
    /// Who was told of the failure.
    told: BTreeSet<u32>,
    /// Whose notices were asked for.
    asked: BTreeSet<u32>,
}

#[derive(Debug)]
enum RunStage {
    /// Nothing has begun.
    Fresh,
    Going,
    /// In a call, or a call has unwound.
    Torn,
    Over(Result<(), CollError>),
}

/// Something that is under way.
#[derive(Debug)]
struct Flight {
    /// The step that ends with it.
    step: Option<u32>,
    phase: Phase,
    work: EngineWork,
    /// Packed memory of the step's, kept until it has ended.
    memory: Vec<Room>,
    /// What of it is for what, in a step of several ranks.
    lies: share::Lies,
    /// The task that it puts.
    leaving: Option<Box<dyn Leaving>>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Engines pack what is to be sent.
    Packing { to: u32, slot: u32 },
    /// `data`: what the step says, and nothing instead of it.
    Sending { to: u32, id: RequestId, data: bool },
    /// `expected`: bytes; `drop`: no room was given.
    Receiving { from: u32, id: RequestId, expected: u64, drop: bool },
    /// A step waits until messages may go or come (see `tickets.rs`).
    Held { way: Direction, rank: u32 },
    /// As above, and the answer to this rank's marker is received here.
    Asking { to: u32, id: RequestId },
    /// As above, and the other's marker is received here.
    Listening { from: u32, id: RequestId },
    /// The data of a step does not come; why is in a notice.
    Notified { from: u32, id: RequestId },
    /// As above, and the notice is received elsewhere.
    Doomed,
    /// Engines work, and then the step has ended.
    Working,
    /// Engines pack what is to be shared.
    Packed,
    /// A shared segment does the step.
    Sharing,
    /// Engines pack what a task takes along.
    Gathering { to: u32, slot: u32 },
    /// The target has not taken a task so far. `data`: it takes its bytes along.
    Leaving { to: u32, slot: u32, data: bool },
    /// A task has not come, or not ended.
    Awaiting { from: u32 },
    /// A notice, whose fate does not matter.
    Telling { id: RequestId },
}

impl Flight {
    fn new(step: u32, phase: Phase) -> Self {
        Self {
            step: Some(step),
            phase,
            work: EngineWork::default(),
            memory: Vec::new(),
            lies: share::Lies::default(),
            leaving: None,
        }
    }
}

/// No bytes, to send and to receive.
pub(super) fn nothing() -> Typed {
    Typed::contiguous(Region::new(Space::Host, 0, 0, 0))
}

impl Run {
    pub(super) fn new(schedule: &Schedule) -> Self {
        let missing: Vec<u32> = schedule
            .steps()
            .map(|(_, after)| u32::try_from(after.len()).unwrap_or(u32::MAX))
            .collect();
        let ready = (0u32..).zip(&missing).filter(|(_, missing)| **missing == 0);
        Self {
            stage: RunStage::Fresh,
            ready: ready.map(|(step, _)| step).collect(),
            left: missing.len(),
            shares: 0,
            missing,
            flights: Vec::new(),
            expected: BTreeMap::new(),
            failure: None,
            astray: None,
            told: BTreeSet::new(),
            asked: BTreeSet::new(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, RunStage::Over(_))
    }

    pub(super) fn is_busy(&self) -> bool {
        let held = |flight: &Flight| matches!(flight.phase, Phase::Held { .. });
        self.flights.iter().any(|flight| flight.work.is_pending() || held(flight))
    }

    /// Whether it waits for another collective of this rank to end.
    pub(super) fn is_blocked(&self, plan: &ExecutorPlan) -> bool {
        matches!(self.stage, RunStage::Fresh) && plan.ticket.may_begin() == Ok(false)
    }

    /// Before it is dropped: waits for engines; whether nothing else is in flight. Otherwise memory is leaked.
    pub(super) fn let_go(&mut self) -> bool {
        // Waits for tasks that run.
        self.expected.clear();
        self.flights.iter_mut().for_each(|flight| flight.work.drain());
        let idle = matches!(self.stage, RunStage::Fresh | RunStage::Over(_));
        if !idle {
            std::mem::take(&mut self.flights).into_iter().for_each(std::mem::forget);
        }
        idle
    }

    pub(super) fn advance(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
    ) -> Poll<Result<(), CollError>> {
        match &self.stage {
            RunStage::Over(result) => return Poll::Ready(result.clone()),
            RunStage::Torn => return Poll::Ready(Err(CollError::Abandoned)),
            RunStage::Going => {}
            RunStage::Fresh if plan.ticket.members().is_revoked() => {
                return self.over(plan, Err(CollError::Revoked));
            }
            RunStage::Fresh => match plan.ticket.may_begin() {
                Ok(true) if plan.has_tasks => self.expect_tasks(plan, tools),
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(error) => return self.over(plan, Err(error)),
            },
        }
        self.stage = RunStage::Torn;
        loop {
            while let Some(step) = self.ready.pop_front() {
                self.begin(plan, tools, step);
            }
            if !self.collect(plan, tools) {
                break;
            }
        }
        self.stage = RunStage::Going;
        if self.left > 0 || !self.flights.is_empty() {
            return Poll::Pending;
        }
        let result = self.failure.take().map_or(Ok(()), Err);
        self.over(plan, result)
    }

    /// Ends it.
    pub(super) fn over(
        &mut self,
        plan: &ExecutorPlan,
        result: Result<(), CollError>,
    ) -> Poll<Result<(), CollError>> {
        if plan.ends {
            plan.ticket.end();
        }
        self.expected.clear();
        self.stage = RunStage::Over(result.clone());
        Poll::Ready(result)
    }

    /// Has it go without data from the beginning.
    pub(super) fn doom(&mut self, error: CollError) {
        self.fail(error);
    }

    fn fail(&mut self, error: CollError) {
        self.failure.get_or_insert(error);
    }

    fn fail_message(&mut self, plan: &ExecutorPlan, rank: u32, error: PmlError) {
        self.fail(match &error {
            PmlError::PeerLost { rank: process, .. } => {
                let rank = plan.ticket.members().rank_of(*process).unwrap_or(rank);
                CollError::Lost { rank, error }
            }
            PmlError::Revoked => CollError::Revoked,
            PmlError::Engine(own) => CollError::Engine { rank: plan.rank(), error: own.clone() },
            _ => CollError::Message { rank, error },
        });
    }

    fn fail_engine(&mut self, plan: &ExecutorPlan, error: EngineError) {
        self.fail(CollError::Engine { rank: plan.rank(), error });
    }

    /// A step has ended: those that waited for nothing else may begin.
    fn ended(&mut self, plan: &ExecutorPlan, step: u32) {
        self.left -= 1;
        for follower in plan.followers(step) {
            let missing = &mut self.missing[*follower as usize];
            *missing -= 1;
            if *missing == 0 {
                self.ready.push_back(*follower);
            }
        }
    }

    fn begin(&mut self, plan: &ExecutorPlan, tools: &mut Tools<'_>, step: u32) {
        let action = plan.schedule.action(step as usize);
        if self.astray.is_some()
            && matches!(action, Action::Receive { .. } | Action::Put { .. } | Action::Task { .. })
        {
            return self.ended(plan, step);
        }
        let gate = match action {
            // A task may be followed by a message that says why it came without its bytes.
            Action::Send { to, .. } | Action::Put { to, .. } => Some((Direction::Out, peer(*to))),
            Action::Receive { from, .. } | Action::Task { from, .. } => {
                Some((Direction::In, peer(*from)))
            }
            _ => None,
        };
        if gate.is_some_and(|gate| !self.passes(plan, tools, step, gate)) {
            return;
        }
        match action {
            Action::Send { to, slot, from } => {
                self.begin_send(plan, tools, step, (peer(*to), *slot, from));
            }
            Action::Receive { from, slot, into } => {
                self.begin_receive(plan, tools, step, (peer(*from), *slot, into));
            }
            Action::Put { to, slot, from } => {
                self.begin_put(plan, tools, step, (peer(*to), *slot, from));
            }
            Action::Task { from, .. } => self.begin_task(step, peer(*from)),
            Action::Share { .. } => self.begin_share(plan, tools, step),
            Action::Copy { .. } | Action::Reduce { .. } if self.failure.is_some() => {
                self.ended(plan, step);
            }
            Action::Copy { from, into } => {
                let index = self.work_on(step);
                if let Err(error) = self.copy(plan, tools, index, from, into) {
                    self.fail(error);
                }
            }
            Action::Reduce { sources, into } => {
                let index = self.work_on(step);
                if let Err(error) = self.reduce(plan, tools, index, sources, into) {
                    self.fail(error);
                }
            }
        }
    }

    /// Looks at all that is under way; whether something has ended.
    fn collect(&mut self, plan: &ExecutorPlan, tools: &mut Tools<'_>) -> bool {
        let (mut index, mut ended) = (0, false);
        while index < self.flights.len() {
            let before = std::mem::discriminant(&self.flights[index].phase);
            match self.look(plan, tools, index) {
                true => {
                    ended = true;
                    // What `look` has started is at the end.
                    let flight = self.flights.swap_remove(index);
                    if let Some(step) = flight.step {
                        self.ended(plan, step);
                    }
                }
                // What it waits for now may be there already, and then nothing would wake the caller.
                false if std::mem::discriminant(&self.flights[index].phase) != before => {}
                false => index += 1,
            }
        }
        ended
    }

    /// Looks at something that is under way; whether it has ended.
    fn look(&mut self, plan: &ExecutorPlan, tools: &mut Tools<'_>, index: usize) -> bool {
        match self.flights[index].phase {
            Phase::Packing { to, slot } => self.look_packing(plan, tools, index, (to, slot)),
            Phase::Sending { to, id, data } => match tools.pml.collect(id) {
                Ok(None) => false,
                Ok(Some(_)) => true,
                Err(failure) => {
                    match self.flights[index].step.take_if(|_| data) {
                        Some(step) => self.send_ended_badly(plan, tools, step, to, failure),
                        None => self.fail_message(plan, to, failure.error),
                    }
                    true
                }
            },
            Phase::Receiving { from, id, expected, drop } => {
                let Some(outcome) = tools.pml.collect(id).transpose() else { return false };
                self.received(plan, tools, index, (from, expected, drop), outcome)
            }
            Phase::Held { way, rank } => {
                let passes = self.astray.is_some() || plan.ticket.gate(way, rank) == Gate::Open;
                passes && self.again(index)
            }
            Phase::Asking { to, id } => {
                let Some(outcome) = tools.pml.collect(id).transpose() else { return false };
                self.answered(plan, to, outcome);
                self.again(index)
            }
            Phase::Listening { from, id } => {
                let Some(outcome) = tools.pml.collect(id).transpose() else { return false };
                self.answer(plan, tools, from, outcome);
                self.again(index)
            }
            Phase::Notified { from, id } => {
                let Some(outcome) = tools.pml.collect(id).transpose() else { return false };
                self.hear(plan, index, from, outcome);
                true
            }
            Phase::Doomed => self.failure.is_some(),
            Phase::Working => match self.flights[index].work.result() {
                None => false,
                Some(Ok(())) => true,
                Some(Err(error)) => {
                    self.fail_engine(plan, error);
                    true
                }
            },
            Phase::Packed => self.look_packed(plan, tools, index),
            Phase::Sharing => self.look_sharing(plan, tools, index),
            Phase::Gathering { to, slot } => self.look_gathering(plan, tools, index, (to, slot)),
            Phase::Leaving { to, slot, data } => {
                self.look_leaving(plan, tools, index, (to, slot, data))
            }
            Phase::Awaiting { from } => self.look_awaiting(plan, tools, index, from),
            Phase::Telling { id } => !matches!(tools.pml.collect(id), Ok(None)),
        }
    }
}

/// A rank of a communicator.
fn peer(rank: usize) -> u32 {
    // The schedule has been found to be of the communicator's size.
    u32::try_from(rank).unwrap_or(u32::MAX)
}
