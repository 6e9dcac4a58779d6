//! Point-to-point beyond send and receive, between real processes: threads, progress without a call, futures, leaving,
//! and a scope that panics.

use crate::common::{pattern, ranks, ranks_with};
use gapless::{Error, PmlError, SendMode, Source, TagSel, World};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// A promise of milliseconds is given this long.
const WATCHDOG: Duration = Duration::from_secs(30);

/// Threads of two processes, each with its own tag or its own communicator, all at once.
fn chatter(world: &World, own_comms: bool) {
    const THREADS: u32 = 6;
    let comm = world.comm();
    let comms: Vec<_> =
        (0..THREADS).map(|_| if own_comms { comm.dup().unwrap() } else { comm.clone() }).collect();
    std::thread::scope(|threads| {
        for (tag, comm) in (0i32..).zip(comms) {
            threads.spawn(move || {
                let (me, peer) = (comm.rank(), 1 - comm.rank());
                for round in 0..200u64 {
                    let len = usize::try_from(round * round % 30_011).unwrap();
                    let seed = |rank: u32| {
                        u64::from(rank) << 40 | round << 8 | u64::from(tag.unsigned_abs())
                    };
                    let (out, mut into) = (pattern(len, seed(me)), vec![0u8; len]);
                    match round % 3 {
                        0 => comm.sendrecv(&out, (peer, tag), &mut into, (peer, tag)).map(drop),
                        1 => comm.scope(|s| {
                            let _ = s.irecv(&mut into, peer, tag)?;
                            let _ = s.isend_mode(&out, peer, tag, SendMode::Synchronous)?;
                            Ok(())
                        }),
                        _ => comm.scope(|s| {
                            let _ = s.isend(&out, peer, tag)?;
                            let message = s.comm().mprobe(peer, tag)?;
                            message.recv(&mut into).map(drop)
                        }),
                    }
                    .unwrap();
                    assert_eq!(into, pattern(len, seed(peer)), "thread {tag}, round {round}");
                }
            });
        }
    });
}

#[test]
fn threads_share_one_communicator() {
    ranks(2, "operations::threads_share_one_communicator", |world: World| {
        chatter(&world, false);
        world.finalize().unwrap();
    });
}

#[test]
fn threads_have_communicators_of_their_own_and_one_makes_progress() {
    let name = "operations::threads_have_communicators_of_their_own_and_one_makes_progress";
    ranks_with(
        2,
        name,
        || World::builder().progress_thread(true),
        |world: World| {
            chatter(&world, true);
            world.finalize().unwrap();
        },
    );
}

#[test]
fn every_message_goes_to_one_of_the_threads_that_want_it() {
    ranks(
        2,
        "operations::every_message_goes_to_one_of_the_threads_that_want_it",
        |world: World| {
            const THREADS: u32 = 4;
            const MESSAGES: u32 = 2000;
            let comm = world.comm();
            if comm.rank() == 0 {
                for number in (0..MESSAGES).chain([u32::MAX; THREADS as usize]) {
                    comm.send(&[number], 1, 0).unwrap();
                }
            } else {
                let seen: Vec<AtomicU32> = (0..MESSAGES).map(|_| AtomicU32::new(0)).collect();
                std::thread::scope(|threads| {
                    for thread in 0..THREADS {
                        let seen = &seen;
                        threads.spawn(move || {
                            let mut last = None;
                            loop {
                                let mut number = [0u32];
                                if thread % 2 == 0 {
                                    comm.recv(&mut number, Source::Any, TagSel::Any).unwrap();
                                } else {
                                    comm.mprobe(0, 0).unwrap().recv(&mut number).unwrap();
                                }
                                if number[0] == u32::MAX {
                                    break;
                                }
                                assert!(last < Some(number[0]), "a later message came first");
                                last = Some(number[0]);
                                seen[number[0] as usize].fetch_add(1, Ordering::Relaxed);
                            }
                        });
                    }
                });
                assert!(seen.iter().all(|times| times.load(Ordering::Relaxed) == 1));
            }
            world.finalize().unwrap();
        },
    );
}

#[test]
fn messages_move_while_nobody_is_in_a_call() {
    let name = "operations::messages_move_while_nobody_is_in_a_call";
    ranks_with(
        2,
        name,
        || World::builder().progress_thread(true),
        |world: World| {
            let comm = world.comm();
            // A rendezvous in each direction: neither ends without the other process's progress.
            let out = pattern(300_000, u64::from(comm.rank()));
            let send = comm.isend_owned(out, 1 - comm.rank(), 0).unwrap();
            let recv = comm.irecv_owned(vec![0u8; 300_000], 1 - comm.rank(), 0).unwrap();
            let (told, hear) = mpsc::channel();
            let also = told.clone();
            send.on_done(move |_, result| told.send(result.map(|_| None)).unwrap());
            recv.on_done(move |bytes, result| also.send(result.map(|_| Some(bytes))).unwrap());
            let mut received = None;
            for _ in 0..2 {
                let ended = hear.recv_timeout(WATCHDOG).expect("the progress thread sees to it");
                received = ended.unwrap().or(received);
            }
            assert_eq!(received.unwrap(), pattern(300_000, u64::from(1 - comm.rank())));
            world.finalize().unwrap();
        },
    );
}

