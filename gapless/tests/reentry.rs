//! What the library calls, or drops, on behalf of its user may use the library: no lock is held meanwhile.

use gapless::xtq::{Function, Put, QueueOptions, Rank, TargetBuffer, Task, XtqError};
use gapless::{Communicator, Error, OwnedRequest, Source, TagSel, World};
use gapless_mem::testkit::{Hand, pretended};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, RawWaker, RawWakerVTable, Wake, Waker};
use std::time::Duration;

/// Gives what `act` gives, unless it waits for itself.
fn soon<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(act()));
    result.recv_timeout(Duration::from_secs(60)).expect("nobody waits for itself")
}

/// Uses the world when it is dropped, and counts that.
struct Farewell(Communicator, Arc<AtomicU32>);

impl Drop for Farewell {
    fn drop(&mut self) {
        // The answer does not matter: that there is one does.
        let _ = self.0.iprobe(Source::Any, TagSel::Any);
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

impl Wake for Farewell {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn functions_that_are_never_called_are_dropped_outside_of_the_lock() {
    soon(|| {
        let world = World::init().unwrap();
        let (comm, count) = (world.comm(), Arc::new(AtomicU32::new(0)));
        let farewell = || Farewell(comm.clone(), Arc::clone(&count));
        let inner = comm.irecv_owned(vec![0u8], 0, 1).unwrap();
        let outer = comm.irecv_owned(vec![0u8], 0, 2).unwrap();
        let first = farewell();
        // A function takes the place of another, which owns a request.
        outer.when_done(move || drop((inner, first))).unwrap();
        let second = farewell();
        outer.when_done(move || drop(second)).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 1);
        // So does one that gets the buffer.
        let third = farewell();
        outer.on_done(move |_, _| drop(third));
        assert_eq!(count.load(Ordering::Relaxed), 2);
        comm.send(&[7u8], 0, 2).unwrap();
        world.finalize().unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 3, "the last one was called");
    });
}

/// A waker that uses the world whenever it is cloned or dropped.
fn restless(comm: &Communicator) -> Waker {
    fn raw(comm: Arc<Communicator>) -> RawWaker {
        fn clone(data: *const ()) -> RawWaker {
            // SAFETY: the data of a live waker is a counted reference, which stays that waker's.
            let comm = unsafe { Arc::from_raw(data.cast::<Communicator>()) };
            let _ = comm.iprobe(Source::Any, TagSel::Any);
            let copy = Arc::clone(&comm);
            std::mem::forget(comm);
            raw(copy)
        }
        fn end(data: *const ()) {
            // SAFETY: a waker that is dropped or woken by value gives its reference up.
            let comm = unsafe { Arc::from_raw(data.cast::<Communicator>()) };
            let _ = comm.iprobe(Source::Any, TagSel::Any);
        }
        fn look(_: *const ()) {}
        static TABLE: RawWakerVTable = RawWakerVTable::new(clone, end, look, end);
        RawWaker::new(Arc::into_raw(comm).cast(), &TABLE)
    }
    // SAFETY: the table's functions keep the count of references as wakers must, and may be called from
    // any thread, as communicators may.
    unsafe { Waker::from_raw(raw(Arc::new(comm.clone()))) }
}

#[test]
fn wakers_are_cloned_and_dropped_outside_of_the_lock() {
    soon(|| {
        let world = World::init().unwrap();
        let (comm, count) = (world.comm(), Arc::new(AtomicU32::new(0)));
        let mut request = pin!(comm.irecv_owned(vec![0u8], 0, 1).unwrap());
        let mut poll = |waker: Waker| request.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(
            poll(Waker::from(Arc::new(Farewell(comm.clone(), Arc::clone(&count))))).is_pending()
        );
        for _ in 0..3 {
            assert!(poll(restless(comm)).is_pending());
        }
        assert_eq!(count.load(Ordering::Relaxed), 1);
        comm.send(&[7u8], 0, 1).unwrap();
        assert!(poll(restless(comm)).is_ready());
        world.finalize().unwrap();
    });
}

#[test]
fn what_a_send_has_waited_for_is_dropped_outside_of_the_lock() {
    soon(|| {
        let world = World::init().unwrap();
        let (comm, count) = (world.comm(), Arc::new(AtomicU32::new(0)));
        let hands: [Hand; 3] = Default::default();
        // It uses the world when it is dropped.
        let parting = |hand: &Hand| {
            let (work, farewell) = (hand.work(), Farewell(comm.clone(), Arc::clone(&count)));
            pretended(move || {
                let _ = &farewell;
                work.poll()
            })
        };
        let sent = comm.isend_owned_after(vec![7u8], 0, 1, &hands.each_ref().map(parting)).unwrap();
        let mut byte = [0u8];
        for (ended, hand) in (0..).zip(&hands) {
            assert!(count.load(Ordering::Relaxed) <= ended);
            hand.end();
            comm.iprobe(0, 9).unwrap();
        }
        comm.recv(&mut byte, 0, 1).unwrap();
        assert_eq!((byte, count.load(Ordering::Relaxed)), ([7], 3));
        sent.wait().1.unwrap();
        world.finalize().unwrap();
    });
}

#[test]
fn what_has_ended_is_not_cancelled_by_a_world_that_is_left() {
    let world = World::init().unwrap();
    let comm = world.comm().clone();
    let mut sent = comm.isend_owned(vec![7u8], 0, 1).unwrap();
    comm.recv(&mut [0u8], 0, 1).unwrap();
    world.finalize().unwrap();
    assert_eq!(sent.cancel(), Err(Error::Finalized));
    let (buffer, ended) = sent.wait();
    assert_eq!((buffer, ended.map(|status| status.bytes)), (vec![7], Ok(1)));
}

/// A world goes while its own thread is at work for it: that thread cannot be waited for there.
#[test]
fn a_world_may_be_dropped_by_what_its_own_thread_calls() {
    let world = World::builder().progress_thread(true).init().unwrap();
    let comm = world.comm().clone();
    let hand = Hand::default();
    let after = [hand.work()];
    let (done, ended) = channel();
    let received: OwnedRequest<Vec<u8>> = comm.irecv_owned(vec![0u8; 3], 0, 1).unwrap();
    let sent = comm.isend_owned_after(vec![7u8; 3], 0, 1, &after).unwrap();
    received.on_done(move |buffer, result| {
        drop(world);
        let thread = std::thread::current().name().map(str::to_owned);
        done.send((buffer, result.is_ok(), thread)).unwrap();
    });
    // From now on nobody but the world's thread makes progress.
    hand.end();
    let (buffer, fine, thread) =
        ended.recv_timeout(Duration::from_secs(60)).expect("the world has gone");
    assert_eq!((buffer, fine, thread.as_deref()), (vec![7; 3], true, Some("gapless-progress")));
    assert_eq!(sent.wait().1.unwrap().bytes, 3);
    assert_eq!(comm.send(&[1u8], 0, 0), Err(gapless::Error::Finalized));
}

const QUEUE: u8 = 1;
const FUNCTION: u8 = 1;

/// A world that runs this function as a task.
fn world_with(function: Function) -> World {
    let world = World::init().unwrap();
    world.xtq().register_queue(QUEUE, QueueOptions::default()).unwrap();
    world.xtq().register_function(FUNCTION, function).unwrap();
    world
}

fn put() -> Put {
    Put::function(Rank(0), QUEUE, FUNCTION, [0, 0]).acknowledged()
}

#[test]
fn a_quick_function_that_calls_its_world_fails() {
    soon(|| {
        let comm = Arc::new(OnceLock::<Communicator>::new());
        let theirs = Arc::clone(&comm);
        let quick = move |_: &mut Task<'_>| {
            let _ = theirs.get()?.iprobe(Source::Any, TagSel::Any);
            Some(Ok(()))
        };
        let world = world_with(Function::new(0, |_| Ok(())).quick(0, quick));
        comm.set(world.comm().clone()).unwrap();
        // Also once the lock is one that any thread may have.
        for _ in 0..2 {
            let put = world.xtq().put(put()).unwrap();
            let error = world.xtq().wait_for(&put).unwrap_err();
            assert!(error.to_string().contains("it would wait for itself"), "{error}");
            std::thread::scope(|threads| {
                threads.spawn(|| world.comm().iprobe(Source::Any, TagSel::Any).unwrap());
            });
        }
        world.finalize().unwrap();
    });
}

