//! `gapless bench`: every test, with the fewest messages that show it.

use crate::common::{finish, gapless, skip, text};
use gapless_report::Report;
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(100);

/// Few messages, and what was shown: lines of numbers, and comments.
fn bench(arguments: &[&str]) -> (Vec<Vec<String>>, String) {
    let mut command = gapless();
    command.arg("bench").args(arguments).args(["-i", "3", "-x", "1"]);
    let output = finish(command, SOON);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{arguments:?}: {shown}{}", text(&output.stderr));
    let (comments, lines): (Vec<&str>, Vec<&str>) =
        shown.lines().partition(|line| line.starts_with('#'));
    let split = |line: &&str| line.split_whitespace().map(str::to_owned).collect();
    (lines.iter().map(split).collect(), comments.join("\n"))
}

/// The first column, if all others are positive numbers.
fn sizes(lines: &[Vec<String>], columns: usize) -> Vec<String> {
    for line in lines {
        assert_eq!(line.len(), columns, "{line:?}");
        assert!(line[1..].iter().all(|cell| cell.parse::<f64>().unwrap() > 0.0), "{line:?}");
    }
    lines.iter().map(|line| line[0].clone()).collect()
}

#[test]
fn every_test_shows_sizes_and_one_number() {
    for (test, unit) in
        [("latency", "µs"), ("bw", "MB/s"), ("bibw", "MB/s"), ("rate", "messages/s")]
    {
        let window: &[&str] = if test == "latency" { &[] } else { &["-W", "4"] };
        let (lines, comments) = bench(&[&[test, "-m", "1K:4K"], window].concat());
        assert_eq!(sizes(&lines, 2), ["1024", "2048", "4096"], "{test}");
        let about = format!("# gapless bench {test}: 2 ranks, memory host (alloc)");
        assert!(comments.starts_with(&about), "{comments}");
        assert!(comments.lines().last().unwrap().ends_with(unit), "{comments}");
    }
    let (lines, comments) = bench(&["pair-rate", "--pairs", "2", "-m", "8", "-W", "4"]);
    assert_eq!(sizes(&lines, 2), ["8"]);
    assert!(comments.contains("4 ranks"), "{comments}");
    let (lines, comments) = bench(&["pair-latency", "--pairs", "2", "-m", "8"]);
    assert_eq!(sizes(&lines, 2), ["8"]);
    assert!(comments.contains("4 ranks") && comments.ends_with("µs"), "{comments}");
    let (lines, comments) = bench(&["overlap", "-m", "64K"]);
    let [bytes, time, overlap] = &lines[0][..] else { panic!("{lines:?}") };
    assert!(bytes == "65536" && time.parse::<f64>().unwrap() > 0.0, "{lines:?}");
    assert!((0.0..=100.0).contains(&overlap.parse::<f64>().unwrap()), "{overlap}");
    assert!(comments.ends_with("overlap %") && !comments.contains("window"), "{comments}");
    // No bytes at all are a message, too.
    assert_eq!(bench(&["latency", "-m", "0:1"]).0.len(), 2);
}

#[test]
fn collectives_show_the_average_and_the_last_rank() {
    let (lines, comments) = bench(&["coll", "allreduce", "-n", "3", "-m", "8:32"]);
    assert_eq!(sizes(&lines, 3), ["8", "16", "32"]);
    assert!(lines.iter().all(|line| {
        let [average, last] = [1, 2].map(|at| line[at].parse::<f64>().unwrap());
        average <= last
    }));
    assert!(comments.contains("coll allreduce: 3 ranks"), "{comments}");
    let vector = ["gatherv", "Allgatherv", "MPI_Alltoallv", "reduce_scatter"];
    let neighbors = ["neighbor-allgather", "neighbor-alltoall"];
    let plain = ["barrier", "bcast", "gather", "alltoall", "exscan"];
    for operation in plain.into_iter().chain(vector).chain(neighbors) {
        let (lines, _) = bench(&["coll", operation, "-n", "2", "-m", "64"]);
        assert_eq!(sizes(&lines, 3).len(), 1, "{operation}");
    }
    let (lines, _) =
        bench(&["coll", "bcast", "-n", "2", "-m", "64", "--algorithm", "binomial", "--full"]);
    assert_eq!(lines[0].last().unwrap(), "binomial");
}