/// Unparks the thread that drives a future.
struct Unpark(std::thread::Thread, AtomicBool);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::Release);
        self.0.unpark();
    }
}

/// The smallest runtime: knows nothing of messages.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let unpark = Arc::new(Unpark(std::thread::current(), AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&unpark));
    let begin = Instant::now();
    loop {
        if unpark.1.swap(false, Ordering::AcqRel)
            && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return output;
        }
        assert!(begin.elapsed() < WATCHDOG, "nobody woke the future");
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

#[test]
fn futures_are_awaited_by_any_runtime() {
    let name = "operations::futures_are_awaited_by_any_runtime";
    ranks_with(
        2,
        name,
        || World::builder().progress_thread(true),
        |world: World| {
            let (comm, peer) = (world.comm(), 1 - world.rank());
            let talk = |tag: i32| async move {
                let mut ball = vec![0u64; 20_000];
                for _ in 0..20 {
                    if comm.rank() == 0 {
                        ball = comm.isend_owned(ball, peer, tag)?.await.0;
                        let (back, result) = comm.irecv_owned(ball, peer, tag)?.await;
                        result?;
                        ball = back;
                    } else {
                        let (mut got, result) = comm.irecv_owned(ball, peer, tag)?.await;
                        result?;
                        got[19_999] += 1;
                        ball = comm.isend_owned(got, peer, tag)?.await.0;
                    }
                }
                Ok::<u64, Error>(ball[19_999])
            };
            assert_eq!(block_on(talk(0)), Ok(20));
            // The world can drive futures itself.
            assert_eq!(world.block_on(talk(1)), Ok(20));
            world.finalize().unwrap();
        },
    );
}

#[test]
fn leaving_ends_everything_and_drops_no_pair() {
    ranks(2, "operations::leaving_ends_everything_and_drops_no_pair", |world: World| {
        let (comm, peer) = (world.comm().clone(), 1 - world.rank());
        // All of these are in flight when this process leaves; some match, some do not.
        let mut pairs = Vec::new();
        for (tag, len) in (0i32..).zip([8usize, 9000, 500_000, 3_000_000]) {
            let seed = u64::from(comm.rank()) + 10;
            let send = comm.isend_owned(pattern(len, seed), peer, tag).unwrap();
            let recv = comm.irecv_owned(vec![0u8; len], peer, tag).unwrap();
            pairs.push((send, recv, len));
        }
        let never_sent = comm.irecv_owned(vec![0u8; 10], peer, 77).unwrap();
        let never_received = comm.isend_owned(pattern(500_000, 1), peer, 78).unwrap();
        let unanswered = comm.isend_owned_mode(vec![1u8], peer, 79, SendMode::Synchronous).unwrap();
        let (told, hear) = mpsc::channel();
        comm.irecv_owned(vec![0u8; 1], peer, 80)
            .unwrap()
            .on_done(move |_, result| told.send(result).unwrap());
        let mut persistent = comm.recv_init(vec![0u8; 1], peer, 81).unwrap();
        persistent.start().unwrap();
        world.finalize().unwrap();
        for (send, recv, len) in pairs {
            send.wait().1.unwrap();
            let (bytes, result) = recv.wait();
            assert_eq!(result.unwrap().bytes, len as u64);
            assert_eq!(bytes, pattern(len, u64::from(peer) + 10));
        }
        let cancelled = Err(Error::from(PmlError::Cancelled));
        let unreceived = |tag| Err(Error::from(PmlError::Unreceived { rank: peer, tag }));
        assert_eq!(never_sent.wait().1, cancelled);
        assert_eq!(never_received.wait().1, unreceived(78));
        assert_eq!(unanswered.wait().1, unreceived(79));
        assert_eq!(hear.recv_timeout(WATCHDOG).unwrap(), cancelled);
        assert_eq!(persistent.wait(), cancelled);
        assert_eq!(comm.send(&[0u8], peer, 0), Err(Error::Finalized));
    });
}

#[test]
fn a_scope_that_panics_takes_its_sends_back() {
    ranks(2, "operations::a_scope_that_panics_takes_its_sends_back", |world: World| {
        let (comm, peer) = (world.comm(), 1 - world.rank());
        if comm.rank() == 0 {
            let (large, small) = (pattern(400_000, 1), pattern(40, 1));
            let panicked = std::panic::catch_unwind(|| {
                comm.scope(|s| -> Result<(), Error> {
                    let _ = s.isend(&large, peer, 0)?;
                    let _ = s.isend_mode(&small, peer, 1, SendMode::Synchronous)?;
                    std::panic::resume_unwind(Box::new("on purpose"));
                })
            });
            assert!(panicked.is_err());
            comm.send(&[9u8], peer, 2).unwrap();
        } else {
            // Never receives them, but does wait for something else.
            comm.recv(&mut [0u8], peer, 2).unwrap();
            assert_eq!(comm.iprobe(Source::Any, TagSel::Any).unwrap(), None);
        }
        world.finalize().unwrap();
    });
}
