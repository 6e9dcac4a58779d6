//! What a rank does about requests in flight: waiting with each of MPI's calls, cancelling, collecting, and
//! winding up.

use super::{Made, Pending, Rank, SCRIBBLE, What};
use crate::journal::{End, Failure, Journal, digest};
use crate::plan::{How, Mode, Plan};
use crate::rail::lock;
use crate::shapes::Shapes;
use gapless_bml::{PeerState, Rank as Process};
use gapless_pml::{Comm, RequestId, RequestOutcome, Source, TagSel};

impl Rank {
    pub(super) fn cancel(&mut self, journal: &mut Journal, nth: u32) -> Result<(), Failure> {
        let mut receives = self.pending.iter().rev().filter(|p| matches!(p.what, What::Recv(_)));
        let Some(&Pending { id, what, .. }) = receives.nth(nth as usize) else {
            return Ok(());
        };
        let tick = self.tick();
        let cancelled = self.pml().cancel_recv(id);
        self.tell(None, || format!("cancels a receive: {cancelled:?}"));
        if let (Ok(true), What::Recv(at)) = (&cancelled, what) {
            journal.taken[at].cancelled = Some(tick);
        }
        cancelled
            .map(drop)
            .map_err(|error| Failure::new(format!("cancelling: {error}"), &[self.rank]))
    }

    /// Takes back every receive that no message has taken.
    pub(crate) fn cancel_all(&mut self, journal: &mut Journal) -> Result<(), Failure> {
        let tick = self.tick();
        for Pending { id, what, .. } in self.pending.clone() {
            let What::Recv(at) = what else { continue };
            if self.pml().is_done(id) != Ok(false) {
                continue;
            }
            if self.pml().cancel_recv(id) != Ok(true) {
                let number = journal.taken[at].number;
                let what = format!("receive {number} is stuck with a message that does not come");
                return Err(Failure::new(what, &[self.rank]));
            }
            journal.taken[at].cancelled = Some(tick);
        }
        Ok(())
    }

    pub(super) fn cancel_unfinished_send(
        &mut self,
        journal: &Journal,
        nth: u32,
    ) -> Result<(), Failure> {
        // One in ready mode that came too early is over for its sender before it is for its receiver.
        let sends = |p: &&Pending| match p.what {
            What::Send(at) => journal.sent[at].mode != Mode::Ready,
            What::Recv(_) => false,
        };
        let mut sends = self.pending.iter().rev().filter(sends);
        let Some(&Pending { id, .. }) = sends.nth(nth as usize) else { return Ok(()) };
        self.tick();
        self.tell(None, || "cancels a send".to_owned());
        let asked = self.pml().cancel_unfinished_send(id);
        asked.map_err(|error| Failure::new(format!("cancelling: {error}"), &[self.rank]))
    }

    pub(super) fn cancel_send(&mut self, journal: &mut Journal, nth: u32) -> Result<(), Failure> {
        let sends = |p: &&Pending| match p.what {
            What::Send(at) => journal.sent[at].mode != Mode::Ready,
            What::Recv(_) => false,
        };
        let mut sends = self.pending.iter().rev().filter(sends);
        let Some(&Pending { id, what: What::Send(at), .. }) = sends.nth(nth as usize) else {
            return Ok(());
        };
        self.tick();
        let number = journal.sent[at].number;
        let ended = self.pml().is_done(id) == Ok(true);
        let asked = self.pml().cancel_send(id);
        // One to this process is back at once.
        let back = asked == Ok(true) || self.pml().is_done(id) == Ok(false);
        journal.sent[at].cancelled_ended |= ended && back;
        self.tell(Some(journal.sent[at].to), || format!("cancels message {number}"));
        for pending in self.pending.iter_mut().filter(|pending| back && pending.id == id) {
            pending.done = None;
        }
        asked.map(drop).map_err(|error| Failure::new(format!("cancelling: {error}"), &[self.rank]))
    }

    /// Looks at what has ended, and at what the script waits for; gives whether anything moved on.
    pub(crate) fn look(&mut self, journal: &mut Journal) -> Result<bool, Failure> {
        let tick = self.tick();
        let mut moved = self.look_at_comms(journal)?;
        if let Some((how, ids)) = self.wait.take() {
            let got = self.try_wait(how, &ids);
            if got.is_empty() && ids.iter().any(|id| self.pending.iter().any(|p| p.id == *id)) {
                self.wait = Some((how, ids));
            } else {
                moved = true;
            }
            for (id, outcome) in got {
                self.ended(journal, id, outcome, tick)?;
            }
        }
        for at in 0..self.pending.len() {
            let Pending { id, done, .. } = self.pending[at];
            if done.is_none() && self.pml().is_done(id) == Ok(true) {
                self.pending[at].done = Some(tick);
                self.saw_end(self.pending[at].what, journal);
                moved = true;
            }
        }
        Ok(moved)
    }

