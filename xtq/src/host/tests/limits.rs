//! Puts that have to end in time: what they waited for, and that nothing is lost or done twice when answers come late.
#![allow(unsafe_code, reason = "gives a worker receive buffers, which nobody touches")]

use super::scene::{Scene, TaskRunner, WAYS};
use super::*;
use crate::Waited;
use std::sync::Mutex;

const TIME: Duration = Duration::from_millis(2);

fn late(waited: Waited, may_run: bool) -> Option<Result<(), XtqError>> {
    Some(Err(XtqError::TimedOut { target: Rank(1), limit: TIME, waited, may_run }))
}

/// Rank 1 runs functions: 0 notes its argument, 1 waits for a word before it does. One task waits in the queue, at most.
struct Stage {
    job: Job,
    ran: Arc<Mutex<Vec<u64>>>,
    go: mpsc::Sender<()>,
}

impl Stage {
    fn new() -> Stage {
        let job = Job::new(2, None);
        let (go, gate) = mpsc::channel::<()>();
        let (ran, gate) = (Arc::new(Mutex::new(Vec::new())), Mutex::new(gate));
        let notes = |ran: &Arc<Mutex<Vec<u64>>>| {
            let ran = Arc::clone(ran);
            move |number| ran.lock().unwrap().push(number)
        };
        let (note, note_late) = (notes(&ran), notes(&ran));
        let at_once = Function::new(64, move |task| {
            note(task.arguments()[2]);
            Ok(())
        });
        let gated = Function::new(64, move |task| {
            gate.lock().unwrap().recv_timeout(PATIENCE).map_err(|error| error.to_string())?;
            note_late(task.arguments()[2]);
            Ok(())
        });
        job.xtq(1).register_function(0, at_once).unwrap();
        job.xtq(1).register_function(1, gated).unwrap();
        job.xtq(1).register_queue(0, QueueOptions { capacity: 1, width: 1 }).unwrap();
        Stage { job, ran, go }
    }

    fn put(&self, put: Put) -> PutHandle {
        self.job.xtq(0).put(put).unwrap()
    }

    /// How it ends, though rank 1 makes no progress.
    fn alone(&mut self, put: &PutHandle) -> Option<Result<(), XtqError>> {
        for _ in 0..1000 {
            self.job.step_one(0);
            if put.outcome().is_some() {
                break;
            }
        }
        put.outcome()
    }

    fn ran(&self) -> Vec<u64> {
        self.ran.lock().unwrap().clone()
    }
}

fn task(index: u8, number: u64) -> Put {
    Put::function(Rank(1), index, 0, [number, 0])
}

#[test]
fn a_target_that_makes_no_progress() {
    let mut stage = Stage::new();
    let done = stage.job.xtq(0).signal(1);
    assert!(!stage.job.xtq(0).is_timed());
    let put = stage.put(task(0, 1).within(TIME).signal(&done));
    assert!(stage.job.xtq(0).is_timed());
    assert_eq!(stage.alone(&put), late(Waited::Progress, true));
    assert_eq!((done.poll(), put.accepted()), (put.outcome(), put.outcome()));
    assert!(!stage.job.xtq(0).is_timed() && !stage.job.xtq(0).has_settled());
    // It runs, once, and that changes nothing.
    done.reset(1);
    stage.job.settle();
    assert_eq!((stage.ran(), done.poll()), (vec![1], None));
    assert_eq!(put.outcome(), late(Waited::Progress, true));
    // What does not fit on the way is taken back. A put that is held back has all its time.
    let never = stage.job.xtq(0).signal(1);
    let held = stage.put(task(0, 99).after(&never).within(TIME));
    let many: Vec<_> = (100..130).map(|number| stage.put(task(0, number))).collect();
    let last = stage.put(task(0, 200).within(TIME));
    assert_eq!(stage.alone(&last), late(Waited::Room, false));
    assert_eq!(held.outcome(), None);
    stage.job.until(|_| many.iter().all(|put| put.outcome().is_some()).then_some(()));
    stage.job.until(|job| {
        job.xtq(0).inner.with(|state| state.initiator.outbox.is_empty().then_some(()))
    });
    assert!(!stage.ran().contains(&200));
    // None of them counts any more: as many as ever may be on their way.
    let refused: Vec<_> = (0..1024).map(|_| stage.put(task(9, 0).within(PATIENCE))).collect();
    let listed = |job: &Job| job.xtq(0).inner.with(|state| state.initiator.outbox[&1].items.len());
    assert_eq!(listed(&stage.job), 1024);
    for put in refused {
        assert!(matches!(stage.job.outcome(&put), Err(XtqError::Refused { .. })));
    }
    assert!(!stage.job.xtq(0).is_timed());
}

