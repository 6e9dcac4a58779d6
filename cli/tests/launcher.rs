//! `gapless run`: what a job sees, and how it ends.

use crate::common::{closed_port, finish, gapless, ranks, text};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Jobs that are not ended sleep for ten times as long.
const SOON: Duration = Duration::from_secs(100);

fn run(arguments: &[&str]) -> std::process::Output {
    let mut command = gapless();
    command.arg("run").args(arguments);
    finish(command, SOON)
}

fn shell(options: &[&str], script: &str) -> std::process::Output {
    let mut words = options.to_vec();
    words.extend(["sh", "-c", script]);
    run(&words)
}

#[test]
fn every_rank_knows_itself_and_lines_are_marked() {
    let output = shell(&["-n", "3", "-p"], "echo $PMI_RANK of $PMI_SIZE; echo oops >&2");
    assert!(output.status.success());
    let out = text(&output.stdout);
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 0 of 3", "[1] 1 of 3", "[2] 2 of 3"]);
    let err = text(&output.stderr);
    let mut lines: Vec<&str> = err.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] oops", "[1] oops", "[2] oops"]);
}

/// A process that has left its group holds the rank's pipe open: the job is over when the ranks are.
#[test]
fn what_outlives_the_ranks_is_not_waited_for() {
    let begin = Instant::now();
    let output = shell(&["-n", "2"], "setsid sleep 1000 & printf 'no end'");
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "no endno end"));
    assert!(begin.elapsed() < SOON);
}

