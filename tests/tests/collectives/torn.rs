//! A panic in a short collective: no engine works on the caller's memory any more when it comes out.

use gapless::btl::loopback::{Hub, Loopback};
use gapless::{Collective, Datatype, Error, InPlace, Primitive, ReduceOp, Space, World};
use gapless_engine::testkit::Pretender;
use gapless_mem::Device;
use gapless_mem::fake::FakeDevice;
use gapless_tests::worlds_of;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

/// Whoever asks for the first time gets a panic. After some questions more the work is over.
fn shaky(asked: &AtomicU32) -> bool {
    let asked = asked.fetch_add(1, Ordering::Relaxed);
    assert!(asked > 0, "as the test wants");
    asked == 50
}

#[test]
fn a_panic_comes_out_when_no_engine_works_any_more() {
    let (hub, in_flight) = (Hub::new(), OnceLock::new());
    let builder = |rank| {
        let device = Arc::new(FakeDevice::new(0));
        let engine = Pretender::new(device.space(), shaky);
        if rank == 0 {
            in_flight.set(engine.under_way()).unwrap();
        }
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
        let mut memory =
            world.alloc_device(Space::Device { kind: "fake", device: 0 }, 100).unwrap();
        let broken = catch_unwind(AssertUnwindSafe(|| {
            let _ = comm.bcast(memory.view_mut(0, &byte, 100).unwrap(), 0);
        }));
        assert!(broken.is_err(), "the engine panics");
        let in_flight = in_flight.get().unwrap().load(Ordering::Relaxed);
        assert_eq!(in_flight, 0, "it works on memory given back");
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
        let after = [Pretender::new(Space::Host, shaky).begin()];
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
