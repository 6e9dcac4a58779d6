//! Collectives in flight, kept behind the world's lock: whoever makes progress advances all of them.

use super::Tools;
use gapless_coll::{CollError, Executor};
use gapless_engine::Op;
use gapless_pml::Pml;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

/// Which one; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Number(u64);

/// All of a world.
#[derive(Debug)]
pub(crate) struct Live {
    tools: Arc<Tools>,
    /// In the order of their beginning: one may wait for an earlier one.
    all: BTreeMap<Number, Box<Entry>>,
    next: u64,
    /// How many are going.
    going: usize,
    /// Whether engines work for some.
    busy: bool,
}

/// One collective. When it is dropped, so may be a user's function, which may do anything: that is done without the
/// lock.
#[derive(Debug)]
pub(crate) struct Entry {
    executor: Executor,
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
    Going,
    Ended(Result<(), CollError>),
    /// It may be started again.
    Idle,
}

/// What has become of one.
#[derive(Debug)]
pub(crate) enum Fate {
    Going,
    /// How it went. Unless it is persistent, the rest of it comes along, to be dropped without the lock.
    Ended(Result<(), CollError>, Option<Box<Entry>>),
    /// Its result was taken before, or the world was given up.
    Gone,
}

impl Entry {
    /// One that has not begun. `op`: what combines its elements.
    pub(super) fn new(executor: Executor, op: Option<Op>) -> Entry {
        Entry { executor, phase: Phase::New, persistent: false, left: None, op }
    }

    /// Goes on with it; whether it has ended by that.
    fn advance(&mut self, pml: &mut Pml, tools: &Tools) -> bool {
        if !matches!(self.phase, Phase::Going) {
            return false;
        }
        match self.executor.advance(pml, tools, tools) {
            Poll::Ready(result) => {
                self.phase = Phase::Ended(result);
                true
            }
            Poll::Pending => false,
        }
    }
}

impl Live {
    pub(crate) fn new(tools: Tools) -> Live {
        let all = BTreeMap::new();
        Live { tools: Arc::new(tools), all, next: 0, going: 0, busy: false }
    }

    fn insert(&mut self, entry: Entry) -> Number {
        let number = Number(self.next);
        self.next += 1;
        self.all.insert(number, Box::new(entry));
        number
    }

    /// Begins one, and goes on with it as far as it can.
    pub(super) fn begin(&mut self, pml: &mut Pml, entry: Entry) -> Number {
        let number = self.insert(entry);
        self.set_going(pml, number);
        number
    }

    /// Keeps a persistent one.
    pub(super) fn keep(&mut self, entry: Entry) -> Number {
        self.insert(Entry { persistent: true, ..entry })
    }

    /// Starts a persistent one, and goes on with it as far as it can.
    ///
    /// # Safety
    /// Its memory is granted to it anew, as `Executor::new` demands.
    ///
    /// # Errors
    /// It is active.
    pub(super) unsafe fn start(&mut self, pml: &mut Pml, number: Number) -> Result<(), CollError> {
        match self.all.get_mut(&number) {
            Some(entry) if !matches!(entry.phase, Phase::New) => {
                // SAFETY: the caller's promise.
                unsafe { entry.executor.restart() }?;
            }
            _ => {}
        }
        self.set_going(pml, number);
        Ok(())
    }

    fn set_going(&mut self, pml: &mut Pml, number: Number) {
        let Some(entry) = self.all.get_mut(&number) else { return };
        entry.phase = Phase::Going;
        self.going += 1;
        if entry.advance(pml, &self.tools) {
            self.going -= 1;
        }
        self.busy |= entry.executor.is_busy();
    }

    /// Goes on with all; gives how many have ended. Those that nobody asks for any more go to `spent`.
    #[inline]
    pub(crate) fn advance(&mut self, pml: &mut Pml, spent: &mut Vec<Box<dyn Any + Send>>) -> usize {
        if self.going == 0 { 0 } else { self.advance_all(pml, spent) }
    }

    fn advance_all(&mut self, pml: &mut Pml, spent: &mut Vec<Box<dyn Any + Send>>) -> usize {
        let mut ended = 0;
        let mut left = Vec::new();
        self.busy = false;
        for (number, entry) in &mut self.all {
            if entry.advance(pml, &self.tools) {
                ended += 1;
                left.extend(entry.left.is_some().then_some(*number));
            }
            self.busy |= entry.executor.is_busy();
        }
        for number in left {
            spent.extend(self.all.remove(&number).map(|entry| entry as Box<_>));
        }
        self.going -= ended;
        ended
    }

    /// Whether engines work for some of them, so that a waiting caller should poll and not sleep.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Whether none is going.
    pub(crate) fn is_idle(&self) -> bool {
        self.going == 0
    }

    /// Takes the result of one, if it has ended.
    pub(super) fn take(&mut self, number: Number) -> Fate {
        let Some(entry) = self.all.get_mut(&number) else { return Fate::Gone };
        match std::mem::replace(&mut entry.phase, Phase::Idle) {
            Phase::Ended(result) => {
                let rest = if entry.persistent { None } else { self.all.remove(&number) };
                Fate::Ended(result, rest)
            }
            Phase::Going => {
                entry.phase = Phase::Going;
                Fate::Going
            }
            idle => {
                entry.phase = idle;
                Fate::Gone
            }
        }
    }

    /// The handle of one is dropped, with its memory if that may be in use. What is of no use any more comes back, to
    /// be dropped without the lock.
    pub(super) fn let_go(
        &mut self,
        number: Number,
        memory: Option<Box<dyn Any + Send>>,
    ) -> (Option<Box<Entry>>, Option<Box<dyn Any + Send>>) {
        match self.all.get_mut(&number) {
            Some(entry) if matches!(entry.phase, Phase::Going) => {
                entry.left = memory.or_else(|| Some(Box::new(())));
                (None, None)
            }
            _ => (self.all.remove(&number), memory),
        }
    }

    /// Ends all use of memory by them, once the message layer has taken memory back. They never end; what users' code
    /// may hang on goes to `spent`.
    pub(crate) fn give_up(&mut self, spent: &mut Vec<Box<dyn Any + Send>>) {
        for entry in std::mem::take(&mut self.all).into_values() {
            let Entry { executor, op, left, .. } = *entry;
            // Waits for engines.
            drop(executor);
            spent.push(Box::new((op, left)));
        }
        (self.going, self.busy) = (0, false);
    }

    /// What they work with.
    pub(super) fn tools(&self) -> Arc<Tools> {
        Arc::clone(&self.tools)
    }
}
