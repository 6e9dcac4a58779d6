//! One collective of one rank: what it is to do, its buffers, and how far it is.

use std::sync::Arc;
use std::task::Poll;

use gapless_mem::Region;

use super::module::{Begun, Cx, Engines, Module};
use super::{OwnedCall, Schedules};
use crate::execute::sm::{CallPlan, SmCall};
use crate::{
    Call, CallBuffers, CollError, Combine, Executor, Operation, Outcome, Schedule, Ticket,
};

/// The memory of both buffers, where that is contiguous memory of the host, or there is none.
pub type Contiguous = (Option<Region>, Option<Region>);

/// In which form a collective was called (MPI 4.1 §6.12, §6.13): all ranks call it in the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Form {
    Blocking,
    NonBlocking,
    Persistent,
}

/// One collective of one rank.
#[derive(Debug)]
pub struct CollOp {
    operation: Operation,
    form: Form,
    /// Its number among the collectives of its queue.
    number: u64,
    /// `None`: it is one of an intercommunicator's.
    call: Option<OwnedCall>,
    buffers: CallBuffers,
    combine: Option<Combine>,
    /// Whether it goes through memory that all ranks share, if they do.
    pub(super) shared: bool,
    /// Whether ranks tell each other first where its buffers lie.
    pub(super) asks: bool,
    /// All ranks' buffers lie on devices: it goes by messages.
    pub(super) only_messages: bool,
    /// What this rank does in it through memory that all ranks share, if that was found out before.
    plan: Option<CallPlan>,
    /// Of a persistent one, for the [fast path](CollOp::fast).
    contiguous: Option<Contiguous>,
    /// What the collective goes by if it needs messages.
    by_messages: Option<MessagePlan>,
    /// By messages alone. A persistent one has it from the beginning, and goes so when it is started for the first
    /// time.
    pub(super) executor: Option<Box<Executor>>,
    /// By messages, and the segment of this host.
    pub(super) hosted: Option<Box<Executor>>,
    /// The ranks of this host, if there are several hosts; of a persistent one.
    pub(super) mates: Option<Box<[usize]>>,
    /// The module that has it, or is asked next, and whether it has begun there.
    pub(super) at: usize,
    begun: bool,
}

#[derive(Debug)]
struct MessagePlan {
    schedules: Schedules,
    /// The ticket of a collective that is not persistent, until it begins.
    ticket: Option<Ticket>,
}

/// What has come of a step of a collective.
pub(super) enum OpStep {
    /// The collective waits; `busy`: for an engine.
    Waits {
        busy: bool,
    },
    /// The collective goes by messages, beside others.
    Apart,
    Ended(Result<(), CollError>),
}

impl CollOp {
    /// A collective, with its number among the collectives of its queue; of an intercommunicator it has no call.
    ///
    /// # Safety
    /// From when it begins until it has ended, or was given up after the endpoint's memory was
    /// [taken back](gapless_pml::Pml::take_back), the buffers describe memory that is valid, those of the send buffer
    /// for reads while nothing writes it, those of the receive buffer for reads and writes while nothing else touches
    /// it; the two do not overlap. A persistent one: from each start.
    #[must_use]
    pub unsafe fn new(
        (operation, form, number): (Operation, Form, u64),
        call: Option<OwnedCall>,
        (buffers, combine): (CallBuffers, Option<Combine>),
    ) -> CollOp {
        CollOp {
            operation,
            form,
            number,
            call,
            buffers,
            combine,
            shared: false,
            asks: false,
            only_messages: false,
            plan: None,
            contiguous: None,
            by_messages: None,
            executor: None,
            hosted: None,
            mates: None,
            at: 0,
            begun: false,
        }
    }

    /// This collective, which goes through memory that all ranks share, if they share some.
    #[must_use]
    pub fn shared(self) -> CollOp {
        CollOp { shared: true, ..self }
    }

    /// This collective; `asks`: its ranks tell each other first where its buffers lie
    /// ([`HyperQ::asks`](crate::HyperQ::asks)).
    #[must_use]
    pub fn asking(self, asks: bool) -> CollOp {
        CollOp { asks, ..self }
    }

