//! Processes that drop their worlds: whoever needs them is told, and nobody else is harmed.

use crate::common::{
    BODY, WATCHDOG, again, await_flag, finish, flag, gapless, is_rank, join, meeting_folder,
    orphans, ranks, text,
};
use gapless::{Communicator, Error, Lock, PmlError, ReduceOp, Source, World};
use rustix::process::getpid;
use std::time::{Duration, Instant};

/// What the error of a wait says that needs rank 1, which has departed.
fn misses_rank_1<T: std::fmt::Debug>(what: &str, result: Result<T, Error>) {
    let error = result.expect_err(what);
    assert_eq!(error.lost_rank(), Some(1), "{what}: {error}");
    let line = error.to_string();
    assert!(line.contains("process 1 left without finalizing"), "{what}: {line}");
    assert_eq!(line.matches("rank").count(), 0, "{what}: {line}");
}

/// Rank 1 leaves by `?`, with an error that the others do not know of.
fn fails(world: World) -> Result<(), std::io::Error> {
    std::fs::read("/no/such/input")?;
    drop(world);
    Ok(())
}

/// Everything that needs rank 1 ends with an error that names it, and then the others leave in good order.
fn go_on_without_rank_1(world: World) {
    let comm = world.comm().clone();
    let mut window = comm.window_allocate::<u64>(8).unwrap();
    // Two at a time, so that some ranks need rank 1 only through another.
    let pairs = comm.split(Some(comm.rank() / 2), 0).unwrap().unwrap();
    comm.barrier().unwrap();
    if world.rank() == 1 {
        drop((window, pairs, comm));
        assert!(fails(world).is_err());
        return;
    }
    misses_rank_1("receive", comm.recv(&mut [0u8], 1, 7));
    misses_rank_1("short send", comm.send(&[1u8], 1, 7));
    misses_rank_1("long send", comm.send(&vec![1u8; 1 << 20], 1, 7));
    misses_rank_1("barrier", comm.barrier());
    misses_rank_1("short reduction", comm.allreduce(&[1u64], &mut [0u64], ReduceOp::Sum));
    let (long, mut sum) = (vec![1u64; 100_000], vec![0u64; 100_000]);
    misses_rank_1("long reduction", comm.allreduce(&long, &mut sum, ReduceOp::Sum));
    let (put, flush) = (window.lock(1, Lock::Shared), window.put(&[1u64], 1, 0));
    misses_rank_1("window", put.and(flush).and_then(|()| window.flush(1)));
    misses_rank_1("fence", window.fence());
    let error = comm.dup().unwrap_err();
    assert_eq!(error.lost_rank(), Some(1), "{error}");
    if world.rank() == 0 {
        misses_rank_1("barrier of two", pairs.barrier());
    } else {
        pairs.barrier().unwrap();
    }
    // The rest agree who is left.
    let rest = comm.shrink().unwrap();
    assert_eq!(rest.size(), comm.size() - 1);
    rest.barrier().unwrap();
    drop((window, rest, pairs, comm));
    world.finalize().unwrap();
}

#[test]
fn whoever_needs_a_process_that_departed_is_told_and_the_rest_finalize() {
    let name = "leaving::whoever_needs_a_process_that_departed_is_told_and_the_rest_finalize";
    if is_rank(name) {
        let world = World::init().expect("the world comes to be");
        return go_on_without_rank_1(world);
    }
    for size in [2, 4] {
        let mut command = gapless();
        command.args(["run", "-n", &size.to_string(), "-e", &format!("{BODY}={name}")]);
        command.args(again(name));
        let output = finish(command, WATCHDOG);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{size}: {}\n{out}\n{err}", output.status);
        assert_eq!(out.matches("1 passed").count(), size, "{out}");
    }
}

/// Likewise where the launcher's fences never open, as one process does not come.
#[test]
fn nobody_waits_at_a_fence_for_a_process_that_departed() {
    let name = "leaving::nobody_waits_at_a_fence_for_a_process_that_departed";
    orphans(4, name, &[], WATCHDOG, |builder| go_on_without_rank_1(join(builder)));
}

/// One that nobody needs harms nobody, whether it ends before the others leave or after.
#[test]
fn a_process_that_nobody_needs_may_leave() {
    ranks(4, "leaving::a_process_that_nobody_needs_may_leave", |world| {
        let comm = world.comm().clone();
        comm.barrier().unwrap();
        let rest = comm.split((comm.rank() != 2).then_some(0), 0).unwrap();
        drop(comm);
        let Some(rest) = rest else { return drop(world) };
        if rest.rank() == 1 {
            // Long after the others wait.
            std::thread::sleep(Duration::from_millis(300));
        }
        for _ in 0..100 {
            rest.barrier().unwrap();
        }
        drop(rest);
        world.finalize().unwrap();
    });
}

/// Sends a long message without waiting for it.
fn send_away(comm: &Communicator, to: u32, tag: i32) -> gapless::OwnedRequest<Vec<u8>> {
    comm.isend_owned(vec![5u8; 8 << 20], to, tag).unwrap()
}

