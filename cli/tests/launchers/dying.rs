//! Processes that die, abort, panic or leave; and launchers that do.

use super::hostile::Patient;
use super::{Launcher, WATCHDOG, as_ranks, under_each};
use crate::common::{BODY, again, finish, is_rank, text};
use gapless::{Source, World};
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

fn die() -> ! {
    let me = rustix::process::getpid();
    rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
    unreachable!("killed")
}

/// Waits for a message that never comes.
fn wait_in_vain(world: &World) {
    let ended = world.comm().recv(&mut [0u8; 8], Source::Any, 99);
    // Who is still there when the others have ended says so; most are ended before.
    let _ = ended.expect_err("nobody sends this");
}

/// Starts up in all processes: nobody is killed before everybody has joined.
fn join() -> World {
    let world = World::init().unwrap();
    let next = (world.rank() + 1) % world.size();
    let comm = world.comm();
    for _ in 0..world.size() {
        let mut byte = [0u8];
        comm.scope(|s| {
            let _ = s.irecv(&mut byte, Source::Any, 1)?;
            let _ = s.isend(&[1u8], next, 1)?;
            Ok(())
        })
        .unwrap();
    }
    world
}

#[test]
fn a_killed_process_ends_the_job() {
    let name = "launchers::dying::a_killed_process_ends_the_job";
    let body = || {
        let world = join();
        if world.rank() == 1 {
            die();
        }
        wait_in_vain(&world);
        std::mem::forget(world);
        // Whoever is not ended by the launcher goes on to the end.
        std::process::exit(3);
    };
    under_each(3, name, body, |launcher, output| {
        assert!(!output.status.success(), "{launcher:?}: {}", text(&output.stdout));
    });
}

#[test]
fn abort_ends_the_job_with_its_code() {
    let name = "launchers::dying::abort_ends_the_job_with_its_code";
    let body = || {
        let world = join();
        if world.rank() == 2 {
            world.abort(7);
        }
        wait_in_vain(&world);
        std::mem::forget(world);
        std::thread::sleep(WATCHDOG);
    };
    under_each(3, name, body, |launcher, output| {
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(7), "{launcher:?}: {out}{err}");
    });
    if is_rank(name) {
        return;
    }
    let mut command = crate::common::gapless();
    command.args(["run", "-n", "3"]);
    as_ranks(&mut command, name);
    let output = finish(command, WATCHDOG);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("rank 2 aborted the job with 7"));
}

#[test]
fn a_panic_ends_the_job() {
    let name = "launchers::dying::a_panic_ends_the_job";
    let body = || {
        let world = join();
        assert_ne!(world.rank(), 0, "rank 0 panics on purpose");
        wait_in_vain(&world);
        std::mem::forget(world);
        std::process::exit(3);
    };
    under_each(2, name, body, |launcher, output| {
        assert!(!output.status.success(), "{launcher:?}");
    });
}

#[test]
fn who_leaves_without_finalizing_fails_the_job() {
    let name = "launchers::dying::who_leaves_without_finalizing_fails_the_job";
    let body = || {
        let world = join();
        if world.rank() == 0 {
            std::process::exit(0);
        }
        // Rank 0 never comes to the fence.
        let error = world.finalize().expect_err("rank 0 has left");
        eprintln!("finalize: {error}");
        std::process::exit(3);
    };
    under_each(2, name, body, |launcher, output| {
        // Hydra ends the others, and says 0 all the same.
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let hydra = launcher != Launcher::OpenMpi;
        assert!(!out.contains("1 passed"), "{launcher:?}: {out}{err}");
        assert!(hydra || !output.status.success(), "{launcher:?}: {out}{err}");
    });
}

/// What survivors do where the launcher leaves them alone.
fn survive() {
    let world = join();
    if world.rank() == 1 {
        die();
    }
    let error = world.comm().recv(&mut [0u8], 1, 0).expect_err("rank 1 is dead");
    assert_eq!(error.lost_rank(), Some(1), "{error}");
    let error = world.finalize().expect_err("rank 1 does not come");
    assert_eq!(error.lost_rank(), Some(1), "{error}");
    eprintln!("\nsurvived");
}

/// A launcher that leaves the others alone, and opens fences without the dead: survivors learn of the
/// death by the node's sockets, as under our own. (Hydra ends them, whatever it is told.)
#[test]
fn survivors_learn_of_a_death_from_the_node() {
    let name = "launchers::dying::survivors_learn_of_a_death_from_the_node";
    if is_rank(name) {
        return survive();
    }
    let Some(mut command) = Launcher::OpenMpi.command(3) else { return };
    command.arg("--enable-recovery");
    as_ranks(&mut command, name);
    let output = finish(command, WATCHDOG);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(err.matches("survived").count(), 2, "{}\n{out}\n{err}", output.status);
}

