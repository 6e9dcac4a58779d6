//! Ranks that are in different collectives, by messages: each says so, and names both. One that is late is waited for.

use gapless::btl::loopback::{Config, Hub, Loopback};
use gapless::coll::{CollError, Operation};
use gapless::{CollectiveError, Communicator, Error, ReduceOp, World};
use gapless_tests::worlds_on;
use std::time::Duration;

fn ranks(hosts: &[u32], body: impl Fn(&Communicator) + Sync) {
    let hub = Hub::new();
    let link = || Loopback::with(&hub, Config { rdma: false, mapped: false, ..Config::default() });
    let builder = |_| World::builder().only(["loopback"]).transport(Box::new(link()));
    worlds_on(hosts, builder, |world| {
        world.comm().barrier().unwrap();
        body(world.comm());
        world.finalize().unwrap();
    });
}

fn act(comm: &Communicator, operation: Operation) -> Result<(), Error> {
    let (mine, mut sum) = ([1u64; 3], [0u64; 3]);
    match operation {
        Operation::Barrier => comm.barrier(),
        Operation::Bcast => comm.bcast(&mut sum, 0),
        Operation::Allreduce => comm.allreduce(&mine, &mut sum, ReduceOp::Sum),
        // Longer than what is sent at once.
        _ => comm.alltoall(&vec![1u8; 1 << 20], &mut vec![0u8; 1 << 20]),
    }
}

/// The other rank, its operation, and this one's.
fn mismatch(result: Result<(), Error>) -> (u32, Operation, Operation) {
    match result {
        Err(Error::Collective { error, .. }) => match *error {
            CollectiveError::Failed {
                error: CollError::Mismatch { rank, theirs: Some(theirs), ours },
                ..
            } => (rank, theirs, ours),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_name_both_operations_and_later_ones_go_well() {
    use Operation::{Allreduce, Alltoall, Barrier, Bcast};
    let pairs = [[Barrier, Allreduce], [Barrier, Bcast], [Alltoall, Barrier], [Bcast, Barrier]];
    for pair in pairs {
        ranks(&[0, 1], |comm| {
            let me = comm.rank();
            let (ours, theirs) = (pair[me as usize], pair[1 - me as usize]);
            let result = act(comm, ours);
            // The root of a short bcast waits for nobody.
            if (ours, me) != (Bcast, 0) {
                assert_eq!(mismatch(result), (1 - me, theirs, ours), "rank {me} of {pair:?}");
            }
            for _ in 0..3 {
                act(comm, Allreduce).unwrap();
            }
        });
    }
}

#[test]
fn of_three_ranks_none_waits_for_ever() {
    let calls = [Operation::Barrier, Operation::Allreduce, Operation::Alltoall];
    ranks(&[0, 1, 2], |comm| {
        let error = act(comm, calls[comm.rank() as usize]).unwrap_err();
        assert!(matches!(error, Error::Collective { .. }), "{error}");
    });
}

/// A program may be late, and may have begun other collectives meanwhile.
#[test]
fn who_is_late_is_waited_for() {
    ranks(&[0, 1], |comm| {
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(1500));
            // It waits in something else, for what comes only after the other was asked what it is in.
            let mut byte = [0u8];
            comm.recv(&mut byte, 0, 5).unwrap();
            return act(comm, Operation::Barrier).unwrap();
        }
        std::thread::scope(|threads| {
            let barrier = threads.spawn(|| act(comm, Operation::Barrier));
            std::thread::sleep(Duration::from_millis(3500));
            comm.send(&[1u8], 1, 5).unwrap();
            barrier.join().unwrap().unwrap();
        });
    });
}
