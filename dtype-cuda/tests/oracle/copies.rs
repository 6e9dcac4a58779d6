//! Copies that a worker runs without a launch: the suite again, each move repeated until the worker has had it.

use crate::bench::{Bench, alignments, any};
use crate::cuda::devices_alone;
use crate::memory::{Buffer, Own, Provider, index, wait};
use crate::sample::range;
use crate::seed::{cases, fail, rng};
use crate::suite;
use gapless_dtype_cuda::{Config, GpuEngine, WORKER_COPY_MAX, Workers};
use gapless_engine::{Engine, EngineError, Typed};
use gapless_kernels::copy_worker;
use gapless_mem::{Completion, Device, Region, Space};
use gapless_mem_cuda::{CudaDevice, Module};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Moves of one piece of work, at most: a worker that leaves has it launched.
const TRIES: u32 = 200;

/// An engine that moves until its worker has.
struct Again {
    engine: GpuEngine,
    /// Moves that the worker had, and those that it never took.
    had: AtomicU64,
    never: AtomicU64,
}

impl Again {
    fn until(
        &self,
        after: &[Completion],
        work: impl Fn() -> Result<Completion, EngineError>,
    ) -> Result<Completion, EngineError> {
        for earlier in after {
            earlier.wait()?;
        }
        let before = self.engine.copies_by_worker();
        for _ in 0..TRIES {
            work()?.wait()?;
            if self.engine.copies_by_worker() > before {
                self.had.fetch_add(1, Ordering::Relaxed);
                return Ok(Completion::Ready);
            }
        }
        self.never.fetch_add(1, Ordering::Relaxed);
        Ok(Completion::Ready)
    }
}

// SAFETY: each move is the engine's, which keeps the contract, and has ended before this returns.
unsafe impl Engine for Again {
    fn name(&self) -> &'static str {
        "copy worker"
    }

    fn serves(&self, space: Space) -> bool {
        self.engine.serves(space)
    }

    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's promise; the moves follow one another.
        self.until(after, || unsafe { self.engine.pack(src, range.clone(), dst, &[]) })
    }

    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: as above.
        self.until(after, || unsafe { self.engine.unpack(src, dst, range.clone(), &[]) })
    }

    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: as above.
        self.until(after, || unsafe { self.engine.transfer(src, dst, range.clone(), &[]) })
    }
}

fn engine(device: &Arc<CudaDevice>, workers: Workers) -> GpuEngine {
    let config = Config { workers, ..Config::default() };
    GpuEngine::cuda_with(Arc::clone(device), config).unwrap()
}

fn again(test: &str) -> Option<(Arc<Again>, Bench)> {
    let device = devices_alone(test).first()?;
    let engine = engine(device, Workers::Idle(Duration::from_millis(2)));
    let again = Again { engine, had: AtomicU64::new(0), never: AtomicU64::new(0) };
    let again = Arc::new(again);
    let memory: Arc<dyn Provider> = Arc::new(Own(Arc::clone(device) as Arc<dyn Device>));
    Some((Arc::clone(&again), Bench::new(again, memory)))
}

#[test]
fn a_worker_moves_what_kernels_move() {
    const TEST: &str = "copies by a worker";
    let Some((again, bench)) = again(TEST) else { return };
    suite::every_alignment(&bench);
    suite::ranges_inside_elements(&bench);
    let mut rng = rng(TEST);
    for case in 0..cases(60) {
        let (sample, target) = (any(&mut rng), any(&mut rng));
        let (part, align) = (range(&mut rng, sample.size()), alignments(&mut rng));
        let verdict = bench.pack(&sample, &part, align, &mut rng);
        let verdict = verdict.and_then(|()| bench.unpack(&sample, &part, align, &mut rng));
        let part = range(&mut rng, sample.size().min(target.size()));
        let verdict =
            verdict.and_then(|()| bench.transfer(&sample, &target, &part, align, &mut rng));
        verdict.unwrap_or_else(|what| fail(TEST, &format!("case {case}: {what}")));
    }
    let (had, never) = (again.had.load(Ordering::Relaxed), again.never.load(Ordering::Relaxed));
    println!("{had} moves by the worker, {never} that it does not take");
    assert!(had > 100, "{had} of {}", had + never);
}