/// Starts a test's body in so many processes under a launcher that leaves the others alone when one dies, and
/// lets them wait at the fence for the dead for ever. All but `dead` must succeed.
fn left_alone(size: usize, name: &str, dead: usize) {
    let server = Patient::start(size);
    let ranks: Vec<_> = (0..size)
        .map(|rank| {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args(&again(name)[1..]).env(BODY, name).env_remove("PMI_FD");
            command.env("PMI_PORT", server.place()).env("PMI_ID", rank.to_string());
            std::thread::spawn(move || finish(command, WATCHDOG))
        })
        .collect();
    for (rank, output) in ranks.into_iter().enumerate() {
        let output = output.join().expect("no rank hangs");
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.success(), rank != dead, "rank {rank}: {out}\n{err}");
        err.lines().filter(|line| line.starts_with("rank ")).for_each(|line| println!("{line}"));
    }
}

#[test]
fn survivors_do_not_wait_for_the_dead() {
    let name = "launchers::dying::survivors_do_not_wait_for_the_dead";
    if is_rank(name) {
        return survive();
    }
    left_alone(3, name, 1);
}

/// Two seconds are promised; a watchdog waits ten times as long.
const PROMPT: Duration = Duration::from_secs(20);

/// Waits for a message of `from`, which leaves because of rank 0, if it is not rank 0; and leaves then, too.
fn be_a_link(world: World, from: u32) {
    let started = Instant::now();
    let error = world.comm().recv(&mut [0u8], from, 7).expect_err("nobody sends this");
    assert!(started.elapsed() < PROMPT, "after {:?}: {error}", started.elapsed());
    assert_eq!(error.lost_rank(), Some(0), "{error}");
    eprintln!("\nrank {} lost its peer after {:?}", world.rank(), started.elapsed());
    if world.rank().is_multiple_of(2) {
        return drop(world);
    }
    let error = world.finalize().expect_err("rank 0 does not come");
    assert_eq!(error.lost_rank(), Some(0), "{error}");
    assert!(started.elapsed() < PROMPT, "after {:?}: {error}", started.elapsed());
}

/// Rank 0 dies, and each waits for the one before, which has no other reason to leave.
#[test]
fn a_chain_of_losses_ends_at_once_and_blames_who_died() {
    let name = "launchers::dying::a_chain_of_losses_ends_at_once_and_blames_who_died";
    if is_rank(name) {
        let world = join();
        match world.rank() {
            0 => die(),
            rank => be_a_link(world, rank - 1),
        }
        return;
    }
    left_alone(7, name, 0);
}

/// Likewise, where the chain goes along links that nobody had before: every fifth rank of 16.
#[test]
fn a_chain_of_losses_between_strangers_ends_at_once() {
    let name = "launchers::dying::a_chain_of_losses_between_strangers_ends_at_once";
    if is_rank(name) {
        let world = join();
        match world.rank() {
            0 => die(),
            rank => be_a_link(world, (rank + 16 - 5) % 16),
        }
        return;
    }
    left_alone(16, name, 0);
}

/// When the launcher is killed, its processes end: it kills them, or they find it gone.
#[test]
fn a_killed_launcher_leaves_nobody_behind() {
    let name = "launchers::dying::a_killed_launcher_leaves_nobody_behind";
    if is_rank(name) {
        let world = join();
        println!("\nready");
        // The launcher is killed meanwhile. Who is still here finds that out at the latest when it
        // wants to leave.
        let (parent, started) = (rustix::process::getppid(), Instant::now());
        while rustix::process::getppid() == parent && started.elapsed() < WATCHDOG {
            std::thread::sleep(Duration::from_millis(5));
        }
        let error = world.finalize().expect_err("the launcher is gone");
        eprintln!("finalize: {error}");
        return;
    }
    for launcher in Launcher::ALL {
        let Some(mut command) = launcher.command(2) else { continue };
        // What it cannot remove any more goes with the test.
        let folder = tempfile::tempdir().unwrap();
        command.env("TMPDIR", folder.path());
        as_ranks(&mut command, name);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        let mut ready = 0;
        while ready < 2 {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0, "{launcher:?} ended early");
            ready += usize::from(line.contains("ready"));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The pipe ends when the last of them has; a hang is for the test's own watchdog.
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut rest = String::new();
            let _ = out.read_to_string(&mut rest);
            let _ = done.send(());
        });
        assert!(wait.recv_timeout(WATCHDOG).is_ok(), "{launcher:?}: somebody is left");
    }
}
