//! Every experiment, as a user starts it but tiny: it ends well, and its JSON is a report that holds
//! together, of figures that were all checked. No times are looked at.

#![allow(missing_docs, reason = "a test")]
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gapless_report::{Report, Row};

fn figures(arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).output().expect("it starts")
}

/// Where cargo built it; in a bundle that was carried elsewhere, among the programs beside the tests.
fn program() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_figures"));
    if built.exists() {
        return built.to_owned();
    }
    let test = std::env::current_exe().expect("the system knows it");
    let bundle = test.parent().and_then(Path::parent).expect("it lies in tests/");
    bundle.join("programs/figures")
}

/// Whether what takes longest is measured, too: in the soak.
fn all() -> bool {
    std::env::var_os("GAPLESS_SMOKE_ALL").is_some()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs one experiment into a fresh folder and reads its report.
fn experiment(name: &str, more: &[&str]) -> (Report, String) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let output = figures(&[&[name, "--quick", "--out", out], more].concat());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{name}: {}\n{stdout}\n{stderr}", output.status);
    let report = Report::read_json(folder.path().join(name).with_extension("json")).unwrap();
    assert_eq!(report.experiment, name);
    assert!(report.command.starts_with("figures "), "{}", report.command);
    assert_eq!(report.unverified().count(), 0);
    drawings(folder.path(), name);
    for row in &report.rows {
        assert!(stdout.contains(&row.case), "{} is not shown:\n{stdout}", row.case);
        assert!(row.reference.is_some(), "{}", row.case);
    }
    (report, stdout)
}

fn drawings(folder: &Path, name: &str) {
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(file.starts_with(name), "{file}");
        if path.extension().is_some_and(|kind| kind == "svg") {
            assert!(std::fs::read_to_string(&path).unwrap().starts_with("<svg"), "{file}");
            count += 1;
        }
    }
    assert!(count > 0, "{name} drew nothing");
}

fn set<T: Ord>(rows: &[Row], of: impl Fn(&Row) -> T) -> BTreeSet<T> {
    rows.iter().map(of).collect()
}

#[test]
fn pack() {
    let (report, stdout) = experiment("pack", &[]);
    assert_eq!(
        set(&report.rows, |row| row.op.clone()),
        ["pack", "unpack"].map(String::from).into()
    );
    assert!(stdout.contains("rotate"));
    for row in &report.rows {
        assert_eq!(row.reference.as_deref(), Some("memcpy"));
        assert_eq!(row.extra["verified_by"], "oracle", "{}", row.case);
        assert!(row.resident_gbps.is_some() && row.blocks.is_some());
        assert!(row.extra["rotation_bytes"].as_u64().unwrap() >= row.payload_bytes);
    }
}

#[test]
fn pack_of_chosen_layouts() {
    let (report, _) = experiment("pack", &["--layout", "v,list1", "--n", "40"]);
    let names = set(&report.rows, |row| row.case.clone());
    assert_eq!(names, ["V n=40", "list1 blocks=40"].map(String::from).into());
}

#[test]
fn transfer() {
    let (report, _) = experiment("transfer", &[]);
    assert!(report.rows.len() >= 8);
    assert!(report.rows.iter().all(|row| row.ratio_to("pack+unpack").is_some()));
}

#[test]
fn position() {
    let (report, _) = experiment("position", &[]);
    assert_eq!(set(&report.rows, |row| row.blocks), [Some(10), Some(100), Some(1000)].into());
    assert_eq!(report.rows.len(), 12);
}

/// Without an OpenCL device there are no figures.
#[test]
fn acc7() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    if let Err(why) = gapless_mem_opencl::detect() {
        gapless_testkit::skip("acc7", &why.to_string());
        return assert!(!figures(&["acc7", "--quick", "--out", out]).status.success());
    }
    let (report, _) = experiment("acc7", &[]);
    let ways = ["nothing cached", "own queue", "cached", "1 queue", "2 queues"];
    let found = set(&report.rows, |row| row.protocol.clone());
    assert_eq!(found, ways.map(String::from).into());
    for row in report.rows.iter().filter(|row| row.op == "one way") {
        let made = row.extra["made"].as_u64().unwrap();
        assert_eq!(made == 0, row.protocol == "cached", "{}: {made}", row.protocol);
    }
}

#[test]
fn osc() {
    let (report, _) = experiment("osc", &["--payload", "8,4096"]);
    assert_eq!(
        set(&report.rows, |row| row.protocol.clone()),
        ["mapped", "messages"].map(String::from).into()
    );
    assert_eq!(report.rows.len(), 2 * (5 + 4));
}

