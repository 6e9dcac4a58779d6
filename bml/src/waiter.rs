//! How to wait: spin while the wait is likely to be short, then sleep.
//!
//! If there are more processes than cores, spinning costs milliseconds a message, because the awaited peer is not
//! running; so then there is no spinning, but a few yields. Every sleep is bounded, so that a peer's death is noticed
//! however the transport learns of it.

use crate::spin::{Spin, Switches};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 32;

/// How long each stage of waiting lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long polls that find nothing follow each other without a pause, at most; see [`Spin`].
    pub spin: Duration,
    /// Where there is no spinning: polls in a row that find nothing, each followed by a yield, before the process
    /// sleeps.
    pub yields: u32,
    /// The longest sleep, in milliseconds; 0 never sleeps.
    pub block_ms: u16,
    /// The longest sleep while some transport must be polled by the clock, in milliseconds.
    pub clock_ms: u16,
}

impl Patience {
    /// For `local_ranks` processes of the job on this machine's `cores`.
    #[must_use]
    pub fn new(local_ranks: usize, cores: usize) -> Patience {
        let crowded = local_ranks > cores;
        Patience {
            spin: if crowded { Duration::ZERO } else { Duration::from_micros(1000) },
            yields: if crowded { 32 } else { 0 },
            block_ms: 50,
            clock_ms: 1,
        }
    }

    /// Whether waits spin at all.
    #[inline]
    #[must_use]
    pub fn spins(&self) -> bool {
        !self.spin.is_zero()
    }
}

/// What to do after a poll that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStep {
    /// Poll again at once.
    Spin,
    /// Let others run, then poll again.
    Yield,
    /// Sleep: see [`Bml::arm`](crate::Bml::arm).
    Block,
}

/// The state of waits; reuse it, so that its list is allocated once.
#[derive(Debug)]
pub struct Waiter {
    patience: Patience,
    spin: Spin,
    /// Polls in a row that found nothing.
    empty: u32,
    descriptors: Vec<libc::pollfd>,
    /// Whether some transport must be polled by the clock.
    by_clock: bool,
}

/// Nanoseconds of a monotonic clock, which begins at the first call: the times that [`Spin`] and other layers take.
#[must_use]
pub fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// How often the system has given this thread's processor to another while the thread wanted it, for [`Spin`]; nothing
/// where the system does not say. A call of the system.
#[must_use]
#[allow(unsafe_code, reason = "getrusage(2) into memory of ours")]
pub fn switches() -> Option<Switches> {
    thread_local!(static HERE: u8 = const { 0 });
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to room for what the kernel writes.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) } != 0;
    // SAFETY: it was zeroed, and all its fields are numbers.
    let usage = unsafe { usage.assume_init() };
    let count = u64::try_from(usage.ru_nivcsw).ok().filter(|_| !failed)?;
    Some(Switches { thread: HERE.with(|here| std::ptr::from_ref(here).addr()), count })
}

impl Waiter {
    /// For `local_ranks` processes of the job on this machine, this one included.
    #[must_use]
    pub fn new(local_ranks: usize) -> Waiter {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Waiter::with(Patience::new(local_ranks, cores))
    }

    /// With one's own patience.
    #[must_use]
    pub fn with(patience: Patience) -> Waiter {
        let spin = Spin::new(patience.spin);
        Waiter { patience, spin, empty: 0, descriptors: Vec::new(), by_clock: false }
    }

    /// Starts afresh: something happened, or another wait starts.
    pub fn restart(&mut self) {
        self.empty = 0;
        self.spin.found();
    }

    /// What to do now that a poll found nothing.
    #[inline]
    pub fn step(&mut self) -> WaitStep {
        self.empty = self.empty.saturating_add(1);
        if self.patience.spins() {
            let goes_on =
                !self.empty.is_multiple_of(POLLS_PER_LOOK) || self.spin.look(now_ns(), switches);
            if goes_on {
                return WaitStep::Spin;
            }
        } else if self.empty <= self.patience.yields {
            return WaitStep::Yield;
        }
        if self.patience.block_ms == 0 { WaitStep::Yield } else { WaitStep::Block }
    }

    /// Before a sleep that no transport ends: none is armed.
    pub fn rest(&mut self) {
        self.disarm();
    }

    pub(crate) fn disarm(&mut self) {
        self.descriptors.clear();
        self.by_clock = false;
    }

    /// Adds what a transport's `arm` gave.
    pub(crate) fn arm(&mut self, descriptor: Option<RawFd>) {
        match descriptor {
            Some(fd) => {
                self.descriptors.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            }
            None => self.by_clock = true,
        }
    }