#[test]
fn a_mixture_is_shown_beside_the_same_calls_repeated() {
    let (lines, comments) = bench(&["coll", "mixture", "-n", "3"]);
    assert_eq!(sizes(&lines, 3), ["0"]);
    assert!(comments.contains("coll mixture: 3 ranks, memory host, µs of 16 calls"), "{comments}");
    assert!(comments.ends_with("repeated"), "{comments}");
    let mut command = gapless();
    command.args(["bench", "coll", "mixture", "-m", "64"]);
    let output = finish(command, SOON);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("--message-size: a mixture "),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn what_other_work_hides_is_shown() {
    let (lines, comments) =
        bench(&["coll", "alltoall", "-n", "2", "-m", "64", "--form", "overlap"]);
    let [bytes, time, overlap] = &lines[0][..] else { panic!("{lines:?}") };
    assert_eq!(bytes, "64");
    assert!(time.parse::<f64>().unwrap() > 0.0);
    assert!((0.0..=100.0).contains(&overlap.parse::<f64>().unwrap()), "{overlap}");
    assert!(comments.ends_with("overlap %"), "{comments}");
}

#[test]
fn one_sided_operations_show_a_time_or_a_bandwidth() {
    for test in ["put", "get", "accumulate", "get-accumulate"] {
        let (lines, comments) = bench(&[test, "-m", "64:256"]);
        assert_eq!(sizes(&lines, 2), ["64", "128", "256"], "{test}");
        assert!(comments.ends_with("µs"), "{comments}");
    }
    for test in ["fetch-and-op", "compare-and-swap"] {
        assert_eq!(sizes(&bench(&[test]).0, 2), ["8"], "{test}");
    }
    for test in ["put", "get", "get-accumulate"] {
        let (lines, comments) = bench(&[test, "-W", "4", "-m", "1K:2K"]);
        assert_eq!(sizes(&lines, 2), ["1024", "2048"], "{test}");
        assert!(comments.contains("window 4") && comments.ends_with("MB/s"), "{comments}");
    }
}

/// `--json -`: standard output has the report alone.
#[test]
fn figures_go_to_standard_output_if_asked_for() {
    let mut command = gapless();
    command.args(["bench", "latency", "-m", "8", "-i", "3", "-x", "1", "--json", "-"]);
    let output = finish(command, SOON);
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report.rows.len(), 1);
    assert!(text(&output.stderr).contains("# gapless bench latency"));
}

#[test]
fn collectives_move_layouts_too() {
    for operation in ["bcast", "gather", "scatter", "allgather", "alltoall"] {
        // X is sent as columns and received as rows.
        let (lines, comments) = bench(&["coll", operation, "-n", "3", "-l", "v,x", "-m", "512:1K"]);
        assert_eq!(sizes(&lines, 3), ["512", "1024", "512", "1024"], "{operation}");
        assert!(comments.contains("3 ranks, memory host (alloc)"), "{comments}");
    }
    let (lines, _) = bench(&["coll", "alltoall", "-n", "2", "--memory", "heap", "-m", "1"]);
    assert_eq!(sizes(&lines, 3), ["1"]);
}

