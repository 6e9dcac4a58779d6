//! All collectives of a process that have begun, behind the lock that its endpoint is behind: whoever makes progress
//! advances all of them.
//!
//! Each has a request of the endpoint, which ends with it: so they are waited for and watched like messages. Those that
//! go by messages alone are independent of each other. All others stand in their communicator's [`Queue`].
//!
//! # Memory
//! The first collective of a queue is at work on its buffers, and memory of collectives that wait is only described.
//! What has begun ends, or is given up with the endpoint ([`InFlight::give_up`]), which waits for engines. Modules of
//! the first are in the queue, where that finds them: they are never lent meanwhile. A handle that is dropped leaves
//! its memory to the entry. What is cancelled does not exist: collectives cannot be (MPI 4.1 §6.12).

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

use gapless_engine::Op;
use gapless_pml::{Comm, Pml, PmlError, RequestId};

use super::module::{Cx, Engines};
use super::queue::{Queue, QueueItem, QueueState};
use super::{CollOp, Form};
use crate::sm::Opening;
use crate::{CollError, Sequencer};

/// How often a start looks for what others have contributed before it puts the collective into the queue, which takes
/// longer.
pub const INLINE_LOOKS: u32 = 48;

/// Values of collectives that have ended, to be dropped after the lock was released.
pub type Spent = Vec<Box<dyn Any + Send>>;

/// Names a collective of this process. No name is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(u64);

impl OpId {
    /// One that was over when it began.
    const OVER: OpId = OpId(u64::MAX);
}

/// A collective that was begun: its name, and the request that ends when it does.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// Which it is.
    pub id: OpId,
    /// Ends when it does.
    pub request: RequestId,
}

impl Started {
    /// A collective that was over when it began.
    pub const OVER: Started = Started { id: OpId::OVER, request: RequestId::OVER };

    /// Whether the collective was over when it began.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.id == OpId::OVER
    }
}

/// Where something waits.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) comm: Comm,
    pub(super) queue: Arc<Queue>,
}

/// All collectives in flight of a process.
pub struct InFlight {
    pub(super) engines: Arc<dyn Engines>,
    /// Collectives by messages alone, in the order of their beginning: one may wait for an earlier one.
    pub(super) apart: BTreeMap<OpId, Box<OpEntry>>,
    /// Collectives that are in queues.
    pub(super) queued: BTreeMap<OpId, Box<OpEntry>>,
    /// Where something waits.
    pub(super) queues: Vec<Listed>,
    /// Collectives that have ended and were not asked for, and persistent ones that are inactive.
    rest: BTreeMap<OpId, Box<OpEntry>>,
    next: u64,
    /// Whether engines work for some collective.
    pub(super) busy: bool,
    pub(super) leaving: Vec<Leaving>,
    /// Of communicators that were freed: modules with memory that peers use.
    pub(super) closing: Vec<Arc<Queue>>,
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let InFlight { apart, queued, queues, .. } = self;
        let mut it = f.debug_struct("InFlight");
        it.field("apart", apart).field("queued", queued).field("queues", queues);
        it.finish_non_exhaustive()
    }
}

/// A communicator that was freed while collectives were in flight on it.
#[derive(Debug)]
pub(super) struct Leaving {
    comm: Comm,
    more: Vec<Comm>,
    queue: Arc<Queue>,
}

/// One collective. When it is dropped, so may be a user's function, which may do anything: that is done without the
/// lock.
#[derive(Debug)]
pub(super) struct OpEntry {
    pub(super) op: Box<CollOp>,
    pub(super) queue: Arc<Queue>,
    pub(super) comm: Comm,
    pub(super) phase: Phase,
    /// Memory of one whose handle was dropped.
    left: Option<Box<dyn Any + Send>>,
    operator: Option<Op>,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// Described, and never started.
    New,
    /// The collective has this request.
    Going(RequestId),
    Ended(RequestId, Result<(), CollError>),
    /// The collective may be started again.
    Idle,
}

