//! Who waits for whom, and what lives how long, on a pretend vendor whose work never ends by itself.

use super::bench::{Bench, UPLOADS, launches};
use crate::BatchItem;
use crate::engine::*;
use crate::lanes::Holds;
use crate::tests::mock::{Op, number};
use gapless_dtype::{Datatype, Primitive};
use gapless_mem::DeviceError;
use gapless_testkit::allocations;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Whose short work does not wait for company.
fn ungathered(config: Config) -> Bench {
    Bench::new(Config { gathers: false, ..config })
}

#[test]
fn parts_of_a_first_use_come_behind_their_uploads() {
    let bench = ungathered(Config { piece_bytes: 4096, ..Config::default() });
    let before = bench.pack(&Bench::vector(), &[]).unwrap();
    bench.ops();
    let done = bench.pack(&Bench::list(), std::slice::from_ref(&before)).unwrap();
    let ops = bench.ops();
    let lane = ops.iter().find(|(lane, _)| *lane != UPLOADS).unwrap().0;
    assert_eq!(ops[0], (lane, Op::Wait(number(&before))));
    // Three pieces: copied, recorded, waited for, used.
    assert_eq!(launches(&ops), 3, "{ops:?}");
    let mut known = Vec::new();
    for (at, (on, op)) in ops.iter().enumerate() {
        match op {
            Op::Copy(..) => assert_eq!(*on, UPLOADS),
            Op::Record(upload) if *on == UPLOADS => {
                assert_eq!(ops[at + 1], (lane, Op::Wait(*upload)));
                known.push(*upload);
            }
            Op::Launch(pointers) => assert!(!known.is_empty() && pointers.len() == 3),
            _ => assert_eq!(*on, lane),
        }
    }
    assert_eq!(ops.last(), Some(&(lane, Op::Record(number(&done)))));
}

#[test]
fn what_comes_after_work_goes_on_its_lane() {
    let bench = ungathered(Config::default());
    let lane = |ops: &[(usize, Op)]| ops.last().unwrap().0;
    let mut works = Vec::new();
    for _ in 0..UPLOADS {
        let work = bench.pack(&Bench::vector(), &[]).unwrap();
        works.push((lane(&bench.ops()), work));
    }
    assert_ne!(works[0].0, works[1].0, "work that follows nothing takes turns");
    for (number, work) in works.into_iter().rev() {
        let mut last = work;
        for _ in 0..5 {
            last = bench.pack(&Bench::vector(), &[last]).unwrap();
            assert_eq!(lane(&bench.ops()), number);
        }
    }
}

#[test]
fn another_lane_waits_for_an_upload_in_flight_and_for_none_that_has_ended() {
    let bench = ungathered(Config::default());
    let list = Bench::list();
    let prepared = number(&bench.engine.prepare(&list).unwrap());
    bench.ops();
    for _ in 0..2 {
        bench.pack(&list, &[]).unwrap();
        let ops = bench.ops();
        assert_eq!(ops[0].1, Op::Wait(prepared), "{ops:?}");
        assert!(matches!(ops[1].1, Op::Launch(_)) && ops.len() == 3, "{ops:?}");
    }
    bench.mock.log().end_all();
    bench.pack(&list, &[]).unwrap();
    let ops = bench.ops();
    assert!(matches!(ops[0].1, Op::Launch(_)) && ops.len() == 2, "{ops:?}");
}

#[test]
fn measuring_preparation_alone_launches_once_and_last() {
    let config = Config { piece_bytes: 4096, pipelined: false, ..Config::default() };
    let bench = ungathered(config);
    let mock = Arc::clone(&bench.mock);
    std::thread::scope(|scope| {
        let packing = scope.spawn(|| bench.pack(&Bench::list(), &[]).map(|_| ()));
        while !packing.is_finished() {
            mock.log().end_all();
            std::thread::yield_now();
        }
        packing.join().unwrap().unwrap();
    });
    let ops = bench.ops();
    assert_eq!(launches(&ops), 1);
    assert!(matches!(ops[ops.len() - 2].1, Op::Launch(_)), "{ops:?}");
}

#[test]
fn a_plan_in_use_outlives_the_cache() {
    let bench = ungathered(Config::default());
    let list = Bench::list();
    bench.pack(&list, &[]).unwrap();
    assert_eq!((bench.engine.plans().entries, bench.blocks()), (1, 1));
    bench.engine.forget(&list);
    assert_eq!((bench.engine.plans().entries, bench.blocks()), (0, 1));
    bench.mock.log().end_all();
    bench.engine.forget(&list);
    assert_eq!(bench.blocks(), 0);
}

#[test]
fn no_more_of_a_plan_is_written_than_a_call_needs_if_nobody_else_will_use_it() {
    let config = Config { piece_bytes: 4096, plan_bytes: 0, ..Config::default() };
    let bench = ungathered(config);
    let list = Bench::list();
    let to = bench.packed.sub(0, 80).unwrap();
    // SAFETY: the pretend vendor touches nothing.
    unsafe { bench.engine.pack(&bench.side(&list), 0..80, to, &[]) }.unwrap();
    let copies = bench.ops().iter().filter(|(_, op)| matches!(op, Op::Copy(..))).count();
    assert_eq!((copies, bench.engine.plans().misses), (1, 0));
}

