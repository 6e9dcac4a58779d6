//! The contract of kernels, over all ways in which their tasks come to run: launched by this end's threads (*host*), and by
//! a worker (*device*), which a thread plays: by messages, by rings, and by rings while the worker never stays.
#![allow(unsafe_code, reason = "registers kernels, whose memory nobody touches")]

mod code;
mod grants;

use super::*;
use crate::device::player::{Player, memory};
use crate::device::{DeviceFunction, Life, TargetError};
use crate::launcher::{GroupLimits, Kernel, KernelTask, Launcher};
use crate::packet::Launch;
use crate::wire::{Head, Ring};
use gapless_bml::{AmTag, PeerState, Token};
use gapless_mem::{Completion, DeviceError, Worker as _};
use std::sync::Mutex;

/// How tasks come to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Launched,
    Messages,
    Rings,
    /// By rings; the worker leaves whenever it has nothing to do.
    Fleeting,
}

pub(super) const WAYS: [Way; 4] = [Way::Launched, Way::Messages, Way::Rings, Way::Fleeting];
/// Work-items of a group, at most, wherever it runs.
const ITEMS_MAX: u32 = 512;
const PAYLOAD_MAX: u32 = 4096;

/// The third argument and the payload of each task, in the order in which they ran.
type Log = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

fn run(log: &Log, third: u64, payload: &[u8]) -> Result<(), u32> {
    log.lock().unwrap().push((third, payload.to_vec()));
    if payload == b"fail" { Err(1) } else { Ok(()) }
}

struct Plays(Log);

// SAFETY: it starts nothing that outlives the call, and writes no memory.
unsafe impl Launcher for Plays {
    fn limits(&self) -> GroupLimits {
        GroupLimits { items_max: ITEMS_MAX, local_bytes_max: 0, grid_max: [u32::MAX; 3] }
    }

    unsafe fn launch(&self, task: &KernelTask<'_>) -> Result<Completion, DeviceError> {
        let mut payload = vec![0; usize::try_from(task.payload.len()).unwrap()];
        // SAFETY: the caller guarantees the payload.
        unsafe { gapless_mem::read(&task.payload, 0, &mut payload) }?;
        let third = u64::from_le_bytes(task.arguments[16..24].try_into().unwrap());
        let failed = |_| DeviceError::Unsupported { what: "this payload" };
        run(&self.0, third, &payload).map(|()| Completion::Ready).map_err(failed)
    }
}

/// A job, and what has run at the target.
pub(super) struct Scene {
    pub(super) job: Job,
    log: Log,
    way: Way,
    /// The target: the last rank.
    target: usize,
    player: Option<Arc<Player>>,
}

impl Scene {
    pub(super) fn new(way: Way, size: u32, seed: Option<u64>) -> Scene {
        println!("{way:?}, seed {seed:?}");
        let config = Config { rings: way != Way::Messages, ..Config::default() };
        let job = Job::configured(size, seed, None, &config);
        let (log, target) = (Log::default(), job.ends.len() - 1);
        let mut scene = Scene { job, log: Arc::clone(&log), way, target, player: None };
        if way != Way::Launched {
            let player = Player::new(move |task| run(&log, task.arguments[2], &task.payload));
            let idle = (way == Way::Fleeting).then_some(Duration::from_micros(1));
            let life = Life { idle, longest: PATIENCE };
            scene.there().attach_worker(player.clone(), life).unwrap();
            let again = scene.there().attach_worker(player.clone(), life);
            assert_eq!(again, Err(XtqError::Worker { has: true }));
            scene.player = Some(player);
        }
        scene.register(7, scene.kernel()).unwrap();
        scene.there().register_queue(2, QueueOptions { capacity: 512, width: 1 }).unwrap();
        scene
    }

    pub(super) fn there(&self) -> &Xtq {
        self.job.xtq(self.target)
    }

    fn kernel(&self) -> Kernel {
        let kernel = match self.way {
            Way::Launched => {
                Kernel::new(Arc::new(Plays(Arc::clone(&self.log))), 2, 24, PAYLOAD_MAX)
            }
            _ => Kernel::of_worker(DeviceFunction::Copy, PAYLOAD_MAX),
        };
        kernel.grid_max([1024, 1, 1])
    }

