//! Quick functions: they run where progress is made, if nothing is before them and they need not wait.

use super::*;
use std::sync::Mutex;
use std::thread::{ThreadId, current};

/// What has run, and on which thread.
type Ran = Arc<Mutex<Vec<(u64, ThreadId)>>>;

fn note(ran: &Ran, task: &mut crate::Task<'_>) -> u64 {
    let number = task.arguments()[2];
    ran.lock().unwrap().push((number, current().id()));
    let (payload, buffer) = task.parts();
    buffer.iter_mut().zip(payload).for_each(|(sum, more)| *sum += more);
    number
}

/// A function that is quick up to 64 bytes, unless its number is a multiple of 7.
fn register(job: &Job, ran: &Ran, buffer: &TargetBuffer) {
    let [here, there] = [ran, ran].map(Arc::clone);
    let function = Function::new(4000, move |task| {
        note(&there, task);
        Ok(())
    });
    let function = function.quick(64, move |task| {
        let number = task.arguments()[2];
        if number.is_multiple_of(7) {
            return None;
        }
        note(&here, task);
        assert_ne!(number, 50, "as it was told");
        Some(if number == 51 { Err("so it is".into()) } else { Ok(()) })
    });
    job.xtq(1).register_function(0, function.buffer(buffer)).unwrap();
    (0..40).for_each(|_| job.xtq(1).post(vec![0; 4000]));
}

fn put(job: &Job, number: u64, bytes: usize) -> PutHandle {
    let put = Put::function(Rank(1), 0, 0, [number, 0]).payload(vec![1; bytes]);
    job.xtq(0).put(put.acknowledged()).unwrap()
}

#[test]
fn they_run_in_order_with_others_and_need_no_thread() {
    for seed in [None, Some(21)] {
        println!("seed {seed:?}");
        let (mut job, ran) = (Job::new(2, seed), Ran::default());
        let buffer = TargetBuffer::new(vec![0; 8]);
        register(&job, &ran, &buffer);
        job.xtq(1).register_queue(0, QueueOptions { capacity: 512, width: 1 }).unwrap();
        let handles: Vec<_> = (1..=40)
            // Those of 100 bytes are not quick.
            .map(|number| put(&job, number, if number % 5 == 0 { 100 } else { 8 }))
            .collect();
        for handle in &handles {
            assert_eq!((job.outcome(handle), handle.accepted()), (Ok(()), Some(Ok(()))));
        }
        let ran = std::mem::take(&mut *ran.lock().unwrap());
        assert_eq!(ran.iter().map(|one| one.0).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
        let here = current().id();
        for (number, thread) in &ran {
            let is_quick = number % 5 != 0 && number % 7 != 0;
            // A quick one may have been behind one that is not.
            assert!(is_quick || *thread != here, "{number} ran here");
        }
        // No thread has had the queue before the fifth.
        assert_eq!(ran[..4].iter().filter(|one| one.1 == here).count(), 4, "{ran:?}");
        buffer.with(|sums| assert_eq!(sums[..], [40; 8]));
        job.settle();
    }
}

#[test]
fn their_failures_are_told_and_a_buffer_that_somebody_has_is_waited_for_by_a_thread() {
    let (mut job, ran) = (Job::new(2, None), Ran::default());
    let buffer = TargetBuffer::new(vec![0; 8]);
    register(&job, &ran, &buffer);
    job.xtq(1).register_queue(0, QueueOptions::default()).unwrap();
    for (number, reason) in [(50, "as it was told"), (51, "so it is")] {
        let handle = put(&job, number, 8);
        let Err(XtqError::Failed { target: Rank(1), reason: said }) = job.outcome(&handle) else {
            panic!("{handle:?}")
        };
        assert!(said.contains(reason), "{said}");
    }
    let held = put(&job, 52, 8);
    buffer.with(|_| {
        job.until(|_| held.accepted()).unwrap();
        assert_eq!(held.outcome(), None);
    });
    assert_eq!(job.outcome(&held), Ok(()));
    let last = put(&job, 53, 8);
    assert_eq!(job.outcome(&last), Ok(()));
    let here = current().id();
    let ran: Vec<_> =
        ran.lock().unwrap().iter().map(|(number, at)| (*number, *at == here)).collect();
    assert_eq!(ran, [(50, true), (51, true), (52, false), (53, true)]);
}

/// A task behind a quick one that puts on: what it puts is sent, though nobody wakes up.
#[test]
fn they_put_on() {
    let mut job = Job::new(2, None);
    let end = job.xtq(0).signal(1);
    let told = end.clone();
    let last = Function::new(0, |_| Ok(())).quick(0, move |_| {
        told.count_down();
        Some(Ok(()))
    });
    let hop = |task: &mut crate::Task<'_>| {
        let put = Put::function(Rank(0), 1, 0, [0, 0]);
        Some(task.put(put).map(drop).map_err(Into::into))
    };
    job.xtq(0).register_function(1, last).unwrap();
    job.xtq(1).register_function(0, Function::new(0, |_| Ok(())).quick(0, hop)).unwrap();
    (0..2).for_each(|at| {
        job.xtq(at).register_queue(0, QueueOptions::default()).unwrap();
    });
    job.xtq(0).put(Put::function(Rank(1), 0, 0, [0, 0])).unwrap();
    assert_eq!(job.end_of(&end), Ok(()));
    job.settle();
}
