//! Collectives in flight, kept behind the world's lock: whoever makes progress advances all of them.
//!
//! Each has a request of the message layer, which ends with it: so they are waited for and watched like messages.

use super::Tools;
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

/// One that was begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(super) number: Number,
    /// Ends when it does.
    pub(super) request: RequestId,
}

/// All of a world.
#[derive(Debug)]
pub(crate) struct Live {
    tools: Arc<Tools>,
    /// Those in flight, in the order of their beginning: one may wait for an earlier one.
    going: BTreeMap<Number, Box<Entry>>,
    /// Those that have ended and were not asked for, and persistent ones that are inactive.
    rest: BTreeMap<Number, Box<Entry>>,
    next: u64,
    /// Whether engines work for some.
    busy: bool,
    /// Communicators that were freed while collectives were in flight on them.
    leaving: Vec<Comm>,
}

/// One collective. When it is dropped, so may be a user's function, which may do anything: that is done without the
/// lock.
#[derive(Debug)]
pub(crate) struct Entry {
    executor: Executor,
    comm: Comm,
    phase: Phase,
    /// A persistent one stays when its result has been taken.
    persistent: bool,
    /// Memory of one whose handle was dropped.
    left: Option<Box<dyn Any + Send>>,
    op: Option<Op>,
}

#[derive(Debug)]
enum Phase {
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
    pub(super) fn new(executor: Executor, comm: Comm, op: Option<Op>) -> Entry {
        Entry { executor, comm, phase: Phase::New, persistent: false, left: None, op }
    }

    /// It has ended.
    fn end(&mut self, pml: &mut Pml, result: Result<(), CollError>) {
        if let Phase::Going(request) = self.phase {
            // It is there until the result is taken.
            let _ = pml.end_general(request);
            self.phase = Phase::Ended(request, result);
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
    pub(crate) fn new(tools: Tools) -> Live {
        Live {
            tools: Arc::new(tools),
            going: BTreeMap::new(),
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
    pub(super) fn begin(&mut self, pml: &mut Pml, entry: Entry) -> Begun {
        let number = self.number();
        let request = self.go(pml, number, Box::new(entry));
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
    /// Its memory is granted to it anew, as `Executor::new` demands.
    ///
    /// # Errors
    /// It is active.
    pub(super) unsafe fn start(
        &mut self,
        pml: &mut Pml,
        number: Number,
    ) -> Result<RequestId, CollError> {
        let Some(entry) = self.rest.get_mut(&number) else { return Err(CollError::StillActive) };
        if !matches!(entry.phase, Phase::New) {
            // SAFETY: the caller's promise.
            unsafe { entry.executor.restart() }?;
        }
        let entry = self.rest.remove(&number).ok_or(CollError::StillActive)?;
        Ok(self.go(pml, number, entry))
    }

    fn go(&mut self, pml: &mut Pml, number: Number, entry: Box<Entry>) -> RequestId {
        // Whatever happens in `advance`, it is found here.
        let entry = self.going.entry(number).or_insert(entry);
        let request = pml.begin_general();
        entry.phase = Phase::Going(request);
        let tools = &*self.tools;
        if let Poll::Ready(result) = entry.executor.advance(pml, tools, tools) {
            entry.end(pml, result);
            self.rest.extend(self.going.remove(&number).map(|entry| (number, entry)));
        } else {
            self.busy |= entry.executor.is_busy();
        }
        request
    }

    /// Goes on with all; gives how many have ended. Those that nobody asks for any more go to `spent`.
    #[inline]
    pub(crate) fn advance(&mut self, pml: &mut Pml, spent: &mut Vec<Box<dyn Any + Send>>) -> usize {
        if self.going.is_empty() { 0 } else { self.advance_all(pml, spent) }
    }

    fn advance_all(&mut self, pml: &mut Pml, spent: &mut Vec<Box<dyn Any + Send>>) -> usize {
        let mut ended = Vec::new();
        self.busy = false;
        let tools = &*self.tools;
        for (number, entry) in &mut self.going {
            match entry.executor.advance(pml, tools, tools) {
                Poll::Ready(result) => {
                    entry.end(pml, result);
                    ended.push(*number);
                }
                Poll::Pending => self.busy |= entry.executor.is_busy(),
            }
        }
        for number in &ended {
            match self.going.remove(number) {
                Some(entry) if entry.left.is_some() => {
                    entry.release(pml);
                    spent.push(entry);
                }
                entry => self.rest.extend(entry.map(|entry| (*number, entry))),
            }
        }
        if !ended.is_empty() && !self.leaving.is_empty() {
            self.free_leaving(pml);
        }
        ended.len()
    }

    fn uses(&self, comm: &Comm) -> bool {
        self.going.values().any(|entry| entry.comm.same(comm))
    }

    /// Frees a communicator: now, or when the last collective on it has ended.
    ///
    /// # Errors
    /// It is predefined; it was freed already.
    pub(crate) fn free(&mut self, pml: &mut Pml, comm: &Comm) -> Result<(), PmlError> {
        let is_predefined = comm.same(&pml.world()) || comm.same(&pml.self_comm());
        if is_predefined || !self.uses(comm) {
            return pml.free(comm);
        }
        if self.leaving.iter().any(|leaving| leaving.same(comm)) {
            return Err(PmlError::NoSuchComm);
        }
        self.leaving.push(comm.clone());
        Ok(())
    }

    fn free_leaving(&mut self, pml: &mut Pml) {
        let all = std::mem::take(&mut self.leaving);
        let (stay, go): (Vec<Comm>, Vec<Comm>) = all.into_iter().partition(|comm| self.uses(comm));
        self.leaving = stay;
        for comm in go {
            // It is there, and not predefined.
            let _ = pml.free(&comm);
        }
    }

    /// Whether engines work for some of them, so that a waiting caller should poll and not sleep.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Whether none is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.going.is_empty()
    }

    /// Takes the result of one, if it has ended.
    pub(super) fn take(&mut self, pml: &mut Pml, number: Number) -> Fate {
        if let Some(Entry { phase: Phase::Going(request), .. }) =
            self.going.get(&number).map(Box::as_ref)
        {
            return Fate::Going(*request);
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
        match self.going.get_mut(&number) {
            Some(entry) => {
                entry.left = memory.or_else(|| Some(Box::new(())));
                (None, None)
            }
            None => {
                let entry = self.rest.remove(&number);
                if let (Some(pml), Some(entry)) = (pml, &entry) {
                    entry.release(pml);
                }
                (entry, memory)
            }
        }
    }

    /// Ends all use of memory by those in flight, once the message layer has taken memory back. They never end; what
    /// users' code may hang on goes to `spent`. Results of others can still be asked for.
    pub(crate) fn give_up(&mut self, spent: &mut Vec<Box<dyn Any + Send>>) {
        for entry in std::mem::take(&mut self.going).into_values() {
            let Entry { executor, op, left, .. } = *entry;
            // Waits for engines.
            drop(executor);
            spent.push(Box::new((op, left)));
        }
        self.busy = false;
    }

    /// What they work with.
    pub(super) fn tools(&self) -> &Arc<Tools> {
        &self.tools
    }
}
