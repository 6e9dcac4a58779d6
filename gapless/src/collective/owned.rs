//! Collectives that own their buffers: begun once, or described once and started again and again (MPI 4.1 §6.13).

use super::Collective;
use super::handle::CollectiveHandle;
use crate::communicator::Communicator;
use crate::completion::{Ending, Watched, on_done};
use crate::error::Error;
use crate::owned::{Owned, OwnedBuffer, OwnedBufferMut, Park, Refused};
use crate::several::{InFlight, Pending, sealed, several_owned};
use crate::view::{View, ViewMut};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Buffers, and how their collective went.
type Over<S, R> = ((S, R), Result<(), Error>);

/// A collective that is described once. Its buffers can be read and changed while it is inactive, not while it is
/// active.
///
/// ```
/// use gapless::{Collective, ReduceOp, World};
/// # fn main() -> Result<(), gapless::Error> {
/// let world = World::init()?;
/// let comm = world.comm();
/// let mut sum = comm.collective_init(vec![0.0f64; 100], vec![0.0f64; 100], |send, recv| {
///     Collective::allreduce(send, recv, ReduceOp::Sum)
/// })?;
/// for step in 0..10 {
///     sum.buffers_mut()?.0.fill(f64::from(step));
///     sum.start()?;
///     sum.wait()?;
///     assert_eq!(sum.buffers()?.1[99], f64::from(step * comm.size()));
/// }
/// // `()` is no buffer.
/// let mut word = comm.collective_init((), vec![7u8], |_, recv| Collective::bcast(recv, 0))?;
/// word.start()?;
/// word.wait()?;
/// world.finalize()
/// # }
/// ```
///
/// Dropping it frees it; what is in flight goes on, and its buffers are freed after that.
pub struct PersistentCollective<S: OwnedBuffer, R: OwnedBuffer>(CollectiveParts<S, R>);

/// A collective in flight that owns its buffers. Dropping it is fine: the collective goes on without it.
#[must_use = "the buffers come back from `wait`"]
pub struct OwnedCollective<S: OwnedBuffer, R: OwnedBuffer>(CollectiveParts<S, R>);

/// A collective, and its buffers.
struct CollectiveParts<S: OwnedBuffer, R: OwnedBuffer> {
    handle: CollectiveHandle,
    /// `None` once the buffers were given back, or it is dropped.
    memory: Option<(S::Parked, R::Parked)>,
}

/// A description, and the memory that it describes.
pub(super) struct Described<S: OwnedBuffer, R: OwnedBuffer> {
    pub(super) collective: Collective<'static>,
    pub(super) memory: (S::Parked, R::Parked),
}

impl Communicator {
    /// Describes a collective of buffers that it takes over (`MPI_Allreduce_init` and its like, MPI 4.1 §6.13).
    /// `describe` gets views of them; for an operation that needs only one, the other is `()`. All ranks call this in
    /// the same order among their collectives; later starts need no order. Any number may exist. One call in 512 makes a
    /// communicator for those that follow, and waits for the other ranks.
    ///
    /// # Errors
    /// As [`perform`](Communicator::perform); as [`dup`](Communicator::dup). The buffers come back with the error.
    pub fn collective_init<S: OwnedBuffer, R: OwnedBufferMut>(
        &self,
        send: impl Into<Owned<S>>,
        recv: impl Into<Owned<R>>,
        describe: impl for<'v> FnOnce(View<'v>, ViewMut<'v>) -> Collective<'v>,
    ) -> Result<PersistentCollective<S, R>, Refused<(S, R)>> {
        self.keep_persistent(described(send.into(), recv.into(), describe)?)
    }

    /// Keeps a persistent one.
    pub(super) fn keep_persistent<S: OwnedBuffer, R: OwnedBuffer>(
        &self,
        described: Described<S, R>,
    ) -> Result<PersistentCollective<S, R>, Refused<(S, R)>> {
        // SAFETY: as `keep` says.
        let init = |collective: Collective<'_>| unsafe { CollectiveHandle::init(self, collective) };
        Ok(PersistentCollective(keep(described, init)?))
    }

