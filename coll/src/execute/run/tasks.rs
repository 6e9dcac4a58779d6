//! Tasks: what others put here, and what is put at others.
//!
//! A rank expects all tasks of its schedule before it sends anything: nobody puts before it has said that it is ready.
//! A failure is told as with messages: a task comes without its bytes, and a notice says whom to blame (`messages.rs`).
use gapless_engine::Typed;
use gapless_pml::PmlError;

use super::messages::Told;
use super::{Flight, Phase, Run};
use crate::execute::ExecutorPlan;
use crate::execute::act::Tools;
use crate::execute::call_buffers::Spot;
use crate::execute::error::CollError;
use crate::execute::tasks::{Came, Expected, TaskFault, TaskWork};
use crate::schedule::{Action, Place};

impl Run {
    /// Has all tasks of the schedule expected.
    pub(super) fn expect_tasks(&mut self, plan: &ExecutorPlan, tools: &Tools<'_>) {
        let Some(tasks) = &plan.tasks else {
            return self.fail(CollError::NoTasks { operation: plan.schedule.terms.operation });
        };
        for (step, (action, _)) in (0u32..).zip(plan.schedule.steps()) {
            let Action::Task { from, slot, into } = action else { continue };
            let from = super::peer(*from);
            let work = tools.task(plan, into).filter(|_| self.failure.is_none());
            if work.is_none() && self.failure.is_none() {
                self.fail_task(
                    plan,
                    from,
                    TaskFault::Other("its place is no plain memory".to_owned()),
                );
            }
            let work = work.unwrap_or_else(|| TaskWork::noting(into.len));
            let Some(process) = plan.process(from) else { continue };
            match tasks.expect(process, plan.task_name(*slot), work.clone()) {
                Ok(awaited) => {
                    self.expected.insert(step, Expected { work, awaited });
                }
                Err(fault) => self.fail_task(plan, from, fault),
            }
        }
    }

    fn fail_task(&mut self, plan: &ExecutorPlan, rank: u32, fault: TaskFault) {
        match fault {
            TaskFault::Lost { process, error } => {
                self.fail_message(plan, rank, PmlError::PeerLost { rank: process, error });
            }
            TaskFault::Other(reason) => self.fail(CollError::Task { rank, reason }),
        }
    }

    /// A message is about to leave: the tasks that wait for it may come, if it goes to their initiator. A task's step
    /// names the message that says «ready» among those that it waits for.
    pub(super) fn open_tasks(&self, plan: &ExecutorPlan, step: u32) {
        let Action::Send { to, .. } = plan.schedule.action(step as usize) else { return };
        if !plan.has_tasks {
            return;
        }
        for follower in plan.followers(step) {
            if let Action::Task { from, .. } = plan.schedule.action(*follower as usize)
                && from == to
                && let Some(expected) = self.expected.get(follower)
            {
                expected.work.open();
            }
        }
    }

    /// Begins to wait for a task.
    pub(super) fn begin_task(&mut self, step: u32, from: u32) {
        match self.expected.contains_key(&step) {
            true => self.flights.push(Flight::new(step, Phase::Awaiting { from })),
            // It could not be expected, so this rank has failed, and its initiator will not hear that it is ready.
            false => self.flights.push(Flight::new(step, Phase::Doomed)),
        }
    }

    /// Looks whether a task has ended; whether its step has.
    pub(super) fn look_awaiting(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        index: usize,
        from: u32,
    ) -> bool {
        let Some(step) = self.flights[index].step else { return true };
        let expects_nothing = self.expects_nothing(plan);
        let Some(expected) = self.expected.get(&step) else { return true };
        let bytes = expected.work.bytes();
        // In this order: what has run before its initiator was lost counts. What has come and not begun does not.
        let fault = expected.awaited.failed();
        let Some(came) = expected.work.came() else {
            let goes_on = fault.is_none() && !expects_nothing;
            if goes_on || expected.work.is_running() {
                return false;
            }
            self.expected.remove(&step);
            match fault {
                Some(fault) => self.fail_task(plan, from, fault),
                None => self.fail(CollError::Revoked),
            }
            return true;
        };
        self.expected.remove(&step);
        let told = match came {
            Came::Done => return true,
            Came::Failed(error) => {
                self.fail_engine(plan, error);
                return true;
            }
            Came::Early => {
                let reason = "it came before this rank was ready".to_owned();
                self.fail_task(plan, from, TaskFault::Other(reason));
                return true;
            }
            Came::Odd(0) => Told::Failure,
            Came::Odd(sent) => {
                if self.failure.is_none() {
                    self.fail(CollError::Length { rank: from, sent, expected: bytes });
                }
                Told::Nothing
            }
        };
        self.after_receive(plan, tools, index, from, told)
    }

