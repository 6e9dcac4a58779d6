//! How collectives begin: their place in the order of calls, what carries them out, and the blocking form.

use super::desk::{AtDesk, Blocking, Desk, Lent};
use super::errand::{Errand, carrier};
use super::live::{Begun, Entry, Fate};
use super::prepare::{self, Place, Prepared, Schedules, Shares, Terms, Way};
use super::recent::Recent;
use super::remembered::{Direct, Plain};
use super::rooms::Rooms;
use super::turn::{Ready, Turn};
use super::{Collective, CollectiveError};
use crate::communicator::{Communicator, Topology};
use crate::error::Error;
use crate::shared::{Shared, State};
use crate::view::{RecvBuffer, SendBuffer};
use crate::world::Places;
use gapless_bml::LinkError;
use gapless_coll::choose::Table;
use gapless_coll::execute::between;
use gapless_coll::page::{Known, Page, Task};
use gapless_coll::topologies::{Neighborhood, TopologyError};
use gapless_coll::{
    Blocks, Call, CollError, Combine, Locality, Operation, Rows, Sequencer, Ticket,
};
use gapless_engine::{Op, Reducer};
use gapless_pml::{Comm, Pml, PmlError};
use std::sync::{Arc, OnceLock};

/// What all clones of a communicator share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(super) sequencer: Sequencer,
    pub(crate) rooms: Rooms,
    /// Where those through shared memory begin.
    pub(super) desk: Arc<Desk>,
    /// That of the world when the communicator was made.
    table: Arc<Table>,
    /// Made for the first collective.
    locality: OnceLock<Locality>,
    recent: Recent,
    topology: Option<Topology>,
    /// Found for the first collective among neighbours.
    neighbors: OnceLock<Result<Neighborhood, TopologyError>>,
}

impl Common {
    /// For a communicator that has nothing yet.
    pub(crate) fn new(shared: &Shared, comm: &Comm, topology: Option<Topology>) -> Common {
        let sequencer = Sequencer::new(comm).checked(shared.checks_collectives());
        let (table, (locality, recent, rooms)) = (shared.table(), Default::default());
        let neighbors = OnceLock::new();
        let desk = Arc::new(Desk::new(table.hyperq.clone()));
        Common { sequencer, rooms, desk, table, locality, recent, topology, neighbors }
    }

    pub(crate) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// Which thread is in a blocking collective through shared memory. The caller holds the lock.
    pub(crate) fn blocking(&self) -> Blocking {
        self.desk.with(|at| at.blocking())
    }

    pub(crate) fn topology(&self) -> Option<&Topology> {
        self.topology.as_ref()
    }

    /// The neighbours of this rank.
    fn neighbors(&self, comm: &Comm) -> Result<&Neighborhood, CollectiveError> {
        let topology = self.topology.as_ref().ok_or(CollectiveError::NoTopology)?;
        let found = self.neighbors.get_or_init(|| topology.neighbors(comm.rank()));
        found.as_ref().map_err(|error| CollectiveError::Topology(error.clone()))
    }

    /// The ranks of this rank's host, if there are several hosts, and the table has rules that go through memory which the
    /// ranks of a host share: all members find alike.
    pub(super) fn mates(&self, comm: &Comm, places: &Places) -> Option<&[usize]> {
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
        self.locality.get_or_init(|| places.locality(comm))
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
        let quick = self.shared.look_often(|state, look| {
            let pml = &mut state.pml;
            // SAFETY: the description borrows its memory until this returns: what is received into, exclusively.
            self.common.desk.with(|at| unsafe { self.at_once(at, &collective, pml, look) })
        })?;
        match quick {
            Quick::Over => Ok(()),
            Quick::Lent(lent) => {
                let (page, number, direct) = *lent;
                let (lent, operation) = (Lent::new(self, page), collective.operation);
                let task = direct.task(collective);
                // SAFETY: as above; there is no user's function.
                unsafe { self.by_page(lent, (operation, number), task) }
            }
            Quick::Unknown => self.perform_anew(collective),
        }
    }

    /// What a page of all ranks would do; see [`Collective::direct`].
    pub(super) fn direct(&self, collective: &Collective<'_>) -> Option<Direct> {
        if self.comm.is_inter() {
            return None;
        }
        let neighbors = || self.common.neighbors(&self.comm);
        collective.direct(&self.place(&neighbors, Shares::No))
    }

