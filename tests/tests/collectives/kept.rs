//! Collectives that own their buffers: begun once, or started again and again.

use crate::collectives::{rank_of, ranks};
use gapless::coll::execute::IN_FLIGHT_MAX;
use gapless::{
    Blocks, BlocksMut, Collective, Communicator, Datatype, Error, InPlace, Owned, PmlError,
    Primitive, ReduceOp, Source, TagSel,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn number(size: u32) -> i32 {
    i32::try_from(size).unwrap()
}

#[test]
fn persistent_ones_are_started_again_with_other_contents() {
    for size in 1..=4 {
        ranks(size, |comm| {
            let (me, n) = (rank_of(comm), number(size));
            let places = size as usize;
            // Every other element of the result.
            let apart = Datatype::resized(0, 8, &Primitive::Int32.into()).unwrap();
            let into = Owned::typed(vec![-1i32; 6], 0, &apart.commit().unwrap(), 3);
            let mut sum = comm
                .collective_init(vec![0i32; 3], into, |send, recv| {
                    Collective::allreduce(send, recv, ReduceOp::Sum)
                })
                .unwrap();
            let mut exchange = comm
                .collective_init(vec![0i32; places], vec![0i32; places], |send, recv| {
                    let counts = vec![1; places];
                    let send = Blocks::packed(send, &counts).unwrap();
                    Collective::alltoallv(send, BlocksMut::packed(recv, &counts).unwrap())
                })
                .unwrap();
            let mut word = comm
                .collective_init((), vec![0i32], |_, recv| Collective::bcast(recv, size - 1))
                .unwrap();
            let mut most = comm
                .collective_init((), vec![0i32; places], |_, recv| {
                    Collective::reduce_scatter_block(InPlace, recv, ReduceOp::Max)
                })
                .unwrap();
            let mut meet = comm.collective_init((), (), |_, _| Collective::barrier()).unwrap();
            for step in 0..20 {
                sum.buffers_mut().unwrap().0.fill(step + me);
                exchange.buffers_mut().unwrap().0.fill(100 * me + step);
                word.buffers_mut().unwrap().1[0] = if me == n - 1 { step } else { -1 };
                most.buffers_mut().unwrap().1.fill(me * step);
                // Their starts need no order.
                if (step + me) % 2 == 0 {
                    sum.start().unwrap();
                    exchange.start().unwrap();
                    word.start().unwrap();
                    most.start().unwrap();
                    meet.start().unwrap();
                } else {
                    meet.start().unwrap();
                    most.start().unwrap();
                    word.start().unwrap();
                    exchange.start().unwrap();
                    sum.start().unwrap();
                }
                assert!(sum.is_active());
                assert_eq!(sum.buffers().unwrap_err(), PmlError::StillActive.into());
                assert_eq!(sum.start().unwrap_err(), PmlError::StillActive.into());
                // Others may come in between.
                comm.barrier().unwrap();
                sum.wait().unwrap();
                while exchange.test().unwrap().is_none() {}
                word.wait().unwrap();
                most.wait().unwrap();
                meet.wait().unwrap();
                let total = n * step + n * (n - 1) / 2;
                assert_eq!(sum.buffers().unwrap().1, [total, -1, total, -1, total, -1]);
                let theirs: Vec<i32> = (0..n).map(|from| 100 * from + step).collect();
                assert_eq!(exchange.buffers().unwrap().1, theirs);
                assert_eq!(word.buffers().unwrap().1, [step]);
                assert_eq!(most.buffers().unwrap().1[0], (n - 1) * step);
            }
            assert_eq!(sum.wait(), Err(Error::Inactive));
            assert_eq!(sum.into_buffers().unwrap().0, [19 + me; 3]);
        });
    }
}

#[test]
fn what_is_dropped_in_flight_goes_on() {
    ranks(3, |comm| {
        let all = |comm: &Communicator| {
            comm.begin_owned(vec![rank_of(comm)], vec![0i32; 3], |send, recv| {
                Collective::allgather(send, recv)
            })
            .unwrap()
        };
        let describe = |comm: &Communicator| {
            comm.collective_init((), vec![rank_of(comm); 4000], |_, recv| {
                Collective::allreduce(InPlace, recv, ReduceOp::Sum)
            })
            .unwrap()
        };
        // Rank 1 drops its handles.
        let (gathered, mut summed) = (all(comm), describe(comm));
        summed.start().unwrap();
        if comm.rank() == 1 {
            drop(gathered);
            drop(summed);
        } else {
            let ((sent, all), result) = gathered.wait();
            result.unwrap();
            assert_eq!((sent[0], all), (rank_of(comm), vec![0, 1, 2]));
            summed.wait().unwrap();
            assert_eq!(summed.into_buffers().unwrap().1, [3; 4000]);
        }
        let mut request = all(comm);
        let ((_, all), result) = loop {
            match request.test() {
                Ok(over) => break over,
                Err(again) => request = again,
            }
        };
        result.unwrap();
        assert_eq!(all, [0, 1, 2]);
    });
}

/// A communicator that is freed while collectives are in flight on it goes when they have ended.
#[test]
fn freed_communicators_finish_what_is_in_flight() {
    ranks(3, |comm| {
        for round in 0..100 {
            let other = comm.dup().unwrap();
            let summed = other
                .begin_owned((), vec![rank_of(comm) + round; 2000], |_, recv| {
                    Collective::allreduce(InPlace, recv, ReduceOp::Sum)
                })
                .unwrap();
            let clone = other.clone();
            other.free().unwrap();
            if comm.rank() == 0 {
                // The others begin before.
                comm.barrier().unwrap();
            }
            let ((_, sum), result) = summed.wait();
            result.unwrap();
            assert_eq!(sum, [3 + 3 * round; 2000]);
            if comm.rank() != 0 {
                comm.barrier().unwrap();
            }
            assert!(clone.barrier().is_err(), "it is gone");
        }
    });
}

#[test]
fn buffers_come_back_if_a_collective_is_refused() {
    ranks(2, |comm| {
        let gather = |send, recv| {
            let begun =
                comm.begin_owned(send, recv, |send, recv| Collective::allgather(send, recv));
            begun.unwrap_err()
        };
        let refused = gather(vec![1u8; 3], vec![2u8; 7]);
        assert!(matches!(refused.error, Error::Collective { .. }), "{}", refused.error);
        assert_eq!(refused.buffer, (vec![1; 3], vec![2; 7]));
        comm.barrier().unwrap();
    });
}

/// Beside one that lives as beside hundreds, also on a communicator that is freed meanwhile.
#[test]
fn any_number_of_persistent_ones_lives_and_comes_and_goes() {
    ranks(2, |world| {
        let comm = world.dup().unwrap();
        let make = |number: u64| {
            let made =
                comm.collective_init((), vec![number + u64::from(comm.rank())], |_, recv| {
                    Collective::allreduce(InPlace, recv, ReduceOp::Sum)
                });
            (number, made.unwrap())
        };
        // The first lives, of the next two rooms nothing, then many.
        let mut all = vec![make(0)];
        (1..2 * IN_FLIGHT_MAX).for_each(|number| drop(make(number)));
        all.extend((0..IN_FLIGHT_MAX + 9).map(make));
        let last = all.len() - 1;
        let mut order: Vec<usize> = (0..all.len()).collect();
        if comm.rank() == 1 {
            order.reverse();
        }
        order.iter().for_each(|at| all[*at].1.start().unwrap());
        for (number, one) in &mut all {
            one.wait().unwrap();
            assert_eq!(one.buffers().unwrap().1, [2 * *number + 1]);
        }
        // In flight while the communicator goes.
        all[last].1.start().unwrap();
        comm.clone().free().unwrap();
        all[last].1.wait().unwrap();
        assert!(comm.barrier().is_err());
        world.barrier().unwrap();
    });
}

/// A communicator that was freed is gone for short collectives as well, which need no messages.
#[test]
fn freed_communicators_do_no_short_collectives() {
    ranks(2, |comm| {
        let other = comm.dup().unwrap();
        other.barrier().unwrap();
        let clone = other.clone();
        other.free().unwrap();
        // Messages that wake others may still be under way.
        while clone.iprobe(Source::Any, TagSel::Any).is_ok() {
            std::thread::yield_now();
        }
        assert!(clone.barrier().is_err());
    });
}

/// A function that a waiting thread calls cannot wait for a second collective there; that is an error, and no deadlock.
#[test]
fn functions_find_a_blocking_collective_of_their_thread_under_way() {
    let (waits, called) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    ranks(2, |comm| {
        // In the first one, the ranks prepare.
        for round in 1..=2 {
            if comm.rank() == 0 {
                let (inner, called) = (comm.clone(), Arc::clone(&called));
                let request = comm.irecv_owned(vec![0u8], 1, 5).unwrap();
                request.on_done(move |_, _| {
                    let answers = [inner.barrier(), inner.clone().free()];
                    let all = answers.iter().all(|it| *it == Err(Error::CollectiveUnderWay));
                    called.fetch_add(if all { 1 } else { 100 }, Ordering::Release);
                });
                waits.store(round, Ordering::Release);
            } else {
                while waits.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
                comm.send(&[1u8], 0, 5).unwrap();
                while called.load(Ordering::Acquire) < round {
                    comm.iprobe(0, 9).unwrap();
                }
            }
            comm.barrier().unwrap();
        }
        assert_eq!(called.load(Ordering::Acquire), 2);
    });
}
