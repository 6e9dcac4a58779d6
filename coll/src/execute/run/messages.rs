//! Messages: their beginning, their end, and what is sent instead of data after a failure.
use std::mem::ManuallyDrop;

use gapless_engine::Typed;
use gapless_pml::{Failure, PmlError, RequestId, Status};

use super::{Flight, Phase, Run, nothing};
use crate::execute::ExecutorPlan;
use crate::execute::act::Tools;
use crate::execute::call_buffers::Spot;
use crate::execute::error::{CollError, NOTICE_BYTES};
use crate::execute::memory::Room;
use crate::execute::tickets::NOTICE_SLOT;
use crate::schedule::{Action, Place};

/// What a receive has come to, or the coming of a task.
pub(super) enum Told {
    Data,
    /// Nothing that is of use.
    Nothing,
    /// The sender has failed, and says more in a notice.
    Failure,
}

impl Run {
    pub(super) fn begin_send(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        step: u32,
        (to, slot, from): (u32, u32, &Place),
    ) {
        if self.failure.is_some() {
            return self.send_failure(plan, tools, step, (to, slot, from.len));
        }
        self.open_tasks(plan, step);
        let pieces = match plan.spot(from) {
            Spot::Direct(typed) => return self.send(plan, tools, step, (to, slot), &typed),
            Spot::Pieces(pieces) => pieces,
        };
        self.flights.push(Flight::new(step, Phase::Packing { to, slot }));
        let index = self.flights.len() - 1;
        match self.memory(plan, index, from.len) {
            Ok(packed) => {
                let work = &mut self.flights[index].work;
                if let Err(error) = tools.pack(&pieces, packed, work) {
                    work.fail(error);
                }
            }
            Err(error) => self.fail(error),
        }
    }

    fn send(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        step: u32,
        (to, slot): (u32, u32),
        data: &Typed,
    ) {
        let sent = tools.send(plan.reach(to), data, plan.ticket.tag(slot));
        self.sent(plan, tools, (step, to), sent);
    }

    fn sent(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        (step, to): (u32, u32),
        sent: Result<RequestId, PmlError>,
    ) {
        match sent {
            Ok(id) => self.flights.push(Flight::new(step, Phase::Sending { to, id, data: true })),
            Err(error) => self.could_not_send(plan, tools, step, to, error),
        }
    }

    /// What a step was sending has failed. A rank that was told already, as a message whose data does not come, gets
    /// no other: it would wait there, and be taken for a message of the next start if the collective is persistent.
    pub(super) fn send_ended_badly(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        step: u32,
        to: u32,
        failure: Failure,
    ) {
        if failure.is_told() {
            self.fail_message(plan, to, failure.error);
            self.ended(plan, step);
        } else {
            self.could_not_send(plan, tools, step, to, failure.error);
        }
    }

    /// What a step should send cannot be sent. Who expects it must not wait for it: unless that rank is lost, a failure
    /// is sent.
    pub(super) fn could_not_send(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        step: u32,
        to: u32,
        error: PmlError,
    ) {
        self.fail_message(plan, to, error);
        match plan.schedule.action(step as usize) {
            Action::Send { slot, from, .. } => {
                self.send_failure(plan, tools, step, (to, *slot, from.len));
            }
            _ => self.ended(plan, step),
        }
    }

    /// Instead of data: a message of another length, and a notice of whom to blame.
    fn send_failure(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        step: u32,
        (to, slot, expected): (u32, u32, u64),
    ) {
        if self.astray == Some(to) {
            return self.ended(plan, step);
        }
        let wrong: &[u8] = if expected == 0 { &[0] } else { &[] };
        if let Ok(id) = tools.send_copy(plan.reach(to), wrong, plan.ticket.tag(slot)) {
            self.flights.push(Flight::new(step, Phase::Sending { to, id, data: false }));
            self.tell_failure(plan, tools, to);
        } else {
            // It is lost, and needs to be told nothing.
            self.ended(plan, step);
        }
    }

    /// Tells a rank whom to blame, once.
    pub(super) fn tell_failure(&mut self, plan: &ExecutorPlan, tools: &mut Tools<'_>, to: u32) {
        if self.told.insert(to) {
            let notice = self
                .failure
                .as_ref()
                .map_or([0; NOTICE_BYTES], |failure| failure.notice(plan.rank()));
            self.tell(plan, tools, to, &notice, plan.ticket.tag(NOTICE_SLOT));
        }
    }

