//! How collectives begin: their place in the order of calls, what carries them out, and the blocking form.

use super::borrowed_modules::BorrowedModules;
use super::persistent_comms::PersistentComms;
use super::prepare::{self, Prepared, RankPlace, Shares};
use super::remembered::{KnownCall, Remembered};
use super::reserve::Reserved;
use super::{Collective, CollectiveError};
use crate::communicator::{Communicator, Topology};
use crate::error::Error;
use crate::raw::Channels;
use crate::shared::{Shared, WorldState};
use crate::view::{RecvBuffer, SendBuffer};
use gapless_bml::LinkError;
use gapless_boot::places::Places;
use gapless_coll::choose::Table;
use gapless_coll::execute::between;
use gapless_coll::runtime::{
    AtRest, Blocking, CollOp, Contiguous, Cx, Fate, Form, Modules, Queue, QueueState,
    ScheduleCache, Started, Stepped,
};
use gapless_coll::sm::CallPlan;
use gapless_coll::topologies::{Neighborhood, TopologyError};
use gapless_coll::{
    BufferBlocks, CallBuffers, CollError, HyperQ, Locality, Operation, Sequencer, Ticket,
};
use gapless_engine::{Engine, Op, Reducer};
use gapless_pml::{Comm, PmlError};
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// A collective, and what combines its elements.
pub(super) type Described = (Box<CollOp>, Option<Op>);

/// What all clones of a communicator share.
#[derive(Debug)]
pub(crate) struct CommunicatorState {
    pub(super) sequencer: Sequencer,
    pub(crate) persistent_comms: PersistentComms,
    pub(crate) channels: Channels,
    /// Modules, those that wait for them, and what is known of the last calls.
    pub(super) queue: Arc<Queue>,
    /// That of the world when the communicator was made.
    table: Arc<Table>,
    /// Made for the first collective.
    locality: OnceLock<Locality>,
    recent: ScheduleCache,
    topology: Option<Topology>,
    /// Found for the first collective among neighbours.
    neighbors: OnceLock<Result<Arc<Neighborhood>, TopologyError>>,
}

