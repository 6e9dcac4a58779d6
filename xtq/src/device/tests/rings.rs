//! Rings that are added while a worker runs, and what a life is given of them.

use super::super::layout::{
    CONTROL_FIRST, CONTROL_FIRST_SLOT, FIRST_RINGS, SLOT_BYTES, sequence_of,
};
use super::*;

/// A worker that runs.
fn running(idle: Option<Duration>) -> (WorkerTarget, Lane, Log) {
    let (mock, log) = noting();
    let mut target = target(mock, Life { idle, longest: PATIENCE });
    let (mut lane, _) = lane(&mut target);
    target.start().unwrap();
    put(&mut lane, 0, &[]).unwrap();
    assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
    (target, lane, log)
}

#[test]
fn a_ring_of_stocked_memory_does_not_stop_the_worker() {
    let (mock, log) = noting();
    let mut target = target(Arc::clone(&mock), always());
    let (mut first, _) = lane(&mut target);
    let memory: Vec<Lease> = (0..12).map(|_| memory(SHAPE.bytes()).unwrap()).collect();
    memory.iter().for_each(|one| target.stock(one.clone()).unwrap());
    let reached = mock.reached();
    target.start().unwrap();
    let mut lanes = Vec::new();
    for (number, ring) in (0u64..).zip(&memory) {
        put(&mut first, number, &[]).unwrap();
        // SAFETY: the memory is new, and the ring's.
        let at = unsafe { target.add_ring(ring.clone(), SHAPE) }.unwrap();
        assert_eq!(u64::from(at), number + 1);
        // SAFETY: likewise.
        lanes.push(unsafe { Lane::new(ring.clone(), SHAPE) }.unwrap());
        for lane in &mut lanes {
            put(lane, number, &[]).unwrap();
            assert_eq!(outcome(lane, &mut target), PutOutcome::Ended);
        }
        assert_eq!(outcome(&mut first, &mut target), PutOutcome::Ended);
    }
    assert_eq!((target.starts(), target.why_gone()), (1, None), "it has stayed");
    assert_eq!(log.lock().unwrap().len(), 12 + 12 * 13 / 2);
    assert_eq!(mock.reached(), reached);
    // A later life goes on where this one ends, in all of them.
    target.leave().unwrap();
    for lane in &mut lanes {
        put(lane, 1, &[]).unwrap();
        assert_eq!(outcome(lane, &mut target), PutOutcome::Ended);
    }
    drop(target);
    assert_eq!(mock.reached(), 1, "the control block alone");
}

/// Whoever puts before the worker has found the ring wants one, and is served all the same.
#[test]
fn a_ring_that_is_added_while_the_worker_leaves_is_served() {
    let (mut target, mut first, log) = running(Some(Duration::from_micros(1)));
    let memory: Vec<Lease> = (0..24).map(|_| memory(SHAPE.bytes()).unwrap()).collect();
    memory.iter().for_each(|one| target.stock(one.clone()).unwrap());
    for ring in &memory {
        put(&mut first, 1, &[]).unwrap();
        // SAFETY: the memory is new, and the ring's.
        unsafe { target.add_ring(ring.clone(), SHAPE) }.unwrap();
        // SAFETY: likewise.
        let mut lane = unsafe { Lane::new(ring.clone(), SHAPE) }.unwrap();
        put(&mut lane, 2, &[]).unwrap();
        assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
        assert_eq!(outcome(&mut first, &mut target), PutOutcome::Ended);
    }
    assert_eq!(log.lock().unwrap().len(), 1 + 2 * 24);
}

#[test]
fn memory_that_nobody_has_stocked_sends_the_worker_away_for_a_moment() {
    let (mut target, mut first, _) = running(None);
    let (mut second, _) = lane(&mut target);
    assert_eq!(target.why_gone(), Some("it was asked to"));
    assert!(target.advance().unwrap());
    for lane in [&mut first, &mut second] {
        put(lane, 1, &[]).unwrap();
        assert_eq!(outcome(lane, &mut target), PutOutcome::Ended);
    }
    assert_eq!(target.starts(), 2);
}

/// Memory that the worker reaches already is named, and taken back, while it runs.
#[test]
fn buffers_in_memory_that_is_reached_do_not_stop_the_worker() {
    let (mut target, mut lane, _) = running(None);
    let shared = memory(4096).unwrap();
    target.stock(shared.clone()).unwrap();
    // What was registered first goes with a life.
    register(&mut target, 7, None).unwrap();
    target.advance().unwrap();
    let starts = target.starts();
    for turn in 0..20 {
        let copy = DeviceKernel::new(DeviceFunction::Copy, 2048).grid_max([1024, 1, 1]);
        register(&mut target, 7, Some(copy.buffer(shared.clone()))).unwrap();
        // SAFETY: the mock worker touches no buffers.
        unsafe { target.post(shared.clone()) }.unwrap();
        put(&mut lane, turn, b"payload").unwrap();
        assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
        assert_eq!(target.take_posted().unwrap().len(), 1);
    }
    assert_eq!(target.starts(), starts);
}

