//! Accumulations as tasks: order, acknowledgements, faults, and what no process of ours puts.

use super::net::{At, Net};
use super::{Island, Random};
use crate::header::Stripes;
use crate::tasks::run::perform;
use crate::{AccessKind, Accumulations, Lock, Osc, Place, Window, WindowError};
use gapless_bml::{Bml, Rank};
use gapless_btl::loopback::Config;
use gapless_dtype::Primitive;
use gapless_engine::{ReduceOp, Typed};
use gapless_xtq::device::mock_worker::{MockWorker, memory as buffer};
use gapless_xtq::device::{Combine, Life};
use std::cell::Cell;

fn window(net: &Net, me: u32, maps: &[u32]) -> Window {
    let tasks = net.tasks[me as usize].clone();
    tasks.prepare().unwrap();
    net.window(me, maps).with_tasks(tasks, Accumulations::Tasks, None)
}

fn numbers(count: usize) -> Typed {
    super::numbers(Primitive::Int64, count as u64)
}

fn bytes(numbers: &[i64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// A rank, and what it does to rank 0.
struct Origin<'n> {
    window: Window,
    driver: At<'n>,
}

impl<'n> Origin<'n> {
    fn new(net: &'n Net, me: u32, maps: &[u32]) -> Origin<'n> {
        let driver = net.driver(me as usize, 50_000_000, &std::thread::yield_now);
        let window = window(net, me, maps);
        window.lock(&driver, 0, Lock::Shared).unwrap();
        Origin { window, driver }
    }

    fn accumulate(&self, at: u64, op: ReduceOp, given: &[i64]) -> Result<(), WindowError> {
        let (place, typed) = (Place::at(8 * at), numbers(given.len()));
        let access = self.window.access("accumulate", (0, &place), &typed, AccessKind::Change)?;
        self.window.accumulate(&self.driver, (&access, op), (&typed, &place), &bytes(given))
    }

    fn put(&self, at: u64, given: i64) {
        let access =
            self.window.access("put", (0, &Place::at(8 * at)), &numbers(1), AccessKind::Write);
        self.window.put(&self.driver, &access.unwrap(), 0..8, &bytes(&[given])).unwrap();
    }

    fn get(&self, at: u64) -> i64 {
        let access =
            self.window.access("get", (0, &Place::at(8 * at)), &numbers(1), AccessKind::Read);
        let mut found = [0; 8];
        self.window.get(&self.driver, &access.unwrap(), 0..8, &mut found).unwrap();
        i64::from_ne_bytes(found)
    }

    fn fetch(&self, at: u64, given: i64) -> i64 {
        let (place, typed) = (Place::at(8 * at), numbers(1));
        let access =
            self.window.access("fetch_and_op", (0, &place), &typed, AccessKind::Change).unwrap();
        let (what, given) = ((&access, ReduceOp::Sum), bytes(&[given]));
        let reading =
            self.window.start_get_accumulate(&self.driver, what, (&typed, &place), &given).unwrap();
        i64::from_ne_bytes(reading.wait(&self.driver).unwrap().try_into().unwrap())
    }
}

fn load(net: &Net, at: u64) -> i64 {
    net.load(0, 8 * at).cast_signed()
}

#[test]
fn tasks_of_an_origin_keep_the_order_of_its_calls_and_lose_nothing() {
    let narrow =
        Config { max_fragment_bytes: 512, eager_bytes: 512, slots: 8, ..Config::default() };
    for config in [Config::default(), narrow] {
        for maps in [&[0][..], &[]] {
            let net = Net::new(3, &config);
            let _target = window(&net, 0, &[]);
            let origins = [1, 2].map(|me| Origin::new(&net, me, maps));
            // Beyond what a task carries, and what may be under way.
            let long: Vec<i64> = (0..20_000).collect();
            for round in 0..40 {
                for (own, origin) in [100u64, 200].into_iter().zip(&origins) {
                    origin.accumulate(0, ReduceOp::Sum, &[1, 2, 3]).unwrap();
                    origin.accumulate(own, ReduceOp::Sum, &[5]).unwrap();
                    origin.accumulate(own, ReduceOp::Replace, &[round]).unwrap();
                    origin.accumulate(own, ReduceOp::Prod, &[3]).unwrap();
                    origin.accumulate(own, ReduceOp::NoOp, &[9]).unwrap();
                    assert_eq!(origin.fetch(own, 1), 3 * round);
                    origin.accumulate(own, ReduceOp::Sum, &[1]).unwrap();
                    assert_eq!(origin.get(own), 3 * round + 2);
                    origin.put(own, 70);
                    origin.accumulate(own, ReduceOp::Sum, &[7]).unwrap();
                    origin.fetch(own + 1, 1);
                }
                for origin in origins.iter().filter(|_| round % 20 == 0) {
                    origin.accumulate(1000, ReduceOp::Sum, &long).unwrap();
                }
            }
            for origin in &origins {
                origin.window.flush(&origin.driver, 0).unwrap();
            }
            assert_eq!(
                [0, 1, 2, 100, 101, 200].map(|at| load(&net, at)),
                [80, 160, 240, 77, 40, 77]
            );
            assert!((0..20_000u32).all(|at| load(&net, 1000 + u64::from(at)) == 4 * i64::from(at)));
            for Origin { window, driver } in origins {
                window.unlock(&driver, 0).unwrap();
            }
        }
    }
}

#[test]
fn a_target_that_refuses_is_told_of_once() {
    let net = Net::new(2, &Config::default());
    let target = window(&net, 0, &[]);
    let origin = Origin::new(&net, 1, &[0]);
    origin.accumulate(0, ReduceOp::Sum, &[4]).unwrap();
    origin.window.flush(&origin.driver, 0).unwrap();
    drop(target);
    origin.accumulate(0, ReduceOp::Sum, &[4]).unwrap();
    origin.accumulate(0, ReduceOp::Sum, &[4]).unwrap();
    let flush = |origin: &Origin<'_>| origin.window.flush(&origin.driver, 0);
    assert_eq!(flush(&origin), Err(WindowError::Freed { rank: 0 }));
    assert_eq!((flush(&origin), load(&net, 0)), (Ok(()), 4));
    origin.accumulate(0, ReduceOp::Sum, &[4]).unwrap();
    let unlocked = origin.window.unlock(&origin.driver, 0);
    assert_eq!(unlocked, Err(WindowError::Freed { rank: 0 }));
    // It has ended nevertheless.
    assert!(net.exposures[0].header.try_lock(0, Lock::Exclusive, false, |_| false));
}

/// A thread that waits for a mutex does not change a window that is gone; who drops it waits for the thread.
#[test]
fn no_thread_is_at_work_on_a_window_that_is_gone() {
    let net = Net::new(3, &Config::default());
    let target = window(&net, 0, &[]);
    let origin = Origin::new(&net, 1, &[0]);
    let (header, stripe) = (&net.exposures[0].header, Stripes::default().with(0, 8));
    assert!(header.try_stripes(2, stripe, |_| false));
    origin.accumulate(0, ReduceOp::Sum, &[4]).unwrap();
    let id = target.handle.id();
    while !net.oscs[0].core().windows[&id].users.are_at_work() {
        net.progress();
        std::thread::yield_now();
    }
    drop(target);
    header.release_stripes(2, stripe);
    let flushed = origin.window.flush(&origin.driver, 0);
    assert_eq!((flushed, load(&net, 0)), (Err(WindowError::Freed { rank: 0 }), 0));
}

/// An accumulation that was refused for now is not overtaken when its rank gets a ring of the worker.
#[test]
fn what_was_refused_comes_before_what_goes_by_a_ring() {
    let net = Net::new(2, &Config::default());
    let memory = net.exposures[0].memory.clone();
    let mock = MockWorker::new(move |task| {
        let (offset, op) = (task.arguments[2], task.arguments[3] & 0xFF);
        for (at, new) in (0..).zip(task.payload.as_chunks::<8>().0) {
            let mut old = [0; 8];
            memory.load(offset + 8 * at, &mut old).map_err(|_| 1u32)?;
            let [old, new] = [old, *new].map(i64::from_ne_bytes);
            let now = if op == Combine::Sum as u64 { old + new } else { old.max(new) };
            memory.store(offset + 8 * at, &now.to_ne_bytes()).map_err(|_| 1u32)?;
        }
        Ok(())
    });
    let tasks = net.tasks[0].clone();
    // SAFETY: nobody else has the buffer, in which two numbers find no room.
    let attached = unsafe { tasks.attach_worker(mock, Life::default(), vec![buffer(8).unwrap()]) };
    attached.unwrap();
    let handle = tasks.host_kernel(&net.exposures[0].clone().into()).unwrap();
    let way = Accumulations::Worker;
    let _target = net.window(0, &[]).with_tasks(tasks.clone(), way, Some(handle));
    let calls = Cell::new(0);
    let post = || {
        calls.set(calls.get() + 1);
        if calls.get() == 200 {
            // SAFETY: as above.
            unsafe { tasks.xtq().post_to_worker(buffer(64).unwrap()) }.unwrap();
        }
        std::thread::yield_now();
    };
    let driver = net.driver(1, 50_000_000, &post);
    net.tasks[1].prepare().unwrap();
    let window = net.window(1, &[0]).with_tasks(net.tasks[1].clone(), way, None);
    window.lock(&driver, 0, Lock::Shared).unwrap();
    let origin = Origin { window, driver };
    origin.accumulate(0, ReduceOp::Sum, &[10, 10]).unwrap();
    while !net.tasks[1].xtq().has_ring(Rank(0)) {
        net.progress();
        std::thread::yield_now();
    }
    origin.accumulate(0, ReduceOp::Max, &[3]).unwrap();
    origin.window.unlock(&origin.driver, 0).unwrap();
    assert_eq!([0, 1].map(|at| load(&net, at)), [10, 10]);
}

#[test]
fn made_up_tasks_change_nothing_but_the_window() {
    let seed = gapless_testkit::seed(5);
    let island = Island::new();
    let osc = Osc::register(&mut Bml::new(Rank(0), 1)).unwrap();
    let _handle = osc.host(island.exposure(), &[0], 0);
    let (mut random, stays) = (Random(seed), || false);
    let mut right = 0;
    for round in 0..40_000 {
        let runs = random.below(4);
        let mut payload = Vec::new();
        let mut all = 0;
        for _ in 0..runs {
            let bytes = if random.below(4) == 0 { random.number() } else { 8 * random.below(5) };
            let at = if random.below(2) == 0 { random.number() } else { 8 * random.below(17) };
            payload.extend([at, bytes].into_iter().flat_map(u64::to_le_bytes));
            all += bytes.min(400);
        }
        let operands = if random.below(4) == 0 { random.below(200) } else { all };
        payload.resize(payload.len() + usize::try_from(operands).unwrap(), 3);
        let runs = if random.below(8) == 0 { random.number() } else { runs };
        let what = random.below(16) | random.below(42) << 8 | (runs & 0xFFFF_FFFF) << 32;
        let [window, rank] = [0; 2].map(|_| random.below(20) / 19);
        let which = window | rank << 32;
        right += u32::from(perform(&osc, (0, &stays), [which, what], &payload).is_ok());
        assert!(perform(&osc, (1, &stays), [which, what], &payload).is_err());
        assert_eq!(island.spoilt(), 0, "round {round}: {which:x} {what:x} {payload:?}");
    }
    let inside = island.changed(Island::WINDOW);
    assert!(right > 1000 && inside > 8, "some of them are right: {right}, {inside}");
}
