//! Processes that hang: each says what it waits for, whom, and what that one is in.

use crate::common::{
    BODY, WATCHDOG, again, assert_ran, await_flag, finish, finish_all, flag, gapless, is_rank,
    meeting_folder, text,
};
use gapless::xtq::{Function, Put, QueueOptions, Rank};
use gapless::{Assertions, Lock, ReduceOp, World};
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::io::{self, Write};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// What every line has.
const LINE: &str = " has waited ";

/// The standard error output, and what is done when a rank has said its line.
struct Said<F: Fn(&str)>(F);

impl<F: Fn(&str)> Write for Said<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(bytes)?;
        let line = text(bytes);
        if line.contains(LINE) {
            (self.0)(&line);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn on_line(act: impl Fn(&str) + Clone + Send + Sync + 'static) {
    let warnings = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
    warnings.with_writer(move || Said(act.clone())).with_ansi(false).init();
}

/// Runs this test's body in two ranks, which say so after this time.
fn run(name: &str, seconds: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder for flags");
    let mut command = gapless();
    command.args(["run", "-p", "-n", "2", "-e", &format!("{BODY}={name}"), "-e"]);
    command.arg(format!("GAPLESS_TEST_FOLDER={}", folder.path().display()));
    command.args(["-e", &format!("GAPLESS_STUCK={seconds}")]);
    command.args(again(name));
    finish_all(command, WATCHDOG)
}

/// Runs this test's body until every rank says one line, with all that it should. On a busy machine other calls may take
/// long, too, and answers do.
fn run_until_said(name: &str, parts: &[(u32, Vec<String>)]) {
    for seconds in ["2.5", "10", "40"] {
        let output = run(name, seconds);
        assert_ran(&output, 2);
        let said = text(&output.stderr);
        let is_said = |(rank, parts): &(u32, Vec<String>)| {
            let of_rank = format!("rank {rank}{LINE}");
            let lines: Vec<&str> = said.lines().filter(|line| line.contains(&of_rank)).collect();
            lines.len() == 1 && parts.iter().all(|part| lines[0].contains(part))
        };
        if parts.iter().all(is_said) {
            return;
        }
        eprintln!("after {seconds} s: {said}");
    }
    panic!("see above");
}

#[test]
fn two_that_wait_for_each_other_say_so() {
    let name = "stuck::two_that_wait_for_each_other_say_so";
    if is_rank(name) {
        let world = World::init().expect("the world comes to be");
        let (comm, me) = (world.comm(), world.rank());
        on_line(move |_| flag(&meeting_folder(), &format!("said {me}")));
        let mut byte = [0u8];
        std::thread::scope(|threads| {
            threads.spawn(|| {
                // Only this ends it.
                (0..2).for_each(|rank| await_flag(&meeting_folder(), &format!("said {rank}")));
                comm.send(&[1u8], 1 - me, 8 - i32::try_from(me).unwrap()).unwrap();
            });
            comm.recv(&mut byte, 1 - me, 7 + i32::try_from(me).unwrap()).unwrap();
        });
        return world.finalize().unwrap();
    }
    let parts = [(0, 7, 1, 8), (1, 8, 0, 7)].map(|(me, tag, other, theirs)| {
        let mine = format!("in recv (tag {tag}, the world) for rank {other}, which says");
        (me, vec![mine, format!("in recv (tag {theirs}, the world) for rank {me}")])
    });
    run_until_said(name, &parts);
}

/// Stops a process, and returns when none of its threads runs any more.
fn stop(process: Pid) {
    kill_process(process, Signal::STOP).unwrap();
    let runs = |stat: String| !stat.rsplit(')').next().unwrap().trim_start().starts_with('T');
    let tasks = format!("/proc/{}/task", process.as_raw_pid());
    while std::fs::read_dir(&tasks)
        .unwrap()
        .any(|task| runs(std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap()))
    {
        std::thread::yield_now();
    }
}

#[test]
fn one_that_is_stopped_does_not_answer() {
    let name = "stuck::one_that_is_stopped_does_not_answer";
    if is_rank(name) {
        let world = World::init().expect("the world comes to be");
        let comm = world.comm();
        if world.rank() == 0 {
            comm.send(&[getpid().as_raw_pid()], 1, 0).unwrap();
            comm.recv(&mut [0i32], 1, 1).unwrap();
            comm.send(&[0i32], 1, 2).unwrap();
        } else {
            let mut number = [0];
            comm.recv(&mut number, 0, 0).unwrap();
            let stopped = Pid::from_raw(number[0]).unwrap();
            stop(stopped);
            on_line(move |_| kill_process(stopped, Signal::CONT).unwrap());
            comm.send(&number, 0, 1).unwrap();
            comm.recv(&mut number, 0, 2).unwrap();
        }
        return world.finalize().unwrap();
    }
    run_until_said(name, &[(1, vec!["for rank 0, which does not answer".to_owned()])]);
}

/// Waits for windows, tasks and collectives name whom they wait for: rank 0 does nothing until rank 1 has said so.
#[test]
fn whoever_waits_for_a_window_a_task_or_a_collective_says_for_whom() {
    let name = "stuck::whoever_waits_for_a_window_a_task_or_a_collective_says_for_whom";
    let window = "in a window's operation";
    let rounds = [
        ("lock", window),
        ("lock, by messages", window),
        ("flush, by messages", window),
        ("start", window),
        ("task", "in a wait for a task"),
        ("fence", "in allreduce"),
        ("barrier", "in barrier"),
    ];
    if is_rank(name) {
        let world = World::init().expect("the world comes to be");
        let (comm, me, folder) = (world.comm(), world.rank(), meeting_folder());
        let tasks = world.xtq();
        tasks.register_queue(2, QueueOptions::default()).unwrap();
        tasks.register_function(3, Function::new(0, |_| Ok(()))).unwrap();
        // On a busy machine other calls may take long, too.
        let now = Arc::new(AtomicUsize::new(0));
        if me == 1 {
            let (now, folder) = (Arc::clone(&now), folder.clone());
            on_line(move |line| {
                let round = now.load(Relaxed);
                if line.contains(rounds[round].1) && line.contains("for rank 0") {
                    flag(&folder, &format!("said {round}"));
                }
            });
        }
        let mut mapped = comm.window().allocate::<u64>(8).unwrap();
        let mut told = comm.window().by_messages().allocate::<u64>(8).unwrap();
        for (round, (what, _)) in rounds.into_iter().enumerate() {
            let said = || {
                flag(&folder, &format!("idle {round}"));
                await_flag(&folder, &format!("said {round}"));
            };
            comm.barrier().unwrap();
            now.store(round, Relaxed);
            if me == 1 {
                await_flag(&folder, &format!("idle {round}"));
            }
            match (what, me) {
                ("lock", 0) => {
                    mapped.lock(1, Lock::Exclusive).unwrap();
                    said();
                    mapped.unlock(1).unwrap();
                }
                ("lock", _) => {
                    mapped.lock(1, Lock::Exclusive).unwrap();
                    mapped.unlock(1).unwrap();
                }
                ("start", 0) => {
                    said();
                    mapped.post(&[1]).unwrap();
                    mapped.wait().unwrap();
                }
                ("start", _) => {
                    mapped.start(&[0]).unwrap();
                    mapped.complete().unwrap();
                }
                ("fence", 0) => {
                    said();
                    mapped.fence_last().unwrap();
                }
                ("fence", _) => mapped.fence_last().unwrap(),
                ("barrier", 0) => {
                    said();
                    comm.barrier().unwrap();
                }
                ("barrier", _) => comm.barrier().unwrap(),
                (_, 0) => said(),
                ("flush, by messages", _) => {
                    told.lock_with(0, Lock::Shared, Assertions::NOCHECK).unwrap();
                    told.accumulate(&[1u64], 0, 0, ReduceOp::Bxor).unwrap();
                    told.flush(0).unwrap();
                    told.unlock(0).unwrap();
                }
                ("task", _) => {
                    let put = Put::function(Rank(0), 3, 2, [0, 0]).acknowledged();
                    let put = tasks.put(put).unwrap();
                    tasks.wait_for(&put).unwrap();
                }
                _ => {
                    told.lock(0, Lock::Exclusive).unwrap();
                    told.unlock(0).unwrap();
                }
            }
        }
        comm.barrier().unwrap();
        mapped.free().unwrap();
        told.free().unwrap();
        return world.finalize().unwrap();
    }
    let output = run(name, "0.5");
    assert_ran(&output, 2);
    let said = text(&output.stderr);
    let of_rank = format!("rank 1{LINE}");
    let mut lines: Vec<&str> = said.lines().filter(|line| line.contains(&of_rank)).collect();
    for (what, call) in rounds {
        let is_it = |line: &&str| line.contains(call) && line.contains(" for rank 0, which");
        let found = lines.iter().position(is_it).unwrap_or_else(|| panic!("{what}: {said}"));
        lines.remove(found);
    }
}

#[test]
fn a_bad_number_of_seconds_is_refused() {
    let name = "stuck::a_bad_number_of_seconds_is_refused";
    if is_rank(name) {
        let error = World::init().unwrap_err().to_string();
        assert!(error.contains("GAPLESS_STUCK") && error.contains("soon"), "{error}");
        return;
    }
    assert_ran(&run(name, "soon"), 2);
}

/// Of each rank there is a line before the job is ended, also where they say nothing by themselves.
#[test]
fn a_job_whose_time_is_over_says_what_each_rank_is_in() {
    let name = "stuck::a_job_whose_time_is_over_says_what_each_rank_is_in";
    if is_rank(name) {
        let world = World::init().expect("the world comes to be");
        match world.rank() {
            0 => world.comm().recv(&mut [0u8], 1, 5).unwrap(),
            1 => loop {
                std::thread::sleep(Duration::from_secs(1000));
            },
            _ => unreachable!("{:?}", world.comm().probe(0, 6)),
        };
        return;
    }
    let parts = [
        "rank 0 has waited",
        "in recv (tag 5, the world) for rank 1, which",
        "rank 1 does not answer",
        "rank 2 has waited",
        "in probe (tag 6, the world) for rank 0, which",
        "the job did not end within",
    ];
    // However busy this machine is, they come to that.
    for seconds in ["5", "30", "80"] {
        let mut command = gapless();
        command.args(["run", "-n", "3", "--timeout", seconds, "-e", &format!("{BODY}={name}")]);
        command.args(["-e", "GAPLESS_STUCK=0"]).args(again(name));
        let output = finish(command, WATCHDOG);
        assert_eq!(output.status.code(), Some(124));
        let said = text(&output.stderr);
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("rank ")).collect();
        if lines.len() == 3 && parts.iter().all(|part| said.contains(part)) {
            return;
        }
        eprintln!("within {seconds} s: {said}");
    }
    panic!("see above");
}
