//! Short work that waits for company, on a pretend vendor whose work never ends by itself.

use crate::engine::*;
use crate::tests::mock::{Mock, Op};
use gapless_dtype::{Datatype, Primitive};
use gapless_kernels::args::PARTS_MAX;
use std::panic::{AssertUnwindSafe, catch_unwind};

struct Bench {
    mock: Arc<Mock>,
    engine: GpuEngine,
    typed: Region,
    packed: Region,
}

impl Bench {
    fn new() -> Bench {
        let mock = Arc::new(Mock::new(2));
        let accelerator = Arc::clone(&mock) as Arc<dyn Accelerator>;
        let engine = GpuEngine::over(accelerator, Config::default().bounded());
        let device = engine.device();
        let (typed, packed) =
            (device.allocate(1 << 20).unwrap(), device.allocate(1 << 20).unwrap());
        Bench { mock, engine, typed, packed }
    }

    /// Starts short work: 64 bytes, packed or unpacked.
    fn start(&self, number: u64, after: &[Completion]) -> Completion {
        let column = Datatype::vector(8, 1, 2, &Primitive::Double.into()).unwrap();
        let typed = Typed::new(self.typed, 128 * number, &column.commit().unwrap(), 1).unwrap();
        let packed = self.packed.sub(64 * number, 64).unwrap();
        let started = match number % 2 {
            // SAFETY: the pretend vendor touches nothing.
            0 => unsafe { self.engine.pack(&typed, 0..64, packed, after) },
            // SAFETY: likewise.
            _ => unsafe { self.engine.unpack(packed, &typed, 0..64, after) },
        };
        started.unwrap()
    }

    /// Launches, and completions, since the last time.
    fn asked(&self) -> [usize; 2] {
        let ops = std::mem::take(&mut self.mock.log().ops);
        let count = |what: fn(&Op) -> bool| ops.iter().filter(|(_, op)| what(op)).count();
        [count(|op| matches!(op, Op::Launch(_))), count(|op| matches!(op, Op::Record(_)))]
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.mock.log().end_all();
    }
}

#[test]
fn many_that_wait_make_few_launches() {
    let bench = Bench::new();
    let works: Vec<Completion> = (0..1000).map(|number| bench.start(number, &[])).collect();
    let [launches, records] = bench.asked();
    let most = 2 + 1000usize.div_ceil(PARTS_MAX) + 16;
    assert!(launches <= most && records <= 18, "{launches} launches, {records} completions");
    // What is left waits for room.
    assert!(works.iter().all(|work| work.poll() == Ok(false)));
    assert_eq!(bench.asked(), [0, 0]);
    bench.mock.log().end_all();
    assert_eq!(works.last().unwrap().poll(), Ok(false), "it was launched just now");
    assert_eq!(bench.asked(), [2, 1]);
    bench.mock.log().end_all();
    works.iter().for_each(|work| work.wait().unwrap());
    // One alone goes at once, whatever came before.
    let one = bench.start(0, &[]);
    assert_eq!(bench.asked(), [1, 1]);
    bench.mock.log().end_all();
    one.wait().unwrap();
}

#[test]
fn the_device_is_asked_once_for_all_of_a_launch() {
    let bench = Bench::new();
    let first = [0, 1].map(|number| bench.start(number, &[]));
    let works: Vec<Completion> = (2..12).map(|number| bench.start(number, &[])).collect();
    assert_eq!(bench.asked(), [2, 2]);
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
    let bench = Bench::new();
    let _first = [0, 1].map(|number| bench.start(number, &[]));
    bench.asked();
    let waiting = bench.start(2, &[]);
    assert_eq!(bench.asked(), [0, 0]);
    drop(waiting);
    assert_eq!(
        bench.asked(),
        [1, 1],
        "its memory is whoever's who dropped it, when the engine says so"
    );
    let waiting = bench.start(4, &[]);
    let behind = bench.start(6, std::slice::from_ref(&waiting));
    assert_eq!(bench.asked(), [2, 2], "on the lane's order, not by waiting here");
    bench.mock.log().end_all();
    behind.wait().unwrap();
}

#[test]
fn a_launch_that_fails_or_unwinds_ends_all_that_waited_for_it() {
    for panics in [false, true] {
        let bench = Bench::new();
        let _first = [0, 1].map(|number| bench.start(number, &[]));
        let waiting = [2, 4].map(|number| bench.start(number, &[]));
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
        bench.start(6, &[]).poll().unwrap();
    }
}
