//! Functions of `#[gapless::task]`, called among processes: over shared memory and over TCP, in chains, and at a
//! process that is killed.
#![forbid(unsafe_code)]

use gapless::xtq::{CallRequest, Rank, Tasks};
use gapless::{Error, World};
use gapless_tests::launcher::{Member, Said, TestLauncher, say};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TEST: &str = "calls::processes_call_functions_of_each_other";
const WATCHDOG: Duration = Duration::from_secs(60);
const SIZE: u32 = 3;
/// The one that is killed.
const VICTIM: u32 = 2;

#[gapless::task]
fn reversed(numbers: &[u64]) -> Vec<u64> {
    numbers.iter().rev().copied().collect()
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
    tasks.register_task::<reversed>().unwrap();
    let (_keep, gate) = channel();
    tasks.register_task_with::<hangs>(Arc::new(Mutex::new(gate))).unwrap();
    let (done, ended) = channel();
    let (next, done) = (Rank((me + 1) % SIZE), Mutex::new(done));
    let hops = Hops { tasks: tasks.clone(), next, done };
    tasks.register_task_with::<hop>(Arc::new(hops)).unwrap();
    comm.barrier().unwrap();

    // Of a few bytes, of a message, of many; many at a time.
    let long: Vec<Vec<u64>> = [0, 1, 100, 10_000, 100_000].map(|len| (0..len).collect()).into();
    let call =
        |i: usize| tasks.call([0, 1, 2].map(Rank)[i % 3], reversed(&long[i / 3 % 5])).unwrap();
    let calls: Vec<_> = (0..90).map(call).collect();
    let results = CallRequest::wait_all(calls);
    for (i, result) in results.into_iter().enumerate() {
        assert!(result.unwrap().iter().rev().eq(&long[i / 3 % 5]), "{i}");
    }
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
    let done = tasks.call(next, reversed(&[1, 2]));
    say("called");
    for lost in CallRequest::wait_all(hanging) {
        assert_eq!(lost.unwrap_err().lost_rank(), Some(VICTIM));
    }
    // The other two go on; its call may have come before the victim's end.
    assert!(done.unwrap().wait() == Ok(vec![2, 1]) || next == Rank(VICTIM));
    let lost = tasks.call(Rank(VICTIM), hangs()).and_then(CallRequest::wait).unwrap_err();
    assert_eq!(lost.lost_rank(), Some(VICTIM));
    let other = Rank(1 - me);
    assert_eq!(tasks.call(other, reversed(&[3, 4])).unwrap().wait(), Ok(vec![4, 3]));
    say("well");
    // Until the launcher is gone: the other may still call.
    loop {
        let _ = tasks.progress();
        std::thread::yield_now();
    }
}
