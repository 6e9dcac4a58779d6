//! Kernels of workers under `World::xtq`: each rank has one, which a thread plays, and puts tasks at all, itself included. By
//! rings in shared memory, and over a transport that maps nothing. And a target that is stopped (SIGSTOP).

use gapless::btl::Btl;
use gapless::btl::loopback::{Config as LoopbackConfig, Hub, Loopback};
use gapless::xtq::{DeviceFunction, Kernel, Launch, Life, Put, QueueOptions};
use gapless::xtq::{Rank, Retry, Tasks, Waited, XtqError};
use gapless::{Config, Error, World};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_tests::job;
use gapless_tests::launcher::{Member, Said, TestLauncher, say};
use gapless_xtq::device::mock_worker::{MockWorker, memory};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const RANKS: u32 = 4;
const EACH: u64 = 150;
/// Of the kernel and of its queue.
const INDEX: u8 = 3;

/// The worker, its kernel and a receive buffer; the signal counts all tasks here.
fn prepare(tasks: &Tasks, sum: &Arc<AtomicU64>) -> gapless::xtq::Signal {
    let sum = Arc::clone(sum);
    let mock = MockWorker::new(move |task| {
        sum.fetch_add(task.arguments[2] * (1 + task.payload.len() as u64), Ordering::Relaxed);
        Ok(())
    });
    // It leaves often.
    let life = Life { idle: Some(Duration::from_micros(200)), ..Life::default() };
    tasks.attach_worker(mock, life).unwrap();
    let all = tasks.signal_from(EACH * u64::from(RANKS), &[]);
    let kernel = Kernel::of_worker(DeviceFunction::Copy, 4096).signal(&all);
    // SAFETY: the worker touches no memory.
    unsafe { tasks.register_kernel(INDEX, kernel) }.unwrap();
    tasks.register_queue(INDEX, QueueOptions { capacity: 4096, width: 1 }).unwrap();
    // SAFETY: nobody else has the memory.
    unsafe { tasks.post_to_worker(memory(4096).unwrap()) }.unwrap();
    all
}

fn rank(world: &World) {
    let (tasks, sum) = (world.xtq(), Arc::new(AtomicU64::new(0)));
    let all = prepare(&tasks, &sum);
    world.comm().barrier().unwrap();
    let done = tasks.signal(EACH * u64::from(RANKS));
    let put = |number: u64| {
        let payload = vec![7; usize::try_from(number * 37 % 2000).unwrap()];
        let arguments = [0, 0, number].map(u64::to_le_bytes).concat();
        for target in 0..RANKS {
            let launch = Launch::linear(1, 32, 24);
            let put = Put::kernel(Rank(target), INDEX, INDEX, launch, arguments.clone());
            let put = put.payload(&payload[..]).retry(Retry::InAnyOrder);
            tasks.put(put.signal(&done)).unwrap();
        }
    };
    // A thread that waits, perhaps asleep, and two that put.
    std::thread::scope(|threads| {
        threads.spawn(|| tasks.wait(&done).unwrap());
        threads.spawn(|| (0..EACH).filter(|number| number % 2 == 0).for_each(put));
        (0..EACH).filter(|number| number % 2 == 1).for_each(put);
    });
    let expected: u64 = (0..EACH).map(|number| number * (1 + number * 37 % 2000)).sum();
    tasks.wait(&all).unwrap();
    assert_eq!(sum.load(Ordering::Relaxed), expected * u64::from(RANKS));
    world.comm().barrier().unwrap();
    counted(world, &tasks);
}

/// A kernel that is counted, and has no signal: the target looks at the count alone.
fn counted(world: &World, tasks: &Tasks) {
    let kernel = Kernel::of_worker(DeviceFunction::Copy, 4096).counted();
    // SAFETY: the worker touches no memory.
    unsafe { tasks.register_kernel(INDEX + 1, kernel) }.unwrap();
    let count = tasks.count_of(INDEX + 1).unwrap();
    assert!(tasks.count_of(INDEX).is_none());
    let before = count.now();
    world.comm().barrier().unwrap();
    let done = tasks.signal(EACH);
    let target = Rank((world.rank() + 1) % RANKS);
    for _ in 0..EACH {
        let put = Put::kernel(target, INDEX + 1, INDEX, Launch::linear(1, 32, 24), vec![0; 24]);
        tasks.put(put.retry(Retry::InAnyOrder).signal(&done)).unwrap();
    }
    tasks.wait(&done).unwrap();
    world.comm().barrier().unwrap();
    // It may come a little behind the tasks' ends.
    let start = Instant::now();
    while count.now() < before + EACH {
        assert!(start.elapsed() < WATCHDOG, "{} of {EACH}", count.now() - before);
        std::thread::yield_now();
    }
    assert_eq!(count.now(), before + EACH);
    world.comm().barrier().unwrap();
}

