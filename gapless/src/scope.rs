//! Non-blocking operations on borrowed memory.
//!
//! A request must not outlive the memory it works on, and no guarantee can rely on a handle's `Drop` running. So
//! requests on borrowed memory exist only inside [`Communicator::scope`]. It does not return, not even by a panic,
//! before all of them have ended, or the world was given up and their memory taken back: the pattern of
//! [`std::thread::scope`].

mod in_flight;
mod request;

pub(crate) use in_flight::Scopes;
pub use request::Request;

use crate::collective::Joined;
use crate::communicator::{Communicator, Message};
use crate::error::Error;
use crate::several::{self, Handle};
use crate::shared::{Look, WorldState};
use crate::view::{RecvBuffer, SendBuffer, View, ViewMut};
use gapless_engine::Typed;
use gapless_pml::{
    Comm, Failure, Pml, PmlError, RequestId, SendMode, Settled, Source, Status, TagSel,
};
use in_flight::{List, is_gone};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// A part of the program in which messages are in flight; see [`Communicator::scope`].
///
/// `'scope` is the time in which requests exist, `'env` that of what they borrow; both are
/// invariant, so that neither can be shortened or stretched.
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    comm: &'env Communicator,
    list: List,
    pub(crate) collectives: Joined,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl Communicator {
    /// Runs `body`, in which messages can be started on borrowed memory, and waits for all of them before it returns.
    ///
    /// If `body` fails or panics, receives that no message has matched are cancelled, and so are sends that are
    /// waiting for a receive; the rest is waited for. The receiver is asked before a send is cancelled. So this lasts
    /// until that process has made progress once (a call that waits, a test, a progress thread), or is lost; not
    /// until it receives. Collectives cannot be cancelled: they are waited for.
    ///
    /// If `body` succeeds, this call returns the first failure among the requests that `body` did not wait for itself.
    ///
    /// Memory that is received into cannot be read before the scope has ended:
    ///
    /// ```compile_fail,E0502
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let mut inbox = [0u8; 64];
    /// world.comm().scope(|s| {
    ///     let request = s.irecv(&mut inbox, 0, 7)?;
    ///     assert_eq!(inbox[0], 0); // error: `inbox` is borrowed mutably
    ///     s.wait(request)?;
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// nor can memory that is sent be changed:
    ///
    /// ```compile_fail,E0506
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let mut outbox = [0u8; 64];
    /// world.comm().scope(|s| {
    ///     let _ = s.isend(&outbox, 0, 7)?;
    ///     outbox[0] = 1; // error: `outbox` is borrowed
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// nor dropped:
    ///
    /// ```compile_fail,E0505
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let outbox = vec![0u8; 64];
    /// world.comm().scope(|s| {
    ///     let _ = s.isend(&outbox, 0, 7)?;
    ///     drop(outbox); // error: it is borrowed
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// nor belong to the scope itself:
    ///
    /// ```compile_fail,E0597
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// world.comm().scope(|s| {
    ///     let outbox = [0u8; 64];
    ///     let _ = s.isend(&outbox, 0, 7)?; // error: `outbox` does not live long enough
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// What is allowed:
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let outbox = [1.5f64; 4];
    /// let mut inbox = [0.0f64; 4];
    /// world.comm().scope(|s| {
    ///     let received = s.irecv(&mut inbox, 0, 7)?;
    ///     let _ = s.isend(&outbox, 0, 7)?;
    ///     assert_eq!(s.wait(received)?.bytes, 32);
    ///     Ok(())
    /// })?;
    /// assert_eq!(inbox, outbox);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What `body` returned, or the first failure of a request it did not wait for.
    ///
    /// # Panics
    /// If `body` does, once all requests have ended.
    pub fn scope<'env, T, F>(&'env self, body: F) -> Result<T, Error>
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, Error>,
    {
        let (list, collectives) = (List::default(), Joined::default());
        let scope = Scope { comm: self, list, collectives, scope: PhantomData, env: PhantomData };
        let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        let fine = matches!(result, Ok(Ok(_)));
        let joined = scope.join(!fine);
        let joined = joined.and(scope.join_collectives());
        match result {
            Ok(Ok(value)) => joined.map(|()| value),
            Ok(Err(error)) => Err(error),
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl<'scope> Scope<'scope, '_> {
    /// The communicator of this scope.
    #[must_use]
    pub fn comm(&self) -> &Communicator {
        self.comm
    }

    /// Starts an operation that the scope's end waits for.
    #[inline]
    pub(crate) fn start(
        &self,
        start: impl FnOnce(&mut Pml) -> Result<RequestId, PmlError>,
    ) -> Result<Request<'scope>, Error> {
        let shared = &self.comm.shared;
        shared.with(|state| {
            state.open()?;
            let WorldState { pml, scopes, .. } = &mut *state;
            // Before it is started: nothing may come between that and its being noted.
            let list = scopes.room(&self.list, pml);
            let id = start(pml)?;
            list.push(id);
            shared.rouse(state);
            Ok(Request::new(id, self.comm))
        })
    }

    /// As [`isend`](Scope::isend), of a short message that can leave at once; otherwise `None`, with nothing done.
    ///
    /// # Safety
    /// `typed` describes memory that is borrowed for `'scope`.
    #[inline(never)]
    unsafe fn isend_short(
        &self,
        comm: &Comm,
        typed: &Typed,
        dest: u32,
        tag: i32,
    ) -> Option<RequestId> {
        // SAFETY: the caller's promise is passed on.
        self.start_short(|pml| unsafe { pml.isend_short(comm, typed, dest, tag) })
    }

    /// As [`irecv`](Scope::irecv), likewise.
    ///
    /// # Safety
    /// `typed` describes memory that is exclusively borrowed for `'scope`.
    #[inline(never)]
    unsafe fn irecv_short(
        &self,
        comm: &Comm,
        typed: &Typed,
        source: Source,
        tag: TagSel,
    ) -> Option<RequestId> {
        // SAFETY: the caller's promise is passed on.
        self.start_short(|pml| unsafe { pml.irecv_short(comm, typed, source, tag) })
    }

    #[inline]
    fn start_short(&self, start: impl FnOnce(&mut Pml) -> Option<RequestId>) -> Option<RequestId> {
        let shared = &self.comm.shared;
        shared.briefly(|state| {
            state.open().ok()?;
            let WorldState { pml, scopes, .. } = &mut *state;
            // Before it is started: it must be noted at once after the start.
            let list = scopes.room(&self.list, pml);
            let id = start(pml)?;
            list.push(id);
            shared.rouse(state);
            Some(id)
        })
    }

    /// Starts sending (`MPI_Isend`, MPI 4.1 §3.7.2).
    ///
    /// # Errors
    /// As [`Communicator::send`].
    #[inline]
    pub fn isend(
        &'scope self,
        data: impl SendBuffer<'scope>,
        dest: u32,
        tag: i32,
    ) -> Result<Request<'scope>, Error> {
        self.isend_on(&self.comm.comm, data.into_view(), dest, tag)
    }

    /// Whether requests of a communicator may be in this scope.
    fn admits(&self, comm: &Communicator) -> Result<(), Error> {
        match Arc::ptr_eq(&self.comm.shared, &comm.shared) {
            true => Ok(()),
            false => Err(Error::OtherWorld),
        }
    }

    /// As [`isend`](Scope::isend), by a communicator of the same world.
    #[inline]
    fn isend_on(
        &'scope self,
        comm: &Comm,
        view: View<'scope>,
        dest: u32,
        tag: i32,
    ) -> Result<Request<'scope>, Error> {
        // SAFETY: the memory is borrowed for `'scope`, which ends after `join`; and `join` runs
        // whatever `body` does, and returns when all requests have ended, or the world was given up, which
        // takes memory back first.
        if let Some(id) = unsafe { self.isend_short(comm, &view.typed, dest, tag) } {
            return Ok(Request::new(id, self.comm));
        }
        // SAFETY: as above.
        self.start(|pml| unsafe {
            pml.isend_mode(comm, &view.typed, dest, tag, SendMode::Standard)
        })
    }

    /// Starts sending in a mode of one's choice (`MPI_Issend`, `MPI_Irsend`, `MPI_Ibsend`, MPI 4.1
    /// §3.7.2).
    ///
    /// # Errors
    /// As [`Communicator::send`]; in buffered mode as [`Communicator::bsend`].
    pub fn isend_mode(
        &'scope self,
        data: impl SendBuffer<'scope>,
        dest: u32,
        tag: i32,
        mode: SendMode,
    ) -> Result<Request<'scope>, Error> {
        let view = data.into_view();
        // SAFETY: the memory is borrowed for `'scope`, which ends after `join`; and `join` runs
        // whatever `body` does, and returns when all requests have ended, or the world was given up, which
        // takes memory back first.
        self.start(|pml| unsafe { pml.isend_mode(&self.comm.comm, &view.typed, dest, tag, mode) })
    }

    /// Starts receiving (`MPI_Irecv`, MPI 4.1 §3.7.2).
    ///
    /// # Errors
    /// As [`Communicator::recv`].
    #[inline]
    pub fn irecv(
        &'scope self,
        into: impl RecvBuffer<'scope>,
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<Request<'scope>, Error> {
        self.irecv_on(&self.comm.comm, into.into_view(), source.into(), tag.into())
    }

    /// As [`irecv`](Scope::irecv), by a communicator of the same world.
    #[inline]
    fn irecv_on(
        &'scope self,
        comm: &Comm,
        view: ViewMut<'scope>,
        source: Source,
        tag: TagSel,
    ) -> Result<Request<'scope>, Error> {
        // SAFETY: as for `isend_on`; the borrow is exclusive.
        if let Some(id) = unsafe { self.irecv_short(comm, &view.typed, source, tag) } {
            return Ok(Request::new(id, self.comm));
        }
        // SAFETY: as above.
        self.start(|pml| unsafe { pml.irecv(comm, &view.typed, source, tag) })
    }

    /// Starts receiving a message that a matched probe has taken (`MPI_Imrecv`, MPI 4.1 §3.8.3).
    ///
    /// # Errors
    /// As [`Message::recv`]: every error consumes the message, also if no request was started. A message of another
    /// world is [`NoSuchMessage`](crate::PmlError::NoSuchMessage) here, and is dropped in its own.
    pub fn imrecv(
        &'scope self,
        message: Message,
        into: impl RecvBuffer<'scope>,
    ) -> Result<Request<'scope>, Error> {
        let view = into.into_view();
        // SAFETY: as for `irecv`: whatever world the message is of.
        let id = unsafe { message.start(&view.typed, &self.comm.shared) }?;
        self.comm.shared.with_anyway(|state| {
            let WorldState { pml, scopes, .. } = state;
            scopes.room(&self.list, pml).push(id);
        });
        Ok(Request::new(id, self.comm))
    }

    /// As [`Request::wait`].
    ///
    /// # Errors
    /// The operation failed.
    pub fn wait(&self, request: Request<'scope>) -> Result<Status, Error> {
        request.wait()
    }

    /// As [`Request::test`].
    ///
    /// # Errors
    /// Still in flight.
    pub fn test(&self, request: Request<'scope>) -> Result<Result<Status, Error>, Request<'scope>> {
        request.test()
    }

    /// Waits for all of them (`MPI_Waitall`, MPI 4.1 §3.7.5): how they went, in their order.
    #[must_use = "some may have failed"]
    pub fn wait_all<Q: Handle>(&self, several: impl IntoIterator<Item = Q>) -> Vec<Q::Ended> {
        Q::wait_all(several)
    }

    /// Waits for the first of them to end, and takes it out of the list (`MPI_Waitany`, MPI 4.1
    /// §3.7.5): its index before, and how it went. `None` if the list is empty.
    /// [`Communicator::wait_any`] waits for operations of several kinds.
    pub fn wait_any<Q: Handle>(&self, several: &mut Vec<Q>) -> Option<(usize, Q::Ended)> {
        several::wait_any(several)
    }

    /// Waits until at least one of them has ended, and takes all that have out of the list
    /// (`MPI_Waitsome`, MPI 4.1 §3.7.5): their indices before, and how they went. Empty if the list
    /// is.
    pub fn wait_some<Q: Handle>(&self, several: &mut Vec<Q>) -> Vec<(usize, Q::Ended)> {
        several::wait_some(several)
    }

    /// How all of them went, in their order, if all have ended (`MPI_Testall`, MPI 4.1 §3.7.5).
    ///
    /// # Errors
    /// Some are still in flight: all of them again, none is taken.
    pub fn test_all<Q: Handle>(&self, several: Vec<Q>) -> Result<Vec<Q::Ended>, Vec<Q>> {
        several::test_all(several)
    }

    /// Takes one that has ended out of the list, if there is any (`MPI_Testany`, MPI 4.1 §3.7.5): its
    /// index before, and how it went.
    pub fn test_any<Q: Handle>(&self, several: &mut Vec<Q>) -> Option<(usize, Q::Ended)> {
        several::test_any(several)
    }

    /// Takes all that have ended out of the list (`MPI_Testsome`, MPI 4.1 §3.7.5): their indices
    /// before, and how they went.
    pub fn test_some<Q: Handle>(&self, several: &mut Vec<Q>) -> Vec<(usize, Q::Ended)> {
        several::test_some(several)
    }

    /// As [`Request::cancel`].
    ///
    /// # Errors
    /// As there.
    pub fn cancel(&self, request: &mut Request<'scope>) -> Result<bool, Error> {
        request.cancel()
    }

    /// Waits for every request that is still in flight.
    fn join(&self, cancel: bool) -> Result<(), Error> {
        let shared = &self.comm.shared;
        if cancel {
            shared.with(|state| {
                let all = self.list.number().map(|number| state.scopes.all(number));
                for id in all.unwrap_or_default() {
                    // What has been matched goes on, and is waited for below.
                    if matches!(state.cancel(id), Ok(false)) {
                        let _ = state.pml.cancel_unfinished_send(id);
                    }
                }
                Ok(())
            })?;
        }
        let Some(number) = self.list.number() else { return Ok(()) };
        let mut first = Ok(());
        let mut at = 0;
        let mut all_ended = |state: &mut WorldState| {
            while let Some(id) = state.scopes.get(number, at) {
                match state.pml.collect_quietly(id) {
                    Settled::Well => {
                        at += 1;
                        continue;
                    }
                    Settled::NotYet => return Look::Until(id),
                    Settled::Asks => {}
                }
                match state.pml.collect(id) {
                    Ok(None) => return Look::Until(id),
                    Ok(Some(_)) => {}
                    // The body has waited for it.
                    result if is_gone(&result) => {}
                    Err(Failure { error: PmlError::Cancelled, .. }) => {}
                    Err(failure) => {
                        if first.is_ok() {
                            first = Err(failure.into());
                        }
                    }
                }
                at += 1;
            }
            state.scopes.give_back(number);
            Look::Found(())
        };
        let mut state = shared.lock()?;
        shared.now_and_then(&mut state);
        if let Look::Found(()) = all_ended(&mut state) {
            state.done();
        } else {
            shared.wait_held(state, all_ended)?;
        }
        first
    }
}
