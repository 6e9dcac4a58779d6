//! Engines that panic, and completions: whatever unwinds, and wherever, `Pml::take_back` ends all work on memory, and
//! nothing is written to it afterwards.

use crate::common::lab::{Lab, config, layout};
use crate::common::{Buffer, Job, link};
use gapless_btl::Btl;
use gapless_btl::loopback::{Hub, Loopback};
use gapless_engine::testkit::{FakeEngine, Work, Wrapper};
use gapless_engine::{Engine, EngineError, HostEngine};
use gapless_mem::fake::FakeDevice;
use gapless_mem::testkit::{Call, StartCopy, Wrapped};
use gapless_mem::{Completion, Device, DeviceError, Pending, Space};
use gapless_pml::{Config, Protocol, SendMode, Source, TagSel};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Polls that a piece of work takes.
const POLLS: u32 = 6;

/// Panics once, at the call of a given number.
#[derive(Debug)]
struct Fuse(AtomicI64);

impl Fuse {
    fn burn(&self, what: &str) {
        assert!(self.0.fetch_sub(1, Ordering::Relaxed) != 0, "{what} panics, as the test wants");
    }
}

/// Work that is asked over a fuse.
struct Shaky(Completion, Arc<Fuse>);

// SAFETY: the answers are those of the work itself, which keeps the contract.
unsafe impl Pending for Shaky {
    fn poll(&self) -> Result<bool, DeviceError> {
        self.1.burn("a completion");
        self.0.poll()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A fake engine behind a fuse, whose copies are, too.
struct Panicky {
    inner: Arc<FakeEngine>,
    device: Arc<dyn Device>,
    fuse: Arc<Fuse>,
}

/// What comes before, without the fuse: whoever else asks does so under a lock.
fn bare(after: &[Completion]) -> Vec<Completion> {
    let inner = |one: &Completion| match one {
        Completion::Pending(work) => {
            work.as_any().downcast_ref::<Shaky>().map_or_else(|| one.clone(), |it| it.0.clone())
        }
        Completion::Ready => Completion::Ready,
    };
    after.iter().map(inner).collect()
}

impl Panicky {
    fn shaky(&self, work: Result<Completion, EngineError>) -> Result<Completion, EngineError> {
        Ok(Completion::Pending(Arc::new(Shaky(work?, Arc::clone(&self.fuse)))))
    }
}

// SAFETY: `FakeEngine` does the work, and keeps the contract; what panics has begun nothing.
unsafe impl Wrapper for Panicky {
    fn name(&self) -> &'static str {
        "panicky"
    }

    fn serves(&self, space: Space) -> bool {
        Engine::serves(&*self.inner, space)
    }

    fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
        Engine::device(&*self.inner, space).map(|_| Arc::clone(&self.device))
    }

    unsafe fn work(&self, work: Work, after: &[Completion]) -> Result<Completion, EngineError> {
        self.fuse.burn("an engine");
        // SAFETY: the caller's guarantees are handed on.
        self.shaky(unsafe { work.run(&*self.inner, &bare(after)) })
    }
}

/// A copy, counted until it has ended.
struct Counted(Completion, Arc<AtomicI64>, AtomicI64);