#[test]
fn collectives_combine_any_elements_in_any_layout() {
    for (operation, arguments, expected) in [
        ("reduce", &["--type", "bf16", "-m", "2:8"][..], &["2", "4", "8"][..]),
        (
            "allreduce",
            &["--type", "MPI_INT", "--op", "bxor", "--memory", "heap", "-m", "4K"],
            &["4096"],
        ),
        // A value of 8 bytes and an index of 4.
        (
            "allreduce",
            &["--type", "double_int", "--op", "maxloc", "-m", "16:64"],
            &["12", "24", "60"],
        ),
        ("reduce_scatter_block", &["-l", "v", "--op", "prod", "-m", "512"], &["512"]),
        ("scan", &["-l", "x,t", "-m", "2K"], &["2048", "1088"]),
        ("MPI_Exscan", &["--type", "u8", "-m", "1"], &["1"]),
    ] {
        let (lines, _) = bench(&[&["coll", operation, "-n", "3"], arguments].concat());
        assert_eq!(sizes(&lines, 3), expected, "{operation}");
    }
    let (lines, comments) = bench(&["coll", "bcast", "-n", "2", "--type", "f32", "-m", "4:8"]);
    assert_eq!(sizes(&lines, 3), ["4", "8"]);
    assert!(comments.contains("# layout MPI_FLOAT"), "{comments}");
    // What cannot be combined keeps nothing else back.
    let (lines, comments) = bench(&["coll", "scan", "-n", "2", "-l", "indexed_gap,v", "-m", "2K"]);
    assert_eq!(sizes(&lines, 3), ["2048"], "{comments}");
    assert!(
        comments.contains(": left out, --op MPI_SUM: it combines elements of one"),
        "{comments}"
    );
}

#[test]
fn layouts_are_as_easy_as_bytes() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/layout.toml");
    let file = ["--layout-file", own.to_str().unwrap()];
    let arguments = ["bw", "--layout", "v", "-m", "32K:64K", "-W", "3", "--memory", "heap"];
    let (lines, comments) = bench(&[&arguments[..], &file].concat());
    let layouts: Vec<&str> = comments.lines().filter(|line| line.starts_with("# layout")).collect();
    assert_eq!(layouts, ["# layout v", "# layout leaving particles", "# layout columns to rows"]);
    // As often as it fits: 145 and 32768 bytes.
    let expected = ["32768", "65536", "32625", "65395", "32768", "65536"];
    assert_eq!(sizes(&lines, 2), expected);
    // By every protocol that a message in heap memory can take.
    for protocol in ["eager", "pipeline"] {
        let arguments = ["latency", "-l", "t", "-m", "2K", "--protocol", protocol, "-f"];
        let (lines, _) = bench(&[&arguments[..], &["--memory", "heap"]].concat());
        assert_eq!(lines[0].last().unwrap(), protocol);
        assert_eq!(sizes(&[lines[0][..8].to_vec()], 8).len(), 1);
    }
}

#[test]
fn figures_are_written_for_programs() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let json = json.to_str().unwrap();
    let arguments = ["bibw", "-l", "v", "-m", "512:2K", "-W", "2", "--csv", "--json", json];
    let (lines, comments) = bench(&arguments);
    assert_eq!(comments, "");
    assert_eq!(lines[0], ["message,bytes,mb_per_s"]);
    assert!(lines[2].join(" ").starts_with("2 × V n=8,1024,"), "{lines:?}");
    let report = Report::read_json(json).unwrap();
    assert_eq!((report.experiment.as_str(), report.rows.len()), ("bench", 3));
    let row = &report.rows[1];
    assert_eq!((row.case.as_str(), row.op.as_str()), ("2 × V n=8", "bibw"));
    assert!(row.verified && row.payload_bytes == 1024 && row.blocks == Some(15));
    for (key, value) in [("window", 2), ("ranks", 2), ("iterations", 3)] {
        assert_eq!(row.extra[key].as_u64(), Some(value), "{key}");
    }
    assert!(
        report.command.starts_with("gapless bench bibw -l v")
            && !report.command.contains("as-rank")
    );
    let (lines, _) = bench(&["rate", "-m", "8", "-f", "--csv"]);
    assert_eq!(
        lines[0],
        [
            "message,bytes,messages_per_s,mb_per_s,average_us,min_us,median_us,p90_us,p99_us,max_us,blocks,protocol"
        ]
    );
    let cells: Vec<&str> = lines[1][0].split(',').collect();
    assert_eq!((cells.len(), cells[0], cells[11]), (12, "contiguous", "eager"));
}

