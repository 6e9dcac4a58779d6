//! Exchanges that repeat: several sends and receives on parts of one array that the caller keeps, described and checked
//! once, then started together and waited for together (persistent requests, MPI 4.1 §3.9, with `MPI_Startall` and
//! `MPI_Waitall`).
//!
//! Nothing is in flight between two exchanges, so the plan holds no memory, and the array is the caller's again each
//! time.

mod buffer;
mod builder;
mod reshard;
mod rest;

pub use buffer::PlanBuffer;
pub use builder::PlanBuilder;
pub use reshard::ReshardPlan;
pub use rest::Rest;

use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared::{Look, Shared, WorldState};
use buffer::ArrayShape;
use gapless_dtype::ElementType;
use gapless_engine::Typed;
use gapless_mem::Region;
use gapless_pml::{Comm, Failure, Pml, PmlError, RequestId, SendMode, Source, Status, TagSel};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Several messages out of and into one array, to be exchanged again and again: persistent requests (MPI 4.1 §3.9) with
/// `MPI_Startall` and `MPI_Waitall`.
///
/// A step of a halo exchange, with two arrays that change places:
///
/// ```
/// use gapless::{Datatype, Primitive, World};
/// # fn main() -> Result<(), gapless::Error> {
/// let world = World::init()?;
/// let comm = world.comm();
/// let (right, left) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
/// // 3 rows of 4 cells; the first and the last column are the neighbours'.
/// let column = Datatype::vector(3, 1, 4, &Primitive::Double.into())?.commit()?;
/// let mut cells = vec![f64::from(comm.rank()); 12];
/// let mut next = cells.clone();
/// let mut plan = comm
///     .plan(&cells)
///     .send(1, &column, 1, left, 0)? // from element 1 on: column 1
///     .send(2, &column, 1, right, 1)?
///     .recv(3, &column, 1, right, 0)?
///     .recv(0, &column, 1, left, 1)?
///     .build()?;
/// for _ in 0..10 {
///     plan.exchange(&mut cells)?;
///     for row in 0..3 {
///         for at in [4 * row + 1, 4 * row + 2] {
///             next[at] = (cells[at - 1] + cells[at + 1]) / 2.0;
///         }
///     }
///     std::mem::swap(&mut cells, &mut next);
/// }
/// world.finalize()
/// # }
/// ```
///
/// No part that is received into may have a byte in common with another:
///
/// ```
/// # fn main() -> Result<(), gapless::Error> {
/// # use gapless::{Datatype, Error, Primitive, World};
/// # let world = World::init()?;
/// # let comm = world.comm();
/// let row = Datatype::contiguous(4, &Primitive::Int32.into())?.commit()?;
/// let array = [0i32; 12];
/// let plan = comm.plan(&array).recv(0, &row, 1, 0, 0)?.send(3, &row, 1, 0, 0);
/// assert!(matches!(plan, Err(Error::InUse { start: 12, end: 16 })));
/// # world.finalize()
/// # }
/// ```
pub struct Plan {
    comm: Communicator,
    shape: ArrayShape,
    /// In the order of their description.
    messages: Vec<Planned>,
    /// Their indices in the order in which they are started: receives first, so that messages find them.
    order: Vec<usize>,
    /// Where the messages' memory is said to be.
    bound: Region,
    /// Bytes of it that are received into, `start..end`, in ascending order and apart from each other.
    written: Arc<[(u64, u64)]>,
    /// What the last exchange started, and which messages that is.
    started: Vec<(usize, RequestId)>,
    /// How the messages went; meaningful if `complete`.
    statuses: Vec<Status>,
    complete: bool,
}

/// A message of a plan.
#[derive(Debug)]
struct Planned {
    typed: Typed,
    what: PlannedMessage,
}

#[derive(Clone, Copy, Debug)]
enum PlannedMessage {
    Send { dest: u32, tag: i32 },
    Recv { source: Source, tag: TagSel },
}