/// The state of a collective when it is looked at: under way, ended, or gone.
#[derive(Debug)]
pub enum Fate {
    /// Nothing before this request has ended.
    Going(RequestId),
    /// How the collective went. Unless it is persistent, the rest of it comes along, to be dropped without the lock.
    Ended(Result<(), CollError>, Option<Box<dyn Any + Send>>),
    /// Its result was taken before, or the endpoint was given up.
    Gone,
}

impl OpEntry {
    fn new(op: Box<CollOp>, (comm, queue): (Comm, Arc<Queue>), operator: Option<Op>) -> OpEntry {
        OpEntry { op, queue, comm, phase: Phase::New, left: None, operator }
    }

    fn is_persistent(&self) -> bool {
        self.op.form() == Form::Persistent
    }

    /// Goes on by messages.
    pub(super) fn advance(&mut self, cx: &mut Cx<'_>) -> Poll<Result<(), CollError>> {
        match &mut self.op.executor {
            Some(executor) => executor.advance(cx.pml, cx.engines, cx.engines),
            None => Poll::Ready(Err(CollError::Abandoned)),
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.op.executor.as_deref().is_some_and(crate::Executor::is_busy)
    }

    /// The collective has ended.
    pub(super) fn end(&mut self, pml: &mut Pml, result: Result<(), CollError>) {
        if let Phase::Going(request) = self.phase {
            self.tell_past(pml);
            // It is there until the result is taken.
            let _ = pml.end_general(request);
            self.phase = Phase::Ended(request, result);
        }
    }

    /// The collective never begins again: what its own modules have with the endpoint is given up.
    fn close(&self, cx: &mut Cx<'_>) {
        if self.is_persistent() {
            self.queue.with(|state| state.close(cx));
        }
    }

    /// Nobody asks for its request any more.
    fn release(&self, pml: &mut Pml) {
        if let Phase::Going(request) | Phase::Ended(request, _) = self.phase {
            let _ = pml.release(request);
        }
    }
}

/// Whether a start looks once more.
fn inline_looks() -> impl FnMut() -> bool {
    let mut left = INLINE_LOOKS;
    move || {
        left = left.saturating_sub(1);
        left > 0
    }
}

impl InFlight {
    /// None so far.
    #[must_use]
    pub fn new(engines: Arc<dyn Engines>) -> InFlight {
        InFlight {
            engines,
            apart: BTreeMap::new(),
            queued: BTreeMap::new(),
            queues: Vec::new(),
            rest: BTreeMap::new(),
            next: 0,
            busy: false,
            leaving: Vec::new(),
            closing: Vec::new(),
        }
    }

    /// Collectives that stand in queues, and collectives that go by messages alone.
    pub(super) fn entries(&self) -> impl Iterator<Item = &OpEntry> {
        self.apart.values().chain(self.queued.values()).map(Box::as_ref)
    }

    /// [`entries`](InFlight::entries), to be changed.
    pub(super) fn entries_mut(&mut self) -> impl Iterator<Item = &mut OpEntry> {
        self.apart.values_mut().chain(self.queued.values_mut()).map(Box::as_mut)
    }

    fn id(&mut self) -> OpId {
        let id = OpId(self.next);
        self.next += 1;
        id
    }

    /// Begins one, and goes on with it as far as it can. `operator`: what combines its elements.
    ///
    /// # Errors
    /// The collective has not begun.
    pub fn begin(
        &mut self,
        (pml, spent): (&mut Pml, &mut Spent),
        (comm, queue): (Comm, Arc<Queue>),
        (op, operator): (Box<CollOp>, Option<Op>),
    ) -> Result<Started, CollError> {
        let id = self.id();
        let is_ordered = op.is_ordered() || queue.with(|state| state.has_components());
        let mut entry = Box::new(OpEntry::new(op, (comm, queue), operator));
        if is_ordered {
            return Ok(Started { id, request: self.queue((pml, spent), id, entry) });
        }
        let engines = Arc::clone(&self.engines);
        let cx = &mut Cx { pml, engines: &*engines };
        if let Err(error) = entry.op.begin_apart(cx) {
            spent.push(entry);
            return Err(error);
        }
        Ok(Started { id, request: self.go(cx, id, entry) })
    }

