//! Functions of `#[gapless::task]`, called among processes: over shared memory and over TCP, in chains, and at a
//! process that is killed.
#![forbid(unsafe_code)]

use gapless::xtq::{Answered, CallError, CallFault, Rank, TaskFunction, Tasks};
use gapless::{Datatype, Error, World};
use gapless_tests::launcher::{Member, Said, TestLauncher, say};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TEST: &str = "processes_call_functions_of_each_other";
const WATCHDOG: Duration = Duration::from_secs(60);
const SIZE: u32 = 3;
/// The one that is killed.
const VICTIM: u32 = 2;
/// Calls of each rank at each.
const EACH: u32 = 300;

#[derive(Datatype, Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Rectangle {
    filled: bool,
    w: f64,
    h: f32,
}

#[gapless::task]
fn area(shape: Rectangle, scale: f64) -> f64 {
    f64::from(u8::from(shape.filled)) * shape.w * f64::from(shape.h) * scale
}

#[gapless::task]
fn sorted(rank: &u32, descending: bool, numbers: &[u64]) -> Result<Vec<u64>, String> {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    if descending {
        numbers.reverse();
    }
    if numbers.is_empty() { Err(format!("rank {rank} sorts nothing")) } else { Ok(numbers) }
}

struct Hops {
    tasks: Tasks,
    next: Rank,
    done: Mutex<Sender<()>>,
}

/// Leads to the same at the next rank, and waits for nothing.
#[gapless::task]
fn hop(hops: &Hops, left: u32) -> Result<(), Error> {
    if left == 0 {
        _ = hops.done.lock().unwrap().send(());
        return Ok(());
    }
    hops.tasks.call(hops.next, hop(left - 1)).map(drop)
}

#[gapless::task]
fn hangs(gate: &Mutex<Receiver<()>>) {
    let _ = gate.lock().unwrap().recv();
}

#[gapless::task]
fn unknown() {}

#[test]
fn processes_call_functions_of_each_other() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    for over in ["sm", "tcp"] {
        let mut launcher = TestLauncher::start(TEST, &[over; SIZE as usize], |_, _| {});
        let hear = |launcher: &mut TestLauncher, wanted: &str| match launcher.hear(WATCHDOG) {
            Some((_, Said::Line(line))) if line == wanted => {}
            other => panic!("{over}: {other:?} instead of {wanted:?}"),
        };
        (1..SIZE).for_each(|_| hear(&mut launcher, "called"));
        launcher.kill(VICTIM);
        let mut well = 0;
        while well < SIZE - 1 {
            match launcher.hear(WATCHDOG) {
                Some((_, Said::Line(line))) if line == "well" => well += 1,
                Some((VICTIM, _)) => {}
                other => panic!("{over}: {other:?}"),
            }
        }
    }
}

fn rank(mut member: Member) {
    let builder = World::builder().wireup(member.wireup());
    let world = builder.only([member.part.as_str()]).tcp_interfaces("lo").init().unwrap();
    let (comm, tasks, me) = (world.comm(), world.xtq(), world.rank());
    tasks.register_task::<area>().unwrap();
    tasks.register_task_with::<sorted>(Arc::new(me)).unwrap();
    let (_keep, gate) = channel();
    tasks.register_task_with::<hangs>(Arc::new(Mutex::new(gate))).unwrap();
    let (done, ended) = channel();
    let (next, done) = (Rank((me + 1) % SIZE), Mutex::new(done));
    let hops = Hops { tasks: tasks.clone(), next, done };
    tasks.register_task_with::<hop>(Arc::new(hops)).unwrap();
    comm.barrier().unwrap();

    results(&tasks);
    failures(&tasks, me);
    comm.barrier().unwrap();
    if me == 0 {
        drop(tasks.call(next, hop(2 * SIZE - 1)).unwrap());
        let start = Instant::now();
        while ended.try_recv().is_err() {
            assert!(start.elapsed() < WATCHDOG, "the chain broke");
            tasks.progress().unwrap();
        }
    }
    comm.barrier().unwrap();

    if me == VICTIM {
        let _ = comm.barrier();
        unreachable!("it is killed before the others come");
    }
    let hanging: Vec<_> = (0..5).map(|_| tasks.call(Rank(VICTIM), hangs()).unwrap()).collect();
    let done = tasks.call(next, area(Rectangle { filled: true, w: 1.0, h: 1.0 }, 1.0));
    say("called");
    for lost in Answered::wait_all(hanging) {
        assert_eq!(lost.unwrap_err().lost_rank(), Some(VICTIM));
    }
    // The other two go on; its call may have come before the victim's end.
    assert!(done.unwrap().wait().is_ok_and(|area| area == 1.0) || next == Rank(VICTIM));
    let lost = tasks.call(Rank(VICTIM), hangs()).and_then(Answered::wait).unwrap_err();
    assert_eq!(lost.lost_rank(), Some(VICTIM));
    let other = Rank(1 - me);
    let answer = tasks.call(other, area(Rectangle { filled: true, w: 2.0, h: 2.0 }, 1.0));
    assert_eq!(answer.unwrap().wait(), Ok(4.0));
    say("well");
    // Until the launcher is gone: the other may still call.
    loop {
        let _ = tasks.progress();
        std::thread::yield_now();
    }
}

fn results(tasks: &Tasks) {
    let shape = Rectangle { filled: true, w: 3.0, h: 2.0 };
    let calls: Vec<_> = (0..EACH * SIZE)
        .map(|i| tasks.call(Rank(i % SIZE), area(shape, f64::from(i))).unwrap())
        .collect();
    for (i, area) in (0..).zip(Answered::wait_all(calls)) {
        assert_eq!(area, Ok(6.0 * f64::from(i)));
    }
    // Of a few bytes, of a message, of many.
    for len in [1, 100, 10_000, 100_000] {
        let numbers: Vec<u64> = (0..len).map(|i| i * 7919 % len).collect();
        let mut due = numbers.clone();
        due.sort_unstable();
        for target in (0..SIZE).map(Rank) {
            let up = tasks.call(target, sorted(false, &numbers)).unwrap();
            let down = tasks.call(target, sorted(true, &numbers)).unwrap();
            assert_eq!(up.wait().as_ref(), Ok(&due), "{len}");
            assert!(down.wait().unwrap().iter().rev().eq(&due), "{len}");
        }
    }
}

fn failures(tasks: &Tasks, me: u32) {
    let target = Rank((me + 1) % SIZE);
    let rank = target.0;
    let failed = tasks.call(target, sorted(false, &[])).unwrap().wait().unwrap_err();
    let reason = format!("rank {rank} sorts nothing");
    assert_eq!(
        failed,
        CallError { task: sorted::NAME, rank, why: CallFault::Failed(reason) }.into()
    );
    let failed = tasks.call(target, unknown()).unwrap().wait().unwrap_err();
    assert_eq!(
        failed,
        CallError { task: unknown::NAME, rank, why: CallFault::NotRegistered }.into()
    );
    assert_eq!(
        failed.to_string(),
        format!("task calls::unknown at rank {rank}: it is not registered there")
    );
}
