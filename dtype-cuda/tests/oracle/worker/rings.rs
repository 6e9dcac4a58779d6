//! Rings and buffers that come while the worker stays; puts that go with its launch.

use super::*;
use gapless_xtq::device::RingPlaces;

fn number(index: u8) -> Put<'static> {
    Put { index, queue: 1, launch: Launch::linear(1, 1, 0), words: &[], payload: &[] }
}

/// Each ring works from when it is there, and so do those before it; the worker has one life.
#[test]
fn rings_that_are_added_do_not_stop_the_worker() {
    let Some(device) = device("worker, rings") else { return };
    let mut bench = Bench::new(&device, Life { idle: None, longest: PATIENCE }, 1);
    let counted = bench.register(0, DeviceFunction::Number, 64, 0);
    // All but every fifth: that one's slots lie in the worker's own memory.
    let memory: Vec<Lease> = (0..20).map(|_| pinned(&device, SHAPE.bytes())).collect();
    let near = memory.iter().map(|_| device.allocate(SHAPE.bytes()).unwrap());
    let near: Vec<Region> = near.collect();
    let zeros = vec![0u8; usize::try_from(SHAPE.bytes()).unwrap()];
    for region in &near {
        // SAFETY: both live until the wait ends.
        unsafe { device.copy(*region, Region::of(&zeros), &[]) }.unwrap().wait().unwrap();
    }
    bench.target.start().unwrap();
    assert_eq!(bench.run(&number(0)), PutOutcome::Ended);
    let mut tasks = 1;
    for (at, ring) in memory.iter().enumerate() {
        if at % 5 == 4 {
            let head = device.device_address(ring.region()).unwrap();
            let places = RingPlaces { head, ..RingPlaces::at(near[at].start(), SHAPE) };
            // SAFETY: it is never freed.
            let kept = unsafe { Lease::kept_by_caller(near[at]) };
            // SAFETY: the memory is new, and the ring's. Nobody puts into it: it is looked at.
            unsafe { bench.target.add_ring_at(kept, Some(ring.clone()), places) }.unwrap();
        } else {
            // SAFETY: the memory is new, and the ring's.
            unsafe { bench.target.add_ring(ring.clone(), SHAPE) }.unwrap();
            // SAFETY: likewise.
            bench.lanes.push(unsafe { Lane::new(ring.clone(), SHAPE) }.unwrap());
        }
        // Several at once in each, so that looks get wide and narrow again.
        for lane in 0..bench.lanes.len() {
            for _ in 0..5 {
                assert!(bench.try_put(lane, &number(0)));
                tasks += 1;
            }
        }
        for lane in 0..bench.lanes.len() {
            for _ in 0..5 {
                assert_eq!(bench.outcome(lane), PutOutcome::Ended);
            }
        }
    }
    bench.comes_to(WorkerTarget::tasks, tasks);
    assert_eq!(counted.all()[0].load(Ordering::Acquire) & 0xFFFF_FFFF, tasks);
    assert_eq!((bench.target.starts(), bench.target.why_gone()), (1, None));
    // The next life goes on in all of them.
    bench.target.leave().unwrap();
    for lane in 0..bench.lanes.len() {
        assert!(bench.try_put(lane, &number(0)));
        assert_eq!(bench.outcome(lane), PutOutcome::Ended);
    }
}

/// Rings that come while the worker leaves whenever it has nothing to do.
#[test]
fn rings_that_meet_a_worker_that_leaves_are_served() {
    let Some(device) = device("worker, rings and lives") else { return };
    let mut rng = rng("worker, rings and lives");
    for _ in 0..cases(20) {
        let life = Life { idle: Some(Duration::from_micros(5)), longest: PATIENCE };
        let mut bench = Bench::new(&device, life, 1);
        bench.register(0, DeviceFunction::Number, 64, 0);
        let memory: Vec<Lease> = (0..15).map(|_| pinned(&device, SHAPE.bytes())).collect();
        for ring in memory {
            assert!(bench.try_put(0, &number(0)));
            let pause = Duration::from_nanos(rng.below(40_000));
            let start = Instant::now();
            while start.elapsed() < pause {
                std::hint::spin_loop();
            }
            // SAFETY: the memory is new, and the ring's.
            unsafe { bench.target.add_ring(ring.clone(), SHAPE) }.unwrap();
            // SAFETY: likewise.
            bench.lanes.push(unsafe { Lane::new(ring, SHAPE) }.unwrap());
            let last = bench.lanes.len() - 1;
            assert!(bench.try_put(last, &number(0)));
            assert_eq!(bench.outcome(last), PutOutcome::Ended);
            assert_eq!(bench.outcome(0), PutOutcome::Ended);
        }
    }
}

/// Page-locked memory that is made and named while the worker runs.
#[test]
fn buffers_that_are_page_locked_do_not_stop_the_worker() {
    let Some(device) = device("worker, buffers") else { return };
    let mut bench = Bench::new(&device, Life { idle: None, longest: PATIENCE }, 1);
    bench.register(0, DeviceFunction::Number, 64, 0);
    bench.target.start().unwrap();
    assert_eq!(bench.run(&number(0)), PutOutcome::Ended);
    for turn in 1..50u64 {
        let counted = bench.register(0, DeviceFunction::Number, 64 * turn, 0);
        assert_eq!(bench.run(&number(0)), PutOutcome::Ended);
        assert_eq!(counted.all()[0].load(Ordering::Acquire) & 0xFFFF_FFFF, 1, "turn {turn}");
    }
    assert_eq!((bench.target.starts(), bench.target.why_gone()), (1, None));
}

/// A put that finds no worker goes with the launch: short and long ones, at all places of a ring, alone and with others
/// behind it.
#[test]
fn the_first_put_of_a_life_is_whole() {
    let Some(device) = device("worker, first puts") else { return };
    let mut rng = rng("worker, first puts");
    let life = Life { idle: Some(Duration::from_micros(5)), longest: PATIENCE };
    for rings in [1, 2, 6] {
        let mut bench = Bench::new(&device, life, rings);
        let numbers = bench.register(0, DeviceFunction::Accumulate, 4096, 4096);
        let room = pinned(&device, 4096);
        bench.post(room);
        let sum = Accumulate(Combine::Sum, Element::U64).word();
        let (words, mut expected) = ([0, sum], vec![0u64; 512]);
        for _ in 0..cases(600) {
            let start = Instant::now();
            while bench.target.is_running() {
                assert!(start.elapsed() < PATIENCE, "it does not leave");
            }
            let lane = usize::try_from(rng.below(rings as u64)).unwrap();
            let puts = if rng.below(4) == 0 { 3 } else { 1 };
            for _ in 0..puts {
                let len = usize::try_from(rng.below(2) * 400 + rng.below(17) + 1).unwrap();
                let values: Vec<u64> = (0..len).map(|_| rng.below(1 << 40)).collect();
                expected.iter_mut().zip(&values).for_each(|(sum, more)| *sum += more);
                let payload: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
                let launch = Launch::linear(1, 16, 0);
                let put = Put { index: 0, queue: 1, launch, words: &words, payload: &payload };
                assert!(bench.try_put(lane, &put));
            }
            for _ in 0..puts {
                assert_eq!(bench.outcome(lane), PutOutcome::Ended);
            }
        }
        let found = numbers.all().iter().map(|word| word.load(Ordering::Acquire));
        assert!(found.eq(expected), "{rings} rings");
        assert!(bench.target.starts() > 1);
    }
}