    /// Begins a collective of buffers that it takes over; [`OwnedCollective::wait`] returns them. `describe` gets views
    /// of them, as for [`collective_init`](Communicator::collective_init).
    ///
    /// ```
    /// use gapless::{Collective, World};
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = World::init()?;
    /// let comm = world.comm();
    /// let all = vec![0u32; comm.size() as usize];
    /// let gathered = comm.begin_owned(vec![comm.rank()], all, |send, recv| {
    ///     Collective::allgather(send, recv)
    /// })?;
    /// let ((_, all), result) = gathered.wait();
    /// result?;
    /// assert!((0..comm.size()).eq(all));
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`perform`](Communicator::perform). The buffers come back with the error.
    pub fn begin_owned<S: OwnedBuffer, R: OwnedBufferMut>(
        &self,
        send: impl Into<Owned<S>>,
        recv: impl Into<Owned<R>>,
        describe: impl for<'v> FnOnce(View<'v>, ViewMut<'v>) -> Collective<'v>,
    ) -> Result<OwnedCollective<S, R>, Refused<(S, R)>> {
        self.begin_described(described(send.into(), recv.into(), describe)?)
    }

    /// Begins one.
    pub(super) fn begin_described<S: OwnedBuffer, R: OwnedBuffer>(
        &self,
        described: Described<S, R>,
    ) -> Result<OwnedCollective<S, R>, Refused<(S, R)>> {
        // SAFETY: as `keep` says.
        let begin =
            |collective: Collective<'_>| unsafe { CollectiveHandle::begin(self, collective) };
        Ok(OwnedCollective(keep(described, begin)?))
    }
}

