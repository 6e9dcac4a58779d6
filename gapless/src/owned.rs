//! Requests that own their buffer: they may outlive the call that started them.
//!
//! [`OwnedRequest::wait`] returns the buffer. The handle may be dropped: then the operation goes on, and the world frees
//! the buffer when nothing can touch it any more. If the handle is forgotten, so is the buffer.

mod blocks;
mod buffer;
mod persistent;

pub use blocks::OwnedBlocks;
pub use buffer::{OwnedBuffer, OwnedBufferMut};
pub(crate) use buffer::{Park, RawList};
pub use persistent::Persistent;

use crate::completion::{Watched, on_done};
use crate::error::Error;
use crate::raw::{Request, RequestKind};
use crate::several::{InFlight, Pending, sealed, several_owned};
use crate::shared::Shared;
use crate::view::{all_of, pages_in, typed_in};
use gapless_dtype::{Layout, Pages};
use gapless_engine::Typed;
use gapless_pml::{Pml, RequestId, Status};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A buffer and the layout of a message in it, both passed to a request.
#[derive(Clone, Debug)]
pub struct Owned<B> {
    pub(crate) buffer: B,
    shape: Shape,
}

/// What of a buffer a message has. Origins are in elements.
#[derive(Clone, Debug)]
enum Shape {
    All,
    Typed(u64, Layout, u64),
    Pages(u64, Pages),
}

impl<B: OwnedBuffer> Owned<B> {
    /// All elements of a buffer; `u8` and [`SharedBuf`](crate::SharedBuf) stand for bytes.
    #[must_use]
    pub fn new(buffer: B) -> Owned<B> {
        Owned { buffer, shape: Shape::All }
    }

    /// `count` instances of `layout`; displacement 0 is `origin` *elements* into the buffer. Whether they fit, as
    /// [`View::typed`](crate::View::typed) says, is checked when the operation starts.
    #[must_use]
    pub fn typed(buffer: B, origin: u64, layout: &Layout, count: u64) -> Owned<B> {
        Owned { buffer, shape: Shape::Typed(origin, layout.clone(), count) }
    }

    /// Pages; displacement 0 is `origin` *elements* into the buffer. Whether they fit, as
    /// [`View::pages`](crate::View::pages) says, is checked when the operation starts.
    #[must_use]
    pub fn pages(buffer: B, origin: u64, pages: &Pages) -> Owned<B> {
        Owned { buffer, shape: Shape::Pages(origin, pages.clone()) }
    }

    /// Takes the buffer apart and describes the message in it.
    pub(crate) fn park(self) -> Result<(B::Parked, Typed), Refused<B>> {
        let (count, element) = (self.buffer.elements(), B::element());
        let parked = B::Parked::park(self.buffer);
        let region = parked.region();
        let typed = match &self.shape {
            Shape::All => Ok(all_of(region, count, element)),
            Shape::Typed(origin, layout, count) => {
                typed_in(region, element, *origin, layout, *count)
            }
            Shape::Pages(origin, pages) => pages_in(region, element, *origin, pages),
        };
        match typed {
            Ok(typed) => Ok((parked, typed)),
            Err(error) => Err(Refused { error, buffer: parked.unpark() }),
        }
    }
}

impl<B: OwnedBuffer> From<B> for Owned<B> {
    fn from(buffer: B) -> Owned<B> {
        Owned::new(buffer)
    }
}

/// An operation that was not started, and the buffer that it would have owned.
pub struct Refused<B> {
    /// Why not.
    pub error: Error,
    /// The buffer.
    pub buffer: B,
}

impl<B> fmt::Debug for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for Refused<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<B> From<Refused<B>> for Error {
    fn from(refused: Refused<B>) -> Error {
        refused.error
    }
}

/// Buffers of requests in flight whose handle was dropped.
#[derive(Default)]
pub(crate) struct Parked {
    /// Requests whose handle was dropped, the least recently checked first, and their buffers.
    abandoned: VecDeque<(RequestId, Box<dyn Any + Send>)>,
    /// How many checks those abandoned since the last reaping have earned.
    looks: usize,
}

