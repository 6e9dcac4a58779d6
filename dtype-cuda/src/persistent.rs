//! A kernel that stays on a device for a while, and runs what its host gives it, without a launch and in that order
//! (`gapless-kernels`, `persistent`): the copy worker, and the one of a stream's communicator. This file has its ring and
//! its lives; what starts a life is the vendor's.
//!
//! It stays until nothing has come for a while. What finds it away goes by a launch, and starts it for what follows: it
//! changes nothing but how long things take.
//!
//! **Nothing is lost.** A life's last word is `AWAY`. Then it fences, and looks once more for commands. Whoever gives
//! it a command fences; who asks for the command's end reads the state. If that is `AWAY`, and the life is over, the next
//! one is started, which begins where the last one ended.

use crate::lanes::PATIENCE;
use gapless_kernels::persistent::{AWAY, Command, ENDED, RUNNING, SLOTS, STARTING, STATE, slot};
use gapless_mem::{Completion, DeviceError, Pending, WORD_BYTES, Words};
use std::any::Any;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Questions for the end of a command between two whether the kernel lives.
const ASKS: u32 = 512;

/// Starts that were refused in a row before the kernel is not wanted any more.
const REFUSALS_MAX: u32 = 8;

/// Starts lives of a kernel that stays.
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

    /// Whether all lives that were started are over.
    ///
    /// # Errors
    /// One has failed, and so will all.
    fn is_over(&self) -> Result<bool, DeviceError>;
}

/// The host's side of a kernel that stays.
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

