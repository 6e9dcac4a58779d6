//! Processes that hang: each says what it waits for, whom, and what that one is in.

mod common;

use common::{
    BODY, WATCHDOG, again, assert_ran, await_flag, finish, finish_all, flag, gapless, is_rank,
    meeting_folder, text,
};
use gapless::World;
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::io::{self, Write};
use std::process::Output;
use std::time::Duration;

/// What every line has.
const LINE: &str = " has waited ";

/// The standard error output, and what is done when a rank has said its line.
struct Said<F: Fn()>(F);

impl<F: Fn()> Write for Said<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(bytes)?;
        if text(bytes).contains(LINE) {
            (self.0)();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn on_line(act: impl Fn() + Clone + Send + Sync + 'static) {
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

/// The only line of a rank.
fn line_of(said: &str, rank: u32) -> &str {
    let of_rank = format!("rank {rank}{LINE}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(&of_rank)).collect();
    match lines[..] {
        [line] => line,
        _ => panic!("{} lines of rank {rank}: {said}", lines.len()),
    }
}

#[test]
fn two_that_wait_for_each_other_say_so() {
    let name = "two_that_wait_for_each_other_say_so";
    if is_rank(name) {
        let world = World::init().expect("the world comes to be");
        let (comm, me) = (world.comm(), world.rank());
        on_line(move || flag(&meeting_folder(), &format!("said {me}")));
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
    let output = run(name, "2.5");
    assert_ran(&output, 2);
    let said = text(&output.stderr);
    for (me, tag, other, theirs) in [(0, 7, 1, 8), (1, 8, 0, 7)] {
        let line = line_of(&said, me);
        for part in [
            format!("in recv (tag {tag}, the world) for rank {other}, which says"),
            format!("in recv (tag {theirs}, the world) for rank {me}"),
        ] {
            assert!(line.contains(&part), "{part}: {line}");
        }
    }
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
    let name = "one_that_is_stopped_does_not_answer";
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
            on_line(move || kill_process(stopped, Signal::CONT).unwrap());
            comm.send(&number, 0, 1).unwrap();
            comm.recv(&mut number, 0, 2).unwrap();
        }
        return world.finalize().unwrap();
    }
    let output = run(name, "2.5");
    assert_ran(&output, 2);
    let said = text(&output.stderr);
    let line = line_of(&said, 1);
    assert!(line.contains("for rank 0, which does not answer"), "{line}");
}

#[test]
fn a_bad_number_of_seconds_is_refused() {
    let name = "a_bad_number_of_seconds_is_refused";
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
    let name = "a_job_whose_time_is_over_says_what_each_rank_is_in";
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