/// Abandoned requests that are checked each time, so that any number of receives that never match costs no more.
const LOOKS: usize = 16;

impl Parked {
    /// Keeps the buffer of `id` until [`reap`](Parked::reap) takes it.
    pub(crate) fn abandon(&mut self, id: RequestId, buffer: Box<dyn Any + Send>) {
        self.abandoned.push_back((id, buffer));
        // One more than a request each, so that ended requests do not pile up behind others.
        self.looks += 2;
    }

    /// Returns the buffers of abandoned requests that have ended, to be dropped outside of the lock: checks some now,
    /// the others next time.
    pub(crate) fn reap(&mut self, pml: &mut Pml, spent: &mut Vec<Box<dyn Any + Send>>) {
        let looks = LOOKS + std::mem::take(&mut self.looks);
        for _ in 0..looks.min(self.abandoned.len()) {
            let Some((id, buffer)) = self.abandoned.pop_front() else { return };
            if pml.is_done(id) == Ok(false) {
                self.abandoned.push_back((id, buffer));
            } else {
                let _ = pml.release(id);
                spent.push(buffer);
            }
        }
    }

    pub(crate) fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }
}

impl fmt::Debug for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parked({} abandoned)", self.abandoned.len())
    }
}

/// An operation that owns its buffer. Dropping it is fine: the operation goes on without it.
#[must_use = "the buffer comes back from `wait`"]
pub struct OwnedRequest<B: OwnedBuffer> {
    request: Request,
    /// `None` once the buffer was taken. Until the operation has ended nobody gets at it: dropping the request leaves it
    /// to the world, and a request that is forgotten never frees it.
    memory: Option<B::Parked>,
}

impl<B: OwnedBuffer> OwnedRequest<B> {
    pub(crate) fn new(shared: &Arc<Shared>, id: RequestId, memory: B::Parked) -> OwnedRequest<B> {
        OwnedRequest {
            request: Request::new(shared, RequestKind::Message, Some(id)),
            memory: Some(memory),
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        self.request.shared()
    }

    /// Waits until the operation has ended; returns the buffer, and the result. Once the world has been left, an
    /// operation that has not ended never will, and gives [`Error::Finalized`].
    pub fn wait(mut self) -> (B, Result<Status, Error>) {
        let result = self.request.wait();
        (self.take_buffer(), result)
    }

    /// The buffer and the result if the operation has ended, else the handle again.
    ///
    /// # Errors
    /// Still in flight.
    pub fn test(mut self) -> Result<(B, Result<Status, Error>), OwnedRequest<B>> {
        match self.request.test() {
            None => Err(self),
            Some(result) => Ok((self.take_buffer(), result)),
        }
    }

    /// Cancels a receive that no message has matched yet (MPI 4.1 §3.8.4). Returns whether it did;
    /// [`wait`](OwnedRequest::wait) then reports [`PmlError::Cancelled`](gapless_pml::PmlError::Cancelled). A send is
    /// cancelled. If it has left for another process, the answer is `false`, and waiting tells whether it was cancelled or
    /// received, once its receiver has made progress.
    ///
    /// # Errors
    /// The world was left, or a thread panicked in it.
    pub fn cancel(&mut self) -> Result<bool, Error> {
        self.request.cancel()
    }

    /// Whether the operation has ended; makes progress.
    ///
    /// # Errors
    /// A panic in another thread.
    pub fn is_done(&self) -> Result<bool, Error> {
        let Some(id) = self.request.request() else { return Ok(true) };
        match self.shared().look(|pml| pml.is_done(id) != Ok(false)) {
            // It will never make progress.
            Err(Error::Finalized) => Ok(true),
            looked => looked,
        }
    }

    /// Takes the buffer out, once its request has ended (or nothing moves bytes any more).
    fn take_buffer(&mut self) -> B {
        let memory = self.memory.take();
        memory.expect("a buffer stays until its request's handle takes it").unpark()
    }
}

several_owned!(OwnedRequest<B: OwnedBuffer>, (B, Result<Status, Error>));

impl<B: OwnedBuffer> OwnedRequest<B> {
    /// Calls `then` with the buffer and the result once the operation has ended. The call comes from the thread that
    /// finds the end: this one, if it has ended already; one that makes progress; or the one that leaves the world,
    /// if that comes first ([`Error::Finalized`]). No lock is held meanwhile, so it may start other operations; it
    /// should not wait for them. If it panics, that is reported as an event and goes no further.
    pub fn on_done<F>(self, then: F)
    where
        F: FnOnce(B, Result<Status, Error>) + Send + 'static,
    {
        on_done(self, |(buffer, result)| then(buffer, result));
    }
}

impl<B: OwnedBuffer> Watched for OwnedRequest<B> {
    type Ended = (B, Result<Status, Error>);

