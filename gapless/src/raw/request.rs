//! One request for everything that can be waited for.

use super::partitioned::Partitioned;
use crate::collective::{Collective, CollectiveHandle};
use crate::communicator::{Communicator, Message};
use crate::error::Error;
use crate::several::{self, InFlight, Pending, sealed};
use crate::shared::{Shared, WorldState};
use gapless_engine::Typed;
use gapless_pml::{
    CommRequest, Persistent, Pml, PmlError, RequestId, SendMode, Source, Status, TagSel,
};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Work whose end no message tells the world of.
pub(crate) trait Work: Send + Sync + fmt::Debug {
    /// Gets on with it; whether it is over. Called with the world's lock held, whenever the world makes progress.
    fn advance(&self, pml: &mut Pml) -> bool;

    /// What it gives once it is over. Called without the lock, once.
    fn finish(&self) -> Result<Status, Error>;
}

/// Something that was started, or can be: a message, a collective, a communicator that is being made, work of the
/// caller's. It is *active* until its result is taken ([`test`](Request::test), [`wait`](Request::wait)). A persistent
/// one can be started again then; others are of no use any more.
///
/// Dropping it is `MPI_Request_free` (MPI 4.1 §3.7.3): what is in flight goes on, and its memory stays the caller's
/// promise.
#[must_use = "wait for it"]
pub struct Request {
    pub(super) shared: Arc<Shared>,
    pub(super) kind: RequestKind,
    /// Of all but collectives.
    pub(super) active: Option<RequestId>,
}

pub(crate) enum RequestKind {
    Message,
    Persistent(Box<Persistent>),
    Collective(Box<CollectiveHandle>, Again),
    /// Ended by the caller.
    General,
    Partitioned(Arc<Partitioned>),
    Making(Box<Making>),
    Work(Arc<dyn Work>),
    Over(Status),
}

/// Whether a request can be started more than once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    Once,
    Often,
}

/// A communicator that is being made.
pub(crate) struct Making {
    parent: Communicator,
    request: CommRequest,
    made: Option<Communicator>,
}

