//! The executor: does what a [`Schedule`] says, on users' buffers, with messages of `pml`.
//!
//! An [`Executor`] is one collective of one rank. [`Executor::advance`] begins every step whose dependencies have
//! ended, collects what has ended, and never blocks. So a blocking collective is a loop of `advance` and
//! [`Pml::progress`]; a non-blocking one is polled; a persistent one is [started again](Executor::restart).
//!
//! # What is where
//!
//! A [`Schedule`] and buffers go into `run` (which steps wait, which are under way); a step that may begin goes to
//! `act` (messages, engines, reducers); what ends comes back to `run`, until all steps have ended.
//!
//! - before it begins: `compare` (checked mode) with `elements`; `tickets` (tags); `members` (which ranks take part);
//! - buffers: `call_buffers` (the user's, by blocks), `memory` and `lender` (intermediate data);
//! - `tasks`: what runs when a task comes, and who carries it; `error`: how a collective fails;
//! - without schedules: `sm` (shared memory of a host), [`hyperq`] (processes that share a GPU).
//!
//! # What moves how
//! - A place that is plain memory is sent, received and combined where it is, as bytes: these match whatever datatype
//!   the other end has.
//! - A place that is whole instances of the user's datatype goes as such, and no copy is made.
//! - Any other place passes through packed memory of its own, which exists while its step is under way.
//!
//! # Tasks
//! Schedules of [`Method::Xtq`](crate::Method::Xtq) have tasks, which somebody [carries](Executor::with_tasks). The
//! executor has all that may come expected before it sends anything; one that has come combines its payload into
//! scratch memory, on whatever thread. `advance` only finds that it has.
//!
//! # Intercommunicators
//! Ranks are numbered through both groups, in schedules and in errors; [`between`] says how.
//!
//! # Failures
//! A rank that cannot go on (its peer is lost, lengths do not fit, an engine fails) goes through the rest of its
//! schedule all the same: instead of data it sends messages of another length, with a notice of whom to blame, and what
//! it receives it drops. So every message is received, every rank that needs data of the failed one fails as well and
//! can name the [culprit](CollError::culprit), and ranks that need nothing of it end well. The error is given, and
//! buffers are free again, when nothing of the collective is in flight. No rank waits for one that is lost, but one
//! that has not called the collective yet is waited for, as ever.
//!
//! If the communicator is [revoked](gapless_pml::Pml::revoke), messages that were matched go on, all others end, and
//! nothing can be sent any more: so each rank soon ends with [`CollError::Revoked`], or well if it needs nothing more.
//!
//! What a failed collective leaves in its receive buffer is undefined. Later collectives on the communicator are not
//! disturbed by it; those that need a lost rank fail.
//!
//! # Calls that do not fit together
//! If ranks call different operations, or with different roots, operators or lengths, MPI's rules are broken.
//! - In [checked mode](Sequencer::checked) all ranks give an error that names the argument and the rank, and nothing
//!   else has happened.
//! - Otherwise a rank that gets a message of another length than it expects fails as above. One that expects a message
//!   which nobody sends waits for ever, as does one whose long message nobody receives: that cannot be told from a
//!   rank that is late, unless the caller [has it asked](Executor::doing) and [says](Executor::differs) that it is in
//!   another operation. A message that nobody expects is never taken for one of a later collective (`tickets.rs`), and
//!   no message is written beyond its place. Results can be wrong.
//!
//! # How many at once
//! [`IN_FLIGHT_MAX`] on a communicator: each waits for the one that came so many before it, and `advance` gives
//! `Pending` meanwhile.
//! Therefore a caller that waits for one collective must advance all that are in flight (MPI 4.1 §6.12 demands that
//! anyway). Messages never meet those of another collective; `tickets.rs` says why.

#[allow(
    unsafe_code,
    reason = "has pml and engines work on memory that the caller of `Executor::new` grants"
)]
mod act;
mod call_buffers;
mod compare;
mod elements;
mod error;
pub mod hyperq;
#[allow(unsafe_code, reason = "declares the contract of what lends memory")]
mod lender;
mod members;
#[allow(unsafe_code, reason = "allocates aligned memory, and gives back what was lent")]
mod memory;
mod run;
pub mod sm;
#[allow(unsafe_code, reason = "combines what has come into memory that the executor grants")]
mod tasks;
mod tickets;

use std::sync::Arc;
use std::task::Poll;