#[test]
fn a_target_that_refuses_or_takes_long() {
    for retry in [Retry::InAnyOrder, Retry::InOrder] {
        let mut stage = Stage::new();
        let runs = stage.put(task(1, 1).within(TIME).acknowledged());
        stage.job.until(|_| runs.accepted()).unwrap();
        // It may have to wait until a thread has taken the first.
        let waits = stage.put(task(1, 2).retry(Retry::InAnyOrder).acknowledged());
        stage.job.until(|_| waits.accepted()).unwrap();
        let ended = stage.job.until(|_| runs.outcome());
        assert_eq!((Some(ended), runs.accepted()), (late(Waited::Task, true), Some(Ok(()))));
        let full = stage.put(task(0, 3).retry(retry).within(TIME));
        let behind = stage.put(task(0, 4).retry(retry).within(TIME));
        let on = stage.put(task(0, 5).retry(retry));
        let full = stage.job.outcome(&full);
        assert_eq!(Some(full), late(Waited::Refused(Refusal::QueueFull), false));
        let behind = stage.job.outcome(&behind).unwrap_err();
        let waited = match retry {
            Retry::InOrder => Waited::Earlier,
            _ => Waited::Refused(Refusal::QueueFull),
        };
        assert_eq!(Some(Err(behind)), late(waited, false), "{retry:?}");
        (0..2).for_each(|_| stage.go.send(()).unwrap());
        assert_eq!(stage.job.outcome(&on), Ok(()));
        stage.job.settle();
        assert_eq!(stage.ran(), [1, 2, 5]);
        assert_eq!(runs.outcome(), late(Waited::Task, true));
        let unfit = stage.put(task(0, 6).payload(vec![0]).retry(retry).within(TIME));
        let unfit = stage.job.outcome(&unfit);
        assert_eq!(Some(unfit), late(Waited::Refused(Refusal::NoReceiveBuffer), false));
        stage.job.xtq(1).post(vec![0; 8]);
        stage.job.settle();
        assert_eq!(stage.ran(), [1, 2, 5]);
    }
}

/// With the worker away and the target standing still, a put says so; it runs once when the worker comes.
#[test]
fn a_worker_that_is_away() {
    let mut scene = Scene::new(TaskRunner::Rings, 2, None);
    scene.post(64);
    scene.warm();
    scene.there().keep_worker(false).unwrap();
    // More than a ring holds.
    let puts: Vec<_> = (0..300)
        .map(|number| scene.put(scene.task(number, b"late").within(TIME).acknowledged()))
        .collect();
    for _ in 0..1000 {
        scene.job.step_one(0);
    }
    let (mut given, mut taken_back) = (Vec::new(), 0);
    for (number, put) in (0..).zip(&puts) {
        match put.outcome() {
            ended if ended == late(Waited::Worker, true) => given.push(number),
            ended if ended == late(Waited::Worker, false) => taken_back += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((given.len(), taken_back), (256, 44));
    assert_eq!(scene.ran(), []);
    scene.there().keep_worker(true).unwrap();
    let on = scene.put(scene.task(1000, b"on").acknowledged());
    assert_eq!(scene.job.outcome(&on), Ok(()));
    let ran: Vec<u64> = scene.ran().into_iter().map(|(number, _)| number).collect();
    given.push(1000);
    assert_eq!(ran, given);
    assert_eq!(puts[0].outcome(), late(Waited::Worker, true));
    scene.job.settle();
}

/// Whatever is late: what ends well has run once, what is taken back never, and what may run at most once; sequences
/// keep their order.
#[test]
fn nothing_is_lost_or_done_twice() {
    let start = std::env::var("GAPLESS_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut found = [0u32; 4];
    for (way, seed) in WAYS.into_iter().cycle().zip(start..start + 12) {
        println!("GAPLESS_SEED={seed}");
        let mut scene = Scene::new(way, 2, Some(seed));
        scene.post(2048);
        scene.warm();
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = move |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 16) % bound
        };
        let mut puts = Vec::new();
        for number in 0..150u64 {
            let len = [0, 8, 300, 2000][usize::try_from(below(4)).unwrap()];
            let retry = [Retry::Never, Retry::InAnyOrder, Retry::InOrder];
            let retry = retry[usize::try_from(below(3)).unwrap()];
            let put = scene.task(number, &vec![1; len]).retry(retry).acknowledged();
            let put = match below(4) {
                0 => put,
                _ => put.within(Duration::from_micros(20 * below(60))),
            };
            puts.push((scene.put(put), retry));
            // The target stands still now and then.
            let stands = below(3) == 0;
            for _ in 0..below(8) {
                if stands {
                    scene.job.step_one(0)
                } else {
                    scene.job.step()
                };
            }
        }
        scene.job.settle();
        let ran: Vec<u64> = scene.ran().into_iter().map(|(number, _)| number).collect();
        let sequence = |number: &&u64| puts[usize::try_from(**number).unwrap()].1 == Retry::InOrder;
        assert!(ran.iter().filter(sequence).is_sorted(), "{ran:?}");
        for (number, (put, retry)) in (0u64..).zip(&puts) {
            let times = ran.iter().filter(|one| **one == number).count();
            let (kind, right) = match put.outcome() {
                Some(Ok(())) => (0, times == 1),
                Some(Err(XtqError::TimedOut { may_run: false, .. })) => (1, times == 0),
                Some(Err(XtqError::TimedOut { .. })) => (2, times <= 1),
                Some(Err(XtqError::Refused { .. })) => (3, times == 0 && *retry == Retry::Never),
                other => panic!("{number}: {other:?}"),
            };
            found[kind] += 1;
            assert!(right, "{way:?}: {number} ran {times} times: {:?}", put.outcome());
        }
    }
    println!("{found:?} have ended well, were taken back, were late, were refused");
    assert!(found[..3].iter().all(|count| *count > 0), "{found:?}");
}
