//! Puts that go directly into a ring, and what a worker's signals lead to.
#![allow(unsafe_code, reason = "registers kernels, whose memory nobody touches")]

use super::*;
use crate::device::mock_worker::MockWorker;
use crate::device::{DeviceFunction, Life};
use crate::launcher::Kernel;
use crate::packet::Launch;
use std::sync::Mutex;

const INDEX: u8 = 5;

/// Rank 1 has a worker, which a thread plays; what has run there.
struct Pair {
    job: Job,
    ran: Arc<Mutex<Vec<u64>>>,
}

impl Pair {
    fn new(idle: Option<Duration>, seed: Option<u64>) -> Pair {
        println!("idle {idle:?}, seed {seed:?}");
        let (job, ran) = (Job::new(3, seed), Arc::<Mutex<Vec<u64>>>::default());
        let theirs = Arc::clone(&ran);
        let mock = MockWorker::new(move |task| {
            theirs.lock().unwrap().push(task.arguments[2]);
            Ok(())
        });
        job.xtq(1).attach_worker(mock, Life { idle, longest: PATIENCE }).unwrap();
        let pair = Pair { job, ran };
        pair.register(Kernel::of_worker(DeviceFunction::Copy, 64));
        pair.job.xtq(1).register_queue(INDEX, QueueOptions::default()).unwrap();
        pair
    }

    fn register(&self, kernel: Kernel) {
        // SAFETY: whatever runs it touches no memory.
        unsafe { self.job.xtq(1).register_kernel(INDEX, kernel) }.unwrap();
    }

    fn task(number: u64) -> Put {
        let arguments = [0, 0, number].map(u64::to_le_bytes).concat();
        // Short bodies lie in a put's box, lists beside it.
        let arguments: crate::Payload =
            if number.is_multiple_of(2) { arguments[..].into() } else { arguments.into() };
        Put::kernel(Rank(1), INDEX, INDEX, Launch::linear(1, 1, 24), arguments).acknowledged()
    }

    /// Until rank 0 has a ring.
    fn warm(&mut self) {
        let first = self.job.xtq(0).put(Pair::task(0)).unwrap();
        self.job.outcome(&first).unwrap();
        self.job.until(|job| job.xtq(0).has_ring(Rank(1)).then_some(()));
    }
}

#[test]
fn a_put_into_a_ring_needs_no_progress_here_or_there() {
    let mut pair = Pair::new(None, None);
    let xtq = pair.job.xtq(0).clone();
    assert_eq!(xtq.take_outcomes(), None, "nothing is in a ring");
    // The first goes by a message.
    let first = xtq.put_direct(Pair::task(0)).unwrap_err();
    xtq.put(first).unwrap();
    pair.warm();
    pair.job.settle();
    let put = |number| xtq.put_direct(Pair::task(number));
    let puts: Vec<_> = (1..=100).map(|number| put(number).unwrap()).collect();
    assert!(puts.iter().all(|put| put.is_served()));
    assert!(puts.iter().map(|put| put.number()).eq(0..100));
    // Nobody makes progress.
    let start = Instant::now();
    let mut ended = 0;
    while ended < puts.len() {
        ended += xtq.take_outcomes().expect("some have not ended");
        assert!(start.elapsed() < PATIENCE, "{ended}");
        std::thread::yield_now();
    }
    assert!(puts.iter().all(|put| put.handle.outcome() == Some(Ok(()))));
    assert_eq!(pair.ran.lock().unwrap()[2..], (1..=100).collect::<Vec<_>>());
    assert_eq!(xtq.take_outcomes(), None);
    // One that goes another way is not taken for one that waited for room in the ring.
    let held = xtq.signal(0);
    let others = [
        Pair::task(257).retry(Retry::InOrder),
        Pair::task(258).after(&held),
        Pair::task(259).within(PATIENCE),
    ];
    // The worker waits for this.
    let stops = pair.ran.lock().unwrap();
    (0..256).for_each(|number| assert!(put(number).unwrap().is_served()));
    let more = xtq.put_direct(Pair::task(256)).expect_err("the ring is full");
    for other in others.into_iter().chain([more]) {
        let other = xtq.put_direct(other).unwrap_err();
        xtq.put(other).unwrap();
    }
    drop(stops);
    pair.job.settle();
    assert_eq!(pair.ran.lock().unwrap().split_off(102).len(), 260);
    // What has no room waits for progress, and keeps its place; one with a limit needs the clock.
    let more: Vec<_> = (0..400).map(|number| xtq.put(Pair::task(number)).unwrap()).collect();
    xtq.put(Pair::task(400).within(PATIENCE)).unwrap();
    pair.job.settle();
    assert!(more.iter().all(|put| put.outcome() == Some(Ok(()))));
    assert_eq!(pair.ran.lock().unwrap()[102..], (0..=400).collect::<Vec<_>>());
}