    fn register(&self, index: u8, kernel: Kernel) -> Result<(), XtqError> {
        // SAFETY: whatever runs it touches no memory.
        unsafe { self.there().register_kernel(index, kernel) }
    }

    pub(super) fn post(&self, bytes: u32) {
        match self.way {
            Way::Launched => self.there().post(vec![0; bytes as usize]),
            // SAFETY: nobody touches it.
            _ => unsafe { self.there().post_to_worker(memory(bytes.into()).unwrap()) }.unwrap(),
        }
    }

    fn take_posted(&self) -> usize {
        match self.way {
            Way::Launched => self.there().take_posted().len(),
            _ => self.there().take_from_worker().unwrap().len(),
        }
    }

    pub(super) fn task(&self, third: u64, payload: &[u8]) -> Put {
        let arguments = [u64::MAX, u64::MAX, third].map(u64::to_le_bytes).concat();
        let target = Rank(u32::try_from(self.target).unwrap());
        Put::kernel(target, 7, 2, Launch::linear(1, 32, 24), arguments).payload(payload)
    }

    pub(super) fn put(&self, put: Put) -> PutHandle {
        self.job.xtq(0).put(put).unwrap()
    }

    fn is_by_rings(&self) -> bool {
        matches!(self.way, Way::Rings | Way::Fleeting)
    }

    /// Until rank 0 has a ring that lives, if it is to get one.
    pub(super) fn warm(&mut self) {
        let put = self.put(self.task(u64::MAX, &[]).acknowledged());
        self.job.outcome(&put).unwrap();
        if self.is_by_rings() {
            let target = u32::try_from(self.target).unwrap();
            let live = |state: &mut super::super::State| state.initiator.has_ring(Rank(target));
            self.job.until(|job| job.xtq(0).inner.with(live).then_some(()));
        }
        self.log.lock().unwrap().clear();
    }

