//! Flow control: full queues, retries, order, barriers.

use super::*;
use std::sync::Mutex;

/// Rank 0 is the target of all others; its queue holds one task.
fn crowd(retry: Retry, seed: Option<u64>) {
    const INITIATORS: u32 = 8;
    const PUTS: u64 = 9;
    println!("{retry:?}, seed {seed:?}");
    let mut job = Job::new(1 + INITIATORS, seed);
    let seen: Arc<Mutex<Vec<(Rank, u64)>>> = Arc::default();
    let list = Arc::clone(&seen);
    let note = Function::new(4096, move |task| {
        assert!(task.payload().iter().all(|&byte| u32::from(byte) == task.initiator().0));
        list.lock().unwrap().push((task.initiator(), task.arguments()[2]));
        Ok(())
    });
    job.xtq(0).register_function(42, note).unwrap();
    job.xtq(0).register_queue(42, QueueOptions { capacity: 1, width: 1 }).unwrap();
    job.xtq(0).post(vec![0; 4096]);
    job.xtq(0).post(vec![0; 64]);
    let mut handles = Vec::new();
    for number in 0..PUTS {
        for rank in 1..=INITIATORS {
            // None, short, and in pieces.
            let payload = [0, 5, 3000][usize::try_from(number % 3).unwrap()];
            let payload = vec![u8::try_from(rank).unwrap(); payload];
            let put = Put::function(Rank(0), 42, 42, [number, 0]).payload(payload).retry(retry);
            handles.push(job.xtq(rank as usize).put(put.acknowledged()).unwrap());
        }
    }
    for handle in &handles {
        assert_eq!(job.outcome(handle), Ok(()));
    }
    job.settle();
    assert_eq!(job.xtq(0).take_posted().len(), 2);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len() as u64, PUTS * u64::from(INITIATORS));
    for rank in 1..=INITIATORS {
        let mut numbers: Vec<u64> =
            seen.iter().filter(|(from, _)| from.0 == rank).map(|(_, number)| *number).collect();
        if retry == Retry::InAnyOrder {
            numbers.sort_unstable();
        }
        assert_eq!(numbers, (0..PUTS).collect::<Vec<_>>(), "rank {rank}");
    }
}

#[test]
fn a_queue_of_one_takes_the_tasks_of_eight_initiators_once_each_and_in_order_if_asked() {
    crowd(Retry::InOrder, None);
    crowd(Retry::InAnyOrder, None);
    crowd(Retry::InOrder, Some(3));
    crowd(Retry::InAnyOrder, Some(4));
}

/// A target whose tasks wait until the test lets them go on, one at a time.
pub(super) fn gated(job: &Job, options: QueueOptions) -> (mpsc::Sender<()>, mpsc::Receiver<u64>) {
    let (go, gate) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    let gate = Mutex::new(gate);
    let wait = Function::new(64, move |task| {
        begun.send(task.arguments()[2]).map_err(|error| error.to_string())?;
        gate.lock().unwrap().recv_timeout(PATIENCE).map_err(|error| error.to_string().into())
    });
    job.xtq(1).register_function(0, wait).unwrap();
    job.xtq(1).register_queue(0, options).unwrap();
    (go, begins)
}

pub(super) fn numbered(number: u64) -> Put {
    Put::function(Rank(1), 0, 0, [number, 0]).acknowledged()
}

#[test]
fn a_full_queue_is_an_event_and_the_receive_buffer_is_free_again() {
    let mut job = Job::new(2, None);
    let (go, begins) = gated(&job, QueueOptions { capacity: 1, width: 1 });
    job.xtq(1).post(vec![0; 64]);
    let running = job.xtq(0).put(numbered(1)).unwrap();
    job.until(|_| begins.try_recv().ok());
    let waiting = job.xtq(0).put(numbered(2)).unwrap();
    let refused = job.xtq(0).put(numbered(3).payload(vec![1; 64])).unwrap();
    let full = Err(XtqError::Refused { target: Rank(1), refusal: Refusal::QueueFull });
    assert_eq!((job.outcome(&refused), refused.refusals()), (full.clone(), 1));
    // A put that may be sent three times is, and no more.
    let tired = numbered(4).retry(Retry::InOrder).attempts(3);
    let tired = job.xtq(0).put(tired).unwrap();
    // The one behind it in the sequence takes its place.
    let patient = job.xtq(0).put(numbered(5).retry(Retry::InOrder)).unwrap();
    assert_eq!((job.outcome(&tired), tired.refusals()), (full, 3));
    assert_eq!(patient.outcome(), None);
    (0..3).for_each(|_| go.send(()).unwrap());
    for handle in [running, waiting, patient] {
        assert_eq!(job.outcome(&handle), Ok(()));
    }
    assert_eq!(begins.try_iter().collect::<Vec<_>>(), [2, 5]);
    assert_eq!(job.xtq(1).take_posted().len(), 1);
}

