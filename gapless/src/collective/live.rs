//! Collectives in flight, kept behind the world's lock: whoever makes progress advances all of them.
//!
//! Each has a request of the message layer, which ends with it: so they are waited for and watched like messages. Those by
//! messages are independent of each other. Those through shared memory stand in lines (`line.rs`, which says why that cannot
//! be a deadlock).

use super::Tools;
use super::desk::{Desk, Notes};
use super::errand::Errand;
use super::line::{Line, Spent};
use gapless_coll::{CollError, Executor};
use gapless_engine::Op;
use gapless_pml::{Comm, Pml, PmlError, RequestId};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

/// Which one; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Number(u64);

impl Number {
    /// One that was over when it began.
    pub(super) const OVER: Number = Number(u64::MAX);
}

/// One that was begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(super) number: Number,
    /// Ends when it does.
    pub(super) request: RequestId,
}

impl Begun {
    /// One that was over when it began.
    pub(super) fn over(request: RequestId) -> Begun {
        Begun { number: Number::OVER, request }
    }

    pub(super) fn is_over(&self) -> bool {
        self.number == Number::OVER
    }
}

/// All of a world.
#[derive(Debug)]
pub(crate) struct Live {
    pub(super) tools: Arc<Tools>,
    /// Those in flight by messages, in the order of their beginning: one may wait for an earlier one.
    pub(super) going: BTreeMap<Number, Box<Entry>>,
    /// Those that are in lines.
    pub(super) lined: BTreeMap<Number, Box<Entry>>,
    /// Where something waits.
    pub(super) lines: Vec<Line>,
    /// Those that have ended and were not asked for, and persistent ones that are inactive.
    rest: BTreeMap<Number, Box<Entry>>,
    next: u64,
    /// Whether engines work for some.
    pub(super) busy: bool,
    pub(super) leaving: Vec<Leaving>,
}

/// A communicator that was freed while collectives were in flight on it.
#[derive(Debug)]
pub(super) struct Leaving {
    comm: Comm,
    rooms: Vec<Comm>,
    desk: Arc<Desk>,
}

/// One collective. When it is dropped, so may be a user's function, which may do anything: that is done without the
/// lock.
#[derive(Debug)]
pub(crate) struct Entry {
    /// By messages. A persistent one goes so when it is started for the first time, and whenever it has no errand.
    pub(super) executor: Option<Executor>,
    /// Through shared memory.
    pub(super) errand: Option<Box<Errand>>,
    pub(super) comm: Comm,
    pub(super) phase: Phase,
    /// A persistent one stays when its result has been taken.
    pub(super) persistent: bool,
    /// Memory of one whose handle was dropped.
    left: Option<Box<dyn Any + Send>>,
    op: Option<Op>,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// Described, and never started.
    New,
    /// It has this request.
    Going(RequestId),
    Ended(RequestId, Result<(), CollError>),
    /// It may be started again.
    Idle,
}

/// What has become of one.
#[derive(Debug)]
pub(crate) enum Fate {
    /// Nothing before this request has ended.
    Going(RequestId),
    /// How it went. Unless it is persistent, the rest of it comes along, to be dropped without the lock.
    Ended(Result<(), CollError>, Option<Box<Entry>>),
    /// Its result was taken before, or the world was given up.
    Gone,
}

impl Entry {
    /// One that has not begun. `op`: what combines its elements.
    ///
    /// # Safety
    /// The memory of the executor's and of the errand's buffers is granted as `Executor::new` and `Page::begin_task` demand,
    /// until the entry has ended, or was given up after the world's memory was taken back.
    pub(super) unsafe fn new(
        (executor, errand): (Option<Executor>, Option<Box<Errand>>),
        comm: Comm,
        op: Option<Op>,
    ) -> Entry {
        Entry { executor, errand, comm, phase: Phase::New, persistent: false, left: None, op }
    }

    /// Goes on by messages.
    pub(super) fn advance(&mut self, pml: &mut Pml, tools: &Tools) -> Poll<Result<(), CollError>> {
        match &mut self.executor {
            Some(executor) => executor.advance(pml, tools, tools),
            None => Poll::Ready(Err(CollError::Abandoned)),
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        let of_host = self.errand.as_ref().and_then(|errand| errand.executor());
        self.executor.iter().chain(of_host).any(Executor::is_busy)
    }

    /// It has ended.
    pub(super) fn end(&mut self, pml: &mut Pml, result: Result<(), CollError>) {
        if let Phase::Going(request) = self.phase {
            self.tell_past(pml);
            // It is there until the result is taken.
            let _ = pml.end_general(request);
            self.phase = Phase::Ended(request, result);
        }
    }

    /// It never begins again: what its own page has with the endpoint is given up.
    fn close(&self, pml: &mut Pml) {
        if let Some(errand) = self.errand.as_ref().filter(|_| self.persistent) {
            errand.desk.with(|at| at.close(pml));
        }
    }

    /// Nobody asks for its request any more.
    fn release(&self, pml: &mut Pml) {
        if let Phase::Going(request) | Phase::Ended(request, _) = self.phase {
            let _ = pml.release(request);
        }
    }
}

impl Live {
    pub(crate) fn new(tools: Arc<Tools>) -> Live {
        Live {
            tools,
            going: BTreeMap::new(),
            lined: BTreeMap::new(),
            lines: Vec::new(),
            rest: BTreeMap::new(),
            next: 0,
            busy: false,
            leaving: Vec::new(),
        }
    }

