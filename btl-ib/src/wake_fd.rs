//! Wakes the process, asleep on the transport's descriptor, when another thread has given a buffer back: the peer may wait
//! for that room.

use gapless_btl::LinkError;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// The descriptor, and whether anybody listens.
pub(crate) struct WakeFd {
    fd: OwnedFd,
    listened: AtomicBool,
}

impl WakeFd {
    /// # Errors
    /// The system has no descriptors.
    pub(crate) fn new() -> Result<WakeFd, LinkError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let fd = fd.map_err(|error| LinkError::System {
            operation: "eventfd",
            reason: error.to_string(),
        })?;
        Ok(WakeFd { fd, listened: AtomicBool::new(false) })
    }

    /// Readable once it has rung, until somebody listens again.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Rings, once, if somebody listens. Call this after what it tells of. Does not block.
    pub(crate) fn ring(&self) {
        // Either the listener sees what was done before, or we see that it listens.
        fence(Ordering::SeqCst);
        if self.listened.load(Ordering::Relaxed) && self.listened.swap(false, Ordering::Relaxed) {
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// From now on the wake rings. Look afterwards, before sleeping: what was done before does not ring.
    pub(crate) fn listen(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        self.listened.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::time::Timespec;
    use std::sync::atomic::AtomicU32;

    /// Whether it has rung within a time.
    fn rung(wake: &WakeFd, seconds: i64) -> bool {
        let within = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(wake.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&within)).unwrap() > 0
    }

    #[test]
    fn it_rings_once_if_somebody_listens() {
        let wake = WakeFd::new().unwrap();
        wake.ring();
        assert!(!rung(&wake, 0));
        wake.listen();
        assert!(!rung(&wake, 0));
        wake.ring();
        wake.ring();
        assert!(rung(&wake, 0) && rung(&wake, 0));
        wake.listen();
        assert!(!rung(&wake, 0));
    }

    /// A sleeper misses nothing of what other threads do.
    #[test]
    fn nobody_sleeps_through_it() {
        const ROUNDS: u32 = 2000;
        let (wake, done) = (WakeFd::new().unwrap(), AtomicU32::new(0));
        let seen = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    done.store(round, Ordering::Release);
                    wake.ring();
                    while seen.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                }
            });
            for round in 1..=ROUNDS {
                loop {
                    wake.listen();
                    if done.load(Ordering::Acquire) >= round {
                        break;
                    }
                    assert!(rung(&wake, 60), "round {round}");
                }
                seen.store(round, Ordering::Release);
            }
        });
    }
}