#[test]
fn a_replay_that_mostly_accumulates() {
    let (report, stdout) = experiment("xtq8", &["--ranks", "2"]);
    let ways = set(&report.rows, |row| row.protocol.clone());
    for way in ["messages", "messages, thread", "host", "mapped", "CPU", "HSA", "XTQ"] {
        assert!(ways.contains(way), "{ways:?}");
    }
    let device = ways.contains("device") || report.absent.iter().any(|it| it.case == "device");
    assert!(device && stdout.contains("device"), "{stdout}");
}

/// A mix of the user's: half of it by the longest accumulates takes as long as the mean of both.
#[test]
fn a_replay_of_given_lengths() {
    let of = |mix: &str| -> Vec<f64> {
        let (report, _) = experiment("xtq8", &["--simulated", "--mix", mix]);
        assert!(report.rows.iter().all(|row| row.extra["mix"] == mix));
        report.rows.iter().map(|row| row.seconds.median).collect()
    };
    let [short, long, both] = ["8:1", "65536:7", "8:50,65536:50"].map(of);
    for ((short, long), both) in short.iter().zip(&long).zip(both) {
        assert!(long > &(2.0 * short) && (both - (short + long) / 2.0).abs() < 1e-11, "{both}");
    }
    for wrong in ["", "12:1", "8:0", "many"] {
        let refused = figures(&["xtq8", "--simulated", "--mix", wrong]);
        assert!(!refused.status.success() && text(&refused.stderr).contains("--mix"), "{wrong}");
    }
}

#[test]
fn matching() {
    let (report, _) = experiment("matching", &[]);
    let cases = set(&report.rows, |row| row.case.clone());
    assert!(cases.contains("posted outstanding=100"), "{cases:?}");
    assert!(cases.contains("unexpected outstanding=10"), "{cases:?}");
}

#[test]
fn oneway() {
    let some: &[&str] = if all() { &[] } else { &["--protocol", "auto,eager,pipeline"] };
    let (report, _) = experiment("oneway", some);
    let asked = set(&report.rows, |row| row.extra["asked"].as_str().unwrap().to_owned());
    // Whether one process may map or read another's memory is the system's to say.
    for way in ["auto", "eager", "pipeline"].iter().chain(all().then_some(&"auto-heap")) {
        assert!(asked.contains(*way), "{asked:?}");
    }
    for row in &report.rows {
        let asked = row.extra["asked"].as_str().unwrap();
        assert!(asked.starts_with("auto") || asked == row.protocol, "{asked}: {}", row.protocol);
    }
    let families = set(&report.rows, |row| row.case.split(' ').next().unwrap().to_owned());
    assert_eq!(families, ["contiguous", "V", "T", "X", "list3"].map(String::from).into());
}

#[test]
fn acc2() {
    let (report, _) = experiment("acc2", &[]);
    let ways = set(&report.rows, |row| row.op.clone());
    for way in ["plain", "explicit", "attribute", "detection"] {
        assert!(ways.contains(way), "{ways:?}");
    }
}

/// Needs root and `ip`.
#[test]
fn hosts() {
    let folder = tempfile::tempdir().unwrap();
    let output = figures(&["hosts", "--quick", "--out", folder.path().to_str().unwrap()]);
    let said = text(&output.stdout);
    if let Some((_, why)) = said.split_once("skipped: two hosts, ") {
        return skipped("hosts", why.lines().next().unwrap_or_default());
    }
    let (report, _) = experiment("hosts", &[]);
    assert_eq!(set(&report.rows, |row| row.case.clone()).len(), 9);
    let unknown = figures(&["hosts", "--quick", "--mpi", "nonsense"]);
    assert!(!unknown.status.success() && text(&unknown.stderr).contains("--mpi"));
}

/// What needs a GPU: measured where there is one, else refused in one line.
#[test]
fn on_a_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let alone = ["gpu", "wu6", "wu7", "wu8", "wu13", "wu14", "xtq-hw"];
    for name in alone.into_iter().chain(PAIRED).chain(OVER_A_NETWORK) {
        let output = figures(&[name, "--quick", "--out", out]);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        if output.status.code() == Some(2) {
            let why = stderr.strip_prefix("figures: no CUDA device to measure on: ");
            let why = why.unwrap_or_else(|| panic!("{name}: {stderr}"));
            assert_eq!(why.lines().count(), 1, "{stderr}");
            assert!(stdout.is_empty(), "{stdout}");
            skipped(name, why.trim_end());
            continue;
        }
        assert!(output.status.success(), "{name}: {}\n{stdout}\n{stderr}", output.status);
        let report = Report::read_json(folder.path().join(name).with_extension("json")).unwrap();
        assert_eq!(report.unverified().count(), 0);
        assert!(!report.machine.gpus.is_empty() && !report.rows.is_empty(), "{name}");
        assert!(report.absent.iter().all(|absent| !absent.failed), "{name}: {:?}", report.absent);
        if name == "gpu" {
            assert!(report.rows.iter().any(|row| row.met().is_some()));
            assert!(stdout.contains("marks: "), "{stdout}");
            assert!(!folder.path().join("gpu.partial.json").exists());
        }
    }
}