    pub(super) fn begin_receive(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        step: u32,
        (from, slot, into): (u32, u32, &Place),
    ) {
        let expected = into.len;
        // Leaked, should the call below unwind.
        let mut memory = ManuallyDrop::new(Vec::new());
        let mut drop = self.failure.is_some();
        let mut room = nothing();
        if !drop {
            match plan.spot(into) {
                Spot::Direct(typed) => room = typed,
                Spot::Pieces(_) => match plan.room(expected) {
                    Ok(packed) => {
                        room = Typed::contiguous(packed.region());
                        memory.push(packed);
                    }
                    Err(error) => {
                        self.fail(error);
                        drop = true;
                    }
                },
            }
        }
        let started = tools.receive(plan.reach(from), &room, plan.ticket.tag(slot));
        let memory = ManuallyDrop::into_inner(memory);
        match started {
            Ok(id) => {
                let phase = Phase::Receiving { from, id, expected, drop };
                self.flights.push(Flight { memory, ..Flight::new(step, phase) });
            }
            Err(error) => {
                self.fail_message(plan, from, error);
                self.ended(plan, step);
            }
        }
    }

    /// Sends what has been packed.
    pub(super) fn look_packing(
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
        let data = memory.first().map(|memory| Typed::contiguous(memory.region()));
        match data {
            Some(data) if self.failure.is_none() => {
                // As in `begin_receive`.
                let memory = ManuallyDrop::new(memory);
                self.send(plan, tools, step, (to, slot), &data);
                let memory = ManuallyDrop::into_inner(memory);
                if let Some(sending) = self.flights.last_mut().filter(|it| it.step == Some(step)) {
                    sending.memory = memory;
                }
            }
            // Places that are packed have bytes.
            _ => self.send_failure(plan, tools, step, (to, slot, 1)),
        }
        true
    }

    /// A receive has ended; whether its step has, too.
    pub(super) fn received(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        index: usize,
        what: (u32, u64, bool),
        result: Result<Status, Failure>,
    ) -> bool {
        let rank = what.0;
        let came = self.outcome(plan, what, result);
        self.after_receive(plan, tools, index, rank, came)
    }

    /// What a receive has come to.
    fn outcome(
        &mut self,
        plan: &ExecutorPlan,
        (rank, expected, drop): (u32, u64, bool),
        outcome: Result<Status, Failure>,
    ) -> Told {
        match outcome.map_err(|failure| failure.error) {
            Ok(status) if expected > 0 && status.bytes == 0 => Told::Failure,
            Err(PmlError::Truncated { .. }) if expected == 0 => Told::Failure,
            Ok(_) if drop => Told::Nothing,
            Ok(status) if status.bytes == expected => Told::Data,
            Ok(Status { bytes: sent, .. }) | Err(PmlError::Truncated { sent, .. }) => {
                if !drop {
                    self.fail(CollError::Length { rank, sent, expected });
                }
                Told::Nothing
            }
            Err(error) => {
                self.fail_message(plan, rank, error);
                Told::Nothing
            }
        }
    }

    /// Goes on after a receive; whether its step has ended.
    pub(super) fn after_receive(
        &mut self,
        plan: &ExecutorPlan,
        tools: &mut Tools<'_>,
        index: usize,
        from: u32,
        came: Told,
    ) -> bool {
        match came {
            Told::Nothing => true,
            Told::Data => self.unpack(plan, tools, index),
            Told::Failure if !self.asked.insert(from) => {
                self.flights[index].phase = Phase::Doomed;
                false
            }
            Told::Failure => {
                let Some(memory) = Room::new(NOTICE_BYTES as u64, None) else {
                    self.fail(CollError::GaveUp { rank: from });
                    return true;
                };
                let room = Typed::contiguous(memory.region());
                self.flights[index].memory.insert(0, memory);
                let tag = plan.ticket.tag(NOTICE_SLOT);
                match tools.receive(plan.reach(from), &room, tag) {
                    Ok(id) => self.flights[index].phase = Phase::Notified { from, id },
                    Err(error) => {
                        self.fail_message(plan, from, error);
                        return true;
                    }
                }
                false
            }
        }
    }

    /// Unpacks what was received into packed memory; whether there is nothing to do.
    fn unpack(&mut self, plan: &ExecutorPlan, tools: &Tools<'_>, index: usize) -> bool {
        let flight = &mut self.flights[index];
        let (Some(packed), Some(step)) = (flight.memory.first(), flight.step) else { return true };
        let Action::Receive { into, .. } = plan.schedule.action(step as usize) else { return true };
        if let Spot::Pieces(pieces) = plan.spot(into)
            && let Err(error) = tools.unpack(packed.region(), &pieces, &mut flight.work)
        {
            flight.work.fail(error);
        }
        flight.phase = Phase::Working;
        false
    }

    /// Reads whom to blame.
    pub(super) fn hear(
        &mut self,
        plan: &ExecutorPlan,
        index: usize,
        from: u32,
        outcome: Result<Status, Failure>,
    ) {
        match outcome {
            Ok(_) => {
                let notice = self.flights[index].memory.first().map(Room::head);
                let notice = notice.unwrap_or([0; NOTICE_BYTES]);
                self.fail(CollError::told(notice, from, plan.ticket.members().size()));
            }
            Err(failure) => self.fail_message(plan, from, failure.error),
        }
    }
}
