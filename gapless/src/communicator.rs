//! Communicators: who a message is for, and the blocking operations.

mod checked;
mod exchange;
mod making;
mod message;
mod modes;
pub(crate) mod ranks;
mod shrink;
mod topology;

pub use message::Message;
pub use topology::Topology;

use crate::collective::CommunicatorState;
use crate::error::Error;
use crate::owned::{Owned, OwnedBuffer, OwnedBufferMut, OwnedRequest, Park, Refused};
use crate::shared::{Prefetch, Shared, Started, WorldState};
use crate::view::{RecvBuffer, SendBuffer, View, ViewMut};
use gapless_coll::Locality;
use gapless_engine::Typed;
use gapless_pml::{Comm, Pml, PmlError, RequestId, SendMode, Source, Status, TagSel};
use std::sync::Arc;

/// A group of processes that exchange messages which no other communicator sees (MPI 4.1 §7.2).
/// Cheap to clone; clones are the same communicator.
///
/// Ranks count from 0 within the communicator; tags are not negative. Every call that waits ends when its peer is
/// gone, with an error that names the peer.
///
/// Collectives are methods of it, too ([`Collective`](crate::Collective) describes them); all members call them in the
/// same order:
///
/// ```
/// use gapless::{InPlace, ReduceOp, World};
/// # fn main() -> Result<(), gapless::Error> {
/// let world = World::init()?;
/// let comm = world.comm();
/// let mut sum = [f64::from(comm.rank()), 1.0];
/// comm.allreduce(InPlace, &mut sum, ReduceOp::Sum)?;
/// assert_eq!(sum[1], f64::from(comm.size()));
/// // All ranks' numbers, in the order of the ranks, at rank 0 alone.
/// let mut all = vec![0u32; comm.size() as usize];
/// comm.gather(&[comm.rank()], &mut all, 0)?;
/// comm.barrier()?;
/// world.finalize()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Communicator {
    pub(crate) shared: Arc<Shared>,
    pub(crate) comm: Comm,
    pub(crate) common: Arc<CommunicatorState>,
}

impl Communicator {
    /// A communicator that has none yet.
    pub(crate) fn new(shared: &Arc<Shared>, comm: Comm) -> Communicator {
        let common = Arc::new(CommunicatorState::new(shared, &comm, None));
        Communicator { shared: Arc::clone(shared), comm, common }
    }