#[test]
fn a_buffer_that_is_posted_late_lets_a_sequence_go_on_in_order() {
    let mut job = Job::new(2, None);
    let (go, begins) = gated(&job, QueueOptions { capacity: 8, width: 1 });
    let put = |number| numbered(number).payload(vec![0; 8]).retry(Retry::InOrder);
    let first = job.xtq(0).put(put(1)).unwrap();
    let second = job.xtq(0).put(numbered(2).retry(Retry::InOrder)).unwrap();
    job.until(|_| (first.refusals() > 2).then_some(()));
    assert_eq!((second.accepted(), second.refusals()), (None, 0));
    job.xtq(1).post(vec![0; 8]);
    (0..2).for_each(|_| go.send(()).unwrap());
    // The end of the first may be told after that of the second, which another thread runs.
    assert_eq!((job.outcome(&second), job.outcome(&first)), (Ok(()), Ok(())));
    assert_eq!(begins.try_iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_payload_may_land_before_the_queue_is_full_and_its_buffer_is_free_again() {
    let mut job = Job::new(2, None);
    let (go, begins) = gated(&job, QueueOptions { capacity: 1, width: 1 });
    job.xtq(1).register_function(1, Function::new(4000, |_| Ok(()))).unwrap();
    job.xtq(1).post(vec![0; 4000]);
    let long = || Put::function(Rank(1), 1, 0, [0, 0]).payload(vec![5; 3000]);
    // The queue has room when the packet comes.
    let refused = job.xtq(0).put(long()).unwrap();
    job.until(|job| job.xtq(1).inner.with(|state| state.target.awaits_data().then_some(())));
    assert!(job.xtq(1).take_posted().is_empty(), "the payload has the buffer");
    // It has none when the payload does: one task runs, one waits.
    for number in 1..=2 {
        let own = job.xtq(1).put(numbered(number)).unwrap();
        while own.accepted().is_none() {
            job.step_one(1);
        }
        if number == 1 {
            assert_eq!(begins.recv_timeout(PATIENCE), Ok(1));
        }
    }
    let full = XtqError::Refused { target: Rank(1), refusal: Refusal::QueueFull };
    assert_eq!((job.outcome(&refused), refused.refusals()), (Err(full), 1));
    let posted = job.xtq(1).take_posted();
    assert!(matches!(&posted[..], [one] if one.len() == 4000 && one[..3000] == [5; 3000]));
    posted.into_iter().for_each(|buffer| job.xtq(1).post(buffer));
    (0..2).for_each(|_| go.send(()).unwrap());
    // What was registered is looked up again, too: the function, then the queue.
    job.settle();
    let refusal = |job: &mut Job, change: &dyn Fn(&Xtq)| {
        let put = job.xtq(0).put(long()).unwrap();
        job.until(|job| job.xtq(1).inner.with(|state| state.target.awaits_data().then_some(())));
        change(job.xtq(1));
        let outcome = job.outcome(&put);
        assert!(!job.xtq(1).inner.with(|state| state.target.awaits_data()));
        outcome.err()
    };
    let refused = |refusal| Some(XtqError::Refused { target: Rank(1), refusal });
    let shorter = |xtq: &Xtq| xtq.register_function(1, Function::new(9, |_| Ok(()))).unwrap();
    assert_eq!(refusal(&mut job, &shorter), refused(Refusal::PayloadTooLong { max: 9 }));
    job.xtq(1).register_function(1, Function::new(4000, |_| Ok(()))).unwrap();
    let anew = |xtq: &Xtq| xtq.register_queue(0, QueueOptions::default()).unwrap();
    assert_eq!(refusal(&mut job, &anew), None);
    job.settle();
    let none = |xtq: &Xtq| xtq.unregister_queue(0).unwrap();
    assert_eq!(refusal(&mut job, &none), refused(Refusal::NoQueue));
    assert_eq!(job.xtq(1).take_posted().len(), 1);
}

#[test]
fn a_long_queue_does_not_hold_up_a_short_one() {
    for width in [1, 8] {
        let mut job = Job::configured(2, None, None, &Config { threads: 1, ..Config::default() });
        let (go, begins) = gated(&job, QueueOptions { capacity: 64, width });
        job.xtq(1).register_queue(1, QueueOptions::default()).unwrap();
        let mut handles: Vec<_> =
            (0..10).map(|number| job.xtq(0).put(numbered(number)).unwrap()).collect();
        handles.push(job.xtq(0).put(Put::function(Rank(1), 0, 1, [99, 0]).acknowledged()).unwrap());
        // All are there before the second begins.
        for handle in &handles {
            job.until(|_| handle.accepted()).unwrap();
        }
        (0..11).for_each(|_| go.send(()).unwrap());
        job.outcome(&handles[9]).unwrap();
        job.settle();
        let begun: Vec<u64> = begins.try_iter().collect();
        let short = begun.iter().position(|&number| number == 99);
        assert!(short.is_some_and(|at| at <= 2), "{begun:?}");
    }
}

#[test]
fn a_wide_queue_runs_tasks_at_once_and_a_barrier_waits_for_them() {
    let mut job = Job::new(2, None);
    let (go, begins) = gated(&job, QueueOptions { capacity: 8, width: 2 });
    job.xtq(1).register_queue(1, QueueOptions::default()).unwrap();
    let mut handles = Vec::new();
    for number in 1..=2 {
        handles.push(job.xtq(0).put(numbered(number)).unwrap());
    }
    let mut begun: Vec<u64> = (0..2).map(|_| job.until(|_| begins.try_recv().ok())).collect();
    begun.sort_unstable();
    assert_eq!(begun, [1, 2]);
    handles.push(job.xtq(0).put(numbered(3).barrier()).unwrap());
    handles.push(job.xtq(0).put(numbered(4)).unwrap());
    job.until(|_| handles[3].accepted()).unwrap();
    go.send(()).unwrap();
    job.until(|_| handles[..2].iter().any(|handle| handle.outcome().is_some()).then_some(()));
    // One of the two runs on, so the barrier holds: the thread that is free goes to another queue.
    handles.push(job.xtq(0).put(Put::function(Rank(1), 0, 1, [5, 0]).acknowledged()).unwrap());
    assert_eq!(job.until(|_| begins.try_recv().ok()), 5);
    (0..4).for_each(|_| go.send(()).unwrap());
    for handle in &handles {
        assert_eq!(job.outcome(handle), Ok(()));
    }
    // Nothing waits for a barrier's end: two threads begin both, and either may say so first.
    let mut last: Vec<u64> = begins.try_iter().collect();
    last.sort_unstable();
    assert_eq!(last, [3, 4]);
}

#[test]
fn puts_without_a_sequence_have_a_window() {
    const PUTS: usize = 1500;
    let mut job = Job::new(2, None);
    job.xtq(1).register_function(0, Function::new(0, |_| Ok(()))).unwrap();
    job.xtq(1).register_queue(0, QueueOptions { capacity: 2000, width: 1 }).unwrap();
    let handles: Vec<PutHandle> =
        (0..PUTS).map(|_| job.xtq(0).put(Put::function(Rank(1), 0, 0, [0, 0])).unwrap()).collect();
    let sent = |job: &Job| job.xtq(0).inner.with(|state| state.initiator.outbox[&1].items.len());
    assert_eq!(sent(&job), 1024);
    for handle in &handles {
        assert_eq!(job.outcome(handle), Ok(()));
    }
}
