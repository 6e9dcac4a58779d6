//! Between a persistent kernel and its host: commands, and the starts of lives.

use super::primitive::{
    ASKS, AtomicU64, Command, ENDED, Mutex, MutexGuard, SLOTS, STATE, Words, fence, slot, yield_now,
};
use crate::lanes::PATIENCE;
use gapless_kernels::persistent::{AWAY, RUNNING, STARTING};
use gapless_mem::{Completion, DeviceError, Pending, WORD_BYTES};
use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Instant;

/// Starts that were refused in a row before the kernel is not wanted any more.
pub(super) const REFUSALS_MAX: u32 = 8;

/// Starts lives of a persistent kernel.
///
/// # Safety
/// `is_over` answers `true`, or an error, only if no life that was started touches memory any more. A life does what
/// the kernel does: it runs each command once, in order, and counts it when its stores can be seen.
pub(crate) unsafe trait Lives: Send + Sync {
    /// Starts a life, which begins when the last one is over.
    ///
    /// # Errors
    /// The device refuses; none was started.
    fn start(&self) -> Result<(), DeviceError>;

    /// Whether it may be started now.
    fn may_start(&self) -> bool;

    /// Whether commands may wait for other processes. Then a life is started when the one before is over.
    fn waits(&self) -> bool;

    /// Whether all lives that were started are over.
    ///
    /// # Errors
    /// One has failed, and so will all.
    fn is_over(&self) -> Result<bool, DeviceError>;
}

/// The host's side of a persistent kernel.
pub(crate) struct PersistentKernel<L: Lives> {
    lives: L,
    /// The control block.
    words: Words,
    /// Commands that were given to it.
    given: Mutex<u64>,
    /// Held by who starts a life: how many starts were refused since the last one.
    starting: Mutex<u32>,
    /// No life runs, and none is started any more.
    failed: OnceLock<DeviceError>,
}

/// A command that was given to it: all up to this number.
struct Given<L: Lives> {
    kernel: Arc<PersistentKernel<L>>,
    number: u64,
    asks: AtomicU32,
    failed: OnceLock<DeviceError>,
}

pub(super) fn at(bytes: u64) -> usize {
    usize::try_from(bytes / WORD_BYTES).unwrap_or(usize::MAX)
}

impl<L: Lives> PersistentKernel<L> {
    /// One that is away. The control block is zeroed, and is this one's alone.
    pub(crate) fn new(words: Words, lives: L) -> PersistentKernel<L> {
        let (given, starting) = (Mutex::default(), Mutex::default());
        PersistentKernel { lives, words, given, starting, failed: OnceLock::new() }
    }

    fn word(&self, bytes: u64) -> &AtomicU64 {
        &self.words.all()[at(bytes)]
    }

    fn ended(&self) -> u64 {
        self.word(ENDED).load(Ordering::Acquire)
    }

    /// Whether it takes commands now.
    pub(crate) fn is_running(&self) -> bool {
        self.word(STATE).load(Ordering::Relaxed) == RUNNING && self.failed.get().is_none()
    }

    fn is_away(&self) -> bool {
        self.word(STATE).load(Ordering::Relaxed) == AWAY
    }

    /// How many commands it was given.
    pub(crate) fn given(&self) -> u64 {
        *lock(&self.given)
    }

    /// Has it started, for commands that come, if it is away.
    pub(crate) fn wake(&self) {
        if !self.is_away() || self.failed.get().is_some() || !self.lives.may_start() {
            return;
        }
        let mut refused = lock(&self.starting);
        if *refused < REFUSALS_MAX
            && let Err(error) = self.start(&mut refused)
        {
            tracing::debug!(%error, "a persistent kernel cannot be started");
        }
    }

    /// Starts a life, unless it is not away.
    fn start(&self, refused: &mut MutexGuard<'_, u32>) -> Result<(), DeviceError> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        let (state, order) = (self.word(STATE), Ordering::AcqRel);
        if state.compare_exchange(AWAY, STARTING, order, Ordering::Relaxed).is_err() {
            return Ok(());
        }
        let started = self.lives.start();
        if started.is_err() {
            state.store(AWAY, Ordering::Release);
        }
        **refused = if started.is_err() { **refused + 1 } else { 0 };
        started
    }

