//! Short work that waits for company, on a pretend vendor whose work never ends by itself.

use super::bench::{Bench, launches};
use crate::engine::*;
use crate::tests::mock::Op;
use gapless_dtype::{Datatype, Primitive};
use gapless_kernels::args::PARTS_MAX;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Starts short work: 64 bytes, packed or unpacked.
fn start(bench: &Bench, number: u64, after: &[Completion]) -> Completion {
    let column = Datatype::vector(8, 1, 2, &Primitive::Double.into()).unwrap();
    let typed = Typed::new(bench.typed, 128 * number, &column.commit().unwrap(), 1).unwrap();
    let packed = bench.packed.sub(64 * number, 64).unwrap();
    let started = match number % 2 {
        // SAFETY: the pretend vendor touches nothing.
        0 => unsafe { bench.engine.pack(&typed, 0..64, packed, after) },
        // SAFETY: likewise.
        _ => unsafe { bench.engine.unpack(packed, &typed, 0..64, after) },
    };
    started.unwrap()
}

/// Launches, and completions, since the last time.
fn asked(bench: &Bench) -> [usize; 2] {
    let ops = bench.ops();
    let records = ops.iter().filter(|(_, op)| matches!(op, Op::Record(_)));
    [launches(&ops), records.count()]
}

#[test]
fn many_that_wait_make_few_launches() {
    let bench = Bench::new(Config::default());
    let works: Vec<Completion> = (0..1000).map(|number| start(&bench, number, &[])).collect();
    let [launches, records] = asked(&bench);
    let most = 2 + 1000usize.div_ceil(PARTS_MAX) + 16;
    assert!(launches <= most && records <= 18, "{launches} launches, {records} completions");
    // What is left waits for room.
    assert!(works.iter().all(|work| work.poll() == Ok(false)));
    assert_eq!(asked(&bench), [0, 0]);
    bench.mock.log().end_all();
    assert_eq!(works.last().unwrap().poll(), Ok(false), "it was launched just now");
    assert_eq!(asked(&bench), [2, 1]);
    bench.mock.log().end_all();
    works.iter().for_each(|work| work.wait().unwrap());
    // One alone goes at once, whatever came before.
    let one = start(&bench, 0, &[]);
    assert_eq!(asked(&bench), [1, 1]);
    bench.mock.log().end_all();
    one.wait().unwrap();
}

#[test]
fn the_device_is_asked_once_for_all_of_a_launch() {
    let bench = Bench::new(Config::default());
    let first = [0, 1].map(|number| start(&bench, number, &[]));
    let works: Vec<Completion> = (2..12).map(|number| start(&bench, number, &[])).collect();
    assert_eq!(asked(&bench), [2, 2]);
    bench.mock.log().end_all();
    let polled = |work: &Completion| work.poll().unwrap();
    assert!(!polled(&works[0]), "launched, and asked");
    bench.mock.log().end_all();
    let early = works.iter().filter(|work| polled(work)).count();
    assert_eq!(early, 1, "nine are answered unasked");
    assert!(works.iter().all(polled) && first.iter().all(polled));
}

#[test]
fn what_nobody_asks_about_is_launched_and_so_is_what_others_come_after() {
    let bench = Bench::new(Config::default());
    let _first = [0, 1].map(|number| start(&bench, number, &[]));
    asked(&bench);
    let waiting = start(&bench, 2, &[]);
    assert_eq!(asked(&bench), [0, 0]);
    drop(waiting);
    assert_eq!(
        asked(&bench),
        [1, 1],
        "its memory is whoever's who dropped it, when the engine says so"
    );
    let waiting = start(&bench, 4, &[]);
    let behind = start(&bench, 6, std::slice::from_ref(&waiting));
    assert_eq!(asked(&bench), [2, 2], "on the lane's order, not by waiting here");
    bench.mock.log().end_all();
    behind.wait().unwrap();
}

#[test]
fn a_launch_that_fails_or_unwinds_ends_all_that_waited_for_it() {
    for panics in [false, true] {
        let bench = Bench::new(Config::default());
        let _first = [0, 1].map(|number| start(&bench, number, &[]));
        let waiting = [2, 4].map(|number| start(&bench, number, &[]));
        {
            let mut log = bench.mock.log();
            (log.fails_in, log.panics) = (Some(0), panics);
            log.end_all();
        }
        let asked = catch_unwind(AssertUnwindSafe(|| waiting[0].poll()));
        assert_eq!(asked.is_err(), panics);
        bench.mock.log().fails_in = None;
        assert!(waiting.iter().all(|work| work.poll().is_err() && work.is_known_over()));
        bench.mock.log().end_all();
        start(&bench, 6, &[]).poll().unwrap();
    }
}
