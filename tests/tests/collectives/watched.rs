//! Waiting for one, some or all of several collectives, among messages too; collectives as futures, and functions that
//! are called at their end.

use crate::collectives::{rank_of, ranks};
use gapless::btl::loopback::{Hub, Loopback};
use gapless::{Collective, Communicator, Error, InPlace, OwnedCollective, ReduceOp, World};
use gapless_tests::worlds_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::{future::Future, pin::Pin};

type Sum = OwnedCollective<(), Vec<i32>>;

fn sum(comm: &Communicator, number: i32) -> Sum {
    comm.begin_owned((), vec![number; 4000], |_, recv| {
        Collective::allreduce(InPlace, recv, ReduceOp::Sum)
    })
    .unwrap()
}

/// Rank 0 begins its part of each only after the other ranks have waited for those before it, as they tell it.
fn in_turn(comm: &Communicator, parts: &[Communicator], look: impl Fn(&mut Vec<Sum>) -> usize) {
    if comm.rank() == 0 {
        for at in [2, 0, 1] {
            sum(&parts[at], 1).wait().1.unwrap();
            for from in 1..comm.size() {
                comm.recv(&mut [0u8], from, 7).unwrap();
            }
        }
        return;
    }
    let mut left: Vec<Sum> = parts.iter().map(|part| sum(part, 1)).collect();
    // Places in what is left.
    for due in [2, 0, 0] {
        assert_eq!(look(&mut left), due);
        comm.send(&[1u8], 0, 7).unwrap();
    }
    assert!(left.is_empty());
}

#[test]
fn one_of_several_is_waited_for() {
    ranks(3, |comm| {
        let parts: Vec<_> = (0..3).map(|_| comm.dup().unwrap()).collect();
        let fine = |((_, numbers), result): ((_, Vec<i32>), Result<(), Error>)| {
            assert_eq!((numbers[3999], result), (3, Ok(())));
        };
        in_turn(comm, &parts, |left| {
            let (at, ended) = Sum::wait_any(left).unwrap();
            fine(ended);
            at
        });
        in_turn(comm, &parts, |left| {
            let mut some = Sum::wait_some(left);
            assert_eq!(some.len(), 1);
            let (at, ended) = some.remove(0);
            fine(ended);
            at
        });
        in_turn(comm, &parts, |left| {
            loop {
                if let Some((at, ended)) = Sum::test_any(left) {
                    fine(ended);
                    return at;
                }
            }
        });
        assert!(
            Sum::wait_any(&mut Vec::new()).is_none() && Sum::wait_some(&mut Vec::new()).is_empty()
        );
        let mut all = parts.iter().map(|part| sum(part, 1)).collect();
        let all = loop {
            match Sum::test_all(all) {
                Ok(ended) => break ended,
                Err(again) => all = again,
            }
        };
        all.into_iter().for_each(fine);
        Sum::wait_all(parts.iter().map(|part| sum(part, 1))).into_iter().for_each(fine);
    });
}

#[test]
fn those_of_a_scope_are_waited_for_in_the_order_of_their_ends() {
    ranks(2, |comm| {
        let others = [comm.dup().unwrap(), comm.dup().unwrap()];
        let mut words = [[rank_of(comm)], [rank_of(comm)]];
        let [one, two] = &mut words;
        others[0]
            .scope(|s| {
                others[1].scope(|t| {
                    if comm.rank() == 0 {
                        t.ibcast(two, 0)?.wait()?;
                        comm.recv(&mut [0u8], 1, 7)?;
                        return s.ibcast(one, 0)?.wait();
                    }
                    let first = comm.irecv_owned(vec![0u8], 0, 99)?;
                    let pending = s.ibcast(one, 0)?;
                    let told = Arc::new(AtomicU32::new(0));
                    let count = Arc::clone(&told);
                    s.when_done(&pending, move || count.store(1, Ordering::Relaxed))?;
                    let soon = t.ibcast(two, 0)?;
                    assert_eq!(comm.wait_some(&[&first, &pending, &soon])?, [2]);
                    soon.wait()?;
                    assert_eq!(comm.test_some(&[&first, &pending])?, [0usize; 0]);
                    assert_eq!(told.load(Ordering::Relaxed), 0);
                    comm.send(&[1u8], 0, 7)?;
                    let mut left = vec![pending];
                    let (at, result) = s.wait_any(&mut left).unwrap();
                    assert_eq!((at, result, told.load(Ordering::Relaxed)), (0, Ok(()), 1));
                    assert_eq!(s.wait_all(left), []);
                    let mut first = first;
                    first.cancel().map(drop)
                })
            })
            .unwrap();
        assert_eq!(words, [[0], [0]]);
    });
}