    /// Takes over one that has begun to go by messages alone.
    pub fn adopt(
        &mut self,
        pml: &mut Pml,
        (comm, queue): (Comm, Arc<Queue>),
        (op, operator): (Box<CollOp>, Option<Op>),
    ) -> Started {
        let (id, engines) = (self.id(), Arc::clone(&self.engines));
        let entry = Box::new(OpEntry::new(op, (comm, queue), operator));
        Started { id, request: self.go(&mut Cx { pml, engines: &*engines }, id, entry) }
    }

    /// Keeps a persistent one, which has a queue of its own.
    pub fn keep(&mut self, comm: Comm, (op, operator): (Box<CollOp>, Option<Op>)) -> OpId {
        let id = self.id();
        let entry = OpEntry::new(op, (comm, Arc::default()), operator);
        self.rest.insert(id, Box::new(entry));
        id
    }

    /// Starts a persistent one, and goes on with it as far as it can.
    ///
    /// # Safety
    /// Its memory is granted to it anew, as for [`CollOp::new`].
    ///
    /// # Errors
    /// The collective is active.
    pub unsafe fn start(
        &mut self,
        (pml, spent): (&mut Pml, &mut Spent),
        id: OpId,
    ) -> Result<RequestId, CollError> {
        let Some(entry) = self.rest.get_mut(&id) else { return Err(CollError::StillActive) };
        let is_first = matches!(entry.phase, Phase::New);
        let queues = !is_first && may_queue_again(entry);
        let engines = Arc::clone(&self.engines);
        if queues && starts_at_once(entry, &mut Cx { pml, engines: &*engines }) {
            let request = pml.begin_general();
            entry.phase = Phase::Going(request);
            entry.end(pml, Ok(()));
            return Ok(request);
        }
        if !is_first && !queues {
            entry.op.begin_apart(&mut Cx { pml, engines: &*engines })?;
        }
        let entry = self.rest.remove(&id).ok_or(CollError::StillActive)?;
        Ok(match queues {
            true => self.queue((pml, spent), id, entry),
            false => self.go(&mut Cx { pml, engines: &*engines }, id, entry),
        })
    }

    /// Goes on with one that goes by messages alone.
    fn go(&mut self, cx: &mut Cx<'_>, id: OpId, entry: Box<OpEntry>) -> RequestId {
        // Whatever happens in `advance`, it is found here.
        let entry = self.apart.entry(id).or_insert(entry);
        let request = cx.pml.begin_general();
        entry.phase = Phase::Going(request);
        if let Poll::Ready(result) = entry.advance(cx) {
            entry.end(cx.pml, result);
            self.rest.extend(self.apart.remove(&id).map(|entry| (id, entry)));
        } else {
            self.busy |= entry.is_busy();
        }
        request
    }

    /// Puts one into its queue, and goes on with it as far as it can.
    fn queue(
        &mut self,
        with: (&mut Pml, &mut Spent),
        id: OpId,
        mut entry: Box<OpEntry>,
    ) -> RequestId {
        let request = with.0.begin_general();
        entry.phase = Phase::Going(request);
        let (comm, queue) = (entry.comm.clone(), Arc::clone(&entry.queue));
        let number = entry.op.number();
        self.queued.insert(id, entry);
        self.put(with, (comm, queue), (QueueItem::Op(id), Some(number)));
        request
    }

    /// The ranks of a communicator begin to agree on its modules; `mates`: the ranks of this host, if there are several
    /// hosts, which make a segment of their own if all of them have none.
    pub fn open(
        &mut self,
        with: (&mut Pml, &mut Spent),
        (comm, queue): (Comm, Arc<Queue>),
        sequencer: &Sequencer,
        mates: Option<&[usize]>,
    ) {
        queue.with(QueueState::open);
        let mut opening = Opening::new(sequencer);
        if let Some(mates) = mates {
            opening = opening.or(Opening::of_host(sequencer, mates));
        }
        self.put(with, (comm, queue), (QueueItem::Opening(Box::new(opening)), None));
    }

    /// This rank was refused the collective with this number.
    pub fn refuse(&mut self, with: (&mut Pml, &mut Spent), of: (Comm, Arc<Queue>), number: u64) {
        self.put(with, of, (QueueItem::Refused(number), Some(number)));
    }