// SAFETY: the answers are those of the copy itself, which keeps the contract.
unsafe impl Pending for Counted {
    fn poll(&self) -> Result<bool, DeviceError> {
        let ended = self.0.poll();
        if ended != Ok(false) && self.2.swap(0, Ordering::Relaxed) == 1 {
            self.1.fetch_sub(1, Ordering::Relaxed);
        }
        ended
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The fake device, exporting nothing, with copies over the fuse; `under_way` counts those that have not ended.
fn copier(
    device: &Arc<FakeDevice>,
    fuse: &Arc<Fuse>,
    under_way: &Arc<AtomicI64>,
) -> Arc<dyn Device> {
    let (fuse, under_way) = (Arc::clone(fuse), Arc::clone(under_way));
    let what = "sharing its memory";
    let device = Wrapped::new(Arc::clone(device) as _, move |call| match call {
        Call::Export(_) | Call::Import => Err(DeviceError::Unsupported { what }),
        _ => Ok(()),
    });
    let around = move |after: &[Completion], start: StartCopy<'_>| {
        fuse.burn("copy");
        let copy = start(&bare(after))?;
        under_way.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(copy, Arc::clone(&under_way), AtomicI64::new(1));
        let counted = Completion::Pending(Arc::new(counted));
        Ok(Completion::Pending(Arc::new(Shaky(counted, Arc::clone(&fuse)))))
    };
    // SAFETY: `Counted` and `Shaky` answer as the copy does; `bare` leaves out only what panics, not what is waited for.
    Arc::new(unsafe { device.around_copies(around) })
}

/// Two ranks with a fake device; the engine of `shaky` panics at its call `at`.
fn lab(config: Config, shaky: u32, at: i64) -> Lab {
    let attaches = !matches!(config.force, Some(Protocol::Eager | Protocol::Pipeline));
    let device = Arc::new(FakeDevice::with_delay(3, POLLS));
    let engine = |_| Arc::new(FakeEngine { attaches, ..FakeEngine::new(&device, POLLS) });
    let engines = [0, 1].map(engine);
    let mut rail = |_, hub: &Hub| Box::new(Loopback::with(hub, link())) as Box<dyn Btl>;
    let mut job = Job::with_engines(2, config, &mut rail, &[Arc::new(HostEngine)]);
    for (rank, engine) in (0..).zip(&engines) {
        let fuse = Arc::new(Fuse(AtomicI64::new(if rank == shaky { at } else { -1 })));
        let (inner, device) = (Arc::clone(engine), copier(&device, &fuse, &engine.under_way));
        let engine = Panicky { inner, device, fuse };
        job.pml(rank).add_engine(Arc::new(engine));
    }
    Lab { job, device, engines }
}

/// Sends a message, with a panic at one end at the given call; how much was at work then, or `None` if nothing
/// panicked.
fn message(
    protocol: Protocol,
    (mode, size): (SendMode, u64),
    gaps: [bool; 2],
    shaky: u32,
    at: i64,
) -> Option<i64> {
    let what = format!("{protocol}, {mode:?}, gaps {gaps:?}: rank {shaky} panics at {at}");
    let share_device_buffers = !Protocol::STAGED.contains(&protocol);
    let mut config = Config { share_device_buffers, ..config(protocol, 3) };
    config.tuning = config.tuning.in_fragments(1000);
    config.tuning.depth = 4;
    let mut lab = lab(config, shaky, at);
    if mode == SendMode::Buffered {
        lab.job.pml(0).attach_buffer(1 << 20).unwrap();
    }
    let from = Buffer::source_in(&layout(size, gaps[0]), 1, 1, lab.home(true));
    let to = Buffer::target_in(&layout(size, gaps[1]), 1, lab.home(true));
    let mut ids = [None; 2];
    for step in 0..600 {
        let rank = step % 2;
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            let pml = lab.job.pml(rank);
            let world = pml.world();
            match (step, rank) {
                (0, _) => {
                    // SAFETY: the buffers stay until the end of this function.
                    let sent = unsafe { pml.isend_mode(&world, &from.typed(), 1, 0, mode) };
                    ids[0] = sent.ok();
                }
                (1, _) => {
                    let (source, tag) = (Source::Rank(0), TagSel::Any);
                    // SAFETY: as above.
                    ids[1] = unsafe { pml.irecv(&world, &to.typed(), source, tag) }.ok();
                }
                _ => drop(pml.progress()),
            }
        }));
        if stepped.is_err() {
            assert_eq!(rank, shaky, "{what}");
            let work = &lab.engines[rank as usize].under_way;
            let at_work = work.load(Ordering::Relaxed);
            lab.job.pml(rank).take_back();
            assert_eq!(work.load(Ordering::Relaxed), 0, "{what}: an engine is at work");
            let before = to.bytes();
            lab.job.kill(shaky);
            let other = 1 - shaky;
            if let Some(id) = ids[other as usize] {
                let _ = lab.job.finish(other, id);
            }
            assert!(shaky == 0 || to.bytes() == before, "{what}: written afterwards");
            return Some(at_work);
        }
    }
    for rank in [0, 1] {
        lab.job.finish(rank, ids[rank as usize].unwrap()).unwrap();
    }
    to.assert_received(&from.packed(), &what);
    None
}

#[test]
fn memory_is_taken_back_whatever_panics() {
    // What is expected would fill the screen.
    std::panic::set_hook(Box::new(|panic| {
        if !panic.to_string().contains("as the test wants") {
            eprintln!("{panic}");
        }
    }));
    let modes =
        [(SendMode::Standard, 500), (SendMode::Synchronous, 500), (SendMode::Buffered, 500)];
    let eager = modes.map(|mode| (Protocol::Eager, mode));
    let others = [Protocol::Pipeline, Protocol::Mapped, Protocol::MappedPut];
    let others = others.into_iter().chain(Protocol::STAGED);
    let others = others.map(|protocol| (protocol, (SendMode::Standard, 8000)));
    for (protocol, mode) in eager.into_iter().chain(others) {
        let (mut panics, mut at_work) = (0, 0);
        for gaps in [[true, true], [false, true], [true, false]] {
            for shaky in [0, 1] {
                for at in 0.. {
                    let Some(working) = message(protocol, mode, gaps, shaky, at) else { break };
                    panics += 1;
                    at_work += i64::from(working > 0);
                }
            }
        }
        assert!(
            panics > 10 && at_work > 3,
            "{protocol}, {mode:?}: {panics} panics, {at_work} at work"
        );
    }
}

#[test]
fn memory_that_a_peer_was_granted_is_taken_back() {
    for steps in 0..12 {
        let mut lab = Lab::new(config(Protocol::MappedPut, 3), 0);
        lab.job.pml(0).config_mut().tuning.eager_bytes_max = 1000;
        let shape = layout(8000, true);
        let home = lab.job.mappable(1, &shape, 1);
        let from = Buffer::source(&shape, 1, 1);
        let to = Buffer::target_in(&shape, 1, home);
        let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Any);
        lab.job.isend(0, &from, 1, 0);
        for step in 0..steps {
            lab.job.pml(step % 2).progress();
        }
        lab.job.pml(1).take_back();
        let before = to.bytes();
        // Its sender lives, and does what it was told.
        for _ in 0..100 {
            lab.job.pml(0).progress();
        }
        assert!(to.bytes() == before, "written after {steps} steps");
        assert!(lab.job.pml(1).is_done(recv).is_ok());
    }
}
