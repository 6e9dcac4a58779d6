//! A world is given up while collectives are in flight: whoever waits gets an error and its memory, and peers learn of
//! it.

use gapless::btl::loopback::{Hub, Loopback};
use gapless::{Collective, Datatype, Error, Primitive, ReduceOp, UserOp, World};
use gapless_tests::worlds_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

/// A world that is left in good order finishes its collectives, and their results can be asked for after that.
#[test]
fn leaving_finishes_what_is_in_flight() {
    let hub = Hub::new();
    let builder = |_| World::builder().only(["loopback"]).transport(Box::new(Loopback::new(&hub)));
    for round in 0..20 {
        worlds_of(3, builder, |world| {
            let comm = world.comm().clone();
            let spread = |numbers| {
                comm.begin_owned((), numbers, |_, recv| Collective::bcast(recv, 0)).unwrap()
            };
            let given = if comm.rank() == 0 { round } else { -1 };
            // Long enough to go along a chain: rank 1 has to pass it on while it leaves.
            let (kept, dropped) = (spread(vec![given; 50_000]), spread(vec![given; 50_000]));
            drop(dropped);
            world.finalize().unwrap();
            let ((_, numbers), result) = kept.wait();
            assert_eq!((numbers == vec![round; 50_000], result), (true, Ok(())));
        });
    }
}

#[test]
fn whoever_waits_gets_its_memory_back() {
    let hub = Hub::new();
    let builder = |_| {
        let transport = Box::new(Loopback::new(&hub));
        let name = "loopback";
        World::builder().only([name]).transport(transport)
    };
    worlds_of(2, builder, |world| {
        let comm = world.comm().clone();
        if comm.rank() == 1 {
            // It takes part in none.
            let error = comm.recv(&mut [0u8], 0, 0).unwrap_err();
            return assert_eq!(error.lost_rank(), Some(0), "{error}");
        }
        let sum = |send, recv| {
            comm.begin_owned(send, recv, |send, recv| {
                Collective::allreduce(send, recv, ReduceOp::Sum)
            })
            .unwrap()
        };
        let (kept, dropped) =
            (sum(vec![3u32; 9000], vec![0u32; 9000]), sum(vec![1; 9], vec![0u32; 9]));
        drop(dropped);
        let mut persistent =
            comm.collective_init((), vec![1u8; 10], |_, recv| Collective::bcast(recv, 1)).unwrap();
        persistent.start().unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let ours = [7u64; 5000];
                let mut theirs = vec![0u64; 5000];
                assert_eq!(
                    comm.allreduce(&ours, &mut theirs, ReduceOp::Max),
                    Err(Error::Finalized)
                );
            });
            threads.spawn(|| {
                let mut word = [0u8; 100];
                let ended = comm.scope(|s| s.ibcast(&mut word, 1).map(drop));
                assert_eq!(ended, Err(Error::Finalized));
            });
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _world = world;
                std::panic::resume_unwind(Box::new(()));
            }));
            assert!(panicked.is_err());
        });
        let ((sent, room), result) = kept.wait();
        assert_eq!((sent, room.len(), result), (vec![3; 9000], 9000, Err(Error::Finalized)));
        assert_eq!(persistent.wait(), Err(Error::Finalized));
        assert_eq!(persistent.start(), Err(Error::Finalized));
        assert_eq!(persistent.into_buffers().unwrap().1.len(), 10);
        assert_eq!(comm.barrier(), Err(Error::Finalized));
    });
}

/// A user's function that is dropped may use the world.
#[test]
fn a_function_that_never_ran_is_dropped_without_the_lock() {
    let hub = Hub::new();
    let builder = |_| World::builder().only(["loopback"]).transport(Box::new(Loopback::new(&hub)));
    worlds_of(1, builder, |world| {
        let comm = world.comm().clone();
        let number = Datatype::from(Primitive::Uint8).commit().unwrap();
        let keeps = comm
            .collective_init(vec![1u8], vec![0u8], |send, recv| {
                Collective::allreduce(send, recv, ReduceOp::Sum)
            })
            .unwrap();
        let keeps = Mutex::new(keeps);
        let op = UserOp::packed("keeper", true, &number, move |_| assert!(keeps.lock().is_ok()));
        world.finalize().unwrap();
        // Dropping what `op` keeps takes the lock.
        let refused = comm
            .begin_owned(vec![1u8], vec![0u8], |send, recv| Collective::allreduce(send, recv, op));
        assert_eq!(refused.err().map(|refused| refused.error), Some(Error::Finalized));
    });
}