    /// A request is seen to have ended; how, is seen when its result is taken.
    fn saw_end(&self, what: What, journal: &Journal) {
        let (kind, number) = match what {
            What::Send(at) => ("send is done", journal.sent[at].number),
            What::Recv(at) => ("receive is done", journal.taken[at].number),
        };
        lock(&self.wire).heard(|tap| tap.operation(kind, self.rank, &[number.into()]));
    }

    fn try_wait(&mut self, how: How, ids: &[RequestId]) -> Vec<(RequestId, RequestOutcome)> {
        let known = |id: &&RequestId| self.pending.iter().any(|p| p.id == **id);
        let ids: Vec<RequestId> = ids.iter().filter(known).copied().collect();
        let pml = self.pml();
        match how {
            How::One => {
                let Some(&id) = ids.first() else { return Vec::new() };
                match pml.test(id) {
                    Ok(None) => Vec::new(),
                    Ok(Some(status)) => vec![(id, Ok(status))],
                    Err(error) => vec![(id, Err(error))],
                }
            }
            How::Any => pml.test_any(&ids).map(|(at, end)| (ids[at], end)).into_iter().collect(),
            How::Some => pml.test_some(&ids).into_iter().map(|(at, end)| (ids[at], end)).collect(),
            How::All => match pml.test_all(&ids) {
                Some(ends) => ids.into_iter().zip(ends).collect(),
                None => Vec::new(),
            },
        }
    }

    fn look_at_comms(&mut self, journal: &mut Journal) -> Result<bool, Failure> {
        let (mut moved, rank) = (false, self.rank);
        for comm in 0..self.comms.len() {
            let Made::Soon(request) = self.comms[comm] else { continue };
            let made = match self.pml().collect_comm(request) {
                Ok(None) => continue,
                Ok(Some(made)) => {
                    let size = made.as_ref().map(Comm::size);
                    lock(&self.wire)
                        .heard(|tap| tap.outcome("communicator", (rank, comm as u64), Ok(&size)));
                    made
                }
                Err(error) => {
                    lock(&self.wire)
                        .heard(|tap| tap.outcome("communicator", (rank, comm as u64), Err(&error)));
                    if !self.is_excused(&error) {
                        let what = format!("communicator {comm} was not made: {error}");
                        return Err(Failure::new(what, &[self.rank]));
                    }
                    None
                }
            };
            self.tell(None, || format!("has communicator {comm}: {}", made.is_some()));
            if made.is_none() {
                journal.unmade.push((self.rank, comm));
            }
            self.comms[comm] = made.map_or(Made::Failed, Made::Here);
            moved = true;
        }
        Ok(moved)
    }

    /// Whether a communicator is still being made.
    pub(crate) fn is_making(&self) -> bool {
        self.comms.iter().any(|made| matches!(made, Made::Soon(_)))
    }

    /// Takes the results of all that has ended.
    pub(crate) fn collect(&mut self, journal: &mut Journal) -> Result<(), Failure> {
        let tick = self.tick();
        let ids: Vec<RequestId> = self.pending.iter().map(|p| p.id).collect();
        for id in ids {
            let outcome = match self.pml().collect(id) {
                Ok(None) => continue,
                Ok(Some(status)) => Ok(status),
                Err(error) => Err(error),
            };
            self.ended(journal, id, outcome, tick)?;
        }
        Ok(())
    }