/// Threads move and wait while the worker leaves and comes back: nothing is lost.
#[test]
fn copies_that_meet_a_worker_that_leaves_are_not_lost() {
    const TEST: &str = "a copy worker that leaves";
    let Some(device) = devices_alone(TEST).first() else { return };
    let engine = engine(device, Workers::Idle(Duration::from_micros(20)));
    let memory = Own(Arc::clone(device) as Arc<dyn Device>);
    let rounds = cases(3_000);
    thread::scope(|scope| {
        for thread in 0..3u64 {
            let (engine, memory) = (engine.clone(), &memory);
            scope.spawn(move || {
                let bytes: Vec<u8> = (0..=255).cycle().take(8192).collect();
                let from = Buffer::holding(memory, &bytes);
                let into = Buffer::holding(memory, &vec![0; 8192]);
                for round in 0..rounds {
                    let len = 8 + (round * 131 + thread * 17) % 8000;
                    let part = Typed::contiguous(from.region().sub(round % 100, len).unwrap());
                    let to = into.region().sub(round % 64, len).unwrap();
                    // SAFETY: both are this thread's, which waits.
                    let work = unsafe { engine.pack(&part, 0..len, to, &[]) }.unwrap();
                    wait(&work);
                    if round % 50 < 3 {
                        thread::sleep(Duration::from_micros(15 * (1 + round % 3)));
                    }
                    if round % 97 == 0 {
                        let start = index(round % 100);
                        let sent = &bytes[start..start + index(len)];
                        assert_eq!(into.read(round % 64, len), sent);
                    }
                }
            });
        }
    });
    println!("{} of {} copies by the worker", engine.copies_by_worker(), 3 * rounds);
    assert!(engine.copies_by_worker() > 0);
}

/// Says so when it is dropped, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What waits for all of the device waits no longer than the worker's life, also while copies come without a pause.
#[test]
fn what_waits_for_the_device_does_not_wait_for_copies_that_never_end() {
    const TEST: &str = "freeing and loading beside a copy worker";
    let Some(device) = devices_alone(TEST).first() else { return };
    let engine = engine(device, Workers::Idle(Duration::from_micros(100)));
    let memory = Own(Arc::clone(device) as Arc<dyn Device>);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ends = Over(&over);
        scope.spawn(|| {
            let (from, into) =
                (Buffer::holding(&memory, &[1; 64]), Buffer::holding(&memory, &[0; 64]));
            while !over.load(Ordering::Relaxed) {
                let part = Typed::contiguous(from.region());
                // SAFETY: both are this thread's, which waits.
                let work = unsafe { engine.pack(&part, 0..64, into.region(), &[]) }.unwrap();
                wait(&work);
            }
        });
        thread::sleep(Duration::from_millis(20));
        let free = || drop(Buffer::holding(&memory, &[0; 1 << 20]));
        let load = || {
            // SAFETY: CUDA's tools made the image, and it is compiled into this program.
            let module = unsafe { Module::load(device, copy_worker::IMAGE) }.unwrap();
            module.function(copy_worker::KERNEL).unwrap();
            // SAFETY: nothing of it was launched.
            unsafe { module.unload() }.unwrap();
        };
        let all: [(&str, &dyn Fn()); 2] =
            [("allocating and freeing 1 MiB", &free), ("loading and unloading a module", &load)];
        let worst = all.map(|(what, act)| {
            let times = (0..20).map(|_| {
                let began = Instant::now();
                act();
                began.elapsed()
            });
            let worst = times.max().unwrap_or_default();
            println!("{what} took {worst:?} at most");
            worst
        });
        drop(ends);
        // A life is 5 ms, and each waits for one or two: a watchdog.
        assert!(worst.iter().all(|&worst| worst < Duration::from_secs(1)), "{worst:?}");
    });
}

#[test]
fn long_copies_and_workers_that_are_not_wanted_are_launched() {
    const TEST: &str = "copies that no worker takes";
    let Some(device) = devices_alone(TEST).first() else { return };
    let memory = Own(Arc::clone(device) as Arc<dyn Device>);
    let len = WORKER_COPY_MAX + 16;
    let bytes = vec![7; index(len)];
    let (from, into) =
        (Buffer::holding(&memory, &bytes), Buffer::holding(&memory, &vec![0; bytes.len()]));
    let idle = Workers::Idle(Duration::from_millis(1));
    for (workers, len) in [(idle, len), (Workers::Never, 64)] {
        let engine = engine(device, workers);
        for _ in 0..10 {
            let part = Typed::contiguous(from.region().sub(0, len).unwrap());
            let to = into.region().sub(0, len).unwrap();
            // SAFETY: both are this thread's, which waits.
            wait(&unsafe { engine.pack(&part, 0..len, to, &[]) }.unwrap());
        }
        assert_eq!(engine.copies_by_worker(), 0, "{workers:?}");
    }
}