/// Gives the world a collective. The memory goes into the value that is returned. While the collective is active nobody
/// gets at it: the buffers are refused, dropping the value gives the memory to the world to keep, and a value that is
/// forgotten never frees it.
fn keep<S: OwnedBuffer, R: OwnedBuffer>(
    described: Described<S, R>,
    enter: impl FnOnce(Collective<'_>) -> Result<CollectiveHandle, Error>,
) -> Result<CollectiveParts<S, R>, Refused<(S, R)>> {
    let Described { collective, memory } = described;
    match enter(collective) {
        Ok(handle) => Ok(CollectiveParts { handle, memory: Some(memory) }),
        Err(error) => Err(Refused { error, buffer: (memory.0.unpark(), memory.1.unpark()) }),
    }
}

/// A buffer taken apart, and what is described of it.
type Parked<B, T> = (<B as OwnedBuffer>::Parked, T);

/// The same, or why not.
type Parking<B, T> = Result<Parked<B, T>, Refused<B>>;

/// Both buffers of a collective, or why not.
type Parkings<S, T, R, U> = Result<(Parked<S, T>, Parked<R, U>), Refused<(S, R)>>;

/// Takes two buffers apart, each in its way, or neither.
pub(super) fn park_both<A, B, S: OwnedBuffer, R: OwnedBuffer, T, U>(
    send: A,
    recv: B,
    (sent, received): (impl FnOnce(A) -> Parking<S, T>, impl FnOnce(B) -> Parking<R, U>),
    untouched: impl FnOnce(B) -> R,
) -> Parkings<S, T, R, U> {
    let out = match sent(send) {
        Ok(out) => out,
        Err(Refused { error, buffer }) => {
            return Err(Refused { error, buffer: (buffer, untouched(recv)) });
        }
    };
    match received(recv) {
        Ok(inn) => Ok((out, inn)),
        Err(Refused { error, buffer }) => Err(Refused { error, buffer: (out.0.unpark(), buffer) }),
    }
}

/// Takes the buffers apart and has them described.
fn described<S: OwnedBuffer, R: OwnedBuffer>(
    send: Owned<S>,
    recv: Owned<R>,
    describe: impl for<'v> FnOnce(View<'v>, ViewMut<'v>) -> Collective<'v>,
) -> Result<Described<S, R>, Refused<(S, R)>> {
    let ways = (Owned::park, Owned::park);
    let ((out, sent), (inn, received)) = park_both(send, recv, ways, |recv| recv.buffer)?;
    // SAFETY: the description is used only while the memory is kept: see `keep`. `describe` can keep neither view, as
    // it must do with any lifetime.
    let view = unsafe { View::of_typed(sent) };
    // SAFETY: as above; nothing else refers to the memory.
    let room = unsafe { ViewMut::of_typed(received) };
    Ok(Described { collective: describe(view, room), memory: (out, inn) })
}

impl<S: OwnedBuffer, R: OwnedBuffer> CollectiveParts<S, R> {
    /// Once, and only while it is inactive.
    fn take_buffers(&mut self) -> (S, R) {
        let (out, inn) = self.memory.take().expect("the buffers are given back once");
        (out.unpark(), inn.unpark())
    }
}

impl<S: OwnedBuffer, R: OwnedBuffer> Drop for CollectiveParts<S, R> {
    fn drop(&mut self) {
        // Only if it is active may anybody use the memory.
        let active = self.handle.active().is_some();
        if let Some(memory) = self.memory.take().filter(|_| active) {
            self.handle.leave(memory);
        }
    }
}

impl<S: OwnedBuffer, R: OwnedBuffer> PersistentCollective<S, R> {
    /// Starts it (`MPI_Start`). What goes wrong after that, [`wait`](PersistentCollective::wait) or
    /// [`test`](PersistentCollective::test) says; that it went wrong once is no reason not to start it again.
    ///
    /// # Errors
    /// [`PmlError::StillActive`](crate::PmlError::StillActive): it was started, and not waited for.
    /// [`Error::Finalized`]; [`Error::Poisoned`]. It has not been started then, and is as before.
    pub fn start(&mut self) -> Result<(), Error> {
        // SAFETY: the memory is this value's own, and is kept as `keep` says.
        unsafe { self.0.handle.start() }
    }

    /// Starts several (`MPI_Startall`, MPI 4.1 §3.9).
    ///
    /// # Errors
    /// The first that cannot be started; those before it are active.
    pub fn start_all<'p>(
        several: impl IntoIterator<Item = &'p mut PersistentCollective<S, R>>,
    ) -> Result<(), Error>
    where
        S: 'p,
        R: 'p,
    {
        several.into_iter().try_for_each(PersistentCollective::start)
    }

    /// Waits until this rank's part is over; then it is inactive.
    ///
    /// # Errors
    /// As [`Communicator::perform`]; it was inactive.
    pub fn wait(&mut self) -> Result<(), Error> {
        if self.is_active() { self.0.handle.wait() } else { Err(Error::Inactive) }
    }

    /// How it went, if this rank's part is over; then it is inactive.
    ///
    /// # Errors
    /// As [`wait`](PersistentCollective::wait).
    pub fn test(&mut self) -> Result<Option<()>, Error> {
        if self.is_active() { self.0.handle.test().transpose() } else { Err(Error::Inactive) }
    }

    /// Whether it was started and not waited for.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.0.handle.active().is_some()
    }

    /// Both buffers.
    ///
    /// # Errors
    /// It is active.
    #[expect(clippy::type_complexity, reason = "two slices")]
    pub fn buffers(&self) -> Result<(&[S::Item], &[R::Item]), Error> {
        self.0.handle.idle()?;
        let (out, inn) = self.0.memory.as_ref().ok_or(Error::Inactive)?;
        // SAFETY: nothing is in flight (`idle`), and `start` needs this value exclusively.
        let sent = unsafe { out.items() };
        // SAFETY: as above.
        Ok((sent, unsafe { inn.items() }))
    }

    /// Both buffers, to be changed.
    ///
    /// # Errors
    /// It is active.
    #[expect(clippy::type_complexity, reason = "two slices")]
    pub fn buffers_mut(&mut self) -> Result<(&mut [S::Item], &mut [R::Item]), Error> {
        self.0.handle.idle()?;
        let (out, inn) = self.0.memory.as_mut().ok_or(Error::Inactive)?;
        // SAFETY: as in `buffers`.
        let sent = unsafe { out.items_mut() };
        // SAFETY: as above.
        Ok((sent, unsafe { inn.items_mut() }))
    }

    /// Returns the buffers, and forgets the description; waits for what is in flight.
    ///
    /// # Errors
    /// What was in flight failed; the error has the buffers.
    pub fn into_buffers(mut self) -> Result<(S, R), Refused<(S, R)>> {
        let ended = if self.is_active() { self.0.handle.wait() } else { Ok(()) };
        let buffer = self.0.take_buffers();
        match ended {
            Ok(()) => Ok(buffer),
            Err(error) => Err(Refused { error, buffer }),
        }
    }
}