/// What was sent is served until it was received; what nobody receives is given up.
#[test]
fn what_a_process_has_sent_is_served_before_it_departs() {
    orphans(
        2,
        "leaving::what_a_process_has_sent_is_served_before_it_departs",
        &[],
        WATCHDOG,
        |builder| {
            let world = join(builder);
            let comm = world.comm().clone();
            comm.barrier().unwrap();
            if world.rank() == 1 {
                comm.send(&[1u8], 0, 0).unwrap();
                let requests = [1, 2].map(|tag| send_away(&comm, 0, tag));
                drop((world, comm));
                let [wanted, unwanted] = requests.map(|request| request.wait().1);
                wanted.unwrap();
                let unreceived = Error::from(PmlError::Unreceived { rank: 0, tag: 2 });
                assert_eq!(unwanted.unwrap_err(), unreceived);
                flag(&meeting_folder(), "departed");
                return;
            }
            // It is asked for when the other has begun to leave.
            assert_eq!(comm.probe(1, 2).unwrap().bytes, 8 << 20);
            let mut bytes = vec![0u8; 8 << 20];
            comm.recv(&mut bytes, 1, 1).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 5));
            // Short ones are kept.
            let error = comm.recv(&mut [0u8], Source::Any, 9).unwrap_err();
            assert_eq!(error.lost_rank(), Some(1), "{error}");
            await_flag(&meeting_folder(), "departed");
            comm.recv(&mut [0u8], 1, 0).unwrap();
            misses_rank_1("receive of the other", comm.recv(&mut bytes, 1, 2));
            misses_rank_1("receive from any", comm.recv(&mut bytes, 1, 3));
            drop(comm);
            world.finalize().unwrap();
        },
    );
}

/// Runs this program again under the launcher: its exit code, and what it wrote to standard error.
fn launched(name: &str, ranks: u32) -> (Option<i32>, String) {
    let mut command = gapless();
    command.args(["run", "-n", &ranks.to_string(), "-e", &format!("{BODY}={name}")]);
    command.args(again(name));
    let output = finish(command, WATCHDOG);
    (output.status.code(), text(&output.stderr))
}

/// Waits until a process has ended, whether its parent has collected it or not.
fn await_end(process: i32) {
    let begin = Instant::now();
    let runs = || {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    while runs() {
        assert!(begin.elapsed() < WATCHDOG, "process {process} does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_launcher_ends_the_job_with_the_code_of_who_left() {
    let name = "leaving::the_launcher_ends_the_job_with_the_code_of_who_left";
    if is_rank(name) {
        let world = World::init().unwrap();
        let mut rank_1 = [getpid().as_raw_pid()];
        world.comm().bcast(&mut rank_1, 1).unwrap();
        world.comm().barrier().unwrap();
        if world.rank() == 1 {
            assert!(fails(world).is_err());
            std::process::exit(7);
        }
        misses_rank_1("barrier", world.comm().barrier());
        drop(world);
        // The launcher waits half a second for rank 1, which may take longer on a busy machine.
        await_end(rank_1[0]);
        std::process::exit(3);
    }
    let (code, said) = launched(name, 4);
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("rank 1 left without finalizing, and exited with 7"), "{said}");
}

#[test]
fn the_launcher_names_who_left_although_it_ended_well() {
    let name = "leaving::the_launcher_names_who_left_although_it_ended_well";
    if is_rank(name) {
        let world = World::init().unwrap();
        world.comm().barrier().unwrap();
        if world.rank() == 1 {
            drop(world);
            std::process::exit(0);
        }
        misses_rank_1("receive", world.comm().recv(&mut [0u8], 1, 0));
        drop(world);
        std::process::exit(3);
    }
    let (code, said) = launched(name, 2);
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains("rank 0 exited with 3, because rank 1 left without finalizing"),
        "{said}"
    );
}

/// The other may be seen to end first.
#[test]
fn the_launcher_names_who_panicked() {
    let name = "leaving::the_launcher_names_who_panicked";
    if is_rank(name) {
        let world = World::init().unwrap();
        let mut rank_0 = [getpid().as_raw_pid()];
        world.comm().bcast(&mut rank_0, 0).unwrap();
        world.comm().barrier().unwrap();
        if world.rank() == 1 {
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _world = world;
                panic!("on purpose");
            }));
            assert!(unwound.is_err());
            await_end(rank_0[0]);
            std::process::exit(101);
        }
        let error = world.comm().barrier().unwrap_err();
        assert_eq!(error.lost_rank(), Some(1), "{error}");
        assert!(world.finalize().is_err());
        std::process::exit(0);
    }
    // The launcher kills rank 1 half a second after that has left. On a busy machine rank 1 may take longer.
    let mut all = Vec::new();
    while all.len() < 5 {
        let (code, said) = launched(name, 2);
        if code == Some(101) && said.contains("rank 1 exited with 101") {
            return;
        }
        all.push((code, said));
    }
    panic!("{all:?}");
}
