//! A target that calls nothing: by messages its progress thread answers; mapped memory needs no answer, so that a process
//! which is stopped (SIGSTOP) is read and written all the same.

use gapless::{Lock, ReduceOp, Window, World};
use gapless_tests::launcher::{Member, Said, TestLauncher, say};
use std::time::Duration;

const TEST: &str = "collectives::windows::passive::a_target_that_calls_nothing_is_reached";
const WATCHDOG: Duration = Duration::from_secs(60);
const ROUNDS: u64 = 200;

#[test]
fn a_target_that_calls_nothing_is_reached() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    // A stopped target is not tested by messages: the origin would wait until it goes on.
    for part in ["thread", "stopped"] {
        let mut launcher = TestLauncher::start(TEST, &[part; 2], |_, _| {});
        let hear = |launcher: &mut TestLauncher, wanted: &str| match launcher.hear(WATCHDOG) {
            Some((_, Said::Line(line))) if line == wanted => {}
            other => panic!("{part}: {other:?} instead of {wanted:?}"),
        };
        hear(&mut launcher, "calls nothing");
        if part == "stopped" {
            launcher.stop(1);
        }
        launcher.tell(0, "go");
        hear(&mut launcher, "was there");
        if part == "stopped" {
            launcher.go_on(1);
        }
        launcher.tell(1, "look");
        hear(&mut launcher, "well");
        hear(&mut launcher, "well");
    }
}

fn rank(mut member: Member) {
    let has_thread = member.part == "thread";
    let world =
        World::builder().wireup(member.wireup()).progress_thread(has_thread).init().unwrap();
    let comm = world.comm();
    let builder = comm.window();
    let builder = if has_thread { builder.by_messages() } else { builder };
    let mut window: Window<u64> = builder.allocate(8).unwrap();
    assert_ne!(window.is_mapped(1 - comm.rank()).unwrap(), has_thread);
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        say("calls nothing");
        assert_eq!(member.lines.recv_timeout(WATCHDOG).as_deref(), Ok("look"));
        window.lock(1, Lock::Shared).unwrap();
        let found: Vec<u64> = (0..5).map(|at| window.load(at).unwrap()).collect();
        window.unlock(1).unwrap();
        assert_eq!(found, [ROUNDS, ROUNDS, 2 * ROUNDS, ROUNDS, 7]);
    } else {
        assert_eq!(member.lines.recv_timeout(WATCHDOG).as_deref(), Ok("go"));
        for round in 0..ROUNDS {
            // Alone: what an exclusive lock is for.
            window.lock(1, Lock::Exclusive).unwrap();
            let mut count = [0u64];
            window.get(&mut count, 1, 0).unwrap();
            window.put(&[count[0] + 1], 1, 0).unwrap();
            window.unlock(1).unwrap();
            window.lock_all().unwrap();
            assert_eq!(window.fetch_and_op(1u64, 1, 1, ReduceOp::Sum).unwrap(), round);
            window.accumulate(&[2u64], 1, 2, ReduceOp::Sum).unwrap();
            window.flush(1).unwrap();
            assert_eq!(window.compare_and_swap(round, round + 1, 1, 3).unwrap(), round);
            window.unlock_all().unwrap();
        }
        window.lock(1, Lock::Shared).unwrap();
        window.rput(vec![7u64], 1, 4).unwrap().wait().1.unwrap();
        window.unlock(1).unwrap();
        say("was there");
    }
    say("well");
    world.finalize().unwrap();
}
