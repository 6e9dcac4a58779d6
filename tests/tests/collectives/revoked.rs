//! A rank revokes communicators while others wait there, in all forms, and all go on with what they shrink them to. Ranks
//! are threads, and then processes of which one is killed.

use crate::collectives::ranks;
use crate::collectives::work::{FORMS, Work};
use gapless::{
    Collective, Communicator, Error, OwnedCollective, ReduceOp, SendMode, Source, TagSel, World,
};
use gapless_tests::launcher::{Lines, Member, TestLauncher, say};
use std::time::Duration;

/// One for each way of waiting.
const WAYS: usize = 8;

/// Waits in one way for what does not come.
fn wait(way: usize, comm: &Communicator) -> Result<(), Error> {
    let (ours, mut all) = (vec![1u32; 9000], vec![0u32; 9000]);
    let mut room = vec![0u8; 100];
    match way {
        0 => comm.recv(&mut [0u8], 0, 9).map(drop),
        // Longer than a slot, and nobody receives it.
        1 => comm.send(&vec![1u8; 1 << 20], 0, 9).map(drop),
        2 => comm.scope(|s| s.irecv(&mut room, Source::Any, 9).map(drop)),
        3 => comm.probe(0, TagSel::Any).map(drop),
        // Through memory that all share, if they can.
        4 => comm.barrier(),
        5 => comm.allreduce(&ours, &mut all, ReduceOp::Sum),
        // By messages.
        6 => comm.scope(|s| {
            let _ = s.iallreduce(&ours, &mut all, ReduceOp::Sum)?;
            s.ibarrier()?.wait()
        }),
        _ => {
            let begun = comm.begin_owned((), room, |_, recv| Collective::bcast(recv, 0))?;
            OwnedCollective::wait_any(&mut vec![begun]).map_or(Ok(()), |(_, (_, result))| result)
        }
    }
}

/// Nothing but what survivors do works on a revoked communicator.
fn refused(comm: &Communicator) {
    assert!(comm.is_revoked());
    let mut sum = [0u32];
    let calls = [
        comm.send(&[1u8], 0, 0).map(drop),
        comm.send_mode(&[1u8], 0, 0, SendMode::Synchronous).map(drop),
        comm.recv(&mut [0u8], Source::Any, 0).map(drop),
        comm.iprobe(0, 0).map(drop),
        comm.barrier(),
        comm.allreduce(&[1u32], &mut sum, ReduceOp::Sum),
        comm.scope(|s| s.ibarrier()?.wait()),
        comm.dup().map(drop),
        comm.split(None, 0).map(drop),
        comm.begin_owned((), (), |_, _| Collective::barrier())
            .map_or_else(|refused| Err(refused.error), |begun| begun.wait().1),
    ];
    for (at, result) in calls.into_iter().enumerate() {
        assert!(result.is_err_and(|error| error.is_revoked()), "call {at}");
    }
}

#[test]
fn whoever_waits_hears_that_a_communicator_is_revoked() {
    // Even numbers share memory.
    for size in [2, 3, 4] {
        ranks(size, |comm| {
            let each: Vec<_> = (0..WAYS).map(|_| comm.dup().unwrap()).collect();
            let late = comm.dup().unwrap();
            for part in &each {
                // What blocking ones share is made.
                part.barrier().unwrap();
                part.allreduce(&[1u32; 9000], &mut [0u32; 9000], ReduceOp::Sum).unwrap();
            }
            let mut kept = comm
                .dup()
                .unwrap()
                .collective_init((), vec![0u8; 9], |_, recv| Collective::bcast(recv, 0))
                .unwrap();
            if comm.rank() == 0 {
                for from in 1..size {
                    comm.recv(&mut [0u8], from, 0).unwrap();
                }
                // The others wait by now, or soon.
                std::thread::sleep(Duration::from_millis(20));
                each.iter().chain([&late]).for_each(|part| part.revoke().unwrap());
            } else {
                std::thread::scope(|threads| {
                    let waits: Vec<_> = each
                        .iter()
                        .enumerate()
                        .map(|(way, part)| threads.spawn(move || wait(way, part)))
                        .collect();
                    comm.send(&[1u8], 0, 0).unwrap();
                    for (way, waits) in waits.into_iter().enumerate() {
                        let error = waits.join().unwrap().unwrap_err();
                        assert!(error.is_revoked(), "way {way}: {error}");
                    }
                });
                // It may be that only rank 0 has said so until now.
                while !late.is_revoked() {
                    comm.iprobe(0, 1).unwrap();
                }
            }
            each.iter().chain([&late]).for_each(refused);
            for part in &each {
                assert_eq!(part.agree(3 - comm.rank() % 2).unwrap().0, 2);
                let rest = part.shrink().unwrap();
                let mut sum = [0u32];
                rest.allreduce(&[1u32], &mut sum, ReduceOp::Sum).unwrap();
                assert_eq!((sum, rest.is_revoked()), ([size], false));
                rest.barrier().unwrap();
            }
            each.into_iter().for_each(|part| part.free().unwrap());
            // What others do is not disturbed.
            kept.start().unwrap();
            kept.wait().unwrap();
            comm.barrier().unwrap();
        });
    }
}

const TEST: &str = "collectives::revoked::survivors_of_a_killed_rank_revoke_and_go_on";
/// A watchdog, not a measurement.
const WATCHDOG: Duration = Duration::from_secs(20);
const VICTIM: u32 = 2;

/// Nobody counts rounds: whoever gets an error revokes, and all that are left shrink.
#[test]
fn survivors_of_a_killed_rank_revoke_and_go_on() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    for form in FORMS {
        let mut launcher = TestLauncher::start(TEST, &[form; 4], |_, _| {});
        let mut lines = Lines::new(form, VICTIM, WATCHDOG);
        lines.wait(&mut launcher, "going", 4);
        launcher.kill(VICTIM);
        lines.wait(&mut launcher, "went on", 3);
    }
}

fn rank(mut member: Member) {
    let form = member.part.clone();
    let world = World::builder().wireup(member.wireup()).init().unwrap();
    let comm = world.comm().dup().unwrap();
    let mut work = Work::new(&world, &comm, &form).unwrap();
    work.round(&comm).unwrap();
    let rest = std::thread::scope(|threads| {
        // Nothing comes, and who should send it lives: only revoking ends it.
        let next = (comm.rank() + if comm.rank() == 1 { 2 } else { 1 }) % 4;
        let waits = threads.spawn({
            let comm = comm.clone();
            move || comm.recv(&mut [0u8], next, 99)
        });
        say("going");
        let error = std::iter::repeat_with(|| work.round(&comm)).find_map(Result::err).unwrap();
        // Or one who heard of it earlier gave up what this rank needs.
        let gave_up = error.to_string().contains("could not do its part");
        assert!(error.lost_rank() == Some(VICTIM) || error.is_revoked() || gave_up, "{error}");
        comm.revoke().unwrap();
        let error = waits.join().unwrap().unwrap_err();
        assert!(error.is_revoked(), "{error}");
        comm.shrink().unwrap()
    });
    assert_eq!(rest.size(), 3);
    drop(work);
    let mut work = Work::new(&world, &rest, &form).unwrap();
    for _ in 0..5 {
        work.round(&rest).unwrap();
    }
    rest.barrier().unwrap();
    say("went on");
    let _ = world.finalize();
}
