//! The contract of kernels, one suite for all back ends: launched by this end's threads (*host*), by a worker (*device*),
//! which a thread plays (by messages, by rings, by rings while the worker never stays, and by rings on another host) or
//! which is on a GPU; `xtq-sim` has this file for the simulated machine (*sim*). That all rewrite alike is in `sample.rs`,
//! and tested by each.

use super::launched::{ITEMS_MAX, PAYLOAD_MAX};
use super::scene::{SIMULATED, Scene, WAYS, all};
use super::*;

#[test]
fn tasks_run_in_order_whatever_way_they_come_and_signals_count_them() {
    let seeded = WAYS.map(|way| (way, Some(9)));
    for (way, seed) in all().into_iter().map(|way| (way, None)).chain(seeded) {
        let mut scene = Scene::new(way, 2, seed);
        // Nothing is to be refused: a task that waits to be launched has its buffer already.
        (0..64).for_each(|_| scene.post(PAYLOAD_MAX));
        let there = scene.signal_there(60);
        scene.register(7, scene.kernel().signal(&there)).unwrap();
        // In a slot, at its limit, in the arena, none, in pieces; the first of them before there is a ring.
        let lengths = [3, 144, 145, 1000, 0, 3000];
        let (here, mut expected, mut handles) = (scene.signal_of(0, 30), Vec::new(), Vec::new());
        for number in 0..60u64 {
            let len = lengths[usize::try_from(number % 6).unwrap()];
            let payload: Vec<u8> = (0..len).map(|at| (at * 7 + number).to_le_bytes()[0]).collect();
            let put = scene.task(number, &payload);
            let put = if number.is_multiple_of(2) { put.signal(&here) } else { put };
            handles.push(scene.put(put));
            expected.push((number, payload));
            scene.step();
        }
        assert_eq!((scene.end_of(&here), scene.end_of(&there)), (Ok(()), Ok(())));
        for handle in handles {
            assert_eq!((scene.outcome(&handle), handle.accepted()), (Ok(()), Some(Ok(()))));
        }
        let ran = scene.ran();
        // Pieces come later than what is behind them, where that is whole.
        let numbers = |tasks: &[(u64, Vec<u8>)]| -> Vec<u64> {
            tasks.iter().filter(|(_, payload)| payload.len() < 900).map(|task| task.0).collect()
        };
        assert_eq!(numbers(&ran), numbers(&expected));
        let mut sorted = ran;
        sorted.sort();
        assert_eq!(sorted, expected);
        scene.settle();
        // A signal that begins anew counts on.
        there.reset(1);
        assert_eq!(there.poll(), None);
        scene.put(scene.task(0, b"more"));
        assert_eq!(scene.end_of(&there), Ok(()));
        scene.settle();
        assert_eq!(scene.take_posted(), 64);
    }
}

