//! Workers behind the API of all back ends: their lives, losses, rings, and what they are told. That their tasks keep the
//! contract is in `suite.rs`.
#![allow(unsafe_code, reason = "registers kernels, whose memory nobody touches")]

mod code;
mod grants;

use super::launched::run;
use super::scene::{Scene, TaskRunner, WAYS};
use super::*;
use crate::device::mock_worker::MockWorker;
use crate::device::{DeviceFunction, Life, TargetError};
use crate::host::heap::heap;
use crate::launcher::Kernel;
use crate::packet::Launch;
use crate::wire::{Head, Ring};
use gapless_bml::{AmTag, PeerState, Token};
use gapless_mem::{DeviceError, Worker as _};
use std::sync::Mutex;

#[test]
fn while_the_worker_stays_tasks_run_though_their_target_makes_no_progress() {
    [TaskRunner::Rings, TaskRunner::Far].into_iter().for_each(target_stands_still);
}

fn target_stands_still(way: TaskRunner) {
    let mut scene = Scene::new(way, 2, None);
    scene.post(64);
    scene.warm();
    // Its thread may not have begun yet.
    scene.job.until(|job| job.xtq(1).has_resident_worker().then_some(()));
    // The target stands still from here on.
    let puts: Vec<_> =
        (0..600).map(|number| scene.put(scene.task(number, b"alone").acknowledged())).collect();
    let start = Instant::now();
    while puts.iter().any(|put| put.outcome().is_none()) {
        scene.job.step_one(0);
        assert!(start.elapsed() < PATIENCE, "somebody waits for the target");
        std::thread::yield_now();
    }
    assert!(puts.iter().all(|put| put.outcome() == Some(Ok(()))));
    assert_eq!(scene.ran().len(), 600);
    // Told to leave, it comes back when it may; what was put meanwhile waits.
    scene.there().keep_worker(false).unwrap();
    assert!(!scene.there().has_resident_worker());
    let put = scene.put(scene.task(1, b"later").acknowledged());
    (0..50).for_each(|_| _ = scene.job.step());
    assert_eq!((put.outcome(), scene.ran()), (None, vec![]));
    scene.there().keep_worker(true).unwrap();
    assert_eq!(scene.job.outcome(&put), Ok(()));
}

/// The first ring takes memory that the worker is to reach; with it comes that for another one.
#[test]
fn rings_of_others_do_not_send_the_worker_away() {
    let mut scene = Scene::new(TaskRunner::Rings, 3, None);
    scene.post(64);
    scene.warm();
    scene.job.until(|job| job.xtq(2).has_resident_worker().then_some(()));
    let starts = |scene: &Scene| scene.there().inner.served().as_ref().unwrap().target.starts();
    let before = starts(&scene);
    let put = scene.job.xtq(1).put(scene.task(1, b"ring").acknowledged()).unwrap();
    assert_eq!(scene.job.outcome(&put), Ok(()));
    scene.job.until(|job| job.xtq(1).has_ring(Rank(2)).then_some(()));
    let put = scene.job.xtq(1).put(scene.task(1, b"by it").acknowledged()).unwrap();
    assert_eq!(scene.job.outcome(&put), Ok(()));
    assert_eq!(starts(&scene), before);
}

/// A rank that gets no ring costs the worker no memory, and does not send it away.
#[test]
fn ranks_that_no_ring_is_left_for_put_by_messages() {
    let mut scene = Scene::new(TaskRunner::Rings, 3, None);
    scene.post(64);
    scene.warm();
    {
        let mut held = scene.there().inner.served();
        let target = &mut held.as_mut().unwrap().target;
        while target.rings_left() > 0 {
            let memory = heap(crate::device::RingShape::default().bytes()).unwrap();
            // SAFETY: the memory is new, and nobody puts into it.
            unsafe { target.add_ring(memory, crate::device::RingShape::default()) }.unwrap();
        }
    }
    let mock = scene.mock.clone().unwrap();
    let put = scene.put(scene.task(1, b"by a ring").acknowledged());
    assert_eq!(scene.job.outcome(&put), Ok(()));
    let starts = |scene: &Scene| scene.there().inner.served().as_ref().unwrap().target.starts();
    let before = (mock.reached(), starts(&scene));
    for number in 0..20 {
        let put = scene.job.xtq(1).put(scene.task(number, b"by messages").acknowledged()).unwrap();
        assert_eq!(scene.job.outcome(&put), Ok(()));
    }
    assert!(scene.job.xtq(0).has_ring(Rank(2)) && !scene.job.xtq(1).has_ring(Rank(2)));
    assert_eq!((mock.reached(), starts(&scene)), before);
}