impl Request {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        kind: RequestKind,
        active: Option<RequestId>,
    ) -> Request {
        Request { shared: Arc::clone(shared), kind, active }
    }

    /// Starts a send (`MPI_Isend` and its like, MPI 4.1 §3.7.2).
    ///
    /// # Safety
    /// Until the request has ended (also if it is dropped), the memory is valid for reads, and nothing writes it; in
    /// buffered mode, until this returns.
    ///
    /// # Errors
    /// As [`Communicator::send_mode`].
    #[inline]
    pub unsafe fn send(
        comm: &Communicator,
        typed: &Typed,
        dest: u32,
        tag: i32,
        mode: SendMode,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let id = unsafe { comm.start_send(typed, dest, tag, mode) }?;
        Ok(Request::new(&comm.shared, RequestKind::Message, Some(id)))
    }

    /// Starts a receive (`MPI_Irecv`, MPI 4.1 §3.7.2).
    ///
    /// # Safety
    /// Until the request has ended (also if it is dropped), the memory is valid for reads and writes, and nothing else
    /// touches it.
    ///
    /// # Errors
    /// As [`Communicator::recv`].
    #[inline]
    pub unsafe fn recv(
        comm: &Communicator,
        typed: &Typed,
        source: Source,
        tag: TagSel,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let id = unsafe { comm.start_recv(typed, source, tag) }?;
        Ok(Request::new(&comm.shared, RequestKind::Message, Some(id)))
    }

    /// Starts to receive a message that a matched probe has taken (`MPI_Imrecv`, MPI 4.1 §3.8.3).
    ///
    /// # Safety
    /// As for [`recv`](Request::recv).
    ///
    /// # Errors
    /// As [`Message::recv`]; the message is dropped.
    pub unsafe fn recv_message(message: Message, typed: &Typed) -> Result<Request, Error> {
        let shared = message.world();
        // SAFETY: the caller's promise.
        let id = unsafe { message.start(typed, &shared) }?;
        Ok(Request::new(&shared, RequestKind::Message, Some(id)))
    }

    /// Begins a collective (`MPI_Ibcast` and its like, MPI 4.1 §6.12). It cannot be cancelled.
    ///
    /// # Safety
    /// What the [description's](crate::raw::collective) maker has vouched for holds until the request has ended (also
    /// if it is dropped), whatever lifetime the description has.
    ///
    /// # Errors
    /// As [`Communicator::perform`], if this rank's arguments are refused.
    pub unsafe fn collective(
        comm: &Communicator,
        collective: Collective<'_>,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let handle = unsafe { CollectiveHandle::begin(comm, collective) }?;
        Ok(Request::new(&comm.shared, RequestKind::Collective(Box::new(handle), Again::Once), None))
    }

    /// Describes a send that can be [started](Request::start) (`MPI_Send_init` and its like, MPI 4.1 §3.9). Rank and
    /// tag are checked then.
    ///
    /// # Errors
    /// None now: rank and tag are checked by [`start`](Request::start).
    ///
    /// # Safety
    /// From each start on, until what was started has ended: as for [`send`](Request::send).
    pub unsafe fn send_init(
        comm: &Communicator,
        typed: &Typed,
        dest: u32,
        tag: i32,
        mode: SendMode,
    ) -> Result<Request, Error> {
        let what = Persistent::send(&comm.comm, typed, dest, tag, mode);
        Ok(Request::new(&comm.shared, RequestKind::Persistent(Box::new(what)), None))
    }

    /// Describes a receive that can be [started](Request::start) (`MPI_Recv_init`, MPI 4.1 §3.9). Rank and tag are
    /// checked then.
    ///
    /// # Errors
    /// None now: rank and tag are checked by [`start`](Request::start).
    ///
    /// # Safety
    /// From each start on, until what was started has ended: as for [`recv`](Request::recv).
    pub unsafe fn recv_init(
        comm: &Communicator,
        typed: &Typed,
        source: Source,
        tag: TagSel,
    ) -> Result<Request, Error> {
        let what = Persistent::recv(&comm.comm, typed, source, tag);
        Ok(Request::new(&comm.shared, RequestKind::Persistent(Box::new(what)), None))
    }

    /// Describes a collective that can be [started](Request::start) (`MPI_Bcast_init` and its like, MPI 4.1 §6.13). All
    /// ranks call this in the same order among their collectives; starts need no order. One call in 512 waits for the
    /// other ranks, as [`Communicator::collective_init`] does.
    ///
    /// # Safety
    /// From each start on, until what was started has ended: as for [`collective`](Request::collective).
    ///
    /// # Errors
    /// As [`Communicator::collective_init`].
    pub unsafe fn collective_init(
        comm: &Communicator,
        collective: Collective<'_>,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let handle = unsafe { CollectiveHandle::init(comm, collective) }?;
        Ok(Request::new(
            &comm.shared,
            RequestKind::Collective(Box::new(handle), Again::Often),
            None,
        ))
    }

    /// A request that ends when [`complete`](Request::complete) says so (`MPI_Grequest_start`, MPI 4.1 §13.2).
    ///
    /// # Errors
    /// The world was left or given up.
    pub fn general(comm: &Communicator) -> Result<Request, Error> {
        let id = comm.start(|pml| Ok(pml.begin_general()))?;
        Ok(Request::new(&comm.shared, RequestKind::General, Some(id)))
    }

    /// Ends a [general](Request::general) request (`MPI_Grequest_complete`, MPI 4.1 §13.2). Any thread may, also while
    /// others are in [`wait_any`](Request::wait_any).
    ///
    /// # Errors
    /// It is no general request, or was completed before.
    pub fn complete(&self) -> Result<(), Error> {
        let (RequestKind::General, Some(id)) = (&self.kind, self.active) else {
            return Err(PmlError::NoSuchRequest.into());
        };
        self.shared.with(|state| {
            state.pml.end_general(id)?;
            self.shared.rouse(state);
            Ok(())
        })
    }

    /// Starts to duplicate a communicator, with its topology (`MPI_Comm_idup`, MPI 4.1 §7.4.2). Collective as
    /// [`Communicator::dup`]. When the request has ended, [`made`](Request::made) gives the duplicate.
    ///
    /// # Errors
    /// As [`Communicator::dup`].
    pub fn dup(comm: &Communicator) -> Result<Request, Error> {
        let request = comm.start_dup()?;
        let making = Making { parent: comm.clone(), request, made: None };
        Ok(Request::new(
            &comm.shared,
            RequestKind::Making(Box::new(making)),
            Some(request.request()),
        ))
    }

    /// The communicator that was made, once.
    pub fn made(&mut self) -> Option<Communicator> {
        match &mut self.kind {
            RequestKind::Making(making) => making.made.take(),
            _ => None,
        }
    }

    /// A request that has ended already: a send to nobody, an operation that was done at once.
    pub fn ended(comm: &Communicator, status: Status) -> Request {
        Request::new(&comm.shared, RequestKind::Over(status), Some(RequestId::OVER))
    }

    /// A request for work of this process, which has begun.
    pub(crate) fn of_work(comm: &Communicator, work: Arc<dyn Work>) -> Result<Request, Error> {
        let begin = |state: &mut WorldState| begin_work(&comm.shared, state, Arc::clone(&work));
        let id = comm.shared.with(begin)?;
        Ok(Request::new(&comm.shared, RequestKind::Work(work), Some(id)))
    }

    /// Starts a persistent request (`MPI_Start`, MPI 4.1 §3.9).
    ///
    /// # Errors
    /// [`PmlError::StillActive`]; [`PmlError::NoSuchRequest`]: it is not persistent; what the operation refuses. It is
    /// as before then.
    pub fn start(&mut self) -> Result<(), Error> {
        if self.is_persistent() {
            self.idle()?;
        }
        let Request { shared, kind, active } = self;
        match kind {
            RequestKind::Persistent(what) => {
                // SAFETY: whoever described it has vouched for each start.
                let mut start = |pml: &mut Pml| unsafe { pml.start(what) };
                shared.with(|state| {
                    *active = Some(start(state.open()?)?);
                    shared.rouse(state);
                    Ok(())
                })
            }
            RequestKind::Partitioned(end) => shared.with(|state| {
                end.start(state.open()?);
                *active = Some(begin_work(shared, state, Arc::clone(end) as _)?);
                Ok(())
            }),
            // SAFETY: as above.
            RequestKind::Collective(handle, Again::Often) => unsafe { handle.start() },
            _ => Err(PmlError::NoSuchRequest.into()),
        }
    }

    /// # Errors
    /// [`PmlError::StillActive`].
    pub(crate) fn idle(&self) -> Result<(), Error> {
        if self.is_active() { Err(PmlError::StillActive.into()) } else { Ok(()) }
    }

    /// Whether it was [over](Request::ended) when it was made, and went well.
    #[must_use]
    #[inline]
    pub fn is_over(&self) -> bool {
        matches!(self.kind, RequestKind::Over(_))
    }

    /// Whether it was started, and its result was not taken.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.request().is_some()
    }

    /// Whether it can be [started](Request::start).
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        let kind = &self.kind;
        matches!(
            kind,
            RequestKind::Persistent(_)
                | RequestKind::Partitioned(_)
                | RequestKind::Collective(_, Again::Often)
        )
    }

    /// Its result, if it has ended (`MPI_Test`, MPI 4.1 §3.7.3); makes progress. Then it is inactive. The status of
    /// what is no message is [of nothing](Status::of_nothing); of what a window gave, it has the bytes.
    ///
    /// An inactive request gives [`Error::Inactive`].
    pub fn test(&mut self) -> Option<Result<Status, Error>> {
        if let RequestKind::Collective(handle, _) = &mut self.kind {
            if handle.active().is_none() {
                return Some(Err(Error::Inactive));
            }
            return handle.test().map(|ended| ended.map(|()| Status::of_nothing(0)));
        }
        let Some(id) = self.active else { return Some(Err(Error::Inactive)) };
        let ended = match self.kind {
            RequestKind::Over(status) => Ok(status),
            _ => self.shared.test(id).transpose()?,
        };
        Some(self.take(ended))
    }

    /// Waits until it has ended (`MPI_Wait`, MPI 4.1 §3.7.3). Then it is inactive.
    ///
    /// # Errors
    /// The operation failed; [`Error::Inactive`].
    #[inline]
    pub fn wait(&mut self) -> Result<Status, Error> {
        if let (RequestKind::Message, Some(id)) = (&self.kind, self.active) {
            self.active = None;
            return self.shared.wait(id);
        }
        self.wait_other()
    }

    fn wait_other(&mut self) -> Result<Status, Error> {
        if let RequestKind::Collective(handle, _) = &mut self.kind {
            handle.active().ok_or(Error::Inactive)?;
            return handle.wait().map(|()| Status::of_nothing(0));
        }
        let id = self.active.ok_or(Error::Inactive)?;
        let ended = match self.kind {
            RequestKind::Over(status) => Ok(status),
            _ => self.shared.wait(id),
        };
        self.take(ended)
    }

    /// The request of the message layer has ended: what there is to give now.
    fn take(&mut self, ended: Result<Status, Error>) -> Result<Status, Error> {
        self.active = None;
        match &mut self.kind {
            RequestKind::Making(making) => making.take(&self.shared, ended),
            RequestKind::Work(work) => ended.and_then(|_| work.finish()),
            RequestKind::Partitioned(end) => ended.and_then(|_| end.finish()),
            _ => ended,
        }
    }

    /// As [`test`](Request::test), with nothing taken: it stays active (`MPI_Request_get_status`, MPI 4.1 §3.7.6). Of
    /// a communicator that is being made, and of operations on windows, only whether they have ended: their errors come
    /// with the result.
    #[must_use]
    pub fn peek(&self) -> Option<Result<Status, Error>> {
        match (&self.kind, self.active) {
            (RequestKind::Collective(handle, _), _) => match handle.active() {
                Some(_) => handle.peek().map(|ended| ended.map(|()| Status::of_nothing(0))),
                None => Some(Err(Error::Inactive)),
            },
            (_, None) => Some(Err(Error::Inactive)),
            (RequestKind::Over(status), _) => Some(Ok(*status)),
            (_, Some(id)) => {
                let seen = self.shared.with(|state| {
                    self.shared.drive_once(state);
                    match state.pml.peek(id)? {
                        None if state.has_left() => Err(Error::Finalized),
                        seen => Ok(seen),
                    }
                });
                seen.transpose()
            }
        }
    }

    /// Cancels a receive that no message has matched yet, or a send (MPI 4.1 §3.8.4). Whether it did at once: waiting
    /// tells ([`PmlError::Cancelled`]). Everything else cannot be cancelled, and goes on.
    ///
    /// # Errors
    /// It is inactive; the world was left or given up.
    pub fn cancel(&self) -> Result<bool, Error> {
        let id = self.request().ok_or(Error::Inactive)?;
        match self.kind {
            RequestKind::Message | RequestKind::Persistent(_) => {
                self.shared.with(|state| state.cancel_request(id))
            }
            _ => Ok(false),
        }
    }

    /// Waits until one of several has ended (`MPI_Waitany`, MPI 4.1 §3.7.5); its index. Nothing is taken. `None` if
    /// none is active.
    ///
    /// # Errors
    /// [`Error::OtherWorld`]; [`Error::Finalized`]; [`Error::Poisoned`].
    pub fn wait_any(several: &[&Request]) -> Result<Option<usize>, Error> {
        match several {
            [] => Ok(None),
            [first, ..] => several::wait_any_in(&first.shared, several),
        }
    }

    /// Those of several that have ended (`MPI_Testsome`, MPI 4.1 §3.7.5): their indices, in order. Nothing is taken.
    /// Makes progress once.
    ///
    /// # Errors
    /// As [`wait_any`](Request::wait_any).
    pub fn test_some(several: &[&Request]) -> Result<Vec<usize>, Error> {
        match several {
            [] => Ok(Vec::new()),
            [first, ..] => several::test_some_in(&first.shared, several),
        }
    }

    /// Its result, if it is a message that has ended; otherwise `waker` is called when it has.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Result<Status, Error>> {
        let Some(id) = self.active else { return Poll::Ready(Err(Error::Inactive)) };
        let polled = self.shared.poll(id, waker);
        if polled.is_ready() {
            self.active = None;
        }
        polled
    }

    /// It is of no use any more. Gives what it has not waited for, which is the caller's now.
    pub(crate) fn forget(&mut self) -> Option<RequestId> {
        self.active.take()
    }

    /// A message in flight is left to the world, which keeps its memory until it has ended.
    pub(crate) fn abandon(&mut self, memory: impl Any + Send) {
        if let Some(id) = self.active.take() {
            self.shared.with_anyway(|state| state.parked.abandon(id, Box::new(memory)));
        }
    }

    /// Whether [`Pml::expects_device`] says so of a message that can be started.
    pub(crate) fn expects_device(&self, pml: &mut Pml) -> bool {
        matches!(&self.kind, RequestKind::Persistent(what) if pml.expects_device(what))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Its request of the message layer, while it is active.
    pub(crate) fn request(&self) -> Option<RequestId> {
        match &self.kind {
            RequestKind::Collective(handle, _) => handle.active(),
            _ => self.active,
        }
    }

    #[cold]
    fn release(&self, id: RequestId) {
        let _ = self.shared.with(|state| {
            match &self.kind {
                // Nobody can complete it any more.
                RequestKind::General => drop(state.pml.end_general(id)),
                RequestKind::Making(making) => {
                    state.works.push((id, Arc::new(Unwanted(making.request))));
                    return Ok(());
                }
                _ => {}
            }
            Ok(state.pml.release(id)?)
        });
    }
}

