//! Persistent requests (MPI 4.1 §3.9): an operation on a buffer of its own, started again and again.

use super::{Owned, OwnedBuffer, OwnedBufferMut, Park, Refused};
use crate::communicator::Communicator;
use crate::completion::{Ending, Watched};
use crate::error::Error;
use crate::page_locked::{PageLocked, devices_for};
use crate::raw::{Request, RequestKind};
use crate::several::{InFlight, Pending, sealed};
use crate::shared::Shared;
use gapless_engine::REACHED_BYTES_MIN;
use gapless_pml::{SendMode, Source, Status, TagSel};
use gapless_xtq::Xtq;
use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// A send or receive that is described once. Its buffer can be read and changed while it is inactive, not while it is
/// active.
///
/// ```
/// # fn main() -> Result<(), gapless::Error> {
/// use gapless::SendMode;
/// let world = gapless::World::init()?;
/// let comm = world.comm();
/// let (right, left) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
/// let mut send = comm.send_init(vec![0.0f64; 100], right, 0, SendMode::Standard)?;
/// let mut recv = comm.recv_init(vec![0.0f64; 100], left, 0)?;
/// for step in 0..10 {
///     send.buffer_mut()?.fill(f64::from(step));
///     recv.start()?;
///     send.start()?;
///     send.wait()?;
///     recv.wait()?;
///     assert_eq!(recv.buffer()?[99], f64::from(step));
/// }
/// world.finalize()
/// # }
/// ```
///
/// A long `Vec` or `Box<[T]>` is [registered](crate::World::register) with the devices that are open once a message
/// with the same peer has shown that its memory is a device's, and stays so. For that the driver may wait until all
/// kernels on the GPU have ended. So as long as a worker of this world is there, a start registers nothing, and the
/// next one tries again. Kernels of yours that wait for the message are not known: give a request that is started beside
/// them a [`RegisteredBuf`](crate::RegisteredBuf), made before they start, and keep it until they have ended.
///
/// Dropping the request is `MPI_Request_free`: what is in flight goes on, and its buffer is freed after that.
pub struct Persistent<B: OwnedBuffer> {
    request: Request,
    /// `None` only while it is dropped.
    memory: Option<PageLocked<B::Parked>>,
    /// Nothing is to be registered, or no more.
    settled: bool,
}

impl Communicator {
    /// Describes a send of a buffer, which it takes over (`MPI_Send_init` and its like). Rank and tag are checked
    /// when it is started.
    ///
    /// # Errors
    /// The layout does not fit.
    pub fn send_init<B: OwnedBuffer>(
        &self,
        data: impl Into<Owned<B>>,
        dest: u32,
        tag: i32,
        mode: SendMode,
    ) -> Result<Persistent<B>, Refused<B>> {
        let (memory, typed) = data.into().park()?;
        let what = gapless_pml::Persistent::send(&self.comm, &typed, dest, tag, mode);
        Ok(Persistent::new(&self.shared, what, memory))
    }

    /// Describes a receive into a buffer, which it takes over (`MPI_Recv_init`). Rank and tag are checked when it is
    /// started.
    ///
    /// # Errors
    /// The layout does not fit.
    pub fn recv_init<B: OwnedBufferMut>(
        &self,
        into: impl Into<Owned<B>>,
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<Persistent<B>, Refused<B>> {
        let (memory, typed) = into.into().park()?;
        let what = gapless_pml::Persistent::recv(&self.comm, &typed, source.into(), tag.into());
        Ok(Persistent::new(&self.shared, what, memory))
    }
}

impl<B: OwnedBuffer> Persistent<B> {
    fn new(shared: &Arc<Shared>, what: gapless_pml::Persistent, memory: B::Parked) -> Self {
        let region = memory.region();
        let settled = !B::Parked::IS_ORDINARY || region.len() < REACHED_BYTES_MIN;
        // SAFETY: a parked buffer keeps its memory where it is, until it is dropped or put together again.
        let memory = Some(unsafe { PageLocked::new(memory, region) });
        Persistent {
            request: Request::new(shared, RequestKind::Persistent(Box::new(what)), None),
            memory,
            settled,
        }
    }

    /// Registers the buffer, once a message has shown that this helps.
    #[cold]
    fn register(&mut self) -> Result<(), Error> {
        let Persistent { request, memory: Some(memory), settled } = self else {
            return Ok(());
        };
        let shared = request.shared();
        let (devices, tasks) =
            shared.with(|state| match request.expects_device(state.open()?) {
                true => Ok((devices_for(state, memory.region().len())?, Some(state.tasks()))),
                false => Ok((Vec::new(), None)),
            })?;
        // The driver may wait until a worker has left, and that for a message.
        if tasks.iter().flatten().any(Xtq::has_resident_worker) {
            return Ok(());
        }
        *settled = !devices.is_empty();
        if let Err(error) = memory.register(devices) {
            tracing::info!(%error, "the buffer of a persistent request stays ordinary memory");
        }
        Ok(())
    }

