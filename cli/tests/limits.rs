//! Processes that the system allows little: open files, their length, threads, system calls.

use crate::common::denied::{ACCEPT, PIDFD_OPEN, deny, finish_without};
use crate::common::{
    BODY, WATCHDOG, again, assert_ran, finish, gapless, is_rank, join, orphans, skip, text,
};
use gapless::{Source, World};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::process::Command;

/// A command that may open so many files.
fn with_files(limit: u64, command: &Command) -> Command {
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--nofile={limit}:{limit}")).arg(command.get_program());
    limited.args(command.get_args());
    let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    limited.envs(variables);
    limited
}

#[test]
fn a_launcher_that_may_open_too_few_files_says_how_many_it_needs() {
    let mut command = gapless();
    command.args(["run", "-n", "30", "true"]);
    let output = finish(with_files(50, &command), WATCHDOG);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.lines().count() == 1, "{said}");
    assert!(said.contains("30 processes") && said.contains("limit is 50 (ulimit -n)"), "{said}");
}

#[test]
fn a_process_that_may_open_too_few_files_says_how_many_it_needs() {
    let name = "limits::a_process_that_may_open_too_few_files_says_how_many_it_needs";
    if is_rank(name) {
        let limit = Rlimit { current: Some(12), maximum: Some(12) };
        setrlimit(Resource::Nofile, limit).unwrap();
        eprintln!("{}", World::init().expect_err("12 are not enough for 4 processes"));
        std::process::exit(3);
    }
    let mut command = gapless();
    command.args(["run", "-n", "4", "-e", &format!("{BODY}={name}")]).args(again(name));
    let output = finish(command, WATCHDOG);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("job of 4") && said.contains("12 (ulimit -n)"), "{said}");
}

/// The soft limit is raised, as far as the hard one lets it.
#[test]
fn a_low_soft_limit_does_not_matter() {
    let name = "limits::a_low_soft_limit_does_not_matter";
    if is_rank(name) {
        let limit = Rlimit { current: Some(12), maximum: Some(200) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let world = World::init().unwrap();
        pass_around(&world);
        return world.finalize().unwrap();
    }
    let mut command = gapless();
    command.args(["run", "-n", "4", "-e", &format!("{BODY}={name}")]).args(again(name));
    assert_ran(&finish(command, WATCHDOG), 4);
}

/// Every new thread asks for a stack that no address space has room for.
#[test]
fn a_job_whose_processes_get_no_threads_works_and_ends_well() {
    let name = "limits::a_job_whose_processes_get_no_threads_works_and_ends_well";
    if is_rank(name) {
        let refused = std::thread::Builder::new().spawn(|| {});
        assert!(refused.is_err(), "this process has no thread to spare");
        let world = World::init().unwrap();
        pass_around(&world);
        return world.finalize().unwrap();
    }
    let mut command = gapless();
    let stack = format!("RUST_MIN_STACK={}", 1u64 << 50);
    command.args(["run", "-n", "4", "-e", &stack, "-e", &format!("{BODY}={name}")]);
    let output = finish(
        {
            command.args(again(name));
            command
        },
        WATCHDOG,
    );
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_ran(&output, 4);
}

/// Without pidfds, which old kernels lack and filters of system calls refuse: the launcher asks its processes instead.
#[test]
fn a_job_starts_and_ends_without_pidfds() {
    let name = "limits::a_job_starts_and_ends_without_pidfds";
    if is_rank(name) {
        let world = World::init().unwrap();
        pass_around(&world);
        return world.finalize().unwrap();
    }
    for error in [Errno::NOSYS, Errno::PERM] {
        let mut job = gapless();
        job.args(["run", "-n", "4", "-e", &format!("{BODY}={name}")]).args(again(name));
        let Some(output) = finish_without(PIDFD_OPEN, error, job) else { return };
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        assert_ran(&output, 4);
        // Only the process itself tells that it has ended: what it has started holds all it had open.
        let script = "sleep 1000 & [ $PMI_RANK = 1 ] && exit 7; sleep 1000";
        let mut job = gapless();
        job.args(["run", "-p", "-n", "3", "sh", "-c", script]);
        let Some(output) = finish_without(PIDFD_OPEN, error, job) else { return };
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(7) && said.contains("rank 1 exited with 7"), "{said}");
    }
}