    /// This collective, with what this rank does in it, as was found out before.
    ///
    /// # Safety
    /// `plan` was made of this one's call, by this rank, in a communicator of this size, and its `combine` is for this
    /// one's elements: buffers are not compared with it again. If the shared segment has
    /// [tried](crate::sm::SharedSegment::attempt) a collective with this one's number, that was this one, with these
    /// buffers.
    #[must_use]
    pub unsafe fn with_plan(self, plan: CallPlan) -> CollOp {
        CollOp { plan: Some(plan), ..self }
    }

    /// This collective, which goes by `schedules` if no module before takes it. A persistent one has no ticket.
    #[must_use]
    pub fn or_by(self, schedules: Schedules, ticket: Option<Ticket>) -> CollOp {
        CollOp { by_messages: Some(MessagePlan { schedules, ticket }), ..self }
    }

    /// This collective, persistent: it goes by messages when it is started for the first time. `contiguous`: for its
    /// fast path; `mates`: the ranks of this host, if there are several hosts and it may share memory with them.
    ///
    /// # Errors
    /// As [`Executor::new`].
    pub fn persistent(
        mut self,
        ticket: Ticket,
        engines: &dyn Engines,
        contiguous: Option<Contiguous>,
        mates: Option<&[usize]>,
    ) -> Result<CollOp, CollError> {
        let by = self.by_messages.as_ref().ok_or(CollError::Abandoned)?;
        let schedule = by.schedules.clone().by_messages();
        self.executor = Some(self.executor_of(schedule, ticket, engines)?);
        (self.contiguous, self.mates) = (contiguous, mates.map(Box::from));
        Ok(self)
    }

    /// Which operation the collective does.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// In which form the collective was called.
    #[must_use]
    pub fn form(&self) -> Form {
        self.form
    }

