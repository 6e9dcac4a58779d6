//! How many puts an initiator keeps for a target that does not take them: what is more is refused, and comes back.

use super::scene::{Scene, WAYS};
use super::*;
use crate::Tried;

const PUTS: usize = 300;
const BYTES: u64 = 4000;

fn small() -> Config {
    Config { puts_max: PUTS, put_bytes_max: BYTES, ..Config::default() }
}

fn full(puts: usize, bytes: u64) -> XtqError {
    XtqError::Full { target: Rank(1), puts, bytes }
}

#[test]
fn puts_beyond_the_room_are_refused_until_earlier_ones_have_ended() {
    for seed in [None, Some(3)] {
        println!("seed {seed:?}");
        let mut job = Job::configured(2, seed, None, &small());
        job.xtq(1).register_function(0, Function::new(1 << 20, |_| Ok(()))).unwrap();
        job.xtq(1).register_queue(0, QueueOptions { capacity: 512, width: 1 }).unwrap();
        (0..2).for_each(|_| job.xtq(1).post(vec![0; 1 << 14]));
        let put = |bytes: usize| {
            let put = Put::function(Rank(1), 0, 0, [0, 0]).payload(vec![1; bytes]);
            put.retry(Retry::InAnyOrder).acknowledged()
        };
        // By number: none of these has left yet, and one waits for a signal that never ends.
        let never = job.xtq(0).signal(1);
        let held = job.xtq(0).put(put(0).after(&never)).unwrap();
        let mut handles: Vec<_> = (1..PUTS).map(|_| job.xtq(0).put(put(0)).unwrap()).collect();
        assert_eq!(job.xtq(0).put(put(0)).unwrap_err(), full(PUTS, 0));
        assert!(!job.xtq(0).has_room(&put(0)));
        // Other targets have room of their own.
        job.xtq(0).put(to(Rank(0), put(0))).unwrap();
        let Tried::Full { put: again, .. } = job.xtq(0).try_put(put(7)).unwrap() else {
            panic!("there is no room")
        };
        for handle in handles.drain(..) {
            assert_eq!(job.outcome(&handle), Ok(()));
        }
        // By bytes: a long one goes alone, and what has been accepted does not count.
        handles.push(job.xtq(0).put(put(10_000)).unwrap());
        assert_eq!(job.xtq(0).put(again).unwrap_err(), full(2, 10_000));
        handles.push(job.xtq(0).put(put(0)).unwrap());
        assert_eq!(job.outcome(&handles[0]), Ok(()));
        handles.push(job.xtq(0).put(put(3000)).unwrap());
        handles.push(job.xtq(0).put(put(1000)).unwrap());
        assert!(matches!(job.xtq(0).put(put(1)), Err(XtqError::Full { bytes: BYTES, .. })));
        for handle in handles {
            assert_eq!(job.outcome(&handle), Ok(()));
        }
        // A lost target takes all that was put at it along.
        job.xtq(0).put(put(4000)).unwrap();
        drop(job.ends.pop());
        job.until(|_| held.outcome()).unwrap_err();
        job.until(|job| job.xtq(0).has_settled().then_some(()));
        assert!(job.xtq(0).inner.with(|state| state.initiator.is_room_free()));
    }
}

/// Whatever becomes of puts, and whichever way they go, their room is given back.
#[test]
fn the_room_of_all_that_has_ended_is_free() {
    for way in WAYS {
        let mut scene = Scene::new(way, 2, None);
        scene.post(64);
        scene.warm();
        let gone = scene.put(scene.task(0, b"late").within(Duration::from_nanos(1)));
        let failed = scene.put(scene.task(1, b"fail").acknowledged());
        let refused = scene.put(scene.task(2, &[0; 65]));
        let unasked = scene.put(scene.task(3, &[0; 64]));
        for handle in [&gone, &failed, &refused, &unasked] {
            _ = scene.outcome(handle);
        }
        scene.settle();
        let is_free = |state: &mut super::super::XtqState| state.initiator.is_room_free();
        assert!(scene.job.xtq(0).inner.with(is_free), "{way:?}");
    }
}
