//! Ends: losses before and after, signals that begin anew, ends that are dropped.

use super::*;

#[test]
fn a_signal_of_a_rank_that_was_lost_before_ends_at_once() {
    let mut job = Job::new(3, None);
    let theirs = job.xtq(0).signal_from(1, &[Rank(2)]);
    let own = job.xtq(0).signal(1);
    theirs.count_down();
    drop(job.ends.pop());
    let late = Put::function(Rank(2), 0, 0, [0, 0]).signal(&own);
    job.xtq(0).put(late).unwrap();
    let lost = job.end_of(&own);
    assert!(matches!(lost, Err(XtqError::Lost { rank: Rank(2), .. })), "{lost:?}");
    // What it counted before the loss stays counted; then it begins anew.
    assert_eq!(theirs.poll(), Some(Ok(())));
    theirs.reset(1);
    let late = job.xtq(0).signal_from(1, &[Rank(1), Rank(2)]);
    let all = job.xtq(0).signal_from(1, &[]);
    for signal in [theirs, late, all] {
        assert_eq!(signal.poll().as_ref(), Some(&lost));
    }
    let others = job.xtq(0).signal_from(1, &[Rank(1)]);
    own.reset(1);
    assert_eq!((others.poll(), own.poll()), (None, None));
}

#[test]
fn a_put_misses_no_end_of_a_signal_that_begins_anew() {
    let mut job = Job::new(2, None);
    job.xtq(1).register_function(0, Function::new(0, |_| Ok(()))).unwrap();
    job.xtq(1).register_queue(0, QueueOptions::default()).unwrap();
    let put = || Put::function(Rank(1), 0, 0, [0, 0]);
    let signal = job.xtq(0).signal(1);
    let first = job.xtq(0).put(put().after(&signal)).unwrap();
    signal.count_down();
    signal.reset(1);
    let second = job.xtq(0).put(put().after(&signal)).unwrap();
    assert_eq!((job.outcome(&first), second.outcome()), (Ok(()), None));
    signal.count_down();
    assert_eq!(job.outcome(&second), Ok(()));
    // The signal of another end would ring there only.
    let foreign = job.xtq(1).signal(1);
    for put in [put().after(&foreign), put().signal(&foreign)] {
        assert_eq!(job.xtq(0).put(put).unwrap_err(), XtqError::ForeignSignal);
    }
}

#[test]
fn an_end_whose_layer_below_is_dropped_keeps_nothing_and_nobody_waiting() {
    let mut job = Job::new(2, None);
    let kept = Arc::new(());
    let (xtq, held) = (job.xtq(0).clone(), Arc::clone(&kept));
    let captures = Function::new(0, move |_| {
        let _ = (&xtq, &held);
        Ok(())
    });
    job.xtq(0).register_function(0, captures).unwrap();
    let put = job.xtq(0).put(Put::function(Rank(1), 0, 0, [0, 0])).unwrap();
    let signal = job.xtq(0).signal_from(1, &[]);
    let End { bml, xtq } = job.ends.remove(0);
    drop(bml);
    let closed = Some(Err(XtqError::Closed));
    assert_eq!((put.outcome(), signal.poll()), (closed.clone(), closed.clone()));
    assert_eq!(xtq.signal_from(1, &[Rank(1)]).poll(), closed);
    let late = Function::new(0, |_| Ok(()));
    assert_eq!(xtq.register_function(0, late), Err(XtqError::Closed));
    let inner = Arc::downgrade(&xtq.inner);
    drop(xtq);
    assert_eq!((inner.strong_count(), Arc::strong_count(&kept)), (0, 1));
}

#[test]
fn a_task_that_puts_while_its_process_leaves_learns_it() {
    let mut job = Job::new(2, None);
    let on = Function::new(0, |task| {
        let put = task.put(Put::function(Rank(0), 0, 0, [0, 0]));
        if put.err() == Some(XtqError::Closed) { Ok(()) } else { Err("it was put".into()) }
    });
    job.xtq(1).register_function(0, on).unwrap();
    job.xtq(1).register_queue(0, QueueOptions::default()).unwrap();
    job.xtq(1).close();
    let put = job.xtq(0).put(Put::function(Rank(1), 0, 0, [0, 0]).acknowledged()).unwrap();
    assert_eq!(job.outcome(&put), Ok(()));
    job.settle();
}

#[test]
fn a_wakeup_that_panics_harms_nobody() {
    let wakeup = Arc::new(|| panic!("a wake-up that panics"));
    let config = Config { threads: 1, wakeup, ..Config::default() };
    let mut job = Job::configured(2, None, None, &config);
    let chain = Function::new(0, |task| {
        if task.arguments()[2] > 0 {
            let left = task.arguments()[2] - 1;
            task.put(Put::function(Rank(0), 0, 0, [left, 0]))?;
        }
        Ok(())
    });
    job.xtq(0).register_function(0, chain).unwrap();
    job.xtq(0).register_queue(0, QueueOptions::default()).unwrap();
    let done = job.xtq(1).signal(1);
    job.xtq(1).put(Put::function(Rank(0), 0, 0, [3, 0]).signal(&done)).unwrap();
    assert_eq!(job.end_of(&done), Ok(()));
    job.settle();
}