    /// Its number among the collectives of its communicator that are not persistent, or among the starts of this one.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What this rank calls; `None`: a collective of an intercommunicator.
    #[must_use]
    pub fn call(&self) -> Option<Call<'_>> {
        self.call.as_ref().map(OwnedCall::call)
    }

    /// The buffers.
    #[must_use]
    pub fn buffers(&self) -> &CallBuffers {
        &self.buffers
    }

    /// What combines elements, if something does.
    #[must_use]
    pub fn combine(&self) -> Option<&Combine> {
        self.combine.as_ref()
    }

    /// Whether it goes through memory that all ranks share, if they do.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether it may go by a module that does one after the other.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.shared || self.shares_on_host()
    }

    /// Whether it may need the segment of this host's ranks.
    pub(super) fn shares_on_host(&self) -> bool {
        match self.is_kept() {
            true => self.mates.is_some(),
            false => self.by_messages.as_ref().is_some_and(|it| it.schedules.shares()),
        }
    }

    /// The next start of a persistent one.
    pub(super) fn again(&mut self) {
        (self.number, self.at, self.begun) = (self.number + 1, 0, false);
        self.only_messages = false;
    }

    /// The plan of a persistent collective that may be done at once, and its memory.
    pub(super) fn fast(&self) -> Option<(&CallPlan, Contiguous)> {
        self.plan.as_ref().zip(self.contiguous)
    }

    /// What rank `rank` of `ranks` does through memory that all share.
    pub(super) fn sm_call(&mut self, of: (usize, usize)) -> Result<SmCall, CollError> {
        let plan = if self.is_kept() { self.plan.clone() } else { self.plan.take() };
        let (buffers, combine) = self.parts();
        match (plan, self.call()) {
            (Some(plan), _) => Ok(plan.sm_call(buffers)),
            (None, Some(call)) => SmCall::new(&call, of, buffers, combine),
            (None, None) => Err(CollError::NotShared { operation: self.operation }),
        }
    }

    fn is_kept(&self) -> bool {
        self.form == Form::Persistent
    }

    /// The buffers, for the module that carries it out.
    fn parts(&mut self) -> (CallBuffers, Option<Combine>) {
        match self.is_kept() {
            true => (self.buffers.clone(), self.combine.clone()),
            false => (self.buffers.take(), self.combine.take()),
        }
    }

    /// Begins the collective by messages alone.
    pub(super) fn begin_apart(&mut self, cx: &mut Cx<'_>) -> Result<(), CollError> {
        if let Some(executor) = &mut self.executor {
            // SAFETY: whoever made the operation grants its memory to each start (`new`), and this one has not begun.
            return unsafe { executor.restart() };
        }
        let nowhere = CollError::NotShared { operation: self.operation };
        let MessagePlan { schedules, ticket } = self.by_messages.take().ok_or(nowhere)?;
        let ticket = ticket.ok_or(CollError::Abandoned)?;
        self.executor = Some(self.executor_of(schedules.by_messages(), ticket, cx.engines)?);
        Ok(())
    }

    /// Begins the collective by messages and the segment of this host.
    pub(super) fn begin_on_host(&mut self, cx: &mut Cx<'_>) -> Result<(), CollError> {
        if let Some(hosted) = &mut self.hosted {
            // SAFETY: as in `begin_apart`.
            return unsafe { hosted.restart() };
        }
        let by = self.by_messages.as_mut().ok_or(CollError::Abandoned)?;
        let schedule = Arc::clone(by.schedules.schedule());
        self.hosted = Some(match (&self.executor, by.ticket.take()) {
            // SAFETY: as in `begin_apart`.
            (Some(first), _) => Box::new(unsafe { first.by(schedule) }?),
            (None, Some(ticket)) => self.executor_of(schedule, ticket, cx.engines)?,
            (None, None) => return Err(CollError::Abandoned),
        });
        Ok(())
    }

    /// What carries a schedule out, with memory of the device on which its elements are combined; tasks combine them in
    /// that of the host.
    fn executor_of(
        &mut self,
        schedule: Arc<Schedule>,
        ticket: Ticket,
        engines: &dyn Engines,
    ) -> Result<Box<Executor>, CollError> {
        let (buffers, combine) = self.parts();
        let has_tasks = schedule.has_tasks();
        let lender = combine.as_ref().filter(|_| !has_tasks);
        let lender = lender.and_then(|combine| engines.lender(&buffers, combine));
        // SAFETY: whoever made the operation grants the memory from when it begins until it has ended, or was given up
        // after the endpoint's memory was taken back (`new`).
        let mut made = unsafe { Executor::new(schedule, buffers, combine, ticket) }?;
        if let Some(tasks) = engines.tasks().filter(|_| has_tasks) {
            made = made.with_tasks(tasks);
        }
        Ok(Box::new(match lender {
            Some(lender) => made.with_lender(lender),
            None => made,
        }))
    }

    /// Goes on by the first module that takes it.
    pub(super) fn step(&mut self, modules: &mut [Box<dyn Module>], cx: &mut Cx<'_>) -> OpStep {
        while let Some(module) = modules.get_mut(self.at) {
            let declined = match self.begin_by(&mut **module, cx) {
                Err(error) => {
                    modules[self.at..].iter_mut().for_each(|it| it.skip(self.number, cx));
                    return OpStep::Ended(Err(error));
                }
                Ok(Begun::Apart) => return OpStep::Apart,
                Ok(Begun::Declined) => true,
                Ok(Begun::InOrder) => match module.advance(self, cx) {
                    Poll::Pending => return OpStep::Waits { busy: module.is_busy(self) },
                    Poll::Ready(Ok(Outcome::Done)) => return OpStep::Ended(Ok(())),
                    Poll::Ready(Ok(Outcome::Elsewhere | Outcome::ByMessages)) => true,
                    Poll::Ready(Err(error)) => {
                        // Ranks that came late may go by these.
                        modules[self.at + 1..].iter_mut().for_each(|it| it.skip(self.number, cx));
                        return OpStep::Ended(Err(error));
                    }
                },
            };
            if declined {
                (self.at, self.begun) = (self.at + 1, false);
            }
        }
        OpStep::Ended(Err(CollError::NotShared { operation: self.operation }))
    }

    /// Begins by a module, if that takes it and it has not begun.
    fn begin_by(&mut self, module: &mut dyn Module, cx: &mut Cx<'_>) -> Result<Begun, CollError> {
        if self.begun {
            return Ok(Begun::InOrder);
        }
        if !module.takes(self) {
            return Ok(Begun::Declined);
        }
        let begun = module.begin(self, cx)?;
        self.begun = begun == Begun::InOrder;
        Ok(begun)
    }

    /// Whether a module has begun the collective.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// What carries the collective out by messages, if something does.
    pub(super) fn carried_by(&self) -> Option<&Executor> {
        self.hosted.as_deref().or(self.executor.as_deref())
    }
}
