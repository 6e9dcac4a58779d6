//! What arriving messages do to a window of this process.
//!
//! Nothing that a message says is believed: places are checked against the window, lengths against the message, layouts by
//! [`Layout::unflatten`](gapless_dtype::Layout::unflatten). What cannot be done is a [`Fault`], which the sender gets with the next answer.

use crate::core::{Core, Done, Osc};
use crate::device::fault;
use crate::doubt::{self, Doubt};
use crate::error::Fault;
use crate::header::Lock;
use crate::hosted::{Holder, Performed, Waiter};
use crate::notices::raise;
use crate::wire::{HEADER, Head, WindowMessage};
use gapless_bml::{Bml, Rank};
use std::collections::VecDeque;
use std::sync::Arc;

/// So often those that wait for a lock try, until whoever has it is doubted.
const TRIES_PER_DOUBT: u32 = 16;

impl Core {
    /// Does what a message says.
    pub(crate) fn execute(&mut self, osc: &Osc, bml: &mut Bml, from: Rank, message: &[u8]) -> Done {
        let Some(head) = Head::read(message) else { return Done::Nonsense("no message") };
        let bytes = &message[HEADER..];
        match head.kind {
            WindowMessage::Answer | WindowMessage::Credit => {
                if !self.peer(from.0).credit(head.count) {
                    return Done::Nonsense("credit for more than was sent");
                }
                return match head.kind {
                    WindowMessage::Answer => said(self.questions.answer(from.0, &head, bytes)),
                    _ => Done::Yes,
                };
            }
            WindowMessage::Layout => return said(self.peer(from.0).layouts.learn(&head, bytes)),
            WindowMessage::Forget => {
                self.peer(from.0).layouts.forget(head.layout);
                return Done::Yes;
            }
            // It is not kept: whoever has so many answers to come gets no more, and asks again.
            WindowMessage::Holds if self.peer(from.0).has_enough() => return Done::Yes,
            WindowMessage::Holds => {}
            // Its answers are to leave first, unless it was begun.
            _ if head.token != 0 && self.peer(from.0).is_full() => return Done::Blocked,
            _ => {}
        }
        let Some(hosted) = self.windows.get_mut(&head.window) else {
            if head.token != 0 {
                self.reply(bml, from, &head, Err(Fault::NoWindow));
            }
            return Done::Yes;
        };
        let rank = head.rank as usize;
        if hosted.processes.get(rank) != Some(&from.0) {
            return Done::Nonsense("a message of a rank that another process is");
        }
        match head.kind {
            WindowMessage::Put | WindowMessage::Get
                if head.notice().is_some_and(|at| hosted.header.notice(at).is_none()) =>
            {
                Done::Nonsense("a notice by a counter that there is not")
            }
            WindowMessage::Put
            | WindowMessage::Get
            | WindowMessage::Accumulate
            | WindowMessage::Compare => self.access(osc, bml, from, (&head, bytes)),
            WindowMessage::Lock => {
                let kind = if head.flag == 0 { Lock::Shared } else { Lock::Exclusive };
                let waits = |waiter: &Waiter| waiter.question.rank == head.rank;
                if hosted.held[rank].is_some() || hosted.waiting.iter().any(waits) {
                    return Done::Nonsense("a lock that it has, or waits for");
                }
                let doubt = Doubt::new(hosted.rank);
                let waiter = Waiter { process: from.0, question: head, kind, doubt };
                hosted.waiting.push_back(waiter);
                self.grant_locks(osc, bml);
                Done::Yes
            }
            WindowMessage::Unlock => {
                let kind = if head.flag == 0 { Lock::Shared } else { Lock::Exclusive };
                if hosted.held[rank].take_if(|held| *held == kind).is_none() {
                    return Done::Nonsense("the end of a lock that it does not have");
                }
                hosted.header.unlock(head.rank, kind);
                self.conclude(bml, from, &head);
                self.grant_locks(osc, bml);
                Done::Yes
            }
            WindowMessage::Flush => {
                self.conclude(bml, from, &head);
                Done::Yes
            }
            WindowMessage::Post => {
                hosted.posts[rank] = hosted.posts[rank].saturating_add(1);
                Done::Yes
            }
            WindowMessage::Complete => {
                hosted.completes[rank] = hosted.completes[rank].saturating_add(1);
                if head.token != 0 {
                    self.conclude(bml, from, &head);
                }
                Done::Yes
            }
            WindowMessage::Holds => {
                let said = [doubt::answer(&hosted.mine, head.origin)];
                self.reply(bml, from, &head, Ok((0, &said)));
                Done::Yes
            }
            WindowMessage::Answer
            | WindowMessage::Credit
            | WindowMessage::Layout
            | WindowMessage::Forget => Done::Nonsense("no message of a window"),
        }
    }

    /// Answers that all has been done that came before, if that was asked.
    fn conclude(&mut self, bml: &mut Bml, from: Rank, head: &Head) {
        let hosted = self.windows.get_mut(&head.window);
        let fault = hosted.and_then(|hosted| hosted.faults[head.rank as usize].take());
        if head.token == 0 {
            return;
        }
        self.reply(bml, from, head, fault.map_or(Ok((0, &[])), Err));
    }

