//! The command's other verbs: what they show, and what they refuse.

use crate::common::{finish, gapless, rows, skip, text};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// 4 TiB for both processes: the largest of these layouts takes more than any machine has free.
const TOO_BIG: [&str; 5] = ["pingpong", "--layout", "v", "--n", "262000"];

fn call(arguments: &[&str]) -> std::process::Output {
    let mut command = gapless();
    command.args(arguments);
    finish(command, SOON)
}

fn shows(arguments: &[&str]) -> String {
    let output = call(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{arguments:?}");
    text(&output.stdout)
}

/// Called wrongly: exit code 2, and one line that says what is wrong.
fn refuses(arguments: &[&str], complaint: &str) {
    let output = call(arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains(complaint), "{error}");
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn info_says_what_is_there_and_why_not() {
    let info = shows(&["info"]);
    for line in [
        "space host     available",
        "space cuda     ",
        "space opencl   ",
        "kernels        ",
        "transport sm   ",
        "transport tcp  to ",
        "huge pages     ",
        "tuning         defaults",
        "collectives    built-in rules; GAPLESS_COLL says so",
        "single copy    ",
        "shared memory  works",
        "copy threads   ",
    ] {
        assert!(info.contains(line), "{line} in {info}");
    }
}

#[test]
fn info_says_where_other_hosts_would_call() {
    let line = |variables: &[(&str, &str)]| {
        let mut command = gapless();
        command.arg("info").envs(variables.iter().copied());
        let info = text(&finish(command, SOON).stdout);
        let line = info.lines().find(|line| line.starts_with("transport tcp ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("no such line in {info}"))
    };
    let (interfaces, ports) = ("GAPLESS_TCP_INTERFACES", "GAPLESS_TCP_PORTS");
    let loopback = line(&[(interfaces, "127.0.0.0/8"), (ports, "45000-45003")]);
    assert!(
        loopback.contains("only loopback: lo 127.0.0.1; ports 45000 to 45003; not encrypted"),
        "{loopback}"
    );
    let sealed = line(&[(interfaces, "127.0.0.0/8"), ("GAPLESS_ENCRYPT", "on")]);
    assert!(sealed.ends_with("; any port; encrypted"), "{sealed}");
    let none = line(&[(interfaces, "no-such-if")]);
    assert!(none.contains("not available") && none.contains("no address to listen at"), "{none}");
    let nonsense = line(&[(ports, "many")]);
    assert!(nonsense.contains("not available") && nonsense.contains(ports), "{nonsense}");
}

#[test]
fn doctor_says_what_it_found() {
    let said = call(&["doctor"]);
    let text = text_of(&said);
    for check in ["two processes ", "open files ", "locked memory ", "/dev/shm ", "RDMA "] {
        assert!(text.contains(check), "{check} in {text}");
    }
    let output = call(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text_of(&output)).unwrap();
    let problems = json["problems"].as_u64().unwrap();
    for output in [&said, &output] {
        assert_eq!(output.status.code(), Some(i32::from(problems > 0)), "{json:#}");
    }
    // What a limit forbids is a problem, and the exit code says so.
    let mut command = Command::new("sh");
    let script = "ulimit -f 1024; exec \"$0\" doctor";
    command.args(["-c", script, env!("CARGO_BIN_EXE_gapless")]);
    let output = finish(command, SOON);
    assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
    assert!(text_of(&output).contains("problem  file length"), "{}", text_of(&output));
}

fn text_of(output: &std::process::Output) -> String {
    text(&output.stdout)
}

#[test]
fn reports_become_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, page) = (path("one.json"), path("page.html"));
    let measured = ["pingpong", "--layout", "v", "--n", "64", "--time", "0.01", "--json", &json];
    assert!(call(&measured).status.success());
    assert!(shows(&["report", &json, "-o", &page, "--title", "A & B"]).contains("page.html"));
    let html = std::fs::read_to_string(&page).unwrap();
    for part in ["<title>A &amp; B</title>", "V n=64", "<svg", "one.json", "pingpong"] {
        assert!(html.contains(part), "{part}");
    }
    for page in [path("no/page.html"), path("")] {
        let output = call(&["report", &json, "-o", &page]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{page}: {error}");
        assert!(error.starts_with("gapless: --output "), "{error}");
    }
    let output = call(&["report", &path("missing.json"), "-o", &path("none.html")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("cannot read") && !folder.path().join("none.html").exists()
    );
}

/// A driver that ends whoever opens it, as PoCL does where there is no `/sys`, is a line of what `info` says.
#[test]
fn info_outlives_drivers() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("fake.c"), folder.path().join("libfake.so"));
    let text_of_it = "#include <stdio.h>\n#include <stdlib.h>\n\
        __attribute__((constructor)) static void start(void) { fputs(\"no topology\\n\", stderr); abort(); }\n";
    std::fs::write(&source, text_of_it).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    match compiler.output() {
        Ok(output) => assert!(output.status.success(), "{}", text(&output.stderr)),
        Err(error) => return skip("OpenCL drivers that abort", &format!("cc: {error}")),
    }
    let mut info = gapless();
    info.arg("info").env("OPENCL_DYLIB_PATH", &library);
    let output = finish(info, SOON);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}\n{said}", output.status);
    if cfg!(feature = "opencl") {
        let line = said.lines().find(|line| line.starts_with("space opencl")).unwrap();
        assert!(
            line.contains("not available: a driver ended") && line.contains("no topology"),
            "{line}"
        );
    }
    assert!(said.contains("shared memory  works"), "{said}");
}

#[test]
fn layouts_are_taken_apart() {
    let triangle = shows(&["layout", "--layout", "t", "--n", "100"]);
    for part in [
        "T n=100: 39.5 KiB",
        "sent and received: 1 × a type",
        "indexed([100, 99, 98, 97, 96, 95, … 94 more]",
        "MPI_DOUBLE",
        "size         40400 B",
        "blocks       100 of 8 to 800 B",
        "affine: 100 blocks, the first 800 B at 0, each -8 B and +808 B further",
        "signature    5050 elements, 40400 B, Typed",
        "affine 100: 800 step -8 at 0 step 808",
    ] {
        assert!(triangle.contains(part), "{part} in {triangle}");
    }
    let transpose = shows(&["layout", "-l", "x", "--n", "16"]);
    assert!(transpose.contains("sent: 1 ×") && transpose.contains("received: "), "{transpose}");
    let all = shows(&["layout"]);
    assert!(all.contains("halo26") && all.contains("groups:"), "{all}");
    let many = shows(&["layout", "--layout", "all"]);
    assert!(many.lines().count() > 300);
}

#[test]
fn protocols_are_explained() {
    let small = shows(&["explain", "--size", "64"]);
    assert!(small.lines().any(|l| l.starts_with("eager") && l.ends_with("chosen")), "{small}");
    assert!(small.contains("defaults until tuned"));
    let large = shows(&["explain", "--layout", "v", "--n", "1024"]);
    assert!(large.lines().any(|l| l.starts_with("mapped") && l.ends_with("chosen")), "{large}");
    assert!(large.contains(" others are impossible; --all says why\n"), "{large}");
    assert!(!large.lines().any(|line| line.starts_with("eager")), "{large}");
    let large = [large, shows(&["explain", "--layout", "v", "--n", "1024", "--all"])];
    assert!(large[1].contains("\n  eager             longer than the eager limit\n"), "{large:?}");
    let [large, _] = large;
    let heap = shows(&["explain", "--layout", "v", "--size", "32M", "--memory", "heap", "--all"]);
    let why = "\n  mapped            the sender's memory cannot be mapped\n";
    assert!(heap.contains(why), "{heap}");
    assert!(heap.lines().any(|l| l.starts_with("pipeline") && l.ends_with("chosen")), "{heap}");
    let from_one = "64 B, sent from one block and received into one block\n";
    assert!(small.contains(from_one), "{small}");
    let several = "sent from 1024 blocks and received into 1024 blocks\n";
    assert!(large.contains(several), "{large}");
}

/// A line on each device that `info` lists; without one, why there is no worker.
#[test]
fn whether_a_worker_could_be_started_is_explained() {
    let lines = |arguments: &[&str], hidden: bool| -> Vec<String> {
        let mut command = crate::common::gapless();
        command.args(arguments);
        if hidden {
            command.env("CUDA_VISIBLE_DEVICES", "");
        }
        let output = crate::common::finish_all(command, crate::common::WATCHDOG);
        crate::common::text(&output.stdout).lines().map(str::to_owned).collect()
    };
    let refused = "no worker could be started: ";
    let none = lines(&["explain", "--worker"], true);
    let [line] = &none[..] else { panic!("{none:?}") };
    let why = line.strip_prefix(refused);
    assert!(why.is_some_and(|why| why.len() > 3), "{line}");
    let devices = lines(&["info"], false);
    let named = |line: &&String| line.trim_start().starts_with("cuda:");
    let devices = devices.iter().filter(named).count();
    let explained = lines(&["explain", "--worker"], false);
    let mut numbers = 0..;
    let fits = |line: &String| match devices {
        0 => line.starts_with(refused),
        _ => {
            let (device, what) = line.split_once(": ").unwrap_or_default();
            device == format!("cuda:{}", numbers.next().unwrap_or(0))
                && (what == "a worker could be started" || what.starts_with(refused))
        }
    };
    assert_eq!(explained.len(), devices.max(1), "{explained:?}");
    assert!(explained.iter().all(fits), "{explained:?}");
}

#[test]
fn protocols_between_devices_are_explained_where_there_are_none() {
    let chosen = |arguments: &[&str]| {
        let shown = shows(&[&["explain", "--layout", "v", "--n", "1024"], arguments].concat());
        let line = shown.lines().find(|line| line.ends_with("chosen"));
        line.and_then(|line| line.split(' ').next()).unwrap_or_default().to_owned()
    };
    assert_eq!(chosen(&["--space", "cuda,cuda:1"]), "mapped");
    assert!(chosen(&["--space", "cuda,cuda:1", "--memory", "heap"]).starts_with("staged-"));
    assert_eq!(chosen(&["--space", "cuda", "--turns"]), "mapped-put");
    assert_eq!(chosen(&["--space", "host,cuda"]), "mapped");
    assert!(chosen(&["--space", "host,cuda", "--memory", "heap"]).contains("copy-in-out"));
    assert_eq!(chosen(&["--space", "cuda,host"]), "mapped-put");
    assert!(chosen(&["--space", "cuda,host", "--memory", "heap"]).contains("copy-in-out"));
    assert_eq!(chosen(&["--space", "opencl"]), "zero-copy-in-out");
    assert_eq!(chosen(&["--space", "cuda,opencl"]), "zero-copy-in-out");
}

#[test]
fn wrong_calls_are_refused_in_one_line() {
    refuses(&["layout", "--layout", "spiral"], "unknown layout `spiral`");
    refuses(
        &["layout", "--layout", "v", "--n", "0"],
        "--n 0: layout v refuses it: n is the matrix edge N, 1 or more",
    );
    refuses(
        &["explain", "--layout", "v,milc", "--n", "64"],
        "--n 64: layout milc refuses it: n is the parameter set of the benchmark, 1 to 4",
    );
    refuses(
        &["layout", "--layout", "face-x", "--n", "16", "--h", "13"],
        "--n 16: layout face-x refuses it with --h 13: a face of at least one cell starts at cell 4",
    );
    refuses(&["layout", "--layout", "face-x", "--h", "0"], "--h 0: layout face-x refuses n = ");
    refuses(&["layout", "--layout", "all", "--n", "64"], "--n 64: `all` names layouts");
    refuses(&["layout", "--n", "5"], "--n 5: it needs --layout");
    refuses(&["explain"], "explain: it needs a message");
    refuses(&["tune", "--budget", "0"], "--budget 0: must be 0.1 to 600 seconds");
    refuses(&["tune", "--force", "--output", "/proc/nowhere/x.toml"], "its folder cannot be made");
    refuses(&["pingpong", "--space", "cuda:999"], "space cuda:999 is not available");
    refuses(&["pingpong", "--space", "host,opencl:999"], "space opencl:999 is not available");
    refuses(
        &["pingpong", "--layout", "v", "--json", "/nonexistent/x.json"],
        "--json /nonexistent/x.json: there is no folder /nonexistent",
    );
    refuses(
        &["pingpong", "--layout", "v", "--time", "0"],
        "--time 0: must be more than 0 and at most 3600 seconds",
    );
    refuses(&TOO_BIG, "V n=262000 needs");
    refuses(
        &["pingpong", "--protocol", "pigeon"],
        "--protocol pigeon: the protocols between processes are eager, ",
    );
    let space = "--space moon: a space is host, cuda[:N] or opencl[:N]";
    refuses(&["pingpong", "--space", "moon"], space);
    refuses(&["explain", "--size", "1K", "--space", "moon"], space);
    refuses(&["pingpong", "--space", "cuda,host,host"], "--space cuda,host,host: ");
    refuses(&["pingpong", "--iterations", "0"], "--iterations 0: 0 is not in 1..=10000000");
    refuses(&["pingpong", "--memory", "x"], "--memory x: it is one of alloc, heap, locked, both");
    refuses(&["explain", "--size", "12parsecs"], "--size 12parsecs: a size is a whole number");
    refuses(&["frobnicate"], "unrecognized subcommand 'frobnicate'\n");
    refuses(&["explian"], "'explian'; tip: a similar subcommand exists: 'explain'\n");
    refuses(&["pingpong", "--frobnicate"], "unexpected argument '--frobnicate' found");
    refuses(&["report"], "arguments were not provided: <FILE.json>...\n");
    refuses(&["run", "-n", "1", "-env", "A", "B"], "; A=B was read as one variable");
    refuses(
        &["completions", "tcsh"],
        "<SHELL> tcsh: it is one of bash, elvish, fish, powershell, zsh",
    );
    refuses(&["man", "/dev/null/x"], "man /dev/null/x: this folder cannot be made: ");
}

#[test]
fn manual_pages_go_to_a_folder_or_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let man1 = folder.path().join("share/man1");
    let said = shows(&["man", man1.to_str().unwrap()]);
    let pages = std::fs::read_dir(&man1).unwrap().count();
    assert!(said.starts_with(&format!("{pages} pages written to ")), "{said}");
    assert_eq!(shows(&["man"]).matches(".TH gapless").count(), pages);
}