impl<S: OwnedBuffer, R: OwnedBuffer> OwnedCollective<S, R> {
    /// Waits until this rank's part is over; returns the buffers, and how it went.
    pub fn wait(mut self) -> Over<S, R> {
        let result = self.0.handle.wait();
        (self.0.take_buffers(), result)
    }

    /// The buffers and how it went, if this rank's part is over.
    ///
    /// # Errors
    /// Still in flight: the handle again.
    pub fn test(mut self) -> Result<Over<S, R>, OwnedCollective<S, R>> {
        match self.0.handle.test() {
            None => Err(self),
            Some(result) => Ok((self.0.take_buffers(), result)),
        }
    }

    /// Calls `then` with the buffers and how it went, once this rank's part is over; as
    /// [`OwnedRequest::on_done`](crate::OwnedRequest::on_done).
    pub fn on_done<F>(self, then: F)
    where
        F: FnOnce((S, R), Result<(), Error>) + Send + 'static,
    {
        on_done(self, |(buffers, result)| then(buffers, result));
    }
}

several_owned!(OwnedCollective<S: OwnedBuffer, R: OwnedBuffer>, ((S, R), Result<(), Error>));

impl<S: OwnedBuffer, R: OwnedBuffer> Watched for OwnedCollective<S, R> {
    type Ended = Over<S, R>;

    fn poll_end(&mut self, waker: &Waker) -> Poll<Over<S, R>> {
        assert!(
            self.0.handle.active().is_some(),
            "a collective was polled after it had given its result"
        );
        self.0.handle.poll(waker).map(|result| (self.0.take_buffers(), result))
    }
}

// Nothing of it is pinned: its buffers lie elsewhere.
impl<S: OwnedBuffer, R: OwnedBuffer> Unpin for OwnedCollective<S, R> {}

/// Returns what [`OwnedCollective::wait`] returns.
///
/// # Panics
/// If it is polled again after it was ready.
impl<S: OwnedBuffer, R: OwnedBuffer> Future for OwnedCollective<S, R> {
    type Output = Over<S, R>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Over<S, R>> {
        self.get_mut().poll_end(context.waker())
    }
}

impl<S: OwnedBuffer, R: OwnedBuffer> InFlight for OwnedCollective<S, R> {}

impl<S: OwnedBuffer, R: OwnedBuffer> sealed::InFlight for OwnedCollective<S, R> {
    fn pending(&self) -> Pending<'_> {
        self.0.handle.pending()
    }
}

impl<S: OwnedBuffer, R: OwnedBuffer> Watched for PersistentCollective<S, R> {
    type Ended = Result<(), Error>;

    fn poll_end(&mut self, waker: &Waker) -> Poll<Self::Ended> {
        if self.is_active() { self.0.handle.poll(waker) } else { Poll::Ready(Err(Error::Inactive)) }
    }
}

/// Gives what [`PersistentCollective::wait`] gives.
impl<'p, S: OwnedBuffer, R: OwnedBuffer> IntoFuture for &'p mut PersistentCollective<S, R> {
    type Output = Result<(), Error>;
    type IntoFuture = Ending<'p, PersistentCollective<S, R>>;

    fn into_future(self) -> Self::IntoFuture {
        Ending(self)
    }
}

impl<S: OwnedBuffer, R: OwnedBuffer> InFlight for PersistentCollective<S, R> {}

impl<S: OwnedBuffer, R: OwnedBuffer> sealed::InFlight for PersistentCollective<S, R> {
    fn pending(&self) -> Pending<'_> {
        self.0.handle.pending()
    }
}

impl<S: OwnedBuffer, R: OwnedBuffer> fmt::Debug for PersistentCollective<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PersistentCollective({}, active: {})",
            self.0.handle.operation(),
            self.is_active()
        )
    }
}

impl<S: OwnedBuffer, R: OwnedBuffer> fmt::Debug for OwnedCollective<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedCollective({})", self.0.handle.operation())
    }
}