    /// One has ended: its result is kept, unless nobody asks for it.
    pub(super) fn lay_aside(
        &mut self,
        cx: &mut Cx<'_>,
        id: OpId,
        entry: Box<OpEntry>,
        spent: &mut Spent,
    ) {
        if entry.left.is_some() {
            entry.release(cx.pml);
            entry.close(cx);
            spent.push(entry);
        } else {
            self.rest.insert(id, entry);
        }
    }

    /// Whether collectives of a communicator are in flight.
    fn uses(&self, comm: &Comm) -> bool {
        self.apart.values().any(|entry| entry.comm.same(comm))
            || self.queues.iter().any(|listed| listed.comm.same(comm))
    }

    /// Frees a communicator, and communicators that are part of it: now, or when the last collective on it has ended.
    ///
    /// # Errors
    /// It is predefined; it was freed already.
    pub fn free(
        &mut self,
        pml: &mut Pml,
        (comm, more): (&Comm, Vec<Comm>),
        queue: &Arc<Queue>,
    ) -> Result<(), PmlError> {
        let engines = Arc::clone(&self.engines);
        if comm.same(&pml.world()) || comm.same(&pml.self_comm()) {
            // That is an error; its modules may be at work.
            return pml.free(comm);
        }
        queue.with(QueueState::set_freed);
        if !self.uses(comm) {
            let cx = &mut Cx { pml, engines: &*engines };
            return self.free_now(cx, (comm, &more), queue);
        }
        if self.leaving.iter().any(|leaving| leaving.comm.same(comm)) {
            return Err(PmlError::NoSuchComm);
        }
        self.leaving.push(Leaving { comm: comm.clone(), more, queue: Arc::clone(queue) });
        Ok(())
    }

    pub(super) fn free_leaving(&mut self, cx: &mut Cx<'_>) {
        let all = std::mem::take(&mut self.leaving);
        let (stay, go): (Vec<Leaving>, Vec<Leaving>) =
            all.into_iter().partition(|leaving| self.uses(&leaving.comm));
        self.leaving = stay;
        for Leaving { comm, more, queue } in go {
            // It is there, and not predefined.
            let _ = self.free_now(cx, (&comm, &more), &queue);
        }
    }

    /// Frees a communicator on which nothing is in flight.
    fn free_now(
        &mut self,
        cx: &mut Cx<'_>,
        (comm, more): (&Comm, &[Comm]),
        queue: &Arc<Queue>,
    ) -> Result<(), PmlError> {
        // The receives that modules sleep for are operations as well. If the communicator stays, so do the modules.
        let resting = self.rest.values().filter(|entry| entry.comm.same(comm));
        resting.for_each(|entry| entry.close(cx));
        let is_free = queue.with(|state| {
            state.close(cx);
            cx.pml.free(comm)?;
            more.iter().try_for_each(|more| cx.pml.free(more))?;
            Ok::<_, PmlError>(state.free(cx))
        })?;
        if !is_free {
            self.closing.push(Arc::clone(queue));
        }
        Ok(())
    }

    /// Whether memory of freed communicators was given back, as far as peers have to let go of it.
    #[must_use]
    pub fn has_closed(&self) -> bool {
        self.closing.is_empty()
    }

    /// Whether engines work for some of them, so that a waiting caller should poll and not sleep.
    #[inline]
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Whether no collective is in flight.
    #[inline]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.apart.is_empty() && self.queues.is_empty()
    }

