//! The real ring and real threads: the kernel is played by a thread for each life.

use super::hand_over::{REFUSALS_MAX, at, lock};
use super::{Lives, PersistentKernel};
use gapless_kernels::copy_worker::command as copy_command;
use gapless_kernels::launch::{KernelAddress, Launch, TransferSide, transfer};
use gapless_kernels::persistent::{AWAY, CONTROL_BYTES, Command, ENDED, RUNNING, STATE, slot};
use gapless_mem::{DeviceError, Lease, Region, Space, Words};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

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

    fn waits(&self) -> bool {
        false
    }

    fn is_over(&self) -> Result<bool, DeviceError> {
        Ok(self.lives.load(Ordering::Acquire) == 0)
    }
}

/// One life, as `kernels/cuda/lives.h` has it.
fn live(words: &[AtomicU64], patience: u32, seen: &Mutex<Vec<u64>>) {
    let (state, ended) = (&words[at(STATE)], &words[at(ENDED)]);
    let mut next = ended.load(Ordering::Relaxed);
    state.store(RUNNING, Ordering::Relaxed);
    let (mut leaving, mut looks) = (false, 0);
    loop {
        let units = &words[at(slot(next))..][..64];
        let sequence = 1 + next % 65535;
        if units.chunks_exact(2).all(|unit| unit[0].load(Ordering::Acquire) & 0xffff == sequence) {
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
    let lease = unsafe { Lease::new(Region::new(Space::Host, start, 0, CONTROL_BYTES), memory) };
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