    /// Starts it (`MPI_Start`).
    ///
    /// # Errors
    /// It is active; what [`Communicator::send_mode`] or [`Communicator::recv`] refuse.
    pub fn start(&mut self) -> Result<(), Error> {
        self.request.idle()?;
        if !self.settled {
            self.register()?;
        }
        // `memory` is this value's own, and is what the operation was described with. Until the request has ended nobody
        // gets at it: `buffer`, `buffer_mut` and `into_buffer` refuse while it is active, dropping gives it to the world
        // to keep, and a value that is forgotten never frees it.
        self.request.start()
    }

    /// Starts several (`MPI_Startall`).
    ///
    /// # Errors
    /// The first that cannot be started; those before it are active.
    pub fn start_all<'p>(
        several: impl IntoIterator<Item = &'p mut Persistent<B>>,
    ) -> Result<(), Error>
    where
        B: 'p,
    {
        several.into_iter().try_for_each(Persistent::start)
    }

    /// Waits until the operation has ended; then it is inactive.
    ///
    /// # Errors
    /// The operation failed; it is inactive.
    pub fn wait(&mut self) -> Result<Status, Error> {
        self.request.wait()
    }

    /// The result if the operation has ended; then it is inactive.
    ///
    /// # Errors
    /// The operation failed; it was inactive.
    pub fn test(&mut self) -> Result<Option<Status>, Error> {
        self.request.test().transpose()
    }

    /// Cancels a receive that no message has matched yet (MPI 4.1 §3.8.4). Returns whether it did; waiting then
    /// reports [`PmlError::Cancelled`](crate::PmlError::Cancelled). A send is cancelled. If it has left for another
    /// process, the answer is `false`, and waiting tells whether it was cancelled or received, once its receiver has
    /// made progress.
    ///
    /// # Errors
    /// It is inactive.
    pub fn cancel(&mut self) -> Result<bool, Error> {
        self.request.cancel()
    }

    /// Whether it was started and not waited for.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.request.is_active()
    }

    /// The buffer.
    ///
    /// # Errors
    /// It is active.
    pub fn buffer(&self) -> Result<&[B::Item], Error> {
        self.request.idle()?;
        let memory = self.memory.as_ref().ok_or(Error::Inactive)?;
        // SAFETY: nothing is in flight (`idle`), and `start` needs this value exclusively.
        Ok(unsafe { memory.owner().items() })
    }

    /// The buffer, to be changed.
    ///
    /// # Errors
    /// It is active.
    pub fn buffer_mut(&mut self) -> Result<&mut [B::Item], Error> {
        self.request.idle()?;
        let memory = self.memory.as_mut().ok_or(Error::Inactive)?;
        // SAFETY: as in `buffer`.
        Ok(unsafe { memory.owner_mut().items_mut() })
    }

    /// Returns the buffer, and forgets the description; waits for an operation in flight.
    ///
    /// # Errors
    /// The operation in flight failed; the error has the buffer.
    ///
    /// # Panics
    /// A driver does not let go of a registered buffer. That is never freed then.
    pub fn into_buffer(mut self) -> Result<B, Refused<B>> {
        let ended = if self.is_active() { self.wait().map(drop) } else { Ok(()) };
        let memory = self.memory.take().expect("it is there until the value is dropped");
        let parked = memory
            .into_owner()
            .unwrap_or_else(|error| panic!("a buffer stays registered: {error}"));
        let buffer = parked.unpark();
        match ended {
            Ok(()) => Ok(buffer),
            Err(error) => Err(Refused { error, buffer }),
        }
    }
}

impl<B: OwnedBuffer> Watched for Persistent<B> {
    type Ended = Result<Status, Error>;

    fn poll_end(&mut self, waker: &Waker) -> Poll<Self::Ended> {
        self.request.poll(waker)
    }
}

/// Gives what [`Persistent::wait`] gives.
impl<'p, B: OwnedBuffer> IntoFuture for &'p mut Persistent<B> {
    type Output = Result<Status, Error>;
    type IntoFuture = Ending<'p, Persistent<B>>;

    fn into_future(self) -> Self::IntoFuture {
        Ending(self)
    }
}

impl<B: OwnedBuffer> InFlight for Persistent<B> {}

impl<B: OwnedBuffer> sealed::InFlight for Persistent<B> {
    fn pending(&self) -> Pending<'_> {
        self.request.pending()
    }
}

impl<B: OwnedBuffer> Drop for Persistent<B> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.request.abandon(memory);
        }
    }
}

impl<B: OwnedBuffer> fmt::Debug for Persistent<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Persistent").field("active", &self.is_active()).finish_non_exhaustive()
    }
}
