//! What is refused, with the reason.

use super::{PATHS, Path, ranks, why, window};
use gapless::{Datatype, Equivalence, Error, Lock, Place, Primitive, ReduceOp, View, WindowError};

#[test]
fn calls_outside_of_epochs() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let mut window = window::<u32>(comm, path, 4);
            let no_epoch = |error| matches!(error, WindowError::NoEpoch { rank: 1, .. });
            let mixed = |error| matches!(error, WindowError::Mixed { .. });
            let not_open = |error| matches!(error, WindowError::NotOpen { .. });
            assert!(no_epoch(why(window.put(&[1u32], 1, 0))));
            assert!(no_epoch(why(window.flush(1))) && no_epoch(why(window.flush_local(1))));
            assert!(not_open(why(window.flush_all())) && not_open(why(window.flush_local_all())));
            assert!(not_open(why(window.unlock(1))));
            assert!(not_open(why(window.complete())) && not_open(why(window.wait())));
            window.lock(1, Lock::Shared).unwrap();
            assert!(mixed(why(window.lock(1, Lock::Shared))) && mixed(why(window.lock_all())));
            assert!(mixed(why(window.fence())) && mixed(why(window.start(&[1]))));
            window.unlock(1).unwrap();
            window.fence().unwrap();
            window.put(&[1u32], 1, 0).unwrap();
            assert!(mixed(why(window.lock(1, Lock::Shared))) && mixed(why(window.flush(1))));
            assert!(mixed(why(window.flush_local(1))));
            window.fence_last().unwrap();
            let error = why(window.put(&[1u32], 2, 0));
            assert_eq!(error, WindowError::NoSuchRank { rank: 2, size: 2 });
            window.free().unwrap();
        });
    }
}

#[test]
fn places_and_elements_that_do_not_fit() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let mut window = window::<u32>(comm, path, 4);
            window.lock_all().unwrap();
            let outside = |error| matches!(error, WindowError::Outside { rank: 1, bytes: 16, .. });
            assert!(outside(why(window.put(&[1u32], 1, 4))));
            assert!(outside(why(window.get(&mut [1u32; 5], 1, 0))));
            assert!(outside(why(window.put(&[1u32], 1, -1))));
            assert!(outside(why(window.fetch_and_op(1u32, 1, u64::MAX, ReduceOp::Sum))));
            // At byte 4, where no number of 8 bytes lies.
            let misaligned = |error| {
                matches!(
                    error,
                    WindowError::Misaligned { rank: 1, offset: 4, primitive: Primitive::Uint64 }
                )
            };
            let long = Place::typed(1, u64::layout(), 1);
            assert!(misaligned(why(window.fetch_and_op(1u64, 1, long.clone(), ReduceOp::Sum))));
            assert!(misaligned(why(window.compare_and_swap(1u64, 2, 1, long.clone()))));
            assert!(misaligned(why(window.accumulate(&[1u64], 1, long, ReduceOp::Sum))));
            let mismatch = |error| matches!(error, WindowError::Mismatch { .. });
            let double = Datatype::from(Primitive::Double).commit().unwrap();
            let place = Place::typed(0, &double, 1);
            assert!(mismatch(why(window.put(&[1u32], 1, place.clone()))));
            assert!(mismatch(why(window.put(&[1u64], 1, place.clone()))));
            window.put(&[0u8; 8], 1, place).unwrap();
            let elements = |error| matches!(error, WindowError::Elements(_));
            let float = Place::typed(0, f32::layout(), 1);
            let band = window.accumulate(&[1.0f32], 1, float.clone(), ReduceOp::Band);
            assert!(elements(why(band)));
            assert!(elements(why(window.compare_and_swap(1.0f32, 2.0, 1, float))));
            let two = [Primitive::Int.into(), Primitive::Short.into()];
            let mixed = Datatype::structure(&[1, 1], &[0, 4], &two).unwrap().commit().unwrap();
            let view = View::typed(&[0u8; 8], 0, &mixed, 1).unwrap();
            let both = Place::typed(0, &mixed, 1);
            window.put(&view, 1, both.clone()).unwrap();
            assert!(elements(why(window.accumulate(&view, 1, both, ReduceOp::Sum))));
            // Twice the same number.
            let twice = Datatype::vector(2, 1, 0, &Primitive::Uint32.into()).unwrap();
            let place = Place::typed(0, &twice.commit().unwrap(), 1);
            let overlapping = |error| matches!(error, WindowError::Overlapping { count: 1 });
            assert!(overlapping(why(window.put(&[1u32, 2], 1, place))));
            window.unlock_all().unwrap();
            window.free().unwrap();
        });
    }
}