/// Experiments with pairs of processes, on devices.
const PAIRED: [&str; 7] = ["p2p", "p2p-matrix", "wu9", "wu10", "wu11", "wu12", "wu15"];

#[test]
fn device_memory_is_moved_by_hand_and_by_packets() {
    if !opencl_is_there() {
        return skipped("by hand", "there is no OpenCL device");
    }
    let on = |name, more: &[&str]| {
        experiment(name, &[&["--device", "opencl:0", "--link", "node,loopback"], more].concat())
    };
    let (report, _) = on("acc6", &["--rounds", "2"]);
    let spaces = set(&report.rows, |row| row.space.clone());
    let all = ["opencl:0", "opencl:0->host", "host->opencl:0"];
    assert_eq!(spaces, all.map(String::from).into());
    for row in &report.rows {
        assert!(
            row.ratio_to("pipelined").is_some() && row.extra["packet_bytes"].as_u64() > Some(0)
        );
    }
    let (report, stdout) = on("acc3", &["--crowds", "1"]);
    let links = report.rows.iter().filter(|row| row.op == "at a time").count();
    assert_eq!((links, stdout.matches("; used: ").count()), (2, 2), "{stdout}");
}

/// Whether there is an OpenCL device.
fn opencl_is_there() -> bool {
    gapless::OpenClDevice::open(0).is_ok()
}

#[test]
fn messages_lie_in_memory_of_any_kind_at_either_end() {
    let (report, _) = experiment("acc-matrix", &["--layout", "contiguous,v", "--payload", "65536"]);
    let kinds = report.rows.iter().filter(|row| row.case.starts_with("contiguous")).count();
    let spaces = set(&report.rows, |row| row.space.clone());
    let places = [true, opencl_is_there(), gapless::CudaDriver::load().is_ok()];
    let places = places.into_iter().filter(|there| *there).count();
    assert_eq!((spaces.len(), kinds), (places * places, places * places), "{spaces:?}");
}

#[test]
fn messages_lie_in_memory_of_the_host_of_each_kind() {
    let cuda = gapless::CudaDriver::load().is_ok_and(|driver| driver.devices() > 0);
    if !cuda && !opencl_is_there() {
        return skipped("messages between a device and the host", "there is no device");
    }
    let (report, _) = experiment("acc-host", &["--layout", "contiguous,x"]);
    let kinds = set(&report.rows, |row| row.op.clone());
    assert_eq!(kinds, ["heap", "alloc", "registered", "persistent"].map(String::from).into());
    assert_eq!(report.rows.len(), 2 * 4 * 2);
    assert!(report.rows.iter().all(|row| row.ratio_to("ordinary copy").is_some()));
}

#[test]
fn pairs_of_processes_measure_what_lies_on_devices() {
    if !opencl_is_there() {
        return skipped("between processes", "there is no OpenCL device");
    }
    let on_opencl =
        |name, more: &[&str]| experiment(name, &[&["--space", "opencl"], more].concat());
    let (report, _) = on_opencl("wu11", &[]);
    let spaces = set(&report.rows, |row| row.space.clone());
    assert_eq!(spaces, ["host", "opencl:0"].map(String::from).into());
    assert_eq!(report.rows.len(), 16);
    assert!(report.rows.iter().all(|row| row.met().is_none()));
    assert!(report.rows.iter().all(|row| row.extra["counters"]["messages"].as_u64() > Some(0)));
    if all() {
        let (report, _) = on_opencl("wu9", &[]);
        assert!(report.rows.iter().all(|row| row.space == "opencl:0->host"));
        let (report, _) = on_opencl("wu15", &[]);
        assert!(report.rows.iter().any(|row| row.op.contains("× 4")), "fragments are told");
    }
    let (report, stdout) = on_opencl("p2p", &["--brief", "--only", "few,one-mps"]);
    assert!(stdout.contains("8 blocks") && report.rows.len() >= 2, "{stdout}");
    if std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").is_none() {
        assert!(report.absent.iter().all(|absent| !absent.failed) && !report.absent.is_empty());
    }
}