#[test]
fn long_ways_through_chunks_take_two_lanes_but_none_beside_a_callers_stream() {
    let bench = ungathered(Config { chunk_bytes: 4096, ..Config::default() });
    let (list, mut host) = (Bench::list(), vec![0; 1 << 16]);
    bench.pack(&list, &[]).unwrap();
    bench.mock.log().end_all();
    let wire = Region::of_mut(&mut host).sub(0, list.size()).unwrap();
    let (side, range) = (bench.side(&list), 0..list.size());
    let lanes = |ops: &[(usize, Op)]| ops.iter().map(|(on, _)| *on).collect::<BTreeSet<_>>();
    bench.ops();
    bench.mock.log().started.clear();

    let shared = &*bench.engine.shared;
    let task = shared.pack(Direction::Pack, &side, &range, wire, None).unwrap();
    let callers = bench.mock.callers();
    // SAFETY: the pretend vendor touches nothing, here and below.
    unsafe { shared.run(callers, &mut None, &task, &mut Holds::new(), None) }.unwrap();
    let ops = bench.ops();
    assert_eq!(lanes(&ops), BTreeSet::from([UPLOADS + 1]), "{ops:?}");
    assert!(launches(&ops) > 2 && bench.mock.log().started.is_empty());

    // SAFETY: as above.
    unsafe { bench.engine.pack(&side, range, wire, &[]) }.unwrap();
    assert_eq!(lanes(&bench.ops()), BTreeSet::from([0, 1]));
    assert_eq!(BTreeSet::from_iter(bench.mock.log().started.clone()), BTreeSet::from([0, 1]));
    let (_, track) = shared.lanes.take_another().unwrap();
    assert!(!track.last.is_known_over(), "neither lane passes for idle");
}

/// A list's first use, to the host in chunks over both lanes, a transfer, and a batch.
fn everything(bench: &Bench, host: &mut [u8]) -> Result<(), EngineError> {
    let (list, vector) = (Bench::list(), Bench::vector());
    bench.pack(&list, &[])?;
    let wire = Region::of_mut(host).sub(0, list.size())?;
    let side = bench.side(&list);
    // SAFETY: the pretend vendor touches nothing, here and below.
    unsafe { bench.engine.pack(&side, 0..list.size(), wire, &[]) }?;
    // SAFETY: as above.
    unsafe { bench.engine.unpack(wire, &side, 0..list.size(), &[]) }?;
    let other = bench.side(&vector);
    // SAFETY: as above.
    unsafe { bench.engine.transfer(&side, &other, 0..vector.size(), &[]) }?;
    let request = |typed: &Typed, at| {
        let packed = bench.packed.sub(at, typed.packed_bytes())?;
        Ok::<_, EngineError>(BatchItem { typed: typed.clone(), range: 0..packed.len(), packed })
    };
    let requests = [request(&side, 0)?, request(&other, 30_000)?, request(&other, 40_000)?];
    // SAFETY: as above.
    unsafe { bench.engine.batch(Direction::Pack, &requests, &[]) }?;
    Ok(())
}

#[test]
fn whatever_fails_leaves_nothing_in_flight_and_nothing_behind() {
    whatever_fails(1, false);
}

#[test]
fn nor_does_it_while_several_threads_write() {
    whatever_fails(5, false);
}

/// Rule 4 of the engine's contract.
#[test]
fn nor_does_what_panics() {
    whatever_fails(1, true);
    whatever_fails(5, true);
}

fn whatever_fails(writers: usize, panics: bool) {
    let config = Config { piece_bytes: 4096, chunk_bytes: 4096, writers, ..Config::default() };
    let mut host = vec![0; 1 << 16];
    for fails_in in 0.. {
        let bench = ungathered(config.clone());
        bench.mock.log().fails_in = Some(fails_in);
        bench.mock.log().panics = panics;
        let done = catch_unwind(AssertUnwindSafe(|| everything(&bench, &mut host)));
        let done = done.unwrap_or(Err(DeviceError::Unsupported { what: "a panic" }.into()));
        let asked = bench.mock.log().ops.len();
        bench.mock.log().fails_in = None;
        if done.is_ok() {
            assert!(asked > 40, "{asked} calls");
            return;
        }
        assert!(matches!(done, Err(EngineError::Device(DeviceError::Unsupported { .. }))));
        // What the failed call enqueued was waited for: the lanes that are busy are other calls'.
        let ops = bench.mock.log().ops.clone();
        let busy = bench.mock.log().busy();
        for lane in busy {
            let last = ops.iter().rev().find(|(on, _)| *on == lane).unwrap();
            assert!(matches!(last.1, Op::Record(_) | Op::Drain), "after {fails_in}: {ops:?}");
        }
        bench.mock.log().end_all();
        bench.engine.shared.lanes.collect();
        let chunks = 2;
        let kept = bench.engine.plans().entries;
        assert!(bench.blocks() <= kept + chunks, "after {fails_in}: {} blocks", bench.blocks());
        // And the engine goes on.
        everything(&bench, &mut host).unwrap();
    }
}