impl fmt::Display for PlannedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlannedMessage::Send { dest, tag } => write!(f, "to rank {dest} with tag {tag}"),
            PlannedMessage::Recv { source, tag } => {
                match source {
                    Source::Rank(rank) => write!(f, "from rank {rank}")?,
                    Source::Any => f.write_str("from any rank")?,
                }
                match tag {
                    TagSel::Is(tag) => write!(f, " with tag {tag}"),
                    TagSel::Any => f.write_str(" with any tag"),
                }
            }
        }
    }
}

fn check_served(comm: &Communicator, region: Region) -> Result<(), Error> {
    let space = region.space();
    comm.shared.with(|state| {
        let pml = state.open()?;
        if pml.serves(space) { Ok(()) } else { Err(pml.no_engine(space).into()) }
    })
}

fn check_rank(comm: &Communicator, rank: u32, what: &'static str) -> Result<(), Error> {
    let size = comm.comm.peers().size();
    match rank < size {
        true => Ok(()),
        false => Err(PmlError::InvalidRank { what, rank, size }.into()),
    }
}

fn check_tag(tag: i32) -> Result<(), Error> {
    match tag < 0 {
        true => Err(PmlError::InvalidTag { tag }.into()),
        false => Ok(()),
    }
}

impl Plan {
    fn of(
        comm: Communicator,
        shape: ArrayShape,
        bound: Region,
        messages: Vec<Planned>,
        written: Arc<[(u64, u64)]>,
    ) -> Plan {
        let is_send = |index: &usize| matches!(messages[*index].what, PlannedMessage::Send { .. });
        let (sends, mut order): (Vec<_>, Vec<_>) = (0..messages.len()).partition(is_send);
        order.extend(sends);
        let started = Vec::with_capacity(messages.len());
        let statuses = vec![Status::of_nothing(0); messages.len()];
        let complete = false;
        Plan { comm, shape, messages, order, bound, written, started, statuses, complete }
    }

    /// Starts all messages, and waits for all of them; gives their statuses in the order of their description. The array
    /// is the one that the plan was made for, or another of the same element type, length and space.
    ///
    /// It does not return, or unwind, before all of them have ended, or the world was given up and their memory taken
    /// back.
    ///
    /// # Errors
    /// Another kind of array ([`Error::OtherArray`]): nothing was started. The first failure ([`Error::Planned`]), once
    /// all others have ended; their statuses are lost. In any case nothing is in flight, but for memory of a device in a
    /// world that was given up. The plan can be used again. Neighbours may be a step apart then, and messages of a step
    /// look like those of the next: agree with them first, on a new communicator ([`Communicator::shrink`]) for instance.
    /// Parts that were received into may have changed.
    pub fn exchange<B: PlanBuffer + ?Sized>(&mut self, array: &mut B) -> Result<&[Status], Error> {
        let (region, element) = array.place_mut();
        self.bind(region, element)?;
        // SAFETY: all messages lie in `array` (`bind`), which is borrowed exclusively until this call has returned.
        unsafe { self.run() }
    }

    /// As [`exchange`](Plan::exchange), and does other work between the start and the wait; gives what `work` gives.
    /// While no thread is in a call, only short messages get on, unless there is a
    /// [progress thread](crate::Builder::progress_thread). [`exchange_beside`](Plan::exchange_beside) is for work that
    /// reads the array.
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// # use gapless::{Datatype, Primitive, World};
    /// # let world = World::init()?;
    /// # let comm = world.comm();
    /// let one = Datatype::from(Primitive::Double).commit()?;
    /// let mut halo = [1.0, 0.0];
    /// let mut plan = comm.plan(&halo).send(0, &one, 1, comm.rank(), 0)?.recv(1, &one, 1, comm.rank(), 0)?.build()?;
    /// let sum: f64 = plan.exchange_while(&mut halo, || (1..=10).map(f64::from).sum())?;
    /// assert_eq!((sum, halo[1]), (55.0, 1.0));
    /// assert_eq!(plan.statuses()[1].bytes, 8);
    /// # world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`exchange`](Plan::exchange). If messages cannot be started, `work` is not called.
    ///
    /// # Panics
    /// If `work` does, once all messages have ended. Those that no peer takes part in are cancelled then, as by
    /// [`Communicator::scope`].
    pub fn exchange_while<B: PlanBuffer + ?Sized, R>(
        &mut self,
        array: &mut B,
        work: impl FnOnce() -> R,
    ) -> Result<R, Error> {
        let (region, element) = array.place_mut();
        self.bind(region, element)?;
        // SAFETY: as in `exchange`.
        unsafe { self.around(work) }
    }

