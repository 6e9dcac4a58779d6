//! Order between messages and other work: sends after work, and work after receives.
//!
//! ```text
//! a stream of the caller's:  kernel that writes ── event ─┐
//! this process:              isend_after ── matched now ──┴── read when the event has come
//!
//! this process:              irecv, when_done(open the gate) ── the message has come ─┐
//! a stream of the caller's:  gate ── the stream waits, no thread does ────────────────┴── kernel that reads
//! ```
//!
//! Some thread must make progress: a thread that waits for anything, or the world's progress thread
//! ([`Builder::progress_thread`](crate::Builder::progress_thread)). A program whose only thread waits for a stream
//! that waits for a message needs the latter.

use crate::communicator::Communicator;
use crate::error::Error;
use crate::owned::{Owned, OwnedBuffer, OwnedRequest, Refused};
use crate::scope::{Request, Scope};
use crate::several::{InFlight, sealed::InFlight as _};
use crate::shared::Shared;
use crate::view::SendBuffer;
use gapless_engine::Typed;
use gapless_mem::Completion;
use gapless_pml::RequestId;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// A function that is called once, when it is woken.
struct CallOnce<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send + 'static> Wake for CallOnce<F> {
    fn wake(self: Arc<Self>) {
        let then = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(then) = then {
            then();
        }
    }
}

impl Shared {
    /// Calls `then` when a request has ended: at once, if it has.
    fn when_done(&self, id: RequestId, then: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let call = Arc::new(CallOnce(Mutex::new(Some(then))));
        let mut waker = Some(Waker::from(Arc::clone(&call)));
        // The lock is let go of before `waker` is dropped, who may be anybody by then.
        let waits = self.with(|state| Ok(state.pml.notify(id, &mut waker)?))?;
        if !waits {
            call.wake();
        }
        Ok(())
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts sending data that is ready only when all of `after` have ended: kernels on your streams that write it,
    /// say, whose completion `CudaStream::record` gives. The message is matched as if it were sent now; later
    /// messages do not wait for it. The data is not read before. Completions of your own making
    /// ([`Pending`](gapless_mem::Pending)) are polled with the world's lock held, and must not use the world then; they
    /// may when they are dropped.
    ///
    /// If some of that work fails, the send ends with its error, and the receive with
    /// [`PmlError::SenderFailed`](crate::PmlError::SenderFailed).
    ///
    /// # Errors
    /// As [`Communicator::send`]; some of the work has failed already.
    pub fn isend_after(
        &'scope self,
        data: impl SendBuffer<'scope>,
        dest: u32,
        tag: i32,
        after: &[Completion],
    ) -> Result<Request<'scope>, Error> {
        let view = data.into_view();
        // SAFETY: as for `isend`; that what writes the memory is among `after`, or writes nothing while
        // it is borrowed, is what views promise.
        self.start(|pml| unsafe {
            pml.isend_after(&self.comm().comm, &view.typed, dest, tag, after)
        })
    }

    /// Calls `then` when an operation has ended, well or not (a [wait](Scope::wait) tells). That is at once if it has
    /// ended; otherwise in the thread that finds its end, which holds no lock meanwhile. The call may come after the
    /// scope has ended, and should not wait. An operation has one function: a second one replaces the first.
    ///
    /// So a stream waits for a receive and no thread does: `then` opens its gate.
    ///
    /// ```no_run
    /// # #[cfg(feature = "cuda")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use gapless::{CudaDriver, Datatype, Primitive, Space, World};
    /// let world = World::builder().progress_thread(true).init()?;
    /// let doubles = Datatype::from(Primitive::Double).commit()?;
    /// let mut field = world.alloc_device(Space::Cuda { device: 0 }, 8 << 20)?;
    /// let stream = CudaDriver::load()?.device(0)?.stream()?;
    /// world.comm().scope(|s| {
    ///     let received = s.irecv(field.view_mut(0, &doubles, 1 << 20)?, 1, 0)?;
    ///     let gate = stream.gate().map_err(|e| gapless::Error::Memory(e.into()))?;
    ///     s.when_done(&received, move || gate.open())?;
    ///     // Kernels that are launched on the stream from now on start when the message has come.
    ///     Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "cuda"))]
    /// # fn main() {}
    /// ```
    ///
    /// While a gate is closed, all work that waits for its device waits with it (see `CudaGate`). Receive one message
    /// of the kind before the first gate, so that kernels are loaded and memory is mapped.
    ///
    /// # Errors
    /// A panic in another thread; a persistent one that is inactive.
    pub fn when_done(
        &self,
        request: &impl InFlight,
        then: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let (shared, id) = request.pending().active()?;
        shared.when_done(id, then)
    }
}

