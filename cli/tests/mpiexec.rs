//! `gapless run` called as people call `mpiexec`: its options, several programs, binding, the time limit.

use crate::common::{WATCHDOG, finish, finish_child, gapless, text};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Jobs that are not ended sleep for ten times as long.
const SOON: Duration = Duration::from_secs(100);

fn run(arguments: &[&str]) -> Output {
    let mut command = gapless();
    command.arg("run").args(arguments).env("GAPLESS_TEST_SET", "from outside");
    finish(command, SOON)
}

fn lines(arguments: &[&str]) -> Vec<String> {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

fn refuses(arguments: &[&str], complaint: &str) {
    let output = run(arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert!(error.contains(complaint), "{arguments:?}: {error}");
    assert_eq!(text(&output.stdout), "", "{arguments:?}");
}

#[test]
fn options_are_written_as_for_mpiexec() {
    let echo = ["sh", "-c", "echo $PMI_RANK $PMI_SIZE"];
    for options in [&["-np", "2"][..], &["--np", "2"], &["-n", "2"], &["-n2"], &["-np=2"]] {
        assert_eq!(lines(&[options, &echo].concat()), ["0 2", "1 2"], "{options:?}");
    }
    let script = "echo $GAPLESS_TEST_SET, $GAPLESS_TEST_OTHER";
    let options = ["-np", "1", "-x", "GAPLESS_TEST_SET", "-x", "GAPLESS_TEST_OTHER=a=b"];
    let shown = lines(&[&options[..], &["sh", "-c", script]].concat());
    assert_eq!(shown, ["from outside, a=b"]);
    refuses(&["-n", "1", "-x", "GAPLESS_TEST_UNSET", "true"], "-x GAPLESS_TEST_UNSET: this");
}

#[test]
fn the_folder_is_that_of_the_program_too() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("here.sh");
    gapless_testkit::write_script(&script, "#!/bin/sh\npwd -P\n");
    let path = folder.path().canonicalize().unwrap();
    let path = path.to_str().unwrap();
    for option in ["-wdir", "--wdir", "-wd"] {
        assert_eq!(lines(&["-np", "1", option, path, "./here.sh"]), [path]);
    }
    refuses(&["-n", "1", "-wdir", "/nonexistent", "true"], "--wdir /nonexistent: there is no");
}

#[test]
fn an_option_that_is_unknown_is_named_with_its_like() {
    refuses(&["-n", "1", "--bindto", "core", "true"], "'--bind-to'");
    refuses(&["-bindto", "core", "-n", "1", "true"], "'--bindto'");
    refuses(&["-n", "1", "--map-bye", "core", "true"], "'--map-by'");
    refuses(
        &["-n", "1", "--bind-to", "board", "true"],
        "it is one of core, l3, numa, socket, none",
    );
    refuses(&["-n", "1", "true", ":", "-n", "1", "--timout", "5", "true"], "'--timeout'");
}

#[test]
fn several_programs_are_one_job() {
    let one = ["-np", "1", "sh", "-c", "echo a $PMI_RANK of $PMI_SIZE $COLOUR", ":"];
    let two = ["-np", "2", "-x", "COLOUR=red", "sh", "-c", "echo b $PMI_RANK $COLOUR"];
    assert_eq!(lines(&[&one[..], &two].concat()), ["a 0 of 3", "b 1 red", "b 2 red"]);
    // Both are this command, so that they meet.
    let command = env!("CARGO_BIN_EXE_gapless");
    let meet = ["-n", "1", command, "info", "--as-rank"];
    let shown = lines(&[&meet[..], &[":"], &meet].concat());
    assert!(shown.iter().any(|line| line.starts_with("shared memory")), "{shown:?}");
    // The failure of one ends the other, by its rank in the job.
    let output = run(&["-n", "1", "sleep", "1000", ":", "-n", "2", "sh", "-c", "exit $PMI_RANK"]);
    let code = output.status.code().unwrap();
    let failed = format!("rank {code} exited with {code}");
    assert!(code > 0 && text(&output.stderr).contains(&failed), "{}", text(&output.stderr));
    for (words, complaint) in [
        (&["-n", "1", "true", ":"][..], "required"),
        (&["-n", "1", "true", ":", "-n", "1"], "required"),
        (&["-n", "1", "true", ":", "true"], "required"),
        (&["-n", "1", "--", ":", "-n", "1", "true"], "a program is missing"),
        (&["-n", "1", "true", ":", "-n", "1", "--timeout", "9", "true"], "goes before the first"),
        (&["-n", "1", "true", ":", "-n", "4096", "true"], "cannot start 4097 processes"),
    ] {
        refuses(words, complaint);
    }
}

#[test]
fn a_job_that_takes_too_long_is_ended_and_says_so() {
    let begin = Instant::now();
    let output = run(&["-n", "2", "--timeout", "1", "sh", "-c", "trap '' TERM; sleep 1000"]);
    assert!(begin.elapsed() < SOON);
    assert_eq!(output.status.code(), Some(124));
    let error = text(&output.stderr);
    assert!(error.contains("the job did not end within 1 s; 2 of 2 processes"), "{error}");
    assert!(run(&["-n", "1", "--timeout", "4000000", "true"]).status.success());
    refuses(&["-n", "1", "--timeout", "0", "true"], "--timeout 0: 0 is not in 1");
}

/// Runs a job on a host that there is not, by a launcher that is this script, within so many seconds.
fn by_script(
    script: &str,
    seconds: &str,
    act: impl FnOnce(&mut Child, &Path),
) -> (Output, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let launcher = folder.path().join("mpiexec.hydra");
    gapless_testkit::write_script(
        &launcher,
        &format!("#!/bin/sh\ncd '{}'\n{script}\n", folder.path().display()),
    );
    let mut command = gapless();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    command.args(["run", "-H", "nohost", "-n", "1", "--timeout", seconds, "true"]);
    command.env("PATH", path).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    act(&mut child, folder.path());
    (finish_child(child, WATCHDOG, script), folder)
}

/// hydra, for one, waits for ever for a host that it cannot reach.
#[test]
fn a_launcher_of_several_hosts_that_starts_nothing_is_ended() {
    let hangs = "trap '' TERM; sleep 1000 & echo $$ $! > started; wait; sleep 1000";
    // However busy this machine is, the script comes to that.
    for seconds in ["1", "10", "60"] {
        let (output, folder) = by_script(hangs, seconds, |_, _| {});
        assert_eq!(output.status.code(), Some(124));
        let error = text(&output.stderr);
        let ended = format!("mpiexec.hydra did not end the job within {seconds} s, and was ended");
        assert!(error.contains(&ended), "{error}");
        let started = std::fs::read_to_string(folder.path().join("started")).unwrap_or_default();
        let processes: Vec<&str> = started.split_whitespace().collect();
        for process in &processes {
            // A process that has ended and was not collected has none.
            let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            assert!(words.is_empty(), "{process}: {}", text(&words));
        }
        if processes.len() == 2 {
            return;
        }
    }
    panic!("the script never started");
}

#[test]
fn what_a_watched_launcher_exits_with_is_passed_on_and_so_are_signals() {
    assert_eq!(by_script("exit 7", "60", |_, _| {}).0.status.code(), Some(7));
    let waits = "trap 'exit 9' INT; : > ready; while :; do sleep 0.01; done";
    let (output, _) = by_script(waits, "60", |child, folder| {
        while !folder.join("ready").exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        // One that has ended is not collected by anybody else.
        let _ = kill_process(Pid::from_child(child), Signal::INT);
    });
    assert_eq!(output.status.code(), Some(9), "{output:?}");
}

/// The processors that a process says it may use.
const ALLOWED: &str = "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status";

#[test]
fn processes_are_kept_on_processors_of_ours() {
    let set = sched_getaffinity(None).unwrap();
    let ours: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&i| set.is_set(i)).collect();
    for options in [
        &["--bind-to", "core"][..],
        &["-bind-to", "numa"],
        &["--map-by", "core"],
        &["--map-by", "numa"],
        &["--map-by", "node", "--bind-to", "core"],
        &["--bind-to=core", "--map-by=numa"],
        &["--bind-to", "socket"],
        &["--map-by", "l3"],
        &["--bind-to=l3", "--map-by=socket"],
    ] {
        let words = [options, &["--report-bindings", "-n", "3", "sh", "-c", ALLOWED]].concat();
        let output = run(&words);
        let error = text(&output.stderr);
        assert!(output.status.success(), "{error}");
        for line in text(&output.stdout).lines() {
            let used = listed(line);
            assert!(!used.is_empty() && used.iter().all(|one| ours.contains(one)), "{line}");
        }
        let said = error.lines().filter(|line| line.contains("is bound to processors"));
        assert_eq!(said.count(), 3, "{error}");
    }
    let unbound = run(&["--bind-to", "none", "--report-bindings", "-n", "1", "sh", "-c", ALLOWED]);
    assert_eq!(listed(text(&unbound.stdout).trim()), ours);
    assert!(text(&unbound.stderr).contains("no rank is bound"));
}

#[test]
fn fewer_cores_than_ranks_are_shared_aloud() {
    let mut command = Command::new("taskset");
    let first = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&i| first.is_set(i)).unwrap().to_string();
    command.args(["-c", &first, env!("CARGO_BIN_EXE_gapless"), "run", "--bind-to", "core"]);
    command.args(["-n", "3", "sh", "-c", ALLOWED]);
    match command.output() {
        Ok(output) => {
            assert_eq!(text(&output.stdout), format!("{first}\n").repeat(3));
            assert!(text(&output.stderr).contains("3 ranks share 1 core"), "{output:?}");
        }
        Err(error) => crate::common::skip("ranks that share a core", &format!("taskset: {error}")),
    }
}

/// Numbers as the kernel lists them.
fn listed(line: &str) -> Vec<usize> {
    let number = |text: &str| text.parse::<usize>().unwrap();
    let ends = |piece: &str| match piece.split_once('-') {
        Some((first, last)) => number(first)..=number(last),
        None => number(piece)..=number(piece),
    };
    line.split(',').filter(|piece| !piece.is_empty()).flat_map(ends).collect()
}
