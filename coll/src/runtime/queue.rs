//! A communicator's collectives: its modules, and the calls that wait for them in the order of calls.
//!
//! A communicator's ranks agree on its modules in its first collective, blocking or not, whatever that is: before a
//! rank looks at its arguments, so that one that is refused takes part as well ([`Opening`]). If the ranks are on
//! several hosts and have no segment in common, the ranks of each host make one of their own. A persistent collective
//! has a queue of its own, as its starts have no order among the communicator's collectives: its ranks agree in its
//! second start. The first one goes by messages, and compares what the ranks have described.
//!
//! # Why a queue cannot be a deadlock
//! A module carries out one call after the other, so calls that go by one module begin in the order of calls, each when
//! those before it have ended at this rank. A blocking one that finds a queue joins it.
//! - To start is local: a start never waits, whatever is in the queue (MPI 4.1 §3.7, §6.12).
//! - The members of a communicator start its collectives in the same order (§6.12). So if one of them is the *k*-th in
//!   the order of calls here, it is so at all members, and whoever has started it has started all before it.
//! - Suppose that the *k*-th does not end at some rank although all members have started it and make progress. Let *k*
//!   be the least such number. Those before it end at all ranks, so it becomes the first in every queue; all its ranks
//!   take part, and so it ends. There is no such *k*.
//! - A program may wait for a later one first. MPI lets any collective synchronize (§6.1, §6.14): to wait for the
//!   *k*-th may need all members to have started the *k*-th, and so those before it. A program that is right by MPI
//!   needs no more than that here.
//! - Queues of several communicators are independent: each is advanced whatever becomes of the others. Collectives by
//!   messages alone, and other messages, are in no queue, and wait for none.
//! - Starts of persistent collectives have no order (§6.13). Each such collective has a queue of one start at most,
//!   which is the same one at all ranks: their number among the starts of this collective.
//! - On several hosts, a call that goes by messages and the segments of the hosts stands in the queue at every rank.
//!   What was said holds: queues of the hosts are in the same order, and where a host has no segment its ranks' calls
//!   wait for nothing but messages.
//!
//! # Failures
//! If a member dies, ranks that need something of it fail and leave the queue, and the next one has its turn; if the
//! communicator is revoked, all fail. If a rank was refused, it says so in its turn.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use gapless_pml::Comm;
use gapless_sync::Gate;

use super::OpId;
use super::module::{Component, Cx, Module, Modules};
use super::schedule::ScheduleModule;
use crate::hyperq::Settings;
use crate::sm::{Opening, SharedSegment};

/// What a communicator, or a persistent collective, has for its collectives. Used with the lock held that the endpoint
/// is behind, by [`Queue::with`] alone.
#[derive(Debug)]
pub struct Queue(Gate<QueueState>);

/// The state of a [`Queue`].
#[derive(Debug)]
pub struct QueueState {
    agreed: Agreed,
    /// In the order in which they are asked. None while they are borrowed.
    modules: Modules,
    /// How ranks go about collectives in memory of GPUs.
    settings: Settings,
    components: Arc<[Arc<dyn Component>]>,
    /// What the owner knows of earlier calls.
    memo: Box<dyn Any + Send>,
    /// What waits for its turn, in the order of calls; the first has it.
    pub(super) items: VecDeque<QueueItem>,
    /// The module that carries out the first.
    pub(super) working: Option<usize>,
    /// Whether the queue is among the queues that are advanced.
    pub(super) is_listed: bool,
    /// The thread that is in a blocking collective here; 0: none.
    holder: usize,
    /// Whether the communicator was freed, perhaps before what is in flight on it has ended.
    is_freed: bool,
}

/// How far the ranks are in agreeing on modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agreed {
    /// No collective has asked so far.
    Unknown,
    /// The ranks are agreeing: their opening is the first item.
    Opening,
    Here(SharedBy),
    /// A blocking collective has the modules.
    Borrowed(SharedBy),
}

/// Which ranks share a segment of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedBy {
    /// Nobody can tell yet.
    Unknown,
    /// All ranks of the communicator.
    All,
    /// The ranks of this host.
    OfHost,
    /// Some rank cannot map the memory, also of the ranks of this host, or the communicator was freed.
    Nobody,
}

/// What has its place in the order of calls.
#[derive(Debug)]
pub(super) enum QueueItem {
    /// The ranks agree on modules.
    Opening(Box<Opening>),
    Op(OpId),
    /// The place of a collective that is not known so far: it has this number.
    Reserved(u64),
    /// A collective that this rank was refused: the others are told.
    Refused(u64),
}