    /// Adds a descriptor of the caller's own, whose readability ends the next sleep too.
    pub fn watch(&mut self, descriptor: RawFd) {
        self.arm(Some(descriptor));
    }

    /// Sleeps until an armed descriptor is readable, at most as long as patience says.
    pub fn block(&mut self) {
        let ms = if self.by_clock { self.patience.clock_ms } else { self.patience.block_ms };
        self.sleep(ms.min(self.patience.block_ms));
        // A descriptor that is only ever in error would turn sleeping into spinning.
        let broken = libc::POLLNVAL | libc::POLLERR;
        if self.descriptors.iter().any(|d| d.revents & broken != 0 && d.revents & libc::POLLIN == 0)
        {
            self.descriptors.clear();
            self.sleep(self.patience.clock_ms.min(self.patience.block_ms));
        }
        self.spin.slept(now_ns());
    }

    #[allow(unsafe_code, reason = "poll(2) on plain descriptor numbers")]
    fn sleep(&mut self, ms: u16) {
        let Ok(count) = libc::nfds_t::try_from(self.descriptors.len()) else { return };
        // SAFETY: the pointer and the count describe this vector's initialised elements, which the
        // kernel writes `revents` of. Numbers that are not open descriptors are answered, not
        // touched. Failure (EINTR) means a shorter sleep.
        unsafe { libc::poll(self.descriptors.as_mut_ptr(), count, i32::from(ms)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_btl_testkit::conformance::skip;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    #[test]
    fn yields_then_blocks_then_starts_afresh() {
        let patience = Patience { spin: Duration::ZERO, yields: 2, block_ms: 1, clock_ms: 1 };
        let mut waiter = Waiter::with(patience);
        let steps: Vec<_> = (0..4).map(|_| waiter.step()).collect();
        assert_eq!(steps, [WaitStep::Yield, WaitStep::Yield, WaitStep::Block, WaitStep::Block]);
        waiter.restart();
        assert_eq!(waiter.step(), WaitStep::Yield);
    }

    #[test]
    fn spins_first_and_blocks_in_the_end() {
        let spin = Duration::from_nanos(1);
        let mut waiter = Waiter::with(Patience { spin, ..Patience::new(1, 1) });
        assert!((1..POLLS_PER_LOOK).all(|_| waiter.step() == WaitStep::Spin));
        assert!((0..u32::MAX).any(|_| waiter.step() == WaitStep::Block));
    }

    #[test]
    fn who_shares_a_processor_hears_of_it() {
        let (over, most) = (AtomicBool::new(false), AtomicU64::new(0));
        let until = Instant::now() + Duration::from_secs(60);
        let crowd = 1 + std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|threads| {
            for _ in 0..crowd {
                threads.spawn(|| {
                    let before = switches().unwrap();
                    while !over.load(Ordering::Relaxed) && Instant::now() < until {
                        // Whoever yields wanted it, too.
                        std::thread::yield_now();
                        let now = switches().unwrap();
                        assert_eq!(now.thread, before.thread);
                        over.fetch_or(now.count > before.count, Ordering::Relaxed);
                        most.fetch_max(now.count, Ordering::Relaxed);
                    }
                });
            }
        });
        if most.into_inner() > 0 {
            assert!(over.into_inner());
        } else {
            skip("who_shares_a_processor_hears_of_it", "the system does not count switches");
        }
        let elsewhere = std::thread::spawn(|| switches().unwrap().thread);
        assert_ne!(elsewhere.join().unwrap(), switches().unwrap().thread);
    }

    #[test]
    fn a_crowd_never_spins() {
        assert!(!Patience::new(3, 2).spins());
        assert!(Patience::new(2, 2).spins());
        let mut waiter = Waiter::with(Patience { block_ms: 0, ..Patience::new(9, 1) });
        assert!((0..1000).all(|_| waiter.step() == WaitStep::Yield));
    }

    #[test]
    fn a_ring_ends_the_sleep_and_a_bad_descriptor_does_not_prolong_it() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(b"!").unwrap();
        let patience =
            Patience { spin: Duration::ZERO, yields: 0, block_ms: u16::MAX, clock_ms: 1 };
        let mut waiter = Waiter::with(patience);
        waiter.arm(Some(theirs.as_raw_fd()));
        waiter.block(); // would take a minute
        assert!(waiter.descriptors[0].revents & libc::POLLIN != 0);
        waiter.disarm();
        waiter.arm(Some(i32::MAX));
        waiter.block();
        waiter.disarm();
        waiter.arm(None);
        waiter.block();
    }
}
