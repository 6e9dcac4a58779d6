//! The queue of the toy: a thread that does one piece of work after the other.

use gapless_mem::{Completion, DeviceError, Pending, abort_on_unwind};
use std::any::Any;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};

/// How a piece of work has ended; empty before.
#[derive(Default)]
struct End(OnceLock<Result<(), DeviceError>>);

// SAFETY: the numbers are those of the contract.
// 1. The queue's thread sets the result when the work has returned, and all that it came after is over.
// 2. Setting a `OnceLock` comes before reading it.
// 3. It is set once. `is_known_over` says whether it is.
// 4. `as_any` gives `self`.
// 5. `export` is the default, which refuses.
unsafe impl Pending for End {
    fn poll(&self) -> Result<bool, DeviceError> {
        self.0.get().map_or(Ok(false), |result| result.clone().map(|()| true))
    }

    fn is_known_over(&self) -> bool {
        self.0.get().is_some()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

pub(crate) fn failed(reason: impl ToString) -> DeviceError {
    let (device, operation) = ("toy".to_owned(), "work on the queue");
    DeviceError::Failed { device, operation, reason: reason.to_string() }
}

/// Dropping it waits for all work.
pub(crate) struct Queue {
    /// `None` once it is dropped.
    jobs: Option<Sender<Box<dyn FnOnce() + Send>>>,
    /// The end of what was put last.
    last: Mutex<Completion>,
    thread: Option<JoinHandle<()>>,
}

impl Queue {
    pub(crate) fn start() -> std::io::Result<Queue> {
        let (jobs, queued) = channel::<Box<dyn FnOnce() + Send>>();
        let thread = Builder::new().spawn(move || queued.into_iter().for_each(|job| job()))?;
        Ok(Queue { jobs: Some(jobs), last: Mutex::default(), thread: Some(thread) })
    }

    /// Has `work` done once all of `after` have ended well; an error of theirs is that of the work, which is then not
    /// done. If anything of that panics, the process aborts.
    pub(crate) fn put(
        &self,
        after: &[Completion],
        work: impl FnOnce() -> Result<(), DeviceError> + Send + 'static,
    ) -> Result<Completion, DeviceError> {
        let (after, end) = (after.to_vec(), Arc::new(End::default()));
        let done = Completion::Pending(Arc::clone(&end) as _);
        // Were the queue's thread to end, nobody would ever set the result: others' completions may panic, too.
        let job = move || {
            abort_on_unwind("work on the queue of a toy panicked", move || {
                // All of them: an error of one does not say that the others are over.
                after.iter().for_each(Completion::drain);
                let earlier = after.iter().try_for_each(Completion::wait);
                let _ = end.0.set(earlier.and_then(|()| work()));
            });
        };
        let jobs = self.jobs.as_ref().ok_or_else(|| failed("it has ended"))?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.send(Box::new(job)).map_err(|_| failed("its thread has ended"))?;
        *last = done.clone();
        Ok(done)
    }

    /// Whether all that was put is over: work ends in its order.
    pub(crate) fn is_idle(&self) -> bool {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).is_known_over()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.jobs = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