    /// Does a collective through shared memory, if nothing delays it.
    ///
    /// # Safety
    /// As for [`Page::attempt`](gapless_coll::page::Page::attempt), until this returns.
    #[inline]
    unsafe fn at_once(
        &self,
        at: &mut AtDesk,
        collective: &Collective<'_>,
        pml: &mut Pml,
        look: &mut dyn FnMut() -> bool,
    ) -> Quick {
        let Some((page, hyperq, remembered)) = at.at_rest() else { return Quick::Unknown };
        let known = remembered.recall(collective, || self.direct(collective));
        let Some((direct, plain)) = known else { return Quick::Unknown };
        let number = self.common.sequencer.pass();
        if let Some(hyperq) = hyperq.filter(|_| direct.asks) {
            hyperq.decline(number);
        }
        // SAFETY: the caller's promise. What is known is of a description like this.
        if unsafe { page.attempt(number, &direct.known, plain, pml, look) } {
            return Quick::Over;
        }
        let direct = direct.clone();
        match at.lend(None) {
            Some(page) => Quick::Lent(Box::new((page, number, direct))),
            None => unreachable!("it was at rest"),
        }
    }

    /// Does a collective that was not done at once.
    #[inline(never)] // its frame takes several pages
    fn perform_anew(&self, collective: Collective<'_>) -> Result<(), Error> {
        let (operation, op) = (collective.operation, collective.op.clone());
        // Before arguments are looked at: a rank that is refused makes the page with the others.
        let mut turn = self.turn(operation, true)?;
        let number = turn.number();
        let ready = match turn.ready(collective) {
            // Without a task it has no use for a page of all ranks.
            Ok(Ready::Shared(errand)) if errand.has_task() => match turn.lend() {
                Some(lent) => {
                    let (asks, asked) = (errand.asks, turn.asked());
                    drop(turn);
                    let Some(task) = errand.into_task() else { unreachable!("it has not begun") };
                    if asks {
                        // SAFETY: as below.
                        if unsafe { self.on_one_gpu((operation, number), asked, &task) }? {
                            return Ok(());
                        }
                    }
                    // SAFETY: the description borrows its memory until this returns or unwinds; what is received into,
                    // exclusively. `op` keeps a user's function: it is dropped without the lock.
                    return unsafe { self.by_page(lent, (operation, number), task) };
                }
                None => Ready::Shared(errand),
            },
            Ok(ready) => ready,
            Err(error) => {
                turn.refuse();
                return Err(error);
            }
        };
        // SAFETY: the description borrows its memory until this returns. That is when the collective has ended, or the
        // world was given up, which takes memory back first; if a call unwinds, it gives the world up.
        let mut entry = Some(unsafe { self.carrier(operation, ready, op) }?);
        let begun = self.shared.with(|state| self.launch(state, &mut entry))?;
        drop(turn);
        let fate = self.fate(begun.number)?;
        self.ended(operation, fate)
    }

    /// Begins a collective that is ready to. If it cannot, the caller still has it, and drops it without the lock.
    pub(super) fn launch(
        &self,
        state: &mut State,
        entry: &mut Option<Entry>,
    ) -> Result<Begun, Error> {
        self.shared.now_and_then(state);
        state.open()?;
        let State { pml, collectives, spent, .. } = &mut *state;
        let entry = entry.take().ok_or(Error::Finalized)?;
        let begun = collectives.begin((pml, spent), entry);
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

    /// What carries out a collective. It takes its place in the order of calls, also if it is refused: other ranks' may not
    /// be; the turn is to be kept until it has begun. `known`: it [was begun](Self::begin_direct).
    ///
    /// # Safety
    /// What the description borrows stays so until the collective has ended or, after it was given up, the world's
    /// memory was taken back.
    pub(super) unsafe fn entry<'c>(
        &'c self,
        collective: Collective<'_>,
        known: Option<Box<Turn<'c>>>,
    ) -> Result<(Entry, Turn<'c>), Error> {
        let (operation, op) = (collective.operation, collective.op.clone());
        let mut turn = match known {
            Some(turn) => *turn,
            None => self.turn(operation, false)?,
        };
        match turn.ready(collective) {
            // SAFETY: the caller's promise.
            Ok(ready) => Ok((unsafe { self.carrier(operation, ready, op) }?, turn)),
            Err(error) => {
                turn.refuse();
                Err(error)
            }
        }
    }

