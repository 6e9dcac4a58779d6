//! A world is given up while a peer is about to write its memory. The owner gets the memory back unchanged, and the
//! peer's later writes do not show. Ranks are threads.

use gapless::btl::Btl;
use gapless::btl::loopback::{Hub, Loopback};
use gapless::{
    Communicator, Completion, Config, Datatype, Error, Primitive, Protocol, Space, Tuning, World,
};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_engine::testkit::{FakeEngine, Work, Wrapper};
use gapless_engine::{Engine, EngineError};
use gapless_mem::fake::FakeDevice;
use gapless_mem::testkit::pretended;
use gapless_tests::{job, worlds_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

const BYTES: usize = 300_000;

/// What both ranks see.
#[derive(Default)]
struct Scene {
    /// The sender's engine was told to write the receiver's memory.
    started: AtomicBool,
    /// It may.
    go: AtomicBool,
    /// It has.
    written: AtomicBool,
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waiting until {what}");
        std::thread::yield_now();
    }
}

/// An engine whose work waits for the scene.
struct Late(FakeEngine, Arc<Scene>);

// SAFETY: everything is the fake engine's, which keeps the contract; its work is not even asked before it may go on.
unsafe impl Wrapper for Late {
    fn name(&self) -> &'static str {
        "late"
    }

    fn serves(&self, space: Space) -> bool {
        Engine::serves(&self.0, space)
    }

    unsafe fn work(&self, work: Work, after: &[Completion]) -> Result<Completion, EngineError> {
        let moves = matches!(work, Work::Transfer(..));
        // SAFETY: the caller's guarantees are handed on.
        let work = unsafe { work.run(&self.0, after) }?;
        if !moves {
            return Ok(work);
        }
        self.1.started.store(true, Ordering::Release);
        let scene = Arc::clone(&self.1);
        Ok(pretended(move || {
            if !scene.go.load(Ordering::Acquire) {
                return Ok(false);
            }
            let ended = work.poll()?;
            scene.written.store(ended, Ordering::Release);
            Ok(ended)
        }))
    }
}

/// Panics with the lock held.
fn poison(comm: &Communicator) {
    let after = [pretended(|| panic!("as the test wants"))];
    drop(comm.isend_owned_after(vec![1u8], comm.rank(), 99, &after));
}

/// How the receiver gives its world up while its receive is in flight.
#[derive(Clone, Copy, Debug)]
enum End {
    /// A panic with the lock held.
    Panic,
    /// The world is dropped by a thread that unwinds.
    Unwound,
    /// Likewise; the buffer is the world's to keep, and comes back from the request.
    Owned,
}

fn receive(world: World, scene: &Scene, how: End) {
    let comm = world.comm().clone();
    let mut memory = world.alloc(BYTES).unwrap();
    assert!(memory.is_mappable());
    memory.fill(7);
    let granted = || {
        until("the sender's engine is at work", || {
            comm.iprobe(0, 5).unwrap();
            scene.started.load(Ordering::Acquire)
        });
    };
    let mut memory = match how {
        End::Panic | End::Unwound => {
            let mut world = Some(world);
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                comm.scope::<(), _>(|s| {
                    let _ = s.irecv(&mut memory, 0, 7)?;
                    granted();
                    if matches!(how, End::Panic) {
                        poison(&comm);
                    }
                    let _gone = world.take();
                    panic!("as the test wants");
                })
            }));
            assert!(panicked.is_err());
            memory
        }
        End::Owned => {
            let request = comm.irecv_owned(memory, 0, 7).unwrap();
            granted();
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _gone = world;
                panic!("as the test wants");
            }));
            assert!(panicked.is_err());
            let (memory, result) = request.wait();
            assert_eq!(result, Err(Error::Finalized));
            memory
        }
    };
    // A reference, which nobody may write behind.
    let bytes: &mut [u8] = &mut memory;
    assert!(bytes.iter().all(|&byte| byte == 7), "{how:?}: nothing was written yet");
    scene.go.store(true, Ordering::Release);
    until("the sender has written", || scene.written.load(Ordering::Acquire));
    assert!(bytes.iter().all(|&byte| byte == 7), "{how:?}: a peer writes behind a reference");
    bytes.fill(9);
    assert!(bytes.iter().all(|&byte| byte == 9), "{how:?}");
}

fn send(world: World, scene: &Scene) {
    let comm = world.comm().clone();
    let memory =
        world.alloc_device(Space::Device { kind: "fake", device: 0 }, BYTES as u64).unwrap();
    let byte = Datatype::from(Primitive::Byte).commit().unwrap();
    let sent = comm.scope(|s| {
        let sent = s.isend(memory.view(0, &byte, BYTES as u64)?, 1, 7)?;
        s.wait(sent)
    });
    assert_eq!(sent.unwrap().protocol, Protocol::MappedPut);
    assert!(scene.written.load(Ordering::Acquire));
    // The receiver does not come to the end of the job.
    assert!(catch_unwind(AssertUnwindSafe(|| poison(&comm))).is_err());
    assert_eq!(comm.send(&[1u8], 0, 0), Err(Error::Poisoned));
}

#[test]
fn nobody_writes_behind_the_back_of_whoever_got_its_memory_back() {
    for how in [End::Panic, End::Unwound, End::Owned] {
        let scene = Arc::new(Scene::default());
        let name = format!("kept {how:?} {}", std::process::id());
        let builder = |rank: u32| {
            let device = Arc::new(FakeDevice::new(0));
            let fake = FakeEngine { attaches: false, ..FakeEngine::new(&device, 0) };
            let sm = Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap();
            World::builder()
                .tuning(Tuning::default())
                .config(Config { force: Some(Protocol::MappedPut), ..Config::default() })
                .only(["sm"])
                .transport(Box::new(sm))
                .open_devices(false)
                .engine(Arc::new(Late(fake, Arc::clone(&scene))))
                .device(device as _)
        };
        worlds_of(2, builder, |world| match world.rank() {
            0 => send(world, &scene),
            _ => receive(world, &scene, how),
        });
    }
}

/// Transports are told of what `World::alloc` gives, and it goes when the last user has it back.
#[test]
fn allocated_memory_is_told_to_transports_while_it_lives() {
    let hub = Hub::new();
    let transports = |_| vec![Box::new(Loopback::new(&hub)) as Box<dyn Btl>];
    job(1, &Config::default(), transports, |world| {
        let comm = world.comm();
        assert_eq!(hub.remembered(), 0);
        let [one, other] = [BYTES, 5].map(|len| world.alloc(len).unwrap());
        assert_eq!(hub.remembered(), 2);
        let receive = comm.irecv_owned(one, 0, 7).unwrap();
        let send = comm.isend_owned(other, 0, 7).unwrap();
        assert_eq!(hub.remembered(), 2, "requests have them");
        send.wait().1.unwrap();
        assert_eq!(hub.remembered(), 1);
        receive.wait().1.unwrap();
        assert_eq!(hub.remembered(), 0);
        assert!(world.alloc(0).unwrap().is_empty());
    });
}