/// A job on one processor is warned of beside its figures; a call that is refused gets one line.
#[test]
fn one_processor_is_told_of_beside_the_figures_alone() {
    let before = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&processor| before.is_set(processor)).unwrap();
    let mut only = CpuSet::new();
    only.set(first);
    // For what this thread starts.
    sched_setaffinity(None, &only).unwrap();
    refuses(&TOO_BIG, "V n=262000 needs");
    let arguments = ["--layout", "nas-lu-x", "--n", "12", "--time", "0.01", "--buffers", "2M"];
    let output = call(&[&["pingpong"], &arguments[..]].concat());
    sched_setaffinity(None, &before).unwrap();
    let (table, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{error}");
    assert!(error.contains("only one processor"), "{error}");
    assert_eq!(rows(&table, "NAS LU x n=12").len(), 1, "{table}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let bench = ["bench", "latency", "-m", "8:64", "-i", "3", "-x", "1"];
    for arguments in
        [&["layout", "--layout", "all"][..], &["layout"], &["info"], &["--help"], &bench]
    {
        let mut command = gapless();
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Reads one byte at most, and closes.
        let mut out = child.stdout.take().unwrap();
        let _ = out.read(&mut [0u8; 1]).unwrap();
        drop(out);
        let output = finish_quietly(child);
        assert!(
            !text(&output.stderr).contains("panicked"),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
        assert!(output.status.success(), "{arguments:?}: {}", output.status);
    }
}

fn finish_quietly(child: std::process::Child) -> std::process::Output {
    child.wait_with_output().unwrap()
}

#[test]
fn tuning_is_measured_written_and_read_by_worlds() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a/b/tuning.toml");
    let path = file.to_str().unwrap();
    let output = call(&["tune", "--force", "--budget", "0.5", "--output", path]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("host.pipeline_mb_s") && shown.contains("written to"), "{shown}");
    let read = gapless::tuning::read(&file).unwrap();
    assert_ne!(read, gapless::Tuning::default());
    // Nothing is left beside it.
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    // A world takes it, and says so where it is asked.
    let mut explain = gapless();
    explain.args(["explain", "--size", "64"]).env("GAPLESS_TUNING", path);
    let output = finish(explain, SOON);
    assert!(text(&output.stdout).contains(&format!("numbers of {path}")), "{output:?}");
    let mut info = gapless();
    info.args(["info"]).env("GAPLESS_TUNING", path);
    assert!(finish(info, SOON).status.success());
    // One that is wrong ends a program with a line that says where.
    std::fs::write(&file, "version = 1\n[host]\nblock_ns = 'x'\n").unwrap();
    let mut info = gapless();
    info.args(["info"]).env("GAPLESS_TUNING", path);
    let output = finish(info, SOON);
    assert!(!output.status.success());
    let error = text(&output.stderr);
    assert!(error.contains("line 3") && error.contains("host.block_ns"), "{error}");
    // But not the tuner, which would be needed to mend it.
    let mut tune = gapless();
    tune.args(["tune", "--force", "--budget", "0.2", "--dry-run"]).env("GAPLESS_TUNING", path);
    let output = finish(tune, SOON);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert!(gapless::tuning::parse(&printed, path.as_ref()).is_ok(), "{printed}");
    assert!(std::fs::read_to_string(&file).unwrap().contains("'x'"), "a dry run writes nothing");
}