use gapless_engine::{Engine, Reducer};
use gapless_pml::{Comm, Doing, Pml, WaitingCall};

pub use call_buffers::{BufferBlocks, CallBuffers, Combine};
pub use error::CollError;
pub use lender::Lender;
pub use members::between;
pub use tasks::{Awaited, Leaving, TaskFault, TaskName, TaskWork, Tasks};
pub use tickets::{IN_FLIGHT_MAX, SLOTS_MAX, Sequencer, Ticket};

use crate::operation::Operation;
use crate::schedule::{Action, Buffer, Place, Schedule};
use crate::together::Together;
use act::Tools;
use call_buffers::Spot;
use compare::{Comparison, Verdict};
use gapless_engine::Typed;
use memory::Room;
use run::Run;

/// How many steps of several ranks a schedule may have: a collective takes so many numbers of the shared segment. It is
/// odd: mailboxes have room for an even number of entries of each rank, and so collectives with one such step use all
/// of it by turns.
const SHARES_MAX: u64 = 3;

/// What does not change while a collective runs.
#[derive(Debug)]
struct ExecutorPlan {
    schedule: Arc<Schedule>,
    buffers: CallBuffers,
    combine: Option<Combine>,
    /// `None`: there is no memory for it, and nothing of a run touches any.
    scratch: Option<Room>,
    /// Who lends memory for data on its way.
    lender: Option<Arc<dyn Lender>>,
    /// Whether the schedule has tasks, and who carries them.
    has_tasks: bool,
    tasks: Option<Arc<dyn Tasks>>,
    ticket: Arc<Ticket>,
    /// Whether the ticket's collective has ended with this schedule.
    ends: bool,
    /// The steps that wait for each step, one after the other; step `i` has those up to `bounds[i]`.
    followers: Box<[u32]>,
    bounds: Box<[usize]>,
}

impl ExecutorPlan {
    fn new(
        schedule: Arc<Schedule>,
        buffers: CallBuffers,
        combine: Option<Combine>,
        ticket: Arc<Ticket>,
        ends: bool,
    ) -> Self {
        let (followers, bounds) = followers(&schedule);
        let (scratch, lender, tasks) = (None, None, None);
        let has_tasks = schedule.has_tasks();
        Self {
            schedule,
            buffers,
            combine,
            scratch,
            lender,
            has_tasks,
            tasks,
            ticket,
            ends,
            followers,
            bounds,
        }
    }

    /// A run from the beginning. If there is no memory for it, it has failed, and only tells the others.
    fn run(&mut self) -> Run {
        let mut run = Run::new(&self.schedule);
        if self.scratch.is_none() {
            let bytes = self.schedule.scratch();
            match self.room(bytes) {
                Ok(room) => self.scratch = Some(room),
                Err(error) => run.doom(error),
            }
        }
        run
    }

    /// Memory for data on its way.
    fn room(&self, bytes: u64) -> Result<Room, CollError> {
        let room = Room::new(bytes, self.lender.as_ref());
        room.ok_or(CollError::NoMemory { rank: self.rank(), bytes })
    }

    /// This rank.
    fn rank(&self) -> u32 {
        self.ticket.members().rank()
    }

    /// The process of a rank, in the job.
    fn process(&self, rank: u32) -> Option<u32> {
        let (comm, rank) = self.reach(rank);
        comm.process(rank).ok()
    }

    /// The name of a task that is put here.
    fn task_name(&self, slot: u32) -> TaskName {
        let context = self.reach(self.rank()).0.context();
        TaskName { context, slot, collective: self.ticket.name() }
    }

    /// The name of a task that is put at a rank.
    fn task_name_at(&self, rank: u32, slot: u32) -> TaskName {
        let (comm, there) = self.reach(rank);
        TaskName { context: comm.context_at(there), slot, collective: self.ticket.name() }
    }

    /// How messages go to a rank and come from it.
    fn reach(&self, rank: u32) -> (&Comm, u32) {
        self.ticket.members().reach(rank)
    }

    /// The steps that wait for a step.
    fn followers(&self, step: u32) -> &[u32] {
        let step = step as usize;
        let start = step.checked_sub(1).map_or(0, |before| self.bounds[before]);
        &self.followers[start..self.bounds[step]]
    }

