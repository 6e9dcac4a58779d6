//! Programs that look as if they could corrupt memory: safe code that drops, leaks, shares and races where it should not. What
//! comes of it is an error, or other numbers than somebody expected; nothing else changes, and nobody hangs.

use super::{PATHS, ranks, window};
use gapless::{Error, Lock, Owned, ReduceOp, Window, WindowError};

const ROUNDS: u32 = 50;

/// Threads of one rank put, get and accumulate the same numbers, while others do as well, and while the owner reads and
/// writes: numbers are whole, and sums are right.
#[test]
fn threads_race_on_the_same_numbers() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let mut window = window::<u64>(comm, path, 300);
            window.lock_all().unwrap();
            let shared = &window;
            std::thread::scope(|threads| {
                for thread in 0..3u64 {
                    threads.spawn(move || {
                        let pattern = 0x0101_0101_0101_0101 * (thread + 1);
                        let mut found = vec![0u64; 200];
                        for _ in 0..ROUNDS {
                            shared.put(&vec![pattern; 200], 1, 100).unwrap();
                            shared.get(&mut found, 1, 100).unwrap();
                            let whole =
                                |number: &u64| *number == number % 256 * 0x0101_0101_0101_0101;
                            assert!(found.iter().all(whole), "{path:?}");
                            shared.accumulate(&[1u64; 90], 1, 5, ReduceOp::Sum).unwrap();
                            shared.fetch_and_op(1u64, 1, 5, ReduceOp::Sum).unwrap();
                            shared.write(&[pattern; 3], 100).unwrap();
                        }
                    });
                }
            });
            window.unlock_all().unwrap();
            comm.barrier().unwrap();
            if comm.rank() == 1 {
                let each = u64::from(2 * 3 * ROUNDS);
                assert_eq!(
                    [5, 6, 94, 95].map(|at| window.load(at).unwrap()),
                    [2 * each, each, each, 0]
                );
            }
            window.free().unwrap();
        });
    }
}

/// After `flush_local`, and without it, an origin may change what it has put: the target finds what was there at the call.
#[test]
fn buffers_that_change_behind_a_call() {
    const LONG: usize = 9_000;
    for path in PATHS {
        ranks(path, 2, |comm| {
            let mut window = window::<u64>(comm, path, 2 * LONG);
            window.lock(1, Lock::Shared).unwrap();
            if comm.rank() == 0 {
                for (at, elements) in [(0, 1), (1, 100), (101, LONG)] {
                    let mut numbers = vec![3u64; elements];
                    window.put(&numbers, 1, at).unwrap();
                    numbers.fill(4);
                    window.accumulate(&numbers, 1, at, ReduceOp::Sum).unwrap();
                    window.flush_local(1).unwrap();
                    numbers.fill(u64::MAX);
                    window.flush_local_all().unwrap();
                }
            }
            window.unlock(1).unwrap();
            comm.barrier().unwrap();
            if comm.rank() == 1 {
                let mut found = vec![0u64; 102 + LONG];
                window.read(&mut found, 0).unwrap();
                let wrong = found.iter().position(|number| *number != 7);
                assert_eq!(wrong, Some(101 + LONG), "{path:?}");
            }
            window.free().unwrap();
        });
    }
}

/// A window that is forgotten is never given back; the others go on.
#[test]
fn a_window_that_is_forgotten() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let mut one = window::<u32>(comm, path, 8);
            one.fence().unwrap();
            if comm.rank() == 0 {
                std::mem::forget(one);
            } else {
                // Its memory is there still.
                one.put(&[9u32; 8], 0, 0).unwrap();
                drop(one);
            }
            let mut other = window::<u32>(comm, path, 1);
            other.lock(0, Lock::Exclusive).unwrap();
            other.put(&[3u32], 0, 0).unwrap();
            other.unlock(0).unwrap();
            other.free().unwrap();
        });
    }
}

/// A read that is forgotten, or dropped, or outlives its window, writes nowhere.
#[test]
fn reads_that_nobody_waits_for() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let mut one = window::<u32>(comm, path, 3000);
            one.lock_all().unwrap();
            one.put(&vec![5u32; 3000], 1 - comm.rank(), 0).unwrap();
            one.flush_all().unwrap();
            let other = 1 - comm.rank();
            let read =
                |one: &Window<u32>| one.rget(Owned::from(vec![0u32; 3000]), other, 0).unwrap();
            std::mem::forget(read(&one));
            drop(read(&one));
            let late = read(&one);
            one.unlock_all().unwrap();
            // Both have written what is read.
            comm.barrier().unwrap();
            one.free().unwrap();
            let (found, result) = late.wait();
            // It came, or the target had freed the window; then the buffer is untouched.
            match result {
                Ok(()) => assert!(found.iter().all(|number| *number == 5)),
                Err(Error::Window(_)) => assert!(found.iter().all(|number| *number == 0)),
                Err(other) => panic!("{other}"),
            }
        });
    }
}

/// What is dropped while others use it: they get an error, or reach memory that stays until they let go of it.
#[test]
fn a_target_that_drops_its_window_in_an_epoch() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let mut one = window::<u64>(comm, path, 1000);
            comm.barrier().unwrap();
            if comm.rank() == 0 {
                drop(one);
                comm.barrier().unwrap();
            } else {
                comm.barrier().unwrap();
                let freed = |result: Result<(), Error>| match result {
                    Ok(()) => {}
                    Err(Error::Window(
                        WindowError::Freed { rank: 0 } | WindowError::Refused { .. },
                    )) => {}
                    Err(other) => panic!("{path:?}: {other}"),
                };
                let locked = one.lock(0, Lock::Exclusive);
                let is_locked = locked.is_ok();
                freed(locked);
                if is_locked {
                    freed(one.put(&vec![1u64; 1000], 0, 0));
                    freed(one.accumulate(&vec![1u64; 1000], 0, 0, ReduceOp::Sum));
                    freed(one.unlock(0));
                }
            }
            comm.barrier().unwrap();
        });
    }
}

/// The same memory as source and target, and as two targets at once.
#[test]
fn a_rank_is_its_own_target() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let me = comm.rank();
            let mut one = window::<u64>(comm, path, 64);
            let numbers: Vec<u64> = (0..64).collect();
            one.write(&numbers, 0).unwrap();
            comm.barrier().unwrap();
            one.lock(me, Lock::Exclusive).unwrap();
            let mut found = vec![0u64; 32];
            one.get(&mut found, me, 0).unwrap();
            one.put(&found, me, 16).unwrap();
            one.accumulate(&found, me, 16, ReduceOp::Sum).unwrap();
            // The one that it has itself is refused, not waited for.
            assert!(matches!(
                one.lock(me, Lock::Shared),
                Err(Error::Window(WindowError::Mixed { .. }))
            ));
            one.unlock(me).unwrap();
            comm.barrier().unwrap();
            assert_eq!([15, 16, 47, 48].map(|at| one.load(at).unwrap()), [15, 0, 62, 48]);
            one.free().unwrap();
        });
    }
}