#[test]
fn an_engine_that_is_dropped_waits_for_its_work() {
    let bench = ungathered(Config::default());
    bench.pack(&Bench::list(), &[]).unwrap();
    let (mock, engine) = (Arc::clone(&bench.mock), bench.engine.clone());
    drop(bench);
    let memory = Arc::downgrade(&engine.shared.memory);
    mock.log().end_all();
    drop(engine);
    assert!(memory.upgrade().is_none(), "all blocks are back");
}

#[test]
fn a_device_that_is_lost_midway_fails_every_call_and_keeps_nobody_waiting() {
    let config = Config { piece_bytes: 4096, chunk_bytes: 4096, ..Config::default() };
    let bench = ungathered(config);
    let mut host = vec![0; 1 << 16];
    let (list, other) = (Bench::list(), Bench::list());
    let packed = bench.pack(&list, &[]).unwrap();
    let prepared = bench.engine.prepare(&list).unwrap();
    bench.mock.log().lost.store(true, Ordering::SeqCst);
    assert!(packed.wait().is_err() && prepared.wait().is_err());
    assert!(bench.pack(&list, &[]).is_err(), "by a plan whose upload failed");
    assert_eq!(bench.engine.plans().entries, 0, "which is not used again");
    assert!(bench.pack(&other, &[]).is_err(), "by a plan that cannot be made");
    assert!(bench.pack(&Bench::vector(), &[packed]).is_err(), "after what failed");
    assert!(everything(&bench, &mut host).is_err());
    bench.engine.shared.collect();
    assert_eq!(bench.blocks(), 0, "nothing is in use any more");
}

#[test]
fn work_that_does_not_end_in_time_keeps_its_memory_for_good() {
    let bench = ungathered(Config::default());
    let list = Bench::list();
    for _ in 0..UPLOADS {
        bench.pack(&list, &[]).unwrap();
    }
    bench.engine.forget(&list);
    let shared = &bench.engine.shared;
    // One deadline for all lanes: none begins to wait anew.
    shared.elsewhere.settle(Instant::now());
    shared.lanes.settle(Instant::now());
    bench.mock.log().end_all();
    shared.collect();
    assert_eq!(bench.blocks(), 1, "the plan is not given to anybody else");
}

/// A vector, a triangle, a transposed matrix, a list and a structure without order.
fn layouts() -> [(&'static str, Layout); 5] {
    let double = Datatype::from(Primitive::Double);
    let lengths: Vec<u64> = (1..=32).rev().collect();
    let places: Vec<i64> = (0..32).map(|j| j * 33).collect();
    let triangle = Datatype::indexed(&lengths, &places, &double).unwrap();
    let column = Datatype::vector(22, 1, 22, &double).unwrap();
    let column = Datatype::resized(0, 8, &column).unwrap();
    let transposed = Datatype::contiguous(22, &column).unwrap();
    let lengths: Vec<u64> = (0..200).map(|j| 1 + j * 7 % 5).collect();
    let places: Vec<i64> = (0..200).map(|j| (j * 83 % 211) * 7).collect();
    let general = Datatype::indexed(&lengths, &places, &Primitive::Int.into()).unwrap();
    [
        ("V", Bench::vector()),
        ("T", triangle.commit().unwrap()),
        ("X", transposed.commit().unwrap()),
        ("list", Bench::list()),
        ("general", general.commit().unwrap()),
    ]
}

/// What a call on the caller's stream does besides the launch, `times` times.
fn enqueue(bench: &Bench, layout: &Layout, times: u32) {
    let shared = &*bench.engine.shared;
    let lane = &*shared.accelerator.lanes()[0];
    let typed = bench.side(layout);
    let (range, to) = (0..layout.size(), bench.packed.sub(0, layout.size()).unwrap());
    for _ in 0..times {
        let task = shared.pack(Direction::Pack, &typed, &range, to, None).unwrap();
        let mut held = Holds::new();
        // SAFETY: the pretend vendor touches nothing.
        unsafe { shared.run(lane, &mut None, &task, &mut held, None) }.unwrap();
    }
}

fn warm(layout: &Layout) -> Bench {
    let bench = ungathered(Config::default());
    bench.pack(layout, &[]).unwrap();
    bench.mock.log().end_all();
    enqueue(&bench, layout, 1);
    bench.mock.log().quiet = true;
    bench
}

#[test]
fn a_warm_call_on_the_callers_stream_allocates_nothing() {
    for (name, layout) in layouts() {
        let bench = warm(&layout);
        let before = allocations();
        enqueue(&bench, &layout, 100);
        assert_eq!(allocations() - before, 0, "{name}");
    }
}