/// Over a network: in the hosts' memory everywhere, on OpenCL where there is a device.
#[test]
fn pairs_of_processes_measure_what_goes_over_a_network() {
    let over = |name, space: &str| {
        let report = experiment(name, &["--brief", "--loopback", "--space", space]).0;
        assert!(report.rows.iter().all(|row| row.met().is_none()));
        assert!(report.rows.iter().all(|row| row.extra["transport"] == "tcp"));
        let held = |row: &&Row| row.ratio_to("contiguous in the host").is_some();
        assert!(report.rows.iter().filter(held).count() >= 1, "{name}");
        assert!(report.absent.is_empty(), "{:?}", report.absent);
        set(&report.rows, |row| row.space.clone())
    };
    assert_eq!(over("wu15-net", "host"), ["host"].map(String::from).into());
    if !opencl_is_there() {
        return skipped("over a network", "there is no OpenCL device");
    }
    let spaces = over("wu12-net", "opencl");
    assert_eq!(spaces, ["host", "opencl:0"].map(String::from).into());
}

/// Experiments with pairs of processes that are two hosts.
const OVER_A_NETWORK: [&str; 4] = ["wu10-net", "wu11-net", "wu12-net", "wu15-net"];

#[test]
fn pairs_of_processes_end_when_the_time_is_over() {
    if !opencl_is_there() {
        return skipped("between processes", "there is no OpenCL device");
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let arguments = ["p2p-matrix", "--quick", "--space", "opencl", "--limit", "2", "--out", out];
    let output = figures(&arguments);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("no time was left") && !stderr.contains("FAILED"), "{stderr}");
}

#[test]
fn processes_on_a_pretended_gpu_reduce_there() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let ranks = ["--processes", "3", "--mps", "off", "--sizes", "4096"];
    let arguments = ["faraji2", "--quick", "--space", "fake", "--out", out];
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/results/h100-one-gpu/tuned.toml");
    let output = figures(&[&arguments[..], &ranks, &["--table", table]].concat());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let report = Report::read_json(folder.path().join("faraji2.json")).unwrap();
    assert_eq!((report.unverified().count(), report.absent.len()), (0, 0));
    let ways = set(&report.rows, |row| row.protocol.clone());
    assert!(ways.len() == 9 && ways.contains("dynamic"), "{ways:?}");
    drawings(folder.path(), "faraji2");
    // Before any process is started.
    for wrong in [["--ways", "static"], ["--table", "/nonexistent"]] {
        let output = figures(&[&arguments[..], &ranks, &wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr).lines().count(), 1, "{}", text(&output.stderr));
    }
    let ranks = ["--processes", "3", "--mps", "off", "--sizes", "4608"];
    let arguments = ["heads", "--quick", "--space", "fake", "--out", out];
    let output = figures(&[&arguments[..], &ranks].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = Report::read_json(folder.path().join("heads.json")).unwrap();
    assert_eq!((report.unverified().count(), report.absent.len()), (0, 0));
    assert_eq!(set(&report.rows, |row| row.op.clone()).len(), 8);
    assert!(set(&report.rows, |row| row.protocol.clone()).contains("leader-driven"));
}