/// Giving back what another worker of the process has may wait for all that runs on the accelerator.
#[test]
fn a_worker_is_told_to_leave_before_what_is_left_of_its_end_is_dropped() {
    let mut scene = Scene::new(TaskRunner::Rings, 2, None);
    scene.post(64);
    let put = scene.put(scene.task(1, b"stays").acknowledged());
    assert_eq!(scene.job.outcome(&put), Ok(()));
    let (mock, start) = (scene.mock.clone().unwrap(), Instant::now());
    assert_eq!(mock.is_over(), Ok(false));
    let left = scene.there().abandon();
    while mock.is_over() == Ok(false) {
        assert!(start.elapsed() < PATIENCE / 2, "it stays");
        std::thread::yield_now();
    }
    drop(left);
}

#[test]
fn sequences_do_not_hold_up_the_ring_of_their_initiator() {
    let mut scene = Scene::new(TaskRunner::Rings, 2, None);
    let sequence = |scene: &Scene, number| {
        let put = scene.task(number, &[]).retry(Retry::InOrder);
        scene.job.xtq(0).put(put.acknowledged()).unwrap()
    };
    let mut under_way = std::collections::VecDeque::new();
    let first = scene.put(scene.task(0, &[]).acknowledged());
    let start = Instant::now();
    // There is always a task of the sequence in the target's queue.
    let mut number = 0;
    while !scene.job.xtq(0).inner.with(|state| state.initiator.has_ring(Rank(1))) {
        number += 1;
        under_way.push_back(sequence(&scene, number));
        if under_way.len() > 40 {
            let oldest = under_way.pop_front().unwrap();
            assert_eq!(scene.job.outcome(&oldest), Ok(()));
        }
        scene.job.step();
        assert!(start.elapsed() < PATIENCE, "no ring after {number} puts");
    }
    assert_eq!(scene.job.outcome(&first), Ok(()));
    for put in under_way {
        assert_eq!(scene.job.outcome(&put), Ok(()));
    }
}

#[test]
fn losses_end_puts_and_what_was_put_runs() {
    for way in WAYS {
        let mut scene = Scene::new(way, 3, None);
        scene.post(64);
        scene.warm();
        let other = scene.job.xtq(1).put(scene.task(5, b"last").acknowledged()).unwrap();
        assert_eq!(scene.job.outcome(&other), Ok(()));
        // An initiator goes; the other one goes on.
        drop(scene.job.ends.remove(1));
        scene.target = 1;
        let put = scene.put(to(Rank(2), scene.task(6, b"on")).acknowledged());
        assert_eq!(scene.job.outcome(&put), Ok(()));
        assert_eq!(scene.ran().len(), 2);
        // The target goes.
        let put = scene.put(to(Rank(2), scene.task(7, b"fail")).acknowledged());
        drop(scene.job.ends.remove(1));
        let outcome = scene.job.outcome(&put);
        assert!(matches!(outcome, Err(XtqError::Lost { rank: Rank(2), .. })), "{outcome:?}");
    }
}

#[test]
fn a_worker_that_dies_ends_what_it_had_and_everybody_learns_it() {
    // In the last case nothing at the target looks at its worker, unless an initiator asks.
    for (way, is_watched) in
        [(TaskRunner::Messages, true), (TaskRunner::Rings, true), (TaskRunner::Rings, false)]
    {
        let mut scene = Scene::new(way, 3, None);
        scene.post(64);
        let there = scene.there().signal(100);
        if is_watched {
            scene.register(7, scene.kernel().signal(&there)).unwrap();
        }
        scene.warm();
        scene.there().keep_worker(true).unwrap();
        scene.mock.as_ref().unwrap().die();
        // One of these finds it dead, and all that come later.
        let start = Instant::now();
        loop {
            let put = scene.put(scene.task(1, b"lost").acknowledged());
            if let Err(XtqError::Failed { target: Rank(2), reason }) = scene.job.outcome(&put) {
                assert!(reason.contains("worker is gone"), "{reason}");
                break;
            }
            assert!(start.elapsed() < PATIENCE);
        }
        if is_watched {
            assert_eq!(scene.job.end_of(&there), Err(XtqError::Target(TargetError::Died)));
        }
        let put = scene.put(scene.task(2, &[]).acknowledged());
        assert!(matches!(scene.job.outcome(&put), Err(XtqError::Failed { .. })));
        assert_eq!(scene.register(7, scene.kernel()), Err(XtqError::Worker { has: false }));
        // Who never had a ring gets none, and nobody waits for that.
        let late = scene.job.xtq(1).put(scene.task(3, &[]).acknowledged()).unwrap();
        assert!(matches!(scene.job.outcome(&late), Err(XtqError::Failed { .. })));
        scene.job.settle();
        scene.job.until(|job| job.ends.iter().all(|end| end.xtq.is_quiet()).then_some(()));
        // Another worker in its place.
        let log = scene.log.clone();
        let mock = MockWorker::new(move |task| run(&log, [0, 0, task.arguments[2]], &task.payload));
        scene.there().attach_worker(mock, Life::default()).unwrap();
        scene.register(7, scene.kernel()).unwrap();
        for rank in [0, 1] {
            let put = scene.job.xtq(rank).put(scene.task(4, &[]).acknowledged()).unwrap();
            assert_eq!(scene.job.outcome(&put), Ok(()));
        }
    }
}

