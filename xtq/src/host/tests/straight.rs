//! Puts that go straight into a ring, and what a worker's signals lead to.
#![allow(unsafe_code, reason = "registers kernels, whose memory nobody touches")]

use super::*;
use crate::device::player::Player;
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
        let player = Player::new(move |task| {
            theirs.lock().unwrap().push(task.arguments[2]);
            Ok(())
        });
        job.xtq(1).attach_worker(player, Life { idle, longest: PATIENCE }).unwrap();
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
    assert!(!xtq.put_straight(Pair::task(0)).unwrap().1);
    pair.warm();
    pair.job.settle();
    let puts: Vec<_> =
        (1..=100).map(|number| xtq.put_straight(Pair::task(number)).unwrap()).collect();
    assert!(puts.iter().all(|(_, is_there)| *is_there));
    // Nobody makes progress.
    let start = Instant::now();
    let mut ended = 0;
    while ended < puts.len() {
        ended += xtq.take_outcomes().expect("some have not ended");
        assert!(start.elapsed() < PATIENCE, "{ended}");
        std::thread::yield_now();
    }
    assert!(puts.iter().all(|(put, _)| put.outcome() == Some(Ok(()))));
    assert_eq!(pair.ran.lock().unwrap()[2..], (1..=100).collect::<Vec<_>>());
    assert_eq!(xtq.take_outcomes(), None);
    // One that goes another way is not taken for one that waited for room in the ring.
    (0..256).for_each(|number| assert!(xtq.put_straight(Pair::task(number)).unwrap().1));
    assert!(!xtq.put_straight(Pair::task(256)).unwrap().1, "the ring is full");
    while xtq.take_outcomes().is_some_and(|taken| taken == 0) {
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(!xtq.put_straight(Pair::task(257).retry(Retry::InOrder)).unwrap().1);
    let held = pair.job.xtq(0).signal(0);
    assert!(!xtq.put_straight(Pair::task(258).after(&held)).unwrap().1);
    pair.job.settle();
    assert_eq!(pair.ran.lock().unwrap().split_off(102).len(), 259);
    // What has no room waits for progress, and keeps its place; one with a limit needs the clock.
    let more: Vec<_> =
        (0..400).map(|number| xtq.put_straight(Pair::task(number)).unwrap()).collect();
    let limited = Pair::task(400).within(PATIENCE);
    assert!(!xtq.put_straight(limited).unwrap().1);
    pair.job.settle();
    assert!(more.iter().all(|(put, _)| put.outcome() == Some(Ok(()))));
    assert_eq!(pair.ran.lock().unwrap()[102..], (0..=400).collect::<Vec<_>>());
}

/// The worker leaves whenever it has nothing to do: a put that meets that asks for another, and is not lost.
#[test]
fn puts_that_go_straight_to_a_worker_that_leaves_are_not_lost() {
    let mut pair = Pair::new(Some(Duration::from_micros(1)), None);
    pair.warm();
    for number in 1..=300 {
        let (put, _) = pair.job.xtq(0).put_straight(Pair::task(number)).unwrap();
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