    pub(super) fn ran(&self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

#[test]
fn tasks_run_in_order_whatever_way_they_come_and_signals_count_them() {
    for (way, seed) in WAYS.map(|way| (way, None)).into_iter().chain(WAYS.map(|way| (way, Some(9))))
    {
        let mut scene = Scene::new(way, 2, seed);
        // Nothing is to be refused: a task that waits to be launched has its buffer already.
        (0..64).for_each(|_| scene.post(PAYLOAD_MAX));
        let there = scene.there().signal_from(60, &[]);
        scene.register(7, scene.kernel().signal(&there)).unwrap();
        // In a slot, at its limit, in the arena, none, in pieces; the first of them before there is a ring.
        let lengths = [3, 144, 145, 1000, 0, 3000];
        let (here, mut expected, mut handles) =
            (scene.job.xtq(0).signal(30), Vec::new(), Vec::new());
        for number in 0..60u64 {
            let len = lengths[usize::try_from(number % 6).unwrap()];
            let payload: Vec<u8> = (0..len).map(|at| (at * 7 + number).to_le_bytes()[0]).collect();
            let put = scene.task(number, &payload);
            let put = if number.is_multiple_of(2) { put.signal(&here) } else { put };
            handles.push(scene.put(put));
            expected.push((number, payload));
            scene.job.step();
        }
        assert_eq!((scene.job.end_of(&here), scene.job.end_of(&there)), (Ok(()), Ok(())));
        for handle in handles {
            assert_eq!((scene.job.outcome(&handle), handle.accepted()), (Ok(()), Some(Ok(()))));
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
        scene.job.settle();
        // A signal that begins anew counts on.
        there.reset(1);
        assert_eq!(there.poll(), None);
        scene.put(scene.task(0, b"more"));
        assert_eq!(scene.job.end_of(&there), Ok(()));
        scene.job.settle();
        assert_eq!(scene.take_posted(), 64);
    }
}

#[test]
fn what_is_not_registered_or_allowed_is_refused_and_both_ends_learn_it() {
    for way in WAYS {
        let mut scene = Scene::new(way, 2, None);
        scene.warm();
        scene.there().watch_refusals(true);
        let refused = |scene: &mut Scene, put: Put, expected: Refusal| {
            let (index, queue) = (put.command.index, put.command.queue);
            let handle = scene.put(put);
            let outcome = scene.job.outcome(&handle);
            let refusal = XtqError::Refused { target: Rank(1), refusal: expected };
            assert_eq!((outcome, handle.accepted()), (Err(refusal.clone()), Some(Err(refusal))));
            let told = RefusedTask { initiator: Rank(0), index, queue, refusal: expected };
            assert_eq!(scene.there().take_refusals(), [told]);
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
        scene.there().unregister_queue(2).unwrap();
        refused(&mut scene, other(7, 2), Refusal::NoQueue);
        scene.there().unregister_kernel(7).unwrap();
        refused(&mut scene, other(7, 2), Refusal::NotRegistered);
        assert_eq!((scene.ran(), scene.take_posted()), (vec![], 2));
        // Registered anew it runs; also where another way has taken its place.
        scene.there().register_queue(2, QueueOptions::default()).unwrap();
        let launched = Kernel::new(Arc::new(Plays(Arc::clone(&scene.log))), 2, 24, PAYLOAD_MAX);
        for (number, kernel) in [(1, scene.kernel()), (2, launched), (3, scene.kernel())] {
            scene.register(7, kernel).unwrap();
            let put = scene.put(scene.task(number, &[]).acknowledged());
            assert_eq!(scene.job.outcome(&put), Ok(()));
            assert_eq!(scene.ran(), [(number, vec![])]);
        }
    }
}

#[test]
fn a_task_that_fails_is_told_to_whoever_waits() {
    for way in WAYS {
        let mut scene = Scene::new(way, 2, None);
        scene.post(64);
        let there = scene.there().signal(2);
        scene.register(7, scene.kernel().signal(&there)).unwrap();
        scene.warm();
        assert_eq!(scene.job.until(|_| (there.value() == 1).then(|| there.poll())), None);
        let failed = scene.put(scene.task(1, b"fail").acknowledged());
        let outcome = scene.job.outcome(&failed);
        assert!(matches!(outcome, Err(XtqError::Failed { target: Rank(1), .. })), "{outcome:?}");
        assert_eq!(failed.accepted(), Some(Ok(())));
        let end = scene.job.end_of(&there);
        assert!(matches!(end, Err(XtqError::Failed { target: Rank(1), .. })), "{end:?}");
        // Who does not ask for the end learns nothing of it.
        let unasked = scene.put(scene.task(2, b"fail"));
        assert_eq!(scene.job.outcome(&unasked), Ok(()));
    }
}

#[test]
fn what_is_refused_for_now_is_put_again_and_lines_keep_their_order() {
    for way in WAYS {
        for retry in [Retry::InAnyOrder, Retry::InOrder] {
            let mut scene = Scene::new(way, 2, None);
            scene.warm();
            let tired = scene.task(99, b"none").retry(Retry::InAnyOrder).attempts(3);
            let tired = scene.put(tired);
            let none = XtqError::Refused { target: Rank(1), refusal: Refusal::NoReceiveBuffer };
            assert_eq!((scene.job.outcome(&tired), tired.refusals()), (Err(none), 3));
            let put =
                |scene: &Scene, number| scene.task(number, b"some").retry(retry).acknowledged();
            let handles: Vec<_> = (0..8).map(|number| scene.put(put(&scene, number))).collect();
            scene.job.until(|_| (handles[0].refusals() > 2).then_some(()));
            assert_eq!(scene.ran(), []);
            scene.post(8);
            for handle in handles {
                assert_eq!(scene.job.outcome(&handle), Ok(()));
            }
            let mut numbers: Vec<u64> = scene.ran().into_iter().map(|task| task.0).collect();
            if retry == Retry::InAnyOrder {
                numbers.sort_unstable();
            }
            assert_eq!(numbers, (0..8).collect::<Vec<_>>());
            scene.job.settle();
        }
    }
}

#[test]
fn many_initiators_share_a_queue_and_each_of_their_tasks_runs_once() {
    for (way, seed) in WAYS.into_iter().zip([None, Some(5), None, Some(6)]) {
        let mut scene = Scene::new(way, 9, seed);
        scene.post(64);
        let mut handles = Vec::new();
        for number in 0..40 {
            for rank in 0..8u8 {
                let put = scene.task(number, &[rank; 20]).retry(Retry::InAnyOrder);
                handles.push(scene.job.xtq(rank.into()).put(put.acknowledged()).unwrap());
            }
            scene.job.step();
        }
        for handle in &handles {
            assert_eq!(scene.job.outcome(handle), Ok(()));
        }
        let ran = scene.ran();
        for rank in 0..8 {
            let mut numbers: Vec<u64> =
                ran.iter().filter(|task| task.1 == [rank; 20]).map(|task| task.0).collect();
            // What was refused for now comes later.
            numbers.sort_unstable();
            assert_eq!(numbers, (0..40).collect::<Vec<_>>(), "rank {rank}");
        }
        scene.job.settle();
    }
}

#[test]
fn while_the_worker_stays_tasks_run_though_their_target_makes_no_progress() {
    let mut scene = Scene::new(Way::Rings, 2, None);
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

/// Giving back what another worker of the process has may wait for all that runs on the accelerator.
#[test]
fn a_worker_is_told_to_leave_before_what_is_left_of_its_end_is_dropped() {
    let mut scene = Scene::new(Way::Rings, 2, None);
    scene.post(64);
    let put = scene.put(scene.task(1, b"stays").acknowledged());
    assert_eq!(scene.job.outcome(&put), Ok(()));
    let (player, start) = (scene.player.clone().unwrap(), Instant::now());
    assert_eq!(player.is_over(), Ok(false));
    let left = scene.there().abandon();
    while player.is_over() == Ok(false) {
        assert!(start.elapsed() < PATIENCE / 2, "it stays");
        std::thread::yield_now();
    }
    drop(left);
}

#[test]
fn what_tasks_have_counted_is_told_when_their_kernel_goes() {
    for way in WAYS {
        let mut scene = Scene::new(way, 2, None);
        scene.warm();
        let signals = [(); 3].map(|()| scene.there().signal(10));
        // Each kernel in the place of the last one, then none; the target looks at nothing in between.
        for (at, signal) in signals.iter().enumerate() {
            scene.register(7, scene.kernel().signal(signal)).unwrap();
            let puts: Vec<_> =
                (0..10).map(|number| scene.put(scene.task(number, &[]).acknowledged())).collect();
            scene.job.until(|_| puts.iter().all(|put| put.outcome().is_some()).then_some(()));
            assert!(puts.iter().all(|put| put.outcome() == Some(Ok(()))), "{at}");
        }
        scene.there().unregister_kernel(7).unwrap();
        for signal in &signals {
            assert_eq!(scene.job.end_of(signal), Ok(()));
        }
        // One of the same signal goes on; one of another process's does not ring here.
        signals[0].reset(2);
        for number in 0..2 {
            scene.register(7, scene.kernel().signal(&signals[0])).unwrap();
            let put = scene.put(scene.task(number, &[]).acknowledged());
            assert_eq!(scene.job.outcome(&put), Ok(()));
        }
        assert_eq!(scene.job.end_of(&signals[0]), Ok(()));
        let foreign = scene.job.xtq(0).signal(1);
        if way != Way::Launched {
            let refused = scene.register(7, scene.kernel().signal(&foreign));
            assert_eq!(refused, Err(XtqError::ForeignSignal));
        }
    }
}

#[test]
fn lines_do_not_hold_up_the_ring_of_their_initiator() {
    let mut scene = Scene::new(Way::Rings, 2, None);
    let line = |scene: &Scene, number| {
        let put = scene.task(number, &[]).retry(Retry::InOrder);
        scene.job.xtq(0).put(put.acknowledged()).unwrap()
    };
    let mut under_way = std::collections::VecDeque::new();
    let first = scene.put(scene.task(0, &[]).acknowledged());
    let start = Instant::now();
    // There is always a task of the line in the target's queue.
    let mut number = 0;
    while !scene.job.xtq(0).inner.with(|state| state.initiator.has_ring(Rank(1))) {
        number += 1;
        under_way.push_back(line(&scene, number));
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
        let put = Put { target: Rank(2), ..scene.task(6, b"on") };
        let put = scene.put(put.acknowledged());
        assert_eq!(scene.job.outcome(&put), Ok(()));
        assert_eq!(scene.ran().len(), 2);
        // The target goes.
        let put = scene.put(Put { target: Rank(2), ..scene.task(7, b"fail") }.acknowledged());
        drop(scene.job.ends.remove(1));
        let outcome = scene.job.outcome(&put);
        assert!(matches!(outcome, Err(XtqError::Lost { rank: Rank(2), .. })), "{outcome:?}");
    }
}

#[test]
fn a_worker_that_dies_ends_what_it_had_and_everybody_learns_it() {
    for way in [Way::Messages, Way::Rings] {
        let mut scene = Scene::new(way, 3, None);
        scene.post(64);
        let there = scene.there().signal(100);
        scene.register(7, scene.kernel().signal(&there)).unwrap();
        scene.warm();
        scene.there().keep_worker(true).unwrap();
        scene.player.as_ref().unwrap().die();
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
        assert_eq!(scene.job.end_of(&there), Err(XtqError::Target(TargetError::Died)));
        let put = scene.put(scene.task(2, &[]).acknowledged());
        assert!(matches!(scene.job.outcome(&put), Err(XtqError::Failed { .. })));
        assert_eq!(scene.register(7, scene.kernel()), Err(XtqError::Worker { has: false }));
        // Who never had a ring gets none, and nobody waits for that.
        let late = scene.job.xtq(1).put(scene.task(3, &[]).acknowledged()).unwrap();
        assert!(matches!(scene.job.outcome(&late), Err(XtqError::Failed { .. })));
        scene.job.settle();
        scene.job.until(|job| job.ends.iter().all(|end| end.xtq.is_quiet()).then_some(()));
        // Another worker in its place.
        let log = Arc::clone(&scene.log);
        let player = Player::new(move |task| run(&log, task.arguments[2], &task.payload));
        scene.there().attach_worker(player, Life::default()).unwrap();
        scene.register(7, scene.kernel()).unwrap();
        for rank in [0, 1] {
            let put = scene.job.xtq(rank).put(scene.task(4, &[]).acknowledged()).unwrap();
            assert_eq!(scene.job.outcome(&put), Ok(()));
        }
    }
}

#[test]
fn kernels_of_a_worker_need_one_and_fit_into_its_rings() {
    let job = Job::new(1, None);
    // SAFETY: nothing runs it.
    let register = |kernel| unsafe { job.xtq(0).register_kernel(0, kernel) };
    let kernel = |payload| Kernel::of_worker(DeviceFunction::Copy, payload);
    assert_eq!(register(kernel(8)), Err(XtqError::Worker { has: false }));
    job.xtq(0).attach_worker(Player::new(|_| Ok(())), Life::default()).unwrap();
    let body = Err(XtqError::Target(TargetError::Body { payload: 1 << 20 }));
    assert_eq!((register(kernel(1 << 20)), register(kernel((1 << 20) - 32))), (body, Ok(())));
    // A process may put at itself; that takes messages.
    drop(job.xtq(0).abandon());
    assert_eq!(register(kernel(8)), Err(XtqError::Worker { has: false }));
    assert_eq!(
        job.xtq(0).attach_worker(Player::new(|_| Ok(())), Life::default()),
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
    ];
    for what in all {
        for key in [&[][..], &[7; 80], &[7; 81]] {
            let mut job = Job::with(2, None, Some(0));
            let bytes = [&Head::Ring { what, kernels: 0 }.write(0)[..], key].concat();
            let bml = &mut job.ends[0].bml;
            let mut slot = bml.reserve(Rank(1), bytes.len()).unwrap();
            slot.write(0, &bytes).unwrap();
            bml.send(slot, AmTag(32), Token::NONE);
            (0..8).for_each(|_| _ = job.step());
            let lost = matches!(job.ends[1].bml.state(Rank(0)), PeerState::Lost(_));
            // A key that maps nothing is declined.
            assert_eq!(lost, what != Ring::Offer || key.len() != 80, "{what:?}, {}", key.len());
        }
    }
}
