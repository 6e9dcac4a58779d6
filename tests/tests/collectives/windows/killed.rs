//! A rank is killed in the middle of each kind of epoch, as origin and as target: who needs it gets an error that names it, and
//! those that are left go on together.

use gapless::{Lock, ReduceOp, Window, World};
use gapless_tests::launcher::{Lines, Member, Said, TestLauncher, say};
use std::time::{Duration, Instant};

const TEST: &str = "collectives::windows::killed::a_killed_rank_is_named";
/// A loss is an error within two seconds, it is promised; a watchdog waits ten times as long.
const WATCHDOG: Duration = Duration::from_secs(20);
const VICTIM: u32 = 2;

#[test]
fn a_killed_rank_is_named() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    for path in ["mapped", "messages"] {
        let mut launcher = TestLauncher::start(TEST, &[path; 3], |_, _| {});
        let mut lines = Lines::new(path, VICTIM, WATCHDOG);
        lines.wait(&mut launcher, "has the lock", 1);
        lines.wait(&mut launcher, "waits", 2);
        launcher.kill(VICTIM);
        lines.wait(&mut launcher, "named it", 2);
    }
}

fn rank(mut member: Member) {
    let by_messages = member.part == "messages";
    let world = World::builder().wireup(member.wireup()).init().unwrap();
    let comm = world.comm();
    let builder = comm.window();
    let builder = if by_messages { builder.by_messages() } else { builder };
    let mut window: Window<u64> = builder.allocate(1).unwrap();
    if comm.rank() == VICTIM {
        window.lock(0, Lock::Exclusive).unwrap();
        say("has the lock");
    }
    comm.barrier().unwrap();
    if comm.rank() == VICTIM {
        loop {
            window.put(&[1u64], 0, 0).unwrap();
            window.flush(0).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    say("waits");
    // One waits for the lock that it has, one for its post.
    let error = match comm.rank() {
        1 => window.lock(0, Lock::Shared).unwrap_err(),
        _ => window.start(&[VICTIM]).unwrap_err(),
    };
    assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
    // Operations on it fail, too, once that is known.
    let locked = window.lock(VICTIM, Lock::Shared);
    let failed = locked.and_then(|()| window.unlock(VICTIM)).unwrap_err();
    assert_eq!(failed.lost_rank(), Some(VICTIM), "{failed}");
    assert!(window.fence().is_err());
    say("named it");
    let _ = world.finalize();
}

const EACH: &str = "collectives::windows::killed::a_rank_that_is_killed_in_an_epoch";
const EPOCHS: [&str; 6] = ["fence", "started", "posted", "shared", "all", "waiting"];

/// The epochs of one launcher: each has windows of its own, whose victim is the same.
#[test]
fn a_rank_that_is_killed_in_an_epoch() {
    if let Some(member) = Member::of_launcher() {
        return epochs(member);
    }
    for path in ["mapped", "messages", "tasks"] {
        let mut launcher = TestLauncher::start(EACH, &[path; 3], |_, _| {});
        let mut heard: Vec<(u32, String)> = Vec::new();
        let mut killed = false;
        let until = Instant::now() + 2 * WATCHDOG;
        while heard.iter().filter(|(_, line)| line == "over").count() < 2 {
            match launcher.hear(until.saturating_duration_since(Instant::now())) {
                Some((rank, Said::Line(line))) => heard.push((rank, line)),
                Some((VICTIM, Said::Ended(_))) => {}
                Some((_, Said::Ended(status))) if status.success() => {}
                other => panic!("{path}: {heard:?}, then {other:?}"),
            }
            if !killed && heard.iter().filter(|(_, line)| line == "open").count() == 3 {
                launcher.kill(VICTIM);
                killed = true;
            }
        }
    }
}

fn loss(window: &Window<u64>) -> Result<(), gapless::Error> {
    loop {
        window.flush(VICTIM)?;
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn epochs(mut member: Member) {
    let (by_messages, by_tasks) = (member.part == "messages", member.part == "tasks");
    let world = World::builder().wireup(member.wireup()).init().unwrap();
    let comm = world.comm();
    let me = comm.rank();
    let make = || -> Window<u64> {
        let builder = if by_messages { comm.window().by_messages() } else { comm.window() };
        let builder = if by_tasks { builder.accumulate_by_tasks() } else { builder };
        builder.allocate(1000).unwrap()
    };
    let give = |window: &Window<u64>, number: u64, rank: u32| match by_tasks {
        true => window.accumulate(&[number; 1000], rank, 0, ReduceOp::Sum),
        false => window.put(&[number; 1000], rank, 0),
    };
    let mut windows = EPOCHS.map(|_| make());
    let [fence, started, posted, shared, all, waiting] = &mut windows;
    // The victim is in the middle of each: an origin that has put or accumulated, and a target that others access.
    fence.fence().unwrap();
    give(fence, 1, (me + 1) % 3).unwrap();
    if me == VICTIM {
        started.start(&[0]).unwrap();
        give(started, 1, 0).unwrap();
        posted.post(&[0, 1]).unwrap();
        shared.lock(0, Lock::Shared).unwrap();
        give(shared, 1, 0).unwrap();
        all.lock_all().unwrap();
    } else {
        if me == 0 {
            started.post(&[VICTIM]).unwrap();
        }
        posted.start(&[VICTIM]).unwrap();
        all.lock_all().unwrap();
        give(all, 1, VICTIM).unwrap();
    }
    comm.barrier().unwrap();
    if me == VICTIM {
        waiting.lock(1, Lock::Exclusive).unwrap();
        say("open");
        loop {
            give(all, 2, 0).unwrap();
            all.flush(0).unwrap();
        }
    }
    say("open");
    let names = |result: Result<(), gapless::Error>, what: &str| {
        let error = result.expect_err(what);
        assert_eq!(error.lost_rank(), Some(VICTIM), "{what}: {error}");
    };
    // Whoever waits for it is told; at the latest then the death is known.
    names(loss(all), "flush");
    names(all.unlock_all(), "unlock_all");
    if me == 0 {
        names(started.wait(), "wait");
        // It has the lock still.
        names(shared.lock(0, Lock::Exclusive), "lock");
    }
    if by_messages || by_tasks {
        names(give(posted, 3, VICTIM).and_then(|()| posted.complete()), "complete");
    } else {
        // Its memory is there; that it is not alive is told by the message.
        names(posted.complete(), "complete");
    }
    // Who shares the lock with the dead gets it.
    if me == 0 {
        shared.lock(0, Lock::Shared).unwrap();
        shared.unlock(0).unwrap();
    }
    names(fence.fence(), "fence");
    // Another lock of the dead, at a rank that lives.
    let error = waiting.lock(1, Lock::Shared).unwrap_err();
    assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
    let [_, _, _, _, all, _] = windows;
    names(all.free().map(drop), "free");
    say("over");
    let _ = world.finalize();
}