/// Sends a short message in standard mode, if nothing has to be waited for: whether it did. Otherwise nothing is done.
///
/// # Safety
/// During the call, the memory is valid for reads, and nothing writes it.
#[must_use]
#[inline]
pub unsafe fn send_now(comm: &Communicator, typed: &Typed, dest: u32, tag: i32) -> bool {
    let sent = comm.shared.briefly(|state| {
        comm.shared.now_and_then(state);
        // SAFETY: the caller's promise.
        let left = unsafe { state.open().ok()?.send_at_once(&comm.comm, typed, dest, tag) };
        comm.shared.rouse(state);
        left
    });
    sent.is_some()
}

/// Work of this process begins: its request, which ends when the work is over.
fn begin_work(
    shared: &Shared,
    state: &mut WorldState,
    work: Arc<dyn Work>,
) -> Result<RequestId, Error> {
    let id = state.open()?.begin_general();
    state.works.push((id, work));
    shared.rouse(state);
    Ok(id)
}

impl Making {
    fn take(
        &mut self,
        shared: &Arc<Shared>,
        ended: Result<Status, Error>,
    ) -> Result<Status, Error> {
        let status = ended?;
        let made = shared.with(|state| Ok(state.pml.collect_comm(self.request)?))?;
        let made = made.flatten().map(|comm| Communicator::new(shared, comm));
        self.made = Some(self.parent.duplicate(made)?);
        Ok(status)
    }
}