    /// Where a place lies.
    fn spot(&self, place: &Place) -> Spot {
        if place.len == 0 {
            return Spot::Direct(run::nothing());
        }
        let range = self.schedule.range(place);
        match place.buffer {
            Buffer::Send => self.buffers.send.spot(place, range),
            Buffer::Recv => self.buffers.recv.spot(place, range),
            Buffer::Scratch => {
                // Without memory the run has failed, and looks at no place.
                let Some(scratch) = &self.scratch else { return Spot::Direct(run::nothing()) };
                match scratch.region().sub(range.start, place.len) {
                    Ok(region) => Spot::Direct(Typed::contiguous(region)),
                    Err(_) => unreachable!("a schedule stays inside its scratch memory"),
                }
            }
        }
    }
}

/// Carries out the schedule of one collective at one rank.
///
/// If it is dropped in flight, no later collective can begin on the communicator ([`CollError::Abandoned`]), and
/// memory of its own that peers may still touch is never freed. Work of engines is waited for.
#[derive(Debug)]
pub struct Executor {
    /// Until the ranks have compared their arguments, if they do.
    comparison: Option<Box<Comparison>>,
    /// Why the ranks did not begin, and will not.
    refused: Option<CollError>,
    /// Whether this rank has failed before it knew if the arguments fit together.
    doomed: bool,
    plan: ExecutorPlan,
    run: Run,
}