/// Messages and collectives of all kinds in one list; what is inactive is passed over.
#[test]
fn messages_and_collectives_are_waited_for_together() {
    ranks(2, |comm| {
        let other = 1 - comm.rank();
        let mut word =
            comm.collective_init((), vec![0u8], |_, recv| Collective::bcast(recv, 0)).unwrap();
        let mut inbox = comm.recv_init(vec![0u8], other, 3).unwrap();
        assert_eq!(comm.wait_any(&[&word, &inbox]), Ok(None));
        assert_eq!(comm.wait_some(&[&word, &inbox]), Ok(Vec::new()));
        for round in 0..50 {
            word.start().unwrap();
            inbox.start().unwrap();
            let meet = comm.begin_owned((), (), |_, _| Collective::barrier()).unwrap();
            let message = comm.irecv_owned(vec![0u8], other, 4).unwrap();
            // The other rank sends only after it.
            assert_eq!(comm.wait_any(&[&meet, &message, &inbox]), Ok(Some(0)));
            meet.wait().1.unwrap();
            comm.send(&[round], other, 4).unwrap();
            assert_eq!(comm.wait_any(&[&message, &inbox]), Ok(Some(0)));
            assert_eq!(message.wait().0, [round]);
            comm.send(&[round], other, 3).unwrap();
            let mut ended = Vec::new();
            while ended.len() < 2 {
                ended = comm.wait_some(&[&word, &inbox]).unwrap();
            }
            word.wait().unwrap();
            inbox.wait().unwrap();
        }
    });
    let worlds = [World::init().unwrap(), World::init().unwrap()];
    let meet = worlds[0].comm().begin_owned((), (), |_, _| Collective::barrier()).unwrap();
    assert_eq!(worlds[1].comm().wait_any(&[&meet]), Err(Error::OtherWorld));
    assert_eq!(worlds[0].comm().wait_any(&[&meet]), Ok(Some(0)));
}

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

#[test]
fn collectives_are_futures() {
    let hub = Hub::new();
    let builder = |_| World::builder().only(["loopback"]).transport(Box::new(Loopback::new(&hub)));
    worlds_of(3, builder, |world| {
        let comm = world.comm().clone();
        let mut kept = comm
            .collective_init((), vec![0i32; 3000], |_, recv| {
                Collective::allreduce(InPlace, recv, ReduceOp::Max)
            })
            .unwrap();
        let most = world.block_on(async {
            let (one, other) = (sum(&comm, 1), sum(&comm, rank_of(&comm)));
            let ((_, others), result) = other.await;
            result?;
            assert_eq!((others[7], one.await.0.1[7]), (3, 3));
            assert_eq!((&mut kept).await, Err(Error::Inactive));
            for round in 0..20 {
                kept.buffers_mut()?.1.fill(round * rank_of(&comm));
                kept.start()?;
                (&mut kept).await?;
            }
            Ok::<i32, Error>(kept.buffers()?.1[2999])
        });
        assert_eq!(most, Ok(38));
        // A future that nobody polls again goes on.
        kept.start().unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let mut future = std::future::IntoFuture::into_future(&mut kept);
        match Pin::new(&mut future).poll(&mut context) {
            // The others may have been quicker.
            Poll::Ready(result) => result.map(drop),
            Poll::Pending => {
                drop(future);
                kept.wait().map(drop)
            }
        }
        .unwrap();
        let (say, hear) = channel();
        sum(&comm, 2).on_done(move |(_, numbers), result| say.send((numbers[0], result)).unwrap());
        let heard = world.block_on(std::future::poll_fn(|context| match hear.try_recv() {
            Ok(heard) => Poll::Ready(heard),
            Err(_) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }));
        assert_eq!(heard, (6, Ok(())));
        world.finalize().unwrap();
    });
}

/// Whoever watches a collective when its world is given up is told, and gets the buffers back.
#[test]
fn futures_are_woken_when_the_world_is_given_up() {
    let hub = Hub::new();
    let builder = |_| World::builder().only(["loopback"]).transport(Box::new(Loopback::new(&hub)));
    worlds_of(2, builder, |world| {
        let comm = world.comm().clone();
        if comm.rank() == 1 {
            let error = comm.recv(&mut [0u8], 0, 0).unwrap_err();
            return assert_eq!(error.lost_rank(), Some(0), "{error}");
        }
        let woken = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut begun = sum(&comm, 1);
        assert!(Pin::new(&mut begun).poll(&mut Context::from_waker(&waker)).is_pending());
        let (say, hear) = channel();
        sum(&comm, 2)
            .on_done(move |(_, numbers), result| say.send((numbers.len(), result)).unwrap());
        let waits = sum(&comm, 3);
        std::thread::scope(|threads| {
            let inner = comm.clone();
            threads.spawn(move || assert_eq!(inner.wait_any(&[&waits]), Err(Error::Finalized)));
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _world = world;
                std::panic::resume_unwind(Box::new(()));
            }));
            assert!(panicked.is_err());
        });
        assert_eq!(woken.0.load(Ordering::Acquire), 1);
        assert_eq!(hear.recv().unwrap(), (4000, Err(Error::Finalized)));
        let polled = Pin::new(&mut begun).poll(&mut Context::from_waker(&waker));
        let Poll::Ready(((_, numbers), result)) = polled else { panic!("it never ends") };
        assert_eq!((numbers.len(), result), (4000, Err(Error::Finalized)));
    });
}