/// One look takes the ends of more signals than it tells together: each counts all of its own, once.
#[test]
fn a_look_at_many_signals() {
    const SIGNALS: u64 = 20;
    let mut pair = Pair::new(None, None);
    pair.warm();
    pair.job.settle();
    let xtq = pair.job.xtq(0).clone();
    let signals: Vec<_> = (0..SIGNALS).map(|_| xtq.signal(3)).collect();
    // The worker waits for this: it runs all before anybody looks.
    let stops = pair.ran.lock().unwrap();
    let already = stops.len();
    for number in 0..2 * SIGNALS {
        let of = usize::try_from(number % SIGNALS).unwrap();
        assert!(xtq.put_direct(Pair::task(number).signal(&signals[of])).is_ok());
    }
    drop(stops);
    let all = already + usize::try_from(2 * SIGNALS).unwrap();
    let start = Instant::now();
    while pair.ran.lock().unwrap().len() < all {
        assert!(start.elapsed() < PATIENCE, "it never came");
        std::thread::yield_now();
    }
    while xtq.take_outcomes().is_some() {
        assert!(start.elapsed() < PATIENCE, "it never came");
        std::thread::yield_now();
    }
    pair.job.settle();
    assert!(signals.iter().all(|signal| signal.value() == 1));
}

/// Threads put at the same time, while another makes progress: each one's tasks begin in its order, and every signal counts
/// all of its own.
#[test]
fn threads_put_into_one_ring_each_in_its_order() {
    const EACH: u64 = 400;
    for idle in [None, Some(Duration::from_micros(1))] {
        let mut pair = Pair::new(idle, None);
        pair.warm();
        let xtq = pair.job.xtq(0).clone();
        let signals = [(); 3].map(|()| xtq.signal(EACH));
        std::thread::scope(|threads| {
            for (thread, signal) in (0..).zip(&signals) {
                let xtq = &xtq;
                threads.spawn(move || {
                    for number in 0..EACH {
                        let put = Pair::task(thread << 32 | number).signal(signal);
                        xtq.put(put).unwrap();
                        if number.is_multiple_of(7) {
                            let _ = xtq.take_outcomes();
                        }
                    }
                });
            }
            pair.job.until(|_| signals.iter().all(|signal| signal.poll().is_some()).then_some(()));
        });
        assert!(signals.iter().all(|signal| signal.poll() == Some(Ok(()))));
        pair.job.settle();
        let ran = pair.ran.lock().unwrap().split_off(1);
        for thread in 0..3 {
            let of = ran.iter().filter(|task| *task >> 32 == thread).map(|task| task & 0xFFFF_FFFF);
            assert!(of.eq(0..EACH), "thread {thread}, idle {idle:?}");
        }
    }
}

/// What lies in a ring ends with its initiator, or with its target, and so do signals: more of them than are told at a time.
#[test]
fn puts_in_a_ring_end_with_either_end() {
    for target_goes in [false, true] {
        let mut pair = Pair::new(None, None);
        pair.warm();
        let xtq = pair.job.xtq(0).clone();
        let stops = pair.ran.lock().unwrap();
        let signals: Vec<_> = (0..20).map(|_| xtq.signal(1)).collect();
        let put = |signal| xtq.put_direct(Pair::task(0).signal(signal)).unwrap();
        let puts: Vec<_> = signals.iter().map(put).collect();
        assert!(!xtq.has_settled());
        let is_lost = |end: Result<(), XtqError>| matches!(end, Err(XtqError::Lost { .. }));
        if target_goes {
            // As far as this process knows; the worker waits for the lock, so no task has ended.
            let error = gapless_bml::LinkError::Corrupt { what: "a test".to_owned() };
            pair.job.ends[0].bml.give_up(Rank(1), error);
            let start = Instant::now();
            while signals.iter().any(|signal| signal.poll().is_none()) {
                pair.job.step_one(0);
                assert!(start.elapsed() < PATIENCE, "nobody is told of the loss");
            }
            assert!(signals.iter().filter_map(Signal::poll).all(is_lost));
            drop(stops);
        } else {
            drop(xtq.abandon());
            assert!(signals.iter().all(|signal| signal.poll() == Some(Err(XtqError::Closed))));
            assert!(xtq.put_direct(Pair::task(1)).is_err());
            assert_eq!(xtq.put(Pair::task(1)).unwrap_err(), XtqError::Closed);
            drop(stops);
        }
        let ends = signals.iter().map(Signal::poll);
        assert!(ends.eq(puts.iter().map(|put| put.handle.outcome())));
        assert!(xtq.has_settled());
    }
}