    fn number(&mut self) -> Number {
        let number = Number(self.next);
        self.next += 1;
        number
    }

    /// Begins one, and goes on with it as far as it can.
    pub(super) fn begin(&mut self, (pml, spent): (&mut Pml, &mut Spent), entry: Entry) -> Begun {
        let (number, entry) = (self.number(), Box::new(entry));
        let request = match &entry.errand {
            Some(_) => self.queue((pml, spent), number, entry),
            None => self.go(pml, number, entry),
        };
        Begun { number, request }
    }

    /// Keeps a persistent one.
    pub(super) fn keep(&mut self, entry: Entry) -> Number {
        let number = self.number();
        self.rest.insert(number, Box::new(Entry { persistent: true, ..entry }));
        number
    }

    /// Starts a persistent one, and goes on with it as far as it can.
    ///
    /// # Safety
    /// Its memory is granted to it anew, as for [`Entry::new`].
    ///
    /// # Errors
    /// It is active.
    pub(super) unsafe fn start(
        &mut self,
        (pml, spent): (&mut Pml, &mut Spent),
        number: Number,
    ) -> Result<RequestId, CollError> {
        let Some(entry) = self.rest.get_mut(&number) else { return Err(CollError::StillActive) };
        let is_first = matches!(entry.phase, Phase::New);
        let lined = !is_first && Live::may_queue_again(entry);
        if lined && Live::starts_at_once(entry, pml) {
            let request = pml.begin_general();
            entry.phase = Phase::Going(request);
            entry.end(pml, Ok(()));
            return Ok(request);
        }
        if !is_first
            && !lined
            && let Some(executor) = &mut entry.executor
        {
            // SAFETY: the caller's promise.
            unsafe { executor.restart() }?;
        }
        let entry = self.rest.remove(&number).ok_or(CollError::StillActive)?;
        Ok(match lined {
            true => self.queue((pml, spent), number, entry),
            false => self.go(pml, number, entry),
        })
    }

    fn go(&mut self, pml: &mut Pml, number: Number, entry: Box<Entry>) -> RequestId {
        // Whatever happens in `advance`, it is found here.
        let entry = self.going.entry(number).or_insert(entry);
        let request = pml.begin_general();
        entry.phase = Phase::Going(request);
        if let Poll::Ready(result) = entry.advance(pml, &self.tools) {
            entry.end(pml, result);
            self.rest.extend(self.going.remove(&number).map(|entry| (number, entry)));
        } else {
            self.busy |= entry.is_busy();
        }
        request
    }

    /// Goes on with all; gives how many have ended. Those that nobody asks for any more go to `spent`.
    #[inline]
    pub(crate) fn advance(&mut self, pml: &mut Pml, spent: &mut Spent) -> usize {
        self.tools.hear();
        if self.is_idle() { 0 } else { self.advance_all(pml, spent) }
    }

    fn advance_all(&mut self, pml: &mut Pml, spent: &mut Spent) -> usize {
        self.busy = false;
        // First, as what finds no shared memory is one of those that go by messages.
        let lined = self.advance_lines(pml, spent);
        let mut ended = Vec::new();
        for (number, entry) in &mut self.going {
            match entry.advance(pml, &self.tools) {
                Poll::Ready(result) => {
                    entry.end(pml, result);
                    ended.push(*number);
                }
                Poll::Pending => self.busy |= entry.is_busy(),
            }
        }
        for number in &ended {
            if let Some(entry) = self.going.remove(number) {
                self.lay_aside(pml, *number, entry, spent);
            }
        }
        if !ended.is_empty() {
            spent.extend(self.tools.surplus());
            if !self.leaving.is_empty() {
                self.free_leaving(pml);
            }
        }
        lined + ended.len()
    }

    /// One has ended: its result is kept, unless nobody asks for it.
    pub(super) fn lay_aside(
        &mut self,
        pml: &mut Pml,
        number: Number,
        entry: Box<Entry>,
        spent: &mut Spent,
    ) {
        if entry.left.is_some() {
            entry.release(pml);
            entry.close(pml);
            spent.push(entry);
        } else {
            self.rest.insert(number, entry);
        }
    }