    /// What carries out a persistent collective.
    ///
    /// # Safety
    /// As for [`entry`](Self::entry), for each start.
    pub(super) unsafe fn persistent_entry(
        &self,
        collective: Collective<'_>,
        ticket: Ticket,
    ) -> Result<Entry, Error> {
        let (operation, op) = (collective.operation, collective.op.clone());
        let Prepared { way, rows, combine, .. } =
            self.prepare(collective, true, Shares::Unknown)?;
        let (schedules, errand) = match way {
            Way::Schedule(schedules) => {
                // By what all ranks know: one that is alone on its host takes part in the opening, too.
                let goes_there = schedules.schedule.is_over_shared();
                let mates = self.mates().filter(|_| goes_there);
                let errand = mates.map(|_| Errand::persistent(None, None));
                (schedules, errand)
            }
            Way::Shared(terms) => {
                let call = self.call(&terms)?;
                let task = self.task(&call, rows.clone(), combine.clone())?;
                let known = plain(&rows).and_then(|buffers| {
                    let of = (self.comm.rank() as usize, self.comm.size() as usize);
                    let known = Known::new(&call, of, combine.clone(), true)?;
                    known.is_short().then_some((known, buffers))
                });
                let schedules = self.schedules(&call, Shares::Unknown)?;
                (schedules, Some(Errand::persistent(Some(task), known)))
            }
        };
        let errand = errand.map(|errand| errand.again_by(schedules.clone(), self.mates()));
        let schedule = schedules.by_messages();
        let ready = Ready::Messages(Box::new((schedule, rows, combine, ticket)));
        // SAFETY: the caller's promise.
        let mut entry = unsafe { self.carrier(operation, ready, op) }?;
        entry.errand = errand.map(Box::new);
        Ok(entry)
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

    /// The call of a description that was checked.
    pub(super) fn call<'c>(&'c self, terms: &'c Terms) -> Result<Call<'c>, Error> {
        let call = terms.call(|| self.common.neighbors(&self.comm));
        call.map_err(|error| refused(terms.operation(), error))
    }

    /// The schedules of a call.
    pub(super) fn schedules(&self, call: &Call<'_>, shares: Shares) -> Result<Schedules, Error> {
        let neighbors = || self.common.neighbors(&self.comm);
        let built = self.place(&neighbors, shares).schedules(call);
        built.map_err(|error| refused(call.operation(), error.into()))
    }

    /// This rank's part in a call through shared memory.
    pub(super) fn task(
        &self,
        call: &Call<'_>,
        rows: Rows,
        combine: Option<Combine>,
    ) -> Result<Task, Error> {
        let of = (self.comm.rank() as usize, self.comm.size() as usize);
        Task::new(call, of, rows, combine).map_err(|error| self.failed(call.operation(), error))
    }

    /// The ranks of this rank's host, if there are several hosts.
    pub(super) fn mates(&self) -> Option<&[usize]> {
        self.common.mates(&self.comm, &self.shared.places)
    }

    /// Where this rank is.
    fn place<'c>(
        &'c self,
        neighbors: &'c dyn Fn() -> Result<&'c Neighborhood, CollectiveError>,
        shares: Shares,
    ) -> Place<'c> {
        let Common { table, recent, .. } = &*self.common;
        let (rank, locality) =
            (self.comm.rank() as usize, self.common.locality(&self.comm, &self.shared.places));
        Place { rank, table, locality, recent, shares, neighbors }
    }

    /// What carries out what is ready.
    ///
    /// # Safety
    /// The rows are those that [`prepare`](Self::prepare) made of one description, and what that borrows stays so as
    /// [`entry`](Self::entry) says.
    unsafe fn carrier(
        &self,
        operation: Operation,
        ready: Ready,
        op: Option<Op>,
    ) -> Result<Entry, Error> {
        // SAFETY (of all three): the caller's promise. Both rows are made of views of one description, which `prepare`
        // leaves out or describes in another way, but does not add to.
        // - For how long: the views stay borrowed until `advance` has given `Ready` or, if it never does, the world's
        //   memory was taken back.
        // - The row that is received into has views from `Output` and `ViewMut` only, and each of those borrows its
        //   memory exclusively: it may be read and written, nothing else touches it, and the other row's views lie
        //   elsewhere. Blocks that are cut of one such view are apart (`BlocksMut::new`).
        // - The row that is sent has views from `Input` only: they may be read, and nothing writes them while they are
        //   borrowed.
        let carriers = match ready {
            Ready::Shared(errand) => (None, Some(errand)),
            Ready::Messages(parts) => {
                let (schedule, rows, combine, ticket) = *parts;
                let (parts, tools) = ((rows, combine), &self.shared.tools);
                // SAFETY: as said.
                let executor = unsafe { carrier(schedule, parts, ticket, tools) };
                (Some(executor.map_err(|error| self.failed(operation, error))?), None)
            }
        };
        // SAFETY: as said.
        Ok(unsafe { Entry::new(carriers, self.comm.clone(), op) })
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
enum Quick {
    Over,
    /// It waits for others: the page, its number there, and what it is to do.
    Lent(Box<(Box<Page>, u64, Direct)>),
    /// Something else has the page, or there is none.
    Unknown,
}

/// The memory of both buffers, if it is plain, or there is none.
fn plain(rows: &Rows) -> Option<Plain> {
    let one = |blocks: &Blocks| match blocks {
        Blocks::None => Some(None),
        Blocks::Whole(typed) => {
            typed.as_contiguous().filter(|region| region.as_ptr().is_some()).map(Some)
        }
        Blocks::Each(_) => None,
    };
    Some((one(&rows.send)?, one(&rows.recv)?))
}

fn refused(operation: Operation, error: CollectiveError) -> Error {
    Error::Collective { operation, error: Box::new(error) }
}
