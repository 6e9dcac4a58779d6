//! A panic in a short collective: no engine works on the caller's memory any more when it comes out.

use gapless::btl::loopback::{Hub, Loopback};
use gapless::{
    Collective, Completion, Datatype, Error, InPlace, Primitive, ReduceOp, Region, Space, World,
};
use gapless_engine::{Engine, EngineError, Typed};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, DeviceError, Pending};
use gapless_tests::worlds_of;
use std::any::Any;
use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Wake, Waker};

/// Whoever asks for the first time gets a panic. After some questions more the work is over.
struct Work {
    asked: AtomicU32,
    in_flight: Arc<AtomicU32>,
}

const QUESTIONS: u32 = 50;

// SAFETY: nothing is at work behind it; it counts the questions, and stays over.
unsafe impl Pending for Work {
    fn poll(&self) -> Result<bool, DeviceError> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        assert!(asked > 0, "as the test wants");
        if asked == QUESTIONS {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(asked >= QUESTIONS)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An engine that pretends to work.
struct Pretender {
    device: Arc<FakeDevice>,
    in_flight: Arc<AtomicU32>,
}

impl Pretender {
    fn work(&self) -> Result<Completion, EngineError> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let (asked, in_flight) = (AtomicU32::new(0), Arc::clone(&self.in_flight));
        Ok(Completion::Pending(Arc::new(Work { asked, in_flight })))
    }
}

// SAFETY: it touches no memory.
unsafe impl Engine for Pretender {
    fn name(&self) -> &'static str {
        "pretender"
    }

    fn serves(&self, space: Space) -> bool {
        space == self.device.space()
    }

    unsafe fn pack(
        &self,
        _: &Typed,
        _: Range<u64>,
        _: Region,
        _: &[Completion],
    ) -> Result<Completion, EngineError> {
        self.work()
    }

    unsafe fn unpack(
        &self,
        _: Region,
        _: &Typed,
        _: Range<u64>,
        _: &[Completion],
    ) -> Result<Completion, EngineError> {
        self.work()
    }

    unsafe fn transfer(
        &self,
        _: &Typed,
        _: &Typed,
        _: Range<u64>,
        _: &[Completion],
    ) -> Result<Completion, EngineError> {
        self.work()
    }
}

#[test]
fn a_panic_comes_out_when_no_engine_works_any_more() {
    let (hub, in_flight) = (Hub::new(), Arc::new(AtomicU32::new(0)));
    let builder = |_| {
        let device = Arc::new(FakeDevice::new(0));
        let engine = Pretender { device: Arc::clone(&device), in_flight: Arc::clone(&in_flight) };
        let builder = World::builder().open_devices(false).only(["loopback"]);
        let builder = builder.transport(Box::new(Loopback::new(&hub)));
        builder.engine(Arc::new(engine)).device(device as _)
    };
    worlds_of(2, builder, |world| {
        let comm = world.comm();
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            let error = comm.recv(&mut [0u8], 0, 0).unwrap_err();
            return assert_eq!(error.lost_rank(), Some(0), "{error}");
        }
        let byte = Datatype::from(Primitive::Byte).commit().unwrap();
        let mut memory = world.alloc_device(Space::Fake { device: 0 }, 100).unwrap();
        let broken = catch_unwind(AssertUnwindSafe(|| {
            let _ = comm.bcast(memory.view_mut(0, &byte, 100).unwrap(), 0);
        }));
        assert!(broken.is_err(), "the engine panics");
        assert_eq!(in_flight.load(Ordering::Relaxed), 0, "it works on memory given back");
    });
}

/// A panic with the lock held gives the world up: whoever watches a collective is told, and gets the buffers back.
#[test]
fn whoever_watches_is_told_of_a_panic() {
    let hub = Hub::new();
    let builder = |_| World::builder().only(["loopback"]).transport(Box::new(Loopback::new(&hub)));
    worlds_of(2, builder, |world| {
        let comm = world.comm().clone();
        if comm.rank() == 1 {
            // It takes part in none.
            let error = comm.recv(&mut [0u8], 0, 0).unwrap_err();
            return assert_eq!(error.lost_rank(), Some(0), "{error}");
        }
        let begin = || {
            let begun = comm.begin_owned((), vec![1u8; 9], |_, recv| {
                Collective::allreduce(InPlace, recv, ReduceOp::Sum)
            });
            begun.unwrap()
        };
        let (mut watched, called) = (begin(), begin());
        let (say, hear) = channel();
        let told = say.clone();
        called.on_done(move |(_, memory), result| told.send((memory.len(), result)).unwrap());
        let waker = Waker::from(Arc::new(Told(say)));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut watched).poll(&mut context).is_pending());
        let in_flight = Arc::new(AtomicU32::new(0));
        let trap = Work { asked: AtomicU32::new(0), in_flight };
        let after = [Completion::Pending(Arc::new(trap) as _)];
        let trapped = catch_unwind(AssertUnwindSafe(|| {
            comm.isend_owned_after(vec![1u8], 1, 9, &after).map(drop).unwrap();
            while comm.iprobe(1, 9).is_ok() {}
        }));
        assert!(trapped.is_err());
        let mut told: Vec<_> = hear.try_iter().collect();
        told.sort_by_key(|(len, _)| *len);
        assert_eq!(told, [(0, Ok(())), (9, Err(Error::Poisoned))]);
        let Poll::Ready(((_, memory), result)) = Pin::new(&mut watched).poll(&mut context) else {
            panic!("it never ends")
        };
        assert_eq!((memory.len(), result), (9, Err(Error::Poisoned)));
    });
}

/// Tells that it was woken.
struct Told(Sender<(usize, Result<(), Error>)>);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.send((0, Ok(()))).unwrap();
    }
}