#[test]
fn ranks_that_do_not_agree() {
    ranks(Path::Mapped, 2, |comm| {
        let differs = |error| matches!(error, WindowError::Differs { .. });
        let made = match comm.rank() {
            0 => comm.window_allocate::<u32>(1).map(drop),
            _ => comm.window_allocate::<f32>(1).map(drop),
        };
        assert!(differs(why(made)));
        let mut window = window::<u32>(comm, Path::Mapped, 1);
        let fenced = if comm.rank() == 0 { window.fence() } else { window.fence_last() };
        assert!(differs(why(fenced)));
        assert_eq!(why(window.lock(0, Lock::Shared)), WindowError::Broken);
        assert_eq!(why(window.put(&[1u32], 0, 0)), WindowError::Broken);
    });
}

/// A window has elements of one type, at displacements alone; other elements are asked for by a layout. Both are named.
#[test]
fn other_elements_than_the_windows() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let mut window = window::<i32>(comm, path, 4);
            window.lock_all().unwrap();
            let other = |result: Result<(), Error>| {
                let said = why(result).to_string();
                assert!(said.contains("MPI_FLOAT") && said.contains("i32"), "{path:?}: {said}");
            };
            other(window.put(&[1.5f32], 0, 0));
            other(window.get(&mut [1.5f32], 0, 0));
            other(window.accumulate(&[1.5f32], 0, 1, ReduceOp::Sum));
            other(window.accumulate(&[1.5f32; 3], 0, 1, ReduceOp::Sum));
            other(window.write(&[1.5f32], 0));
            other(window.read(&mut [1.5f32], 0));
            other(window.rput(vec![1.5f32], 0, 0).map(drop).map_err(|refused| refused.error));
            other(window.rget(vec![1.5f32], 0, 0).map(drop).map_err(|refused| refused.error));
            if !path.by_tasks() {
                other(window.fetch_and_op(1.5f32, 0, 0, ReduceOp::Sum).map(drop));
                other(window.compare_and_swap(1.5f32, 2.5, 0, 0).map(drop));
            }
            // Elements by any name, bytes, and what is asked for by a layout.
            let int = Datatype::from(Primitive::Int).commit().unwrap();
            let view = View::typed(&[7i32; 2], 0, &int, 2).unwrap();
            window.put(&view, comm.rank(), 0).unwrap();
            window.put(&7i32.to_ne_bytes(), comm.rank(), 2).unwrap();
            window.put(&[1.5f32], comm.rank(), Place::typed(3, f32::layout(), 1)).unwrap();
            window.unlock_all().unwrap();
            let mut found = [0i32; 4];
            window.read(&mut found, 0).unwrap();
            assert_eq!(found, [7, 7, 7, 1.5f32.to_bits().cast_signed()]);
            window.free().unwrap();
            // Fields of a struct, and numbers of an array.
            let mut window = super::window::<[f64; 2]>(comm, path, 2);
            window.lock_all().unwrap();
            window.put(&[2.5f64], comm.rank(), 1).unwrap();
            assert!(window.put(&[2.5f32], comm.rank(), 1).is_err());
            window.unlock_all().unwrap();
            assert_eq!(window.load(1).unwrap(), [2.5, 0.0]);
            window.free().unwrap();
        });
    }
}