#[test]
fn workers_of_ranks_run_each_others_tasks() {
    let name = format!("tasks {}", std::process::id());
    let sm = |rank| -> Vec<Box<dyn Btl>> {
        vec![Box::new(Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap())]
    };
    job(RANKS, &Config::default(), sm, rank);
    let hub = Hub::new();
    let bare = LoopbackConfig { rdma: false, mapped: false, ..LoopbackConfig::default() };
    let loopback = |_| -> Vec<Box<dyn Btl>> { vec![Box::new(Loopback::with(&hub, bare.clone()))] };
    job(RANKS, &Config::default(), loopback, rank);
}

const STOPPED: &str = "collectives::tasks::a_put_says_why_it_waits_for_a_stopped_process";
const WATCHDOG: Duration = Duration::from_secs(60);
/// Puts before the target is stopped: with the first of them the initiator gets a ring.
const BEFORE: u64 = 500;

#[test]
fn a_put_says_why_it_waits_for_a_stopped_process() {
    if let Some(member) = Member::of_launcher() {
        return stopped(member);
    }
    let mut launcher = TestLauncher::start(STOPPED, &[""; 2], |_, _| {});
    let hear = |launcher: &mut TestLauncher, wanted: &str| match launcher.hear(WATCHDOG) {
        Some((_, Said::Line(line))) if line == wanted => {}
        other => panic!("{other:?} instead of {wanted:?}"),
    };
    hear(&mut launcher, "away");
    launcher.stop(1);
    launcher.tell(0, "it stands");
    hear(&mut launcher, "late");
    launcher.go_on(1);
    launcher.tell(0, "it goes on");
    launcher.tell(1, "go on");
    hear(&mut launcher, "well");
    hear(&mut launcher, "well");
}

fn stopped(mut member: Member) {
    let world = World::builder().wireup(member.wireup()).init().unwrap();
    let (comm, tasks) = (world.comm(), world.xtq());
    let sum = Arc::new(AtomicU64::new(0));
    if world.rank() == 1 {
        let ours = Arc::clone(&sum);
        let mock = MockWorker::new(move |task| {
            ours.fetch_add(task.arguments[2], Ordering::Relaxed);
            Ok(())
        });
        let life = Life { idle: Some(Duration::from_micros(200)), ..Life::default() };
        tasks.attach_worker(mock, life).unwrap();
        // SAFETY: the worker touches no memory.
        unsafe { tasks.register_kernel(INDEX, Kernel::of_worker(DeviceFunction::Copy, 64)) }
            .unwrap();
        tasks.register_queue(INDEX, QueueOptions { capacity: 64, width: 1 }).unwrap();
        comm.barrier().unwrap();
        comm.barrier().unwrap();
        // It makes no progress from here on, so the worker that leaves does not come back.
        while tasks.has_resident_worker() {
            std::thread::sleep(Duration::from_micros(100));
        }
        say("away");
        assert_eq!(member.lines.recv_timeout(WATCHDOG).as_deref(), Ok("go on"));
        let mut expected = [0u64];
        comm.recv(&mut expected, 0, 0).unwrap();
        assert_eq!(sum.load(Ordering::Relaxed), expected[0]);
    } else {
        comm.barrier().unwrap();
        let put = |number: u64| {
            let arguments = [0, 0, number].map(u64::to_le_bytes).concat();
            let launch = Launch::linear(1, 1, 24);
            Put::kernel(Rank(1), INDEX, INDEX, launch, arguments)
                .retry(Retry::InAnyOrder)
                .acknowledged()
        };
        for number in 0..BEFORE {
            tasks.wait_for(&tasks.put(put(number)).unwrap()).unwrap();
        }
        comm.barrier().unwrap();
        assert_eq!(member.lines.recv_timeout(WATCHDOG).as_deref(), Ok("it stands"));
        let limit = Duration::from_millis(100);
        let done = tasks.signal(1);
        let late = tasks.put(put(10_000).within(limit).signal(&done)).unwrap();
        let Err(Error::Task(error)) = tasks.wait(&done) else { panic!("{late:?}") };
        let (target, waited) = (Rank(1), Waited::Worker);
        let expected = XtqError::TimedOut { target, limit, waited, may_run: true };
        assert_eq!((error, late.outcome()), (expected.clone(), Some(Err(expected))));
        // By a message.
        let late = tasks.put(put(20_000).retry(Retry::InOrder).within(limit)).unwrap();
        let Err(Error::Task(error)) = tasks.wait_for(&late) else { panic!("{late:?}") };
        let waited = Waited::Progress;
        assert_eq!(error, XtqError::TimedOut { target, limit, waited, may_run: true });
        say("late");
        assert_eq!(member.lines.recv_timeout(WATCHDOG).as_deref(), Ok("it goes on"));
        tasks.wait_for(&tasks.put(put(40_000)).unwrap()).unwrap();
        tasks.wait_for(&tasks.put(put(80_000).retry(Retry::InOrder)).unwrap()).unwrap();
        let all: u64 = (0..BEFORE).sum::<u64>() + 10_000 + 20_000 + 40_000 + 80_000;
        comm.send(&[all], 1, 0).unwrap();
    }
    say("well");
    world.finalize().unwrap();
}