    /// Begins to put a task.
    pub(super) fn begin_put(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        step: u32,
        (to, slot, from): (u32, u32, &Place),
    ) {
        if self.failure.is_some() {
            return self.put_failure(plan, tools, step, (to, slot));
        }
        let pieces = match plan.spot(from) {
            Spot::Direct(typed) => match tools.bytes_of(&typed) {
                Some(payload) => return self.put(plan, tools, step, (to, slot), payload),
                None => {
                    let range = 0..typed.packed_bytes();
                    vec![(typed, range)]
                }
            },
            Spot::Pieces(pieces) => pieces,
        };
        self.flights.push(Flight::new(step, Phase::Gathering { to, slot }));
        let index = self.flights.len() - 1;
        match self.memory(plan, index, from.len) {
            Ok(packed) => {
                let work = &mut self.flights[index].work;
                let started = tools.pack(&pieces, packed, work);
                work.started(started);
            }
            Err(error) => self.fail(error),
        }
    }

    /// Puts what has been packed.
    pub(super) fn look_gathering(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        index: usize,
        (to, slot): (u32, u32),
    ) -> bool {
        let Some(packed) = self.flights[index].work.result() else { return false };
        if let Err(error) = packed {
            self.fail_engine(plan, error);
        }
        let Some(step) = self.flights[index].step.take() else { return true };
        let memory = std::mem::take(&mut self.flights[index].memory);
        let packed = memory.first().map(|memory| Typed::contiguous(memory.region()));
        match packed.and_then(|packed| tools.bytes_of(&packed)) {
            Some(payload) if self.failure.is_none() => {
                self.put(plan, tools, step, (to, slot), payload);
            }
            _ => self.put_failure(plan, tools, step, (to, slot)),
        }
        true
    }

    fn put(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        step: u32,
        (to, slot): (u32, u32),
        payload: Vec<u8>,
    ) {
        if let Err(fault) = self.leave(plan, step, (to, slot), payload) {
            self.fail_task(plan, to, fault);
            self.put_failure(plan, tools, step, (to, slot));
        }
    }

    /// A task leaves; the step ends when the target has taken it.
    fn leave(
        &mut self,
        plan: &ExecutorPlan,
        step: u32,
        (to, slot): (u32, u32),
        payload: Vec<u8>,
    ) -> Result<(), TaskFault> {
        let (Some(tasks), Some(process)) = (&plan.tasks, plan.process(to)) else {
            return Err(TaskFault::Other("nobody carries tasks".to_owned()));
        };
        let (data, name) = (!payload.is_empty(), plan.task_name_at(to, slot));
        let leaving = tasks.put(process, name, payload)?;
        let flight = Flight::new(step, Phase::Leaving { to, slot, data });
        self.flights.push(Flight { leaving: Some(leaving), ..flight });
        Ok(())
    }

    /// A task without its bytes, and a notice of whom to blame.
    fn put_failure(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        step: u32,
        (to, slot): (u32, u32),
    ) {
        match self.leave(plan, step, (to, slot), Vec::new()) {
            Ok(()) => self.tell_failure(plan, tools, to),
            // It is lost, and needs to be told nothing; or it has failed likewise.
            Err(_) => self.ended(plan, step),
        }
    }

    /// Looks whether the target has taken a task. If it does not, as its place is for fewer bytes, it gets one without.
    pub(super) fn look_leaving(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        index: usize,
        (to, slot, data): (u32, u32, bool),
    ) -> bool {
        let leaving = self.flights[index].leaving.as_ref();
        match leaving.map_or(Some(Ok(())), |leaving| leaving.taken()) {
            // Its target may have given up.
            None if self.expects_nothing(plan) => {
                self.fail(CollError::Revoked);
                true
            }
            None => false,
            Some(Ok(())) => true,
            Some(Err(fault)) => {
                let again = data && !matches!(fault, TaskFault::Lost { .. });
                self.fail_task(plan, to, fault);
                if let Some(step) = self.flights[index].step.take_if(|_| again) {
                    self.put_failure(plan, tools, step, (to, slot));
                }
                true
            }
        }
    }
}