/// A put that the worker refuses goes over to the initiator, which sends it again, or tells why.
#[test]
fn what_a_worker_refuses_is_sent_again_or_told() {
    let mut pair = Pair::new(None, None);
    pair.warm();
    let xtq = pair.job.xtq(0).clone();
    let again = Pair::task(8).payload(&[1; 8][..]).retry(Retry::InAnyOrder);
    let again = xtq.put_direct(again.clone()).unwrap().handle;
    let never = xtq.put_direct(Pair::task(7).payload(vec![1; 8])).unwrap().handle;
    let (target, refusal) = (Rank(1), Refusal::NoReceiveBuffer);
    assert_eq!(pair.job.outcome(&never), Err(XtqError::Refused { target, refusal }));
    assert_eq!((never.refusals(), again.outcome()), (1, None));
    // SAFETY: nobody touches it.
    unsafe { pair.job.xtq(1).post_to_worker(crate::device::mock_worker::memory(8).unwrap()) }
        .unwrap();
    assert_eq!(pair.job.outcome(&again), Ok(()));
    assert!(again.refusals() > 0);
    assert!(pair.ran.lock().unwrap().contains(&8), "with the arguments that it was put with");
    // The kernel is another's by now: its message finds that out.
    pair.job.xtq(1).unregister_kernel(INDEX).unwrap();
    let gone = xtq.put(Pair::task(9)).unwrap();
    let refusal = Refusal::NotRegistered;
    assert_eq!(pair.job.outcome(&gone), Err(XtqError::Refused { target, refusal }));
    pair.job.settle();
}

/// A put in a ring has its payload until it has ended, and no longer.
#[test]
fn a_payload_in_a_ring_is_given_up_when_its_put_has_ended() {
    let mut pair = Pair::new(None, None);
    pair.warm();
    pair.job.settle();
    // SAFETY: nobody touches it.
    unsafe { pair.job.xtq(1).post_to_worker(crate::device::mock_worker::memory(8).unwrap()) }
        .unwrap();
    let (xtq, payload) = (pair.job.xtq(0).clone(), Arc::<[u8]>::from([1; 8]));
    let ran = Arc::clone(&pair.ran);
    let stops = ran.lock().unwrap();
    let put = Pair::task(1).payload(Arc::clone(&payload));
    let put = xtq.put_direct(put).unwrap().handle;
    assert_eq!(Arc::strong_count(&payload), 2);
    drop(stops);
    assert_eq!(pair.job.outcome(&put), Ok(()));
    assert_eq!(Arc::strong_count(&payload), 1);
}

/// The worker leaves whenever it has nothing to do: a put that meets that asks for another, and is not lost.
#[test]
fn puts_that_go_straight_to_a_worker_that_leaves_are_not_lost() {
    let mut pair = Pair::new(Some(Duration::from_micros(1)), None);
    pair.warm();
    for number in 1..=300 {
        let put = pair.job.xtq(0).put(Pair::task(number)).unwrap();
        assert_eq!(pair.job.outcome(&put), Ok(()));
    }
    assert_eq!(pair.ran.lock().unwrap()[1..], (1..=300).collect::<Vec<_>>());
}

/// A registered signal, which the worker counts, leads to a put of the target's: it goes when so many tasks have ended, and
/// nobody waits for that.
#[test]
fn a_registered_signal_of_a_worker_lets_a_put_of_its_target_go() {
    for seed in [None, Some(13)] {
        let mut pair = Pair::new(None, seed);
        let there = pair.job.xtq(1).signal_from(8, &[Rank(0)]);
        pair.register(Kernel::of_worker(DeviceFunction::Copy, 64).signal(&there));
        let seen = Arc::new(AtomicU64::new(0));
        let theirs = Arc::clone(&seen);
        let note = Function::new(0, move |task: &mut crate::Task<'_>| {
            theirs.fetch_add(task.arguments()[2], Ordering::Relaxed);
            Ok(())
        });
        pair.job.xtq(2).register_function(0, note).unwrap();
        pair.job.xtq(2).register_queue(0, QueueOptions::default()).unwrap();
        let next = Put::function(Rank(2), 0, 0, [41, 0]).after(&there).acknowledged();
        let next = pair.job.xtq(1).put(next).unwrap();
        for number in 0..8 {
            assert_eq!(next.outcome(), None, "after {number} of 8");
            let put = pair.job.xtq(0).put(Pair::task(number)).unwrap();
            assert_eq!(pair.job.outcome(&put), Ok(()));
        }
        assert_eq!(pair.job.outcome(&next), Ok(()));
        assert_eq!(seen.load(Ordering::Relaxed), 41);
        pair.job.settle();
    }
}