/// An operation that fails, of a peer that lives: what a worker may have found ends, what it cannot have goes by messages,
/// and what the target says of the ring later is no nonsense.
#[test]
fn a_ring_that_is_not_reached_any_more_is_left() {
    for is_live in [true, false] {
        let mut scene = Scene::new(TaskRunner::Far, 2, None);
        scene.post(64);
        if is_live {
            scene.warm();
            scene.job.until(|job| job.xtq(1).has_resident_worker().then_some(()));
        }
        let first = scene.put(scene.task(1, b"some").acknowledged());
        let fails = |state: &mut super::super::XtqState| {
            state.initiator.cut_off(Rank(1), u64::from(is_live))
        };
        let start = Instant::now();
        while !scene.job.xtq(0).inner.with(fails) {
            if !is_live {
                scene.job.step_one(1);
            }
            scene.job.step_one(0);
            assert!(start.elapsed() < PATIENCE, "nothing was carried");
        }
        let later: Vec<_> =
            (2..9).map(|number| scene.put(scene.task(number, b"on").acknowledged())).collect();
        if is_live {
            // Perhaps the peer is lost, which would explain it: that is waited for, by the clock of the test.
            (0..100).for_each(|_| _ = scene.job.step());
            assert_eq!(first.outcome(), None, "it is not known why");
            scene.job.now_ns += 2_000_000_000;
            let outcome = scene.job.outcome(&first);
            let Err(XtqError::Failed { target: Rank(1), reason }) = outcome else {
                panic!("{outcome:?}")
            };
            assert!(reason.contains("not reached any more: a test says so"), "{reason}");
        } else {
            assert_eq!(scene.job.outcome(&first), Ok(()));
        }
        for put in later {
            assert_eq!(scene.job.outcome(&put), Ok(()));
        }
        scene.job.settle();
        assert!(!scene.job.xtq(0).has_ring(Rank(1)));
        assert!(!matches!(scene.job.ends[1].bml.state(Rank(0)), PeerState::Lost(_)));
    }
}

#[test]
fn kernels_of_a_worker_need_one_and_fit_into_its_rings() {
    let job = Job::new(1, None);
    // SAFETY: nothing runs it.
    let register = |kernel| unsafe { job.xtq(0).register_kernel(0, kernel) };
    let kernel = |payload| Kernel::of_worker(DeviceFunction::Copy, payload);
    assert_eq!(register(kernel(8)), Err(XtqError::Worker { has: false }));
    job.xtq(0).attach_worker(MockWorker::new(|_| Ok(())), Life::default()).unwrap();
    let body = Err(XtqError::Target(TargetError::Body { payload: 1 << 20 }));
    assert_eq!((register(kernel(1 << 20)), register(kernel((1 << 20) - 32))), (body, Ok(())));
    // A process may put at itself; that takes messages.
    drop(job.xtq(0).abandon());
    assert_eq!(register(kernel(8)), Err(XtqError::Worker { has: false }));
    assert_eq!(
        job.xtq(0).attach_worker(MockWorker::new(|_| Ok(())), Life::default()),
        Err(XtqError::Closed)
    );
}

#[test]
fn whoever_speaks_of_rings_out_of_turn_is_given_up() {
    let all = [
        Ring::Offer,
        Ring::Kernels,
        Ring::Ready,
        Ring::Declined,
        Ring::Go,
        Ring::Wanted,
        Ring::Over,
        Ring::Reach,
    ];
    for what in all {
        for key in [&[][..], &[7; 80], &[7; 81]] {
            let mut job = Job::with(2, None, Some(0));
            let bytes = [&Head::Ring { what, kernels: 0 }.write(0)[..], key].concat();
            say(&mut job, &bytes);
            (0..8).for_each(|_| _ = job.step());
            let lost = matches!(job.ends[1].bml.state(Rank(0)), PeerState::Lost(_));
            // A key that maps or reaches nothing is declined.
            let offers = matches!(what, Ring::Offer | Ring::Reach);
            assert_eq!(lost, !offers || key.len() != 80, "{what:?}, {}", key.len());
        }
    }
}

/// Rank 0, which has no part in tasks, says this to rank 1.
fn say(job: &mut Job, bytes: &[u8]) {
    let bml = &mut job.ends[0].bml;
    let mut slot = bml.reserve(Rank(1), bytes.len()).unwrap();
    slot.write(0, bytes).unwrap();
    bml.send(slot, AmTag(32), Token::NONE);
}