#[test]
fn a_start_has_the_next_packet_of_a_ring_that_waits_for_it() {
    let (mock, _) = noting();
    let mut target = target(mock, Life { idle: Some(Duration::ZERO), longest: PATIENCE });
    post(&mut target, 64);
    let mut lanes: Vec<(Lane, Lease)> = (0..6).map(|_| lane(&mut target)).collect();
    for turn in 0..60u64 {
        let at = usize::try_from(turn).unwrap() % lanes.len();
        let start = Instant::now();
        while !target.is_gone() {
            assert!(start.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        let (lane, memory) = &mut lanes[at];
        let position = put(lane, turn, b"first").unwrap();
        // Without `is_served`: after a packet that was just served it starts a worker that has nothing to do.
        let ended = loop {
            target.advance().unwrap();
            if let Some((_, ended)) = lane.next() {
                break ended;
            }
            assert!(start.elapsed() < PATIENCE, "it never came: {:?}", target.why_gone());
            std::thread::yield_now();
        };
        assert_eq!(ended, PutOutcome::Ended);
        let word = |byte: usize| target.word(byte).load(Ordering::Relaxed);
        assert_eq!(word(CONTROL_FIRST), if at < FIRST_RINGS { at as u64 + 1 } else { 0 });
        if at >= FIRST_RINGS {
            continue;
        }
        #[allow(unsafe_code, reason = "views memory as words")]
        // SAFETY: the memory is never freed, and touched as words alone.
        let words = unsafe { gapless_mem::Words::new(memory.clone()) }.unwrap();
        assert_eq!(word(CONTROL_FIRST_SLOT) & 0xFFFF, u64::from(sequence_of(position)));
        for byte in (0..SLOT_BYTES).step_by(8) {
            let there =
                words.all()[(RingShape::slot_at(position) + byte) / 8].load(Ordering::Relaxed);
            assert_eq!(word(CONTROL_FIRST_SLOT + byte), there, "turn {turn}, byte {byte}");
        }
    }
}

#[test]
fn rings_and_bodies_that_do_not_fit_are_refused() {
    let (mock, log) = noting();
    let mut target = target(Arc::clone(&mock), always());
    let whole = memory(SHAPE.bytes() + 64).unwrap();
    let places = RingPlaces::at(whole.region().start(), SHAPE);
    let odd = RingShape { arena_bytes: 4088 };
    let refused = |added: Result<u8, TargetError>| {
        assert!(matches!(added, Err(TargetError::Device(_))), "{added:?}");
    };
    let apart = RingPlaces { slots: places.slots + 8, ..places };
    let moved = whole.sub(8, SHAPE.bytes()).unwrap();
    let short = whole.sub(0, 128).unwrap();
    // SAFETY: nothing puts into it, here and below.
    refused(unsafe { target.add_ring(moved.clone(), SHAPE) });
    // SAFETY: likewise.
    refused(unsafe { target.add_ring(whole.clone(), odd) });
    // SAFETY: likewise.
    refused(unsafe { target.add_out(moved.clone(), SHAPE) });
    // SAFETY: likewise.
    refused(unsafe { target.add_ring_at(whole.clone(), None, apart) });
    // SAFETY: likewise.
    refused(unsafe { target.add_ring_at(whole.clone(), Some(short), places) });
    let (mut lane, _) = lane(&mut target);
    // Memory that is stocked stays so, also while the worker runs.
    let stocked = [moved, whole.clone()];
    stocked.iter().for_each(|one| target.stock(one.clone()).unwrap());
    let reached = mock.reached();
    target.start().unwrap();
    for (one, shape) in stocked.iter().zip([SHAPE, odd]) {
        // SAFETY: likewise.
        refused(unsafe { target.add_ring(one.clone(), shape) });
    }
    assert_eq!((mock.reached(), target.starts(), target.why_gone()), (reached, 1, None));
    // SAFETY: likewise.
    unsafe { target.add_ring(whole, SHAPE) }.unwrap();
    assert_eq!((mock.reached(), target.starts(), target.why_gone()), (reached, 1, None));
    let packet = Packet::new(&command(8)).unwrap();
    for (arguments, payload) in [(24, 7), (24, 9), (16, 8), (16, 16), (0, 0), (24, 4096)] {
        let put = lane.put(&packet, [&vec![0; arguments], &vec![0; payload]]);
        assert_eq!(put, Err(RingError::Lengths { arguments, payload }));
    }
    // It is not wedged.
    put(&mut lane, 1, &[]).unwrap();
    assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
    assert_eq!(log.lock().unwrap().len(), 1);
}