#[test]
fn a_window_shrinks_where_memory_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let json = json.to_str().unwrap();
    bench(&["bw", "-m", "64K:256K", "--buffers", "300K", "--json", json]);
    let report = Report::read_json(json).unwrap();
    let windows: Vec<_> = report.rows.iter().map(|row| row.extra["window"].as_u64()).collect();
    assert_eq!(windows, [Some(4), Some(2), Some(1)]);
}

#[test]
fn it_is_one_rank_of_a_launcher_of_the_users_own() {
    let run = |ranks: &str, arguments: &[&str]| {
        let mut command = gapless();
        command.args(["run", "-n", ranks]).arg(env!("CARGO_BIN_EXE_gapless")).arg("bench");
        command.args(arguments).args(["-i", "2", "-x", "1"]);
        let output = finish(command, SOON);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, shown, error) = run("4", &["pair-rate", "-m", "8", "-W", "2"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(shown.contains("4 ranks"), "{shown}");
    for (ranks, arguments, complaint) in [
        ("3", &["latency", "-m", "8"][..], "it takes two processes; this job has 3"),
        ("3", &["pair-rate", "-m", "8"], "pairs take an even number of ranks; this job has 3"),
        ("2", &["pair-rate", "--pairs", "2"], "--pairs 2: that takes 4 ranks; this job has 2"),
        ("2", &["coll", "barrier", "-n", "5"], "--ranks 5: the launcher has started 2"),
        ("3", &["put", "-m", "8"], "it takes two processes; this job has 3"),
    ] {
        let (code, _, error) = run(ranks, arguments);
        assert_eq!(code, Some(2), "{error}");
        assert_eq!(error.matches(complaint).count(), 1, "{error}");
        assert!(!error.contains("without finalizing"), "{error}");
    }
}

#[test]
fn messages_lie_in_the_memory_of_devices() {
    let mut info = gapless();
    info.arg("info");
    let info = text(&finish(info, SOON).stdout);
    let line = info.lines().find(|line| line.starts_with("space opencl"));
    if line.is_none_or(|line| line.contains("not available")) {
        return skip("bench in device memory", "there is no OpenCL device");
    }
    for space in ["opencl", "host,opencl"] {
        let (lines, _) = bench(&["bw", "-l", "v", "-m", "2K", "-W", "2", "--space", space]);
        assert_eq!(sizes(&lines, 2), ["2048"]);
        let (lines, _) = bench(&["coll", "allgather", "-n", "2", "-m", "64", "--space", space]);
        assert_eq!(sizes(&lines, 3), ["64"]);
    }
}

#[test]
fn a_wrong_environment_is_a_wrong_call() {
    for (variable, value) in [
        ("GAPLESS_STUCK", "soon"),
        ("GAPLESS_START_SECONDS", "x"),
        ("GAPLESS_TCP_PORTS", "x"),
        ("GAPLESS_ENCRYPT", "maybe"),
        ("GAPLESS_TUNING", "/nonexistent"),
    ] {
        let mut command = gapless();
        command.args(["bench", "latency", "-m", "8"]).env(variable, value);
        let output = finish(command, SOON);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{variable}: {error}");
        assert!(error.contains(variable) || error.contains(value), "{error}");
    }
}

#[test]
fn a_file_that_is_there_stays_if_nothing_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    std::fs::write(&old, "old").unwrap();
    for path in [&old, &new] {
        let mut command = gapless();
        command.args(["bench", "put", "-m", "99999G", "--json"]).arg(path);
        assert_eq!(finish(command, SOON).status.code(), Some(2));
    }
    assert_eq!(std::fs::read(&old).unwrap(), b"old");
    assert!(!new.exists());
}

#[test]
fn wrong_calls_are_refused_in_one_line() {
    for (arguments, complaint) in [
        (&["latency", "-m", "x"][..], "--message-size x: a size is a whole number of bytes"),
        (&["latency", "-m", "4:2"], "--message-size 4:2: the least size stands before the colon"),
        (&["latency", "-i", "0"], "--iterations 0: 0 is not in 1..="),
        (&["latency", "-i", "x"], "--iterations x: it is a whole number"),
        (&["latency", "--time", "x"], "--time x: it is a number"),
        (&["bw", "-W", "0"], "--window 0: 0 is not in 1..=65536"),
        (&["pair-rate", "--pairs", "0"], "--pairs 0: 0 is not in 1..=512"),
        (&["coll", "barrier", "-n", "1"], "--ranks 1: 1 is not in 2..=1024"),
        (&["latency", "--time", "0"], "--time 0: must be more than 0 and at most 3600 seconds"),
        (&["latency", "--space", "cuda:999"], "space cuda:999 is not available"),
        (&["latency", "--memory", "both"], "--memory both: it is one of alloc, heap"),
        (
            &["latency", "--protocol", "pigeon"],
            "--protocol pigeon: the protocols between processes",
        ),
        (&["latency", "--layout", "spiral"], "unknown layout `spiral`"),
        (
            &["latency", "--layout", "milc", "-m", "64"],
            "--message-size 64: the least message of MILC",
        ),
        (&["latency", "--n", "64"], "--n 64: it needs --layout"),
        (&["latency", "--json", "/nonexistent/x"], "--json /nonexistent/x: there is no folder"),
        (&["coll", "allreduce", "-m", "4"], "--message-size 4: it is of whole doubles"),
        (&["coll", "nope"], "there is no operation \"nope\""),
        (&["coll", "all"], "there is no operation \"all\""),
        (&["accumulate", "-m", "4"], "--message-size 4: accumulate is of whole doubles"),
        (&["fetch-and-op", "-m", "16"], "--message-size 16: fetch-and-op is of one number"),
        (&["latency", "--json", "/"], "--json /: it is a folder"),
        (
            &["coll", "bcast", "--algorithm", "doubling"],
            "--algorithm doubling: it does not do bcast; these do: ",
        ),
        (&["coll", "allreduce", "--space", "opencl"], "reductions work on memory of the host"),
        (&["coll", "barrier", "-l", "v"], "--layout: it is for bcast, gather, scatter, "),
        (&["coll", "gatherv", "--type", "byte"], "; gatherv is measured of doubles in ordinary"),
        (&["coll", "gatherv", "-m", "12"], "multiples of 8 bytes, 1 TiB at most\n"),
        (&["coll", "mixture", "--protocol", "eager"], "--protocol: a mixture is of blocking calls"),
        (&["put", "-m", "99999G"], "put needs "),
        (&["get", "-W", "65536", "-m", "1G"], "get needs 64"),
        (&["latency", "--json", "/proc/x.json"], "--json /proc/x.json: "),
        (&["coll", "bcast", "--op", "sum"], "--op MPI_SUM: it is for reduce, allreduce, "),
        (&["coll", "reduce", "--op", "add"], "--op add: it is one of max, min, sum, "),
        (&["coll", "reduce", "--type", "flaot"], "--type flaot: it is one of char, "),
        (
            &["coll", "reduce", "--type", "byte"],
            "--op MPI_SUM: it is not defined for MPI_BYTE, but",
        ),
        (&["coll", "reduce", "--type", "int", "-l", "v"], "--type MPI_INT: a layout has elements"),
        (&["coll", "scan", "--type", "int", "-m", "3"], "the least message of MPI_INT has 4 bytes"),
        (&["coll", "bcast", "--space", "cuda:999"], "space cuda:999 is not available"),
        (&["coll", "bcast", "--memory", "heap", "-m", "999G"], "contiguous needs "),
        // 4 TiB and more.
        (&["latency", "-m", "1024G"], "contiguous needs 4 TiB"),
    ] {
        let mut command = gapless();
        command.arg("bench").args(arguments);
        let output = finish(command, SOON);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(complaint), "{error}");
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
    }
}