    fn poll_end(&mut self, waker: &Waker) -> Poll<Self::Ended> {
        assert!(self.memory.is_some(), "a request was polled after it had given its result");
        self.request.poll(waker).map(|result| (self.take_buffer(), result))
    }
}

// Nothing of it is pinned: its buffer lies elsewhere.
impl<B: OwnedBuffer> Unpin for OwnedRequest<B> {}

/// Returns what [`OwnedRequest::wait`] returns.
///
/// # Panics
/// If it is polled again after it was ready.
impl<B: OwnedBuffer> Future for OwnedRequest<B> {
    type Output = (B, Result<Status, Error>);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_end(context.waker())
    }
}

impl<B: OwnedBuffer> InFlight for OwnedRequest<B> {}

impl<B: OwnedBuffer> sealed::InFlight for OwnedRequest<B> {
    fn pending(&self) -> Pending<'_> {
        self.request.pending()
    }
}

impl<B: OwnedBuffer> Drop for OwnedRequest<B> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.request.abandon(memory);
        }
    }
}

impl<B: OwnedBuffer> fmt::Debug for OwnedRequest<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedRequest({:?})", self.request)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Communicator, Source, TagSel, World};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    /// Uses its world when it is dropped, as memory of a transport of the user's may.
    struct Farewell(Communicator, Arc<AtomicU32>);

    impl Drop for Farewell {
        fn drop(&mut self) {
            self.0.iprobe(Source::Any, TagSel::Any).unwrap();
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn buffers_of_abandoned_requests_are_dropped_outside_of_the_lock() {
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let world = World::init().unwrap();
            let (comm, count) = (world.comm(), Arc::new(AtomicU32::new(0)));
            let request = comm.irecv_owned(vec![0u8], 0, 1).unwrap();
            let farewell = Farewell(comm.clone(), Arc::clone(&count));
            drop(request);
            comm.shared.with_anyway(|state| {
                let (id, memory) = state.parked.abandoned.pop_front().unwrap();
                state.parked.abandon(id, Box::new((memory, farewell)));
            });
            comm.send(&[1u8], 0, 1).unwrap();
            let gone = (0..100).any(|_| {
                let _ = comm.iprobe(Source::Any, TagSel::Any);
                count.load(Ordering::Relaxed) == 1
            });
            done.send(gone)
        });
        let gone = ended.recv_timeout(Duration::from_secs(60));
        assert_eq!(gone, Ok(true), "a buffer is dropped, and nobody waits for itself");
    }

    #[test]
    fn abandoned_requests_that_never_end_do_not_keep_those_that_have_ended() {
        let world = World::init().unwrap();
        let comm = world.comm();
        for tag in 0..500 {
            drop(comm.irecv_owned(vec![0u8], 0, 1000 + tag).unwrap());
        }
        let mut most = 0;
        for _ in 0..2000 {
            drop(comm.isend_owned(vec![1u8], 0, 0).unwrap());
            comm.recv(&mut [0u8], 0, 0).unwrap();
            most = most.max(comm.shared.with_anyway(|state| state.parked.abandoned.len()));
        }
        assert!(most < 1200, "{most} buffers were kept at a time");
        let left = (0..100).find(|_| {
            comm.shared.with_anyway(|state| {
                state.progress();
                state.parked.abandoned.len() == 500
            })
        });
        assert!(left.is_some(), "only receives that nothing matches are left");
    }
}