#[test]
fn what_is_not_registered_or_allowed_is_refused_and_both_ends_learn_it() {
    for way in all() {
        let mut scene = Scene::new(way, 2, None);
        scene.warm();
        scene.watch_refusals();
        let refused = |scene: &mut Scene, put: Put, expected: Refusal| {
            let (index, queue) = (put.order.command.index, put.order.command.queue);
            let handle = scene.put(put);
            let outcome = scene.outcome(&handle);
            let refusal = XtqError::Refused { target: Rank(1), refusal: expected };
            assert_eq!((outcome, handle.accepted()), (Err(refusal.clone()), Some(Err(refusal))));
            let told = RefusedTask { initiator: Rank(0), index, queue, refusal: expected };
            assert_eq!(scene.take_refusals(), [told]);
        };
        let sized = |scene: &Scene, payload: usize| scene.task(0, &vec![0; payload]);
        let put = sized(&scene, 100);
        refused(&mut scene, put, Refusal::NoReceiveBuffer);
        scene.post(64);
        scene.post(8);
        let put = sized(&scene, 100);
        refused(&mut scene, put, Refusal::ReceiveBufferTooSmall { largest: 64 });
        let put = sized(&scene, 4097);
        refused(&mut scene, put, Refusal::PayloadTooLong { max: PAYLOAD_MAX });
        let with = |launch, bytes| Put::kernel(Rank(1), 7, 2, launch, vec![0; bytes]);
        refused(&mut scene, with(Launch::linear(33, 32, 0), 24), Refusal::Grid);
        let group = Refusal::Group { items_max: ITEMS_MAX };
        refused(&mut scene, with(Launch::linear(1, 513, 0), 24), group);
        let local = Launch { local_bytes: 16, ..Launch::linear(1, 32, 0) };
        refused(&mut scene, with(local, 24), group);
        let arguments = Refusal::Arguments { registered: 24 };
        refused(&mut scene, with(Launch::linear(1, 32, 0), 32), arguments);
        let other = |index, queue| {
            Put::kernel(Rank(1), index, queue, Launch::linear(1, 32, 0), vec![0; 24])
        };
        refused(&mut scene, other(8, 2), Refusal::NotRegistered);
        refused(&mut scene, other(7, 3), Refusal::NoQueue);
        scene.unregister_queue(2).unwrap();
        refused(&mut scene, other(7, 2), Refusal::NoQueue);
        scene.unregister_kernel(7).unwrap();
        refused(&mut scene, other(7, 2), Refusal::NotRegistered);
        assert_eq!((scene.ran(), scene.take_posted()), (vec![], 2));
        // Registered anew it runs; also where another way has taken its place.
        scene.register_queue(2, QueueOptions::default()).unwrap();
        let launched = scene.log.kernel(2);
        for (number, kernel) in [(1, scene.kernel()), (2, launched), (3, scene.kernel())] {
            scene.register(7, kernel).unwrap();
            let put = scene.put(scene.task(number, &[]).acknowledged());
            assert_eq!(scene.outcome(&put), Ok(()));
            assert_eq!(scene.ran(), [(number, vec![])]);
        }
    }
}

#[test]
fn a_task_that_fails_is_told_to_whoever_waits() {
    for way in all() {
        let mut scene = Scene::new(way, 2, None);
        scene.post(64);
        let there = scene.signal_there(2);
        scene.register(7, scene.kernel().signal(&there)).unwrap();
        scene.warm();
        assert_eq!(scene.until(|| (there.value() == 1).then(|| there.poll())), None);
        let failed = scene.put(scene.task(1, b"fail").acknowledged());
        let outcome = scene.outcome(&failed);
        assert!(matches!(outcome, Err(XtqError::Failed { target: Rank(1), .. })), "{outcome:?}");
        assert_eq!(failed.accepted(), Some(Ok(())));
        let end = scene.end_of(&there);
        assert!(matches!(end, Err(XtqError::Failed { target: Rank(1), .. })), "{end:?}");
        // Who does not ask for the end learns nothing of it.
        let unasked = scene.put(scene.task(2, b"fail"));
        assert_eq!(scene.outcome(&unasked), Ok(()));
    }
}

#[test]
fn what_is_refused_for_now_is_put_again_and_sequences_keep_their_order() {
    for way in all() {
        for retry in [Retry::InAnyOrder, Retry::InOrder] {
            let mut scene = Scene::new(way, 2, None);
            scene.warm();
            let tired = scene.task(99, b"none").retry(Retry::InAnyOrder).attempts(3);
            let tired = scene.put(tired);
            let none = XtqError::Refused { target: Rank(1), refusal: Refusal::NoReceiveBuffer };
            assert_eq!((scene.outcome(&tired), tired.refusals()), (Err(none), 3));
            let put =
                |scene: &Scene, number| scene.task(number, b"some").retry(retry).acknowledged();
            let handles: Vec<_> = (0..8).map(|number| scene.put(put(&scene, number))).collect();
            scene.until(|| (handles[0].refusals() > 2).then_some(()));
            assert_eq!(scene.ran(), []);
            scene.post(8);
            for handle in handles {
                assert_eq!(scene.outcome(&handle), Ok(()));
            }
            let mut numbers: Vec<u64> = scene.ran().into_iter().map(|task| task.0).collect();
            if retry == Retry::InAnyOrder {
                numbers.sort_unstable();
            }
            assert_eq!(numbers, (0..8).collect::<Vec<_>>());
            scene.settle();
        }
    }
}

