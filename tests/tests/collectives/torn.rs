//! A panic in a short collective: no engine works on the caller's memory any more when it comes out.

use gapless::btl::loopback::{Hub, Loopback};
use gapless::{Completion, Datatype, Primitive, Region, Space, World};
use gapless_engine::{Engine, EngineError, Typed};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, DeviceError, Pending};
use gapless_tests::worlds_of;
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

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