    /// Whether there is nothing to [advance](InFlight::advance).
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.is_idle() && self.closing.is_empty()
    }

    /// Takes the result of a collective, if it has ended.
    pub fn take(&mut self, pml: &mut Pml, id: OpId) -> Fate {
        let going = self.apart.get(&id).or_else(|| self.queued.get(&id));
        if let Some(OpEntry { phase: Phase::Going(request), .. }) = going.map(Box::as_ref) {
            return Fate::Going(*request);
        }
        if id == OpId::OVER {
            return Fate::Ended(Ok(()), None);
        }
        let Some(entry) = self.rest.get_mut(&id) else { return Fate::Gone };
        match std::mem::replace(&mut entry.phase, Phase::Idle) {
            Phase::Ended(request, result) => {
                let _ = pml.release(request);
                let rest = if entry.is_persistent() { None } else { self.rest.remove(&id) };
                Fate::Ended(result, rest.map(|entry| entry as Box<dyn Any + Send>))
            }
            other => {
                entry.phase = other;
                Fate::Gone
            }
        }
    }

    /// How a collective went, if it has ended and its result was not taken.
    #[must_use]
    pub fn peek(&self, id: OpId) -> Option<Result<(), CollError>> {
        match self.rest.get(&id) {
            Some(entry) => match &entry.phase {
                Phase::Ended(_, result) => Some(result.clone()),
                _ => None,
            },
            None => (id == OpId::OVER).then_some(Ok(())),
        }
    }

    /// The handle of one is dropped, with its memory if that may be in use. What is of no use any more comes back, to
    /// be dropped without the lock. After a panic there is no endpoint to be told.
    pub fn let_go(
        &mut self,
        pml: Option<&mut Pml>,
        id: OpId,
        memory: Option<Box<dyn Any + Send>>,
    ) -> Spent {
        if let Some(entry) = self.apart.get_mut(&id).or_else(|| self.queued.get_mut(&id)) {
            entry.left = memory.or_else(|| Some(Box::new(())));
            return Vec::new();
        }
        let entry = self.rest.remove(&id);
        if let (Some(pml), Some(entry)) = (pml, &entry) {
            let engines = &*self.engines;
            entry.release(pml);
            entry.close(&mut Cx { pml, engines });
        }
        let entry = entry.map(|entry| entry as Box<dyn Any + Send>);
        entry.into_iter().chain(memory).collect()
    }

    /// Ends all use of memory by collectives in flight, once the endpoint has taken memory back. These never end; what
    /// users' code may hang on goes to `spent`. Results of others can still be asked for.
    pub fn give_up(&mut self, spent: &mut Spent) {
        for Listed { queue, .. } in std::mem::take(&mut self.queues) {
            let items = queue.with(|state| {
                // Also of one that has panicked. Waits for engines.
                state.modules().into_iter().flatten().for_each(|module| module.abandon());
                (state.is_listed, state.working) = (false, None);
                std::mem::take(&mut state.items)
            });
            spent.push(Box::new((items, queue)));
        }
        let queued = std::mem::take(&mut self.queued);
        for entry in std::mem::take(&mut self.apart).into_values().chain(queued.into_values()) {
            let OpEntry { mut op, operator, left, .. } = *entry;
            // Waits for engines.
            drop((op.executor.take(), op.hosted.take()));
            spent.push(Box::new((op, operator, left)));
        }
        self.busy = false;
    }
}

/// Whether a persistent collective that is started again may go by its modules. Its ranks agree on them in the second
/// start.
fn may_queue_again(entry: &mut OpEntry) -> bool {
    let OpEntry { op, queue, .. } = entry;
    if !op.is_ordered() {
        return false;
    }
    op.again();
    let Some(first) = &op.executor else { return false };
    queue.with(|state| {
        if state.is_new() {
            state.open();
            let mut opening = Opening::of_persistent(first);
            if let Some(mates) = &op.mates {
                opening = opening.or(Opening::of_host_persistent(first, mates));
            }
            state.items.push_back(QueueItem::Opening(Box::new(opening)));
        }
        state.shared_by() != super::SharedBy::Nobody
    })
}

/// Starts a persistent collective again at once, if nothing delays it; whether it has ended.
fn starts_at_once(entry: &mut OpEntry, cx: &mut Cx<'_>) -> bool {
    let OpEntry { op, queue, .. } = entry;
    let Some((plan, buffers)) = op.fast() else { return false };
    queue.with(|state| {
        let Some(mut at) = state.at_rest() else { return false };
        if op.asks {
            at.before.skip(op.number(), cx);
        }
        // SAFETY: whoever starts it grants the memory to this start (`CollOp::new`).
        unsafe { at.segment.attempt(op.number(), plan, buffers, cx.pml, inline_looks()) }
    })
}