    /// This process's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.comm.rank()
    }

    /// How many processes there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.comm.size()
    }

    /// Sends and waits until the memory may be used again (`MPI_Send`, MPI 4.1 §3.2.1). That may
    /// be before the message is received, if it is short; to a process that this one has never met,
    /// even before it leaves: then it leaves in later calls of this process (MPI 4.1 §2.9). Whoever
    /// waits for an answer by other means than Gapless takes [`ssend`](Communicator::ssend).
    ///
    /// # Errors
    /// The peer is lost; no such rank; a negative tag.
    #[inline]
    pub fn send<'v>(
        &self,
        data: impl SendBuffer<'v>,
        dest: u32,
        tag: i32,
    ) -> Result<Status, Error> {
        self.send_view(&data.into_view(), dest, tag)
    }

    /// The part of [`send`](Communicator::send) that does not depend on the type of its argument.
    fn send_view(&self, view: &View<'_>, dest: u32, tag: i32) -> Result<Status, Error> {
        // SAFETY: `view` borrows its memory for reading until this call returns.
        let at_once =
            |pml: &mut Pml| unsafe { pml.send_at_once(&self.comm, &view.typed, dest, tag) };
        // SAFETY: as above, and that is after the request has ended.
        let start = |pml: &mut Pml| unsafe { pml.isend(&self.comm, &view.typed, dest, tag) };
        self.shared.finish(
            || Prefetch::to_read(&view.typed),
            |state| {
                self.shared.now_and_then(state);
                let pml = state.open()?;
                let started = match at_once(pml) {
                    Some(status) => Started::Over(status),
                    None => Started::InFlight(start(pml)?),
                };
                self.shared.rouse(state);
                Ok(started)
            },
        )
    }

    /// Receives and waits for the message (`MPI_Recv`, MPI 4.1 §3.2.4).
    ///
    /// # Errors
    /// The peer is lost; the message is longer than the view or of other basic types; no such
    /// rank; a negative tag. [`Error::status`] says which message it was, if one had been taken.
    #[inline]
    pub fn recv<'v>(
        &self,
        into: impl RecvBuffer<'v>,
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<Status, Error> {
        self.recv_view(&mut into.into_view(), source.into(), tag.into())
    }

    /// The part of [`recv`](Communicator::recv) that does not depend on its types.
    fn recv_view(
        &self,
        view: &mut ViewMut<'_>,
        source: Source,
        tag: TagSel,
    ) -> Result<Status, Error> {
        // SAFETY: `view` borrows its memory exclusively until this call returns.
        let look = |state: &mut WorldState| unsafe {
            self.shared.look_for(state, &self.comm, &view.typed, (source, tag))
        };
        // SAFETY: as above, and that is after the request has ended.
        let start = |pml: &mut Pml| unsafe { pml.irecv(&self.comm, &view.typed, source, tag) };
        self.shared.finish(
            || Prefetch::to_write(&view.typed),
            |state| {
                if let Some(status) = look(state)? {
                    return Ok(Started::Over(status));
                }
                let id = start(state.open()?)?;
                self.shared.rouse(state);
                Ok(Started::InFlight(id))
            },
        )
    }

    /// Waits for a message without receiving it (`MPI_Probe`, MPI 4.1 §3.8.1).
    ///
    /// # Errors
    /// The peer is lost; no such rank; a negative tag.
    pub fn probe(
        &self,
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<Status, Error> {
        let (source, tag) = (source.into(), tag.into());
        let call = || self.probes(source, tag);
        self.shared.wait_in(&call, |state| match state.open() {
            Ok(pml) => pml.find(&self.comm, source, tag).map_err(Error::from).transpose(),
            Err(error) => Some(Err(error)),
        })?
    }

    /// The next message that a receive like this would get, if it has come (`MPI_Iprobe`, MPI 4.1
    /// §3.8.1).
    ///
    /// # Errors
    /// As [`probe`](Communicator::probe).
    pub fn iprobe(
        &self,
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<Option<Status>, Error> {
        let (source, tag) = (source.into(), tag.into());
        self.shared.with(|state| {
            state.open()?;
            self.shared.drive_once(state);
            Ok(state.pml.find(&self.comm, source, tag)?)
        })
    }

    /// Starts sending a buffer that the request takes over; [`OwnedRequest::wait`] returns it.
    ///
    /// # Errors
    /// As [`send`](Communicator::send); the layout does not fit. The buffer comes back with the
    /// error.
    pub fn isend_owned<B: OwnedBuffer>(
        &self,
        data: impl Into<Owned<B>>,
        dest: u32,
        tag: i32,
    ) -> Result<OwnedRequest<B>, Refused<B>> {
        self.isend_owned_mode(data, dest, tag, SendMode::Standard)
    }

    /// As [`isend_owned`](Communicator::isend_owned), in a mode of one's choice.
    ///
    /// # Errors
    /// As [`isend_owned`](Communicator::isend_owned).
    pub fn isend_owned_mode<B: OwnedBuffer>(
        &self,
        data: impl Into<Owned<B>>,
        dest: u32,
        tag: i32,
        mode: SendMode,
    ) -> Result<OwnedRequest<B>, Refused<B>> {
        // SAFETY: `start_owned` says what holds until the request has ended.
        self.start_owned(data.into(), |typed| unsafe { self.start_send(typed, dest, tag, mode) })
    }

    /// Starts receiving into a buffer that the request takes over; [`OwnedRequest::wait`] returns it.
    ///
    /// # Errors
    /// As [`recv`](Communicator::recv); the layout does not fit. The buffer comes back with the
    /// error.
    pub fn irecv_owned<B: OwnedBufferMut>(
        &self,
        into: impl Into<Owned<B>>,
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<OwnedRequest<B>, Refused<B>> {
        let (source, tag) = (source.into(), tag.into());
        // SAFETY: `start_owned` says what holds until the request has ended.
        self.start_owned(into.into(), |typed| unsafe { self.start_recv(typed, source, tag) })
    }

    /// Which ranks are near each other, as all of them know: those of a host; and those of a socket, a NUMA node, a cache,
    /// if each rank was kept on processors of one when it joined the job. Of an intercommunicator: those of this group.
    ///
    /// ```
    /// use gapless::coll::Level;
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let locality = world.comm().locality().clone();
    /// println!("{} hosts, caches of {:?}", locality.hosts().len(), locality.groups(Level::L3));
    /// world.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn locality(&self) -> &Locality {
        self.common.locality(&self.comm, &self.shared.places)
    }

    /// Starts an operation on memory that this function has taken over: nothing refers to it, and it stays until the
    /// request has ended, whatever happens to the handle.
    pub(crate) fn start_owned<B: OwnedBuffer>(
        &self,
        owned: Owned<B>,
        start: impl FnOnce(&Typed) -> Result<RequestId, Error>,
    ) -> Result<OwnedRequest<B>, Refused<B>> {
        let (parked, typed) = owned.park()?;
        match start(&typed) {
            Ok(id) => Ok(OwnedRequest::new(&self.shared, id, parked)),
            Err(error) => Err(Refused { error, buffer: parked.unpark() }),
        }
    }

    /// Starts a send.
    ///
    /// # Safety
    /// Until the request has ended, the memory is valid for reads and nothing writes to it; in
    /// buffered mode, until this returns.
    pub(crate) unsafe fn start_send(
        &self,
        typed: &Typed,
        dest: u32,
        tag: i32,
        mode: SendMode,
    ) -> Result<RequestId, Error> {
        let short = |pml: &mut Pml| match mode {
            // SAFETY: the caller's promise is the one that is asked for.
            SendMode::Standard => unsafe { pml.isend_short(&self.comm, typed, dest, tag) },
            _ => None,
        };
        if let Some(id) = self.start_short(short) {
            return Ok(id);
        }
        // SAFETY: as above.
        self.start(|pml| unsafe { pml.isend_mode(&self.comm, typed, dest, tag, mode) })
    }

    /// Starts something short, if nothing delays that.
    #[inline]
    fn start_short(&self, start: impl FnOnce(&mut Pml) -> Option<RequestId>) -> Option<RequestId> {
        self.shared.briefly(|state| {
            let id = start(state.open().ok()?)?;
            self.shared.rouse(state);
            Some(id)
        })
    }

    /// Starts something.
    #[inline]
    pub(crate) fn start(
        &self,
        start: impl FnOnce(&mut Pml) -> Result<RequestId, PmlError>,
    ) -> Result<RequestId, Error> {
        self.shared.with(|state| {
            let id = start(state.open()?)?;
            self.shared.rouse(state);
            Ok(id)
        })
    }

    /// Starts a receive.
    ///
    /// # Safety
    /// Until the request has ended, the memory is valid for reads and writes and nothing else
    /// touches it.
    pub(crate) unsafe fn start_recv(
        &self,
        typed: &Typed,
        source: Source,
        tag: TagSel,
    ) -> Result<RequestId, Error> {
        // SAFETY: the caller's promise is the one that is asked for.
        let short = |pml: &mut Pml| unsafe { pml.irecv_short(&self.comm, typed, source, tag) };
        if let Some(id) = self.start_short(short) {
            return Ok(id);
        }
        // SAFETY: as above.
        self.start(|pml| unsafe { pml.irecv(&self.comm, typed, source, tag) })
    }
}