fn at(bytes: u64) -> usize {
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

    /// How many commands it was given.
    pub(crate) fn given(&self) -> u64 {
        *lock(&self.given)
    }

    /// Has it started, for commands that come, if it is away.
    pub(crate) fn wake(&self) {
        let away = self.word(STATE).load(Ordering::Relaxed) == AWAY;
        if !away || self.failed.get().is_some() || !self.lives.may_start() {
            return;
        }
        let mut refused = lock(&self.starting);
        if *refused < REFUSALS_MAX
            && let Err(error) = self.start(&mut refused)
        {
            tracing::debug!(%error, "a kernel that stays cannot be started");
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
                tracing::warn!("a kernel that stays does not leave; its control block is kept");
                std::mem::forget(self.words.clone());
                return;
            }
            std::thread::yield_now();
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
        // One that is away may have left without it. The next life is not started before that one is over: the command may
        // wait for others, and a life that waits behind it would keep work of other streams waiting, as far as they share
        // a hardware queue.
        let away = self.kernel.word(STATE).load(Ordering::Relaxed) == AWAY;
        if !away && self.asks.fetch_add(1, Ordering::Relaxed) % ASKS != ASKS - 1 {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_kernels::copy_worker::command as copy_command;
    use gapless_kernels::launch::{KernelAddress, Launch, TransferSide, transfer};
    use gapless_kernels::persistent::CONTROL_BYTES;
    use gapless_mem::{Lease, Region, Space};
    use std::sync::atomic::AtomicBool;

    /// The kernel, played by a thread for each life.
    struct Played {
        words: Words,
        /// Lives that run, or wait for the one before.
        lives: Arc<AtomicU64>,
        /// Only one life runs at a time.
        stream: Arc<Mutex<()>>,
        /// The first pointers of all commands that have ended.
        seen: Seen,
        /// Looks in vain before a life leaves.
        patience: u32,
        refuses: Arc<AtomicBool>,
    }

    // SAFETY: a life is a thread, which counts itself out last; it touches its own words alone.
    unsafe impl Lives for Played {
        fn start(&self) -> Result<(), DeviceError> {
            if self.refuses.load(Ordering::Relaxed) {
                return Err(DeviceError::Unsupported { what: "lives" });
            }
            self.lives.fetch_add(1, Ordering::AcqRel);
            let (words, lives, stream) =
                (self.words.clone(), Arc::clone(&self.lives), Arc::clone(&self.stream));
            let (seen, patience) = (Arc::clone(&self.seen), self.patience);
            std::thread::spawn(move || {
                let turn = lock(&stream);
                live(words.all(), patience, &seen);
                drop(turn);
                lives.fetch_sub(1, Ordering::AcqRel);
            });
            Ok(())
        }

        fn may_start(&self) -> bool {
            true
        }

        fn is_over(&self) -> Result<bool, DeviceError> {
            Ok(self.lives.load(Ordering::Acquire) == 0)
        }
    }

    /// One life, as `cuda/copy_worker.cu` has it.
    fn live(words: &[AtomicU64], patience: u32, seen: &Mutex<Vec<u64>>) {
        let (state, ended) = (&words[at(STATE)], &words[at(ENDED)]);
        let mut next = ended.load(Ordering::Relaxed);
        state.store(RUNNING, Ordering::Relaxed);
        let (mut leaving, mut looks) = (false, 0);
        loop {
            let units = &words[at(slot(next))..][..64];
            let sequence = 1 + next % 65535;
            if units
                .chunks_exact(2)
                .all(|unit| unit[0].load(Ordering::Acquire) & 0xffff == sequence)
            {
                if units[0].load(Ordering::Relaxed) >> 16 & 0xff == 255 {
                    leaving = true;
                    state.store(AWAY, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    next += 1;
                    ended.store(next, Ordering::Release);
                    continue;
                }
                // The first pointer lies behind a head of 16 bytes: 2 bytes into the second unit's body.
                let [low, high] = [2, 3].map(|word| units[word].load(Ordering::Relaxed));
                lock(seen).push(low >> 32 | (high & 0xffff_ffff) << 32);
                next += 1;
                ended.store(next, Ordering::Release);
                looks = 0;
                continue;
            }
            if leaving {
                return;
            }
            looks += 1;
            if looks > patience {
                leaving = true;
                state.store(AWAY, Ordering::Relaxed);
                fence(Ordering::SeqCst);
            }
            std::thread::yield_now();
        }
    }

    fn copy() -> Launch {
        let (side, place) = (TransferSide::Contiguous(0), KernelAddress { address: 0, offset: 0 });
        transfer(&(0..64), (&side, place), (&side, place), None).unwrap().remove(0)
    }

    fn command(number: u64) -> Command {
        copy_command(&copy(), [number, 0, 0, 0]).unwrap()
    }

    /// The first pointers of commands.
    type Seen = Arc<Mutex<Vec<u64>>>;

    fn worker(patience: u32) -> (Arc<PersistentKernel<Played>>, Seen, Arc<AtomicBool>) {
        let memory: Arc<Vec<AtomicU64>> =
            Arc::new((0..CONTROL_BYTES / 8).map(|_| AtomicU64::new(0)).collect());
        let start = memory.as_ptr().expose_provenance() as u64;
        // SAFETY: the array is kept by the Arc.
        let lease =
            unsafe { Lease::new(Region::new(Space::Host, start, 0, CONTROL_BYTES), memory) };
        // SAFETY: it is zeroed, and touched by words alone.
        let words = unsafe { Words::new(lease) }.unwrap();
        let (seen, refuses): (Seen, Arc<AtomicBool>) = Default::default();
        let played = Played {
            words: words.clone(),
            lives: Arc::default(),
            stream: Arc::default(),
            seen: Arc::clone(&seen),
            patience,
            refuses: Arc::clone(&refuses),
        };
        (Arc::new(PersistentKernel::new(words, played)), seen, refuses)
    }

    #[test]
    fn every_command_is_run_once_in_order_by_lives_that_leave_at_any_time() {
        for patience in [2, 10, 50] {
            let (worker, seen, _) = worker(patience);
            let (mut given, mut refused) = (Vec::new(), 0);
            while given.len() < 300 {
                worker.wake();
                let number = given.len() as u64;
                // SAFETY: a played kernel moves nothing.
                match unsafe { worker.give(&command(number << 20 | 7)) } {
                    Some(work) => given.push(work),
                    None => refused += 1,
                }
                if given.len() % 7 == 0 {
                    std::thread::yield_now();
                }
            }
            for work in &given {
                work.wait().unwrap();
            }
            let wanted: Vec<u64> = (0..300).map(|number| number << 20 | 7).collect();
            assert_eq!(*lock(&seen), wanted, "patience {patience}, {refused} refused");
        }
    }

    #[test]
    fn a_worker_that_is_away_takes_nothing_and_one_that_cannot_be_started_fails_nobody() {
        let (worker, seen, refuses) = worker(10);
        // SAFETY: a played kernel moves nothing.
        assert!(unsafe { worker.give(&command(1)) }.is_none());
        refuses.store(true, Ordering::Relaxed);
        (0..REFUSALS_MAX + 1).for_each(|_| worker.wake());
        refuses.store(false, Ordering::Relaxed);
        worker.wake();
        // SAFETY: as above.
        assert!(unsafe { worker.give(&command(1)) }.is_none());
        assert!(!worker.is_running() && lock(&seen).is_empty());
    }

    #[test]
    fn a_copy_whose_worker_cannot_be_started_again_fails_for_good() {
        for round in 0..200 {
            let (worker, _, refuses) = worker(10);
            worker.wake();
            while !worker.is_running() {
                worker.wake();
                std::thread::yield_now();
            }
            // The life leaves before, while or after it finds the command; no other one comes.
            refuses.store(true, Ordering::Relaxed);
            (0..round % 20).for_each(|_| std::thread::yield_now());
            // SAFETY: a played kernel moves nothing.
            let Some(work) = (unsafe { worker.give(&command(1)) }) else { continue };
            let end = loop {
                match work.poll() {
                    Ok(false) => std::thread::yield_now(),
                    end => break end,
                }
            };
            assert_eq!(work.poll(), end, "an end stays what it is");
            assert!(work.is_known_over());
        }
    }

    #[test]
    fn what_was_given_is_run_before_a_worker_is_gone() {
        let (worker, seen, _) = worker(u32::MAX);
        worker.wake();
        while !worker.is_running() {
            std::thread::yield_now();
        }
        // SAFETY: a played kernel moves nothing.
        let work = unsafe { worker.give(&command(1)) }.unwrap();
        drop(work);
        drop(worker);
        assert_eq!(lock(&seen).len(), 1);
    }
}
