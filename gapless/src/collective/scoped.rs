//! Non-blocking collectives on borrowed memory, in scopes.

use super::Collective;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::scope::Scope;
use crate::several::{Handle, InFlight, Pending, sealed};
use crate::shared::{Look, StateGuard, WorldState};
use gapless_coll::Operation;
use gapless_coll::runtime::{Fate, OpId, Started};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A collective in flight in a scope. Dropping it is fine: the scope's end waits for it.
#[derive(Debug)]
#[must_use = "wait for it, or let the scope's end do so"]
pub struct CollectiveRequest<'scope> {
    comm: &'scope Communicator,
    /// Where it stands until its result is known.
    among: &'scope Joined,
    begun: Started,
    operation: Operation,
    scope: PhantomData<&'scope mut &'scope ()>,
}

/// The collectives that a scope has begun and nobody has waited for.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    /// Whether there were ever any: most scopes begin none.
    any: AtomicBool,
    all: Mutex<BTreeMap<OpId, Operation>>,
}

impl Joined {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<OpId, Operation>> {
        // It is whole between any two statements.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Begins a collective. All methods of a scope that are named after a collective come down to this.
    ///
    /// A collective cannot be cancelled: a scope that ends early waits for it, and so for the ranks that take part.
    ///
    /// ```
    /// use gapless::{Collective, ReduceOp, World};
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = World::init()?;
    /// let comm = world.comm();
    /// let (mine, mut sum, mut most) = ([1.0f64, 2.0], [0.0; 2], [0.0; 2]);
    /// comm.scope(|s| {
    ///     let summed = s.begin(Collective::allreduce(&mine, &mut sum, ReduceOp::Sum))?;
    ///     let _ = s.iallreduce(&mine, &mut most, ReduceOp::Max)?; // the same by name
    ///     // Work that needs neither.
    ///     summed.wait()
    /// })?;
    /// assert_eq!(most, mine);
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Collective`]: the arguments are refused.
    pub fn begin(
        &'scope self,
        collective: Collective<'scope>,
    ) -> Result<CollectiveRequest<'scope>, Error> {
        let comm = self.comm();
        let operation = collective.operation;
        let among = &self.collectives;
        let note = |id| {
            among.any.store(true, Ordering::Relaxed);
            among.lock().insert(id, operation);
        };
        // SAFETY: the description's memory is borrowed for `'scope`, which ends after the scope has waited for all
        // collectives on its list, or the world was given up, which takes memory back first.
        let begun = unsafe { comm.begin_noted(collective, note) }?;
        Ok(CollectiveRequest { comm, among, begun, operation, scope: PhantomData })
    }

    /// Waits for all collectives that the scope's body has not waited for; the first failure.
    pub(crate) fn join_collectives(&self) -> Result<(), Error> {
        // Threads that were in the scope's body have been joined, so this is up to date.
        if !self.collectives.any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut first = Ok(());
        let all = std::mem::take(&mut *self.collectives.lock());
        for (id, operation) in all {
            let comm = self.comm();
            let fate = comm.fate(id)?;
            first = first.and(comm.ended(operation, fate));
        }
        first
    }
}

impl Communicator {
    /// How a collective went, if it has ended; makes progress.
    pub(super) fn test(&self, operation: Operation, id: OpId) -> Option<Result<(), Error>> {
        let fate = self.shared.with(|state| {
            self.shared.drive_once(state);
            Ok(take(state, id))
        });
        match fate {
            Ok(Fate::Going(_)) => None,
            Ok(fate) => Some(self.ended(operation, fate)),
            Err(error) => Some(Err(error)),
        }
    }

    /// Waits until a collective goes on no more.
    pub(super) fn fate(&self, id: OpId) -> Result<Fate, Error> {
        let mut state = self.shared.lock()?;
        self.shared.now_and_then(&mut state);
        if !state.has_left() {
            self.shared.look_held(&mut state, |state, look| {
                let WorldState { pml, collectives, spent, .. } = state;
                collectives.hurry((pml, spent), id, look);
            });
        }
        self.fate_held(state, id)
    }

    /// As [`fate`](Self::fate), if the caller has the lock already.
    pub(super) fn fate_held(&self, mut state: StateGuard<'_>, id: OpId) -> Result<Fate, Error> {
        let look = |fate| match fate {
            Fate::Going(request) => Look::Until(request),
            fate => Look::Found(fate),
        };
        match look(take(&mut state, id)) {
            Look::Found(fate) => {
                state.done();
                Ok(fate)
            }
            _ => self.shared.wait_held(state, |state| look(take(state, id))),
        }
    }

    /// How a collective went, if it has ended; otherwise `waker` is called when it has.
    pub(super) fn poll(
        &self,
        operation: Operation,
        id: OpId,
        waker: &Waker,
    ) -> Poll<Result<(), Error>> {
        // Cloned before the lock is taken, and the replaced one is dropped after: wakers may do anything.
        let mut waker = Some(waker.clone());
        let fate = self.shared.with(|state| {
            let fate = take(state, id);
            if let Fate::Going(request) = fate {
                state.pml.notify(request, &mut waker)?;
            }
            Ok(fate)
        });
        match fate {
            Ok(Fate::Going(_)) => Poll::Pending,
            Ok(fate) => Poll::Ready(self.ended(operation, fate)),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

fn take(state: &mut WorldState, id: OpId) -> Fate {
    let WorldState { pml, collectives, .. } = state;
    collectives.take(pml, id)
}

impl CollectiveRequest<'_> {
    /// Waits until this rank's part is over.
    ///
    /// # Errors
    /// As [`Communicator::perform`].
    pub fn wait(self) -> Result<(), Error> {
        if self.begun.is_over() {
            return Ok(());
        }
        let fate = self.comm.fate(self.begun.id)?;
        self.among.lock().remove(&self.begun.id);
        self.comm.ended(self.operation, fate)
    }

    /// How it went, if this rank's part is over; makes progress.
    ///
    /// # Errors
    /// Still in flight: the request again.
    pub fn test(self) -> Result<Result<(), Error>, Self> {
        let Some(result) = self.comm.test(self.operation, self.begun.id) else {
            return Err(self);
        };
        self.among.lock().remove(&self.begun.id);
        Ok(result)
    }
}

impl InFlight for CollectiveRequest<'_> {}

impl sealed::InFlight for CollectiveRequest<'_> {
    fn pending(&self) -> Pending<'_> {
        Pending::new(&self.comm.shared, Some(self.begun.request))
    }
}

impl Handle for CollectiveRequest<'_> {
    type Ended = Result<(), Error>;

    fn wait(self) -> Self::Ended {
        CollectiveRequest::wait(self)
    }

    fn test(self) -> Result<Self::Ended, Self> {
        CollectiveRequest::test(self)
    }
}
