//! The end of all work that was enqueued so far.

use crate::OpenClDevice;
use crate::sys::{Event, Named};
use opencl3::command_queue as queue;
use std::ptr;
use std::time::{Duration, Instant};

/// How long it is waited for. A user's queue may hold work of the user's that waits for anything.
const PATIENCE: Duration = Duration::from_secs(5);

impl OpenClDevice {
    /// Whether all that was enqueued before has ended, within [`PATIENCE`].
    pub(crate) fn finished(&self) -> bool {
        // SAFETY: the queue is live, and there is nothing to wait for but what came before: the queue is in order.
        let marker =
            unsafe { queue::enqueue_marker_with_wait_list(self.queue().raw(), 0, ptr::null()) };
        let Ok(marker) = marker.named("clEnqueueMarkerWithWaitList").map(Event::owned) else {
            return false;
        };
        if self.queue().flush().is_err() {
            return false;
        }
        let until = Instant::now() + PATIENCE;
        loop {
            match marker.ended() {
                Ok(true) => return true,
                Ok(false) if Instant::now() < until => std::thread::yield_now(),
                // A marker that failed says nothing of what came before.
                Ok(false) | Err(_) => return false,
            }
        }
    }
}