impl Executor {
    /// What [`advance`](Self::advance) is to do. `combine` is needed if the schedule combines elements. If there is no
    /// memory for intermediate data, the collective fails, and the other ranks are told.
    ///
    /// # Safety
    /// From the first call of `advance` until one gives [`Poll::Ready`], the buffers describe memory that is valid,
    /// those of the send buffer for reads while nothing writes it, those of the receive buffer for reads and writes
    /// while nothing else touches it; the two do not overlap. If the executor is dropped before that, or a call of
    /// `advance` unwinds: until the endpoint is dropped, or its memory was [taken back](Pml::take_back), and until a
    /// shared segment that it was [advanced with](Self::advance_with) was given up.
    ///
    /// # Errors
    /// Buffers, communicator, or operation do not fit the schedule; more messages than can be told apart.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    pub unsafe fn new(
        schedule: impl Into<Arc<Schedule>>,
        buffers: CallBuffers,
        combine: Option<Combine>,
        ticket: Ticket,
    ) -> Result<Self, CollError> {
        let schedule = schedule.into();
        check(&schedule, &buffers, combine.as_ref(), &ticket)?;
        let ticket = Arc::new(ticket);
        let comparison = match ticket.is_checked() {
            true => Some(Box::new(Comparison::new(&ticket, &schedule, &buffers, combine.as_ref()))),
            false => None,
        };
        let mut plan = ExecutorPlan::new(schedule, buffers, combine, ticket, true);
        let run = plan.run();
        Ok(Self { comparison, refused: None, doomed: false, plan, run })
    }

    /// One that is part of another collective, whose ticket it shares: no other part is under way meanwhile.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    ///
    /// # Errors
    /// As there.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    unsafe fn part(
        schedule: Schedule,
        buffers: CallBuffers,
        ticket: Arc<Ticket>,
    ) -> Result<Self, CollError> {
        check(&schedule, &buffers, None, &ticket)?;
        let ends = !ticket.is_persistent();
        let mut plan = ExecutorPlan::new(Arc::new(schedule), buffers, None, ticket, ends);
        let run = plan.run();
        Ok(Self { comparison: None, refused: None, doomed: false, plan, run })
    }

    /// As [`part`](Self::part), at a rank that has failed before: it tells the others, and touches no memory.
    fn part_without(schedule: Schedule, ticket: Arc<Ticket>, failure: CollError) -> Self {
        let ends = !ticket.is_persistent();
        let buffers = CallBuffers { send: BufferBlocks::None, recv: BufferBlocks::None };
        let mut plan = ExecutorPlan::new(Arc::new(schedule), buffers, None, ticket, ends);
        let mut run = plan.run();
        run.doom(failure);
        Self { comparison: None, refused: None, doomed: false, plan, run }
    }

    /// The same collective by another schedule: no start of one is under way while there is one of the other. Arguments
    /// are not compared again.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    ///
    /// # Errors
    /// As there.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    pub unsafe fn by(&self, schedule: impl Into<Arc<Schedule>>) -> Result<Self, CollError> {
        let ExecutorPlan { buffers, combine, lender, tasks, ticket, ends, .. } = &self.plan;
        let (schedule, buffers, combine) = (schedule.into(), buffers.clone(), combine.clone());
        check(&schedule, &buffers, combine.as_ref(), ticket)?;
        let mut plan = ExecutorPlan::new(schedule, buffers, combine, Arc::clone(ticket), *ends);
        let run = plan.run();
        let (refused, doomed) = (self.refused.clone(), self.doomed);
        let it = Self { comparison: None, refused, doomed, plan, run };
        let it = match tasks {
            Some(tasks) => it.with_tasks(Arc::clone(tasks)),
            None => it,
        };
        Ok(match lender {
            Some(lender) => it.with_lender(Arc::clone(lender)),
            None => it,
        })
    }

    /// Has tasks of the schedule carried by somebody. Without, a collective that [has some](Schedule::has_tasks) fails.
    /// Call it before the first [`advance`](Self::advance), and lend no memory then: tasks work on that of the host.
    #[must_use]
    pub fn with_tasks(mut self, tasks: Arc<dyn Tasks>) -> Self {
        self.plan.tasks = Some(tasks);
        self
    }

    /// Has intermediate data lie in memory that somebody lends, as far as there is any: a device's, where the buffers
    /// and the reducer are that device's. Call it before the first [`advance`](Self::advance).
    #[must_use]
    pub fn with_lender(mut self, lender: Arc<dyn Lender>) -> Self {
        self.plan.lender = Some(lender);
        self.plan.scratch = None;
        self.run = self.plan.run();
        self
    }

    /// Goes on as far as it can without waiting. Afterwards the caller makes [progress](Pml::progress) and calls it
    /// again, with the same endpoint, engine and reducer. Once it has given a result it gives the same again.
    ///
    /// # Errors
    /// See [`CollError`]; with the error all buffers are free again.
    pub fn advance(
        &mut self,
        pml: &mut Pml,
        engine: &dyn Engine,
        reducer: &dyn Reducer,
    ) -> Poll<Result<(), CollError>> {
        self.go_on(&mut Tools { pml, engine, reducer, segment: None })
    }

    /// As [`advance`](Self::advance), of a rank whose host's ranks have a shared segment, by which they do what the
    /// [schedule has in common](Action::Share). `number` is the collective's among those of the segment, which the
    /// ranks of the host count alike; until one has ended, the segment does no other. A step waits for the segment that
    /// it has begun on: with another one it gets no further, and if that segment is gone, it fails.
    ///
    /// If the executor is dropped before it has ended, the segment is [given up](sm::SharedSegment::give_up) before the
    /// memory of the buffers goes.
    ///
    /// # Errors
    /// As for `advance`.
    pub fn advance_with(
        &mut self,
        (segment, number): (&mut sm::SharedSegment, u64),
        pml: &mut Pml,
        engine: &dyn Engine,
        reducer: &dyn Reducer,
    ) -> Poll<Result<(), CollError>> {
        let segment = Some((segment, number.saturating_mul(SHARES_MAX)));
        self.go_on(&mut Tools { pml, engine, reducer, segment })
    }

    fn go_on(&mut self, tools: &mut Tools<'_>) -> Poll<Result<(), CollError>> {
        if let Some(comparison) = &mut self.comparison {
            let Poll::Ready(verdict) = comparison.advance(tools) else { return Poll::Pending };
            self.comparison = None;
            match verdict {
                Verdict::Fine => {}
                Verdict::Failed(error) => {
                    self.doomed = true;
                    self.run.doom(error);
                }
                Verdict::Refused(error) => self.refused = Some(error),
            }
        }
        if let Some(error) = &self.refused {
            return self.run.over(&self.plan, Err(error.clone()));
        }
        self.run.advance(&self.plan, tools)
    }

    /// What it is in, for whoever asks a process that waits; times are the caller's business.
    #[must_use]
    pub fn doing(&self) -> Doing {
        let (ticket, operation) = (&self.plan.ticket, self.plan.schedule.terms.operation);
        let call = WaitingCall::Collective { operation: operation.code(), number: ticket.name() };
        let whom = self.run.waits_for().and_then(|rank| self.plan.process(rank));
        Doing { call, context: Some(ticket.members().context()), whom, millis: 0 }
    }

    /// A process says that it is, or was, in another operation as this collective: this rank fails, without waiting for
    /// what was not received or taken so far. Not if there is no such operation, or the process is no member. Whether
    /// it has not failed so before.
    pub fn differs(&mut self, pml: &mut Pml, process: u32, theirs: u8) -> bool {
        let (rank, theirs) =
            (self.plan.ticket.members().rank_of(process), Operation::from_code(theirs));
        let ours = self.plan.schedule.terms.operation;
        let (Some(rank), true) = (rank, theirs.is_some_and(|theirs| theirs != ours)) else {
            return false;
        };
        self.run.go_astray(pml, rank, CollError::Mismatch { rank, theirs, ours })
    }

    /// Whether a waiting caller should poll and not sleep: work of an engine is under way, or another collective of
    /// this rank is in the way. Otherwise there is nothing to do until `pml` makes progress.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match &self.comparison {
            Some(comparison) => comparison.is_busy(),
            None => self.run.is_busy() || self.run.is_blocked(&self.plan),
        }
    }

    /// Whether all ranks are known to have given arguments that fit together.
    fn is_agreed(&self) -> bool {
        self.comparison.is_none() && self.refused.is_none() && !self.doomed
    }

    /// Starts a persistent collective again (`MPI_Start`). The starts of one collective follow each other; other
    /// collectives may come in between, at each rank in another order.
    ///
    /// # Safety
    /// The promise of [`new`](Self::new) holds anew.
    ///
    /// # Errors
    /// [`CollError::StillActive`], [`CollError::NotPersistent`].
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    pub unsafe fn restart(&mut self) -> Result<(), CollError> {
        if !self.plan.ticket.is_persistent() {
            return Err(CollError::NotPersistent);
        }
        if !self.run.is_over() {
            return Err(CollError::StillActive);
        }
        self.run = self.plan.run();
        Ok(())
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        let compared = self.comparison.take().is_none_or(|comparison| comparison.let_go());
        if self.run.let_go() && compared {
            return;
        }
        self.plan.ticket.abandon();
        // Peers may still write to it.
        std::mem::forget(self.plan.scratch.take());
    }
}