    /// Gives it a command. `None`: it is away, or its ring is full, and nothing was done.
    ///
    /// # Safety
    /// It is of the kind that the kernel runs. What it works on stays valid, and free of races, until the completion.
    pub(crate) unsafe fn give(self: &Arc<Self>, command: &Command) -> Option<Completion>
    where
        L: 'static,
    {
        if !self.is_running() {
            return None;
        }
        let given = self.put(command)?;
        if !self.lives.waits() && self.is_away() {
            // If that fails, it is tried again by who asks for the command's end.
            let _ = self.start(&mut lock(&self.starting));
        }
        let (asks, failed) = (AtomicU32::new(0), OnceLock::new());
        let given = Given { kernel: Arc::clone(self), number: given, asks, failed };
        Some(Completion::Pending(Arc::new(given)))
    }

    /// Puts a command into the ring, and fences. How many were given then; `None`: it is full.
    fn put(&self, command: &Command) -> Option<u64> {
        let mut given = lock(&self.given);
        let number = *given;
        if number - self.ended().min(number) >= SLOTS {
            return None;
        }
        let words = self.words.all().get(at(slot(number))..)?;
        for (pair, [low, high]) in words.chunks_exact(2).zip(command.units(number)) {
            pair[1].store(high, Ordering::Relaxed);
            // It has the sequence: what was stored before is seen with it.
            pair[0].store(low, Ordering::Release);
        }
        *given = number + 1;
        fence(Ordering::SeqCst);
        Some(number + 1)
    }

    /// Whether so many commands have ended, as far as the device knows.
    fn ask(&self, number: u64) -> Result<bool, DeviceError> {
        // Nobody starts a life meanwhile.
        let mut refused = lock(&self.starting);
        let over = self.lives.is_over();
        // A life may have ended it and left since the caller looked.
        if self.ended() >= number {
            return Ok(true);
        }
        let error = match over {
            Ok(false) => return Ok(false),
            // A life says `AWAY` before it is over; what it has left the next one runs.
            Ok(true) => match self.start(&mut refused) {
                Ok(()) => return Ok(false),
                Err(_) if *refused < REFUSALS_MAX => return Ok(false),
                Err(error) => error,
            },
            Err(error) => error,
        };
        Err(self.failed.get_or_init(|| error).clone())
    }
}

impl<L: Lives> Drop for PersistentKernel<L> {
    fn drop(&mut self) {
        let begun = Instant::now();
        while matches!(self.lives.is_over(), Ok(false)) {
            // Of two lives each is to find one.
            if self.ended() >= self.given() {
                self.put(&Command::leave());
            }
            if begun.elapsed() > PATIENCE {
                tracing::warn!("a persistent kernel does not leave; its control block is kept");
                std::mem::forget(self.words.clone());
                return;
            }
            yield_now();
        }
    }
}

// SAFETY: the numbers are those of the contract.
// 1. and 2. A life counts a command when its stores can be seen, and the count is loaded with acquire. An error is told
//    when no life runs (`is_over`), under the lock that starting takes, and with it `failed` is set: none is started
//    later.
// 3. The count only grows; an error is kept, and told first.
// 4. `as_any` gives `self`.
// 5. It is not exported.
unsafe impl<L: Lives + 'static> Pending for Given<L> {
    fn poll(&self) -> Result<bool, DeviceError> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        if self.is_known_over() {
            return Ok(true);
        }
        let asks = self.asks.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let left = self.kernel.lives.waits() && self.kernel.is_away();
        if !left && !asks.is_multiple_of(ASKS) {
            return Ok(false);
        }
        let ended = self.kernel.ask(self.number);
        ended.inspect_err(|error| drop(self.failed.set(error.clone())))
    }

    fn is_known_over(&self) -> bool {
        self.failed.get().is_some() || self.kernel.ended() >= self.number
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