    fn uses(&self, comm: &Comm) -> bool {
        self.going.values().any(|entry| entry.comm.same(comm))
            || self.lines.iter().any(|line| line.comm.same(comm))
    }

    /// Frees a communicator: now, or when the last collective on it has ended.
    ///
    /// # Errors
    /// It is predefined; it was freed already.
    pub(crate) fn free(
        &mut self,
        pml: &mut Pml,
        (comm, rooms): (&Comm, Vec<Comm>),
        desk: &Arc<Desk>,
    ) -> Result<(), PmlError> {
        let is_predefined = comm.same(&pml.world()) || comm.same(&pml.self_comm());
        if is_predefined || !self.uses(comm) {
            return self.free_now(pml, (comm, &rooms), desk);
        }
        if self.leaving.iter().any(|leaving| leaving.comm.same(comm)) {
            return Err(PmlError::NoSuchComm);
        }
        self.leaving.push(Leaving { comm: comm.clone(), rooms, desk: Arc::clone(desk) });
        Ok(())
    }

    pub(super) fn free_leaving(&mut self, pml: &mut Pml) {
        let all = std::mem::take(&mut self.leaving);
        let (stay, go): (Vec<Leaving>, Vec<Leaving>) =
            all.into_iter().partition(|leaving| self.uses(&leaving.comm));
        self.leaving = stay;
        for Leaving { comm, rooms, desk } in go {
            // It is there, and not predefined.
            let _ = self.free_now(pml, (&comm, &rooms), &desk);
        }
    }

    /// Frees a communicator on which nothing is in flight.
    fn free_now(
        &self,
        pml: &mut Pml,
        (comm, rooms): (&Comm, &[Comm]),
        desk: &Desk,
    ) -> Result<(), PmlError> {
        // The receives that pages sleep for are operations as well. If the communicator stays, so do the pages.
        let resting = self.rest.values().filter(|entry| entry.comm.same(comm));
        resting.for_each(|entry| entry.close(pml));
        desk.with(|at| {
            at.close(pml);
            pml.free(comm)?;
            rooms.iter().try_for_each(|room| pml.free(room))?;
            at.notes = Notes::Impossible;
            Ok(())
        })
    }

    /// Whether engines work for some of them, or tasks have ended, so that a waiting caller should poll and not sleep.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy || self.tools.has_news()
    }

    /// Whether none is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.going.is_empty() && self.lines.is_empty()
    }

    /// Takes the result of one, if it has ended.
    pub(super) fn take(&mut self, pml: &mut Pml, number: Number) -> Fate {
        if let Some(Entry { phase: Phase::Going(request), .. }) =
            self.going.get(&number).or_else(|| self.lined.get(&number)).map(Box::as_ref)
        {
            return Fate::Going(*request);
        }
        if number == Number::OVER {
            return Fate::Ended(Ok(()), None);
        }
        let Some(entry) = self.rest.get_mut(&number) else { return Fate::Gone };
        match std::mem::replace(&mut entry.phase, Phase::Idle) {
            Phase::Ended(request, result) => {
                let _ = pml.release(request);
                let rest = if entry.persistent { None } else { self.rest.remove(&number) };
                Fate::Ended(result, rest)
            }
            other => {
                entry.phase = other;
                Fate::Gone
            }
        }
    }

    /// The handle of one is dropped, with its memory if that may be in use. What is of no use any more comes back, to
    /// be dropped without the lock. After a panic there is no message layer to be told.
    pub(super) fn let_go(
        &mut self,
        pml: Option<&mut Pml>,
        number: Number,
        memory: Option<Box<dyn Any + Send>>,
    ) -> (Option<Box<Entry>>, Option<Box<dyn Any + Send>>) {
        match self.going.get_mut(&number).or_else(|| self.lined.get_mut(&number)) {
            Some(entry) => {
                entry.left = memory.or_else(|| Some(Box::new(())));
                (None, None)
            }
            None => {
                let entry = self.rest.remove(&number);
                if let (Some(pml), Some(entry)) = (pml, &entry) {
                    entry.release(pml);
                    entry.close(pml);
                }
                (entry, memory)
            }
        }
    }

    /// Ends all use of memory by those in flight, once the message layer has taken memory back. They never end; what
    /// users' code may hang on goes to `spent`. Results of others can still be asked for.
    pub(crate) fn give_up(&mut self, spent: &mut Spent) {
        self.give_up_lines(spent);
        let lined = std::mem::take(&mut self.lined);
        for entry in std::mem::take(&mut self.going).into_values().chain(lined.into_values()) {
            let Entry { executor, mut errand, op, left, .. } = *entry;
            // Waits for engines.
            drop((executor, errand.as_mut().and_then(|errand| errand.take_executor())));
            spent.push(Box::new((errand, op, left)));
        }
        self.busy = false;
    }

    /// What they work with.
    pub(super) fn tools(&self) -> &Arc<Tools> {
        &self.tools
    }
}