/// Whether everything fits the schedule.
fn check(
    schedule: &Schedule,
    buffers: &CallBuffers,
    combine: Option<&Combine>,
    ticket: &Ticket,
) -> Result<(), CollError> {
    let members = ticket.members();
    let (rank, ranks) = (schedule.rank(), schedule.ranks());
    let (own, size) = (members.rank(), members.size());
    if (rank as u64, ranks as u64) != (own.into(), size.into()) {
        return Err(CollError::OtherRank { rank, ranks, own, size });
    }
    buffers.send.check(Buffer::Send, &schedule.row(Buffer::Send))?;
    buffers.recv.check(Buffer::Recv, &schedule.row(Buffer::Recv))?;
    let (mut slots, mut shares) = (0, 0);
    for (action, _) in schedule.steps() {
        shares += u64::from(matches!(action, Action::Share { .. }));
        if let Action::Send { slot, .. }
        | Action::Receive { slot, .. }
        | Action::Put { slot, .. }
        | Action::Task { slot, .. } = action
        {
            slots = slots.max(u64::from(*slot) + 1);
        }
        let combines = match action {
            Action::Reduce { .. } | Action::Task { .. } => true,
            Action::Share { what, .. } => *what == Together::Reduce,
            _ => false,
        };
        let (unit, given) = (schedule.unit(), combine.map(Combine::bytes));
        if combines && given.is_none_or(|bytes| bytes == 0 || !unit.is_multiple_of(bytes)) {
            return Err(CollError::Combine { unit, given });
        }
    }
    if shares > SHARES_MAX {
        return Err(CollError::NotShared { operation: schedule.terms.operation });
    }
    if slots > SLOTS_MAX {
        return Err(CollError::TooManySlots { slots, max: SLOTS_MAX });
    }
    Ok(())
}

/// The steps that wait for each step.
fn followers(schedule: &Schedule) -> (Box<[u32]>, Box<[usize]>) {
    let mut bounds = vec![0; schedule.len()];
    for (_, after) in schedule.steps() {
        for before in after {
            bounds[*before as usize] += 1;
        }
    }
    let mut end = 0;
    for bound in &mut bounds {
        end += *bound;
        *bound = end;
    }
    let mut followers = vec![0; end];
    let mut places = bounds.clone();
    for (step, (_, after)) in (0u32..).zip(schedule.steps()) {
        for before in after {
            let place = &mut places[*before as usize];
            *place -= 1;
            followers[*place] = step;
        }
    }
    (followers.into(), bounds.into())
}
