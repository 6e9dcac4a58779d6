//! Requests of scopes, and the operations by the communicator's own name.

use super::Scope;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::several::{Handle, InFlight, Pending, sealed};
use crate::shared::Look;
use crate::view::{RecvBuffer, SendBuffer};
use gapless_pml::{RequestId, Source, Status, TagSel};
use std::fmt;
use std::marker::PhantomData;

/// An operation in flight in a scope. Dropping it is fine: the scope's end waits for it.
#[must_use = "wait for it, or let the scope's end do so"]
pub struct Request<'scope> {
    pub(super) id: RequestId,
    comm: &'scope Communicator,
    scope: PhantomData<&'scope mut &'scope ()>,
}

impl<'scope> Request<'scope> {
    /// One of the world of this communicator.
    #[inline]
    pub(super) fn new(id: RequestId, comm: &'scope Communicator) -> Request<'scope> {
        Request { id, comm, scope: PhantomData }
    }

    /// Waits until the operation has ended (`MPI_Wait`, MPI 4.1 §3.7.3).
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let comm = world.comm();
    /// let mut inbox = [0.0; 3];
    /// comm.scope(|s| {
    ///     let received = s.irecv(&mut inbox, 0, 7)?;
    ///     comm.isend(s, &[1.0, 2.0, 3.0], 0, 7)?.wait()?;
    ///     assert_eq!(received.wait()?.bytes, 24);
    ///     Ok(())
    /// })?;
    /// assert_eq!(inbox, [1.0, 2.0, 3.0]);
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// The operation failed.
    pub fn wait(self) -> Result<Status, Error> {
        self.comm.shared.wait(self.id)
    }

    /// The result if the operation has ended, else the request again (`MPI_Test`, MPI 4.1 §3.7.3).
    ///
    /// # Errors
    /// Still in flight.
    pub fn test(self) -> Result<Result<Status, Error>, Request<'scope>> {
        self.comm.shared.test(self.id).transpose().ok_or(self)
    }

    /// Cancels a receive that no message has matched yet (MPI 4.1 §3.8.4). Returns whether it did; waiting then
    /// reports [`PmlError::Cancelled`](crate::PmlError::Cancelled). A send is cancelled. If it has
    /// left for another process, the answer is `false`, and waiting tells whether it was cancelled or received, once its
    /// receiver has made progress.
    ///
    /// # Errors
    /// The world was left, or a thread panicked in it.
    pub fn cancel(&mut self) -> Result<bool, Error> {
        self.comm.shared.with(|state| state.cancel_request(self.id))
    }
}

impl InFlight for Request<'_> {}

impl sealed::InFlight for Request<'_> {
    fn pending(&self) -> Pending<'_> {
        Pending::new(&self.comm.shared, Some(self.id))
    }
}

impl Handle for Request<'_> {
    type Ended = Result<Status, Error>;

    fn wait(self) -> Self::Ended {
        Request::wait(self)
    }

    fn test(self) -> Result<Self::Ended, Self> {
        Request::test(self)
    }

    /// All with the lock held once, if they have ended.
    fn wait_all(several: impl IntoIterator<Item = Self>) -> Vec<Self::Ended> {
        let mut several = several.into_iter();
        let Some(first) = several.next() else { return Vec::new() };
        let shared = &first.comm.shared;
        let ids: Vec<_> = [first.id].into_iter().chain(several.map(|one| one.id)).collect();
        let mut ended = Vec::with_capacity(ids.len());
        let waited = shared.lock().and_then(|state| {
            shared.wait_held(state, |state| {
                while let Some(&id) = ids.get(ended.len()) {
                    match state.pml.collect(id).transpose() {
                        Some(result) => ended.push(result.map_err(Error::from)),
                        None => return Look::Until(id),
                    }
                }
                Look::Found(())
            })
        });
        if let Err(error) = waited {
            // The world was given up: nobody learns how the others go.
            ended.resize(ids.len(), Err(error));
        }
        ended
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({:?})", self.id)
    }
}

impl Communicator {
    /// Starts sending borrowed memory (`MPI_Isend`, MPI 4.1 §3.7.2) in a scope of any communicator of this world. As
    /// [`Scope::isend`], which is shorter for the scope's own communicator. [`isend_owned`](Communicator::isend_owned)
    /// needs no scope.
    ///
    /// # Errors
    /// As [`send`](Communicator::send); [`Error::OtherWorld`].
    pub fn isend<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        data: impl SendBuffer<'scope>,
        dest: u32,
        tag: i32,
    ) -> Result<Request<'scope>, Error> {
        scope.admits(self)?;
        scope.isend_on(&self.comm, data.into_view(), dest, tag)
    }

    /// Starts receiving into borrowed memory (`MPI_Irecv`, MPI 4.1 §3.7.2) in a scope of any communicator of this
    /// world. As [`Scope::irecv`], which is shorter for the scope's own communicator.
    /// [`irecv_owned`](Communicator::irecv_owned) needs no scope.
    ///
    /// # Errors
    /// As [`recv`](Communicator::recv); [`Error::OtherWorld`].
    pub fn irecv<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        into: impl RecvBuffer<'scope>,
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<Request<'scope>, Error> {
        scope.admits(self)?;
        scope.irecv_on(&self.comm, into.into_view(), source.into(), tag.into())
    }
}