impl CommunicatorState {
    /// For a communicator that has nothing yet.
    pub(crate) fn new(
        shared: &Shared,
        comm: &Comm,
        topology: Option<Topology>,
    ) -> CommunicatorState {
        let sequencer = Sequencer::new(comm).checked(shared.checks_collectives());
        let (table, (locality, recent, persistent_comms, channels)) =
            (shared.table(), Default::default());
        let neighbors = OnceLock::new();
        let queue = Arc::new(Queue::new(
            table.hyperq.clone(),
            shared.components(),
            Box::new(Remembered::default()),
        ));
        CommunicatorState {
            sequencer,
            persistent_comms,
            channels,
            queue,
            table,
            locality,
            recent,
            topology,
            neighbors,
        }
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Which thread is in a blocking collective through shared memory. The caller holds the lock.
    pub(crate) fn blocking(&self) -> Blocking {
        self.queue.with(|state| state.blocking())
    }

    pub(crate) fn topology(&self) -> Option<&Topology> {
        self.topology.as_ref()
    }

    /// The neighbours of this rank.
    fn neighbors(&self, comm: &Comm) -> Result<&Arc<Neighborhood>, CollectiveError> {
        let topology = self.topology.as_ref().ok_or(CollectiveError::NoTopology)?;
        let found = self.neighbors.get_or_init(|| topology.neighbors(comm.rank()).map(Arc::new));
        found.as_ref().map_err(|error| CollectiveError::Topology(error.clone()))
    }

    /// The ranks of this rank's host, if there are several hosts, and the table has rules that go through memory which
    /// the ranks of a host share: all members find alike.
    pub(super) fn host_ranks(&self, comm: &Comm, places: &Places) -> Option<&[usize]> {
        let hosts = self.locality(comm, places).hosts();
        let is_near = |group: &&Vec<usize>| group.contains(&(comm.rank() as usize));
        let of_use = self.table.rules.iter().any(|rule| rule.algorithm.within.is_shared());
        let several = hosts.len() > 1 && !comm.is_inter();
        hosts.iter().find(is_near).filter(|_| several && of_use).map(Vec::as_slice)
    }

    /// The host of each rank, as a number.
    pub(crate) fn hosts(&self, comm: &Comm, places: &Places) -> Vec<u32> {
        let locality = self.locality(comm, places);
        let mut numbers = vec![0; locality.ranks()];
        for (number, group) in (0..).zip(locality.hosts()) {
            group.iter().for_each(|rank| numbers[*rank] = number);
        }
        numbers
    }

    /// Which ranks are near each other.
    pub(crate) fn locality(&self, comm: &Comm, places: &Places) -> &Locality {
        let place = |rank| places.of(comm.process(rank).ok()?);
        self.locality.get_or_init(|| Locality::of_places((0..comm.size()).map(place)))
    }
}

impl Communicator {
    /// Does a collective, and waits until this rank's part is over: its buffers are free again, and what it receives
    /// has come. All methods that are named after a collective come down to this.
    ///
    /// ```
    /// use gapless::{Collective, ReduceOp, World};
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = World::init()?;
    /// let comm = world.comm();
    /// let (mine, mut sum) = ([f64::from(comm.rank()); 3], [0.0; 3]);
    /// comm.perform(Collective::allreduce(&mine, &mut sum, ReduceOp::Sum))?;
    /// // The same by name.
    /// comm.allreduce(&mine, &mut sum, ReduceOp::Sum)?;
    /// let ranks = f64::from(comm.size());
    /// assert_eq!(sum, [ranks * (ranks - 1.0) / 2.0; 3]);
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Collective`]. A rank whose arguments are refused sends nothing of the collective by messages; through
    /// shared memory those that need something of it learn that, and fail. The first blocking one on a communicator
    /// begins with preparations of all its ranks, in which such a rank takes part. If a rank is
    /// lost, or fails otherwise, every rank that needs data of it gets an error that names it, and the others end well.
    /// What a failed collective leaves in its receive buffer is undefined; later collectives are not disturbed.
    ///
    /// [`Error::CollectiveUnderWay`], in a function that this thread calls while it waits in such a collective.
    pub fn perform(&self, collective: Collective<'_>) -> Result<(), Error> {
        let fast = self.shared.look_often(|state, look| {
            // SAFETY: the description borrows its memory until this returns: what is received into, exclusively.
            self.common
                .queue
                .with(|queue_state| unsafe { self.at_once(queue_state, &collective, state, look) })
        })?;
        match fast {
            Fast::Over => Ok(()),
            Fast::Borrowed(modules, known) => self.perform_known(collective, modules, *known),
            Fast::Unknown => self.perform_anew(collective),
        }
    }

    /// Does a collective of which all is known, and which was not done at once.
    #[inline(never)] // its frame is large
    fn perform_known(
        &self,
        collective: Collective<'_>,
        modules: Modules,
        (number, known_call): (u64, KnownCall),
    ) -> Result<(), Error> {
        let KnownCall { known, call, uses, .. } = known_call;
        let what = (collective.operation, Form::Blocking, number);
        let buffers = uses.buffers(collective.send, collective.recv);
        let buffers = buffers.map_err(|error| refused(what.0, error))?;
        // SAFETY: the description borrows its memory until this returns: what is received into, exclusively; and
        // `by_modules` does not return before the operation has ended or was given up.
        let op = unsafe { CollOp::new(what, Some(call), (buffers, None)) };
        // SAFETY: `at_once` found `known` by all of this description but where its buffers are.
        let op = unsafe { op.shared().with_plan(known) };
        let modules = BorrowedModules::new(self, modules, Box::new(op));
        // There is no user's function.
        self.carry_out(modules, (what.0, number), None)
    }

    /// Does a collective by modules that were borrowed, or by messages alone if they leave it to that.
    fn carry_out(
        &self,
        modules: BorrowedModules<'_>,
        (operation, number): (Operation, u64),
        operator: Option<Op>,
    ) -> Result<(), Error> {
        match self.by_modules(modules, (operation, number))? {
            Stepped::Ended(result) => result.map_err(|error| self.failed(operation, error)),
            Stepped::Apart(op) => {
                let mut op = Some((op, operator));
                let begun = self.shared.with(|state| {
                    let WorldState { pml, collectives, .. } = &mut *state;
                    let op = op.take().ok_or(Error::Finalized)?;
                    let begun = collectives.adopt(pml, self.queue(), op);
                    self.shared.rouse(state);
                    Ok(begun)
                })?;
                let fate = self.fate(begun.id)?;
                self.ended(operation, fate)
            }
        }
    }

    /// What is known of a call through shared memory, and the memory of its buffers where that is contiguous. `memo` is
    /// the queue's.
    #[inline]
    pub(super) fn look_up<'m>(
        &self,
        memo: &'m mut (dyn Any + Send),
        collective: &Collective<'_>,
    ) -> Option<(&'m KnownCall, Contiguous)> {
        memo.downcast_mut::<Remembered>()?.look_up(collective, || self.known_call(collective))
    }

    /// What shared memory of all ranks would do; see [`Collective::known_call`].
    fn known_call(&self, collective: &Collective<'_>) -> Option<KnownCall> {
        if self.comm.is_inter() {
            return None;
        }
        let neighbors = || self.common.neighbors(&self.comm);
        collective.known_call(&self.place(&neighbors, Shares::No))
    }

    /// Does a collective through shared memory, if nothing delays it.
    ///
    /// # Safety
    /// As for [`SharedSegment::attempt`](gapless_coll::sm::SharedSegment::attempt), until this returns.
    #[inline]
    unsafe fn at_once(
        &self,
        queue_state: &mut QueueState,
        collective: &Collective<'_>,
        state: &mut WorldState,
        look: &mut dyn FnMut() -> bool,
    ) -> Fast {
        let WorldState { pml, tools, .. } = state;
        let Some(AtRest { segment, mut before, memo }) = queue_state.at_rest() else {
            return Fast::Unknown;
        };
        let known = self.look_up(memo, collective);
        let Some((known_call, contiguous)) = known else { return Fast::Unknown };
        let number = self.common.sequencer.pass();
        if known_call.asks {
            before.skip(number, &mut Cx { pml, engines: &**tools });
        }
        // SAFETY: the caller's promise. What is known is of a description like this.
        if unsafe { segment.attempt(number, &known_call.known, contiguous, pml, look) } {
            return Fast::Over;
        }
        let known = Box::new((number, known_call.clone()));
        match queue_state.lend(None) {
            Some(modules) => Fast::Borrowed(modules, known),
            None => unreachable!("it was at rest"),
        }
    }

    /// Does a collective that was not done at once.
    #[inline(never)] // its frame takes several pages
    fn perform_anew(&self, collective: Collective<'_>) -> Result<(), Error> {
        let (operation, operator) = (collective.operation, collective.op.clone());
        // Before arguments are looked at: a rank that is refused agrees on modules with the others.
        let mut reserved = self.reserve(operation, true)?;
        let number = reserved.number();
        // SAFETY: the description borrows its memory until this returns or unwinds; what is received into, exclusively.
        // That is when the collective has ended, or was given up: by whoever borrows the modules, or with the world,
        // which takes memory back first; if a call unwinds, it gives the world up.
        let op = match unsafe { reserved.op(collective, Form::Blocking) } {
            Ok(op) => op,
            Err(error) => {
                reserved.refuse();
                return Err(error);
            }
        };
        if op.is_shared() {
            if let Some(space) = HyperQ::space(op.buffers()) {
                // `serves` opens the memory's device on demand; `WorldState::open` attaches it.
                let _ = Engine::serves(&*self.shared.tools, space);
            }
            if let Some(modules) = reserved.lend() {
                let modules = BorrowedModules::new(self, modules, op);
                drop(reserved);
                return self.carry_out(modules, (operation, number), operator);
            }
        }
        let mut op = Some((op, operator));
        let begun = self.shared.with(|state| self.launch(state, &mut op))?;
        let begun = begun.map_err(|error| self.failed(operation, error))?;
        drop(reserved);
        let fate = self.fate(begun.id)?;
        self.ended(operation, fate)
    }

    /// Begins a collective that is ready to. If it cannot, the caller or the world still has it, and drops it without
    /// the lock.
    pub(super) fn launch(
        &self,
        state: &mut WorldState,
        op: &mut Option<Described>,
    ) -> Result<Result<Started, CollError>, Error> {
        self.shared.now_and_then(state);
        state.open()?;
        let WorldState { pml, collectives, spent, .. } = &mut *state;
        let op = op.take().ok_or(Error::Finalized)?;
        let begun = collectives.begin((pml, spent), self.queue(), op);
        self.shared.rouse(state);
        Ok(begun)
    }

    /// How a collective went that goes on no more.
    pub(super) fn ended(&self, operation: Operation, fate: Fate) -> Result<(), Error> {
        match fate {
            Fate::Ended(result, _rest) => result.map_err(|error| self.failed(operation, error)),
            // Only the one who waits for it takes it.
            Fate::Gone | Fate::Going(_) => Err(Error::Finalized),
        }
    }

    /// The error of a collective that failed.
    pub(super) fn failed(&self, operation: Operation, error: CollError) -> Error {
        if let CollError::Call { error } = error {
            return refused(operation, error.into());
        }
        let process = error.culprit().and_then(|rank| self.process_of(rank));
        let (error, process) = match error {
            // It may have left because of one that has no rank here.
            CollError::Lost { error: PmlError::PeerLost { rank, .. }, .. } => (error, Some(rank)),
            CollError::ToldLost { rank, .. } => match self.blamed(process) {
                Some((culprit, fate)) => {
                    let error = PmlError::PeerLost { rank: culprit, error: fate };
                    (CollError::Lost { rank, error }, Some(culprit))
                }
                None => (error, process),
            },
            error => (error, process),
        };
        refused(operation, CollectiveError::Failed { error, process })
    }

    /// Who is to blame for the loss of a process, as far as this one knows.
    fn blamed(&self, process: Option<u32>) -> Option<(u32, LinkError)> {
        let process = process?;
        self.shared.with(|state| Ok(state.pml.accuse(process))).ok()?
    }

    /// The process of a rank as schedules number them.
    fn process_of(&self, rank: u32) -> Option<u32> {
        let Some(between) = between(&self.comm) else { return self.comm.process(rank).ok() };
        let (local, remote, number) = (between.local(), between.remote(), rank as usize);
        let (group, range) = match local.contains(&number) {
            true => (self.comm.group(), local),
            false => (self.comm.peers().clone(), remote),
        };
        group.process(u32::try_from(number.checked_sub(range.start)?).ok()?)
    }

    /// A non-blocking collective. It takes its place in the order of calls, also if it is refused: other ranks' may not
    /// be; the place is to be kept until it has begun. `known`: it [was begun](Self::begin_known).
    ///
    /// # Safety
    /// What the description borrows stays so until the collective has ended or, after it was given up, the world's
    /// memory was taken back.
    pub(super) unsafe fn op<'c>(
        &'c self,
        collective: Collective<'_>,
        known: Option<Box<Reserved<'c>>>,
    ) -> Result<(Described, Reserved<'c>), Error> {
        let (operation, operator) = (collective.operation, collective.op.clone());
        let mut reserved = match known {
            Some(reserved) => *reserved,
            None => self.reserve(operation, false)?,
        };
        // SAFETY: the caller's promise. Both buffers are made of views of one description, which is left out or
        // described in another way, but not added to.
        // - For how long: the views stay borrowed until the collective has ended or, if it never does, the world's
        //   memory was taken back.
        // - The buffer that is received into has views from `Output` and `ViewMut` only, and each of those borrows its
        //   memory exclusively: it may be read and written, nothing else touches it, and the other buffer's views lie
        //   elsewhere. Blocks that are cut of one such view are apart (`BlocksMut::new`).
        // - The buffer that is sent has views from `Input` only: they may be read, and nothing writes them while they
        //   are borrowed.
        match unsafe { reserved.op(collective, Form::NonBlocking) } {
            Ok(op) => Ok(((op, operator), reserved)),
            Err(error) => {
                reserved.refuse();
                Err(error)
            }
        }
    }

    /// A persistent collective.
    ///
    /// # Safety
    /// As for [`op`](Self::op), for each start.
    pub(super) unsafe fn persistent_op(
        &self,
        collective: Collective<'_>,
        ticket: Ticket,
    ) -> Result<Described, Error> {
        let (operation, operator) = (collective.operation, collective.op.clone());
        let prepared = self.prepare(collective, true, Shares::Unknown)?;
        let Prepared { call, shared, asks, schedules, buffers, combine } = prepared;
        let Some(schedules) = schedules else { unreachable!("of an unknown segment") };
        // By what all ranks know: one that is alone on its host takes part in the agreement, too.
        let host_ranks =
            self.host_ranks().filter(|_| shared || schedules.schedule().is_over_shared());
        let contiguous = contiguous(&buffers);
        // Without bytes, it is found out in each start whether it goes by messages.
        let has_bytes = |(send, recv): &Contiguous| {
            [send, recv].into_iter().flatten().any(|region| !region.is_empty())
        };
        let is_known = shared && contiguous.as_ref().is_some_and(|it| !asks || has_bytes(it));
        let known = call.as_ref().filter(|_| is_known).and_then(|call| {
            let of = (self.comm.rank() as usize, self.comm.size() as usize);
            CallPlan::new(&call.call(), of, combine.clone(), true).filter(CallPlan::is_short)
        });
        // SAFETY: the caller's promise, as in `op`.
        let mut op =
            unsafe { CollOp::new((operation, Form::Persistent, 0), call, (buffers, combine)) };
        if shared {
            op = op.shared().asking(asks);
        }
        if let Some(known) = known {
            // SAFETY: it was made of this call above.
            op = unsafe { op.with_plan(known) };
        }
        let tools = &*self.shared.tools;
        let op = op.or_by(schedules, None).persistent(ticket, tools, contiguous, host_ranks);
        let op = op.map_err(|error| self.failed(operation, error))?;
        Ok((Box::new(op), operator))
    }

    /// Checks a description, and finds out how the collective goes; through shared memory only if it `may_share`.
    pub(super) fn prepare(
        &self,
        collective: Collective<'_>,
        may_share: bool,
        shares: Shares,
    ) -> Result<Prepared, Error> {
        let operation = collective.operation;
        let prepared = match between(&self.comm) {
            Some(between) => collective.prepare_between(&between),
            None => {
                let neighbors = || self.common.neighbors(&self.comm);
                collective.prepare(&self.place(&neighbors, shares), may_share)
            }
        };
        prepared.map_err(|error| refused(operation, error))
    }

    /// The ranks of this rank's host, if there are several hosts.
    pub(super) fn host_ranks(&self) -> Option<&[usize]> {
        self.common.host_ranks(&self.comm, &self.shared.places)
    }

    /// Where this rank is.
    fn place<'c>(
        &'c self,
        neighbors: &'c dyn Fn() -> Result<&'c Arc<Neighborhood>, CollectiveError>,
        shares: Shares,
    ) -> RankPlace<'c> {
        let CommunicatorState { table, recent, .. } = &*self.common;
        let (rank, locality) =
            (self.comm.rank() as usize, self.common.locality(&self.comm, &self.shared.places));
        RankPlace { rank, table, locality, recent, shares, neighbors }
    }

    /// Combines elements of this process alone: each element of `inout` becomes `input op inout`
    /// (`MPI_Reduce_local`, MPI 4.1 §6.9.7).
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// # let world = gapless::World::init()?;
    /// let mut most = [3, 1, 4];
    /// world.comm().reduce_local(&[2, 7, 1], &mut most, gapless::ReduceOp::Max)?;
    /// assert_eq!(most, [3, 7, 4]);
    /// # world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Collective`]: the buffers do not fit together, or the operation is not defined for their elements.
    pub fn reduce_local<'i, 'o>(
        &self,
        input: impl SendBuffer<'i>,
        inout: impl RecvBuffer<'o>,
        op: impl Into<Op>,
    ) -> Result<(), Error> {
        let (input, inout, op) = (input.into_view(), inout.into_view(), op.into());
        let (send, recv) = prepare::local(&input.typed, &inout.typed, &op)
            .map_err(|error| refused(Operation::Reduce, error))?;
        let tools = &*self.shared.tools;
        self.shared.with(|state| state.open().map(drop))?;
        let range = 0..recv.packed_bytes();
        // SAFETY: both views borrow their memory until the work is over, which is waited for; a source that is the
        // target is the same description.
        let work = unsafe { tools.reduce_into(&op, &[send, recv.clone()], &recv, range, &[]) };
        let wrong = |error| {
            let argument = "receive buffer";
            refused(Operation::Reduce, CollectiveError::Operation { argument, error })
        };
        let ended = work.map(gapless_mem::Outstanding::new).map_err(wrong)?.wait();
        ended.map_err(|error| wrong(error.into()))
    }
}

/// How a blocking collective has begun.
enum Fast {
    Over,
    /// It waits for others: the modules, its number, and what it is to do.
    Borrowed(Modules, Box<(u64, KnownCall)>),
    /// Something else has them, or no memory is shared.
    Unknown,
}

/// The memory of both buffers, if it is contiguous memory of the host, or there is none.
fn contiguous(buffers: &CallBuffers) -> Option<Contiguous> {
    let one = |blocks: &BufferBlocks| match blocks {
        BufferBlocks::None => Some(None),
        BufferBlocks::Whole(typed) => {
            typed.as_contiguous().filter(|region| region.as_ptr().is_some()).map(Some)
        }
        BufferBlocks::Each(_) => None,
    };
    Some((one(&buffers.send)?, one(&buffers.recv)?))
}

pub(super) fn refused(operation: Operation, error: CollectiveError) -> Error {
    Error::Collective { operation, error: Box::new(error) }
}
