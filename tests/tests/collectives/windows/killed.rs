//! A rank is killed while it has a lock, or while others wait for it: they get an error that names it.

use gapless::{Lock, Window, World};
use gapless_tests::actor::say;
use gapless_tests::crew::{Crew, Member, Said};
use std::time::{Duration, Instant};

const TEST: &str = "windows::killed::a_killed_rank_is_named";
/// A loss is an error within two seconds, it is promised; a watchdog waits ten times as long.
const WATCHDOG: Duration = Duration::from_secs(20);
const VICTIM: u32 = 2;

#[test]
fn a_killed_rank_is_named() {
    if let Some(member) = Member::of_crew() {
        return rank(member);
    }
    for path in ["mapped", "messages"] {
        let mut crew = Crew::start(TEST, &[path; 3], |_, _| {});
        let mut heard = Vec::new();
        let mut hear = |crew: &mut Crew, wanted: &str, count: usize| {
            let until = Instant::now() + WATCHDOG;
            while heard.iter().filter(|line| *line == wanted).count() < count {
                match crew.hear(until.saturating_duration_since(Instant::now())) {
                    Some((_, Said::Line(line))) => heard.push(line),
                    Some((VICTIM, Said::Ended(_))) => {}
                    Some((_, Said::Ended(status))) if status.success() => {}
                    other => panic!("{path}: {heard:?} while {wanted:?} is due, then {other:?}"),
                }
            }
        };
        hear(&mut crew, "has the lock", 1);
        hear(&mut crew, "waits", 2);
        crew.kill(VICTIM);
        hear(&mut crew, "named it", 2);
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