#[test]
fn variables_are_passed_on() {
    let output =
        shell(&["-n", "1", "-e", "COLOUR=blue=ish", "--env", "EMPTY="], "echo $COLOUR,$EMPTY,");
    assert_eq!(text(&output.stdout), "blue=ish,,\n");
    let output = run(&["-n", "1", "-e", "NONSENSE", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("NONSENSE"));
}

/// What people type for hydra and Open MPI.
#[test]
fn other_launchers_words_are_understood() {
    let output = shell(
        &["-ppn", "2", "-genv", "A", "b", "--bynode", "-tag-output", "--oversubscribe", "-np", "2"],
        "echo $A",
    );
    assert_eq!(text(&output.stderr), "");
    // Ranks write when they come to it.
    let said = text(&output.stdout);
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] b", "[1] b"]);
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("out.%r");
    let pattern = pattern.to_str().unwrap();
    let output = shell(&["-outfile-pattern", pattern, "-n", "2"], "echo $PMI_RANK");
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), ""));
    let file = std::fs::read_to_string(folder.path().join("out.1")).unwrap();
    assert_eq!(file, "1\n");
    for (arguments, complaint) in [
        (&["-ppn", "1", "-n", "2", "true"][..], "--ppn 1: this host would get 2 processes"),
        (&["-f", "/nonexistent", "-n", "1", "true"], "--hostfile /nonexistent: No such file"),
        (&["-H", "a:2", "-ppn", "3", "-n", "3", "true"], "--ppn 3: there is room for 2 on a"),
        (
            &["-n", "1", "true", ":", "-n", "1", "-genv", "A=b", "true"],
            "--genv: it is for the whole",
        ),
    ] {
        let output = run(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(complaint) && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn the_first_failure_ends_all_and_is_named() {
    let begin = Instant::now();
    let output = shell(&["-n", "3"], "[ $PMI_RANK = 1 ] && exit 7; sleep 1000");
    assert_eq!(output.status.code(), Some(7));
    assert!(begin.elapsed() < SOON);
    assert!(text(&output.stderr).contains("rank 1 exited with 7"), "{}", text(&output.stderr));
    let output = shell(&["-n", "2"], "[ $PMI_RANK = 0 ] && kill -9 $$; sleep 1000");
    assert_eq!(output.status.code(), Some(128 + 9));
    assert!(text(&output.stderr).contains("rank 0 was killed by signal 9"));
}

#[test]
fn what_ignores_the_polite_signal_is_killed_with_its_children() {
    let begin = Instant::now();
    let script = "[ $PMI_RANK = 1 ] && exit 3; trap '' TERM; sleep 1000 & sleep 1000; sleep 1000";
    let output = shell(&["-n", "2"], script);
    assert_eq!(output.status.code(), Some(3));
    assert!(begin.elapsed() < SOON);
}

/// Two ranks of a script, once both have said that they are ready, and what they say later.
fn two_ready(script: &str) -> (Child, BufReader<ChildStdout>) {
    let mut command = gapless();
    command.args(["run", "-n", "2", "sh", "-c", script]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    for _ in 0..2 {
        out.read_line(&mut line).unwrap();
    }
    assert_eq!(line, "ready\nready\n");
    (child, out)
}

#[test]
fn signals_are_passed_on() {
    // It ends by itself, too, so that this fails instead of waiting for ever.
    let script =
        "trap 'echo got it; exit 0' USR1; echo ready; for i in $(seq 4000); do sleep 0.02; done";
    let (mut child, mut out) = two_ready(script);
    send(child.id(), "USR1");
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "got it\ngot it\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_terminated_launcher_terminates_its_job() {
    let (mut child, mut out) = two_ready("echo ready; exec sleep 1000");
    send(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    // Their output ends with them.
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
}

#[test]
fn a_killed_launcher_leaves_nobody_behind() {
    let (mut child, mut out) = two_ready("echo ready; exec sleep 1000");
    child.kill().unwrap();
    child.wait().unwrap();
    // The pipe ends when the last of them has.
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
}

fn send(pid: u32, signal: &str) {
    let status = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn nothing_to_start_is_said_so() {
    for (arguments, complaint) in [
        (vec!["-n", "0", "true"], "--ranks 0: it is a whole number"),
        (vec!["-n", "5000", "true"], "cannot start 5000 processes"),
        (vec!["-n", "2", "/nonexistent/program"], "cannot start /nonexistent/program"),
        (vec!["-n", "2"], "required"),
        (vec!["-n", "many", "true"], "it is a whole number"),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(complaint), "{}", text(&output.stderr));
    }
}

#[test]
fn a_launcher_that_is_half_there_is_named() {
    let (port, _kept) = closed_port();
    let nobody = format!("127.0.0.1:{port}");
    for (variables, complaint) in [
        (vec![("PMI_FD", "5")], "PMI_RANK is missing"),
        (vec![("PMI_FD", "5"), ("PMI_RANK", "one"), ("PMI_SIZE", "2")], "PMI_RANK is \"one\""),
        (vec![("PMI_FD", "5"), ("PMI_RANK", "2"), ("PMI_SIZE", "2")], "PMI_RANK is 2"),
        (vec![("PMI_FD", "999"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")], "PMI_FD is 999"),
        (vec![("PMI_FD", "0"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")], "PMI_FD is 0"),
        (vec![("PMI_PORT", "here:1")], "PMI_ID is missing"),
        (vec![("PMI_PORT", "nonsense"), ("PMI_ID", "0")], "PMI_PORT is \"nonsense\""),
        (vec![("PMI_PORT", &nobody), ("PMI_ID", "0")], "the launcher is gone (connecting"),
        (vec![("PMI_RANK", "0"), ("PMI_SIZE", "2")], "PMI_FD is missing"),
        (vec![("OMPI_COMM_WORLD_RANK", "0")], "PMIX_NAMESPACE is missing"),
        (vec![("PMIX_NAMESPACE", "x"), ("PMIX_RANK", "0")], "PMIX_SERVER_URI is missing"),
        (vec![("GAPLESS_START_SECONDS", "never")], "GAPLESS_START_SECONDS"),
    ] {
        let mut command = gapless();
        command.args(["info", "--as-rank"]).envs(variables.clone());
        let output = finish(command, SOON);
        // What the user has set is the user's to put right.
        let code = if variables[0].0.starts_with("GAPLESS") { 2 } else { 1 };
        assert_eq!(output.status.code(), Some(code), "{variables:?}");
        let error = text(&output.stderr);
        assert!(error.contains(complaint) && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn a_rank_that_deserts_the_others_fails_the_job() {
    if std::env::var_os("PMI_FD").is_some() {
        return ranks(2, "launcher::a_rank_that_deserts_the_others_fails_the_job", |world| {
            if world.rank() == 1 {
                std::process::exit(0);
            }
            // Waits for rank 1, which never comes.
            let _ = world.finalize();
        });
    }
    let program = std::env::current_exe().unwrap();
    let name = "launcher::a_rank_that_deserts_the_others_fails_the_job";
    let mut command = gapless();
    command.args(["run", "-n", "2", "-e", &format!("GAPLESS_TEST_BODY={name}")]);
    command.arg(program).args([name, "--exact", "--nocapture"]);
    let output = finish(command, SOON);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("rank 1 left without finalizing"), "{error}");
}

#[test]
fn a_rank_that_never_joins_the_others_fails_the_job() {
    let command = env!("CARGO_BIN_EXE_gapless");
    let script = format!("[ $PMI_RANK = 0 ] && exit 0; exec {command} info --as-rank");
    let output = shell(&["-n", "2"], &script);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let error = text(&output.stderr);
    assert!(error.contains("rank 0 left before the others, who wait for it"), "{error}");
}