#[test]
fn a_process_that_may_accept_nobody_says_so_when_it_joins() {
    let name = "limits::a_process_that_may_accept_nobody_says_so_when_it_joins";
    if is_rank(name) {
        let error = World::init().expect_err("its peers would wait for ever");
        eprintln!("{error}");
        std::process::exit(3);
    }
    let mut job = gapless();
    job.args(["run", "-n", "2", "-e", &format!("{BODY}={name}")]).args(again(name));
    let Some(output) = finish_without(ACCEPT, Errno::PERM, job) else { return };
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(3) && said.contains("accept4 failed"), "{said}");
}

/// A process that gives up the right to accept calls after it has joined, as one that guards itself does: it and
/// whoever needs it are told. Nobody ends the others.
#[test]
fn a_process_that_accepts_nobody_any_more_is_an_error_at_both_ends() {
    let name = "limits::a_process_that_accepts_nobody_any_more_is_an_error_at_both_ends";
    orphans(2, name, &[], WATCHDOG, |builder| {
        let world = join(builder);
        let guarded = world.rank() == 1;
        // Whether it can be had is tried where it does no harm.
        if !std::thread::spawn(|| deny(ACCEPT, Errno::PERM)).join().unwrap() {
            return;
        }
        assert!(!guarded || deny(ACCEPT, Errno::PERM));
        let mut word = [0u8];
        let error = world.comm().recv(&mut word, 1 - world.rank(), 0).unwrap_err();
        assert_eq!(error.lost_rank(), Some(1 - world.rank()), "{error}");
        assert_eq!(error.to_string().contains("accept4"), guarded, "{error}");
    });
}

/// The system would end a process that makes longer files, without a word.
#[test]
fn a_limit_on_the_length_of_files_is_named() {
    let name = "limits::a_limit_on_the_length_of_files_is_named";
    if is_rank(name) {
        let limit = Rlimit { current: Some(64 << 10), maximum: Some(64 << 10) };
        setrlimit(Resource::Fsize, limit).unwrap();
        eprintln!("{}", World::init().expect_err("64 KiB are not enough for messages"));
        std::process::exit(3);
    }
    let mut job = gapless();
    job.args(["run", "-n", "2", "-e", &format!("{BODY}={name}")]).args(again(name));
    let output = finish(job, WATCHDOG);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("may have 65536 (ulimit -f"), "{said}");
}

/// What is longer than files may be is no reason to end: `alloc` gives memory that cannot be shared.
#[test]
fn memory_longer_than_files_may_be_is_not_shared() {
    let name = "limits::memory_longer_than_files_may_be_is_not_shared";
    if is_rank(name) {
        let limit = Rlimit { current: Some(32 << 20), maximum: Some(32 << 20) };
        setrlimit(Resource::Fsize, limit).unwrap();
        let world = World::init().unwrap();
        assert!(world.alloc(1 << 20).unwrap().is_mappable());
        assert!(!world.alloc(33 << 20).unwrap().is_mappable());
        pass_around(&world);
        return world.finalize().unwrap();
    }
    let mut job = gapless();
    job.args(["run", "-n", "2", "-e", &format!("{BODY}={name}")]).args(again(name));
    let output = finish(job, WATCHDOG);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_ran(&output, 2);
}

/// Each rank sends its number to the next one.
fn pass_around(world: &World) {
    let (comm, rank, size) = (world.comm(), world.rank(), world.size());
    let (mine, mut theirs) = ([rank], [0u32]);
    comm.scope(|s| {
        let _ = s.irecv(&mut theirs, Source::Any, 0)?;
        let _ = s.isend(&mine, (rank + 1) % size, 0)?;
        Ok(())
    })
    .unwrap();
    assert_eq!(theirs, [(rank + size - 1) % size]);
}

/// In a mount namespace of its own, where `/proc` is an empty folder.
#[test]
fn a_job_does_without_proc() {
    let name = "limits::a_job_does_without_proc";
    if is_rank(name) {
        assert!(!std::path::Path::new("/proc/self").exists());
        let world = World::init().unwrap();
        pass_around(&world);
        return world.finalize().unwrap();
    }
    let without = |command: &Command| {
        let mut bare = Command::new("unshare");
        bare.args(["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"]);
        bare.arg(command.get_program()).args(command.get_args());
        bare
    };
    let probed = without(&Command::new("true")).output();
    if !probed.is_ok_and(|probed| probed.status.success()) {
        return skip(name, "no mount namespace can be made here (unshare --mount needs root)");
    }
    let mut command = gapless();
    command.args(["run", "-n", "3", "-e", &format!("{BODY}={name}")]).args(again(name));
    assert_ran(&finish(without(&command), WATCHDOG), 3);
}
