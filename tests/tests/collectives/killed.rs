//! A process of a collective is killed: the others get an error that names it, or their part ends well; nobody hangs,
//! and collectives among those who live go on.

use crate::by_tasks;
use crate::work::{FORMS, Work};
use gapless::{ReduceOp, World};
use gapless_tests::launcher::{Lines, Member, TestLauncher, say};
use std::time::Duration;

const TEST: &str = "killed::a_killed_rank_is_named_and_the_others_go_on";
/// A loss is an error within two seconds, it is promised; a watchdog waits ten times as long.
const WATCHDOG: Duration = Duration::from_secs(20);
const VICTIM: u32 = 2;
/// Forms whose reductions are tasks.
const BY_TASKS: [&str; 3] = ["tasks blocking", "tasks many", "tasks persistent"];
/// Rounds in which the victim takes part, if it lives so long, and in which it does not.
const ROUNDS: usize = 40;
const LAST: usize = 3;

#[test]
fn a_killed_rank_is_named_and_the_others_go_on() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    for form in FORMS.into_iter().chain(BY_TASKS) {
        let mut launcher = TestLauncher::start(TEST, &[form; 4], |_, _| {});
        let mut lines = Lines::new(form, VICTIM, WATCHDOG);
        lines.wait(&mut launcher, "going", 4);
        launcher.kill(VICTIM);
        lines.wait(&mut launcher, "named it", 3);
        lines.wait(&mut launcher, "went on", 3);
    }
}

fn rank(mut member: Member) {
    let form = member.part.clone();
    let mut builder = World::builder().wireup(member.wireup());
    let work = form.strip_prefix("tasks ");
    if work.is_some() {
        builder = builder.coll_table(by_tasks::table());
    }
    let (world, form) = (builder.init().unwrap(), work.unwrap_or(&form));
    let comm = world.comm();
    // Before anybody is lost: there is no agreement on who is left yet.
    let color = (comm.rank() != VICTIM).then_some(0);
    let rest = comm.split(color, 0).unwrap();
    let mut work = Work::new(&world, comm, form).unwrap();
    work.round(comm).unwrap();
    say("going");
    // All survivors call as many: who has not called a collective is waited for, dead members or not. The victim does
    // not come to the last ones.
    let results: Vec<_> = (0..ROUNDS + LAST)
        .map(|at| {
            while comm.rank() == VICTIM && at >= ROUNDS {
                std::thread::park_timeout(Duration::from_secs(1));
            }
            work.round(comm)
        })
        .collect();
    // An all-reduce depends on all.
    assert!(results[ROUNDS..].iter().all(Result::is_err), "{results:?}");
    for error in results.into_iter().filter_map(Result::err) {
        assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
    }
    say("named it");
    // By a communicator that was made before, and by one that the survivors make.
    for rest in [rest.unwrap(), comm.shrink().unwrap()] {
        let mut sum = [0u32];
        rest.allreduce(&[rest.rank() + 1], &mut sum, ReduceOp::Sum).unwrap();
        assert_eq!((sum, rest.size()), ([6], 3));
        rest.barrier().unwrap();
    }
    say("went on");
    let _ = world.finalize();
}
