//! A process of a collective is stopped (SIGSTOP): the others wait for it, nobody takes it for dead, and all go on
//! together when it does.

use crate::collectives::work::{FORMS, Work};
use gapless::World;
use gapless_tests::launcher::{Member, Said, TestLauncher, say};
use std::time::Duration;

const TEST: &str = "collectives::stopped::a_stopped_rank_delays_the_others_and_breaks_nothing";
const WATCHDOG: Duration = Duration::from_secs(60);
const VICTIM: u32 = 2;
/// Longer than any transport here takes to notice a death.
const STOPPED: Duration = Duration::from_millis(400);

#[test]
fn a_stopped_rank_delays_the_others_and_breaks_nothing() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    let mut launcher = TestLauncher::start(TEST, &[""; 4], |_, _| {});
    let hear = |launcher: &mut TestLauncher, wanted: &str| {
        for _ in 0..4 {
            match launcher.hear(WATCHDOG) {
                Some((_, Said::Line(line))) if line == wanted => {}
                other => panic!("{other:?} instead of {wanted:?}"),
            }
        }
    };
    for form in FORMS {
        hear(&mut launcher, form);
        launcher.stop(VICTIM);
        std::thread::sleep(STOPPED);
        // Rank 0 hears it while it waits: it has another thread for that.
        launcher.tell(0, "enough");
        launcher.go_on(VICTIM);
    }
    hear(&mut launcher, "well");
}

fn rank(mut member: Member) {
    let world = World::builder().wireup(member.wireup()).init().unwrap();
    let comm = world.comm();
    for form in FORMS {
        let mut work = Work::new(&world, comm, form).unwrap();
        work.round(comm).unwrap();
        say(form);
        loop {
            let mut goes_on = u8::from(member.lines.try_recv().is_err());
            comm.bcast(&mut goes_on, 0).unwrap();
            work.round(comm).unwrap();
            if goes_on == 0 {
                break;
            }
        }
    }
    say("well");
    world.finalize().unwrap();
}
