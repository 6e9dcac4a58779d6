//! Non-blocking collectives on borrowed memory, in scopes.

use super::Collective;
use super::live::{Fate, Number};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::scope::Scope;
use crate::shared::Look;
use gapless_coll::Operation;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A collective in flight in a scope. Dropping it is fine: the scope's end waits for it.
#[derive(Debug)]
#[must_use = "wait for it, or let the scope's end do so"]
pub struct CollectiveRequest<'scope> {
    comm: &'scope Communicator,
    /// Where it stands until its result is known.
    among: &'scope Joined,
    number: Number,
    operation: Operation,
    scope: PhantomData<&'scope mut &'scope ()>,
}

/// The collectives that a scope has begun and nobody has waited for.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    /// Whether there were ever any: most scopes begin none.
    any: AtomicBool,
    all: Mutex<BTreeMap<Number, Operation>>,
}

impl Joined {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Number, Operation>> {
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
        // SAFETY: the description's memory is borrowed for `'scope`, which ends after the scope has waited for all
        // collectives on its list, or the world was given up, which takes memory back first.
        let mut entry = Some(unsafe { comm.entry(collective, None) }?);
        comm.shared.with(|state| {
            let among = &self.collectives;
            among.any.store(true, Ordering::Relaxed);
            let mut list = among.lock();
            // Nothing comes between its beginning and its being noted.
            let number = comm.launch(state, &mut entry)?;
            list.insert(number, operation);
            Ok(CollectiveRequest { comm, among, number, operation, scope: PhantomData })
        })
    }

    /// Waits for all collectives that the scope's body has not waited for; the first failure.
    pub(crate) fn join_collectives(&self) -> Result<(), Error> {
        // Threads that were in the scope's body have been joined, so this is up to date.
        if !self.collectives.any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut first = Ok(());
        let all = std::mem::take(&mut *self.collectives.lock());
        for (number, operation) in all {
            let comm = self.comm();
            let fate = comm.fate(number)?;
            first = first.and(comm.ended(operation, fate));
        }
        first
    }
}

impl Communicator {
    /// How a collective went, if it has ended; makes progress.
    pub(super) fn test(&self, operation: Operation, number: Number) -> Option<Result<(), Error>> {
        let fate = self.shared.with(|state| {
            self.shared.drive(state);
            Ok(state.collectives.take(number))
        });
        match fate {
            Ok(Fate::Going) => None,
            Ok(fate) => Some(self.ended(operation, fate)),
            Err(error) => Some(Err(error)),
        }
    }

    /// Waits until a collective goes on no more.
    pub(super) fn fate(&self, number: Number) -> Result<Fate, Error> {
        let shared = &*self.shared;
        let mut state = shared.lock()?;
        shared.now_and_then(&mut state);
        let look = |fate| match fate {
            Fate::Going => Look::NotYet,
            fate => Look::Found(fate),
        };
        match look(state.collectives.take(number)) {
            Look::Found(fate) => {
                state.done();
                Ok(fate)
            }
            _ => shared.wait_held(state, |state| look(state.collectives.take(number))),
        }
    }
}

impl CollectiveRequest<'_> {
    /// Waits until this rank's part is over.
    ///
    /// # Errors
    /// As [`Communicator::perform`].
    pub fn wait(self) -> Result<(), Error> {
        let fate = self.comm.fate(self.number)?;
        self.among.lock().remove(&self.number);
        self.comm.ended(self.operation, fate)
    }

    /// How it went, if this rank's part is over; makes progress.
    ///
    /// # Errors
    /// Still in flight: the request again.
    pub fn test(self) -> Result<Result<(), Error>, Self> {
        let Some(result) = self.comm.test(self.operation, self.number) else { return Err(self) };
        self.among.lock().remove(&self.number);
        Ok(result)
    }
}