/// Which thread is in a blocking collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// No thread.
    None,
    /// This thread.
    Here,
    /// Another thread.
    Elsewhere,
}

impl Default for Queue {
    /// A persistent collective's.
    fn default() -> Queue {
        Queue::new(Settings::default(), Arc::default(), Box::new(()))
    }
}

impl Queue {
    /// A communicator's queue. `components` make modules that come before the modules of this crate; all ranks have the
    /// same components. `memo` lies beside the modules, for whoever [calls by a fast path](QueueState::at_rest).
    #[must_use]
    pub fn new(
        settings: Settings,
        components: Arc<[Arc<dyn Component>]>,
        memo: Box<dyn Any + Send>,
    ) -> Queue {
        Queue(Gate::new(QueueState {
            agreed: Agreed::Unknown,
            modules: Modules::new(),
            settings,
            components,
            memo,
            items: VecDeque::new(),
            working: None,
            is_listed: false,
            holder: 0,
            is_freed: false,
        }))
    }

    /// Does something with it. The caller holds the endpoint's lock.
    #[inline]
    pub fn with<T>(&self, act: impl FnOnce(&mut QueueState) -> T) -> T {
        // Whoever has it holds the endpoint's lock, so it is free.
        let mut state = self.0.try_enter().unwrap_or_else(|| self.0.enter());
        let result = act(&mut state);
        state.done();
        result
    }
}