    /// Gives locks to those who wait for them. Each of them waits in the lock's own words, as ranks do that map them: so all
    /// have their turns. Gives how many.
    pub(crate) fn grant_locks(&mut self, osc: &Osc, bml: &mut Bml) -> usize {
        let mut answers = Vec::new();
        let mut doubtful = Vec::new();
        for (id, hosted) in &mut self.windows {
            let mut at = 0;
            while let Some(waiter) = hosted.waiting.get(at) {
                let rank = waiter.question.rank;
                let processes = &hosted.processes;
                let is_lost = |rank: u32| {
                    processes.get(rank as usize).is_some_and(|it| osc.departed().is_lost(*it))
                };
                let result = if hosted.header.try_lock(rank, waiter.kind, true, is_lost) {
                    hosted.held[rank as usize] = Some(waiter.kind);
                    Ok(())
                } else {
                    let Some(holder) = hosted.header.lost_holder(is_lost) else {
                        at += 1;
                        continue;
                    };
                    hosted.header.cancel(rank);
                    Err(Fault::Holder(hosted.processes[holder as usize]))
                };
                if let Some(mut waiter) = hosted.waiting.remove(at) {
                    waiter.doubt.forget(&mut self.questions);
                    answers.push((waiter, result));
                }
            }
            hosted.tries = hosted.tries.wrapping_add(1);
            if at > 0 && hosted.tries.is_multiple_of(TRIES_PER_DOUBT) {
                doubtful.push(*id);
            }
        }
        for id in doubtful {
            self.doubt_holders(osc, bml, id, &mut answers);
        }
        let count = answers.len();
        for (waiter, result) in answers {
            let result = result.map(|()| (0, &[][..]));
            self.reply(bml, Rank(waiter.process), &waiter.question, result);
        }
        count
    }

    /// Asks who is said to have the lock of a window, for those that wait for it.
    fn doubt_holders(
        &mut self,
        osc: &Osc,
        bml: &mut Bml,
        window: u32,
        answers: &mut Vec<(Waiter, Result<(), Fault>)>,
    ) {
        let Some(hosted) = self.windows.get_mut(&window) else { return };
        let (header, asks) = (hosted.header.clone(), hosted.rank);
        let (processes, numbers) = (Arc::clone(&hosted.processes), Arc::clone(&hosted.numbers));
        let mut waiting = std::mem::take(&mut hosted.waiting);
        let members =
            |rank: u32| Some((*processes.get(rank as usize)?, *numbers.get(rank as usize)?));
        let lost = || processes.iter().copied().find(|process| osc.departed().is_lost(*process));
        let mut left = VecDeque::with_capacity(waiting.len());
        for mut waiter in waiting.drain(..) {
            let rank = waiter.question.rank;
            match self.look_at(bml, &mut waiter.doubt, (&header, rank, asks), members, lost) {
                None => left.push_back(waiter),
                Some(process) => {
                    header.cancel(rank);
                    answers.push((waiter, Err(Fault::Holder(process))));
                }
            }
        }
        if let Some(hosted) = self.windows.get_mut(&window) {
            hosted.waiting = left;
        }
    }

    /// An operation on memory.
    fn access(&mut self, osc: &Osc, bml: &mut Bml, from: Rank, message: (&Head, &[u8])) -> Done {
        let head = message.0;
        let result = match self.peer(from.0).job.take() {
            // It was begun before: nothing of this process comes between.
            Some(job) => Ok(Performed::Goes(job)),
            None => self.begin(osc, from, message),
        };
        let result = match result {
            Ok(Performed::Goes(mut job)) => match job.step() {
                Some(result) => result.map(Performed::Done).map_err(|error| fault(&error)),
                None => {
                    self.peer(from.0).job = Some(job);
                    return Done::Blocked;
                }
            },
            result => result,
        };
        match result {
            Ok(Performed::Busy | Performed::Goes(_)) => return Done::Blocked,
            Ok(Performed::Done(found)) => {
                if let Some(bytes) = found {
                    self.reply(bml, from, head, Ok((head.start, &bytes)));
                }
                self.give_notice(head);
            }
            Err(fault) if head.token != 0 => self.reply(bml, from, head, Err(fault)),
            Err(fault) => {
                tracing::debug!(peer = %from, %fault, "an operation on a window is refused");
                if let Some(hosted) = self.windows.get_mut(&head.window) {
                    hosted.faults[head.rank as usize].get_or_insert(fault);
                }
            }
        }
        Done::Yes
    }

    /// An operation is done: if that was its last message, and all before it was done, too, this rank has its notice.
    fn give_notice(&self, head: &Head) {
        if let Some(counter) = head.notice()
            && let Some(hosted) = self.windows.get(&head.window)
            && hosted.faults[head.rank as usize].is_none()
        {
            raise(hosted.header.notice(counter));
        }
    }

    /// Does an operation, or begins to, if it is on memory of a device.
    fn begin(
        &mut self,
        osc: &Osc,
        from: Rank,
        message: (&Head, &[u8]),
    ) -> Result<Performed, Fault> {
        let layouts = &self.peer(from.0).layouts;
        let layout = layouts.get(message.0.layout)?.cloned();
        let Some(hosted) = self.windows.get(&message.0.window) else {
            return Ok(Performed::Done(None));
        };
        let holders = |rank: u32| Holder::of(osc.departed(), hosted.processes.get(rank as usize));
        hosted.perform(layout.as_ref(), message, &holders)
    }
}

/// What became of a message, if it was not nonsense.
fn said(done: Result<(), &'static str>) -> Done {
    done.map_or_else(Done::Nonsense, |()| Done::Yes)
}