#[test]
fn many_initiators_share_a_queue_and_each_of_their_tasks_runs_once() {
    let seeds = [None, Some(5), None, Some(6), Some(7)];
    for (way, seed) in all().into_iter().zip(seeds.into_iter().chain(std::iter::repeat(None))) {
        let mut scene = Scene::new(way, 9, seed);
        scene.post(64);
        let mut handles = Vec::new();
        for number in 0..40 {
            for rank in 0..8u8 {
                let put = scene.task(number, &[rank; 20]).retry(Retry::InAnyOrder);
                handles.push(scene.put_from(rank.into(), put.acknowledged()));
            }
            scene.step();
        }
        for handle in &handles {
            assert_eq!(scene.outcome(handle), Ok(()));
        }
        let ran = scene.ran();
        for rank in 0..8 {
            let mut numbers: Vec<u64> =
                ran.iter().filter(|task| task.1 == [rank; 20]).map(|task| task.0).collect();
            // What was refused for now comes later.
            numbers.sort_unstable();
            assert_eq!(numbers, (0..40).collect::<Vec<_>>(), "rank {rank}");
        }
        scene.settle();
    }
}

#[test]
fn what_tasks_have_counted_is_told_when_their_kernel_goes() {
    for way in all() {
        let mut scene = Scene::new(way, 2, None);
        scene.warm();
        let signals = [(); 3].map(|()| scene.signal_there(10));
        // Each kernel in the place of the last one, then none; the target looks at nothing in between.
        for (at, signal) in signals.iter().enumerate() {
            scene.register(7, scene.kernel().signal(signal)).unwrap();
            let puts: Vec<_> =
                (0..10).map(|number| scene.put(scene.task(number, &[]).acknowledged())).collect();
            scene.until(|| puts.iter().all(|put| put.outcome().is_some()).then_some(()));
            assert!(puts.iter().all(|put| put.outcome() == Some(Ok(()))), "{at}");
        }
        scene.unregister_kernel(7).unwrap();
        for signal in &signals {
            assert_eq!(scene.end_of(signal), Ok(()));
        }
        // One of the same signal goes on; one of another process's does not ring here.
        signals[0].reset(2);
        for number in 0..2 {
            scene.register(7, scene.kernel().signal(&signals[0])).unwrap();
            let put = scene.put(scene.task(number, &[]).acknowledged());
            assert_eq!(scene.outcome(&put), Ok(()));
        }
        assert_eq!(scene.end_of(&signals[0]), Ok(()));
        let foreign = scene.signal_of(0, 1);
        if !scene.is_launched() {
            let refused = scene.register(7, scene.kernel().signal(&foreign));
            assert_eq!(refused, Err(XtqError::ForeignSignal));
        }
    }
}

