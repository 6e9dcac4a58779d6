//! Panics of what is not ours leave no call while memory is granted, or take it back first; where that is impossible the
//! process ends, with one line.

use gapless::{Communicator, Error, OwnedRequest, Space, World};
use gapless_engine::testkit::Pretender;
use gapless_mem::Device;
use gapless_mem::fake::FakeDevice;
use gapless_mem::testkit::pretended;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

/// Gives what `act` gives, unless it waits for ever.
fn soon<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(act()));
    result.recv_timeout(Duration::from_secs(60)).expect("it comes to an end")
}

fn panics(act: impl FnOnce()) -> bool {
    let caught = catch_unwind(AssertUnwindSafe(act));
    caught.map_err(std::mem::forget).is_err()
}

/// What somebody panics with; dropping it panics again.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic_any(Bomb);
        }
    }
}

#[test]
fn a_payload_that_panics_leaves_no_receive() {
    soon(|| {
        let world = World::init().unwrap();
        let comm = world.comm();
        let told = Arc::new(AtomicU32::new(0));
        let explode = |count: &Arc<AtomicU32>| {
            let count = Arc::clone(count);
            move || {
                count.fetch_add(1, Ordering::Release);
                panic_any(Bomb);
            }
        };
        // In a receive that waits, in one of a scope, and in an exchange.
        for round in 0..3 {
            let first = comm.irecv_owned(vec![0u8], 0, 1).unwrap();
            first.when_done(explode(&told)).unwrap();
            let sent = comm.isend_owned(vec![1u8], 0, 1).unwrap();
            let mut word = [0u8];
            let other = comm.clone();
            let count = Arc::clone(&told);
            let sender = std::thread::spawn(move || {
                while count.load(Ordering::Acquire) <= round {
                    std::thread::yield_now();
                }
                other.send(&[7u8], 0, 2).unwrap();
            });
            let received = match round {
                0 => comm.recv(&mut word, 0, 2),
                1 => comm.scope(|s| {
                    let received = s.irecv(&mut word, 0, 2)?;
                    s.wait(received)
                }),
                _ => comm.sendrecv(&[3u8], (0, 3), &mut word, (0, 2)),
            };
            assert_eq!((received.map(|status| status.bytes), word), (Ok(1), [7]), "{round}");
            sender.join().unwrap();
            first.wait().1.unwrap();
            sent.wait().1.unwrap();
        }
        let (done, ended) = channel();
        let request: OwnedRequest<Vec<u8>> = comm.irecv_owned(vec![0u8], 0, 4).unwrap();
        request.on_done(move |_, _| {
            done.send(()).unwrap();
            panic_any(Bomb);
        });
        comm.send(&[1u8], 0, 4).unwrap();
        while ended.try_recv().is_err() {
            comm.iprobe(0, 9).unwrap();
        }
        comm.recv(&mut [0u8], 0, 3).unwrap();
        world.finalize().unwrap();
    });
}

/// Has the next progress panic, with the lock held.
fn trap(comm: &Communicator) {
    // Work that panics when it is asked for the second time.
    let asked = AtomicBool::new(false);
    let mute = pretended(move || {
        assert!(!asked.swap(true, Ordering::Relaxed), "nobody can tell");
        Ok(false)
    });
    drop(comm.isend_owned_after(vec![1u8], 0, 99, &[mute]).unwrap());
}

#[test]
fn a_panic_with_the_lock_held_is_known_although_the_thread_was_unwinding() {
    struct Last(Communicator);

    impl Drop for Last {
        fn drop(&mut self) {
            trap(&self.0);
            assert!(panics(|| drop(self.0.recv(&mut [0u8], 0, 1))));
        }
    }

    soon(|| {
        let world = World::init().unwrap();
        let comm = world.comm().clone();
        let last = Last(comm.clone());
        assert!(panics(move || {
            let _last = last;
            panic!("as the test wants");
        }));
        assert_eq!(comm.send(&[1u8], 0, 0), Err(Error::Poisoned));
        assert!(world.finalize().is_err());
    });
}