/// Each scheme, with each link, comes to the curve of one process: else there would be no row.
#[test]
fn an_epidemic_is_simulated_by_each_scheme() {
    for device in ["host", "opencl"] {
        if device == "opencl" && !opencl_is_there() {
            skipped("acc8 on OpenCL devices", "there is none");
            continue;
        }
        let (report, _) = experiment("acc8", &["--device", device, "--ranks", "3"]);
        assert_eq!((report.rows.len(), report.absent.len()), (6 * 4 * 3, 0));
    }
    let (report, stdout) = experiment("acc9", &["--device", "host"]);
    // 5b has no packing of its own, and 5c no copying.
    assert_eq!((report.rows.len(), report.absent.len()), (6 * (7 * 3 - 2), 0));
    assert!(stdout.contains("TCP, visits on the CPU, 5c: of computeVisits"), "{stdout}");
    let output = figures(&["acc8", "--device", "gpu"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("--device <KIND>") && stderr.contains("not host, cuda or opencl"),
        "{stderr}"
    );
}

/// With a GPU it is a run of its own; here the others go on in memory of the host.
#[test]
fn survivors_of_a_killed_rank_go_on() {
    let (report, stdout) = experiment("deaths", &["--host", "--ranks", "3", "--bytes", "4096"]);
    let steps: Vec<&str> = report.rows.iter().map(|row| row.op.as_str()).collect();
    assert_eq!(
        (&steps[..], report.absent.len()),
        (&["error", "revoke", "shrink", "next result"][..], 0)
    );
    for (row, next) in report.rows.iter().zip(&report.rows[1..]) {
        assert!(row.seconds.median <= next.seconds.median, "{} after {}", row.op, next.op);
    }
    assert!(stdout.contains("2 kills, --seed 1"), "{stdout}");
}

/// Simulated figures are the same everywhere: the committed ones are what this code gives. The long ones, and that none is
/// left out, in the soak.
#[test]
fn simulated_figures_are_the_committed_ones() {
    for name in ["xtq7", "xtq8", "xtq9", "xtq10"] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().to_str().unwrap();
        // The other half of this one is measured.
        let part: &[&str] = if name == "xtq8" { &["--simulated"] } else { &[] };
        let quick: &[&str] = if all() { &[] } else { &["--quick"] };
        let output = figures(&[&[name, "--out", out], part, quick].concat());
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{name}: {}\n{stdout}\n{stderr}", output.status);
        let report = Report::read_json(folder.path().join(name).with_extension("json")).unwrap();
        assert_eq!(report.unverified().count(), 0);
        drawings(folder.path(), name);
        let results = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/results/sim"));
        let committed = results.join(name).with_extension("json");
        if !committed.exists() {
            skipped(name, "no repository here");
            continue;
        }
        let committed = Report::read_json(committed).unwrap();
        for row in &report.rows {
            let same = |it: &&Row| (&it.case, &it.op) == (&row.case, &row.op);
            let known = committed.rows.iter().find(same).unwrap_or_else(|| panic!("{}", row.case));
            let off = (known.seconds.median / row.seconds.median - 1.0).abs();
            assert!(off < 1e-9, "{}, {}: run figures {name}", row.case, row.op);
            // A mark may be about rows that --quick leaves out.
            assert!(!all() || known.marks == row.marks, "{}, {}: marks", row.case, row.op);
        }
        assert!(!all() || committed.rows.len() == report.rows.len(), "{name}");
    }
}

/// Says aloud what was not tested.
fn skipped(name: &str, why: &str) {
    gapless_testkit::skip(&format!("figures {name}"), why);
}

#[test]
fn a_summary_quotes_the_reports() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    for name in ["position", "matching"] {
        assert!(figures(&[name, "--quick", "--out", out]).status.success());
    }
    let output = figures(&["summary", "--out", out]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written = std::fs::read_to_string(folder.path().join("README.md")).unwrap();
    let plot = "](position.svg)";
    for part in ["### position", plot, "| 1000 |", "### matching", "unexpected, random", "ns |"] {
        assert!(written.contains(part), "{part} is missing:\n{written}");
    }
}

#[test]
fn pictures_are_those_of_the_report_and_of_no_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let (out, picture) = (folder.path().to_str().unwrap(), folder.path().join("position.svg"));
    assert!(figures(&["position", "--quick", "--out", out]).status.success());
    let drawn = std::fs::read(&picture).unwrap();
    let [stale, foreign] = ["position-2.svg", "matching.svg"].map(|name| folder.path().join(name));
    std::fs::remove_file(&picture).unwrap();
    std::fs::write(&stale, "<svg").unwrap();
    std::fs::write(&foreign, "<svg").unwrap();
    let output = figures(&["draw", "--out", out]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(std::fs::read(&picture).unwrap() == drawn);
    assert!(!stale.exists() && foreign.exists());
}

#[test]
fn the_list_names_every_experiment() {
    let listed = text(&figures(&["list"]).stdout);
    for entry in gapless_bench::experiments::ALL {
        assert!(listed.contains(entry.name) && listed.contains(entry.about), "{listed}");
    }
}

#[test]
fn wrong_calls_are_refused_in_a_line() {
    for (arguments, why) in [
        (&["pack", "--layout", "no-such-layout"][..], "no-such-layout"),
        (&["pack", "--layout", "v", "--n", "0"], "0"),
        (&["pack", "--layout", "v", "--n", "100000"], "V n=100000 needs a buffer"),
        (&["pack", "--time", "0"], "3600 seconds"),
        (&["position", "--blocks", "3"], "3"),
        (&["no-such-experiment"], "no-such-experiment"),
        (&["gpu", "--group", "no-such-group"], "no-such-group"),
        (&["p2p", "--space", "host"], "about devices"),
        (&["p2p", "--space", "opencl", "--only", "no-such-pair"], "no-such-pair"),
    ] {
        let output = figures(arguments);
        let stderr = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(stderr.contains(why), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
