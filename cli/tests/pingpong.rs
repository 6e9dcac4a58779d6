//! The main job, end to end.

use crate::common::{finish, finish_child, gapless, rows, skip, text};
use gapless_report::Report;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Stdio;
use std::time::{Duration, Instant};

fn pingpong(arguments: &[&str]) -> (Report, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let (json, plot) = (folder.path().join("out.json"), folder.path().join("out.svg"));
    let mut command = gapless();
    command.arg("pingpong").args(["--time", "0.02"]).args(arguments);
    // As much memory on every machine; otherwise buffers are as large as its cache asks for.
    command.args(["--buffers", "1M"]);
    command.arg("--json").arg(&json).arg("--plot").arg(&plot);
    let output = finish(command, Duration::from_secs(300));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = Report::read_json(&json).expect("it holds together");
    // Many layouts take several pages, each with a number in its name.
    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.filter(|path| path.extension() == plot.extension());
    let drawn: String = pages.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    (report, text(&output.stdout), drawn)
}

/// The others are measured, standard error names what is left out and why, and the exit code is 1.
fn goes_on_without(layouts: &str, n: &str, measured: &str, left_out: &str, why: &str) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let mut command = gapless();
    command.args(["pingpong", "--layout", layouts, "--n", n, "--iterations", "3"]);
    command.args(["--buffers", "2M", "--json"]).arg(&json);
    let output = finish(command, Duration::from_secs(100));
    let (table, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{error}");
    let line = format!("gapless: {left_out} is left out: {why}");
    assert_eq!(error.lines().filter(|l| l.starts_with(&line)).count(), 1, "{error}");
    assert_eq!(rows(&table, measured).len(), 1, "{table}");
    let report = Report::read_json(&json).expect("it holds together");
    assert_eq!(report.rows.len(), 1);
    assert!(report.absent.iter().any(|absent| absent.case == left_out && absent.failed));
}

#[test]
fn an_impossible_layout_does_not_end_the_others() {
    goes_on_without(
        "milc,nas-lu-x",
        "64",
        "NAS LU x n=64",
        "milc",
        "--n 64: layout milc refuses it: n is the parameter set of the benchmark, 1 to 4",
    );
    // 4 TiB for both processes.
    let (contig, v) = ("openmpi contig x262000", "V n=262000");
    goes_on_without("contig,v", "262000", contig, v, "V n=262000 needs ");
}

/// Whoever stops it has the rows that were shown, and a report that names those that are missing.
#[test]
fn what_was_measured_is_kept_if_the_rest_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let mut command = gapless();
    command.args(["pingpong", "--layout", "v,t", "--n", "64", "--buffers", "2M"]);
    command.args(["--time", "1"]).arg("--json").arg(&json);
    command.args(["--memory", "both"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    while Report::read_json(&json).is_err() && child.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(100), "nothing is written");
        std::thread::sleep(Duration::from_millis(1));
    }
    // It may have come to its end meanwhile.
    let _ = kill_process(Pid::from_child(&child), Signal::INT);
    finish_child(child, Duration::from_secs(100), "pingpong");
    let report = Report::read_json(&json).expect("it holds together");
    let missing = report.absent.iter().filter(|absent| absent.why == "not measured yet");
    assert_eq!(report.rows.len() + missing.count(), 4);
    assert_eq!(report.rows[0].case, "V n=64 (alloc)");
}

/// `--json -`: standard output has the report alone.
#[test]
fn the_report_goes_to_standard_output_if_asked_for() {
    let mut command = gapless();
    command.args(["pingpong", "-l", "v", "--n", "64", "--iterations", "3", "--buffers", "2M"]);
    command.args(["--json", "-"]);
    let output = finish(command, Duration::from_secs(100));
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report.rows.len(), 1);
    assert!(text(&output.stderr).contains("V n=64"), "{}", text(&output.stderr));
}

/// Each message has memory of its own: what is about rotating buffers is not shown.
#[test]
fn memory_to_size_does_not_rotate() {
    let (report, table, _) = pingpong(&["-l", "v", "--n", "64", "--memory", "to-size"]);
    assert!(report.rows[0].resident_gbps.is_none());
    assert!(!table.contains("rotating") && !table.contains("resident"), "{table}");
    assert!(table.contains("in memory of its own length"), "{table}");
}

/// Whether this machine lets processes read each other's memory, by the command's own word.
fn single_copy_works() -> bool {
    let mut command = gapless();
    command.arg("info");
    let info = text(&finish(command, Duration::from_secs(60)).stdout);
    info.lines().any(|line| line.starts_with("single copy") && line.contains("works"))
}