/// Whether the task runs on a thread of its own or where progress is made.
#[test]
fn a_task_that_leaves_its_world_does_not_wait_for_itself() {
    for (quick, finalized) in [(false, false), (false, true), (true, false), (true, true)] {
        soon(move || {
            let world = Arc::new(Mutex::new(None::<World>));
            let (theirs, (done, ended)) = (Arc::clone(&world), channel());
            let leave = move || {
                let world = theirs.lock().unwrap().take().expect("once");
                let refused = finalized.then(|| world.finalize().unwrap_err());
                let is_in_task = Some(Error::Task(XtqError::InTask));
                done.send(refused == is_in_task || !finalized).unwrap();
            };
            let leave = Arc::new(leave);
            let also = Arc::clone(&leave);
            let mut function = Function::new(0, move |_| {
                leave();
                Ok(())
            });
            if quick {
                function = function.quick(0, move |_| {
                    also();
                    Some(Ok(()))
                });
            }
            let own = world_with(function);
            let (tasks, comm) = (own.xtq(), own.comm().clone());
            *world.lock().unwrap() = Some(own);
            tasks.put(put()).unwrap();
            let gone = loop {
                if let Ok(gone) = ended.try_recv() {
                    break gone;
                }
                let _ = comm.iprobe(Source::Any, TagSel::Any);
            };
            assert!(gone, "{quick} {finalized}");
            while comm.iprobe(Source::Any, TagSel::Any).is_ok() {
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn who_has_a_target_buffer_does_not_wait_for_who_needs_it() {
    soon(|| {
        let buffer = TargetBuffer::new(vec![0]);
        let add = |task: &mut Task<'_>| {
            task.buffer()[0] += 1;
            Ok(())
        };
        let world = world_with(Function::new(0, add).buffer(&buffer));
        let tasks = world.xtq();
        let (waits, signalled) = buffer.with(|_| {
            let put = tasks.put(put()).unwrap();
            (tasks.wait_for(&put), tasks.wait(&tasks.signal(1)))
        });
        assert_eq!(waits, Err(Error::Task(XtqError::Holding)));
        assert_eq!(signalled, Err(Error::Task(XtqError::Holding)));
        let again = || buffer.with(|_| buffer.with(|_| ()));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(again)).is_err());
        // Afterwards all is as before.
        let put = tasks.put(put()).unwrap();
        tasks.wait_for(&put).unwrap();
        assert_eq!(buffer.with(|bytes| bytes[0]), 2);
        world.finalize().unwrap();
    });
}

/// Whether it finalizes or drops the world, and wherever the task runs that needs the buffer.
#[test]
fn who_has_a_target_buffer_does_not_leave_the_world_of_who_needs_it() {
    for (quick, finalizes) in [(false, false), (false, true), (true, false), (true, true)] {
        soon(move || {
            let buffer = TargetBuffer::new(vec![0]);
            let mut function = Function::new(0, |_| Ok(())).buffer(&buffer);
            if quick {
                function = function.quick(0, |_| Some(Ok(())));
            }
            let world = world_with(function);
            let (tasks, comm) = (world.xtq(), world.comm().clone());
            buffer.with(|_| {
                tasks.put(put()).unwrap();
                match finalizes {
                    true => assert_eq!(world.finalize(), Err(Error::Task(XtqError::Holding))),
                    false => drop(world),
                }
            });
            while comm.iprobe(Source::Any, TagSel::Any).is_ok() {
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn what_another_world_ends_is_not_waited_for() {
    soon(|| {
        let (one, other) = (world_with(Function::new(0, |_| Ok(()))), World::init().unwrap());
        let put = one.xtq().put(put()).unwrap();
        assert_eq!(other.xtq().wait_for(&put), Err(Error::Task(XtqError::ForeignPut)));
        let signal = one.xtq().signal(1);
        assert_eq!(other.xtq().wait(&signal), Err(Error::Task(XtqError::ForeignSignal)));
        one.xtq().wait_for(&put).unwrap();
        other.finalize().unwrap();
        one.finalize().unwrap();
    });
}