    fn ended(
        &mut self,
        journal: &mut Journal,
        id: RequestId,
        outcome: RequestOutcome,
        tick: u64,
    ) -> Result<(), Failure> {
        let Some(at) = self.pending.iter().position(|p| p.id == id) else {
            return Err(Failure::new(format!("a request ended twice: {outcome:?}"), &[self.rank]));
        };
        let Pending { what, memory, done, .. } = self.pending.remove(at);
        let end = End { tick: done.unwrap_or(tick), outcome };
        match what {
            What::Send(at) => {
                let sent = &mut journal.sent[at];
                self.tell(Some(sent.to), || {
                    format!("is done with message {}: {}", sent.number, brief(&end))
                });
                lock(&self.wire).heard(|tap| tap.ended("send", (self.rank, sent.number), &end, 0));
                sent.ended = Some(end);
                self.memory[memory].fill(SCRIBBLE);
            }
            What::Recv(at) => {
                let taken = &mut journal.taken[at];
                let source = end.outcome.as_ref().ok().map(|_| taken.number);
                self.tell(None, || {
                    format!(
                        "is done with receive {}: {}",
                        source.unwrap_or(taken.number),
                        brief(&end)
                    )
                });
                taken.memory = self.set_aside(memory);
                taken.digest = digest(&self.memory[taken.memory]);
                lock(&self.wire).heard(|tap| {
                    tap.ended("receive", (self.rank, taken.number), &end, taken.digest);
                });
                taken.ended = Some(end);
            }
        }
        Ok(())
    }

    /// The message or receive of the oldest request in flight.
    pub(crate) fn oldest(&self, journal: &Journal) -> String {
        self.pending.first().map_or("nothing".to_owned(), |pending| name(pending.what, journal))
    }

    /// An operation in flight that nobody but `peer` can end.
    pub(crate) fn needs(&mut self, peer: u32, journal: &Journal) -> Option<String> {
        let found = self.pending.clone().into_iter().find(|pending| {
            let theirs = match pending.what {
                What::Send(at) => journal.sent[at].to == peer,
                What::Recv(at) => journal.taken[at].source == Some(peer),
            };
            theirs && self.pml().is_done(pending.id) == Ok(false)
        });
        found.map(|pending| name(pending.what, journal))
    }

    /// A receive from anybody that is still in flight although everybody else is lost.
    pub(crate) fn hopeless(&mut self, plan: &Plan, journal: &Journal) -> Option<String> {
        let found = self.pending.clone().into_iter().find(|pending| {
            let What::Recv(at) = pending.what else { return false };
            let taken = &journal.taken[at];
            if taken.source.is_some() || self.pml().is_done(pending.id) != Ok(false) {
                return false;
            }
            let members = plan.members(taken.comm, self.rank);
            let me = self.rank;
            let mut others = members.iter().filter(|&&member| member != me).peekable();
            let bml = self.pml().bml_mut();
            others.peek().is_some()
                && others.all(|&member| matches!(bml.state(Process(member)), PeerState::Lost(_)))
        });
        found.map(|pending| name(pending.what, journal))
    }

    /// Frees its communicators, which nothing uses any more.
    pub(crate) fn free_all(&mut self) -> Result<(), Failure> {
        for (number, comm) in self.comms.iter().enumerate().skip(1) {
            if let (Made::Here(comm), Some(pml)) = (comm, self.pml.as_mut()) {
                pml.free(comm).map_err(|error| {
                    let what = format!("communicator {number} cannot be freed: {error}");
                    Failure::new(what, &[self.rank])
                })?;
            }
        }
        Ok(())
    }

    /// Posts receives for all messages that wait for one; gives how many.
    pub(crate) fn drain(
        &mut self,
        plan: &Plan,
        shapes: &mut Shapes,
        journal: &mut Journal,
        next: &mut u32,
    ) -> Result<usize, Failure> {
        let mut posted = 0;
        for comm in 0..self.comms.len() {
            while let Made::Here(made) = &self.comms[comm] {
                let made = made.clone();
                let found = match self.pml().iprobe(&made, Source::Any, TagSel::Any) {
                    Ok(found) => found,
                    Err(error) if self.is_excused(&error) => None,
                    Err(error) => return Err(Failure::new(format!("{error}"), &[self.rank])),
                };
                let Some(status) = found else { break };
                let shape = shapes.shape(0, status.bytes / shapes.bytes);
                if posted > journal.sent.len() {
                    let what = "probes see a message that receives do not take";
                    return Err(Failure::new(what, &[self.rank]));
                }
                *next += 1;
                self.receive(plan, journal, *next, (None, comm, None), shape, false)?;
                posted += 1;
            }
        }
        Ok(posted)
    }
}

fn name(what: What, journal: &Journal) -> String {
    match what {
        What::Send(at) => format!("the send of message {}", journal.sent[at].number),
        What::Recv(at) => format!("receive {}", journal.taken[at].number),
    }
}

fn brief(end: &End) -> String {
    match &end.outcome {
        Ok(status) => format!(
            "{} bytes, {}, from {} with tag {}",
            status.bytes, status.protocol, status.source, status.tag
        ),
        Err(error) => format!("{error}"),
    }
}
