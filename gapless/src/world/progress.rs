//! Progress without a call that waits: a thread for it, and driving a future.

use super::World;
use crate::error::Error;
use crate::shared::Shared;
use crate::shared::guard::caught;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a future is waited for at a time when the message layer cannot be driven any more.
const NAP: Duration = Duration::from_millis(1);

/// The world's own thread.
#[derive(Debug)]
pub(super) struct ProgressThread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl ProgressThread {
    pub(super) fn start(shared: &Arc<Shared>) -> Result<ProgressThread, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, until) = (Arc::clone(shared), Arc::clone(&stop));
        shared.expect_thread();
        let thread = std::thread::Builder::new()
            .name("gapless-progress".to_owned())
            .spawn(move || theirs.attend(&until))
            .map_err(|e| Error::System { operation: "clone", reason: e.to_string() })?;
        Ok(ProgressThread { stop, thread })
    }

    /// Ends it: at once if it is awake, otherwise at the end of its sleep (50 ms at most). If the caller is this
    /// thread itself, which may run a function that drops the world, it ends after that function.
    pub(super) fn end(self, shared: &Shared) {
        self.stop.store(true, Ordering::Release);
        shared.nudge();
        if self.thread.thread().id() == std::thread::current().id() {
            return;
        }
        if caught(self.thread.join()).is_none() {
            tracing::error!("the progress thread panicked");
        }
    }
}

/// Wakes the thread that drives a future.
struct WorldWaker {
    woken: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for WorldWaker {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.shared.signal();
    }
}

impl World {
    /// Runs a future to its end, making progress meanwhile: an
    /// [`OwnedRequest`](crate::OwnedRequest), or whatever is made of several.
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let comm = world.comm();
    /// let sum = world.block_on(async {
    ///     let send = comm.isend_owned(vec![1.0f64, 2.0], comm.rank(), 0)?;
    ///     let (received, result) = comm.irecv_owned(vec![0.0f64; 2], comm.rank(), 0)?.await;
    ///     result?;
    ///     send.await.1?;
    ///     Ok::<f64, gapless::Error>(received.iter().sum())
    /// })?;
    /// assert_eq!(sum, 3.0);
    /// world.finalize()
    /// # }
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let wakeup = Arc::new(WorldWaker {
            woken: AtomicBool::new(false),
            shared: Arc::clone(&self.shared),
        });
        let waker = Waker::from(Arc::clone(&wakeup));
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            let woken = || wakeup.woken.swap(false, Ordering::AcqRel);
            if self.shared.wait_until(|_| woken().then_some(())).is_err() {
                // Our own requests are ready by now; others may have another waker.
                std::thread::sleep(NAP);
            }
        }
    }
}