/// A communicator that is being made, and that nobody has asked for: this process frees it.
#[derive(Debug)]
struct Unwanted(CommRequest);

impl Work for Unwanted {
    fn advance(&self, pml: &mut Pml) -> bool {
        let made = pml.collect_comm(self.0);
        if let Ok(Some(Some(comm))) = &made {
            // Nobody uses it.
            let _ = pml.free(comm);
        }
        !matches!(made, Ok(None))
    }

    fn finish(&self) -> Result<Status, Error> {
        Ok(Status::of_nothing(0))
    }
}

impl Drop for Request {
    #[inline]
    fn drop(&mut self) {
        if let Some(id) = self.active.filter(|id| *id != RequestId::OVER) {
            self.release(id);
        }
    }
}

impl InFlight for Request {}

impl sealed::InFlight for Request {
    fn pending(&self) -> Pending<'_> {
        Pending::new(&self.shared, self.request())
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            RequestKind::Message => "message",
            RequestKind::Persistent(_) => "persistent message",
            RequestKind::Collective(handle, _) => {
                return write!(f, "Request({})", handle.operation());
            }
            RequestKind::General => "general",
            RequestKind::Partitioned(_) => "partitioned message",
            RequestKind::Making(_) => "communicator",
            RequestKind::Work(work) => return write!(f, "Request({work:?})"),
            RequestKind::Over(_) => "over",
        };
        write!(f, "Request({kind}, {:?})", self.active)
    }
}