/// MPI 4.1 §12.3.4: an atomic get ignores what is given.
#[test]
fn an_atomic_get_needs_nothing_at_the_origin() {
    for path in PATHS.into_iter().filter(|path| !path.by_tasks()) {
        ranks(path, 2, |comm| {
            let mut window = window::<f64>(comm, path, 5);
            window.write(&[1.0, 2.0, 3.0, 4.0, 5.0], 0).unwrap();
            window.fence().unwrap();
            let mut found = [0.0; 5];
            let given = &[0u8; 0];
            window.get_accumulate(given, &mut found, 1, 0, ReduceOp::NoOp).unwrap();
            assert_eq!(found, [1.0, 2.0, 3.0, 4.0, 5.0]);
            let begun = window.rget_accumulate(given, vec![0.0; 2], 0, 3, ReduceOp::NoOp);
            let (found, ended) = begun.unwrap().wait();
            ended.unwrap();
            assert_eq!(found, [4.0, 5.0]);
            let mismatch = |error| matches!(error, WindowError::Mismatch { .. });
            let mut found = [0.0; 5];
            assert!(mismatch(why(window.get_accumulate(given, &mut found, 1, 0, ReduceOp::Sum))));
            window.fence_last().unwrap();
            window.free().unwrap();
        });
    }
}

/// What one rank is refused, no rank does: nobody waits for it, and the window is as it was.
#[test]
fn a_fence_that_one_rank_is_refused() {
    for path in PATHS {
        ranks(path, 3, |comm| {
            let mut window = window::<u32>(comm, path, 4);
            let me = comm.rank();
            if me == 1 {
                window.lock(2, Lock::Shared).unwrap();
            }
            for _ in 0..2 {
                let error = why(window.fence());
                match me {
                    1 => assert!(matches!(error, WindowError::Mixed { .. }), "{error}"),
                    _ => assert_eq!(error, WindowError::Elsewhere { call: "fence", rank: 1 }),
                }
            }
            if me == 1 {
                window.put(&[7u32], 2, 3).unwrap();
                window.unlock(2).unwrap();
            }
            window.fence().unwrap();
            window.put(&[me], (me + 1) % 3, 0).unwrap();
            window.fence_last().unwrap();
            assert_eq!(window.load(0).unwrap(), (me + 2) % 3);
            assert_eq!(window.load(3).unwrap(), if me == 2 { 7 } else { 0 });
            window.free().unwrap();
        });
    }
}

/// The window is gone at all ranks, and none waits.
#[test]
fn a_window_that_one_rank_may_not_free() {
    for path in PATHS {
        ranks(path, 3, |comm| {
            let mut locked = window::<u32>(comm, path, 4);
            let mut used = window::<u32>(comm, path, 4);
            let me = comm.rank();
            if me == 2 {
                locked.lock(0, Lock::Exclusive).unwrap();
            }
            used.fence().unwrap();
            if me == 0 {
                // No fence has ended this (MPI 4.1 §12.2.5).
                used.put(&[1u32], 1, 0).unwrap();
            }
            let windows = [(locked, 2), (used, 0)];
            for (window, culprit) in windows {
                let error = why(window.free());
                match me == culprit {
                    true => {
                        assert!(matches!(error, WindowError::Mixed { call: "free", .. }), "{error}")
                    }
                    false => {
                        assert_eq!(error, WindowError::Elsewhere { call: "free", rank: culprit })
                    }
                }
            }
            comm.barrier().unwrap();
        });
    }
}

