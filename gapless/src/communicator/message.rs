//! Matched probe (MPI 4.1 §3.8.2): a message is taken first, and received later by the caller that took it. With
//! several threads no other probe's answer is still true when the receive comes.

use super::Communicator;
use crate::error::Error;
use crate::owned::{Owned, OwnedBufferMut, OwnedRequest, Refused};
use crate::shared::Shared;
use crate::view::RecvBuffer;
use gapless_dtype::AnyBits;
use gapless_engine::Typed;
use gapless_pml::{MessageId, Pml, RequestId, Source, Status, TagSel};
use std::sync::Arc;

/// A message that a matched probe has taken (`MPI_Message`), to be received by
/// [`recv`](Message::recv), [`irecv_owned`](Message::irecv_owned) or
/// [`Scope::imrecv`](crate::Scope::imrecv). Dropping it drops the message; its sender completes
/// normally.
#[derive(Debug)]
#[must_use = "dropping it drops the message"]
pub struct Message {
    comm: Communicator,
    status: Status,
    /// `None` once it is being received.
    id: Option<MessageId>,
}

impl Communicator {
    /// Takes the next message that a receive like this would get, if it has come (`MPI_Improbe`,
    /// MPI 4.1 §3.8.2).
    ///
    /// # Errors
    /// As [`probe`](Communicator::probe).
    pub fn improbe(
        &self,
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<Option<Message>, Error> {
        let (source, tag) = (source.into(), tag.into());
        let found = self.shared.with(|state| {
            state.open()?;
            self.shared.drive_once(state);
            Ok(state.pml.claim(&self.comm, source, tag)?)
        })?;
        Ok(found.map(|found| self.message(found)))
    }

    /// Waits for a message, and takes it (`MPI_Mprobe`, MPI 4.1 §3.8.2).
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let comm = world.comm();
    /// let sent = comm.isend_owned(vec![1u8, 2, 3], comm.rank(), 0)?;
    /// let message = comm.mprobe(comm.rank(), 0)?;
    /// let mut received = vec![0u8; usize::try_from(message.status().bytes).unwrap()];
    /// message.recv(&mut received)?;
    /// assert_eq!(received, [1, 2, 3]);
    /// sent.wait().1?;
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`probe`](Communicator::probe).
    pub fn mprobe(
        &self,
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<Message, Error> {
        let (source, tag) = (source.into(), tag.into());
        let call = || self.probes(source, tag);
        let found = self.shared.wait_in(&call, |state| match state.open() {
            Ok(pml) => pml.claim(&self.comm, source, tag).map_err(Error::from).transpose(),
            Err(error) => Some(Err(error)),
        })??;
        Ok(self.message(found))
    }

    /// Receives the next message as a list, however long it is: a [matched probe](Communicator::mprobe) and its receive.
    /// If only the first part of the last element came, the rest of it is as in the default.
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let comm = world.comm();
    /// let sent = comm.isend_owned(vec![1.5f64, 2.5], comm.rank(), 0)?;
    /// let (numbers, status) = comm.recv_vec::<f64>(gapless::Source::Any, 0)?;
    /// assert_eq!((numbers, status.tag), (vec![1.5, 2.5], 0));
    /// sent.wait().1?;
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`probe`](Communicator::probe) and [`recv`](Communicator::recv); there is no memory for it, and then it is
    /// dropped.
    pub fn recv_vec<T: AnyBits + Clone + Default>(
        &self,
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<(Vec<T>, Status), Error> {
        let message = self.mprobe(source, tag)?;
        let (bytes, size) = (message.status.bytes, T::layout().size());
        let count = if size == 0 { 0 } else { bytes.div_ceil(size) };
        let mut list = Vec::new();
        let no_room = |reason: String| Error::System { operation: "allocating a message", reason };
        let count = usize::try_from(count).map_err(|error| no_room(error.to_string()))?;
        list.try_reserve_exact(count).map_err(|error| no_room(error.to_string()))?;
        list.resize(count, T::default());
        let status = message.recv(&mut list)?;
        Ok((list, status))
    }

    fn message(&self, (id, status): (MessageId, Status)) -> Message {
        Message { comm: self.clone(), status, id: Some(id) }
    }
}

impl Message {
    /// Whose it is, its tag and length.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    pub(crate) fn world(&self) -> Arc<Shared> {
        Arc::clone(&self.comm.shared)
    }

    /// Receives it (`MPI_Mrecv`, MPI 4.1 §3.8.3).
    ///
    /// # Errors
    /// As [`Communicator::recv`]; its sender was lost before the data came. **Every error consumes the message**, as
    /// this takes `self`: also if nothing was received because an argument was wrong (a layout that names a byte twice,
    /// memory that no engine serves), it is dropped, and its sender completes normally. Check the arguments first if
    /// the message must not be lost: [`status`](Message::status) has its length.
    pub fn recv<'v>(self, into: impl RecvBuffer<'v>) -> Result<Status, Error> {
        let view = into.into_view();
        let shared = self.world();
        // SAFETY: `view` borrows its memory exclusively until this call returns, which is after
        // the request has ended.
        let id = unsafe { self.start(&view.typed, &shared) }?;
        shared.wait(id)
    }

    /// Starts to receive it into a buffer that the request takes over (`MPI_Imrecv`).
    ///
    /// # Errors
    /// As [`recv`](Message::recv); the layout does not fit. The buffer comes back with the error, the
    /// message is dropped.
    pub fn irecv_owned<B: OwnedBufferMut>(
        self,
        into: impl Into<Owned<B>>,
    ) -> Result<OwnedRequest<B>, Refused<B>> {
        let comm = self.comm.clone();
        // SAFETY: `start_owned` says what holds until the request has ended.
        comm.start_owned(into.into(), |typed| unsafe { self.start(typed, &comm.shared) })
    }

    /// Starts to receive it, with a request of the world `within`.
    ///
    /// # Safety
    /// Until the request has ended, the memory is valid for reads and writes and nothing else
    /// touches it.
    pub(crate) unsafe fn start(
        mut self,
        typed: &Typed,
        within: &Arc<Shared>,
    ) -> Result<RequestId, Error> {
        if !Arc::ptr_eq(&self.comm.shared, within) {
            return Err(gapless_pml::PmlError::NoSuchMessage.into());
        }
        // SAFETY: the caller's promise is the one that is asked for.
        let start = |pml: &mut Pml, message: &_| unsafe { pml.imrecv(message, typed) };
        within.with(|state| {
            let message = self.id.take().ok_or(gapless_pml::PmlError::NoSuchMessage)?;
            let started = state.open().and_then(|pml| Ok(start(pml, &message)?));
            if started.is_err() {
                self.id = Some(message);
            }
            within.rouse(state);
            started
        })
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(message) = self.id.take() {
            // Of a world that was left nothing is to be dropped.
            let _ = self.comm.shared.with(|state| {
                state.open()?.drop_message(&message);
                Ok(())
            });
        }
    }
}