#[test]
fn layouts_travel_and_every_byte_is_right() {
    let (report, table, plot) = pingpong(&["--layout", "v,t", "--layout", "x", "--n", "96"]);
    assert_eq!(report.experiment, "pingpong");
    assert!(report.command.starts_with("gapless pingpong --time 0.02 --layout v,t"));
    assert!(!report.command.contains("--as-rank"));
    let names: Vec<_> = report.rows.iter().map(|row| row.case.as_str()).collect();
    assert_eq!(names, ["V n=96", "T n=96", "X n=96"]);
    for row in &report.rows {
        assert!(row.verified, "{}", row.case);
        assert_eq!((row.op.as_str(), row.space.as_str()), ("oneway", "host"));
        assert!(row.ratio_to("memcpy").is_some() && row.ratio_to("contiguous").is_some());
        assert!(row.blocks.is_some() && row.resident_gbps.is_some());
        assert_eq!(rows(&table, &row.case).len(), 1, "{table}");
    }
    assert_eq!(report.rows[0].payload_bytes, 8 * 96 * 96);
    assert!(plot.starts_with("<svg"));
}

#[test]
fn every_protocol_carries_every_kind_of_layout() {
    for protocol in ["eager", "pipeline", "mapped", "single-copy"] {
        let arguments = [
            "--protocol",
            protocol,
            "--memory",
            "both",
            "--iterations",
            "3",
            "--seed",
            "99",
            // A vector of vectors, a vector, two lists.
            "--layout",
            "milc,nas-lu-y,lammps-atomic,specfem3d-oc",
            "--n",
            "2",
        ];
        let (report, ..) = pingpong(&arguments);
        assert!(report.rows.iter().all(|row| row.verified), "{protocol}");
        if protocol == "single-copy" && !single_copy_works() {
            skip("single copy between processes", "the system forbids process_vm_readv");
            continue;
        }
        let used = report.rows.iter().filter(|row| row.protocol == protocol).count();
        assert!(used > 0, "{protocol} never ran");
    }
    let (report, ..) = pingpong(&["--layout", "nas-mg,wrf", "--iterations", "3"]);
    assert!(report.rows.iter().all(|row| row.verified));
}

/// Whether there is an OpenCL device, by the command's own word.
fn opencl_is_there() -> bool {
    let mut command = gapless();
    command.arg("info");
    let info = text(&finish(command, Duration::from_secs(60)).stdout);
    let line = info.lines().find(|line| line.starts_with("space opencl"));
    line.is_some_and(|line| !line.contains("not available"))
}

#[test]
fn messages_lie_in_the_memory_of_devices() {
    if !opencl_is_there() {
        return skip("messages in device memory", "there is no OpenCL device");
    }
    for (space, shown) in [
        ("opencl", "opencl:0"),
        ("opencl,host", "opencl:0->host"),
        ("host,opencl:0", "host->opencl:0"),
    ] {
        let arguments = ["--space", space, "--layout", "v,vc,t", "--n", "48"];
        let (report, table, _) = pingpong(&[&arguments[..], &["--iterations", "3"]].concat());
        assert_eq!(report.rows.len(), 3);
        for row in &report.rows {
            assert!(row.verified, "{}", row.case);
            assert_eq!(row.space, shown);
            // Page-locked or not, there is something to compare with.
            assert!(row.ratio.is_some() && row.ratio_to("contiguous").is_some(), "{}", row.case);
            assert_eq!(rows(&table, &row.case).len(), 1, "{table}");
        }
    }
}

#[test]
fn it_runs_under_a_launcher_of_the_users_own() {
    let mut command = gapless();
    command.args(["run", "-n", "2"]).arg(env!("CARGO_BIN_EXE_gapless"));
    command.args(["pingpong", "--layout", "nas-lu-x", "--n", "12", "--time", "0.01"]);
    command.args(["--buffers", "2M"]);
    let output = finish(command, Duration::from_secs(100));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert_eq!(rows(&table, "NAS LU x n=12").len(), 1, "{table}");
    let mut command = gapless();
    command.args(["run", "-n", "3"]).arg(env!("CARGO_BIN_EXE_gapless"));
    command.args(["pingpong", "--layout", "nas-lu-x"]);
    let output = finish(command, Duration::from_secs(100));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("this job has 3"), "{}", text(&output.stderr));
}