impl<B: OwnedBuffer> OwnedRequest<B> {
    /// As [`Scope::when_done`]. Awaiting the request, or [`on_done`](OwnedRequest::on_done), replaces the function.
    ///
    /// # Errors
    /// A panic in another thread.
    pub fn when_done(&self, then: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let (shared, id) = self.pending().active()?;
        shared.when_done(id, then)
    }
}

impl Communicator {
    /// As [`Scope::isend_after`], of a buffer that the request takes over.
    ///
    /// # Errors
    /// As there. The buffer comes back with the error.
    pub fn isend_owned_after<B: OwnedBuffer>(
        &self,
        data: impl Into<Owned<B>>,
        dest: u32,
        tag: i32,
        after: &[Completion],
    ) -> Result<OwnedRequest<B>, Refused<B>> {
        // SAFETY: `start_owned` says what holds until the request has ended.
        self.start_owned(data.into(), |typed| unsafe {
            self.start_send_after(typed, dest, tag, after)
        })
    }

    /// Starts a send after other work.
    ///
    /// # Safety
    /// Until the request has ended, the memory is valid for reads, and only the work of `after` writes to it.
    unsafe fn start_send_after(
        &self,
        typed: &Typed,
        dest: u32,
        tag: i32,
        after: &[Completion],
    ) -> Result<RequestId, Error> {
        // SAFETY: the caller's promise is the one that is asked for.
        self.start(|pml| unsafe { pml.isend_after(&self.comm, typed, dest, tag, after) })
    }
}

#[cfg(test)]
mod tests {
    use crate::World;
    use gapless_mem::Completion;
    use gapless_mem::testkit::Hand;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_send_waits_for_work_and_a_function_for_a_receive() {
        let world = World::builder().progress_thread(true).init().unwrap();
        let comm = world.comm();
        let (hand, called) = (Hand::default(), Arc::new(AtomicU32::new(0)));
        let after = [Completion::Ready, hand.work()];
        let (first, second) = ([1u32; 5000], [2u32; 5000]);
        let (mut a, mut b) = ([0u32; 5000], [0u32; 5000]);
        comm.scope(|s| {
            let waits = s.isend_after(&first, 0, 1, &after)?;
            let _ = s.isend(&second, 0, 1)?;
            let received = s.irecv(&mut a, 0, 1)?;
            let behind = s.irecv(&mut b, 0, 1)?;
            let count = Arc::clone(&called);
            s.when_done(&received, move || {
                count.fetch_add(1, Ordering::Relaxed);
            })?;
            s.wait(behind)?;
            let waits = s.test(waits).expect_err("its work goes on");
            assert_eq!(called.load(Ordering::Relaxed), 0);
            hand.end();
            s.wait(waits)?;
            s.wait(received)?;
            // Over before it was asked for.
            let count = Arc::clone(&called);
            let done = s.isend(&[0u8], 0, 9)?;
            s.when_done(&done, move || {
                count.fetch_add(10, Ordering::Relaxed);
            })?;
            Ok(())
        })
        .unwrap();
        assert_eq!((a, b), (first, second));
        // The receive's is called by whichever thread found its end, perhaps a moment later.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while called.load(Ordering::Relaxed) != 11 && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        assert_eq!(called.load(Ordering::Relaxed), 11);
        let request = comm.isend_owned_after(vec![7u8], 0, 2, &after).unwrap();
        let mut one = [0u8];
        comm.recv(&mut one, 0, 2).unwrap();
        request.wait().1.unwrap();
        assert_eq!(one, [7]);
        // What nobody received: tag 9.
        comm.recv(&mut one, 0, 9).unwrap();
    }
}