/// What a target has refused is told by the end of the epoch, of whatever kind.
#[test]
fn faults_are_told_by_the_end_of_the_epoch() {
    for path in [Path::Messages, Path::Narrow, Path::Mixed] {
        ranks(path, 3, |comm| {
            let mut window = comm.window().dynamic().unwrap();
            let all = [0, 1, 2];
            let refused = |error, rank| match error {
                WindowError::Refused { rank: found, why } => {
                    assert_eq!((found, why), (rank, gapless::WindowFault::Outside));
                }
                other => panic!("{path:?}: {other}"),
            };
            window.post(&all).unwrap();
            window.start(&all).unwrap();
            window.put(&[1u8], 1, 99).unwrap();
            refused(why(window.complete()), 1);
            window.wait().unwrap();
            window.fence().unwrap();
            window.put(&[1u8], 2, 99).unwrap();
            refused(why(window.fence_last()), 2);
            // If another rank is refused the fence, the next one tells.
            window.fence().unwrap();
            if comm.rank() == 1 {
                window.lock(1, Lock::Shared).unwrap();
                assert!(matches!(why(window.fence_last()), WindowError::Mixed { .. }));
                window.unlock(1).unwrap();
                window.fence_last().unwrap();
            } else {
                window.put(&[1u8], 1, 99).unwrap();
                let elsewhere = WindowError::Elsewhere { call: "fence_last", rank: 1 };
                assert_eq!(why(window.fence_last()), elsewhere);
                refused(why(window.fence_last()), 1);
            }
            window.lock_all().unwrap();
            window.put(&[1u8], 0, 99).unwrap();
            refused(why(window.flush(0)), 0);
            window.flush_all().unwrap();
            window.put(&[1u8], 2, 99).unwrap();
            refused(why(window.unlock_all()), 2);
            window.free().unwrap();
        });
    }
}

#[test]
fn a_dropped_window_gives_its_locks_back() {
    for path in PATHS {
        ranks(path, 3, |comm| {
            let mut window = window::<u32>(comm, path, 1);
            if comm.rank() == 0 {
                window.lock(1, Lock::Exclusive).unwrap();
                window.lock(2, Lock::Shared).unwrap();
            }
            comm.barrier().unwrap();
            match comm.rank() {
                0 => drop(window),
                other => {
                    window.lock(other, Lock::Exclusive).unwrap();
                    window.unlock(other).unwrap();
                }
            }
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn who_waits_for_the_lock_of_a_dropped_window_is_turned_away() {
    ranks(Path::Messages, 3, |comm| {
        let mut window = window::<u32>(comm, Path::Messages, 1);
        if comm.rank() == 1 {
            window.lock(0, Lock::Exclusive).unwrap();
        }
        comm.barrier().unwrap();
        match comm.rank() {
            0 => {
                // The question of rank 2 is there when its message is.
                let mut there = [0u8];
                comm.recv(&mut there, 2, 1).unwrap();
                drop(window);
            }
            2 => {
                comm.send(&[1u8], 0, 1).unwrap();
                assert_eq!(why(window.lock(0, Lock::Shared)), WindowError::Freed { rank: 0 });
            }
            _ => {}
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn a_group_names_each_rank_once() {
    ranks(Path::Mapped, 2, |comm| {
        let mut window = window::<u32>(comm, Path::Mapped, 1);
        let other = 1 - comm.rank();
        let twice = WindowError::NamedTwice { rank: other };
        assert_eq!(why(window.post(&[other, other])), twice);
        assert_eq!(why(window.start(&[other, 1 - other, other])), twice);
        window.free().unwrap();
    });
}

#[test]
fn a_window_that_was_dropped_answers_so() {
    ranks(Path::Messages, 2, |comm| {
        let mut window = window::<u32>(comm, Path::Messages, 1);
        if comm.rank() == 0 {
            drop(window);
            comm.barrier().unwrap();
        } else {
            comm.barrier().unwrap();
            assert_eq!(why(window.lock(0, Lock::Shared)), WindowError::Freed { rank: 0 });
        }
        comm.barrier().unwrap();
    });
}
