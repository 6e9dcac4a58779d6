//! What wakes threads of this process that sleep for the sake of a world.

use crate::error::Error;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An eventfd that wakes sleepers. To signal one that is signalled already takes no system call: tasks signal one each
/// time, and most of the time nobody sleeps.
#[derive(Clone, Debug)]
pub(crate) struct Wakeup(Arc<Event>);

#[derive(Debug)]
struct Event {
    fd: OwnedFd,
    /// It is readable, or somebody is about to make it so.
    signalled: AtomicBool,
}

impl Wakeup {
    fn new() -> Result<Wakeup, Error> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let failed = |e: rustix::io::Errno| e.to_string();
        made.map(|fd| Wakeup(Arc::new(Event { fd, signalled: AtomicBool::new(false) })))
            .map_err(|e| Error::System { operation: "eventfd", reason: failed(e) })
    }

    /// Makes it readable. Whoever [clears](Wakeup::clear) it afterwards sees what the caller has done before.
    pub(crate) fn signal(&self) {
        if !self.0.signalled.swap(true, Ordering::AcqRel) {
            // A full counter is readable already.
            let _ = rustix::io::write(&self.0.fd, &1u64.to_ne_bytes());
        }
    }

    /// Makes it unreadable. Nobody sleeps: the caller, and whoever is about to, looks again after this. So a signal
    /// that is left out because the wake-up seems to be signalled is not missed. (It is a read and a write of one word
    /// on both sides: one of them comes second, and sees what the other has done.) Callers see to it that nobody else
    /// sleeps: the alarm is cleared under the world's lock when there are no sleepers, the nudge by the one progress
    /// thread.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0.fd, &mut [0u8; 8]);
        self.0.signalled.swap(false, Ordering::AcqRel);
    }
}

impl AsRawFd for Wakeup {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd.as_raw_fd()
    }
}

/// The wake-ups of a world.
#[derive(Clone, Debug)]
pub(crate) struct Wakeups {
    /// Readable when threads that sleep on it should check again.
    pub(crate) alarm: Wakeup,
    /// Signalled for the progress thread.
    pub(crate) nudge: Wakeup,
}

impl Wakeups {
    /// # Errors
    /// The system gives no descriptor.
    pub(crate) fn new() -> Result<Wakeups, Error> {
        Ok(Wakeups { alarm: Wakeup::new()?, nudge: Wakeup::new()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(wakeup: &Wakeup) -> bool {
        let mut fds = [rustix::event::PollFd::new(&wakeup.0.fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() == 1
    }

    #[test]
    fn a_wakeup_is_readable_until_it_is_cleared() {
        let wakeup = Wakeup::new().unwrap();
        for _ in 0..3 {
            assert!(!is_readable(&wakeup));
            (0..3).for_each(|_| wakeup.signal());
            assert!(is_readable(&wakeup));
            wakeup.clear();
        }
        wakeup.clear();
        wakeup.signal();
        assert!(is_readable(&wakeup));
    }

    /// A sleeper that clears the wake-up and then looks misses nothing, whenever it is signalled.
    #[test]
    fn no_signal_is_missed() {
        use std::sync::atomic::AtomicU64;
        let (wakeup, number) = (Wakeup::new().unwrap(), AtomicU64::new(0));
        const ROUNDS: u64 = 20_000;
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for round in 1..=ROUNDS {
                    number.store(round, Ordering::Relaxed);
                    wakeup.signal();
                    if round.is_multiple_of(7) {
                        std::thread::yield_now();
                    }
                }
            });
            let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while number.load(Ordering::Relaxed) < ROUNDS {
                assert!(std::time::Instant::now() < until, "a signal was missed");
                let mut fds =
                    [rustix::event::PollFd::new(&wakeup.0.fd, rustix::event::PollFlags::IN)];
                let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
                let before = number.load(Ordering::Relaxed);
                let polled = rustix::event::poll(&mut fds, Some(&second)).unwrap();
                // Nothing may have come in a second, on a busy machine. What had come by the middle of it was
                // signalled.
                if polled == 0 && number.load(Ordering::Relaxed) != before {
                    let polled = rustix::event::poll(&mut fds, Some(&second)).unwrap();
                    assert_eq!(polled, 1, "a number came, and nobody signalled it");
                }
                wakeup.clear();
            }
        });
    }
}