#[test]
fn a_barrier_begins_when_all_that_came_before_have_ended() {
    for way in all() {
        let mut scene = Scene::new(way, 2, None);
        scene.warm();
        scene.register_queue(2, QueueOptions { capacity: 512, width: 4 }).unwrap();
        let handles: Vec<_> = (0..40u64)
            .map(|number| {
                // On the simulated machine, many groups take long.
                let groups = if number.is_multiple_of(3) { 1024 } else { 1 };
                let put = scene.task_over(number, &[], Launch::linear(groups, 1, 24));
                let put = if number % 8 == 7 { put.barrier() } else { put };
                scene.put(put.acknowledged())
            })
            .collect();
        for handle in &handles {
            assert_eq!(scene.outcome(handle), Ok(()));
        }
        let ran: Vec<u64> = scene.ran().into_iter().map(|task| task.0).collect();
        for barrier in (7..40).step_by(8) {
            let at = ran.iter().position(|number| *number == barrier).unwrap();
            let before = ran[..at].iter().filter(|number| **number < barrier).count();
            assert_eq!(before as u64, barrier, "{way:?}: {ran:?}");
        }
        if SIMULATED {
            assert!(!ran.is_sorted(), "nothing ran beside anything: {ran:?}");
        }
        scene.settle();
    }
}

#[test]
fn a_queue_of_one_takes_tasks_of_eight_initiators_once_each_and_in_order_if_asked() {
    for (way, retry) in all()
        .into_iter()
        .flat_map(|way| [Retry::InOrder, Retry::InAnyOrder].map(|retry| (way, retry)))
    {
        let mut scene = Scene::new(way, 9, None);
        scene.register_queue(2, QueueOptions { capacity: 1, width: 1 }).unwrap();
        scene.post(PAYLOAD_MAX);
        scene.post(64);
        let mut handles = Vec::new();
        for number in 0..6u64 {
            for initiator in 0..8usize {
                let payload = vec![1; [0, 5, 3000][usize::try_from(number % 3).unwrap()]];
                let third = 100 * initiator as u64 + number;
                let put = scene.task(third, &payload).retry(retry).acknowledged();
                handles.push(scene.put_from(initiator, put));
            }
        }
        for handle in &handles {
            assert_eq!(scene.outcome(handle), Ok(()));
        }
        if SIMULATED {
            assert!(handles.iter().any(|handle| handle.refusals() > 0), "never full");
        }
        scene.settle();
        let ran: Vec<u64> = scene.ran().into_iter().map(|task| task.0).collect();
        for initiator in 0..8 {
            let own = ran.iter().filter(|third| **third / 100 == initiator);
            let mut numbers: Vec<u64> = own.map(|third| third % 100).collect();
            if retry == Retry::InAnyOrder {
                numbers.sort_unstable();
            }
            assert_eq!(numbers, (0..6).collect::<Vec<_>>(), "{way:?}, {retry:?}, {initiator}");
        }
        assert_eq!(scene.take_posted(), 2);
    }
}

#[test]
fn registering_anew_under_puts_gives_the_old_or_the_new_and_never_a_mixture() {
    for way in all() {
        let mut scene = Scene::new(way, 2, None);
        (0..8).for_each(|_| scene.post(64));
        let versions = [0, 1].map(|number| scene.version(number));
        scene.register(7, versions[0].clone()).unwrap();
        _ = scene.codes();
        scene.warm();
        let mut handles = Vec::new();
        for number in 0..100u64 {
            let put = scene.task(number, b"some").retry(Retry::InAnyOrder);
            handles.push(scene.put(put.acknowledged()));
            (0..number % 4).for_each(|_| scene.step());
            let next = usize::from(number.is_multiple_of(2));
            scene.register(7, versions[next].clone()).unwrap();
        }
        for handle in &handles {
            assert_eq!(scene.outcome(handle), Ok(()));
        }
        scene.register(7, versions[1].clone()).unwrap();
        let last = scene.put(scene.task(100, &[]).acknowledged());
        assert_eq!(scene.outcome(&last), Ok(()));
        let codes = scene.codes();
        // The first and the last are of different versions, and there are two pairs of code and buffer in all.
        let [first, last] = [codes[0], codes[codes.len() - 1]];
        assert_eq!(codes.len(), 102);
        assert!(first[0] != last[0] && first[1] != last[1] && !first.contains(&0), "{way:?}");
        assert!(codes.iter().all(|code| [first, last].contains(code)), "{way:?}: {codes:x?}");
        scene.settle();
    }
}