/// A world with an engine whose work ends only while a thread panics and asks for it.
fn slow(mute: bool) -> (World, Arc<AtomicU32>) {
    let device = Arc::new(FakeDevice::new(0));
    let engine = Pretender::new(device.space(), move |asked| {
        assert!(!mute, "nobody can tell");
        std::thread::panicking() && asked.fetch_add(1, Ordering::Relaxed) == 49
    });
    let in_flight = engine.under_way();
    let builder = World::builder().open_devices(false);
    let world = builder.engine(Arc::new(engine)).device(device as _).init().unwrap();
    (world, in_flight)
}

/// Sends memory of the device, until its engine is at work, and then panics with the lock held.
fn break_off(world: &World, in_flight: &AtomicU32) {
    let byte = gapless::Datatype::from(gapless::Primitive::Byte).commit().unwrap();
    let memory = world.alloc_device(Space::Device { kind: "fake", device: 0 }, 100_000).unwrap();
    let mut into = vec![0u8; 100_000];
    let comm = world.comm();
    let _ = comm.scope(|s| {
        let _ = s.isend(memory.view(0, &byte, 100_000)?, 0, 1)?;
        let _ = s.irecv(&mut into, 0, 1)?;
        while in_flight.load(Ordering::Relaxed) == 0 {
            comm.iprobe(0, 5)?;
        }
        assert!(in_flight.load(Ordering::Relaxed) > 0);
        trap(comm);
        let _ = comm.recv(&mut [0u8], 0, 2);
        Ok(())
    });
}

struct Told(AtomicBool);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_panic_with_the_lock_held_ends_work_on_memory_and_every_wait() {
    soon(|| {
        let (world, in_flight) = slow(false);
        let comm = world.comm().clone();
        let waits = {
            let comm = comm.clone();
            std::thread::spawn(move || comm.recv(&mut [0u8], 0, 3))
        };
        let mut awaited = pin!(comm.irecv_owned(vec![5u8], 0, 4).unwrap());
        let told = Arc::new(Told(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&told));
        let mut poll = || awaited.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll().is_pending());
        // The panic meets this thread, or the other one.
        let panicked = panics(|| break_off(&world, &in_flight));
        assert_eq!(in_flight.load(Ordering::Relaxed), 0, "an engine works on memory given back");
        match waits.join() {
            Ok(told) => assert!(panicked && told == Err(Error::Poisoned), "{told:?}"),
            Err(payload) => {
                std::mem::forget(payload);
                assert!(!panicked, "one panic, one thread");
            }
        }
        assert!(told.0.load(Ordering::Acquire), "who waits for a future is told");
        match poll() {
            std::task::Poll::Ready((buffer, result)) => {
                assert_eq!((buffer, result), (vec![5], Err(Error::Poisoned)));
            }
            std::task::Poll::Pending => panic!("it never ends"),
        }
        assert_eq!(comm.send(&[1u8], 0, 0), Err(Error::Poisoned));
    });
}

/// Tells this program that it is the one that ends.
const PART: &str = "GAPLESS_PANIC_PART";

#[test]
fn work_that_cannot_be_waited_for_ends_the_process_with_one_line() {
    if std::env::var_os(PART).is_some() {
        let (world, in_flight) = slow(true);
        let _ = panics(|| break_off(&world, &in_flight));
        std::process::exit(0);
    }
    let test = "panics::work_that_cannot_be_waited_for_ends_the_process_with_one_line";
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(PART, "ends")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.code(), None, "a signal ends it: {said}");
    let ours: Vec<_> = said.lines().filter(|line| line.starts_with("gapless:")).collect();
    let line = "gapless: work on memory that is taken back cannot be waited for";
    assert_eq!(ours, [line], "{said}");
}