/// A number that no other thread has meanwhile; not 0.
fn this_thread() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl QueueState {
    /// Which ranks share a segment.
    #[must_use]
    pub fn shared_by(&self) -> SharedBy {
        match self.agreed {
            Agreed::Unknown | Agreed::Opening => SharedBy::Unknown,
            Agreed::Here(shared_by) | Agreed::Borrowed(shared_by) => shared_by,
        }
    }

    /// Whether no collective has asked for modules so far.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.agreed == Agreed::Unknown
    }

    /// Whether a module of a [`Component`] may take a call before the modules of this crate are asked.
    #[must_use]
    pub fn has_components(&self) -> bool {
        !self.components.is_empty()
    }

    /// The ranks begin to agree on modules.
    pub(super) fn open(&mut self) {
        self.agreed = Agreed::Opening;
    }

    /// The ranks have agreed, and share this segment, or none.
    pub(super) fn opened(&mut self, comm: &Comm, segment: Option<SharedSegment>) {
        let segment = segment.map(Box::new);
        let shared_by = match &segment {
            Some(segment) if segment.is_whole() => SharedBy::All,
            Some(_) => SharedBy::OfHost,
            None => SharedBy::Nobody,
        };
        let gpu = segment.as_ref().and_then(|segment| segment.hyperq(self.settings.clone()));
        let (whole, of_host) = match shared_by {
            SharedBy::All => (segment, None),
            _ => (None, segment),
        };
        // In the order in which they are asked. `at_rest` looks for the shared memory before the last.
        self.modules.extend(self.components.iter().filter_map(|it| it.module(comm)));
        self.modules.extend(gpu.map(|gpu| Box::new(gpu) as Box<dyn Module>));
        self.modules.extend(whole.map(|segment| segment as Box<dyn Module>));
        self.modules.push(Box::new(ScheduleModule::new(of_host)));
        self.agreed = Agreed::Here(shared_by);
    }

    /// The modules, unless they are borrowed.
    pub(super) fn modules(&mut self) -> Option<&mut Modules> {
        matches!(self.agreed, Agreed::Here(_)).then_some(&mut self.modules)
    }

    /// The module that carries out the first, if the queue has it. Of an operation that has not begun, nobody can tell
    /// whether it would get on.
    pub(super) fn working(&mut self) -> Option<&mut dyn Module> {
        let at = self.working?;
        Some(&mut **self.modules()?.get_mut(at)?)
    }

    /// Whether advancing would get something on, as far as a few loads tell.
    pub(super) fn look(&mut self) -> bool {
        if !matches!((self.items.front(), self.agreed), (Some(QueueItem::Op(_)), Agreed::Here(_))) {
            return false;
        }
        self.working().is_none_or(Module::look)
    }

    /// What a fast path needs, if a collective can have the shared memory of all ranks now.
    #[inline]
    pub fn at_rest(&mut self) -> Option<AtRest<'_>> {
        // A module from outside may take the call before.
        let rests = self.agreed == Agreed::Here(SharedBy::All) && self.components.is_empty();
        if !rests || self.is_freed || !self.items.is_empty() || self.holder != 0 {
            return None;
        }
        // As `opened` has put them.
        let [before @ .., segment, _] = &mut self.modules[..] else { return None };
        let segment = (&mut **segment as &mut dyn Any).downcast_mut()?;
        Some(AtRest { segment, before: Before(before), memo: &mut *self.memo })
    }

    /// Whether the communicator was freed: nothing new begins.
    #[must_use]
    pub fn is_freed(&self) -> bool {
        self.is_freed
    }

    /// The communicator is freed once what is in flight on it has ended.
    pub(super) fn set_freed(&mut self) {
        self.is_freed = true;
    }

    /// Modules give up what they have with the endpoint, as far as peers let them.
    pub(super) fn close(&mut self, cx: &mut Cx<'_>) {
        self.modules.iter_mut().for_each(|module| {
            module.close(cx);
        });
    }

    /// The communicator is freed: modules go as soon as peers let go of their memory. Whether none is left.
    pub(super) fn free(&mut self, cx: &mut Cx<'_>) -> bool {
        self.agreed = Agreed::Here(SharedBy::Nobody);
        self.modules.retain_mut(|module| !module.close(cx));
        self.modules.is_empty()
    }

    /// What is known of a module of this kind, if there is one.
    #[must_use]
    pub fn module<M: Module>(&self) -> Option<&M> {
        self.modules.iter().find_map(|module| (&**module as &dyn Any).downcast_ref())
    }

    /// Gives a collective its place in the order of calls, which it keeps until it is known what it does.
    pub fn reserve(&mut self, number: u64) {
        self.items.push_back(QueueItem::Reserved(number));
    }

    /// Where a collective waits that is not known so far.
    pub(super) fn reserved(&self, number: u64) -> Option<usize> {
        self.items
            .iter()
            .rposition(|item| matches!(item, QueueItem::Reserved(held) if *held == number))
    }

    /// A collective does not begin, if it has not. Whether others have waited for it.
    pub fn leave(&mut self, number: u64) -> bool {
        let left = self.reserved(number).is_some_and(|at| self.items.remove(at).is_some());
        left && !self.items.is_empty()
    }

    /// Lends the modules to this thread, for the collective that is the first, or if there is none.
    pub fn lend(&mut self, number: Option<u64>) -> Option<Modules> {
        let is_next = match (self.items.front(), number) {
            (None, None) => true,
            (Some(QueueItem::Reserved(held)), Some(number)) => *held == number,
            _ => false,
        };
        let Agreed::Here(shared_by) = self.agreed else { return None };
        if !is_next || shared_by != SharedBy::All || self.blocking() == Blocking::Elsewhere {
            return None;
        }
        self.items.pop_front();
        self.holder = this_thread();
        self.agreed = Agreed::Borrowed(shared_by);
        Some(std::mem::take(&mut self.modules))
    }

    /// Takes the modules back, and clears the holder. Whether other collectives have waited for the modules.
    pub fn give_back(&mut self, modules: Modules) -> bool {
        if let Agreed::Borrowed(shared_by) = self.agreed {
            self.agreed = Agreed::Here(shared_by);
        }
        (self.modules, self.holder) = (modules, 0);
        !self.items.is_empty()
    }

    /// Which thread is in a blocking collective here.
    #[must_use]
    pub fn blocking(&self) -> Blocking {
        match self.holder {
            0 => Blocking::None,
            holder if holder == this_thread() => Blocking::Here,
            _ => Blocking::Elsewhere,
        }
    }

    /// This thread is in a blocking collective from now on; `false`: another one is.
    pub fn set_holder(&mut self) -> bool {
        let is_free = self.holder == 0;
        if is_free {
            self.holder = this_thread();
        }
        is_free
    }

    /// This thread is no longer in a blocking collective.
    pub fn clear_holder(&mut self) {
        self.holder = 0;
    }
}

/// What the fast path of a collective through shared memory needs while nothing else is under way on its communicator.
#[derive(Debug)]
pub struct AtRest<'q> {
    /// The shared memory of all ranks.
    pub segment: &'q mut SharedSegment,
    /// The modules that are asked before it.
    pub before: Before<'q>,
    /// What the queue was [made](Queue::new) with.
    pub memo: &'q mut (dyn Any + Send),
}

/// The modules that were asked before the one that carries a collective out. They are told that it passes them by.
#[derive(Debug)]
pub struct Before<'q>(&'q mut [Box<dyn Module>]);

impl Before<'_> {
    /// Tells these modules that the collective goes by a later one.
    pub fn skip(&mut self, number: u64, cx: &mut Cx<'_>) {
        self.0.iter_mut().for_each(|module| module.skip(number, cx));
    }
}
