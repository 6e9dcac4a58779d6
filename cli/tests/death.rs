//! Peers that die: whoever needs them gets an error that names them, in time.

mod common;

use common::{await_flag, flag, join, meeting_folder, orphans};
use gapless::{Builder, Config, Error, Failure, PmlError, Protocol, Source, World};
use std::time::{Duration, Instant};

/// Two seconds are promised; a watchdog waits ten times as long.
const WATCHDOG: Duration = Duration::from_secs(20);
/// What meeting and ending may take besides.
const SLACK: Duration = Duration::from_secs(30);

fn die() -> ! {
    let me = rustix::process::getpid();
    rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
    unreachable!("killed")
}

/// Runs `wait`, which must end in time with the loss of rank 1.
fn loses_rank_1<T: std::fmt::Debug>(wait: impl FnOnce() -> Result<T, Error>) {
    let begin = Instant::now();
    let error = wait().expect_err("rank 1 is dead");
    assert!(begin.elapsed() < WATCHDOG, "after {:?}: {error}", begin.elapsed());
    assert_eq!(error.lost_rank(), Some(1), "{error}");
    assert!(error.to_string().contains("process 1"), "{error}");
}

fn forced(builder: Builder, protocol: Protocol) -> World {
    join(builder.config(Config { force: Some(protocol), ..Config::default() }))
}

/// Leaves without waiting for the dead, and without the destructor's complaint.
fn leave(world: World) {
    std::mem::forget(world);
}

#[test]
fn before_a_message() {
    orphans(3, "before_a_message", &[1], WATCHDOG + SLACK, |builder| {
        let world = join(builder);
        let comm = world.comm();
        match comm.rank() {
            1 => die(),
            0 => {
                loses_rank_1(|| comm.recv(&mut [0u8; 8], 1, 0));
                loses_rank_1(|| comm.send(&vec![0u8; 1 << 20], 1, 0));
                loses_rank_1(|| comm.probe(1, 0));
                // The others are not harmed.
                comm.send(&[9u8], 2, 0).unwrap();
            }
            _ => {
                let mut byte = [0u8];
                // From any source: rank 0 is still there.
                assert_eq!(comm.recv(&mut byte, Source::Any, 0).unwrap().source, 0);
                assert_eq!(byte, [9]);
            }
        }
        leave(world);
    });
}

#[test]
fn after_an_offer_that_was_never_answered() {
    let name = "after_an_offer_that_was_never_answered";
    orphans(2, name, &[1], WATCHDOG + SLACK, |builder| {
        let world = join(builder);
        let comm = world.comm();
        if comm.rank() == 1 {
            assert_eq!(comm.probe(0, 0).unwrap().bytes, 64 << 20);
            flag(&meeting_folder(), "offered");
            die();
        }
        let big = vec![1u8; 64 << 20];
        let mut shared = world.alloc(64 << 20).unwrap();
        shared.fill(2);
        comm.scope(|s| {
            let first = s.isend(&big, 1, 0)?;
            let second = s.isend(&shared, 1, 0)?;
            loses_rank_1(|| s.wait(first));
            loses_rank_1(|| s.wait(second));
            Ok(())
        })
        .unwrap();
        leave(world);
    });
}

/// Rank 1 is killed while a large message between both is in flight.
fn during(name: &str, protocol: Protocol, dying_sends: bool) {
    const LEN: usize = 256 << 20;
    orphans(2, name, &[1], WATCHDOG + SLACK, |builder| {
        let world = forced(builder, protocol);
        let comm = world.comm();
        if comm.rank() == 1 {
            let mut memory = world.alloc(LEN).unwrap();
            memory.fill(1);
            let folder = meeting_folder();
            std::thread::spawn(move || {
                await_flag(&folder, "started");
                std::thread::sleep(Duration::from_millis(5));
                die();
            });
            // Again and again, in case the machine is quick.
            loop {
                let result = match dying_sends {
                    true => comm.send(&memory, 0, 0),
                    false => comm.recv(&mut memory, 0, 0),
                };
                result.unwrap();
            }
        }
        let mut memory = world.alloc(LEN).unwrap();
        // What the system does at the first touch takes longer than any copy.
        memory.fill(2);
        flag(&meeting_folder(), "started");
        loses_rank_1(|| -> Result<(), Error> {
            loop {
                match dying_sends {
                    true => comm.recv(&mut memory, 1, 0)?,
                    false => comm.send(&memory, 1, 0)?,
                };
            }
        });
        leave(world);
    });
}

#[test]
fn while_a_pipeline_comes_in() {
    during("while_a_pipeline_comes_in", Protocol::Pipeline, true);
}

#[test]
fn while_a_pipeline_goes_out() {
    during("while_a_pipeline_goes_out", Protocol::Pipeline, false);
}

#[test]
fn while_its_memory_is_mapped() {
    during("while_its_memory_is_mapped", Protocol::Mapped, true);
}

#[test]
fn while_it_has_ours_mapped() {
    during("while_it_has_ours_mapped", Protocol::Mapped, false);
}

#[test]
fn while_its_memory_is_read() {
    during("while_its_memory_is_read", Protocol::SingleCopy, true);
}

#[test]
fn while_it_reads_ours() {
    during("while_it_reads_ours", Protocol::SingleCopy, false);
}

#[test]
fn what_came_before_the_end_is_delivered() {
    let name = "what_came_before_the_end_is_delivered";
    orphans(2, name, &[1], WATCHDOG + SLACK, |builder| {
        let world = join(builder);
        let comm = world.comm();
        if comm.rank() == 1 {
            for byte in 0..10u8 {
                comm.send(&[byte], 0, 0).unwrap();
            }
            die();
        }
        let mut byte = [0u8];
        for expected in 0..10u8 {
            comm.recv(&mut byte, 1, 0).unwrap();
            assert_eq!(byte, [expected]);
        }
        loses_rank_1(|| comm.recv(&mut byte, 1, 0));
        let nobody = comm.recv(&mut byte, Source::Any, 0);
        assert!(
            matches!(
                nobody,
                Err(Error::Message(Failure { error: PmlError::NobodyLeft { rank: 1, .. }, .. }))
            ),
            "{nobody:?}"
        );
        leave(world);
    });
}

#[test]
fn a_duplicate_cannot_be_agreed_on_with_the_dead() {
    let name = "a_duplicate_cannot_be_agreed_on_with_the_dead";
    orphans(2, name, &[1], WATCHDOG + SLACK, |builder| {
        let world = join(builder);
        if world.rank() == 1 {
            die();
        }
        loses_rank_1(|| world.comm().dup());
        leave(world);
    });
}