    /// As [`exchange`](Plan::exchange), in memory that the borrow checker does not know. The plan is one of
    /// [`Communicator::plan_region`] (or of an array of bytes), and `region` is as long as its own, in the same space.
    ///
    /// # Safety
    /// Until this returns, `region` describes memory that is valid for reads and writes by whatever engine serves its
    /// space. Nothing else writes the parts that are sent, or touches those that are received into. If it is memory of
    /// a device, and the world was given up ([`Error::Poisoned`]) meanwhile, this holds until peers are gone. Such
    /// memory is [invalidated](crate::World::invalidate) before it is freed, unless [`Config`](crate::Config) says that
    /// it is not shared.
    ///
    /// # Errors
    /// As [`exchange`](Plan::exchange).
    pub unsafe fn exchange_region(&mut self, region: Region) -> Result<&[Status], Error> {
        self.bind(region, ElementType::of::<u8>())?;
        // SAFETY: all messages lie in `region` (`bind`), and the caller vouches for that.
        unsafe { self.run() }
    }

    /// How the messages of the last exchange went, in the order of their description; empty if it failed, or there was
    /// none.
    #[must_use]
    pub fn statuses(&self) -> &[Status] {
        if self.complete { &self.statuses } else { &[] }
    }

    /// How many messages there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Bytes that an exchange sends.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        let sends =
            self.messages.iter().filter(|it| matches!(it.what, PlannedMessage::Send { .. }));
        sends.map(|it| it.typed.packed_bytes()).sum()
    }

    /// Has all messages lie in this memory.
    fn bind(&mut self, region: Region, element: ElementType) -> Result<(), Error> {
        self.complete = false;
        self.shape.check(region, element)?;
        if region != self.bound {
            for message in &mut self.messages {
                message.typed.rebase(region)?;
            }
            self.bound = region;
        }
        Ok(())
    }

    /// Starts all messages and waits for them, without letting go of the lock if they end at once.
    ///
    /// # Safety
    /// Until this returns, the memory that sends lie in is valid for reads, and that of receives for writes as well.
    /// Nothing else writes it, and nothing else touches what they write.
    unsafe fn run(&mut self) -> Result<&[Status], Error> {
        let Plan { comm, messages, order, started, statuses, complete, .. } = self;
        let shared = &*comm.shared;
        let mut state = shared.lock()?;
        shared.now_and_then(&mut state);
        // SAFETY: the caller's promise lasts until this returns, which is after `Ended::all` has seen the end of each
        // request that was started, or the world was given up.
        let failed = unsafe { start(shared, &mut state, &comm.comm, messages, order, started) };
        let mut ended = Ended { at: 0, messages, started, statuses, failed, cancelled: false };
        if let Look::Found(()) = ended.all(&mut state) {
            state.done();
        } else {
            shared.wait_held(state, |state| ended.all(state))?;
        }
        ended.failed?;
        *complete = true;
        Ok(statuses)
    }

    /// Starts all messages, works, and waits for them.
    ///
    /// # Safety
    /// Until this returns or unwinds, the memory that sends lie in is valid for reads, and that of receives for writes as
    /// well. Nothing else writes it, and nothing else touches what they write.
    unsafe fn around<R>(&mut self, work: impl FnOnce() -> R) -> Result<R, Error> {
        // SAFETY: the caller's promise lasts until `settle` below has returned. That is reached whatever `work` does, as
        // a panic is caught; and it returns when all messages have ended, or the world was given up, which takes
        // memory back first.
        let worked = unsafe { self.start() }.map(|()| catch_unwind(AssertUnwindSafe(work)));
        let settled = self.settle(matches!(worked, Ok(Err(_))));
        self.complete &= worked.is_ok();
        match worked? {
            Ok(value) => settled.map(|()| value),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Starts all messages that can be started.
    ///
    /// # Safety
    /// As [`around`](Plan::around), until [`settle`](Plan::settle) has returned.
    unsafe fn start(&mut self) -> Result<(), Error> {
        let Plan { comm, messages, order, started, .. } = self;
        // Nothing of the exchange before, if the world cannot be had.
        started.clear();
        let shared = &*comm.shared;
        shared.with(|state| {
            // SAFETY: the caller's promise.
            unsafe { start(shared, state, &comm.comm, messages, order, started) }
        })
    }

    /// Waits for all messages that were started; with `cancelled`, they are cancelled as far as possible before.
    fn settle(&mut self, cancelled: bool) -> Result<(), Error> {
        let Plan { comm, messages, started, statuses, complete, .. } = self;
        let shared = &*comm.shared;
        let mut state = shared.lock()?;
        if cancelled {
            cancel(&mut state, started);
        }
        let mut ended = Ended { at: 0, messages, started, statuses, failed: Ok(()), cancelled };
        shared.wait_held(state, |state| ended.all(state))?;
        ended.failed?;
        *complete = !cancelled;
        Ok(())
    }
}

/// Starts all messages. One that cannot be started keeps none of the others back: their peers wait for them.
///
/// # Safety
/// As [`Plan::start`], until the requests in `started` have ended.
///
/// # Errors
/// The first that cannot be started.
#[inline]
unsafe fn start(
    shared: &Shared,
    state: &mut WorldState,
    comm: &Comm,
    messages: &[Planned],
    order: &[usize],
    started: &mut Vec<(usize, RequestId)>,
) -> Result<(), Error> {
    started.clear();
    let pml = state.open()?;
    let mut failed = Ok(());
    for &index in order {
        let message = &messages[index];
        // SAFETY: the caller's promise.
        match unsafe { message.start(pml, comm) } {
            // There is room: as many as there are messages.
            Ok(id) => started.push((index, id)),
            Err(error) if failed.is_ok() => failed = Err(message.failed(index, error.into())),
            Err(_) => {}
        }
    }
    shared.rouse(state);
    failed
}

/// Cancels what no peer takes part in.
fn cancel(state: &mut WorldState, started: &[(usize, RequestId)]) {
    for &(_, id) in started {
        // What has been matched goes on.
        if matches!(state.cancel(id), Ok(false)) {
            let _ = state.pml.cancel_unfinished_send(id);
        }
    }
}

impl Planned {
    /// # Safety
    /// As [`Pml::isend`] or [`Pml::irecv`].
    #[inline]
    unsafe fn start(&self, pml: &mut Pml, comm: &Comm) -> Result<RequestId, PmlError> {
        match self.what {
            // SAFETY: the caller's promise.
            PlannedMessage::Send { dest, tag } => unsafe {
                pml.isend_mode(comm, &self.typed, dest, tag, SendMode::Standard)
            },
            // SAFETY: the caller's promise.
            PlannedMessage::Recv { source, tag } => unsafe {
                pml.irecv(comm, &self.typed, source, tag)
            },
        }
    }

    #[cold]
    fn failed(&self, index: usize, error: Failure) -> Error {
        let (message, error) = (self.what.to_string(), Box::new(error.into()));
        Error::Planned { index, message, error }
    }
}

/// How far the requests of an exchange have been seen to end.
struct Ended<'p> {
    at: usize,
    messages: &'p [Planned],
    started: &'p [(usize, RequestId)],
    statuses: &'p mut [Status],
    failed: Result<(), Error>,
    /// Those that end as cancelled are no failures.
    cancelled: bool,
}

impl Ended<'_> {
    #[inline]
    fn all(&mut self, state: &mut WorldState) -> Look<()> {
        while let Some(&(index, id)) = self.started.get(self.at) {
            match state.pml.collect(id) {
                Ok(None) => return Look::Until(id),
                Ok(Some(status)) => self.statuses[index] = status,
                Err(Failure { error: PmlError::Cancelled, .. }) if self.cancelled => {}
                Err(failure) if self.failed.is_ok() => {
                    self.failed = Err(self.messages[index].failed(index, failure));
                }
                Err(_) => {}
            }
            self.at += 1;
        }
        Look::Found(())
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages = self.messages.iter().map(|message| message.what.to_string());
        f.debug_list().entries(messages).finish()
    }
}

#[cfg(test)]
mod tests;
