//! The end of all work that was enqueued so far.

use crate::OpenClDevice;
use crate::sys::{Event, Named};
use opencl3::command_queue as queue;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a marker is waited for, once: drivers take a while to say that a queue is idle.
const GRACE: Duration = Duration::from_millis(100);

/// The marker of an earlier call that has not ended. A user's queue may hold work of the user's that waits for anything.
#[derive(Debug, Default)]
pub(crate) struct Marker(Mutex<Option<Event>>);

impl OpenClDevice {
    /// Whether all that was enqueued before has ended. While an earlier marker has not, this is one question to the driver.
    pub(crate) fn finished(&self) -> bool {
        let mut earlier = self.marker().0.lock().unwrap_or_else(PoisonError::into_inner);
        if earlier.as_ref().is_some_and(|marker| marker.ended() == Ok(false)) {
            return false;
        }
        *earlier = None;
        // SAFETY: the queue is live, and there is nothing to wait for but what came before: the queue is in order.
        let marker =
            unsafe { queue::enqueue_marker_with_wait_list(self.queue().raw(), 0, ptr::null()) };
        let Ok(marker) = marker.named("clEnqueueMarkerWithWaitList").map(Event::owned) else {
            return false;
        };
        if self.queue().flush().is_err() {
            return false;
        }
        let until = Instant::now() + GRACE;
        loop {
            match marker.ended() {
                Ok(true) => return true,
                Ok(false) if Instant::now() < until => std::thread::yield_now(),
                Ok(false) => {
                    *earlier = Some(marker);
                    return false;
                }
                // A marker that failed says nothing of what came before.
                Err(_) => return false,
            }
        }
    }
}
